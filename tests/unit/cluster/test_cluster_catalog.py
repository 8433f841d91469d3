"""The catalog: what exists, who refers to whom, and what a wish comes to."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster import objects
from cluster.catalog.catalog import Catalog
from cluster.security import passwords
from storage.config_store import Change, Entry


def pretended_hash(password: str) -> str:
    """As strong as needed here, and far faster than the real one."""
    return f"scrypt$16384$8$1$00${password.encode().hex()}"


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog([], pretended_hash)
    catalog.take(catalog.missing_built_ins())
    catalog.validate()
    return catalog


def do(catalog: Catalog, changes: list[Entry]) -> list[Change]:
    catalog.take(changes)
    catalog.validate()
    return [change for change in changes if isinstance(change, Change)]


def create(catalog: Catalog, kind: str, vpn: str, name: str, **values: Any) -> list[Change]:
    return do(catalog, catalog.create(kind, vpn, name, values))


@pytest.mark.requirement("R1")
def test_an_empty_node_gets_what_is_built_in(catalog: Catalog) -> None:
    assert [entry[:3] for entry in catalog.snapshot()] == [
        ["vpn", "", "default"],
        ["profile", "default", "default"],
        ["acl", "default", "default"],
        ["username", "default", "default"],
        ["queue", "default", "#DEAD_MSG_QUEUE"],
        ["queue", "default", "#retained"],
    ]
    username = catalog.show("username", "default", "default")
    assert username["password_set"] is False
    assert username["guaranteed_endpoint_permission_override"] is False
    assert catalog.show("acl", "default", "default")["publish_topic_default"] == "allow"


def test_only_what_is_missing_is_made_again(catalog: Catalog) -> None:
    assert catalog.missing_built_ins() == []
    stored = [Change(*entry) for entry in catalog.snapshot() if entry[0] != "acl"]
    assert [change[:3] for change in Catalog(stored).missing_built_ins()] == [("acl", "default", "default")]


def test_a_new_message_vpn_comes_with_profiles_and_a_queue_for_the_dead_and_without_usernames(
    catalog: Catalog,
) -> None:
    changes = create(catalog, "vpn", "", "orders")
    assert [change[:3] for change in changes] == [
        ("vpn", "", "orders"),
        ("profile", "orders", "default"),
        ("acl", "orders", "default"),
        ("queue", "orders", "#DEAD_MSG_QUEUE"),
        ("queue", "orders", "#retained"),
    ]
    assert catalog.find("username", "orders", "*") == []


def test_stored_objects_get_the_defaults_of_attributes_that_are_new() -> None:
    catalog = Catalog([Change("vpn", "", "old", {"enabled": False})])
    assert catalog.show("vpn", "", "old") == {
        "kind": "vpn",
        "name": "old",
        **objects.complete("vpn", {"enabled": False}),
    }


def test_a_wish_alone_changes_nothing(catalog: Catalog) -> None:
    catalog.create("vpn", "", "orders", {})
    assert catalog.find("vpn", None, "orders") == []


def test_the_same_object_is_not_created_twice(catalog: Catalog) -> None:
    create(catalog, "profile", "default", "fast")
    with pytest.raises(errors.ConflictError, match="profile 'fast' in Message VPN 'default'") as caught:
        catalog.create("profile", "default", "fast", {})
    assert caught.value.code == errors.OBJECT_EXISTS


def test_an_object_needs_its_message_vpn(catalog: Catalog) -> None:
    with pytest.raises(errors.NotFoundError, match="vpn 'none'"):
        catalog.create("profile", "none", "fast", {})


def test_a_name_has_to_fit_its_kind(catalog: Catalog) -> None:
    with pytest.raises(errors.InvalidRequestError, match="a name has"):
        catalog.create("profile", "default", "with blank", {})


def test_a_username_refers_to_profiles_of_its_own_message_vpn_only(catalog: Catalog) -> None:
    create(catalog, "vpn", "", "orders")
    create(catalog, "acl", "default", "readers")
    with pytest.raises(errors.NotFoundError, match="acl 'readers' in Message VPN 'orders'"):
        catalog.create("username", "orders", "alice", {"acl_profile": "readers"})
    create(catalog, "username", "default", "alice", acl_profile="readers")
    with pytest.raises(errors.NotFoundError, match="profile 'gone'"):
        catalog.update("username", "default", "alice", {"client_profile": "gone"})


def test_an_update_keeps_what_it_does_not_name(catalog: Catalog) -> None:
    create(catalog, "profile", "default", "fast", eliding=True)
    do(catalog, catalog.update("profile", "default", "fast", {"eliding_delay_ms": "200"}))
    shown = catalog.show("profile", "default", "fast")
    assert (shown["eliding"], shown["eliding_delay_ms"]) == (True, 200)


def test_an_update_to_the_same_values_is_no_change(catalog: Catalog) -> None:
    create(catalog, "profile", "default", "fast", eliding=True)
    assert catalog.update("profile", "default", "fast", {"eliding": "true"}) == []


@pytest.mark.parametrize("verb", ["show", "delete"])
def test_what_does_not_exist_is_not_found(catalog: Catalog, verb: str) -> None:
    with pytest.raises(errors.NotFoundError) as caught:
        getattr(catalog, verb)("acl", "default", "gone")
    assert caught.value.code == errors.OBJECT_NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "vpn"), [("vpn", ""), ("profile", "default"), ("acl", "default"), ("username", "default")]
)
def test_what_is_built_in_is_not_deleted(catalog: Catalog, kind: str, vpn: str) -> None:
    with pytest.raises(errors.ConflictError, match="built in") as caught:
        catalog.delete(kind, vpn, "default")
    assert caught.value.code == errors.OBJECT_IN_USE


def test_the_built_in_username_can_be_switched_off(catalog: Catalog) -> None:
    do(catalog, catalog.update("username", "default", "default", {"enabled": "false"}))
    assert catalog.show("username", "default", "default")["enabled"] is False
    assert catalog.missing_built_ins() == []


@pytest.mark.parametrize(("kind", "attribute"), [("acl", "acl_profile"), ("profile", "client_profile")])
def test_a_profile_in_use_is_not_deleted(catalog: Catalog, kind: str, attribute: str) -> None:
    create(catalog, kind, "default", "mine")
    create(catalog, "username", "default", "alice", **{attribute: "mine"})
    with pytest.raises(errors.ConflictError, match="'alice'"):
        catalog.delete(kind, "default", "mine")
    do(catalog, catalog.delete("username", "default", "alice"))
    do(catalog, catalog.delete(kind, "default", "mine"))


def test_a_message_vpn_with_usernames_is_not_deleted(catalog: Catalog) -> None:
    create(catalog, "vpn", "", "orders")
    create(catalog, "username", "orders", "alice")
    with pytest.raises(errors.ConflictError, match="'alice'"):
        catalog.delete("vpn", "", "orders")


def test_a_message_vpn_takes_its_profiles_along_and_goes_last(catalog: Catalog) -> None:
    create(catalog, "vpn", "", "orders")
    create(catalog, "acl", "orders", "readers")
    changes = do(catalog, catalog.delete("vpn", "", "orders"))
    assert changes[-1] == Change("vpn", "", "orders", None)
    assert len(changes) == 6
    assert [entry for entry in catalog.snapshot() if "orders" in entry[:3]] == []


def test_a_password_is_kept_as_its_hash_only(catalog: Catalog) -> None:
    change = create(catalog, "username", "default", "alice", password="wonderland")[0]
    assert change.attributes is not None
    assert passwords.is_hash(change.attributes["password"])
    assert "wonderland" not in str(catalog.snapshot())
    assert catalog.show("username", "default", "alice")["password_set"] is True


def test_a_hash_is_kept_as_it_is(catalog: Catalog) -> None:
    stored = pretended_hash("wonderland")
    change = create(catalog, "username", "default", "alice", password=stored)[0]
    assert change.attributes is not None
    assert change.attributes["password"] == stored


COSTS = (
    "99999999$8$1",
    "0$8$1",
    "3$8$1",
    "16384$0$1",
    "16384$8$0",
    "16384$8$100000",
    "65536$8$1",
    "2$1048576$1",
)


@pytest.mark.parametrize("cost", COSTS)
def test_a_hash_with_which_nobody_can_compare_is_refused(catalog: Catalog, cost: str) -> None:
    for kind, vpn in (("username", "default"), ("operator", "")):
        with pytest.raises(errors.InvalidRequestError) as refused:
            catalog.create(kind, vpn, "alice", {"password": f"scrypt${cost}$aa$bb"})
        assert refused.value.code == errors.INVALID_ATTRIBUTE


@pytest.mark.parametrize("cost", COSTS)
def test_a_hash_that_cannot_be_compared_with_fits_no_password_and_is_replaced(cost: str) -> None:
    """An earlier version took it."""
    assert not passwords.fits(f"scrypt${cost}$aa$bb", "wonderland")


@pytest.mark.parametrize("cost", ["16384$8$1", "32768$8$1", "1024$8$8"])
def test_hashes_of_other_costs_are_taken(catalog: Catalog, cost: str) -> None:
    create(catalog, "username", "default", "alice", password=f"scrypt${cost}${'aa' * 16}${'bb' * 32}")


def test_the_same_password_again_is_no_change() -> None:
    catalog = Catalog([])
    catalog.take(catalog.missing_built_ins())
    create(catalog, "username", "default", "alice", password="wonderland")
    assert catalog.update("username", "default", "alice", {"password": "wonderland"}) == []
    assert catalog.update("username", "default", "alice", {"password": "looking-glass"}) != []


def test_a_list_is_ordered_and_takes_a_pattern(catalog: Catalog) -> None:
    for name in ("beta", "alpha", "gamma"):
        create(catalog, "acl", "default", name)
    assert [found["name"] for found in catalog.find("acl", "default", "*a")] == ["alpha", "beta", "gamma"]
    assert [found["name"] for found in catalog.find("acl", "default", "?????")] == ["alpha", "gamma"]


def test_a_list_is_of_one_message_vpn_or_of_all(catalog: Catalog) -> None:
    create(catalog, "vpn", "", "orders")
    assert len(catalog.find("acl", "orders", "*")) == 1
    assert len(catalog.find("acl", None, "*")) == 2
    assert len(catalog.find("vpn", "default", "*")) == 2


DECLARED = [
    ["username", "orders", "alice", {"acl_profile": "readers", "password": "wonderland"}],
    ["acl", "orders", "readers", {"client_connect_default": "allow"}],
    ["vpn", "", "orders", {}],
]


def test_applied_objects_may_come_in_any_order(catalog: Catalog) -> None:
    applied = catalog.apply(DECLARED)
    do(catalog, applied.changes)
    assert [row["action"] for row in applied.report] == ["create"] * 3 + ["update"]
    assert catalog.show("username", "orders", "alice")["acl_profile"] == "readers"


def test_applying_again_changes_nothing(catalog: Catalog) -> None:
    real = Catalog([Change(*entry) for entry in catalog.snapshot()])
    do(real, real.apply(DECLARED).changes)
    applied = real.apply(DECLARED)
    assert applied.changes == []
    assert [row["action"] for row in applied.report] == ["unchanged"] * 3


def test_a_report_names_what_changes_but_no_password(catalog: Catalog) -> None:
    do(catalog, catalog.apply(DECLARED).changes)
    new = {"password": "looking-glass", "enabled": False}
    (row,) = catalog.apply([["username", "orders", "alice", new]]).report
    assert row == {
        "action": "update",
        "kind": "username",
        "vpn": "orders",
        "name": "alice",
        "changes": {"enabled": [True, False], "password": ["(hidden)", "(hidden)"]},
    }


def test_one_fault_refuses_all_that_is_applied(catalog: Catalog) -> None:
    before = catalog.snapshot()
    with pytest.raises(errors.NotFoundError):
        catalog.apply([*DECLARED, ["username", "orders", "bob", {"acl_profile": "gone"}]])
    assert catalog.snapshot() == before


@pytest.mark.requirement("R97")
def test_a_backup_applied_to_a_fresh_node_gives_the_same_objects(catalog: Catalog) -> None:
    do(catalog, catalog.apply(DECLARED).changes)
    fresh = Catalog([], pretended_hash)
    fresh.take(fresh.missing_built_ins())
    fresh.take(fresh.apply(catalog.export()).changes)
    assert fresh.snapshot() == catalog.snapshot()


@pytest.mark.parametrize("attributes", [{"enabled": "perhaps"}, {"no_such": 1}, {"max_connection_count": -1}])
def test_a_stored_object_that_does_not_fit_is_refused_with_the_reason(attributes: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequestError, match="vpn") as caught:
        Catalog([Change("vpn", "", "default", attributes)])
    assert caught.value.code == errors.INVALID_ATTRIBUTE


def test_all_nodes_of_a_cluster_can_declare_the_same_links() -> None:
    catalog = Catalog([], pretended_hash, node="b")
    catalog.take(catalog.missing_built_ins())
    declared = [["link", "", name, {"addresses": [f"tcp://127.0.0.{n}:5"]}] for n, name in enumerate("abc")]
    do(catalog, catalog.apply(declared).changes)
    assert [link["name"] for link in catalog.find("link", None, "*")] == ["a", "c"]
    assert catalog.apply(declared).changes == []


def test_a_node_is_no_neighbour_of_itself() -> None:
    catalog = Catalog([], pretended_hash, node="b")
    with pytest.raises(errors.AngariumError, match="'b' is this node") as refused:
        catalog.create("link", "", "b", {})
    assert refused.value.code == errors.LINK_TO_OWN_NODE


@pytest.mark.requirement("R254")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "[::1]"])
def test_a_webhook_to_the_node_itself_is_refused_when_it_is_made(host: str) -> None:
    """It would never be posted to. What a node has from when it allowed that may be changed otherwise."""
    url = f"http://{host}/"
    allowing = Catalog([], pretended_hash, webhook_networks=["127.0.0.0/8", "::1"])
    create(allowing, "vpn", "", "default")
    create(allowing, "webhook", "default", "here", queue="q", url=url)
    catalog = Catalog([Change(*entry) for entry in allowing.snapshot()], pretended_hash)
    do(catalog, catalog.update("webhook", "default", "here", {"url": url, "enabled": False}))
    do(catalog, catalog.apply([["webhook", "default", "here", {"url": url, "window": 2}]]).changes)
    wishes = (
        lambda: catalog.create("webhook", "default", "new", {"queue": "q", "url": url}),
        lambda: catalog.update("webhook", "default", "here", {"url": f"{url}more"}),
        lambda: catalog.apply([["webhook", "default", "new", {"queue": "q", "url": url}]]),
    )
    for wish in wishes:
        with pytest.raises(errors.InvalidRequestError, match="webhook_networks allows") as refused:
            wish()
        assert refused.value.code == errors.INVALID_ATTRIBUTE
    create(catalog, "webhook", "default", "new", queue="q", url="https://example.com/")
