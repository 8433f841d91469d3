"""Webhooks as the controller sees them: whether there is a process, what it is told, how they are shown."""

from __future__ import annotations

from typing import Any

from cluster.controller.switchboard import effects as c
from tests.unit.cluster.controller_world import World, replies, requests

TOLD = {"queue": "q", "url": "https://example.com"}


def change(world: World, verb: str, kind: str, name: str, vpn: str, **attributes: Any) -> list[c.Effect]:
    seen = world.call(f"objects.{verb}", kind=kind, vpn=vpn, name=name, attributes=attributes)
    for effect in [one for one in seen if isinstance(one, c.Request)]:
        seen += world.do(world.controller.answered(effect.number, None))
    return seen + world.wait(0.1)


def run(seen: list[c.Effect]) -> list[list[int]]:
    return [
        effect.indices for effect in seen if isinstance(effect, c.RunProcesses) and effect.role == "webhook"
    ]


def told(seen: list[c.Effect]) -> list[tuple[str, str]]:
    return [(one["vpn"], one["name"]) for one in dict(requests(seen))["webhook_config"]["webhooks"]]


def test_one_process_has_all_that_are_enabled_in_message_vpns_that_are() -> None:
    world = World(node="m")
    world.hello("router")
    world.wait(0.1)
    change(world, "create", "vpn", "other", "")
    assert run(change(world, "create", "webhook", "off", "default", **TOLD, enabled=False)) == []
    assert run(change(world, "create", "webhook", "a", "default", **TOLD)) == [[0]]
    assert run(change(world, "create", "webhook", "b", "other", **TOLD)) == []
    world.hello("webhook")
    assert told(world.wait(0.1)) == [("default", "a"), ("other", "b")]
    assert told(change(world, "update", "webhook", "a", "default", enabled=False)) == [("other", "b")]
    assert run(change(world, "update", "vpn", "other", "", enabled=False)) == [[]]


def test_what_is_disabled_or_has_no_process_yet_is_shown_with_all_figures() -> None:
    world = World(node="m")
    world.hello("router")
    change(world, "create", "webhook", "a", "default", **TOLD)
    (shown,) = replies(world.call("webhooks.show", name="a") + world.wait(5.0))
    assert (shown["state"], shown["error"], shown["accepted"]) == ("down", "its process is not there yet", 0)
    world.hello("webhook")
    world.wait(0.1)
    told = {"state": "up", "error": "", "accepted": 3}
    (shown,) = replies(world.answer(world.call("webhooks.show", name="a"), {"default/a": told}))
    assert {name: shown[name] for name in (*told, "url")} == {**told, "url": TOLD["url"]}
    change(world, "update", "webhook", "a", "default", enabled=False)
    (shown,) = replies(world.call("webhooks.show", name="a"))
    assert (shown["state"], shown["error"], shown["accepted"]) == ("disabled", "", 0)
