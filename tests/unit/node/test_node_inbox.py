"""The order in which a worker handles what came for matching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import wire
from node.matching.inbox import SMALL_BYTES, SMALL_IN_A_ROW, Inbox

SMALL, LARGE = b"small", b"x" * SMALL_BYTES


def _taken(inbox: Inbox) -> list[list[bytes]]:
    return [inbox.take() for _ in range(len(inbox))]


@pytest.mark.requirement("R278")
def test_small_batches_go_before_large_ones() -> None:
    inbox = Inbox()
    frames = [[wire.MATCH, LARGE], [wire.MATCH, LARGE], [wire.MATCH, SMALL], [wire.BUNDLE, SMALL]]
    for one in frames:
        inbox.put(one)
    assert _taken(inbox) == [*frames[2:], *frames[:2]]


def test_a_large_batch_waits_for_so_many_small_ones() -> None:
    inbox = Inbox()
    inbox.put([wire.MATCH, LARGE])
    for _ in range(2 * SMALL_IN_A_ROW):
        inbox.put([wire.MATCH, SMALL])
    assert _taken(inbox).index([wire.MATCH, LARGE]) == SMALL_IN_A_ROW


_FRAMES = st.tuples(st.sampled_from([wire.MATCH, wire.BUNDLE, wire.FILTERS, wire.RULES]), st.booleans())


@given(st.lists(st.one_of(_FRAMES, st.none()), max_size=60))
def test_nothing_goes_before_a_change_or_is_lost_or_before_another_of_its_kind(
    what: list[tuple[bytes, bool] | None],
) -> None:
    """None takes one."""
    inbox, number, put, taken = Inbox(), 0, [], []
    for one in what:
        if one is None:
            taken += [inbox.take()] if len(inbox) else []
            continue
        number += 1
        put.append([one[0], b"%d" % number, LARGE if one[1] else b""])
        inbox.put(put[-1])
    taken += _taken(inbox)
    assert sorted(taken, key=lambda frames: int(frames[1])) == put
    places = {frames[1]: place for place, frames in enumerate(taken)}
    for place, before in enumerate(put):
        for after in put[place + 1 :]:
            is_change = {before[0], after[0]} & {wire.FILTERS, wire.RULES}
            if is_change or before[2] == after[2]:
                assert places[before[1]] < places[after[1]]
