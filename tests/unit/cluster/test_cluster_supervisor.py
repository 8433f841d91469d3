"""The supervisor's state machine: no process, no clock; the test says what happens and when."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from angarium_server.frames.control import TableRow
from cluster.configuration.config import NodeConfig
from cluster.configuration.mqtt import MqttSection
from cluster.roster.table import STOP_ORDER, first_places
from cluster.supervisor import supervisor as s
from cluster.supervisor.supervisor import Supervisor

PLACES = [("controller", 0), ("router", 0), ("worker", 0), ("worker", 1)]


class Node:
    """A supervisor with pretended processes that exist as soon as they are spawned."""

    def __init__(self, places: list[tuple[str, int]] | None = None) -> None:
        self.machine = Supervisor(places or PLACES, first_incarnation=100)
        self.now = 1000.0
        self.effects: list[s.Effect] = []
        self.next_pid = 1
        self.do(self.machine.start(self.now))

    def do(self, effects: list[s.Effect]) -> list[s.Effect]:
        """Keep effects, and let what they ask for happen."""
        seen = []
        for effect in effects:
            seen.append(effect)
            if isinstance(effect, s.Spawn):
                pid, self.next_pid = self.next_pid, self.next_pid + 1
                seen += self.do(self.machine.spawned(effect.role, effect.index, pid, self.now))
        self.effects += seen
        self.machine.validate()
        return seen

    def wait(self, seconds: float, *, alive: bool = True, step: float = 0.25) -> list[s.Effect]:
        """Let time pass in steps, with heartbeats of all processes or none."""
        seen = []
        for _ in range(round(seconds / step)):
            self.now += step
            if alive:
                for place in self.machine.places.values():
                    if place.pid:
                        seen += self.beat(place.role, place.index)
            seen += self.do(self.machine.tick(self.now))
        return seen

    def beat(self, role: str, index: int = 0, state: str = "ready", **info: object) -> list[s.Effect]:
        place = self.machine.places[role, index]
        if role == "router":
            info = {"urls": ["tcp://127.0.0.1:5000"], **info}
        return self.do(self.machine.heartbeat(role, index, place.incarnation, (state, "", info), self.now))

    def all_ready(self) -> list[s.Effect]:
        return [effect for role, index in self.machine.places for effect in self.beat(role, index)]

    def exit(self, role: str, index: int = 0) -> list[s.Effect]:
        return self.do(self.machine.exited(role, index, "signal SIGKILL", self.now))

    def state(self, role: str, index: int = 0) -> str:
        return self.machine.places[role, index].state

    def spawns(self, role: str, index: int = 0) -> int:
        return sum(isinstance(e, s.Spawn) and (e.role, e.index) == (role, index) for e in self.effects)

    def names(self) -> list[str]:
        return [effect.event for effect in self.effects if isinstance(effect, s.Tell)]


@pytest.fixture
def node() -> Node:
    node = Node()
    node.all_ready()
    return node


@pytest.mark.requirement("R217")
def test_a_start_spawns_every_process_once() -> None:
    node = Node()
    assert [(e.role, e.index) for e in node.effects if isinstance(e, s.Spawn)] == PLACES
    assert [node.state(*place) for place in PLACES] == [s.STARTING] * 4


def test_incarnations_rise_and_are_never_used_twice(node: Node) -> None:
    node.exit("worker", 0)
    node.wait(1)
    numbers = [effect.incarnation for effect in node.effects if isinstance(effect, s.Spawn)]
    assert numbers == [100, 101, 102, 103, 104]


def test_the_node_is_ready_once_when_every_process_is() -> None:
    node = Node()
    for place in PLACES[:-1]:
        assert s.NodeReady() not in node.beat(*place)
    assert s.NodeReady() in node.beat(*PLACES[-1])
    node.exit("worker", 1)
    node.wait(2)
    assert node.effects.count(s.NodeReady()) == 1


def test_the_addresses_that_the_first_router_bound_are_kept(node: Node) -> None:
    node.exit("router")
    node.wait(1)
    node.beat("router", urls=["tcp://127.0.0.1:6000"])
    bound = [effect for effect in node.effects if isinstance(effect, s.Bound)]
    assert bound == [s.Bound(("tcp://127.0.0.1:5000",))]


def test_a_process_that_died_once_is_started_again_after_a_tenth_of_a_second(node: Node) -> None:
    node.exit("worker", 0)
    assert node.state("worker", 0) == s.RESTARTING
    assert node.machine.next_look_s(node.now) == pytest.approx(0.1)
    node.now += 0.11
    assert any(isinstance(effect, s.Spawn) for effect in node.do(node.machine.tick(node.now)))
    assert node.machine.places["worker", 0].restarts == 1


def test_deaths_in_a_row_double_the_wait_up_to_five_seconds(node: Node) -> None:
    waits = []
    for _ in range(9):
        node.exit("worker", 0)
        waits.append(round(node.machine.places["worker", 0].due - node.now, 3))
        node.wait(5.25)
        node.machine.places["worker", 0].ready_since = node.now  # no health counts in this test
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_thirty_healthy_seconds_forget_all_deaths(node: Node) -> None:
    place = node.machine.places["worker", 0]
    for _ in range(10):
        node.exit("worker", 0)
        node.now = place.due
        node.do(node.machine.tick(node.now))
        node.beat("worker", 0)
    assert place.deaths == 10
    node.wait(31)
    node.exit("worker", 0)
    assert place.due - node.now == pytest.approx(0.1)


def test_a_process_killed_every_six_seconds_is_always_back_at_once(node: Node) -> None:
    place = node.machine.places["worker", 0]
    for _ in range(30):
        node.exit("worker", 0)
        assert place.due - node.now <= 0.4
        node.wait(6)


def test_a_worker_that_dies_too_often_stays_stopped_and_the_node_goes_on(node: Node) -> None:
    for _ in range(s.DEATHS_MAX):
        node.exit("worker", 0)
        node.now = max(node.now, node.machine.places["worker", 0].due)
        node.do(node.machine.tick(node.now))
    assert node.state("worker", 0) == s.STOPPED
    assert node.names()[-1] == "SYSTEM_PROCESS_GIVEN_UP"
    assert not node.machine.stopping
    before = node.spawns("worker", 0)
    node.wait(60)
    assert node.spawns("worker", 0) == before


def test_a_router_that_dies_too_often_stops_the_node_with_a_failure(node: Node) -> None:
    for _ in range(s.DEATHS_MAX):
        node.exit("router")
        node.now = max(node.now, node.machine.places["router", 0].due)
        node.do(node.machine.tick(node.now))
    for place in (("worker", 0), ("worker", 1), ("controller", 0)):
        node.exit(*place)
    assert node.effects[-1] == s.Finish(s.STATUS_FAILED)


def test_a_process_that_cannot_start_at_first_fails_the_node_soon() -> None:
    node = Node()
    for _ in range(s.FIRST_START_DEATHS_MAX):
        node.exit("router")
        node.now += 1
        node.do(node.machine.tick(node.now))
    assert node.machine.stopping
    for place in (("worker", 0), ("worker", 1), ("controller", 0)):
        node.exit(*place)
    assert node.effects[-1] == s.Finish(s.STATUS_FAILED)


def test_a_process_that_cannot_even_be_spawned_counts_as_dead() -> None:
    machine = Supervisor([("router", 0)], first_incarnation=1)
    machine.start(0.0)
    effects = machine.spawn_failed("router", 0, "no such file", 0.0)
    assert any(isinstance(effect, s.Tell) and "no such file" in effect.text for effect in effects)
    assert machine.places["router", 0].state == s.RESTARTING


def test_five_silent_seconds_are_a_hang_and_are_told_from_a_death(node: Node) -> None:
    silent = node.machine.places["worker", 1]
    for _ in range(19):
        node.now += 0.25
        for place in PLACES[:-1]:
            node.beat(*place)
        node.do(node.machine.tick(node.now))
    assert node.state("worker", 1) == s.READY
    node.now += 0.25
    seen = node.do(node.machine.tick(node.now))
    assert node.state("worker", 1) == s.HUNG
    assert s.Kill("worker", 1, silent.pid) in seen
    assert "SYSTEM_PROCESS_HUNG" in node.names()
    assert "SYSTEM_PROCESS_DOWN" not in node.names()
    node.exit("worker", 1)
    assert "SYSTEM_PROCESS_DOWN" in node.names()
    assert node.state("worker", 1) == s.RESTARTING


def test_the_event_of_a_process_that_cannot_start_says_why(node: Node) -> None:
    node.exit("worker")
    node.wait(1.0)
    place = node.machine.places["worker", 0]
    told: tuple[str, str, dict[str, Any]] = ("starting", "cannot work: error 50322", {})
    node.do(node.machine.heartbeat("worker", 0, place.incarnation, told, node.now))
    (event,) = [one for one in node.exit("worker") if isinstance(one, s.Tell)]
    assert "said last: cannot work: error 50322" in event.text


def test_a_hung_process_is_killed_once(node: Node) -> None:
    node.wait(20, alive=False)
    assert sum(isinstance(effect, s.Kill) for effect in node.effects) == len(PLACES)


def test_a_last_heartbeat_of_a_killed_process_does_not_bring_it_back(node: Node) -> None:
    node.wait(5, alive=False)
    node.beat("worker", 0)
    assert node.state("worker", 0) == s.HUNG


def test_a_late_supervisor_gives_everybody_the_time_that_it_did_not_run(node: Node) -> None:
    node.now += 60
    assert node.do(node.machine.tick(node.now)) == []
    assert all(node.state(*place) == s.READY for place in PLACES)
    node.wait(6, alive=False)
    assert all(node.state(*place) == s.HUNG for place in PLACES)


def test_a_start_may_be_silent_for_long_if_it_reports_progress() -> None:
    node = Node()
    for _ in range(10):
        node.wait(20, alive=False)
        for place in PLACES:
            node.beat(*place, state="starting")
    assert all(node.state(*place) == s.STARTING for place in PLACES)


def test_a_start_without_progress_is_killed_and_says_what_it_did_last() -> None:
    node = Node()
    place = node.machine.places["worker", 0]
    node.do(node.machine.heartbeat("worker", 0, place.incarnation, ("starting", "reading", {}), node.now))
    node.wait(s.START_SILENCE_MAX_S + 1, alive=False)
    assert s.Kill("worker", 0, place.pid) in node.effects
    assert any("reading" in effect.text for effect in node.effects if isinstance(effect, s.Tell))


def test_heartbeats_of_an_earlier_incarnation_are_dropped(node: Node) -> None:
    node.exit("worker", 0)
    node.wait(0.25, alive=False)
    assert node.state("worker", 0) == s.STARTING
    node.do(node.machine.heartbeat("worker", 0, 102, ("ready", "", {}), node.now))
    assert node.state("worker", 0) == s.STARTING


def test_heartbeats_of_unknown_places_are_dropped(node: Node) -> None:
    assert node.machine.heartbeat("worker", 9, 1, ("ready", "", {}), node.now) == []


def test_everything_stops_in_the_order_of_the_list(node: Node) -> None:
    seen = node.do(node.machine.stop(node.now))
    assert [effect.role for effect in seen if isinstance(effect, s.Terminate)] == ["router"]
    seen = node.exit("router")
    assert [(e.role, e.index) for e in seen if isinstance(e, s.Terminate)] == [("worker", 0), ("worker", 1)]
    assert not any(isinstance(effect, s.Terminate) for effect in node.exit("worker", 1))
    seen = node.exit("worker", 0)
    assert [effect.role for effect in seen if isinstance(effect, s.Terminate)] == ["controller"]
    assert node.exit("controller")[-1] == s.Finish(0)
    assert [node.state(*place) for place in PLACES] == [s.STOPPED] * 4


def test_a_process_that_does_not_stop_is_killed_after_its_bound(node: Node) -> None:
    node.do(node.machine.stop(node.now))
    pid = node.machine.places["router", 0].pid
    node.wait(s.STOP_AFTER_S - 0.5)
    assert s.Kill("router", 0, pid) not in node.effects
    node.wait(1)
    assert s.Kill("router", 0, pid) in node.effects


def test_a_second_wish_to_stop_changes_nothing(node: Node) -> None:
    node.do(node.machine.stop(node.now))
    assert node.machine.stop(node.now) == []


def test_nothing_is_started_again_while_the_node_stops(node: Node) -> None:
    node.exit("worker", 0)
    node.do(node.machine.stop(node.now))
    before = len([effect for effect in node.effects if isinstance(effect, s.Spawn)])
    node.wait(10)
    assert len([effect for effect in node.effects if isinstance(effect, s.Spawn)]) == before
    assert node.state("worker", 0) == s.STOPPED


def test_a_node_without_live_processes_stops_at_once() -> None:
    node = Node([("worker", 0)])
    node.exit("worker", 0)
    assert s.Finish(0) in node.do(node.machine.stop(node.now))


def test_the_table_has_a_row_of_five_for_every_place(node: Node) -> None:
    assert node.machine.table()[1] == TableRow("router", 0, 101, "ready", 2)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_invariants_hold_and_a_stop_ends(seed: int) -> None:
    rng = random.Random(seed)
    node = Node()
    for _ in range(300):
        live = [key for key, place in node.machine.places.items() if place.pid]
        chosen = rng.choice([*node.machine.places])
        match rng.randrange(5):
            case 0 if chosen in live:
                node.exit(*chosen)
            case 1 if chosen in live:
                node.beat(*chosen, state=rng.choice(["starting", "ready", "stopping"]))
            case 2:
                node.now += rng.choice([0.05, 0.4, 3.0, 20.0])
                node.do(node.machine.tick(node.now))
            case 3:
                node.wait(1, alive=rng.random() < 0.7)
            case 4 if rng.random() < 0.02:
                node.do(node.machine.stop(node.now))
    node.do(node.machine.stop(node.now))
    for _ in range(len(PLACES)):
        for key, place in node.machine.places.items():
            if place.pid and place.stop_asked is not None:
                node.exit(*key)
    assert sum(isinstance(effect, s.Finish) for effect in node.effects) == 1, f"seed {seed}"


def test_more_workers_are_started_and_surplus_ones_end_when_the_router_does_without_them() -> None:
    supervisor = Supervisor([("controller", 0), ("router", 0), ("worker", 0)], first_incarnation=1)
    pids = iter(range(100, 200))

    def run(effects: list[s.Effect]) -> list[s.Effect]:
        for effect in effects:
            if isinstance(effect, s.Spawn):
                supervisor.spawned(effect.role, effect.index, next(pids), 0.0)
        return effects

    def beat(role: str, index: int, info: dict[str, int]) -> list[s.Effect]:
        incarnation = supervisor.places[role, index].incarnation
        return supervisor.heartbeat(role, index, incarnation, ("ready", "", info), 0.0)

    run(supervisor.start(0.0))
    assert [e.index for e in run(supervisor.scale(3, 0.0)) if isinstance(e, s.Spawn)] == [1, 2]
    assert len(supervisor.table()) == 5
    supervisor.scale(2, 0.0)
    assert not any(isinstance(e, s.Terminate) for e in beat("router", 0, {"workers": 3}))
    ended = [e for e in beat("router", 0, {"workers": 2}) if isinstance(e, s.Terminate)]
    assert [(e.role, e.index) for e in ended] == [("worker", 2)]
    assert not any(isinstance(e, s.Terminate) for e in beat("router", 0, {"workers": 2}))
    supervisor.exited("worker", 2, "status 0", 0.1)
    assert ("worker", 2) not in supervisor.places
    supervisor.validate()


def test_a_worker_that_is_wanted_again_while_it_leaves_gets_a_successor(node: Node) -> None:
    node.do(node.machine.scale(1, node.now))
    seen = node.beat("router", workers=1)
    assert [(effect.role, effect.index) for effect in seen if isinstance(effect, s.Terminate)] == [
        ("worker", 1)
    ]
    assert not any(isinstance(effect, s.Spawn) for effect in node.do(node.machine.scale(2, node.now)))
    seen = node.exit("worker", 1)
    assert [(effect.role, effect.index) for effect in seen if isinstance(effect, s.Spawn)] == [("worker", 1)]
    assert node.machine.places["worker", 1].restarts == 0


class TestLinks:
    def test_a_node_is_ready_without_its_links(self) -> None:
        node = Node()
        node.do(node.machine.want("link", [0], node.now))
        for role, index in PLACES:
            node.beat(role, index)
        assert node.machine.was_ready

    def test_processes_are_those_that_are_wanted(self, node: Node) -> None:
        node.do(node.machine.want("link", [0, 2], node.now))
        assert node.spawns("link", 0) == node.spawns("link", 2) == 1
        assert node.do(node.machine.want("link", [0, 2], node.now)) == []
        seen = node.do(node.machine.want("link", [2, 3], node.now))
        assert [effect.index for effect in seen if isinstance(effect, s.Terminate)] == [0]
        assert node.spawns("link", 3) == 1

    def test_one_that_is_wanted_back_while_it_goes_is_started_when_it_is_gone(self, node: Node) -> None:
        node.do(node.machine.want("link", [0], node.now))
        node.do(node.machine.want("link", [], node.now))
        node.do(node.machine.want("link", [0], node.now))
        assert node.spawns("link", 0) == 1
        node.exit("link", 0)
        assert node.spawns("link", 0) == 2

    def test_one_that_dies_comes_back_and_too_often_stays_away_and_the_node_goes_on(self, node: Node) -> None:
        node.do(node.machine.want("link", [0], node.now))
        for _ in range(s.DEATHS_MAX):
            assert node.state("link", 0) != s.STOPPED
            node.exit("link", 0)
            node.now = max(node.now, node.machine.places["link", 0].due)
            node.do(node.machine.tick(node.now))
        assert node.state("link", 0) == s.STOPPED
        assert not node.machine.stopping

    def test_links_stop_first(self, node: Node) -> None:
        node.do(node.machine.want("link", [0], node.now))
        seen = node.do(node.machine.stop(node.now))
        assert [effect.role for effect in seen if isinstance(effect, s.Terminate)] == ["link"]
        assert node.do(node.machine.want("link", [1], node.now)) == []


def test_a_node_says_that_it_stops_and_goes_on_for_the_time_it_is_given() -> None:
    node = Node()
    assert node.machine.phase == "starting"
    node.all_ready()
    assert node.machine.phase == "running"
    assert node.do(node.machine.withdraw(node.now, 3.0)) == [s.Announce()]
    assert node.machine.phase == "stopping"
    node.exit("worker", 1)
    assert [effect for effect in node.wait(2.0) if isinstance(effect, s.Spawn)], "it is a node like any other"
    assert not [effect for effect in node.effects if isinstance(effect, s.Terminate)]
    stopped = [effect for effect in node.wait(1.5) if isinstance(effect, s.Terminate)]
    assert [effect.role for effect in stopped] == ["router"]


def test_who_asks_twice_does_not_wait() -> None:
    node = Node()
    node.all_ready()
    node.do(node.machine.withdraw(node.now, 60.0))
    assert [
        effect.role
        for effect in node.do(node.machine.withdraw(node.now, 60.0))
        if isinstance(effect, s.Terminate)
    ]


def test_without_a_wait_a_node_stops_at_once() -> None:
    node = Node()
    node.all_ready()
    assert [
        effect.role
        for effect in node.do(node.machine.withdraw(node.now, 0.0))
        if isinstance(effect, s.Terminate)
    ]


def test_a_node_has_as_many_processes_of_a_role_as_its_configuration_says() -> None:
    """Those for MQTT are there with an address, after those that they need, and are gone before the router stops."""
    config = NodeConfig()
    without = [("controller", 0), ("router", 0), ("worker", 0), ("worker", 1)]
    assert first_places(config, 2) == without
    mqtt = MqttSection(listen=["tcp://127.0.0.1:1883"], processes=2)
    places = first_places(msgspec.structs.replace(config, mqtt=mqtt), 2)
    assert places == [*without, ("mqtt", 0), ("mqtt", 1)]
    assert STOP_ORDER.index("mqtt") < STOP_ORDER.index("router")
