"""Whatever a client sends costs that client only: it gets a stable code, which is counted; others notice nothing."""

from __future__ import annotations

import random
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import zmq

from angarium import blocking, errors, wire
from tests.integration.attacked_node import AttackedNode
from tests.integration.random_frames import OddClient, noise
from tests.integration.raw_client import Row, hello_header, row
from tests.share import short, some

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

LIMIT_S = 20.0
RANDOM_FRAMES = short(500, long=1_200)
#: How long connections may say nothing.
HANDSHAKE_S = 3.0

TOO_LONG = "x" * 251
TOO_LONG_IN_BYTES = "\u00e9" * 126
TOO_DEEP = "/".join("x" * 129)
BAD_TOPICS = {
    "empty": "",
    "long": TOO_LONG,
    "long-in-bytes": TOO_LONG_IN_BYTES,
    "deep": TOO_DEEP,
    "nul": "a\0b",
}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    with AttackedNode(
        tmp_path_factory.mktemp("bad"), f"[router]\nlogin_timeout_ms = {HANDSHAKE_S * 1000:g}\n"
    ) as attacked:
        yield attacked


# Topics and filters.


@pytest.mark.parametrize("topic", BAD_TOPICS.values(), ids=BAD_TOPICS)
def test_a_bad_topic_costs_its_message_only(attacked: AttackedNode, topic: str) -> None:
    refused = attacked.errors(errors.INVALID_TOPIC)
    discarded = attacked.discards("topic-parse-error")
    with attacked.client() as client:
        client.subscribe("good")
        client.publish_uncut([row(0, "good", b"0"), row(1, topic, b"1"), row(2, "good", b"2")])
        seen = [client.receive(), client.receive()]
        notice = next(frame for frame in seen if frame.operation == wire.NOTICE)
        delivery = next(frame for frame in seen if frame.operation == wire.DELIVER)
        assert notice.header[:3] == [errors.INVALID_TOPIC, topic[:250], 1]
        assert [one[5] for batch in delivery.batches for one in wire.unpack(batch)] == [b"0", b"2"]
        assert client.is_open()
    attacked.expect_errors(errors.INVALID_TOPIC, refused + 1)
    attacked.expect_discards("topic-parse-error", discarded + 1)


@pytest.mark.parametrize("topic", ["#share/group/a", "#noexport/a", "#LOG/x"])
def test_a_reserved_topic_costs_its_message_only(attacked: AttackedNode, topic: str) -> None:
    discarded = attacked.discards("topic-reserved")
    with attacked.client() as client:
        client.publish_uncut([row(0, topic)])
        assert client.receive_only(wire.NOTICE).header[:2] == [errors.RESERVED_TOPIC, topic]
        assert client.is_open()
    attacked.expect_discards("topic-reserved", discarded + 1)


BAD_FILTERS = {
    **{name: (topic, errors.INVALID_FILTER) for name, topic in BAD_TOPICS.items()},
    "share-with-star": ("#share/gr*up/a", errors.INVALID_SHARE_NAME),
    "share-with-greater": ("#share/>/a", errors.INVALID_SHARE_NAME),
    "share-without-name": ("#share//a", errors.INVALID_SHARE_NAME),
    "share-without-filter": ("#share/group", errors.INVALID_FILTER),
    "noexport-share-with-star": ("#noexport/#share/*/a", errors.INVALID_SHARE_NAME),
    "inbox-of-others": ("#P2P/INB/>", errors.RESERVED_TOPIC),
}


@pytest.mark.requirement("R15", "R16")
@pytest.mark.parametrize(("text", "code"), BAD_FILTERS.values(), ids=BAD_FILTERS)
def test_a_bad_filter_is_refused_and_a_good_one_beside_it_is_in_force(
    attacked: AttackedNode, text: str, code: int
) -> None:
    refused = attacked.errors(code)
    with attacked.client() as client:
        first, second = client.subscribe(text, "beside")
        assert first[0] == code
        assert second is None
        client.publish_uncut([row(0, "beside", b"here")])
        assert wire.unpack(client.receive_only(wire.DELIVER).batches[0])[0][5] == b"here"
        client.send(wire.UNSUBSCRIBE, [2, [[text, 0]], None])
        assert client.receive_only(wire.SUBACK).header[1][0][0] in (code, errors.SUBSCRIPTION_NOT_FOUND)
        assert client.is_open()
    attacked.wait_for("the refusals are counted", lambda status: status["errors"].get(str(code), 0) > refused)


def test_a_message_over_the_limit_costs_itself_only(attacked: AttackedNode) -> None:
    discarded = attacked.discards("msg-too-big")
    with attacked.client() as client:
        client.subscribe("good")
        client.publish_uncut([row(0, "good", bytes(10_000_001)), row(1, "good", b"1")])
        assert client.receive_only(wire.NOTICE).header[:3] == [errors.MESSAGE_TOO_LARGE, "good", 1]
        assert client.is_open()
    attacked.expect_discards("msg-too-big", discarded + 1)


# Frames of a client that is logged in.


class Frame(NamedTuple):
    """What is sent, and the code with which it ends the session."""

    operation: bytes
    header: Any
    batches: tuple[bytes, ...] = ()
    code: int = errors.MALFORMED_FRAME


def batch(*rows: Any) -> bytes:
    return wire.pack(list(rows))


def array_of(count: int, item: bytes) -> bytes:
    """Pack an array of so many times the same."""
    return b"\xdd" + count.to_bytes(4, "big") + item * count


def nested(depth: int, kind: bytes = b"\x91") -> bytes:
    """Pack arrays, or maps from 1, inside each other."""
    return kind * depth + b"\xc0"


ONE = [1, 0, False, [[0, 1]]]
GOOD = batch(row(0, "t"))
#: The topic `t` belongs to one of the two workers; one of these claims is false.
CUT = [1, 1, False, [[0, 1], [1, 1]]]

FRAMES = {
    "unknown-operation": Frame(b"?", [], code=errors.UNKNOWN_OPERATION),
    "long-operation": Frame(b"P" * 10_000, [], code=errors.UNKNOWN_OPERATION),
    "empty-operation": Frame(b"", [], code=errors.UNKNOWN_OPERATION),
    "operation-of-the-router": Frame(wire.DELIVER, [0, [], 0], code=errors.UNKNOWN_OPERATION),
    "operation-of-a-worker": Frame(
        wire.RESULT, [1, 1, [], [], [], [], 0, [], []], code=errors.UNKNOWN_OPERATION
    ),
    "second-hello": Frame(wire.HELLO, hello_header(), code=errors.ALREADY_LOGGED_IN),
    "ping-empty-header": Frame(wire.PING, b""),
    "ping-truncated": Frame(wire.PING, b"\x91"),
    "ping-text": Frame(wire.PING, ["x"]),
    "ping-map": Frame(wire.PING, {"n": 1}),
    "ping-negative": Frame(wire.PING, [-1]),
    "ping-nested": Frame(wire.PING, nested(400)),
    "ping-nested-deep": Frame(wire.PING, nested(100_000)),
    "ping-nested-maps": Frame(wire.PING, nested(50_000, b"\x81\x01")),
    "ping-million-arrays": Frame(wire.PING, array_of(1_000_000, b"\x90")),
    "ping-2-mib": Frame(wire.PING, [bytes(2 << 20)]),
    "ping-never-used-byte": Frame(wire.PING, b"\xc1"),
    "ping-extension": Frame(wire.PING, b"\x91\xd4\x05\x00"),
    "ping-huge-announced": Frame(wire.PING, b"\xdd\xff\xff\xff\xff"),
    "pong-text": Frame(wire.PONG, "x"),
    "credit-short": Frame(wire.CREDIT, [1]),
    "credit-float": Frame(wire.CREDIT, [1e9, 1e9]),
    "credit-falls": Frame(wire.CREDIT, [0, 0]),
    "credit-negative": Frame(wire.CREDIT, [-1, -1]),
    "subscribe-nothing": Frame(wire.SUBSCRIBE, [1, [], None]),
    "subscribe-too-many": Frame(wire.SUBSCRIBE, [1, [["a", 0]] * 1_001, None]),
    "subscribe-bytes": Frame(wire.SUBSCRIBE, [1, [[b"a", 0]], None]),
    "subscribe-flags": Frame(wire.SUBSCRIBE, [1, [["a", 2]], None]),
    "subscribe-text": Frame(wire.SUBSCRIBE, [1, "a", None]),
    "subscribe-no-utf-8": Frame(wire.SUBSCRIBE, b"\x93\x01\x91\x92\xa2\xc3\x28\x00\xc0"),
    "subscribe-request-text": Frame(wire.SUBSCRIBE, ["1", [["a", 0]], None]),
    "subscribe-client-number": Frame(wire.SUBSCRIBE, [1, [["a", 0]], 7]),
    "unsubscribe-text": Frame(wire.UNSUBSCRIBE, "x"),
    "bye-garbage": Frame(wire.BYE, b"\xff" * 100, code=0),
}
PUBLISHES = {
    "no-batch": Frame(wire.PUBLISH, ONE),
    "batch-too-many": Frame(wire.PUBLISH, ONE, (GOOD, GOOD)),
    "no-parts-but-a-batch": Frame(wire.PUBLISH, [1, 0, True, []], (GOOD,)),
    "round-0": Frame(wire.PUBLISH, [0, 0, False, [[0, 1]]], (GOOD,)),
    "round-2-first": Frame(wire.PUBLISH, [2, 0, False, [[0, 1]]], (GOOD,)),
    "round-text": Frame(wire.PUBLISH, ["1", 0, False, [[0, 1]]], (GOOD,)),
    "flush-number": Frame(wire.PUBLISH, [1, 0, 1, [[0, 1]]], (GOOD,)),
    "rows-0": Frame(wire.PUBLISH, [1, 0, False, [[0, 0]]], (batch(),)),
    "rows-negative": Frame(wire.PUBLISH, [1, 0, False, [[0, -1]]], (GOOD,)),
    "rows-too-few": Frame(wire.PUBLISH, [1, 0, False, [[0, 2]]], (GOOD,)),
    "rows-too-many": Frame(wire.PUBLISH, ONE, (batch(row(0, "t"), row(1, "t")),)),
    "rows-over-the-limit": Frame(wire.PUBLISH, [1, 0, False, [[0, 10_001]]], (GOOD,), errors.BATCH_TOO_LARGE),
    "worker-of-nobody": Frame(wire.PUBLISH, [1, 1, False, [[2, 1]]], (GOOD,)),
    "worker-negative": Frame(wire.PUBLISH, [1, 1, False, [[-1, 1]]], (GOOD,)),
    "worker-twice": Frame(wire.PUBLISH, [1, 1, False, [[0, 1], [0, 1]]], (GOOD, GOOD)),
    "worker-of-another": Frame(wire.PUBLISH, CUT, (batch(row(0, "t")), batch(row(1, "t")))),
    "uncut-in-two": Frame(wire.PUBLISH, [1, 0, False, [[0, 1], [1, 1]]], (GOOD, GOOD)),
    "rows-are-maps": Frame(wire.PUBLISH, [1, 7, False, [[0, 1], [1, 1]]], (batch({1: "t"}), batch({1: "t"}))),
    "thousand-parts": Frame(wire.PUBLISH, [1, 7, False, [[0, 1]] * 1_000], (GOOD,) * 1_000),
    "sixteen-million-arrays": Frame(wire.PUBLISH, ONE, (array_of((16 << 20) - 100, b"\x90"),)),
    "million-rows-announced-as-one": Frame(
        wire.PUBLISH, ONE, (array_of(1_000_000, bytes.fromhex("9600a17400c0c0c400")),)
    ),
    "empty-batch": Frame(wire.PUBLISH, ONE, (b"",)),
    "batch-is-a-map": Frame(wire.PUBLISH, ONE, (wire.pack({0: row(0, "t")}),)),
    "batch-truncated": Frame(wire.PUBLISH, ONE, (GOOD[:-1],)),
    "batch-with-a-tail": Frame(wire.PUBLISH, ONE, (GOOD + b"\xc0",)),
    "row-short": Frame(wire.PUBLISH, ONE, (batch([0, "t", 0, None, None]),)),
    "row-long": Frame(wire.PUBLISH, ONE, (batch([0, "t", 0, None, None, b"", b""]),)),
    "index-text": Frame(wire.PUBLISH, ONE, (batch(["0", "t", 0, None, None, b""]),)),
    "index-negative": Frame(wire.PUBLISH, ONE, (batch([-1, "t", 0, None, None, b""]),)),
    "indices-equal": Frame(wire.PUBLISH, [1, 0, False, [[0, 2]]], (batch(row(3, "t"), row(3, "t")),)),
    "indices-fall": Frame(wire.PUBLISH, [1, 0, False, [[0, 2]]], (batch(row(3, "t"), row(2, "t")),)),
    "topic-bytes": Frame(wire.PUBLISH, ONE, (batch([0, b"t", 0, None, None, b""]),)),
    "topic-no-utf-8": Frame(wire.PUBLISH, ONE, (bytes.fromhex("919600a2c32800c0c0c400"),)),
    "topic-surrogate": Frame(wire.PUBLISH, ONE, (bytes.fromhex("919600a3eda08000c0c0c400"),)),
    "flags-512": Frame(wire.PUBLISH, ONE, (batch([0, "t", wire.FLAGS_MAX + 1, None, None, b""]),)),
    "flags-mode-3": Frame(wire.PUBLISH, ONE, (batch([0, "t", 3, None, None, b""]),)),
    "flags-cos-4": Frame(wire.PUBLISH, ONE, (batch([0, "t", 12, None, None, b""]),)),
    "meta-short": Frame(wire.PUBLISH, ONE, (batch([0, "t", 0, [1], None, b""]),)),
    "meta-ttl-negative": Frame(wire.PUBLISH, ONE, (batch([0, "t", 0, [-1, 0, None, None], None, b""]),)),
    "meta-priority-256": Frame(wire.PUBLISH, ONE, (batch([0, "t", 0, [0, 0, 256, None], None, b""]),)),
    "meta-nested": Frame(wire.PUBLISH, ONE, (b"\x91\x96\x00\xa1t\x00" + nested(3_000) + b"\xc0\xc4\x00",)),
    "properties-text": Frame(wire.PUBLISH, ONE, (batch([0, "t", 0, None, "p", b""]),)),
    "payload-text": Frame(wire.PUBLISH, ONE, (batch([0, "t", 0, None, None, "text"]),)),
    "payload-nested": Frame(wire.PUBLISH, ONE, (b"\x91\x96\x00\xa1t\x00\xc0\xc0" + nested(700),)),
}


@pytest.mark.parametrize("frame", [*FRAMES.values(), *PUBLISHES.values()], ids=[*FRAMES, *PUBLISHES])
def test_a_broken_frame_ends_the_session_with_a_code_that_is_counted(
    attacked: AttackedNode, frame: Frame
) -> None:
    counted = attacked.errors(frame.code)
    with attacked.client() as client:
        client.send(frame.operation, frame.header, *frame.batches)
        assert client.closed(LIMIT_S) == frame.code
    if frame.code:
        attacked.expect_errors(frame.code, counted + 1)


@pytest.mark.parametrize(
    "frames", [[b"P"], [b""], [b"P", b"", b""]], ids=["no-header", "one-empty", "three-empty"]
)
def test_a_multipart_of_the_wrong_length_ends_the_session(
    attacked: AttackedNode, frames: list[bytes]
) -> None:
    with attacked.client() as client:
        client.socket.send_multipart(frames)
        assert client.closed(LIMIT_S) == errors.MALFORMED_FRAME


def test_a_session_that_ends_is_counted_once_however_many_of_its_rounds_are_broken(
    attacked: AttackedNode,
) -> None:
    counted = attacked.errors(errors.MALFORMED_FRAME)
    with attacked.client() as client, blocking.connect(attacked.url) as barrier:
        for number in range(1, 31):
            client.send(wire.PUBLISH, [number, 1, False, [[0, 1], [1, 1]]], b"\x91\xc1", b"\x91\xc1")
        assert client.closed() == errors.MALFORMED_FRAME
        barrier.publish_many([(f"barrier/{number}", b"") for number in range(100)])
        barrier.flush(LIMIT_S)
    attacked.expect_errors(errors.MALFORMED_FRAME, counted + 1)


@pytest.mark.requirement("R231")
def test_a_multipart_that_never_ends_harms_nobody(attacked: AttackedNode) -> None:
    with attacked.client() as client:
        for _ in range(1_000):
            client.socket.send(b"P" * 1_000, zmq.SNDMORE)


def test_frames_after_the_end_of_a_session_are_not_heard(attacked: AttackedNode) -> None:
    with attacked.client() as client:
        client.send(b"?", [])
        for number in range(1_000):
            client.send(wire.PING, [number])
        assert client.closed() == errors.UNKNOWN_OPERATION
        assert not client.socket.poll(300)


# Logins.

HELLOS = {
    "version": (hello_header(version=2), errors.UNSUPPORTED_VERSION),
    "version-text": (hello_header(version="1"), errors.MALFORMED_FRAME),
    "no-version": ({"vpn": "default"}, errors.MALFORMED_FRAME),
    "array": ([1, "default"], errors.MALFORMED_FRAME),
    "nothing": (b"", errors.MALFORMED_FRAME),
    "nested": (nested(900), errors.MALFORMED_FRAME),
    "million-arrays": (array_of(1_000_000, b"\x90"), errors.MALFORMED_FRAME),
    "two-mib": (hello_header(sdk="x" * (2 << 20)), errors.MALFORMED_FRAME),
    "no-utf-8": (b"\x82\xa7version\x01\xa3vpn\xa2\xc3\x28", errors.MALFORMED_FRAME),
    "unknown-vpn": (hello_header(vpn="nowhere"), errors.UNAUTHORIZED),
    "vpn-too-long": (hello_header(vpn="v" * 33), errors.MALFORMED_FRAME),
    "unknown-username": (hello_header(username="nobody"), errors.UNAUTHORIZED),
    "username-nil": (hello_header(username=None), errors.MALFORMED_FRAME),
    "password-number": (hello_header(password=7), errors.MALFORMED_FRAME),
    "password-too-long": (hello_header(password="p" * 129), errors.MALFORMED_FRAME),
    "token-forged": (hello_header(username="nobody", token=bytes(64)), errors.UNAUTHORIZED),
    "token-too-long": (hello_header(token=bytes(2_000)), errors.MALFORMED_FRAME),
    "name-nul": (hello_header(client_name="a\0b"), errors.INVALID_CLIENT_NAME),
    "name-long": (hello_header(client_name="n" * 161), errors.INVALID_CLIENT_NAME),
    "priority-0": (hello_header(local_priority=0), errors.MALFORMED_FRAME),
    "priority-5": (hello_header(network_priority=5), errors.MALFORMED_FRAME),
    "credit-negative": (hello_header(credit=[-1, 1]), errors.MALFORMED_FRAME),
    "credit-of-three": (hello_header(credit=[1, 1, 1]), errors.MALFORMED_FRAME),
    "keepalive-negative": (hello_header(keepalive_ms=-1), errors.MALFORMED_FRAME),
}


@pytest.mark.parametrize(("header", "code"), HELLOS.values(), ids=HELLOS)
def test_a_login_that_cannot_be_is_refused_with_a_code_that_is_counted(
    attacked: AttackedNode, header: Any, code: int
) -> None:
    counted = attacked.errors(code)
    with attacked.stranger() as client:
        client.send(wire.HELLO, header)
        assert client.closed(LIMIT_S) == code
    attacked.expect_errors(code, counted + 1)


@pytest.mark.parametrize("operation", [wire.PUBLISH, wire.SUBSCRIBE, wire.PING, wire.CREDIT, b"?"])
def test_nobody_does_anything_before_hello(attacked: AttackedNode, operation: bytes) -> None:
    with attacked.stranger() as client:
        client.send(operation, ONE, GOOD)
        assert client.closed() == errors.SESSION_UNKNOWN


def test_a_name_in_use_is_refused_and_its_owner_stays(attacked: AttackedNode) -> None:
    with attacked.client(client_name="owner") as owner:
        for token in (None, b"x" * 80):
            with attacked.stranger() as thief:
                thief.send(wire.HELLO, hello_header(client_name="owner", token=token))
                assert thief.closed() == errors.CLIENT_NAME_IN_USE
        assert owner.is_open()


@pytest.mark.requirement("R228")
def test_a_routing_id_of_ones_own_choosing_takes_nothing_from_others(attacked: AttackedNode) -> None:
    """The node looks at none: everybody is known by a number that the node gave."""
    chosen = [b"x", b"\x00" + bytes(4), b"\x00" * 8, b"i" * 255]
    strangers = [attacked.stranger(routing_id=one) for one in (*chosen, *chosen)]
    try:
        with attacked.client() as fresh:
            for one in strangers:
                one.hello()
            assert all(one.is_open() for one in (*strangers, fresh))
    finally:
        for one in strangers:
            one.close()


# Noise.


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_frames_harm_nobody(attacked: AttackedNode, seed: int) -> None:
    rng = random.Random(seed)
    sent = 0
    while sent < RANDOM_FRAMES:
        with attacked.stranger() as client:
            is_known = rng.random() < 0.8
            if is_known:
                client.hello()
            for _ in range(10):
                client.socket.send_multipart(noise(rng))
                sent += 1
            client.send(wire.PING, [0])
            if is_known:  # strangers are told only some times a second
                assert client.receive_until_answered() in (wire.PONG, wire.CLOSED)


@pytest.mark.parametrize("seed", some([4, 5, 6], of=3))
def test_frames_of_odd_values_harm_nobody(attacked: AttackedNode, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(RANDOM_FRAMES // 40):
        with attacked.stranger() as client:
            credit = rng.choice([[0, 0], [5, 1_000], [1 << 20, 1 << 24]])
            client.hello(no_local=rng.random() < 0.3, local_priority=rng.randrange(1, 5), credit=credit)
            odd = OddClient(rng)
            for _ in range(40):
                client.socket.send_multipart(odd.frames())
            client.send(wire.PING, [0])
            assert client.receive_until_answered() in (wire.PONG, wire.CLOSED)


UNREADABLE = {
    "noise": b"\xc1",
    "no-map": b"\x91\x01",
    "truncated": b"\x81\x0a",
    "nested": b"\x81\x0a" + nested(5_000),
    "unhashable-key": b"\x81\x90\x01",
    "empty": b"",
    "no-utf-8": b"\x81\x01\xa2\xc3\x28",
}
MISTYPED = {
    "texts-are-numbers": wire.pack(dict.fromkeys(range(1, 11), 7)),
    "texts-are-maps": wire.pack({key: {} for key in range(1, 10)}),
    "user-properties-are-a-list": wire.pack({10: [1]}),
    "strange-keys": wire.pack({"x": 1, 99: 2, -1: 3}),
    "extension": b"\x81\x01\xd4\x05\x00",
}


@pytest.mark.parametrize("packed", [*UNREADABLE.values(), *MISTYPED.values()], ids=[*UNREADABLE, *MISTYPED])
def test_unreadable_properties_read_as_absent_and_harm_no_subscriber(
    attacked: AttackedNode, packed: bytes
) -> None:
    with blocking.connect(attacked.url) as subscriber, attacked.client() as client:
        subscription = subscriber.subscribe("props")
        client.publish_uncut([(0, "props", 0, None, packed, b"bad"), row(1, "props", b"good")])
        message = subscription.receive(LIMIT_S)
        assert message.payload == b"bad"
        assert (message.correlation_id, message.reply_to, message.properties) == (None, None, {})
        assert message.properties_intact or packed in UNREADABLE.values()
        with pytest.raises(errors.InvalidRequestError):
            subscriber.reply(message, b"to whom?")
        assert subscription.receive(LIMIT_S).payload == b"good"


def raw_connection(attacked: AttackedNode) -> socket.socket:
    host, port = attacked.url.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT_S)


#: ZMTP 3.1 of a client without security, and its READY command (https://rfc.zeromq.org/spec/37/).
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


def test_garbage_over_tcp_and_connections_that_say_nothing_harm_nobody(attacked: AttackedNode) -> None:
    rng = random.Random(4)
    connections = []
    try:
        for number in range(90):
            connection = raw_connection(attacked)
            connections.append(connection)
            if number % 3 == 0:
                connection.sendall(rng.randbytes(1_000))
            elif number % 3 == 1:
                connection.sendall(GREETING[: rng.randrange(len(GREETING))])
        started = time.monotonic()
        for connection in connections:
            connection.settimeout(HANDSHAKE_S + LIMIT_S)
            while _read(connection):
                pass
        assert time.monotonic() - started < HANDSHAKE_S + LIMIT_S, "half-open connections are closed"
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    "frame",
    [
        b"\x02" + struct.pack(">Q", 1 << 40) + b"x" * 100,
        b"\x02" + struct.pack(">Q", (1 << 63) + 1) + b"x" * 100,
        b"\x02" + struct.pack(">Q", (16 << 20) + 2_000) + b"x" * 100,
        b"\x04\xff" + b"x" * 255,
        b"\xff" * 100,
    ],
    ids=["terabyte", "negative", "over-the-limit", "command", "flags"],
)
def test_a_frame_that_cannot_be_ends_the_connection(attacked: AttackedNode, frame: bytes) -> None:
    with raw_connection(attacked) as connection:
        connection.sendall(GREETING + READY)
        connection.sendall(frame)
        connection.settimeout(LIMIT_S)
        while _read(connection):
            pass


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4_096)
    except ConnectionError:
        return b""


def test_a_client_whose_frame_is_too_large_loses_the_connection_and_comes_back(
    attacked: AttackedNode,
) -> None:
    with attacked.client() as client:
        rows: list[Row] = [row(0, "t", bytes((16 << 20) + 10_000))]
        monitor = client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        client.publish_uncut(rows)
        assert monitor.poll(int(LIMIT_S * 1000)), "the connection is closed"
        client.socket.disable_monitor()
        monitor.close()
    with blocking.connect(attacked.url) as healthy:
        assert healthy.connected
