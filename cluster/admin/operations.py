"""The one table of the operations of the admin API: who may ask for each, with what arguments, and what it answers.

Everything else goes by it: the controller, which does not start if it does not know how to do exactly these; the judge
of who may do what (`cluster.controller.access.permissions`); the description of the API over HTTP, and the docs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from cluster.admin import answers, arguments

if TYPE_CHECKING:
    from cluster.objects import Role

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMINISTRATOR: Final = "administrator"

#: What a request is about:
#: node       the node as a whole
#: vpn        the Message VPN in its argument `vpn`
#: vpns       the same; or all of them
#: object     an object of the kind in its argument `kind`, of which `permissions.KINDS` has the role
#: objects    objects of one kind, in one Message VPN or all
#: declared   many objects, each named in the request, or all that there are
#: own        only who asks, or what everybody may know
#: host       nobody: asked on the host of the node, on nobody's behalf
Scope = Literal["node", "vpn", "vpns", "object", "objects", "declared", "own", "host"]

#: An object as it is shown: its attributes, and what the node set; which its kind says (`cluster.objects.KINDS`).
_Shown = dict[str, Any]
#: The same of queues and topic endpoints, with what they hold.
_Endpoint = dict[str, Any]
#: Kind, Message VPN, name and attributes.
_Declared = tuple[str, str | None, str, dict[str, Any]]


class Operation(NamedTuple):
    """What there is to know of an operation without doing it."""

    #: The least role that it takes, and the scope in which it is needed.
    role: Role
    scope: Scope
    arguments: type[Any]
    #: What it answers; None: nothing.
    answer: Any
    summary: str


OPERATIONS: Final[dict[str, Operation]] = {
    "status": Operation(VIEWER, "node", arguments.NoArguments, answers.Status, "Show the node"),
    "workers": Operation(VIEWER, "node", arguments.NoArguments, list[answers.Process], "List workers"),
    "workers.scale": Operation(
        ADMINISTRATOR, "node", arguments.ScaleArguments, answers.Workers, "Have another number of workers"
    ),
    "workers.balance": Operation(
        ADMINISTRATOR,
        "node",
        arguments.BalanceArguments,
        answers.Balance,
        "Move queues to other workers, so that all have about the same load",
    ),
    "workers.balance.show": Operation(
        VIEWER, "node", arguments.NoArguments, answers.Balance, "Show which queues are being moved"
    ),
    "workers.balance.stop": Operation(
        ADMINISTRATOR, "node", arguments.NoArguments, None, "Move no more queues"
    ),
    "stats": Operation(
        VIEWER, "node", arguments.StatsArguments, answers.Stats, "Show the figures of all processes"
    ),
    "health": Operation(
        VIEWER,
        "own",
        arguments.NoArguments,
        answers.Health,
        "Show whether the node is alive, started and ready",
    ),
    "events": Operation(
        VIEWER, "vpns", arguments.EventArguments, list[answers.Event], "List events, the oldest first"
    ),
    "events.follow": Operation(
        VIEWER,
        "vpns",
        arguments.EventArguments,
        answers.Followed,
        "List events behind another one, and say where to go on",
    ),
    "audit": Operation(
        ADMINISTRATOR,
        "node",
        arguments.AuditArguments,
        list[answers.Deed],
        "List entries of the audit log, the oldest first",
    ),
    "keys.reload": Operation(
        ADMINISTRATOR,
        "node",
        arguments.NoArguments,
        list[str],
        "Read certificates and keys again; gives a sentence for each certificate that has ended or soon will",
    ),
    "log_level": Operation(
        ADMINISTRATOR, "node", arguments.LogLevelArguments, list[str], "Have processes log more or less"
    ),
    "down": Operation(ADMINISTRATOR, "node", arguments.NoArguments, None, "End the node"),
    "standby.status": Operation(
        VIEWER, "node", arguments.NoArguments, answers.HostStatus, "Show how the hosts of the node do"
    ),
    "standby.switch": Operation(
        ADMINISTRATOR, "node", arguments.NoArguments, None, "Hand the node over to its standby"
    ),
    "gateways.list": Operation(VIEWER, "node", arguments.NoArguments, list[answers.Gateway], "List gateways"),
    "gateways.show": Operation(VIEWER, "node", arguments.ProcessArguments, answers.Gateway, "Show a gateway"),
    "objects.list": Operation(VIEWER, "objects", arguments.ListArguments, list[_Shown], "List objects"),
    "objects.show": Operation(VIEWER, "object", arguments.ObjectArguments, _Shown, "Show an object"),
    "objects.create": Operation(OPERATOR, "object", arguments.ChangeArguments, _Shown, "Make an object"),
    "objects.update": Operation(OPERATOR, "object", arguments.ChangeArguments, _Shown, "Change an object"),
    "objects.delete": Operation(OPERATOR, "object", arguments.DeleteArguments, None, "Delete an object"),
    "objects.subscribe": Operation(
        OPERATOR, "vpn", arguments.SubscribeArguments, _Shown, "Add and remove subscriptions of a queue"
    ),
    "config.show": Operation(
        VIEWER, "node", arguments.NoArguments, dict[str, Any], "Show the configuration in force"
    ),
    "config.export": Operation(
        ADMINISTRATOR, "declared", arguments.NoArguments, list[_Declared], "Give every object, as a backup"
    ),
    "config.apply": Operation(
        ADMINISTRATOR,
        "declared",
        arguments.ApplyArguments,
        list[answers.Applied],
        "Make and change many objects",
    ),
    "endpoints.list": Operation(
        VIEWER,
        "vpns",
        arguments.EndpointListArguments,
        list[_Endpoint],
        "List queues or topic endpoints with what they hold",
    ),
    "endpoints.show": Operation(
        VIEWER, "vpn", arguments.EndpointArguments, _Endpoint, "Show what an endpoint holds"
    ),
    "endpoints.publishers": Operation(
        VIEWER,
        "vpn",
        arguments.EndpointArguments,
        list[answers.Publisher],
        "Count who published the newest messages of an endpoint",
    ),
    "endpoints.purge": Operation(
        OPERATOR, "vpn", arguments.EndpointArguments, answers.Purged, "Delete all messages of an endpoint"
    ),
    "endpoints.release": Operation(
        OPERATOR,
        "vpn",
        arguments.EndpointArguments,
        answers.Released,
        "End the lease of the reader group that has an endpoint",
    ),
    "endpoints.copy": Operation(
        OPERATOR, "vpn", arguments.MoveArguments, answers.Jobs, "Copy messages of an endpoint"
    ),
    "endpoints.move": Operation(
        OPERATOR, "vpn", arguments.MoveArguments, answers.Jobs, "Move messages of an endpoint"
    ),
    "endpoints.redrive": Operation(
        OPERATOR, "vpn", arguments.MoveArguments, answers.Jobs, "Move messages back where they came from"
    ),
    "messages.list": Operation(VIEWER, "vpn", arguments.MessagesArguments, answers.Messages, "List messages"),
    "messages.show": Operation(
        OPERATOR, "vpn", arguments.MessageArguments, answers.WholeMessage, "Show a message"
    ),
    "messages.delete": Operation(
        OPERATOR,
        "vpn",
        arguments.DeleteMessagesArguments,
        answers.Deleted,
        "Delete messages by their positions",
    ),
    "jobs.show": Operation(
        OPERATOR, "own", arguments.JobArguments, answers.Progress, "Show how far jobs are"
    ),
    "clients.list": Operation(
        VIEWER, "vpns", arguments.VpnArguments, list[answers.Client], "List connected clients"
    ),
    "clients.show": Operation(VIEWER, "vpn", arguments.NameArguments, answers.WholeClient, "Show a client"),
    "clients.disconnect": Operation(OPERATOR, "vpn", arguments.NameArguments, None, "Disconnect a client"),
    "access.check": Operation(
        VIEWER,
        "vpn",
        arguments.AccessArguments,
        answers.Access,
        "Tell whether a client username may publish, subscribe or consume",
    ),
    "clients.try": Operation(
        OPERATOR,
        "vpn",
        arguments.TrialArguments,
        None,
        "Write down that somebody tries to publish or subscribe; the management process does it",
    ),
    "subscriptions.list": Operation(
        VIEWER,
        "vpns",
        arguments.SubscriptionArguments,
        list[answers.Subscription],
        "List subscriptions of connected clients",
    ),
    "subscriptions.remote": Operation(
        VIEWER, "vpns", arguments.VpnArguments, list[answers.RemoteSubscription], "List what neighbours want"
    ),
    "flows.list": Operation(
        VIEWER,
        "vpns",
        arguments.VpnArguments,
        list[answers.Flow],
        "List flows of clients that are bound to endpoints",
    ),
    "producers.list": Operation(
        VIEWER, "vpns", arguments.VpnArguments, list[answers.Producer], "List producers"
    ),
    "stages.list": Operation(
        VIEWER, "vpns", arguments.VpnArguments, list[answers.Stage], "List stages that are not committed"
    ),
    "stages.abort": Operation(
        OPERATOR, "vpn", arguments.StageArguments, answers.Aborted, "Drop stages that are not committed"
    ),
    "sinks.list": Operation(VIEWER, "vpns", arguments.NamesArguments, list[answers.Sink], "List sinks"),
    "sinks.forget": Operation(
        OPERATOR, "vpn", arguments.SinkArguments, None, "Forget a sink and its batches"
    ),
    "bridges.list": Operation(
        VIEWER, "vpns", arguments.NamesArguments, list[answers.BridgeState], "List bridges and how they do"
    ),
    "bridges.show": Operation(
        VIEWER, "vpn", arguments.NameArguments, answers.BridgeState, "Show how a bridge does"
    ),
    "webhooks.list": Operation(
        VIEWER, "vpns", arguments.NamesArguments, list[answers.WebhookState], "List webhooks and how they do"
    ),
    "webhooks.show": Operation(
        VIEWER, "vpn", arguments.NameArguments, answers.WebhookState, "Show how a webhook does"
    ),
    "links.list": Operation(
        VIEWER, "node", arguments.LinkListArguments, list[answers.LinkState], "List links and how they do"
    ),
    "links.show": Operation(
        VIEWER, "node", arguments.LinkArguments, answers.LinkState, "Show how a link does"
    ),
    "cluster.status": Operation(VIEWER, "node", arguments.NoArguments, answers.Cluster, "Show the cluster"),
    "cluster.token.create": Operation(
        ADMINISTRATOR, "node", arguments.JoinTokenArguments, answers.NewJoinToken, "Make a join token"
    ),
    "cluster.token.list": Operation(
        ADMINISTRATOR, "node", arguments.NoArguments, list[answers.JoinToken], "List join tokens"
    ),
    "cluster.token.delete": Operation(
        ADMINISTRATOR, "node", arguments.JoinTokenIdArguments, None, "Delete a join token"
    ),
    "spool.show": Operation(VIEWER, "node", arguments.NoArguments, answers.Spool, "Show the spool"),
    "spool.verify": Operation(
        ADMINISTRATOR, "node", arguments.NoArguments, answers.Verification, "Read everything in the spool"
    ),
    "spool.backup": Operation(
        ADMINISTRATOR, "node", arguments.BackupArguments, answers.Backup, "Copy everything that is stored"
    ),
    "spool.fetch": Operation(
        ADMINISTRATOR, "node", arguments.FetchArguments, answers.Piece, "Fetch a piece of a backup"
    ),
    "spool.drop": Operation(
        ADMINISTRATOR, "node", arguments.CopyArguments, None, "Delete a backup that was to be fetched"
    ),
    "spool.aside": Operation(
        VIEWER,
        "node",
        arguments.NoArguments,
        list[answers.Aside],
        "List what the spool has of endpoints that do not exist",
    ),
    "spool.aside.adopt": Operation(
        ADMINISTRATOR, "node", arguments.AdoptArguments, answers.Adopted, "Make a queue of what is kept aside"
    ),
    "spool.aside.read": Operation(
        ADMINISTRATOR,
        "node",
        arguments.AsideLaneArguments,
        answers.AsideMessages,
        "Read messages that are kept aside",
    ),
    "spool.aside.delete": Operation(
        ADMINISTRATOR, "node", arguments.AsideArguments, answers.Deleted, "Delete what is kept aside"
    ),
    "operators.me": Operation(VIEWER, "own", arguments.NoArguments, answers.Me, "Show who asks"),
    "operators.credentials": Operation(
        ADMINISTRATOR,
        "host",
        arguments.OperatorArguments,
        answers.Credentials,
        "Give what a login is compared with",
    ),
    "operators.find": Operation(
        ADMINISTRATOR,
        "host",
        arguments.FindOperatorArguments,
        answers.Found,
        "Find the operator of a certificate or a token",
    ),
    "operators.keys": Operation(
        ADMINISTRATOR,
        "host",
        arguments.IssuerKeysArguments,
        list[tuple[str | None, bytes]],
        "Give the keys of an issuer of tokens",
    ),
    "operators.logged_in": Operation(
        ADMINISTRATOR, "host", arguments.LoggedInArguments, None, "Write down how a login ended"
    ),
}

#: Operations that change something; the others read.
CHANGES: Final = frozenset(
    (
        *("objects.create", "objects.update", "objects.delete", "objects.subscribe", "config.apply"),
        *("endpoints.purge", "endpoints.release", "endpoints.copy", "endpoints.move", "endpoints.redrive"),
        *("messages.delete", "clients.disconnect", "clients.try", "stages.abort", "sinks.forget"),
        *(
            "cluster.token.create",
            "cluster.token.delete",
            "keys.reload",
            "log_level",
            "workers.scale",
            "workers.balance",
            "workers.balance.stop",
            "standby.switch",
            "down",
        ),
        *("spool.backup", "spool.drop", "spool.verify", "spool.aside.adopt", "spool.aside.delete"),
    )
)
