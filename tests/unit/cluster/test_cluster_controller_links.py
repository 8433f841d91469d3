"""Links as the controller sees to them: which processes there are, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster.controller.operations.links import describe, progress
from cluster.controller.switchboard import effects as c
from storage.config_store import Change
from tests.unit.cluster.controller_world import World, replies, requests

ADDRESS = "tcp://127.0.0.1:5"


@pytest.fixture
def world() -> World:
    made = World(node="m")
    made.hello("router")
    made.wait(0.1)
    return made


def create(world: World, name: str, **attributes: Any) -> list[c.Effect]:
    seen = world.call("objects.create", kind="link", name=name, attributes=attributes)
    for effect in seen:
        if isinstance(effect, c.Request):
            seen += world.do(world.controller.answered(effect.number, None))
    return seen + world.wait(0.1)


def run_links(seen: list[c.Effect]) -> list[list[int]]:
    return [effect.indices for effect in seen if isinstance(effect, c.RunProcesses) and effect.role == "link"]


def test_links_that_this_node_opens_get_a_process(world: World) -> None:
    assert run_links(create(world, "b", addresses=[ADDRESS])) == [[0]]
    assert run_links(create(world, "z")) == []
    assert run_links(create(world, "y", initiator="local")) == [[0, 2]]
    assert run_links(create(world, "a", initiator="remote")) == []
    assert run_links(create(world, "c", enabled=False)) == []


def test_a_process_is_told_what_to_do_and_again_when_that_changes(world: World) -> None:
    create(world, "b", addresses=[ADDRESS])
    world.hello("link")
    (told,) = requests(world.wait(0.1))
    assert told == (
        "link_config",
        {"neighbour": "b", "addresses": [ADDRESS], "server_name": "", "vpns": ["default"]},
    )
    assert "link_config" not in dict(requests(world.wait(0.1)))
    world.call("objects.create", kind="vpn", name="orders")
    config = dict(requests(world.wait(0.1)))["link_config"]
    assert config["vpns"] == ["default", "orders"]
    world.hello("link", incarnation=8)
    assert "link_config" in dict(requests(world.wait(0.1)))


def test_one_that_did_not_take_it_is_told_again(world: World) -> None:
    create(world, "b", addresses=[ADDRESS])
    world.hello("link")
    assert "link_config" in dict(requests(world.wait(0.1)))
    assert "link_config" in dict(requests(world.wait(2.0) + world.wait(0.1)))


def test_what_runs_and_should_not_is_told_the_supervisor(world: World) -> None:
    create(world, "b")
    world.effects.clear()
    world.news(router="ready", link_0="ready")
    assert run_links(world.effects) == []
    world.news(router="ready", link_0="ready", link_3="ready")
    assert run_links(world.effects) == [[0]]
    world.effects.clear()
    world.news(router="ready")
    assert run_links(world.effects) == [[0]]


def test_a_number_is_of_one_link(world: World) -> None:
    for name in "bcd":
        create(world, name)
    world.call("objects.delete", kind="link", name="c")
    create(world, "e")
    numbers = [row["number"] for row in world.ask("objects.list", kind="link")]
    assert sorted(numbers) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "attributes", "code"),
    [
        ("b", {"addresses": ["nowhere"]}, errors.INVALID_ATTRIBUTE),
        ("b", {"addresses": ["tcp://127.0.0.1:0"]}, errors.INVALID_ATTRIBUTE),
        ("b", {"addresses": ["tcp://10.0.0.1:5"]}, errors.INVALID_ATTRIBUTE),
        ("b", {"addresses": ["tls://10.0.0.1:5", "tcp://b.example:5"]}, errors.INVALID_ATTRIBUTE),
        ("b", {"number": 3}, errors.INVALID_ATTRIBUTE),
        ("b", {"initiator": "both"}, errors.INVALID_ATTRIBUTE),
        ("#b", {}, errors.INVALID_ARGUMENT),
        ("a/b", {}, errors.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_be_a_link_is_refused(
    world: World, name: str, attributes: dict[str, Any], code: int
) -> None:
    with pytest.raises(errors.AngariumError) as raised:
        world.ask("objects.create", kind="link", name=name, attributes=attributes)
    assert raised.value.code == code


def test_a_link_is_shown_with_its_sessions_and_its_process(world: World) -> None:
    create(world, "b", addresses=[ADDRESS])
    seen = world.call("links.show", name="b")
    session = row(vpn="default", synchronised=True)
    seen = world.answer(
        seen, {"links": [session, row(name="other")], "queues": {"b": {"spooled_messages": 3}}}
    )
    (shown,) = replies(seen)
    assert (shown["state"], shown["subscriptions_in"], shown["spooled_messages"]) == ("up", 5, 3)
    assert (shown["opens"], shown["node_id"]) == (True, "id-b")


def test_states() -> None:
    def state(*sessions: dict[str, Any], process: Any = None, enabled: bool = True) -> str:
        link = {"name": "b", "enabled": enabled, "initiator": "lexical"}
        return str(describe(link, {"links": list(sessions)}, process, "m")["state"])

    failed = {"channels": [{"vpn": "v", "error": "error 40309: no", "code": 40309, "state": "waiting"}]}
    assert state() == "down"
    assert state(row()) == "up"
    assert state(row(), row(synchronised=False)) == "synchronising"
    assert state(row(), process=failed) == "degraded"
    assert state(enabled=False) == "disabled"
    partly = {"channels": [{"vpn": "default", "error": "error 50319: full", "code": 50319, "state": "up"}]}
    shown = describe({"name": "b", "enabled": True, "initiator": "lexical"}, {"links": [row()]}, partly, "m")
    assert (shown["state"], shown["error"], shown["code"]) == ("up", "error 50319: full", 50319)
    shown = describe({"name": "b", "enabled": True, "initiator": "lexical"}, {}, failed, "m")
    assert (shown["error"], shown["code"]) == ("error 40309: no", 40309)


def test_why_a_neighbour_was_refused_here_is_the_error_of_its_link_while_it_is_not_up() -> None:
    link = {"name": "b", "enabled": True, "initiator": "remote"}
    refusals = [{"node": node, "vpn": "", "code": 40103, "error": f"error 40103: {node}"} for node in "zb"]
    shown = describe(link, {"refusals": refusals}, None, "m")
    assert (shown["state"], shown["error"], shown["code"]) == ("down", "error 40103: b", 40103)
    shown = describe(link, {"refusals": refusals, "links": [row()]}, None, "m")
    assert (shown["state"], shown["error"], shown["code"]) == ("up", "", 0)


def test_progress_counts_what_both_sides_are_not_told_yet() -> None:
    assert progress([]) == 0
    assert progress([row()]) == 100
    told = {"synchronised": False, "subscriptions_in": 20, "subscriptions_out": 30}
    assert progress([row(**told, untold=50)]) == 50
    # The process that opens the link has the rest of both directions.
    assert progress([row(**told, untold=40, untold_in=10, untold_out=25)]) == 25
    assert progress([row(**told)]) == 99


def row(**changes: Any) -> dict[str, Any]:
    made = {
        "name": "b",
        "vpn": "default",
        "synchronised": True,
        "uptime_s": 1.0,
        "subscriptions_in": 5,
        "subscriptions_out": 6,
        "messages_in": 1,
        "messages_out": 2,
        "queued_messages": 0,
        "queued_bytes": 0,
        "subscriptions_dropped": 0,
        "untold": 0,
        "node_id": "id-b",
        "encrypted": True,
    }
    return {**made, **changes}


class TestQueues:
    def test_a_link_has_its_queues_in_every_message_vpn(self, world: World) -> None:
        create(world, "b")
        world.call("objects.create", kind="vpn", name="orders")
        for vpn in ("default", "orders"):
            rows = world.ask("objects.list", kind="queue", vpn=vpn, name="#link/*")
            assert [row["name"] for row in rows] == ["#link/b", "#link/b/dmq", "#link/b/retry"]
        world.controller.validate()

    def test_they_go_with_it_and_not_before(self, world: World) -> None:
        create(world, "b")
        with pytest.raises(errors.ConflictError):
            world.ask("objects.delete", kind="queue", name="#link/b")
        changes = world.controller._catalog.delete("link", "", "b")
        names = [(one.kind, one.name) for one in changes if isinstance(one, Change)]
        assert names[:2] == [("link", "b"), ("queue", "#link/b")]
        world.call("objects.delete", kind="link", name="b")
        assert world.ask("objects.list", kind="queue", name="#link/*") == []

    def test_a_backup_is_applied_to_another_node(self, world: World) -> None:
        create(world, "b", addresses=[ADDRESS])
        world.call("objects.update", kind="queue", name="#link/b", attributes={"max_spool_usage_mb": 77})
        exported = world.ask("config.export")
        other = World(node="m")
        other.call("config.apply", objects=exported)
        shown = other.ask("objects.show", kind="queue", name="#link/b")
        assert shown["max_spool_usage_mb"] == 77
        assert shown["dead_message_queue"] == "#link/b/retry"

    @pytest.mark.parametrize("operation", ["endpoints.move", "endpoints.redrive"])
    @pytest.mark.parametrize("queue", ["#link/b", "#link/b/retry"])
    def test_nothing_is_moved_out_of_what_a_link_carries(
        self, world: World, operation: str, queue: str
    ) -> None:
        create(world, "b")
        world.call("objects.create", kind="queue", name="q")
        target = {"target": "q"} if operation == "endpoints.move" else {}
        ((code, detail),) = replies(world.call(operation, name=queue, **target))
        assert code == errors.INVALID_ARGUMENT
        assert "#link/b/dmq" in detail

    def test_the_interest_of_a_neighbour_may_be_larger_than_that_of_a_client(self, world: World) -> None:
        create(world, "b")
        texts = [f"t/{number}" for number in range(6_000)]
        world.question("endpoint.subscribe", vpn="default", name="#link/b", add=texts, remove=[])
        assert len(world.ask("objects.show", kind="queue", name="#link/b")["client_subscriptions"]) == 6_000
