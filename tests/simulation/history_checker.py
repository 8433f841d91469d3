"""Judges the history of a run by every rule there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation import delivery_rules, safety_rules
from tests.simulation.history_index import Index, Violation

if TYPE_CHECKING:
    from tests.simulation.event_history import History

RULES = (
    safety_rules.order,
    safety_rules.duplicates,
    safety_rules.leaks,
    safety_rules.lateness,
    safety_rules.groups,
    safety_rules.deliver_to_one,
    safety_rules.credit,
    safety_rules.ends,
    delivery_rules.completeness,
    delivery_rules.groups,
    delivery_rules.deliver_to_one,
    delivery_rules.fairness,
    delivery_rules.losses,
    delivery_rules.refusals,
    delivery_rules.discards,
    delivery_rules.indications,
    delivery_rules.newest_values,
    delivery_rules.accounts,
)


def check(history: History, left_out: tuple[str, ...] = ()) -> list[Violation]:
    """Give everything that is wrong with a history, by all rules but those that are left out."""
    index = Index(history)
    found = [Violation("broken", text) for text in history.broken]
    for rule in RULES:
        if rule.__name__ not in left_out:
            found += rule(index)
    return found
