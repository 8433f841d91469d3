"""Where endpoints live: the home of each lane, and how many endpoints there are.

A lane's home is the worker that had the fewest lanes when the endpoint was created, and stays when workers are added;
only a worker that leaves gives its lanes away. The tallies here follow the objects of the catalog, so
that no limit is checked by counting them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from cluster.objects import Attributes

#: The counter of the config store that says how many workers are wanted; none before the first change.
WORKERS: Final = "workers"
#: The one that says how many workers stay, while the others give their lanes away; 0: all.
STAYING: Final = "workers_staying"
#: The one that is odd while lanes are to be moved.
BALANCE: Final = "balance"

_Key = TypeVar("_Key")


class Placement:
    """Lanes per worker, endpoints per Message VPN and per creator."""

    def __init__(self, workers: int) -> None:
        """Begin without endpoints on workers 0 .. workers - 1."""
        assert workers >= 1
        #: What the config store says of workers, by the name of its counter.
        self.counters = {WORKERS: workers, STAYING: 0, BALANCE: 0}
        #: Worker -> lanes that have their home there; also of workers that are gone.
        self.lanes: Counter[int] = Counter()
        #: Message VPN -> endpoints.
        self.in_vpn: Counter[str] = Counter()
        #: (Message VPN, created_by) -> endpoints.
        self.of_creator: Counter[tuple[str, str]] = Counter()

    @property
    def workers(self) -> int:
        """Among how many workers lanes get their homes: none that leaves is one of them."""
        return self.counters[STAYING] or self.counters[WORKERS]

    def copy(self) -> Placement:
        """Give one that can be changed without this one noticing."""
        made = Placement(self.workers)
        made.counters = dict(self.counters)
        made.lanes, made.in_vpn = Counter(self.lanes), Counter(self.in_vpn)
        made.of_creator = Counter(self.of_creator)
        return made

    def add(self, vpn: str, endpoint: Attributes) -> None:
        """Note an endpoint that exists from now on."""
        self.lanes.update(endpoint["homes"])
        self.in_vpn[vpn] += 1
        self.of_creator[vpn, endpoint["created_by"]] += 1

    def remove(self, vpn: str, endpoint: Attributes) -> None:
        """Note that an endpoint is gone; what counts nothing any more is forgotten."""
        for home in endpoint["homes"]:
            _take_one(self.lanes, home)
        _take_one(self.in_vpn, vpn)
        _take_one(self.of_creator, (vpn, endpoint["created_by"]))

    def lanes_from(self, worker: int) -> dict[int, int]:
        """Give the lanes per worker of those from this one on."""
        return {home: count for home, count in self.lanes.items() if home >= worker}

    def homes(self, lanes: int, kept: list[int] | None = None) -> list[int]:
        """Give a home for each lane: those that are kept, then the workers with the fewest lanes in turn."""
        homes = list(kept or ())
        load = Counter(self.lanes)
        while len(homes) < lanes:
            homes.append(min(range(self.workers), key=lambda worker: (load[worker], worker)))
            load[homes[-1]] += 1
        return homes

    def moved(self, homes: list[int]) -> list[int]:
        """Give the homes with other ones in place of those that are gone; the same list if none is."""
        load = Counter(self.lanes)
        moved = list(homes)
        for lane, home in enumerate(homes):
            if home >= self.workers:
                moved[lane] = min(range(self.workers), key=lambda worker: (load[worker], worker))
                load[moved[lane]] += 1
        return moved


def _take_one(tally: Counter[_Key], key: _Key) -> None:
    tally[key] -= 1
    if tally[key] <= 0:
        del tally[key]
