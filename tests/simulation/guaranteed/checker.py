"""Judges the guaranteed half of a history by every rule there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.guaranteed import (
    density_rules,
    flow_rules,
    lane_replay,
    reader_rules,
    removal_rules,
    retained_rules,
    scan_rules,
    storage_rules,
    writer_rules,
)
from tests.simulation.guaranteed.index import GuaranteedIndex

if TYPE_CHECKING:
    from tests.simulation.event_history import History
    from tests.simulation.guaranteed.records import GuaranteedHistory
    from tests.simulation.history_index import Violation

RULES = (
    *storage_rules.RULES,
    *density_rules.RULES,
    *flow_rules.RULES,
    lane_replay.owners,
    lane_replay.limits,
    *removal_rules.RULES,
    *reader_rules.RULES,
    *retained_rules.RULES,
    *scan_rules.RULES,
    *writer_rules.RULES,
)


def check(history: History, guaranteed: GuaranteedHistory) -> list[Violation]:
    """Give everything that is wrong with the guaranteed half of a history."""
    index = GuaranteedIndex(history, guaranteed)
    found: list[Violation] = []
    for rule in RULES:
        found += rule(index)
    return found
