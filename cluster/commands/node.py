"""`angarium up`, `down`, `status`, `top`, `events`, `config` and `keys`: a node and its operator.

Starting and stopping is done by the supervisor and by `cluster.admin`, checking by `cluster.config`; the
commands here call them and show what they answer. How a status is drawn is in `status_view`.
"""

from __future__ import annotations

import contextlib
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from cluster.commands.connection import (
    DEFAULT_DATA,
    AdminOptions,
    admin_options,
    data_option,
    json_option,
)
from cluster.commands.group import SuggestingGroup
from cluster.commands.output import (
    cell,
    draw,
    print_json,
    print_json_lines,
    print_table,
    to_json,
    wants_json,
)
from cluster.visible import visible

if TYPE_CHECKING:
    from cluster.admin import Admin, NodeFile

#: What fits a screen that one reads from top to bottom; `--limit` gives more.
DEFAULT_EVENT_LIMIT: Final = 1_000
#: Fast enough to watch, slow enough that the node does not notice.
DEFAULT_INTERVAL_S: Final = 1.0
_AGO: Final = re.compile(r"(\d+)([smhd])")
_AGO_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

_file_in = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@data_option
@click.option("--config", "config_file", type=_file_in, help="Configuration file of the node (TOML).")
@click.option(
    "--listen",
    multiple=True,
    help="Address to listen on, tcp://host:port; port 0 is chosen once and kept.  [default: that of the configuration,"
    " else those of the last start if they are of this host]",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), help="Worker processes, when the node starts for the first time."
)
@click.option("--ready-file", type=click.Path(), help="File to write when clients can connect.")
@click.option("--detach", is_flag=True, help="Return when the node is ready; it goes on in the background.")
@click.option(
    "--log-level",
    type=click.Choice(("DEBUG", "INFO", "WARNING", "ERROR"), case_sensitive=False),
    help="Least severity that is logged.  [default: that of the configuration]",
)
@click.option("--syslog", help="Where events go besides: udp://HOST:PORT or unix:///dev/log.")
@json_option
def up(
    *,
    data: Path | None,
    config_file: Path | None,
    listen: tuple[str, ...],
    workers: int | None,
    ready_file: str | None,
    detach: bool,
    log_level: str | None,
    syslog: str | None,
    as_json: bool,
) -> int:
    """Start the node of a data directory, and run it until it is stopped."""
    from cluster.server import UpOptions, run_detached, run_supervisor

    announce = _print_node_as_json if wants_json(as_json) else _print_node
    options = UpOptions(
        data_dir=str(data or DEFAULT_DATA),
        config_file=None if config_file is None else str(config_file),
        listen=listen,
        workers=workers,
        ready_file=ready_file,
        log_level=log_level or "",
        syslog=syslog or "",
        on_ready=announce,
    )
    if not detach:
        return run_supervisor(options)
    announce(run_detached(options))
    return 0


def _print_node_as_json(node: NodeFile) -> None:
    print_json({"node": node.node, "url": node.url, "pid": node.pid})


def _print_node(node: NodeFile) -> None:
    click.echo(f"node {node.node} listens on {node.url} (process {node.pid})")


@click.command()
@data_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds to wait until every process is gone.",
)
@json_option
def down(*, data: Path | None, timeout: float, as_json: bool) -> None:
    """Stop the node in order, and return when every process is gone."""
    from cluster.admin import shut_down

    where = data or Path(DEFAULT_DATA)
    shut_down(where, timeout)
    if wants_json(as_json):
        print_json({"data": str(where), "stopped": True})
    else:
        click.echo(f"the node of {where} is stopped")


@click.command()
@json_option
@admin_options
def status(*, admin: AdminOptions, as_json: bool) -> None:
    """Show processes, sessions, rates in and out, and discards by reason."""
    found = admin.call("status")
    if wants_json(as_json):
        print_json(found)
        return
    from cluster.commands.status_view import draw_status

    draw(draw_status(found))


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=DEFAULT_INTERVAL_S,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
@json_option
@admin_options
def top(*, admin: AdminOptions, interval: float, count: int | None, as_json: bool) -> None:
    """Show the status again and again, until interrupted."""
    with admin.open() as connection, contextlib.suppress(KeyboardInterrupt):
        if wants_json(as_json):
            _each(connection, interval, count, print_json)
        else:
            _live(connection, interval, count)


def _each(connection: Admin, interval_s: float, count: int | None, show: Any) -> None:
    """Call `show` with the status, at once and then after each interval."""
    looks = 0
    while True:
        show(connection.call("status"))
        looks += 1
        if looks == count:
            return
        time.sleep(interval_s)


def _live(connection: Admin, interval_s: float, count: int | None) -> None:
    from rich.live import Live

    from cluster.commands.status_view import draw_status

    with Live(auto_refresh=False, screen=count is None) as live:
        _each(connection, interval_s, count, lambda found: live.update(draw_status(found), refresh=True))


@click.command()
@click.option("--follow", is_flag=True, help="Go on with new events, until interrupted.")
@click.option("--since", help="ISO time, id of an event, or how long ago: 30s, 10m, 2h, 1d.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=DEFAULT_EVENT_LIMIT,
    show_default=True,
    help="At most so many at once.",
)
@json_option
@admin_options
def events(*, admin: AdminOptions, follow: bool, since: str | None, limit: int, as_json: bool) -> None:
    """Show what happened on the node, oldest first."""
    form = to_json if wants_json(as_json) else _event_line
    position: Any = None if since is None else _since(since)
    with admin.open() as connection, contextlib.suppress(KeyboardInterrupt):
        while True:
            found = connection.call("events", since=position, limit=limit)
            for event in found:
                click.echo(form(event))
                position = event["id"]
            if not follow:
                return
            time.sleep(DEFAULT_INTERVAL_S / 2)


def _since(text: str) -> str | int:
    """Read `--since`: an id, how long ago, or an ISO time as it is."""
    if text.isdecimal():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is None:
        return text
    span = timedelta(**{_AGO_UNITS[ago.group(2)]: int(ago.group(1))})
    return (datetime.now(UTC) - span).isoformat()


def _event_line(event: dict[str, Any]) -> str:
    line = f"{event['time']} {event['severity']:<7} {event['scope']:<6} {event['event']}: {event['text']}"
    return visible(line)


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Configuration: the file of the node, and the objects that operators create."""


@config.command("show")
@click.option("--defaults", is_flag=True, help="Print every key with its default and a sentence.")
@json_option
@admin_options
def show_config(*, admin: AdminOptions, defaults: bool, as_json: bool) -> None:
    """Print the configuration of the running node as TOML, or every default."""
    if defaults:
        from cluster.config import show_defaults

        click.echo(show_defaults(), nl=False)
        return
    found = admin.call("config.show")
    if as_json:
        print_json(found)
        return
    import msgspec

    from cluster import config as node_config

    click.echo(node_config.show_config(msgspec.convert(found, node_config.NodeConfig)), nl=False)


@config.command("check")
@click.argument("file", type=_file_in)
@json_option
def check_config_file(*, file: Path, as_json: bool) -> int:
    """Check a configuration file and name every fault."""
    from cluster.config import check_config

    faults = check_config(file)
    for fault in faults:
        click.echo(f"error {errors.INVALID_CONFIGURATION}: {file}: {fault}", err=True)
    if wants_json(as_json):
        print_json({"file": str(file), "good": not faults, "faults": faults})
    elif not faults:
        click.echo(f"{file} is good")
    return 1 if faults else 0


@config.command("export")
@json_option
@admin_options
def export_objects(*, admin: AdminOptions, as_json: bool) -> None:
    """Print the objects of the node as TOML that 'config apply' reads; password hashes are in it."""
    found = admin.call("config.export")
    if as_json:
        print_json_lines(
            {"kind": kind, "vpn": vpn, "name": name, "attributes": attributes}
            for kind, vpn, name, attributes in found
        )
        return
    from cluster.config import export_config

    click.echo(export_config(found), nl=False)


@config.command("apply")
@click.argument("file", type=_file_in)
@click.option("--dry-run", is_flag=True, help="Only tell what would change.")
@json_option
@admin_options
def apply_config(*, admin: AdminOptions, file: Path, dry_run: bool, as_json: bool) -> None:
    """Create and update the objects of a file; nothing is deleted."""
    from cluster.config import parse_objects

    objects = parse_objects(file.read_text(encoding="utf-8"), file.parent)
    done = admin.call("config.apply", objects=objects, dry_run=dry_run)
    if wants_json(as_json):
        print_json_lines(done)
    else:
        rows = [{**row, "changes": _changes(row)} for row in done]
        print_table(rows, ("action", "kind", "vpn", "name", "changes"), empty=f"{file} holds no objects")


def _changes(row: dict[str, Any]) -> str:
    """Say what became of an object: of a new one what is not as ever, of another one before and after."""
    from cluster.objects import differing

    changes = row["changes"]
    if row["action"] == "create":
        made = {name: after for name, (_, after) in changes.items()}
        return "; ".join(f"{name} = {cell(value)}" for name, value in differing(row["kind"], made).items())
    return "; ".join(f"{name}: {cell(before)} -> {cell(after)}" for name, (before, after) in changes.items())


@click.group(cls=SuggestingGroup)
def keys() -> None:
    """Keys of encrypted connections (CURVE), and secrets."""


@keys.command("cluster")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.argument("nodes", nargs=-1, required=True)
@json_option
def create_cluster_keys(*, directory: Path, nodes: tuple[str, ...], as_json: bool) -> None:
    """Write what the NODES of a cluster need into DIRECTORY: its secret, and keys for each.

    What is there stays, so the same command with one more node adds its keys. Each node gets cluster.secret, its own
    NODE.key, and NODE.key.pub of all.
    """
    from cluster.keys import create_cluster_keys

    public = create_cluster_keys(directory, nodes)
    rows = [
        {"node": node, "secret_file": str(directory / f"{node}.key"), "public_key": key}
        for node, key in public.items()
    ]
    if wants_json(as_json):
        print_json_lines(rows)
    else:
        print_table(rows, ("node", "secret_file", "public_key"), empty="")


@keys.command("secret")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def create_secret(*, path: Path, as_json: bool) -> None:
    """Write a random secret to PATH, for cluster.secret_file or a password file; it is not printed."""
    from cluster.keys import create_secret

    create_secret(path)
    if wants_json(as_json):
        print_json({"file": str(path)})
    else:
        click.echo(f"a secret is in {path}")


@keys.command("create")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def create_key_pair(*, path: Path, as_json: bool) -> None:
    """Write a secret key to PATH and its public key to PATH.pub, and print the public key."""
    from cluster.keys import create_keys

    public = create_keys(path)
    if wants_json(as_json):
        print_json({"secret_file": str(path), "public_file": f"{path}.pub", "public_key": public})
    else:
        click.echo(public)
