"""Limits that cut work into steps, so small that a few messages take many of them.

What a node of millions of messages does in pieces, one of a simulated world does at once, and whatever comes between
two pieces never comes. Here a piece is a message or a few, or a lane or two, as a seed draws; what a limit is for does
not depend on how large it is, so every promise holds as before.
"""

from __future__ import annotations

import importlib
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.simulation import scenario
from tests.simulation.guaranteed import guaranteed_scenario
from tests.simulation.mesh import mesh_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What is played, and how often.
PLAYS: Final[tuple[tuple[Callable[[str], scenario.Outcome], int], ...]] = (
    (lambda seed: guaranteed_scenario.run(seed), 4),
    (lambda seed: guaranteed_scenario.run_changing(seed), 4),
    (lambda seed: mesh_scenario.run(seed), 1),
    (lambda seed: scenario.run(seed), 1),
)

#: How many of the limits a world has small: some, so that one piece of work is cut and the next one is not, or all.
SHARES: Final = (0.2, 0.5, 0.8, 1.0)
#: Module, the name of a limit in it (also where it was imported to), what it may be.
LIMITS: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "node.endpoints.effort": {"STEPS_PER_TURN": (1, 15_000, 40_000)},
    "node.backlog.backlog": {"_STEP_ROWS": (1, 3)},
    "node.backlog.lifetimes": {"SERVED_MAX": (1, 2), "SERVED_ROWS_MAX": (1, 3)},
    "node.endpoints.consumers": {
        "TURN_MAX": (1, 3),
        "RUNS_MAX": (1, 3),
        "BROWSED_MAX": (1, 4),
        "RANGE_ROWS_MAX": (1, 4),
    },
    "node.endpoints.flow": {"RESUMED_SEGMENTS_MAX": (1, 3)},
    "node.endpoints.lane": {"HAND_OUT_MAX": (1, 3)},
    "node.endpoints.reader": {"EXAMINED_MAX": (1, 3), "SKIPPED_MAX": (1, 3)},
    "node.endpoints.retained": {
        "STEP_ROWS": (1, 3),
        "PAGE_TOPICS": (1, 3),
        "GONE_MAX": (0, 2),
        "CHUNK_TOPICS": (2, 4),
    },
    "node.endpoints.topic_selector": {"EXAMINED_MAX": (1, 3)},
    "node.home.home": {"BINDS_PER_TICK": (1, 2), "LANES_PER_TICK": (1, 2), "ROWS_PER_STEP": (1, 3)},
    "node.home.lanes.adoption": {
        "STEP_SEGMENTS": (1, 3),
        "STEP_BYTES": (1, 300),
        "STEP_RECORDS": (1, 3),
        "SCAN_ROWS": (1, 3),
    },
    "node.home.lanes.jobs": {"STEP_ROWS": (1, 3), "STEP_BYTES": (1, 300), "LOOKED_AT_MAX": (1, 3)},
    "node.home.lanes.lane_changes": {"RECORDS_PER_WRITE": (1, 3), "LANES_PER_WRITE": (1, 2)},
    "node.home.lanes.moves": {
        "MOVE_ROWS": (1, 3),
        "MOVE_BYTES": (1, 300),
        "MOVES_MAX": (1,),
        "DEAD_HERE_MAX": (1, 3),
    },
    "node.home.lanes.outbox": {"FRAME_BYTES": (1, 300), "FRAME_PARTS": (1, 3)},
    "node.home.lanes.serving": {
        "ROWS_PER_TICK": (1, 200),
        "LANES_PER_TICK": (1, 2),
        "LANES_PER_TICK_MIN": (1,),
        "BINDS_PER_TICK": (1, 2),
        "RUNS_PER_BIND": (1, 2),
        "RETURNED_AT_ONCE": (0, 2),
    },
    "node.home.operations": {"EXAMINED_MAX": (1, 3)},
    "node.home.spool.held_lanes": {
        "RESERVED_LEAST": (1, 3),
        "RESERVED_MOST": (4, 8),
        "SHORT_PER_TICK": (1, 2),
        "RESTS_PER_TICK": (1, 2),
    },
    "node.home.spool.recovery": {"ROWS_PER_STEP": (1, 3)},
    "node.home.spool.repacking": {
        "SMALL_BLOCKS": (2, 4),
        "STEP_ROWS": (1, 5),
        "STEP_BYTES": (1, 300),
        "STEP_BLOCKS": (2, 3),
        "GONE_PER_STEP": (1, 3),
        "SPARSE_BYTES": (1, 300),
        "SMALL_ROWS": (1, 4),
    },
    "node.home.spool.stores": {"RELAXED_MAX": (2, 10)},
    "node.home.spool.writing": {"DEAD_PER_WRITE": (1, 3), "SWEPT_PER_TURN": (1, 2)},
    "node.matching.matching": {
        "RETIRED_PER_RESULT_MAX": (1, 2),
        "_SWEPT_PER_STEP": (1, 3),
        "_FORGOTTEN_PER_STEP": (1, 3),
    },
    "router.closing": {"SESSIONS_PER_TURN": (1, 2)},
    "router.flows.assignments": {"RELEASED_PER_TICK": (1,)},
    "router.flows.ends": {"STEP_MAX": (2, 4), "PIECE": (1, 2)},
    "router.flows.lane_questions": {"STEP_MAX": (2, 4), "PIECE": (1, 2)},
    "router.flows.partitions": {"COMPARED_MAX": (1, 30)},
    "router.guaranteed.endpoint_filters": {"STEP_MAX": (2, 4), "PIECE": (1, 2)},
    "router.guaranteed.lanes": {"PUTS_MAX": (1, 2)},
    "router.matching.copies": {"LATE_WORK_MAX": (1, 50)},
    "router.matching.feed": {"FRAME_LEVELS_MAX": (2, 8)},
    "router.matching.fast_path": {"_SWEPT_PER_STEP": (1, 3), "_TESTED_MAX": (1, 5)},
    "router.matching.pieces": {"_OPENED_PER_STEP": (1, 3), "_CROWD_STEPS": (1,), "_CROWD_SETS_MAX": (1, 2)},
    "router.operators": {"REVIEWS_PER_STEP": (1, 2)},
    "router.publishers.gathering": {"STEP_MAX": (1, 2)},
    "router.publishers.settling": {"ROUND_STAGES_MAX": (1, 2)},
    "router.sessions.interest": {"_SWEPT_SETS_MAX": (1, 2), "_SWEPT_FILTERS_MAX": (1, 3)},
    "router.sessions.producer": {"TOLD_MIN": (1, 3)},
    "router.sessions.splice": {"NOTED_MAX": (1, 3)},
    "router.subscriptions.subscriptions": {"STEP_MAX": (2, 4), "PIECE": (1, 2)},
}


def run(seed: str) -> scenario.Outcome:
    """Run one seed of one of the other worlds, with limits that the seed draws too, and judge it."""
    rng = random.Random(f"{seed} steps")
    (play,) = rng.choices([play for play, _ in PLAYS], [weight for _, weight in PLAYS])
    with small(rng):
        return play(seed)


@contextmanager
def small(rng: random.Random) -> Iterator[dict[str, int]]:
    """Let limits be small, as many and as small as is drawn; gives them by name."""
    share = rng.choice(SHARES)
    before: list[tuple[object, str, int]] = []
    changed = {}
    for module_name, limits in LIMITS.items():
        module = importlib.import_module(module_name)
        for name, values in limits.items():
            before.append((module, name, getattr(module, name)))
            if rng.random() < share:
                value = changed[f"{module_name}.{name}"] = rng.choice(values)
                setattr(module, name, value)
    try:
        yield changed
    finally:
        for changed_module, name, value in before:
            setattr(changed_module, name, value)
