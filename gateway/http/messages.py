"""Messages of HTTP as rows: what a request says by headers, or behind the question mark, which some can set alone.

    Angarium-Ttl-Ms: 5000             ?ttl_ms=5000        time to live
    Angarium-Property-Colour: red                         the application's property Colour
    Content-Type: application/json                        the content type
    traceparent: 00-...-01                                the trace that it belongs to: a property of that name

An option that is given in both ways, or that is not known, is refused: it would be a mistake that nobody sees.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors, wire
from angarium.message import Delivery, Message, ReceivedMessage
from angarium.trace_context import CONTEXTS, TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from angarium.message import Mode, Row

#: Names and values that headers can have: what a message says comes from anybody.
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
VALUE_BYTES_MAX: Final = 4_096
#: Of properties: servers refuse a head with a hundred headers, or with 16 KiB; ours with 64 headers.
PROPERTIES_MAX: Final = 40
PROPERTIES_BYTES_MAX: Final = 8_192
PREFIX: Final = "angarium-"
PROPERTY_PREFIX: Final = "angarium-property-"
#: Names of options that say nothing about a message.
VPN: Final = "vpn"
DELIVERY: Final = "delivery"
DIRECT, GUARANTEED = "direct", "guaranteed"
_MODES: Final[dict[str, Mode]] = {DIRECT: "direct", GUARANTEED: "persistent"}
_FLAGS: Final = {"true": True, "false": False}


def _text(name: str, value: str) -> str:
    """Give the value of a header; bytes that are no UTF-8 have come as surrogates, and nobody could send them on."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise errors.invalid(f"{name[:50]} is {value[:50]!r}, no text that UTF-8 can hold") from None
    return value


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError("a number")
    return int(text)


def _flag(text: str) -> bool:
    if text not in _FLAGS:
        raise ValueError("true or false")
    return _FLAGS[text]


#: Option -> what reads it, and what a message calls it.
_OF_MESSAGES: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "ttl_ms": (_number, "ttl_ms"),
    "delay_ms": (_number, "delay_ms"),
    "priority": (_number, "priority"),
    "partition_key": (str, "partition_key"),
    "dmq_eligible": (_flag, "dmq_eligible"),
    "retain": (_flag, "retain"),
    "correlation_id": (str, "correlation_id"),
    "reply_to": (str, "reply_to"),
    "message_id": (str, "application_message_id"),
    "message_type": (str, "application_message_type"),
}
#: Of HTTP, and what a message calls them.
_OF_HTTP: Final = {"content-type": "content_type", "content-encoding": "content_encoding"}
#: Of Trace Context, and of the same name among the properties of a message.
_OF_TRACES: Final = (TRACEPARENT, TRACESTATE)


class Options:
    """What headers and query of a request say of its message and its delivery."""

    def __init__(self, headers: Iterable[tuple[str, str]], query: Mapping[str, str]) -> None:
        """Read them; `query` has nothing else.

        Raises:
            InvalidRequestError: one is unknown, twice there, or no possible value (40018).
            ForbiddenError: there can be no Message VPN of this name (40309).
        """
        #: Names as behind the question mark.
        self._given: dict[str, str] = dict(query)
        self._fields: dict[str, Any] = {}
        self._properties: dict[str, str] = {}
        #: Of the request; a property of the same name is about the message, and counts instead.
        self._context: dict[str, str] = {}
        for name, value in headers:
            self._take(name, value)
        #: The Message VPN, and how the message travels.
        self.vpn = self._given.pop(VPN, "default")
        if not 0 < len(self.vpn) <= wire.VPN_CHARACTERS_MAX:
            raise errors.error_for(errors.VPN_NOT_ALLOWED, repr(self.vpn[:50]))
        self.delivery = self._given.pop(DELIVERY, GUARANTEED)
        if self.delivery not in _MODES:
            raise errors.invalid(f"delivery is {self.delivery[:50]!r}", "say direct or guaranteed")
        for name, text in self._given.items():
            self._read(name, text)

    def _take(self, name: str, value: str) -> None:
        low = name.lower()
        if low in _OF_HTTP:
            self._fields[_OF_HTTP[low]] = value
        elif low.startswith(PROPERTY_PREFIX):
            self._take_property(name[len(PROPERTY_PREFIX) :], _text(name, value))
        elif low in _OF_TRACES:
            # Lines of a tracestate are one list; a second traceparent makes it malformed.
            self._context[low] = f"{self._context[low]},{value}" if low in self._context else value
        elif low.startswith(PREFIX):
            option = low[len(PREFIX) :].replace("-", "_")
            if option in self._given:
                raise errors.invalid(f"{option[:50]} is given twice")
            self._given[option] = _text(name, value)

    def _take_property(self, name: str, value: str) -> None:
        if not name or name in self._properties:
            raise errors.invalid(
                f"property {name[:50]!r} is given twice" if name else "a property has no name"
            )
        self._properties[name] = value

    def _read(self, name: str, text: str) -> None:
        known = _OF_MESSAGES.get(name)
        if known is None:
            raise errors.invalid(f"there is no option {name[:50]!r}", f"those are: {', '.join(_OF_MESSAGES)}")
        read, field = known
        try:
            self._fields[field] = read(text)
        except ValueError as error:
            raise errors.invalid(f"{name} is {text[:50]!r} and not {error}") from None

    @property
    def is_guaranteed(self) -> bool:
        """Whether the message is answered for when it is stored."""
        return self.delivery == GUARANTEED

    def row(self, topic: str, payload: bytes, sender: str, **more: Any) -> Row:
        """Give the message as a row.

        Raises:
            InvalidRequestError: no message can be like this (40010, 40018).
        """
        fields = {"mode": _MODES[self.delivery], **self._fields, **more}
        properties = CONTEXTS.cleaned(self._context | self._properties)
        return Message(topic, payload, sender_id=sender, properties=properties or None, **fields).row


def headers_of(row: Row) -> dict[str, str]:
    """Give what a message says besides its payload as headers; what they cannot say is left out."""
    message = _message(row)
    properties = CONTEXTS.cleaned(message.properties)
    told: dict[str, Any] = {
        "Content-Type": message.content_type or "application/octet-stream",
        "Content-Encoding": message.content_encoding,
        "Angarium-Topic": message.topic,
        "Angarium-Correlation-Id": message.correlation_id,
        "Angarium-Reply-To": message.reply_to,
        "Angarium-Sender-Id": message.sender_id,
        "Angarium-Message-Id": message.application_message_id,
        "Angarium-Message-Type": message.application_message_type,
    }
    found = {name: value for name, value in told.items() if _is_value(value)}
    named = {
        name if name in _OF_TRACES else f"Angarium-Property-{name}": value
        for name, value in properties.items()
        if isinstance(name, str) and _NAME.fullmatch(name) and _is_value(value)
    }
    return found | dict(_with_room(named))


def _with_room(named: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give headers of properties as far as there is room for them, what traces need first."""
    room = PROPERTIES_BYTES_MAX
    for name, value in sorted(named.items(), key=lambda one: one[0] not in _OF_TRACES)[:PROPERTIES_MAX]:
        room -= len(name) + len(value.encode())
        if room < 0:
            return
        yield name, value


def _message(row: Row) -> Message:
    return ReceivedMessage(row, Delivery([row], None, 0))


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value.encode()) <= VALUE_BYTES_MAX


def json_of(row: Row) -> dict[str, Any]:
    """Give a message as a value that JSON can have: its payload as text, or base64 if it is none."""
    message = _message(row)
    told: dict[str, Any] = {
        "topic": message.topic,
        **_payload_of(message.payload),
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "sender_id": message.sender_id,
        "message_id": message.application_message_id,
        "message_type": message.application_message_type,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "priority": message.priority,
        "properties": _plain(CONTEXTS.cleaned(message.properties)) or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _payload_of(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}


def _plain(properties: dict[Any, Any]) -> dict[str, Any]:
    """Give the properties that JSON can have; bytes are base64."""
    plain: dict[str, Any] = {}
    for name, value in properties.items():
        try:
            msgspec.json.encode({name: value})
        except (TypeError, ValueError, RecursionError):
            continue
        plain[name] = value
    return plain
