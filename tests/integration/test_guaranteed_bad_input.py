"""Whatever a client says about guaranteed messages costs that client only: a code, a counter, others notice nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from angarium import errors, wire
from tests.integration.attacked_spool import AttackedSpool, new_name
from tests.integration.random_guaranteed import ODD_ENDPOINTS, ODD_QUEUES, OddSpeaker
from tests.integration.raw_guaranteed import PLENTY, RawGuaranteed, RawProducer, kept, to_queue
from tests.share import short, some
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

LIMIT_S = 20.0
QUIET_S = 0.3


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedSpool]:
    # A rate of control frames that a busy machine exceeds too.
    config = "[router]\ncontrol_frames_per_second = 4000\n"
    with AttackedSpool(tmp_path_factory.mktemp("bad"), config) as attacked:
        for name, attributes in ODD_QUEUES.items():
            attacked.queue(name, subscriptions=["odd/>"], **attributes)
        for name in ODD_ENDPOINTS:
            attacked.create("topic-endpoint", name, permission="delete")
        yield attacked


# Frames that end the session.

QUEUE = "odd/a"


def request(number: Any, operation: Any, arguments: Any) -> tuple[bytes, Any]:
    return wire.REQUEST, [number, operation, arguments]


#: Whoever sends them has producer 1 and flow 1, and published nothing.
FRAMES: dict[str, tuple[bytes, Any, int]] = {
    "request-nothing": (wire.REQUEST, b"", errors.MALFORMED_FRAME),
    "request-short": (wire.REQUEST, [1, "endpoint.show"], errors.MALFORMED_FRAME),
    "request-long": (wire.REQUEST, [1, "endpoint.show", {}, 1], errors.MALFORMED_FRAME),
    "request-number-text": (*request("1", "endpoint.show", {}), errors.MALFORMED_FRAME),
    "request-number-negative": (*request(-1, "endpoint.show", {}), errors.MALFORMED_FRAME),
    "request-number-huge": (*request((1 << 62) + 1, "endpoint.show", {}), errors.MALFORMED_FRAME),
    "request-operation-bytes": (*request(1, b"endpoint.show", {}), errors.MALFORMED_FRAME),
    "request-over-a-mebibyte": (*request(1, "endpoint.show", bytes(1 << 20)), errors.MALFORMED_FRAME),
    "request-truncated": (wire.REQUEST, wire.pack([1, "endpoint.show", {}])[:-1], errors.MALFORMED_FRAME),
    "request-nested": (
        wire.REQUEST,
        b"\x93\x01" + wire.pack("endpoint.show") + b"\x91" * 50_000 + b"\xc0",
        errors.MALFORMED_FRAME,
    ),
    "credit-text": (wire.FLOW_CREDIT, [1, "1", 1], errors.MALFORMED_FRAME),
    "credit-short": (wire.FLOW_CREDIT, [1, 1], errors.MALFORMED_FRAME),
    "credit-negative": (wire.FLOW_CREDIT, [1, -1, 1], errors.MALFORMED_FRAME),
    "credit-huge": (wire.FLOW_CREDIT, [1, (1 << 62) + 1, 1 << 62], errors.MALFORMED_FRAME),
    "credit-messages-fall": (wire.FLOW_CREDIT, [1, PLENTY[0] - 1, PLENTY[1]], errors.MALFORMED_FRAME),
    "credit-bytes-fall": (wire.FLOW_CREDIT, [1, PLENTY[0], PLENTY[1] - 1], errors.MALFORMED_FRAME),
    "credit-unknown-flow": (wire.FLOW_CREDIT, [2, 1, 1], errors.UNKNOWN_FLOW),
    "credit-flow-0": (wire.FLOW_CREDIT, [0, 1, 1], errors.UNKNOWN_FLOW),
    "settle-unknown-flow": (wire.SETTLE, [2, 0, [[0, 1, 1]]], errors.UNKNOWN_FLOW),
    "settle-outcome-4": (wire.SETTLE, [1, 4, [[0, 1, 1]]], errors.MALFORMED_FRAME),
    "settle-outcome-true": (wire.SETTLE, [1, False, [[0, 1, 1]]], errors.MALFORMED_FRAME),
    "settle-range-short": (wire.SETTLE, [1, 0, [[0, 1]]], errors.MALFORMED_FRAME),
    "settle-range-falls": (wire.SETTLE, [1, 0, [[0, 2, 1]]], errors.MALFORMED_FRAME),
    "settle-position-0": (wire.SETTLE, [1, 0, [[0, 0, 1]]], errors.MALFORMED_FRAME),
    "settle-position-huge": (wire.SETTLE, [1, 0, [[0, 1, (1 << 62) + 1]]], errors.MALFORMED_FRAME),
    "settle-partition-1000": (wire.SETTLE, [1, 0, [[1_000, 1, 1]]], errors.MALFORMED_FRAME),
    "settle-text": (wire.SETTLE, [1, 0, "all"], errors.MALFORMED_FRAME),
    "operation-of-the-router": (wire.MESSAGES, [1, []], errors.UNKNOWN_OPERATION),
    "operation-of-a-home": (wire.COMMITTED, [1, 1, 1, [], []], errors.UNKNOWN_OPERATION),
}


@pytest.mark.parametrize(("operation", "header", "code"), FRAMES.values(), ids=FRAMES)
def test_a_broken_frame_ends_the_session_with_a_code_that_is_counted(
    attacked: AttackedSpool, operation: bytes, header: Any, code: int
) -> None:
    counted = attacked.errors(code)
    with attacked.client() as client:
        client.producer()
        client.bind("odd/b")
        client.send(operation, header)
        assert client.closed(LIMIT_S) == code
    attacked.expect_errors(code, counted + 1)
    wait_until(lambda: attacked.endpoint("odd/b")["bind_count"] == 0, "its flow is over")


class Round(NamedTuple):
    """A PUBLISH of a producer whose sequences 5 to 7 are acknowledged."""

    handle: int
    first: int
    rows: list[Any]
    code: int


ONE = [to_queue(0, QUEUE)]
TWO = [to_queue(0, QUEUE), to_queue(1, QUEUE)]
ROUNDS = {
    "handle-0": Round(0, 8, ONE, errors.MALFORMED_FRAME),
    "handle-negative": Round(-1, 8, ONE, errors.MALFORMED_FRAME),
    "handle-unknown": Round(2, 8, ONE, errors.UNKNOWN_PRODUCER),
    "sequence-0": Round(1, 0, ONE, errors.INVALID_SEQUENCE),
    "sequence-negative": Round(1, -1, [to_queue(9, QUEUE)], errors.INVALID_SEQUENCE),
    "sequence-again": Round(1, 7, ONE, errors.INVALID_SEQUENCE),
    "sequence-falls": Round(1, 1, ONE, errors.INVALID_SEQUENCE),
    "sequence-falls-and-goes-on": Round(
        1, 6, [to_queue(0, QUEUE), to_queue(9, QUEUE)], errors.INVALID_SEQUENCE
    ),
    "sequence-beyond-the-last": Round(1, 1 << 62, TWO, errors.INVALID_SEQUENCE),
    "sequence-huge": Round(1, (1 << 62) + 1, ONE, errors.MALFORMED_FRAME),
    "index-huge": Round(1, 8, [to_queue((1 << 64) - 1, QUEUE)], errors.INVALID_SEQUENCE),
    "indices-equal": Round(1, 8, [to_queue(3, QUEUE), to_queue(3, QUEUE)], errors.MALFORMED_FRAME),
    "direct-rows": Round(1, 8, [to_queue(0, QUEUE, flags=0)], errors.MALFORMED_FRAME),
    "direct-and-persistent": Round(
        1, 8, [to_queue(0, QUEUE), to_queue(1, QUEUE, flags=0)], errors.MALFORMED_FRAME
    ),
    "mode-3": Round(1, 8, [to_queue(0, QUEUE, flags=3)], errors.MALFORMED_FRAME),
    "row-short": Round(1, 8, [to_queue(0, QUEUE)[:5]], errors.MALFORMED_FRAME),
    "priority-256": Round(1, 8, [to_queue(0, QUEUE, meta=[0, 0, 256, None])], errors.MALFORMED_FRAME),
    "more-than-the-window": Round(
        1, 8, [to_queue(n, QUEUE) for n in range(11)], errors.PRODUCER_WINDOW_EXCEEDED
    ),
}


@pytest.mark.parametrize("attempt", ROUNDS.values(), ids=ROUNDS)
def test_a_broken_round_ends_the_session_and_nothing_of_it_is_kept(
    attacked: AttackedSpool, attempt: Round
) -> None:
    counted, held = attacked.errors(attempt.code), attacked.held(QUEUE)
    with attacked.client() as client:
        handle = client.producer(window=10)
        client.publish(handle, 5, [to_queue(index, QUEUE) for index in range(3)])
        assert client.acked(handle, 7) == {}
        client.publish(attempt.handle, attempt.first, attempt.rows)
        assert client.closed(LIMIT_S) == attempt.code
    attacked.expect_errors(attempt.code, counted + 1)
    attacked.expect_held(QUEUE, held + 3)


@pytest.mark.requirement("R152")
def test_a_persistent_row_in_a_direct_round_ends_the_session(attacked: AttackedSpool) -> None:
    counted, held = attacked.errors(errors.MALFORMED_FRAME), attacked.held(QUEUE)
    with attacked.client() as client:
        client.publish_uncut([to_queue(0, QUEUE)])
        assert client.closed(LIMIT_S) == errors.MALFORMED_FRAME
    attacked.expect_errors(errors.MALFORMED_FRAME, counted + 1)
    attacked.expect_held(QUEUE, held)


def test_a_round_of_a_producer_that_is_over_is_dropped_and_the_session_stays(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue, dropped = attacked.queue(), attacked.discards("producer-fenced")
    handle = client.producer()
    client.done("producer.close", producer=handle)
    client.publish(handle, 1, [to_queue(0, queue)])
    assert client.is_open()
    wait_until(lambda: attacked.discards("producer-fenced") == dropped + 1, "it is counted")
    assert client.refused("producer.close", producer=handle) == errors.UNKNOWN_PRODUCER
    attacked.expect_held(queue, 0)


# Requests that are refused.

LONG = "x" * 251
REFUSED: dict[str, tuple[str, dict[str, Any], int]] = {
    "operation": ("endpoint.explode", {}, errors.UNKNOWN_OPERATION),
    "operation-empty": ("", {}, errors.UNKNOWN_OPERATION),
    "arguments-missing": ("endpoint.show", {}, errors.INVALID_ARGUMENT),
    "argument-unknown": ("endpoint.show", {"name": QUEUE, "more": 1}, errors.INVALID_ARGUMENT),
    "argument-of-another-type": ("endpoint.show", {"name": 7}, errors.INVALID_ARGUMENT),
    "kind": ("endpoint.show", {"name": QUEUE, "kind": "lane"}, errors.INVALID_ARGUMENT),
    "show-nothing": ("endpoint.show", {"name": "nowhere"}, errors.UNKNOWN_ENDPOINT),
    "delete-nothing": ("endpoint.delete", {"name": "nowhere"}, errors.UNKNOWN_ENDPOINT),
    "delete-of-an-operator": ("endpoint.delete", {"name": QUEUE}, errors.OPERATOR_ENDPOINT),
    "name-empty": ("endpoint.create", {"name": ""}, errors.INVALID_ENDPOINT_NAME),
    "name-reserved": ("endpoint.create", {"name": "#mine"}, errors.INVALID_ENDPOINT_NAME),
    "name-star": ("endpoint.create", {"name": "a*"}, errors.INVALID_ENDPOINT_NAME),
    "name-question": ("endpoint.create", {"name": "a?"}, errors.INVALID_ENDPOINT_NAME),
    "name-quote": ("endpoint.create", {"name": "it's"}, errors.INVALID_ENDPOINT_NAME),
    "name-brackets": ("endpoint.create", {"name": "<a>"}, errors.INVALID_ENDPOINT_NAME),
    "name-ampersand": ("endpoint.create", {"name": "a&b"}, errors.INVALID_ENDPOINT_NAME),
    "name-semicolon": ("endpoint.create", {"name": "a;b"}, errors.INVALID_ENDPOINT_NAME),
    "name-nul": ("endpoint.create", {"name": "a\0b"}, errors.INVALID_ENDPOINT_NAME),
    "name-newline": ("endpoint.create", {"name": "a\nb"}, errors.INVALID_ENDPOINT_NAME),
    "name-empty-level": ("endpoint.create", {"name": "a//b"}, errors.INVALID_ENDPOINT_NAME),
    "name-slash-first": ("endpoint.create", {"name": "/a"}, errors.INVALID_ENDPOINT_NAME),
    "name-201": ("endpoint.create", {"name": "x" * 201}, errors.INVALID_ENDPOINT_NAME),
    "name-202-bytes": ("endpoint.create", {"name": "\u00e9" * 101}, errors.INVALID_ENDPOINT_NAME),
    "name-251": ("endpoint.create", {"name": LONG}, errors.INVALID_ARGUMENT),
    "exists": ("endpoint.create", {"name": QUEUE}, errors.OBJECT_EXISTS),
    "exists-otherwise": (
        "endpoint.create",
        {"name": QUEUE, "ignore_exists": True, "attributes": {"max_ttl_s": 7}},
        errors.ENDPOINT_PROPERTY_MISMATCH,
    ),
    "exists-durable": ("endpoint.create", {"name": QUEUE, "durable": False}, errors.INVALID_DURABILITY),
    "attribute-unknown": (
        "endpoint.create",
        {"name": "n", "attributes": {"colour": 1}},
        errors.INVALID_ATTRIBUTE,
    ),
    "attribute-range": (
        "endpoint.create",
        {"name": "n", "attributes": {"max_ttl_s": -1}},
        errors.INVALID_ATTRIBUTE,
    ),
    "attribute-above": (
        "endpoint.create",
        {"name": "n", "attributes": {"max_message_bytes": 30_000_001}},
        errors.INVALID_ATTRIBUTE,
    ),
    "attribute-type": (
        "endpoint.create",
        {"name": "n", "attributes": {"max_ttl_s": "long"}},
        errors.INVALID_ATTRIBUTE,
    ),
    "attribute-of-the-node": (
        "endpoint.create",
        {"name": "n", "attributes": {"generation": 1}},
        errors.INVALID_ATTRIBUTE,
    ),
    "attribute-of-operators": (
        "endpoint.create",
        {"name": "n", "attributes": {"owner": "somebody"}},
        errors.INVALID_ATTRIBUTE,
    ),
    "partitions-of-an-exclusive-queue": (
        "endpoint.create",
        {"name": "n", "attributes": {"partition_count": 2, "access_type": "exclusive"}},
        errors.INVALID_ATTRIBUTE,
    ),
    "partitions-of-a-temporary-queue": (
        "flow.bind",
        {
            "name": "n",
            "temporary": True,
            "attributes": {"partition_count": 2, "access_type": "non-exclusive"},
        },
        errors.INVALID_DURABILITY,
    ),
    "filter-shared": (
        "endpoint.create",
        {"name": "n", "attributes": {"subscriptions": ["#share/g/a"]}},
        errors.SHARED_ON_ENDPOINT,
    ),
    "filter-of-a-queue": (
        "endpoint.create",
        {"name": "n", "attributes": {"subscriptions": ["#P2P/QUE/odd/a"]}},
        errors.RESERVED_TOPIC,
    ),
    "filter-empty": (
        "endpoint.create",
        {"name": "n", "attributes": {"subscriptions": [""]}},
        errors.INVALID_FILTER,
    ),
    "filters-none": ("endpoint.subscribe", {"name": QUEUE, "filters": []}, errors.INVALID_ARGUMENT),
    "filters-257": ("endpoint.subscribe", {"name": QUEUE, "filters": ["a"] * 257}, errors.INVALID_ARGUMENT),
    "exception-of-a-topic-endpoint": (
        "endpoint.subscribe",
        {"name": "odd/te", "kind": "topic-endpoint", "filters": ["!a"]},
        errors.EXCEPTIONS_NOT_SUPPORTED,
    ),
    "bind-nowhere": ("flow.bind", {"name": "nowhere"}, errors.UNKNOWN_ENDPOINT),
    "bind-without-name": ("flow.bind", {"name": ""}, errors.INVALID_ENDPOINT_NAME),
    "bind-temporary-what-is-durable": (
        "flow.bind",
        {"name": QUEUE, "temporary": True},
        errors.INVALID_DURABILITY,
    ),
    "bind-max-unacked-0": ("flow.bind", {"name": QUEUE, "max_unacked": 0}, errors.INVALID_ARGUMENT),
    "bind-credit-negative": ("flow.bind", {"name": QUEUE, "messages": -1}, errors.INVALID_ARGUMENT),
    "bind-queue-with-topic": ("flow.bind", {"name": QUEUE, "topic": "a"}, errors.INVALID_ARGUMENT),
    "bind-topic-endpoint-without": (
        "flow.bind",
        {"name": "odd/te", "kind": "topic-endpoint"},
        errors.INVALID_ARGUMENT,
    ),
    "bind-topic-endpoint-exception": (
        "flow.bind",
        {"name": "odd/te", "kind": "topic-endpoint", "topic": "!a"},
        errors.EXCEPTIONS_NOT_SUPPORTED,
    ),
    "bind-topic-endpoint-shared": (
        "flow.bind",
        {"name": "odd/te", "kind": "topic-endpoint", "topic": "#share/g/a"},
        errors.SHARED_ON_ENDPOINT,
    ),
    "unbind-never-bound": ("flow.unbind", {"flow": 1}, errors.UNKNOWN_FLOW),
    "producer-window-256": ("producer.open", {"window": 256}, errors.INVALID_ARGUMENT),
    "stage-window-4097": ("producer.open", {"stage": True, "window": 4_097}, errors.INVALID_ARGUMENT),
    "producer-window-true": ("producer.open", {"window": True}, errors.INVALID_ARGUMENT),
    "producer-name-161": ("producer.open", {"name": "x" * 161}, errors.INVALID_ARGUMENT),
    "producer-name-control": ("producer.open", {"name": "a\0"}, errors.INVALID_ARGUMENT),
    "producer-never-known": ("producer.open", {"name": "never", "resume": True}, errors.UNKNOWN_FLOW_NAME),
    "producer-never-opened": ("producer.close", {"producer": 1}, errors.UNKNOWN_PRODUCER),
}


@pytest.mark.requirement("R24", "R94", "R105", "R123", "R132")
@pytest.mark.parametrize(("operation", "arguments", "code"), REFUSED.values(), ids=REFUSED)
def test_a_request_is_refused_with_a_code_that_is_counted_and_the_session_stays(
    attacked: AttackedSpool, client: RawGuaranteed, operation: str, arguments: dict[str, Any], code: int
) -> None:
    counted = attacked.errors(code)
    assert client.refused(operation, **arguments) == code
    assert client.is_open()
    attacked.expect_errors(code, counted + 1)


#: What packs and unpacks in one library and not in the other, or not twice.
TWISTED = {
    "extension": b"\xd4\x05\x00",
    "timestamp": b"\xd6\xff\x00\x00\x00\x01",
    "timestamp-96": b"\xc7\x0c\xff" + bytes(12),
    "map-from-an-array": b"\x81\x90\x01",
    "map-from-a-map": b"\x81\x80\x01",
    "nested-600": b"\x91" * 600 + b"\xc0",
    "maps-600": b"\x81\xa1a" * 600 + b"\xc0",
    "not-a-number": b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    "infinite": b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",
    "largest-number": b"\xcf" + b"\xff" * 8,
    "smallest-number": b"\xd3\x80" + bytes(7),
}


@pytest.mark.parametrize("operation", ["endpoint.create", "flow.bind"])
@pytest.mark.parametrize("value", TWISTED.values(), ids=TWISTED)
def test_no_value_of_an_attribute_gets_further_than_its_check(
    attacked: AttackedSpool, operation: str, value: bytes
) -> None:
    name, temporary, attribute = wire.pack("name"), wire.pack("temporary"), wire.pack("max_ttl_s")
    arguments = name + wire.pack(new_name()) + wire.pack("attributes") + b"\x81" + attribute + value
    if operation == "flow.bind":
        arguments += temporary + b"\xc3"
    fields = 2 + (operation == "flow.bind")
    with attacked.client() as client:
        client.send(wire.REQUEST, b"\x93\x01" + wire.pack(operation) + bytes([0x80 | fields]) + arguments)
        code, detail = client.answer(1)
        assert code in (errors.INVALID_ARGUMENT, errors.INVALID_ATTRIBUTE)
        assert len(detail) < 1_000
        assert client.is_open()


def test_a_refusal_repeats_only_the_beginning_of_what_it_refuses(client: RawGuaranteed) -> None:
    for attributes in (
        {"x" * 500_000: 1},
        {"dead_message_queue": "\0" * 500_000},
        {"subscriptions": ["a"] * 6_000},
    ):
        code, detail = client.request("endpoint.create", name="n", attributes=attributes)
        assert code == errors.INVALID_ATTRIBUTE
        assert len(detail) < 4_000


# Settling.


def test_settling_what_was_never_delivered_is_refused_and_settles_nothing(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    RawProducer(client).fill(queue, *[b"%d" % number for number in range(5)])
    flow = client.bind(queue, credit=(2, 1 << 20))
    client.messages(flow, 2)
    counted = attacked.errors(errors.NOT_DELIVERED)
    for ranges in ([[0, 3, 3]], [[0, 100, 200]], [[7, 1, 1]]):
        client.settle(flow, ranges)
        code, detail = client.indication(flow, wire.FLOW_SETTLE_REFUSED)
        assert code == errors.NOT_DELIVERED
        assert detail
    attacked.expect_errors(errors.NOT_DELIVERED, counted + 3)
    wait_until(lambda: attacked.endpoint(queue)["settles_refused"] >= 2, "the home counts them")
    attacked.expect_held(queue, 5)
    # A range that is partly right settles what is right.
    client.settle(flow, [[0, 1, 1 << 62]])
    assert client.indication(flow, wire.FLOW_SETTLE_REFUSED)[0] == errors.NOT_DELIVERED
    attacked.expect_held(queue, 3)
    client.settle(flow, [[0, 1, 2]])
    assert client.indication(flow, wire.FLOW_SETTLE_REFUSED)[0] == errors.NOT_DELIVERED, "twice"
    attacked.expect_held(queue, 3)


def test_nobody_settles_or_feeds_flows_of_another_session(attacked: AttackedSpool) -> None:
    queue = attacked.queue()
    with attacked.client() as owner, attacked.client() as thief:
        RawProducer(owner).fill(queue, b"mine")
        flow = owner.bind(queue)
        owner.messages(flow, 1)
        thief.settle(flow, [[0, 1, 1]])
        assert thief.closed() == errors.UNKNOWN_FLOW
        attacked.expect_held(queue, 1)
    with attacked.client() as standby:
        own = standby.bind("odd/b")
        assert own == flow, "numbers of flows are of one session"
        standby.settle(own, [[0, 1, 1]])
        assert standby.indication(own, wire.FLOW_SETTLE_REFUSED)[0] == errors.NOT_DELIVERED
    attacked.expect_held(queue, 1)


def test_settles_of_everything_there_could_be_cost_nothing(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    RawProducer(client).fill(queue, b"1", b"2")
    flow = client.bind(queue)
    client.messages(flow, 2)
    for _ in range(20):
        client.settle(flow, [[0, 1, 1 << 62]] * 1_000)
    attacked.expect_held(queue, 0)
    (row,) = [row for row in attacked.ask("flows.list") if row["endpoint"] == queue]
    assert row["settled_messages"] == 2, "what the home settled counts, not what a client claims"
    client.settle(flow, [[0, position, position] for position in range(1, 4_001)])
    client.settle(flow, [])
    assert client.is_open()


@pytest.mark.parametrize("end", ["unbound", "closed"])
def test_what_is_said_of_a_flow_that_is_over_is_passed_over(
    attacked: AttackedSpool, client: RawGuaranteed, end: str
) -> None:
    queue = attacked.queue()
    RawProducer(client).fill(queue, b"")
    flow = client.bind(queue)
    client.messages(flow, 1)
    if end == "unbound":
        client.done("flow.unbind", flow=flow)
    else:
        attacked.update("queue", queue, egress_enabled=False)
        assert client.indication(flow, wire.FLOW_CLOSED)[0] == errors.ENDPOINT_SHUTDOWN
    client.settle(flow, [[0, 1, 1]])
    client.send(wire.FLOW_CREDIT, [flow, 0, 0])
    assert client.is_open()
    client.none_within(wire.INDICATION, QUIET_S)
    attacked.expect_held(queue, 1)


# Much of it.


def ask_a_lot(client: RawGuaranteed) -> None:
    for number in range(5_000):
        client.send(wire.REQUEST, [number, "endpoint.show", {"name": QUEUE}])


def create_a_lot(client: RawGuaranteed) -> None:
    for number in range(3_000):
        client.send(wire.REQUEST, [number, "endpoint.create", {"name": QUEUE}])


def bind_a_lot(client: RawGuaranteed) -> None:
    for number in range(3_000):
        client.send(wire.REQUEST, [number, "flow.bind", {"name": QUEUE, "messages": 9, "bytes": 9}])


def open_a_lot(client: RawGuaranteed) -> None:
    for number in range(2_000):
        client.send(wire.REQUEST, [number, "producer.open", {"name": "one"}])


FLOODS = {"show": ask_a_lot, "create": create_a_lot, "bind": bind_a_lot, "open": open_a_lot}
#: Done, or refused for one of these reasons.
FLOOD_CODES = {
    0,
    errors.OBJECT_EXISTS,
    errors.CONTROL_RATE_EXCEEDED,
    errors.TOO_MANY_FLOWS,
    errors.MAX_BIND_COUNT_EXCEEDED,
    errors.PRODUCER_FENCED,
}


@pytest.mark.parametrize("flood", some(FLOODS.values(), of=2), ids=some(FLOODS, of=2))
def test_a_flood_of_requests_is_answered_or_refused_one_by_one(
    attacked: AttackedSpool, flood: Callable[[RawGuaranteed], None]
) -> None:
    with attacked.client() as client:
        flood(client)
        codes = {client.next(wire.ANSWER, LIMIT_S).header[1] for _ in range(2_000)}
        assert codes <= FLOOD_CODES
    wait_until(lambda: attacked.endpoint(QUEUE)["bind_count"] == 0, "its flows are over")


def test_more_control_frames_than_the_rate_end_the_session(attacked: AttackedSpool) -> None:
    with attacked.client() as client:
        flow = client.bind(QUEUE)
        counted = attacked.errors(errors.CONTROL_RATE_EXCEEDED)
        for _ in range(40_000):
            client.send(wire.FLOW_CREDIT, [flow, *PLENTY])
        assert client.closed(LIMIT_S) == errors.CONTROL_RATE_EXCEEDED
    attacked.expect_errors(errors.CONTROL_RATE_EXCEEDED, counted + 1)


@pytest.mark.parametrize("seed", some([1, 2, 3, 4], of=4))
def test_odd_requests_rounds_and_settles_harm_nobody(attacked: AttackedSpool, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(short(8, long=20)):
        with attacked.client() as client:
            for name in ODD_QUEUES:
                client.producer(name=f"odd/{name}")
                client.bind(name, credit=(1_000, 1 << 20))
            odd = OddSpeaker(rng, client.asked)
            for _ in range(30):
                client.socket.send_multipart(odd.frames())
            client.send(wire.PING, [9])
            client.answers_or_end(odd.asked, LIMIT_S)


def test_nothing_that_was_acknowledged_is_lost_by_all_this(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(subscriptions=["kept/>"])
    producer = RawProducer(client)
    for number in range(20):
        assert producer.publish(kept(0, f"kept/{number}", b"%d" % number)) == [0]
        with attacked.client() as odd:
            odd.send(wire.SETTLE, [1, 0, []])
            assert odd.closed() == errors.UNKNOWN_FLOW
    assert [one.payload for one in client.messages(client.bind(queue), 20)] == [b"%d" % n for n in range(20)]
