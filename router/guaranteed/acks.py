"""What publishers are told: acknowledgements up to a sequence, and each refusal once (ACKED).

A round is settled when every home that it was given to has accepted it; rounds of one producer are told in their order,
so one number tells them all (R163, R186, R191). Everything that one report of a home settles is told together, in one
frame per producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire
from router.sessions.producer import join_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.delivery.egress import Egress
    from router.ground.counters import Counters
    from router.sessions.producer import Nack, Pending, Producer, Range
    from router.sessions.session import Session


class Acks:
    """Tells producers what became of their messages."""

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
        self._counters.count("acks", acks)
        if nacks:
            producer.nacks += len(nacks)
            self._counters.count("nacks", len(nacks))
            for nack in nacks:
                self._counters.error(nack.code)

    def end(self, producer: Producer[Session], code: int) -> None:
        """Tell a producer that nothing more will come, and why."""
        self.ready.pop(producer, None)
        self._send(producer, [], code, [])

    def _send(self, producer: Producer[Session], nacks: list[Nack], code: int, nowhere: list[Range]) -> None:
        session = producer.session
        if session.closed:
            return
        body: list[Any] = [producer.handle, producer.told, nacks, code, nowhere]
        self._egress.answer(session, [wire.ACKED, wire.pack(body)])

    def validate(self) -> None:
        """Check that nothing settled is forgotten."""
        assert all(not producer.is_over for producer in self.ready)
