"""`angarium queue messages` and `angarium message`: what endpoints hold, message by message.

A message is named by its endpoint, its partition and its position there, which is never used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from cluster.commands.connection import AdminOptions, admin_options, json_option
from cluster.commands.group import SuggestingGroup
from cluster.commands.objects import vpn_option
from cluster.commands.output import (
    moment,
    print_attributes,
    print_json,
    print_json_lines,
    print_table,
    wants_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cluster.admin import Admin

#: What of a message the table shows.
COLUMNS: Final = (
    "partition",
    "position",
    "topic",
    "size_bytes",
    "stored",
    "expires",
    "priority",
    "redeliveries",
    "state",
)
#: What fits a screen that one reads; `--limit 0` gives all.
DEFAULT_LIMIT: Final = 100
#: Wall times, and the name under which they are shown to people.
_WALL_TIMES: Final = {"stored_ms": "stored", "expires_ms": "expires"}
#: What a message has only on its way to a client.
_OF_DELIVERIES: Final = ("index", "ttl_ms", "delay_ms", "discard_indication", "share")
#: Messages asked for at once.
_PAGE: Final = 500


def list_messages_command(kind: str) -> click.Command:
    """Make the command that lists the messages of an endpoint."""

    @click.command("messages", help=f"List the messages of the {kind} NAME, the oldest first.")
    @click.argument("name")
    @click.option(
        "--selector", help="Only messages that it selects, SQL-92: \"price > 10 AND region = 'eu'\"."
    )
    @click.option("--after", type=click.IntRange(min=0), default=0, help="Only positions above this one.")
    @click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=DEFAULT_LIMIT,
        show_default=True,
        help="At most so many; 0: all.",
    )
    @click.option("--partition", type=click.IntRange(min=0), help="Only this partition.  [default: all]")
    @vpn_option(kind)
    @json_option
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
        as_json: bool,
    ) -> None:
        where = {"kind": kind, "vpn": vpn, "name": name, "selector": selector}
        with admin.open() as connection:
            rows = _messages(connection, where, partition, after, limit)
            if wants_json(as_json):
                print_json_lines(rows)
            else:
                print_table(
                    [_readable(row) for row in rows], COLUMNS, empty=f"{kind} {name} holds no such message"
                )

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
    """Give a row with its wall times as people read them."""
    shown = {name: value for name, value in row.items() if name not in _WALL_TIMES}
    return {**shown, **{new: moment(row.get(name)) for name, new in _WALL_TIMES.items()}}


@click.group(cls=SuggestingGroup)
def message() -> None:
    """Single messages of queues and topic endpoints."""


def _which_endpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what names an endpoint and a partition of it."""
    options = (
        click.option(
            "--kind",
            type=click.Choice(("queue", "topic-endpoint")),
            default="queue",
            show_default=True,
            help="Kind of the endpoint NAME.",
        ),
        click.option(
            "--partition", type=click.IntRange(min=0), default=0, show_default=True, help="Partition of it."
        ),
        vpn_option("queue"),
        json_option,
        admin_options,
    )
    for option in reversed(options):
        function = option(function)
    return function


@message.command("show")
@click.argument("name")
@click.argument("position", type=click.IntRange(min=1))
@_which_endpoint
def show_message(
    *, admin: AdminOptions, name: str, position: int, kind: str, partition: int, vpn: str, as_json: bool
) -> None:
    """Show the message at POSITION of the endpoint NAME, with its payload; 'queue messages' lists positions."""
    where = {"kind": kind, "vpn": vpn, "name": name, "partition": partition}
    try:
        found = admin.call("messages.show", **where, position=position)
    except errors.NotFoundError as error:
        advice = f"'angarium {kind} messages {name}' lists those that are there"
        raise errors.error_for(error.code, error.detail, advice) from None
    found = _described(found)
    if wants_json(as_json):
        print_json(found)
    else:
        print_attributes(_readable(found))


def _described(found: dict[str, Any]) -> dict[str, Any]:
    """Give a message with its flags, properties and payload opened, as 'angarium sub --json' names them."""
    from angarium.message import Delivery, ReceivedMessage
    from cluster.commands.sink import as_dict

    flags, properties, payload = (found.pop(name) for name in ("flags", "properties", "payload"))
    row = (0, found["topic"], flags, None, properties, payload)
    opened = as_dict(ReceivedMessage(row, Delivery([row], None, found["size_bytes"])))
    if opened["mode"] == "direct":
        opened["mode"] = "non-persistent"  # what a direct message became when it matched an endpoint (R151)
    return {**{name: value for name, value in opened.items() if name not in _OF_DELIVERIES}, **found}


@message.command("delete")
@click.argument("name")
@click.argument("positions", type=click.IntRange(min=1), nargs=-1, required=True)
@_which_endpoint
def delete_messages(
    *,
    admin: AdminOptions,
    name: str,
    positions: tuple[int, ...],
    kind: str,
    partition: int,
    vpn: str,
    as_json: bool,
) -> None:
    """Delete the messages at POSITIONS of the endpoint NAME; they go to no dead message queue."""
    done = admin.call(
        "messages.delete", kind=kind, vpn=vpn, name=name, partition=partition, positions=list(positions)
    )
    if wants_json(as_json):
        print_json({"kind": kind, "name": name, **done})
    else:
        click.echo(f"{done['deleted']} of {len(positions)} messages of {kind} {name} deleted")
