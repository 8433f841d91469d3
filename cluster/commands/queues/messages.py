"""`angarium queue messages` and `angarium message`: what endpoints hold, message by message.

A message is named by its endpoint, its partition and its position there, which is never used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from cluster.commands.connecting.completion import complete_names
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.objects.objects import vpn_option
from cluster.commands.terminal.confirming import confirm, yes_option
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import AT_LEAST_0, AT_LEAST_1, options, setting
from cluster.commands.terminal.output import TABLE, WIDE, Output, list_option, output_option
from cluster.commands.terminal.table import counted, moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cluster.admin.client import Admin

#: What of a message the table shows.
COLUMNS: Final = ("position", "topic", "size_bytes", "stored", "state", "redeliveries", "partition")
#: The same where a message was moved or copied from another endpoint, in a dead message queue for instance.
COLUMNS_WITH_ORIGIN: Final = (
    "position",
    "topic",
    "from",
    "reason",
    "redeliveries",
    "stored",
    "size_bytes",
    "state",
    "partition",
)
WIDE_COLUMNS: Final = ("priority", "expires")
#: What fits a screen that one reads; `--limit 0` gives all.
DEFAULT_LIMIT: Final = 100
#: Wall times, and the name under which they are shown to people.
_WALL_TIMES: Final = {"stored_ms": "stored", "expires_ms": "expires"}
#: What a message has only on its way to a client.
_OF_DELIVERIES: Final = ("index", "ttl_ms", "delay_ms", "discard_indication", "share")
#: What of the packed properties the node tells as well.
_OPENED: Final = ("headers", "user_properties")
#: Messages asked for at once.
_PAGE: Final = 500


def list_messages_command(kind: str) -> click.Command:
    """Make the command that lists the messages of an endpoint."""

    @click.command("messages", help=f"List the messages of the {kind} NAME, the oldest first.")
    @click.argument("name", shell_complete=complete_names(kind))
    @click.option(
        "--selector", help="Only messages that it selects, SQL-92: \"price > 10 AND region = 'eu'\"."
    )
    @click.option("--after", type=AT_LEAST_0, default=0, help="Only positions above this one.")
    @setting("-n", "--limit", type=AT_LEAST_0, default=DEFAULT_LIMIT, help="At most N; 0: all.")
    @click.option("--partition", type=AT_LEAST_0, help="Only this partition.  [default: all]")
    @vpn_option(kind)
    @list_option
    @admin_options
    def messages(
        *,
        admin: AdminOptions,
        name: str,
        vpn: str,
        limit: int,
        after: int,
        partition: int | None,
        selector: str | None,
        out: Output,
    ) -> None:
        where = {"kind": kind, "vpn": vpn, "name": name, "selector": selector}
        with admin.open() as connection:
            rows: Iterable[dict[str, Any]] = _messages(connection, where, partition, after, limit)
            columns: tuple[str, ...] = COLUMNS
            if out.form in (TABLE, WIDE):
                rows = list(rows)
                columns = COLUMNS_WITH_ORIGIN if any(row.get("origin") for row in rows) else COLUMNS
            which = after or selector is not None or partition is not None
            empty = f"{kind} {name} holds no {'such message' if which else 'messages'}"
            out.rows(rows, columns, wide=WIDE_COLUMNS, name="position", empty=empty, readable=_readable)

    return messages


def _messages(
    connection: Admin, where: dict[str, Any], partition: int | None, after: int, limit: int
) -> Iterator[dict[str, Any]]:
    """Give the messages of one partition, or of all in turn."""
    wanted = limit or None
    current, last = partition or 0, partition
    while last is None or current <= last:
        position = after
        while wanted is None or wanted > 0:
            page = _PAGE if wanted is None else min(_PAGE, wanted)
            found = connection.call("messages.list", **where, partition=current, after=position, limit=page)
            if last is None:
                last = max(0, found["partitions"] - 1)
            for row in found["messages"]:
                yield {"partition": current, **row}
            wanted = None if wanted is None else wanted - len(found["messages"])
            if len(found["messages"]) < page:
                break
            position = found["messages"][-1]["position"]
        current += 1


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row with its wall times and its origin as people read them."""
    shown = {name: value for name, value in row.items() if name not in _WALL_TIMES}
    if row.get("origin"):
        kind, name, shown["reason"] = row["origin"]
        shown["from"] = name if kind == "queue" else f"{kind} {name}"
    return {**shown, **{new: moment(row.get(name)) for name, new in _WALL_TIMES.items()}}


@click.group(cls=SuggestingGroup)
def message() -> None:
    """Single messages of queues and topic endpoints."""


#: Add what names an endpoint and a partition of it.
_which_endpoint = options(
    setting(
        "--kind",
        type=click.Choice(("queue", "topic-endpoint")),
        default="queue",
        help="Kind of the endpoint NAME.",
    ),
    setting("--partition", type=AT_LEAST_0, default=0, help="Partition of it."),
    vpn_option("queue"),
    output_option,
    admin_options,
)


@message.command("show")
@click.argument("name", shell_complete=complete_names("queue"))
@click.argument("position", type=AT_LEAST_1)
@_which_endpoint
def show_message(*, admin: AdminOptions, position: int, out: Output, **where: Any) -> None:
    """Show the message at POSITION of the endpoint NAME, with its payload; 'queue messages' lists positions."""
    try:
        found = admin.call("messages.show", **where, position=position)
    except errors.NotFoundError as error:
        advice = f"'angarium {where['kind']} messages {where['name']}' lists those that are there"
        raise errors.error_for(error.code, error.detail, advice) from None
    out.one(described(found))


def described(found: dict[str, Any]) -> dict[str, Any]:
    """Give a message with its flags, properties and payload opened, as 'angarium sub --json' names them."""
    from angarium.client.protocol.messages import mode_at_endpoint
    from angarium.message import Delivery, ReceivedMessage
    from cluster.commands.messages.sink import as_dict

    found = {name: value for name, value in found.items() if name not in _OPENED}
    flags, properties, payload = (found.pop(name) for name in ("flags", "properties", "payload"))
    row = (0, found["topic"], flags, None, properties, payload)
    opened = as_dict(ReceivedMessage(row, Delivery([row], None, found["size_bytes"])))
    opened["mode"] = mode_at_endpoint(flags)
    return {**{name: value for name, value in opened.items() if name not in _OF_DELIVERIES}, **found}


@message.command("delete")
@click.argument("name", shell_complete=complete_names("queue"))
@click.argument("positions", type=AT_LEAST_1, nargs=-1, required=True)
@yes_option
@_which_endpoint
def delete_messages(
    *, admin: AdminOptions, positions: tuple[int, ...], yes: bool, out: Output, **where: Any
) -> None:
    """Delete the messages at POSITIONS of the endpoint NAME; they do not go to a dead message queue."""
    kind, name = where["kind"], where["name"]
    confirm(f"delete {counted(len(positions), 'message')} of {kind} {name}", yes=yes)
    done = admin.call("messages.delete", **where, positions=list(positions))
    out.done(
        f"{done['deleted']} of {len(positions)} messages of {kind} {name} deleted",
        {"kind": kind, "name": name, **done},
    )
