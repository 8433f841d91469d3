"""The newest changes of filters, for caches that ask whether one of them touches a topic.

A cache that knows at which change an answer was right needs to know of the later ones only whether a pattern among
them matches its topic. So the patterns are in a trie, and a test costs the same for one change as for a thousand. But
clients subscribe to thousands of filters at once, or leave with them, and nobody asks about most changes before they
are too old to be kept. So a change is only noted, and goes into the trie when the next test needs it. A test puts in
some, and knows nothing if more are left: a few answers are worked out again, and nobody waits until thousands of
changes are filed. Changes are kept in two generations, of which the old one is dropped as a whole, because taking
patterns out one by one costs as much as putting them in.

`angarium.topic_cache` uses this. No I/O, no clock.
"""

from __future__ import annotations

from typing import Final

from angarium.trie import FilterTrie

#: Changes that are kept, in both generations; half of them at least, if there were so many.
CHANGE_LOG_MAX: Final = 1_024
#: And all levels of these: a level takes up to 600 bytes, and 2.5 us when it goes into the trie.
CHANGE_LOG_LEVELS_MAX: Final = 4_096
#: Levels that one test puts into the trie, 0.6 ms.
INDEXED_LEVELS_MAX: Final = 256
#: Nodes that a test may visit: if changes overlap so much, matching afresh is no dearer.
_TEST_MAX: Final = 512

#: The index of a generation of which none is wanted yet.
_NO_INDEX: Final[FilterTrie[str]] = FilterTrie()


class _Generation:
    """Changes that were noted one after the other, and are forgotten together."""

    __slots__ = ("index", "levels", "newest", "numbers", "unindexed")

    def __init__(self) -> None:
        #: Pattern -> number of its newest change here.
        self.numbers: dict[str, int] = {}
        #: Their levels.
        self.levels = 0
        #: The number of the newest change here, or of the one before if there is none.
        self.newest = 0
        #: The patterns but those in `unindexed`.
        self.index = _NO_INDEX
        self.unindexed: list[str] = []

    def clear(self, newest: int) -> None:
        """Forget the changes; the next one comes after `newest`.

        The object is used again: a new one, made while memory is full of what goes, would keep a megabyte of it.
        """
        self.numbers.clear()
        self.unindexed.clear()
        self.index = _NO_INDEX
        self.levels = 0
        self.newest = newest

    def add(self, pattern: str, number: int) -> None:
        if pattern not in self.numbers:
            self.unindexed.append(pattern)
            self.levels += pattern.count("/") + 1
        self.numbers[pattern] = self.newest = number

    def file(self) -> int:
        """Put some of what is not in the index there; gives what that cost, in nodes."""
        if self.index is _NO_INDEX:
            self.index = FilterTrie()
        levels = 0
        while self.unindexed and levels < INDEXED_LEVELS_MAX:
            pattern = self.unindexed.pop()
            self.index.add(pattern, pattern)
            levels += pattern.count("/") + 1
        return levels

    def validate(self) -> None:
        assert self.levels == sum(pattern.count("/") + 1 for pattern in self.numbers)
        assert len(self.index) + len(self.unindexed) == len(self.numbers)
        assert not self.numbers or max(self.numbers.values()) == self.newest
        self.index.validate()


class ChangeLog:
    """Which patterns changed last; changes have rising numbers, which the caller gives."""

    __slots__ = ("_old", "_young", "forgotten", "tested")

    def __init__(self) -> None:
        self._old, self._young = _Generation(), _Generation()
        #: The highest number that left the log: nothing can be said about a time before it.
        self.forgotten = 0
        #: Nodes that were visited by tests.
        self.tested = 0

    def __len__(self) -> int:
        """Count the changes, of one pattern in both generations twice."""
        return len(self._young.numbers) + len(self._old.numbers)

    def add(self, pattern: str, number: int) -> None:
        """Note that a pattern with wildcards came or went."""
        young = self._young
        young.add(pattern, number)
        if len(young.numbers) >= CHANGE_LOG_MAX // 2 or young.levels >= CHANGE_LOG_LEVELS_MAX // 2:
            self.forgotten = self._old.newest
            self._old, self._young = young, self._old
            self._young.clear(number)

    def is_untouched(self, topic: str, since: int) -> bool:
        """Tell whether no change after a number touches a topic; False too if that is not known."""
        if since < self.forgotten:
            return False
        for one in (self._young, self._old):
            if one.newest > since and one.numbers:
                if one.unindexed:
                    self.tested += one.file()
                    if one.unindexed:
                        return False
                found: list[str] = []
                visited = one.index.search(topic, found, _TEST_MAX)
                if not isinstance(visited, int):
                    self.tested += visited.visited
                    return False
                self.tested += visited
                if found and max(map(one.numbers.__getitem__, found)) > since:
                    return False
        return True

    def clear(self, number: int) -> None:
        """Forget all changes up to the newest one: nobody will ask about a time before it."""
        self.forgotten = number
        self._old.clear(number)
        self._young.clear(number)

    def validate(self) -> None:
        """Check what the comments promise."""
        assert not len(_NO_INDEX)
        for one in (self._young, self._old):
            one.validate()
            assert len(one.numbers) <= max(CHANGE_LOG_MAX // 2, 1)
            assert all(number > self.forgotten for number in one.numbers.values())
        assert self.forgotten <= self._old.newest <= self._young.newest
