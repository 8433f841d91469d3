"""The arguments of the operations of the admin API, checked before anything is done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

#: What somebody says at a login: a name, an address.
LoginText = Annotated[str, Meta(max_length=256)]


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `status`, `workers`, `gateways.list`, `config.show`, `config.export`, `down`, and those of the standby."""


class ProcessArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `gateways.show`: a process by its name, as in mqtt.0."""

    name: str


class StatsArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `stats`."""

    role: str | None = None


class ListArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `objects.list`; vpn None means all Message VPNs, name is a pattern with * and ?."""

    kind: str
    vpn: str | None = "default"
    name: str = "*"


class ObjectArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `objects.show`; a Message VPN itself has no vpn."""

    kind: str
    name: str
    vpn: str | None = "default"


class DeleteArguments(ObjectArguments):
    """Of `objects.delete`; with a version (`cluster.objects.version_of`) only if the object still has it."""

    version: str | None = None


class ChangeArguments(DeleteArguments):
    """Of `objects.create`, without a version, and `objects.update`."""

    attributes: dict[str, Any] = {}


class SubscribeArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `objects.subscribe`."""

    name: str
    vpn: str = "default"
    add: list[str] = []
    remove: list[str] = []


class EndpointArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `endpoints.show`, `endpoints.publishers`, `endpoints.purge` and `endpoints.release`: one endpoint."""

    name: str
    kind: Literal["queue", "topic-endpoint"] = "queue"
    vpn: str = "default"


class EndpointListArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `endpoints.list`; vpn None means all Message VPNs, name is a pattern with * and ?, no fields all of them.

    With `these`, Message VPNs and names, it is about those alone.
    """

    name: str = "*"
    kind: Literal["queue", "topic-endpoint"] = "queue"
    vpn: str | None = "default"
    fields: list[str] = []
    these: Annotated[list[tuple[str, str]], Meta(max_length=1_000)] = []


class MoveArguments(EndpointArguments):
    """Of `endpoints.move`, `endpoints.copy` and `endpoints.redrive`; without a partition it is about all of them.

    With positions it is about the messages there; they are those of one partition.
    """

    target: str = ""
    target_kind: Literal["queue", "topic-endpoint"] = "queue"
    selector: str | None = None
    limit: Annotated[int, Meta(ge=1)] | None = None
    partition: Annotated[int, Meta(ge=0)] | None = None
    positions: Annotated[list[int], Meta(min_length=1, max_length=1_000)] | None = None


class MessagesArguments(EndpointArguments):
    """Of `messages.list`: messages behind a position, in a partition."""

    partition: Annotated[int, Meta(ge=0)] = 0
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    selector: str | None = None


class MessageArguments(EndpointArguments, kw_only=True):
    """Of `messages.show`."""

    position: Annotated[int, Meta(ge=1)]
    partition: Annotated[int, Meta(ge=0)] = 0


class DeleteMessagesArguments(EndpointArguments, kw_only=True):
    """Of `messages.delete`."""

    positions: Annotated[list[int], Meta(min_length=1, max_length=1_000)]
    partition: Annotated[int, Meta(ge=0)] = 0


class JobArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `jobs.show`; a job is [worker, number]."""

    jobs: list[tuple[int, int]]


class BackupArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `spool.backup`; the directory is on the host of the node, and is made. None: for `spool.fetch`."""

    directory: str | None = None


class FetchArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `spool.fetch`: a part of a copy that `spool.backup` made, from an offset on."""

    copy: str
    part: str
    offset: Annotated[int, Meta(ge=0)] = 0


class CopyArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `spool.drop`."""

    copy: str


class ScaleArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `workers.scale`; with `balance` new workers get queues that are there already."""

    workers: Annotated[int, Meta(ge=1, le=64)]
    balance: bool = True


class BalanceArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `workers.balance`; `dry_run` only shows the plan."""

    bytes_per_s: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    moves_max: Annotated[int, Meta(ge=1, le=8)] = 2
    dry_run: bool = False


class VpnArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `clients.list`, `producers.list` and `stages.list`; None means all Message VPNs."""

    vpn: str | None = None


class StageArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `stages.abort`; names are the ids of stages."""

    names: Annotated[list[str], Meta(min_length=1, max_length=10_000)]
    vpn: str = "default"


class AsideArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `spool.aside.delete`; the id is that of the endpoint."""

    id: int


class AsideLaneArguments(AsideArguments, forbid_unknown_fields=True):
    """Of `spool.aside.read`."""

    worker: int
    lane_id: int
    after: Annotated[int, Meta(ge=0)] = 0


class AdoptArguments(AsideArguments, forbid_unknown_fields=True):
    """Of `spool.aside.adopt`; without a name or Message VPN the queue has those of the endpoint."""

    name: str | None = None
    vpn: str | None = None


class NamesArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of lists of sinks, bridges and webhooks; name is a pattern with * and ?, vpn None means all Message VPNs."""

    name: str = "*"
    vpn: str | None = None


class SinkArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `sinks.forget`."""

    name: str
    username: str
    vpn: str = "default"


class NameArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `clients.show`, `clients.disconnect`, `bridges.show` and `webhooks.show`."""

    name: str
    vpn: str = "default"


class AccessArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `access.check`: the name is a username, the target a topic, a filter, or a queue to consume.

    With `guaranteed` it is about publishing guaranteed messages.
    """

    name: str
    verb: Literal["publish", "subscribe", "consume"]
    target: Annotated[str, Meta(max_length=1_000)]
    vpn: str = "default"
    guaranteed: bool = False


class TrialArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `clients.try`: under which username what is tried, at a topic, filters or a queue."""

    username: str
    does: Literal["publish", "subscribe"]
    target: Annotated[str, Meta(max_length=2_000)]
    vpn: str = "default"


class SubscriptionArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `subscriptions.list`."""

    client: str | None = None
    vpn: str | None = None


class LinkListArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `links.list`; name is a pattern with * and ?."""

    name: str = "*"


class LinkArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `links.show`."""

    name: str


class EventArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `events`; since is the id of an event or an ISO time, vpn None means those of all and of the node.

    event is a pattern with * and ? that the names of events are like.
    """

    since: int | str | None = None
    limit: Annotated[int, Meta(ge=1)] = 1_000
    vpn: str | None = None
    event: str = "*"


class AuditArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `audit`; since is the number of an entry or an ISO time, who the name of an operator, empty for all."""

    since: int | str | None = None
    who: str = ""
    limit: Annotated[int, Meta(ge=1)] = 1_000


class ApplyArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `config.apply`; an object is [kind, vpn, name, attributes], prune deletes what is not named."""

    objects: list[tuple[str, str | None, str, dict[str, Any]]]
    dry_run: bool = False
    prune: bool = False


class LogLevelArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `log_level`; without role and index it is for all processes."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"]
    role: str | None = None
    index: int | None = None


class OperatorArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `operators.credentials`."""

    name: LoginText


class FindOperatorArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `operators.find`: one of the two."""

    certificate_name: LoginText = ""
    token_subject: LoginText = ""


class IssuerKeysArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `operators.keys`; with is_unknown somebody has shown a token of a key that is not among them."""

    issuer: LoginText
    is_unknown: bool = False


class LoggedInArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `operators.logged_in`; the outcome is `done`, or the code of the refusal.

    The name is that of the operator, as far as that is known; the subject is what a token or a certificate says. The
    reason of a refusal has nothing that is secret.
    """

    name: LoginText
    address: LoginText
    method: LoginText
    outcome: LoginText | int
    subject: LoginText = ""
    reason: LoginText = ""


class JoinTokenArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `cluster.token.create`; without addresses those of the node, without an authority that of cluster.ca_file."""

    expires_s: Annotated[int, Meta(ge=1, le=30 * 86_400)] = 3_600
    uses: Annotated[int, Meta(ge=1, le=1_000)] = 1
    addresses: list[str] = []
    authority: str = ""


class JoinTokenIdArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `cluster.token.delete`."""

    id: str
