"""How a node is started: what `angarium up` asks for, which addresses that means, and a start in the background.

Whatever can be refused is refused here, in one line and before a process is spawned: a configuration with faults, a
data directory that is in use, an address on which somebody listens. `cluster.supervisor.server` runs the node.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from angarium_server import launch
from angarium_server.connections.addresses import has_open_port, host_and_port, is_loopback
from cluster.configuration.concerns import concerns_of
from cluster.configuration.config import NodeConfig, faults_of, load_config
from cluster.configuration.encryption import client_address_faults
from cluster.data import registry
from cluster.data.data_dir import in_use
from cluster.data.node_file import HOST_ROLE_FILE, NodeFile, node_runs, read_node_file
from cluster.join import stored
from cluster.supervisor.fronts import FRONTS, left_out, urls_to_bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cluster.admin.answers import HostStatus

#: A detached node that is not ready by then is reported as failed.
DETACHED_READY_TIMEOUT_S: Final = 60.0
#: ... and a host that nobody has named the primary, or that lacks something, is one that waits, unless a primary has
#: found it by then.
PRIMARY_WAIT_S: Final = 10.0
#: What of the log is shown when a detached node fails.
_LOG_LINES_SHOWN: Final = 3
_LOOK_INTERVAL_S: Final = 0.05
#: The processes of a node that was killed end by themselves, within milliseconds unless the machine is busy.
KILLED_ROUTER_WAIT_S: Final = 5.0
#: An outgoing connection that has the port by chance may end soon.
CONNECTION_WAIT_S: Final = 3.0
_PROBE_TIMEOUT_S: Final = 0.5
#: How an error is written, by `cluster.commands.cli` and in the log.
_ERROR: Final = re.compile(r"error (?P<code>\d{5}): (?P<what>.+?) \((?P<advice>.+)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `angarium up` was asked; what is empty or None comes from the file, else from the defaults."""

    data_dir: str = "angarium-data"
    config_file: str | None = None
    listen: tuple[str, ...] = ()
    #: Addresses for clients of MQTT and of HTTP, and of the management API; NONE alone for none.
    mqtt: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    management: tuple[str, ...] = ()
    #: Certificate of `tls://` addresses, and its key if that is in another file.
    cert_file: str = ""
    key_file: str = ""
    workers: int | None = None
    ready_file: str | None = None
    #: Whether to start although a store is missing, damaged or of another data directory.
    accept_loss: bool = False
    log_level: str = ""
    syslog: str = ""
    #: Called once, when clients can connect.
    on_ready: Callable[[NodeFile], None] | None = None
    #: Called by a start in the background with each thing that its log alone would say.
    on_warning: Callable[[str], None] | None = None

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """What was named of the addresses of each front."""
        return {front.name: getattr(self, front.name) for front in FRONTS}


def run_detached(options: UpOptions, timeout_s: float = DETACHED_READY_TIMEOUT_S) -> NodeFile | HostStatus:
    """Start a node in the background and return when clients can connect, or when its host is the standby of another.

    Raises:
        AngariumError: the configuration is refused (40017), the data directory or an address is in use (40902), a
            standby is to be a node of its own (40909), what made the node end while starting, or it did not become
            ready (50308).
    """
    config = effective_config(options)
    data_dir = Path(options.data_dir).absolute()
    refuse_standby(options, config, data_dir)
    refuse_taken(options, config, data_dir)
    if options.on_warning is not None:
        for text in [*concerns_of(config), *left_out(config, options.named, _known_node(data_dir))]:
            options.on_warning(text)
    log_path = data_dir / "log" / "node.log"
    ready_path = Path(options.ready_file or data_dir / "ready.json")
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # parents of a directory do not get its mode
    log_path.parent.mkdir(mode=0o700, exist_ok=True)
    ready_path.unlink(missing_ok=True)
    logged = log_path.stat().st_size if log_path.exists() else 0
    pid = _spawn_detached(_detached_command(options, data_dir, ready_path), log_path)
    deadline = time.monotonic() + timeout_s
    while not ready_path.exists():
        waited_s = time.monotonic() - deadline + timeout_s
        if config.standby.store and (host := _standing_by(data_dir, pid, waited_s)) is not None:
            return host
        ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        if ended and (cause := _cause(log_path, logged)):
            raise cause
        if ended or time.monotonic() >= deadline:
            why = "ended while starting" if ended else f"is not ready after {timeout_s:g} s"
            detail = f"the node {why}:\n{_complaints(log_path, logged)}\n"
            raise errors.error_for(errors.NODE_UNREACHABLE, detail, f"{log_path} has all of it")
        time.sleep(_LOOK_INTERVAL_S)
    return read_node_file(data_dir)


def _standing_by(data_dir: Path, pid: int, waited_s: float) -> HostStatus | None:
    """Give what a host says of itself that runs no node: it follows another one, or waits for it or an operator."""
    # A node without a standby does without it.
    from cluster.standby.pair.settings import read_status, waits_because

    status = read_status(data_dir)
    if status is None or status.pid != pid or status.role != "standby":
        return None
    is_named = status.store != "manual" or status.primary == status.host
    follows = bool(status.follows and status.primary)
    waits = not is_named or bool(waits_because(status))
    return status if follows or (waited_s > PRIMARY_WAIT_S and waits) else None


def _cause(log_path: Path, start: int) -> errors.AngariumError | None:
    """Give the last error of ours that a log names from an offset on; what the supervisor says only repeats it."""
    found = [_ERROR.search(line) for line in _lines(log_path, start) if " supervisor " not in line]
    matches = [match for match in found if match and int(match["code"]) in errors.ERRORS]
    if not matches:
        return None
    code = int(matches[-1]["code"])
    what = matches[-1]["what"].removeprefix(errors.ERRORS[code].text).removeprefix(": ")
    return errors.error_for(code, what, matches[-1]["advice"])


def _complaints(log_path: Path, start: int) -> str:
    """Give the worst that a log says from an offset on, each thing once and without its time; else its end."""
    lines = _lines(log_path, start)
    for severity in (" CRITICAL ", " ERROR "):
        found = dict.fromkeys(line.split(" ", 2)[-1] for line in lines if severity in line)
        if found:
            lines = list(found)
            break
    return "\n".join(lines[-_LOG_LINES_SHOWN:])


def _lines(log_path: Path, start: int) -> list[str]:
    with log_path.open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace").splitlines()


def effective_config(options: UpOptions) -> NodeConfig:
    """Give the configuration of the file with what the command line overrides.

    Raises:
        InvalidRequestError: it is refused; the text says what to do (40017).
    """
    config = stored.with_joined(load_config(options.config_file), Path(options.data_dir))
    changes: dict[str, Any] = {}
    if options.listen:
        changes["listen"] = list(options.listen)
    if options.cert_file:
        changes["tls_cert_file"], changes["tls_key_file"] = options.cert_file, options.key_file
    if options.workers is not None:
        changes["workers"] = options.workers
    router = msgspec.structs.replace(config.router, **changes)
    config = msgspec.structs.replace(config, router=router)
    for front in FRONTS:
        config = front.with_named(config, options.named[front.name])
    if options.log_level:
        level = msgspec.structs.replace(config.log, level=options.log_level.upper())
        config = msgspec.structs.replace(config, log=level)
    if options.syslog:
        events = msgspec.structs.replace(config.events, syslog=options.syslog)
        config = msgspec.structs.replace(config, events=events)
    config = stored.with_authority(config)
    faults = faults_of(config)
    if faults:
        raise errors.error_for(errors.INVALID_CONFIGURATION, faults[0])
    return config


def asked_listen(options: UpOptions, config: NodeConfig, kept: list[str]) -> list[str]:
    """Give the addresses asked for: who names none means those of the last start, if only this host reaches them.

    Raises:
        InvalidRequestError: one of the last start needs a certificate, which is named at each start (40017).
    """
    is_named = options.listen or config.router.listen != NodeConfig().router.listen
    if is_named or not kept or not all(map(is_loopback, kept)):
        return config.router.listen
    for url in kept:
        for fault in client_address_faults("the address of the last start", "--listen", url, config.router):
            raise errors.error_for(errors.INVALID_CONFIGURATION, fault)
    return kept


def fixed_listen(configured: Iterable[str], node: NodeFile) -> list[str]:
    """Give the addresses to bind: an open port becomes the one that was chosen for it before, if any."""
    kept = dict(zip(node.listen, node.urls, strict=False))
    return [kept.get(url, url) if has_open_port(url) else url for url in configured]


def refuse_standby(options: UpOptions, config: NodeConfig, data_dir: Path) -> None:
    """Refuse to run a node of its own on what a standby has, unless its operator accepts that something is lost.

    Raises:
        ConflictError: this host was the standby of another one, which may run the node (40909).
    """
    if config.standby.store or options.accept_loss or not (data_dir / HOST_ROLE_FILE).exists():
        return
    from cluster.standby.noted import is_standby  # a node without a standby does without it

    if is_standby(data_dir):
        detail = f"{data_dir} is that of a standby, which may lack what was acknowledged, and the other host may run"
        advice = (
            "write the section [standby]; if the other host is lost for good, have this one promoted with it before you"
            " leave it out: 'angarium standby promote --force'"
        )
        raise errors.error_for(errors.STANDBY_REFUSED, detail, advice)


def refuse_taken(options: UpOptions, config: NodeConfig, data_dir: Path) -> None:
    """Refuse to start where a node runs already, or where somebody listens on an address that is asked for.

    Raises:
        ConflictError: the data directory or an address is in use (40902).
        InvalidRequestError: `node.json` cannot be read, or this host has no such address (40017).
    """
    node = _known_node(data_dir)
    if node_runs(data_dir, node):
        raise in_use(data_dir)
    listen = fixed_listen(asked_listen(options, config, node.listen), node)
    others = urls_to_bind(config, options.named, node)
    refuse_taken_addresses([*listen, *others], was_killed=node.pid > 0)


def _known_node(data_dir: Path) -> NodeFile:
    """Give what earlier starts left of a node, nothing of one that is new.

    Raises:
        InvalidRequestError: `node.json` cannot be read (40017).
    """
    try:
        return read_node_file(data_dir)
    except errors.UnavailableError:
        return NodeFile(node="", node_id="", workers=0)


def refuse_taken_addresses(urls: Iterable[str], *, was_killed: bool) -> None:
    """Refuse addresses on which somebody listens, before a router fails on them again and again.

    If the node of the data directory was killed, its router may be a moment behind it and is waited for. So is the end
    of a connection to somewhere else that has the port: the kernel gives ports of its ephemeral range to any.

    Raises:
        ConflictError: one is in use (40902).
        InvalidRequestError: this host has no such address, or this user may not have its port (40017).
    """
    deadline = time.monotonic() + (KILLED_ROUTER_WAIT_S if was_killed else CONNECTION_WAIT_S)
    for url in urls:
        place = host_and_port(url)
        number = 0 if place is None else _bind_fault(*place)
        while place and number == errno.EADDRINUSE and time.monotonic() < deadline:
            if not was_killed and _somebody_listens(*place):
                break
            time.sleep(_LOOK_INTERVAL_S)
            number = _bind_fault(*place)
        if place and number == errno.EADDRINUSE:
            raise _in_use(url, listens=_somebody_listens(*place))
        if number:
            advice = "name another address: --listen, --mqtt, --http or --management, or that key of the configuration"
            raise errors.error_for(errors.INVALID_CONFIGURATION, f"{url}: {os.strerror(number)}", advice)


def _in_use(url: str, *, listens: bool) -> errors.AngariumError:
    other = "name another port for it: 0 takes any free one, as in --listen tcp://127.0.0.1:0"
    if listens:
        detail, advice = f"{_listener(url)} listens on {url}", f"end what listens there, or {other}"
    else:
        detail, advice = f"{url} is taken, by a listener or a connection", f"'ss -tanp' shows it; or {other}"
    return errors.error_for(errors.OBJECT_IN_USE, detail, advice)


def _somebody_listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host or "localhost", port), _PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _bind_fault(host: str, port: int) -> int:
    """Try to bind an address and give the error number; 0 for none, or if its name cannot be looked up here."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        return 0  # perhaps the name of an interface, which the router knows
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            return error.errno or 0
    return 0


def _listener(url: str) -> str:
    """Say who listens on an address: a node of this user, or something else."""
    with contextlib.suppress(errors.AngariumError):
        for node in registry.running_nodes():
            if node.url == url:
                return f"the node of {node.data}"
    return "another process"


def plain_address(url: str) -> str:
    """Give an address without the IPv6 form of IPv4 that a socket for both reports: tcp://127.0.0.1:55555."""
    return re.sub(r"^(tcp|tls)://\[::ffff:(\d+\.\d+\.\d+\.\d+)\]:", r"\1://\2:", url)


def _spawn_detached(command: list[str], log_path: Path) -> int:
    """Start a process in a session of its own that writes to a log, and give its pid.

    Nobody waits for it: it goes on after us. (A `Popen` would complain about that.)
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        command[0],
        command,
        launch.environment(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _detached_command(options: UpOptions, data_dir: Path, ready_path: Path) -> list[str]:
    command = launch.command("up", "--data", str(data_dir), "--ready-file", str(ready_path))
    if options.config_file:
        command += ["--config", options.config_file]
    for url in options.listen:
        command += ["--listen", url]
    for name, urls in options.named.items():
        for url in urls:
            command += [f"--{name}", url]
    for option, file in (("--cert-file", options.cert_file), ("--key-file", options.key_file)):
        command += [option, file] if file else []
    if options.workers is not None:
        command += ["--workers", str(options.workers)]
    if options.log_level:
        command += ["--log-level", options.log_level]
    if options.syslog:
        command += ["--syslog", options.syslog]
    if options.accept_loss:
        command.append("--accept-loss")
    return command
