"""Rows on the wire, messages in the hands of applications, and what lies between them."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from angarium.message import (
    MAX_PROPERTY_DEPTH,
    Delivery,
    DeliveryMode,
    Message,
    MessageBatch,
    ReceivedMessage,
    Row,
    pack_rows,
    unpack_rows,
)

metas = st.none() | st.tuples(
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.none() | st.integers(0, 255),
    st.none() | st.text(max_size=40),
)
rows = st.lists(
    st.tuples(
        st.integers(0, 70_000),
        st.text(max_size=300),
        st.integers(0, 255),
        metas,
        st.none() | st.binary(max_size=300),
        st.binary(max_size=300),
    ),
    max_size=40,
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def received(message: Message, index: int = 0, share: str | None = None) -> Message:
    """Give a message as a subscriber gets it."""
    row = unpack_rows(pack_rows([(index, *message.row[1:])]))[0]
    return ReceivedMessage(row, Delivery([row], share, 0))


def code_of(*arguments: object, **options: object) -> int:
    with pytest.raises(errors.AngariumError) as caught:
        Message(*arguments, **options)  # type: ignore[arg-type]
    return caught.value.code


@given(rows)
def test_a_batch_is_canonical_messagepack_and_comes_back_as_it_was(batch: list[Row]) -> None:
    packed = pack_rows(batch)
    assert packed == msgpack.packb(batch, use_bin_type=True)
    assert packed == wire.join_rows([wire.pack(row) for row in batch])
    assert unpack_rows(packed) == batch


@given(st.binary(max_size=200) | values.map(wire.pack))
def test_any_bytes_are_rows_or_a_typed_error(batch: bytes) -> None:
    with contextlib.suppress(errors.InvalidRequestError):
        assert isinstance(unpack_rows(batch), list)


@given(rows, st.data())
def test_a_damaged_batch_is_rows_or_a_typed_error(batch: list[Row], data: st.DataObject) -> None:
    packed = bytearray(pack_rows(batch))
    for _ in range(3):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(errors.InvalidRequestError):
        unpack_rows(bytes(packed))


@pytest.mark.parametrize(
    "row",
    [
        [0, "a", 0, None, None],
        [0, "a", 0, None, None, b"", 1],
        ["0", "a", 0, None, None, b""],
        [-1, "a", 0, None, None, b""],
        [0, b"a", 0, None, None, b""],
        [0, "a", None, None, None, b""],
        [0, "a", 0, [1], None, b""],
        [0, "a", 0, [1, 2, "3", None], None, b""],
        [0, "a", 0, None, {}, b""],
        [0, "a", 0, None, None, "text"],
        {},
        None,
    ],
)
def test_a_row_of_another_shape_is_refused(row: object) -> None:
    with pytest.raises(errors.InvalidRequestError, match="40001"):
        unpack_rows(wire.pack([row]))


@pytest.mark.requirement("R2")
def test_a_message_is_direct_unless_told_otherwise() -> None:
    message = Message("a/b", b"x")
    assert message.row == (0, "a/b", 0, None, None, b"x")
    assert message.mode is DeliveryMode.DIRECT
    assert (message.cos, message.dto, message.eliding, message.priority, message.ttl_ms) == (
        1,
        False,
        False,
        None,
        0,
    )
    assert (message.correlation_id, message.properties, message.share) == (None, {}, None)
    assert not message.discard_indication


def test_what_the_sender_says_is_what_the_receiver_sees() -> None:
    said = {
        "mode": "non-persistent",
        "cos": 3,
        "dto": True,
        "eliding": True,
        "dmq_eligible": True,
        "is_reply": True,
        "priority": 7,
        "ttl_ms": 1000,
        "delay_ms": 5,
        "partition_key": "k",
        "correlation_id": "c",
        "reply_to": "a/reply",
        "sender_id": "me",
        "sender_timestamp_ms": 1_700_000_000_000,
        "sequence_number": 12,
        "application_message_id": "id",
        "application_message_type": "type",
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "properties": {"n": 1, "deep": {"list": [1, 2.5, None, True, b"b"]}},
    }
    message = received(Message("a/b", b"x", **said), index=9, share="#share/g/a/>")  # type: ignore[arg-type]
    assert {name: getattr(message, name) for name in said} == {**said, "mode": "direct"}
    assert (message.index, message.topic, message.payload, message.share) == (9, "a/b", b"x", "#share/g/a/>")


@pytest.mark.requirement("R156")
@pytest.mark.parametrize("mode", DeliveryMode)
def test_a_subscriber_gets_a_direct_message_whatever_it_was_and_can_publish_it_again(
    mode: DeliveryMode,
) -> None:
    message = received(Message("a", b"x", mode=mode, cos=3, reply_to="r"), index=4)
    assert message.mode is DeliveryMode.DIRECT
    assert message.row == (4, *Message("a", b"x", cos=3, reply_to="r").row[1:])


@given(st.dictionaries(st.text(max_size=10), values, max_size=5))
def test_user_properties_come_back(properties: dict[str, object]) -> None:
    assert received(Message("a", properties=properties)).properties == properties  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"cos": 0}, errors.INVALID_ARGUMENT),
        ({"cos": 4}, errors.INVALID_ARGUMENT),
        ({"cos": True}, errors.INVALID_ARGUMENT),
        ({"mode": "fast"}, errors.INVALID_ARGUMENT),
        ({"priority": 256}, errors.INVALID_ARGUMENT),
        ({"priority": -1}, errors.INVALID_ARGUMENT),
        ({"ttl_ms": -1}, errors.INVALID_ARGUMENT),
        ({"ttl_ms": 1.5}, errors.INVALID_ARGUMENT),
        ({"partition_key": "\ud800"}, errors.INVALID_ARGUMENT),
        ({"correlation_id": 1}, errors.INVALID_ARGUMENT),
        ({"correlation_id": "\ud800"}, errors.INVALID_ARGUMENT),
        ({"sequence_number": "1"}, errors.INVALID_ARGUMENT),
        ({"sequence_number": 1 << 63}, errors.INVALID_ARGUMENT),
        ({"reply_to": ""}, errors.INVALID_TOPIC),
        ({"properties": {1: 2}}, errors.INVALID_ARGUMENT),
        ({"properties": {"a": object()}}, errors.INVALID_ARGUMENT),
        ({"properties": {"a": 1 << 64}}, errors.INVALID_ARGUMENT),
        ({"properties": {"a": "\ud800"}}, errors.INVALID_ARGUMENT),
        ({"properties": {"a": {1, 2}}}, errors.INVALID_ARGUMENT),
    ],
)
def test_an_illegal_option_is_refused_with_a_code(options: dict[str, object], code: int) -> None:
    assert code_of("a", b"", **options) == code


@pytest.mark.parametrize("topic", ["", "a\0b", "x" * 251, "/".join("x" * 130), "\ud800"])
def test_an_illegal_topic_is_refused(topic: str) -> None:
    assert code_of(topic) == errors.INVALID_TOPIC


def test_a_topic_that_is_no_text_and_a_payload_that_is_no_bytes_are_refused() -> None:
    assert code_of(7) == errors.INVALID_ARGUMENT
    assert code_of("a", "text") == errors.INVALID_ARGUMENT


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"'ttl'; did you mean 'ttl_ms'\?"):
        Message("t", ttl=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        Message("a", colour="red")  # type: ignore[call-arg]


def test_a_payload_may_be_any_kind_of_bytes_and_is_copied() -> None:
    buffer = bytearray(b"abc")
    message = Message("a", buffer)
    buffer[0] = 0
    assert message.payload == b"abc"
    assert type(Message("a", memoryview(b"abc")).payload) is bytes


def test_properties_nested_too_deep_are_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert code_of("a", properties={"a": endless}) == errors.INVALID_ARGUMENT
    deep: object = 1
    for _ in range(MAX_PROPERTY_DEPTH - 1):
        deep = [deep]
    assert received(Message("a", properties={"a": deep})).properties == {"a": deep}  # type: ignore[dict-item]


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x91", wire.pack([1]), b"\x91" * 5000])
def test_unreadable_properties_of_another_client_read_as_absent(packed: bytes) -> None:
    row: Row = (0, "a", 0, None, packed, b"")
    message = ReceivedMessage(row, Delivery([row], None, 0))
    assert (message.correlation_id, message.properties, message.sequence_number) == (None, {}, None)
    assert not message.properties_intact


def test_a_property_of_another_type_reads_as_absent() -> None:
    row: Row = (0, "a", 0, None, wire.pack({1: 5, 2: b"x", 4: "1", 5: True, 10: [1], "x": 1}), b"")
    message = ReceivedMessage(row, Delivery([row], None, 0))
    assert (message.correlation_id, message.reply_to, message.sender_timestamp_ms) == (None, None, None)
    assert (message.sequence_number, message.properties) == (None, {})
    assert message.properties_intact


def test_changing_what_properties_gives_changes_nothing() -> None:
    message = received(Message("a", properties={"a": 1}))
    message.properties["a"] = 2
    assert message.properties == {"a": 1}


def test_a_received_message_can_be_published_again_with_everything_it_has() -> None:
    message = received(Message("a", b"x", cos=2, ttl_ms=5, correlation_id="c"), index=3)
    assert message.row[1:] == Message("a", b"x", cos=2, ttl_ms=5, correlation_id="c").row[1:]


@pytest.mark.requirement("R45")
def test_only_the_first_message_of_a_delivery_carries_the_discard_indication() -> None:
    batch = unpack_rows(pack_rows([(index, "a", 0, None, None, b"") for index in range(3)]))
    delivery = Delivery(batch, None, 0)
    delivery.head = batch[0]
    assert [one.discard_indication for one in MessageBatch(batch, delivery)] == [True, False, False]


def test_a_batch_of_messages_is_a_sequence_with_columns() -> None:
    some = unpack_rows(pack_rows([(index, f"a/{index}", 0, None, None, b"%d" % index) for index in range(5)]))
    batch = MessageBatch(some, Delivery(some, "#share/g/a/>", 0))
    assert len(batch) == 5
    assert batch.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert batch.topics == [one.topic for one in batch]
    assert batch[-1].topic == "a/4"
    assert batch[1:3].payloads == [b"1", b"2"]
    assert isinstance(batch[1:3], MessageBatch)
    assert [one.payload for one in reversed(batch)] == batch.payloads[::-1]
    assert batch.share == batch[0].share == "#share/g/a/>"
    with pytest.raises(IndexError):
        batch[5]


def test_representations_name_the_topic_and_never_the_payload() -> None:
    assert repr(Message("a", b"secret")) == "Message('a', 6 bytes)"
    assert repr(Message("a", b"secret", mode="persistent")) == "Message('a', 6 bytes, persistent)"
