"""Eliding: a client that allows it gets the newest message of each topic at a pace.

Not a queue of old ones (R32 to R52).

Per session and topic: the first message goes at once; while the delay since the last one sent runs, the
newest is held and older held ones are dropped and counted; when the delay is over the held one is sent.
With delay 0 everything passes while the client keeps up, and the newest per topic is held while it is
congested. Only rows that their publisher flagged take part, and never rows of a shared subscription (R25).

Each tracked topic has exactly one entry among the due times (delay > 0), so time costs O(log n) per
message sent, not per message held.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from angarium import wire
from router.delivery.egress import classes_of, delivery_of
from router.sessions.queues import Bundle, ElidingTable, Topic, open_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delivery.delivery import Delivery
    from router.delivery.egress import Egress
    from router.ground.ground import Outbox
    from router.sessions.session import Session

#: Due times of topics that aged out may be kept beside those of as many live ones, and so many more.
DUE_SLACK = 1_000
#: Beyond that so many are looked at whenever there is a new one: there may be millions.
SWEPT_PER_TIME = 16
#: When, a tie breaker, and what: the session, its topic, and what was tracked for that.
_Due = tuple[float, int, "Session", str, Topic]


class Eliding:
    """Holds and releases rows for all sessions that elide.

    Owns the node-wide number of tracked topics (R40).
    """

    def __init__(self, egress: Egress, outbox: Outbox, topics_max: int) -> None:
        self._egress = egress
        self._outbox = outbox
        self._topics_max = topics_max
        #: Topics tracked for all sessions together, and how many sessions elide.
        self.tracked = self.sessions = 0
        #: A topic that aged out leaves its entry behind.
        self.due: list[_Due] = []
        #: Another such heap, while it is swept: those that have not been looked at.
        self.unswept: list[_Due] = []
        self._ties = 0

    def offer(self, session: Session, delivery: Delivery, now: float) -> None:
        """Send on what need not be held."""
        if classes_of(delivery) & wire.CLASS_ELIDING and not session.closed:
            # Each alone, because rows that aged out have indices of other rounds and must not be merged by them.
            for bundle in [piece for whole in delivery.bundles for piece in self._sift(session, whole, now)]:
                self._egress.offer(session, delivery_of(bundle), now)
            return
        self._egress.offer(session, delivery, now)

    def _sift(self, session: Session, bundle: Bundle, now: float) -> list[Bundle]:
        if bundle.share is not None or not bundle.classes & wire.CLASS_ELIDING:
            return [bundle]
        rows = open_rows(bundle)
        kept: list[tuple[bytes, int]] = []
        for row in rows:
            packed = wire.pack(row)
            if not row[wire.ROW_FLAGS] & wire.FLAG_ELIDING or self._passes(session, row, packed, kept, now):
                kept.append((packed, _class_of(row)))
        if not kept:
            return []
        classes = 0
        for _, one in kept:
            classes |= one
        return [Bundle(len(kept), wire.join_rows([packed for packed, _ in kept]), classes)]

    def _passes(
        self, session: Session, row: list[object], packed: bytes, kept: list[tuple[bytes, int]], now: float
    ) -> bool:
        """Tell whether an eligible row is sent now; a row that aged out to make room goes to `kept`."""
        table = session.eliding
        assert table is not None
        topic = str(row[wire.ROW_TOPIC])
        tracked = table.topics.get(topic)
        congested = self._egress.is_congested(session)
        if tracked is None:
            if not table.delay_s and not congested:
                return True
            if not self._make_room(session, table, kept):
                return True
            tracked = self._track(table, topic)
            if not congested:
                self._schedule(session, topic, tracked, now + table.delay_s)
                return True
            tracked.ready = True
            table.ready[topic] = None
        if tracked.held is not None:
            session.count("discard.message-elided")
        tracked.held = packed
        tracked.held_classes = _class_of(row)
        return False

    def _track(self, table: ElidingTable, topic: str) -> Topic:
        tracked = table.topics[topic] = Topic()
        self.tracked += 1
        table.peak = max(table.peak, len(table.topics))
        return tracked

    def _make_room(self, session: Session, table: ElidingTable, kept: list[tuple[bytes, int]]) -> bool:
        """Age out the session's oldest topic if a limit is reached.

        False if there is none to age out (R41).
        """
        if len(table.topics) < table.topics_max and self.tracked < self._topics_max:
            return True
        if not table.event_raised:
            table.event_raised = True
            self._outbox.event(
                "CLIENT_MAX_ELIDING_TOPIC_COUNT",
                f"client {session.client_name} reached its maximum of {table.topics_max} eliding topics",
                severity="warning",
                scope="CLIENT",
                vpn=session.vpn.name,
                client=session.client_name,
                username=session.username,
            )
        oldest = next(iter(table.topics), None)
        if oldest is None:
            return False
        aged = table.topics[oldest]
        self._forget_topic(table, oldest)
        if aged.held is not None:
            kept.append((aged.held, aged.held_classes))
        return True

    def _forget_topic(self, table: ElidingTable, topic: str) -> None:
        del table.topics[topic]
        table.ready.pop(topic, None)
        self.tracked -= 1

    def _schedule(self, session: Session, topic: str, tracked: Topic, due: float) -> None:
        self._ties += 1
        heapq.heappush(self.due, (due, self._ties, session, topic, tracked))
        if self.unswept:
            self._sweep()
        elif len(self.due) > 2 * self.tracked + DUE_SLACK:
            self.unswept, self.due = self.due, []

    def _sweep(self) -> None:
        """Drop some entries of topics that aged out, from the end, so that what is left is a heap."""
        for _ in range(min(SWEPT_PER_TIME, len(self.unswept))):
            entry = self.unswept.pop()
            table = entry[2].eliding
            if table is not None and table.topics.get(entry[3]) is entry[4]:
                heapq.heappush(self.due, entry)

    def _take_due(self, now: float) -> Iterator[_Due]:
        """Take what is due, which may be more by the time that the next one is taken."""
        while (at := self.next_due()) <= now:
            heap = self.due if self.due and self.due[0][0] == at else self.unswept
            yield heapq.heappop(heap)

    @property
    def due_times(self) -> int:
        """Count the due times that are kept; bounded by the tracked topics."""
        return len(self.due) + len(self.unswept)

    def next_due(self) -> float:
        """Give the time at which `release` has something to do, infinite if there is none."""
        due = self.due[0][0] if self.due else math.inf
        return min(due, self.unswept[0][0]) if self.unswept else due

    def release(self, now: float) -> None:
        """Send what was held long enough; topics without anything held are forgotten."""
        batches: dict[Session, list[Topic]] = {}
        for _, _, session, topic, tracked in self._take_due(now):
            table = session.eliding
            if table is None or table.topics.get(topic) is not tracked or tracked.ready:
                continue
            if tracked.held is None:
                self._forget_topic(table, topic)
            elif self._egress.is_congested(session):
                tracked.ready = True
                table.ready[topic] = None
            else:
                batches.setdefault(session, []).append(tracked)
                if table.delay_s:
                    self._schedule(session, topic, tracked, now + table.delay_s)
                else:  # an operator took the delay away meanwhile
                    self._forget_topic(table, topic)
        for session, topics in batches.items():
            self._send(session, topics, now)

    def drained(self, session: Session, now: float) -> None:
        """The client caught up: send what only its congestion kept back."""
        table = session.eliding
        if table is None or not table.ready or self._egress.is_congested(session):
            return
        topics = []
        for topic in list(table.ready):
            tracked = table.topics[topic]
            topics.append(tracked)
            tracked.ready = False
            if table.delay_s:
                self._schedule(session, topic, tracked, now + table.delay_s)
            else:
                self._forget_topic(table, topic)
        table.ready.clear()
        self._send(session, topics, now)

    def _send(self, session: Session, topics: list[Topic], now: float) -> None:
        rows = []
        classes = 0
        for tracked in topics:
            assert tracked.held is not None
            rows.append(tracked.held)
            classes |= tracked.held_classes
            tracked.held = None
        bundle = Bundle(len(rows), wire.join_rows(rows), classes)
        self._egress.offer(session, delivery_of(bundle), now)

    def allow(self, session: Session, delay_ms: int, topics_max: int, now: float) -> None:
        """Let a session elide from now on, or change how; topics beyond a lower maximum age out."""
        table = session.eliding
        if table is None:
            session.eliding = ElidingTable(delay_ms, topics_max)
            self.sessions += 1
            return
        before, table.delay_s, table.topics_max = table.delay_s, delay_ms / 1000, topics_max
        if table.delay_s < before:
            self._hasten(session, table, now)
        self._age_out(session, table, list(table.topics)[: max(0, len(table) - topics_max)], now)

    def _hasten(self, session: Session, table: ElidingTable, now: float) -> None:
        """Hold nothing for longer than the delay, which is shorter now: topics get other due times."""
        for topic, tracked in [*table.topics.items()]:
            if not tracked.ready:
                again = table.topics[topic] = Topic()
                again.held, again.held_classes = tracked.held, tracked.held_classes
                self._schedule(session, topic, again, now + table.delay_s)

    def stop(self, session: Session, now: float) -> None:
        """A session may not elide any more: what is held for it goes."""
        table = session.eliding
        if table is not None:
            self._age_out(session, table, list(table.topics), now)
            session.eliding = None
            self.sessions -= 1

    def _age_out(self, session: Session, table: ElidingTable, names: list[str], now: float) -> None:
        aged = [table.topics[name] for name in names]
        for name in names:
            self._forget_topic(table, name)
        held = [tracked for tracked in aged if tracked.held is not None]
        if held:
            self._send(session, held, now)

    def session_ended(self, session: Session, _error: object, _now: float) -> None:
        """A session is over: drop the messages that are held for it, and count them."""
        table = session.eliding
        if table is None:
            return
        self.tracked -= len(table.topics)
        self.sessions -= 1
        session.eliding = None
        held = sum(1 for tracked in table.topics.values() if tracked.held is not None)
        session.count("discard.client-not-connected", held)


def _class_of(row: list[object]) -> int:
    """Give the CLASS_* bits of a row that has its turn: eliding is over for it."""
    flags: int = row[wire.ROW_FLAGS]  # type: ignore[assignment]
    return 1 << ((flags & wire.FLAG_COS) >> wire.COS_SHIFT) | (
        wire.CLASS_RETAIN if flags & wire.FLAG_RETAIN else 0
    )
