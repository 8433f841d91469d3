"""Everything that publishers of guaranteed messages need, tied together: producers, admission, homes, acknowledgements.

The router's state machine (`router.router`) hands events here and knows no more of it. `router.admission` decides what
endpoints take and carries it to their homes; `router.publishers` knows who publishes and tells them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from angarium.errors import error_for
from router.admission.allowances import Allowances
from router.admission.publish_rights import PublishRights
from router.admission.spooling import Spooling
from router.admission.streams import Streams
from router.admission.thresholds import Thresholds
from router.admission.usage import Usage
from router.ground.metrics import SPOOL
from router.publishers.gathering import Gathering
from router.publishers.moves import Move, Moves
from router.publishers.producers import Producers
from router.publishers.settling import Settlement, Settling
from router.publishers.stages import Stages
from router.sessions.producer import join_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.frames.homes import CommittedFrame, HomeFrame
    from router.admission.usage import Account
    from router.asking.requests import Requests
    from router.delivery.dispatcher import Dispatcher
    from router.delivery.egress import Egress
    from router.ground.ground import Counters, Ground
    from router.guaranteed.endpoints import Endpoints
    from router.matching.shards import Shard, Shards
    from router.sessions.producer import Nack, Pending, Producer, Range
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable


class Acks:
    """Tells producers what became of their messages: acknowledgements up to a sequence, each refusal once (ACKED).

    A round is settled when every home that it was given to has accepted it; rounds of one producer are told in their
    order, so one number tells them all (R163, R186, R191). Everything that one report of a home settles is told
    together, in one frame per producer.
    """

    def __init__(
        self, egress: Egress, counters: Counters, on_idle: Callable[[Producer[Session], float], None]
    ) -> None:
        """Begin with nothing to tell; `on_idle` hears of producers that have nothing unsettled any more."""
        self._egress = egress
        self._counters = counters
        self._on_idle = on_idle
        #: Producers whose oldest round may be settled, in the order in which that happened.
        self.ready: dict[Producer[Session], None] = {}

    def settled(self, pending: Pending[Session]) -> None:
        """A round is where it should be; told by the next `flush`."""
        if not pending.producer.is_over:
            self.ready[pending.producer] = None

    def flush(self, now: float) -> None:
        """Tell what is settled."""
        while self.ready:
            ready, self.ready = self.ready, {}
            for producer in ready:
                self._tell(producer, now)

    def _tell(self, producer: Producer[Session], now: float) -> None:
        unsettled = producer.unsettled
        nacks: list[Nack] = []
        nowhere: list[Range] = []
        rows = size = 0
        told = producer.told
        while unsettled and not unsettled[0].homes:
            pending = unsettled.popleft()
            producer.told = pending.upto
            rows += pending.rows
            size += pending.bytes
            nacks += pending.nacks
            join_ranges(nowhere, pending.unroutable)
        if producer.told == told:
            return
        producer.release(rows, size)
        self._count(producer, rows - len(nacks), nacks)
        self._send(producer, nacks, 0, nowhere)
        if not producer.unacked_rows:
            self._on_idle(producer, now)

    def _count(self, producer: Producer[Session], acks: int, nacks: list[Nack]) -> None:
        producer.acks += acks
        self._counters.totals["acks"] += acks
        if nacks:
            producer.nacks += len(nacks)
            self._counters.totals["nacks"] += len(nacks)
            for nack in nacks:
                self._counters.errors[nack.code] += 1

    def end(self, producer: Producer[Session], code: int) -> None:
        """Tell a producer that nothing more will come, and why; code 0: it hears nothing."""
        self.ready.pop(producer, None)
        if code:
            self._send(producer, [], code, [])

    def _send(self, producer: Producer[Session], nacks: list[Nack], code: int, nowhere: list[Range]) -> None:
        session = producer.session
        if session.closed:
            return
        body: list[Any] = [producer.handle, producer.told, nacks, code]
        if session.hears_unroutable:
            body.append(nowhere)
        self._egress.answer(session, [wire.ACKED, wire.pack(body)])

    def validate(self) -> None:
        """Check that nothing settled is forgotten."""
        assert all(not producer.is_over for producer in self.ready)


class GuaranteedPublishing:
    """Guaranteed messages from their publishers to the homes of their endpoints."""

    def __init__(
        self,
        ground: Ground,
        sessions: SessionTable,
        shards: Shards,
        endpoints: Endpoints,
        dispatcher: Dispatcher,
        requests: Requests,
        *,
        retry: Callable[[float], None],
    ) -> None:
        """Begin with no producer and no home; `retry` lets rounds retire that waited for homes."""
        self._counters, self._sessions, self._retry = ground.counters, sessions, retry
        asks, limits, wall_ms = requests.asks, ground.spool, ground.wall_ms
        self._endpoints = endpoints
        self.usage, self.acks = Usage(limits, endpoints), Acks(dispatcher.egress, ground.counters, self._idle)
        self.thresholds = Thresholds(self.usage, ground.alarms)
        self.allowances = Allowances(limits.max_delivered_unacked, shards, self.usage.home)
        self.streams = Streams(shards, self.usage)
        self.gathering = Gathering(shards, self.streams)
        self.producers = Producers(ground, asks, self.gathering, self.acks.end, self._forget_rounds)
        self.spooling = Spooling(
            ground,
            sessions,
            endpoints,
            self.streams,
            settled=self.acks.settled,
            rights=PublishRights(shards.rules),
            dispatcher=dispatcher,
            break_off=self.producers.break_off,
        )
        dispatcher.crowds.on_end = self._all_have_it
        self.moves = Moves(
            shards, self.usage, endpoints, self.streams, self.gathering, ground.counters, wall_ms
        )
        shards.on_lost += [one.shard_lost for one in (self.allowances, self.streams, self.moves)]
        endpoints.on_part = self.streams.part
        self.streams.on_parted, self.streams.on_unsure = endpoints.parted, self._part_again
        hearing = (self.usage, self.thresholds, self.moves, self.spooling.rearranging)
        endpoints.on_gone += [one.endpoint_gone for one in hearing]
        self.producers.register(requests)
        self.settling = Settling(self.streams, self.usage, endpoints, asks, wall_ms)
        self.stages = Stages(asks, self.settling, requests, self.producers.end_stage)

    def _part_again(self, lane_id: int, home: int) -> None:
        """A home may have died between the STORE that names a lane and the mark: it is told once more."""
        found = self._endpoints.lane(lane_id)
        if found is not None and found[1].home != home:
            self.streams.part(lane_id, home)

    # -- from homes ------------------------------------------------------------------------------------------

    def home_reported(self, home: HomeFrame, shard: Shard, now: float) -> None:
        """Take HOME."""
        changed = self.streams.home_reported(shard, home, now)
        self.stages.held(list(home.spool.stages))
        self.allowances.home_ready(shard.index)
        self.gathering.home_ready(shard.index)
        self._look(changed, now)
        self._homes_may_be_complete(now)

    def _homes_may_be_complete(self, now: float) -> None:
        """Go on with what waited until all homes have reported, if they have."""
        if not self.streams.all_reported:
            return
        self._retry(now)
        self.moves.homes_reported(now)
        self.settling.go_on(now)

    def committed(self, frame: CommittedFrame, shard: Shard, now: float) -> None:
        """Take COMMITTED."""
        had_unknown = bool(self.usage.unknown)
        self._look(self.streams.committed(shard, frame, now), now)
        if frame.spool.wanted or not self.allowances.is_level:
            self.allowances.reported(shard.index)
        if had_unknown:
            self._homes_may_be_complete(now)
        if self.settling.is_open:
            self.settling.go_on(now)

    def _look(self, changed: dict[Account, None], now: float) -> None:
        """Go on after a report: with what every home has accepted by now, and with what waited for room."""
        for pending in self.streams.take_settled():
            if type(pending) is Move:
                self.moves.settled(pending)
            elif type(pending) is Settlement:
                self.settling.settled(pending)
            else:
                self.acks.settled(pending)
        self.thresholds.changed.update(changed)
        self.spooling.retry(now)

    def _all_have_it(self, now: float) -> None:
        """What waited until very many direct subscribers had an earlier round may go on."""
        self.usage.freed += 1
        self.spooling.retry(now)

    # -- producers -------------------------------------------------------------------------------------------

    def _forget_rounds(self, producer: Producer[Session]) -> bool:
        return self.spooling.forget_rounds(producer)

    def _idle(self, producer: Producer[Session], now: float) -> None:
        session = producer.session
        if producer.closed_by is not None or session.closed:
            self.producers.idle(producer, now)
        if session.bye_at is not None:
            self._sessions.go_on_with_bye(session, now)

    # -- time, workers, metrics ------------------------------------------------------------------------------

    def sweep(self, now: float, flows_at: Callable[[int], object]) -> None:
        """Try again now and then what waits for room: some limits change without a word.

        Args:
            now: the time.
            flows_at: gives the flows of a home.
        """
        for index in self.allowances.lost:
            if not flows_at(index):
                self.allowances.release(index)
                self.usage.home(index).delivered_unacked = 0
        self.thresholds.look()
        self.usage.freed += 1
        self.spooling.retry(now)
        self._homes_may_be_complete(now)
        self.settling.retry()
        self.stages.retry()

    def may_leave(self, count: int, now: float) -> bool:
        """Tell whether the workers from this index on have stored all that they were given.

        One that died on its way out is not waited for: it will be told no lanes any more. Who published what it had not
        stored is disconnected, and sends it again when others have taken its lanes over.
        """
        for index in self.streams.unfinished(count):
            if self.streams.is_up(index):
                return False
            for pending in self.streams.abandon(index):
                if type(pending) is Move:
                    self.moves.again(pending)
                elif type(pending) is Settlement:
                    self.settling.again(pending)
                else:
                    self.producers.break_off(pending.producer)
                    error = error_for(errors.SHARD_UNAVAILABLE, "the worker left with messages on their way")
                    self._sessions.close(pending.producer.session, error, now)
        return True

    def homes_left(self, count: int, now: float) -> None:
        """Only the workers below this index are homes now; the others have handed over."""
        self.streams.left(count)
        self.allowances.homes_left(count)
        self.moves.left(count)
        self.gathering.left(count)
        self.spooling.retry(now)
        self._homes_may_be_complete(now)

    def stats(self) -> dict[str, int]:
        """Give the metrics of the spool as the router knows them; sizes in bytes."""
        return {
            **SPOOL.counted(self._counters.totals),
            **self.usage.stats(),
            **self.streams.stats(),
            "producers": len(self.producers),
            "rounds_waiting": self.spooling.waiting_rounds,
            **self.settling.stats(),
        }

    def validate(self) -> None:
        """Check everything that must always hold."""
        self.usage.validate()
        self.streams.validate()
        self.allowances.validate()
        self.gathering.validate()
        self.acks.validate()
        self.producers.validate()
        self.spooling.validate()
        self.moves.validate()
        self.settling.validate()
