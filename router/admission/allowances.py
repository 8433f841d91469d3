"""How many messages each home may have delivered and not settled: parts of the limit of the node, as they are needed.

The limit counts over all clients, and a home delivers without asking. So each home has an *allowance*, a part of the
limit; together they never exceed it. One that has more to deliver than it may says how much it wants, and gets what is
free. If that is not enough, others lose what they do not use, and if all want more, each gets the same: a single queue
may have all of the limit, and a home that needs more gets it from one that needs less.

A smaller allowance is not in force when it is sent. What counts of a home is the most that it can have out:

    allowance 30, ALLOWANCE 10 is sent     30: it may not have come yet
    the home reports allowance 10, out 25  25: it delivers nothing before it has less than 10 out
    the home reports allowance 10, out 4   10: it delivers without asking

and only what does not count is given to others. A home that died counts as before, because its consumers may have all
of it, until its successor is there, or none of its flows is left, or it is no home any more.

No I/O, no clock; `router.publishers.publishing` hands reports in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium_server.frames.homes import AllowanceFrame

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.admission.usage import HomeUsage
    from router.matching.shards import Shard, Shards


class _Home:
    """One home and what it may have out."""

    __slots__ = ("_usage", "allowance", "before", "is_up")

    def __init__(self, usage: HomeUsage) -> None:
        #: What it reported last.
        self._usage = usage
        #: What it was told last.
        self.allowance = 0
        #: What it was told before that; the same once it has confirmed. Nothing is sent in between.
        self.before = 0
        self.is_up = True

    @property
    def out(self) -> int:
        """What is delivered and not settled."""
        return self._usage.delivered_unacked

    @property
    def wanted(self) -> int:
        """What it would have out if it might; 0 if its allowance is enough."""
        return self._usage.wanted

    @property
    def is_confirmed(self) -> bool:
        """Whether the last allowance is in force."""
        return self.before == self.allowance

    @property
    def lacks(self) -> bool:
        """Whether it cannot deliver what it has to."""
        return self.is_up and self.wanted > self.allowance

    @property
    def counts(self) -> int:
        """The most that it can have out."""
        return max(self.allowance, self.before, self.out)


class Allowances:
    """The allowances of all homes; a listener of `Shards`."""

    def __init__(self, limit: int, shards: Shards, usage: Callable[[int], HomeUsage]) -> None:
        """Begin without a home; all allowances together are `limit` at most. `usage` gives a home's last report."""
        self._limit = limit
        self._shards = shards
        #: By index of the worker.
        self._homes: dict[int, _Home] = {}
        self._usage = usage
        #: Whether every home has what it wants, and has confirmed it: a report in which none is wanted changes nothing.
        self.is_level = True

    def home_ready(self, index: int) -> None:
        """A home came, or came back: it has nothing out, and begins with an equal part, if that is free."""
        self._homes[index] = home = _Home(self._usage(index))
        self._give(index, home, self._limit // len(self._shards.shards))
        self._level()

    def reported(self, index: int) -> None:
        """A home said which allowance is in force, what it has out, and what it would have (0: no more)."""
        home = self._homes.get(index)
        if home is None or not home.is_up:
            return
        if self._usage(index).allowance == home.allowance:
            home.before = home.allowance
        self._level()

    def shard_lost(self, shard: Shard) -> None:
        """A worker died; what its consumers have counts until its successor comes."""
        home = self._homes.get(shard.index)
        if home is not None:
            home.is_up = False

    @property
    def lost(self) -> list[int]:
        """Give the homes that died, and still count."""
        return [index for index, home in self._homes.items() if not home.is_up]

    def release(self, index: int) -> None:
        """Nobody has anything of a home that died."""
        del self._homes[index]
        self._level()

    def homes_left(self, count: int) -> None:
        """Only the workers below this index are homes now."""
        for index in [index for index in self._homes if index >= count]:
            del self._homes[index]
        self._level()

    @property
    def _free(self) -> int:
        return self._limit - sum(home.counts for home in self._homes.values())

    def _level(self) -> None:
        """Give homes that lack something what is free, and take what others can do without if that is not enough."""
        lacking = {index: home for index, home in self._homes.items() if home.lacks}
        if lacking:
            self._share_out(lacking)
        self.is_level = all(
            home.is_confirmed and not home.lacks for home in self._homes.values() if home.is_up
        )

    def _share_out(self, lacking: dict[int, _Home]) -> None:
        up = {index: home for index, home in self._homes.items() if home.is_up}
        lost = sum(home.counts for home in self._homes.values() if not home.is_up)
        parts = divide(self._limit - lost, {index: max(home.out, home.wanted) for index, home in up.items()})
        missing = sum(max(parts[index] - home.counts, 0) for index, home in lacking.items())
        # What was taken and is not confirmed yet will be free without a word more.
        coming = sum(home.counts - max(home.allowance, home.out) for home in up.values())
        if missing > self._free + coming:
            for index, home in up.items():
                if home.is_confirmed and home.allowance > parts[index]:
                    self._set(index, home, parts[index])
        for index, home in lacking.items():
            if home.is_confirmed:
                self._give(index, home, parts[index])

    def _give(self, index: int, home: _Home, part: int) -> None:
        """Raise an allowance up to its part, as far as that is free."""
        allowance = min(part, home.counts + self._free)
        if allowance > home.allowance:
            self._set(index, home, allowance)

    def _set(self, index: int, home: _Home, allowance: int) -> None:
        home.before, home.allowance = home.allowance, allowance
        frame = AllowanceFrame(self._shards.incarnation, allowance)
        self._shards.send(self._shards.shards[index], frame.frames())

    def validate(self) -> None:
        """Check that the limit holds whatever the homes do."""
        assert self._free >= 0, self._free
        assert all(
            min(home.allowance, home.before, home.out, home.wanted) >= 0 for home in self._homes.values()
        )


def divide(limit: int, needs: dict[int, int]) -> dict[int, int]:
    """Divide a limit: nobody gets more than needed while another lacks, and what is left all get alike.

    Example: 40 for needs of 3, 20 and 30 are 3, 18 and 19; 40 for needs of 3, 0 and 1 are 15, 12 and 13.
    """
    parts: dict[int, int] = {}
    left = max(limit, 0)
    for done, index in enumerate(sorted(needs, key=lambda index: needs[index])):
        parts[index] = min(needs[index], left // (len(needs) - done))
        left -= parts[index]
    for done, index in enumerate(parts):
        more = left // (len(parts) - done)
        parts[index] += more
        left -= more
    return parts
