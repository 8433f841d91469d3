"""`angarium spool aside`: what the spool has and no object claims, because the config store is not the one it was.

Nothing of it is deleted but by `delete`. `adopt` makes it a queue again, `export` writes it to a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from angarium import errors
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.queues.messages import described
from cluster.commands.terminal.confirming import confirm, yes_option
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import AT_LEAST_1
from cluster.commands.terminal.output import Output, list_option, output_option, progress
from cluster.commands.terminal.table import counted, moment

_COLUMNS: Final = ("id", "kind", "vpn", "name", "messages", "bytes", "oldest")
_encode = msgspec.json.Encoder(enc_hook=repr).encode


@click.group(cls=SuggestingGroup)
def aside() -> None:
    """What the spool has and no object claims: it is kept aside, and nothing of it is deleted by itself."""


@aside.command("list")
@list_option
@admin_options
def list_aside(*, admin: AdminOptions, out: Output) -> None:
    """List what is kept aside, by the id of the endpoint that it belonged to."""
    empty = "nothing is kept aside: objects claim everything that the spool has"
    rows = admin.call("spool.aside")
    out.rows(rows, _COLUMNS, wide=(), name="id", empty=empty, readable=_readable)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "oldest": moment(row["oldest_stored_ms"])}


@aside.command("adopt")
@click.argument("number", metavar="ID", type=AT_LEAST_1)
@click.option("--name", help="Name of the queue.  [default: that of the endpoint]")
@click.option("--vpn", help="Message VPN of the queue.  [default: that of the endpoint]")
@output_option
@admin_options
def adopt(*, admin: AdminOptions, number: int, name: str | None, vpn: str | None, out: Output) -> None:
    """Make what is kept aside of the endpoint ID a queue again, with its messages.

    The queue has no subscriptions, and permissions as a new one: the spool does not know them.
    """
    done = admin.call("spool.aside.adopt", id=number, name=name, vpn=vpn)
    text = f"queue {done['name']} in Message VPN {done['vpn']} has {counted(done['messages'], 'message')}"
    out.done(text, done)


@aside.command("export")
@click.argument("number", metavar="ID", type=AT_LEAST_1)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output_option
@admin_options
def export(*, admin: AdminOptions, number: int, file: Path, out: Output) -> None:
    """Write the messages that are kept aside of the endpoint ID to FILE, one JSON object per line.

    The objects are those of 'angarium message show -o json'. Nothing is deleted.
    """
    written = 0
    with admin.open() as connection:
        row = next((row for row in connection.call("spool.aside") if row["id"] == number), None)
        if row is None:
            detail = f"nothing of an endpoint with the id {number} is kept aside"
            raise errors.error_for(errors.OBJECT_NOT_FOUND, detail)
        try:
            target = file.open("xb")
        except OSError as error:
            raise errors.invalid(f"{file}: {error.strerror}") from None
        with target, progress("export", row["messages"]) as show:
            for lane in row["lanes"]:
                where = {"id": number, "worker": lane["worker"], "lane_id": lane["lane_id"]}
                position, is_end = 0, False
                while not is_end:
                    found = connection.call("spool.aside.read", **where, after=position)
                    position, is_end = found["upto"], found["end"]
                    for message in found["rows"]:
                        shown = described(message) if "payload" in message else message
                        target.write(_encode({"partition": lane["partition"], **shown}) + b"\n")
                    written += len(found["rows"])
                    show(written)
    out.done(f"{counted(written, 'message')} written to {file}", {"file": str(file), "messages": written})


@aside.command("delete")
@click.argument("number", metavar="ID", type=AT_LEAST_1)
@yes_option
@output_option
@admin_options
def delete(*, admin: AdminOptions, number: int, yes: bool, out: Output) -> None:
    """Delete what is kept aside of the endpoint ID, with all its messages."""
    confirm(f"delete what is kept aside of endpoint {number}, with its messages", yes=yes)
    done = admin.call("spool.aside.delete", id=number)
    out.done(f"{counted(done['deleted'], 'message')} of endpoint {number} deleted", {"id": number, **done})
