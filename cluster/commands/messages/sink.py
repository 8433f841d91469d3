"""How `angarium sub` and `angarium consume` write messages: as text, as JSON lines or as raw payloads, in large writes.

A sink turns a batch of messages into bytes. `Output` gathers them and writes in another thread, so that a
slow reader of our output costs this client messages (which the node counts) and never its connection.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import click
import msgspec

from angarium.client.protocol.messages import GuaranteedMessage
from angarium_server.visible import visible, visible_json, visible_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium.message import Message

    Format = Callable[["Batch"], bytes]


class Batch(Protocol):
    """Messages that came together, of a subscription or a flow."""

    @property
    def payloads(self) -> list[bytes]:
        """The payload of each message."""

    @property
    def topics(self) -> list[str]:
        """The topic of each message."""

    def __iter__(self) -> Iterator[Message]: ...


#: A write of this size costs little per message; more would only keep the reader waiting.
WRITE_BYTES: Final = 1 << 18

_encode = msgspec.json.Encoder(enc_hook=repr).encode


def format_raw(messages: Batch) -> bytes:
    """Give each payload and a line feed."""
    lines = messages.payloads
    lines.append(b"")
    return b"\n".join(lines)


def format_text(messages: Batch) -> bytes:
    """Give each topic, a blank, the payload and a line feed."""
    rows = zip(messages.topics, messages.payloads, strict=True)
    return b"".join(b"%s %s\n" % (topic.encode(), payload) for topic, payload in rows)


def format_visible(messages: Batch) -> bytes:
    """Do the same for a terminal: topics and payloads, which anybody may choose, cannot steer it."""
    rows = zip(messages.topics, messages.payloads, strict=True)
    return b"".join(
        b"%s %s\n" % (visible(topic).encode(), visible_payload(payload)) for topic, payload in rows
    )


def format_raw_visible(messages: Batch) -> bytes:
    """Give each payload and a line feed, for a terminal."""
    return b"".join(visible_payload(payload) + b"\n" for payload in messages.payloads)


def format_json_visible(messages: Batch) -> bytes:
    """Give each message as one JSON object on a line of its own, for a terminal."""
    return visible_json(format_json(messages).decode()).encode()


raw_option = click.option("--raw", is_flag=True, help="Print payloads only, each with a line feed.")


def choose_format(*, raw: bool, as_json: bool) -> Format:
    """Give the form of what was asked for, and of who reads it: a pipe or a file gets payloads byte by byte.

    Raises:
        click.UsageError: both were asked for.
    """
    if raw and as_json:
        text = "--raw and --json exclude each other."
        raise click.UsageError(text)
    is_terminal = sys.stdout.isatty()
    if raw:
        return format_raw_visible if is_terminal else format_raw
    if as_json:
        return format_json_visible if is_terminal else format_json
    return format_visible if is_terminal else format_text


def format_json(messages: Batch) -> bytes:
    """Give each message as one JSON object on a line of its own."""
    out = bytearray()
    for message in messages:
        out += _encode_message(as_dict(message))
        out += b"\n"
    return bytes(out)


def _encode_message(shown: dict[str, Any]) -> bytes:
    try:
        return _encode(shown)
    except TypeError:  # Another client may name properties by what JSON cannot use as a key.
        return _encode({**shown, "properties": repr(shown["properties"])})


def as_dict(message: Message) -> dict[str, Any]:
    """Give a message as JSON shows it: topic, payload, index, then every property, those not set as null.

    A payload that is no UTF-8 is base64, and "payload_encoding" says so; bytes in properties are base64.
    """
    shown: dict[str, Any] = {
        "topic": message.topic,
        **payload_fields(message.payload),
        "index": message.index,
    }
    for name in _PROPERTIES:
        shown[name] = getattr(message, name)
    if isinstance(message, GuaranteedMessage):
        for name in _GUARANTEED_PROPERTIES:
            shown[name] = getattr(message, name)
        shown["origin"] = None if message.origin is None else message.origin._asdict()
    return shown


_PROPERTIES: Final = (
    "mode",
    "cos",
    "dto",
    "eliding",
    "dmq_eligible",
    "is_reply",
    "retain",
    "retained",
    "priority",
    "ttl_ms",
    "delay_ms",
    "partition_key",
    "reply_to",
    "correlation_id",
    "sender_id",
    "sender_timestamp_ms",
    "sequence_number",
    "application_message_id",
    "application_message_type",
    "content_type",
    "content_encoding",
    "properties",
    "discard_indication",
    "share",
)
#: What messages of a flow have besides, and `origin`.
_GUARANTEED_PROPERTIES: Final = ("position", "partition", "redelivered", "delivery_count", "stored_ms")


def payload_fields(payload: bytes) -> dict[str, str]:
    """Give the payload as text, or as base64 with a field that says so."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}


class Output:
    """Formatted messages on their way to a file descriptor."""

    def __init__(self, descriptor: int, form: Format) -> None:
        self._descriptor = descriptor
        self._form = form
        #: Formatted and not written, in order.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    async def add(self, messages: Batch) -> None:
        """Take messages; they are written when enough are gathered."""
        data = self._form(messages)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= WRITE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write everything taken so far.

        Raises:
            BrokenPipeError: the reader of our output has gone.
        """
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting = []
            self._waiting_bytes = 0
            await asyncio.to_thread(write_all, self._descriptor, data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however little is taken at once."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
