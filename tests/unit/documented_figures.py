"""Which figures docs/metrics.md says go up and down in Prometheus, and which count.

The code that makes figures knows nothing of Prometheus, and `cluster.controller.health.metrics` knows only the
gauges: whatever is not documented as one of the two was forgotten.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cluster.controller.health.metrics import GAUGES

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| of `angarium_(\w+)_` \|(.*)\|(.*)\|$", re.MULTILINE)


class Kinds(NamedTuple):
    """The figures of one part of a node."""

    gauges: set[str]
    counters: set[str]


def documented() -> dict[str, Kinds]:
    """Give the figures of all parts."""
    rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    return {part: Kinds(_names(gauges), _names(counters)) for part, gauges, counters in rows}


def wrong_kinds(part: str, figures: Mapping[str, object]) -> list[str]:
    """Name the figures that Prometheus sees as something else than the page says, or that the page lacks."""
    kinds = documented()[part]
    # One that is not known yet is a number as well.
    numbers = [name for name, value in figures.items() if value is None or isinstance(value, int | float)]
    return [
        name for name in numbers if name not in (kinds.gauges if name in GAUGES[part] else kinds.counters)
    ]


def _names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))
