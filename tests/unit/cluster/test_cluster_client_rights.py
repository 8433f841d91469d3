"""What a username may do, as operators are told: the same that routers and workers decide."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from tests.unit.cluster.controller_world import World


@pytest.fixture(scope="module")
def world() -> World:
    world = World()
    acl = {
        "publish_topic_default": "disallow",
        "publish_topic_exceptions": ["orders/*", "own/$client-username/>", "#P2P/QUE/inbox"],
        "subscribe_topic_default": "allow",
        "subscribe_topic_exceptions": ["secret/>"],
        "subscribe_share_name_default": "disallow",
        "subscribe_share_name_exceptions": ["team"],
    }
    profile = {"allow_guaranteed_send": False, "allow_guaranteed_receive": True}
    made: list[tuple[str, str, dict[str, Any]]] = [
        ("acl", "strict", acl),
        ("profile", "direct", profile),
        ("profile", "closed", {"allow_guaranteed_receive": False, "allow_shared_subscriptions": False}),
        ("username", "ann", {"acl_profile": "strict", "client_profile": "direct"}),
        ("username", "bob", {"acl_profile": "strict", "client_profile": "closed"}),
        ("username", "gone", {"enabled": False}),
        ("queue", "hers", {"owner": "ann"}),
        ("queue", "open", {"owner": "default", "permission": "consume"}),
        ("queue", "shut", {"owner": "default", "permission": "read-only"}),
    ]
    for kind, name, attributes in made:
        world.ask("objects.create", kind=kind, name=name, attributes=attributes)
    return world


def check(world: World, name: str, verb: str, target: str, **more: Any) -> dict[str, Any]:
    found = world.ask("access.check", name=name, verb=verb, target=target, **more)
    assert isinstance(found, dict)
    assert found["allowed"] == all(one["ok"] for one in found["checks"])
    return found


@pytest.mark.parametrize(
    ("verb", "target", "allowed"),
    [
        ("publish", "orders/7", True),
        ("publish", "orders/7/8", False),
        ("publish", "own/ann/x", True),
        ("publish", "own/bob/x", False),
        ("publish", "#P2P/QUE/inbox", True),
        ("publish", "#P2P/QUE/other", False),
        ("publish", "#P2P/INB/anybody", True),
        ("subscribe", "orders/>", True),
        ("subscribe", "secret/plans", False),
        ("subscribe", ">", False),
        ("subscribe", "#share/team/orders/>", True),
        ("subscribe", "#share/foes/orders/>", False),
        ("subscribe", "#P2P/QUE/x", False),
        ("consume", "hers", True),
        ("consume", "open", True),
        ("consume", "shut", False),
        ("consume", "none", False),
    ],
)
def test_each_verb_is_judged_by_its_rules(world: World, verb: str, target: str, allowed: bool) -> None:
    assert check(world, "ann", verb, target)["allowed"] is allowed


def test_the_rule_that_decides_is_named(world: World) -> None:
    last = check(world, "ann", "publish", "orders/7")["checks"][-1]
    assert last["text"] == "strict: publish_topic_default = disallow, inverted by the exception 'orders/*'"
    last = check(world, "ann", "subscribe", "secret/plans")["checks"][-1]
    assert last["text"] == "strict: subscribe_topic_default = allow, inverted by the exception 'secret/>'"
    last = check(world, "ann", "consume", "shut")["checks"][-1]
    assert last["text"] == "shut: its permission is read-only"


def test_the_client_profile_has_a_say_in_what_is_guaranteed_or_shared(world: World) -> None:
    assert check(world, "ann", "publish", "orders/7", guaranteed=True)["allowed"] is False
    assert check(world, "bob", "consume", "open")["allowed"] is False
    assert check(world, "bob", "subscribe", "#share/team/orders/>")["allowed"] is False


def test_nobody_may_anything_without_a_username_that_is_enabled(world: World) -> None:
    assert check(world, "gone", "publish", "orders/7")["allowed"] is False
    assert check(world, "nobody", "publish", "orders/7")["allowed"] is False


def test_a_message_vpn_that_there_is_not_is_refused(world: World) -> None:
    with pytest.raises(errors.NotFoundError):
        world.ask("access.check", name="ann", verb="publish", target="a", vpn="none")
