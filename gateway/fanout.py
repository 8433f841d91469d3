"""Who of the clients of a gateway gets a message: a trie of their filters and a cache of its answers, per Message VPN.

The gateway's carrier gets each message once, whoever of its clients wants it. What is kept for a topic is not the list
of subscriptions but what their protocol makes of it, because most topics come again: `plan` says it, once per topic.

No I/O, no clock. A topic that very many filters match is looked up in one step; the filters of all clients bound that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from angarium.topic_cache import AGE_INTERVAL_S, CacheEntry, TopicCache
from angarium.trie import FilterTrie
from angarium_server.costs import CACHED_TOPIC_BYTES

V = TypeVar("V", bound=Hashable)
P = TypeVar("P")

#: Topics of which the plan is kept, and what all plans take together.
KNOWN_TOPICS_MAX: Final = 100_000
KNOWN_BYTES_MAX: Final = 64 << 20
#: Topics that one step of `sweep` looks at: so many, or this part of all.
_SWEPT_PER_STEP: Final = 256
_SWEPT_PART: Final = 32


class _Entry(CacheEntry, eq=False):
    """What is kept of one topic."""

    plan: Any
    bytes: int


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
        self._cache: TopicCache[_Entry] = TopicCache(
            self._dropped, KNOWN_TOPICS_MAX, KNOWN_BYTES_MAX, CACHED_TOPIC_BYTES
        )
        self._age_at = 0.0

    def __len__(self) -> int:
        """Count the pairs of filter and value."""
        return len(self._trie)

    def add(self, pattern: str, value: V) -> None:
        """Let a value get what a filter matches."""
        self._trie.add(pattern, value)
        self._cache.changed(pattern)

    def remove(self, pattern: str, value: V) -> None:
        """Let it get that no more.

        Raises:
            KeyError: it did not get it.
        """
        self._trie.remove(pattern, value)
        self._cache.changed(pattern)

    def find(self, topic: str) -> P:
        """Give the plan for a topic."""
        cache = self._cache
        entry = cache.entries.get(topic)
        if entry is None or (entry.valid_at != cache.number and cache.get(topic) is None):
            entry = self._look_up(topic)
        plan: P = entry.plan
        return plan

    def _look_up(self, topic: str) -> _Entry:
        values = tuple(dict.fromkeys(self._trie.match(topic)))
        plan = self._plan(topic, values)
        entry = _Entry(plan=plan, bytes=self._bytes_of(plan))
        self._cache.bytes += entry.bytes
        self._cache.put(topic, entry)
        return entry

    def _dropped(self, entry: _Entry) -> None:
        self._cache.bytes -= entry.bytes

    def sweep(self, now: float) -> None:
        """Do one step of dropping plans that a change made wrong, or that nobody asks for: they hold who has left."""
        if now >= self._age_at:
            self._age_at = now + AGE_INTERVAL_S
            self._cache.age()
        self._cache.sweep(max(_SWEPT_PER_STEP, len(self._cache) // _SWEPT_PART))

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._trie.validate()
        self._cache.validate()
