"""Guaranteed messages as applications receive them: views of rows that can be accepted, failed or rejected.

A `GuaranteedDelivery` is what one frame brought of one partition; messages and batches are views of it that are
made when somebody looks. Which of its messages are settled stands in the delivery, so that a message that is
looked at twice is settled once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, TypeAlias, overload

from angarium import wire
from angarium.message import DeliveryMode, Message, Row

if TYPE_CHECKING:
    from types import TracebackType

    from angarium.client.protocol.flow_window import FlowWindow

#: Partition, first and last position: what SETTLE lists.
Range: TypeAlias = tuple[int, int, int]

_SETTLED: Final = b"\x01"


class Origin(NamedTuple):
    """Where a message was before it came to this endpoint."""

    #: `queue` or `topic-endpoint`.
    kind: str
    #: Of the endpoint.
    name: str
    #: `expired`, `redeliveries` or `rejected` for dead messages; `moved`, `copied` or `redriven` by an operator.
    reason: str


class Settler(Protocol):
    """Who takes the outcome of messages."""

    def settle(self, delivery: GuaranteedDelivery, start: int, stop: int, outcome: int) -> None:
        """Take the outcome of the rows from `start` to before `stop`, but for those that have one."""


class GuaranteedDelivery:
    """Rows of one partition that came together."""

    __slots__ = (
        "_positions",
        "_stored_ms",
        "counts",
        "origins",
        "partition",
        "rows",
        "runs",
        "settled",
        "settler",
        "size_bytes",
        "window",
    )

    def __init__(
        self,
        window: FlowWindow,
        partition: int,
        rows: list[Row],
        runs: list[tuple[int, int]],
        counts: list[int] | None,
        stored_ms: int | list[int],
        origins: Sequence[tuple[str, str, str] | None] | None,
        size_bytes: int,
    ) -> None:
        """Hold rows in the order of their positions."""
        #: Of the bind that they came through; another bind of the same flow cannot settle them.
        self.window: Final = window
        self.partition: Final = partition
        self.rows: Final = rows
        #: First position and number, in the order of the rows.
        self.runs: Final = runs
        #: Earlier delivery attempts of each row; None if there were none.
        self.counts: Final = counts
        self._stored_ms: Final = stored_ms
        self.origins: Final = origins
        #: What they cost of the flow's credit.
        self.size_bytes: Final = size_bytes
        #: One byte per row, 1 if it has an outcome.
        self.settled: Final = bytearray(len(rows))
        #: The flow, once it has taken them; None before.
        self.settler: Settler | None = None
        self._positions: Sequence[int] | None = None

    @property
    def positions(self) -> Sequence[int]:
        """The position of each row in its partition."""
        positions = self._positions
        if positions is None:
            runs = self.runs
            if len(runs) == 1:
                positions = range(runs[0][0], runs[0][0] + runs[0][1])
            else:
                positions = list(chain.from_iterable(range(first, first + count) for first, count in runs))
            self._positions = positions
        return positions

    def stored_ms(self, at: int) -> int:
        """Give when a row was spooled, in ms since 1970."""
        return self._stored_ms if isinstance(self._stored_ms, int) else self._stored_ms[at]

    def all_stored_ms(self, start: int, stop: int) -> list[int]:
        """Give when each of some rows was spooled, in ms since 1970."""
        stored = self._stored_ms
        return [stored] * (stop - start) if isinstance(stored, int) else stored[start:stop]

    def ranges(self, start: int, stop: int) -> Iterator[Range]:
        """Give the positions of some rows as ranges."""
        at = 0
        for first, count in self.runs:
            begin, end = max(start - at, 0), min(stop - at, count)
            if begin < end:
                yield self.partition, first + begin, first + end - 1
            at += count
            if at >= stop:
                return

    def mark(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Mark rows as settled; give those that were not, as (start, stop)."""
        settled = self.settled
        if settled.find(_SETTLED, start, stop) < 0:
            settled[start:stop] = _SETTLED * (stop - start)
            return [(start, stop)]
        fresh = [at for at in range(start, stop) if not settled[at]]
        settled[start:stop] = _SETTLED * (stop - start)
        return [(at, at + 1) for at in fresh]

    def validate(self) -> None:
        """Check the sentences above."""
        assert len(self.positions) == len(self.rows) == len(self.settled)
        assert self.counts is None or len(self.counts) == len(self.rows)


def mode_at_endpoint(flags: int) -> DeliveryMode:
    """Give the mode of a row in an endpoint: what was not published as persistent is non-persistent (R151)."""
    if flags & wire.FLAG_MODE == wire.MODE_PERSISTENT:
        return DeliveryMode.PERSISTENT
    return DeliveryMode.NON_PERSISTENT


class GuaranteedMessage(Message):
    """A message that came through a flow. Settle each once; what is said first counts.

    `async with message:` (or `with message:`) accepts it at the end of the block and fails it if the block raises: then
    it is delivered again.
    """

    __slots__ = ("_at", "_delivery")

    def __init__(self, delivery: GuaranteedDelivery, at: int) -> None:
        self._row = delivery.rows[at]
        self._fields = None
        self._delivery = delivery
        self._at = at

    @property
    def row(self) -> Row:
        """The row as it can be published again: as a guaranteed message, which is what came."""
        row = super().row
        if row[2] & wire.FLAG_MODE:
            return row
        return (*row[:2], row[2] | wire.MODE_NON_PERSISTENT, *row[3:])

    @property
    def mode(self) -> DeliveryMode:
        """Persistent or non-persistent; a direct message that an endpoint attracted is non-persistent."""
        return mode_at_endpoint(self._row[2])

    @property
    def position(self) -> int:
        """Its number in its partition: from 1, never used twice."""
        return self._delivery.positions[self._at]

    @property
    def partition(self) -> int:
        """The partition of the queue that it is in, 0 if there is one only."""
        return self._delivery.partition

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before, to this consumer or another; it may have been processed."""
        return self._delivery.counts is not None and self._delivery.counts[self._at] > 0

    @property
    def delivery_count(self) -> int:
        """How often it has been delivered, this time included."""
        return 1 if self._delivery.counts is None else self._delivery.counts[self._at] + 1

    @property
    def stored_ms(self) -> int:
        """When the node stored it, in ms since 1970."""
        return self._delivery.stored_ms(self._at)

    @property
    def origin(self) -> Origin | None:
        """Where it was before, if it was moved or died there; None if it was published here."""
        origins = self._delivery.origins
        origin = None if origins is None else origins[self._at]
        return None if origin is None else Origin(*origin)

    @property
    def settled(self) -> bool:
        """Whether it was accepted, failed or rejected."""
        return bool(self._delivery.settled[self._at])

    def __repr__(self) -> str:
        state = "settled" if self.settled else "unsettled"
        return f"{super().__repr__()[:-1]}, position {self.position}, {state})"

    def accept(self) -> None:
        """Say that it was processed: the node deletes it."""
        self.settle(wire.OUTCOME_ACCEPTED)

    def fail(self) -> None:
        """Say that it could not be processed now: it is delivered again, within the endpoint's limits."""
        self.settle(wire.OUTCOME_FAILED)

    def reject(self) -> None:
        """Say that it can never be processed: it goes to the dead message queue, or is deleted."""
        self.settle(wire.OUTCOME_REJECTED)

    def settle(self, outcome: int) -> None:
        """Give it an outcome, one of `wire.OUTCOME_...`, unless it has one."""
        delivery = self._delivery
        assert delivery.settler is not None
        delivery.settler.settle(delivery, self._at, self._at + 1, outcome)

    # As a context manager, plain or async: accepted at the end, failed if the block raises, unless it was settled.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.settled:
            self.settle(wire.OUTCOME_ACCEPTED if kind is None else wire.OUTCOME_FAILED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class GuaranteedBatch(Sequence[GuaranteedMessage]):
    """Messages of one partition that arrived together; each is made when it is looked at.

    `payloads`, `topics` and `positions` give a column without making any message, the fastest way to read.
    """

    __slots__ = ("_delivery", "_start", "_stop")

    def __init__(self, delivery: GuaranteedDelivery, start: int, stop: int) -> None:
        self._delivery = delivery
        self._start = start
        self._stop = stop

    @property
    def payloads(self) -> list[bytes]:
        """The payload of each message."""
        return [row[5] for row in self._delivery.rows[self._start : self._stop]]

    @property
    def topics(self) -> list[str]:
        """The topic of each message."""
        return [row[1] for row in self._delivery.rows[self._start : self._stop]]

    @property
    def positions(self) -> Sequence[int]:
        """The position of each message."""
        return self._delivery.positions[self._start : self._stop]

    @property
    def rows(self) -> list[Row]:
        """Each message as the wire has it, see `angarium.message`."""
        return self._delivery.rows[self._start : self._stop]

    @property
    def stored_ms(self) -> list[int]:
        """When each message was spooled, in ms since 1970."""
        return self._delivery.all_stored_ms(self._start, self._stop)

    @property
    def delivery_counts(self) -> list[int] | None:
        """How often each message has been delivered, this time included; None if all are for the first time."""
        counts = self._delivery.counts
        return None if counts is None else [count + 1 for count in counts[self._start : self._stop]]

    @property
    def size_bytes(self) -> int:
        """What they take in the spool; an estimate if others came together with them."""
        delivery = self._delivery
        return delivery.size_bytes * len(self) // max(len(delivery.rows), 1)

    @property
    def origins(self) -> Sequence[tuple[str, str, str] | None] | None:
        """Where each message was before: kind, name and reason, or None; None if all were published here."""
        origins = self._delivery.origins
        return None if origins is None else origins[self._start : self._stop]

    @property
    def partition(self) -> int:
        """The partition of the queue that all of them are in."""
        return self._delivery.partition

    def accept(self) -> None:
        """Accept those that are not settled."""
        self.settle(wire.OUTCOME_ACCEPTED)

    def fail(self) -> None:
        """Fail those that are not settled."""
        self.settle(wire.OUTCOME_FAILED)

    def reject(self) -> None:
        """Reject those that are not settled."""
        self.settle(wire.OUTCOME_REJECTED)

    def settle(self, outcome: int) -> None:
        """Give those that are not settled an outcome, one of `wire.OUTCOME_...`."""
        assert self._delivery.settler is not None
        self._delivery.settler.settle(self._delivery, self._start, self._stop, outcome)

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, position: int) -> GuaranteedMessage: ...

    @overload
    def __getitem__(self, position: slice) -> GuaranteedBatch | list[GuaranteedMessage]: ...

    def __getitem__(
        self, position: int | slice
    ) -> GuaranteedMessage | GuaranteedBatch | list[GuaranteedMessage]:
        if isinstance(position, slice):
            start, stop, step = position.indices(len(self))
            if step != 1:
                return [self[at] for at in range(start, stop, step)]
            return GuaranteedBatch(self._delivery, self._start + start, self._start + max(start, stop))
        at = range(self._start, self._stop)[position]
        return GuaranteedMessage(self._delivery, at)

    def __iter__(self) -> Iterator[GuaranteedMessage]:
        delivery = self._delivery
        for at in range(self._start, self._stop):
            yield GuaranteedMessage(delivery, at)

    def __repr__(self) -> str:
        return f"GuaranteedBatch({len(self)} messages)"


#: What can be settled at once.
Settleable: TypeAlias = GuaranteedMessage | GuaranteedBatch | Iterable[GuaranteedMessage]


def settle_all(messages: Settleable, outcome: int) -> None:
    """Give messages an outcome, one of `wire.OUTCOME_...`, but for those that have one."""
    if isinstance(messages, (GuaranteedBatch, GuaranteedMessage)):
        messages.settle(outcome)
    else:
        for message in messages:
            message.settle(outcome)


class Settlement:
    """Positions of one outcome that the node was not told, as ranges as long as possible."""

    __slots__ = ("_first", "_last", "_partition", "_ranges", "messages")

    def __init__(self) -> None:
        #: How many positions there are.
        self.messages = 0
        #: Ranges that are not extended any more.
        self._ranges: list[Range] = []
        #: The range that is extended, if `messages` is not 0.
        self._partition = self._first = self._last = 0

    def add(self, partition: int, first: int, last: int) -> None:
        """Add positions, each once."""
        if not self.messages:
            self._partition, self._first = partition, first
        elif first != self._last + 1 or partition != self._partition:
            self._ranges.append((self._partition, self._first, self._last))
            self._partition, self._first = partition, first
        self._last = last
        self.messages += last - first + 1

    @property
    def ranges(self) -> int:
        """Give how many ranges there are at most."""
        return len(self._ranges) + bool(self.messages)

    def take(self) -> list[Range]:
        """Give everything, neighbours joined, and hold nothing."""
        if not self.messages:
            return []
        ranges, self._ranges = self._ranges, []
        ranges.append((self._partition, self._first, self._last))
        self.messages = 0
        if len(ranges) == 1:
            return ranges
        ranges.sort()
        joined: list[Range] = []
        for partition, first, last in ranges:
            if joined and joined[-1][0] == partition and joined[-1][2] + 1 == first:
                joined[-1] = (partition, joined[-1][1], last)
            else:
                joined.append((partition, first, last))
        return joined

    def validate(self) -> None:
        """Check the sentences above."""
        ranges = [*self._ranges, *([(self._partition, self._first, self._last)] if self.messages else [])]
        assert self.messages == sum(last - first + 1 for _, first, last in ranges)
