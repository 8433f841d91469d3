"""`angarium queue` and `topic-endpoint`: the five verbs of every object, and what endpoints have besides.

Lists and views show what an endpoint holds beside its attributes. What moves or copies many messages is a job of the
homes; these commands wait for it and show how far it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from angarium_server.visible import visible
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.objects.objects import (
    attributes_command,
    content_of,
    delete_command,
    list_command,
    of_one,
    print_change,
    set_option,
    vpn_option,
)
from cluster.commands.queues.jobs import wait_for
from cluster.commands.queues.messages import list_messages_command
from cluster.commands.terminal.confirming import confirm, yes_option
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.hints import attribute_hints, print_hints, quiet_option
from cluster.commands.terminal.options import AT_LEAST_0, AT_LEAST_1, options, setting
from cluster.commands.terminal.output import (
    Output,
    list_option,
    output_option,
    print_exactly,
    print_part,
    print_table,
    telling,
)
from cluster.commands.terminal.table import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cluster.admin.client import Admin

QUEUE: Final = "queue"
TOPIC_ENDPOINT: Final = "topic-endpoint"
#: What the table of a list shows; `--json` and `show` have everything.
COLUMNS: Final = (
    "name",
    "vpn",
    "messages_spooled",
    "spool_usage_bytes",
    "delivered_unacked",
    "bind_count",
    "messages_in_per_s",
    "messages_out_per_s",
    "access_type",
)
#: What `-o wide` shows besides.
WIDE_COLUMNS: Final = (
    "bytes_in_per_s",
    "bytes_out_per_s",
    "oldest_stored_ms",
    "owner",
    "permission",
    "max_spool_usage_mb",
    "dead_message_queue",
)
#: What of a view has a table of its own.
_TABLES: Final = ("flows", "lanes", "counters")

#: Metrics that are shown when they are 0, too.
_ALWAYS_SHOWN: Final = ("messages_spooled", "spool_usage_bytes", "delivered_unacked", "bind_count")

_EXCLUSIVE_HINT: Final = (
    "the queue is exclusive: one consumer at a time; --set access_type=non-exclusive shares it"
)
#: Subscriptions that a hint names.
_NAMED_MAX: Final = 3
#: What a transfer has done to messages.
_DONE: Final = {"copy": "copied", "move": "moved"}

_kind_choice = click.Choice((QUEUE, TOPIC_ENDPOINT))


def _make_group(kind: str, sentence: str) -> click.Group:
    group = SuggestingGroup(kind, help=sentence)
    group.add_command(list_command(kind, "endpoints.list", COLUMNS, WIDE_COLUMNS))
    group.add_command(_show_command(kind))
    group.add_command(_create_command(kind))
    group.add_command(_update_command(kind))
    group.add_command(delete_command(kind))
    group.add_command(attributes_command(kind))
    group.add_command(list_messages_command(kind))
    group.add_command(_publishers_command(kind))
    group.add_command(_purge_command(kind))
    group.add_command(
        _transfer_command(kind, "copy", "Copy messages of the {kind} NAME to another endpoint.")
    )
    group.add_command(
        _transfer_command(kind, "move", "Move messages of the {kind} NAME to another endpoint.")
    )
    group.add_command(_redrive_command(kind))
    if kind == QUEUE:
        group.add_command(_release_command())
    return group


def _subscription_option(sentence: str) -> Callable[..., Any]:
    return click.option("--subscription", "added", metavar="FILTER", multiple=True, help=sentence)


def _show_command(kind: str) -> click.Command:
    @click.command(
        "show", help=f"Show attributes, metrics, flows and counters of refusals of the {kind} NAME."
    )
    @of_one(kind)
    def show(*, admin: AdminOptions, name: str, vpn: str, out: Output) -> None:
        out.one(admin.call("endpoints.show", kind=kind, vpn=vpn, name=name), _print_endpoint)

    return show


def _print_endpoint(found: dict[str, Any]) -> None:
    """Draw what an endpoint is, what it holds, what it refused and who is bound to it, each if there is something."""
    from cluster.objects import attributes_of, identity_of

    kind = found["kind"]
    known = {one.name for one in (*attributes_of(kind), *identity_of(kind))} | {"kind", "vpn", "name"}
    print_exactly({name: value for name, value in found.items() if name in known})
    others = {name: value for name, value in found.items() if name not in known and name not in _TABLES}
    print_part("metrics", telling(others, always=_ALWAYS_SHOWN))
    if found["counters"]:
        print_part("refused or discarded", found["counters"])
    for title, rows in (
        ("lane", found["lanes"] if len(found["lanes"]) > 1 else []),
        ("flow", found["flows"]),
    ):
        if rows:
            click.echo()
            print_table(rows, tuple(rows[0]), empty=f"no {title}")


def _create_command(kind: str) -> click.Command:
    @click.command(
        "create", help=f"Create the {kind} NAME. 'angarium {kind} attributes' lists the attributes."
    )
    @click.argument("name")
    @set_option
    @quiet_option
    @vpn_option(kind)
    @output_option
    @admin_options
    def create(
        *,
        admin: AdminOptions,
        name: str,
        vpn: str,
        attributes: dict[str, Any],
        quiet: bool,
        out: Output,
        added: tuple[str, ...] = (),
    ) -> None:
        if added:
            attributes["subscriptions"] = list(added)
        print_hints(attribute_hints(attributes), quiet=quiet)
        with admin.open() as connection:
            made = connection.call("objects.create", kind=kind, vpn=vpn, name=name, attributes=attributes)
            print_hints(_dead_message_hints(connection, vpn, name, attributes), quiet=quiet)
        if kind == QUEUE and "access_type" not in attributes and made.get("access_type") == "exclusive":
            print_hints([_EXCLUSIVE_HINT], quiet=quiet or out.is_json)
        print_change(made, "create", attributes, out=out)

    if kind == QUEUE:
        _subscription_option(
            "Filter of messages to take; with a leading ! of messages not to take. Repeatable."
        )(create)
    return create


def _update_command(kind: str) -> click.Command:
    @click.command(
        "update",
        help=f"Change attributes of the {kind} NAME. 'angarium {kind} attributes' lists the attributes.",
    )
    @of_one(kind, set_option, quiet_option)
    def update(
        *,
        admin: AdminOptions,
        name: str,
        vpn: str,
        attributes: dict[str, Any],
        quiet: bool,
        out: Output,
        added: tuple[str, ...] = (),
        removed: tuple[str, ...] = (),
    ) -> None:
        print_hints(attribute_hints({**attributes, "subscriptions": [*added]}), quiet=quiet)
        with admin.open() as connection:
            before = None
            if "subscriptions" in attributes:
                before = connection.call("objects.show", kind=kind, vpn=vpn, name=name)
            changed = connection.call("objects.update", kind=kind, vpn=vpn, name=name, attributes=attributes)
            if before is not None:
                print_hints([_replaced_hint(before, changed)], quiet=quiet)
            print_hints(_dead_message_hints(connection, vpn, name, attributes), quiet=quiet)
            if added or removed:
                changed = connection.call(
                    "objects.subscribe", vpn=vpn, name=name, add=list(added), remove=list(removed)
                )
        shown = [*attributes, "subscriptions"] if added or removed else attributes
        print_change(changed, "update", shown, out=out)

    if kind == QUEUE:
        click.option(
            "--remove-subscription",
            "removed",
            metavar="FILTER",
            multiple=True,
            help="Filter to remove. Repeatable.",
        )(update)
        _subscription_option("Filter to add. Repeatable.")(update)
    return update


def _replaced_hint(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Give a sentence if a list of subscriptions took the place of one with others."""
    gone = [f"'{text}'" for text in before["subscriptions"] if text not in after["subscriptions"]]
    if not gone:
        return ""
    named = ", ".join(gone[:_NAMED_MAX])
    more = f" and {len(gone) - _NAMED_MAX:,} more" if len(gone) > _NAMED_MAX else ""
    return (
        f"--set subscriptions replaces all of them, {named}{more} went;"
        " --subscription adds one, --remove-subscription takes one away"
    )


def _dead_message_hints(
    connection: Admin, vpn: str, name: str, attributes: Mapping[str, Any]
) -> Iterator[str]:
    """Tell whether the queue for dead messages that was named is none that there is."""
    named = attributes.get("dead_message_queue")
    if not named:
        return
    try:
        connection.call("objects.show", kind=QUEUE, vpn=vpn, name=named)
    except errors.NotFoundError:
        yield f"there is no queue '{named}' yet: without it messages that die in '{name}' are deleted"


def _purge_command(kind: str) -> click.Command:
    @click.command("purge", help=f"Delete all messages of the {kind} NAME.")
    @of_one(kind, yes_option)
    def purge(*, admin: AdminOptions, name: str, vpn: str, yes: bool, out: Output) -> None:
        confirm(f"delete {content_of(admin, kind, vpn, name, yes=yes)} of {kind} {name}", yes=yes)
        done = admin.call("endpoints.purge", kind=kind, vpn=vpn, name=name)
        out.done(
            f"{counted(done['purged'], 'message')} of {kind} {name} deleted",
            {"kind": kind, "name": name, **done},
        )

    return purge


def _publishers_command(kind: str) -> click.Command:
    @click.command(
        "publishers",
        help=f"List who published the newest messages of the {kind} NAME, and how many each; clients that are not"
        " connected are one without a name.",
    )
    @of_one(kind, show=list_option)
    def publishers(*, admin: AdminOptions, name: str, vpn: str, out: Output) -> None:
        found = admin.call("endpoints.publishers", kind=kind, vpn=vpn, name=name)
        out.rows(found, ("client", "messages"), name="client", empty=f"{kind} {name} holds no messages")

    return publishers


def _release_command() -> click.Command:
    @click.command(
        "release",
        help="End the lease that a reader group has of the queue NAME: consumers get its messages again, those too that"
        " the group has planned and not acknowledged.",
    )
    @of_one(QUEUE)
    def release(*, admin: AdminOptions, name: str, vpn: str, out: Output) -> None:
        done = admin.call("endpoints.release", kind=QUEUE, vpn=vpn, name=name)
        groups = ", ".join(repr(group) for group in done["groups"])
        released = f"queue {name} released, reader group {groups} had it"
        text = released if groups else f"queue {name} is leased by no reader group"
        out.done(text, {"kind": QUEUE, "name": name, **done})

    return release


#: Add the options that choose among the messages of an endpoint.
_which_messages = options(
    click.option(
        "--selector", help="Only messages that it selects, SQL-92: \"price > 10 AND region = 'eu'\"."
    ),
    click.option(
        "--position",
        "positions",
        type=AT_LEAST_1,
        multiple=True,
        callback=lambda _ctx, _option, value: list(value) or None,
        help="Only the message at this position, as 'messages' lists it; may be given several times.",
    ),
    click.option("--limit", type=AT_LEAST_1, help="At most N, the oldest first."),
    click.option("--partition", type=AT_LEAST_0, help="Only this partition.  [default: all]"),
)


def _transfer_command(kind: str, verb: str, sentence: str) -> click.Command:
    @click.command(
        verb,
        help=sentence.format(kind=kind)
        + " A message that the target cannot take stays where it is; each counts as published again.",
    )
    @of_one(
        kind,
        click.option("--to", "target", required=True, metavar="NAME", help="The endpoint to take them."),
        setting("--to-kind", type=_kind_choice, default=QUEUE, help="Its kind."),
        _which_messages,
    )
    def transfer(
        *, admin: AdminOptions, name: str, target: str, to_kind: str, vpn: str, out: Output, **which: Any
    ) -> int:
        where = {"kind": kind, "vpn": vpn, "name": name, "target": target, "target_kind": to_kind}
        return _run_job(
            admin, f"endpoints.{verb}", {**where, **which}, f"{verb} {name}", done=_DONE[verb], out=out
        )

    return transfer


def _redrive_command(kind: str) -> click.Command:
    @click.command(
        "redrive",
        help=f"Send dead messages of the {kind} NAME, and those that were moved there, back to the endpoints that they"
        " came from. What was published or copied there stays.",
    )
    @of_one(kind, _which_messages)
    def redrive(*, admin: AdminOptions, name: str, vpn: str, out: Output, **which: Any) -> int:
        where = {"kind": kind, "vpn": vpn, "name": name}
        return _run_job(
            admin, "endpoints.redrive", {**where, **which}, f"redrive {name}", done="sent back", out=out
        )

    return redrive


def _run_job(
    admin: AdminOptions,
    operation: str,
    arguments: dict[str, Any],
    description: str,
    *,
    done: str,
    out: Output,
) -> int:
    """Do a job to its end; messages that a target refused make it a failure, those that are to stay do not."""
    with admin.open() as connection:
        jobs = connection.call(operation, **arguments)["jobs"]
        try:
            found = wait_for(connection, jobs, description)
        except KeyboardInterrupt:
            shown = f"'angarium {arguments['kind']} show {arguments['name']}' tells what it holds"
            click.echo(visible(f"the node goes on: {description}; {shown}"), err=True)
            raise
    text = f"{counted(found['done'], 'message')} {done}"
    if found["kept"]:
        verb = "stays" if found["kept"] == 1 else "stay"
        text += f", {found['kept']:,} {verb}: copied to it, published to it or sent back before"
    out.done(text, {name: found[name] for name in ("done", "refused", "kept")})
    if found["error"] is not None:
        code, detail = found["error"]
        left = f"{detail}; {counted(found['refused'], 'message')} left in place"
        click.echo(visible(str(errors.error_for(code, left))), err=True)
    return 1 if found["refused"] else 0


queue = _make_group(QUEUE, "Queues: they store messages for consumers, also while no consumer is bound.")
topic_endpoint = _make_group(
    TOPIC_ENDPOINT, "Topic endpoints: they store the messages of one topic for a consumer."
)
