"""Which flow has which partition: rules of the coordinator, by example and by a random machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.flows.partitions import Coordinator, Move, Step

DELAY_S = 5.0


def counts(coordinator: Coordinator, flows: list[int]) -> list[int]:
    return [len(coordinator.owned(flow)) for flow in flows]


def release_all(coordinator: Coordinator, moves: list[Move], now: float) -> list[Move]:
    """Let every flow hand off at once what it is asked for; gives what was given away for it."""
    given = []
    for move in moves:
        if move.step is not Step.GIVE:
            given += coordinator.released([(move.partition, move.epoch)], now, DELAY_S)
    return given


@pytest.mark.requirement("R101")
def test_the_first_flow_gets_every_partition_at_once() -> None:
    coordinator = Coordinator(4)
    moves = coordinator.bind(1, 0.0, DELAY_S)
    assert [(move.step, move.partition, move.flow) for move in moves] == [
        (Step.GIVE, partition, 1) for partition in range(4)
    ]
    assert coordinator.rebalance_at is None


def test_a_second_flow_waits_for_the_delay_and_the_hand_off() -> None:
    coordinator = Coordinator(4)
    coordinator.bind(1, 0.0, DELAY_S)
    assert coordinator.bind(2, 1.0, DELAY_S) == []
    assert coordinator.tick(5.9) == []
    taken = coordinator.tick(6.0)
    assert [(move.step, move.partition, move.flow) for move in taken] == [
        (Step.TAKE, 3, 1),
        (Step.TAKE, 2, 1),
    ]
    assert counts(coordinator, [1, 2]) == [4, 0], "the owner keeps what it is asked for until it let go"
    given = release_all(coordinator, taken, 6.5)
    assert [(move.step, move.flow) for move in given] == [(Step.GIVE, 2)] * 2
    assert counts(coordinator, [1, 2]) == [2, 2]


def test_a_fleet_that_starts_moves_its_partitions_once() -> None:
    coordinator = Coordinator(6)
    for flow in (1, 2, 3):
        coordinator.bind(flow, flow / 10, DELAY_S)
    moves = coordinator.tick(5.2)
    assert len(moves) == 4
    release_all(coordinator, moves, 5.2)
    assert counts(coordinator, [1, 2, 3]) == [2, 2, 2]
    assert coordinator.rebalance_at is None


def test_a_spare_flow_takes_over_at_once_when_another_goes() -> None:
    coordinator = Coordinator(2)
    for flow in (1, 2, 3):
        coordinator.bind(flow, 0.0, DELAY_S)
    release_all(coordinator, coordinator.tick(5.0), 5.0)
    assert counts(coordinator, [1, 2, 3]) == [1, 1, 0]
    moves = coordinator.unbind({1}, 9.0, DELAY_S)
    assert [(move.step, move.flow) for move in moves] == [(Step.GIVE, 3)]


def test_what_a_flow_had_goes_at_once_to_those_with_the_least() -> None:
    coordinator = Coordinator(6)
    for flow in (1, 2, 3):
        coordinator.bind(flow, 0.0, DELAY_S)
    release_all(coordinator, coordinator.tick(5.0), 5.0)
    coordinator.unbind({2}, 6.0, DELAY_S)
    assert counts(coordinator, [1, 3]) == [3, 3]
    assert coordinator.rebalance_at is None


def test_the_target_of_a_hand_off_that_goes_meanwhile_is_replaced() -> None:
    coordinator = Coordinator(2)
    coordinator.bind(1, 0.0, DELAY_S)
    coordinator.bind(2, 0.0, DELAY_S)
    (taken,) = coordinator.tick(5.0)
    coordinator.unbind({2}, 5.1, DELAY_S)
    (given,) = coordinator.released([(taken.partition, taken.epoch)], 5.2, DELAY_S)
    assert (given.step, given.flow) == (Step.GIVE, 1)


def test_the_end_of_a_hand_off_that_was_overtaken_changes_nothing() -> None:
    coordinator = Coordinator(2)
    coordinator.bind(1, 0.0, DELAY_S)
    coordinator.bind(2, 0.0, DELAY_S)
    (taken,) = coordinator.tick(5.0)
    coordinator.unbind({1}, 5.1, DELAY_S)  # its partitions went to flow 2
    assert counts(coordinator, [2]) == [2]
    assert coordinator.released([(taken.partition, taken.epoch)], 5.2, DELAY_S) == []
    assert coordinator.released([(0, taken.epoch + 100)], 5.2, DELAY_S) == []


def test_more_partitions_are_given_away_at_once_and_fewer_are_dropped_from_the_top() -> None:
    coordinator = Coordinator(2)
    coordinator.bind(1, 0.0, DELAY_S)
    coordinator.bind(2, 0.0, DELAY_S)
    release_all(coordinator, coordinator.tick(5.0), 5.0)
    grown = coordinator.resize(4, 10.0, DELAY_S)
    assert [(move.step, move.partition) for move in grown] == [(Step.GIVE, 2), (Step.GIVE, 3)]
    assert counts(coordinator, [1, 2]) == [2, 2]
    shrunk = coordinator.resize(1, 20.0, DELAY_S)
    assert [(move.step, move.partition) for move in shrunk] == [(Step.DROP, p) for p in (3, 2, 1)]
    assert release_all(coordinator, shrunk, 20.1) == []
    assert sorted(counts(coordinator, [1, 2])) == [0, 1]


class Machine(RuleBasedStateMachine):
    """Flows come and go, the queue grows and shrinks, hand-offs end late and in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(5)
        self.now = 0.0
        self.next_flow = 1
        self.flows: list[int] = []
        #: Partition -> flow, as the homes see it: a flow feeds on what it was given and has not let go.
        self.feeds: dict[int, int] = {}
        #: Hand-offs that the flows were asked for and have not ended.
        self.asked: list[Move] = []

    def follow(self, moves: list[Move]) -> None:
        epochs = [move.epoch for move in moves]
        assert epochs == sorted(dict.fromkeys(epochs)), "every change has a new epoch"
        for move in moves:
            assert move.flow in self.flows
            if move.step is Step.GIVE:
                assert move.partition not in self.feeds, "a partition with two owners"
                assert move.partition < self.coordinator.partitions
                self.feeds[move.partition] = move.flow
            else:
                assert self.feeds[move.partition] == move.flow
                assert (move.partition >= self.coordinator.partitions) == (move.step is Step.DROP)
                self.asked.append(move)

    @rule()
    def bind(self) -> None:
        self.flows.append(self.next_flow)
        self.follow(self.coordinator.bind(self.next_flow, self.now, DELAY_S))
        self.next_flow += 1

    @precondition(lambda self: self.flows)
    @rule(data=st.data())
    def unbind(self, data: Any) -> None:
        flow = data.draw(st.sampled_from(self.flows))
        self.flows.remove(flow)
        self.feeds = {partition: owner for partition, owner in self.feeds.items() if owner != flow}
        self.asked = [move for move in self.asked if move.flow != flow]
        self.follow(self.coordinator.unbind({flow}, self.now, DELAY_S))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def let_go(self, data: Any) -> None:
        move = data.draw(st.sampled_from(self.asked))
        self.end_hand_off(move)

    def end_hand_off(self, move: Move) -> None:
        self.asked.remove(move)
        assert self.feeds.pop(move.partition) == move.flow
        self.follow(self.coordinator.released([(move.partition, move.epoch)], self.now, DELAY_S))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def stale_word(self, data: Any) -> None:
        move = data.draw(st.sampled_from(self.asked))
        assert self.coordinator.released([(move.partition, move.epoch - 1)], self.now, DELAY_S) == []

    @rule(partitions=st.integers(1, 9))
    def resize(self, partitions: int) -> None:
        self.follow(self.coordinator.resize(partitions, self.now, DELAY_S))

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.follow(self.coordinator.tick(self.now))

    @invariant()
    def holds(self) -> None:
        self.coordinator.validate()
        for flow in self.flows:
            mine = sorted(partition for partition, owner in self.feeds.items() if owner == flow)
            assert self.coordinator.owned(flow) == mine
        if self.flows:
            assert all(partition in self.feeds for partition in range(self.coordinator.partitions))

    def teardown(self) -> None:
        """When nothing more happens, shares come to differ by at most one."""
        for _ in range(20):
            self.now += DELAY_S
            self.follow(self.coordinator.tick(self.now))
            while self.asked:
                self.end_hand_off(self.asked[0])
            self.coordinator.validate()
        if self.flows:
            shares = counts(self.coordinator, self.flows)
            assert max(shares) - min(shares) <= 1, shares
            assert sum(shares) == self.coordinator.partitions
        assert self.coordinator.rebalance_at is None


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=40)
