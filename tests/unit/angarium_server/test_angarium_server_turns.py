"""Unauthenticated connections have a slice of each turn of a loop, and wait in line when it is used up."""

from __future__ import annotations

from random import Random

import pytest

from angarium_server.connections.turns import PUT_OFF_MAX, SHARE, SLICE_MAX_S, SLICE_S, LoginTurns

pytestmark = pytest.mark.requirement("R230")

#: What a login costs, and one over TLS.
LOGIN_S, TLS_S = 0.0003, 0.0015


class Loop:
    """A loop in which unauthenticated connections come, and other work is done; its clock is its CPU time."""

    def __init__(self) -> None:
        self.turns: LoginTurns[int] = LoginTurns()
        self.now = 0.0
        self.served: list[int] = []
        self.came = 0

    def serve(self, who: int, cost_s: float) -> None:
        self.served.append(who)
        self.turns.spend(cost_s)
        self.now += cost_s

    def turn(self, coming: int = 0, besides_s: float = 0.0, cost_s: float = LOGIN_S) -> float:
        """Let so many come while something else is done; gives how long all of it took."""
        began = self.now
        for _ in range(coming):
            self.came += 1
            if self.turns.may_serve:
                self.serve(self.came, cost_s)
            else:
                self.turns.put_off(self.came)
        self.now += besides_s
        while (who := self.turns.next()) is not None:
            self.serve(who, cost_s)
        self.turns.validate()
        self.turns.end(self.now - began)
        return self.now - began


def test_a_few_are_served_at_once() -> None:
    loop = Loop()
    loop.turn(coming=5)
    assert (loop.served, loop.turns.put_off_total) == ([1, 2, 3, 4, 5], 0)


def test_a_storm_is_served_in_its_order_over_many_turns() -> None:
    loop = Loop()
    longest = loop.turn(coming=1_000)
    assert 0 < len(loop.served) < 20
    while loop.turns:
        longest = max(longest, loop.turn())
    assert loop.served == list(range(1, 1_001))
    assert longest <= SLICE_S + LOGIN_S


@pytest.mark.parametrize("cost_s", [LOGIN_S, TLS_S])
def test_a_loop_with_nothing_else_to_do_has_all_its_time_for_them(cost_s: float) -> None:
    loop = Loop()
    loop.turn(coming=1_000, cost_s=cost_s)
    while loop.turns:
        loop.turn(cost_s=cost_s)
    assert loop.now == pytest.approx(1_000 * cost_s)


@pytest.mark.parametrize("besides_s", [0.0001, 0.004, 0.02, 0.04])
def test_a_turn_becomes_half_as_long_again_at_most_and_they_get_their_third(besides_s: float) -> None:
    loop = Loop()
    loop.turn(coming=5_000, besides_s=besides_s)
    turns = [loop.turn(besides_s=besides_s) for _ in range(50)]
    assert max(turns) <= besides_s + max(SLICE_S, SHARE * besides_s) + LOGIN_S + 1e-9
    share = 1 - 50 * besides_s / sum(turns)
    assert share > 0.3


def test_one_long_turn_is_not_followed_by_a_second() -> None:
    loop = Loop()
    loop.turn(coming=2_000, besides_s=3.0)
    assert loop.turn() <= SLICE_MAX_S + LOGIN_S


def test_while_many_wait_nobody_else_is_accepted() -> None:
    loop = Loop()
    loop.turn(coming=PUT_OFF_MAX - 1)
    assert loop.turns.may_accept
    loop.turn(coming=2 * PUT_OFF_MAX, cost_s=TLS_S)
    assert not loop.turns.may_accept
    while not loop.turns.may_accept:
        loop.turn(cost_s=TLS_S)
    assert len(loop.turns) < PUT_OFF_MAX


def test_who_comes_while_others_wait_is_behind_them() -> None:
    loop = Loop()
    loop.turn(coming=100)
    assert not loop.turns.may_serve
    loop.turn(coming=1)
    assert loop.served == sorted(loop.served)
    assert loop.came not in loop.served
    assert loop.came in loop.turns


def test_who_is_gone_is_not_served() -> None:
    loop = Loop()
    loop.turn(coming=100)
    loop.turns.forget(99)
    loop.turns.forget(99)
    while loop.turns:
        loop.turn()
    assert 99 not in loop.served
    assert len(loop.served) == 99


def test_who_speaks_again_while_he_waits_keeps_his_place_and_is_counted_once() -> None:
    turns: LoginTurns[str] = LoginTurns()
    for who in ("a", "b", "a"):
        turns.put_off(who)
    assert turns.put_off_total == 2
    assert [turns.next(), turns.next(), turns.next()] == ["a", "b", None]


@pytest.mark.parametrize("seed", range(20))
def test_whoever_comes_is_served_once_in_order(seed: int) -> None:
    rng = Random(seed)
    loop = Loop()
    for _ in range(100):
        loop.turn(rng.randrange(40), rng.choice([0.0, 0.001, 0.01]), rng.choice([LOGIN_S, TLS_S]))
    while loop.turns:
        loop.turn()
    assert loop.served == list(range(1, loop.came + 1))
