"""The router's shell: sockets, clock, threads; it decides nothing.

Sockets: one ROUTER for clients (all listen addresses), one ROUTER for workers, the ZAP handler, the monitor
of the client socket, and a pair that brings password verdicts back from their threads. Each event goes to
`Router`, then its effects are carried out.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import logging
import os
import random
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from angarium import errors
from angarium.errors import error_for
from angarium.process import Later, Process, collect_rarely, load_config
from router.admission.zap import ZapHandler
from router.config import RouterRuntime
from router.effects import (
    AskController,
    EmitEvent,
    ReplyController,
    SendClient,
    SendWorker,
    VerifyPassword,
)
from router.router import Router

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("router")

_LAST_FRAME = int(zmq.NOBLOCK)
_MORE_FRAMES = int(zmq.NOBLOCK | zmq.SNDMORE)
#: Frames taken from one socket before the others get their turn.
DRAIN_MAX = 200
#: And so long at most: effects of the first frame must not wait for a hundred dear ones.
DRAIN_S = 0.003
#: Threads that compare passwords: scrypt keeps a core busy for tens of milliseconds, so one leaves the
#: others to messages.
PASSWORD_THREADS = 1
#: At most one look at everybody in this time, however many connections close.
PROBE_INTERVAL_S = 0.25
#: How long a router that starts waits for its workers before it serves clients without some of them.
WORKERS_WAIT_S = 5.0
#: Subscriptions of neighbours in one answer.
REMOTE_SUBSCRIPTIONS_MAX = 100_000
#: Why a handshake failed, as far as libzmq tells.
_HANDSHAKE_FAULTS: dict[int, str] = {
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "whoever came has another public key of this node than its own",
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "one side encrypts and the other does not",
}
#: With very many clients the looks are rarer, so that they cost little.
PROBES_PER_SECOND = 5_000


class RouterServer:
    """One router process."""

    def __init__(self, process: Process) -> None:
        runtime = load_config(process.runtime_dir, "router", RouterRuntime)
        self._process = process
        self._config = runtime.config
        now = time.monotonic()
        self._router = Router(
            runtime.config,
            node=runtime.node,
            workers=runtime.workers,
            incarnation=process.incarnation,
            token_key=bytes.fromhex(runtime.token_key_hex),
            rng=random.Random(os.urandom(16)),  # noqa: S311 - choices among members are no secret
            secret_rng=random.SystemRandom(),
            now=now,
            exceptions=runtime.subscription_exceptions,
            spool=runtime.spool,
            identity=runtime.identity,
        )
        self._set_clock(now)
        self._pool = ThreadPoolExecutor(PASSWORD_THREADS, "password")
        #: Verdicts of the pool: (ticket, correct). A deque is safe between threads.
        self._verdicts: deque[tuple[int, bool]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._probe_at: float | None = None
        self._urls: list[str] = []
        self._started_at = now
        self._ready = False
        #: The number of workers that the supervisor was told of.
        self._told_workers = 0
        context = process.context
        self._workers = self._make_worker_socket(context)
        self._zap = ZapHandler(context, self._config, self._connect_refused)
        self._clients = self._make_client_socket(context)
        self._monitor = self._clients.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        process.add(self._workers, self._read_workers)
        process.add(self._clients, self._read_clients)
        process.add(self._zap.socket, self._zap.serve)
        process.add(self._monitor, self._read_monitor)
        process.add(self._wake_read, self._read_verdicts)
        process.on_request(self._request)
        process.on_table(self._table)
        process.on_node(self._node)

    def _make_worker_socket(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        """Inside the node there is no high-water mark: windows bound what is under way.

        And a full ROUTER would drop silently.
        """
        socket = context.socket(zmq.ROUTER)
        _seed_routing_ids()
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{self._process.runtime_dir}/workers")
        return socket

    def _make_client_socket(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        _seed_routing_ids()
        socket = context.socket(zmq.ROUTER)
        config = self._config
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.RCVHWM, 0)  # ingress credit bounds it
        socket.setsockopt(zmq.SNDHWM, config.send_queue_frames)
        socket.setsockopt(zmq.MAXMSGSIZE, config.max_batch_bytes + 1024)
        socket.setsockopt(zmq.LINGER, 500)
        socket.setsockopt(zmq.BACKLOG, 1024)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        # A peer that vanished, with or without a session, gives its descriptor back.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 10_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)
        socket.setsockopt(zmq.IPV6, int(any("[" in url for url in config.listen)))
        socket.setsockopt_string(zmq.ZAP_DOMAIN, "angarium")
        self._zap.secure(socket)
        return socket

    def _may_open(self, now: float) -> bool:
        """Tell whether clients may come: not before the configuration, and not before the workers.

        A worker that does not come is not waited for long: its share of the topics is lost, not the node.
        """
        waited = now - self._started_at >= WORKERS_WAIT_S
        return self._router.directory.complete and (self._router.shards.all_ready or waited)

    def _open(self) -> None:
        for url in self._config.listen:
            try:
                self._clients.bind(url)
            except zmq.ZMQError as error:
                detail = f"router.listen: {url}: {zmq.strerror(error.errno or 0)}"
                advice = "end what listens there, or listen elsewhere: --listen, or router.listen in the file"
                raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None
            self._urls.append(self._clients.getsockopt_string(zmq.LAST_ENDPOINT))
        # The link processes of this node come here, whatever the addresses for clients demand.
        self._clients.bind(f"ipc://{self._process.runtime_dir}/links")

    def _connect_refused(self) -> None:
        self._router.counters.error(errors.CONNECT_RATE_EXCEEDED)

    # -- reading ---------------------------------------------------------------------------------------------

    def _read_clients(self) -> bool:
        receive = self._clients.recv
        until = time.monotonic() + DRAIN_S
        for _ in range(DRAIN_MAX):
            now = time.monotonic()
            if now >= until:
                break
            try:
                routing_id = receive(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._read_client(routing_id, now)
            # At once: to find that nothing else has come takes a lone message longer than to leave.
            self._carry_out()
        return True

    def _read_client(self, routing_id: bytes, now: float) -> None:
        """Take the frames of one client that are there."""
        frames: list[bytes]
        if routing_id in self._router.sessions.by_routing_id:
            frames, address = self._clients.recv_multipart(), ""
        else:
            parts = self._clients.recv_multipart(copy=False)
            frames, address = [part.bytes for part in parts], _peer_address(parts[0])
        try:
            self._router.client_frames(routing_id, frames, now, address)
        except Exception:  # noqa: BLE001 - a fault of ours that one client can provoke costs that client only
            _log.exception("frames of a client led to a fault of the router")
            self._router.fault(routing_id, now)

    def _read_workers(self) -> bool:
        receive = self._workers.recv_multipart
        handle = self._router.worker_frames
        until = time.monotonic() + DRAIN_S  # deliveries of homes may be large
        for _ in range(DRAIN_MAX):
            now = time.monotonic()
            if now >= until:
                break
            try:
                frames = receive(zmq.NOBLOCK)
            except zmq.Again:
                break
            handle(frames[0], frames[1:], now)
        self._carry_out()
        return True

    def _read_monitor(self) -> None:
        try:
            while True:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    reason = _HANDSHAKE_FAULTS.get(event["value"], f"protocol error {event['value']:#x}")
                    self._router.reception.handshake_failed(reason, time.monotonic())
                elif self._probe_at is None:
                    interval = max(PROBE_INTERVAL_S, len(self._router.sessions) / PROBES_PER_SECOND)
                    self._probe_at = time.monotonic() + interval
        except zmq.Again:
            self._carry_out()

    def _read_verdicts(self) -> None:
        os.read(self._wake_read, 4096)
        while self._verdicts:
            ticket, correct = self._verdicts.popleft()
            self._router.password_verified(ticket, time.monotonic(), correct=correct)
        self._carry_out()

    # -- effects ---------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Carry out effects until none are left: a failed send is an event with effects of its own."""
        router = self._router
        while effects := router.take_effects():
            for effect in effects:
                kind = type(effect)
                if kind is SendClient:
                    self._send_client(effect)  # type: ignore[arg-type]
                elif kind is SendWorker:
                    self._send_worker(effect)  # type: ignore[arg-type]
                elif kind is VerifyPassword:
                    self._pool.submit(self._verify, effect)  # type: ignore[arg-type]
                elif kind is EmitEvent:
                    self._process.emit_event(effect.event)  # type: ignore[union-attr]
                elif kind is AskController:
                    self._ask(effect)  # type: ignore[arg-type]
                elif kind is ReplyController:
                    self._process.reply(effect.later, True, effect.value)  # type: ignore[union-attr] # noqa: FBT003 - the form of every answer
                else:
                    raise AssertionError(effect)

    def _send_client(self, effect: SendClient) -> None:
        routing_id, frames, rows = effect
        self._process.touch(self._clients)
        try:
            _send_parts(self._clients, [routing_id, *frames])
        except zmq.Again:
            self._router.unreachable(routing_id, rows, time.monotonic(), blocked=True)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._router.unreachable(routing_id, rows, time.monotonic(), blocked=False)

    def _send_worker(self, effect: SendWorker) -> None:
        index, incarnation, frames = effect
        self._process.touch(self._workers)
        try:
            _send_parts(self._workers, [b"w%d.%d" % (index, incarnation), *frames])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._router.worker_lost(index, incarnation, time.monotonic())

    def _ask(self, effect: AskController) -> None:
        def answered(ok: bool, value: Any) -> None:  # noqa: FBT001 - the form of every answer
            self._router.controller_answered(effect.ticket, ok, value, time.monotonic())
            self._carry_out()

        self._process.ask(effect.operation, effect.arguments, answered)

    def _verify(self, effect: VerifyPassword) -> None:
        """Compare a password in a thread of the pool."""
        correct = False
        try:
            correct = password_matches(effect.password, effect.stored)
        finally:
            self._verdicts.append((effect.ticket, correct))
            os.write(self._wake_write, b"v")

    # -- the supervisor and the controller -------------------------------------------------------------------

    def _table(self, rows: list[list[Any]]) -> None:
        now = time.monotonic()
        for role, index, incarnation, state, _ in rows:
            if role == "worker" and state not in ("ready", "starting"):
                self._router.worker_lost(index, incarnation, now)
        self._carry_out()

    def _node(self, node: dict[str, Any]) -> None:
        """Follow the supervisor to another number of workers; the heartbeat tells when we work with it."""
        wanted = node["workers"]
        if self._ready and wanted != self._router.scaling.target:
            self._router.scaling.begin(wanted, time.monotonic())
            self._carry_out()
        if (
            self._ready
            and self._told_workers != len(self._router.shards.shards)
            and not self._router.rounds.held
        ):
            self._tell_ready()

    def _tell_ready(self) -> None:
        self._ready = True
        self._told_workers = len(self._router.shards.shards)
        self._process.ready({"urls": self._urls, "workers": self._told_workers})

    def _request(self, operation: str, arguments: Any) -> Any:
        router, now = self._router, time.monotonic()
        try:
            match operation:
                case "config_snapshot":
                    return router.operators.configure(arguments, now)
                case "config_set":
                    kind, vpn, name, attributes = arguments
                    put = router.operators.put_object
                    return self._later(lambda done: put(kind, vpn, name, attributes, now, done))
                case "config_edit":
                    kind, vpn, name, edits = arguments
                    edit = router.operators.edit_object
                    return self._later(lambda done: edit(kind, vpn, name, edits, now, done))
                case "config_delete":
                    kind, vpn, name = arguments
                    return self._later(lambda done: router.operators.drop_object(kind, vpn, name, now, done))
                case "stats":
                    return router.stats()
                case "clients":
                    return router.operators.clients(arguments.get("vpn"), now)
                case "client":
                    return router.operators.client(arguments["vpn"], arguments["name"], now)
                case "disconnect":
                    return router.operators.disconnect(arguments["vpn"], arguments["name"], now)
                case "subscriptions":
                    return router.operators.subscriptions(arguments.get("vpn"), arguments.get("client"))
                case "endpoints":
                    return router.operators.endpoints(*_three(arguments))
                case "flows":
                    return router.flows.describe(*_three(arguments))
                case "remote_subscriptions":
                    return router.links.remote_subscriptions(arguments.get("vpn"), REMOTE_SUBSCRIPTIONS_MAX)
                case "peers":
                    return router.links.overview(now)
                case "tell_peers":
                    return router.links.peers.tell(arguments["report"])
                case "producers":
                    return router.intake.producers.describe(arguments.get("vpn"))
                case "stages":
                    return router.intake.stages.told(arguments, now)
                case "producer_forget":
                    return router.intake.producers.forget(arguments["ids"])
                case _:
                    raise error_for(errors.UNKNOWN_OPERATION, operation)
        finally:
            self._carry_out()

    def _later(self, act: Callable[[Callable[[], None]], None]) -> Later:
        """Answer a request when what it changes is in force, which may be at once."""
        later = Later()
        act(lambda: self._router.out.effects.append(ReplyController(later, None)))
        return later

    # -- life ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Let time pass; gives the seconds until the next call is wanted."""
        if self._probe_at is not None and now >= self._probe_at:
            self._probe_at = None
            self._router.connection_closed()
        self._set_clock(now)
        wake = self._router.tick(now)
        self._carry_out()
        if not self._ready and self._may_open(now):
            self._open()
            self._tell_ready()
        if not self._ready:
            wake = now + 0.02
        if self._probe_at is not None:
            wake = min(wake, self._probe_at)
        return max(0.0, wake - now)

    def _set_clock(self, now: float) -> None:
        """Follow the wall clock, which may be set."""
        self._router.wall_offset_ms = int((time.time() - now) * 1000)

    def drained(self) -> bool:
        """Asked while stopping: true when every session was closed."""
        done = self._router.drain(time.monotonic())
        self._carry_out()
        return done

    def close(self) -> None:
        """Free what the process does not own."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._clients.disable_monitor()
        for socket in (self._monitor, self._clients, self._workers, self._zap.socket):
            self._process.remove(socket)
            socket.close()
        self._process.remove(self._wake_read)
        os.close(self._wake_read)
        os.close(self._wake_write)


def _send_parts(socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
    """Send one message without waiting; `send_multipart` would look over frames that are our own.

    A full socket and a peer that is gone show with the first frame.
    """
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        socket.send(frame, _LAST_FRAME if number == last else _MORE_FRAMES)


def _three(arguments: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Give what requests about endpoints name: Message VPN, kind and name, each or nothing."""
    return arguments.get("vpn"), arguments.get("kind"), arguments.get("name")


def password_matches(password: str, stored: str) -> bool:
    """Compare a password with `scrypt$n$r$p$salt$hash`."""
    try:
        _, n, r, p, salt, expected = stored.split("$")
        wanted = bytes.fromhex(expected)
        made = hashlib.scrypt(
            password.encode(),
            salt=bytes.fromhex(salt),
            n=int(n),
            r=int(r),
            p=int(p),
            dklen=len(wanted),
            maxmem=256 << 20,
        )
    except ValueError:
        _log.exception("a stored password hash is unusable")
        return False
    return hmac.compare_digest(made, wanted)


def _peer_address(frame: zmq.Frame) -> str:
    """Give the IP address that a frame came from, empty over ipc, where it is localhost:UID:GID:PID."""
    try:
        address = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
    return "" if address.startswith("localhost:") else address


def _seed_routing_ids() -> None:
    """Make automatic routing ids unpredictable: libzmq numbers them from rand().

    And who can announce the next one
    would abort the process. To be called with a context that has a socket already, before the socket it is
    for.
    """
    if sys.platform != "win32":
        ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a router process until it is told to stop."""
    process = Process.from_command_line("router", arguments)
    try:
        server = RouterServer(process)
        collect_rarely()
        process.run(server.tick, server.drained)
        server.close()
    except errors.AngariumError as error:
        _log.critical("this router cannot work: %s", error)
        # 'angarium status' shows it until the next start.
        process.progress(f"cannot work: {error}")
        raise SystemExit(1) from None
    finally:
        process.close()
