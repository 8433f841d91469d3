"""Objects declared in a file: what is applied is what was meant, and what is pruned is what nobody named.

Sets of objects are made at random from the types of their attributes, so an attribute that is new is tried at once.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors
from cluster import objects
from cluster.catalog.catalog import Applied, Catalog
from cluster.configuration.config import export_config, parse_objects

if TYPE_CHECKING:
    from storage.config_store import Entry

VPNS = ("default", "orders", "fleet")
NAMES = st.text("abAB", min_size=1, max_size=2)
#: What a text may be, where only some texts are allowed.
TEXTS = {
    "addresses": ["tcp://127.0.0.1:5555", "tls://broker.example:5556"],
    "acl_profile": ["default", "a", "b"],
    "client_profile": ["default", "a", "b"],
    "password": ["wonderland", 'a "quoted"\\ one', "grüße"],
    "remote_password_file": ["/run/secret"],
    "vpn": ["", *VPNS],
    "ca_pem": [""],
    "name_filter": ["a/*", "a/>", ""],
}
#: All that stands in a TOML text for something.
ODD = st.text(string.ascii_letters + "/*>!#'\"\\= é\t", min_size=1, max_size=6)

Declared = list[list[Any]]


def value(name: str, kind: Any) -> st.SearchStrategy[Any]:
    """Give values of the type of an attribute; not each of them is allowed."""
    match kind:
        case msgspec.inspect.Metadata():
            return value(name, kind.type)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.IntType():
            return st.integers(kind.ge or 0, kind.le or 1 << 40)
        case msgspec.inspect.LiteralType():
            return st.sampled_from(kind.values)
        case msgspec.inspect.ListType():
            return st.lists(value(name, kind.item_type), max_size=3)
    return st.sampled_from(TEXTS[name]) if name in TEXTS else ODD | st.just("a/b")


def attributes(kind: objects.ObjectKind) -> st.SearchStrategy[dict[str, Any]]:
    """Give some attributes of a kind."""
    fields = msgspec.inspect.type_info(kind.struct).fields  # type: ignore[attr-defined]
    strategies = {field.name: value(field.name, field.type) for field in fields}
    return st.fixed_dictionaries({}, optional=strategies)


WISHES = st.lists(
    st.sampled_from(list(objects.KINDS.values())).flatmap(
        lambda kind: st.tuples(st.just(kind.name), st.sampled_from(VPNS), NAMES, attributes(kind))
    ),
    max_size=12,
)


def pretended_hash(password: str) -> str:
    """As strong as needed here, and far faster than the real one."""
    return f"scrypt$16384$8$1$00${password.encode().hex()}"


def do(catalog: Catalog, changes: list[Entry]) -> None:
    catalog.take(changes)
    catalog.validate()


def create(catalog: Catalog, kind: str, vpn: str, name: str, **values: Any) -> None:
    do(catalog, catalog.create(kind, vpn, name, values))


def fresh_catalog() -> Catalog:
    catalog = Catalog([], pretended_hash)
    catalog.take(catalog.missing_built_ins())
    return catalog


def made(wishes: list[tuple[str, str, str, dict[str, Any]]]) -> Catalog:
    """Give a catalog with what it takes of some wishes."""
    catalog = fresh_catalog()
    for vpn in VPNS[1:]:
        catalog.take(catalog.create("vpn", "", vpn, {}))
    order = list(objects.KINDS)
    for kind, vpn, name, values in sorted(wishes, key=lambda wish: order.index(wish[0])):
        try:
            catalog.take(catalog.create(kind, vpn, name, values))
        except errors.AngariumError:
            continue
    catalog.validate()
    return catalog


def pruned(catalog: Catalog, declared: Declared) -> Applied:
    return catalog.apply(declared, catalog.undeclared(declared))


def through_a_file(declared: Declared) -> Declared:
    return parse_objects(export_config(declared))


def changing(applied: Applied) -> list[tuple[str, str, str]]:
    return [
        (row["action"], row["kind"], row["name"]) for row in applied.report if row["action"] != "unchanged"
    ]


@pytest.mark.requirement("R260")
@given(WISHES)
def test_what_was_exported_makes_an_empty_node_the_same(wishes: list[Any]) -> None:
    declared = through_a_file(made(wishes).export())
    other = fresh_catalog()
    do(other, pruned(other, declared).changes)
    for again in (other.apply(declared), pruned(other, declared)):
        assert (changing(again), again.changes) == ([], [])
    assert through_a_file(other.export()) == declared


@pytest.mark.requirement("R260")
@given(WISHES, WISHES)
def test_what_is_pruned_leaves_what_the_file_names(one: list[Any], another: list[Any]) -> None:
    wanted, catalog = made(one).export(), made(another)
    before = catalog.snapshot()
    try:
        applied = pruned(catalog, wanted)
    except errors.AngariumError:
        assert catalog.snapshot() == before
        return
    do(catalog, applied.changes)
    named = {(kind, vpn, name) for kind, vpn, name, _ in wanted}
    left = {(kind, vpn, name) for kind, vpn, name, _ in catalog.export() if name[0] != "#"}
    assert left == {key for key in named if key[2][0] != "#"}
    assert changing(pruned(catalog, wanted)) == []


def test_only_when_it_is_said_something_is_deleted() -> None:
    catalog = fresh_catalog()
    create(catalog, "queue", "default", "old")
    assert changing(catalog.apply([])) == []
    applied = pruned(catalog, [])
    assert changing(applied) == [("delete", "queue", "old")]
    do(catalog, applied.changes)
    assert catalog.get("queue", "default", "old") is None
    assert catalog.get("queue", "default", objects.DEAD_MESSAGE_QUEUE) is not None


def test_what_a_client_created_is_not_pruned() -> None:
    catalog = fresh_catalog()
    own = {"created_by": objects.creator("alice")}
    do(catalog, catalog.apply([["queue", "default", "hers", own]]).changes)
    assert changing(pruned(catalog, [])) == []


def test_a_message_vpn_stays_while_something_in_it_is_named() -> None:
    catalog = fresh_catalog()
    create(catalog, "vpn", "", "orders")
    create(catalog, "acl", "orders", "readers")
    create(catalog, "queue", "orders", "old")
    declared: Declared = [["acl", "orders", "readers", {}]]
    assert changing(pruned(catalog, declared)) == [("delete", "queue", "old")]
    gone = changing(pruned(catalog, []))
    assert ("delete", "vpn", "orders") in gone
    assert len(gone) == len(set(gone)), "something is deleted twice"


def test_what_goes_makes_room_for_what_comes() -> None:
    catalog = fresh_catalog()
    create(catalog, "queue", "default", "old")
    endpoints = len(catalog.of_kind("queue", "default"))
    do(catalog, catalog.update("vpn", "", "default", {"max_endpoint_count": endpoints}))
    declared: Declared = [["queue", "default", "new", {}]]
    with pytest.raises(errors.UnavailableError):
        catalog.apply(declared)
    do(catalog, pruned(catalog, declared).changes)
    assert catalog.get("queue", "default", "new") is not None


def test_what_others_refer_to_goes_after_them() -> None:
    catalog = fresh_catalog()
    create(catalog, "acl", "default", "readers")
    create(catalog, "username", "default", "alice", acl_profile="readers")
    moved: Declared = [["username", "default", "alice", {"acl_profile": "default"}]]
    assert changing(pruned(catalog, moved)) == [
        ("update", "username", "alice"),
        ("delete", "acl", "readers"),
    ]
    assert changing(pruned(catalog, [])) == [
        ("delete", "username", "alice"),
        ("delete", "acl", "readers"),
    ]
