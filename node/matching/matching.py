"""Which filters match a topic, as numbered sets: filters per Message VPN, the sets, and the cache of answers.

The router resolves a set of filters to sessions, so a worker names each distinct set by a number: defined
when a result first uses it, retired when no cached topic leads to it any more. Most topics of an application
share few sets, and rows with the same set travel in one frame.

For a topic there are four sets of clients, by what its message wants:

    message     goes to all of           goes to one of
    plain       plain + deliver always   each shared filter's group: the shared filters
    DTO         deliver always           the candidates: plain + shared filters

and, whatever it wants, a fifth: the endpoints that take it, with the exceptions that may keep it out. A message that is
to be retained goes to these and to the queue that retains, whose filter matches every topic. It is beside the tree, so
that no topic costs more for it, and a sixth set is made for those that need it.

The worker state machine uses this module. It does not know rows, frames, the router or access rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from angarium import wire
from angarium.topic_cache import CacheEntry, TopicCache
from angarium.trie import FilterTrie, Walk
from angarium_server.costs import CACHED_TOPIC_BYTES, SET_BYTES, SET_FILTER_BYTES, filter_bytes, set_bytes
from angarium_server.frames.matching import SetDefinition

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from node.matching.config import MatchingConfig

#: A result names at most so many retired sets, so that a mass of them cannot make one round slow.
RETIRED_PER_RESULT_MAX: Final = 1_000
#: And so many filters of them, in about a millisecond: who forgets a set looks at each.
RETIRED_FILTERS_MAX: Final = 50_000
#: While idle sets take more than this some are retired in each turn, which then makes less than it retires.
IDLE_BYTES_MAX: Final = 8 << 20
#: One step of the search looks at so many topics at least, and at such a part of those that are left, so that it takes
#: some twenty seconds however many there are.
_SWEPT_PER_STEP: Final = 125
_SWEPT_PART: Final = 1_024
#: A filter's number and kind are one int in the trie: number * 8 + kind. It saves a lookup for each match.
_KIND_BITS: Final = 3
_KIND_MASK: Final = (1 << _KIND_BITS) - 1
_KINDS: Final = (
    wire.KIND_PLAIN,
    wire.KIND_DELIVER_ALWAYS,
    wire.KIND_SHARED,
    wire.KIND_ENDPOINT,
    wire.KIND_EXCEPTION,
    wire.KIND_RETAINED,
)
#: What the sets with the queue that retains may take in a Message VPN; more and all are forgotten.
RETAINING_BYTES_MAX: Final = 4 << 20
#: Filters found that cost as much as a node visited.
_FILTERS_PER_NODE: Final = 4
#: What making an entry costs besides, in nodes.
_NODES_PER_ENTRY: Final = 16
#: Topics of a Message VPN without filters that are forgotten in one step, for the same reason.
_FORGOTTEN_PER_STEP: Final = 1_000


def _numbers(values: tuple[int, ...]) -> tuple[int, ...]:
    """Give the numbers of filters that are in the trie as these values."""
    if len(values) == 1:  # nearly always, and every new topic may make a set
        return (values[0] >> _KIND_BITS,)
    return tuple([value >> _KIND_BITS for value in values])


class FilterSet(msgspec.Struct, eq=False, gc=False):
    """A distinct set of filters under the number that the router knows it by.

    It holds numbers only, so the garbage collector need not know it: that would cost a new topic as much as making it.
    """

    #: Never reused while the process lives; 0 is the empty set.
    id: int
    #: Its filters as the trie has them, number and kind in one: the same objects, because copies of the numbers
    #: would take five times as much. Rising.
    values: tuple[int, ...]
    #: How many times cached topics use it. Not counted for the empty set.
    references: int = 0
    #: True once the router was told what is in it.
    defined: bool = False

    @property
    def filter_ids(self) -> tuple[int, ...]:
        """Give the numbers of its filters, rising."""
        return _numbers(self.values)

    @property
    def bytes(self) -> int:
        """Give what it costs."""
        return set_bytes(len(self.values))


#: Needs no definition, and is never retired.
EMPTY_SET: Final = FilterSet(0, (), defined=True)


class FilterSets:
    """All sets in use: the same filters are always the same object with the same number."""

    def __init__(self, next_id: int = 1) -> None:
        self.next_id = next_id
        #: Every set but the empty one, also those in `_idle`.
        self._by_values: dict[tuple[int, ...], FilterSet] = {}
        #: Sets without references, the longest idle first; they may be used again until they are retired.
        self._idle: dict[int, FilterSet] = {}
        #: Number -> how many hold it; no zeros.
        self._held: dict[int, int] = {}
        #: What those without references cost.
        self.idle_bytes = 0
        #: Filters of all sets that were ever made.
        self.filters_made = 0

    def __len__(self) -> int:
        """Count the sets, without the empty one."""
        return len(self._by_values)

    def acquire(self, values: tuple[int, ...]) -> FilterSet:
        """Give the set of these filters (rising) with one more reference."""
        if not values:
            return EMPTY_SET
        found = self._by_values.get(values)
        if found is None:
            found = self._by_values[values] = FilterSet(self.next_id, values)
            self.next_id += 1
            self.filters_made += len(values)
        elif not found.references:
            del self._idle[found.id]
            self.idle_bytes -= found.bytes
        found.references += 1
        return found

    def release(self, one: FilterSet) -> None:
        """Take one reference back."""
        if one is EMPTY_SET:
            return
        one.references -= 1
        if not one.references:
            self._idle[one.id] = one
            self.idle_bytes += one.bytes

    def hold(self, one: FilterSet) -> None:
        """Keep the number of a set from being retired, whether cached topics use it or not."""
        self._held[one.id] = self._held.get(one.id, 0) + 1

    def let_go(self, one: FilterSet) -> None:
        """Take back one `hold`."""
        self._held[one.id] -= 1
        if not self._held[one.id]:
            del self._held[one.id]

    def retire(self, used: Container[int]) -> list[int]:
        """Forget idle sets but those that are held or in `used`; give the numbers that the router must forget too."""
        if not self.idle_bytes:
            return []
        chosen: list[FilterSet] = []
        filters = 0
        for one in self._idle.values():
            if len(chosen) >= RETIRED_PER_RESULT_MAX or filters >= RETIRED_FILTERS_MAX:
                break
            if one.id not in used and one.id not in self._held:
                chosen.append(one)
                filters += len(one.values)
                self.idle_bytes -= one.bytes
        for one in chosen:
            del self._idle[one.id]
            del self._by_values[one.values]
        return [one.id for one in chosen if one.defined]

    def validate(self, references: dict[int, int], held: dict[int, int] | None = None) -> None:
        """Check what the comments promise, given references and holds by set number."""
        assert self._held == (held or {})
        sets = list(self._by_values.values())
        assert {one.id: one.references for one in sets if one.references} == references
        assert all(self._by_values[one.values] is one for one in sets)
        assert all(0 < one.id < self.next_id for one in sets)
        assert len({one.id for one in sets}) == len(sets)
        assert all(list(one.values) == sorted(set(one.values)) for one in sets)
        idle = {one.id: one.bytes for one in sets if not one.references}
        assert set(self._idle) == set(idle)
        assert self.idle_bytes == sum(idle.values())
        assert EMPTY_SET.references == 0


class TopicEntry(CacheEntry, eq=False, gc=False):
    """What is known about one topic. It leads to sets and verdicts only, and nothing there leads back to it."""

    #: Filters whose subscribers all get a message without DTO: plain and deliver-always ones.
    plain: FilterSet
    #: Filters of which one member gets a message without DTO: shared ones.
    choice: FilterSet
    #: Filters whose subscribers all get a message with DTO: deliver-always ones.
    always: FilterSet
    #: Filters of which one client gets a message with DTO: plain and shared ones.
    dto_choice: FilterSet
    #: Filters and exceptions of the endpoints that match; empty if nothing but exceptions does.
    endpoints: FilterSet
    #: Version of access rules -> whether they let publish to this topic; None instead of an empty dict.
    #: Belongs to who asks the rules.
    verdicts: dict[int, bool] | None = None

    def sets(self) -> tuple[FilterSet, ...]:
        """Give every set that the entry refers to."""
        return self.plain, self.choice, self.always, self.dto_choice, self.endpoints


class Search:
    """A topic that is being matched, and for which there were too many nodes for one step."""

    __slots__ = ("number", "topic", "vpn", "walk")

    def __init__(self, vpn: VpnMatching, topic: str, walk: Walk[int]) -> None:
        self.vpn = vpn
        self.topic = topic
        self.walk = walk
        #: The number of the newest change when it began.
        self.number = vpn.cache.number


class VpnMatching:
    """The filters of one Message VPN and the topics matched against them."""

    def __init__(self, sets: FilterSets, config: MatchingConfig) -> None:
        self._sets = sets
        #: The filters, as number and kind in one int.
        self._trie: FilterTrie[int] = FilterTrie()
        #: Filters that are not plain. While there are none, all sets follow from one.
        self._special_filters = 0
        #: Filters of the queue that retains, which match every topic, as the sets have them; they are in no tree.
        #: Rising. Two for a moment when the queue is made again.
        self._retained: tuple[int, ...] = ()
        #: Number of a set of endpoints -> the set with these filters added. Each holds one reference, and no topic
        #: leads to it.
        self._retaining: dict[int, FilterSet] = {}
        #: What these sets cost.
        self.retaining_bytes = 0
        #: Every entry holds one reference on each of its sets. All sets of it are charged, each once.
        self.cache: TopicCache[TopicEntry] = TopicCache(
            self._release, config.topic_cache_max, config.topic_cache_bytes, CACHED_TOPIC_BYTES
        )
        #: Topics that were matched because the cache did not know them.
        self.misses = 0
        #: What that cost, in nodes of the tree.
        self.work = 0

    def __len__(self) -> int:
        """Count the filters."""
        return len(self._trie) + len(self._retained)

    def add(self, filter_id: int, pattern: str, kind: int) -> None:
        """Add a filter that is not there."""
        if kind == wire.KIND_RETAINED:
            self._retain((*self._retained, filter_id << _KIND_BITS | kind))
            return
        self._trie.add(pattern, filter_id << _KIND_BITS | kind)
        self._special_filters += kind != wire.KIND_PLAIN
        self.cache.changed(pattern)

    def remove(self, filter_id: int, pattern: str, kind: int) -> None:
        """Remove a filter that is there."""
        if kind == wire.KIND_RETAINED:
            gone = filter_id << _KIND_BITS | kind
            self._retain([value for value in self._retained if value != gone])
            return
        self._trie.remove(pattern, filter_id << _KIND_BITS | kind)
        self._special_filters -= kind != wire.KIND_PLAIN
        self.cache.changed(pattern)

    def _retain(self, filters: Iterable[int]) -> None:
        self._retained = tuple(sorted(filters))
        self.forget_retaining()

    @property
    def retains(self) -> bool:
        """Tell whether there is a queue that retains."""
        return bool(self._retained)

    def retaining(self, endpoints: FilterSet) -> FilterSet:
        """Give the set of endpoints that take a message to be retained, of those that would take it otherwise."""
        found = self._retaining.get(endpoints.id)
        if found is None:
            if self.retaining_bytes > RETAINING_BYTES_MAX:
                self.forget_retaining()
            values = sorted((*endpoints.values, *self._retained))
            found = self._retaining[endpoints.id] = self._sets.acquire(tuple(values))
            self.retaining_bytes += found.bytes
        return found

    def forget_retaining(self) -> None:
        """Forget the sets that `retaining` gave; they are made again when they are needed."""
        for one in self._retaining.values():
            self._sets.release(one)
        self._retaining.clear()
        self.retaining_bytes = 0

    def match(self, topic: str, nodes_max: int) -> TopicEntry | Search:
        """Match a topic that the cache does not know, and cache the answer; a search goes on with `resume`."""
        self.misses += 1
        found: list[int] = []
        visited = self._trie.search(topic, found, nodes_max)
        if isinstance(visited, int):
            return self._put(topic, found, visited)
        search = Search(self, topic, visited)
        self.work += visited.visited
        self.cache.pending += 1
        return self.resume(search, nodes_max - visited.visited) or search

    def resume(self, search: Search, nodes_max: int) -> TopicEntry | None:
        """Go on with a search; gives the answer when there is one, which is cached then.

        Changes since the search began may be in the answer or not, so the cache tests it when it is used next.
        """
        walk = search.walk
        before = walk.visited
        ended = walk.step(nodes_max)
        self.work += walk.visited - before
        if not ended:
            return None
        self.cache.pending -= 1
        return self._put(search.topic, walk.found, 0, search.number)

    def abandon(self, _search: Search) -> None:
        """Give up a search."""
        self.cache.pending -= 1

    def _put(self, topic: str, found: list[int], visited: int, since: int | None = None) -> TopicEntry:
        """Make the entry of a topic of what its search found."""
        exact = self._trie.exact(topic)
        if exact:
            found += exact
        found.sort()
        self.work += visited + _NODES_PER_ENTRY + len(found) // _FILTERS_PER_NODE
        if self._special_filters or since is not None:
            entry = self._sorted_out(found)
        else:
            plain = self._sets.acquire(tuple(found))
            if plain is not EMPTY_SET:
                plain.references += 1  # it is the set of two attributes
                if plain.references == 2:
                    self.cache.bytes += SET_BYTES + SET_FILTER_BYTES * len(found)
            entry = TopicEntry(plain, EMPTY_SET, EMPTY_SET, plain, EMPTY_SET)
        self.cache.put(topic, entry, since)
        return entry

    def _acquire(self, values: tuple[int, ...]) -> FilterSet:
        found = self._sets.acquire(values)
        if found.references == 1:
            self.cache.bytes += set_bytes(len(values))
        return found

    def _sorted_out(self, found: list[int]) -> TopicEntry:
        by_kind: tuple[list[int], ...] = ([], [], [], [], [])
        plain: list[int] = []
        dto_choice: list[int] = []
        endpoints: list[int] = []
        for value in found:
            kind = value & _KIND_MASK
            by_kind[kind].append(value)
            if kind >= wire.KIND_ENDPOINT:
                endpoints.append(value)
                continue
            if kind != wire.KIND_SHARED:
                plain.append(value)
            if kind != wire.KIND_DELIVER_ALWAYS:
                dto_choice.append(value)
        acquire = self._acquire
        return TopicEntry(
            acquire(tuple(plain)),
            acquire(tuple(by_kind[wire.KIND_SHARED])),
            acquire(tuple(by_kind[wire.KIND_DELIVER_ALWAYS])),
            acquire(tuple(dto_choice)),
            acquire(tuple(endpoints) if by_kind[wire.KIND_ENDPOINT] else ()),
        )

    def _release(self, entry: TopicEntry) -> None:
        for one in entry.sets():
            self._sets.release(one)
            if not one.references:
                self.cache.bytes -= one.bytes if one is not EMPTY_SET else 0

    def sweep(self) -> bool:
        """Do one step of dropping topics that a change made wrong; true if more are left."""
        return self.cache.sweep(max(_SWEPT_PER_STEP, len(self.cache) // _SWEPT_PART))

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._trie.validate()
        self.cache.validate()
        assert list(self._retained) == sorted(set(self._retained))
        assert self._retained or not self._retaining
        assert all({*self._retained} <= {*one.values} for one in self._retaining.values())
        assert self.retaining_bytes == sum(one.bytes for one in self._retaining.values())

    def sets(self) -> Iterator[FilterSet]:
        """Give every set as often as it is referred to."""
        for entry in self.cache.entries.values():
            yield from entry.sets()
        yield from self._retaining.values()


class Matching:
    """All filters that a worker was told, over all Message VPNs."""

    def __init__(self, config: MatchingConfig, next_set_id: int = 1) -> None:
        self._config = config
        self.sets = FilterSets(next_set_id)
        #: Number -> (Message VPN, pattern, kind).
        self._filters: dict[int, tuple[int, str, int]] = {}
        #: What the filters took that were removed.
        self.filters_freed_bytes = 0
        #: Message VPNs that have filters, or were published to since they last had.
        self._vpns: dict[int, VpnMatching] = {}
        #: Message VPNs that lost their last filter; their cached topics are forgotten step by step.
        self._leaving: list[VpnMatching] = []

    def __len__(self) -> int:
        """Count the filters."""
        return len(self._filters)

    def vpn(self, vpn_id: int) -> VpnMatching:
        """Give the part of one Message VPN."""
        found = self._vpns.get(vpn_id)
        if found is None:
            found = self._vpns[vpn_id] = VpnMatching(self.sets, self._config)
        return found

    def add(self, filter_id: int, vpn_id: int, pattern: str, kind: int) -> None:
        """Add a filter. A number that is in use names the new filter from now on."""
        assert kind in _KINDS
        if filter_id in self._filters:
            self.remove(filter_id)
        self._filters[filter_id] = (vpn_id, pattern, kind)
        self.vpn(vpn_id).add(filter_id, pattern, kind)

    def remove(self, filter_id: int) -> None:
        """Remove a filter; nothing happens if it is not there. A Message VPN without filters is forgotten."""
        known = self._filters.pop(filter_id, None)
        if known is None:
            return
        vpn_id, pattern, kind = known
        vpn = self._vpns[vpn_id]
        vpn.remove(filter_id, pattern, kind)
        self.filters_freed_bytes += filter_bytes(pattern)
        if not len(vpn):
            self._leaving.append(self._vpns.pop(vpn_id))

    def tidy(self) -> None:
        """Do one step of the forgetting that is outstanding."""
        if self._leaving:
            cache = self._leaving[-1].cache
            cache.drop_oldest(_FORGOTTEN_PER_STEP)
            if not len(cache):
                self._leaving.pop()

    def sweep(self) -> bool:
        """Do one step of forgetting what no topic leads to any more; true if more is left."""
        self.tidy()
        more = [vpn.sweep() for vpn in self._vpns.values()]
        return any(more) or bool(self._leaving)

    @property
    def cache_bytes(self) -> int:
        """Give what the topics and sets cost that are known."""
        of_vpns = sum(vpn.cache.bytes + vpn.retaining_bytes for vpn in self._vpns.values())
        return of_vpns + self.sets.idle_bytes

    def stats(self) -> dict[str, int]:
        """Give the sizes, and what the caches did since the Message VPNs are known."""
        vpns = self._vpns.values()
        return {
            "vpns": len(self._vpns),
            "filters": len(self._filters),
            "filter_sets": len(self.sets),
            "cache_bytes": self.cache_bytes,
            "topics_cached": sum(len(vpn.cache) for vpn in vpns),
            "topics_evicted": sum(vpn.cache.evicted for vpn in vpns),
            "topics_invalidated": sum(vpn.cache.dropped for vpn in vpns),
            "topics_matched": sum(vpn.misses for vpn in vpns),
            "matching_work": sum(vpn.work + vpn.cache.log.tested for vpn in vpns),
        }

    def age(self) -> None:
        """Have the sweeps from here on forget topics that nobody has published to since the last time."""
        for vpn in self._vpns.values():
            vpn.cache.age()
            vpn.forget_retaining()

    def validate(self, held: Iterable[FilterSet] = ()) -> None:
        """Check what the comments of the attributes promise, given the sets that are held, once for each hold."""
        references: dict[int, int] = {}
        for vpn in [*self._vpns.values(), *self._leaving]:
            vpn.validate()
            for one in vpn.sets():
                references[one.id] = references.get(one.id, 0) + 1
        references.pop(EMPTY_SET.id, None)
        holds: dict[int, int] = {}
        for one in held:
            holds[one.id] = holds.get(one.id, 0) + 1
        self.sets.validate(references, holds)
        assert sum(len(vpn) for vpn in self._vpns.values()) == len(self._filters)


def describe(sets: Iterable[FilterSet]) -> list[SetDefinition]:
    """Give the definitions of those sets that the router does not know, and take it that it does now."""
    definitions = []
    for one in sets:
        if not one.defined:
            one.defined = True
            definitions.append(SetDefinition(one.id, _numbers(one.values)))
    return definitions
