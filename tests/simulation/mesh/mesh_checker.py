"""Judges the history of a mesh by every rule there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation import safety_rules
from tests.simulation.history_index import Index, Violation
from tests.simulation.mesh import crossing_rules, demoted_rules, mesh_rules

if TYPE_CHECKING:
    from tests.simulation.mesh.mesh_history import MeshHistory

#: Rules of one node that hold for clients of a whole mesh too: its order, duplicates, leaks, deliver-to-one.
OF_EVERY_CLIENT = (
    safety_rules.order,
    safety_rules.duplicates,
    safety_rules.leaks,
    safety_rules.deliver_to_one,
    safety_rules.credit,
)
OF_DIRECT_MESSAGES = (
    mesh_rules.transit,
    mesh_rules.groups,
    mesh_rules.completeness,
    mesh_rules.strangers,
    mesh_rules.members,
    mesh_rules.deliver_to_one,
)
OF_GUARANTEED_MESSAGES = (
    crossing_rules.transit,
    crossing_rules.duplicates,
    crossing_rules.refusals,
    crossing_rules.stored_here,
    crossing_rules.stored_there,
    crossing_rules.carried,
    crossing_rules.order,
    crossing_rules.delivered,
    crossing_rules.times,
    crossing_rules.copies,
    crossing_rules.chosen,
)
OF_COPIES = (demoted_rules.completeness, demoted_rules.matches)


def check(history: MeshHistory) -> list[Violation]:
    """Give everything that is wrong with a history."""
    found = [Violation("broken", text) for text in history.shared.broken]
    index = Index(history.shared)
    for rule in OF_EVERY_CLIENT:
        found += rule(index)
    mesh_index = mesh_rules.MeshIndex(history, index)
    for direct in OF_DIRECT_MESSAGES:
        found += direct(mesh_index)
    crossing = crossing_rules.CrossingIndex(history)
    for guaranteed in OF_GUARANTEED_MESSAGES:
        found += guaranteed(crossing)
    for both in OF_COPIES:
        found += both(mesh_index, crossing)
    return found
