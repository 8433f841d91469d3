"""The router's state machine: events in, effects out.

It ties the rooms of this package together and decides which of them an event goes to: `login` judges HELLO,
`subscriptions` SUBSCRIBE, `rounds` PUBLISH, `delivery`, `eliding` and `egress` what goes
out, `shards` the workers, `closing` the ends of sessions. It owns no socket, clock, thread or file: the shell
(`server`) calls one method per event with the time, then takes the effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from angarium import errors, slots, wire
from angarium.errors import AngariumError, error_for
from angarium_server.connections.tls import LOCAL
from angarium_server.frames.frame import MalformedFrameError, decoder, read, takes
from angarium_server.frames.homes import (
    CommittedFrame,
    FlowEventFrame,
    FlowMessagesFrame,
    HomeFrame,
    LanesConfirmFrame,
    LeasedFrame,
    MoveFrame,
    RecordsFrame,
)
from angarium_server.frames.matching import (
    Bundle,
    Confirm,
    Fault,
    Ready,
    Result,
    Retire,
    Sets,
    SpoolFailed,
    Work,
)
from router.access.bridges import BridgeGate, LocalGate
from router.access.granted import RENEW, RenewWish
from router.access.handshake import Gates, Handshake
from router.access.login import Authenticator
from router.asking.asks import Asks
from router.asking.requests import Requests
from router.closing import Closing
from router.delivery.dispatcher import Dispatcher
from router.delivery.egress import Egress
from router.delivery.eliding import Eliding
from router.flows.consumers import Consumers
from router.gateways.attached import AttachedClients
from router.gateways.will_publishing import WillPublishing
from router.gateways.wills import Wills
from router.ground.metrics import ROUTER
from router.guaranteed.memory_accounts import MemoryAccounts
from router.links.links import Links
from router.matching.accounting import Accounting
from router.matching.effort import Effort
from router.matching.fast_path import FastPath
from router.matching.pieces import FanOut
from router.matching.rounds import Rounds, read_publish
from router.matching.scaling import Scaling
from router.matching.shards import Shards, ShardState
from router.operators import Operators
from router.publishers.publishing import GuaranteedPublishing
from router.sessions.directory import Directory
from router.sessions.interest import Interest
from router.sessions.session import FILTERS_PER_FRAME, SESSION_COUNTERS
from router.sessions.session_table import SessionTable
from router.subscriptions.retained import ReadArguments, Retained
from router.subscriptions.rights import Rights
from router.subscriptions.subscriptions import Subscriptions

if TYPE_CHECKING:
    from angarium_server.connections.tls import Peer
    from router.ground.ground import Ground
    from router.matching.shards import Shard
    from router.sessions.round import Round
    from router.sessions.session import Session

#: Most tables are looked over once in this time (seconds).
SWEEP_INTERVAL_S = 0.5
#: So many ranges of a SETTLE count as one frame towards the rate of a client: a home takes a million in 0.2 s.
RANGES_PER_FRAME = 64
_Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_decode_credit = msgspec.msgpack.Decoder(tuple[_Natural, _Natural]).decode
_DOWN = ShardState.DOWN
_decode_bundle, _decode_ready = decoder(Bundle), decoder(Ready)
_decode_number = msgspec.msgpack.Decoder(tuple[_Natural]).decode


class Router:
    """Sessions, order, admission, choice and egress of one node."""

    def __init__(
        self, ground: Ground, *, workers: int, incarnation: int, token_key: bytes, now: float
    ) -> None:
        """Begin without clients and workers.

        Args:
            ground: what all parts stand on.
            workers: how many there are to be.
            incarnation: of this process, higher than that of its predecessor.
            token_key: makes the tokens with which clients resume, also after a restart.
            now: the time.
        """
        self.ground, self.config, self.out, self.counters = ground, ground.config, ground.out, ground.counters
        self._next_sweep = now
        #: When `tick` has something to do, but for what is elided; whether frames came that may make that sooner.
        self._wake_at, self._is_restless, self._was_restless = now, True, True
        self.sessions, self.directory = SessionTable(), Directory()
        self.asks = Asks(self.out)
        self.memory = MemoryAccounts(ground.alarms)
        self._build_direct(workers, incarnation)
        self._build_guaranteed()
        self._build_access(token_key, now)
        self._build_closing()
        self.operators = Operators(
            self.directory,
            self.sessions,
            self.rights,
            self.fast_path.forget_vpn,
            self.endpoints,
            self.lanes,
            self.links,
            self.bridges,
        )
        #: Operation of a worker -> what reads the header, and what acts on it.
        self._of_workers = dict(
            [
                takes(Result, self._result),
                takes(Confirm, self._confirmed),
                takes(Work, self.rounds.worked),
                takes(SpoolFailed, self._spool_failed),
                takes(Sets, lambda sets, shard, _body, _now: self.shards.define_sets(shard, sets.defs)),
                takes(HomeFrame, self._home_reported),
                takes(CommittedFrame, self._committed),
                takes(RecordsFrame, self.publishing.gathering.answered),
                takes(MoveFrame, self.publishing.moves.asked),
                takes(LanesConfirmFrame, self.consumers.lanes_confirmed),
                takes(LeasedFrame, self.consumers.questions.answered),
                takes(FlowMessagesFrame, self.flows.ends.messages),
                takes(FlowEventFrame, self.flows.events),
                takes(Retire, lambda one, shard, _body, _now: self.shards.retire_sets(shard, one.retired)),
            ]
        )

    def _build_direct(self, workers: int, incarnation: int) -> None:
        """Build what direct messages pass, from the filters to the connections of subscribers."""
        config = self.config
        self.fast_path = FastPath(config)
        self.interest: Interest[Session] = Interest()
        self.shards = Shards(workers, slots.slot_table(workers), incarnation, self.interest, self.out)
        self.egress = Egress(
            self.out, config.egress_memory_bytes, config.egress_unread_bytes, self.ground.secrets
        )
        self.eliding = Eliding(self.egress, self.out, config.eliding_topics_max)
        self.rights = Rights(self.shards, self.eliding, self.egress)
        self.dispatcher = Dispatcher(self.interest, self.egress, self.eliding, self.ground.rng, self.counters)
        self.accounting = Accounting(self.counters, self.egress, self.sessions)
        self.effort = Effort(self.counters, self.out)
        self.rights.on_granted = self.effort.limits_changed
        self.fan_out = FanOut(self.interest, self.eliding, self.dispatcher.crowds, config.delivery_step_us)
        self.rounds = Rounds(
            self.shards,
            self.egress,
            config.worker_window,
            self._retired,
            self.accounting.lost,
            self._deadly,
            self.effort,
            self.fan_out,
        )
        self.subscriptions = Subscriptions(
            self.interest,
            self.shards,
            self.egress,
            on_change=self.fast_path.forget,
            find_client=self.sessions.find_client,
            alarms=self.ground.alarms,
            memory=self.memory,
        )

    def _build_guaranteed(self) -> None:
        """Build what consumers and publishers of guaranteed messages need."""
        self.requests = Requests(self.egress, self.counters, self.asks)
        consumers = self.consumers = Consumers(
            self.ground, self.shards, self.egress, self.requests, self.memory, self.fast_path.forget
        )
        self.endpoints, self.lanes, self.flows = consumers.endpoints, consumers.lanes, consumers.flows
        self.publishing = GuaranteedPublishing(
            self.ground,
            self.sessions,
            self.shards,
            self.endpoints,
            self.dispatcher,
            self.requests,
            retry=self.rounds.retry,
        )
        spooling, crowds = self.publishing.spooling, self.dispatcher.crowds
        check, unadmitted = self.subscriptions.check, spooling.unadmitted
        self.retained = Retained(
            self.endpoints, consumers.questions, self.rounds, self.interest, crowds, check, unadmitted
        )
        self.requests.register("retained.read", ReadArguments, self.retained.read)
        self.subscriptions.may_be_retained = self.retained.may_be
        self.subscriptions.on_new = self.retained.begin
        self.rounds.on_left, self.rounds.may_admit = self._left, spooling.may_admit
        self.fan_out.judges_rows, self._acks = spooling.judges_rows, self.publishing.acks
        self.scaling = Scaling(
            self.shards,
            self.rounds,
            self.interest,
            self.sessions,
            self.out,
            self.publishing.may_leave,
            self._homes_left,
        )
        self.scaling.on_begin = self.lanes.keep_workers
        self.lanes.on_handed_over = self.publishing.gathering.handed_over

    def _build_access(self, token_key: bytes, now: float) -> None:
        """Build what judges clients, neighbours and bridges that wish to come in."""
        self.links = Links(
            self.ground,
            self.directory,
            self.shards,
            self.egress,
            self.endpoints,
            self.asks,
            on_filter=self.fast_path.forget,
            now=now,
        )
        self.consumers.begin_work = self.subscriptions.begin_work
        self.bridges = BridgeGate(self.ground, self.directory)
        self.attached = AttachedClients(self.sessions, self.counters, self.egress)
        self.will_publishing = WillPublishing(
            self.ground, self.directory, self.rights, self.shards, self.interest, self.rounds
        )
        self.wills = Wills(self.memory, self.endpoints.find, self.will_publishing.publish)
        self.endpoints.on_gone.append(self.wills.endpoint_gone)
        authenticator = Authenticator(
            self.directory, self.sessions, self.config, token_key, self.ground.alarms, now
        )
        self.handshake = Handshake(
            self.ground,
            authenticator,
            self.sessions,
            self.rights,
            Gates(self.links, self.bridges, LocalGate(self.directory)),
            self.asks,
            self.wills,
            now,
        )
        self.requests.register(RENEW, RenewWish, self.handshake.renew)

    def _build_closing(self) -> None:
        """Build what ends sessions; who comes last lets go of them last."""
        listeners = (
            self.links,
            self.subscriptions,
            self.attached,
            self.wills,
            self.flows,
            self.effort,
            self.publishing.producers,
            self.memory,
            self.rights,
            self.egress,
            self.eliding,
            self.handshake,
            self,
        )
        self.closing = Closing(self.counters, self.sessions, self.rounds, self.egress, listeners)
        self.links.on_fault = self.closing.close

    # -- events ----------------------------------------------------------------------------------------------

    def client_frames(self, routing_id: bytes, frames: list[bytes], now: float, peer: Peer = LOCAL) -> bool:
        """A client sent frames; false if it is busy: offer them again after the next `tick`. HELLO needs `peer`."""
        self._was_restless, self._is_restless = self._is_restless, True
        session = self.sessions.by_routing_id.get(routing_id)
        if session is None:
            self.handshake.unauthenticated(routing_id, frames, now, peer)
            return True
        session.last_heard = now
        if session.is_busy:
            return False
        try:
            if len(frames) < 2:
                raise error_for(errors.MALFORMED_FRAME, "an operation has a header")
            operation = _OPERATIONS.get(frames[0])
            if operation is None:
                raise error_for(errors.UNKNOWN_OPERATION, repr(frames[0][:16]))
            if frames[0] != wire.PUBLISH:
                self._check_rate(session, now)
            if frames[0] in _CALM_OF_CLIENTS and not self.wills.due:
                self._is_restless = self._was_restless
            operation(self, session, frames, now)
            if self._acks.ready:
                self._acks.flush(now)
            if session.probes and self.egress.is_blocked(session):
                raise error_for(errors.EGRESS_BLOCKED, "answers pile up unread")
        except AngariumError as error:
            self.closing.close(session, error, now)
        return True

    def worker_frames(self, identity: bytes, frames: list[bytes], now: float) -> None:
        """A worker sent frames. It is a process of ours: what it says is trusted, its age is not.

        One that sends what no worker sends is at fault: it is given up, told to end, and its successor begins anew.
        """
        self._was_restless, self._is_restless = self._is_restless, True
        try:
            known = self._of_workers.get(frames[0])
            if known is None:
                self._worker_said(identity, frames, now)
                return
            decode, act = known
            try:
                frame = decode(frames[1])
            except (IndexError, ValueError, RecursionError) as error:
                raise MalformedFrameError(f"operation {frames[0]!r}: {error}") from None
            shard = self._shard_of(identity)
            if shard is not None and frame.incarnation == shard.incarnation and shard.state is not _DOWN:
                if frames[0] in _CALM_OF_WORKERS and not self.wills.due:
                    self._is_restless = self._was_restless
                act(frame, shard, frames[2:], now)
                if self._acks.ready:
                    self._acks.flush(now)
        except MalformedFrameError as error:
            self._is_restless = True
            self._worker_faulty(identity, str(error), now)

    def _worker_said(self, identity: bytes, frames: list[bytes], now: float) -> None:
        """Take what is not said by one worker about one thing."""
        if frames[0] == Bundle.operation:
            self._is_restless = self._was_restless
            for one in read(_decode_bundle, frames).messages:
                self.worker_frames(identity, one, now)
        elif frames[0] == Ready.operation:
            self._worker_announced(read(_decode_ready, frames), now)
        else:
            raise MalformedFrameError(f"operation {frames[0][:16]!r} is unknown")

    def _shard_of(self, identity: bytes) -> Shard | None:
        """Give the worker whose socket has this identity, `w<index>.<incarnation>`."""
        index = int(identity[1 : identity.index(b".")])
        return self.shards.shards[index] if index < len(self.shards.shards) else None

    def _worker_faulty(self, identity: bytes, text: str, now: float) -> None:
        shard = self._shard_of(identity)
        if shard is None or identity != b"w%d.%d" % (shard.index, shard.incarnation):
            return
        self.out.event(
            "SYSTEM_WORKER_FAULT",
            f"worker {shard.index} is ended: {text}",
            severity="error",
            index=shard.index,
        )
        self.shards.send(shard, Fault(self.shards.incarnation, text).frames())
        self.worker_lost(shard.index, shard.incarnation, now)

    def _confirmed(self, confirm: Confirm, shard: Shard, _body: list[bytes], now: float) -> None:
        if self.shards.confirm(shard, confirm.sequence):
            self.rounds.release(shard, now)
            self.scaling.step(now)

    def _homes_left(self, count: int, now: float) -> None:
        self.lanes.left(count)
        self.publishing.homes_left(count, now)

    def _spool_failed(self, _frame: SpoolFailed, shard: Shard, _body: list[bytes], now: float) -> None:
        shard.spool_failed = True
        self.worker_lost(shard.index, shard.incarnation, now)

    def _home_reported(self, home: HomeFrame, shard: Shard, _batches: list[bytes], now: float) -> None:
        if home.router == self.shards.incarnation:
            self.publishing.home_reported(home, shard, now)
            self.consumers.home(shard, home.number)

    def _committed(self, frame: CommittedFrame, shard: Shard, _batches: list[bytes], now: float) -> None:
        self.publishing.committed(frame, shard, now)
        if self.rounds.held:
            self.scaling.step(now)

    def worker_lost(self, index: int, incarnation: int, now: float) -> None:
        """An incarnation of a worker died or hangs; `incarnation` 0 stands for whichever is known."""
        if index >= len(self.shards.shards):
            return
        shard = self.shards.shards[index]
        if incarnation in (0, shard.incarnation) and shard.state is not ShardState.DOWN:
            self.rounds.lose(shard, self.shards.lose(shard, now), now)
            self.scaling.step(now)

    def unreachable(self, routing_id: bytes, rows: int, now: float, *, blocked: bool) -> None:
        """A send failed: the client is gone, or (blocked) its socket is full."""
        session = self.sessions.by_routing_id.get(routing_id)
        if rows:
            self.counters.totals["discard.client-not-connected"] += rows
        if session is not None:
            code = errors.EGRESS_BLOCKED if blocked else errors.KEEPALIVE_TIMEOUT
            detail = "" if blocked else "the connection is gone"
            self.closing.unreachable(session, error_for(code, detail), now)

    def fail(self, routing_id: bytes, error: AngariumError, now: float) -> None:
        """What a client sent is no message, or led to a fault of ours: it is told, and its session ends."""
        session = self.sessions.by_routing_id.get(routing_id)
        if session is None:
            self.handshake.refuse(routing_id, error)
        else:
            self.closing.close(session, error, now)

    def controller_answered(self, ticket: int, ok: bool, value: Any, now: float) -> None:  # noqa: FBT001 - part of the answer
        """The controller answered what was asked, or will not."""
        self.asks.answered(ticket, ok, value, now)
        self._acks.flush(now)

    def tick(self, now: float) -> float:
        """Do what time demands; gives when it wants to be called again (seconds, absolute)."""
        self._is_restless = False
        self.eliding.release(now)
        wake = min(now + SWEEP_INTERVAL_S, self.closing.tick(now), self.publishing.gathering.tick(now))
        wake = min(wake, self.consumers.tick(now), self.links.tick(now))
        wake = min(wake, self.attached.tick(now), self.operators.tick(now))
        wake = min(wake, self.retained.tick(now), self.rounds.tick(now, self.config.shard_grace_ms / 1000))
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_INTERVAL_S
            self._sweep(now)
        # Wills behind all that may end sessions.
        self._wake_at = min(
            wake, self.handshake.tick(now), self.subscriptions.tick(now), self.wills.tick(now)
        )
        return min(self._wake_at, self.eliding.next_due())

    def next_tick(self) -> float:
        """Give when `tick` is due if only frames came since; 0 if these may have made something due."""
        if self._is_restless or self.rounds.turns:
            return 0.0
        return min(self._wake_at, self.eliding.next_due()) if self.eliding.tracked else self._wake_at

    def _sweep(self, now: float) -> None:
        self.fast_path.sweep(now)
        self.interest.sweep()
        self.handshake.sweep(now)
        self.publishing.sweep(now, self.flows.ends.at_home)
        self.asks.tick(now)
        self._acks.flush(now)

    # -- operations of a session -----------------------------------------------------------------------------

    def _check_rate(self, session: Session, now: float, weight: float = 1.0) -> None:
        assert session.bucket is not None
        if not session.bucket.take(now, weight):
            raise error_for(errors.CONTROL_RATE_EXCEEDED, f"{self.config.control_frames_per_second} a second")

    def _publish(self, session: Session, frames: list[bytes], now: float) -> None:
        if session.producers and self.handshake.closed:
            return  # its acknowledgements come, then CLOSED: what it goes on to publish is not accepted
        a_round = read_publish(session, frames, self.shards, self.config)
        session.round_number = a_round.number
        if not a_round.parts:  # nothing but the wish to be told when all before it has retired
            self.rounds.accept_answered(a_round, now)
            return
        next_filter = self.interest.next_id
        a_round.next_filter = self.shards.told_below(next_filter)
        unmatched: int | None
        if a_round.producer is None or not self.wills.due:
            self._is_restless = self._was_restless
        if session.burden is not None and self.effort.holds_back(session, now):
            unmatched = None
        elif a_round.producer is None:
            unmatched = self.fast_path.answer(a_round)
        else:
            unmatched = 0 if self.fast_path.answer_guaranteed(a_round) else None
        if unmatched is None:
            if a_round.next_filter == next_filter:
                a_round.stamp = self.fast_path.stamp
            self.rounds.accept(a_round, now)
            if self.effort.waiting:
                self._is_restless = True
            return
        if unmatched:
            self.accounting.answered(a_round, unmatched, [], now)
        self.rounds.accept_answered(a_round, now)

    def _credit(self, session: Session, frames: list[bytes], now: float) -> None:
        messages, size = wire.decode_header(_decode_credit, frames[1])
        if messages < session.granted_messages or size < session.granted_bytes:
            raise error_for(errors.MALFORMED_FRAME, "CREDIT is [messages, bytes], totals that never fall")
        session.granted_messages, session.granted_bytes = messages, size
        self._egress_may_go_on(session, now)

    def _egress_may_go_on(self, session: Session, now: float) -> None:
        self.egress.drain(session)
        self.eliding.drained(session, now)
        self.closing.go_on_with_bye(session, now)

    def _subscribe(self, session: Session, frames: list[bytes], now: float) -> None:
        self._check_rate(session, now, self.subscriptions.begin(session, *frames[:2]) / FILTERS_PER_FRAME)

    def _of_links(self, session: Session, frames: list[bytes], now: float) -> None:
        if session.link is None:
            raise error_for(errors.UNKNOWN_OPERATION, "this is for links")
        self.links.take(session, frames, now)

    def _of_gateways(self, session: Session, frames: list[bytes], now: float) -> None:
        if not session.kind.carries_clients:
            raise error_for(errors.UNKNOWN_OPERATION, "this is for gateways")
        if frames[0] == wire.COUNTED:
            self.attached.counted(session, frames[1])
        else:
            self._is_restless = self._was_restless
            self.client_frames(self.attached.routing_id(session, frames), frames[2:], now)

    def _request(self, session: Session, frames: list[bytes], now: float) -> None:
        self.requests.handle(session, frames[1], now)

    def _flow_credit(self, session: Session, frames: list[bytes], _now: float) -> None:
        self.flows.ends.credit(session, frames[1])

    def _settle(self, session: Session, frames: list[bytes], now: float) -> None:
        self._check_rate(session, now, self.flows.ends.settle(session, frames[1]) / RANGES_PER_FRAME)

    def _ping(self, session: Session, frames: list[bytes], now: float) -> None:
        session.assured_at = now
        self.rounds.tell_retired(session)
        self._send(session, wire.PONG, wire.decode_header(_decode_number, frames[1]))

    def _pong(self, session: Session, frames: list[bytes], now: float) -> None:
        """Everything sent before the PING was read by the client."""
        if self.egress.was_read(session, *wire.decode_header(_decode_number, frames[1])):
            self._egress_may_go_on(session, now)
            self.flows.ends.session_reads(session)

    def _bye(self, session: Session, frames: list[bytes], now: float) -> None:
        if session.link is not None:
            session.link.take_goodbye(frames[1])
        if session.bye_at is None:
            self.wills.says_bye(session, frames[1])
        self.closing.bye(session, now)

    def _second_hello(self, _session: Session, _frames: list[bytes], _now: float) -> None:
        raise error_for(errors.ALREADY_LOGGED_IN)

    def _send(self, session: Session, operation: bytes, header: Any) -> None:
        self.egress.answer(session, [operation, wire.pack(header)])

    # -- workers ---------------------------------------------------------------------------------------------

    def _worker_announced(self, ready: Ready, now: float) -> None:
        if ready.index >= len(self.shards.shards):
            return
        shard = self.shards.shards[ready.index]
        if ready.incarnation > shard.incarnation:
            self.rounds.lose(shard, self.shards.lose(shard, now), now)
            self.shards.start(shard, ready.incarnation)

    def _result(self, result: Result, shard: Shard, body: list[bytes], now: float) -> None:
        self.shards.define_sets(shard, result.defs)
        entry = shard.outstanding.get(result.reference)
        if entry is not None:
            a_round = entry[0]
            others = shard.slow or shard.replays or self.effort.waiting or self.wills.due
            if not (others or self.rounds.held):
                self._is_restless = self._was_restless  # nothing becomes due but what `next_tick` looks at
            if result.unmatched or result.refused:
                self.accounting.answered(a_round, result.unmatched, result.refused, now)
            if result.learned and a_round.learn != wire.LEARN_FEW:
                self.fast_path.learn(a_round, shard, result.learned)
        self.rounds.answer(shard, result, body[0] if body else None, now)
        self.shards.retire_sets(shard, result.retired)
        self.rounds.release(shard, now)
        if self.rounds.held:
            self.scaling.step(now)

    def _deadly(self, session: Session, now: float) -> None:
        """What this session sent ended workers."""
        self.closing.close(session, error_for(errors.PUT_ASIDE, "workers died of what it sent"), now)

    def _retired(self, a_round: Round[Session], now: float) -> None:
        session, producer = a_round.session, a_round.producer
        if self.retained.waiting:
            self.retained.retiring(a_round)
        if producer is not None:
            self.publishing.spooling.take(a_round, producer, now)
        elif session.closed and session.kind.is_relay:
            # It may be back, and newer messages of the same publishers may have been here sooner.
            self.counters.totals["discard.client-not-connected"] += a_round.rows
        else:
            self.dispatcher.deliver(a_round, now)
            if a_round.kept is not None and not session.closed:
                self.attached.judged(session, now, is_for_others=self.dispatcher.is_for_others(a_round))
            if a_round.endpoints:
                self.publishing.spooling.promote(a_round, now)

    def _left(self, session: Session, now: float) -> None:
        """A round has left of a session that is over, or about to leave."""
        if not session.closed:
            self.closing.go_on_with_bye(session, now)
        elif not session.open_rounds:
            self.rights.revoke(session)

    # -- ends ------------------------------------------------------------------------------------------------

    def session_ended(self, _session: Session, _error: object, _now: float) -> None:
        """Something may be due sooner now."""
        self._is_restless = True

    def drain(self, now: float) -> bool:
        """Go down in order: nobody new; what was accepted retires.

        Then every session is closed. True when that is done.
        """
        self.handshake.closed = self.effort.is_over = True
        is_empty = self.closing.drain(now)
        self.wills.end_waits()
        return is_empty and not self.wills and self.will_publishing.is_settled

    @property
    def freed_bytes(self) -> int:
        """Give what was forgotten since the process started, as far as it is counted."""
        return self.interest.freed_bytes + self.memory.freed_bytes

    def stats(self) -> dict[str, Any]:
        """Give the totals since this router started."""
        totals = dict(self.counters.totals)
        totals.update({name: totals.get(name, 0) for name in SESSION_COUNTERS})
        for session in self.sessions:
            if session.counters:  # of most nothing was counted, and messages wait meanwhile
                for name in SESSION_COUNTERS:
                    totals[name] += session.counters.get(name, 0)
        told = dict(self.counters.errors)
        for code, count in self.subscriptions.refused.items():
            told[code] = told.get(code, 0) + count
        return {
            **ROUTER.counted(totals),
            "sessions": len(self.sessions),
            "subscriptions": self.subscriptions.count,
            "filters": len(self.interest),
            "memory_bytes": self.memory.bytes,
            "cache_bytes": self.interest.resolved_bytes + self.fast_path.cache_bytes,
            "messages_in": self.rounds.rows_in,
            "bytes_in": self.rounds.bytes_in,
            "messages_out": self.egress.sent_messages,
            "bytes_out": self.egress.sent_bytes,
            "queued_bytes": self.egress.queued_bytes,
            "eliding_topics": self.eliding.tracked,
            "rounds": self.rounds.retired,
            "endpoints": len(self.endpoints),
            "flows": len(self.flows),
            "settles_lost": self.flows.ends.settles_lost,
            "spool": {
                **self.publishing.stats(),
                "homes_settled": self.lanes.settled(),
                "lanes_leaving": len(self.lanes.leaving),
            },
            "links": self.links.describe(),
            "fast_path_rounds": self.fast_path.rounds,
            "rounds_cut": self.fan_out.cut_rounds,
            "publishers_waiting": len(self.effort.waiting),
            "logins_waiting": self.handshake.waiting,
            "wills_waiting": len(self.wills),
            "requests_waiting": len(self.asks),
            "discards": {n[8:]: v for n, v in totals.items() if n.startswith("discard.") and v},
            "errors": {str(code): count for code, count in sorted(told.items())},
        }

    def validate(self) -> None:
        """Check everything that must always hold."""
        rooms = (self.interest, self.egress, self.dispatcher.crowds, self.fast_path, self.effort)
        more = (self.consumers, self.publishing, self.attached, self.wills, self.will_publishing)
        for room in (*rooms, *more, self.asks, self.links, self.sessions, self.ground.alarms):
            room.validate()
        self.closing.validate()
        self.subscriptions.validate(self.sessions)
        self.memory.validate(self.sessions, self.endpoints, self.wills.charged_bytes)


#: What makes nothing due but what `Router.next_tick` looks at, unless somebody waits for others. The same holds for
#: messages and their matches, which ask who waits where they are handled.
_CALM_OF_CLIENTS = frozenset((wire.CREDIT, wire.FLOW_CREDIT, wire.SETTLE, wire.PING, wire.PONG))
_CALM_OF_WORKERS = frozenset((FlowMessagesFrame.operation, CommittedFrame.operation))
_OPERATIONS = {
    wire.PUBLISH: Router._publish,
    wire.CREDIT: Router._credit,
    wire.SUBSCRIBE: Router._subscribe,
    wire.UNSUBSCRIBE: Router._subscribe,
    wire.REQUEST: Router._request,
    wire.IMPORTS: Router._of_links,
    wire.PEERS: Router._of_links,
    wire.ATTACHED: Router._of_gateways,
    wire.COUNTED: Router._of_gateways,
    wire.FLOW_CREDIT: Router._flow_credit,
    wire.SETTLE: Router._settle,
    wire.PING: Router._ping,
    wire.PONG: Router._pong,
    wire.BYE: Router._bye,
    wire.HELLO: Router._second_hello,
}
