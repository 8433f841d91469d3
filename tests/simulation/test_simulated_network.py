"""The simulated network loses, delays and orders frames as ZeroMQ does, and in no other way."""

from __future__ import annotations

import random

import pytest

from tests.simulation.simulated_network import Connection, Endpoint, Loop, Pipe

DELAY_MAX_S = 0.1


class Wire:
    """A pipe and what came out of it."""

    def __init__(self, seed: int) -> None:
        self.loop = Loop()
        self.got: list[int] = []
        self.times: list[float] = []
        self.ended_at: float | None = None
        self.pipe = Pipe(self.loop, random.Random(seed), DELAY_MAX_S, self._take, self._end)

    def _take(self, frames: list[bytes]) -> None:
        self.got.append(int(frames[0]))
        self.times.append(self.loop.now)

    def _end(self) -> None:
        self.ended_at = self.loop.now

    def send(self, first: int, last: int) -> None:
        for number in range(first, last):
            self.pipe.send([b"%d" % number])


@pytest.fixture(params=range(5))
def wire(request: pytest.FixtureRequest) -> Wire:
    return Wire(request.param)


def test_frames_come_in_order_once_and_after_different_times(wire: Wire) -> None:
    wire.send(0, 50)
    wire.loop.run_until(wire.loop.now + 1)
    assert wire.got == list(range(50))
    assert len(set(wire.times)) > 1
    assert wire.ended_at is None


def test_a_cut_loses_a_tail_and_nothing_else_and_is_noticed_after_the_rest(wire: Wire) -> None:
    wire.send(0, 20)
    wire.pipe.cut(is_noticed=True)
    wire.send(20, 30)
    wire.loop.run_until(wire.loop.now + 1)
    assert wire.got == list(range(len(wire.got)))
    assert len(wire.got) <= 20
    assert wire.ended_at is not None
    assert wire.ended_at >= max(wire.times, default=0.0)


def test_cuts_of_different_seeds_lose_different_tails() -> None:
    kept = []
    for seed in range(20):
        wire = Wire(seed)
        wire.send(0, 20)
        wire.pipe.cut(is_noticed=False)
        wire.loop.run_until(wire.loop.now + 1)
        assert wire.ended_at is None
        kept.append(len(wire.got))
    assert len(set(kept)) > 5


def test_a_partition_delays_everything_until_it_is_healed(wire: Wire) -> None:
    wire.pipe.stall()
    wire.send(0, 20)
    wire.loop.run_until(wire.loop.now + 5)
    assert wire.got == []
    wire.pipe.heal()
    wire.send(20, 30)
    wire.loop.run_until(wire.loop.now + 1)
    assert wire.got == list(range(30))


def test_a_cut_during_a_partition_is_noticed_only_after_it(wire: Wire) -> None:
    wire.send(0, 20)
    wire.pipe.stall()
    wire.pipe.cut(is_noticed=True)
    wire.loop.run_until(wire.loop.now + 5)
    assert wire.ended_at is None
    wire.pipe.heal()
    wire.loop.run_until(wire.loop.now + 1)
    assert wire.ended_at is not None
    assert wire.got == list(range(len(wire.got)))


def test_nothing_arrives_at_a_side_that_closed(wire: Wire) -> None:
    loop, got = wire.loop, wire.got
    ended: list[str] = []
    near = Endpoint(lambda frames: got.append(-1), lambda: ended.append("near"))
    far = Endpoint(lambda frames: got.append(int(frames[0])), lambda: ended.append("far"))
    connection = Connection(loop, random.Random(1), DELAY_MAX_S, near, far)
    connection.down.send([b"1"])
    connection.up.send([b"2"])
    connection.close_near(is_noticed=True)
    loop.run_until(loop.now + 1)
    assert got in ([], [2])
    assert ended == ["far"]


def test_the_death_of_the_listening_side_is_noticed_by_the_other_one() -> None:
    loop = Loop()
    ended: list[str] = []
    near = Endpoint(lambda frames: None, lambda: ended.append("near"))
    far = Endpoint(lambda frames: ended.append("frames at the dead"), lambda: ended.append("far"))
    connection = Connection(loop, random.Random(1), DELAY_MAX_S, near, far)
    connection.up.send([b"1"])
    connection.close_far()
    loop.run_until(loop.now + 1)
    assert ended == ["near"]


def test_things_due_at_the_same_time_happen_in_the_order_of_their_calls() -> None:
    loop = Loop()
    seen: list[int] = []
    for number in range(10):
        loop.at(1001.0, lambda number=number: seen.append(number))  # type: ignore[misc]
    loop.at(0.0, lambda: seen.append(-1))
    loop.run_until(1002.0)
    assert seen == [-1, *range(10)]
    assert loop.now == 1002.0
