"""How queues are moved: what is asked of whom, in which order, and what becomes of it when somebody does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from cluster.catalog.placement import BALANCE, STAYING, WORKERS
from cluster.controller.switchboard import effects as c
from cluster.controller.workers import balancing
from storage.config_store import Change, Counter
from tests.unit.cluster.controller_world import World, replies

LARGE = balancing.LARGE_BYTES


class Moving:
    """A node with the queues a and b at worker 0, of two; its processes answer as they would."""

    def __init__(self) -> None:
        world = self.world = World(workers=1)
        world.answer(world.hello("router"), None)
        for index in range(2):
            world.hello("worker", index)
        world.news(router="ready", worker_0="ready", worker_1="ready")
        none = {"max_retained_mb": 0}
        world.answer(world.call("objects.update", kind="vpn", name="default", attributes=none), None, None)
        for name in "ab":
            world.answer(world.call("objects.create", kind="queue", name=name), None)
        world.catalog.take([Counter(WORKERS, 2)])
        #: Bytes that each queue holds.
        self.sizes = {"a": 0, "b": 100 * LARGE}
        self.is_caught_up = True
        self.importing = 0
        #: Operations that nobody answers.
        self.silent: set[str] = set()
        self.asked: list[tuple[str, Any]] = []
        self.seen: list[c.Effect] = []

    def homes(self, name: str) -> list[int]:
        found: list[int] = self.world.catalog.show("queue", "default", name)["homes"]
        return found

    def lane_id(self, name: str) -> int:
        return int(self.world.catalog.show("queue", "default", name)["id"]) << wire.LANE_BITS

    def reply(self, operation: str, arguments: Any, identity: bytes) -> Any:
        if operation == "stats" and identity.startswith(b"router"):
            return {"spool": {"homes_settled": [0, 1], "lanes_leaving": 0}}
        if operation == "stats":
            return {"home": {"lanes_importing": self.importing, "lanes_parting": 0}}
        if operation == "lane_loads":
            rates = {"a": 11.0, "b": 10.0}  # and an idle one that the node has made
            there = [one for one in "ab" if self.world.catalog.get("queue", "default", one)]
            return [[self.lane_id(one), 5, self.sizes[one], rates[one], 0.0] for one in there]
        if operation == "lane.copy":
            return {"messages": 5, "bytes": LARGE, "is_caught_up": self.is_caught_up}
        return None

    def go_on(self, seen: list[c.Effect]) -> None:
        """Let everybody answer, until nobody is asked anything."""
        while seen:
            effect = seen.pop(0)
            self.seen.append(effect)
            if isinstance(effect, c.Request):
                self.asked.append((effect.operation, effect.arguments))
                if effect.operation not in self.silent:
                    value = self.reply(effect.operation, effect.arguments, effect.identity)
                    seen += self.world.do(self.world.controller.answered(effect.number, value))

    def call(self, operation: str, **arguments: Any) -> list[Any]:
        before = len(self.seen)
        self.go_on(self.world.call(operation, **arguments))
        return replies(self.seen[before:])

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / balancing.STEP_S)):
            self.go_on(self.world.wait(balancing.STEP_S))

    def operations(self, name: str) -> list[Any]:
        return [arguments for operation, arguments in self.asked if operation == name]

    def events(self) -> list[str]:
        told = [effect.event["event"] for effect in self.seen if isinstance(effect, c.Record)]
        return [one for one in told if "QUEUES" in one or "BALANCED" in one]

    def states(self) -> dict[str, str]:
        (found,) = self.call("workers.balance.show")
        return {row["name"]: row["state"] for row in found["moves"]}


@pytest.fixture
def moving() -> Moving:
    return Moving()


def test_a_dry_run_shows_the_plan_and_changes_nothing(moving: Moving) -> None:
    (plan,) = moving.call("workers.balance", dry_run=True)
    assert [(row["name"], row["source"], row["target"], row["state"]) for row in plan["moves"]] == [
        ("a", 0, 1, "planned")
    ]
    assert [row["load"] for row in plan["workers"]] == [21.03, 0.0]
    assert [row["load_after"] for row in plan["workers"]] == [10.02, 11.01]
    moving.run(5.0)
    assert moving.homes("a") == [0]
    assert not [effect for effect in moving.seen if isinstance(effect, c.Commit)]


def test_a_large_queue_is_copied_and_gets_its_new_home_then(moving: Moving) -> None:
    moving.sizes["a"] = 3 * LARGE
    moving.is_caught_up = False
    moving.call("workers.balance", bytes_per_s=1 << 20)
    moving.run(2.0)
    assert moving.operations("lane.copy")[0] == {
        "lane_id": moving.lane_id("a"),
        "source": 0,
        "bytes_per_s": 1 << 20,
    }
    assert moving.states() == {"a": "copying"}
    assert moving.homes("a") == [0]
    moving.is_caught_up = True
    moving.run(0.5)
    assert moving.homes("a") == [1]
    moving.importing = 1
    moving.run(3.0)
    assert moving.states() == {"a": "taking over"}
    moving.importing = 0
    moving.run(3.0)
    assert moving.states() == {"a": "done"}
    assert moving.events() == ["SYSTEM_QUEUES_MOVED", "SYSTEM_BALANCED"]


def test_a_small_queue_needs_no_copy_before(moving: Moving) -> None:
    moving.call("workers.balance")
    moving.run(4.0)
    assert moving.homes("a") == [1]
    assert moving.homes("b") == [0]
    assert moving.operations("lane.copy") == []
    changes = [one for effect in moving.seen if isinstance(effect, c.Commit) for one in effect.changes]
    assert [one for one in changes if isinstance(one, Counter)] == [
        Counter("balance", 1),
        Counter("balance", 2),
    ]
    assert len([one for one in changes if isinstance(one, Change)]) == 1


def test_nothing_is_planned_while_a_worker_takes_something_over(moving: Moving) -> None:
    moving.importing = 1
    ((code, _),) = moving.call("workers.balance")
    assert code == errors.OBJECT_IN_USE


def test_a_worker_that_does_not_copy_gets_nothing(moving: Moving) -> None:
    moving.sizes["a"] = 3 * LARGE
    moving.silent.add("lane.copy")
    moving.call("workers.balance")
    for _ in range(200):
        moving.run(1.0)
    assert moving.homes("a") == [0]
    assert "SYSTEM_QUEUES_NOT_MOVED" in moving.events()


def test_a_queue_that_gets_more_than_may_be_copied_stays(moving: Moving) -> None:
    moving.sizes["a"] = 3 * LARGE
    moving.is_caught_up = False
    moving.call("workers.balance")
    moving.run(balancing.PATIENCE_MIN_S + 5.0)
    assert moving.homes("a") == [0]
    assert moving.events()[0] == "SYSTEM_QUEUES_NOT_MOVED"
    assert {"lane_id": moving.lane_id("a")} in moving.operations("lane.copy_end")


def test_who_stops_it_keeps_what_is_not_moved_yet(moving: Moving) -> None:
    moving.sizes["a"] = 3 * LARGE
    moving.is_caught_up = False
    moving.call("workers.balance")
    moving.run(1.0)
    moving.call("workers.balance.stop")
    moving.is_caught_up = True
    moving.run(10.0)
    assert moving.homes("a") == [0]
    assert moving.states() == {"a": "given up"}


@pytest.mark.parametrize("size", [0, 3 * LARGE])
def test_a_queue_whose_new_home_cannot_be_stored_is_said_to_stay(moving: Moving, size: int) -> None:
    moving.sizes["a"] = size
    moving.call("workers.balance")
    moving.world.takes = lambda commit: not any(isinstance(one, Change) for one in commit.changes)
    moving.run(2.0)
    assert moving.homes("a") == [0]
    assert moving.states()["a"] == "given up"
    moving.run(10.0)
    assert "SYSTEM_QUEUES_NOT_MOVED" in moving.events()
    assert "SYSTEM_QUEUES_MOVED" not in moving.events()
    assert ({"lane_id": moving.lane_id("a")} in moving.operations("lane.copy_end")) == (size > 0)


def test_the_next_controller_goes_on(moving: Moving) -> None:
    moving.world.catalog.take([Counter(BALANCE, 1)])
    moving.run(5.0)
    assert moving.homes("a") == [1]


def counters(moving: Moving) -> list[Counter]:
    commits = [effect for effect in moving.seen if isinstance(effect, c.Commit)]
    return [one for effect in commits for one in effect.changes if isinstance(one, Counter)]


def on_a_pair(moving: Moving) -> None:
    """Both queues are at worker 1 of a node with a standby."""
    for name in "ab":
        attributes = moving.world.catalog.get("queue", "default", name)
        assert attributes is not None
        moving.world.catalog.take([Change("queue", "default", name, {**attributes, "homes": [1]})])
    moving.world.news(2, router="ready", worker_0="ready", worker_1="ready")
    moving.world.do(moving.world.controller.pair(None))


@pytest.mark.requirement("R96", "R268")
def test_a_worker_of_a_pair_leaves_when_its_lanes_are_elsewhere(moving: Moving) -> None:
    """What it left on its disk would be shipped by nobody."""
    on_a_pair(moving)
    moving.is_caught_up = False
    assert moving.call("workers.scale", workers=1) == [{"workers": 1}]
    moving.run(2.0)
    assert moving.homes("a") == [0]
    assert moving.homes("b") == [1]
    assert [effect for effect in moving.seen if isinstance(effect, c.ScaleNode)] == []
    moving.is_caught_up = True
    moving.run(0.5)
    assert moving.homes("b") == [0]
    moving.importing = 1
    moving.run(3.0)
    assert [effect for effect in moving.seen if isinstance(effect, c.ScaleNode)] == []
    moving.importing = 0
    moving.run(5.0)
    assert [effect.workers for effect in moving.seen if isinstance(effect, c.ScaleNode)] == [1]
    assert counters(moving)[-4:] == [
        Counter("balance", 2),
        Counter("workers", 1),
        Counter("spools", 1),
        Counter("workers_staying", 0),
    ]


def test_a_new_queue_is_not_made_where_a_worker_leaves(moving: Moving) -> None:
    on_a_pair(moving)
    moving.call("workers.scale", workers=1)
    for name in ("new", "newer"):
        moving.call("objects.create", kind="queue", name=name)
        assert moving.homes(name) == [0]


def test_the_next_controller_lets_the_workers_leave(moving: Moving) -> None:
    on_a_pair(moving)
    moving.world.catalog.take([Counter(BALANCE, 1), Counter(STAYING, 1)])
    moving.run(10.0)
    assert moving.homes("a") == moving.homes("b") == [0]
    assert [effect.workers for effect in moving.seen if isinstance(effect, c.ScaleNode)] == [1]


def test_who_stops_it_keeps_the_workers_that_there_are(moving: Moving) -> None:
    on_a_pair(moving)
    moving.is_caught_up = False
    moving.call("workers.scale", workers=1)
    moving.run(1.0)
    moving.call("workers.balance.stop")
    moving.is_caught_up = True
    moving.run(10.0)
    assert moving.homes("b") == [1]
    assert moving.world.catalog.placement.workers == 2
    assert [effect for effect in moving.seen if isinstance(effect, c.ScaleNode)] == []
    assert Counter(STAYING, 0) in counters(moving)


@pytest.mark.requirement("R268")
def test_workers_of_a_pair_that_may_not_leave_keep_their_queues_and_get_new_ones(moving: Moving) -> None:
    """The config store had no room for it, and the command was refused."""
    on_a_pair(moving)
    moving.world.takes = lambda commit: not any(isinstance(one, Counter) for one in commit.changes)
    ((code, _),) = moving.call("workers.scale", workers=1)
    assert code == errors.INTERNAL
    moving.world.takes = lambda _: True
    moving.run(10.0)
    assert moving.homes("a") == moving.homes("b") == [1]
    for name in (new := ("new", "newer", "newest", "last")):
        moving.call("objects.create", kind="queue", name=name)
    assert [1] in [moving.homes(name) for name in new]
    assert [effect for effect in moving.seen if isinstance(effect, c.ScaleNode)] == []


@pytest.mark.requirement("R268")
def test_workers_of_a_pair_leave_as_soon_as_it_can_be_stored_that_they_have_nothing(moving: Moving) -> None:
    on_a_pair(moving)
    moving.call("workers.scale", workers=1)
    moving.world.takes = lambda commit: Counter(WORKERS, 1) not in commit.changes
    moving.run(20.0)
    assert moving.homes("a") == moving.homes("b") == [0]
    assert [effect for effect in moving.seen if isinstance(effect, c.ScaleNode)] == []
    assert "SYSTEM_BALANCED" not in moving.events()
    moving.world.takes = lambda _: True
    moving.run(5.0)
    assert [effect.workers for effect in moving.seen if isinstance(effect, c.ScaleNode)] == [1]
    assert moving.events()[-1] == "SYSTEM_BALANCED"


def test_queues_stay_if_it_cannot_be_stored_that_they_are_to_be_moved(moving: Moving) -> None:
    moving.world.takes = lambda commit: not any(isinstance(one, Counter) for one in commit.changes)
    ((code, _),) = moving.call("workers.balance")
    assert code == errors.INTERNAL
    moving.run(5.0)
    assert moving.homes("a") == [0]
    assert moving.states() == {}


def test_a_queue_that_gets_more_than_may_be_copied_goes_from_a_worker_that_leaves(moving: Moving) -> None:
    on_a_pair(moving)
    moving.is_caught_up = False
    moving.call("workers.scale", workers=1)
    moving.run(balancing.PATIENCE_MIN_S + 30.0)
    assert moving.homes("b") == [0]


def test_a_queue_that_is_deleted_meanwhile_is_left_out(moving: Moving) -> None:
    moving.sizes["a"] = 3 * LARGE
    moving.is_caught_up = False
    moving.call("workers.balance")
    moving.run(1.0)
    moving.call("objects.delete", kind="queue", name="a")
    moving.is_caught_up = True
    moving.run(5.0)
    assert moving.states()["a"] == "given up"
    assert moving.homes("b") == [0]


def test_a_queue_that_was_moved_stays_for_a_while(moving: Moving) -> None:
    moving.call("workers.balance")
    moving.run(4.0)
    (plan,) = moving.call("workers.balance", dry_run=True)
    assert plan["moves"] == []


def test_another_number_of_workers_waits_for_a_move_and_stops_the_rest(moving: Moving) -> None:
    moving.call("workers.balance")
    moving.importing = 1
    moving.run(1.0)
    assert moving.states() == {"a": "switching"}
    ((code, _),) = moving.call("workers.scale", workers=1)
    assert code == errors.OBJECT_IN_USE
    assert moving.states() == {"a": "given up"}
