"""Messages that leave their endpoint for another one."""

from __future__ import annotations

from typing import Any

from angarium import wire
from tests.unit.node.driven_home import (
    DMQ,
    LANE,
    OTHER,
    ROUTER,
    DrivenHome,
    rows_of,
    settings_of,
)

DEAD = "#DEAD_MSG_QUEUE"
QUEUE = settings_of("q", dead_message_queue=DEAD, max_redeliveries=1)
LANES = {LANE: QUEUE, OTHER: settings_of("other"), DMQ: settings_of(DEAD, dead_message_queue=DEAD)}


def begun(**changed: Any) -> DrivenHome:
    driven = DrivenHome()
    driven.start(ROUTER, {**LANES, LANE: {**QUEUE, **changed}})
    return driven


def again(driven: DrivenHome) -> None:
    driven.kill()
    driven.start(ROUTER, LANES)


def reject_all(driven: DrivenHome, count: int = 3, **row: Any) -> int:
    flow = driven.bind()
    driven.store(([LANE], rows_of(count, **row)))
    driven.settle_down()
    driven.settle(flow, (1, count), outcome=wire.OUTCOME_REJECTED)
    driven.settle_down(0.05)
    return flow


def ack(driven: DrivenHome, number: int = -1, *refused: tuple[int, int]) -> None:
    header, rows = driven.moves[number]
    lane_id, first = header[:2]
    driven.moved(lane_id, first, first + len(rows) - 1, *refused)
    driven.settle_down(0.05)
