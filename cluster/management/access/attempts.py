"""How often logins may fail: who guesses is slowed down, and nobody can shut somebody else out. Time is a parameter.

Attempts are counted before a password is compared, or many at once would be free; one that fits, or that was never
compared, is given back. Three things are counted:

    a network       so many failures from it, whatever the names
    a name          so many failures with it from all networks that nobody has logged in from with it
    both together   a network from which the name has logged in before: it has a count of its own, and the others do
                    not reach it. And a network that tries a name for the first time is always heard once, so that
                    whoever knows the password comes in, however many networks fail with his name meanwhile.

What all networks together may try is bounded by how many passwords are compared at once (`logins`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from router.ground.ground import TokenBucket

#: Attempts that fail: from one network, and with one name from networks that it is not known from.
ADDRESS_BURST: Final = 10
ADDRESS_PER_S: Final = 0.2
NAME_BURST: Final = 50
NAME_PER_S: Final = 1.0
#: Networks, names, and pairs of both that are known; with more, the one that was quiet for longest is forgotten.
WATCHED_MAX: Final = 10_000

_Key = str | tuple[str, str]


class Failures:
    """How often each of some keys may fail."""

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        #: Those that failed lately, the last one at the end.
        self._buckets: OrderedDict[_Key, TokenBucket] = OrderedDict()

    def __contains__(self, key: _Key) -> bool:
        return key in self._buckets

    def take(self, key: _Key, now: float) -> bool:
        """Count an attempt; false if there were too many."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= WATCHED_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = TokenBucket(self._per_s, self._burst, now)
        self._buckets.move_to_end(key)
        return bucket.take(now)

    def give_back(self, key: _Key) -> None:
        """Count one less: it did not fail."""
        if bucket := self._buckets.get(key):
            bucket.level = min(bucket.burst, bucket.level + 1.0)


#: What an attempt was counted at.
Taken = list[tuple[Failures, _Key]]


class Attempts:
    """All attempts at names and passwords."""

    def __init__(self) -> None:
        self._of_networks = Failures(ADDRESS_BURST, ADDRESS_PER_S)
        self._of_names = Failures(NAME_BURST, NAME_PER_S)
        #: Both together, network and name: every pair that was tried lately.
        self._of_pairs = Failures(ADDRESS_BURST, ADDRESS_PER_S)
        #: Pairs that have logged in, the one that did it last at the end.
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def knows(self, network: str, name: str) -> bool:
        """Tell whether a name has logged in from a network before."""
        return (network, name) in self._known

    def take(self, network: str, name: str, now: float) -> Taken | None:
        """Count an attempt; None if there were too many, and this one is not to be compared."""
        pair = (network, name)
        is_first = pair not in self._of_pairs
        wanted: Taken = [(self._of_pairs, pair)]
        if pair not in self._known:
            wanted += [(self._of_networks, network), *([] if is_first else [(self._of_names, name)])]
        taken: Taken = []
        for failures, key in wanted:
            if not failures.take(key, now):
                self.give_back(taken)
                return None
            taken.append((failures, key))
        return taken

    def give_back(self, taken: Taken) -> None:
        """Count one less: it was not compared."""
        for failures, key in taken:
            failures.give_back(key)

    def fitted(self, network: str, name: str, taken: Taken) -> None:
        """Count one less, and know the pair from now on: the password fits."""
        self.give_back(taken)
        self._known[network, name] = None
        self._known.move_to_end((network, name))
        if len(self._known) > WATCHED_MAX:
            self._known.popitem(last=False)
