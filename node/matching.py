"""Which filters match a topic, as numbered sets: filters per Message VPN, the sets, and the cache of answers.

The router resolves a set of filters to sessions, so a worker names each distinct set by a number: defined
when a result first uses it, retired when no cached topic leads to it any more. Most topics of an application
share few sets, and rows with the same set travel in one frame.

For a topic there are four sets of clients, by what its message wants (design section 6):

    message     goes to all of           goes to one of
    plain       plain + deliver always   each shared filter's group: the shared filters
    DTO         deliver always           the candidates: plain + shared filters

and, whatever it wants, a fifth: the endpoints that take it, with the exceptions that may keep it out.

The worker state machine uses this module. It does not know rows, frames, the router or access rules.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from angarium import wire
from angarium.trie import CacheEntry, FilterTrie, TopicCache

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

#: A result names at most so many retired sets, so that a mass of them cannot make one round slow.
RETIRED_PER_RESULT_MAX: Final = 1_000
#: A filter's number and kind are one int in the trie: number * 8 + kind. It saves a lookup for each match.
_KIND_BITS: Final = 3
_KIND_MASK: Final = (1 << _KIND_BITS) - 1
_KINDS: Final = (
    wire.KIND_PLAIN,
    wire.KIND_DELIVER_ALWAYS,
    wire.KIND_SHARED,
    wire.KIND_ENDPOINT,
    wire.KIND_EXCEPTION,
)
#: Topics of a Message VPN without filters that are forgotten in one step, for the same reason.
_FORGOTTEN_PER_STEP: Final = 1_000


class FilterSet:
    """A distinct set of filters under the number that the router knows it by."""

    __slots__ = ("defined", "filter_ids", "id", "references")

    def __init__(self, set_id: int, filter_ids: tuple[int, ...]) -> None:
        #: Never reused while the process lives; 0 is the empty set.
        self.id = set_id
        #: Rising.
        self.filter_ids = filter_ids
        #: How many times cached topics use it. Not counted for the empty set.
        self.references = 0
        #: True once the router was told what is in it.
        self.defined = False


#: Needs no definition, and is never retired.
EMPTY_SET: Final = FilterSet(0, ())
EMPTY_SET.defined = True


class FilterSets:
    """All sets in use: the same filters are always the same object with the same number."""

    def __init__(self, next_id: int = 1) -> None:
        self.next_id = next_id
        #: Every set but the empty one, also those in `_idle`.
        self._by_filters: dict[tuple[int, ...], FilterSet] = {}
        #: Sets without references, the longest idle first; they may be used again until they are retired.
        self._idle: dict[int, FilterSet] = {}

    def __len__(self) -> int:
        """Count the sets, without the empty one."""
        return len(self._by_filters)

    def acquire(self, filter_ids: tuple[int, ...]) -> FilterSet:
        """Give the set of these filters (rising numbers) with one more reference."""
        if not filter_ids:
            return EMPTY_SET
        found = self._by_filters.get(filter_ids)
        if found is None:
            found = self._by_filters[filter_ids] = FilterSet(self.next_id, filter_ids)
            self.next_id += 1
        elif not found.references:
            del self._idle[found.id]
        found.references += 1
        return found

    def release(self, one: FilterSet) -> None:
        """Take one reference back."""
        if one is EMPTY_SET:
            return
        one.references -= 1
        if not one.references:
            self._idle[one.id] = one

    def retire(self, used: Container[int]) -> list[int]:
        """Forget idle sets but those in `used`; give the numbers that the router must forget too."""
        if not self._idle:
            return []
        chosen = list(
            islice((one for one in self._idle.values() if one.id not in used), RETIRED_PER_RESULT_MAX)
        )
        for one in chosen:
            del self._idle[one.id]
            del self._by_filters[one.filter_ids]
        return [one.id for one in chosen if one.defined]

    def validate(self, references: dict[int, int]) -> None:
        """Check what the comments promise, given the references that there are by set number."""
        sets = list(self._by_filters.values())
        assert {one.id: one.references for one in sets if one.references} == references
        assert all(self._by_filters[one.filter_ids] is one for one in sets)
        assert all(0 < one.id < self.next_id for one in sets)
        assert len({one.id for one in sets}) == len(sets)
        assert all(list(one.filter_ids) == sorted(set(one.filter_ids)) for one in sets)
        idle = {one.id for one in sets if not one.references}
        assert set(self._idle) == idle
        assert EMPTY_SET.references == 0


class TopicEntry(CacheEntry):
    """What is known about one topic."""

    __slots__ = ("always", "choice", "dto_choice", "endpoints", "plain", "verdicts")

    def __init__(
        self,
        plain: FilterSet,
        choice: FilterSet,
        always: FilterSet,
        dto_choice: FilterSet,
        endpoints: FilterSet = EMPTY_SET,
    ) -> None:
        super().__init__()
        #: Filters whose subscribers all get a message without DTO: plain and deliver-always ones.
        self.plain = plain
        #: Filters of which one member gets a message without DTO: shared ones.
        self.choice = choice
        #: Filters whose subscribers all get a message with DTO: deliver-always ones.
        self.always = always
        #: Filters of which one client gets a message with DTO: plain and shared ones.
        self.dto_choice = dto_choice
        #: Filters and exceptions of the endpoints that match; empty if nothing but exceptions does.
        self.endpoints = endpoints
        #: Version of access rules -> whether they let publish to this topic; None instead of an empty dict.
        #: Belongs to who asks the rules.
        self.verdicts: dict[int, bool] | None = None

    def sets(self) -> tuple[FilterSet, ...]:
        """Give every set that the entry refers to."""
        return self.plain, self.choice, self.always, self.dto_choice, self.endpoints


class VpnMatching:
    """The filters of one Message VPN and the topics matched against them."""

    def __init__(self, sets: FilterSets, topic_cache_max: int) -> None:
        self._sets = sets
        #: The filters, as number and kind in one int.
        self._trie: FilterTrie[int] = FilterTrie()
        #: Filters that are not plain. While there are none, all sets follow from one.
        self._special_filters = 0
        #: Every entry holds one reference on each of its sets.
        self.cache: TopicCache[TopicEntry] = TopicCache(self._release, topic_cache_max)
        #: Topics that were matched because the cache did not know them.
        self.misses = 0

    def __len__(self) -> int:
        """Count the filters."""
        return len(self._trie)

    def add(self, filter_id: int, pattern: str, kind: int) -> None:
        """Add a filter that is not there."""
        self._trie.add(pattern, filter_id << _KIND_BITS | kind)
        self._special_filters += kind != wire.KIND_PLAIN
        self.cache.changed(pattern)

    def remove(self, filter_id: int, pattern: str, kind: int) -> None:
        """Remove a filter that is there."""
        self._trie.remove(pattern, filter_id << _KIND_BITS | kind)
        self._special_filters -= kind != wire.KIND_PLAIN
        self.cache.changed(pattern)

    def match(self, topic: str) -> TopicEntry:
        """Match a topic that the cache does not know, and cache the answer."""
        self.misses += 1
        found = self._trie.match(topic)
        found.sort()
        entry = self._sorted_out(found) if self._special_filters else self._plain_only(found)
        self.cache.put(topic, entry)
        return entry

    def _plain_only(self, found: list[int]) -> TopicEntry:
        filter_ids = tuple([value >> _KIND_BITS for value in found])
        acquire = self._sets.acquire
        return TopicEntry(acquire(filter_ids), EMPTY_SET, EMPTY_SET, acquire(filter_ids))

    def _sorted_out(self, found: list[int]) -> TopicEntry:
        by_kind: tuple[list[int], ...] = ([], [], [], [], [])
        plain: list[int] = []
        dto_choice: list[int] = []
        endpoints: list[int] = []
        for value in found:
            filter_id, kind = value >> _KIND_BITS, value & _KIND_MASK
            by_kind[kind].append(filter_id)
            if kind >= wire.KIND_ENDPOINT:
                endpoints.append(filter_id)
                continue
            if kind != wire.KIND_SHARED:
                plain.append(filter_id)
            if kind != wire.KIND_DELIVER_ALWAYS:
                dto_choice.append(filter_id)
        acquire = self._sets.acquire
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

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._trie.validate()
        self.cache.validate()


class Matching:
    """All filters that a worker was told, over all Message VPNs."""

    def __init__(self, topic_cache_max: int, next_set_id: int = 1) -> None:
        self._topic_cache_max = topic_cache_max
        self.sets = FilterSets(next_set_id)
        #: Number -> (Message VPN, pattern, kind).
        self._filters: dict[int, tuple[int, str, int]] = {}
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
            found = self._vpns[vpn_id] = VpnMatching(self.sets, self._topic_cache_max)
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
        if not len(vpn):
            self._leaving.append(self._vpns.pop(vpn_id))

    def tidy(self) -> None:
        """Do one step of the forgetting that is outstanding."""
        if self._leaving:
            cache = self._leaving[-1].cache
            cache.drop_oldest(_FORGOTTEN_PER_STEP)
            if not len(cache):
                self._leaving.pop()

    def stats(self) -> dict[str, int]:
        """Give the sizes, and what the caches did since the Message VPNs are known."""
        vpns = self._vpns.values()
        return {
            "vpns": len(self._vpns),
            "filters": len(self._filters),
            "filter_sets": len(self.sets),
            "topics_cached": sum(len(vpn.cache) for vpn in vpns),
            "topics_evicted": sum(vpn.cache.evicted for vpn in vpns),
            "topics_invalidated": sum(vpn.cache.dropped for vpn in vpns),
            "topics_matched": sum(vpn.misses for vpn in vpns),
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        references: dict[int, int] = {}
        for vpn in [*self._vpns.values(), *self._leaving]:
            vpn.validate()
            for entry in vpn.cache.entries.values():
                for one in entry.sets():
                    references[one.id] = references.get(one.id, 0) + 1
        references.pop(EMPTY_SET.id, None)
        self.sets.validate(references)
        assert sum(len(vpn) for vpn in self._vpns.values()) == len(self._filters)


def describe(sets: Iterable[FilterSet]) -> list[tuple[int, tuple[int, ...]]]:
    """Give the definitions of those sets that the router does not know, and take it that it does now."""
    definitions = []
    for one in sets:
        if not one.defined:
            one.defined = True
            definitions.append((one.id, one.filter_ids))
    return definitions
