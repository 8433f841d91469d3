"""Metrics: each is declared once, and `/metrics`, docs/metrics.md and what a process counts follow from that.

A part of a node declares what it answers to `stats` as a table in a text, a line per metric or for a few alike:

    sessions             | gauge           | number          | clients that are logged in
    messages_in, bytes_in | counter        | messages, bytes | of retired rounds
    errors               | counter by code | number          | sent to clients
    node                 |                 |                 | its name

A gauge goes up and down; a counter counts from the start of its process; one `by` something is a map whose keys become
that label. What is neither is no number, or not one for `/metrics`. A line that begins with a blank goes on with the
one before.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
_BY: Final = " by "


class Metric(NamedTuple):
    """One metric."""

    name: str
    #: GAUGE, COUNTER or empty.
    kind: str
    #: What the keys of its map are; empty: it is a number.
    label: str
    unit: str
    meaning: str


class Metrics:
    """The metrics of one part of a node, in their order."""

    def __init__(self, part: str, *tables: str) -> None:
        """Read the tables; `part` is in the names on `/metrics`."""
        self.part = part
        #: Their lines: names, kind, unit, meaning.
        self.rows: Final = [
            [cell.strip() for cell in row.split("|", 3)]
            for table in tables
            for row in re.sub(r"\n +", " ", cleandoc(table)).splitlines()
        ]
        self._by_name = {metric.name: metric for row in self.rows for metric in _metrics(*row)}
        #: Counters that are numbers.
        self._counters = [one.name for one in self if one.kind == COUNTER and not one.label]

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def counted(self, totals: Mapping[str, int]) -> dict[str, int]:
        """Give each counter with its total, 0 if it is not there."""
        return {name: totals.get(name, 0) for name in self._counters}


def _metrics(names: str, kind: str, unit: str, meaning: str) -> Iterator[Metric]:
    kind, _, label = kind.partition(_BY)
    assert kind in (GAUGE, COUNTER, ""), names
    for name in names.split(", "):
        yield Metric(name, kind, label, unit, meaning)
