"""Shapes of filters: how many filters of one owner could match one topic at the same time, at most.

A shape is where the wildcards of a filter stand, and how long the prefixes before them are:

    filter              shape
    devices/4711/*      //*         devices/4712/* has the same one
    devices/47*/temp    /2/
    devices/>           />
    devices/4711/temp   none

Of the filters of one shape at most one matches a given topic, because the topic says what stands in the other places.
So an owner with N shapes makes a topic match at most N of its filters, and each level of the search visits at most N
nodes for them, whoever publishes what. Real applications have a few shapes, however many filters; {a*,*} at 15 levels
has 32,768. What was rejected: searching for each new filter with a topic of its own. A set without its most special
filters passes, and costs nearly as much.

Share names count too: each is a filter of its own, and all of one pattern match together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium.topic import has_wildcard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.topic import Filter


def shape_of(pattern: str, share: str | None = None) -> str | None:
    """Give the shape of a pattern, for a share group if it is one's; None if it matches with no other one anyhow."""
    if not has_wildcard(pattern):
        return None if share is None else f"{share}="
    return _shape(pattern.split("/"), share)


def shape_of_filter(parsed: Filter) -> str | None:
    """Give the same for a filter that was taken apart."""
    if not parsed.wildcard:
        return None if parsed.share is None else f"{parsed.share}="
    return _shape(parsed.levels, parsed.share)


def _shape(levels: Sequence[str], share: str | None) -> str:
    places = [
        ("*" if level == "*" else str(len(level) - 1)) if "*" in level and level[-1] == "*" else ""
        for level in levels
    ]
    if levels[-1] == ">":
        places[-1] = ">"
    shape = "/".join(places)
    return shape if share is None else f"{share}={shape}"


class Shapes:
    """The shapes of the filters of one owner."""

    __slots__ = ("_counts", "known")

    def __init__(self) -> None:
        #: Shape -> filters that have it; no zeros.
        self._counts: dict[str, int] = {}
        #: The shapes: asked for each filter, so there is no call between.
        self.known: Final = self._counts.keys()

    def __len__(self) -> int:
        """Count the shapes."""
        return len(self._counts)

    def __contains__(self, shape: str) -> bool:
        return shape in self._counts

    def add(self, shape: str) -> None:
        """Count one more filter."""
        self._counts[shape] = self._counts.get(shape, 0) + 1

    def remove(self, shape: str) -> None:
        """Count one less; there is one."""
        left = self._counts[shape] - 1
        if left:
            self._counts[shape] = left
        else:
            del self._counts[shape]

    def remove_all(self, others: Shapes) -> None:
        """Count as many less as others have; they are of the same filters."""
        counts = self._counts
        for shape, count in others._counts.items():
            if counts[shape] == count:
                del counts[shape]
            else:
                counts[shape] -= count
