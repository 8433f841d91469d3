"""The router's shell: sockets, clock, threads; it decides nothing.

A door with the connections of clients, one ROUTER for workers, and a pipe that brings password verdicts back from their
threads. Each event goes to `Router`; then its effects are carried out, those of all clients of one turn together.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import random
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

import zmq
from msgspec import Raw

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.connections.descriptors import raise_descriptors
from angarium_server.connections.door import Door, DoorLimits, Refusal
from angarium_server.connections.framing import FramingLimits
from angarium_server.connections.tls import make_context
from angarium_server.memory.memory import FreedMemory, collect_rarely, in_use_bytes
from angarium_server.parts import send
from angarium_server.process import DeferredReply, Process, at_work, load_config
from router.access.connect_rates import CONNECTION_FACTOR, ConnectRates
from router.access.issuers import Issuers
from router.access.password_checks import AT_ONCE
from router.crowd import INTERVAL_S, CrowdPace
from router.ground.config import RouterRuntime, tls_files
from router.ground.effects import (
    AskController,
    EmitEvent,
    ReplyController,
    SendClient,
    SendWorker,
    VerifyPassword,
    VerifyToken,
)
from router.ground.ground import Ground
from router.inbox import Inbox
from router.router import Router
from router.sessions.session import is_attached

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium_server.connections.connection import Connection
    from angarium_server.frames.control import TableRow
    from router.ground.config import RouterConfig

_log = logging.getLogger("router")

_NUMBER = wire.ATTACHED_NUMBER_BYTES
#: How long a router that starts waits for its workers before it serves clients without some of them.
WORKERS_WAIT_S = 5.0
#: Subscriptions of neighbours in one answer.
REMOTE_SUBSCRIPTIONS_MAX = 100_000
#: What operators list is made for so long, and so many rows between two looks at the clock.
LIST_S = 0.002
LISTED_AT_ONCE = 20
#: What the clients of one turn brought is carried out together, unless the first waited for so long.
TURN_S = 0.0005
#: What may take milliseconds by itself: what came before it is carried out first.
DEAR = frozenset({wire.SUBSCRIBE, wire.UNSUBSCRIBE, wire.REQUEST, wire.IMPORTS, wire.PEERS})
#: So may the last part of a frame: a batch of a thousand small messages.
DEAR_BYTES = 32 << 10
#: The clock, deadlines of connections and freed memory are looked at so often, and not for every message.
LOOK_S = 0.05
#: What a frame may have beside a batch, and a message beside its batches.
HEADER_BYTES = 1_024
PARTS_BYTES = 1 << 20
#: Descriptors of a router that are no connections of clients.
OTHER_DESCRIPTORS = 200
#: What was sent last may take so long to leave.
LINGER_S = 0.5


class RouterServer:
    """One router process."""

    def __init__(self, process: Process) -> None:
        runtime = load_config(process.runtime_dir, "router", RouterRuntime)
        self._process = process
        self._config = runtime.config
        now = time.monotonic()
        self._ground = Ground(
            runtime.config,
            runtime.node,
            random.Random(os.urandom(16)),  # noqa: S311 - choices among members are no secret
            random.SystemRandom(),
            runtime.spool,
            runtime.identity,
            runtime.subscription_exceptions,
        )
        self._router = Router(
            self._ground,
            workers=runtime.workers,
            incarnation=process.incarnation,
            token_key=bytes.fromhex(runtime.token_key_hex),
            now=now,
        )
        self._router.handshake.issuers = issuers_of(runtime)
        self._set_clock(now)
        self._raise_descriptors()
        self._pool = ThreadPoolExecutor(AT_ONCE + 1, "password")  # one for tokens
        #: Verdicts of the pool: (ticket, whether a password is right, or what a token says if it is signed). A deque is
        #: safe between threads.
        self._verdicts: deque[tuple[int, bool | bytes | None]] = deque()
        self._wake_read, self._wake_write = _wake_pipe()
        #: Freed memory, and in how many seconds it is to be looked at again, which changes only when it is.
        self._memory, self._memory_wait_s = FreedMemory(), 0.0
        #: Whether the router was told of something else than frames since its last tick.
        self._is_stirred = True
        #: When freed memory is looked at next, and when all else that is not looked at for every message.
        self._look_at = self._look_around_at = now
        #: Whether turns are kept apart.
        self._pace = CrowdPace(now, time.thread_time())
        #: Lists that are being made: whose, what is still to come, and what there is.
        self._lists: deque[tuple[DeferredReply, Iterator[Any], list[Raw]]] = deque()
        self._urls: list[str] = []
        self._started_at = now
        self._ready = False
        #: The number of workers that the supervisor was told of.
        self._told_workers = 0
        #: When the oldest event came whose effects are not carried out yet; None if there is none.
        self._turn_began: float | None = None
        self._connects = ConnectRates(self._config, CONNECTION_FACTOR)
        self._workers = self._make_worker_socket(process.context)
        self._inbox = Inbox(self._workers, self._router.worker_frames, process.touch)
        self._door = self._make_door()
        process.add(self._workers, self._read_workers)
        process.add(self._wake_read, self._read_verdicts)
        process.on_request(self._request)
        process.on_table(self._table)
        process.on_node(self._node)

    def _raise_descriptors(self) -> None:
        config = self._config
        wanted = config.max_connections + config.pending_connections_max + OTHER_DESCRIPTORS
        given = raise_descriptors(wanted)
        if given < wanted:
            text = (
                f"router.max_connections = {config.max_connections} needs {wanted} descriptors, and the system allows"
                f" {given}: raise LimitNOFILE of the unit, or 'ulimit -Hn', or lower max_connections"
            )
            self._router.out.event("SYSTEM_DESCRIPTORS_LOW", text, severity="warning")

    def _make_door(self) -> Door:
        door = Door(
            self._process,
            door_limits(self._config),
            self._client_message,
            self._client_lost,
            self._malformed,
            self._router.handshake.handshake_failed,
            self._may_come,
        )
        door.on_part = self._client_part
        return door

    def _make_worker_socket(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        """Inside the node there is no high-water mark: windows bound what is under way.

        And a full ROUTER would drop silently.
        """
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{self._process.runtime_dir}/workers")
        return socket

    def _may_open(self, now: float) -> bool:
        """Tell whether clients may come: not before the configuration, and not before the workers, which know it.

        A worker that does not come is not waited for long: its share of the topics is lost, not the node.
        """
        router, waited = self._router, now - self._started_at >= WORKERS_WAIT_S
        return router.directory.complete and router.shards.all_told and (router.shards.all_ready or waited)

    def _open(self) -> None:
        for url in self._config.listen:
            try:
                self._urls.append(self._listen(url))
            except OSError as error:
                detail = f"router.listen: {url}: {error.strerror or error}"
                advice = "end what listens there, or listen elsewhere: --listen, or router.listen in the file"
                raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None
        # The link processes of this node come here, whatever the addresses for clients demand.
        self._door.listen(f"ipc://{self._process.runtime_dir}/links")

    def _listen(self, url: str) -> str:
        if url.startswith("tls://"):
            return self._door.listen(url, make_context(tls_files(self._config)))
        return self._door.listen(url)

    def _may_come(self, network: str, now: float) -> bool:
        may = self._connects.allows(network, now)
        if not may:
            self._router.counters.errors[errors.CONNECT_RATE_EXCEEDED] += 1
        return may

    # -- reading ---------------------------------------------------------------------------------------------

    def _client_message(self, connection: Connection, frames: list[bytes], now: float) -> bool:
        if self._turn_began is not None and (frames[0] in DEAR or len(frames[-1]) > DEAR_BYTES):
            self._carry_out()
        try:
            is_taken = self._router.client_frames(connection.id, frames, now, connection.peer)
        except Exception:  # noqa: BLE001 - a fault of ours that one client can provoke costs that client only
            self._fault(_sender(connection.id, frames), now)
            is_taken = True
        self._pace.heard(connection.id)
        if self._turn_began is None:
            self._turn_began = now
        elif time.monotonic() - self._turn_began > TURN_S:
            self._carry_out()
        return is_taken

    def _fault(self, routing_id: bytes, now: float) -> None:
        _log.exception("frames of a client led to a fault of the router")
        self._router.fail(routing_id, error_for(errors.INTERNAL), now)

    def _client_lost(self, routing_id: bytes, _reason: str, now: float) -> None:
        self._router.unreachable(routing_id, 0, now, blocked=False)

    def _client_part(self, routing_id: bytes, now: float) -> None:
        self._router.closing.hears(routing_id, now)
        self._stir()

    def _malformed(self, routing_id: bytes, reason: str, now: float) -> None:
        self._router.fail(routing_id, error_for(errors.MALFORMED_FRAME, reason), now)

    def _read_workers(self) -> bool:
        self._inbox.hear()
        self._carry_out()
        return True

    def _read_verdicts(self) -> None:
        os.read(self._wake_read, 4096)
        while self._verdicts:
            ticket, verdict = self._verdicts.popleft()
            if isinstance(verdict, bool):
                self._router.handshake.password_verified(ticket, time.monotonic(), correct=verdict)
            else:
                self._router.handshake.token_verified(ticket, verdict, time.monotonic())
        self._stir()

    # -- effects ---------------------------------------------------------------------------------------------

    def _stir(self) -> None:
        """Carry out what follows from anything but frames: more may be due than the router knows."""
        self._is_stirred = True
        self._carry_out()

    def _carry_out(self) -> None:
        """Carry out effects until none are left: a failed send is an event with effects of its own."""
        router = self._router
        self._turn_began = None
        while True:
            for effect in router.out.take():
                kind = type(effect)
                if kind is SendClient:
                    self._send_client(effect)  # type: ignore[arg-type]
                elif kind is SendWorker:
                    self._send_worker(effect)  # type: ignore[arg-type]
                elif kind is VerifyPassword:
                    self._pool.submit(self._verify, effect)  # type: ignore[arg-type]
                elif kind is VerifyToken:
                    self._pool.submit(self._verify_token, effect)  # type: ignore[arg-type]
                elif kind is EmitEvent:
                    self._process.emit_event(effect.event)  # type: ignore[union-attr]
                elif kind is AskController:
                    self._ask(effect)  # type: ignore[arg-type]
                elif kind is ReplyController:
                    self._process.reply(effect.deferred, True, effect.value)  # type: ignore[union-attr] # noqa: FBT003 - the form of every answer
                else:
                    raise AssertionError(effect)
            self._door.flush()
            if not router.out.effects:  # a connection that turned out to be gone has some
                return

    def _send_client(self, effect: SendClient) -> None:
        routing_id, frames = effect.routing_id, effect.frames
        refusal = self._door.send(routing_id, frames)
        if refusal is not None:
            if is_attached(
                routing_id
            ):  # no connection has such an id, so it is looked for where one is missing
                routing_id, number = routing_id[:-_NUMBER], routing_id[-_NUMBER:]
                refusal = self._door.send(routing_id, [wire.ATTACHED, number, *frames])
            if refusal is not None:
                is_blocked = refusal is Refusal.BLOCKED
                self._router.unreachable(routing_id, effect.rows, time.monotonic(), blocked=is_blocked)
        elif frames[0] == wire.WELCOME:
            self._door.admit(routing_id)
        elif frames[0] == wire.CLOSED:
            self._door.finish(routing_id, time.monotonic())

    def _send_worker(self, effect: SendWorker) -> None:
        index, incarnation = effect.worker, effect.incarnation
        self._process.touch(self._workers)
        try:
            send(self._workers, [b"w%d.%d" % (index, incarnation), *effect.frames])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._router.worker_lost(index, incarnation, time.monotonic())
            self._is_stirred = True

    def _ask(self, effect: AskController) -> None:
        def answered(ok: bool, value: Any) -> None:  # noqa: FBT001 - the form of every answer
            self._router.controller_answered(effect.ticket, ok, value, time.monotonic())
            self._stir()

        self._process.ask(effect.operation, effect.arguments, answered)

    def _verify(self, effect: VerifyPassword) -> None:
        """Compare a password in a thread of the pool."""
        correct = False
        try:
            correct = password_matches(effect.password, effect.stored)
        finally:
            self._verdicts.append((effect.ticket, correct))
            os.write(self._wake_write, b"v")

    def _verify_token(self, effect: VerifyToken) -> None:
        """Look at the signature of a token in a thread of the pool."""
        from angarium_server.tokens.verification import (
            signed_payload,  # only nodes with issuers have loaded the library
        )

        payload = None
        try:
            payload = signed_payload(effect.token, effect.algorithm, effect.keys)
        finally:
            self._verdicts.append((effect.ticket, payload))
            os.write(self._wake_write, b"v")

    def _put_keys(self, rows: dict[str, list[Any]]) -> None:
        """Take the keys of issuers."""
        from angarium_server.tokens.keys import load_rows

        self._router.handshake.issuers.put_keys({name: load_rows(some) for name, some in rows.items()})

    # -- the supervisor and the controller -------------------------------------------------------------------

    def _table(self, rows: Sequence[TableRow]) -> None:
        ended = [row for row in rows if row.role == "worker" and row.state not in ("ready", "starting")]
        if ended:  # what they said last comes first: it may say why
            self._inbox.take_all()
        now = time.monotonic()
        for row in ended:
            self._router.worker_lost(row.index, row.incarnation, now)
        self._stir()

    def _node(self, node: dict[str, Any]) -> None:
        """Follow the supervisor to another number of workers; the heartbeat tells when we work with it."""
        wanted = node["workers"]
        if self._ready and wanted != self._router.scaling.target:
            self._router.scaling.begin(wanted, time.monotonic())
            self._stir()
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
        value = self._answer(operation, arguments)
        return self._listed(value) if isinstance(value, Iterator) else value

    def _listed(self, rows: Iterator[Any]) -> DeferredReply:
        """Answer with a list that may be long: it is made and packed a little in each turn."""
        deferred = DeferredReply()
        self._lists.append((deferred, rows, []))
        self._go_on_with_lists(time.monotonic())
        return deferred

    def _go_on_with_lists(self, now: float) -> None:
        """Make some more of the lists that were asked for, the oldest first."""
        while self._lists and time.monotonic() < now + LIST_S:
            deferred, rows, packed = self._lists[0]
            some = [Raw(wire.pack(row)) for row in islice(rows, LISTED_AT_ONCE)]
            packed += some
            if len(some) < LISTED_AT_ONCE:
                self._process.reply(deferred, True, packed)  # noqa: FBT003 - the form of every answer
                self._lists.popleft()

    def _answer(self, operation: str, arguments: Any) -> Any:
        router, now = self._router, time.monotonic()
        try:
            match operation:
                case "config_snapshot":
                    return router.operators.configure(arguments, now)
                case "config_set":
                    kind, vpn, name, attributes = arguments
                    put = router.operators.put_object
                    return self._deferred(lambda done: put(kind, vpn, name, attributes, now, done))
                case "config_edit":
                    kind, vpn, name, edits = arguments
                    edit = router.operators.edit_object
                    return self._deferred(lambda done: edit(kind, vpn, name, edits, done))
                case "config_delete":
                    kind, vpn, name = arguments
                    drop = router.operators.drop_object
                    return self._deferred(lambda done: drop(kind, vpn, name, now, done))
                case "deletions":
                    return router.lanes.deletions(arguments)
                case "token_keys":
                    return self._put_keys(arguments)
                case "tls_reload":
                    return self._reload_certificate()
                case "stats":
                    return {**router.stats(), **self._stats()}
                case "clients":
                    return router.operators.clients(arguments.get("vpn"), now)
                case "client":
                    return router.operators.client(arguments["vpn"], arguments["name"], now)
                case "publishers":
                    return router.operators.publishers(arguments["vpn"], arguments["numbers"])
                case "disconnect":
                    return router.operators.disconnect(arguments["vpn"], arguments["name"], now)
                case "session_owner" | "put_aside":
                    return self._blamed(operation, arguments, now)
                case "subscriptions":
                    return router.operators.subscriptions(arguments.get("vpn"), arguments.get("client"))
                case "endpoints":
                    return router.operators.endpoints(*_three(arguments), now, *_part(arguments))
                case "lane_loads":
                    return router.operators.lane_loads(arguments, now)
                case "flows":
                    return router.flows.describe(*_three(arguments))
                case "remote_subscriptions":
                    return router.links.remote_subscriptions(arguments.get("vpn"), REMOTE_SUBSCRIPTIONS_MAX)
                case "peers":
                    return router.links.overview(now)
                case "tell_peers":
                    return router.links.peers.tell(arguments["report"])
                case "producers":
                    return router.publishing.producers.describe(arguments.get("vpn"))
                case "stages":
                    return router.publishing.stages.told(arguments, now)
                case "producer_forget":
                    return router.publishing.producers.forget(arguments["ids"])
                case _:
                    raise error_for(errors.UNKNOWN_OPERATION, operation)
        finally:
            self._stir()

    def _blamed(self, operation: str, asked: dict[str, int], now: float) -> dict[str, str] | None:
        router = self._router
        put_aside = router.rounds.put_aside if operation == "put_aside" else None
        return router.operators.blamed(asked, router.shards.incarnation, now, put_aside)

    def _reload_certificate(self) -> None:
        """Encrypt connections that come from now on with what the files hold now; a damaged file changes nothing."""
        event = self._router.out.event
        if not self._config.tls_cert_file:
            if self._router.handshake.issuers:  # it was for their keys
                return
            raise error_for(
                errors.INVALID_CONFIGURATION, "this node has no certificate: router.tls_cert_file"
            )
        try:
            self._door.encrypt_with(make_context(tls_files(self._config)))
        except errors.AngariumError as error:
            text = f"the certificate was not read again, and the one before stays: {error.detail}"
            event("SYSTEM_CERTIFICATE_NOT_RELOADED", text, severity="error", code=error.code)
            raise
        event("SYSTEM_CERTIFICATE_RELOADED", "the certificate of tls:// addresses was read again")

    def _stats(self) -> dict[str, int]:
        """Give the metrics that are not the state machine's."""
        door = self._door
        return {
            "unauthenticated": door.unauthenticated,
            "unauthenticated_put_off": door.put_off_total,
            "in_use_bytes": in_use_bytes(),
        }

    def _deferred(self, act: Callable[[Callable[[], None]], None]) -> DeferredReply:
        """Answer a request when what it changes is in force, which may be at once."""
        deferred = DeferredReply()
        act(lambda: self._router.out.effects.append(ReplyController(deferred, None)))
        return deferred

    # -- life ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Let time pass; gives the seconds until the next call is wanted."""
        if now >= self._look_at:
            self._look(now)
        if self._turn_began is not None and (self._router.rounds.turns or self._router.subscriptions.is_busy):
            self._carry_out()  # what clients brought does not wait for what takes milliseconds
        if self._inbox.has_matched:
            self._inbox.take_matched(now)
        if self._is_stirred or self._router.next_tick() <= now:
            self._is_stirred = False
            self._tick_router(now)
        has_more = self._door.read_rest()
        self._carry_out()
        if self._lists:
            self._go_on_with_lists(now)
            has_more = has_more or bool(self._lists)
        if not self._ready:
            if self._may_open(now):
                self._open()
                self._tell_ready()
            return 0.02
        if has_more or self._is_stirred or self._inbox.has_matched:
            return 0.0
        wait_s = min(self._router.next_tick() - now, self._memory_wait_s)
        return self._rest(now, wait_s) if self._pace.is_resting else wait_s

    def _look(self, now: float) -> None:
        """Look at freed memory, which may want that often, and at the rest; a crowd shows in whole intervals only."""
        if now >= self._look_around_at:
            self._look_around_at = now + LOOK_S
            self._set_clock(now)
            self._door.tick(now)
            self._pace.look(now, time.thread_time())
        self._memory.update(self._router.freed_bytes, now)
        self._memory_wait_s = self._memory.wait_s
        self._look_at = now + min(LOOK_S, self._memory_wait_s)

    def _rest(self, now: float, wait_s: float) -> float:
        """Keep the next turn apart from this one, but for longer than it may wait; gives what is left of that."""
        self._pace.rested()
        until = now + min(INTERVAL_S, wait_s)
        time.sleep(max(until - time.monotonic(), 0.0))
        return now + wait_s - until

    def _tick_router(self, now: float) -> None:
        try:
            self._router.tick(now)
        except Exception:  # as in `_client_message`, of a request that was not done when it came
            served = self._router.subscriptions.served
            if served is None:
                raise
            self._fault(served.routing_id, now)
            self._is_stirred = True

    def _set_clock(self, now: float) -> None:
        """Follow the wall clock, which may be set."""
        before, shown = self._ground.wall_offset_ms, int((time.time() - now) * 1000)
        self._ground.wall_offset_ms = shown
        self._router.closing.clock_was_set(shown - before, now)

    def drained(self) -> bool:
        """Asked while stopping: true when every session was closed.

        Who was told that it is over comes at once to the first of his addresses; it is not to be this one.
        """
        self._door.stop_listening()
        done = self._router.drain(time.monotonic())
        self._stir()
        return done

    def close(self) -> None:
        """Free what the process does not own."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._door.close(LINGER_S)
        self._process.remove(self._workers)
        self._workers.close()
        self._process.remove(self._wake_read)
        os.close(self._wake_read)
        os.close(self._wake_write)


def _sender(routing_id: bytes, frames: list[bytes]) -> bytes:
    """Give the routing id of who has sent frames: of a client of a gateway if one names it."""
    is_inside = frames[:1] == [wire.ATTACHED] and len(frames) > 1 and len(frames[1]) == _NUMBER
    return routing_id + frames[1] if is_inside else routing_id


def _wake_pipe() -> tuple[int, int]:
    """Give both ends of a pipe by which threads wake the loop; neither waits."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def issuers_of(runtime: RouterRuntime) -> Issuers:
    """Give who may issue tokens, with the library for their keys loaded.

    That takes a tenth of a second, for which clients would wait when the first keys come.
    """
    if runtime.issuers:
        import_module("angarium_server.tokens.keys")
        import_module("angarium_server.tokens.verification")
    return Issuers(runtime.issuers)


def door_limits(config: RouterConfig) -> DoorLimits:
    """Give what connections may cost, as the configuration says."""
    return DoorLimits(
        framing=FramingLimits(
            frame_bytes=config.max_batch_bytes + HEADER_BYTES,
            message_bytes=config.max_batch_bytes + PARTS_BYTES,
        ),
        unsent_bytes=config.send_queue_bytes,
        login_s=config.login_timeout_ms / 1000,
        unauthenticated=config.pending_connections_max,
        unauthenticated_per_network=config.pending_connections_per_address,
    )


def _three(arguments: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Give what requests about endpoints name: Message VPN, kind and name, each or nothing."""
    return arguments.get("vpn"), arguments.get("kind"), arguments.get("name")


def _part(arguments: dict[str, Any]) -> tuple[Sequence[str], Sequence[tuple[str, str]] | None]:
    """Give which columns a request about endpoints wants, none: all, and of which of them, None: of all."""
    return arguments.get("fields", ()), arguments.get("these")


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a router process until it is told to stop."""
    with at_work("router", arguments) as process:
        process.obey()
        server = RouterServer(process)
        collect_rarely()
        process.run(server.tick, server.drained)
        server.close()
