"""`angarium spool`: what the node stores, whether it is sound, and a backup of it.

`verify` works on a running node, whose workers do it beside their messages, and on the data directory of one that does
not run. A backup is taken of a running node, on this host or another; restoring needs one on this host that does not
run.

`angarium spool aside`: what the spool has and no object claims, because the config store is not the one it was.

Nothing of it is deleted but by `delete`. `adopt` makes it a queue again, `export` writes it to a file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from angarium import errors
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.queues.jobs import wait_for
from cluster.commands.queues.messages import described
from cluster.commands.terminal.confirming import confirm, yes_option
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import AT_LEAST_1
from cluster.commands.terminal.output import (
    Output,
    list_option,
    output_option,
    print_metrics,
    print_table,
    progress,
    telling,
)
from cluster.commands.terminal.table import counted, moment
from cluster.data.node_file import node_runs, read_node_file

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


#: What of a view has a table of its own, and what of each worker that shows.
_WORKERS: Final = "workers"
#: Metrics that are shown when they are 0, too.
_ALWAYS_SHOWN: Final = ("messages", "usage_bytes", "disk_bytes", "files", "delivered_unacked", "endpoints")
_WORKER_COLUMNS: Final = (
    "worker",
    "lanes",
    "messages_spooled",
    "bytes_spooled",
    "delivered_unacked",
    "spool_files",
    "disk_bytes",
    "jobs_running",
    "spool_full",
)


@click.group(cls=SuggestingGroup)
def spool() -> None:
    """The spool: guaranteed messages on disk."""


spool.add_command(aside)


@spool.command("show")
@output_option
@admin_options
def show_spool(*, admin: AdminOptions, out: Output) -> None:
    """Show usage, limits, spool files and unsettled messages of the node, and the spool of each worker."""
    out.one(admin.call("spool.show"), _print_spool)


def _print_spool(found: dict[str, Any]) -> None:
    workers = found.pop(_WORKERS)
    print_metrics(telling(found, always=_ALWAYS_SHOWN))
    click.echo()
    print_table(workers, _WORKER_COLUMNS, empty="no worker runs")
    if found.get("lanes_kept_aside"):
        lanes = counted(found["lanes_kept_aside"], "lane")
        click.echo(f"\n{lanes} that no object claims are kept aside: angarium spool aside list")


@spool.command("verify")
@output_option
@admin_options
def verify_spool(*, admin: AdminOptions, out: Output) -> int:
    """Read every message and every object, and verify checksums, of a running node or of its data directory."""
    if not admin.admin_url and admin.data.exists() and not node_runs(admin.data, read_node_file(admin.data)):
        faults = _verify_directory(admin.data)
    else:
        with admin.open() as connection:
            begun = connection.call("spool.verify")
            faults = list(begun["faults"])
            try:
                wait_for(connection, begun["jobs"], "verify")
            except errors.UnavailableError as error:
                if error.code != errors.SPOOL_DAMAGED:
                    raise
                faults.append(error.detail)
    for fault in faults:
        click.echo(str(errors.error_for(errors.SPOOL_DAMAGED, fault)), err=True)
    if out.is_json or not faults:
        out.done("config store and spool are sound", {"good": not faults, "faults": faults})
    return 1 if faults else 0


def _verify_directory(data_dir: Path) -> list[str]:
    """Verify the config store and the spools of a node that does not run."""
    from cluster.commands.queues.backup import spools_of
    from cluster.data.data_dir import CONFIG_FOLDER
    from storage.config_store import config_faults
    from storage.maintenance import verify

    faults = config_faults(data_dir / CONFIG_FOLDER)
    for directory in spools_of(data_dir):
        with progress(f"spool {directory.name}", None) as show:
            try:
                faults += [f"{directory}: {fault}" for fault in verify(directory, show)]
            except errors.UnavailableError as error:
                # One that cannot be opened is at fault, and the others are checked all the same.
                if error.code != errors.SPOOL_DAMAGED:
                    raise
                faults.append(error.detail)
    return faults


@spool.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output_option
@admin_options
def back_up(*, admin: AdminOptions, file: Path, out: Output) -> None:
    """Back up the running node to FILE: objects, messages, names of producers.

    With --admin-url the node copies into its own data directory, which needs the room, and the copies are fetched.
    """
    from cluster.commands.queues import backup

    file = file.absolute()
    with backup.parts_folder(file) as folder, admin.open() as connection:
        made = connection.call("spool.backup", directory=None if admin.admin_url else str(folder))
        try:
            wait_for(connection, made["jobs"], "copy")
            if made["copy"] is not None:
                with progress("fetch", None) as show:
                    backup.fetch(connection, made["copy"], made["parts"], folder, show)
        finally:
            if made["copy"] is not None:
                with contextlib.suppress(errors.AngariumError):
                    connection.call("spool.drop", copy=made["copy"])
        about = (made["node"], made["node_id"], made["workers"])
        with progress("pack", None) as show:
            manifest = backup.pack(folder, file, *about, show)
    result = {"file": str(file), "size_bytes": file.stat().st_size, "workers": manifest.workers}
    out.one(result)


@spool.command("restore")
@click.argument("file", type=click.Path(exists=True, path_type=Path, dir_okay=False))
@click.option(
    "--trial", is_flag=True, help="Switch off links, bridges and webhooks: the node connects to nobody."
)
@yes_option
@output_option
@admin_options
def restore(*, admin: AdminOptions, file: Path, trial: bool, yes: bool, out: Output) -> None:
    """Restore the backup FILE into the data directory of a stopped node; its old content is set aside."""
    from cluster.commands.queues import backup

    if admin.admin_url:
        raise errors.invalid("a backup is restored on the host of the node: run it there, with --data")
    confirm(f"restore {file} into {admin.data}, and set aside its present content", yes=yes)
    with progress("restore", None) as show:
        done = backup.restore(file, admin.data, lambda _what, done, total: show(done, total), is_trial=trial)
    result = {
        "data": str(admin.data),
        "node": done.manifest.node,
        "taken": done.manifest.taken,
        "workers": done.manifest.workers,
        "replaced": None if done.replaced is None else str(done.replaced),
    }
    if trial:
        result["switched_off"] = done.switched_off
    out.one(result)
