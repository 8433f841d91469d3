"""Stories of a mesh that seeds do not draw: operators change links, queues fill, rings just work."""

from __future__ import annotations

import pytest

from angarium import errors, wire
from tests.share import some
from tests.simulation.guaranteed.records import PUBLICATION_MARK, Stored
from tests.simulation.mesh.mesh_stage import VPN, MeshStage

#: Some take more than a quarter of a second.
pytestmark = pytest.mark.slow


def crossed(stage: MeshStage, node: str, name: str) -> list[str]:
    """Give the publications that consumers of a queue of a node got, in their order."""
    records = stage[node].guaranteed
    endpoint = stage[node].node.controller.endpoint(VPN, "queue", name)
    assert endpoint is not None
    return [
        delivery.what
        for flow in records.flows
        if flow.endpoint_id == endpoint.id
        for delivery in flow.deliveries
        if delivery.what.startswith(PUBLICATION_MARK)
    ]


@pytest.mark.requirement("R78", "R91", "R167", "R214")
@pytest.mark.parametrize("topology", some(("pair", "line", "ring", "triangle", "full"), of=2))
def test_in_every_topology_each_neighbour_gets_everything_once(topology: str) -> None:
    stage = MeshStage(topology, topology)
    made = {name: stage.publish(name, "t/1/1", "t/2/2") for name in stage.scenario.plays}
    for name in made:
        stage.say(name, "t/1/1", "t/1/2", flags=wire.FLAG_DTO)
    stage.wait(1.0)
    for name, play in stage.scenario.plays.items():
        reach = [name, *play.records.neighbours]
        expected = sorted(f"g{one.number}" for other in reach for one in made[other])
        assert sorted(crossed(stage, name, "q0")) == expected
    assert stage.finish() == []


@pytest.mark.parametrize("side", some(("a", "b"), of=2))
def test_a_link_that_is_deleted_and_made_again_joins_the_nodes_again(side: str) -> None:
    stage = MeshStage(f"again at {side}")
    other = "b" if side == "a" else "a"
    stage.publish(side, "t/1/1")
    stage.wait()
    node = stage[side].node
    node.remove("link", "", other)
    stage.wait(1.0)
    assert stage.scenario.missing() != []
    assert node.controller.endpoint(VPN, "queue", f"#link/{other}") is None
    node.join(other)
    stage.wait(8.0)
    assert stage.scenario.missing() == []
    stage.publish("a", "t/1/2")
    stage.publish("b", "t/1/3")
    assert stage.finish() == []


@pytest.mark.parametrize("side", some(("a", "b"), of=2))
def test_a_link_that_is_switched_on_while_the_controller_is_down_comes_back(side: str) -> None:
    stage = MeshStage(f"off at {side}")
    stage.scenario.faults.switch_off(side, "b" if side == "a" else "a", 0.4)
    stage.wait(0.35)
    stage[side].node.controller.kill()
    stage.wait(0.1)
    assert not stage[side].node.controller.is_up
    stage.publish(side, "t/1/1")
    assert stage.finish() == []


@pytest.mark.parametrize("side", some(("a", "b"), of=2))
def test_a_message_vpn_that_is_shut_for_a_while_is_joined_again(side: str) -> None:
    stage = MeshStage(f"shut at {side}")
    stage[side].node.define("vpn", "", VPN, enabled=False)
    stage.wait(2.0)
    other = "b" if side == "a" else "a"
    stage.publish(other, "t/1/1", "t/1/2")
    stage.wait(1.0)
    stage[side].node.define("vpn", "", VPN, enabled=True)
    stage.wait(10.0)
    assert stage.scenario.missing() == []
    assert stage.finish() == []
    assert crossed(stage, side, "q0")[:2] == ["g0", "g1"]


@pytest.mark.requirement("R167")
def test_what_found_no_room_over_there_comes_when_there_is_some_and_what_is_behind_it_goes_on() -> None:
    stage = MeshStage("room", queues={"q1": {"subscriptions": ["s/1"], "max_message_bytes": 1}})
    refused = stage.publish("a", "s/1")
    behind = stage.publish("a", "t/1/1")
    stage.wait(1.0)
    assert refused[0].refused_at < float("inf"), "its own node has such a queue too"
    stage["a"].node.define("queue", VPN, "q1", max_message_bytes=1_000)
    stage.wait()
    tried = stage.publish("a", "s/1")
    stage.wait(1.0)
    assert tried[0].is_acked
    stage["b"].node.define("queue", VPN, "q1", max_message_bytes=1_000)
    stage.wait(8.0)
    assert crossed(stage, "b", "q0") == [f"g{one.number}" for one in behind]
    assert stage.finish() == []
    assert crossed(stage, "b", "q1") == [f"g{tried[0].number}"]


@pytest.mark.requirement("R167")
def test_a_full_queue_of_a_link_refuses_and_gives_room_when_the_neighbour_is_back() -> None:
    stage = MeshStage("full")
    (cable,) = stage.scenario.network.cables.values()
    stage["a"].node.define("queue", VPN, "#link/b", max_message_bytes=1)
    cable.cut(up=True, down=True)
    stage.wait(0.5)
    made = stage.publish("a", "t/1/1")
    stage.wait(1.0)
    assert made[0].code == errors.MESSAGE_TOO_LARGE
    stage["a"].node.define("queue", VPN, "#link/b", max_message_bytes=10_000)
    stage.wait()
    again = stage.publish("a", "t/1/1")
    stage.wait(1.0)
    assert again[0].is_acked
    cable.heal()
    assert stage.finish() == []
    assert crossed(stage, "b", "q0")[0] == f"g{again[0].number}"


@pytest.mark.requirement("R204", "R199")
@pytest.mark.parametrize("clock_ms", some((3_600_000, -3_600_000, 0), of=2))
def test_of_eight_seconds_six_are_left_after_two_on_the_way_whatever_the_clocks_say(clock_ms: int) -> None:
    stage = MeshStage(f"clock {clock_ms}", clocks_ms={"a": 0, "b": clock_ms})
    (cable,) = stage.scenario.network.cables.values()
    cable.sever(near_notices=True, far_notices=True)
    cable.cut(up=True, down=True)
    stage.publish("a", "t/1/1", ttl_ms=8_000)
    stage.wait(2.0)
    cable.heal()
    stage.wait(6.0)
    (stored,) = [
        one
        for one in stage["b"].guaranteed.home_events
        if isinstance(one, Stored) and one.what == "g0" and one.origin is None
    ]
    waited_ms = (stored.at - stage.scenario.history.publications[0].acked_at) * 1000
    assert stored.ttl_ms <= 6_000
    assert abs(stored.ttl_ms - (8_000 - waited_ms)) < 100
    assert stage.finish() == []


def test_a_clock_that_is_set_back_while_a_link_is_up_costs_no_message_its_time_to_live() -> None:
    """The other node opens the link, and knows the clock of this one from its login only."""
    by_ms = -3_600_000
    stage = MeshStage("clock set back")
    stage.publish("a", "t/1/1", ttl_ms=60_000)
    stage.wait()
    node = stage["a"].node
    stage["a"].guaranteed.wall_offset_ms += by_ms
    assert node.router is not None
    node.router.ground.wall_offset_ms += by_ms
    node.act(lambda router: router.closing.clock_was_set(by_ms, stage.now))
    stage.wait(2.0)
    (published,) = stage.publish("a", "t/1/1", ttl_ms=8_000)
    stage.wait(2.0)
    (stored,) = [
        one
        for one in stage["b"].guaranteed.home_events
        if isinstance(one, Stored) and one.what == f"g{published.number}" and one.origin is None
    ]
    assert 7_000 < stored.ttl_ms <= 8_000
    assert stage.finish() == []


@pytest.mark.parametrize("workers", some((1, 3), of=2))
def test_the_number_of_workers_changes_while_a_backlog_is_carried(workers: int) -> None:
    stage = MeshStage(f"scale {workers}", workers=2)
    (cable,) = stage.scenario.network.cables.values()
    cable.cut(up=True, down=True)
    for _ in range(10):
        stage.publish("a", "t/1/1", "t/2/3", "t/3/4", "t/0/1")
        stage.publish("b", "t/1/1", "t/2/3", "t/3/4", "t/0/1")
        stage.wait(0.05)
    for name in "ab":
        stage[name].node.controller.admin("workers.scale", {"workers": workers})
    cable.heal()
    stage.wait(3.0)
    assert stage.finish() == []
