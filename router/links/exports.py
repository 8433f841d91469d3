"""What this node wants of its neighbours: for each pattern the merged wish of everybody here who is no neighbour.

An entry is [pattern, wish]. The wish says whether somebody always wants the messages (a deliver-always subscription),
whether an endpoint attracts them, and at which best network priority clients take part in deliver-to-one:

    subscriptions of this node                       entry
    a/> of two clients                               ["a/>", P1]
    #share/g/a/> with network priority 3             ["a/>", P3]
    a/> deliver-always, and a/> of a queue           ["a/>", DA | ENDPOINT]
    #noexport/a/>, #noexport/#share/g/a/>            none: they are local
    !a/b of a queue                                  none: it narrows down what is exported anyway

So the set has no duplicates, says nothing of who subscribed, and changes only when the wish of a pattern does.
Counts make that cheap: a subscription more is a number more. Nothing is counted for a Message VPN without a
neighbour. When the first one comes, what is there already is counted in steps (`Census`), one in each turn of the loop;
neighbours are told when all of it is. No I/O: `router.links.links` sends what `changes` and `wish` give.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from angarium.topic import NOEXPORT_PREFIX
from angarium_server.memory.memory import give_up_room_of_few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from router.sessions.interest import Filter

#: Patterns that mean something on this node only: what is published to its queues, and its own events.
_LOCAL_PREFIXES: Final = (wire.QUEUE_TOPIC_PREFIX, "#LOG/")
_DELIVER_ALWAYS: Final = 0
_ENDPOINT: Final = 1
#: Where the counts of the network priorities 1 to 4 begin, less one.
_PRIORITIES: Final = 1
_COUNTS: Final = 6

#: What a step of a census may cost: 2 to 3 ms.
STEP_MAX: Final = 12_800
#: What a subscription of the Message VPN costs at least, in filters that are only passed by.
SUBSCRIPTION_COST: Final = 16
#: So many filters are listed in the time in which one is passed by.
LISTED_PER_COST: Final = 16


class Census:
    """Counts the subscriptions that are there already, some in each step.

    What changes meanwhile is either counted with its filter later, or is counted as it changes: `has_passed` says
    which. Filters are passed in the order of their numbers, so those that come meanwhile count as they come.
    """

    __slots__ = ("_all", "_count", "_end", "_filter", "_left", "_members", "_passed", "_vpn_id")

    def __init__(
        self,
        vpn_id: int,
        filters: Mapping[int, Filter[Any]],
        count: Callable[[Filter[Any], Any, str, int], None],
    ) -> None:
        """Begin before the first of the filters of all Message VPNs, by their numbers and in their order."""
        self._vpn_id = vpn_id
        self._count = count
        #: Empty once they are in `_left`: those that were there when the first step began.
        self._all = filters
        self._left: deque[Filter[Any]] = deque()
        #: The number of the last of them; 0 before the first step.
        self._end = 0
        #: The newest filter that was begun, its number, and those of its subscribers that are not counted yet; they
        #: may be gone meanwhile.
        self._filter: Filter[Any] | None = None
        self._passed = 0
        self._members: dict[Any, Any] = {}

    def __bool__(self) -> bool:
        """Tell whether something is left."""
        return bool(self._members or self._left or self._all)

    def has_passed(self, a_filter: Filter[Any], member: Any) -> bool:
        """Tell whether a change of these subscriptions counts: they will not be looked at any more."""
        if self._all:
            return False
        if a_filter is self._filter:
            return member not in self._members
        return not self._passed < a_filter.id <= self._end

    def step(self, limit: int) -> int:
        """Count so much; gives what it cost."""
        cost = self._begin() if self._all else 0
        while cost < limit and self:
            if self._members:
                assert self._filter is not None
                member, _ = self._members.popitem()
                for text in self._filter.members.get(member, ()):
                    self._count(self._filter, member, text, 1)
                cost += SUBSCRIPTION_COST
            else:
                self._filter = self._left.popleft()
                self._passed = self._filter.id
                cost += 1
                if self._filter.vpn_id == self._vpn_id:
                    self._members = self._filter.members.copy()
        return cost

    def _begin(self) -> int:
        self._left = deque(self._all.values())
        self._all = {}
        self._end = self._left[-1].id
        return len(self._left) // LISTED_PER_COST


class VpnExports:
    """The wishes of one Message VPN."""

    def __init__(self, vpn_id: int, filters: Mapping[int, Filter[Any]]) -> None:
        """Begin to count, given the filters of all Message VPNs by their numbers and in their order."""
        #: Counts what was there; None once it is done.
        self._census: Census | None = Census(vpn_id, filters, self._count)
        #: Pattern -> how many deliver-always subscriptions, endpoints, and subscriptions of network priority 1 to 4;
        #: never all zero.
        self._counts: dict[str, list[int]] = {}
        #: What the neighbours were told, or will be with their snapshot; no zeros.
        self._told: dict[str, int] = {}
        #: Patterns whose wish may be another than they were told.
        self._changed: dict[str, None] = {}

    @property
    def is_counting(self) -> bool:
        """Tell whether what was there is not counted yet: nobody can be told."""
        return self._census is not None

    def go_on(self, limit: int) -> int:
        """Count more of what was there; gives what it cost."""
        assert self._census is not None
        cost = self._census.step(limit)
        self.changes()  # nobody was told anything yet: the snapshot has them
        if not self._census:
            self._census = None
        return cost

    def change(self, a_filter: Filter[Any], member: Any, text: str, step: int) -> None:
        """A subscription of somebody came (step 1) or went (-1)."""
        if self._census is None or self._census.has_passed(a_filter, member):
            self._count(a_filter, member, text, step)

    def _count(self, a_filter: Filter[Any], member: Any, text: str, step: int) -> None:
        place = _place(a_filter, member, text)
        if place is None:
            return
        pattern = a_filter.pattern
        counts = self._counts.get(pattern)
        if counts is None:
            counts = self._counts[pattern] = [0] * _COUNTS
        counts[place] += step
        if not any(counts):
            del self._counts[pattern]
        self._changed[pattern] = None

    def wish(self, pattern: str) -> int:
        """Give what is wanted of a pattern now; 0 for nothing."""
        counts = self._counts.get(pattern)
        return 0 if counts is None else _wish(counts)

    def changes(self) -> list[tuple[str, int]]:
        """Give the entries that the neighbours do not know yet, once."""
        told = self._told
        entries = []
        for pattern in self._changed:
            wish = self.wish(pattern)
            if wish == told.get(pattern, 0):
                continue
            entries.append((pattern, wish))
            if wish:
                told[pattern] = wish
            else:
                del told[pattern]
        self._changed.clear()
        give_up_room_of_few(told)
        give_up_room_of_few(self._counts)
        return entries

    @property
    def has_changes(self) -> bool:
        """Tell whether `changes` may give something that neighbours have to be told."""
        return bool(self._changed) and self._census is None

    def patterns(self) -> Iterable[str]:
        """Give every pattern of which something is wanted."""
        return self._told

    def validate(self, vpn_id: int, filters: Mapping[int, Filter[Any]]) -> None:
        """Check what the comments promise, given all filters."""
        if self._census is None:
            again = VpnExports(vpn_id, filters)
            again.go_on(sys.maxsize)
            assert again._counts == self._counts
        assert all(any(counts) and min(counts) >= 0 for counts in self._counts.values())
        assert all(self._told.values())
        stale = [p for p in {*self._counts, *self._told} if self.wish(p) != self._told.get(p, 0)]
        assert all(pattern in self._changed for pattern in stale)


def _place(a_filter: Filter[Any], member: Any, text: str) -> int | None:
    """Give which count a subscription belongs to; None if it is not exported."""
    kind = a_filter.kind
    if kind in (wire.KIND_EXCEPTION, wire.KIND_RETAINED) or text.startswith(NOEXPORT_PREFIX):
        return None
    if a_filter.pattern.startswith(_LOCAL_PREFIXES):
        return None
    if member.link:
        return None  # what a neighbour wants is not passed on, neither by its session nor by its queue: no transit
    if kind == wire.KIND_ENDPOINT:
        return _ENDPOINT
    return _DELIVER_ALWAYS if kind == wire.KIND_DELIVER_ALWAYS else _PRIORITIES + member.network_priority


def _wish(counts: list[int]) -> int:
    wish = wire.WISH_DELIVER_ALWAYS if counts[_DELIVER_ALWAYS] else 0
    if counts[_ENDPOINT]:
        wish |= wire.WISH_ENDPOINT
    for priority in range(1, _COUNTS - _PRIORITIES):
        if counts[_PRIORITIES + priority]:
            return wish | priority << wire.WISH_DTO_SHIFT
    return wish
