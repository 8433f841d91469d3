"""What waits for one client: a queue per class of service, bounded, the oldest lost first; and topics that are elided.

An entry is a whole batch, opened only when something must be dropped from it or when it holds several
classes. `egress` decides when to queue and when to send.
"""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from angarium import wire
from angarium_server.costs import BUNDLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A work unit of the client profile's queue depths, in bytes.
WORK_UNIT_BYTES: Final = 2048
#: A client is called slow when something has been queued for it for so long.
SLOW_AFTER_S: Final = 3.0
#: For each class of service: what may wait, in work units, and so many messages whatever their size.
QueueLimits: TypeAlias = "tuple[tuple[int, int], ...]"
_COS_BITS: Final = {wire.CLASS_COS1: 0, wire.CLASS_COS2: 1, wire.CLASS_COS3: 2}


class Bundle(msgspec.Struct, eq=False):
    """Rows for one session that travel in one batch: plain, or of one shared subscription."""

    rows: int
    batch: bytes
    #: CLASS_* bits of what is inside.
    classes: int
    share: str | None = None
    #: Whether the rows come from several workers, and are to be merged by index.
    unsorted: bool = False
    #: For a neighbour: indices of the rows for which it has to choose a client; some may not be inside.
    opened: Sequence[int] = ()
    #: All topics that are inside and perhaps some more, if they are known and few; None otherwise.
    topics: Sequence[str] | None = None

    @property
    def bytes(self) -> int:
        """Give what it costs while it waits: a lone small message takes ten times its size."""
        return len(self.batch) + BUNDLE_BYTES


class ClassQueue:
    """The messages of one class of service that wait for one client: one entry a batch.

    Opened only to drop from it.
    """

    __slots__ = ("burst", "bytes", "bytes_max", "dropped", "entries", "messages")

    def __init__(self, bytes_max: int, burst: int) -> None:
        self.bytes_max = bytes_max
        #: So many messages are kept whatever their size.
        self.burst = burst
        #: Oldest first.
        self.entries: deque[Bundle] = deque()
        self.messages = 0
        self.bytes = 0
        #: Messages dropped since the last one was sent: the next one carries the indication.
        self.dropped = 0

    def push(self, bundle: Bundle) -> int:
        """Queue a bundle; gives how many messages that cost."""
        self.entries.append(bundle)
        self.messages += bundle.rows
        self.bytes += bundle.bytes
        dropped = 0
        while self.bytes > self.bytes_max and self.messages > self.burst:
            dropped += self.drop_oldest(self.bytes - self.bytes_max)
        return dropped

    def drop_oldest(self, excess: int) -> int:
        """Drop the oldest entry, or so much of it as frees `excess` bytes if nothing else is queued.

        Whole entries go where others are left: to open one costs a hundred times as much, and a client that does not
        read would cost that with every batch. Gives how many messages were dropped.
        """
        bundle = self.entries.popleft()
        self.messages -= bundle.rows
        self.bytes -= bundle.bytes
        dropped = bundle.rows
        if not self.entries or self.messages < self.burst:
            kept = _drop_rows(bundle, excess, max(0, self.burst - self.messages))
            if kept is not None:
                dropped -= kept.rows
                self.entries.appendleft(kept)
                self.messages += kept.rows
                self.bytes += kept.bytes
        self.dropped += dropped
        return dropped

    def pop(self) -> tuple[Bundle, int]:
        """Take the oldest bundle and the number of messages that were dropped before it."""
        bundle = self.entries.popleft()
        self.messages -= bundle.rows
        self.bytes -= bundle.bytes
        dropped, self.dropped = self.dropped, 0
        return bundle, dropped


def open_rows(bundle: Bundle) -> list[list[Any]]:
    """Unpack the rows of a bundle, in the order of their indices."""
    rows: list[list[Any]] = wire.unpack(bundle.batch)
    if bundle.unsorted:
        rows.sort(key=itemgetter(wire.ROW_INDEX))
    return rows


def _drop_rows(bundle: Bundle, excess: int, keep: int) -> Bundle | None:
    """Drop the first rows of a bundle until `excess` bytes are gone, keeping at least `keep`.

    At least one row goes.
    """
    rows = open_rows(bundle)
    packed = [wire.pack(row) for row in rows]
    gone = 1
    freed = len(packed[0])
    while gone < len(packed) - keep and freed < excess:
        freed += len(packed[gone])
        gone += 1
    if gone == len(packed):
        return None
    kept = wire.join_rows(packed[gone:])
    return Bundle(
        len(packed) - gone, kept, bundle.classes, bundle.share, opened=bundle.opened, topics=bundle.topics
    )


def split_by_class(bundle: Bundle) -> list[tuple[int, Bundle]]:
    """Give (class index, bundle) for the queues; only a bundle of mixed classes is opened."""
    if bundle.share is not None:
        return [(0, bundle)]  # shared deliveries are always CoS 1 (R26)
    only = _COS_BITS.get(bundle.classes & (wire.CLASS_COS1 | wire.CLASS_COS2 | wire.CLASS_COS3))
    if only is not None:
        return [(only, bundle)]
    groups: dict[int, list[bytes]] = {}
    rows = open_rows(bundle)
    for row in rows:
        cos = (row[wire.ROW_FLAGS] & wire.FLAG_COS) >> wire.COS_SHIFT
        groups.setdefault(cos, []).append(wire.pack(row))
    others = bundle.classes & (wire.CLASS_ELIDING | wire.CLASS_RETAIN)
    return [
        (cos, Bundle(len(packed), wire.join_rows(packed), (1 << cos) | others, opened=bundle.opened))
        for cos, packed in groups.items()
    ]


class EgressQueue:
    """The queues of one session; most sessions never need one."""

    __slots__ = ("_limits", "congested_at", "opened")

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        #: Empty before something has to wait for the first time.
        self.opened: tuple[ClassQueue, ...] = ()
        #: Since when something has been waiting, or None.
        self.congested_at: float | None = None

    @property
    def queues(self) -> tuple[ClassQueue, ...]:
        """Give the queue of each class of service."""
        if not self.opened:
            self.opened = tuple([ClassQueue(depth * WORK_UNIT_BYTES, burst) for depth, burst in self._limits])
        return self.opened

    def limit(self, limits: QueueLimits) -> None:
        """Set other limits; they are in force from the next message on."""
        self._limits = limits
        for queue, (depth, burst) in zip(self.opened, limits, strict=bool(self.opened)):
            queue.bytes_max, queue.burst = depth * WORK_UNIT_BYTES, burst

    @property
    def messages(self) -> int:
        """Count what waits."""
        return sum(queue.messages for queue in self.opened)

    @property
    def bytes(self) -> int:
        """Count the bytes that wait."""
        return sum(queue.bytes for queue in self.opened)

    def take_dropped(self) -> int:
        """Give the messages that were dropped and not told of, when nothing waits that could carry it."""
        dropped = 0
        for queue in self.opened:
            if queue.dropped:
                dropped += queue.dropped
                queue.dropped = 0
        return dropped

    def is_slow(self, now: float) -> bool:
        """Tell whether the client has been behind for seconds."""
        return self.congested_at is not None and now - self.congested_at >= SLOW_AFTER_S

    def validate(self) -> None:
        """Check the sums. Not the limits: a lower one is in force from the next message on."""
        for queue in self.opened:
            assert queue.messages == sum(bundle.rows for bundle in queue.entries)
            assert queue.bytes == sum(bundle.bytes for bundle in queue.entries)


class Topic:
    """One topic tracked for one session."""

    __slots__ = ("held", "held_classes", "ready")

    def __init__(self) -> None:
        #: The newest packed row not sent yet, or None.
        self.held: bytes | None = None
        self.held_classes = 0
        #: True when the delay is over and only congestion keeps `held` back.
        self.ready = False


class ElidingTable:
    """The tracked topics of one session."""

    __slots__ = ("delay_s", "event_raised", "peak", "ready", "topics", "topics_max")

    def __init__(self, delay_ms: int, topics_max: int) -> None:
        self.delay_s = delay_ms / 1000
        self.topics_max = topics_max
        #: In the order in which tracking began.
        self.topics: dict[str, Topic] = {}
        #: Topics whose `ready` is True, in the order in which they became it.
        self.ready: dict[str, None] = {}
        self.peak = 0
        #: The event for reaching the maximum is raised once per client (R42).
        self.event_raised = False

    def __len__(self) -> int:
        return len(self.topics)

    def validate(self) -> None:
        """Check the sentences above."""
        assert len(self.topics) <= self.topics_max
        assert list(self.ready) == [
            t for t in self.ready if self.topics[t].ready and self.topics[t].held is not None
        ]
