"""When a router rests between turns: a model of its loop, with messages that come at given times."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from router.crowd import CROWD_MIN, INTERVAL_S, VAIN_S, CrowdPace

if TYPE_CHECKING:
    from collections.abc import Callable

#: CPU seconds of a turn, and of each message in it: about what they are on a slow machine.
TURN_S, MESSAGE_S = 60e-6, 30e-6
LOOK_S = 0.05
#: (when it comes, of whom).
Message = tuple[float, bytes]


class Loop:
    """A router's loop on a clock of its own."""

    def __init__(self, *, looks: bool = True) -> None:
        self.now = self.cpu_s = 0.0
        self.pace = CrowdPace(self.now, self.cpu_s)
        self.look_at = LOOK_S if looks else float("inf")
        self.turns = self.rests = 0
        #: How long each message waited until its turn began.
        self.waits: list[float] = []

    def turn(self, messages: list[Message]) -> None:
        """Take what is there, and rest if that is said."""
        self.turns += 1
        for came, client in messages:
            self.pace.heard(client)
            self.waits.append(self.now - came)
        took_s = TURN_S + MESSAGE_S * len(messages)
        self.cpu_s += took_s
        began, self.now = self.now, self.now + took_s
        if self.now >= self.look_at:
            self.pace.look(self.now, self.cpu_s)
            self.look_at = self.now + LOOK_S
        if self.pace.is_resting:
            self.pace.rested()
            self.rests += 1
            self.now = max(self.now, began + INTERVAL_S)

    def offer(self, per_s: float, seconds: float, clients: int) -> None:
        """Let messages come at random times, each of another client than the one before."""
        dice, comes, until = random.Random(7), self.now, self.now + seconds
        waiting: list[Message] = []
        number = 0
        while self.now < until:
            while comes <= self.now:
                waiting.append((comes, b"%d" % (number % clients)))
                number += 1
                comes += dice.expovariate(per_s)
            if waiting:
                self.turn(waiting)
                waiting = []
            else:
                self.now = comes

    def ask(self, seconds: float, clients: int) -> None:
        """Let each client publish when the one before has got its answer: no turn has two messages, ever."""
        until, number = self.now + seconds, 0
        while self.now < until:
            self.turn([(self.now, b"%d" % (number % clients))])
            number += 1


@pytest.mark.requirement("R226")
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda loop: loop.offer(2_000, 2.0, clients=1_000), id="it has time anyway"),
        pytest.param(lambda loop: loop.offer(8_000, 2.0, clients=CROWD_MIN - 1), id="few clients"),
    ],
)
def test_it_rests_never(load: Callable[[Loop], None]) -> None:
    loop = Loop()
    load(loop)
    assert not loop.rests


@pytest.mark.requirement("R226")
def test_a_crowd_that_keeps_it_busy_shares_turns() -> None:
    loop, hasty = Loop(), Loop(looks=False)
    for one in (loop, hasty):
        one.offer(7_000, 2.0, clients=1_000)
    assert loop.turns < 0.8 * hasty.turns
    assert loop.cpu_s < 0.85 * hasty.cpu_s
    assert sum(loop.waits) / len(loop.waits) < sum(hasty.waits) / len(hasty.waits) + INTERVAL_S
    assert len(loop.waits) == pytest.approx(len(hasty.waits), rel=0.01)


def test_it_goes_on_although_rests_have_made_it_less_busy() -> None:
    loop = Loop()
    loop.offer(6_000, 1.0, clients=1_000)
    before = loop.rests
    loop.offer(4_000, 1.0, clients=1_000)
    assert loop.rests - before > 1_000


def test_it_ends_when_fewer_come() -> None:
    loop = Loop()
    loop.offer(7_000, 1.0, clients=1_000)
    assert loop.pace.is_resting
    loop.offer(500, 3 * LOOK_S, clients=1_000)
    assert not loop.pace.is_resting


def test_rests_that_bring_nothing_are_not_tried_again_for_a_while() -> None:
    loop = Loop()
    loop.ask(2 * VAIN_S, clients=1_000)
    assert 0 < loop.rests * INTERVAL_S < 0.05 * 2 * VAIN_S
    loop.offer(7_000, 2 * VAIN_S, clients=1_000)
    assert loop.pace.is_resting
