"""The supervisor's shell, `angarium up`: starts the processes of a node, watches them, stops them in order.

What is to be done is decided by `cluster/supervisor/supervisor.py`; here it is carried out: children are spawned as
`angarium_server.launch` says, reaped, killed; heartbeats come in and the table goes out over a ROUTER socket. Around
that stand the data directory with its lock and `node.json`, and the runtime directory with the sockets and
the configuration of each process. It never sees a message of a client, and has stores open only before it spawns
anything (`cluster/supervisor/stores.py`).

The data directory:

    lock            held for as long as a node runs
    token.key       the secret of the router's resume tokens
    cluster.secret  the secret of its cluster, if none is configured; others that join get it (`cluster.join.stored`)
    cluster/        what the node got when it joined a cluster; `joining` before, `left-TIME` after
    join-tokens.json  tokens by which others may join, the controller's
    node.json       `NodeFile` of `cluster.data.node_file`: what is kept (name, id, ...), and where the node runs
    config/         the config store, the controller's
    spool/I/        the spool of worker I
    events.jsonl    the events, the controller's
    log/node.log    what the processes log, when detached
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import stat
import subprocess
import time
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq

from angarium.errors import AngariumError, UnavailableError
from angarium_server import black_box, launch
from angarium_server.frames.control import Heartbeat, Processes, Scale, StopNode, Table, ToSupervisor
from angarium_server.process import (
    EXIT_ORPHANED,
    KEEPER_FILE,
    KEEPER_PID_VARIABLE,
    KEEPER_VARIABLE,
    LOG_LEVEL_VARIABLE,
    SUPERVISOR_PID_VARIABLE,
    configure_logging,
    die_with_parent,
    drain,
    utc_now,
    waking_signals,
)
from cluster.configuration.concerns import ending_certificates
from cluster.configuration.config import NodeConfig, cluster_secret
from cluster.configuration.secret_files import exposed
from cluster.data.data_dir import DataDirectory, RuntimeDirectory, write_durably
from cluster.data.node_file import NODE_FILE, process_start, read_node_file
from cluster.data.registry import Registration
from cluster.join.stored import with_secret
from cluster.roster.table import CONTROLLER, ROLES, WORKER, first_places
from cluster.supervisor import stores
from cluster.supervisor.blame import Death, how, is_stopped, is_to_blame
from cluster.supervisor.fronts import FRONTS, held, left_out, urls_to_bind
from cluster.supervisor.ports import Ports
from cluster.supervisor.runtime_files import RuntimeFiles
from cluster.supervisor.service_manager import ServiceManager
from cluster.supervisor.starting import (
    UpOptions,
    asked_listen,
    effective_config,
    fixed_listen,
    plain_address,
    refuse_standby,
    refuse_taken_addresses,
)
from cluster.supervisor.supervisor import (
    HUNG,
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
from cluster.supervisor.warm import WarmProcesses, await_word
from storage.spool import SpoolFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Every process gets the table this often although nothing changed, in case a frame was lost at its start.
ANNOUNCE_INTERVAL_S: Final = 1.0
#: How often is looked whether a certificate ends soon; one that was renewed is told of no longer than that.
CERTIFICATES_INTERVAL_S: Final = 60.0
#: Frames taken in one round: far more than a node sends in the longest pause.
FRAMES_PER_ROUND: Final = 1_000
#: Events that the controller has not confirmed yet; the oldest is lost first.
PENDING_EVENTS_MAX: Final = 1_000
#: Each start of a node has this many incarnations.
INCARNATIONS_PER_START: Final = 1 << 20
_DEFAULT_WORKERS_MAX: Final = 4
#: What the controller hears of a place.
_SHOWN_OF_PLACES: Final = ("role", "index", "incarnation", "pid", "state", "restarts", "progress")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
#: Whatever a process writes is for this user; only the router makes sockets for clients of others, as its umask says.
_PRIVATE_UMASK: Final = 0o077

_LEVELS: Final = {"info": logging.INFO, "notice": logging.INFO, "warning": logging.WARNING}

_decode: Callable[[bytes], ToSupervisor] = msgspec.msgpack.Decoder(ToSupervisor).decode
_log = logging.getLogger("supervisor")


def run_supervisor(options: UpOptions) -> int:
    """Run a node until it is asked to stop, and give the exit status.

    Raises:
        AngariumError: the configuration is refused (40017), the data directory or an address is in use (40902), or a
            standby is to be a node of its own (40909).
    """
    config = effective_config(options)
    if config.standby.store and KEEPER_VARIABLE not in os.environ:
        return _run_host(Path(options.data_dir), config)
    refuse_standby(options, config, Path(options.data_dir))
    with WarmProcesses(_start_child) as warm:
        if KEEPER_VARIABLE in os.environ:
            _follow_keeper()
            _warm_up(warm, options, config)
            if not await_word():
                return 0
            config = effective_config(options)
        status = _run_node(options, config, warm)
    if KEEPER_VARIABLE in os.environ:
        launch.leave(status)
    return status


def _warm_up(warm: WarmProcesses, options: UpOptions, config: NodeConfig) -> None:
    """Have the processes of this node there that it starts with, as far as one knows before it begins."""
    with contextlib.suppress(UnavailableError):  # the first start
        workers = read_node_file(Path(options.data_dir)).workers
        warm.fill(first_places(config, workers), config.log.level)
    import_module("encodings.idna")  # whoever looks up an address has it imported


def _run_node(options: UpOptions, config: NodeConfig, warm: WarmProcesses) -> int:
    """Run a node whose configuration is in force, until it is asked to stop."""
    configure_logging("supervisor", None, config.log.level)
    for text in exposed(config):
        _log.warning("%s", text)
    with (
        DataDirectory(options.data_dir, config.node.name) as data,
        RuntimeDirectory(earlier=data.node.runtime) as runtime,
    ):
        for text in left_out(config, options.named, data.node):
            _log.warning("%s", text)
        config = with_secret(config, data.path)
        server = Server(options, config, data, runtime, warm)
        try:
            return server.run()
        finally:
            server.close()


def _run_host(data: Path, config: NodeConfig) -> int:
    """Run a host of a pair, which starts the node again as its keeper allows."""
    from cluster.standby.host import run_host  # a node without a standby does without it

    configure_logging("standby", None, config.log.level)
    return run_host(data, config)


def _follow_keeper() -> None:
    """End when the keeper does: what is left of this node would keep its data from the next one.

    Raises:
        SystemExit: the keeper has ended already.
    """
    die_with_parent()
    if os.getppid() != int(os.environ[KEEPER_PID_VARIABLE]):
        raise SystemExit(EXIT_ORPHANED)


class Server:
    """The running supervisor: a ROUTER socket, the children, and the state machine that decides."""

    def __init__(
        self,
        options: UpOptions,
        config: NodeConfig,
        data: DataDirectory,
        runtime: RuntimeDirectory,
        warm: WarmProcesses,
    ) -> None:
        """Prepare and bind; nothing is spawned yet but what waits for its place."""
        self._options = options
        self._warm = warm
        self._data = data
        self._runtime = runtime
        #: What was asked for, beside which the addresses that were bound are kept.
        self._configured_listen = asked_listen(options, config, data.node.listen)
        listen = fixed_listen(self._configured_listen, data.node)
        others = urls_to_bind(config, options.named, data.node)
        refuse_taken_addresses([*listen, *others], was_killed=data.was_killed)
        self._workers = self._keep_worker_count(config)
        stores.prepare(data, self._workers, accept_loss=options.accept_loss)
        self._files = RuntimeFiles(data, runtime, cluster_secret(config.cluster))
        if KEEPER_VARIABLE in os.environ:
            runtime.write(KEEPER_FILE, os.environ[KEEPER_VARIABLE].encode())
        self._ports = Ports()
        config, kept = held(config, options.named, data.node, self._ports)
        data.save(**kept)
        self._config = msgspec.structs.replace(
            config, router=msgspec.structs.replace(config.router, listen=listen)
        )
        self._started = time.monotonic()
        self._supervisor = Supervisor(
            first_places(config, self._workers), data.node.starts * INCARNATIONS_PER_START
        )
        #: The live children by place; exactly those whose place has a pid.
        self._children: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        #: Place -> identity on the socket of its live process, once it was heard.
        self._identities: dict[tuple[str, int], bytes] = {}
        self._effects: deque[Effect] = deque()
        #: (number, event) that no controller confirmed yet, oldest first.
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=PENDING_EVENTS_MAX)
        self._event_number = 0
        #: Workers that were stopped (SIGSTOP) when they were killed as hung.
        self._stopped_workers: frozenset[int] = frozenset()
        self._announce_due = 0.0
        #: The number of workers that is wanted and has no spools yet, and why not; None: there are as many as wanted.
        self._scaling: tuple[int, str] | None = None
        #: Whether operators were told so of our own files.
        self._is_disk_full = False
        #: Sentences about certificates that operators were told, and when is looked again.
        self._ending: list[str] = []
        self._certificates_due = self._started
        self._registration = Registration(data.path)
        self._manager = ServiceManager.from_environment(os.environ)
        self._status: int | None = None
        self._signalled = ""
        #: Whether a SIGHUP came, and how many did; and whether it can mean that our terminal is gone.
        self._is_hung_up, self._reloads = False, 0
        self._had_terminal = has_terminal()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._bind()

    def run(self) -> int:
        """Start everything, go on until everything is stopped, and give the exit status."""
        _log.info(
            "node %s starts with %d workers on %s", self._data.node.node, self._workers, self._data.path
        )
        if self._options.ready_file:
            Path(self._options.ready_file).unlink(missing_ok=True)
        with waking_signals(self._note_signal, *_SIGNALS) as descriptor:
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            poller.register(descriptor, zmq.POLLIN)
            self._do(self._supervisor.start(time.monotonic()))
            self._register()
            while self._status is None:
                wait_s = min(self._supervisor.next_look_s(time.monotonic()), ANNOUNCE_INTERVAL_S)
                poller.poll(int(wait_s * 1000) + 1)
                drain(descriptor)
                self._round()
        return self._status

    def _register(self) -> None:
        """Have commands find this node, durably; its processes begin meanwhile."""
        self._data.save(
            pid=os.getpid(),
            pid_start=process_start(os.getpid()),
            runtime=str(self._runtime.path),
            admin=f"ipc://{self._runtime.path}/admin",
            started=utc_now(),
        )
        if fault := self._registration.keep():
            _log.warning("commands find this node by --data only: %s", fault)

    def close(self) -> None:
        """Leave nothing behind: no child, no socket, no stale address."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
        self._context.destroy(linger=0)
        self._ports.close()
        self._registration.end()
        if self._options.ready_file:
            Path(self._options.ready_file).unlink(missing_ok=True)
        self._data.save(pid=0, pid_start=0, runtime="", admin="", health="")
        _log.info("node %s is stopped", self._data.node.node)

    # -- one round -------------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._read()
        self._reap()
        now = time.monotonic()
        if self._is_hung_up:
            self._is_hung_up = False
            self._hung_up()
        if self._signalled:
            _log.info("%s: the node stops in order", self._signalled)
            self._signalled = ""
            self._do(self._supervisor.withdraw(now, self._config.health.drain_ms / 1000))
        self._do(self._supervisor.tick(now))
        self._manager.tell(self._supervisor.phase, now)
        if now >= self._announce_due:
            self._keep_files()
            self._look_at_certificates(now)
            self._announce()

    def _keep_files(self) -> None:
        """Write what could not be written; tell when that begins and ends."""
        self._data.keep()
        self._registration.keep()
        self._go_on_scaling()
        fault = self._scaling[1] if self._scaling is not None else ""
        if self._data.fault:
            fault = f"{NODE_FILE} cannot be written: {self._data.fault}"
        if bool(fault) != self._is_disk_full:
            self._is_disk_full = bool(fault)
            name, severity = ("", "error") if fault else ("_CLEAR", "info")
            text = fault or "what the node keeps is written again"
            self._tell(Tell(severity, f"SYSTEM_DISK_FULL{name}", text, "supervisor", 0))

    def _hung_up(self) -> None:
        """Have certificates read again; or stop, if the terminal in which the node was started is gone."""
        if self._had_terminal and not has_terminal():
            self._signalled = "its terminal was closed"
            leave_terminal()
            return
        _log.info("received SIGHUP: certificates are read again")
        self._reloads += 1
        self._certificates_due = self._announce_due = 0.0

    def _look_at_certificates(self, now: float) -> None:
        """Tell of certificates that end, each once as long as nothing changes."""
        if now < self._certificates_due:
            return
        self._certificates_due = now + CERTIFICATES_INTERVAL_S
        before, self._ending = self._ending, ending_certificates(self._config)
        for text in self._ending:
            if text not in before:
                self._tell(Tell("warning", "SYSTEM_CERTIFICATE_ENDS", text, "supervisor", 0))

    def _read(self) -> None:
        for _ in range(FRAMES_PER_ROUND):
            try:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                decoded = _decode(frame)
            except (ValueError, RecursionError) as error:
                _log.error("a frame of %r cannot be read and is dropped: %s", identity, error)
                continue
            self._take(identity, decoded)

    def _take(self, identity: bytes, frame: ToSupervisor) -> None:
        match frame:
            case Heartbeat():
                self._heartbeat(identity, frame)
            case Scale():
                self._scale(frame.workers)
            case Processes():
                self._do(self._supervisor.want(frame.role, frame.indices, time.monotonic()))
            case StopNode():
                self._signalled = "asked by the admin API"

    def _scale(self, workers: int) -> None:
        """Have another number of workers for this and every later start, as soon as the disk takes their spools."""
        self._scaling = workers, ""
        self._go_on_scaling()

    def _go_on_scaling(self) -> None:
        if self._scaling is None:
            return
        workers, _ = self._scaling
        try:
            # Before the number is kept: from then on a spool that is missing is a loss.
            stores.make_spools(self._data, workers, self._data.node.data_id)
        except (AngariumError, SpoolFailedError, OSError) as error:
            self._scaling = workers, f"the node stays at {self._workers} workers: {error}"
            return
        self._scaling = None
        self._data.save(workers=workers)
        self._workers = workers
        self._write_runtime_files()
        _log.info("the node changes to %d workers", workers)
        self._do(self._supervisor.scale(workers, time.monotonic()))

    def _heartbeat(self, identity: bytes, beat: Heartbeat) -> None:
        role, index, incarnation, info = beat.role, beat.index, beat.incarnation, beat.info
        place = self._supervisor.places.get((role, index))
        if place is None or place.incarnation != incarnation:
            return
        self._identities[role, index] = identity
        told = (beat.state, beat.progress, info)
        self._do(self._supervisor.heartbeat(role, index, incarnation, told, time.monotonic()))
        if role == CONTROLLER.name:
            node = self._data.node
            told_us = {name: info.get(name, getattr(node, name)) for name in ("health", "passwordless")}
            if told_us != {name: getattr(node, name) for name in told_us}:
                self._data.save(**told_us)
            seen = info.get("supervisor_events", 0)
            while self._events and self._events[0][0] <= seen:
                self._events.popleft()

    def _reap(self) -> None:
        for (role, index), child in list(self._children.items()):
            status = child.poll()
            if status is not None:
                self._forget(role, index)
                if ROLES[role].has_black_box:
                    self._look_for_blame(role, index, status)
                self._do(self._supervisor.exited(role, index, how(status), time.monotonic()))
                has_left = role == WORKER.name and (role, index) not in self._supervisor.places
                if has_left and KEEPER_VARIABLE in os.environ:
                    stores.drop_left(self._data, index)

    def _look_for_blame(self, role: str, index: int, status: int) -> None:
        """Tell what a process was at, if it died of that."""
        note = black_box.read(black_box.path_of(self._runtime.path, index))
        is_hung = self._supervisor.places[role, index].state == HUNG
        was_stopped, self._stopped_workers = index in self._stopped_workers, self._stopped_workers - {index}
        death = Death(status, is_hung, was_stopped, time.monotonic())
        if note is not None and is_to_blame(note, death):
            tell = Tell("error", "SYSTEM_WORKER_DIED_AT_WORK", f"{role}.{index} died", role, index)
            self._tell(tell, note._asdict())

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
            case Kill(role, index, pid):
                if ROLES[role].has_black_box and is_stopped(pid):
                    self._stopped_workers = self._stopped_workers | {index}
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
        place = ["--runtime", f"{self._runtime.path}", "--index", f"{index}"]
        place += ["--incarnation", f"{incarnation}"]
        level = self._config.log.level
        try:
            child = self._warm.take((role, index), place, level) or _start_child(
                role, launch.module_command(ROLES[role].module, *place), level, subprocess.DEVNULL
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
            node = self._describe() if role == CONTROLLER.name else {"workers": self._supervisor.workers}
            # A process that is just ending or does not read is not waited for.
            with contextlib.suppress(zmq.ZMQError):
                self._socket.send_multipart([identity, Table(table, node).packed()], zmq.NOBLOCK)

    def _describe(self) -> dict[str, Any]:
        """Give what the controller has to know to report on the node."""
        own = {"role": "supervisor", "index": 0, "pid": os.getpid(), "state": "ready", "restarts": 0}
        places = self._supervisor.places.values()
        rows = [{name: getattr(place, name) for name in _SHOWN_OF_PLACES} for place in places]
        return {
            "node": self._data.node.node,
            "url": self._data.node.url,
            "urls": self._data.node.urls,
            **{front.name: front.listen(self._config) for front in FRONTS},
            "phase": self._supervisor.phase,
            "workers": self._supervisor.workers,
            "uptime_s": time.monotonic() - self._started,
            "processes": [own, *rows],
            "events": list(self._events),
            "disk_full": self._is_disk_full,
            "certificates": self._ending,
            "reloads": self._reloads,
        }

    def _tell(self, tell: Tell, note: dict[str, Any] | None = None) -> None:
        _log.log(_LEVELS.get(tell.severity, logging.ERROR), "%s", tell.text)
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
        if note is not None:
            event["note"] = note
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
            ready |= {front.name: listen for front in FRONTS if (listen := front.listen(self._config))}
            self._write_ready_file(Path(self._options.ready_file), msgspec.json.encode(ready) + b"\n")
        if self._options.on_ready is not None:
            self._options.on_ready(node)

    def _write_ready_file(self, path: Path, content: bytes) -> None:
        """Say that the node is ready; on a full disk with an empty file, for whoever waits for it to appear."""
        try:
            write_durably(path, content)
        except OSError as error:
            _log.error("%s stays empty: %s", path, error.strerror)
            with contextlib.suppress(OSError):
                path.touch(mode=0o600)

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
        if number == signal.SIGHUP:
            self._is_hung_up = True
        elif number != signal.SIGCHLD:
            self._signalled = f"received {signal.Signals(number).name}"


def has_terminal() -> bool:
    """Tell whether this process belongs to a terminal that is there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def leave_terminal() -> None:
    """Have nothing more written to a terminal that is gone: what fails to leave at the end would be our exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _start_child(role: str, command: list[str], level: str, stdin: int) -> subprocess.Popen[bytes]:
    """Start a process of a role; a signal of the terminal reaches us alone, and we stop our children in order."""
    return subprocess.Popen(
        command,
        env={**launch.environment(), SUPERVISOR_PID_VARIABLE: str(os.getpid()), LOG_LEVEL_VARIABLE: level},
        stdin=stdin,
        umask=-1 if ROLES[role].has_public_sockets else _PRIVATE_UMASK,
        process_group=0,
    )
