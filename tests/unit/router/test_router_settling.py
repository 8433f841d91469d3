"""Rounds that carry decisions about stages to all homes: each is done, and told, whatever changes under way."""

from __future__ import annotations

from typing import Any

import pytest

from router.asking.asks import Asks
from router.ground.effects import AskController
from router.ground.ground import Outbox
from router.publishers import settling
from router.publishers.settling import Settlement, Settling

pytestmark = pytest.mark.requirement("R221")

NOW = 5.0


class World:
    """Streams, accounts and endpoints as far as they matter here."""

    def __init__(self) -> None:
        self.all_reported = self.all_at_home = True
        self.handovers = 0
        self.rounds: list[Settlement] = []
        self.outbox = Outbox()
        self.asks = Asks(self.outbox)
        self.done: list[str] = []
        self.settling = Settling(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.asks,
            lambda now: int(now * 1000),
        )

    def settle(self, release: list[int], drop: list[int], wall_ms: int, pending: Settlement) -> None:
        """Of the streams."""
        assert wall_ms == 5_000
        assert (release, drop) == (pending.release, pending.drop)
        self.rounds.append(pending)

    def decide(self, *release: int, drop: tuple[int, ...] = (), name: str = "") -> None:
        done = (lambda _: self.done.append(name)) if name else None
        self.settling.settle(release, drop, NOW, done)
        self.settling.validate()

    def stored(self) -> None:
        """All homes have the newest round."""
        self.settling.settled(self.rounds[-1])
        self.settling.go_on(NOW)
        self.settling.validate()

    def answer(self, *, ok: bool = True) -> list[Any]:
        """Answer what the controller is asked, and give it."""
        asked = [effect for effect in self.outbox.take() if isinstance(effect, AskController)]
        for effect in asked:
            assert effect.operation == "stage.settled"
            self.asks.answered(effect.ticket, ok, None, NOW)
        return [effect.arguments for effect in asked]


def test_a_round_is_told_when_all_homes_have_it() -> None:
    world = World()
    world.decide(3, 2, drop=(5,), name="a")
    assert [(one.release, one.drop) for one in world.rounds] == [([3, 2], [5])]
    assert (world.done, world.answer()) == ([], [])
    world.stored()
    assert world.done == ["a"]
    assert world.answer() == [{"release": [3, 2], "drop": [5]}]
    assert world.settling.stats() == {"stages_settling": 0, "stages_released": 2, "stages_dropped": 1}


def test_what_comes_while_a_round_is_under_way_is_the_next() -> None:
    world = World()
    world.decide(1, name="a")
    world.decide(1, 2, name="again")
    world.decide(3, drop=(4,), name="b")
    assert len(world.rounds) == 1
    world.stored()
    assert world.done == ["a"]
    assert (world.rounds[1].release, world.rounds[1].drop) == ([2, 3], [4])
    world.stored()
    assert world.done == ["a", "again", "b"]


def test_a_round_comes_again_if_a_lane_got_another_home_meanwhile() -> None:
    world = World()
    world.decide(1, drop=(2,), name="a")
    world.handovers += 1
    world.all_at_home = False
    world.stored()
    assert (world.done, len(world.rounds), world.answer()) == ([], 1, [])
    world.decide(7, name="b")
    world.all_at_home = True
    world.settling.go_on(NOW)
    assert (world.rounds[1].release, world.rounds[1].drop) == ([1, 7], [2])
    world.stored()
    assert world.done == ["a", "b"]


def test_a_round_comes_again_if_a_home_left_before_it_stored_it() -> None:
    world = World()
    world.decide(1, name="a")
    first = world.rounds[0]
    world.settling.again(first)
    world.settling.go_on(NOW)
    world.settling.settled(first)  # the other homes have it
    world.settling.go_on(NOW)
    assert (len(world.rounds), world.done) == (2, [])
    world.settling.again(first)
    world.stored()
    assert world.done == ["a"]


@pytest.mark.parametrize("what", ["all_reported", "all_at_home"])
def test_no_round_begins_before_every_lane_is_at_its_home(what: str) -> None:
    world = World()
    setattr(world, what, False)
    world.decide(1, name="a")
    assert world.rounds == []
    setattr(world, what, True)
    world.settling.go_on(NOW)
    world.stored()
    assert world.done == ["a"]


def test_the_controller_is_told_until_it_takes_it() -> None:
    world = World()
    world.decide(1, name="a")
    world.stored()
    assert world.answer(ok=False) == [{"release": [1], "drop": []}]
    world.decide(1, name="again")
    assert world.done == ["a", "again"], "the homes have it"
    world.decide(2)
    world.stored()
    assert world.answer() == [{"release": [1, 2], "drop": []}]
    world.settling.retry()
    assert world.answer() == []
    world.decide(1, name="later")
    assert len(world.rounds) == 3, "a home does nothing to a stage that it does not have"


def test_a_decision_about_nothing_is_done_at_once() -> None:
    world = World()
    world.all_at_home = False
    world.decide(name="a")
    assert world.done == ["a"]


def test_very_many_stages_are_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "ROUND_STAGES_MAX", 3)
    world = World()
    world.decide(1, 2, 3, 4, drop=(5, 6), name="a")
    world.stored()
    assert world.done == []
    world.stored()
    assert world.done == ["a"]
    assert [(one.release, one.drop) for one in world.rounds] == [([1, 2, 3], []), ([4], [5, 6])]


def test_what_the_controller_says_is_under_way_is_not_sent_twice() -> None:
    world = World()
    world.decide(1, drop=(2,))
    world.settling.told({"open": [9], "release": [1, 3], "drop": [2, 4], "newest": 9}, NOW)
    world.stored()
    assert (world.rounds[1].release, world.rounds[1].drop) == ([3], [4])
