"""Who of the clients of a gateway gets a message: a trie of their filters and a cache of its answers, per Message VPN.

The gateway's carrier gets each message once, whoever of its clients wants it. What is kept for a topic is not the list
of subscriptions but what their protocol makes of it, because most topics come again: `plan` says it, once per topic.

No I/O, no clock. A topic that very many filters match takes long to look up (`angarium.trie`). Whoever must not be held
up by that says what a turn may cost, and goes on in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from angarium.topic_cache import AGE_INTERVAL_S, CacheEntry, TopicCache
from angarium.trie import FilterTrie, Walk
from angarium_server.costs import CACHED_TOPIC_BYTES

V = TypeVar("V", bound=Hashable)
P = TypeVar("P")

#: Topics of which the plan is kept, and what all plans take together.
KNOWN_TOPICS_MAX: Final = 100_000
KNOWN_BYTES_MAX: Final = 64 << 20
#: Nodes that a turn visits of whoever shares its process with others, in about 2 ms; what is known costs none.
TURN_NODES: Final = 8_192
#: Topics that one step of `sweep` looks at: so many, or this part of all.
_SWEPT_PER_STEP: Final = 256
_SWEPT_PART: Final = 32


class _Entry(CacheEntry, eq=False):
    """What is kept of one topic."""

    plan: Any
    bytes: int


class _Plans(TopicCache[_Entry]):
    """What is kept, each entry charged for its plan.

    By itself: an owner that it tells of what it drops would be a cycle with it, and those are hardly ever collected.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda _: None, KNOWN_TOPICS_MAX, KNOWN_BYTES_MAX, CACHED_TOPIC_BYTES)

    def put(self, topic: str, entry: _Entry, since: int | None = None) -> None:
        self.bytes += entry.bytes
        super().put(topic, entry, since)

    def _let_go(self, topic: str, entry: _Entry) -> None:
        self.bytes -= entry.bytes
        super()._let_go(topic, entry)


class _Search(msgspec.Struct, eq=False):
    """A lookup for which a turn was too short."""

    topic: str
    walk: Walk[Any]
    #: The number of the last change when it began, and the values that were removed since.
    since: int
    removed: set[Any]


class Turn:
    """What lookups may cost in one turn of their process."""

    def __init__(self) -> None:
        #: In nodes of a trie.
        self.nodes_left = TURN_NODES

    def renew(self) -> None:
        """Have lookups cost about `TURN_NODES` nodes again."""
        self.nodes_left = TURN_NODES

    @property
    def is_over(self) -> bool:
        """Tell whether the lookups of this turn have cost what they may."""
        return self.nodes_left <= 0

    def search(self, trie: FilterTrie[V], topic: str, found: list[V]) -> Walk[V] | None:
        """Append the values that match a topic; if the turn is too short, give the walk to `go_on` with."""
        searched = trie.search(topic, found, max(self.nodes_left, 0))
        if isinstance(searched, int):
            self.nodes_left -= searched
            return None
        self.nodes_left -= searched.visited
        return searched

    def go_on(self, walk: Walk[Any]) -> bool:
        """Go on with a walk as far as the turn goes; true if that is its end."""
        before = walk.visited
        ends = walk.step(max(self.nodes_left, 0))
        self.nodes_left -= walk.visited - before
        return ends


class Lookups(Turn):
    """A turn that many share, and who of them goes on in the next ones."""

    def __init__(self) -> None:
        super().__init__()
        #: Connections that wait for a turn, in their order.
        self._waiting: dict[bytes, None] = {}

    def __len__(self) -> int:
        """Count those that wait."""
        return len(self._waiting)

    def put_off(self, connection_id: bytes) -> None:
        """Have one go on in a turn to come, behind those that wait."""
        self._waiting[connection_id] = None

    def begin_turn(self) -> Iterator[bytes]:
        """Begin a turn; gives who goes on, as long as there is something left of it."""
        self.renew()
        for _ in range(len(self._waiting)):
            if self.is_over:
                return
            first = next(iter(self._waiting))
            del self._waiting[first]
            yield first


class FanOut(Generic[V, P]):
    """Values by filter, and for each topic the plan that is made of those that match it."""

    def __init__(self, plan: Callable[[str, tuple[V, ...]], P], bytes_of: Callable[[P], int]) -> None:
        """Know no filter.

        Args:
            plan: makes the plan for a topic of the values that match it, each once.
            bytes_of: says what a plan takes.
        """
        self._plan = plan
        self._bytes_of = bytes_of
        self._trie: FilterTrie[V] = FilterTrie()
        self._cache = _Plans()
        self._age_at = 0.0
        self._turn = Turn()
        #: The lookup that goes on in the next turn.
        self._search: _Search | None = None

    def __len__(self) -> int:
        """Count the pairs of filter and value."""
        return len(self._trie)

    def add(self, pattern: str, value: V) -> None:
        """Let a value get what a filter matches."""
        self._trie.add(pattern, value)
        self._cache.changed(pattern)
        if self._search is not None:
            self._search.removed.discard(value)

    def remove(self, pattern: str, value: V) -> None:
        """Let it get that no more; who takes one filter from a value takes all, before others are asked for.

        Raises:
            KeyError: it did not get it.
        """
        self._trie.remove(pattern, value)
        self._cache.changed(pattern)
        if self._search is not None:
            self._search.removed.add(value)

    def begin_turn(self) -> None:
        """Have lookups cost about `TURN_NODES` nodes again."""
        self._turn.renew()

    @property
    def is_over(self) -> bool:
        """Tell whether the lookups of this turn have cost what they may."""
        return self._turn.is_over

    def find(self, topic: str) -> P | None:
        """Give the plan for a topic; None if it takes more than is left of the turn: ask for it first in the next one.

        What a client gives back of its filters meanwhile is not in the plan, what is added may be.
        """
        cache = self._cache
        entry = cache.entries.get(topic)
        if entry is None or (entry.valid_at != cache.number and cache.get(topic) is None):
            entry = self._look_up(topic)
        return None if entry is None else entry.plan

    def _look_up(self, topic: str) -> _Entry | None:
        if self._search is not None:
            return self._go_on(self._search)
        found: list[V] = []
        walk = self._turn.search(self._trie, topic, found)
        if walk is None:
            return self._put(topic, found)
        self._search = _Search(topic, walk, self._cache.number, set())
        self._cache.pending = 1
        return self._go_on(self._search)

    def _go_on(self, search: _Search) -> _Entry | None:
        """Go on with a lookup, as far as the turn goes."""
        if not self._turn.go_on(search.walk):
            return None
        self._search, self._cache.pending = None, 0
        found = [one for one in search.walk.found if one not in search.removed]
        return self._put(search.topic, found, search.since)

    def _put(self, topic: str, found: list[V], since: int | None = None) -> _Entry:
        plan = self._plan(topic, tuple(dict.fromkeys((*self._trie.exact(topic), *found))))
        entry = _Entry(plan=plan, bytes=self._bytes_of(plan))
        self._cache.put(topic, entry, since)
        return entry

    def sweep(self, now: float) -> None:
        """Do one step of dropping plans that a change made wrong, or that nobody asks for: they hold who has left."""
        if now >= self._age_at:
            self._age_at = now + AGE_INTERVAL_S
            self._cache.age()
        self._cache.sweep(max(_SWEPT_PER_STEP, len(self._cache) // _SWEPT_PART))

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._cache.pending == (self._search is not None)
        self._trie.validate()
        self._cache.validate()
