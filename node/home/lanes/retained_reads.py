"""What the router reads of the messages that lanes retain: LEASE with the verb `retained`, answered with LEASED.

The first page of a reader is answered when every STORE that came before it is accepted, so it misses nothing that
its router had sent on by then; it need not be on disk. Later pages name the position up to which the first one was
answered, and leave out what is newer: that comes to the reader as it is published. The time to live of a row is what is
left of it, so nobody who reads it has to know since when it is kept. All wait until the lane is here and
has put its messages into its index. Questions of one lane are answered in order, and nothing is changed by them, so
they may be asked twice.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium.topic import parse_filter
from angarium_server.frames.homes import LeasedFrame
from node.home.lanes.outbox import Damage

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.topic import Filter
    from angarium_server.frames.homes import LeaseFrame, ReadRetained
    from node.endpoints.effort import Effort
    from node.endpoints.retained import Page, Retained
    from node.home.lanes.outbox import Outbox
    from node.home.spool.blocks import Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.stores import PendingStores

#: Questions that wait; more are refused with 50320, and asked again by who wants to know.
WAITING_MAX: Final = 10_000


@dataclass(slots=True)
class _Read:
    """A question that is not answered."""

    reference: int
    verb: ReadRetained
    wanted: Filter
    #: The last STORE that came before it.
    serial: int
    #: The last position that its page may have; 0: nobody knows yet, it is the first page.
    upto: int


class RetainedReads:
    """Answers what readers ask of lanes that retain messages."""

    def __init__(
        self,
        lanes: HeldLanes,
        blocks: Blocks,
        pending: PendingStores,
        effort: Effort,
        withdraw: Callable[[HeldLane, list[Damage]], None],
        outbox: Outbox,
    ) -> None:
        """Make it of the parts of a home; `withdraw` puts messages aside that cannot be read."""
        self._lanes = lanes
        self._blocks = blocks
        self._pending = pending
        self._effort = effort
        self._withdraw = withdraw
        self._outbox = outbox
        #: Lane -> its questions, in order.
        self._waiting: dict[int, deque[_Read]] = {}
        #: Whether one of them waits for nothing but effort.
        self.is_short = False
        self._counts = dict.fromkeys(("retained_reads", "retained_rows_read"), 0)

    @property
    def is_busy(self) -> bool:
        """Whether there are questions."""
        return bool(self._waiting)

    def clear(self) -> None:
        """Forget what waits: its router is gone."""
        self._waiting.clear()
        self.is_short = False

    def take(self, header: LeaseFrame, verb: ReadRetained, wall_ms: int) -> None:
        """Take a question."""
        self._counts["retained_reads"] += 1
        try:
            wanted = parse_filter(verb.filter)
            if sum(map(len, self._waiting.values())) >= WAITING_MAX:
                raise errors.error_for(errors.HOME_NOT_READY, f"{WAITING_MAX} questions wait")
        except errors.AngariumError as error:
            self._refuse(header.reference, error)
            return
        read = _Read(header.reference, verb, wanted, self._pending.serial, verb.upto)
        self._waiting.setdefault(header.lane, deque()).append(read)
        self._go_on(header.lane, wall_ms)

    def work(self, wall_ms: int) -> None:
        """Go on with what waits, as far as there is effort; who came first in a lane is answered first."""
        self.is_short = False
        for lane_id in list(self._waiting):
            self._go_on(lane_id, wall_ms)

    def _go_on(self, lane_id: int, wall_ms: int) -> None:
        reads = self._waiting[lane_id]
        while reads:
            if self._effort.left <= 0:
                self.is_short = True
                return
            try:
                if not self._answer(lane_id, reads[0], wall_ms):
                    return
            except errors.AngariumError as error:
                self._refuse(reads[0].reference, error)
            reads.popleft()
        del self._waiting[lane_id]

    def _answer(self, lane_id: int, read: _Read, wall_ms: int) -> bool:
        """Answer a question; False if it has to wait.

        Raises:
            AngariumError: the lane is not here, or retains nothing.
        """
        held = self._lanes.get(lane_id)
        if held is None:
            raise errors.error_for(errors.UNKNOWN_ENDPOINT, f"lane {lane_id} is not here")
        retained = held.lane.retained
        if retained is None:
            raise errors.error_for(errors.MALFORMED_FRAME, f"lane {lane_id} retains nothing")
        if not self._is_ready(held, retained, read):
            return False
        verb = read.verb
        if not verb.upto:
            # While it waited messages may have been replaced by newer ones, which have no other place to be given.
            read.upto = retained.indexed_upto
        page = retained.page(read.wanted, verb.after, read.upto, verb.bytes, wall_ms)
        rows, following = self._pack(held, page, wall_ms)
        self._counts["retained_rows_read"] += len(rows)
        frame = LeasedFrame(self._outbox.incarnation, read.reference, 0, [read.upto, following])
        self._outbox.say(frame, wire.join_rows(rows))
        return True

    def _is_ready(self, held: HeldLane, retained: Retained, read: _Read) -> bool:
        """Tell whether what the page may have is here and in the index; what comes meanwhile does not put it off."""
        if held.importing or not self._pending.is_accepted_upto(read.serial):
            return False
        last = held.lane.next_position - 1
        read.upto = read.upto or last
        # After a crash of this home the router sends again what the first page had and the disk has not.
        return read.upto <= last and retained.is_complete(read.upto + 1)

    def _pack(self, held: HeldLane, page: Page, wall_ms: int) -> tuple[list[bytes], str | None]:
        """Give the rows of a page, or the first of them if they cost too much, and where the next one begins."""
        rows: list[bytes] = []
        for at, (_, segment, i) in enumerate(page.found):
            if rows and self._effort.left <= 0:
                return rows, page.found[at - 1].topic
            try:
                packed = bytes(self._blocks.packed_row(segment, i, self._effort))
            except errors.UnavailableError as error:
                self._withdraw(held, [Damage(segment, [i], error.detail)])
                continue
            expires_ms = 0 if segment.expires is None else segment.expires[i]
            rows.append(_aged(packed, expires_ms - wall_ms) if expires_ms else packed)
        return rows, page.next

    def _refuse(self, reference: int, error: errors.AngariumError) -> None:
        self._outbox.say(LeasedFrame(self._outbox.incarnation, reference, error.code, error.detail))

    def stats(self) -> dict[str, int]:
        """Give what was read, and how many topics there are; some of them may be gone."""
        indexes = [held.lane.retained for held in self._lanes]
        topics = sum(len(one) for one in indexes if one is not None)
        return {**self._counts, "retained_topics": topics}


def _aged(packed: bytes, left_ms: int) -> bytes:
    """Give a row whose time to live is what is left of it."""
    row = wire.unpack(packed)
    row[wire.ROW_META][0] = max(1, left_ms)
    return wire.pack(row)
