"""The supervisor's shell, `angarium up`: starts the processes of a node, watches them, stops them in order.

What is to be done is decided by `cluster/supervisor.py`; here it is carried out: children are spawned as
`python -m <package>`, reaped, killed; heartbeats come in and the table goes out over a ROUTER socket. Around
that stand the data directory with its lock and `node.json`, and the runtime directory with the sockets and
the configuration of each process. It never sees a message of a client, and it never opens the config store:
the controller does.

The data directory:

    lock            held for as long as a node runs
    token.key       the secret of the router's resume tokens
    node.json       `cluster.admin.NodeFile`: what is kept (name, id, workers, addresses) and where the node runs
    config/         the config store, the controller's
    spool/I/        the spool of worker I
    events.jsonl    the events, the controller's
    log/node.log    what the processes log, when detached
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq

from angarium import errors, wire
from angarium.process import (
    LOG_LEVEL_VARIABLE,
    SUPERVISOR_PID_VARIABLE,
    configure_logging,
    utc_now,
)
from cluster.addresses import has_open_port, is_loopback
from cluster.admin import NodeFile, read_node_file
from cluster.config import NodeConfig, cluster_secret, faults_of, load_config
from cluster.data_dir import DataDirectory, RuntimeDirectory, write_durably
from cluster.runtime_files import RuntimeFiles
from cluster.service_manager import ServiceManager
from cluster.supervisor import (
    Announce,
    Bound,
    Effect,
    Finish,
    Kill,
    NodeReady,
    Spawn,
    Supervisor,
    Tell,
    Terminate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: The package of each role; a process is `python -m <package>`.
COMMANDS: Final[dict[str, list[str]]] = {
    "controller": [sys.executable, "-m", "cluster.controller.server"],
    "router": [sys.executable, "-m", "router"],
    "worker": [sys.executable, "-m", "node"],
    "link": [sys.executable, "-m", "cluster.link"],
    "bridge": [sys.executable, "-m", "cluster.bridge"],
}
#: Every process gets the table this often although nothing changed, in case a frame was lost at its start.
ANNOUNCE_INTERVAL_S: Final = 1.0
#: Frames taken in one round: far more than a node sends in the longest pause.
FRAMES_PER_ROUND: Final = 1_000
#: Events that the controller has not confirmed yet; the oldest is lost first.
PENDING_EVENTS_MAX: Final = 1_000
#: Each start of a node has this many incarnations.
INCARNATIONS_PER_START: Final = 1 << 20
#: A detached node that is not ready by then is reported as failed.
DETACHED_READY_TIMEOUT_S: Final = 60.0
#: What of the log is shown when a detached node fails.
_LOG_LINES_SHOWN: Final = 3
_LOOK_INTERVAL_S: Final = 0.05
_DEFAULT_WORKERS_MAX: Final = 4

_log = logging.getLogger("supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `angarium up` was asked; what is empty or None comes from the file, else from the defaults."""

    data_dir: str = "angarium-data"
    config_file: str | None = None
    listen: tuple[str, ...] = ()
    workers: int | None = None
    ready_file: str | None = None
    log_level: str = ""
    syslog: str = ""
    #: Called once, when clients can connect.
    on_ready: Callable[[NodeFile], None] | None = None


def run_supervisor(options: UpOptions, commands: Mapping[str, list[str]] = COMMANDS) -> int:
    """Run a node until it is asked to stop, and give the exit status.

    Raises:
        AngariumError: the configuration is refused (40017), or the data directory is in use (40902).
    """
    config = effective_config(options)
    configure_logging("supervisor", None, config.log.level)
    with (
        DataDirectory(options.data_dir, config.node.name) as data,
        RuntimeDirectory(earlier=data.node.runtime) as runtime,
    ):
        server = Server(options, config, data, runtime, commands)
        try:
            return server.run()
        finally:
            server.close()


def run_detached(options: UpOptions, timeout_s: float = DETACHED_READY_TIMEOUT_S) -> NodeFile:
    """Start a node in the background and return when clients can connect.

    Raises:
        AngariumError: the configuration is refused (40017), or the node did not become ready (50308).
    """
    effective_config(options)
    data_dir = Path(options.data_dir).absolute()
    log_path = data_dir / "log" / "node.log"
    ready_path = Path(options.ready_file or data_dir / "ready.json")
    log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready_path.unlink(missing_ok=True)
    logged = log_path.stat().st_size if log_path.exists() else 0
    pid = _spawn_detached(_detached_command(options, data_dir, ready_path), log_path)
    deadline = time.monotonic() + timeout_s
    while not ready_path.exists():
        ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        if ended or time.monotonic() >= deadline:
            why = "ended while starting" if ended else f"is not ready after {timeout_s:g} s"
            detail = f"the node {why}:\n{_complaints(log_path, logged)}\n"
            raise errors.error_for(errors.NODE_UNREACHABLE, detail, f"{log_path} has all of it")
        time.sleep(_LOOK_INTERVAL_S)
    return read_node_file(data_dir)


def _complaints(log_path: Path, start: int) -> str:
    """Give the worst that a log says from an offset on, each thing once and without its time; else its end."""
    with log_path.open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").splitlines()
    for severity in (" CRITICAL ", " ERROR "):
        found = dict.fromkeys(line.split(" ", 2)[-1] for line in lines if severity in line)
        if found:
            lines = list(found)
            break
    return "\n".join(lines[-_LOG_LINES_SHOWN:])


def effective_config(options: UpOptions) -> NodeConfig:
    """Give the configuration of the file with what the command line overrides.

    Raises:
        InvalidRequestError: it is refused; the text says what to do (40017).
    """
    config = load_config(options.config_file)
    changes: dict[str, Any] = {}
    if options.listen:
        changes["listen"] = list(options.listen)
    if options.workers is not None:
        changes["workers"] = options.workers
    router = msgspec.structs.replace(config.router, **changes)
    config = msgspec.structs.replace(config, router=router)
    if options.log_level:
        level = msgspec.structs.replace(config.log, level=options.log_level.upper())
        config = msgspec.structs.replace(config, log=level)
    if options.syslog:
        events = msgspec.structs.replace(config.events, syslog=options.syslog)
        config = msgspec.structs.replace(config, events=events)
    faults = faults_of(config)
    if faults:
        raise errors.error_for(errors.INVALID_CONFIGURATION, faults[0])
    return config


def asked_listen(options: UpOptions, config: NodeConfig, kept: list[str]) -> list[str]:
    """Give the addresses asked for: who names none means those of the last start, if only this host reaches them."""
    is_named = options.listen or config.router.listen != NodeConfig().router.listen
    is_kept = kept and not is_named and all(map(is_loopback, kept))
    return kept if is_kept else config.router.listen


def fixed_listen(configured: Iterable[str], kept: Mapping[str, str]) -> list[str]:
    """Give the addresses to bind: an open port becomes the one that was chosen for it before, if any."""
    return [kept.get(url, url) if has_open_port(url) else url for url in configured]


def plain_address(url: str) -> str:
    """Give an address without the IPv6 form of IPv4 that a socket for both reports: tcp://127.0.0.1:55555."""
    return re.sub(r"^tcp://\[::ffff:(\d+\.\d+\.\d+\.\d+)\]:", r"tcp://\1:", url)


class Server:
    """The running supervisor: a ROUTER socket, the children, and the state machine that decides."""

    def __init__(
        self,
        options: UpOptions,
        config: NodeConfig,
        data: DataDirectory,
        runtime: RuntimeDirectory,
        commands: Mapping[str, list[str]],
    ) -> None:
        """Prepare and bind; nothing is spawned yet."""
        self._options = options
        self._data = data
        self._runtime = runtime
        self._commands = commands
        self._workers = self._keep_worker_count(config)
        self._files = RuntimeFiles(data, runtime, cluster_secret(config.cluster))
        #: What was asked for, beside which the addresses that were bound are kept.
        self._configured_listen = asked_listen(options, config, data.node.listen)
        kept = dict(zip(data.node.listen, data.node.urls, strict=False))
        listen = fixed_listen(self._configured_listen, kept)
        self._config = msgspec.structs.replace(
            config, router=msgspec.structs.replace(config.router, listen=listen)
        )
        self._started = time.monotonic()
        places = [("controller", 0), ("router", 0), *(("worker", index) for index in range(self._workers))]
        self._supervisor = Supervisor(places, data.node.starts * INCARNATIONS_PER_START)
        #: The live children by place; exactly those whose place has a pid.
        self._children: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        #: Place -> identity on the socket of its live process, once it was heard.
        self._identities: dict[tuple[str, int], bytes] = {}
        self._effects: deque[Effect] = deque()
        #: (number, event) that no controller confirmed yet, oldest first.
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=PENDING_EVENTS_MAX)
        self._event_number = 0
        self._announce_due = 0.0
        self._manager = ServiceManager.from_environment(os.environ)
        self._status: int | None = None
        self._signalled = ""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._bind()

    def run(self) -> int:
        """Start everything, go on until everything is stopped, and give the exit status."""
        node = self._data.node
        self._data.save(
            pid=os.getpid(),
            runtime=str(self._runtime.path),
            admin=f"ipc://{self._runtime.path}/admin",
            started=utc_now(),
        )
        _log.info("node %s starts with %d workers on %s", node.node, self._workers, self._data.path)
        if self._options.ready_file:
            Path(self._options.ready_file).unlink(missing_ok=True)
        with _SignalFlags(self._note_signal) as descriptor:
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            poller.register(descriptor, zmq.POLLIN)
            self._do(self._supervisor.start(time.monotonic()))
            while self._status is None:
                wait_s = min(self._supervisor.next_look_s(time.monotonic()), ANNOUNCE_INTERVAL_S)
                poller.poll(int(wait_s * 1000) + 1)
                _empty(descriptor)
                self._round()
        return self._status

    def close(self) -> None:
        """Leave nothing behind: no child, no socket, no stale address."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
        self._context.destroy(linger=0)
        if self._options.ready_file:
            Path(self._options.ready_file).unlink(missing_ok=True)
        self._data.save(pid=0, runtime="", admin="", health="")
        _log.info("node %s is stopped", self._data.node.node)

    # -- one round -------------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._read()
        self._reap()
        now = time.monotonic()
        if self._signalled:
            _log.info("%s: the node stops in order", self._signalled)
            self._signalled = ""
            self._do(self._supervisor.withdraw(now, self._config.health.drain_ms / 1000))
        self._do(self._supervisor.tick(now))
        self._manager.tell(self._supervisor.phase, now)
        if now >= self._announce_due:
            self._announce()

    def _read(self) -> None:
        for _ in range(FRAMES_PER_ROUND):
            try:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, *content = wire.unpack(frame)
            if kind == "heartbeat":
                self._heartbeat(identity, content)
            elif kind == "scale":
                self._scale(int(content[0]))
            elif kind == "processes":
                self._do(self._supervisor.want(content[0], content[1], time.monotonic()))
            else:
                assert kind == "stop", f"a process sent {kind!r}"
                self._signalled = "asked by the admin API"

    def _scale(self, workers: int) -> None:
        """Change the number of workers, now and for every later start."""
        self._data.save(workers=workers)
        self._workers = workers
        self._write_runtime_files()
        _log.info("the node changes to %d workers", workers)
        self._do(self._supervisor.scale(workers, time.monotonic()))

    def _heartbeat(self, identity: bytes, content: list[Any]) -> None:
        role, index, incarnation, state, progress, info = content
        place = self._supervisor.places.get((role, index))
        if place is None or place.incarnation != incarnation:
            return
        self._identities[role, index] = identity
        told = (state, progress, info)
        self._do(self._supervisor.heartbeat(role, index, incarnation, told, time.monotonic()))
        if role == "controller":
            health = info.get("health", self._data.node.health)
            if health != self._data.node.health:
                self._data.save(health=health)
            seen = info.get("supervisor_events", 0)
            while self._events and self._events[0][0] <= seen:
                self._events.popleft()

    def _reap(self) -> None:
        for (role, index), child in list(self._children.items()):
            status = child.poll()
            if status is not None:
                self._forget(role, index)
                self._do(self._supervisor.exited(role, index, _how(status), time.monotonic()))

    def _forget(self, role: str, index: int) -> None:
        del self._children[role, index]
        self._identities.pop((role, index), None)

    # -- effects ---------------------------------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        """Carry effects out in order; what they bring about comes behind them."""
        self._effects.extend(effects)
        while self._effects:
            self._carry_out(self._effects.popleft())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn(role, index, incarnation):
                self._spawn(role, index, incarnation)
            case Terminate(role, index):
                self._children[role, index].terminate()
            case Kill(role, index):
                self._children[role, index].kill()
            case Announce():
                self._announce()
            case Tell():
                self._tell(effect)
            case Bound(urls):
                self._keep_addresses(list(urls))
            case NodeReady():
                self._node_ready()
            case Finish(status):
                self._status = status
            case _:
                raise AssertionError(f"unknown effect {effect!r}")

    def _spawn(self, role: str, index: int, incarnation: int) -> None:
        self._write_runtime_files()
        place = [
            "--runtime",
            str(self._runtime.path),
            "--index",
            str(index),
            "--incarnation",
            str(incarnation),
        ]
        try:
            child = subprocess.Popen(
                [*self._commands[role], *place],
                env=_child_environment(self._config.log.level),
                stdin=subprocess.DEVNULL,
                # A signal of the terminal reaches the supervisor alone, which then stops its children in
                # order.
                process_group=0,
            )
        except OSError as error:
            now = time.monotonic()
            self._effects.extend(self._supervisor.spawn_failed(role, index, str(error), now))
            return
        self._children[role, index] = child
        self._effects.extend(self._supervisor.spawned(role, index, child.pid, time.monotonic()))

    def _announce(self) -> None:
        self._announce_due = time.monotonic() + ANNOUNCE_INTERVAL_S
        table = self._supervisor.table()
        for (role, _), identity in self._identities.items():
            node = self._describe() if role == "controller" else {"workers": self._supervisor.workers}
            # A process that is just ending or does not read is not waited for.
            with contextlib.suppress(zmq.ZMQError):
                self._socket.send_multipart([identity, wire.pack(["table", table, node])], zmq.NOBLOCK)

    def _describe(self) -> dict[str, Any]:
        """Give what the controller has to know to report on the node."""
        own = {"role": "supervisor", "index": 0, "pid": os.getpid(), "state": "ready", "restarts": 0}
        rows = [
            {
                "role": place.role,
                "index": place.index,
                "incarnation": place.incarnation,
                "pid": place.pid,
                "state": place.state,
                "restarts": place.restarts,
                "progress": place.progress,
            }
            for place in self._supervisor.places.values()
        ]
        return {
            "node": self._data.node.node,
            "url": self._data.node.url,
            "phase": self._supervisor.phase,
            "workers": self._supervisor.workers,
            "uptime_s": time.monotonic() - self._started,
            "processes": [own, *rows],
            "events": list(self._events),
        }

    def _tell(self, tell: Tell) -> None:
        level = logging.INFO if tell.severity == "notice" else logging.ERROR
        _log.log(level, "%s", tell.text)
        self._event_number += 1
        event = {
            "time": utc_now(),
            "severity": tell.severity,
            "scope": "SYSTEM",
            "event": tell.event,
            "text": tell.text,
            "role": tell.role,
            "index": tell.index,
        }
        self._events.append((self._event_number, event))

    def _keep_addresses(self, urls: list[str]) -> None:
        """Hold every later router, and every later start on this data directory, to what was bound first."""
        node = self._data.node
        if len(urls) != len(self._configured_listen):
            _log.error("the router bound %s for %s, so no port is kept", urls, self._configured_listen)
            return
        urls = [plain_address(url) for url in urls]
        self._data.save(urls=urls, listen=self._configured_listen, url=urls[0])
        router = msgspec.structs.replace(self._config.router, listen=urls)
        self._config = msgspec.structs.replace(self._config, router=router)
        _log.info("node %s listens on %s", node.node, ", ".join(urls))

    def _node_ready(self) -> None:
        node = self._data.node
        _log.info("node %s is ready: clients connect to %s", node.node, node.url)
        if self._options.ready_file:
            processes = [
                {"role": row["role"], "index": row["index"], "pid": row["pid"]}
                for row in self._describe()["processes"]
            ]
            ready = {"node": node.node, "url": node.url, "pid": os.getpid(), "processes": processes}
            write_durably(Path(self._options.ready_file), msgspec.json.encode(ready) + b"\n", 0o644)
        if self._options.on_ready is not None:
            self._options.on_ready(node)

    # -- preparation -----------------------------------------------------------------------------------------

    def _keep_worker_count(self, config: NodeConfig) -> int:
        """Give the number of workers that was chosen at the first start, choosing it if this is it."""
        node, asked = self._data.node, config.router.workers
        if node.workers == 0:
            chosen = asked or max(1, min((os.cpu_count() or 1) - 1, _DEFAULT_WORKERS_MAX))
            self._data.save(workers=chosen)
            return chosen
        if asked not in (0, node.workers):
            _log.warning(
                "%d workers are asked for, but this node keeps the %d it began with", asked, node.workers
            )
        return node.workers

    def _bind(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{self._runtime.path}/supervisor")
        return socket

    def _write_runtime_files(self) -> None:
        """Write what the processes are told at their start; again before each spawn, with what was bound since."""
        self._files.write(self._config, self._workers)

    def _note_signal(self, number: int) -> None:
        if number != signal.SIGCHLD:
            self._signalled = f"received {signal.Signals(number).name}"


class _SignalFlags:
    """Signals wake the poll and set a flag, nothing more; the earlier handlers come back at the end."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

    def __init__(self, note: Callable[[int], None]) -> None:
        self._note = note
        self._earlier: dict[int, Any] = {}
        self._pipe = (-1, -1)
        self._earlier_descriptor = -1

    def __enter__(self) -> int:
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._earlier_descriptor = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in self._NUMBERS:
            self._earlier[number] = signal.signal(number, lambda received, _frame: self._note(received))
        return self._pipe[0]

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._earlier_descriptor)
        for descriptor in self._pipe:
            os.close(descriptor)


def _empty(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 512):
            pass


def _child_environment(level: str) -> dict[str, str]:
    """Give the environment of a child, which imports the same code as we do wherever it was started from."""
    environment = {**os.environ, SUPERVISOR_PID_VARIABLE: str(os.getpid()), LOG_LEVEL_VARIABLE: level}
    root = Path(__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
    return environment


def _spawn_detached(command: list[str], log_path: Path) -> int:
    """Start a process in a session of its own that writes to a log, and give its pid.

    Nobody waits for it: it goes on after us. (A `Popen` would complain about that.)
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _detached_command(options: UpOptions, data_dir: Path, ready_path: Path) -> list[str]:
    command = [sys.executable, "-m", "cluster.cli", "up", "--data", str(data_dir)]
    command += ["--ready-file", str(ready_path)]
    if options.config_file:
        command += ["--config", options.config_file]
    for url in options.listen:
        command += ["--listen", url]
    if options.workers is not None:
        command += ["--workers", str(options.workers)]
    if options.log_level:
        command += ["--log-level", options.log_level]
    if options.syslog:
        command += ["--syslog", options.syslog]
    return command


def _how(status: int) -> str:
    """Say how a process ended."""
    return f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
