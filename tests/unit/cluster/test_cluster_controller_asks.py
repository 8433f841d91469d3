"""What the router asks of the controller: producers and endpoints of clients."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster.controller.controller import AGE_INTERVAL_S
from cluster.controller.switchboard import effects as c
from cluster.controller.switchboard.changes import CONFIRM_TIMEOUT_S
from storage.config_store import Counter, Producer
from tests.unit.cluster.controller_world import World, answers, replies, requests

CREATE = {"vpn": "default", "kind": "queue", "name": "q", "username": "alice"}


@pytest.fixture
def served() -> World:
    """A world whose router is there and configured."""
    world = World()
    world.answer(world.hello("router"), None)
    return world


def opened(world: World, name: str = "p", **given: Any) -> tuple[bool, Any]:
    arguments = {"vpn": "default", "username": "alice", "name": name, "resume": False, **given}
    (answer,) = answers(world.question("producer.open", **arguments))
    return answer


# -- producers -----------------------------------------------------------------------------------------------


def test_an_opened_producer_is_durable_before_its_id_is_answered(served: World) -> None:
    seen = served.question("producer.open", vpn="default", username="alice", name="p", resume=False)
    assert [type(effect) for effect in seen] == [c.Commit, c.Answer]
    (commit,) = [effect for effect in seen if isinstance(effect, c.Commit)]
    assert {type(entry) for entry in commit.changes} == {Counter, Producer}
    assert answers(seen) == [(True, {"id": 1, "name": "p", "newest": 1})]
    again = served.question("producer.open", vpn="default", username="alice", name="p", resume=True)
    assert [type(effect) for effect in again] == [c.Answer]


def test_a_producer_that_is_not_known_is_not_resumed(served: World) -> None:
    ok, (code, _) = opened(served, resume=True)
    assert (ok, code) == (False, errors.UNKNOWN_FLOW_NAME)


def test_a_store_that_refuses_gives_no_id(served: World) -> None:
    served.store_refuses = True
    assert opened(served) == (False, [errors.INTERNAL, "full"])
    served.store_refuses = False
    assert opened(served) == (True, {"id": 1, "name": "p", "newest": 1})


def test_a_producer_that_is_forgotten_gets_another_id(served: World) -> None:
    opened(served)
    assert answers(served.question("producer.forget", id=1)) == [(True, None)]
    assert answers(served.question("producer.forget", id=1)) == [(True, None)]
    assert opened(served)[1]["id"] == 2


def test_producers_of_a_deleted_username_are_forgotten_everywhere(served: World) -> None:
    served.answer(served.call("objects.create", kind="username", name="bob"), None)
    opened(served, username="bob")
    opened(served)
    seen = served.call("objects.delete", kind="username", name="bob")
    assert requests(seen) == [
        ("config_delete", ["username", "default", "bob"]),
        ("producer_forget", {"ids": [1]}),
    ]
    assert [row["id"] for row in served.producers.find(None, "*")] == [2]


def test_idle_producers_go_and_open_ones_stay(served: World) -> None:
    opened(served, "idle")
    opened(served, "open")
    served.wait(1.0)
    served.time = "2031-05-12T10:00:00.000Z"
    seen = served.wait(AGE_INTERVAL_S)
    (asked,) = [
        effect for effect in seen if isinstance(effect, c.Request) and effect.operation == "producers"
    ]
    seen = served.do(served.controller.answered(asked.number, [{"id": 2}]))
    assert requests(seen) == [("producer_forget", {"ids": [1]})]
    assert [row["name"] for row in served.producers.find(None, "*")] == ["open"]


def test_without_the_routers_word_no_producer_goes(served: World) -> None:
    opened(served)
    served.wait(1.0)
    served.time = "2031-05-12T10:00:00.000Z"
    served.wait(AGE_INTERVAL_S)
    served.wait(5.0)
    assert len(served.producers) == 1


def test_a_list_of_producers_says_which_are_open(served: World) -> None:
    opened(served, "a")
    opened(served, "b")
    seen = served.call("producers.list")
    (rows,) = replies(served.answer(seen, [{"id": 2, "window": 50}]))
    assert [(row["name"], row["open"], row.get("window")) for row in rows] == [
        ("a", False, None),
        ("b", True, 50),
    ]
    assert rows[0]["last_used"] == "2031-05-04"


# -- endpoints -----------------------------------------------------------------------------------------------


def test_a_created_endpoint_is_durable_and_installed_before_it_is_answered(served: World) -> None:
    seen = served.question("endpoint.create", **CREATE, attributes={"max_ttl_s": 5}, client="c")
    assert answers(seen) == []
    ((operation, content),) = requests(seen)
    assert (operation, content[:3]) == ("config_set", ["queue", "default", "q"])
    assert (content[3]["id"], content[3]["homes"], content[3]["owner"]) == (3, [0], "alice")
    seen = served.answer(seen, None)
    assert answers(seen) == [(True, {"created": True, "id": 3, "name": "q", "durable": True})]


def test_an_endpoint_that_is_there_is_answered_at_once(served: World) -> None:
    served.answer(served.question("endpoint.create", **CREATE), None)
    seen = served.question("endpoint.create", **CREATE, ignore_exists=True)
    assert answers(seen) == [(True, {"created": False, "id": 3, "name": "q", "durable": True})]
    ((ok, (code, _)),) = answers(served.question("endpoint.create", **CREATE))
    assert (ok, code) == (False, errors.OBJECT_EXISTS)


def test_a_router_that_does_not_confirm_is_not_waited_for_without_end(served: World) -> None:
    assert answers(served.question("endpoint.create", **CREATE)) == []
    assert answers(served.wait(CONFIRM_TIMEOUT_S))[0][0] is True


def test_a_refusal_of_the_router_reaches_who_asked(served: World) -> None:
    seen = served.question("endpoint.create", **CREATE)
    (request,) = [effect for effect in seen if isinstance(effect, c.Request)]
    seen = served.do(served.controller.refused(request.number, errors.HOME_NOT_READY, "worker 0"))
    assert answers(seen) == [(False, [errors.HOME_NOT_READY, "worker 0"])]


def test_what_comes_and_goes_with_a_client_is_no_event(served: World) -> None:
    seen = served.question("endpoint.create", **CREATE, durable=False, client="c")
    seen += served.question("endpoint.delete", vpn="default", kind="queue", name="q")
    assert [effect for effect in seen if isinstance(effect, c.Record)] == []
    seen = served.question("endpoint.create", **{**CREATE, "name": "kept"})
    (event,) = [effect.event for effect in seen if isinstance(effect, c.Record)]
    assert event["text"] == "queue 'kept' in Message VPN 'default' was created by client username 'alice'"


def test_a_session_is_kept_and_told_the_router_by_its_filters(served: World) -> None:
    whose = {"vpn": "default", "name": "#mqtt/dev1", "username": "alice", "client": "dev1"}
    seen = served.question("session.open", **whose, clean=False, expiry_s=60)
    ((operation, content),) = requests(seen)
    assert (operation, content[:3], content[3]["session"]) == (
        "config_set",
        ["queue", "default", "#mqtt/dev1"],
        None,
    )
    assert answers(served.answer(seen, None)) == [(True, {"present": False, "filters": {}})]
    events = [effect for effect in seen if isinstance(effect, c.Record)]
    for put, edits in (
        ({"a/#": (["a", "a/>"], 1, 0)}, {"client_subscriptions": [["a", "a/>"], []]}),
        ({"b": ([], 0, 0)}, {}),
    ):
        seen = served.question("session.change", **whose, put=put)
        assert requests(seen) == [("config_edit", ["queue", "default", "#mqtt/dev1", edits])]
        events += [effect for effect in seen if isinstance(effect, c.Record)]
        assert answers(served.answer(seen, None)) == [(True, [None])]
    assert events == [], "it comes and goes with a client"
    ((operation, everything),) = requests(served.hello("router", incarnation=8))
    assert operation == "config_snapshot"
    (told,) = [attributes for _, _, name, attributes in everything if name == "#mqtt/dev1"]
    assert (told["session"], told["client_subscriptions"]) == (None, ["a", "a/>"])
    seen = served.call(
        "objects.update", kind="queue", name="#mqtt/dev1", attributes={"egress_enabled": False}
    )
    assert [effect for effect in seen if isinstance(effect, c.Record)], "what an operator does is an event"


def test_a_queue_that_clients_share_is_there_when_that_is_answered(served: World) -> None:
    name = "#mqtt/$share/g/a"
    whose = {"vpn": "default", "name": name, "username": "alice", "client": "dev1"}
    seen = served.question("session.share", **whose, filter="$share/g/a", filters=["a"], expiry_s=0)
    ((operation, content),) = requests(seen)
    assert (operation, content[:3], content[3]["client_subscriptions"]) == (
        "config_set",
        ["queue", "default", name],
        ["a"],
    )
    assert answers(served.answer(seen, None)) == [(True, None)]
    seen = served.question("session.share", **whose, filter="$share/g/a", filters=["a"], expiry_s=0)
    assert answers(seen) == [(True, None)], "nothing is to be changed"


def test_a_queue_without_a_flow_for_long_is_deleted_and_no_other(served: World) -> None:
    served.answer(served.call("objects.create", kind="queue", name="q", attributes={"max_idle_s": 9}), None)
    asked = {"vpn": "default", "kind": "queue", "name": "q"}
    assert answers(served.question("endpoint.expire", **asked, id=77)) == [(True, None)]
    seen = served.question("endpoint.expire", **asked, id=3)
    assert requests(seen) == [("config_delete", ["queue", "default", "q"])]
    (event,) = [effect.event for effect in seen if isinstance(effect, c.Record)]
    assert event["text"] == "queue 'q' in Message VPN 'default' was deleted after max_idle_s without a flow"


def test_messages_of_a_session_are_copied_and_not_moved(served: World) -> None:
    served.question(
        "session.open", vpn="default", name="#mqtt/d", username="a", client="d", clean=True, expiry_s=9
    )
    where = {"kind": "queue", "vpn": "default"}
    for operation, source, target in (
        ("endpoints.move", "#mqtt/d", "#DEAD_MSG_QUEUE"),
        ("endpoints.copy", "#DEAD_MSG_QUEUE", "#mqtt/d"),
    ):
        (value,) = replies(served.call(operation, **where, name=source, target=target))
        assert value[0] == errors.INVALID_ARGUMENT, operation
    assert replies(served.call("endpoints.redrive", **where, name="#mqtt/d"))[0][0] == errors.INVALID_ARGUMENT
    served.hello("worker", 0)
    seen = served.call("endpoints.copy", **where, name="#mqtt/d", target="#DEAD_MSG_QUEUE")
    assert [operation for operation, _ in requests(seen)] == ["endpoint.move"]


@pytest.mark.requirement("R132")
def test_a_client_does_not_delete_what_an_operator_created(served: World) -> None:
    served.answer(served.call("objects.create", kind="queue", name="q"), None)
    ((ok, (code, _)),) = answers(served.question("endpoint.delete", vpn="default", kind="queue", name="q"))
    assert (ok, code) == (False, errors.OPERATOR_ENDPOINT)


def test_a_client_deletes_what_clients_created(served: World) -> None:
    served.answer(served.question("endpoint.create", **CREATE), None)
    seen = served.question("endpoint.delete", vpn="default", kind="queue", name="q", id=3)
    assert requests(seen) == [("config_delete", ["queue", "default", "q"])]
    assert answers(served.answer(seen, None)) == [(True, None)]


@pytest.mark.requirement("R120")
def test_subscriptions_are_answered_one_by_one(served: World) -> None:
    served.answer(served.question("endpoint.create", **CREATE), None)
    seen = served.question(
        "endpoint.subscribe", vpn="default", name="q", add=["a", "#share/g/b"], remove=["c"]
    )
    assert requests(seen) == [
        ("config_edit", ["queue", "default", "q", {"client_subscriptions": [["a"], []]}])
    ]
    ((ok, value),) = answers(served.answer(seen, None))
    assert ok
    assert value["added"][0] is None
    assert value["added"][1][0] == errors.SHARED_ON_ENDPOINT
    assert value["removed"][0][0] == errors.SUBSCRIPTION_NOT_FOUND


def test_the_router_is_told_which_subscriptions_came_and_went_and_not_all_that_there_are(
    served: World,
) -> None:
    """A client buys no work of the router with a few bytes."""
    served.answer(served.question("endpoint.create", **CREATE), None)
    many = [f"a/{number}" for number in range(200)]
    served.answer(served.question("endpoint.subscribe", vpn="default", name="q", add=many), None)
    seen = served.question("endpoint.subscribe", vpn="default", name="q", add=["b"], remove=["a/7"])
    ((operation, content),) = requests(seen)
    assert (operation, content[3]) == ("config_edit", {"client_subscriptions": [["b"], ["a/7"]]})
    shown = served.catalog.get("queue", "default", "q")
    assert shown is not None
    assert shown["client_subscriptions"] == [*(one for one in many if one != "a/7"), "b"]


@pytest.mark.requirement("R121", "R149")
def test_a_topic_is_set_with_the_next_generation(served: World) -> None:
    served.answer(served.question("endpoint.create", **{**CREATE, "kind": "topic-endpoint"}), None)
    seen = served.question("endpoint.set_topic", vpn="default", name="q", topic="a/>", selector=None)
    ((_, content),) = requests(seen)
    assert (content[3]["topic"], content[3]["generation"]) == ("a/>", 2)
    assert answers(served.answer(seen, None)) == [(True, {"generation": 2})]
    seen = served.question("endpoint.set_topic", vpn="default", name="q", topic="a/>", selector=None)
    assert answers(seen) == [(True, {"generation": 2})]


@pytest.mark.parametrize(
    ("operation", "given", "code"),
    [
        ("endpoint.rename", {}, errors.UNKNOWN_OPERATION),
        ("endpoint.create", {"vpn": "default"}, errors.INVALID_ARGUMENT),
        ("endpoint.create", {**CREATE, "attributes": {"x": 1}}, errors.INVALID_ATTRIBUTE),
        ("endpoint.create", {**CREATE, "vpn": "none"}, errors.VPN_UNAVAILABLE),
        ("endpoint.subscribe", {"vpn": "default", "name": "none", "add": ["a"]}, errors.UNKNOWN_ENDPOINT),
        ("endpoint.set_topic", {"vpn": "default", "name": "none", "topic": "a"}, errors.UNKNOWN_ENDPOINT),
        ("producer.open", {"vpn": "default", "username": "a", "name": ""}, errors.INVALID_ARGUMENT),
    ],
)
def test_a_wrong_question_is_refused_with_its_code(
    served: World, operation: str, given: dict[str, Any], code: int
) -> None:
    ((ok, value),) = answers(served.question(operation, **given))
    assert (ok, value[0]) == (False, code)
