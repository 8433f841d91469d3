"""`angarium spool`: what the node stores, whether it is sound, and a backup of it.

`verify` works on a running node, whose workers do it beside their messages, and on the data directory of one that does
not run. A backup is taken of a running node, on this host or another; restoring needs one on this host that does not
run.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import click

from angarium import errors
from cluster.admin import node_runs, read_node_file
from cluster.commands.connection import AdminOptions, admin_options, json_option
from cluster.commands.group import SuggestingGroup
from cluster.commands.guaranteed.jobs import wait_for
from cluster.commands.output import print_attributes, print_json, print_table, progress, telling, wants_json

#: What of a view has a table of its own, and what of each worker that shows.
_WORKERS: Final = "workers"
#: Figures that are shown when they are 0, too.
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


@spool.command("show")
@json_option
@admin_options
def show_spool(*, admin: AdminOptions, as_json: bool) -> None:
    """Show usage, limits, spool files and unsettled messages of the node, and the spool of each worker."""
    found = admin.call("spool.show")
    if wants_json(as_json):
        print_json(found)
        return
    workers = found.pop(_WORKERS)
    print_attributes(telling(found, always=_ALWAYS_SHOWN))
    click.echo()
    print_table(workers, _WORKER_COLUMNS, empty="no worker runs")


@spool.command("verify")
@json_option
@admin_options
def verify_spool(*, admin: AdminOptions, as_json: bool) -> int:
    """Read every message of the spool and compare its checksum; of a node that runs, or of its data directory."""
    if admin.admin_url is None and not _runs(admin.data):
        faults = _verify_directory(admin.data)
    else:
        with admin.open() as connection:
            jobs = connection.call("spool.verify")["jobs"]
            try:
                wait_for(connection, jobs, "verify")
                faults = []
            except errors.UnavailableError as error:
                if error.code != errors.SPOOL_DAMAGED:
                    raise
                faults = [error.detail]
    for fault in faults:
        click.echo(str(errors.error_for(errors.SPOOL_DAMAGED, fault)), err=True)
    if wants_json(as_json):
        print_json({"good": not faults, "faults": faults})
    elif not faults:
        click.echo("the spool is sound")
    return 1 if faults else 0


def _runs(data_dir: Path) -> bool:
    return node_runs(data_dir, read_node_file(data_dir))


def _verify_directory(data_dir: Path) -> list[str]:
    """Verify the spools of a node that does not run."""
    from cluster.backup import spools_of
    from storage.maintenance import verify

    faults = []
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
@json_option
@admin_options
def back_up(*, admin: AdminOptions, file: Path, as_json: bool) -> None:
    """Write everything that the running node keeps to FILE: objects, messages, names of producers.

    With --admin-url the node copies into its own data directory, which needs the room, and the copies are fetched.
    """
    from cluster import backup

    file = file.absolute()
    with backup.staging(file) as stage, admin.open() as connection:
        made = connection.call("spool.backup", directory=None if admin.admin_url else str(stage))
        try:
            wait_for(connection, made["jobs"], "copy")
            if made["copy"] is not None:
                with progress("fetch", None) as show:
                    backup.fetch(connection, made["copy"], made["parts"], stage, show)
        finally:
            if made["copy"] is not None:
                with contextlib.suppress(errors.AngariumError):
                    connection.call("spool.drop", copy=made["copy"])
        about = (made["node"], made["node_id"], made["workers"])
        with progress("pack", None) as show:
            manifest = backup.pack(stage, file, *about, show)
    result = {"file": str(file), "size_bytes": file.stat().st_size, "workers": manifest.workers}
    _print(result, as_json=as_json)


@spool.command("restore")
@click.argument("file", type=click.Path(exists=True, path_type=Path, dir_okay=False))
@json_option
@admin_options
def restore(*, admin: AdminOptions, file: Path, as_json: bool) -> None:
    """Make the data directory of a node that does not run hold what FILE holds; what it held is put aside."""
    from cluster import backup

    if admin.admin_url is not None:
        detail = "a backup is restored on the host of the node: run it there, with --data"
        raise errors.error_for(errors.INVALID_ARGUMENT, detail)
    with progress("restore", None) as show:
        done = backup.restore(file, admin.data, lambda _what, done, total: show(done, total))
    result = {
        "data": str(admin.data),
        "node": done.manifest.node,
        "taken": done.manifest.taken,
        "workers": done.manifest.workers,
        "replaced": None if done.replaced is None else str(done.replaced),
    }
    _print(result, as_json=as_json)


def _print(result: dict[str, Any], *, as_json: bool) -> None:
    if wants_json(as_json):
        print_json(result)
    else:
        print_attributes(result)
