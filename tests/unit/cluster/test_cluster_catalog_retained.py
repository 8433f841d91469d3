"""The queue for retained messages: it comes, changes and goes with its Message VPN, and operators leave it alone."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from cluster import objects
from cluster.catalog.catalog import COUNTER, Catalog
from cluster.catalog.endpoints import ClientEndpoints, CreateWish
from storage.config_store import Change, Counter, Deletion, Entry
from tests.unit.cluster.controller_world import World, requests

NAME = wire.RETAINED_QUEUE


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog([], workers=2)
    do(catalog, catalog.missing_built_ins())
    return catalog


def do(catalog: Catalog, changes: list[Entry]) -> list[Entry]:
    catalog.take(changes)
    catalog.validate()
    return changes


def retained(catalog: Catalog, vpn: str = "default") -> dict[str, Any] | None:
    return catalog.get("queue", vpn, NAME)


def update(catalog: Catalog, **values: Any) -> list[Entry]:
    return do(catalog, catalog.update("vpn", "", "default", values))


def test_each_message_vpn_has_one_with_its_quota(catalog: Catalog) -> None:
    do(catalog, catalog.create("vpn", "", "orders", {"max_retained_mb": 7}))
    for vpn, quota in (("default", 100), ("orders", 7)):
        queue = retained(catalog, vpn)
        assert queue is not None
        expected = {"access_type": "non-exclusive", "dead_message_queue": "", "max_spool_usage_mb": quota}
        identity = {"id": queue["id"], "homes": queue["homes"]}
        assert queue == objects.complete("queue", {**expected, **identity})


def test_a_message_vpn_takes_it_along(catalog: Catalog) -> None:
    do(catalog, catalog.create("vpn", "", "orders", {}))
    do(catalog, catalog.delete("queue", "orders", objects.DEAD_MESSAGE_QUEUE))
    removed = do(catalog, catalog.delete("vpn", "", "orders"))
    assert Change("queue", "orders", NAME, None) in removed
    assert retained(catalog, "orders") is None


def test_a_node_from_before_gets_them_at_its_start() -> None:
    """Ids go on where they were, also those of endpoints that are gone."""
    old = [Change("vpn", "", name, {}) for name in ("default", "orders")]
    none = Change("vpn", "", "none", {"max_retained_mb": 0})
    catalog = Catalog([*old, none], next_endpoint_id=50)
    changes = do(catalog, catalog.missing_built_ins())
    assert [entry[1:3] for entry in changes if entry[0] == "queue"] == [("default", NAME), ("orders", NAME)]
    assert [row["id"] for row in catalog.find("queue", None, NAME)] == [50, 51]
    assert Counter(COUNTER, 52) in changes
    assert catalog.missing_built_ins() == []


def test_a_change_of_the_quota_changes_the_queue_and_nothing_else(catalog: Catalog) -> None:
    before = retained(catalog)
    assert before is not None
    update(catalog, max_retained_mb=5)
    assert retained(catalog) == {**before, "max_spool_usage_mb": 5}
    assert [entry[:3] for entry in update(catalog, max_connection_count=3)] == [("vpn", "", "default")]
    assert update(catalog, max_retained_mb=5) == []


def test_without_a_quota_there_is_none_and_a_new_one_is_another(catalog: Catalog) -> None:
    """So nothing that was retained before shows up again."""
    before = retained(catalog)
    assert before is not None
    update(catalog, max_retained_mb=0)
    assert retained(catalog) is None
    update(catalog, max_connection_count=3)
    assert retained(catalog) is None
    update(catalog, max_retained_mb=1)
    after = retained(catalog)
    assert after is not None
    assert after["id"] > before["id"]


@pytest.mark.parametrize(
    ("verb", "arguments", "code"),
    [
        ("create", ("queue", "default", NAME, {}), errors.INVALID_ENDPOINT_NAME),
        ("create", ("queue", "default", "q", {"dead_message_queue": NAME}), errors.INVALID_ATTRIBUTE),
        ("delete", ("queue", "default", NAME), errors.OBJECT_IN_USE),
        ("update", ("queue", "default", NAME, {"subscriptions": ["a"]}), errors.OBJECT_IN_USE),
        ("update", ("queue", "default", NAME, {"max_spool_usage_mb": 9}), errors.OBJECT_IN_USE),
        ("apply", ([["queue", "default", NAME, {"partition_count": 2}]],), errors.OBJECT_IN_USE),
    ],
)
def test_operators_leave_it_alone(catalog: Catalog, verb: str, arguments: Any, code: int) -> None:
    with pytest.raises(errors.AngariumError) as caught:
        getattr(catalog, verb)(*arguments)
    assert caught.value.code == code


def test_clients_leave_it_alone(catalog: Catalog) -> None:
    clients = ClientEndpoints(catalog)
    with pytest.raises(errors.AngariumError):
        clients.create(CreateWish(vpn="default", kind="queue", name=NAME, username="alice"))
    with pytest.raises(errors.ForbiddenError):
        clients.delete("default", "queue", NAME)


def test_it_can_be_switched_off(catalog: Catalog) -> None:
    """As the node does with an endpoint at which its workers die."""
    do(catalog, catalog.update("queue", "default", NAME, {"egress_enabled": False}))
    update(catalog, max_retained_mb=3)
    queue = retained(catalog)
    assert queue is not None
    assert (queue["egress_enabled"], queue["max_spool_usage_mb"]) == (False, 3)


def test_a_backup_has_the_quota_and_brings_the_queue_with_it(catalog: Catalog) -> None:
    update(catalog, max_retained_mb=5)
    do(catalog, catalog.create("vpn", "", "none", {"max_retained_mb": 0}))
    exported = catalog.export()
    assert NAME not in [name for _, _, name, _ in exported]
    fresh = Catalog([], workers=1)
    do(fresh, fresh.missing_built_ins())
    do(fresh, fresh.apply(exported).changes)
    queue = retained(fresh)
    assert queue is not None
    assert queue["max_spool_usage_mb"] == 5
    assert retained(fresh, "none") is None


class TestServed:
    @pytest.fixture
    def served(self) -> World:
        world = World(workers=2)
        world.answer(world.hello("router"), None)
        for index in range(2):
            world.hello("worker", index)
        world.news(router="ready", worker_0="ready", worker_1="ready")
        return world

    def test_the_router_hears_of_a_quota_with_the_message_vpn(self, served: World) -> None:
        seen = served.call("objects.update", kind="vpn", name="default", attributes={"max_retained_mb": 5})
        (_, vpn), (operation, queue) = requests(seen)
        assert vpn[3]["max_retained_mb"] == 5
        assert (operation, queue[:3]) == ("config_set", ["queue", "default", NAME])
        assert queue[3]["max_spool_usage_mb"] == 5

    def test_what_was_retained_is_deleted_with_the_quota(self, served: World) -> None:
        number = served.catalog.show("queue", "default", NAME)["id"]
        seen = served.call("objects.update", kind="vpn", name="default", attributes={"max_retained_mb": 0})
        assert ("config_delete", ["queue", "default", NAME]) in requests(seen)
        committed = [entry for effect in seen for entry in getattr(effect, "changes", [])]
        assert Deletion(number, is_complete=False) in committed

    def test_operators_see_it_like_other_queues(self, served: World) -> None:
        seen = served.call("endpoints.list", name="*")
        (rows,) = [effect.value for effect in served.answer(seen, []) if hasattr(effect, "value")]
        assert [row["name"] for row in rows] == [objects.DEAD_MESSAGE_QUEUE, NAME]

    @pytest.mark.parametrize("operation", ["endpoints.move", "endpoints.redrive"])
    def test_nothing_is_moved_out_of_it(self, served: World, operation: str) -> None:
        target = {"target": objects.DEAD_MESSAGE_QUEUE} if operation == "endpoints.move" else {}
        assert refusal(served.call(operation, name=NAME, **target)) == errors.INVALID_ARGUMENT

    @pytest.mark.parametrize("operation", ["endpoints.move", "endpoints.copy"])
    def test_nothing_is_moved_into_it(self, served: World, operation: str) -> None:
        seen = served.call(operation, name=objects.DEAD_MESSAGE_QUEUE, target=NAME)
        assert refusal(seen) == errors.INVALID_ARGUMENT

    def test_it_is_subscribed_to_nothing(self, served: World) -> None:
        seen = served.call("objects.subscribe", name=NAME, add=["a"])
        assert refusal(seen) == errors.OBJECT_IN_USE


def refusal(seen: list[Any]) -> int:
    (reply,) = seen
    assert not reply.ok
    code: int = reply.value[0]
    return code
