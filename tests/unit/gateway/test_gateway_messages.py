"""Messages of MQTT as rows and back: nothing is lost that both can say, and what a stranger packed breaks nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import Message, wire
from angarium.message import MQTT_KEY, Row, unpack_properties
from angarium.trace_context import CONTEXTS
from gateway.mqtt.codec.kinds import V5, PacketType, Sender
from gateway.mqtt.codec.properties import NONE, Properties, write_section
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.messages import (
    KNOWN_BYTES_MAX,
    publish_properties,
    publish_section,
    qos_of,
    row_of,
    sender_of,
)
from gateway.mqtt.topics import mqtt_topic_of, topic_of
from tests.unit.gateway import random_packets

pack = msgspec.msgpack.encode


def row_from(publish: Publish, sender: str = "c1") -> Row:
    flags, meta, properties = row_of(publish, sender)
    return 0, topic_of(publish.topic), flags, meta, properties, publish.payload


def back(row: Row) -> Publish:
    """Give the message that clients of 5.0 would get, if they took every QoS and the flag retain as published."""
    topic = mqtt_topic_of(row[1])
    assert topic is not None
    retain = bool(row[2] & wire.FLAG_RETAIN)
    return Publish(topic, row[5], qos_of(row), retain=retain, properties=publish_properties(row))


def said(properties: Properties) -> Properties:
    """Give what a PUBLISH says of its message, without what it says of the connection."""
    return msgspec.structs.replace(properties, topic_alias=None, subscription_identifiers=())


@pytest.mark.slow
@pytest.mark.requirement("R244")
@given(publish=random_packets.publishes(V5, Sender.CLIENT), sender=st.text(min_size=1, max_size=9))
def test_whatever_mqtt_says_comes_back_as_it_was(publish: Publish, sender: str) -> None:
    publish = msgspec.structs.replace(publish, topic=publish.topic or "aliased", packet_id=0, dup=False)
    row = msgspec.msgpack.decode(pack(row_from(publish, sender)), type=Row)
    found = back(row)
    assert found == msgspec.structs.replace(publish, properties=said(publish.properties))
    assert sender_of(row) == sender
    assert publish_section(row) == write_section(found.properties, PacketType.PUBLISH)


pairs = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=6).map(tuple)


@given(pairs=pairs)
def test_user_properties_keep_their_order(pairs: tuple[tuple[str, str], ...]) -> None:
    row = row_from(Publish("t", properties=Properties(user_properties=pairs)))
    assert publish_properties(row).user_properties == pairs


def test_names_that_repeat_are_arrays_and_only_a_mixed_order_is_told_apart() -> None:
    together = (("a", "1"), ("a", "2"), ("b", "3"))
    row = row_from(Publish("t", properties=Properties(user_properties=together)))
    assert unpack_properties(row[4]) == {3: "c1", 10: {"a": ["1", "2"], "b": "3"}}
    mixed = (("a", "1"), ("b", "3"), ("a", "2"))
    row = row_from(Publish("t", properties=Properties(user_properties=mixed)))
    assert unpack_properties(row[4])[10] == {"a": ["1", "2"], "b": "3"}
    assert unpack_properties(row[4])[MQTT_KEY] == {0x26: [["a", "1"], ["b", "3"], ["a", "2"]]}


@pytest.mark.requirement("R244")
def test_native_clients_see_what_clients_of_mqtt_say() -> None:
    given = Properties(
        content_type="text/plain",
        response_topic="$P2P/INB/x",
        correlation_data=b"c-17",
        message_expiry_interval=30,
        user_properties=(("color", "red"),),
    )
    row = row_from(Publish("t", b"p", qos=1, retain=True, properties=given), "sensor")
    flags, meta = row[2], row[3]
    message = Message("t")
    message._row = row
    assert (message.content_type, message.reply_to, message.correlation_id) == (
        "text/plain",
        "#P2P/INB/x",
        "c-17",
    )
    assert (message.ttl_ms, message.sender_id, message.properties) == (30_000, "sensor", {"color": "red"})
    assert (message.mode, message.retain) == ("persistent", True)
    assert (flags & wire.FLAG_MODE, meta) == (wire.MODE_PERSISTENT, (30_000, 0, None, None))


texts = st.text(random_packets.LETTERS, max_size=12)
topics = st.text("ab/$", min_size=1, max_size=12).filter(lambda text: text.partition("/")[0] != "$P2P")


@pytest.mark.requirement("R244")
@given(
    correlation_id=st.none() | texts,
    reply_to=st.none() | topics,
    content_type=st.none() | texts,
    ttl_s=st.integers(0, 10**9),
    properties=st.dictionaries(texts, texts, max_size=4),
)
def test_clients_of_mqtt_see_what_native_ones_say(
    correlation_id: str | None,
    reply_to: str | None,
    content_type: str | None,
    ttl_s: int,
    properties: dict[str, str],
) -> None:
    message = Message(
        "t",
        ttl_ms=ttl_s * 1000,
        properties=properties,
        correlation_id=correlation_id,
        reply_to=reply_to,
        content_type=content_type,
        sender_timestamp_ms=5,
    )
    assert publish_properties(message.row) == Properties(
        message_expiry_interval=ttl_s or None,
        content_type=content_type,
        response_topic=reply_to,
        correlation_data=None if correlation_id is None else correlation_id.encode(),
        user_properties=tuple(properties.items()),
    )


def test_what_is_no_text_is_told_as_json_and_what_cannot_be_told_is_left_out() -> None:
    value: Any = {
        "number": 5,
        "yes": True,
        "nothing": None,
        "list": ["a", 1.5, ["b"]],
        "map": {"x": 1},
        "bytes": b"abc",
        "long": "x" * 70_000,
        "nul": "a\0b",
        "empty": [],
        "no\0name": "a",
    }
    message = Message("t", properties=value, correlation_id="x" * 70_000, content_type="a\0", reply_to="a/+")
    assert publish_properties(message.row) == Properties(
        user_properties=(
            ("number", "5"),
            ("yes", "true"),
            ("nothing", "null"),
            ("list", "a"),
            ("list", "1.5"),
            ("list", '["b"]'),
            ("map", '{"x":1}'),
            ("bytes", '"YWJj"'),
        )
    )


@pytest.mark.parametrize(
    ("seconds", "ttl_ms", "told"), [(0, 1, 0), (1, 1_000, 1), (0xFFFFFFFF, 0xFFFFFFFF * 1000, 0xFFFFFFFF)]
)
def test_an_expiry_is_a_time_to_live(seconds: int, ttl_ms: int, told: int) -> None:
    row = row_from(Publish("t", properties=Properties(message_expiry_interval=seconds)))
    assert row[3] == (ttl_ms, 0, None, None)
    assert publish_properties(row).message_expiry_interval == told


@pytest.mark.parametrize(
    ("ttl_ms", "told"), [(0, None), (2, 1), (999, 1), (1_001, 2), (1 << 60, 0xFFFFFFFF), (-5, None)]
)
def test_of_a_time_to_live_the_seconds_are_told_that_have_begun(ttl_ms: int, told: int | None) -> None:
    row: Row = (0, "t", 0, (ttl_ms, 0, None, None), None, b"")
    assert publish_properties(row).message_expiry_interval == told


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 1 << 60)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.integers(0, 40) | st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
keys = st.sampled_from([1, 2, 3, 8, 10, 11])


@pytest.mark.slow
@given(fields=st.dictionaries(keys, anything), flags=st.integers(0, wire.FLAGS_MAX), more=anything)
def test_whatever_a_stranger_packs_is_told_or_left_out(fields: dict[int, Any], flags: int, more: Any) -> None:
    for properties in (
        pack(fields),
        pack({11: {0: more, 1: more, 9: more, 0x26: more}}),
        pack(more),
        b"\xc1",
    ):
        row: Row = (0, "t", flags, None, properties, b"")
        assert publish_section(row) == write_section(publish_properties(row), PacketType.PUBLISH)
        assert qos_of(row) in (0, 1, 2)
        assert sender_of(row) is None or isinstance(sender_of(row), str)


def test_deep_properties_break_nothing() -> None:
    nested: Any = []
    for _ in range(600):
        nested = [nested]
    row: Row = (0, "t", 0, None, pack({10: {"a": nested, "b": "c"}}), b"")
    assert ("b", "c") in publish_properties(row).user_properties


def test_large_properties_are_not_remembered_and_told_all_the_same() -> None:
    value = "x" * (KNOWN_BYTES_MAX + 1)
    row = row_from(Publish("t", properties=Properties(content_type=value)))
    expected = write_section(Properties(content_type=value), PacketType.PUBLISH)
    assert publish_section(row) == publish_section(row) == expected


def test_a_message_that_says_nothing_has_its_sender_only() -> None:
    assert row_of(Publish("t", b"p"), "c1") == (0, None, pack({3: "c1"}))
    row = row_from(Publish("t", b"p"))
    assert publish_properties(row) == NONE
    assert publish_section(row) == b""


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ((("traceparent", TRACEPARENT), ("tracestate", "a=b")), None),
        ((("a", "1"), ("traceparent", TRACEPARENT), ("a", "2")), None),
        ((("a", "1"), ("traceparent", "?"), ("tracestate", "a=b"), ("a", "2")), (("a", "1"), ("a", "2"))),
        ((("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)), ()),
        ((("traceparent", TRACEPARENT), ("tracestate", "?")), (("traceparent", TRACEPARENT),)),
    ],
)
def test_the_trace_context_of_user_properties_is_carried_unless_it_is_malformed(
    given_: tuple[tuple[str, str], ...], kept: tuple[tuple[str, str], ...] | None
) -> None:
    before = CONTEXTS.dropped
    row = row_from(Publish("t", properties=Properties(user_properties=given_)))
    assert publish_properties(row).user_properties == (given_ if kept is None else kept)
    assert CONTEXTS.dropped - before == (kept is not None)
