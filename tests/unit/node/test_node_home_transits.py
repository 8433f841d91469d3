"""What of a lane is on its way to another endpoint is told with its figures, so that the router counts it once."""

from __future__ import annotations

from angarium import errors, wire
from node.home.lanes.moves import MOVE_ROWS
from tests.unit.node.driven_home import LANE, ROUTER, DrivenHome, rows_of
from tests.unit.node.moving_messages import LANES, ack, again, begun, reject_all

SIZE = 64 + len(b"m0")


def told(driven: DrivenHome) -> list[list[int]]:
    """Give what the router would be told of the lane: messages and bytes, and what of it moves."""
    held = driven.home.lanes.get(LANE)
    assert held is not None
    totals = held.totals()
    return [[totals.messages, totals.bytes], *([] if totals.moving is None else [list(totals.moving)])]


def test_what_moves_is_told_until_it_is_deleted_for_sure() -> None:
    driven = begun()
    reject_all(driven)
    assert told(driven) == [[3, 3 * SIZE], [1, 3, 3 * SIZE]]
    driven.moved(LANE, 1, 3)
    driven.tick()
    assert driven.begin_write()
    assert told(driven) == [[3, 3 * SIZE], [1, 3, 3 * SIZE]], "the deletion is not durable yet"
    driven.end_write()
    driven.settle_down(0.05)
    assert driven.totals[LANE] == [0, 0, 0, 0]


def test_what_was_refused_is_no_part_of_a_move_any_more() -> None:
    driven = begun()
    reject_all(driven)
    ack(driven, -1, (2, errors.SPOOL_OVER_QUOTA))
    assert told(driven) == [[1, SIZE]]


def test_a_new_process_and_a_new_router_are_told_too() -> None:
    driven = begun()
    reject_all(driven)
    again(driven)
    assert driven.totals[LANE][4:] == [True, [1, 3, 3 * SIZE]]
    driven.start(ROUTER + 1, LANES)
    assert driven.totals[LANE][4:] == [True, [1, 3, 3 * SIZE]]
    ack(driven)
    assert driven.totals[LANE] == [0, 0, 0, 0]


def test_messages_that_go_otherwise_are_no_part_of_it() -> None:
    driven = begun()
    reject_all(driven)
    driven.ask("endpoint.delete_messages", lane_id=LANE, positions=[2])
    assert told(driven) == [[2, 2 * SIZE], [1, 2, 2 * SIZE]]
    driven.ask("endpoint.purge", lane_id=LANE)
    assert told(driven) == [[0, 0], [1, 0, 0]]
    ack(driven)
    assert driven.totals[LANE] == [0, 0, 0, 0]


def test_what_is_copied_stays() -> None:
    driven = begun()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.ask("endpoint.move", lane_id=LANE, target=["queue", "default", "other"], copy=True)
    driven.settle_down(0.05)
    assert driven.moves[-1][0][-1] is None, "copies get a spool file of their own"
    assert told(driven) == [[3, 3 * SIZE]]


def test_the_end_of_a_move_is_told_before_the_next_one_of_the_lane() -> None:
    """The router counts by it, and knows one move of a lane."""
    driven = begun()
    reject_all(driven, MOVE_ROWS + 5)
    order: list[str] = []
    take = driven.home.take_frames

    def take_frames() -> list[list[bytes]]:
        frames = take()
        for frame in frames:
            if frame[0] == wire.MOVE:
                order.append("move")
            elif frame[0] == wire.COMMITTED:
                totals = wire.unpack(frame[1])[3]
                order.extend("over" for one in totals if one[0] == LANE and one[6] is None)
        return frames

    driven.home.take_frames = take_frames  # type: ignore[method-assign]
    driven.moved(LANE, 1, MOVE_ROWS)
    while "move" not in order:
        driven.tick()
        assert driven.write()
    assert order == ["over", "move"]
