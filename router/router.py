"""The router's state machine: events in, effects out.

It ties the rooms of this package together and decides which of them an event goes to: `login` judges HELLO,
`subscriptions` SUBSCRIBE, `publishing` and `rounds` PUBLISH, `delivery`, `eliding` and `egress` what goes
out, `shards` the workers. It owns no socket, clock, thread or file: the shell (`server`) calls one method
per event with the time, then takes the effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors, slots, wire
from angarium.errors import AngariumError, error_for
from router.delivery import Dispatcher
from router.directory import Directory
from router.effects import Effect, Outbox, SendClient, VerifyPassword
from router.egress import Egress
from router.eliding import Eliding
from router.interest import Interest
from router.login import Doorkeeper, Hello, Ticket, parse_hello
from router.operators import Operators
from router.publishing import read_publish
from router.rights import Rights
from router.rounds import Rounds
from router.scaling import Scaling
from router.session import Session, TokenBucket
from router.sessions import SessionTable
from router.shards import Shards, ShardState
from router.short_way import ShortWay
from router.subscriptions import INBOX_PREFIX, Subscriptions

if TYPE_CHECKING:
    import random

    from router.config import RouterConfig
    from router.round import Round

#: Missed keepalive intervals that end a session.
KEEPALIVES_MISSED = 3
#: CLOSED answers a second to frames of sessions that are not there: enough to tell, too few to be used as
#: an amplifier.
STRAY_ANSWERS_PER_SECOND = 200.0
#: Sessions are looked over for missed keepalives once in this time.
SWEEP_INTERVAL_S = 0.5
#: How long a lone retired round may wait to be told: a client with credit left does not miss it, and one frame
#: then renews the credit of many rounds.
RETIRED_DELAY_S = 0.005
#: Automatic routing ids of ZeroMQ: a zero byte and a number.
_ROUTING_ID_BYTES = 5
_LOST_REASON = "discard.shard-unavailable"


class Router:
    """Sessions, order, admission, choice and egress of one node."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        node: str,
        workers: int,
        incarnation: int,
        token_key: bytes,
        rng: random.Random,
        now: float,
    ) -> None:
        self.config = config
        self.node = node
        self.out = Outbox()
        self.directory = Directory()
        self.interest: Interest[Session] = Interest()
        self.shards = Shards(workers, slots.slot_table(workers), incarnation, self.interest, self.out)
        self.egress = Egress(self.out, config.egress_memory_bytes)
        self.eliding = Eliding(self.egress, self.out, config.eliding_topics_max)
        self.rights = Rights(self.shards, self.eliding)
        self.dispatcher = Dispatcher(self.interest, self.egress, self.eliding, rng)
        self.rounds = Rounds(self.shards, config.worker_window, self._retired, self._lost_rows)
        self.short_way = ShortWay(config.short_way_topics_max, config.max_message_bytes)
        self.subscriptions = Subscriptions(
            self.interest,
            self.shards,
            self.out,
            on_change=self.short_way.forget,
            find_client=self._find_client,
        )
        self.doorkeeper = Doorkeeper(self.directory, config, token_key, now)
        self._random = rng
        self.sessions = SessionTable()
        self.operators = Operators(self.directory, self.sessions, self.rights, self.close_session)
        self.scaling = Scaling(self.shards, self.rounds, self.interest, self.sessions, self.out)
        #: Logins whose password is being compared.
        self._tickets: dict[int, Ticket] = {}
        self._next_number = 1
        self._stray = TokenBucket(STRAY_ANSWERS_PER_SECOND, STRAY_ANSWERS_PER_SECOND, now)
        #: Address -> its connect rate; only those that connected lately.
        self._connects: dict[str, TokenBucket] = {}
        self._next_sweep = now
        #: Sessions with retired rounds that they were not told of; told together at `_tell_at`.
        self._untold: dict[Session, None] = {}
        self._tell_at = now
        self._started_at = now
        #: Totals for the operators, by name; session counters are added when the session ends.
        self.totals: dict[str, int] = {}
        #: Errors told to clients, by code.
        self.errors: dict[int, int] = {}
        #: True once the node is going down: nobody logs in any more.
        self.draining = False
        self._operations = {
            wire.PUBLISH: self._publish,
            wire.CREDIT: self._credit,
            wire.SUBSCRIBE: self._subscribe,
            wire.UNSUBSCRIBE: self._unsubscribe,
            wire.PING: self._ping,
            wire.PONG: self._pong,
            wire.BYE: self._bye,
            wire.HELLO: self._second_hello,
        }

    # -- events ----------------------------------------------------------------------------------------------

    def take_effects(self) -> list[Effect]:
        """Hand over what was decided since the last call."""
        return self.out.take()

    def client_frames(self, routing_id: bytes, frames: list[bytes], now: float, address: str = "") -> None:
        """A client sent frames (without the routing id). The address is needed for HELLO only."""
        session = self.sessions.by_routing_id.get(routing_id)
        if session is None:
            self._stranger(routing_id, frames, now, address)
            return
        session.last_heard = now
        try:
            if len(frames) < 2:
                raise error_for(errors.MALFORMED_FRAME, "an operation has a header")
            operation = self._operations.get(frames[0])
            if operation is None:
                raise error_for(errors.UNKNOWN_OPERATION, repr(frames[0][:16]))
            if frames[0] is not wire.PUBLISH and frames[0] != wire.PUBLISH:
                self._check_rate(session, now)
            operation(session, frames, now)
        except AngariumError as error:
            self.close_session(session, error, now)

    def worker_frames(self, identity: bytes, frames: list[bytes], now: float) -> None:
        """A worker sent frames. It is a process of ours: what it says is trusted, its age is not."""
        header = wire.unpack(frames[1])
        if frames[0] == wire.READY:
            self._worker_announced(header[0], header[1], now)
            return
        index = int(identity[1 : identity.index(b".")])
        shard = self.shards.shards[index] if index < len(self.shards.shards) else None
        if shard is None or header[0] != shard.incarnation or shard.state is ShardState.DOWN:
            return
        if frames[0] == wire.RESULT:
            self._result(shard, header, frames[2] if len(frames) > 2 else None, now)
        elif frames[0] == wire.CONFIRM and self.shards.confirm(shard, header[1]):
            self.rounds.release(shard, now)
            self.scaling.step(now)

    def worker_lost(self, index: int, incarnation: int, now: float) -> None:
        """An incarnation of a worker died or hangs; `incarnation` 0 stands for whichever is known."""
        if index >= len(self.shards.shards):
            return
        shard = self.shards.shards[index]
        if incarnation in (0, shard.incarnation) and shard.state is not ShardState.DOWN:
            self.rounds.lose(self.shards.lose(shard, now), now)

    def unreachable(self, routing_id: bytes, rows: int, now: float, *, blocked: bool) -> None:
        """A send failed: the client is gone, or (blocked) its socket is full."""
        session = self.sessions.by_routing_id.get(routing_id)
        if rows:
            self._count("discard.client-not-connected", rows)
        if session is not None:
            code = errors.EGRESS_BLOCKED if blocked else errors.KEEPALIVE_TIMEOUT
            self._end(
                session, error_for(code, "the connection is gone" if not blocked else ""), now, tell=False
            )

    def connection_closed(self) -> None:
        """Some connection was closed: whose it was shows when we try to reach everybody."""
        frames = [wire.PING, wire.pack([0])]
        self.out.effects.extend(
            SendClient(routing_id, frames, 0) for routing_id in self.sessions.by_routing_id
        )

    def password_verified(self, ticket_number: int, now: float, *, correct: bool) -> None:
        """The pool compared a password."""
        ticket = self._tickets.pop(ticket_number, None)
        if ticket is None:
            return
        if correct:
            self._welcome(ticket, now)
        else:
            self._refuse(ticket.routing_id, error_for(errors.UNAUTHORIZED))

    def tick(self, now: float) -> float:
        """Do what time demands; gives when it wants to be called again (seconds, absolute)."""
        self.eliding.release(now)
        grace_s = self.config.shard_grace_ms / 1000
        wake = now + SWEEP_INTERVAL_S
        for shard in self.shards.shards:
            if shard.state is ShardState.DOWN and not shard.given_up:
                if now - shard.died_at >= grace_s:
                    shard.given_up = True
                    self.rounds.release(shard, now)
                else:
                    wake = min(wake, shard.died_at + grace_s)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_INTERVAL_S
            self._sweep(now)
        if self._untold:
            if now >= self._tell_at:
                for session in list(self._untold):
                    self._tell_retired(session)
            else:
                wake = min(wake, self._tell_at)
        due = self.eliding.next_due()
        return wake if due is None else min(wake, due)

    def _sweep(self, now: float) -> None:
        for session in list(self.sessions):
            if now - session.last_heard > session.keepalive_s * KEEPALIVES_MISSED:
                self.close_session(session, error_for(errors.KEEPALIVE_TIMEOUT), now)
        for address in [a for a, bucket in self._connects.items() if now - bucket.stamp > 60]:
            del self._connects[address]

    # -- logins ----------------------------------------------------------------------------------------------

    def _stranger(self, routing_id: bytes, frames: list[bytes], now: float, address: str) -> None:
        """Frames of nobody we know: HELLO, or the rest of a session that ended."""
        try:
            if len(routing_id) != _ROUTING_ID_BYTES or routing_id[0] != 0:
                raise error_for(errors.ROUTING_ID_REFUSED)
            if len(frames) < 2 or frames[0] != wire.HELLO:
                raise error_for(
                    errors.SESSION_UNKNOWN, "send HELLO first" if frames[0:1] != [wire.BYE] else ""
                )
            self._hello(routing_id, parse_hello(frames[1]), now, address)
        except AngariumError as error:
            if error.code != errors.SESSION_UNKNOWN or self._stray.take(now):
                self._refuse(routing_id, error)

    def _hello(self, routing_id: bytes, hello: Hello, now: float, address: str) -> None:
        if self.draining:
            raise error_for(errors.SHUTTING_DOWN)
        self._check_connect_rate(address, now)
        if any(ticket.routing_id == routing_id for ticket in self._tickets.values()):
            raise error_for(errors.ALREADY_LOGGED_IN)
        ticket, stored = self.doorkeeper.check(routing_id, hello, address, now)
        if stored is None:
            self._welcome(ticket, now)
            return
        if len(self._tickets) >= self.config.password_checks_max:
            raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many logins at once")
        number = self._number()
        self._tickets[number] = ticket
        self.out.effects.append(VerifyPassword(number, hello.password or "", stored))

    def _check_connect_rate(self, address: str, now: float) -> None:
        bucket = self._connects.get(address)
        if bucket is None:
            bucket = TokenBucket(self.config.connects_per_second, self.config.connect_burst, now)
            self._connects[address] = bucket
        if not bucket.take(now):
            raise error_for(errors.CONNECT_RATE_EXCEEDED, address)

    def _welcome(self, ticket: Ticket, now: float) -> None:
        hello, vpn = ticket.hello, ticket.vpn
        number = self._number()
        client_name = hello.client_name or f"{self.node}/{vpn.name}/{number}"
        predecessor = self.sessions.find(vpn.name, client_name)
        if predecessor is not None:
            if not ticket.resumed:
                self._refuse(ticket.routing_id, error_for(errors.CLIENT_NAME_IN_USE, client_name))
                return
            self._end(
                predecessor,
                error_for(errors.KEEPALIVE_TIMEOUT, "resumed on another connection"),
                now,
                tell=True,
            )
        session = Session(number, ticket.routing_id, vpn, ticket.username.name, client_name, now)
        session.address = ticket.address
        session.sdk = hello.sdk
        session.keepalive_s = max(hello.keepalive_ms, self.config.keepalive_ms) / 1000
        session.local_priority = hello.local_priority
        session.network_priority = hello.network_priority
        session.no_local = hello.no_local
        session.granted_messages, session.granted_bytes = hello.credit
        session.inbox = f"{INBOX_PREFIX}{self.node}/{self._random.getrandbits(96):024x}"
        rate = self.config.control_frames_per_second
        session.bucket = TokenBucket(rate, rate * 2, now)
        if not self.rights.grant(session):
            self._refuse(
                ticket.routing_id,
                error_for(errors.CLIENT_CONNECT_DENIED, "a profile of the username is gone"),
            )
            return
        self.sessions.admit(session)
        self.doorkeeper.connected += 1
        body = self._welcome_header(
            session, self.doorkeeper.token(ticket, client_name), resumed=ticket.resumed
        )
        self._send(session, wire.WELCOME, body)
        self._count("connects")

    def _welcome_header(self, session: Session, token: bytes, *, resumed: bool) -> dict[str, Any]:
        config = self.config
        return {
            "session": f"{session.number}",
            "client_name": session.client_name,
            "vpn": session.vpn.name,
            "node": self.node,
            "token": token,
            "resumed": resumed,
            "epoch": self.shards.epoch,
            "slots": self.shards.table,
            "workers": len(self.shards.shards),
            "rounds": config.ingress_rounds,
            "bytes": config.ingress_bytes,
            "keepalive_ms": int(session.keepalive_s * 1000),
            "max_message_bytes": config.max_message_bytes,
            "max_batch_rows": config.max_batch_rows,
            "max_batch_bytes": config.max_batch_bytes,
            "inbox": session.inbox,
        }

    def _refuse(self, routing_id: bytes, error: AngariumError) -> None:
        self.errors[error.code] = self.errors.get(error.code, 0) + 1
        self.out.effects.append(
            SendClient(routing_id, [wire.CLOSED, wire.pack([error.code, error.detail])], 0)
        )

    # -- operations of a session -----------------------------------------------------------------------------

    def _check_rate(self, session: Session, now: float) -> None:
        assert session.bucket is not None
        if not session.bucket.take(now):
            raise error_for(errors.CONTROL_RATE_EXCEEDED, f"{self.config.control_frames_per_second} a second")

    def _publish(self, session: Session, frames: list[bytes], now: float) -> None:
        a_round = read_publish(session, frames, self.shards, self.config)
        session.round_number = a_round.number
        unmatched = self.short_way.answer(a_round)
        if unmatched is None:
            a_round.stamp = self.short_way.stamp
            self.rounds.accept(a_round, now)
            return
        self._account(session, a_round, unmatched, [], now)
        self.rounds.accept_answered(a_round, now)

    def _credit(self, session: Session, frames: list[bytes], now: float) -> None:
        match wire.unpack_header(frames[1]):
            case [int(messages), int(size)] if (
                messages >= session.granted_messages and size >= session.granted_bytes
            ):
                session.granted_messages, session.granted_bytes = messages, size
            case _:
                raise error_for(errors.MALFORMED_FRAME, "CREDIT is [messages, bytes], totals that never fall")
        self.egress.drain(session)
        self.eliding.drained(session, now)
        self._finish_bye(session, now)

    def _subscribe(self, session: Session, frames: list[bytes], _now: float) -> None:
        self.subscriptions.subscribe(session, wire.unpack_header(frames[1]))

    def _unsubscribe(self, session: Session, frames: list[bytes], _now: float) -> None:
        self.subscriptions.unsubscribe(session, wire.unpack_header(frames[1]))

    def _ping(self, session: Session, frames: list[bytes], _now: float) -> None:
        self._send(session, wire.PONG, wire.unpack_header(frames[1]))

    def _pong(self, _session: Session, _frames: list[bytes], _now: float) -> None:
        """Having been heard is all."""

    def _bye(self, session: Session, _frames: list[bytes], now: float) -> None:
        session.closing = True
        self._finish_bye(session, now)

    def _second_hello(self, _session: Session, _frames: list[bytes], _now: float) -> None:
        raise error_for(errors.ALREADY_LOGGED_IN)

    def _finish_bye(self, session: Session, now: float) -> None:
        if not session.closing or session.closed or session.open_rounds:
            return
        assert session.egress is not None
        if session.egress.congested_at is None or not session.has_credit():
            self._end(session, None, now, tell=True)

    def _send(self, session: Session, operation: bytes, header: Any) -> None:
        self.out.effects.append(SendClient(session.routing_id, [operation, wire.pack(header)], 0))

    # -- workers ---------------------------------------------------------------------------------------------

    def _worker_announced(self, index: int, incarnation: int, now: float) -> None:
        if index >= len(self.shards.shards):
            return
        shard = self.shards.shards[index]
        if incarnation > shard.incarnation:
            self.rounds.lose(self.shards.lose(shard, now), now)
            self.shards.start(shard, incarnation)

    def _result(self, shard: Any, header: list[Any], body: bytes | None, now: float) -> None:
        for number, filter_ids in header[2]:
            shard.sets[number] = (tuple(filter_ids), self.interest.use_set(filter_ids))
        entry = shard.outstanding.get(header[1])
        if entry is not None:
            session = entry[0].session
            self._account(session, entry[0], header[6], header[7], now)
            if header[8]:
                self.short_way.learn(entry[0], shard, header[8])
        self.rounds.answer(shard, header, body, now)
        for number in header[3]:
            self.interest.drop_set(shard.sets.pop(number)[0])
        self.rounds.release(shard, now)
        self.scaling.step(now)

    def _account(
        self, session: Session, a_round: Round[Session], unmatched: int, refused: list[Any], now: float
    ) -> None:
        """Tell a publisher what was refused, and count what matched nothing."""
        if unmatched:
            self._count("discard.no-subscription-match", unmatched)
            session.count("discard.no-subscription-match", unmatched)
        for code, count, detail in refused:
            if code == errors.MALFORMED_FRAME:
                self.close_session(session, error_for(code, str(detail)), now)
                continue
            name = _REFUSED_NAMES.get(code, f"discard.refused-{code}")
            self._count(name, count)
            session.count(name, count)
            self.errors[code] = self.errors.get(code, 0) + count
            if not session.closed:
                self._send(session, wire.NOTICE, [code, detail, count, a_round.number])

    def _lost_rows(self, session: Session, rows: int) -> None:
        self._count(_LOST_REASON, rows)
        session.count(_LOST_REASON, rows)
        if not session.closed:
            self._send(session, wire.NOTICE, [errors.SHARD_UNAVAILABLE, "direct messages were lost", rows, 0])

    def _retired(self, a_round: Round[Session], now: float) -> None:
        session = a_round.session
        self._count("messages_in", a_round.rows)
        self._count("bytes_in", a_round.bytes)
        self._count("rounds")
        session.count("messages_in", a_round.rows)
        self.dispatcher.deliver(a_round, now)
        if session.closed:
            if not session.open_rounds:
                self.rights.revoke(session)
            return
        session.untold_bytes += a_round.bytes
        half_used = (
            session.retired_round - session.retired_told >= self.config.ingress_rounds // 2
            or session.untold_bytes >= self.config.ingress_bytes // 2
        )
        if half_used or a_round.flush:
            self._tell_retired(session)
        elif session not in self._untold:
            if not self._untold:
                self._tell_at = now + RETIRED_DELAY_S
            self._untold[session] = None
        self._finish_bye(session, now)

    def _tell_retired(self, session: Session) -> None:
        """Renew the ingress credit of a session."""
        session.retired_told = session.retired_round
        session.untold_bytes = 0
        self._untold.pop(session, None)
        self._send(session, wire.RETIRED, [session.retired_round])

    # -- ends ------------------------------------------------------------------------------------------------

    def close_session(self, session: Session, error: AngariumError, now: float) -> None:
        """End a session and tell it why."""
        self.errors[error.code] = self.errors.get(error.code, 0) + 1
        self._end(session, error, now, tell=True)

    def _end(self, session: Session, error: AngariumError | None, now: float, *, tell: bool) -> None:
        if session.closed:
            return
        if tell:
            self._send(session, wire.CLOSED, [0, "bye"] if error is None else [error.code, error.detail])
        session.closed = True
        self._untold.pop(session, None)
        self.sessions.remove(session)
        self.doorkeeper.connected -= 1
        self.doorkeeper.left(session.vpn.name, session.client_name, now)
        self.subscriptions.clear(session)
        if not session.open_rounds:
            self.rights.revoke(session)
        lost = self.egress.forget(session) + self.eliding.forget(session)
        if lost:
            self._count("discard.client-not-connected", lost)
        for name, value in session.counters.items():
            if name in SESSION_COUNTERS:
                self._count(name, value)
        self._tell_end(session, error)

    def _tell_end(self, session: Session, error: AngariumError | None) -> None:
        clean = error is None
        self.out.event(
            "CLIENT_CLIENT_DISCONNECT",
            f"client {session.client_name} disconnected"
            + ("" if clean else f": error {error.code}: {error.text}"),  # type: ignore[union-attr]
            severity="info" if clean else "warning",
            scope="client",
            vpn=session.vpn.name,
            client=session.client_name,
            code=0 if error is None else error.code,
        )

    def drain(self, now: float) -> bool:
        """Go down in order: nobody new; what was accepted retires.

        Then every session is closed. True when that is done.
        """
        self.draining = True
        for session in list(self.sessions):
            if not session.open_rounds:
                self._end(session, error_for(errors.SHUTTING_DOWN), now, tell=True)
        return not self.sessions

    def _find_client(self, vpn: str, name: str) -> Session | None:
        return self.sessions.find(vpn, name)

    def stats(self) -> dict[str, Any]:
        """Give the totals since this router started."""
        totals = dict(self.totals)
        for session in self.sessions:
            for name in SESSION_COUNTERS:
                totals[name] = totals.get(name, 0) + session.counters.get(name, 0)
        told = dict(self.errors)
        for code, count in self.subscriptions.refused.items():
            told[code] = told.get(code, 0) + count
        prefix = "discard."
        return {
            "sessions": len(self.sessions),
            "subscriptions": self.subscriptions.count,
            "filters": len(self.interest),
            "messages_in": totals.get("messages_in", 0),
            "bytes_in": totals.get("bytes_in", 0),
            "messages_out": self.egress.sent_messages,
            "bytes_out": self.egress.sent_bytes,
            "queued_bytes": self.egress.queued_bytes,
            "eliding_topics": self.eliding.tracked,
            "rounds": totals.get("rounds", 0),
            "short_way_rounds": self.short_way.rounds,
            "connects": totals.get("connects", 0),
            "discards": {n.removeprefix(prefix): v for n, v in totals.items() if n.startswith(prefix) and v},
            "errors": {str(code): count for code, count in sorted(told.items())},
        }

    def validate(self) -> None:
        """Check everything that must always hold."""
        self.interest.validate()
        self.egress.validate()
        self.short_way.validate()
        for session in self.sessions:
            session.validate()
        self.sessions.validate()
        assert self.doorkeeper.connected == len(self.sessions)
        assert self.subscriptions.count == sum(len(s.subscriptions) for s in self.sessions)

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    def _count(self, name: str, amount: int = 1) -> None:
        self.totals[name] = self.totals.get(name, 0) + amount


_REFUSED_NAMES = {
    errors.PUBLISH_DENIED: "discard.publish-topic-acl",
    errors.INVALID_TOPIC: "discard.topic-parse-error",
    errors.RESERVED_TOPIC: "discard.topic-reserved",
    errors.MESSAGE_TOO_LARGE: "discard.msg-too-big",
}
#: Counters that are kept per session while it lives and added to the totals at its end.
SESSION_COUNTERS = (
    "discard.transmit-congestion",
    "discard.message-elided",
    "discard.no-local",
    "discard.client-not-connected",
)
