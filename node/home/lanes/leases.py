"""LEASE: what the router asks of lanes for reader groups and sessions, answered with LEASED.

Whatever may change, or tells what did, is answered when it is durable, with everything that was stored before it: what
a group was told is true after a crash, too. A session keeps a note in the lane of its queue, which is written with what
it has settled; and one in the lane of each queue that it shares, with what it holds there. All verbs may be asked
twice. A lane that is being taken over answers when it is here; one in which very many messages have expired plans when
they are gone.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium_server.frames.homes import (
    POSITION_MAX,
    AcknowledgeUpto,
    AskFigures,
    AskPositions,
    CountFrom,
    FindTime,
    KeepNote,
    LeasedFrame,
    ListHolders,
    OpenLease,
    PlanRange,
    ReadNote,
    ReleaseLease,
)
from node.home.spool.writing import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from angarium_server.frames.homes import FlowEvent, LeaseFrame, LeaseVerb
    from node.home.lanes.outbox import Outbox
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.stores import PendingStores
    from node.home.spool.writing import Writing

#: Questions that wait for their lanes; the oldest is answered with 50320 first.
WAITING_MAX: Final = 10_000

#: Verbs whose answer tells nothing that has to be durable.
_FIGURES: Final = (CountFrom, FindTime, AskFigures, ListHolders)
#: Verbs that say something of messages which are done with.
_WITH_LOSSES: Final = (AcknowledgeUpto, KeepNote)


class LeaseAnswer(NamedTuple):
    """What a question is answered with when it is durable."""

    header: LeaseFrame
    value: Any


class Leases:
    """Carries out what reader groups ask."""

    def __init__(
        self,
        lanes: HeldLanes,
        pending: PendingStores,
        writing: Writing,
        tell: Callable[[Iterable[FlowEvent]], None],
        outbox: Outbox,
    ) -> None:
        self._lanes = lanes
        self._pending = pending
        self._writing = writing
        #: Tells the router what becomes of flows.
        self._tell = tell
        self._outbox = outbox
        #: Questions that lanes cannot answer yet, in order.
        self.waiting: list[LeaseFrame] = []
        #: Lane -> how many of its notes are not on disk; no zeros.
        self._keeping: Counter[int] = Counter()
        self._now = 0.0
        self._wall_ms = 0
        self._verbs: dict[type[LeaseVerb], Callable[[HeldLane, Any], Any]] = {
            OpenLease: self._open,
            AskPositions: self._positions,
            AskFigures: self._figures,
            CountFrom: self._count,
            FindTime: self._find_time,
            PlanRange: self._plan,
            AcknowledgeUpto: self._acknowledge,
            ReleaseLease: self._release,
            KeepNote: self._keep,
            ReadNote: self._note,
            ListHolders: self._holders,
        }
        self._counts = dict.fromkeys(("leases_taken", "leases_timed_out", "lease_questions"), 0)

    def clear(self) -> None:
        """Forget what waits: its router is gone."""
        self.waiting = []

    def take(self, header: LeaseFrame, now: float, wall_ms: int) -> None:
        """Take a LEASE."""
        self._now, self._wall_ms = now, wall_ms
        self._counts["lease_questions"] += 1
        self._take(header)

    def _take(self, header: LeaseFrame) -> None:
        held = self._lanes.get(header.lane)
        if held is not None and held.importing:
            self._wait(header)
            return
        try:
            if held is None:
                raise errors.error_for(errors.UNKNOWN_ENDPOINT, f"lane {header.lane} is not here")
            self._carry_out(header, held)
        except errors.AngariumError as error:
            self._refuse(header, error)

    def _wait(self, header: LeaseFrame) -> None:
        self.waiting.append(header)
        if len(self.waiting) > WAITING_MAX:
            late = self.waiting.pop(0)
            self._refuse(late, errors.error_for(errors.HOME_NOT_READY, "the lane is being taken over"))

    def work(self, now: float, wall_ms: int) -> None:
        """Go on with what waited for lanes that can answer by now."""
        self._now, self._wall_ms = now, wall_ms
        waiting, self.waiting = self.waiting, []
        for header in waiting:
            self._take(header)

    def _carry_out(self, header: LeaseFrame, held: HeldLane) -> None:
        kind = type(header.verb)
        value = self._verbs[kind](held, header.verb)
        if kind is PlanRange and value is None:
            self._wait(header)
            return
        answer = LeaseAnswer(header, value)
        if kind in _FIGURES or (kind is ReadNote and header.lane not in self._keeping):
            self.answer(answer)
            return
        self._writing.collect(held, self._now)
        self.look(held)
        self._lanes.touched[held] = None
        self._lanes.changed[held] = None
        self._lanes.is_urgent = True  # who asks next sees who has it
        self._pending.flush()
        has_losses = kind in _WITH_LOSSES
        self._writing.add(Task(answer, late_changes=partial(_row_of, held), with_everything=has_losses))

    def answer(self, answer: LeaseAnswer) -> None:
        """Answer a question that the router of now has asked; another one has other references."""
        if type(answer.header.verb) is KeepNote:
            self._keeping[answer.header.lane] -= 1
            self._keeping += Counter()
        if answer.header.router == self._pending.router:
            self._say(answer.header.reference, 0, answer.value)

    def _refuse(self, header: LeaseFrame, error: errors.AngariumError) -> None:
        self._say(header.reference, error.code, error.detail)

    def _say(self, reference: int, code: int, value: Any) -> None:
        self._outbox.say(LeasedFrame(self._outbox.incarnation, reference, code, value))

    # -- verbs -----------------------------------------------------------------------------------------------

    def _open(self, held: HeldLane, wish: OpenLease) -> dict[str, Any] | None:
        lane = held.lane
        if held.is_retiring and not lane.messages and lane.leasing.group != wish.group:
            return None  # a partition that was taken away, with nothing for anybody
        continued, events = lane.leasing.take(wish.group, wish.lease_ms, self._now, self._wall_ms)
        self._tell(events)
        lease = lane.leasing.lease
        assert lease is not None
        if not continued:
            self._counts["leases_taken"] += 1
            self._outbox.event(
                "info", "SYSTEM_AD_LEASE_TAKEN", f"reader group {wish.group!r} has leased {_name_of(held)}"
            )
        return {**lane.leasing.positions(lane.next_position), "epoch": lease.epoch, "continued": continued}

    def _positions(self, held: HeldLane, wish: AskPositions) -> dict[str, int]:
        leasing = held.lane.leasing
        leasing.demand(wish.group, wish.epoch, self._now)
        return leasing.positions(held.lane.next_position)

    def _figures(self, held: HeldLane, _wish: AskFigures) -> dict[str, int]:
        """Give positions to browsers, regardless of leases."""
        return held.lane.leasing.positions(held.lane.next_position)

    def _count(self, held: HeldLane, wish: CountFrom) -> tuple[int, int]:
        held.lane.leasing.demand(wish.group, wish.epoch, self._now)
        messages, size = held.lane.leasing.measure(wish.start)
        # What was lost with its process was not consumed by others.
        return messages + held.lost_between(wish.start, held.lane.next_position - 1), size

    def _find_time(self, held: HeldLane, wish: FindTime) -> int:
        held.lane.leasing.demand(wish.group, wish.epoch, self._now)
        found = held.lane.leasing.find_time(wish.wall_ms)
        return held.lane.next_position if found is None else found

    def _plan(self, held: HeldLane, wish: PlanRange) -> tuple[int, int, int, int] | None:
        lane = held.lane
        lane.leasing.demand(wish.group, wish.epoch, self._now)
        upto = min(wish.end or POSITION_MAX, lane.next_position)
        return lane.leasing.plan(
            wish.start, upto, wish.messages, wish.bytes, round(self._now * 1000), self._wall_ms
        )

    def _acknowledge(self, held: HeldLane, wish: AcknowledgeUpto) -> int:
        held.lane.leasing.demand(wish.group, wish.epoch, self._now)
        return held.lane.leasing.acknowledge(wish.end)

    def _release(self, held: HeldLane, wish: ReleaseLease) -> bool:
        lease = held.lane.lease
        if lease is None or lease.group != wish.group or (wish.epoch and lease.epoch != wish.epoch):
            return False
        return self._let_go(held) is not None

    def _keep(self, held: HeldLane, wish: KeepNote) -> list[int] | None:
        self._keeping[held.lane_id] += 1
        for position in wish.done:
            held.lane.finish(position)
            if self._lanes.watch is not None and held.lane_id in self._lanes.watch.lanes:
                self._lanes.watch.finished(held.lane, position)
        if wish.holder:
            return held.lane.holdings.keep(wish.holder, wish.note, wish.held, self._wall_ms)
        held.note = wish.note or None
        return None

    def _note(self, held: HeldLane, wish: ReadNote) -> bytes | tuple[bytes, list[int]]:
        return held.lane.holdings.read(wish.holder) if wish.holder else held.note or b""

    def _holders(self, held: HeldLane, _wish: ListHolders) -> list[str]:
        return held.lane.holdings.holders()

    def release(self, held: HeldLane, now: float, wall_ms: int) -> str | None:
        """End the lease of a lane for an operator; gives the group that had it."""
        self._now, self._wall_ms = now, wall_ms
        group = self._let_go(held)
        self._lanes.touched[held] = None
        self._lanes.changed[held] = None
        self._lanes.is_urgent = True
        self._writing.collect(held, now)
        self.look(held)
        self._writing.add(Task(late_changes=partial(_row_of, held)))
        return group

    def _let_go(self, held: HeldLane) -> str | None:
        lease = held.lane.lease
        if lease is None:
            return None
        self._tell(held.lane.leasing.end(self._wall_ms))
        text = f"the lease of reader group {lease.group!r} of {_name_of(held)} was released"
        self._outbox.event("info", "SYSTEM_AD_LEASE_RELEASED", text)
        return lease.group

    # -- what happens by itself ------------------------------------------------------------------------------

    def look(self, held: HeldLane) -> None:
        """Have written what changed of a lease without being asked for; say that one has timed out."""
        leasing = held.lane.leasing
        if leasing.is_changed:
            leasing.is_changed = False
            self._lanes.changed[held] = None
            self._writing.add(Task(late_changes=partial(_row_of, held)))
        if leasing.timed_out is not None:
            group, leasing.timed_out = leasing.timed_out, None
            self._counts["leases_timed_out"] += 1
            text = f"reader group {group!r} did not use its lease of {_name_of(held)}, which has ended"
            self._outbox.event("warning", "SYSTEM_AD_LEASE_TIMED_OUT", text)

    def stats(self) -> dict[str, int]:
        """Give counters, how many lanes are leased, and what their groups have planned and not acknowledged."""
        leases = [held.lane.lease for held in self._lanes if held.lane.lease is not None]
        leased = sum(lease.out.count for lease in leases)
        return {**self._counts, "leases": len(leases), "leased_messages": leased}


def _row_of(held: HeldLane) -> list[Any]:
    """Give the changes that store the lease and the note of a lane, none if the lane is deleted."""
    return [] if held.is_gone else [held.lease_change(), held.note_change()]


def _name_of(held: HeldLane) -> str:
    settings = held.lane.settings
    partition = f" partition {held.partition}" if settings.partitions else ""
    return f"{settings.kind} {settings.name!r}{partition}"
