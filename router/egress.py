"""What leaves for a client: pass through while it keeps up, queue by class of service when it does not.

While a session has credit and nothing is queued, batches pass unopened, however many rows they hold
(overdraft by one frame). Otherwise they queue per class of service, unopened where all rows are of one
class. A queue over its limit drops its oldest messages; what is then at its head carries the discard
indication (R8, R45). One node-wide budget bounds all queues together; over it, the session that holds most
loses its oldest.
"""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from angarium import wire
from router.effects import Outbox, SendClient
from router.session import WORK_UNIT_BYTES

if TYPE_CHECKING:
    from router.session import Session

#: Frames taken from D-1, D-2 and D-3 in one turn of the scheduler (weights: ours; facts section 12 leaves
#: them open).
WEIGHTS: Final = (1, 2, 4)
#: A client is called slow when something has been queued for it for so long.
SLOW_AFTER_S: Final = 3.0
CLASSES_OF_SERVICE: Final = 3
_COS_BITS: Final = {wire.CLASS_COS1: 0, wire.CLASS_COS2: 1, wire.CLASS_COS3: 2}


class Part:
    """Rows for one session that travel in one batch: plain, or of one shared subscription."""

    __slots__ = ("batch", "classes", "rows", "share")

    def __init__(self, rows: int, batch: bytes, classes: int, share: str | None = None) -> None:
        self.rows = rows
        self.batch = batch
        #: CLASS_* bits of what is inside.
        self.classes = classes
        self.share = share


class Delivery:
    """What one round gives to one session, or to many of them: built once, shared by all."""

    __slots__ = ("bytes", "classes", "frames", "parts", "rows", "unsorted")

    def __init__(self, parts: list[Part], *, unsorted: bool) -> None:
        self.parts = parts
        self.unsorted = unsorted
        self.rows = sum(part.rows for part in parts)
        self.bytes = sum(len(part.batch) for part in parts)
        self.classes = 0
        for part in parts:
            self.classes |= part.classes
        #: The DELIVER as it goes out when nothing was dropped before it.
        self.frames = deliver_frames(parts, dropped=0, unsorted=unsorted)


def deliver_frames(parts: list[Part], *, dropped: int, unsorted: bool) -> list[bytes]:
    """Build a DELIVER."""
    flags = (wire.DELIVER_DISCARD_INDICATION if dropped else 0) | (wire.DELIVER_UNSORTED if unsorted else 0)
    head = wire.pack([flags, [[part.rows, part.share] for part in parts], dropped])
    return [wire.DELIVER, head, *[part.batch for part in parts]]


class ClassQueue:
    """The messages of one class of service that wait for one client: one entry a batch.

    Opened only to drop from it.
    """

    __slots__ = ("burst", "bytes", "bytes_max", "dropped", "entries", "messages")

    def __init__(self, bytes_max: int, burst: int) -> None:
        self.bytes_max = bytes_max
        #: So many messages are kept whatever their size.
        self.burst = burst
        #: (part, unsorted), oldest first.
        self.entries: deque[tuple[Part, bool]] = deque()
        self.messages = 0
        self.bytes = 0
        #: Messages dropped since the last one was sent: the next one carries the indication.
        self.dropped = 0

    def push(self, part: Part, unsorted: bool) -> int:  # noqa: FBT001 - travels with the part
        """Queue a part; gives how many messages that cost."""
        self.entries.append((part, unsorted))
        self.messages += part.rows
        self.bytes += len(part.batch)
        dropped = 0
        while self.bytes > self.bytes_max and self.messages > self.burst:
            dropped += self.drop_oldest(self.bytes - self.bytes_max)
        return dropped

    def drop_oldest(self, excess: int) -> int:
        """Drop whole messages of the oldest entry until so many bytes are gone, or the entry.

        Gives how many.
        """
        part, unsorted = self.entries.popleft()
        self.messages -= part.rows
        self.bytes -= len(part.batch)
        dropped = part.rows
        if len(part.batch) > excess or self.messages < self.burst:
            kept = _drop_rows(part, unsorted, excess, max(0, self.burst - self.messages))
            if kept is not None:
                dropped -= kept.rows
                self.entries.appendleft((kept, False))
                self.messages += kept.rows
                self.bytes += len(kept.batch)
        self.dropped += dropped
        return dropped

    def pop(self) -> tuple[Part, bool, int]:
        """Take the oldest part: (part, unsorted, messages dropped before it)."""
        part, unsorted = self.entries.popleft()
        self.messages -= part.rows
        self.bytes -= len(part.batch)
        dropped, self.dropped = self.dropped, 0
        return part, unsorted, dropped


def _drop_rows(part: Part, unsorted: bool, excess: int, keep: int) -> Part | None:  # noqa: FBT001
    """Drop the first rows of a part until `excess` bytes are gone, keeping at least `keep`.

    At least one row goes.
    """
    rows = wire.unpack(part.batch)
    if unsorted:
        rows.sort(key=itemgetter(wire.ROW_INDEX))
    packed = [wire.pack(row) for row in rows]
    gone = 1
    freed = len(packed[0])
    while gone < len(packed) - keep and freed < excess:
        freed += len(packed[gone])
        gone += 1
    if gone == len(packed):
        return None
    return Part(len(packed) - gone, wire.join_rows(packed[gone:]), part.classes, part.share)


def split_by_class(part: Part, unsorted: bool) -> list[tuple[int, Part, bool]]:  # noqa: FBT001
    """Give (class index, part, unsorted) for the queues; only a part of mixed classes is opened."""
    if part.share is not None:
        return [(0, part, unsorted)]  # shared deliveries are always CoS 1 (R26)
    only = _COS_BITS.get(part.classes & (wire.CLASS_COS1 | wire.CLASS_COS2 | wire.CLASS_COS3))
    if only is not None:
        return [(only, part, unsorted)]
    groups: dict[int, list[bytes]] = {}
    rows = wire.unpack(part.batch)
    if unsorted:
        rows.sort(key=itemgetter(wire.ROW_INDEX))
    for row in rows:
        cos = (row[wire.ROW_FLAGS] & wire.FLAG_COS) >> wire.COS_SHIFT
        groups.setdefault(cos, []).append(wire.pack(row))
    eliding = part.classes & wire.CLASS_ELIDING
    return [
        (cos, Part(len(packed), wire.join_rows(packed), (1 << cos) | eliding), False)
        for cos, packed in groups.items()
    ]


class EgressQueue:
    """The queues of one session."""

    __slots__ = ("congested_at", "queues")

    def __init__(self, depths: list[int], bursts: list[int]) -> None:
        self.queues = tuple(
            ClassQueue(depth * WORK_UNIT_BYTES, burst) for depth, burst in zip(depths, bursts, strict=True)
        )
        #: Since when something has been waiting, or None.
        self.congested_at: float | None = None

    @property
    def messages(self) -> int:
        """Count what waits."""
        return sum(queue.messages for queue in self.queues)

    @property
    def bytes(self) -> int:
        """Count the bytes that wait."""
        return sum(queue.bytes for queue in self.queues)

    def is_slow(self, now: float) -> bool:
        """Tell whether the client has been behind for seconds."""
        return self.congested_at is not None and now - self.congested_at >= SLOW_AFTER_S

    def validate(self) -> None:
        """Check the sums."""
        for queue in self.queues:
            assert queue.messages == sum(part.rows for part, _ in queue.entries)
            assert queue.bytes == sum(len(part.batch) for part, _ in queue.entries)
            assert queue.bytes <= queue.bytes_max or queue.messages <= queue.burst


class Egress:
    """Sends deliveries on, or queues them; owns the node-wide budget."""

    def __init__(self, outbox: Outbox, memory_max: int) -> None:
        self._outbox = outbox
        self._memory_max = memory_max
        #: Bytes queued for all sessions together.
        self.queued_bytes = 0
        #: Sessions with something queued.
        self._backlogged: dict[Session, None] = {}
        #: Totals for the operators.
        self.sent_messages = 0
        self.sent_bytes = 0
        self.discarded = 0

    def offer(self, session: Session, delivery: Delivery, now: float) -> None:
        """Send a delivery at once if the client keeps up, else queue it."""
        if session.closed:
            session.count("discard.client-not-connected", delivery.rows)
            return
        egress = session.egress
        assert egress is not None
        if egress.congested_at is None and session.has_credit():
            self._send(session, delivery.frames, delivery.rows, delivery.bytes)
            return
        if egress.congested_at is None:
            egress.congested_at = now
            self._backlogged[session] = None
        for part in delivery.parts:
            for index, piece, unsorted in split_by_class(part, delivery.unsorted):
                self._push(session, egress.queues[index], piece, unsorted)
        if self.queued_bytes > self._memory_max:
            self._shrink()

    def _push(self, session: Session, queue: ClassQueue, part: Part, unsorted: bool) -> None:  # noqa: FBT001
        before = queue.bytes
        dropped = queue.push(part, unsorted)
        self.queued_bytes += queue.bytes - before
        if dropped:
            self._count_discard(session, dropped)

    def _count_discard(self, session: Session, dropped: int) -> None:
        session.count("discard.transmit-congestion", dropped)
        self.discarded += dropped

    def _shrink(self) -> None:
        """Take from whoever holds most until the budget holds, with a tenth to spare so that this is rare."""
        target = self._memory_max - self._memory_max // 10
        while self.queued_bytes > target:
            session = max(self._backlogged, key=_held_bytes)
            assert session.egress is not None
            queue = max(session.egress.queues, key=lambda q: q.bytes)
            before = queue.bytes
            self._count_discard(session, queue.drop_oldest(self.queued_bytes - target))
            self.queued_bytes += queue.bytes - before
            self._settle(session)

    def _settle(self, session: Session) -> None:
        assert session.egress is not None
        if not any(queue.entries for queue in session.egress.queues):
            session.egress.congested_at = None
            self._backlogged.pop(session, None)

    def drain(self, session: Session) -> None:
        """Send what is queued as far as the credit goes, the higher classes more often."""
        egress = session.egress
        if egress is None or egress.congested_at is None:
            return
        while session.has_credit() and any(queue.entries for queue in egress.queues):
            for index in (2, 1, 0):
                queue = egress.queues[index]
                for _ in range(WEIGHTS[index]):
                    if not queue.entries or not session.has_credit():
                        break
                    self._send_queued(session, queue)
        self._settle(session)

    def _send_queued(self, session: Session, queue: ClassQueue) -> None:
        part, unsorted, dropped = queue.pop()
        self.queued_bytes -= len(part.batch)
        frames = deliver_frames([part], dropped=dropped, unsorted=unsorted)
        self._send(session, frames, part.rows, len(part.batch))

    def _send(self, session: Session, frames: list[bytes], rows: int, size: int) -> None:
        session.sent_messages += rows
        session.sent_bytes += size
        self.sent_messages += rows
        self.sent_bytes += size
        self._outbox.effects.append(SendClient(session.routing_id, frames, rows))

    def forget(self, session: Session) -> int:
        """A session is over: drop what waits for it; gives how many messages."""
        egress = session.egress
        if egress is None:
            return 0
        messages = egress.messages
        self.queued_bytes -= egress.bytes
        self._backlogged.pop(session, None)
        for queue in egress.queues:
            queue.entries.clear()
            queue.messages = queue.bytes = 0
        egress.congested_at = None
        return messages

    def validate(self) -> None:
        """Check that the budget counts what is queued."""
        total = 0
        for session in self._backlogged:
            assert session.egress is not None
            total += session.egress.bytes
        assert total == self.queued_bytes


def _held_bytes(session: Session) -> int:
    assert session.egress is not None
    return session.egress.bytes
