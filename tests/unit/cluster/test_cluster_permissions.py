"""Permissions: each operation, tried by each role in each scope; and what of lists is left in a scope."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from angarium import errors
from cluster import objects
from cluster.admin import arguments
from cluster.admin.operations import OPERATIONS
from cluster.controller.access import permissions
from cluster.controller.access.callers import LOCAL, Claim
from cluster.controller.access.permissions import KINDS, ROLES
from cluster.controller.switchboard import effects as c
from tests.unit.cluster.controller_world import World, replies

#: What else a request of an operation has to say.
NEEDED: Final[dict[str, dict[str, Any]]] = {
    "workers.scale": {"workers": 1},
    "messages.show": {"position": 1},
    "messages.delete": {"positions": [1]},
    "jobs.show": {"jobs": []},
    "stages.abort": {"names": ["s"]},
    "sinks.forget": {"username": "u"},
    "access.check": {"verb": "publish", "target": "a"},
    "clients.try": {"username": "u", "does": "publish", "target": "a"},
    "log_level": {"level": "INFO"},
    "config.apply": {"objects": []},
    "spool.aside.adopt": {"id": 1},
    "spool.aside.read": {"id": 1, "worker": 0, "lane_id": 1},
    "spool.aside.delete": {"id": 1},
    "spool.fetch": {"copy": "1", "part": "config"},
    "spool.drop": {"copy": "1"},
    "cluster.token.delete": {"id": "x"},
    "operators.logged_in": {"address": "a", "method": "password", "outcome": "done"},
    "operators.keys": {"issuer": "login"},
    "operators.find": {"token_subject": "x"},
}
#: Operations that are about the Message VPN in an argument, and the kinds that have a Message VPN.
OF_VPN = [name for name, rule in OPERATIONS.items() if rule.scope in ("vpn", "vpns")]
KINDS_IN_VPN = [name for name, kind in objects.KINDS.items() if kind.in_vpn]
KINDS_OF_NODE = [name for name, kind in objects.KINDS.items() if not kind.in_vpn]
OBJECT_OPERATIONS = ["objects.show", "objects.create", "objects.update", "objects.delete"]


@pytest.fixture(scope="module")
def world() -> World:
    """Give a node with two Message VPNs, and an operator of each role for each of them and for the node."""
    world = World()
    for vpn in ("own", "other"):
        world.ask("objects.create", kind="vpn", name=vpn, attributes={})
    for role in ROLES:
        for vpn in ("", "own"):
            attributes = {"role": role, "vpn": vpn}
            world.ask("objects.create", kind="operator", name=named(role, vpn), attributes=attributes)
    return world


def named(role: str, vpn: str) -> str:
    return f"{role}-{vpn or 'node'}"


def claim(role: str, vpn: str = "") -> Claim:
    return Claim("management", named(role, vpn), "10.0.0.7")


def may(world: World, who: Claim, operation: str, **given: Any) -> bool:
    """Tell whether somebody may ask for an operation, by the judge and by the controller, which does not act then."""
    kind = OPERATIONS[operation].arguments
    names = {name: "x" for name in ("name",) if name in kind.__struct_fields__}
    request = msgspec.convert({**names, **NEEDED.get(operation, {}), **given}, kind)
    try:
        permissions.judge(world.controller.callers.who(who), operation, request)
    except errors.AngariumError as error:
        refused = [error.code, error.detail]
    else:
        return True
    assert refused[0] == errors.OPERATOR_DENIED
    (reply,) = world.call_as(who, operation, **msgspec.to_builtins(request))
    assert isinstance(reply, c.Reply), "nothing is done for who is refused"
    assert reply.value == refused
    return False


def roles_that(world: World, scope: str, operation: str, /, **given: Any) -> list[str]:
    return [role for role in ROLES if may(world, claim(role, scope), operation, **given)]


def test_each_kind_of_object_has_a_rule() -> None:
    assert KINDS.keys() == objects.KINDS.keys()


def test_a_controller_with_an_operation_without_a_rule_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(OPERATIONS, "stages.abort")
    with pytest.raises(AssertionError, match=r"stages\.abort"):
        World()


@pytest.mark.requirement("R257")
@pytest.mark.parametrize("operation", [name for name, rule in OPERATIONS.items() if rule.scope == "node"])
def test_what_is_of_the_node_takes_a_role_of_the_node(world: World, operation: str) -> None:
    least = ROLES.index(OPERATIONS[operation].role)
    assert roles_that(world, "", operation) == list(ROLES[least:])
    assert roles_that(world, "own", operation) == []


@pytest.mark.requirement("R257")
@pytest.mark.parametrize("operation", OF_VPN)
def test_what_is_in_a_message_vpn_takes_a_role_in_it_or_of_the_node(world: World, operation: str) -> None:
    enough = list(ROLES[ROLES.index(OPERATIONS[operation].role) :])
    for vpn in ("own", "other", "missing", ""):
        assert roles_that(world, "", operation, vpn=vpn) == enough
        assert roles_that(world, "own", operation, vpn=vpn) == (enough if vpn == "own" else [])


@pytest.mark.requirement("R257")
@pytest.mark.parametrize("kind", KINDS_IN_VPN)
@pytest.mark.parametrize("operation", OBJECT_OPERATIONS)
def test_objects_in_a_message_vpn_take_the_role_of_their_kind(
    world: World, operation: str, kind: str
) -> None:
    role = KINDS[kind].see if operation == "objects.show" else KINDS[kind].change
    enough = list(ROLES[ROLES.index(role) :])
    of_node = kind in permissions.NODE_ATTRIBUTES and operation == "objects.create"
    for vpn in ("own", "other", "missing", "", None):
        assert roles_that(world, "", operation, kind=kind, vpn=vpn) == enough
        inside = enough if vpn == "own" and not of_node else []
        assert roles_that(world, "own", operation, kind=kind, vpn=vpn) == inside


@pytest.mark.requirement("R257")
@pytest.mark.parametrize("kind", KINDS_OF_NODE)
@pytest.mark.parametrize("operation", [*OBJECT_OPERATIONS, "objects.list"])
def test_objects_of_the_node_take_a_role_of_the_node(world: World, operation: str, kind: str) -> None:
    role = KINDS[kind].see if OPERATIONS[operation].role == "viewer" else KINDS[kind].change
    for vpn in ("own", "default", None):
        assert roles_that(world, "", operation, kind=kind, vpn=vpn) == list(ROLES[ROLES.index(role) :])
        is_shown = kind == "vpn" and operation == "objects.list"
        assert roles_that(world, "own", operation, kind=kind, vpn=vpn) == (list(ROLES) if is_shown else [])


def test_an_operator_sees_his_own_message_vpn_and_does_not_change_it(world: World) -> None:
    for name in ("own", "other", "missing"):
        shown = roles_that(world, "own", "objects.show", kind="vpn", name=name)
        assert shown == (list(ROLES) if name == "own" else [])
        assert roles_that(world, "own", "objects.update", kind="vpn", name=name) == []


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [(kind, name) for kind, names in permissions.NODE_ATTRIBUTES.items() for name in sorted(names)],
)
def test_where_bridges_and_webhooks_go_is_said_by_administrators_of_the_node(
    world: World, kind: str, attribute: str
) -> None:
    """It may be the node itself, past the scope; and what they show there is in a file of the host."""
    given: dict[str, Any] = {"kind": kind, "vpn": "own"}
    changed = {attribute: ""}
    assert roles_that(world, "own", "objects.update", **given, attributes=changed) == []
    assert roles_that(world, "", "objects.update", **given, attributes=changed) == ["administrator"]
    assert roles_that(world, "own", "objects.update", **given, attributes={"enabled": False}) == [
        "administrator"
    ]
    declared = [[kind, "own", "b", {}]]
    assert roles_that(world, "own", "config.apply", objects=declared) == []


@pytest.mark.parametrize("kind", ["bridge", "webhook"])
def test_whom_bridges_and_webhooks_trust_is_said_by_administrators_of_the_node(
    world: World, kind: str
) -> None:
    """Who could name an authority of his own could read what a file of the host has, from whom it is shown to."""
    given: dict[str, Any] = {"kind": kind, "attributes": {"ca_pem": ""}}
    assert roles_that(world, "own", "objects.update", vpn="own", **given) == []
    assert roles_that(world, "", "objects.update", vpn="own", **given) == ["administrator"]


@pytest.mark.parametrize("operation", [name for name, rule in OPERATIONS.items() if rule.scope == "host"])
def test_what_a_login_needs_is_for_the_management_process_alone(world: World, operation: str) -> None:
    for vpn in ("", "own"):
        assert roles_that(world, vpn, operation) == []
    assert may(world, LOCAL, operation)


@pytest.mark.parametrize("operation", ["health", "operators.me"])
def test_what_everybody_may_know_takes_no_scope(world: World, operation: str) -> None:
    for vpn in ("", "own"):
        assert roles_that(world, vpn, operation) == list(ROLES)


def test_an_object_outside_of_the_scope_is_refused_alike_whether_it_exists_or_not(world: World) -> None:
    texts = set()
    for name in ("#DEAD_MSG_QUEUE", "missing"):
        with pytest.raises(errors.AngariumError) as refused:
            world.ask_as(claim("viewer", "own"), "endpoints.show", vpn="other", name=name)
        texts.add((refused.value.code, refused.value.detail))
    assert len(texts) == 1


def test_a_refusal_says_which_role_is_needed_and_which_one_is_there(world: World) -> None:
    told = {}
    for operation, given in (
        ("endpoints.purge", {"name": "q", "vpn": "own"}),
        ("endpoints.purge", {"name": "q", "vpn": "other"}),
        ("down", {}),
    ):
        with pytest.raises(errors.AngariumError) as refused:
            world.ask_as(claim("viewer", "own"), operation, **given)
        told[operation, given.get("vpn")] = refused.value.detail
    has = "operator 'viewer-own' is viewer of Message VPN 'own'"
    assert told == {
        ("endpoints.purge", "own"): f"endpoints.purge takes the role operator; {has}",
        ("endpoints.purge", "other"): (
            f"endpoints.purge takes the role operator in Message VPN 'other', or of the whole node; {has}"
        ),
        ("down", None): f"down takes the role administrator of the whole node; {has}",
    }
    assert "angarium operator update" in errors.error_for(errors.OPERATOR_DENIED).describe()


# -- lists -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS_IN_VPN)
def test_a_list_of_all_message_vpns_has_those_of_the_scope(world: World, kind: str) -> None:
    every = world.ask("objects.list", kind=kind, vpn=None)
    seen = world.ask_as(claim("viewer", "own"), "objects.list", kind=kind, vpn=None)
    assert seen == [row for row in every if row["vpn"] == "own"]
    if kind in ("queue", "acl"):
        assert {row["vpn"] for row in every} > {"own"}
        assert seen


@pytest.mark.parametrize(("pattern", "seen"), [("*", ["own"]), ("o*", ["own"]), ("other", []), ("[o]wn", [])])
def test_the_list_of_message_vpns_has_that_of_the_scope(world: World, pattern: str, seen: list[str]) -> None:
    rows = world.ask_as(claim("viewer", "own"), "objects.list", kind="vpn", name=pattern)
    assert [row["name"] for row in rows] == seen


def test_what_the_router_lists_is_narrowed_before_it_is_asked(world: World) -> None:
    who = world.controller.callers.who(claim("viewer", "own"))
    for operation in [name for name, rule in OPERATIONS.items() if rule.scope == "vpns"]:
        kind = OPERATIONS[operation].arguments
        request: Any = permissions.judge(who, operation, msgspec.convert({"vpn": None}, kind))
        assert request.vpn == "own"


def test_events_of_other_message_vpns_and_of_the_node_are_left_out() -> None:
    world = World()
    world.ask("objects.create", kind="vpn", name="own", attributes={})
    attributes = {"role": "viewer", "vpn": "own"}
    world.ask("objects.create", kind="operator", name="viewer-own", attributes=attributes)
    for vpn in ("own", "other", "own"):
        world.do(world.controller.event({"event": "E", "scope": "VPN", "text": "t", "vpn": vpn}))
    assert {row.get("vpn") for row in world.ask("events")} == {None, "own", "other"}
    who = claim("viewer", "own")
    seen = world.ask_as(who, "events", event="E")
    assert [row["vpn"] for row in seen] == ["own", "own"]
    assert {row["vpn"] for row in world.ask_as(who, "events")} == {"own"}
    assert world.ask_as(who, "events", since=seen[0]["id"], limit=1) == seen[1:]
    followed = world.ask_as(who, "events.follow", since=0)
    assert {row["vpn"] for row in followed["events"]} == {"own"}
    assert followed["upto"] == seen[-1]["id"]


def test_a_backup_in_a_scope_is_what_can_be_applied_there_again(world: World) -> None:
    who = claim("administrator", "own")
    backup = world.ask_as(who, "config.export")
    assert backup
    assert {vpn for _, vpn, *_ in backup} == {"own"}
    assert {row["action"] for row in world.ask_as(who, "config.apply", objects=backup)} == {"unchanged"}
    for entry in (["queue", "other", "q", {}], ["vpn", "", "own", {}], ["operator", "", "o", {}]):
        assert not may(world, who, "config.apply", objects=[*backup, entry])


def test_what_is_pruned_is_in_the_scope_of_who_prunes(world: World) -> None:
    request = {"objects": [], "prune": True, "dry_run": True}
    world.ask("objects.create", kind="acl", vpn="own", name="pruned", attributes={})
    gone = world.ask_as(claim("administrator", "own"), "config.apply", **request)
    assert gone
    assert {(row["action"], row["vpn"]) for row in gone} == {("delete", "own")}
    assert {"operator", "vpn"} <= {row["kind"] for row in world.ask("config.apply", **request)}


def test_how_far_a_job_is_tells_who_began_it_and_the_node() -> None:
    world = World()
    for vpn in ("own", "other"):
        world.ask("objects.create", kind="vpn", name=vpn, attributes={})
        attributes = {"role": "operator", "vpn": vpn}
        world.ask("objects.create", kind="operator", name=f"operator-{vpn}", attributes=attributes)
    world.hello("worker")
    world.news(router="ready", worker="ready")
    row = {"job": 5, "vpn": "own", "state": "done", "done": 2}

    def shown(who: Claim) -> Any:
        (reply,) = replies(world.answer(world.call_as(who, "jobs.show", jobs=[[0, 5]]), row))
        return reply

    # The controller may be another one than that which began it.
    assert shown(claim("operator", "own"))["done"] == 2
    assert shown(LOCAL)["done"] == 2
    assert shown(claim("operator", "other")) == [errors.OBJECT_NOT_FOUND, "job 5"], "as one that is not there"


def test_arguments_of_other_scopes_are_never_read_as_a_message_vpn() -> None:
    """An operation of a Message VPN has the argument by which it is judged."""
    World()
    for operation in OF_VPN:
        assert "vpn" in OPERATIONS[operation].arguments.__struct_fields__
    assert issubclass(arguments.ChangeArguments, arguments.ObjectArguments)
