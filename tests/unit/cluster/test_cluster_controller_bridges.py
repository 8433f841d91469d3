"""Bridges as the controller sees them: which processes there are, what they are told, how they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster.controller.switchboard import effects as c
from tests.unit.cluster.controller_world import World, replies, requests

TOLD = {"remote_vpn": "theirs", "remote_subscriptions": ["a/>"]}


@pytest.fixture
def world() -> World:
    made = World(node="m")
    made.hello("router")
    made.wait(0.1)
    return made


def create(world: World, kind: str, name: str, vpn: str = "", **attributes: Any) -> list[c.Effect]:
    seen = world.call("objects.create", kind=kind, vpn=vpn, name=name, attributes=attributes)
    for effect in seen:
        if isinstance(effect, c.Request):
            seen += world.do(world.controller.answered(effect.number, None))
    return seen + world.wait(0.1)


def update(world: World, kind: str, name: str, vpn: str = "", **attributes: Any) -> list[c.Effect]:
    seen = world.call("objects.update", kind=kind, vpn=vpn, name=name, attributes=attributes)
    return seen + world.wait(0.1)


def run_bridges(seen: list[c.Effect]) -> list[list[int]]:
    return [
        effect.indices for effect in seen if isinstance(effect, c.RunProcesses) and effect.role == "bridge"
    ]


def test_every_enabled_bridge_of_an_enabled_message_vpn_has_a_process(world: World) -> None:
    create(world, "vpn", "other")
    assert run_bridges(create(world, "bridge", "b", "default", **TOLD)) == [[0]]
    assert run_bridges(create(world, "bridge", "b", "other", **TOLD)) == [[0, 1]]
    assert run_bridges(create(world, "bridge", "off", "other", **TOLD, enabled=False)) == []
    assert run_bridges(update(world, "bridge", "off", "other", enabled=True)) == [[0, 1, 2]]
    assert run_bridges(update(world, "vpn", "other", enabled=False)) == [[0]]


def test_a_process_is_told_its_bridge_and_again_when_something_of_it_changes(world: World) -> None:
    create(world, "bridge", "b", "default", **TOLD)
    world.hello("bridge")
    told = dict(requests(world.wait(0.1)))["bridge_config"]
    assert (told["name"], told["vpn"], told["remote_subscriptions"]) == ("b", "default", ["a/>"])
    assert told["neighbours"] == []
    assert "number" not in told
    assert "bridge_config" in dict(requests(update(world, "bridge", "b", "default", max_hops=3)))
    seen = create(world, "link", "friend")
    assert dict(requests(seen))["bridge_config"]["neighbours"] == ["friend"]


def test_what_bridges_tell_is_there_for_who_looks_without_asking(world: World) -> None:
    create(world, "bridge", "b", "default", **TOLD)
    world.hello("bridge")
    world.answer(world.wait(0.1), None)
    assert 'angarium_bridge_up{name="b",vpn="default"}' not in world.controller.metrics(world.now)
    world.answer(world.wait(1.1), {"spool": {}}, {"state": "up", "messages": 7})
    page = world.controller.metrics(world.now).splitlines()
    assert 'angarium_bridge_up{name="b",vpn="default"} 1' in page
    assert 'angarium_bridge_messages_total{name="b",vpn="default"} 7' in page


def test_bridges_go_with_their_message_vpn(world: World) -> None:
    create(world, "vpn", "other")
    create(world, "bridge", "b", "other", **TOLD)
    seen = world.call("objects.delete", kind="vpn", vpn="", name="other")
    assert run_bridges(seen + world.wait(0.1)) == [[]]
    assert world.ask("objects.list", kind="bridge", vpn=None) == []


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({}, errors.INVALID_ATTRIBUTE),
        ({"remote_vpn": "theirs"}, errors.INVALID_ATTRIBUTE),
        ({**TOLD, "number": 1}, errors.INVALID_ATTRIBUTE),
        ({**TOLD, "remote_password_file": "word"}, errors.INVALID_ATTRIBUTE),
        ({**TOLD, "remote_subscriptions": ["a"] * 1_001}, errors.INVALID_ATTRIBUTE),
    ],
)
def test_what_cannot_be_a_bridge_is_refused(world: World, attributes: dict[str, Any], code: int) -> None:
    with pytest.raises(errors.AngariumError) as raised:
        world.ask("objects.create", kind="bridge", vpn="default", name="b", attributes=attributes)
    assert raised.value.code == code


def test_a_bridge_is_shown_with_what_its_process_says(world: World) -> None:
    create(world, "bridge", "b", "default", **TOLD)
    (shown,) = replies(world.call("bridges.show", name="b") + world.wait(5.0))
    assert (shown["state"], shown["error"]) == ("down", "its process is not there yet")
    world.hello("bridge")
    world.wait(0.1)
    (shown,) = replies(
        world.answer(world.call("bridges.show", name="b"), {"state": "up", "error": "", "messages": 7})
    )
    assert (shown["state"], shown["messages"], shown["remote_vpn"]) == ("up", 7, "theirs")
    update(world, "bridge", "b", "default", enabled=False)
    (shown,) = replies(world.call("bridges.show", name="b"))
    assert (shown["state"], shown["error"]) == ("disabled", "")
