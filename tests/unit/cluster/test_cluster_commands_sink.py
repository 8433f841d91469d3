"""How `angarium sub` writes messages, without a connection."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from angarium.message import Delivery, Message, MessageBatch
from cluster.commands.messages import sink


def batch(*messages: Message) -> MessageBatch:
    rows = [(index, *message.row[1:]) for index, message in enumerate(messages)]
    return MessageBatch(rows, Delivery(rows, None, 0))


def json_of(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(sink.format_json(batch(message)))
    return shown


def test_a_topic_cannot_steer_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    form = sink.choose_format(raw=False, as_json=False)
    assert form(batch(Message("a\x1b[31m\n", b"x"))) == b"a\\x1b[31m\\x0a x\n"


@pytest.mark.parametrize(("raw", "as_json"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(
    "steering", ["\x1b]52;c;x\x07", "\x9b31m", "\x7f\b\r", "\u202e", "\u2066\u2069", "\u2028"]
)
def test_no_payload_steers_a_terminal_and_a_pipe_gets_it_byte_by_byte(
    monkeypatch: pytest.MonkeyPatch, steering: str, *, raw: bool, as_json: bool
) -> None:
    payload = f"two\tü{steering}\nlines".encode()
    messages = batch(Message(f"t/{steering}", payload, properties={steering: steering}))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = sink.choose_format(raw=raw, as_json=as_json)(messages).decode()
    assert not [one for one in steering if one in shown and not one.isprintable()]
    assert "ü" in shown
    if as_json:
        found = json.loads(shown)
        assert (found["payload"], found["properties"]) == (payload.decode(), {steering: steering})
    else:
        assert "two\tü" in shown
        assert shown.endswith("\nlines\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    if not as_json:
        assert payload + b"\n" in sink.choose_format(raw=raw, as_json=False)(messages)


def test_a_payload_that_is_no_text_is_written_out_on_a_terminal() -> None:
    assert sink.format_raw_visible(batch(Message("a", b"\xffok\x00"))) == b"\\xffok\\x00\n"


def test_raw_output_is_payloads_with_a_line_feed_each() -> None:
    assert (
        sink.format_raw(batch(Message("a", b"1"), Message("b", b""), Message("c", b"\xff\x00")))
        == b"1\n\n\xff\x00\n"
    )
    assert sink.format_raw(batch()) == b""


def test_text_output_is_topic_and_payload() -> None:
    assert (
        sink.format_text(batch(Message("a/ä", b"1"), Message("b", b"\xff")))
        == "a/ä 1\n".encode() + b"b \xff\n"
    )


def test_json_output_is_one_object_per_line_with_topic_payload_and_index() -> None:
    first, second = sink.format_json(batch(Message("a", b"1"), Message("b", "ä\n".encode()))).splitlines()
    assert json.loads(first).items() >= {"topic": "a", "payload": "1", "index": 0}.items()
    assert json.loads(second).items() >= {"topic": "b", "payload": "ä\n", "index": 1}.items()


def test_a_payload_that_is_no_text_is_base64_and_says_so() -> None:
    assert (
        json_of(Message("a", b"\xff\xfe")).items()
        >= {"payload": "//4=", "payload_encoding": "base64"}.items()
    )
    assert "payload_encoding" not in json_of(Message("a", b"text"))


def test_json_output_has_every_property_of_a_message() -> None:
    """A property that the SDK has and the command does not print would be lost without anybody noticing."""
    hidden = {"row", "payload", "properties_intact"}
    shown = json_of(Message("a"))
    attributes = {name for name, value in vars(Message).items() if isinstance(value, property)}
    assert attributes - hidden - {"topic"} <= shown.keys()


def test_json_output_shows_what_was_set() -> None:
    message = Message(
        "a",
        b"x",
        cos=3,
        dto=True,
        eliding=True,
        priority=9,
        ttl_ms=50,
        reply_to="answers",
        correlation_id="c1",
        properties={"n": 1, "t": "x", "b": b"\xff", "l": [True, None]},
    )
    assert (
        json_of(message).items()
        >= {
            "mode": "direct",
            "cos": 3,
            "dto": True,
            "eliding": True,
            "priority": 9,
            "ttl_ms": 50,
            "reply_to": "answers",
            "correlation_id": "c1",
            "properties": {"n": 1, "t": "x", "b": "/w==", "l": [True, None]},
            "discard_indication": False,
            "share": None,
        }.items()
    )


def test_properties_that_json_cannot_name_do_not_stop_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Message, "properties", property(lambda _: {b"\xff": 1, (1, 2): 2}))
    assert "properties" in json_of(Message("a"))


def test_output_is_written_in_order_and_whole() -> None:
    async def write() -> bytes:
        reading, writing = os.pipe()
        output = sink.Output(writing, sink.format_raw)
        for number in range(3):
            await output.add(batch(Message("a", b"%d" % number)))
        await output.flush()
        await output.flush()
        os.close(writing)
        found = os.read(reading, 100)
        os.close(reading)
        return found

    assert asyncio.run(write()) == b"0\n1\n2\n"


def test_output_is_gathered_until_there_is_enough_for_a_large_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    monkeypatch.setattr(sink, "write_all", lambda _descriptor, data: writes.append(data))
    monkeypatch.setattr(sink, "WRITE_BYTES", 6)

    async def write() -> None:
        output = sink.Output(1, sink.format_raw)
        for _ in range(5):
            await output.add(batch(Message("a", b"1")))
        assert writes == [b"1\n1\n1\n"]
        await output.flush()

    asyncio.run(write())
    assert b"".join(writes) == b"1\n" * 5
