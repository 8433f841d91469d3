"""One flow of a client, and its ends at the homes: what was granted, what came, what is left.

A client binds one flow; behind it is one home flow for the endpoint's only lane, or one for each partition that the
flow has. Credit is counted in messages and in spool bytes (payload, properties and 64 for each message), always as
totals that never fall:

    granted   by the client, since it bound
    taken     came from the homes
    sent      left for the client

A home flow has totals of its own, since it was bound at the home that lives now: `granted` what the home was told,
`used` what came from it. What a home may still send is promised; a promise ends with the home.

The credit of a flow with several partitions is shared: a busy one takes from what is free. Nobody can take back what an
idle one was promised, so a partition that has used its share up gets it again while the flow has credit; what then
comes too early is held by the router, at most one and a half windows and a message for each partition.

No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium.errors import error_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from angarium.errors import AngariumError
    from router.asking.requests import Answer
    from router.guaranteed.endpoints import Endpoint, LaneUsage
    from router.sessions.session import Session

#: Counters of an endpoint for binds that were refused, by code; others are BIND_REFUSED_OTHER.
_BIND_REFUSED: Final = {
    errors.ALREADY_BOUND: "bind_already_bound",
    errors.ENDPOINT_SHUTDOWN: "bind_disabled",
    errors.INVALID_SELECTOR: "bind_invalid_selector",
    errors.MAX_BIND_COUNT_EXCEEDED: "bind_max_count_exceeded",
}
_BIND_REFUSED_OTHER: Final = "bind_other_failures"
#: Settles of one session kept for homes that are down, as ranges; beyond that the oldest of an end that gets more are
#: lost, and their messages come again.
KEPT_RANGES_MAX: Final = 10_000


class HomeState(Enum):
    """How far a home flow is."""

    #: The home is down, or was not told yet.
    WAITING = "waiting"
    #: Bound, no answer yet.
    BINDING = "binding"
    BOUND = "bound"
    #: It hands its partition off: nothing more comes, settles still count.
    LEAVING = "leaving"
    #: It was to leave, and no home has anything of it any more.
    OVER = "over"


class HomeFlow:
    """The end of a flow at one lane."""

    __slots__ = (
        "deadline",
        "flow",
        "granted_bytes",
        "granted_messages",
        "home",
        "id",
        "is_resumed",
        "kept",
        "lane",
        "release_epoch",
        "released",
        "state",
        "used_bytes",
        "used_messages",
    )

    def __init__(self, flow_id: int, flow: Flow, lane: LaneUsage) -> None:
        #: Number in FLOW frames; never given to another one while the router lives.
        self.id = flow_id
        self.flow = flow
        self.lane = lane
        #: The worker at which it is bound.
        self.home = lane.home
        self.state = HomeState.WAITING
        #: True if an earlier incarnation of the home had it: settles of what that one delivered still count.
        self.is_resumed = False
        self.granted_messages = self.granted_bytes = 0
        self.used_messages = self.used_bytes = 0
        #: Settles for a home that is down: [outcome, first, last], in the order in which they came. No deque: an empty
        #: one takes 600 bytes, and longest of all to make.
        self.kept: list[list[int]] = []
        #: Positions that no application has seen: the client, which unbinds the flow, gives them back, or they waited
        #: for it.
        self.released: Sequence[tuple[int, int]] = ()
        #: The assignment that a hand-off ends, and when it is ended without the home's word.
        self.release_epoch = 0
        self.deadline = float("inf")

    @property
    def is_unanswered(self) -> bool:
        """Whether its home has not said yet that it is bound."""
        return self.state in (HomeState.WAITING, HomeState.BINDING)

    @property
    def promised_messages(self) -> int:
        """Give what the home may still send."""
        return self.granted_messages - self.used_messages

    @property
    def promised_bytes(self) -> int:
        """Give what the home may still send; below 0 after an overdraft by one message."""
        return self.granted_bytes - self.used_bytes

    def grant(self, messages: int, size: int) -> None:
        """Promise more to the home."""
        self.granted_messages += messages
        self.granted_bytes += size
        self.flow.promised_messages += messages
        self.flow.promised_bytes += size

    def restart(self) -> None:
        """Forget the promises: another incarnation of the home begins with new totals, or none does."""
        self.flow.promised_messages -= self.promised_messages
        self.flow.promised_bytes -= self.promised_bytes
        self.granted_messages = self.granted_bytes = self.used_messages = self.used_bytes = 0

    def keep(self, outcome: int, ranges: list[tuple[int, int]]) -> int:
        """Keep settles until the home is back; gives how many messages were given up to make room."""
        lost, session = 0, self.flow.session
        for first, last in ranges:
            newest = self.kept[-1] if self.kept else None
            if newest is not None and newest[0] == outcome and newest[2] + 1 == first:
                newest[2] = last
                continue
            self.kept.append([outcome, first, last])
            if session.kept_ranges < KEPT_RANGES_MAX:
                session.kept_ranges += 1
            else:
                _, gone_first, gone_last = self.kept.pop(0)
                lost += gone_last - gone_first + 1
        return lost

    def take_kept(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Hand over the kept settles as (outcome, ranges), in order."""
        groups: list[tuple[int, list[tuple[int, int]]]] = []
        for outcome, first, last in self.kept:
            if not groups or groups[-1][0] != outcome:
                groups.append((outcome, []))
            groups[-1][1].append((first, last))
        self.flow.session.kept_ranges -= len(self.kept)
        self.kept.clear()
        return groups


class Range(NamedTuple):
    """Positions of one partition that a flow reads, from `first` to before `end`; those of a reader group, if any."""

    group: str
    partition: int
    first: int
    end: int


#: Stands for no range.
WHOLE: Final = Range("", 0, 0, -1)


class Held(NamedTuple):
    """Messages that came while the client had no credit for them."""

    partition: int
    ranges: list[tuple[int, int]]
    frames: list[bytes]
    messages: int
    bytes: int


class Flow:
    """A flow as its client sees it. Compares by identity."""

    __slots__ = (
        "_unanswered",
        "active",
        "active_indication",
        "answer",
        "answer_by",
        "browse",
        "endpoint",
        "ends",
        "granted_bytes",
        "granted_messages",
        "held",
        "holder",
        "id",
        "in_order",
        "is_capped",
        "max_unacked",
        "may_settle",
        "no_local",
        "number",
        "promised_bytes",
        "promised_messages",
        "range",
        "selector",
        "sent_bytes",
        "sent_messages",
        "session",
        "settled",
        "taken_bytes",
        "taken_messages",
    )

    def __init__(self, flow_id: int, session: Session, endpoint: Endpoint) -> None:
        #: Number among all flows of the router.
        self.id = flow_id
        #: Number in the session.
        self.number = session.next_flow
        session.next_flow += 1
        self.session = session
        self.endpoint = endpoint
        self.browse = False
        #: Of a browser that reads a range, for a reader group or for itself.
        self.range: Range | None = None
        self.selector: str | None = None
        self.no_local = False
        self.active_indication = False
        #: Whether its messages come by rising positions, whatever their priorities and delays.
        self.in_order = False
        #: By which name its client may hold messages beyond it; empty: it may not.
        self.holder = ""
        #: The client's own limit of delivered and unsettled messages; it can only lower the endpoint's.
        self.max_unacked: int | None = None
        #: Whether its rights go beyond reading.
        self.may_settle = False
        #: Whether it is fed, as the home said last (exclusive endpoints).
        self.active = False
        #: The answer to its bind, until it is given; then None.
        self.answer: Answer | None = None
        self.answer_by = 0.0
        #: Ends that have to be looked at before the others, newest last: their homes had not answered.
        self._unanswered: list[HomeFlow] = []
        #: Partition -> its end there; those that are handed off included.
        self.ends: dict[int, HomeFlow] = {}
        self.granted_messages = self.granted_bytes = 0
        self.taken_messages = self.taken_bytes = 0
        self.sent_messages = self.sent_bytes = 0
        #: What all homes together may still send.
        self.promised_messages = self.promised_bytes = 0
        #: taken - sent, oldest first; of partitions that it has.
        self.held: deque[Held] = deque()
        #: True while some home was told less than the client granted.
        self.is_capped = False
        #: Messages that the client settled.
        self.settled = 0

    @property
    def is_active(self) -> bool:
        """Tell whether it is fed: some partition, or what the home of an endpoint without partitions said last."""
        return bool(self.ends) if self.endpoint.partitions and not self.browse else self.active

    def is_bound(self) -> bool:
        """Tell whether every home has answered; asked after each answer, it looks at each end a few times in all."""
        while self._unanswered:
            end = self._unanswered[-1]
            if end.is_unanswered and self.ends.get(end.lane.partition) is end:
                return False
            self._unanswered.pop()
        self._unanswered = [end for end in self.ends.values() if end.is_unanswered]
        return not self._unanswered

    def clear(self) -> None:
        """Be over, without ends: they know it, and with them it would be a cycle, which is hardly ever collected."""
        self.held.clear()
        self.ends.clear()
        self._unanswered.clear()

    @property
    def partitions(self) -> list[int]:
        """Give the partitions that it has, those included that it is handing off."""
        return sorted(self.ends) if self.endpoint.partitions else []

    @property
    def is_of_group(self) -> bool:
        """Whether it reads for a reader group."""
        return self.range is not None and bool(self.range.group)

    def wanted_lanes(self) -> list[LaneUsage]:
        """Give the lanes that a browser looks into, or a consumer of an endpoint without partitions."""
        lanes = self.endpoint.lanes
        if self.range is None:
            return lanes
        partition = self.range.partition
        return [lane for lane in self.endpoint.all_lanes() if lane.partition == partition]

    def take_held(self, partition: int) -> list[tuple[int, int]]:
        """Forget what waits for the client of a partition that it loses, and give its positions: others get that.

        If there was anything there is credit for others.
        """
        if not self.held:
            return []
        lost = [one for one in self.held if one.partition == partition]
        self.held = deque(one for one in self.held if one.partition != partition)
        self.taken_messages -= sum(one.messages for one in lost)
        self.taken_bytes -= sum(one.bytes for one in lost)
        return [found for one in lost for found in one.ranges]

    def promise(self, bytes_max: int, to: Iterable[HomeFlow]) -> list[HomeFlow]:
        """Share out to some ends what the client granted and nobody was promised; gives those that may send more now.

        `bytes_max` bounds what one end may be promised at once, however much the client grants.
        """
        ends = len(self.ends)
        self.is_capped = ends > 1
        left_messages = self.granted_messages - self.taken_messages
        left_bytes = self.granted_bytes - self.taken_bytes
        if left_messages <= 0 or left_bytes <= 0:
            return []
        changed = []
        for end in to:
            if end.state not in (HomeState.BINDING, HomeState.BOUND):
                continue
            messages = more(left_messages, self.promised_messages, end.promised_messages, ends)
            size = more(left_bytes, self.promised_bytes, end.promised_bytes, ends)
            if end.promised_bytes + size > bytes_max:
                self.is_capped = True
                size = 0 if end.promised_bytes > bytes_max // 2 else bytes_max - end.promised_bytes
            if messages or size:
                end.grant(messages, size)
                changed.append(end)
        return changed

    def describe(self) -> dict[str, Any]:
        """Give what `angarium queue show --flows` says of it."""
        session = self.session
        return {
            "flow": self.number,
            "client": session.client_name,
            "username": session.username,
            "vpn": session.vpn.name,
            "endpoint": self.endpoint.name,
            "kind": self.endpoint.kind,
            "browse": self.browse,
            "active": self.is_active,
            "selector": self.selector,
            "partitions": self.partitions,
            "group": self.range.group if self.range is not None and self.range.group else None,
            "window_messages": self.granted_messages - self.sent_messages,
            "sent_messages": self.sent_messages,
            "sent_bytes": self.sent_bytes,
            "held_messages": self.taken_messages - self.sent_messages,
            "settled_messages": self.settled,
        }

    def validate(self) -> None:
        """Check the totals."""
        assert self.taken_messages - self.sent_messages == sum(one.messages for one in self.held)
        assert self.taken_bytes - self.sent_bytes == sum(one.bytes for one in self.held)
        assert self.session.flows.get(self.number) is self
        assert self.endpoint.flows.get(self.id) is self
        assert all(one.partition in self.ends for one in self.held)
        assert self.promised_messages == sum(end.promised_messages for end in self.ends.values())
        assert self.promised_bytes == sum(end.promised_bytes for end in self.ends.values())
        for end in self.ends.values():
            assert end.flow is self
            assert end.used_messages <= end.granted_messages, "a home sent more than it was promised"
            assert not end.kept or end.state is HomeState.WAITING


def count_refused_bind(endpoint: Endpoint, code: int) -> None:
    """Count a bind that was refused, by its reason."""
    endpoint.count(_BIND_REFUSED.get(code, _BIND_REFUSED_OTHER))


def why_unordered(endpoint: Endpoint) -> AngariumError | None:
    """Tell why an endpoint does not promise order, and that no message is given up (40325); None if it does."""
    attributes = endpoint.attributes
    fits = (
        ("access_type", "exclusive"),
        ("max_redelivery_count", 0),
        ("redelivery_enabled", True),
    )
    for name, value in fits:
        if attributes[name] != value:
            detail = f"{endpoint.name} has {name} {attributes[name]}, set it to {value}"
            return error_for(errors.QUEUE_UNFIT, detail)
    return None


def more(left: int, spoken_for: int, own: int, ends: int) -> int:
    """Give how much more one of so many ends is promised: half of what is free, but never less than its share.

    A share is half of an equal part, so what all ends are promised is at most one and a half of what is left, and one
    for each end.

    Args:
        left: what the client granted and has not come.
        spoken_for: what all ends together may still send of it.
        own: what this one may still send.
        ends: their number.
    """
    if ends == 1:
        return max(0, left - own)
    share = max(1, left // (2 * ends))
    if own > share // 2:
        return 0
    free = max(0, left - spoken_for)
    return max(share, min(own + free, free // 2)) - own
