"""When a gateway process reads its clients: at once, unless so much comes that to wait for a moment pays."""

from __future__ import annotations

import pytest

from cluster.mqtt.crowd import LOOK_S, PACE_S, PACED_FROM, Pace


def offered(pace: Pace, per_s: float, seconds: float, began: float) -> int:
    """Let single messages come evenly, each read in a turn of its own unless they are to gather; count the turns."""
    turns, gathered, now = 0, 0, began
    for number in range(int(per_s * seconds)):
        now = began + number / per_s
        gathered += 1
        pace.look(now)
        if not pace.is_paced or now >= pace.read_at:
            pace.was_read(gathered, now)
            turns, gathered = turns + 1, 0
    return turns


@pytest.mark.parametrize("per_s", [1, 100, PACED_FROM * 0.8])
def test_few_messages_are_read_when_they_come(per_s: float) -> None:
    pace = Pace()
    assert offered(pace, per_s, 2.0, began=100.0) == int(per_s * 2.0)
    assert not pace.is_paced


@pytest.mark.parametrize("per_s", [PACED_FROM * 1.2, 10_000, 50_000])
def test_many_messages_are_read_once_in_a_while(per_s: float) -> None:
    pace = Pace()
    offered(pace, per_s, 3 * LOOK_S, began=100.0)
    assert pace.is_paced
    assert offered(pace, per_s, 1.0, began=101.0) <= 1 / PACE_S + per_s * 2 * LOOK_S


def test_it_ends_when_fewer_come() -> None:
    pace = Pace()
    offered(pace, 10_000, 1.0, began=100.0)
    offered(pace, 100, 3 * LOOK_S, began=101.0)
    assert not pace.is_paced


def test_one_that_comes_after_a_long_silence_is_read_at_once() -> None:
    pace = Pace()
    offered(pace, 10_000, 1.0, began=100.0)
    pace.look(200.0)
    assert not pace.is_paced
