"""Deletions that are recorded, and what operators do with lanes that no object claims."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from angarium_server.frames.settings import LaneSettings, settings_map
from cluster.catalog.catalog import Catalog
from cluster.catalog.deletions import DELETIONS_TIDY, Deletions
from cluster.controller.switchboard import effects as c
from cluster.controller.switchboard.changes import TIDY_INTERVAL_S
from storage.config_store import Change, Deletion
from tests.unit.cluster.controller_world import World, replies, requests

BITS = 10


@pytest.fixture
def world() -> World:
    """A node with a router, two workers and the queue q."""
    world = World(workers=2)
    world.answer(world.hello("router"), None)
    for index in range(2):
        world.hello("worker", index)
    world.news(router="ready", worker_0="ready", worker_1="ready")
    world.answer(world.call("objects.create", kind="queue", name="q"), None)
    return world


def commits(seen: list[c.Effect]) -> list[Any]:
    return [entry for effect in seen if isinstance(effect, c.Commit) for entry in effect.changes]


def lane(endpoint: int, partition: int = 0, messages: int = 4, **settings: Any) -> dict[str, Any]:
    found = LaneSettings(name="lost", **settings)
    return {
        "lane_id": endpoint << BITS | partition,
        "kind": "queue",
        "vpn": "default",
        "name": "lost",
        "partition": partition,
        "generation": 2,
        "messages": messages,
        "bytes": 100,
        "oldest_stored_ms": 1_000 + partition,
        "settings": settings_map(found),
    }


# -- deletions -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R282")
def test_a_deletion_is_recorded_with_the_change_and_told_a_new_router_before_the_objects(
    world: World,
) -> None:
    number = world.catalog.show("queue", "default", "q")["id"]
    seen = world.call("objects.delete", kind="queue", name="q")
    assert commits(seen) == [Change("queue", "default", "q", None), Deletion(number, is_complete=False)]
    told = requests(world.hello("router", incarnation=8))
    assert told[0] == ("deletions", [number])
    assert told[1][0] == "config_snapshot"


def test_a_message_vpn_takes_the_records_of_all_its_endpoints_along(world: World) -> None:
    seen = world.call("objects.create", kind="vpn", name="v")
    world.answer(seen, *[None] * len(requests(seen)))
    world.answer(world.call("objects.create", kind="queue", vpn="v", name="a"), None)
    ids = {row["id"] for row in world.catalog.find("queue", "v", "*")}
    recorded = commits(world.call("objects.delete", kind="vpn", name="v"))
    assert {entry.endpoint_id for entry in recorded if isinstance(entry, Deletion)} == ids
    assert len(ids) == 3


@pytest.mark.requirement("R282")
def test_a_record_goes_when_the_router_says_that_no_home_has_anything_any_more(world: World) -> None:
    number = world.catalog.show("queue", "default", "q")["id"]
    world.answer(world.call("objects.delete", kind="queue", name="q"), None)
    world.wait(0)
    seen = world.wait(TIDY_INTERVAL_S)
    (asked,) = [one for one in seen if isinstance(one, c.Request) and one.operation == "deletions"]
    assert asked.arguments == [number]
    ended = world.do(world.controller.answered(asked.number, [number]))
    assert commits(ended) == [Deletion(number, is_complete=True)]
    assert "deletions" not in dict(requests(world.hello("router", incarnation=8)))


def test_of_very_many_records_the_router_is_asked_at_once() -> None:
    world = World()
    world.controller._changes.deletions.take([Deletion(n, is_complete=False) for n in range(DELETIONS_TIDY)])
    world.answer(world.hello("router"), None, None)
    world.wait(0)
    assert "deletions" in dict(requests(world.wait(1.0)))
    assert "deletions" not in dict(requests(world.wait(1.0)))
    assert "deletions" in dict(requests(world.wait(10.0)))


def test_records_are_bounded_and_the_oldest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.catalog.deletions.DELETIONS_MAX", 2)
    catalog = Catalog([], str)
    catalog.take(catalog.missing_built_ins())
    catalog.take(catalog.create("queue", "default", "q", {}))
    number = catalog.show("queue", "default", "q")["id"]
    deletions = Deletions([Deletion(50, is_complete=False), Deletion(51, is_complete=False)])
    entries = deletions.of(catalog.delete("queue", "default", "q"), catalog)
    assert entries == [Deletion(number, is_complete=False), Deletion(50, is_complete=True)]
    deletions.take(entries)
    assert deletions.ids == [51, number]


# -- what is kept aside --------------------------------------------------------------------------------------


@pytest.mark.requirement("R282")
def test_lanes_are_listed_by_their_endpoint(world: World) -> None:
    seen = world.call("spool.aside")
    (rows,) = replies(world.answer(seen, [lane(90, 1, 3)], [lane(90, 0, 4), lane(80)]))
    assert [(row["id"], row["messages"], row["oldest_stored_ms"]) for row in rows] == [
        (80, 4, 1_000),
        (90, 7, 1_000),
    ]
    assert [(one["worker"], one["partition"]) for one in rows[1]["lanes"]] == [(0, 1), (1, 0)]


@pytest.mark.requirement("R282")
def test_an_adopted_queue_has_the_id_the_homes_and_the_attributes_of_its_lanes(world: World) -> None:
    seen = world.call("spool.aside.adopt", id=90, name="again")
    partitions = {"partitions": 3, "access_type": "non-exclusive", "max_ttl_s": 7}
    told = [lane(90, 1, 3, **partitions)], [lane(90, 0, 4, **partitions)]
    made = world.answer(seen, *told)
    (reply,) = replies(world.answer(made, None))
    assert reply == {"vpn": "default", "name": "again", "messages": 7}
    queue = world.catalog.show("queue", "default", "again")
    assert (queue["id"], queue["generation"], queue["partition_count"], queue["max_ttl_s"]) == (90, 2, 3, 7)
    assert queue["homes"][:2] == [1, 0]
    assert len(queue["homes"]) == 3
    world.answer(world.call("objects.create", kind="queue", name="later"), None)
    assert world.catalog.show("queue", "default", "later")["id"] == 91


def test_an_adopted_queue_needs_a_name_that_is_free_and_lanes_that_are_there(world: World) -> None:
    for arguments, code in (
        ({"id": 90, "name": "q"}, errors.OBJECT_EXISTS),
        ({"id": 91}, errors.OBJECT_NOT_FOUND),
        ({"id": 90, "vpn": "none"}, errors.OBJECT_NOT_FOUND),
    ):
        seen = world.call("spool.aside.adopt", **arguments)
        ((found, _),) = replies(world.answer(seen, [lane(90)], []))
        assert found == code


def test_nothing_is_said_of_lanes_while_a_worker_does_not_answer(world: World) -> None:
    seen = world.call("spool.aside")
    numbers = [effect.number for effect in seen if isinstance(effect, c.Request)]
    world.do(world.controller.answered(numbers[0], []))
    (reply,) = replies(world.do(world.controller.refused(numbers[1], errors.HOME_NOT_READY, "it reads")))
    assert reply[0] == errors.HOME_NOT_READY


@pytest.mark.requirement("R282")
def test_a_worker_that_keeps_lanes_aside_does_not_leave(world: World) -> None:
    seen = world.call("workers.scale", workers=1)
    stats = {"home": {"lanes_kept_aside": 0}}, {"home": {"lanes_kept_aside": 1}}
    ((code, detail),) = replies(world.answer(seen, *stats, {"spool": {"homes_settled": [0, 1]}}))
    assert code == errors.OBJECT_IN_USE
    assert "spool aside list" in detail


def test_all_lanes_of_an_endpoint_are_deleted_together(world: World) -> None:
    seen = world.call("spool.aside.delete", id=90)
    asked = world.answer(seen, [lane(90, 1, 3)], [lane(90, 0, 4)])
    assert requests(asked) == [
        ("spool.aside.delete", {"lane_id": 90 << BITS | 1}),
        ("spool.aside.delete", {"lane_id": 90 << BITS}),
    ]
    assert replies(world.answer(asked, 3, 4)) == [{"deleted": 7}]


@pytest.mark.requirement("R282")
def test_no_new_endpoint_gets_the_id_of_a_lane_that_an_older_store_does_not_know(world: World) -> None:
    event = {"severity": "error", "scope": "SYSTEM", "event": "SYSTEM_AD_LANES_KEPT_ASIDE", "text": "t"}
    world.do(world.controller.event({**event, "newest_endpoint": 90}))
    world.answer(world.call("objects.create", kind="queue", name="later"), None)
    assert world.catalog.show("queue", "default", "later")["id"] == 91
    assert commits(world.do(world.controller.event({**event, "newest_endpoint": 90}))) == []


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("jobs.show", {"jobs": [[0, 1], [7, 1]]}),
        ("spool.aside.read", {"id": 1, "worker": 7, "lane_id": 1}),
    ],
)
def test_a_worker_that_there_is_not_is_not_asked(
    world: World, operation: str, arguments: dict[str, Any]
) -> None:
    (reply,) = world.call(operation, **arguments)
    assert isinstance(reply, c.Reply)
    assert (reply.ok, reply.value[0]) == (False, errors.OBJECT_NOT_FOUND)
