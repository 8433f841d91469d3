"""What leaves for a client: pass through while it keeps up, queue by class of service when it does not.

While a session has credit and nothing is queued, batches pass unopened, however many rows they hold
(overdraft by one frame). Otherwise they queue per class of service. A queue over its limit drops its oldest
messages; what is then at its head carries the discard indication (R8, R45). One node-wide budget bounds all
queues together; over it, the session that holds most loses its oldest.
"""

from __future__ import annotations

import heapq
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from router.delivery.delivery import Delivery
from router.ground.ground import plain_frames
from router.sessions.queues import Bundle, ClassQueue, split_by_class

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from router.ground.ground import Outbox
    from router.sessions.session import Session

#: Frames taken from D-1, D-2 and D-3 in one turn of the scheduler: each class of
#: service twice as often as the one below it.
WEIGHTS: Final = (1, 2, 4)
#: So many probes go out while a client reads as much as may be unread, and so many are unanswered at most: often
#: enough never to stop one that reads.
PROBES: Final = 8
#: What the library keeps for a small frame besides its content.
ANSWER_OVERHEAD_BYTES: Final = 128
#: Batches up to this size share a frame with others that leave at the same time: larger ones cost little for their
#: size, and to copy them would be dear.
SMALL_BYTES: Final = 4_096
#: What is dropped beyond the budget of the node at most: small messages of that many bytes take some milliseconds.
SPARE_BYTES_MAX: Final = 512 << 10


def classes_of(delivery: Delivery) -> int:
    """Give the CLASS_* bits of what is inside."""
    return reduce(or_, [bundle.classes for bundle in delivery.bundles])


def frames_of(delivery: Delivery, session: Session) -> list[bytes]:
    """Give the DELIVER for a session when nothing was dropped before it."""
    if not session.is_neighbour:
        if delivery.frames is None and delivery.is_plain:
            delivery.frames = plain_frames(delivery.rows, delivery.bundles[0].batch)
        elif delivery.frames is None:
            delivery.frames = deliver_frames(delivery.bundles, dropped=0)
        return delivery.frames
    if delivery.link_frames is None:
        delivery.link_frames = link_frames(delivery.bundles, dropped=0)
    return delivery.link_frames


def delivery_of(*bundles: Bundle) -> Delivery:
    """Make a delivery of one bundle, or of some."""
    size = sum([len(bundle.batch) for bundle in bundles])
    plain = len(bundles) == 1 and is_plain(bundles[0])
    rows = sum([bundle.rows for bundle in bundles])
    return Delivery([*bundles], rows, size, is_plain=plain, is_small=plain and size <= SMALL_BYTES)


def plain_delivery(rows: int, batch: bytes, classes: int, topics: Sequence[str] | None) -> Delivery:
    """Make the delivery of one batch of which there is nothing to say but how many rows it has."""
    bundle, size = Bundle(rows, batch, classes, topics=topics), len(batch)
    return Delivery([bundle], rows, size, is_plain=True, is_small=size <= SMALL_BYTES)


def is_small(bundle: Bundle) -> bool:
    """Tell whether rows share a frame with others: if they are plain, in order, and few."""
    return len(bundle.batch) <= SMALL_BYTES and is_plain(bundle)


def is_plain(bundle: Bundle) -> bool:
    """Tell whether the number of its rows is all there is to say of a bundle."""
    return bundle.share is None and not bundle.unsorted and not bundle.opened


def link_frames(bundles: list[Bundle], *, dropped: int) -> list[bytes]:
    """Build a DELIVER for a neighbour: it says what is inside if that is known."""
    first = bundles[0]
    if len(bundles) > 1 or first.topics is None or first.unsorted or first.share is not None:
        return deliver_frames(bundles, dropped=dropped)
    flags = wire.DELIVER_DISCARD_INDICATION if dropped else 0
    head = [flags, [[first.rows, None]], dropped, first.opened, first.classes, first.topics]
    return [wire.DELIVER, wire.pack(head), first.batch]


def deliver_frames(bundles: list[Bundle], *, dropped: int) -> list[bytes]:
    """Build a DELIVER."""
    first = bundles[0]
    unsorted = len(bundles) > 1 or first.unsorted
    flags = (wire.DELIVER_DISCARD_INDICATION if dropped else 0) | (wire.DELIVER_UNSORTED if unsorted else 0)
    head: list[Any] = [flags, [[bundle.rows, bundle.share] for bundle in bundles], dropped]
    if first.opened:  # of a neighbour, who has one bundle
        head.append(first.opened)
    return [wire.DELIVER, wire.pack(head), *[bundle.batch for bundle in bundles]]


class Egress:
    """Sends deliveries on, or queues them; owns the node-wide budget."""

    def __init__(self, outbox: Outbox, memory_max: int, unread_max: int, rng: random.Random) -> None:
        self._outbox = outbox
        self._unread_max = unread_max
        self._link_unread_max = max(unread_max, wire.LINK_BYTES)
        self._random = rng
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
        if egress.congested_at is None and self.may_send(session):
            dropped = egress.take_dropped() if egress.opened else 0
            if dropped:
                frames = _frames_for(session, delivery.bundles, dropped)
            elif delivery.is_small and not session.is_neighbour:
                rows, batch = delivery.rows, delivery.bundles[0].batch
                self._count(session, rows, self._outbox.send_rows(session, rows, batch))
                return
            else:
                frames = frames_of(delivery, session)
            self._send(session, frames, delivery.rows, delivery.size)
            return
        if egress.congested_at is None:
            egress.congested_at = now
            self._backlogged[session] = None
        for bundle in delivery.bundles:
            for index, piece in split_by_class(bundle):
                self._push(session, egress.queues[index], piece)
        if self.queued_bytes > self._memory_max:
            self._shrink()

    def is_congested(self, session: Session) -> bool:
        """Tell whether what is offered now would have to wait."""
        assert session.egress is not None
        return session.egress.congested_at is not None or not self.may_send(session)

    def _push(self, session: Session, queue: ClassQueue, bundle: Bundle) -> None:
        before = queue.bytes
        dropped = queue.push(bundle)
        self.queued_bytes += queue.bytes - before
        if dropped:
            self._count_discard(session, dropped)

    def _count_discard(self, session: Session, dropped: int) -> None:
        session.count("discard.transmit-congestion", dropped)
        self.discarded += dropped

    def _shrink(self) -> None:
        """Drop from whoever holds most until the budget is kept, with some to spare so that this is rare."""
        target = self._memory_max - min(self._memory_max // 10, SPARE_BYTES_MAX)
        longest = [(-_held_bytes(session), turn, session) for turn, session in enumerate(self._backlogged)]
        heapq.heapify(longest)
        while self.queued_bytes > target:
            _, turn, session = longest[0]
            assert session.egress is not None
            queue = max(session.egress.queues, key=lambda q: q.bytes)
            before = queue.bytes
            self._count_discard(session, queue.drop_oldest(self.queued_bytes - target))
            self.queued_bytes += queue.bytes - before
            self._settle(session)
            heapq.heapreplace(longest, (-_held_bytes(session), turn, session))

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
        while self.may_send(session) and any(queue.entries for queue in egress.queues):
            for index in (2, 1, 0):
                queue = egress.queues[index]
                for _ in range(WEIGHTS[index]):
                    if not queue.entries or not self.may_send(session):
                        break
                    self._send_queued(session, queue)
        self._settle(session)

    def _send_queued(self, session: Session, queue: ClassQueue) -> None:
        bundle, dropped = queue.pop()
        self.queued_bytes -= bundle.bytes
        if dropped or session.is_neighbour or not is_small(bundle):
            self._send(session, _frames_for(session, [bundle], dropped), bundle.rows, len(bundle.batch))
        else:
            self._send_small(session, bundle)

    def _send(self, session: Session, frames: list[bytes], rows: int, size: int) -> None:
        """Send a DELIVER of its own: it is large, or there is more to say of it than the number of its rows."""
        self._outbox.send(session, frames, rows)
        self._count(session, rows, size)

    def _send_small(self, session: Session, bundle: Bundle) -> None:
        rows = bundle.rows
        self._count(session, rows, self._outbox.send_rows(session, rows, bundle.batch))

    def _count(self, session: Session, rows: int, size: int) -> None:
        """Count what was sent, exactly as the client will: that is its credit."""
        session.sent_messages += rows
        session.sent_bytes += size
        self.sent_messages += rows
        self.sent_bytes += size
        session.out_bytes += size
        if session.out_bytes >= session.probe_at:
            self._probe(session)

    def count_given(self, rows: int, size: int) -> None:
        """Count messages that a gateway has given to its clients before it brought them."""
        self.sent_messages += rows
        self.sent_bytes += size

    def pass_on(self, session: Session, frames: list[bytes], size: int) -> None:
        """Send messages of a flow, whose own credit bounds them: they never queue here, and are never dropped.

        What a client leaves unread counts like everything else; `is_reading` tells when to hold the homes back.
        """
        self._outbox.send(session, frames)
        session.out_bytes += size
        session.flow_out_bytes += size
        if session.out_bytes >= session.probe_at:
            self._probe(session)

    def is_reading(self, session: Session) -> bool:
        """Tell whether a client has shown to read enough of what it was sent to be sent more."""
        unread_max = self._link_unread_max if session.is_neighbour else self._unread_max
        return session.out_bytes - session.read_bytes < unread_max

    def answer(self, session: Session, frames: list[bytes]) -> None:
        """Send an answer, or news of the session: it waits for no credit."""
        self._outbox.send(session, frames)
        session.out_bytes += sum(map(len, frames[1:])) + ANSWER_OVERHEAD_BYTES
        if session.out_bytes >= session.probe_at:
            self._probe(session)

    def assure(self, session: Session) -> None:
        """Tell a peer that we are here, by a PING: what it asks, to know that, waits behind what it sends."""
        self.answer(session, [wire.PING, wire.pack([0])])

    def is_blocked(self, session: Session) -> bool:
        """Tell whether even answers pile up at a client: it does not read at all.

        What its flows brought is no answer: that stops by itself, and may have been a few large messages.
        """
        flow_bytes = session.flow_out_bytes - session.flow_read_bytes
        unread_max = self._link_unread_max if session.is_neighbour else self._unread_max
        return session.out_bytes - session.read_bytes - flow_bytes > 2 * unread_max

    def _probe(self, session: Session) -> None:
        """Ask the client to show that it reads: only who read all that was sent before can answer.

        Several questions are under way, so on a long path a whole limit is on its way and not the half of it.
        """
        unread_max = self._link_unread_max if session.is_neighbour else self._unread_max
        if not session.probe_at:
            session.probe_at = unread_max // PROBES
        if session.out_bytes < session.probe_at or len(session.probes) >= PROBES:
            return
        number = self._random.randrange(1, 1 << 62)
        session.probe_at = session.out_bytes + unread_max // PROBES
        session.probes += ((number, session.out_bytes, session.flow_out_bytes),)
        self._outbox.send(session, [wire.PING, wire.pack([number])])

    def was_read(self, session: Session, number: int) -> bool:
        """A client answered a PING; true if that was a probe: what was sent before it is read."""
        for place, (probe, read_bytes, flow_read_bytes) in enumerate(session.probes):
            if probe == number:
                session.read_bytes, session.flow_read_bytes = read_bytes, flow_read_bytes
                session.probes = session.probes[place + 1 :]
                self._probe(session)
                return True
        return False

    def may_send(self, session: Session) -> bool:
        """Tell whether one more frame may be sent, which may overdraw.

        Credit says what the client wants, probes what it reads: one that has answered all of them reads.
        """
        return (
            session.sent_messages < session.granted_messages
            and session.sent_bytes < session.granted_bytes
            and (not session.probes or self.is_reading(session))
        )

    def session_ended(self, session: Session, _error: object, _now: float) -> None:
        """A session is over: drop what waits for it, and count it."""
        egress = session.egress
        if egress is None:
            return
        session.count("discard.client-not-connected", egress.messages)
        self.queued_bytes -= egress.bytes
        self._backlogged.pop(session, None)
        for queue in egress.queues:
            queue.entries.clear()
            queue.messages = queue.bytes = 0
        egress.congested_at = None

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


def _frames_for(session: Session, bundles: list[Bundle], dropped: int) -> list[bytes]:
    build = link_frames if session.is_neighbour else deliver_frames
    return build(bundles, dropped=dropped)
