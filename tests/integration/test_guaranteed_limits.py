"""Each limit of guaranteed messaging, reached exactly and exceeded by one: a code, a counter, nothing else happens."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from tests.integration.attacked_spool import AttackedSpool, new_name
from tests.integration.raw_guaranteed import RawGuaranteed, RawProducer, kept, to_queue
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.raw_client import Row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

#: One MB of a quota.
MB = 1_000_000
#: A payload with which a message takes a tenth of an MB.
TENTH = bytes(MB // 10 - wire.SPOOL_OVERHEAD_BYTES)
#: A payload with which a message takes an MB.
WHOLE = bytes(MB - wire.SPOOL_OVERHEAD_BYTES)
HOME_STOPS_S = 1.0


def rows(queue: str, *payloads: bytes, flags: int = wire.MODE_PERSISTENT) -> list[Row]:
    return [to_queue(index, queue, payload, flags) for index, payload in enumerate(payloads)]


# What endpoints, Message VPNs and the node may hold.


@pytest.mark.requirement("R173", "R177", "R178")
def test_an_endpoint_holds_its_quota_to_the_byte(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    queue = attacked.queue(max_spool_usage_mb=1)
    publisher = RawProducer(client)
    refused, discarded = attacked.status()["spool"]["nacks"], attacked.discards("endpoint-usage-exceeded")
    assert publisher.publish(*rows(queue, *[TENTH] * 10)) == [0] * 10
    attacked.expect_counters(queue, spool_usage_bytes=MB)
    assert publisher.publish(*rows(queue, b"")) == [errors.SPOOL_OVER_QUOTA]
    attacked.expect_spool(nacks=refused + 1)
    attacked.expect_discards("endpoint-usage-exceeded", discarded + 1)
    attacked.expect_counters(queue, spool_usage_exceeded=1)
    flow = client.bind(queue, credit=(1, 1 << 30))
    client.settle(flow, [[0, message.position, message.position] for message in client.messages(flow, 1)])
    attacked.expect_held(queue, 9)
    # Of a round the first fits, the second does not by a byte, the third does.
    assert publisher.publish(*rows(queue, TENTH[1:], b"", b"")) == [
        0,
        errors.SPOOL_OVER_QUOTA,
        errors.SPOOL_OVER_QUOTA,
    ]
    attacked.expect_counters(queue, spool_usage_bytes=MB - 1)


@pytest.mark.requirement("R172", "R114")
def test_a_message_vpn_holds_its_quota_to_the_byte_and_a_refused_message_goes_nowhere(
    attacked: AttackedSpool,
) -> None:
    vpn = attacked.vpn(max_spool_usage_mb=1)
    queues = [attacked.queue(vpn=vpn, subscriptions=["both"]) for _ in range(2)]
    with attacked.client(vpn=vpn) as client:
        publisher = RawProducer(client)
        assert publisher.publish(*[kept(index, "both", TENTH) for index in range(5)]) == [0] * 5
        discarded = attacked.discards("vpn-spool-usage-exceeded")
        assert publisher.publish(kept(0, "both")) == [errors.SPOOL_OVER_QUOTA]
        assert publisher.publish(*rows(queues[0], b"")) == [errors.SPOOL_OVER_QUOTA]
        attacked.expect_discards("vpn-spool-usage-exceeded", discarded + 2)
        for queue in queues:
            attacked.expect_held(queue, 5, vpn=vpn)
        attacked.ask("endpoints.purge", name=queues[0], vpn=vpn)
        attacked.expect_held(queues[0], 0, vpn=vpn)
        # Now there is room for one copy of a tenth five times: for two copies twice.
        assert publisher.publish(*[kept(index, "both", TENTH) for index in range(3)]) == [
            0,
            0,
            errors.SPOOL_OVER_QUOTA,
        ]
        for queue, count in zip(queues, (2, 7), strict=True):
            attacked.expect_held(queue, count, vpn=vpn)


def test_a_last_value_queue_takes_no_quota_and_keeps_the_newest(attacked: AttackedSpool) -> None:
    vpn = attacked.vpn(max_spool_usage_mb=0)
    last, other = attacked.queue(vpn=vpn, max_spool_usage_mb=0), attacked.queue(vpn=vpn)
    with attacked.client(vpn=vpn) as client:
        publisher = RawProducer(client)
        assert publisher.publish(*rows(other, b"")) == [errors.SPOOL_OVER_QUOTA]
        assert publisher.publish(*rows(last, *[b"%d" % number for number in range(200)])) == [0] * 200
        attacked.expect_held(last, 1, vpn=vpn)
        (newest,) = client.messages(client.bind(last), 1)
        assert (newest.payload, newest.position) == (b"199", 200)


@pytest.mark.requirement("R174")
def test_a_message_may_be_as_large_as_the_endpoint_allows_and_no_byte_larger(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue, nothing = attacked.queue(max_message_bytes=100), attacked.queue(max_message_bytes=0)
    publisher = RawProducer(client)
    discarded = attacked.discards("max-message-size-exceeded")
    packed = wire.pack({1: "c"})
    fits, exceeds = bytes(100 - len(packed)), bytes(101 - len(packed))
    verdicts = publisher.publish(
        *[
            (index, f"{wire.QUEUE_TOPIC_PREFIX}{queue}", wire.MODE_PERSISTENT, None, properties, payload)
            for index, (properties, payload) in enumerate(
                [(None, bytes(100)), (None, bytes(101)), (packed, fits), (packed, exceeds)]
            )
        ]
    )
    assert verdicts == [0, errors.MESSAGE_TOO_LARGE, 0, errors.MESSAGE_TOO_LARGE]
    assert publisher.publish(*rows(nothing, b"", b"x")) == [0, errors.MESSAGE_TOO_LARGE]
    attacked.expect_discards("max-message-size-exceeded", discarded + 3)
    attacked.expect_counters(queue, max_message_size_exceeded=2)


def test_a_message_over_the_limit_of_the_node_is_refused_and_those_beside_it_are_kept(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(max_message_bytes=30_000_000)
    discarded = attacked.discards("msg-too-big")
    verdicts = RawProducer(client).publish(*rows(queue, b"a", bytes(10_000_001), b"b"))
    assert verdicts == [0, errors.MESSAGE_TOO_LARGE, 0]
    attacked.expect_discards("msg-too-big", discarded + 1)
    attacked.expect_held(queue, 2)


@pytest.mark.requirement("R176")
def test_low_priority_is_refused_above_its_limit_only(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    queue = attacked.queue(reject_low_priority=True, reject_low_priority_limit=3)
    low, middle, high = (wire.MODE_PERSISTENT | cos << wire.COS_SHIFT for cos in range(3))
    publisher = RawProducer(client)
    discarded = attacked.discards("low-priority-msg-congestion")
    assert publisher.publish(*rows(queue, b"1", b"2", b"3", b"4", flags=low)) == [
        0,
        0,
        0,
        errors.LOW_PRIORITY_CONGESTION,
    ]
    assert publisher.publish(*rows(queue, b"5", flags=middle)) == [errors.LOW_PRIORITY_CONGESTION]
    assert publisher.publish(*rows(queue, b"6", flags=high)) == [0]
    attacked.expect_discards("low-priority-msg-congestion", discarded + 2)
    attacked.expect_counters(queue, low_priority_msg_congestion_discard=2)
    attacked.expect_held(queue, 4)


# How many of a kind.


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_an_endpoint_has_as_many_consumers_as_it_may(
    attacked: AttackedSpool, client: RawGuaranteed, limit: int
) -> None:
    queue = attacked.queue(max_bind_count=limit, access_type="non-exclusive")
    flows = [client.bind(queue) for _ in range(limit)]
    refused = attacked.errors(errors.MAX_BIND_COUNT_EXCEEDED)
    bind = {"name": queue, "messages": 1, "bytes": 1}
    assert client.refused("flow.bind", **bind) == errors.MAX_BIND_COUNT_EXCEEDED
    assert client.refused("flow.bind", browse=True, **bind) == errors.MAX_BIND_COUNT_EXCEEDED
    attacked.expect_errors(errors.MAX_BIND_COUNT_EXCEEDED, refused + 2)
    attacked.expect_counters(queue, bind_max_count_exceeded=2)
    for flow in flows[:1]:
        client.done("flow.unbind", flow=flow)
        client.bind(queue)


def test_a_topic_endpoint_has_one_consumer_unless_more_are_allowed(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    name = attacked.create("topic-endpoint", new_name("te"))
    bind = {"name": name, "kind": "topic-endpoint", "topic": "a/b", "messages": 1, "bytes": 1}
    client.done("flow.bind", **bind)
    assert client.refused("flow.bind", **bind) == errors.MAX_BIND_COUNT_EXCEEDED


def open_flow(queue: str) -> Callable[[RawGuaranteed], int]:
    return lambda client: client.request("flow.bind", name=queue, messages=1, bytes=1)[0]


def open_producer(client: RawGuaranteed) -> int:
    return client.request("producer.open")[0]


@pytest.mark.parametrize("kind", ["egress", "ingress"])
def test_flows_and_producers_are_counted_per_client_and_per_message_vpn(
    attacked: AttackedSpool, kind: str
) -> None:
    vpn = attacked.vpn(**{f"max_{kind}_flow_count": 3})
    attacked.update("profile", "default", vpn, **{f"max_{kind}_flow_count": 2})
    queue = attacked.queue(vpn=vpn, access_type="non-exclusive")
    attempt = open_flow(queue) if kind == "egress" else open_producer
    refused = attacked.errors(errors.TOO_MANY_FLOWS)
    with attacked.client(vpn=vpn) as one, attacked.client(vpn=vpn) as other:
        assert [attempt(one) for _ in range(3)] == [0, 0, errors.TOO_MANY_FLOWS]
        assert [attempt(other) for _ in range(2)] == [0, errors.TOO_MANY_FLOWS]
        attacked.expect_errors(errors.TOO_MANY_FLOWS, refused + 2)
        one.send(wire.BYE, [])
        assert one.closed() == 0
        assert [attempt(other) for _ in range(2)] == [0, errors.TOO_MANY_FLOWS]


def test_endpoints_are_counted_per_message_vpn_whoever_creates_them(attacked: AttackedSpool) -> None:
    vpn = attacked.vpn(max_endpoint_count=4)
    name = itertools.count(1)
    with attacked.client(vpn=vpn) as client:
        attacked.queue(vpn=vpn)  # The first two are those that it comes with.
        client.done("endpoint.create", name=f"c/{next(name)}", kind="topic-endpoint")
        refused = attacked.errors(errors.TOO_MANY_ENDPOINTS)
        assert client.refused("endpoint.create", name=f"c/{next(name)}") == errors.TOO_MANY_ENDPOINTS
        bind = {"name": f"c/{next(name)}", "temporary": True, "messages": 1, "bytes": 1}
        assert client.refused("flow.bind", **bind) == errors.TOO_MANY_ENDPOINTS
        attacked.expect_errors(errors.TOO_MANY_ENDPOINTS, refused + 2)
        with pytest.raises(errors.UnavailableError, match=str(errors.TOO_MANY_ENDPOINTS)):
            attacked.queue(vpn=vpn)
        client.done("endpoint.delete", name="c/1", kind="topic-endpoint")
        client.done("flow.bind", **bind)


def test_endpoints_are_counted_per_username(attacked: AttackedSpool) -> None:
    user = attacked.user(max_endpoint_count_per_username=2)
    names = [new_name() for _ in range(3)]
    with attacked.client(username=user) as one, attacked.client(username=user) as other:
        one.done("endpoint.create", name=names[0])
        other.done("endpoint.create", name=names[1])
        assert one.refused("endpoint.create", name=names[2]) == errors.TOO_MANY_ENDPOINTS
        one.done("endpoint.delete", name=names[1])
        one.done("endpoint.create", name=names[2])


def test_a_client_may_have_256_requests_without_an_answer(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    """While the controller stands still, nobody answers; it is not long enough to be taken for hanging."""
    queue = attacked.queue()
    with attacked.stopped("controller"):
        asked = [client.ask("endpoint.create", name=queue) for _ in range(256)]
        assert client.request("endpoint.create", name=queue)[0] == errors.CONTROL_RATE_EXCEEDED
    assert {client.answer(number)[0] for number in asked} == {errors.OBJECT_EXISTS}
    assert client.request("endpoint.create", name=queue)[0] == errors.OBJECT_EXISTS


@pytest.mark.requirement("R141")
def test_a_selector_has_2000_bytes(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    queue = attacked.queue(access_type="non-exclusive")
    filler = f"{'x' * 190} = 1 OR "
    longest = filler * 10 + f"{'y' * (2_000 - len(filler) * 10 - 4)} = 1"
    assert len(longest) == 2_000
    client.bind(queue, selector=longest)
    counted = attacked.errors(errors.INVALID_SELECTOR)
    for selector in (f"{longest} ", f"{longest[:-7]}\u00e9\u00e9 = 1"):
        assert client.refused("flow.bind", name=queue, selector=selector) == errors.INVALID_SELECTOR
    attacked.expect_errors(errors.INVALID_SELECTOR, counted + 2)


def test_a_queue_has_so_many_subscriptions_of_clients(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    queue = new_name()
    client.done("endpoint.create", name=queue, attributes={"subscriptions": [f"s/{n}" for n in range(4_999)]})
    added = client.done("endpoint.subscribe", name=queue, filters=["more/1", "more/2", "s/1"])
    assert [verdict and verdict[0] for verdict in added] == [None, errors.MAX_SUBSCRIPTIONS_EXCEEDED, None]
    assert RawProducer(client).publish(kept(0, "more/1"), kept(1, "more/2")) == [0, 0]
    attacked.expect_held(queue, 1)
    client.done("endpoint.delete", name=queue)


# Windows.


@pytest.mark.requirement("R186", "R187")
def test_a_window_of_255_messages_may_be_filled_and_not_exceeded(attacked: AttackedSpool) -> None:
    queue = attacked.queue()
    counted = attacked.errors(errors.PRODUCER_WINDOW_EXCEEDED)
    with attacked.client() as client:
        assert client.refused("producer.open", window=256) == errors.INVALID_ARGUMENT
        assert client.refused("producer.open", window=0) == errors.INVALID_ARGUMENT
        handle = client.producer(window=255)
        client.publish(handle, 1, rows(queue, *[b""] * 255))
        assert client.acked(handle, 255) == {}
        client.publish(handle, 256, rows(queue, *[b""] * 256))
        assert client.closed() == errors.PRODUCER_WINDOW_EXCEEDED
    attacked.expect_errors(errors.PRODUCER_WINDOW_EXCEEDED, counted + 1)
    attacked.expect_held(queue, 255)  # Nothing of the round that overdrew is kept.


def test_an_overdraft_of_a_window_that_is_not_acknowledged_ends_the_session(attacked: AttackedSpool) -> None:
    queue = attacked.queue()
    with attacked.client() as client:
        handle = client.producer(window=10)
        with attacked.stopped("worker", 0), attacked.stopped("worker", 1):
            client.publish(handle, 1, rows(queue, *[b""] * 6))
            client.publish(handle, 7, rows(queue, *[b""] * 4))
            assert client.is_open()
            client.publish(handle, 11, rows(queue, b""))
            assert client.closed() == errors.PRODUCER_WINDOW_EXCEEDED
    assert attacked.held(queue) in (0, 6, 10)


@pytest.mark.requirement("R192", "R193", "R194")
@pytest.mark.parametrize("kind", ["queue", "topic-endpoint"])
def test_a_flow_has_so_many_messages_unsettled_and_the_next_comes_for_each_settled(
    attacked: AttackedSpool, client: RawGuaranteed, kind: str
) -> None:
    topic = new_name("limited")
    name = attacked.create(kind, new_name(), permission="delete", max_delivered_unacked_per_flow=7)
    wish: dict[str, Any] = {"kind": kind, "max_unacked": 1_000}
    if kind == "queue":
        attacked.ask("objects.subscribe", name=name, add=[topic])
    else:
        wish["topic"] = topic
    flow = client.bind(name, **wish)
    RawProducer(client).publish(*[kept(number, topic, b"%d" % number) for number in range(20)])
    assert [message.position for message in client.messages(flow, 7)] == [*range(1, 8)]
    client.none_within(wire.MESSAGES, HOME_STOPS_S / 4)
    client.settle(flow, [[0, 3, 3]])
    assert [message.position for message in client.messages(flow, 1)] == [8]
    client.none_within(wire.MESSAGES, HOME_STOPS_S / 4)
    attacked.update(kind, name, max_delivered_unacked_per_flow=8)
    assert [message.position for message in client.messages(flow, 1)] == [9]


def test_a_flow_gets_what_its_credit_says_and_not_one_message_more(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    RawProducer(client).publish(*rows(queue, *[bytes(1_000)] * 20))
    size = 1_000 + wire.SPOOL_OVERHEAD_BYTES
    flow = client.bind(queue, credit=(5, 5 * size + 1))
    assert len(client.messages(flow, 5)) == 5
    client.none_within(wire.MESSAGES, HOME_STOPS_S / 4)
    # Bytes may be overdrawn by one message.
    client.send(wire.FLOW_CREDIT, [flow, 1_000, 7 * size + 1])
    assert [message.position for message in client.messages(flow, 3)] == [6, 7, 8]
    client.none_within(wire.MESSAGES, HOME_STOPS_S / 4)


def test_a_client_that_grants_without_end_and_reads_nothing_leaves_its_messages_where_they_are(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    publisher = RawProducer(client)
    before = attacked.rss()
    with attacked.stranger(receive_mark=1) as greedy:
        greedy.hello(keepalive_ms=600_000)
        greedy.send(wire.REQUEST, [1, "flow.bind", {"name": queue, "messages": 1 << 62, "bytes": 1 << 62}])
        for _ in range(8):
            assert publisher.publish(*rows(queue, *[TENTH] * 100)) == [0] * 100
        assert attacked.endpoint(queue)["delivered_unacked"] * len(TENTH) < 64 << 20
        assert attacked.rss() - before < 128 << 20
    attacked.expect_held(queue, 800)
    wait_until(lambda: not attacked.endpoint(queue)["delivered_unacked"], "the greedy one is gone")
    flow = client.bind(queue, credit=(1, 1 << 20))
    (first,) = client.messages(flow, 1)
    assert (first.position, first.tries) == (1, 1)
    attacked.delete("queue", queue)


def test_many_browsers_that_read_nothing_do_not_stop_the_others(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(max_bind_count=10_000)
    publisher = RawProducer(client)
    for _ in range(20):
        assert not any(publisher.fill(queue, *[bytes(1_000)] * 250))
    greedy = [attacked.stranger(receive_mark=1).hello() for _ in range(8)]
    try:
        for one in greedy:
            for _ in range(20):
                one.ask("flow.bind", name=queue, browse=True, messages=1 << 40, bytes=1 << 50)
        wait_until(lambda: attacked.endpoint(queue)["bind_count"] == 160, "all are bound")
        attacked.begin()
        assert client.is_open()
        wait_until(lambda: attacked.endpoint(queue)["messages_browsed"] > 100_000, "much was sent")
        attacked.expect_unharmed()
    finally:
        for one in greedy:
            one.close()
    wait_until(lambda: attacked.endpoint(queue)["bind_count"] == 0, "they are gone")
    attacked.delete("queue", queue)
