"""LEASE: what the router asks of lanes for reader groups, answered with LEASED.

Whatever may change, or tells what did, is answered when it is durable, with everything that was stored before it: what
a group was told is true after a crash, too. All verbs may be asked twice. A lane that is being taken over answers when
it is here.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from angarium import errors
from angarium_server.frames.homes import LeasedFrame
from node.backlog.segment import POSITION_MAX
from node.home.spool.writing import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.frames.homes import LeaseFrame
    from node.home.lanes.flow_verbs import FlowVerbs
    from node.home.lanes.outbox import Outbox
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.stores import PendingStores
    from node.home.spool.writing import Writing

#: Questions that wait for lanes that are being taken over; the oldest is answered with 50320 first.
WAITING_MAX: Final = 10_000

_Natural = Annotated[int, Meta(ge=0, le=POSITION_MAX)]
_Positive = Annotated[int, Meta(ge=1, le=POSITION_MAX)]


class _Open(NamedTuple):
    group: str
    lease_ms: _Positive


class _Group(NamedTuple):
    group: str
    #: 0: whichever it has.
    epoch: _Natural


class _At(NamedTuple):
    group: str
    epoch: _Natural
    #: A position, or a wall time in ms.
    at: _Natural


class _Plan(NamedTuple):
    group: str
    epoch: _Natural
    start: _Natural
    end: _Natural
    messages: _Positive
    bytes: _Positive


_decode_open = msgspec.msgpack.Decoder(_Open).decode
_decode_group = msgspec.msgpack.Decoder(_Group).decode
_decode_at = msgspec.msgpack.Decoder(_At).decode
_decode_plan = msgspec.msgpack.Decoder(_Plan).decode
#: Verbs whose answer tells nothing that has to be durable.
_FIGURES: Final = ("count", "find_time", "figures")


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
        flows: FlowVerbs,
        outbox: Outbox,
    ) -> None:
        self._lanes = lanes
        self._pending = pending
        self._writing = writing
        self._flows = flows
        self._outbox = outbox
        #: Questions about lanes that are being taken over, in order.
        self.waiting: list[LeaseFrame] = []
        self._now = 0.0
        self._wall_ms = 0
        self._verbs: dict[str, Callable[[HeldLane, msgspec.Raw], Any]] = {
            "open": self._open,
            "positions": self._positions,
            "figures": self._figures,
            "count": self._count,
            "find_time": self._find_time,
            "plan": self._plan,
            "acknowledge": self._acknowledge,
            "release": self._release,
        }
        self._counts = dict.fromkeys(("leases_taken", "leases_timed_out", "lease_questions"), 0)

    def clear(self) -> None:
        """Forget what waits: its router is gone."""
        self.waiting = []

    def take(self, header: LeaseFrame, now: float, wall_ms: int) -> None:
        """Take a LEASE."""
        self._now, self._wall_ms = now, wall_ms
        self._counts["lease_questions"] += 1
        held = self._lanes.get(header.lane)
        if held is not None and held.importing:
            self.waiting.append(header)
            if len(self.waiting) > WAITING_MAX:
                late = self.waiting.pop(0)
                self._refuse(late, errors.error_for(errors.HOME_NOT_READY, "the lane is being taken over"))
            return
        try:
            if held is None:
                raise errors.error_for(errors.UNKNOWN_ENDPOINT, f"lane {header.lane} is not here")
            self._carry_out(header, held)
        except errors.AngariumError as error:
            self._refuse(header, error)

    def work(self, now: float, wall_ms: int) -> None:
        """Go on with what waited for lanes that are here by now."""
        waiting, self.waiting = self.waiting, []
        for header in waiting:
            self.take(header, now, wall_ms)

    def _carry_out(self, header: LeaseFrame, held: HeldLane) -> None:
        verb = self._verbs.get(header.verb)
        if verb is None:
            raise errors.error_for(errors.INVALID_ARGUMENT, f"LEASE {header.verb!r}")
        try:
            value = verb(held, header.arguments)
        except errors.AngariumError:
            raise
        except (ValueError, RecursionError) as error:
            raise errors.error_for(errors.INVALID_ARGUMENT, f"LEASE {header.verb}: {error}") from None
        answer = LeaseAnswer(header, value)
        if header.verb in _FIGURES:
            self.answer(answer)
            return
        self._writing.collect(held, self._now)
        self.look(held)
        self._lanes.touched[held] = None
        self._lanes.changed[held] = None
        self._pending.flush()
        has_losses = header.verb == "acknowledge"
        self._writing.add(Task(answer, late_changes=partial(_row_of, held), with_losses=has_losses))

    def answer(self, answer: LeaseAnswer) -> None:
        """Answer a question that the router of now has asked; another one has other references."""
        if answer.header.router == self._pending.router:
            self._say(answer.header.reference, 0, answer.value)

    def _refuse(self, header: LeaseFrame, error: errors.AngariumError) -> None:
        self._say(header.reference, error.code, error.detail)

    def _say(self, reference: int, code: int, value: Any) -> None:
        self._outbox.say(LeasedFrame(self._outbox.incarnation, reference, code, value))

    # -- verbs -----------------------------------------------------------------------------------------------

    def _open(self, held: HeldLane, arguments: msgspec.Raw) -> dict[str, Any] | None:
        wish = _decode_open(arguments)
        lane = held.lane
        if held.is_retiring and not lane.messages and lane.leasing.group != wish.group:
            return None  # a partition that was taken away, with nothing for anybody
        continued, events = lane.leasing.take(wish.group, wish.lease_ms, self._now, self._wall_ms)
        self._flows.tell(events)
        lease = lane.leasing.lease
        assert lease is not None
        if not continued:
            self._counts["leases_taken"] += 1
            self._outbox.event(
                "info", "SYSTEM_AD_LEASE_TAKEN", f"reader group {wish.group!r} has leased {_name_of(held)}"
            )
        return {**lane.leasing.positions(lane.next_position), "epoch": lease.epoch, "continued": continued}

    def _positions(self, held: HeldLane, arguments: msgspec.Raw) -> dict[str, int]:
        leasing = held.lane.leasing
        leasing.demand(*_decode_group(arguments), self._now)
        return leasing.positions(held.lane.next_position)

    def _figures(self, held: HeldLane, _arguments: msgspec.Raw) -> dict[str, int]:
        """Give positions to browsers, regardless of leases."""
        return held.lane.leasing.positions(held.lane.next_position)

    def _count(self, held: HeldLane, arguments: msgspec.Raw) -> tuple[int, int]:
        wish = _decode_at(arguments)
        held.lane.leasing.demand(wish.group, wish.epoch, self._now)
        messages, size = held.lane.leasing.measure(wish.at)
        # What was lost with its process was not consumed by others.
        return messages + held.lost_between(wish.at, held.lane.next_position - 1), size

    def _find_time(self, held: HeldLane, arguments: msgspec.Raw) -> int:
        wish = _decode_at(arguments)
        held.lane.leasing.demand(wish.group, wish.epoch, self._now)
        found = held.lane.leasing.find_time(wish.at)
        return held.lane.next_position if found is None else found

    def _plan(self, held: HeldLane, arguments: msgspec.Raw) -> tuple[int, int, int, int]:
        wish = _decode_plan(arguments)
        lane = held.lane
        lane.leasing.demand(wish.group, wish.epoch, self._now)
        upto = min(wish.end or POSITION_MAX, lane.next_position)
        return lane.leasing.plan(
            wish.start, upto, wish.messages, wish.bytes, round(self._now * 1000), self._wall_ms
        )

    def _acknowledge(self, held: HeldLane, arguments: msgspec.Raw) -> int:
        wish = _decode_at(arguments)
        held.lane.leasing.demand(wish.group, wish.epoch, self._now)
        return held.lane.leasing.acknowledge(wish.at)

    def _release(self, held: HeldLane, arguments: msgspec.Raw) -> bool:
        group, epoch = _decode_group(arguments)
        lease = held.lane.leasing.lease
        if lease is None or lease.group != group or (epoch and lease.epoch != epoch):
            return False
        return self._let_go(held) is not None

    def release(self, held: HeldLane, now: float, wall_ms: int) -> str | None:
        """End the lease of a lane for an operator; gives the group that had it."""
        self._now, self._wall_ms = now, wall_ms
        group = self._let_go(held)
        self._lanes.touched[held] = None
        self._lanes.changed[held] = None
        self._writing.collect(held, now)
        self.look(held)
        self._writing.add(Task(late_changes=partial(_row_of, held)))
        return group

    def _let_go(self, held: HeldLane) -> str | None:
        lease = held.lane.leasing.lease
        if lease is None:
            return None
        self._flows.tell(held.lane.leasing.end(self._wall_ms))
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
        leased = [held.lane.leasing.held for held in self._lanes if held.lane.leasing.lease is not None]
        return {**self._counts, "leases": len(leased), "leased_messages": sum(leased)}


def _row_of(held: HeldLane) -> list[Any]:
    """Give the change that stores the lease of a lane, none if the lane is deleted."""
    return [] if held.is_gone else [held.lease_change()]


def _name_of(held: HeldLane) -> str:
    settings = held.lane.settings
    partition = f" partition {settings.partition}" if settings.partitions else ""
    return f"{settings.kind} {settings.name!r}{partition}"
