"""What is told of a message in a mesh: what happened to it on each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.guaranteed import guaranteed_story

if TYPE_CHECKING:
    from tests.simulation.guaranteed.guaranteed_story import Line
    from tests.simulation.mesh.mesh_history import MeshHistory


def life_of(history: MeshHistory, what: str) -> list[Line]:
    """Give everything that happened to a guaranteed message, sorted; each line says on which node."""
    lines: list[Line] = []
    for name, records in history.nodes.items():
        found = [
            *guaranteed_story.life_of(records.guaranteed, what),
            *guaranteed_story.endpoints(records.guaranteed, what),
        ]
        lines += [(at, f"{name}: {text}") for at, text in found]
    return sorted(dict.fromkeys(lines))
