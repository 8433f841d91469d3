"""From runs to rows: percentiles, medians over repetitions, and a row that compares two figures.

Pure functions and values; `benchmarks.report` shows rows.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from cluster.commands.bench.process import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness import Trial

#: The first part of a latency run, while caches fill, does not count.
WARM_UP_PART: Final = 0.05


class Better(StrEnum):
    """Which way a figure is good."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the result: our figure, what it is compared with, and whether the target is met."""

    name: str
    unit: str
    better: Better
    #: One figure per repetition; empty if nothing was measured.
    ours: Sequence[float]
    #: The same of what it is compared with; empty if there is nothing or it could not be measured.
    peer: Sequence[float] = ()
    #: Who `peer` is: a peer, or another of our own figures.
    against: str = ""
    #: What `ratio` is to reach at first; None if the row only informs.
    first_target: float | None = None
    #: What was sent, how it was counted, what was lost: everything that the name does not say.
    note: str = ""
    #: The command that installs the peer, if it is missing.
    install: str = ""
    #: What failed, if it failed.
    error: str = ""
    #: Whether figures of the same repetition belong together: one was taken directly after the other.
    is_paired: bool = False
    #: Anything else that explains the figure, such as CPU time per message and role.
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's, of the medians; of pairs the median of what each has."""
        if not self.ours or not self.peer or not statistics.median(self.peer):
            return None
        if self.is_paired:
            return statistics.median(ratios(self.ours, self.peer))
        return statistics.median(self.ours) / statistics.median(self.peer)

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the target; None if there is no target or no ratio."""
        ratio = self.ratio
        if ratio is None or self.first_target is None:
            return None
        if self.better is Better.HIGHER:
            return ratio >= self.first_target
        return ratio <= self.first_target

    def as_map(self) -> dict[str, Any]:
        """Give the row for JSON."""
        ratio = self.ratio
        found: dict[str, Any] = {
            "row": self.name,
            "ours": median_or_none(self.ours),
            "peer": median_or_none(self.peer),
            "ratio": None if ratio is None else round(ratio, 3),
            "first_target": self.first_target,
            "met": self.met,
            "unit": self.unit,
            "better": self.better.value,
            "against": self.against or None,
            "repetitions": len(self.ours),
            "ours_range": range_of(self.ours),
            "peer_range": range_of(self.peer),
            "note": self.note,
        }
        optional = {"install": self.install, "error": self.error, "details": self.details}
        return found | {name: value for name, value in optional.items() if value}


def ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Give ours divided by the peer's for each pair that has both."""
    return [one / other for one, other in zip(ours, peer, strict=True) if other]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Give what the true median is between in 95 of 100 such samples, by the order of the values alone.

    As many of them are below the median as heads come up of fair coins: half, and 0.98 times their root to either side.
    """
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    least = max(0, math.floor(len(values) / 2 - half))
    return ordered[least], ordered[-1 - least]


def median_or_none(values: Sequence[float]) -> float | None:
    """Give the median, rounded to what is worth reading, or None without values."""
    return shortened(statistics.median(values)) if values else None


def range_of(values: Sequence[float]) -> list[float] | None:
    """Give the least and the greatest value, or None without values."""
    return [shortened(min(values)), shortened(max(values))] if values else None


def shortened(value: float) -> float:
    """Round to four digits; whole numbers stay whole above that."""
    if not value or abs(value) >= 1_000:
        return float(round(value))
    return round(value, 3 - math.floor(math.log10(abs(value))))


def latency_us(trial: Trial, part: float) -> float:
    """Give a percentile of the latencies of a run in microseconds, without its warm-up."""
    latencies = trial.latencies_ns
    return percentile(latencies[int(len(latencies) * WARM_UP_PART) :], part) / 1_000


def router_us_per_round(trial: Trial) -> float:
    """Give the router's CPU time per round of the publisher, in microseconds."""
    return trial.cpu_s.get("router", 0.0) / max(1, trial.rounds) * 1e6


def broker_s_per_million(trial: Trial) -> float:
    """Give the broker's CPU seconds, all processes together, per million messages published."""
    clients = ("publisher", "subscribers")
    total = sum(seconds for role, seconds in trial.cpu_s.items() if role not in clients)
    return total / max(1, trial.published) * 1e6


def cpu_us_per_message(trials: Sequence[Trial]) -> dict[str, float]:
    """Give, by role, the CPU time per published message in microseconds, of the median run."""
    roles = dict.fromkeys(role for trial in trials for role in trial.cpu_s)
    return {
        role: shortened(
            statistics.median(trial.cpu_s.get(role, 0.0) / max(1, trial.published) * 1e6 for trial in trials)
        )
        for role in roles
    }
