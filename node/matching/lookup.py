"""Batches whose topics are being looked up, and the turns that those take for which one step was too short.

A batch of many new topics, or of topics that very many filters match, may cost seconds. So a lookup stops when the
step of the worker is over and goes on in a later one: in front of it are the others of its publisher, and publishers
take turns, Message VPNs before them. Whoever is dear waits for himself.

**What a paused batch sees.** Each topic is matched once. A filter that comes or goes meanwhile is seen by the topics
behind it, and perhaps by the one at which the batch stands: as if the rows had reached the worker one by one. That is
what the router expects anyhow, because the parts of a round are matched by several workers at several times; a
subscription that was confirmed before a batch was published is in all of it. The publish rules are those of the moment
at which the batch came. Rounds keep their order whatever order they are answered in, because the router retires them
by their numbers.

The worker state machine uses this module. It does not match.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import msgspec

from node.matching.matching import EMPTY_SET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.access import TopicRules
    from angarium_server.frames.matching import Match
    from node.matching.batch import Batch
    from node.matching.matching import FilterSet, FilterSets, Search, TopicEntry

#: Nodes that each topic may cost without being counted: a tree of honest filters takes a tenth of it.
FREE_NODES_PER_TOPIC: Final = 256


#: Rules number that allows everything and is never sent.
NO_RULES: Final = 0


class Lookup(msgspec.Struct, eq=False, gc=False):
    """One batch, and what is known of its topics so far. A struct, because one is made for every batch."""

    task: Match
    batch: Batch
    #: Version and publish rules; None if nobody told us those that the task names.
    rules: tuple[int, TopicRules] | None
    #: `FilterSets.filters_made` when it began: what may be undefined was made since.
    made_before: int
    #: The topics that are looked up and were not refused, in the order of the batch.
    entries: dict[str, TopicEntry] = {}
    #: The search at which it stands; None if it stands before a topic.
    search: Search | None = None
    #: What the topic at which it stands has cost.
    topic_work: int = 0
    #: What all topics cost beyond what is free.
    work: int = 0
    #: The part of it that the router was told.
    told: int = 0
    #: Sets of `entries` while it is paused: their numbers must not be retired. They are held when something may be.
    held: dict[FilterSet, None] = {}
    #: Those of `held` that only its answer would define, and their filters.
    undefined: list[FilterSet] = []
    undefined_filters: int = 0
    #: So many of `entries`, the first ones, have theirs in it.
    _entries_held: int = 0

    def remaining(self) -> Iterator[str]:
        """Give the topics that are not looked up, with the one at which it stands."""
        return islice(self.batch.topics, len(self.entries) + len(self.batch.refused_topics), None)

    def count(self, work: int, *, ends: bool) -> None:
        """Count what a step has cost for the topic at which it stands, which may be done with it."""
        before = max(self.topic_work, FREE_NODES_PER_TOPIC)
        self.topic_work += work
        self.work += max(self.topic_work - before, 0)
        if ends:
            self.topic_work = 0

    def untold(self) -> int:
        """Give the work that the router was not told, and take it that it is now."""
        untold = self.work - self.told
        self.told = self.work
        return untold

    def drop_search(self) -> None:
        """Give up the search at which it stands."""
        if self.search is not None:
            self.search.vpn.abandon(self.search)
            self.search = None

    def hold(self, sets: FilterSets) -> None:
        """Keep the numbers of what was found while others are served, before any is retired."""
        entries = islice(self.entries.values(), self._entries_held, None)
        found = dict.fromkeys(chain.from_iterable([entry.sets() for entry in entries]))
        fresh = [one for one in found if one is not EMPTY_SET and one not in self.held]
        for one in fresh:
            sets.hold(one)
            self.held[one] = None
            self.undefined_filters += len(one.values)
        self.undefined += fresh
        self._entries_held = len(self.entries)

    def take_undefined(self) -> list[FilterSet]:
        """Give the sets that are held and that the router was not told for this batch, and take it that it is now."""
        undefined, self.undefined, self.undefined_filters = self.undefined, [], 0
        return undefined

    def let_go(self, sets: FilterSets) -> None:
        """It is over: hold nothing any more."""
        for one in self.held:
            sets.let_go(one)
        self.held.clear()


class Turns:
    """Paused lookups: Message VPNs take turns, and publishers inside a VPN; a publisher's own are served in order."""

    def __init__(self) -> None:
        #: VPN -> publisher -> its lookups; nothing is empty. Who was served goes to the end.
        self._vpns: OrderedDict[int, OrderedDict[int, deque[Lookup]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """Count the lookups."""
        return self._count

    def __iter__(self) -> Iterator[Lookup]:
        """Give all lookups."""
        for publishers in self._vpns.values():
            for line in publishers.values():
                yield from line

    def push(self, lookup: Lookup) -> None:
        """Put a lookup behind those of its publisher."""
        task = lookup.task
        publishers = self._vpns.setdefault(task.vpn, OrderedDict())
        publishers.setdefault(task.publisher, deque()).append(lookup)
        self._count += 1

    def next(self) -> Lookup:
        """Give the lookup whose turn it is; it stays the first of its publisher."""
        vpn_id, publishers = next(iter(self._vpns.items()))
        publisher, line = next(iter(publishers.items()))
        self._vpns.move_to_end(vpn_id)
        publishers.move_to_end(publisher)
        return line[0]

    def remove(self, lookup: Lookup) -> None:
        """Take a lookup out that `next` gave."""
        task = lookup.task
        publishers = self._vpns[task.vpn]
        line = publishers[task.publisher]
        assert line.popleft() is lookup
        self._count -= 1
        if not line:
            del publishers[task.publisher]
        if not publishers:
            del self._vpns[task.vpn]
