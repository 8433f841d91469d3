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
neighbour. No I/O: `router.links.links` sends what `changes` and `wish` give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from angarium.topic import NOEXPORT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.sessions.interest import Filter

#: Patterns that mean something on this node only: what is published to its queues, and its own events.
_LOCAL_PREFIXES: Final = (wire.QUEUE_TOPIC_PREFIX, "#LOG/")
_DELIVER_ALWAYS: Final = 0
_ENDPOINT: Final = 1
#: Where the counts of the network priorities 1 to 4 begin, less one.
_PRIORITIES: Final = 1
_COUNTS: Final = 6


class VpnExports:
    """The wishes of one Message VPN."""

    def __init__(self) -> None:
        #: Pattern -> how many deliver-always subscriptions, endpoints, and subscriptions of network priority 1 to 4;
        #: never all zero.
        self._counts: dict[str, list[int]] = {}
        #: What the neighbours were told, or will be with their snapshot; no zeros.
        self._told: dict[str, int] = {}
        #: Patterns whose wish may be another than they were told.
        self._changed: dict[str, None] = {}

    def count(self, a_filter: Filter[Any], member: Any, text: str, step: int) -> None:
        """A subscription of somebody came (step 1) or went (-1)."""
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

    def settle(self) -> None:
        """Take it that everybody knows: nobody was told anything yet."""
        self._changed.clear()
        self._told = {pattern: _wish(counts) for pattern, counts in self._counts.items()}

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
        return entries

    @property
    def has_changes(self) -> bool:
        """Tell whether `changes` may give something."""
        return bool(self._changed)

    def patterns(self) -> Iterable[str]:
        """Give every pattern of which something is wanted."""
        return self._told

    def validate(self) -> None:
        """Check what the comments promise."""
        assert all(any(counts) and min(counts) >= 0 for counts in self._counts.values())
        assert all(self._told.values())
        stale = [p for p in {*self._counts, *self._told} if self.wish(p) != self._told.get(p, 0)]
        assert all(pattern in self._changed for pattern in stale)


def _place(a_filter: Filter[Any], member: Any, text: str) -> int | None:
    """Give which count a subscription belongs to; None if it is not exported."""
    kind = a_filter.kind
    if kind == wire.KIND_EXCEPTION or text.startswith(NOEXPORT_PREFIX):
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
