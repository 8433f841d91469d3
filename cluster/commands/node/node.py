"""`angarium up`, `down`, `status`, `top`, `events` and `keys`: a node and its operator.

Starting and stopping is done by `cluster.supervisor` and `cluster.admin.client`; the commands here call them and show
what they answer. How a status is drawn is in `status_view.py`.
"""

from __future__ import annotations

import contextlib
import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from angarium_server.visible import visible
from cluster.commands.connecting.connection import (
    DEFAULT_DATA,
    AdminOptions,
    admin_options,
    data_option,
    option,
    own_data_directory,
)
from cluster.commands.node.joining import join_choice, join_cluster, join_options
from cluster.commands.terminal.following import following_options, show_following
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import ABOVE_0, FILE, setting
from cluster.commands.terminal.output import (
    WIDE,
    Output,
    list_option,
    output_option,
    print_lines,
    to_json,
    view_option,
    width,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin.answers import HostStatus
    from cluster.data.node_file import NodeFile
    from cluster.security.authority import Issued

#: What is at the addresses beside those for clients.
_FRONTS: Final = {"mqtt": "clients of MQTT", "http": "clients of HTTP", "management": "management API"}


@click.command()
@data_option
@option("--config", parameter="config_file", type=FILE, help="Configuration file of the node (TOML).")
@option(
    "--listen",
    multiple=True,
    help="Address to listen on, tcp://host:port or tls://host:port; port 0 is chosen once and kept.  [default: that of"
    " the configuration, else those of the last start if they are of this host, else tcp://127.0.0.1:55555]",
)
@click.option(
    "--mqtt",
    multiple=True,
    help="Address for clients of MQTT, tcp://host:port, tls://, ws:// or wss://, with /VPN for another Message VPN than"
    " default; port 0 is chosen once and kept; none: no such address.  [default: that of the configuration, else those"
    " that this option named last if they are of this host, else none]",
)
@click.option(
    "--http",
    multiple=True,
    help="Address for clients of HTTP, http://host:port of this host or https://host:port; port 0 is chosen once and"
    " kept; none: no such address.  [default: as with --mqtt]",
)
@click.option(
    "--management",
    multiple=True,
    help="Address of the management API, http://host:port of this host or https://host:port; port 0 is chosen once and"
    " kept; none: no such address.  [default: as with --mqtt]",
)
@click.option(
    "--cert-file", type=FILE, help="Certificate of tls:// addresses, and those up to its authority (PEM)."
)
@click.option(
    "--key-file", type=FILE, help="Private key of that certificate, if it is in another file (PEM)."
)
@option(
    "--workers", type=click.IntRange(1, 64), help="Worker processes, when the node starts for the first time."
)
@join_options
@click.option("--ready-file", type=click.Path(), help="File to write when clients can connect.")
@click.option(
    "-d",
    "--detach",
    is_flag=True,
    help="Return when the node is ready, or this host is the standby of another one, which it follows or waits for; it"
    " keeps running in the background.",
)
@option(
    "--log-level",
    type=click.Choice(("DEBUG", "INFO", "WARNING", "ERROR"), case_sensitive=False),
    help="Least severity that is logged.  [default: that of the configuration]",
)
@option("--syslog", help="Also send events to udp://HOST:PORT or unix:///dev/log.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Start although the config store or a spool is missing, damaged or of another data directory: it is set aside"
    " and made anew, and what objects do not claim any more is kept aside. Or although this host was a standby, and its"
    " section is left out.",
)
@output_option
def up(
    *,
    data: Path | None,
    config_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    join: str | None,
    token: str | None,
    token_file: Path | None,
    address: tuple[str, ...],
    detach: bool,
    log_level: str | None,
    syslog: str | None,
    out: Output,
    **others: Any,
) -> int:
    """Start the node of a data directory, and run it until it is stopped."""
    from cluster.data.node_file import NodeFile
    from cluster.supervisor.server import run_supervisor
    from cluster.supervisor.starting import UpOptions, run_detached

    announce = functools.partial(_print_node, out)
    options = UpOptions(
        data_dir=str(data or DEFAULT_DATA),
        config_file=None if config_file is None else str(config_file),
        cert_file=str(cert_file or ""),
        key_file=str(key_file or ""),
        log_level=log_level or "",
        syslog=syslog or "",
        on_ready=announce,
        on_warning=lambda text: click.echo(f"warning: {text}", err=True),
        **others,
    )
    choice = join_choice(join, token, token_file, address)
    if choice is not None:
        join_cluster(choice, options, out)
    if not detach:
        return run_supervisor(options)
    started = run_detached(options)
    if isinstance(started, NodeFile):
        announce(started)
    else:
        _print_standby(out, started)
    return 0


def _print_standby(out: Output, host: HostStatus) -> None:
    from cluster.standby.pair.settings import waits_because

    why = waits_because(host) or "'angarium standby promote' names the primary"
    what = f"is the standby of {host.primary}" if host.follows else f"follows nobody yet: {why}"
    told = {"host": host.host, "role": host.role, "primary": host.primary, "pid": host.pid}
    out.done(f"host {host.host} {what} (process {host.pid})", told)


def _print_node(out: Output, node: NodeFile) -> None:
    from cluster.commands.node.status_view import passwordless_text

    text = f"node {node.node} listens on {node.url} (process {node.pid})"
    fronts = {name: list(getattr(node, name).values()) for name in _FRONTS}
    fronts = {name: listen for name, listen in fronts.items() if listen}
    told = {"node": node.node, "url": node.url, "pid": node.pid, "passwordless": node.passwordless}
    out.done(text, told | fronts)
    if not out.is_json:
        for name, listen in fronts.items():
            out.done(f"{_FRONTS[name]}: {', '.join(listen)}", {})
    if node.passwordless and not out.is_json:
        out.done(passwordless_text(node.passwordless), {})


@click.command()
@data_option
@setting("--timeout", type=ABOVE_0, default=60.0, help="Seconds to wait for every process to exit.")
@output_option
def down(*, data: Path | None, timeout: float, out: Output) -> None:
    """Shut the node down gracefully, and return when every process has exited."""
    from cluster.admin.client import shut_down

    where = data or own_data_directory()
    ran = shut_down(where, timeout)
    text = f"the node of {where} {'is stopped' if ran else 'was not running'}"
    out.done(text, {"data": str(where), "stopped": True, "was_running": ran})


@click.command()
@view_option
@admin_options
def status(*, admin: AdminOptions, out: Output) -> None:
    """Show processes, sessions, rates in and out, and discards by reason."""
    out.one(admin.call("status"), functools.partial(_print_status, admin=admin, is_whole=out.form == WIDE))


def _print_status(found: dict[str, Any], *, admin: AdminOptions, is_whole: bool) -> None:
    from cluster.commands.node.status_view import status_lines
    from cluster.commands.standby.standby import pair_lines

    pair = pair_lines(admin.call("standby.status"))
    print_lines([*status_lines(found, width(), is_whole=is_whole), *pair])


@click.command()
@following_options("events", "id of an event")
@click.option("--event", default="*", metavar="PATTERN", help="Those with such a name, with * and ?.")
@click.option("--vpn", help="Those of a Message VPN.  [default: all, and those of the node]")
@output_option
@admin_options
def events(
    *,
    admin: AdminOptions,
    follow: bool,
    since: str | None,
    limit: int,
    event: str,
    vpn: str | None,
    out: Output,
) -> None:
    """Show the events of the node, oldest first."""
    form = to_json if out.is_json else _event_line
    with admin.open() as connection, contextlib.suppress(KeyboardInterrupt):
        # What is not chosen is not said: a node of an earlier version does not know it.
        which: dict[str, Any] = {
            **({} if event == "*" else {"event": event}),
            **({} if vpn is None else {"vpn": vpn}),
        }

        def call(operation: str, **more: Any) -> Any:
            return connection.call(operation, limit=limit, **which, **more)

        if follow:
            show_following(_Behind(call).find, "id", form, since, follow=True)
        else:
            show_following(lambda at: call("events", since=at), "id", form, since, follow=False)


class _Behind:
    """Finds the events behind another one, again and again."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._at: Any = None

    def find(self, since: Any) -> Any:
        """Give those behind the last look; at the first one those behind `since`, or the newest."""
        if self._at is None and since is None:
            # What happens between the two questions is in the second answer.
            newest = self._call("events.follow")["upto"]
            found = self._call("events")
            self._at = max([newest, *(one["id"] for one in found)])
            return found
        answer = self._call("events.follow", since=since if self._at is None else self._at)
        self._at = answer["upto"]
        if answer["lost"] != 0:
            lost = "events" if answer["lost"] is None else f"{answer['lost']} events"
            click.echo(f"warning: {lost} before these are not kept any more", err=True)
        return answer["events"]


def _event_line(event: dict[str, Any]) -> str:
    line = f"{event['time']} {event['severity']:<7} {event['event']}: {event['text']}"
    return visible(line)


#: Nobody has to renew a certificate more often than once a year, nor keeps one for longer than an authority.
_DAYS: Final = 365
_DAYS_MAX: Final = 3_650
_hosts_option = click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME_OR_IP",
    help="Name or IP address by which others connect to the node.",
)
_days_option = setting("--days", type=click.IntRange(1, _DAYS_MAX), default=_DAYS, help="Days until it ends.")


@click.group(cls=SuggestingGroup)
def keys() -> None:
    """Certificates of encrypted connections (TLS), and secrets."""


@keys.command("reload")
@admin_options
@output_option
def reload_certificate(*, admin: AdminOptions, out: Output) -> None:
    """Have the node read the certificate of its tls:// addresses again.

    Connections that are there go on; those that come have the new one. A damaged file changes nothing; of a certificate
    that has ended or soon will, there is a warning.
    """
    ending = admin.call("keys.reload") or []  # a node of an earlier version says nothing
    for text in ending:
        click.echo(f"warning: {visible(text)}", err=True)
    told = {"reloaded": True, "warnings": ending}
    out.done("new connections have the certificate that is in the file now", told)


@keys.command("create")
@click.argument("path", type=click.Path(path_type=Path))
@_hosts_option
@click.option(
    "--authority",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the authority that signs.  [default: that of PATH]",
)
@_days_option
@click.option(
    "--client", "is_client", is_flag=True, help="For an application or an operator, not for a node."
)
@output_option
def create_certificate(
    *, path: Path, hosts: tuple[str, ...], authority: Path | None, days: int, is_client: bool, out: Output
) -> None:
    """Write a certificate to PATH.pem and its private key to PATH.key.

    The last part of PATH is the name in the certificate. A node's is good for that name, localhost, the name of this
    host, and every --host. authority.pem signs it; that and its key are made if they are not there. Clients trust
    authority.pem; authority.key stays where certificates are made.
    """
    from cluster.security import authority as making

    if is_client and hosts:
        raise click.UsageError("--host is for nodes: others connect to them, and not to a client.")
    made = (
        making.create_client_certificate(path, authority, days)
        if is_client
        else making.create_certificate(path, hosts, authority, days)
    )
    names = f" for {', '.join(made.names)}" if made.names else ""
    out.done(
        f"{made.cert_file} and {made.key_file}, good until {made.not_after:%Y-%m-%d}{names}", _issued(made)
    )
    if not out.is_json:
        out.done(f"whoever connects trusts {made.authority_file}", {})


@keys.command("cluster")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.argument("nodes", nargs=-1, required=True, metavar="NODES...")
@_hosts_option
@_days_option
@list_option
def create_cluster_certificates(
    *, directory: Path, nodes: tuple[str, ...], hosts: tuple[str, ...], days: int, out: Output
) -> None:
    """Create the secret of a cluster, an authority, and the certificates of its NODES in DIRECTORY.

    Each of NODES is NAME, or NAME=HOST for one that others know by another name or an IP address; --host is for all of
    them. Existing files are kept, so the same command with one more node adds its certificate. Each node needs
    cluster.secret, authority.pem and its own NODE.pem and NODE.key.
    """
    from cluster.security.authority import create_cluster

    given = {name: [*filter(None, [host]), *hosts] for name, _, host in (one.partition("=") for one in nodes)}
    made = create_cluster(directory, given, days)
    rows = [{"node": node, **_issued(one)} for node, one in made.items()]
    out.rows(rows, ("node", "cert_file", "not_after"), wide=("names",), name="node", empty="")


def _issued(made: Issued) -> dict[str, Any]:
    return {
        "cert_file": str(made.cert_file),
        "key_file": str(made.key_file),
        "authority_file": str(made.authority_file),
        "names": made.names,
        "not_after": made.not_after.isoformat(),
    }


@keys.command("show")
@click.argument("file", type=FILE)
@output_option
def show_certificate(*, file: Path, out: Output) -> None:
    """Show whose certificate is in FILE, the first one, who signed it, and when it ends."""
    from cluster.security.certificates import describe, read_certificates

    out.one(describe(read_certificates(file)[0], datetime.now(UTC)))


@keys.command("secret")
@click.argument("path", type=click.Path(path_type=Path))
@output_option
def create_secret(*, path: Path, out: Output) -> None:
    """Write a random secret to PATH, for cluster.secret_file or a password file; it is not printed."""
    from cluster.security.keys import create_secret

    create_secret(path)
    out.done(f"a secret is in {path}", {"file": str(path)})
