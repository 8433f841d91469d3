"""What operators do with endpoints, messages and the spool, and what becomes of homes when workers leave."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import Message, errors, wire
from angarium.message import USER_PROPERTIES_KEY
from cluster.controller.operations.endpoints import HOME_TIMEOUT_S
from cluster.controller.operations.metrics import whole_message
from cluster.controller.operations.spool import COPY_IDLE_S, PIECE_BYTES
from cluster.controller.switchboard import effects as c
from storage.config_store import Counter
from tests.unit.cluster.controller_world import World, replies, requests

LANE = 3 << 10


@pytest.fixture
def served() -> World:
    """A node with a router, two workers, the queue q at worker 1 and the partitioned queue p."""
    world = World(workers=2)
    world.answer(world.hello("router"), None)
    for index in range(2):
        world.hello("worker", index)
    world.news(router="ready", worker_0="ready", worker_1="ready")
    nothing_retained = {"max_retained_mb": 0}
    world.answer(
        world.call("objects.update", kind="vpn", name="default", attributes=nothing_retained), None, None
    )
    world.answer(world.call("objects.create", kind="queue", name="q"), None)
    partitioned = {"access_type": "non-exclusive", "partition_count": "3"}
    world.answer(world.call("objects.create", kind="queue", name="p", attributes=partitioned), None)
    assert world.catalog.show("queue", "default", "q")["homes"] == [1]
    assert world.catalog.show("queue", "default", "p")["homes"] == [0, 1, 0]
    return world


def asked_of(seen: list[c.Effect]) -> list[tuple[str, str, Any]]:
    """Give whom each request among some effects is for."""
    return [
        (effect.identity.decode(), effect.operation, effect.arguments)
        for effect in seen
        if isinstance(effect, c.Request)
    ]


def code_of(seen: list[c.Effect]) -> int:
    (reply,) = [effect for effect in seen if isinstance(effect, c.Reply)]
    assert not reply.ok
    code: int = reply.value[0]
    return code


# -- metrics -------------------------------------------------------------------------------------------------


def test_a_list_has_the_figures_of_the_router(served: World) -> None:
    seen = served.call("endpoints.list", name="?")
    assert requests(seen) == [("endpoints", {"vpn": "default", "kind": "queue", "name": "?"})]
    told = [{"vpn": "default", "name": "q", "messages": 3, "bytes": 2_500_000, "unacked": 1, "bind_count": 2}]
    (rows,) = replies(served.answer(seen, told))
    by_name = {row["name"]: row for row in rows}
    assert by_name["q"]["messages_spooled"] == 3
    assert (by_name["q"]["spool_usage_bytes"], by_name["q"]["spool_usage_mb"]) == (2_500_000, 2.5)
    assert by_name["p"]["messages_spooled"] is None


def test_a_list_has_the_columns_that_were_asked_for(served: World) -> None:
    told = [{"vpn": "default", "name": "q", "messages": 3}]
    fields = ["name", "max_ttl_s", "messages_spooled", "nothing"]
    seen = served.call("endpoints.list", name="q", fields=fields)
    assert requests(seen)[0][1]["fields"] == ["vpn", "name", "messages"]
    (rows,) = replies(served.answer(seen, told))
    assert rows == [{"kind": "queue", "vpn": "default", "name": "q", "max_ttl_s": 0, "messages_spooled": 3}]


def test_a_list_may_be_of_single_endpoints_that_there_are_in_the_message_vpn(served: World) -> None:
    these = [("default", "q"), ("default", "gone"), ("other", "q")]
    seen = served.call("endpoints.list", fields=["messages_spooled"], these=these)
    assert requests(seen)[0][1]["these"] == [("default", "q")]
    (rows,) = replies(served.answer(seen, [{"vpn": "default", "name": "q", "messages": 3}]))
    assert rows == [{"kind": "queue", "vpn": "default", "name": "q", "messages_spooled": 3}]


def test_the_router_is_asked_for_the_traffic_that_is_wanted(served: World) -> None:
    seen = served.call("endpoints.list", name="q", fields=["messages_in_per_s", "bytes_out"])
    assert requests(seen)[0][1]["fields"] == ["vpn", "name", "messages_in_per_s", "bytes_out"]
    told = [{"vpn": "default", "name": "q", "messages_in_per_s": 2.5, "bytes_out": 9}]
    ((row,),) = replies(served.answer(seen, told))
    assert (row["messages_in_per_s"], row["bytes_out"]) == (2.5, 9)


def test_a_list_without_the_router_still_comes(served: World) -> None:
    served.news(router="hung")
    (rows,) = replies(served.call("endpoints.list"))
    assert len(rows) == 3


def test_a_view_puts_router_and_homes_together(served: World) -> None:
    seen = served.call("endpoints.show", name="p")
    lane = 4 << 10
    assert asked_of(seen) == [
        ("router-0-7", "endpoints", {"vpn": "default", "kind": "queue", "name": "p"}),
        ("router-0-7", "flows", {"vpn": "default", "kind": "queue", "name": "p"}),
        ("worker-0-7", "endpoint.stats", {"lane_id": lane}),
        ("worker-1-7", "endpoint.stats", {"lane_id": lane + 1}),
        ("worker-0-7", "endpoint.stats", {"lane_id": lane + 2}),
    ]
    row = {"vpn": "default", "name": "p", "messages": 5, "bytes": 10, "counters": {"too_large": 1}}
    stats = [
        {
            "messages": 2,
            "redelivered": 1,
            "oldest_position": 7,
            "newest_position": 9,
            "high_water_mark_bytes": 500_000,
        },
        {
            "messages": 0,
            "redelivered": 0,
            "oldest_position": 0,
            "newest_position": 0,
            "high_water_mark_bytes": 0,
        },
        {
            "messages": 3,
            "redelivered": 4,
            "oldest_position": 3,
            "newest_position": 5,
            "high_water_mark_bytes": 1,
        },
    ]
    (view,) = replies(served.answer(seen, [row], [{"flow": 1}], *stats))
    assert (view["messages_spooled"], view["redelivered"], view["partition_count"]) == (5, 5, 3)
    assert (view["oldest_position"], view["newest_position"]) == (3, 9)
    assert (view["high_water_mark_bytes"], view["high_water_mark_mb"]) == (500_001, 0.5)
    assert (view["flows"], view["counters"]) == ([{"flow": 1}], {"too_large": 1})


def test_a_home_that_refuses_makes_a_view_poorer_and_no_failure(served: World) -> None:
    seen = served.call("endpoints.show", name="q")
    router, flows, home = (effect for effect in seen if isinstance(effect, c.Request))
    served.do(served.controller.answered(router.number, []))
    served.do(served.controller.refused(home.number, errors.UNKNOWN_ENDPOINT, "lane 2048"))
    (view,) = replies(served.do(served.controller.answered(flows.number, [])))
    assert (view["name"], view["flows"]) == ("q", [])


def test_brackets_in_a_name_are_no_pattern(served: World) -> None:
    served.answer(served.call("objects.create", kind="queue", name="a[1]"), None)
    seen = served.call("endpoints.list", name="a[1*")
    assert requests(seen)[0][1]["name"] == "a[1*"
    (rows,) = replies(served.answer(seen, []))
    assert [row["name"] for row in rows] == ["a[1]"]


# -- messages ------------------------------------------------------------------------------------------------


def test_publishers_are_counted_by_the_homes_and_named_by_the_router(served: World) -> None:
    gateway = f"{wire.GATEWAY_NAME_PREFIX}mqtt.0"
    seen = served.call("endpoints.publishers", name="p")
    assert [(place, what) for place, what, _ in asked_of(seen)] == [
        ("worker-0-7", "endpoint.publishers"),
        ("worker-1-7", "endpoint.publishers"),
        ("worker-0-7", "endpoint.publishers"),
    ]
    homes = [[(1, "", 5), (2, "sensor", 9)], [(1, "made up", 2), (3, "", 4)], [(3, "made up", 3)]]
    named = served.answer(seen, *homes)
    assert asked_of(named) == [("router-0-7", "publishers", {"vpn": "default", "numbers": [1, 2, 3]})]
    assert replies(served.answer(named, [[1, "till"], [2, gateway]])) == [
        [
            {"client": "sensor", "messages": 9},
            {"client": "till", "messages": 7},
            {"client": "", "messages": 7},
        ]
    ]


def test_messages_are_asked_of_their_home(served: World) -> None:
    seen = served.call("messages.list", name="q", after=5, limit=10, selector="x = 1")
    asked = {"lane_id": LANE, "after": 5, "limit": 10, "selector": "x = 1"}
    assert asked_of(seen) == [("worker-1-7", "endpoint.messages", asked)]
    assert replies(served.answer(seen, [{"position": 6}])) == [
        {"messages": [{"position": 6}], "partitions": 0}
    ]


def test_a_message_is_shown_and_deleted_in_its_partition(served: World) -> None:
    seen = served.call("messages.show", name="p", position=4, partition=1)
    lane = (4 << 10) + 1
    assert asked_of(seen) == [("worker-1-7", "endpoint.message", {"lane_id": lane, "position": 4})]
    sent = Message("t", b"", mode="persistent", content_type="text/plain", properties={"colour": "red"})
    packed = sent.row[4]
    told = {"headers": {"content_type": "text/plain"}, "user_properties": {"colour": "red"}}
    whole = {"payload": b"x", "properties": packed}
    assert replies(served.answer(seen, whole)) == [{**whole, **told}]
    seen = served.call("messages.delete", name="p", positions=[4, 5], partition=1)
    assert asked_of(seen) == [
        ("worker-1-7", "endpoint.delete_messages", {"lane_id": lane, "positions": [4, 5]})
    ]
    assert replies(served.answer(seen, {"deleted": 2})) == [{"deleted": 2}]


@pytest.mark.parametrize(
    "packed",
    [None, b"\xc1", wire.pack([1]), wire.pack({6: 5, 1: {"a": 1}}), wire.pack({0: {b"k": 1, 3: "x"}})],
)
def test_properties_that_are_none_say_nothing(packed: bytes | None) -> None:
    assert whole_message({"properties": packed})["user_properties"] == {}


def test_what_json_cannot_have_is_left_out() -> None:
    odd = wire.pack({USER_PROPERTIES_KEY: {"good": 1, "bad": {(1, 2): 3}, "deep": [[b"bytes"]]}})
    assert whole_message({"properties": odd})["user_properties"].keys() == {"good", "deep"}


@pytest.mark.requirement("R221")
def test_a_release_is_of_every_partition_and_names_each_group_once(served: World) -> None:
    seen = served.call("endpoints.release", name="p")
    assert [request[1] for request in asked_of(seen)] == ["endpoint.release"] * 3
    found = served.answer(seen, "g", None, "g")
    assert replies(found) == [{"groups": ["g"], "partitions": 2}]


def test_a_limit_of_a_partitioned_queue_is_refused_with_the_partitions_to_choose_from(served: World) -> None:
    seen = served.call("endpoints.move", name="p", target="q", limit=3)
    (reply,) = [effect for effect in seen if isinstance(effect, c.Reply)]
    assert reply.value[1] == "'p' has 3 partitions: a limit needs a partition of 0 to 2"


def test_a_purge_is_of_every_partition_also_of_those_that_are_closed(served: World) -> None:
    served.answer(
        served.call("objects.update", kind="queue", name="p", attributes={"partition_count": "1"}), None
    )
    seen = served.call("endpoints.purge", name="p")
    assert [request[:2] for request in asked_of(seen)] == [
        ("worker-0-7", "endpoint.purge"),
        ("worker-1-7", "endpoint.purge"),
        ("worker-0-7", "endpoint.purge"),
    ]
    assert replies(served.answer(seen, 3, 0, 4)) == [{"purged": 7}]


@pytest.mark.parametrize("copy", [True, False])
def test_a_move_is_a_job_of_each_home(served: World, copy: bool) -> None:
    verb = "endpoints.copy" if copy else "endpoints.move"
    seen = served.call(verb, name="p", target="q", selector="x = 1")
    asked = [arguments for _, _, arguments in asked_of(seen)]
    which = {"selector": "x = 1", "limit": None, "positions": None}
    wanted = {"target": ["queue", "default", "q"], "copy": copy, **which}
    each = [{"lane_id": (4 << 10) + partition, **wanted} for partition in range(3)]
    assert asked == [{**one, "check": True} for one in each]
    seen = served.answer(seen, None, None, None)
    assert [arguments for _, _, arguments in asked_of(seen)] == each
    assert replies(served.answer(seen, {"job": 8}, {"job": 9}, {"job": 7})) == [
        {"jobs": [[0, 8], [1, 9], [0, 7]]}
    ]
    seen = served.call(verb, name="p", target="q", positions=[3, 1], partition=1)
    ((_, _, arguments),) = asked_of(seen)
    assert (arguments["lane_id"], arguments["positions"]) == ((4 << 10) + 1, [3, 1])


def test_a_move_that_one_home_refuses_begins_at_none(served: World) -> None:
    """What the others had begun would be copied once more when it is tried again."""
    seen = served.call("endpoints.copy", name="p", target="q")
    first, second, third = [effect for effect in seen if isinstance(effect, c.Request)]
    assert [arguments.get("check") for _, _, arguments in asked_of(seen)] == [True] * 3, "nothing has begun"
    served.do(served.controller.answered(first.number, None))
    served.do(served.controller.refused(second.number, errors.OBJECT_IN_USE, "job 7 still works on it"))
    seen = served.do(served.controller.answered(third.number, None))
    assert requests(seen) == []
    assert replies(seen) == [[errors.OBJECT_IN_USE, "job 7 still works on it"]]


def test_homes_that_took_long_to_say_that_a_move_may_begin_may_take_as_long_to_begin_it(
    served: World,
) -> None:
    """Refused while it begins, it would be tried again, and copied once more."""
    seen = served.call("endpoints.copy", name="p", target="q")
    served.wait(HOME_TIMEOUT_S - 0.5)
    seen = served.answer(seen, None, None, None)
    assert replies(served.wait(HOME_TIMEOUT_S - 0.5)) == []
    (reply,) = replies(served.answer(seen, {"job": 8}, {"job": 9}, {"job": 7}))
    assert reply == {"jobs": [[0, 8], [1, 9], [0, 7]]}


def test_a_redrive_is_a_job_without_a_target(served: World) -> None:
    seen = served.call("endpoints.redrive", name="q", limit=5)
    assert asked_of(seen) == [
        (
            "worker-1-7",
            "endpoint.redrive",
            {"lane_id": LANE, "selector": None, "limit": 5, "positions": None},
        )
    ]


def test_jobs_are_told_together(served: World) -> None:
    seen = served.call("jobs.show", jobs=[[0, 8], [1, 9]])
    assert asked_of(seen) == [("worker-0-7", "job", {"job": 8}), ("worker-1-7", "job", {"job": 9})]
    running = {"state": "running", "done": 2, "total": 5, "refused": 0, "kept": 1, "error": None}
    done = {"state": "done", "done": 4, "total": 4, "refused": 1, "kept": 2, "error": [50310, "full"]}
    (told,) = replies(served.answer(seen, running, done))
    assert told == {
        "state": "running",
        "done": 6,
        "total": 9,
        "refused": 1,
        "kept": 3,
        "error": [50310, "full"],
    }


def test_a_failed_job_fails_all_and_its_error_comes_first(served: World) -> None:
    seen = served.call("jobs.show", jobs=[[0, 8], [1, 9]])
    done = {"state": "done", "error": [50310, "full"]}
    failed = {"state": "failed", "error": [40404, "gone"]}
    (told,) = replies(served.answer(seen, done, failed))
    assert (told["state"], told["error"]) == ("failed", [40404, "gone"])


def test_jobs_run_while_one_of_them_does_also_if_another_has_failed(served: World) -> None:
    """Who reads that it failed would count what is there while messages still come."""
    seen = served.call("jobs.show", jobs=[[0, 8], [1, 9]])
    running = {"state": "running", "done": 2, "error": [50310, "full"]}
    failed = {"state": "failed", "done": 1, "error": [40404, "gone"]}
    (told,) = replies(served.answer(seen, running, failed))
    assert (told["state"], told["done"], told["error"]) == ("running", 3, [40404, "gone"])


@pytest.mark.parametrize(
    ("operation", "given", "code"),
    [
        ("endpoints.show", {"name": "none"}, errors.OBJECT_NOT_FOUND),
        ("endpoints.show", {"name": "q", "kind": "vpn"}, errors.INVALID_ARGUMENT),
        ("endpoints.purge", {"name": "q", "kind": "topic-endpoint"}, errors.OBJECT_NOT_FOUND),
        ("endpoints.move", {"name": "q", "target": "q"}, errors.INVALID_ARGUMENT),
        ("endpoints.move", {"name": "q", "target": "none"}, errors.OBJECT_NOT_FOUND),
        ("endpoints.move", {"name": "p", "target": "q", "limit": 5}, errors.INVALID_ARGUMENT),
        ("endpoints.move", {"name": "p", "target": "q", "partition": 3}, errors.INVALID_ARGUMENT),
        ("endpoints.move", {"name": "p", "target": "q", "positions": [1]}, errors.INVALID_ARGUMENT),
        ("endpoints.move", {"name": "q", "target": "p", "positions": []}, errors.INVALID_ARGUMENT),
        ("messages.list", {"name": "q", "partition": 1}, errors.INVALID_ARGUMENT),
        ("messages.list", {"name": "q", "limit": 1001}, errors.INVALID_ARGUMENT),
        ("messages.delete", {"name": "q", "positions": []}, errors.INVALID_ARGUMENT),
        ("spool.backup", {"directory": "relative"}, errors.INVALID_ARGUMENT),
    ],
)
def test_a_wrong_request_asks_nobody(served: World, operation: str, given: dict[str, Any], code: int) -> None:
    seen = served.call(operation, **given)
    assert requests(seen) == []
    assert code_of(seen) == code


def test_a_home_that_is_down_is_named(served: World) -> None:
    served.news(router="ready", worker_0="ready", worker_1="restarting")
    seen = served.call("messages.list", name="q")
    assert code_of(seen) == errors.HOME_NOT_READY


def test_a_home_that_does_not_answer_is_waited_for_with_a_bound(served: World) -> None:
    assert replies(served.call("endpoints.purge", name="q")) == []
    assert code_of(served.wait(HOME_TIMEOUT_S)) == errors.HOME_NOT_READY


def test_a_refusal_of_a_home_keeps_its_code(served: World) -> None:
    seen = served.call("messages.list", name="q", selector="x =")
    (request,) = [effect for effect in seen if isinstance(effect, c.Request)]
    refused = served.controller.refused(request.number, errors.INVALID_SELECTOR, "at its end")
    assert code_of(served.do(refused)) == errors.INVALID_SELECTOR


# -- subscriptions of operators ------------------------------------------------------------------------------


@pytest.mark.requirement("R119")
def test_an_operator_adds_and_removes_subscriptions_of_clients_too(served: World) -> None:
    served.answer(
        served.question("endpoint.subscribe", vpn="default", name="q", add=["theirs", "both"]), None
    )
    seen = served.call("objects.subscribe", name="q", add=["ours", "both"], remove=["theirs"])
    edits = {"subscriptions": [["ours", "both"], []], "client_subscriptions": [[], ["theirs", "both"]]}
    assert requests(seen) == [("config_edit", ["queue", "default", "q", edits])]
    (queue,) = replies(served.answer(seen, None))
    assert queue["subscriptions"] == ["ours", "both"]


def test_a_subscription_that_is_not_there_is_not_removed(served: World) -> None:
    assert code_of(served.call("objects.subscribe", name="q", remove=["a"])) == errors.SUBSCRIPTION_NOT_FOUND
    assert code_of(served.call("objects.subscribe", name="none", add=["a"])) == errors.OBJECT_NOT_FOUND


# -- the spool -----------------------------------------------------------------------------------------------


def test_the_spool_is_shown_with_that_of_each_worker(served: World) -> None:
    seen = served.call("spool.show")
    assert [request[:2] for request in asked_of(seen)] == [
        ("router-0-7", "stats"),
        ("worker-0-7", "spool.show"),
        ("worker-1-7", "spool.show"),
    ]
    told = {"spool": {"usage_bytes": 3_000_000, "quota_bytes": 10_000_000, "files": 2}}
    (view,) = replies(served.answer(seen, told, {"files": 1}, {"files": 1}))
    assert (view["usage_mb"], view["quota_mb"], view["files"]) == (3.0, 10.0, 2)
    assert view["workers"] == [{"worker": 0, "files": 1}, {"worker": 1, "files": 1}]


def test_a_check_is_a_job_of_each_worker(served: World) -> None:
    served.store_faults = ["the checksum does not fit"]
    seen = served.call("spool.verify")
    assert [request[:2] for request in asked_of(seen)] == [
        ("worker-0-7", "spool.verify"),
        ("worker-1-7", "spool.verify"),
    ]
    (made,) = replies(served.answer(seen, {"job": 1}, {"job": 2}))
    assert made == {"jobs": [[0, 1], [1, 2]], "faults": ["the checksum does not fit"]}


@pytest.mark.requirement("R97")
def test_a_backup_is_of_the_objects_first_and_then_of_the_messages(served: World) -> None:
    seen = served.call("spool.backup", directory="/b")
    (copy,) = [effect for effect in seen if isinstance(effect, c.CopyStore)]
    assert copy.directory == "/b/config"
    assert asked_of(seen) == [
        ("worker-0-7", "spool.backup", {"directory": "/b/spool/0"}),
        ("worker-1-7", "spool.backup", {"directory": "/b/spool/1"}),
    ]
    (made,) = replies(served.answer(seen, {"job": 1}, {"job": 2}))
    about = {"node": "n", "node_id": "id-n", "workers": 2, "parts": ["config", "spool/0", "spool/1"]}
    assert made == {"jobs": [[0, 1], [1, 2]], "copy": None, **about}


def begin_copy(served: World) -> tuple[str, str]:
    """Have a backup made that is to be fetched; gives its name and directory."""
    seen = served.call("spool.backup")
    (copy,) = [effect for effect in seen if isinstance(effect, c.CopyStore)]
    (made,) = replies(served.answer(seen, {"job": 1}, {"job": 2}))
    return made["copy"], copy.directory.removesuffix("/config")


def test_a_backup_without_a_directory_is_fetched_in_pieces_and_dropped(served: World) -> None:
    name, directory = begin_copy(served)
    (read,) = served.call("spool.fetch", copy=name, part="spool/1", offset=7)
    assert isinstance(read, c.ReadCopy)
    assert (read.path, read.offset, read.length) == (f"{directory}/spool/1/data.mdb", 7, PIECE_BYTES)
    seen = served.call("spool.drop", copy=name)
    assert seen[0] == c.DropCopy(directory)
    assert replies(seen) == [None]
    assert code_of(served.call("spool.fetch", copy=name, part="config")) == errors.INVALID_ARGUMENT


@pytest.mark.parametrize("part", ["spool/2", "spool/../..", "config/..", "", "/etc"])
def test_nothing_but_the_parts_of_a_backup_can_be_fetched(served: World, part: str) -> None:
    name, _ = begin_copy(served)
    assert code_of(served.call("spool.fetch", copy=name, part=part)) == errors.INVALID_ARGUMENT


def test_one_backup_at_a_time_waits_to_be_fetched_and_a_forgotten_one_makes_room(served: World) -> None:
    name, directory = begin_copy(served)
    assert code_of(served.call("spool.backup")) == errors.OBJECT_IN_USE
    served.now += COPY_IDLE_S - 1
    served.call("spool.fetch", copy=name, part="config")
    served.now += COPY_IDLE_S - 1
    assert code_of(served.call("spool.backup")) == errors.OBJECT_IN_USE
    served.now += 1
    seen = served.call("spool.backup")
    assert seen[0] == c.DropCopy(directory)


def test_a_backup_that_fails_leaves_nothing_to_fetch(served: World) -> None:
    served.copy_fails = "no space left"
    seen = served.call("spool.backup")
    assert code_of(seen) == errors.INVALID_ARGUMENT
    assert [effect for effect in seen if isinstance(effect, c.DropCopy)]
    served.copy_fails = ""
    assert begin_copy(served)


def test_a_backup_that_a_worker_does_not_begin_makes_room_for_the_next_one(served: World) -> None:
    """It waited for ten minutes to be fetched by somebody who had been told to try again."""
    seen = served.call("spool.backup")
    (copy,) = [effect for effect in seen if isinstance(effect, c.CopyStore)]
    (first, second) = [effect.number for effect in seen if isinstance(effect, c.Request)]
    served.do(served.controller.answered(first, {"job": 1}))
    seen = served.do(served.controller.refused(second, errors.HOME_NOT_READY, "it reads its spool"))
    assert seen[0] == c.DropCopy(copy.directory.removesuffix("/config"))
    assert code_of(seen) == errors.HOME_NOT_READY
    served.call("spool.backup")
    seen = served.wait(HOME_TIMEOUT_S + 1)
    assert code_of(seen) == errors.HOME_NOT_READY
    assert begin_copy(served)


def test_a_backup_whose_objects_cannot_be_copied_copies_nothing(served: World) -> None:
    served.copy_fails = "/b/config: no space left"
    seen = served.call("spool.backup", directory="/b")
    assert requests(seen) == []
    assert code_of(seen) == errors.INVALID_ARGUMENT


def test_a_status_shows_the_figures_of_the_spool(served: World) -> None:
    (status,) = replies(served.answer(served.call("status"), {"spool": {"messages": 4}}))
    assert status["spool"] == {"messages": 4}


# -- workers -------------------------------------------------------------------------------------------------


def scale(served: World, workers: int) -> list[c.Effect]:
    """Ask for a number of workers; those that are there take nothing over, and have confirmed their lanes."""
    asked = served.call("workers.scale", workers=workers)
    return served.answer(asked, *told(asked))


def told(asked: list[c.Effect], importing: int = 0, settled: tuple[int, ...] = (0, 1, 2)) -> list[Any]:
    """Give what the workers answer, and the router after them."""
    home = {"home": {"lanes_importing": importing}}
    return [*[home for _ in requests(asked)[1:]], {"spool": {"homes_settled": settled}}]


@pytest.mark.requirement("R96")
def test_lanes_of_workers_that_leave_have_new_homes_before_the_supervisor_is_asked(served: World) -> None:
    seen = scale(served, 1)
    order = [type(effect) for effect in seen if not isinstance(effect, c.Record)]
    assert order == [c.Commit, c.Request, c.Request, c.ScaleNode]
    assert {content[2]: content[3]["homes"] for _, content in requests(seen)} == {"q": [0], "p": [0, 0, 0]}
    assert replies(served.answer(seen, None, None)) == [{"workers": 1}]


def test_more_workers_change_no_home_at_once(served: World) -> None:
    seen = scale(served, 4)
    assert [type(effect) for effect in seen] == [c.Commit, c.ScaleNode, c.Reply]
    (commit,) = [effect for effect in seen if isinstance(effect, c.Commit)]
    assert commit.changes == [Counter("workers", 4), Counter("balance", 1)]
    served.answer(served.call("objects.create", kind="queue", name="new"), None)
    assert served.catalog.show("queue", "default", "new")["homes"] == [2]


def test_a_second_change_waits_until_the_lanes_of_the_first_are_taken_over(served: World) -> None:
    seen = served.call("workers.scale", workers=1)
    refused = served.answer(seen, *told(seen, importing=2))
    assert code_of(refused) == errors.OBJECT_IN_USE
    assert [effect for effect in refused if isinstance(effect, c.ScaleNode)] == []


def test_a_change_waits_until_a_home_that_reads_its_spool_knows_what_it_takes_over(served: World) -> None:
    seen = served.call("workers.scale", workers=4)
    assert code_of(served.answer(seen, {}, *told(seen)[1:])) == errors.OBJECT_IN_USE
    assert [effect for effect in scale(served, 4) if isinstance(effect, c.ScaleNode)]


def test_a_change_waits_until_a_home_has_heard_what_it_is_to_take_over(served: World) -> None:
    """Else a worker that comes back keeps what the home looks for too late."""
    seen = served.call("workers.scale", workers=4)
    assert code_of(served.answer(seen, *told(seen, settled=(1,)))) == errors.OBJECT_IN_USE
    assert [effect for effect in scale(served, 4) if isinstance(effect, c.ScaleNode)]


def test_a_worker_does_not_leave_before_it_has_confirmed_its_lanes(served: World) -> None:
    """Else who is to take one over does not find it, and makes a new one."""
    seen = served.call("workers.scale", workers=1)
    refused = served.answer(seen, *told(seen, settled=(0,)))
    assert code_of(refused) == errors.OBJECT_IN_USE
    assert served.catalog.show("queue", "default", "q")["homes"] == [1]
    assert [effect for effect in scale(served, 1) if isinstance(effect, c.ScaleNode)]


def test_a_worker_does_not_leave_without_the_word_of_a_router(served: World) -> None:
    seen = served.call("workers.scale", workers=1)
    workers = [one for one in seen if isinstance(one, c.Request)][:-1]
    for one in workers:
        served.do(served.controller.answered(one.number, {"home": {}}))
    assert code_of(served.wait(10.0)) == errors.OBJECT_IN_USE


def test_a_worker_that_gets_a_lane_while_it_is_asked_does_not_leave(served: World) -> None:
    seen = served.call("workers.scale", workers=1)
    served.answer(served.call("objects.create", kind="queue", name="new"), None)
    assert served.catalog.show("queue", "default", "new")["homes"] == [1]
    assert code_of(served.answer(seen, *told(seen))) == errors.OBJECT_IN_USE


def test_a_worker_without_lanes_leaves_at_once(served: World) -> None:
    for name in ("q", "p"):
        served.answer(served.call("objects.delete", kind="queue", name=name), None)
    seen = served.call("workers.scale", workers=1)
    assert [one for one in served.answer(seen, *told(seen, settled=(0,))) if isinstance(one, c.ScaleNode)]


def test_a_second_change_waits_until_the_supervisor_has_heard_of_the_first(served: World) -> None:
    """Else a worker is wanted back before those who are to have its lanes know of them."""
    row = {"role": "worker", "incarnation": 7, "pid": 1, "state": "ready"}
    rows = [{**row, "role": "router", "index": 0}, *({**row, "index": index} for index in range(3))]
    served.do(served.controller.node_news({"workers": 3, "processes": rows, "events": []}, served.now))
    served.hello("worker", 2)
    scale(served, 1)
    assert code_of(scale(served, 3)) == errors.OBJECT_IN_USE
    served.do(served.controller.node_news({"workers": 1, "processes": rows[:2], "events": []}, served.now))
    assert [effect for effect in scale(served, 3) if isinstance(effect, c.ScaleNode)]


@pytest.mark.parametrize(("state", "may_leave"), [("restarting", False), ("stopped", True)])
def test_a_change_waits_for_a_worker_that_is_down_unless_it_leaves_and_was_given_up(
    served: World, state: str, may_leave: bool
) -> None:
    """It may be taking lanes over, from a worker that must not come back before; nobody else would finish that."""
    row = {"role": "worker", "incarnation": 7, "pid": 1, "state": "ready"}
    down = {**row, "index": 1, "pid": None, "state": state}
    rows = [{**row, "role": "router", "index": 0}, {**row, "index": 0}, down]
    served.do(served.controller.node_news({"workers": 2, "processes": rows, "events": []}, served.now))
    assert code_of(scale(served, 3)) == errors.OBJECT_IN_USE
    begun = [effect for effect in scale(served, 1) if isinstance(effect, c.ScaleNode)]
    assert bool(begun) == may_leave


def test_homes_that_cannot_be_kept_keep_the_workers(served: World) -> None:
    served.store_refuses = True
    seen = scale(served, 1)
    assert [effect for effect in seen if isinstance(effect, c.ScaleNode)] == []
    assert code_of(seen) == errors.INTERNAL


def test_a_change_of_workers_that_cannot_be_kept_gives_no_queue_to_workers_that_do_not_come(
    served: World,
) -> None:
    served.store_refuses = True
    assert code_of(scale(served, 4)) == errors.INTERNAL
    served.store_refuses = False
    for name in ("a", "b", "c"):
        served.answer(served.call("objects.create", kind="queue", name=name), None)
        assert served.catalog.show("queue", "default", name)["homes"][0] < 2
    assert [effect for effect in scale(served, 4) if isinstance(effect, c.ScaleNode)]
    served.answer(served.call("objects.create", kind="queue", name="new"), None)
    assert served.catalog.show("queue", "default", "new")["homes"] == [2]
