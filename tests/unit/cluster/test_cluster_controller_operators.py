"""Operators: objects of the node, who asks on whose behalf, and what the management process is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster import objects
from cluster.controller.access.callers import LOCAL, Claim
from cluster.controller.switchboard import effects as c
from cluster.security import passwords
from tests.unit.cluster.controller_world import OWNER, World, requests

ANNA = Claim("management", "anna", "10.0.0.7")


@pytest.fixture
def world() -> World:
    return World()


def create(world: World, name: str, **attributes: Any) -> dict[str, Any]:
    made: dict[str, Any] = world.ask("objects.create", kind="operator", name=name, attributes=attributes)
    return made


def refusal(world: World, operation: str, **arguments: Any) -> errors.AngariumError:
    with pytest.raises(errors.AngariumError) as refused:
        world.ask(operation, **arguments)
    return refused.value


@pytest.mark.requirement("R257")
def test_an_operator_is_an_object_of_the_node_without_its_password(world: World) -> None:
    assert create(world, "anna", role="operator", vpn="default", password="secret") == {
        "kind": "operator",
        "name": "anna",
        "enabled": True,
        "role": "operator",
        "vpn": "default",
        "certificate_name": "",
        "token_subject": "",
        "password_set": True,
    }
    assert create(world, "ben")["role"] == "viewer", "who is not said to do more sees"
    assert [row["name"] for row in world.ask("objects.list", kind="operator", vpn="default")] == [
        "anna",
        "ben",
    ]


@pytest.mark.requirement("R260")
def test_who_prunes_from_afar_stays_an_operator(world: World) -> None:
    for name in ("anna", "ben"):
        create(world, name, role="administrator", password="secret")

    def pruned(claim: Claim) -> list[str]:
        rows = world.ask_as(claim, "config.apply", objects=[], prune=True, dry_run=True)
        return [row["name"] for row in rows if row["action"] == "delete"]

    assert pruned(ANNA) == ["ben"]
    assert sorted(pruned(LOCAL)) == ["anna", "ben"]


def test_no_process_is_told_of_operators(world: World) -> None:
    create(world, "before", password="secret")
    world.hello("router")
    seen = [*world.effects, *world.call("objects.create", kind="operator", name="anna", attributes={})]
    told = requests(seen)
    assert [name for name, _ in told] == ["config_snapshot"]
    assert "operator" not in {row[0] for row in told[0][1]}
    assert any(isinstance(effect, c.Reply) and effect.ok for effect in seen), "nobody has to confirm it"


@pytest.mark.parametrize("attribute", objects.LOGIN_NAMES)
def test_no_two_operators_have_the_same_name_at_a_login(world: World, attribute: str) -> None:
    create(world, "anna", **{attribute: "CN-anna"})
    error = refusal(world, "objects.create", kind="operator", name="ben", attributes={attribute: "CN-anna"})
    assert error.code == errors.OBJECT_EXISTS
    assert "'anna'" in error.detail
    create(world, "ben")
    create(world, "carl")  # nobody's name is no name that two could share
    world.ask(
        "objects.update", kind="operator", name="anna", attributes={attribute: "CN-anna", "role": "viewer"}
    )


def test_an_operator_needs_its_message_vpn_and_keeps_it(world: World) -> None:
    attributes = {"vpn": "orders"}
    missing = refusal(world, "objects.create", kind="operator", name="anna", attributes=attributes)
    assert missing.code == errors.OBJECT_NOT_FOUND
    world.ask("objects.create", kind="vpn", name="orders", attributes={})
    create(world, "anna", **attributes)
    error = refusal(world, "objects.delete", kind="vpn", name="orders")
    assert (error.code, "1 operators, 'anna'" in error.detail) == (errors.OBJECT_IN_USE, True)
    world.ask("objects.delete", kind="operator", name="anna")
    world.ask("objects.delete", kind="vpn", name="orders")


@pytest.mark.parametrize("name", ["", "a:b", "a b", "a*", "x" * 65, "nul\0", "new\nline"])
def test_a_name_that_cannot_stand_in_a_login_is_refused(world: World, name: str) -> None:
    error = refusal(world, "objects.create", kind="operator", name=name, attributes={})
    assert error.code == errors.INVALID_ARGUMENT


def test_operators_are_in_a_backup_and_come_back_from_it(world: World) -> None:
    create(world, "anna", role="administrator", password="secret", token_subject="a@b")
    backup = world.ask("config.export")
    (entry,) = [entry for entry in backup if entry[0] == "operator"]
    other = World()
    other.ask("config.apply", objects=backup)
    assert entry in other.ask("config.export")
    assert other.ask("objects.show", kind="operator", name="anna")["password_set"]


@pytest.mark.requirement("R258")
def test_the_credentials_of_an_operator_are_for_who_compares_passwords(world: World) -> None:
    create(world, "anna", role="operator", vpn="default", password="secret")
    found = world.ask("operators.credentials", name="anna")
    assert found.pop("password") == world.catalog.get("operator", "", "anna")["password"]  # type: ignore[index]
    assert found.pop("password_set") is True
    found.pop("vpns")
    assert found == {"name": "anna", "role": "operator", "vpn": "default", "enabled": True}


def test_who_does_not_exist_has_a_hash_of_the_same_cost_that_fits_nothing(world: World) -> None:
    create(world, "anna")
    for name in ("anna", "nobody"):
        hashed = world.ask("operators.credentials", name=name)["password"]
        assert hashed.split("$")[:4] == passwords.hash_password("x").split("$")[:4]
        assert [len(part) for part in hashed.split("$")] == [
            len(part) for part in passwords.hash_password("x").split("$")
        ]
        assert not passwords.fits(hashed, "")
    assert not world.ask("operators.credentials", name="nobody")["enabled"]


def test_an_operator_is_found_by_what_is_shown_at_a_login(world: World) -> None:
    create(world, "anna", certificate_name="Anna A", token_subject="a@b")
    found = world.ask("operators.find", certificate_name="Anna A")
    assert found == {"name": "anna", "role": "viewer", "vpn": "", "enabled": True, "vpns": found["vpns"]}
    world.ask("objects.update", kind="operator", name="anna", attributes={"enabled": False})
    assert world.ask("operators.find", token_subject="a@b") == {**found, "enabled": False}
    missing = refusal(world, "operators.find", token_subject="Anna A")
    assert missing.code == errors.OBJECT_NOT_FOUND
    for asked in ({}, {"token_subject": "a", "certificate_name": "b"}, {"token_subject": ""}):
        assert refusal(world, "operators.find", **asked).code == errors.INVALID_ARGUMENT


def test_with_each_login_it_is_told_whether_a_message_vpn_was_deleted(world: World) -> None:
    """Lists of one are kept under its name, and one that is made again is another one."""
    world.ask("objects.create", kind="vpn", name="v1", attributes={})
    create(world, "anna", role="operator", vpn="v1", token_subject="a@b")
    before = world.ask("operators.credentials", name="anna")["vpns"]
    world.ask("objects.create", kind="queue", vpn="v1", name="q", attributes={})
    world.ask("objects.delete", kind="queue", vpn="v1", name="q")
    assert world.ask("operators.credentials", name="anna")["vpns"] == before
    world.ask("objects.delete", kind="operator", name="anna")
    world.ask("objects.delete", kind="vpn", name="v1")
    world.ask("objects.create", kind="vpn", name="v1", attributes={})
    create(world, "anna", role="operator", vpn="v1", token_subject="a@b")
    found = {world.ask("operators.find", token_subject="a@b")["vpns"]}
    assert found == {world.ask("operators.credentials", name="anna")["vpns"]} != {before}


def test_who_asks_is_looked_up_for_each_request(world: World) -> None:
    create(world, "anna", role="operator", vpn="default")
    assert world.ask_as(ANNA, "operators.me") == {"name": "anna", "role": "operator", "vpn": "default"}
    world.ask("objects.update", kind="operator", name="anna", attributes={"role": "viewer"})
    assert world.ask_as(ANNA, "operators.me")["role"] == "viewer"
    world.ask("objects.update", kind="operator", name="anna", attributes={"enabled": False})
    with pytest.raises(errors.AngariumError) as disabled:
        world.ask_as(ANNA, "operators.me")
    world.ask("objects.delete", kind="operator", name="anna")
    with pytest.raises(errors.AngariumError) as deleted:
        world.ask_as(ANNA, "operators.me")
    assert disabled.value.code == deleted.value.code == errors.UNAUTHORIZED
    assert disabled.value.detail == deleted.value.detail, "a name is not told from one that is taken away"


def test_on_the_host_it_is_the_owner_of_the_node(world: World) -> None:
    assert world.ask("operators.me") == {"name": OWNER, "role": "administrator", "vpn": ""}


def test_a_login_that_failed_is_an_event(world: World) -> None:
    told = {"name": "anna", "address": "10.0.0.7", "method": "password"}
    assert world.ask("operators.logged_in", **told, outcome="done") is None
    assert not [effect for effect in world.effects if isinstance(effect, c.Record)]
    world.ask("operators.logged_in", **told, outcome=errors.UNAUTHORIZED)
    (event,) = [effect.event for effect in world.effects if isinstance(effect, c.Record)]
    assert event["event"] == "SYSTEM_OPERATOR_LOGIN_FAILED"
    for word in ("anna", "10.0.0.7", "password", "40101"):
        assert word in event["text"]
