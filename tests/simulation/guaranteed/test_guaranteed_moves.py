"""Queues go to a new worker while they are used, and somebody dies at every step: the rules of all other runs hold."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from cluster.controller.workers import balancing
from node.home.lanes import copies, parting
from node.home.spool.writing import Task
from storage.spool import Table
from tests.share import short
from tests.simulation.guaranteed.holdings import holdings
from tests.simulation.guaranteed.stage import Stage, names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from node.home.lanes.parting import Parting

pytestmark = pytest.mark.requirement("R96", "R163", "R168", "R190")

SEEDS = [f"moves {number}" for number in range(short(1, long=12))]
LEAVING_SEEDS = [f"leaving {number}" for number in range(short(1, long=8))]
#: How often is looked whether a queue was moved, after the last death.
LOOKS_MAX = 300
#: Who dies; it is seen in a run that some die twice.
VICTIMS = ("source", "target", "router", "controller", "source and router", "target and router", "nobody")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a few messages take is copied early, in several steps."""
    monkeypatch.setattr(balancing, "LARGE_BYTES", 1)
    monkeypatch.setattr(copies, "STEP_SEGMENTS", 1)


def kill(stage: Stage, victim: str, source: int = 0) -> None:
    indices = {"source": source, "target": 1 - source}
    for one in victim.split(" and "):
        if one in indices:
            if stage.scenario.node.supervisor.workers.get(indices[one]) is not None:
                stage.kill_worker(indices[one])
        elif one == "router":
            stage.kill_router()
        elif one == "controller":
            stage.scenario.node.controller.kill()


def play(seed: str) -> tuple[Stage, list[Any]]:
    """Two queues of one worker are busy, another worker comes, and somebody dies some time."""
    rng = random.Random(seed)
    attributes = {"subscriptions": ["t/>"], "max_redelivery_count": 0}
    stage = Stage(seed, workers=1, orders=attributes, other={"subscriptions": ["t/>"]})
    producer, sent = stage.producer(), []
    flow = stage.flow("orders")
    for _ in range(12):
        sent += stage.publish(producer, *["t/1"] * 5)
        stage.wait(0.02)
    flow.settle_some(7)
    ask_for_another_worker(stage)
    victim = rng.choice(VICTIMS)
    fatal = {rng.randrange(90), rng.randrange(90)}
    for step in range(90):
        if step % 3 == 0:
            sent += stage.publish(producer, *["t/1"] * rng.randint(1, 3))
        if step % 10 == 0:
            flow.settle_some(rng.randint(1, 5))
        if step in fatal:
            kill(stage, victim)
        stage.wait(0.05)
        if step % 10 == 0:
            ask_for_another_worker(stage)
    for _ in range(LOOKS_MAX):
        if has_moved(stage):
            break
        ask_for_another_worker(stage)
        stage.wait(0.2)
    stage.wait(5.0)
    return stage, sent


def ask_for_another_worker(stage: Stage) -> None:
    """As an operator does: again, if it was refused because somebody was down."""
    if stage.scenario.node.supervisor.target < 2:
        stage.scale(2)


def has_moved(stage: Stage) -> bool:
    return sorted(stage.homes("orders") + stage.homes("other")) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_dies_while_queues_move_they_keep_everything(seed: str) -> None:
    stage, sent = play(seed)
    assert has_moved(stage), f"nothing was moved: {stage.homes('orders')}, {stage.homes('other')}"
    assert all(one.is_acked for one in sent)
    assert stage.on_disk("other") == names(sent)
    assert stage.finish() == []


@pytest.mark.slow
@pytest.mark.requirement("R268")
@pytest.mark.parametrize("seed", LEAVING_SEEDS)
def test_a_worker_of_a_pair_leaves_when_nothing_is_left_on_its_disk_whoever_dies(seed: str) -> None:
    """What a worker that has left has on its disk is shipped to a standby by nobody."""
    rng = random.Random(seed)
    attributes = {"subscriptions": ["t/>"], "max_redelivery_count": 0}
    stage = Stage(seed, workers=2, orders=attributes, other={"subscriptions": ["t/>"]})
    node = stage.scenario.node
    node.controller.have_standby()
    assert sorted(stage.homes("orders") + stage.homes("other")) == [0, 1]
    producer, sent = stage.producer(), []
    flow = stage.flow("orders")
    for _ in range(12):
        sent += stage.publish(producer, *["t/1"] * 5)
        stage.wait(0.02)
    flow.settle_some(7)
    victim, fatal = rng.choice(VICTIMS), {rng.randrange(60), rng.randrange(60)}
    for step in range(LOOKS_MAX):
        if node.supervisor.target == 1:
            break
        if step % 10 == 0:
            stage.scale(1)
        if step % 3 == 0 and step < 60:
            sent += stage.publish(producer, *["t/1"] * rng.randint(1, 3))
        if step in fatal:
            kill(stage, victim, source=1)
        stage.wait(0.05)
    assert node.supervisor.target == 1, "no worker has left"
    assert node.disks[1].disk.count(Table.LANES) == 0
    stage.wait(5.0)
    assert stage.homes("orders") + stage.homes("other") == [0, 0]
    assert all(one.is_acked for one in sent)
    assert stage.on_disk("other") == names(sent)
    assert stage.finish() == []


@pytest.mark.slow
def test_a_home_that_parts_with_a_lane_before_its_messages_are_on_disk_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mark comes before what the lane got and lost, which the new home then misses."""

    def begin(self: Parting, lane_ids: Any, now: float, wall_ms: int) -> None:
        for held in filter(None, map(self._lanes.get, lane_ids)):
            held.is_parting = held.is_parted = True
            held.tail, tail = held.stored, held.tail
            self._writing.add(Task(parting.LaneParted(held), changes=parting._marks(held)))
            held.tail = tail
            self._changes.end_flows(held, now, wall_ms)

    monkeypatch.setattr(parting.Parting, "begin", begin)
    found = set()
    for seed in SEEDS:
        try:
            stage, _ = play(seed)
            found |= {violation.rule for violation in stage.finish()}
        except AssertionError:
            found.add("assertion")
        if found:
            break
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [f"between {number}" for number in range(short(1, long=12))])
def test_a_home_that_dies_between_the_store_that_names_a_lane_and_the_mark_parts_with_it(
    monkeypatch: pytest.MonkeyPatch, seed: str
) -> None:
    """What it was told is on its disk, so the same STORE does not come again; and the new home waits for the mark."""
    begin, begun = parting.Parting.begin, list[int]()

    def noted(self: Parting, lane_ids: Iterable[int], now: float, wall_ms: int) -> None:
        begin(self, lane_ids, now, wall_ms)
        begun.extend(self._resting)

    monkeypatch.setattr(parting.Parting, "begin", noted)
    stage = Stage(seed, workers=1, orders={"subscriptions": ["t/>"]}, other={"subscriptions": ["t/>"]})
    disk = stage.scenario.node.disks[0].disk
    crash, keeping = disk.crash, random.Random(2)
    monkeypatch.setattr(disk, "crash", lambda _: crash(keeping))  # what it is writing is kept
    producer = stage.producer()
    sent = stage.publish(producer, *["t/1"] * 20)
    stage.wait(1.0)
    ask_for_another_worker(stage)
    for _ in range(100_000):
        if begun:
            break
        stage.wait(0.0001)
    stage.kill_worker(0)
    stage.wait(10.0)
    assert has_moved(stage)
    sent += stage.publish(producer, *["t/1"] * 20)
    stage.wait(3.0)
    assert all(one.is_acked for one in sent)
    assert stage.on_disk("orders") == stage.on_disk("other") == names(sent)
    assert stage.finish() == []


def moving() -> Stage:
    """A lane with twenty messages has just got its new home, whose disk is slow."""
    taking = {"subscriptions": ["t/>"]}
    stage = Stage("moving", workers=1, orders=taking, other=taking)
    stage.publish(stage.producer(), *["t/1"] * 20)
    stage.wait()
    stage.scale(2)
    for _ in range(LOOKS_MAX):
        if has_moved(stage):
            break
        stage.wait(0.02)
    assert has_moved(stage)
    stage.slow_disk(5.0, index=1)
    return stage


def test_the_node_is_looked_at_for_the_last_time_when_nothing_moves() -> None:
    """What a home parts with, and its new home has not taken over yet, is aside for a good reason."""
    stage = moving()
    stage.scenario._look()
    assert stage.scenario.history.broken == []


@pytest.fixture
def nobody_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home keeps what its new home has taken over."""

    def look(self: Parting, now: float, _wall_ms: int) -> None:
        self._next_look = now + parting.LOOK_S

    monkeypatch.setattr(parting.Parting, "work", look)


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_lets_go")
def test_a_home_that_never_lets_go_of_a_lane_is_found_out() -> None:
    stage = moving()
    stage.scenario._look()
    assert any("the last move: not within" in text for text in stage.scenario.history.broken)


@pytest.mark.usefixtures("nobody_lets_go")
def test_what_two_homes_have_counts_once() -> None:
    stage = moving()
    (lane,) = [one for one in ("orders", "other") if stage.homes(one) == [1]]
    held = []
    for _ in range(40):
        held.append(holdings(stage.scenario.node)[0][stage.endpoint(lane).id])
        stage.wait(0.2)
    assert len(stage.on_disk(lane)) == 40
    assert held == held[:1] * 40
