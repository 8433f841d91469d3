"""Endpoints in the catalog: identity, homes, limits, backups, and what clients wish of them."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster import objects
from cluster.catalog.catalog import COUNTER, Catalog
from cluster.catalog.endpoints import ClientEndpoints, Created, CreateWish
from cluster.catalog.placement import WORKERS
from storage.config_store import Change, Counter, Entry


def make_catalog(workers: int = 3, **settings: Any) -> Catalog:
    catalog = Catalog(
        [], lambda password: f"scrypt$16384$8$1$00${password.encode().hex()}", workers=workers, **settings
    )
    catalog.take(catalog.missing_built_ins())
    catalog.validate()
    return catalog


@pytest.fixture
def catalog() -> Catalog:
    return make_catalog()


@pytest.fixture
def clients(catalog: Catalog) -> ClientEndpoints:
    return ClientEndpoints(catalog)


def do(catalog: Catalog, changes: list[Entry]) -> None:
    catalog.take(changes)
    catalog.validate()


def create(catalog: Catalog, name: str = "q", kind: str = "queue", **values: Any) -> dict[str, Any]:
    do(catalog, catalog.create(kind, "default", name, values))
    return catalog.show(kind, "default", name)


def wish(name: str = "q", **given: Any) -> CreateWish:
    return CreateWish(**{"vpn": "default", "kind": "queue", "name": name, "username": "alice", **given})


def made(catalog: Catalog, created: Created) -> dict[str, Any]:
    """Take over what a wish came to, and give the endpoint."""
    do(catalog, created.changes)
    (change,) = (entry for entry in created.changes if isinstance(entry, Change))
    return catalog.show(*change[:3])


# -- identity and homes --------------------------------------------------------------------------------------


def test_an_endpoint_gets_an_id_and_a_home_beside_its_attributes(catalog: Catalog) -> None:
    queue = create(catalog, max_ttl_s=5)
    assert queue["max_ttl_s"] == 5
    assert queue["id"] == 3  # 1 is the dead message queue, 2 the one that retains
    assert queue["homes"] == [2]
    assert (queue["created_by"], queue["durable"], queue["generation"]) == ("operator", True, 1)


def test_an_id_is_not_given_again_after_a_deletion_nor_after_a_restart(catalog: Catalog) -> None:
    first = create(catalog)["id"]
    do(catalog, catalog.delete("queue", "default", "q"))
    assert create(catalog)["id"] == first + 1
    do(catalog, catalog.delete("queue", "default", "q"))
    stored = [Change(*entry) for entry in catalog.snapshot()]
    later = Catalog(stored, next_endpoint_id=first + 2)
    assert create(later)["id"] == first + 2


def test_the_counter_of_ids_is_durable_with_the_endpoint(catalog: Catalog) -> None:
    change, counter = catalog.create("queue", "default", "q", {})
    assert isinstance(change, Change)
    assert change.attributes is not None
    assert counter == Counter(COUNTER, change.attributes["id"] + 1)


def test_new_lanes_go_where_the_fewest_are(catalog: Catalog) -> None:
    assert [create(catalog, name)["homes"] for name in ("a", "b", "c", "d")] == [[2], [0], [1], [2]]
    spread = create(catalog, "p", access_type="non-exclusive", partition_count=5)["homes"]
    assert [spread.count(worker) for worker in range(3)] == [2, 2, 1]
    assert catalog.placement.lanes == {0: 4, 1: 4, 2: 3}


def test_more_partitions_get_homes_and_fewer_keep_theirs(catalog: Catalog) -> None:
    homes = create(catalog, access_type="non-exclusive", partition_count=2)["homes"]
    do(catalog, catalog.update("queue", "default", "q", {"partition_count": 4}))
    more = catalog.show("queue", "default", "q")["homes"]
    assert (len(more), more[:2]) == (4, homes)
    do(catalog, catalog.update("queue", "default", "q", {"partition_count": 1}))
    assert catalog.show("queue", "default", "q")["homes"] == more


def test_an_update_keeps_the_identity(catalog: Catalog) -> None:
    before = create(catalog)
    do(catalog, catalog.update("queue", "default", "q", {"permission": "consume"}))
    after = catalog.show("queue", "default", "q")
    assert after == {**before, "permission": "consume"}


def test_an_exclusive_queue_is_not_partitioned_later_either(catalog: Catalog) -> None:
    create(catalog, access_type="non-exclusive", partition_count=2)
    with pytest.raises(errors.InvalidRequestError, match="partition_count needs"):
        catalog.update("queue", "default", "q", {"access_type": "exclusive"})


def test_workers_that_leave_give_their_lanes_away_and_no_others(catalog: Catalog) -> None:
    create(catalog, "p", access_type="non-exclusive", partition_count=6)
    before = catalog.show("queue", "default", "p")["homes"]
    changes = catalog.leave_homes(2)
    do(catalog, changes)
    after = catalog.show("queue", "default", "p")["homes"]
    assert [home for home, old in zip(after, before, strict=True) if old < 2] == [
        home for home in before if home < 2
    ]
    assert max(after) == 1
    assert abs(catalog.placement.lanes[0] - catalog.placement.lanes[1]) <= 1
    assert catalog.leave_homes(2) == []


def test_workers_that_come_get_new_lanes_only(catalog: Catalog) -> None:
    for name in ("a", "b", "c"):
        create(catalog, name)
    assert catalog.leave_homes(4) == []
    do(catalog, [Counter(WORKERS, 4)])
    assert create(catalog, "d")["homes"] == [3]


# -- the dead message queue ----------------------------------------------------------------------------------


@pytest.mark.requirement("R202")
def test_each_message_vpn_has_a_queue_for_dead_messages_that_keeps_them(catalog: Catalog) -> None:
    do(catalog, catalog.create("vpn", "", "orders", {}))
    for vpn in ("default", "orders"):
        queue = catalog.show("queue", vpn, "#DEAD_MSG_QUEUE")
        assert (queue["permission"], queue["respect_ttl"], queue["dead_message_queue"]) == (
            "no-access",
            False,
            "",
        )


def test_a_deleted_dead_message_queue_is_not_made_again(catalog: Catalog) -> None:
    do(catalog, catalog.delete("queue", "default", "#DEAD_MSG_QUEUE"))
    assert catalog.missing_built_ins() == []
    assert create(catalog, "#DEAD_MSG_QUEUE")["created_by"] == "operator"


def test_a_node_from_before_endpoints_gets_the_queues_for_dead_messages() -> None:
    old = [Change("vpn", "", "default", {}), Change("vpn", "", "orders", {})]
    catalog = Catalog(old)
    do(catalog, catalog.missing_built_ins())
    assert {(row["vpn"], row["id"]) for row in catalog.find("queue", None, "#DEAD*")} == {
        ("default", 1),
        ("orders", 2),
    }


# -- deletion and limits -------------------------------------------------------------------------------------


@pytest.mark.requirement("R118", "R119")
def test_a_queue_takes_its_subscriptions_along(catalog: Catalog) -> None:
    create(catalog, subscriptions=["a/>", "!a/b"])
    assert catalog.show("queue", "default", "q")["subscriptions"] == ["a/>", "!a/b"]
    do(catalog, catalog.delete("queue", "default", "q"))
    assert create(catalog)["subscriptions"] == []


def test_a_message_vpn_takes_its_endpoints_along(catalog: Catalog) -> None:
    do(catalog, catalog.create("vpn", "", "orders", {}))
    do(catalog, catalog.create("queue", "orders", "q", {}))
    do(catalog, catalog.create("template", "orders", "t", {}))
    do(catalog, catalog.delete("vpn", "", "orders"))
    assert catalog.find("queue", "orders", "*") == []
    assert catalog.placement.in_vpn == {"default": 2}


def test_a_message_vpn_has_so_many_endpoints_and_no_more(catalog: Catalog) -> None:
    do(catalog, catalog.update("vpn", "", "default", {"max_endpoint_count": 3}))
    create(catalog)
    with pytest.raises(errors.UnavailableError, match="max_endpoint_count") as caught:
        create(catalog, "t", kind="topic-endpoint")
    assert caught.value.code == errors.TOO_MANY_ENDPOINTS
    do(catalog, catalog.delete("queue", "default", "q"))
    create(catalog, "t", kind="topic-endpoint")


@pytest.mark.requirement("R91")
def test_a_name_is_one_of_its_message_vpn_and_kind(catalog: Catalog) -> None:
    create(catalog)
    create(catalog, kind="topic-endpoint")
    do(catalog, catalog.create("vpn", "", "orders", {}))
    do(catalog, catalog.create("queue", "orders", "q", {}))
    with pytest.raises(errors.ConflictError):
        create(catalog)


@pytest.mark.requirement("R125")
def test_a_node_without_exceptions_refuses_them() -> None:
    catalog = make_catalog(subscription_exceptions=False)
    with pytest.raises(errors.InvalidRequestError) as caught:
        create(catalog, subscriptions=["a/>", "!a/b"])
    assert caught.value.code == errors.EXCEPTIONS_NOT_SUPPORTED


# -- backups -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R97")
def test_a_backup_of_the_configuration_brings_endpoints_to_a_fresh_node(catalog: Catalog) -> None:
    create(catalog, subscriptions=["a/>"], permission="consume", max_ttl_s=9)
    clients = ClientEndpoints(catalog)
    made(catalog, clients.create(wish("theirs", attributes={"subscriptions": ["b"]})))
    made(catalog, clients.create(wish("te", kind="topic-endpoint")))
    do(catalog, clients.set_topic("default", "te", "t/>", None))
    made(catalog, clients.create(wish("tmp", durable=False)))
    fresh = make_catalog(workers=1)
    do(fresh, fresh.apply(catalog.export()).changes)
    for kind, name in (("queue", "q"), ("queue", "theirs"), ("topic-endpoint", "te")):
        old, new = (one.show(kind, "default", name) for one in (catalog, fresh))
        assert {**new, "homes": 0, "id": 0, "generation": 0} == {**old, "homes": 0, "id": 0, "generation": 0}
        assert new["homes"] == [0]
    assert fresh.find("queue", "default", "tmp") == []


@pytest.mark.requirement("R97")
def test_a_backup_that_is_applied_leaves_what_endpoints_hold_alone(catalog: Catalog) -> None:
    clients = ClientEndpoints(catalog)
    made(catalog, clients.create(wish("te", kind="topic-endpoint")))
    do(catalog, clients.set_topic("default", "te", "t/>", None))
    exported = catalog.export()
    do(catalog, clients.set_topic("default", "te", "u/>", None))
    before = catalog.show("topic-endpoint", "default", "te")
    applied = catalog.apply(exported)
    assert applied.changes == []
    assert catalog.show("topic-endpoint", "default", "te") == before


def test_endpoints_may_be_declared_and_declared_again(catalog: Catalog) -> None:
    declared = [["queue", "default", f"q{number}", {"subscriptions": ["a"]}] for number in range(4)]
    applied = catalog.apply(declared)
    do(catalog, applied.changes)
    assert [row["action"] for row in applied.report] == ["create"] * 4
    assert catalog.placement.lanes == {0: 2, 1: 2, 2: 2}
    assert catalog.apply(declared).changes == []
    changed = catalog.apply([["queue", "default", "q0", {"subscriptions": ["b"]}]])
    assert [type(entry) for entry in changed.changes] == [Change]


def test_an_operator_cannot_declare_an_id(catalog: Catalog) -> None:
    with pytest.raises(errors.InvalidRequestError, match="set by the node"):
        catalog.apply([["queue", "default", "q", {"id": 9}]])


# -- clients create ------------------------------------------------------------------------------------------


@pytest.mark.requirement("R100", "R108", "R109", "R131")
def test_a_client_gets_what_it_asks_for_and_the_defaults_for_the_rest(
    catalog: Catalog, clients: ClientEndpoints
) -> None:
    created = clients.create(
        wish(attributes={"max_ttl_s": 7, "permission": "consume", "subscriptions": ["a"]})
    )
    assert created.created
    queue = made(catalog, created)
    assert (queue["max_ttl_s"], queue["permission"], queue["max_spool_usage_mb"]) == (7, "consume", 5000)
    assert (queue["owner"], queue["created_by"], queue["durable"], queue["client"]) == (
        "alice",
        "client:alice",
        True,
        "",
    )
    assert (queue["subscriptions"], queue["client_subscriptions"]) == ([], ["a"])


@pytest.mark.parametrize("name", ["owner", "ingress_enabled", "egress_enabled", "id", "no_such"])
def test_a_client_does_not_set_what_operators_set(clients: ClientEndpoints, name: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match=name) as caught:
        clients.create(wish(attributes={name: "true"}))
    assert caught.value.code == errors.INVALID_ATTRIBUTE


@pytest.mark.requirement("R110")
def test_a_template_that_fits_the_name_gives_what_the_client_does_not(
    catalog: Catalog, clients: ClientEndpoints
) -> None:
    for name, name_filter, ttl in (("wide", ">", 1), ("near", "orders/>", 2), ("other", "orders/te/>", 3)):
        kind = "topic-endpoint" if name == "other" else "queue"
        values = {"name_filter": name_filter, "max_ttl_s": ttl, "max_bind_count": 5, "kind_of_endpoint": kind}
        do(catalog, catalog.create("template", "default", name, values))
    queue = made(catalog, clients.create(wish("orders/te/a", attributes={"max_bind_count": 9})))
    assert (queue["max_ttl_s"], queue["max_bind_count"]) == (2, 9)
    assert made(catalog, clients.create(wish("a")))["max_ttl_s"] == 1
    assert made(catalog, clients.create(wish("orders/te/a", kind="topic-endpoint")))["max_ttl_s"] == 3


@pytest.mark.requirement("R110")
def test_a_template_that_the_profile_names_wins_over_those_that_fit(
    catalog: Catalog, clients: ClientEndpoints
) -> None:
    do(catalog, catalog.create("template", "default", "fits", {"name_filter": "q", "max_ttl_s": 1}))
    do(catalog, catalog.create("template", "default", "named", {"max_ttl_s": 2}))
    do(catalog, catalog.update("profile", "default", "default", {"queue_template": "named"}))
    assert made(catalog, clients.create(wish()))["max_ttl_s"] == 2


def test_a_missing_template_makes_the_creation_fail(catalog: Catalog, clients: ClientEndpoints) -> None:
    do(catalog, catalog.update("profile", "default", "default", {"topic_endpoint_template": "gone"}))
    with pytest.raises(errors.NotFoundError, match="'gone'"):
        clients.create(wish(kind="topic-endpoint"))
    assert clients.create(wish()).created


def test_the_profile_is_that_of_the_username(catalog: Catalog, clients: ClientEndpoints) -> None:
    do(catalog, catalog.create("profile", "default", "small", {"max_endpoint_count_per_username": 1}))
    do(catalog, catalog.create("username", "default", "bob", {"client_profile": "small"}))
    made(catalog, clients.create(wish("a", username="bob")))
    with pytest.raises(errors.UnavailableError, match="'bob'") as caught:
        clients.create(wish("b", username="bob"))
    assert caught.value.code == errors.TOO_MANY_ENDPOINTS
    made(catalog, clients.create(wish("b")))


@pytest.mark.requirement("R94", "R105")
@pytest.mark.parametrize("attributes", [{"access_type": "non-exclusive"}, {"partition_count": 2}])
def test_a_temporary_endpoint_has_one_consumer_and_no_partitions(
    clients: ClientEndpoints, attributes: dict[str, Any]
) -> None:
    values = {"access_type": "non-exclusive", **attributes}
    with pytest.raises(errors.InvalidRequestError) as caught:
        clients.create(wish(durable=False, attributes=values))
    assert caught.value.code == errors.INVALID_DURABILITY


@pytest.mark.requirement("R93", "R102")
@pytest.mark.parametrize("kind", ["queue", "topic-endpoint"])
def test_a_temporary_endpoint_names_its_client_and_is_in_no_backup(
    catalog: Catalog, clients: ClientEndpoints, kind: str
) -> None:
    endpoint = made(catalog, clients.create(wish("t" * 241, kind=kind, durable=False, client="c1")))
    assert (endpoint["durable"], endpoint["client"], endpoint["access_type"]) == (False, "c1", "exclusive")
    assert [entry[2] for entry in catalog.export() if entry[0] == kind] == ["#DEAD_MSG_QUEUE"] * (
        kind == "queue"
    )


def test_a_template_may_make_everything_temporary(catalog: Catalog, clients: ClientEndpoints) -> None:
    values = {"name_filter": ">", "durability_override": "non-durable", "access_type": "non-exclusive"}
    do(catalog, catalog.create("template", "default", "t", values))
    endpoint = made(catalog, clients.create(wish(client="c1")))
    assert (endpoint["durable"], endpoint["client"], endpoint["access_type"]) == (False, "c1", "exclusive")


def test_what_exists_is_told_apart(catalog: Catalog, clients: ClientEndpoints) -> None:
    made(catalog, clients.create(wish(attributes={"max_ttl_s": 7})))

    def code(**given: Any) -> int:
        with pytest.raises(errors.AngariumError) as caught:
            clients.create(wish(**given))
        return caught.value.code

    assert code() == errors.OBJECT_EXISTS
    assert code(attributes={"max_ttl_s": 8}) == errors.ENDPOINT_PROPERTY_MISMATCH
    assert code(attributes={"max_ttl_s": 8}, ignore_exists=True) == errors.ENDPOINT_PROPERTY_MISMATCH
    assert code(durable=False, ignore_exists=True) == errors.INVALID_DURABILITY
    assert clients.create(wish(ignore_exists=True, attributes={"max_ttl_s": 7})) == Created([], created=False)


def test_a_client_cannot_create_other_kinds_of_objects(clients: ClientEndpoints) -> None:
    with pytest.raises(errors.InvalidRequestError, match="no kind of endpoint"):
        clients.create(wish(kind="vpn"))


# -- clients delete and change -------------------------------------------------------------------------------


@pytest.mark.requirement("R132")
def test_a_client_deletes_what_clients_created_only(catalog: Catalog, clients: ClientEndpoints) -> None:
    create(catalog, "operators")
    with pytest.raises(errors.ForbiddenError) as caught:
        clients.delete("default", "queue", "operators")
    assert caught.value.code == errors.OPERATOR_ENDPOINT
    made(catalog, clients.create(wish("clients")))
    do(catalog, clients.delete("default", "queue", "clients"))
    with pytest.raises(errors.NotFoundError) as gone:
        clients.delete("default", "queue", "clients")
    assert gone.value.code == errors.UNKNOWN_ENDPOINT


def test_an_endpoint_that_was_made_again_is_not_deleted_in_place_of_the_former(
    catalog: Catalog, clients: ClientEndpoints
) -> None:
    first = made(catalog, clients.create(wish()))["id"]
    do(catalog, clients.delete("default", "queue", "q", first))
    made(catalog, clients.create(wish()))
    assert clients.delete("default", "queue", "q", first) == []


@pytest.mark.requirement("R120")
def test_a_client_adds_and_removes_its_own_subscriptions(catalog: Catalog, clients: ClientEndpoints) -> None:
    create(catalog, subscriptions=["ours"])
    done = clients.subscribe("default", "q", ["a", "ours", "a", "!b"], [])
    assert done.added == [None] * 4
    do(catalog, done.changes)
    assert catalog.show("queue", "default", "q")["client_subscriptions"] == ["a", "!b"]
    done = clients.subscribe("default", "q", [], ["a", "ours", "never"])
    assert [verdict and verdict[0] for verdict in done.removed] == [
        None,
        errors.OPERATOR_ENDPOINT,
        errors.SUBSCRIPTION_NOT_FOUND,
    ]
    do(catalog, done.changes)
    queue = catalog.show("queue", "default", "q")
    assert (queue["subscriptions"], queue["client_subscriptions"]) == (["ours"], ["!b"])
    assert clients.subscribe("default", "q", ["!b"], []).changes == []


@pytest.mark.requirement("R24")
def test_a_client_is_told_which_subscription_a_queue_cannot_have(
    catalog: Catalog, clients: ClientEndpoints
) -> None:
    create(catalog)
    done = clients.subscribe("default", "q", ["#share/g/a", "", "#P2P/QUE/x", "fine"], [])
    codes = [verdict and verdict[0] for verdict in done.added]
    assert codes == [errors.SHARED_ON_ENDPOINT, errors.INVALID_FILTER, errors.RESERVED_TOPIC, None]
    do(catalog, done.changes)
    assert catalog.show("queue", "default", "q")["client_subscriptions"] == ["fine"]


def test_clients_add_so_many_subscriptions_and_no_more(
    catalog: Catalog, clients: ClientEndpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(catalog)
    monkeypatch.setattr(objects, "MAX_QUEUE_SUBSCRIPTIONS", 2)
    codes = [
        verdict and verdict[0] for verdict in clients.subscribe("default", "q", ["a", "b", "c"], []).added
    ]
    assert codes == [None, None, errors.MAX_SUBSCRIPTIONS_EXCEEDED]


@pytest.mark.requirement("R278")
def test_clients_give_a_queue_so_many_kinds_of_overlapping_subscriptions_and_no_more(
    catalog: Catalog, clients: ClientEndpoints
) -> None:
    do(catalog, catalog.update("vpn", "", "default", {"max_overlapping_filters_per_queue": 2}))
    create(catalog, subscriptions=["*/a"])
    texts = ["*/b", "a/*", "!a*/c", "plain", "b/*", "#noexport/*/*"]
    done = clients.subscribe("default", "q", texts, [])
    codes = [verdict and verdict[0] for verdict in done.added]
    refused = errors.OVERLAPPING_FILTERS
    assert codes == [None, None, refused, None, None, refused]
    with pytest.raises(errors.InvalidRequestError) as caught:
        clients.create(wish("other", attributes={"subscriptions": ["*/a", "a/*", "*/*"]}))
    assert caught.value.code == refused
    do(catalog, clients.create(wish("other", attributes={"subscriptions": ["*/a", "a/*", "b/*"]})).changes)


def test_what_an_operator_adds_is_not_a_clients_any_more(catalog: Catalog, clients: ClientEndpoints) -> None:
    create(catalog)
    do(catalog, clients.subscribe("default", "q", ["a", "b"], []).changes)
    do(catalog, catalog.update("queue", "default", "q", {"subscriptions": ["a"]}))
    queue = catalog.show("queue", "default", "q")
    assert (queue["subscriptions"], queue["client_subscriptions"]) == (["a"], ["b"])


@pytest.mark.requirement("R149")
def test_another_topic_or_selector_is_another_generation(catalog: Catalog, clients: ClientEndpoints) -> None:
    create(catalog, "t", kind="topic-endpoint")
    for number, (topic, selector) in enumerate(
        (("a/>", None), ("a/>", "x = 1"), ("b", "x = 1"), (None, None)), start=2
    ):
        do(catalog, clients.set_topic("default", "t", topic, selector))
        endpoint = catalog.show("topic-endpoint", "default", "t")
        assert (endpoint["topic"], endpoint["selector"], endpoint["generation"]) == (topic, selector, number)
        assert clients.set_topic("default", "t", topic, selector) == []


@pytest.mark.requirement("R123", "R141")
@pytest.mark.parametrize(
    ("topic", "selector", "code"),
    [
        ("!a", None, errors.EXCEPTIONS_NOT_SUPPORTED),
        ("#share/g/a", None, errors.SHARED_ON_ENDPOINT),
        ("", None, errors.INVALID_FILTER),
        ("a", f"{'x' * 1997} = 1", errors.INVALID_SELECTOR),
        ("a", "x =", errors.INVALID_SELECTOR),
    ],
)
def test_what_is_no_topic_or_selector_is_refused(
    catalog: Catalog, clients: ClientEndpoints, topic: str, selector: str | None, code: int
) -> None:
    create(catalog, "t", kind="topic-endpoint")
    with pytest.raises(errors.AngariumError) as caught:
        clients.set_topic("default", "t", topic, selector)
    assert caught.value.code == code
