"""Webhooks as the controller sees them: whether there is a process, what it is told, how they are shown."""

from __future__ import annotations

from typing import Any

from cluster.controller.operations.webhooks import describe
from cluster.controller.switchboard import effects as c
from tests.unit.cluster.controller_world import World, requests

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
    told = {"state": "up", "error": "", "accepted": 3}
    shown = [describe({"enabled": enabled}, None) for enabled in (True, False)]
    assert [(one["state"], bool(one["error"])) for one in shown] == [("down", True), ("disabled", False)]
    assert [one["accepted"] for one in shown] == [0, 0]
    assert describe({"enabled": True}, told) == {"enabled": True, **told}
