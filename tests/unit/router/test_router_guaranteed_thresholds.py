"""Events of the spool: when something fills up, is full, and is empty enough again (R185, R197)."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from cluster import objects
from router.ground.config import SpoolLimits
from router.router import SWEEP_INTERVAL_S
from tests.unit.router.publish_rig import Publisher, PublishNode, request

#: Payload of a message that costs exactly 10,000 bytes of spool, so that 100 of them are one MB.
BODY = bytes(10_000 - wire.SPOOL_OVERHEAD_BYTES)


def rows(count: int) -> list[tuple[str, bytes, int]]:
    return [("a", BODY, wire.MODE_PERSISTENT)] * count


def names(node: PublishNode) -> list[str]:
    """Take the events of the spool, which the router looks at now and then."""
    node.advance(SWEEP_INTERVAL_S)
    found = [event["event"] for event in node.events if "_AD_" in event["event"]]
    node.events.clear()
    return found


def walk(node: PublishNode, name: str, high: int, low: int) -> None:
    """Fill up to `high` messages, which is not too much yet, one more, down to `low`, one less, and again."""
    publisher = node.publisher()
    for _ in range(2):
        for _ in range(high // 20):
            publisher.publish(*rows(20))
        assert names(node) == []
        publisher.publish(*rows(1))
        assert names(node) == [name]
        publisher.publish(*rows(3))
        node.consume("q", 4 + high - low)
        assert names(node) == [], "between the two nothing is told"
        node.consume("q", 1)
        assert names(node) == [name + "_CLEAR"]
        node.consume("q", low - 1)


def test_the_node(make_publish_node: Any) -> None:
    node = make_publish_node(spool=SpoolLimits(max_usage_mb=1))
    node.queue("q", "a", event_spool_usage_set_percent=100)
    walk(node, "SYSTEM_AD_MSG_SPOOL_HIGH", 80, 60)


def test_a_message_vpn(spooling: PublishNode) -> None:
    spooling.change_vpn(
        max_spool_usage_mb=1, event_spool_usage_set_percent=40, event_spool_usage_clear_percent=20
    )
    spooling.queue("q", "a", event_spool_usage_set_percent=100)
    walk(spooling, "VPN_AD_MSG_SPOOL_HIGH", 40, 20)


def test_an_endpoint(spooling: PublishNode) -> None:
    spooling.queue("q", "a", max_spool_usage_mb=1, event_spool_usage_set_percent=40)
    walk(spooling, "VPN_AD_ENDPOINT_MSG_SPOOL_HIGH", 40, 18)


def test_the_limit_for_low_priority(spooling: PublishNode) -> None:
    spooling.queue("q", "a", reject_low_priority=True, reject_low_priority_limit=100)
    walk(spooling, "VPN_AD_MSG_SPOOL_REJECT_LOW_PRIORITY_MSG_LIMIT_HIGH", 80, 60)


@pytest.mark.requirement("R185")
def test_spool_files(make_publish_node: Any) -> None:
    node = make_publish_node(spool=SpoolLimits(max_files=5))
    node.queue("q", "a")
    publisher = node.publisher()
    for _ in range(16):
        publisher.publish(*rows(200))
    assert len(node.router.publishing.usage.files) == 4
    assert names(node) == []
    publisher.publish(*rows(1))
    assert names(node) == ["SYSTEM_AD_SPOOL_FILES_HIGH"]
    node.consume("q", 1600)
    assert len(node.router.publishing.usage.files) == 3
    assert names(node) == []
    node.consume("q", 800)
    assert names(node) == ["SYSTEM_AD_SPOOL_FILES_HIGH_CLEAR"]


@pytest.mark.requirement("R185")
def test_the_thresholds_are_configurable(make_publish_node: Any) -> None:
    limits = SpoolLimits(max_files=4, event_files_set_percent=25, event_files_clear_percent=10)
    node = make_publish_node(spool=limits)
    node.queue("q", "a")
    publisher = node.publisher()
    publisher.publish(*rows(200))
    for _ in range(3):
        publisher.publish(*rows(200))
    assert names(node) == []
    publisher.publish(*rows(1))
    assert names(node) == ["SYSTEM_AD_SPOOL_FILES_HIGH"]


@pytest.mark.requirement("R197")
def test_messages_without_acknowledgement(make_publish_node: Any) -> None:
    node = make_publish_node(2, spool=SpoolLimits(max_delivered_unacked=100))
    for unacked, expected in (
        ((40, 40), []),
        ((41, 40), ["SYSTEM_AD_DELIVERED_UNACKED_MSGS_HIGH"]),
        ((30, 30), []),
        ((29, 29), ["SYSTEM_AD_DELIVERED_UNACKED_MSGS_HIGH_CLEAR"]),
        ((50, 50), ["SYSTEM_AD_DELIVERED_UNACKED_MSGS_HIGH", "SYSTEM_AD_DELIVERED_UNACKED_MSGS_EXCEEDED"]),
        ((30, 40), []),
        ((50, 50), []),
        ((50, 10), []),
        ((0, 0), ["SYSTEM_AD_DELIVERED_UNACKED_MSGS_HIGH_CLEAR"]),
    ):
        for index, home in node.homes.items():
            home.send(wire.COMMITTED, [home.incarnation, 0, 0, [], [[], [], 0, 0, unacked[index]]])
        assert names(node) == expected


def test_producers_of_a_message_vpn(spooling: PublishNode) -> None:
    spooling.change_vpn(max_ingress_flow_count=10)
    opened = [spooling.publisher(f"p{n}") for n in range(8)]
    assert names(spooling) == []
    opened.append(spooling.publisher("ninth"))
    assert names(spooling) == ["VPN_AD_INGRESS_FLOWS_HIGH"]
    for publisher in opened[:3]:
        publisher.client.send(wire.BYE, [])
    assert names(spooling) == []
    opened[3].request("producer.close", producer=opened[3].handle)
    assert names(spooling) == ["VPN_AD_INGRESS_FLOWS_HIGH_CLEAR"]


def full(node: PublishNode, name: str) -> None:
    """Fill up, try again and again, make room for one and try again: told once, and again after it was over."""
    publisher = node.publisher()
    for _ in range(2):
        for _ in range(5):
            publisher.publish(*rows(20))
        raised = names(node)
        assert [one for one in raised if one.endswith("_EXCEEDED")] == []
        for _ in range(3):
            publisher.publish(*rows(20))
        node.consume("q", 1)
        publisher.publish(*rows(2))
        assert names(node) == [name]
        node.consume("q", 100)
        assert len(names(node)) == len(raised), "what was raised is over"


def test_the_quota_of_the_node_is_exceeded(make_publish_node: Any) -> None:
    node = make_publish_node(spool=SpoolLimits(max_usage_mb=1))
    node.queue("q", "a")
    full(node, "SYSTEM_AD_MSG_SPOOL_EXCEEDED")


def test_the_quota_of_a_message_vpn_is_exceeded(spooling: PublishNode) -> None:
    spooling.change_vpn(max_spool_usage_mb=1)
    spooling.queue("q", "a")
    full(spooling, "VPN_AD_MSG_SPOOL_EXCEEDED")


def test_the_quota_of_an_endpoint_is_exceeded(spooling: PublishNode) -> None:
    spooling.queue("q", "a", max_spool_usage_mb=1)
    full(spooling, "VPN_AD_ENDPOINT_MSG_SPOOL_EXCEEDED")


def test_the_limit_for_low_priority_is_exceeded(spooling: PublishNode) -> None:
    spooling.queue("q", "a", reject_low_priority=True, reject_low_priority_limit=100)
    full(spooling, "VPN_AD_MSG_SPOOL_REJECT_LOW_PRIORITY_MSG_LIMIT_EXCEEDED")


@pytest.mark.requirement("R185")
def test_the_spool_files_are_all_in_use(make_publish_node: Any) -> None:
    node = make_publish_node(spool=SpoolLimits(max_files=2))
    node.queue("q", "a")
    publisher = node.publisher()
    for _ in range(12):
        publisher.publish(*rows(200))
    assert names(node) == ["SYSTEM_AD_SPOOL_FILES_HIGH", "SYSTEM_AD_SPOOL_FILES_EXCEEDED"]


def test_direct_messages_that_find_no_room_exceed_the_quota_too(spooling: PublishNode) -> None:
    spooling.queue("q", "a", max_spool_usage_mb=1, event_spool_usage_set_percent=100)
    client = spooling.client()
    for _ in range(8):
        client.publish(*[("a", BODY)] * 20)
    assert names(spooling) == ["VPN_AD_ENDPOINT_MSG_SPOOL_EXCEEDED"]


def test_what_is_deleted_when_it_is_full_is_over(spooling: PublishNode) -> None:
    spooling.change_vpn(max_spool_usage_mb=1)
    spooling.queue("q", "a", event_spool_usage_set_percent=100)
    spooling.publisher().publish(*rows(90))
    assert names(spooling) == ["VPN_AD_MSG_SPOOL_HIGH"]
    spooling.drop("q")
    assert names(spooling) == ["VPN_AD_MSG_SPOOL_HIGH_CLEAR"]


def test_producers_that_are_refused(spooling: PublishNode) -> None:
    spooling.change_vpn(max_ingress_flow_count=1)
    spooling.publisher("one")
    client = spooling.client()
    for _ in range(2):
        code, _ = request(client, "producer.open", name="two", window=1)
        assert code == errors.TOO_MANY_FLOWS
    assert names(spooling) == ["VPN_AD_INGRESS_FLOWS_EXCEEDED"]


def test_producers_of_a_client_that_are_refused(spooling: PublishNode) -> None:
    attributes = objects.complete("profile", {"max_ingress_flow_count": 1})
    spooling.router.operators.put_object("profile", "default", "default", attributes, spooling.now)
    one = spooling.publisher("one")
    for _ in range(2):
        code, _ = request(one.client, "producer.open", name="two", window=1)
        assert code == errors.TOO_MANY_FLOWS
    assert names(spooling) == ["CLIENT_AD_MAX_INGRESS_FLOWS_EXCEEDED"]
    one.request("producer.close", producer=one.handle)
    Publisher(spooling, one.client, "two")
    assert request(one.client, "producer.open", name="three", window=1)[0] == errors.TOO_MANY_FLOWS
    assert names(spooling) == ["CLIENT_AD_MAX_INGRESS_FLOWS_EXCEEDED"]


def test_an_event_says_what_and_where(spooling: PublishNode) -> None:
    spooling.queue("q", "a", max_spool_usage_mb=1)
    spooling.publisher().publish(*rows(30))
    spooling.advance(SWEEP_INTERVAL_S)
    (event,) = [event for event in spooling.events if "_AD_" in event["event"]]
    assert event["vpn"] == "default"
    assert event["endpoint"] == "q"
    assert event["severity"] == "warning"
    assert "queue q" in event["text"]
    assert "25 percent" in event["text"]
