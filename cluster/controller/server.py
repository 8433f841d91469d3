"""The controller's shell: config store, event file, and the sockets of the admin API and of the processes.

It decides nothing: what arrives is given to `cluster/controller/controller.py`, whose effects are carried out in order.
Started by the supervisor as `python -m cluster.controller.server --runtime DIR --index 0 --incarnation K`.

The admin API is a ROUTER at `<runtime>/admin`, which only this user can open; `cluster/controller/remote` has the
addresses for operators on other hosts.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import zmq

from angarium import __version__, errors, wire
from angarium_server.connections.addresses import is_loopback
from angarium_server.frames import control
from angarium_server.frames.control import ToController
from angarium_server.memory.memory import FreedMemory
from angarium_server.process import Process, at_work, load_config, utc_now
from cluster.catalog import catalog as catalogs
from cluster.catalog import passwordless, stages
from cluster.catalog import producers as registries
from cluster.catalog.deletions import Deletions
from cluster.catalog.placement import BALANCE, STAYING, WORKERS
from cluster.catalog.registries import Registries
from cluster.catalog.shares import Percents
from cluster.configuration import listening
from cluster.configuration.admin import admin_files
from cluster.configuration.concerns import ending_certificates
from cluster.configuration.config import NodeConfig, cluster_secret, read_passwords
from cluster.configuration.issuers import read_all
from cluster.configuration.mqtt import address_of
from cluster.controller.access.audit_file import AuditFile
from cluster.controller.access.audit_log import AuditLog
from cluster.controller.access.callers import LOCAL, Caller, Claim
from cluster.controller.asks import SHARING
from cluster.controller.controller import Controller
from cluster.controller.health.pages import page
from cluster.controller.health.server import HealthServer
from cluster.controller.issuers.downloads import Downloads
from cluster.controller.mesh.cluster_view import Identity
from cluster.controller.meter import Meter
from cluster.controller.remote.server import FRAME_BYTES_MAX, AdminRequest, RemoteServer
from cluster.controller.shipped_store import ShippedStore
from cluster.controller.switchboard.effects import (
    Answer,
    Asked,
    CheckStore,
    Commit,
    CopyStore,
    DropCopy,
    Effect,
    FetchKeys,
    Judge,
    ReadCopy,
    Record,
    ReloadCertificate,
    Reply,
    Request,
    RunProcesses,
    ScaleNode,
    SetLogLevel,
    StopNode,
    SwitchOver,
    UseVault,
    WriteDown,
)
from cluster.controller.switchboard.event_limits import EventLimits
from cluster.controller.switchboard.events import FILE_NAME as EVENTS_FILE
from cluster.controller.switchboard.events import EventFile, EventRing
from cluster.controller.switchboard.switchboard import Switchboard
from cluster.controller.syslog import Syslog
from cluster.data.data_dir import CONFIG_FOLDER, COPIES_FOLDER, ISSUERS_FOLDER, user_of_node
from cluster.join import stored
from cluster.join.tokens import Tokens
from cluster.join.vault import Vault
from cluster.standby.pair.settings import SWITCH_SIGNAL, read_status
from cluster.standby.promotion import forget_promotion, noted_promotion
from storage.config_store import ConfigStore, Counter, Entry, is_there
from storage.shipping.settings import StandbySettings  # noqa: TC001 - msgspec reads the types of fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.controller.health import http

ROLE: Final = "controller"
#: Frames taken from one socket before the others get their turn.
FRAMES_PER_ROUND: Final = 100
#: Between two looks at the audit log and at the disk.
LOOK_INTERVAL_S: Final = 1.0
#: Memory and CPU of the processes are measured for who asks, not more often than this: about once a second.
MEASURE_MIN_S: Final = 0.9
#: While nobody asks they are measured from time to time, so that a share of a core is not one of hours.
MEASURE_MAX_S: Final = 10.0
#: A gathering that waits for a paused process ends this much late at most.
TICK_S: Final = 0.1
#: Of the number of the first request; far fewer than what an integer of MessagePack has.
_NUMBER_BITS: Final = 52

#: A process says hello each second; a router that is not there at all is not waited for longer.
ROUTER_WAIT_S: Final = 1.5
#: Between two looks at what the keeper says of the pair.
PAIR_S: Final = 0.5

_decode_control: Callable[[bytes], ToController] = msgspec.msgpack.Decoder(ToController).decode
_log = logging.getLogger(ROLE)


class ControllerRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor writes for the controller."""

    node: str
    node_id: str
    data_dir: str
    #: That the config store carries; empty without a supervisor.
    data_id: str = ""
    #: Worker processes; the supervisor tells when it is another number.
    workers: int
    config: NodeConfig
    #: Where a copy of the store is kept; None: nowhere.
    standby: StandbySettings | None = None


class LocalRequest(NamedTuple):
    """A request that comes by the local door; that of the management process says on whose behalf it asks."""

    number: int
    operation: str
    arguments: dict[str, Any]
    caller: Caller | None = None


class ControllerServer:
    """One controller process at work."""

    def __init__(self, process: Process, runtime: ControllerRuntime) -> None:
        """Open the store, make what is built in or declared, and bind."""
        self._process = process
        self._control = self._bind("control")  # first: the others look for it with growing pauses
        data_dir = Path(runtime.data_dir)
        process.progress("opening the config store")
        self._store = open_store(data_dir / CONFIG_FOLDER, runtime.data_id)
        self._shipped = ShippedStore(process, self._store, runtime.standby)
        self._data_dir = data_dir
        self._config = runtime.config
        #: What was wished last; the supervisor may not have heard of it.
        self._wanted_workers = self._store.load_counters().get(WORKERS, runtime.workers)
        self._scale_needed = self._wanted_workers != runtime.workers
        decided = self._store.load_counters().get(passwordless.COUNTER)
        catalog = prepare_catalog(self._store, runtime.config, self._wanted_workers, runtime.node)
        make_new_links(self._store, catalog, data_dir)
        catalog.on_step = self._beat
        producers = prepare_producers(self._store, runtime.config)
        settings = runtime.config.events
        self._syslog = Syslog(settings.syslog, runtime.node)
        self._event_file = EventFile(data_dir, settings.file_bytes_max, settings.files_max)
        audit = runtime.config.audit
        self._audit_file = AuditFile(data_dir, audit.file_bytes_max, audit.files_max)
        limits = EventLimits(settings.source_burst, settings.source_per_minute)
        ring = EventRing(settings.memory_max, self._event_file.load(settings.memory_max), limits)
        # Answers to an earlier controller, which may come to this one, must not fit its requests.
        first_number = secrets.randbits(_NUMBER_BITS)
        copies = data_dir / COPIES_FOLDER
        shutil.rmtree(copies, ignore_errors=True)  # of an earlier controller: nobody can fetch them any more
        registries = Registries(
            catalog,
            producers,
            prepare_stages(self._store, runtime.config, producers),
            Deletions(self._store.load_deletions()),
        )
        board = Switchboard(ring, utc_now, first_number, AuditLog(self._audit_file.load()))
        identity = Identity(runtime.node, runtime.node_id, runtime.config.cluster.name, __version__)
        self._controller = Controller(
            registries, board, identity, shown_config(runtime), copies, user_of_node()
        )
        self._vault = self._open_vault(runtime, data_dir)
        self._meter = Meter()
        self._memory = FreedMemory()
        self._measured_at = self._look_due = self._pair_due = 0.0
        self._confirmed_events = 0
        self._admin = self._bind("admin")
        #: Where operators of other hosts come in, from when the local ones do.
        self._remote = self._open_remote(runtime.config)
        process.add(self._control, self._read_control)
        #: Requests wait until the supervisor told of the node, for a status would be empty, and until the router said
        #: hello, or so long: a change must not be answered before the router hears of it.
        self._admin_opens: float | None = time.monotonic() + ROUTER_WAIT_S
        self._health = HealthServer(process, runtime.config.health.listen, self._page)
        process.on_node(self._node_news)
        self._issuers = runtime.config.issuers
        self._downloads = Downloads(process, data_dir / ISSUERS_FOLDER, self._fetched)
        self._follow_issuers()
        self._tell_start(default_is_closed=catalog.passwordless == passwordless.CLOSED != decided)

    def _open_remote(self, config: NodeConfig) -> RemoteServer:
        controller = self._controller
        return RemoteServer(
            self._process,
            admin_files(config.admin, config.router),
            controller.operators,
            controller.callers,
            self._remote_request,
            self._operator_refused,
        )

    def _open_vault(self, runtime: ControllerRuntime, data_dir: Path) -> Vault:
        vault, cluster = Vault(runtime.config, data_dir, runtime.node), runtime.config.cluster
        self._controller.joining.begin(cluster.name, cluster_secret(cluster), Tokens(vault.tokens()))
        return vault

    def _tell_start(self, *, default_is_closed: bool) -> None:
        """Have events of what was done to the store while the node started."""
        if default_is_closed:
            self._do(self._controller.default_is_closed())
        for text in self._store.take_notices():
            _log.error("%s", text)
            event = {
                "severity": "error",
                "scope": "SYSTEM",
                "event": "SYSTEM_AD_CONFIG_STORE_RESTORED",
                "text": text,
            }
            self._do(self._controller.event(event))

    def run(self) -> None:
        """Work until the process is asked to stop; every change is durable by then."""
        self._tell_ready(0)
        if self._scale_needed:
            _log.warning("the change to %d workers was not done yet", self._wanted_workers)
            self._process.request_scale(self._wanted_workers)
        self._process.run(self._tick, lambda: True)
        self._do(self._controller.stopped())

    def close(self) -> None:
        """Close the store, after everything else stopped."""
        self._shipped.close()
        self._health.close()
        self._remote.close()
        self._downloads.close()
        self._store.close()
        self._syslog.close()

    # -- sockets ---------------------------------------------------------------------------------------------

    def _bind(self, name: str) -> zmq.Socket[bytes]:
        socket = self._process.context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.LINGER, 200)
        if name == "control":
            # A process has one identity for its life, also when it has connected again.
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        else:
            socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        path = self._process.runtime_dir / name
        socket.bind(f"ipc://{path}")
        path.chmod(0o600)
        return socket

    def _read_control(self) -> bool:
        questions: list[Asked] = []
        is_more = self._take_frames(questions)
        if not questions:
            return is_more
        self._do(self._controller.asked(questions))
        return True  # what came while this was sent wakes nobody

    def _take_frames(self, questions: list[Asked]) -> bool:
        """Take what has come, but for the questions that may share a transaction; false if there is no more."""
        for _ in range(FRAMES_PER_ROUND):
            try:
                identity, frame = self._control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            try:
                decoded = _decode_control(frame)
            except (ValueError, RecursionError) as error:
                _log.error("a frame of %r cannot be read and is dropped: %s", identity, error)
                continue
            if isinstance(decoded, control.Ask) and decoded.operation in SHARING:
                questions.append(Asked(identity, *msgspec.structs.astuple(decoded)))
            else:
                self._do(self._take(identity, decoded))
        return True

    def _take(self, identity: bytes, frame: ToController) -> list[Effect]:
        controller, now = self._controller, time.monotonic()
        match frame:
            case control.Hello(role, index, incarnation, pid):
                return controller.hello(identity, (role, index), incarnation, pid, now)
            case control.Events(events):
                return [effect for event in events for effect in controller.event(event)]
            case control.Ask(number, "issuer.refresh", arguments):
                return controller.issuers.asked(identity, number, arguments["name"], now)
            case control.Ask(number, operation, arguments):
                return controller.asked([Asked(identity, number, operation, arguments)])
            case control.Reply(number, ok, value):
                return controller.answered(number, value) if ok else controller.refused(number, *value)

    def _read_admin(self) -> bool:
        for _ in range(FRAMES_PER_ROUND):
            try:
                identity, *frames = self._admin.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            try:
                request = msgspec.convert(wire.unpack(frames[-1]), LocalRequest)
            except (errors.AngariumError, msgspec.ValidationError) as error:
                # Whoever sends what no client of ours sends gets no answer; a number to answer to is not
                # known.
                _log.warning("a malformed frame came to the admin API: %s", error)
                continue
            number, operation, given, caller = request
            claim = LOCAL if caller is None else Claim("management", *msgspec.structs.astuple(caller))
            self._measure(MEASURE_MIN_S)
            self._do(self._controller.admin(identity, number, operation, given, time.monotonic(), claim))
        return True

    def _remote_request(self, identity: bytes, request: AdminRequest, claim: Claim) -> None:
        self._measure(MEASURE_MIN_S)
        self._do(self._controller.admin(identity, *request, time.monotonic(), claim))

    def _operator_refused(self, reason: str, now: float) -> None:
        _log.warning("the admin API refused a connection: %s", reason)
        if event := self._controller.operators.refused(reason, now):
            self._do(self._controller.event(event))

    def _node_news(self, node: dict[str, Any]) -> None:
        before = self._controller.pids()
        self._do(self._controller.node_news(node, time.monotonic()))
        if self._controller.pids() != before:
            self._measure()
        seen = self._controller.supervisor_events
        if seen != self._confirmed_events:
            self._confirmed_events = seen
            self._tell_ready(seen)

    def _tick(self, now: float) -> float:
        controller, opens = self._controller, self._admin_opens
        if opens is not None and controller.knows_node and (controller.knows_router or now >= opens):
            self._admin_opens = None
            self._process.add(self._admin, self._read_admin)
            self._remote.listen(self._config.admin.listen)
        self._measure(MEASURE_MAX_S)
        if now >= self._look_due:
            self._look_due = now + LOOK_INTERVAL_S
            self._audit_file.look()
            self._do(self._look_at_audit_log())
            is_written = self._audit_file.room == "plenty"
            if controller.is_disk_full and is_written and self._store.has_room():
                self._do(controller.disk_has_room())
        self._do(controller.tick(now))
        self._do(controller.issuers.tick(now))
        self._health.tick(now)
        self._memory.update(0, now)
        wait_s = min(TICK_S, self._memory.wait_s, self._look_at_standby(now))
        return 0.0 if self._remote.tick(now) else wait_s

    def _look_at_audit_log(self) -> list[Effect]:
        return self._controller.audit_log_has(self._audit_file.room)

    def _tell_ready(self, supervisor_events: int) -> None:
        health = self._health.urls[0] if self._health.urls else ""
        info = {"supervisor_events": supervisor_events, "health": health}
        self._process.ready({**info, "passwordless": self._controller.passwordless})

    def _page(self, asked: http.Request) -> http.Answer:
        now = time.monotonic()
        return page(asked, self._controller.health(now), lambda: self._metrics(now))

    def _metrics(self, now: float) -> str:
        self._measure(MEASURE_MIN_S)
        return self._controller.metrics(now)

    def _measure(self, age_s: float = 0.0) -> None:
        """Measure the processes, if that was so long ago."""
        now = time.monotonic()
        if now >= self._measured_at + age_s:
            self._measured_at = now
            self._controller.measured(self._meter.measure(self._controller.pids()))

    # -- effects ---------------------------------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        """Carry effects out in order; what they bring about comes before what is behind them."""
        for effect in effects:
            self._do(self._carry_out(effect))

    def _carry_out(self, effect: Effect) -> list[Effect]:
        match effect:
            case Commit():
                return self._commit(effect)
            case Judge(question):
                return self._controller.asked([question])
            case CheckStore(number):
                return self._controller.checked(number, self._store.faults(), time.monotonic())
            case CopyStore():
                return self._copy(effect)
            case ReadCopy():
                self._read_copy(effect)
            case DropCopy(directory):
                shutil.rmtree(directory, ignore_errors=True)
            case Request():
                return self._request(effect)
            case Answer(identity, number, ok, value):
                self._answer(identity, control.Answer(number, ok, value))
            case Reply(asker, number, ok, value):
                self._reply(asker, [number, ok, value])
            case Record(event):
                self._syslog.send(event)
                if not self._event_file.append(event):
                    return self._controller.disk_full(f"{EVENTS_FILE} takes no events")
            case ReloadCertificate(number):
                fault, ending = self._reload_certificate(), ending_certificates(self._config)
                return self._controller.reloaded(number, fault, ending, time.monotonic())
            case WriteDown(line):
                self._audit_file.append(line)
                return self._look_at_audit_log()
            case UseVault():
                return self._use_vault(effect)
            case FetchKeys(issuer):
                self._downloads.begin(issuer)
            case SetLogLevel(level):
                logging.getLogger().setLevel(level)
            case ScaleNode(workers):
                self._process.request_scale(workers)
            case RunProcesses(role, indices):
                self._process.request_processes(role, indices)
            case StopNode():
                self._process.request_stop()
            case SwitchOver(pid):
                os.kill(pid, SWITCH_SIGNAL)
            case _:
                raise AssertionError(f"unknown effect {effect!r}")
        return []

    def _beat(self) -> None:
        self._process.beat(time.monotonic())

    def _commit(self, effect: Commit) -> list[Effect]:
        self._beat()  # before and after what takes long if there is very much of it
        try:
            self._store.commit(effect.changes)
        except errors.AngariumError as error:
            self._shipped.not_committed()
            told = self._controller.disk_full(error.detail)
            return [*told, *self._controller.not_committed(effect.number, error.code, error.detail)]
        self._beat()
        if not self._shipped.committed(effect.number):
            return []
        return self._controller.committed(effect.number, time.monotonic())

    def _look_at_standby(self, now: float) -> float:
        """Go on with what the standby has too; gives in how many seconds to look again."""
        wait_s = self._shipped.tick(now)
        for number in self._shipped.counting():
            self._do(self._controller.committed(number, now))
        if self._process.lease is not None and now >= self._pair_due:
            self._pair_due = now + PAIR_S
            promotion = noted_promotion(self._data_dir)
            self._do(self._controller.pair(read_status(self._data_dir), promotion))
            if promotion is not None:
                forget_promotion(self._data_dir)
        return wait_s

    def _use_vault(self, effect: UseVault) -> list[Effect]:
        try:
            vaulted = self._vault.work(effect.work)
        except errors.AngariumError as error:
            return self._controller.joining.vault_refused(effect.number, error)
        return self._controller.joining.vault_used(effect.number, vaulted)

    def _copy(self, effect: CopyStore) -> list[Effect]:
        try:
            Path(effect.directory).mkdir(mode=0o700, parents=True)
            self._store.copy_to(effect.directory)
        except OSError as error:
            return self._controller.not_copied(effect.number, f"the backup in {effect.directory}: {error}")
        return self._controller.copied(effect.number, time.monotonic())

    def _read_copy(self, effect: ReadCopy) -> None:
        try:
            with open(effect.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(effect.offset)
                piece = file.read(effect.length)
        except OSError as error:
            refusal = [errors.INVALID_ARGUMENT, f"the backup cannot be read any more: {error}"]
            self._reply(effect.asker, [effect.number, False, refusal])
        else:
            self._reply(effect.asker, [effect.number, True, {"data": piece, "size": size}])

    def _request(self, effect: Request) -> list[Effect]:
        frame = control.Request(effect.number, effect.operation, effect.arguments).packed()
        self._process.touch(self._control)
        try:
            self._control.send_multipart([effect.identity, frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return self._controller.unanswered(effect.number)
        return []

    def _answer(self, identity: bytes, answer: control.Answer) -> None:
        self._process.touch(self._control)
        try:
            self._control.send_multipart([identity, answer.packed()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            _log.info("%s has gone before the answer to its question", identity.decode(errors="replace"))

    def _follow_issuers(self) -> None:
        """Know the keys of issuers as they were last, and have those with an address asked from now on."""
        if self._issuers:
            self._controller.issuers.follow(self._issuers)
            kept = self._downloads.kept(self._issuers)
            self._do(self._controller.issuers.put(kept, (), time.monotonic()))
            self._read_issuers()

    def _read_issuers(self) -> None:
        """Have the router take the keys of issuers that are in the files now."""
        if self._issuers:
            self._do(self._controller.issuers.put(*read_all(self._issuers), time.monotonic()))

    def _fetched(self, name: str, keys: list[Any] | None, fault: str) -> None:
        self._do(self._controller.issuers.fetched(name, keys, fault, time.monotonic()))

    def _reload_certificate(self) -> str:
        """Have new operators see the certificate that is in the file now; give what is wrong with it, if anything."""
        self._read_issuers()
        try:
            if self._config.admin.listen:
                self._remote.reload()
        except errors.AngariumError as error:
            return error.detail
        return ""

    def _reply(self, asker: bytes, reply: list[Any]) -> None:
        if self._remote.answer(asker, reply):
            return
        self._process.touch(self._admin)
        try:
            self._admin.send_multipart([asker, wire.pack(reply)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            _log.info("who asked the admin API has gone before the answer")


def open_store(directory: Path, data_id: str) -> ConfigStore:
    """Open the config store, which the supervisor has made and looked at.

    Raises:
        InvalidRequestError: it is gone since, damaged, or of another data directory (40017).
    """
    if data_id and not is_there(directory):
        detail, advice = f"config store {directory}: it is missing", "put it back, and start the node again"
        raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice)
    store = ConfigStore(directory)
    if data_id and store.data_id != data_id:
        found = store.data_id
        store.close()
        detail = f"config store {directory}: it is of data directory {found!r}, this is {data_id!r}"
        raise errors.error_for(errors.INVALID_CONFIGURATION, detail, "put the right one back")
    return store


def prepare_catalog(store: ConfigStore, config: NodeConfig, workers: int, node: str) -> catalogs.Catalog:
    """Give the stored objects, with what is built in and what the file declares made durable first.

    Raises:
        AngariumError: a declared object does not fit, or refers to what does not exist.
    """
    counters = store.load_counters()
    catalog = catalogs.Catalog(
        store.load(),
        next_endpoint_id=counters.get(catalogs.COUNTER, 1),
        workers=workers,
        subscription_exceptions=config.spool.subscription_exceptions,
        node=node,
        passwordless_state=counters.get(passwordless.COUNTER, passwordless.UNKNOWN),
        webhook_networks=config.http.webhook_networks,
    )
    _keep(store, catalog, catalog.missing_built_ins())
    # A backup may be of a node with more workers.
    _keep(store, catalog, catalog.leave_homes(workers))
    catalog.take([Counter(name, counters.get(name, 0)) for name in (STAYING, BALANCE)])
    declared = catalog.apply(read_passwords(config.objects)).changes
    if declared:
        _keep(store, catalog, declared)
        _log.info("%d declared objects were created or changed", len(declared))
    listens = [
        *config.router.listen,
        *(address_of(entry).url for entry in config.mqtt.listen),
        *map(listening.url_of, config.http.listen),
    ]
    elsewhere = not all(map(is_loopback, listens)) or listening.is_public(config.http)
    _keep(store, catalog, passwordless.at_start(catalog, reached_from_elsewhere=elsewhere))
    return catalog


def make_new_links(store: ConfigStore, catalog: catalogs.Catalog, data_dir: Path) -> None:
    """Make the links of a node that has joined a cluster since its last start."""
    if links := stored.new_links(data_dir):
        _keep(store, catalog, catalog.apply(links).changes)
        stored.links_made(data_dir)


def _keep(store: ConfigStore, catalog: catalogs.Catalog, changes: list[Entry]) -> None:
    if changes:
        store.commit_with_reserve(changes)
        catalog.take(changes)


def prepare_producers(store: ConfigStore, config: NodeConfig) -> registries.Producers:
    """Give the registry of producers."""
    spool = config.spool
    next_id = store.load_counters().get(registries.COUNTER, 1)
    return registries.Producers(
        store.load_producers(), next_id, spool.producers_max, spool.producer_idle_days, percents_of(config)
    )


def prepare_stages(store: ConfigStore, config: NodeConfig, producers: registries.Producers) -> stages.Stages:
    """Give the registry of stages and sinks."""
    idle_s = config.spool.stage_idle_hours * 3_600
    return stages.Stages(store.load_stages(), store.load_sinks(), producers, idle_s, percents_of(config))


def percents_of(config: NodeConfig) -> Percents:
    """Give the shares of one Message VPN and one username."""
    return Percents(config.spool.vpn_share_percent, config.spool.username_share_percent)


def shown_config(runtime: ControllerRuntime) -> dict[str, Any]:
    """Give the configuration in force as operators see it: without passwords and their hashes."""
    shown: dict[str, Any] = msgspec.to_builtins(runtime.config)
    shown["objects"] = [
        [*key, {name: value for name, value in attributes.items() if name != "password"}]
        for *key, attributes in runtime.config.objects
    ]
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the controller until it is told to stop."""
    with at_work(ROLE, arguments) as process:
        process.obey()
        server = ControllerServer(process, load_config(process.runtime_dir, ROLE, ControllerRuntime))
        try:
            server.run()
        finally:
            server.close()


if __name__ == "__main__":
    main()
