"""What each home may have delivered and not settled: parts of one limit that follow the need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from angarium import slots, wire
from router.admission.allowances import Allowances, divide
from router.admission.usage import HomeUsage
from router.ground.effects import SendWorker
from router.ground.ground import Outbox
from router.matching.shards import Shards
from router.sessions.interest import Interest

if TYPE_CHECKING:
    from router.sessions.session import Session

LIMIT = 40
HOMES = 4


class ModelHome:
    """A home that obeys ALLOWANCE when it takes it, later."""

    def __init__(self) -> None:
        self.inbox: list[int] = []
        self.allowance = 0
        self.out = 0
        self.ready = 0

    def deliver(self) -> None:
        given = max(min(self.allowance - self.out, self.ready), 0)
        self.out += given
        self.ready -= given

    @property
    def wanted(self) -> int:
        return self.out + self.ready if self.ready else 0


class Driven:
    """Allowances with homes that take and report what they are told to."""

    def __init__(self, homes: int = HOMES, limit: int = LIMIT) -> None:
        self.outbox = Outbox()
        interest: Interest[Session] = Interest()
        self.shards = Shards(homes, slots.slot_table(homes), 1, interest, self.outbox)
        #: What the router knows of each.
        self.usages = [HomeUsage() for _ in range(homes)]
        self.allowances = Allowances(limit, self.shards, self.usages.__getitem__)
        self.homes = [ModelHome() for _ in range(homes)]
        for index in range(homes):
            self.come(index)

    def come(self, index: int) -> None:
        """A new process, with nothing out; what was sent to the one before is lost."""
        self.hand_over()
        ready = self.homes[index].ready + self.homes[index].out
        self.homes[index] = ModelHome()
        self.homes[index].ready = ready
        self._tell(index)
        self.allowances.home_ready(index)

    def hand_over(self) -> int:
        """Put what was sent where the homes find it; gives how much it was."""
        sent, self.outbox.effects = self.outbox.effects, []
        for effect in sent:
            assert isinstance(effect, SendWorker)
            assert effect.frames[0] == wire.ALLOWANCE
            self.homes[effect.worker].inbox.append(wire.unpack(effect.frames[1])[1])
        return len(sent)

    def lose(self, index: int) -> None:
        self.allowances.shard_lost(self.shards.shards[index])

    def release(self, index: int) -> None:
        """None of the flows of a dead home is left."""
        self.homes[index].ready += self.homes[index].out
        self.homes[index].out = 0
        self.allowances.release(index)

    def take(self, index: int) -> None:
        self.hand_over()
        home = self.homes[index]
        if home.inbox:
            home.allowance = home.inbox.pop(0)
        home.deliver()

    def report(self, index: int) -> None:
        """Report, which the router looks at only if it may change something."""
        self._tell(index)
        if self.homes[index].wanted or not self.allowances.is_level:
            self.allowances.reported(index)
        self.allowances.validate()

    def _tell(self, index: int) -> None:
        home, usage = self.homes[index], self.usages[index]
        usage.allowance, usage.delivered_unacked, usage.wanted = home.allowance, home.out, home.wanted

    def settle(self, index: int, count: int) -> None:
        self.homes[index].out -= min(count, self.homes[index].out)
        self.homes[index].deliver()

    def run(self) -> list[int]:
        """Let everything happen that happens by itself; gives what each home has out."""
        for _ in range(20):
            for index in range(len(self.homes)):
                self.take(index)
                self.report(index)
        return [home.out for home in self.homes]


def test_all_begin_with_equal_parts() -> None:
    driven = Driven()
    driven.hand_over()
    assert [home.inbox for home in driven.homes] == [[10]] * HOMES


@pytest.mark.requirement("R195")
def test_one_home_may_have_the_whole_limit() -> None:
    driven = Driven()
    driven.homes[2].ready = 100
    assert driven.run() == [0, 0, 40, 0]


def test_who_needs_little_gets_it_from_who_has_much() -> None:
    driven = Driven()
    driven.homes[0].ready = 100
    driven.run()
    driven.homes[1].ready = 3
    assert driven.run() == [40, 0, 0, 0], "nothing is taken back that is out"
    driven.settle(0, 2)
    assert driven.run() == [38, 2, 0, 0], "what is settled goes to the one who lacks"
    driven.settle(0, 38)
    assert driven.run() == [37, 3, 0, 0]


def test_who_all_want_more_get_the_same() -> None:
    driven = Driven()
    for home in driven.homes:
        home.ready = 1_000
    assert driven.run() == [10] * HOMES


def test_a_limit_smaller_than_the_number_of_homes_holds_and_is_of_use() -> None:
    driven = Driven(limit=1)
    for home in driven.homes:
        home.ready = 5
    assert sum(driven.run()) == 1
    for _ in range(20):
        for index in range(HOMES):
            driven.settle(index, 1)
        driven.run()
    assert [home.ready for home in driven.homes] == [0] * HOMES, "everybody gets through"


def test_what_a_dead_home_delivered_counts_until_its_successor_is_there() -> None:
    driven = Driven()
    driven.homes[0].ready = 100
    driven.run()
    driven.lose(0)
    driven.homes[1].ready = 5
    assert driven.run()[1] == 0, "its consumers have the whole limit"
    driven.come(0)
    out = driven.run()
    assert out[1] == 5
    assert sum(out) == LIMIT


def test_what_a_dead_home_delivered_is_free_when_nobody_has_it() -> None:
    driven = Driven()
    driven.homes[0].ready = 100
    driven.run()
    driven.homes[1].ready = 50
    driven.lose(0)
    assert driven.allowances.lost == [0]
    driven.release(0)
    assert driven.run()[1] == 40
    driven.come(0)
    assert sum(driven.run()) == LIMIT


def test_what_a_home_had_that_left_is_for_the_others() -> None:
    driven = Driven()
    driven.homes[3].ready = 100
    driven.run()
    driven.homes[0].ready = 100
    driven.homes.pop()
    driven.allowances.homes_left(3)
    assert driven.run() == [40, 0, 0]


def test_nothing_is_sent_while_nobody_lacks_anything() -> None:
    driven = Driven()
    for home in driven.homes:
        home.ready = 9
    driven.run()
    for _ in range(3):
        for index in range(HOMES):
            driven.settle(index, 1)
            driven.report(index)
    assert driven.hand_over() == 0


@given(st.integers(0, 100), st.dictionaries(st.integers(0, 9), st.integers(0, 200), min_size=1))
def test_a_division_gives_all_of_it_and_nobody_too_much_while_another_lacks(
    limit: int, needs: dict[int, int]
) -> None:
    parts = divide(limit, needs)
    assert parts.keys() == needs.keys()
    assert sum(parts.values()) == limit
    least = min(
        (part for index, part in parts.items() if part < needs[index]), default=None
    )  # of those who lack something
    if least is not None:
        assert all(part <= min(needs[index], least + 1) for index, part in parts.items())


class AnyOrder(RuleBasedStateMachine):
    """Reports that come late, homes that die with ALLOWANCE under way: the sum is never above the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = Driven()
        self.dead: dict[int, int] = {}

    indices = st.integers(0, HOMES - 1)

    @rule(index=indices, messages=st.integers(1, 60))
    def publish(self, index: int, messages: int) -> None:
        self.driven.homes[index].ready += messages
        if index not in self.dead:
            self.driven.homes[index].deliver()

    @rule(index=indices)
    def take(self, index: int) -> None:
        if index not in self.dead:
            self.driven.take(index)

    @rule(index=indices)
    def report(self, index: int) -> None:
        if index not in self.dead:
            self.driven.report(index)

    @rule(index=indices, count=st.integers(1, 40))
    def settle(self, index: int, count: int) -> None:
        if index not in self.dead:
            self.driven.settle(index, count)

    @rule(index=indices)
    def die(self, index: int) -> None:
        if index not in self.dead:
            self.dead[index] = self.driven.homes[index].out
            self.driven.lose(index)

    @precondition(lambda self: self.driven.allowances.lost)
    @rule(choice=indices)
    def lose_all_flows(self, choice: int) -> None:
        lost = self.driven.allowances.lost
        self.driven.release(lost[choice % len(lost)])

    @precondition(lambda self: self.dead)
    @rule(choice=indices)
    def come_back(self, choice: int) -> None:
        index = sorted(self.dead)[choice % len(self.dead)]
        del self.dead[index]
        self.driven.come(index)

    @invariant()
    def the_limit_holds(self) -> None:
        assert sum(home.out for home in self.driven.homes) <= LIMIT
        self.driven.allowances.validate()

    def teardown(self) -> None:
        """In the end all of the limit is in use as long as somebody wants it."""
        for index in list(self.dead):
            self.driven.come(index)
        wanted = sum(home.out + home.ready for home in self.driven.homes)
        assert sum(self.driven.run()) == min(wanted, LIMIT)


@pytest.mark.requirement("R195", "R196")
def test_the_limit_holds_in_any_order_of_reports_and_deaths() -> None:
    run_state_machine_as_test(AnyOrder, settings=settings(stateful_step_count=40))
