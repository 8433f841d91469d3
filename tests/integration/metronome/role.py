"""What a metronome is among the processes of a node."""

from __future__ import annotations

from typing import Final

from cluster.roles.role import Figures, Role

METRONOME: Final = Role(
    name="metronome",
    module="cluster.metronome",
    runtime=lambda now: {"node": now.node.node, "interval_s": 0.1},
    stop_turn=25,
    serves_clients=True,
    figures=Figures(gauges=frozenset(("interval_s",))),
)
