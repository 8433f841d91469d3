"""Topic endpoints, which get their topic at bind, and temporary endpoints, which are made at bind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import errors, wire
from router.guaranteed.temporaries import KEPT_S

if TYPE_CHECKING:
    from tests.unit.router.flow_rig import FakeClient, Rig


@pytest.mark.requirement("R121", "R145", "R149")
def test_a_topic_endpoint_gets_topic_and_selector_of_its_consumer(rig: Rig, client: FakeClient) -> None:
    endpoint = rig.controller.put("t", kind="topic-endpoint", owner="owner", max_bind_count=3)
    client.bind("t", kind="topic-endpoint", topic="a/>", selector="x = 1")
    assert [one.pattern for one in endpoint.filters.values()] == ["a/>"]
    ((generation, settings),) = rig.homes[0].lanes.values()
    assert (generation, settings["selector"]) == (2, "x = 1")
    assert rig.homes[0].arguments("bind")[0][2] is None, "its selector works on what comes in"
    client.request("flow.unbind", flow=1)
    client.bind("t", kind="topic-endpoint", topic="a/>", selector="x = 1")
    assert endpoint.generation == 2, "the same topic and selector change nothing"
    client.request("flow.unbind", flow=2)
    client.bind("t", kind="topic-endpoint", topic="b", selector="x = 1")
    assert endpoint.generation == 3
    assert [generation for generation, _ in rig.homes[0].lanes.values()] == [3], "it is emptied"


def test_consumers_of_a_topic_endpoint_want_the_same(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("t", kind="topic-endpoint", owner="owner", max_bind_count=5)
    kind = {"kind": "topic-endpoint"}
    client.bind("t", topic="a", selector="x = 1", **kind)
    client.bind("t", topic="a", selector="x = 1", **kind)
    assert client.refused("t", topic="b", selector="x = 1", **kind) == errors.SUBSCRIPTION_DOES_NOT_MATCH
    assert client.refused("t", topic="a", **kind) == errors.SELECTOR_DOES_NOT_MATCH
    client.bind("t", browse=True, selector="y = 2", **kind)
    assert client.refused("t", **kind) == errors.INVALID_ARGUMENT
    assert client.refused("t", topic="a") == errors.INVALID_ARGUMENT


def test_a_topic_that_is_about_to_be_set_is_not_changed_by_another_bind(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("t", kind="topic-endpoint", owner="owner", max_bind_count=5, topic="old")
    kind = {"kind": "topic-endpoint"}
    rig.controller.answers = False
    first = client.ask("flow.bind", name="t", topic="a", **kind)
    second = client.ask("flow.bind", name="t", topic="a", **kind)
    assert client.refused("t", topic="b", **kind) == errors.SUBSCRIPTION_DOES_NOT_MATCH
    assert client.refused("t", topic="old", **kind) == errors.SUBSCRIPTION_DOES_NOT_MATCH
    assert client.refused("t", topic="a", selector="x = 1", **kind) == errors.SELECTOR_DOES_NOT_MATCH
    rig.controller.put("t", kind="topic-endpoint", topic="a", generation=2)
    rig.asks.answered(1, True, {"generation": 2}, rig.now)
    rig.asks.answered(2, True, {"generation": 2}, rig.now)
    rig.settle()
    assert [client.answer(number)[0] for number in (first, second)] == [0, 0]
    client.request("flow.unbind", flow=1)
    client.request("flow.unbind", flow=2)
    rig.controller.answers = True
    client.bind("t", topic="b", **kind)


@pytest.mark.requirement("R137", "R138")
def test_setting_the_topic_of_a_topic_endpoint_needs_modify_topic(rig: Rig) -> None:
    rig.controller.put("t", kind="topic-endpoint", permission="consume", topic="a")
    guest = rig.client("guest", "guest")
    assert guest.refused("t", kind="topic-endpoint", topic="b") == errors.PERMISSION_DENIED
    guest.bind("t", kind="topic-endpoint", topic="a")


# -- temporary endpoints -------------------------------------------------------------------------------------


@pytest.mark.requirement("R93", "R102", "R106", "R107", "R108", "R131")
def test_binding_to_a_temporary_queue_that_is_missing_creates_it(rig: Rig, client: FakeClient) -> None:
    bound = client.bind("reply", temporary=True, attributes={"max_redelivery_count": 2})
    endpoint = rig.endpoints.find("default", "queue", "reply")
    assert endpoint is not None
    assert (endpoint.durable, endpoint.client, endpoint.attributes["owner"]) == (False, "consumer", "owner")
    assert endpoint.attributes["max_redelivery_count"] == 2
    assert bound["access_type"] == "exclusive"
    assert rig.homes[0].lanes[endpoint.id << wire.LANE_BITS][1]["temporary"] is True


@pytest.mark.requirement("R93")
def test_a_temporary_topic_endpoint_is_made_with_its_topic(rig: Rig, client: FakeClient) -> None:
    client.bind("t", kind="topic-endpoint", temporary=True, topic="a/*")
    assert [operation for operation, _ in rig.controller.asked] == ["endpoint.create", "endpoint.set_topic"]
    (endpoint,) = rig.endpoints
    assert [one.pattern for one in endpoint.filters.values()] == ["a/*"]


def test_a_temporary_endpoint_without_a_name_gets_one(rig: Rig, client: FakeClient) -> None:
    first = client.bind("", temporary=True)["name"]
    second = client.bind("", temporary=True)["name"]
    assert first != second
    assert not first.startswith("#")
    assert client.refused("") == errors.INVALID_ENDPOINT_NAME


@pytest.mark.requirement("R111")
def test_temporary_endpoints_need_the_right_to_create_them(rig: Rig, client: FakeClient) -> None:
    rig.vpn.profiles["default"]["allow_endpoint_create_durability"] = "durable"
    assert client.refused("reply", temporary=True) == errors.ENDPOINT_CREATE_DENIED


@pytest.mark.requirement("R105")
def test_a_temporary_endpoint_has_one_consumer_its_creator(rig: Rig, client: FakeClient) -> None:
    client.bind("reply", temporary=True, attributes={"permission": "delete"})
    assert client.refused("reply", temporary=True) == errors.ALREADY_BOUND
    other = rig.client("other", "owner")
    assert other.refused("reply", temporary=True) == errors.PERMISSION_DENIED
    assert client.refused("reply") == errors.INVALID_DURABILITY


@pytest.mark.requirement("R102", "R104")
@pytest.mark.parametrize("how", ["unbind", "goodbye"])
def test_a_temporary_endpoint_ends_with_its_consumer(rig: Rig, client: FakeClient, how: str) -> None:
    flow = client.bind("reply", temporary=True)["flow"]
    if how == "unbind":
        client.request("flow.unbind", flow=flow)
    else:
        client.leave(wanted=True)
    assert len(rig.endpoints) == 0
    assert rig.homes[0].lanes == {}


@pytest.mark.requirement("R104")
def test_a_temporary_endpoint_outlives_a_lost_connection_for_a_minute(rig: Rig, client: FakeClient) -> None:
    client.bind("reply", temporary=True)
    client.leave(wanted=False)
    rig.advance(KEPT_S - 1)
    assert len(rig.endpoints) == 1
    resumed = rig.client("consumer", "owner")
    resumed.bind("reply", temporary=True)
    rig.advance(KEPT_S * 2)
    assert len(rig.endpoints) == 1
    resumed.leave(wanted=False)
    rig.advance(KEPT_S + 1)
    assert len(rig.endpoints) == 0


def test_after_a_start_of_the_router_temporary_endpoints_have_a_minute(rig: Rig) -> None:
    rig.controller.put("reply", durable=False, created_by="client:owner", owner="owner", client="consumer")
    rig.controller.put("q")
    rig.advance(KEPT_S + 1)
    assert [endpoint.name for endpoint in rig.endpoints] == ["q"]


def test_a_controller_that_does_not_delete_is_asked_again(rig: Rig, client: FakeClient) -> None:
    flow = client.bind("reply", temporary=True)["flow"]
    rig.controller.answers = False
    client.request("flow.unbind", flow=flow)
    rig.controller.answers = True
    assert len(rig.endpoints) == 1
    rig.advance(6)
    assert len(rig.endpoints) == 0


def test_a_client_that_went_while_its_endpoint_was_made_leaves_nothing_behind(
    rig: Rig, client: FakeClient
) -> None:
    rig.controller.answers = False
    client.ask("flow.bind", name="reply", temporary=True)
    client.leave(wanted=False)
    rig.controller.put("reply", durable=False, created_by="client:owner", owner="owner", client="consumer")
    rig.asks.answered(1, True, {"created": True}, rig.now)
    assert len(rig.flows) == 0
    rig.controller.answers = True
    rig.advance(KEPT_S + 1)
    assert len(rig.endpoints) == 0
