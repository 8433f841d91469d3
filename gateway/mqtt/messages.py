"""Messages of MQTT as rows, and rows as messages of MQTT: what either says, the other can be told.

| MQTT | row |
|---|---|
| QoS 0, 1 and 2, retain | mode direct, persistent; FLAG_RETAIN |
| message expiry interval | time to live, seconds that have begun; 0 is 1 ms: no time to live is for ever |
| correlation data | property 1 if it is text |
| response topic, content type | properties 2, 8 |
| user properties | property 10; a name that comes repeatedly has an array. A malformed traceparent is dropped |
| who sent it, which MQTT does not say | property 3, the client name |
| what only MQTT can say | property 11, a map |

The keys of that map are MQTT's numbers of properties: payload format, correlation data that is no text, user properties
whose names do not come in groups; 0 is the QoS, if that is 2.

Rows come from anybody. What is unreadable in them, or cannot be said in MQTT, is left out. No state but two caches of
what depends only on its arguments.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import wire
from angarium.message import HEADER_KEYS, MQTT_KEY, USER_PROPERTIES_KEY, pack_fields, unpack_properties
from angarium.trace_context import CONTEXTS
from gateway.mqtt.codec.fields import FIELD_BYTES_MAX
from gateway.mqtt.codec.kinds import PacketType
from gateway.mqtt.codec.properties import NONE, Pairs, Properties, write_section
from gateway.mqtt.topics import mqtt_topic_of, topic_of

if TYPE_CHECKING:
    from angarium.message import Meta, Row
    from gateway.mqtt.codec.publish import Publish

#: Senders whose properties, and properties whose section, are remembered; 200 to 500 bytes each.
KNOWN_MAX: Final = 4_096
#: Larger properties are not: most have something in them that never comes again.
KNOWN_BYTES_MAX: Final = 250

_CORRELATION_ID: Final = HEADER_KEYS["correlation_id"]
_REPLY_TO: Final = HEADER_KEYS["reply_to"]
_SENDER_ID: Final = HEADER_KEYS["sender_id"]
_CONTENT_TYPE: Final = HEADER_KEYS["content_type"]

# Keys of the map of property 11.
_QOS: Final = 0x00
_PAYLOAD_FORMAT: Final = 0x01
_CORRELATION_DATA: Final = 0x09
_PAIRS: Final = 0x26

_EXPIRY_MAX: Final = 0xFFFF_FFFF
_to_json = msgspec.json.Encoder().encode


def row_of(publish: Publish, sender: str) -> tuple[int, Meta | None, bytes]:
    """Give flags, meta and properties of the row for a message that a client has sent."""
    flags = wire.MODE_PERSISTENT if publish.qos else wire.MODE_DIRECT
    if publish.retain:
        flags |= wire.FLAG_RETAIN
    if publish.properties is NONE and publish.qos < 2:
        return flags, None, _from(sender)
    given = publish.properties
    expiry = given.message_expiry_interval
    meta = None if expiry is None else (expiry * 1000 or 1, 0, None, None)
    packed = pack_fields(_fields_of(given, publish.qos, sender))
    assert packed is not None
    return flags, meta, packed


@lru_cache(KNOWN_MAX)
def _from(sender: str) -> bytes:
    """Give the properties that say who sent it, and nothing else."""
    packed = pack_fields({_SENDER_ID: sender})
    assert packed is not None
    return packed


def _fields_of(given: Properties, qos: int, sender: str) -> dict[int, Any]:
    """Give the properties of a row by their keys."""
    fields: dict[int, Any] = {_SENDER_ID: sender}
    only_mqtt: dict[int, Any] = {}
    if qos == 2:
        only_mqtt[_QOS] = qos
    if given.payload_format_indicator is not None:
        only_mqtt[_PAYLOAD_FORMAT] = given.payload_format_indicator
    if given.correlation_data is not None:
        try:
            fields[_CORRELATION_ID] = given.correlation_data.decode()
        except UnicodeDecodeError:
            only_mqtt[_CORRELATION_DATA] = given.correlation_data
    if given.response_topic is not None:
        fields[_REPLY_TO] = topic_of(given.response_topic)
    if given.content_type is not None:
        fields[_CONTENT_TYPE] = given.content_type
    if given.user_properties:
        pairs = given.user_properties
        together = _together(pairs)
        clean = CONTEXTS.cleaned(together)
        if clean is not together:
            pairs = tuple([pair for pair in pairs if pair[0] in clean])
        if clean:
            fields[USER_PROPERTIES_KEY] = clean
        if _apart(clean) != pairs:
            only_mqtt[_PAIRS] = pairs
    if only_mqtt:
        fields[MQTT_KEY] = only_mqtt
    return fields


def _together(pairs: Pairs) -> dict[str, str | list[str]]:
    """Give user properties as a map; a name that comes repeatedly has all its values."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _apart(together: dict[Any, Any]) -> Pairs:
    """Give a map of user properties as pairs, as far as MQTT can say them."""
    pairs: list[tuple[str, str]] = []
    for name, value in together.items():
        texts = [_text_of(one) for one in (value if isinstance(value, list) else [value])]
        if _is_text(name):
            pairs += [(name, text) for text in texts if text is not None and _is_text(text)]
    return tuple(pairs)


def _text_of(value: object) -> str | None:
    """Give the text for a value of a user property: itself, or as JSON writes it; bytes are base64 there."""
    if isinstance(value, str):
        return value
    try:
        return _to_json(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _is_text(value: object) -> bool:
    """Tell whether something is a text that MQTT can say."""
    return isinstance(value, str) and "\0" not in value and len(value.encode()) <= FIELD_BYTES_MAX


def publish_properties(row: Row) -> Properties:
    """Give the properties with which clients of 5.0 get a row."""
    return _properties_of(row[4], row[3][0] if row[3] else 0)


def publish_section(row: Row) -> bytes:
    """Give the same as bytes, as they stand in a PUBLISH without their length."""
    meta, packed = row[3], row[4]
    if packed is None and meta is None:
        return b""
    ttl_ms = meta[0] if meta else 0
    if packed is not None and len(packed) > KNOWN_BYTES_MAX:
        return _section_of(packed, ttl_ms)
    return _known_section_of(packed, ttl_ms)


def _section_of(packed: bytes | None, ttl_ms: int) -> bytes:
    return write_section(_properties_of(packed, ttl_ms), PacketType.PUBLISH)


_known_section_of = lru_cache(KNOWN_MAX)(_section_of)


def _properties_of(packed: bytes | None, ttl_ms: int) -> Properties:
    fields = unpack_properties(packed)
    only_mqtt = _map_of(fields, MQTT_KEY)
    reply_to, content_type = fields.get(_REPLY_TO), fields.get(_CONTENT_TYPE)
    payload_format = only_mqtt.get(_PAYLOAD_FORMAT)
    is_known = type(payload_format) is int and 0 <= payload_format <= 1
    return Properties(
        payload_format_indicator=payload_format if is_known else None,
        message_expiry_interval=_expiry_of(ttl_ms) if ttl_ms > 0 else None,
        content_type=content_type if _is_text(content_type) else None,
        response_topic=mqtt_topic_of(reply_to) if _is_text(reply_to) and reply_to else None,
        correlation_data=_correlation_data(fields, only_mqtt),
        user_properties=_pairs_of(fields, only_mqtt),
    )


def _expiry_of(ttl_ms: int) -> int:
    """Give what was said less the whole seconds that have passed since [MQTT-3.3.2-6]: who is told 0 drops it."""
    return 0 if ttl_ms == 1 else min((ttl_ms + 999) // 1000, _EXPIRY_MAX)


def _map_of(fields: dict[Any, Any], key: int) -> dict[Any, Any]:
    value = fields.get(key)
    return value if isinstance(value, dict) else {}


def _correlation_data(fields: dict[Any, Any], only_mqtt: dict[Any, Any]) -> bytes | None:
    text, data = fields.get(_CORRELATION_ID), only_mqtt.get(_CORRELATION_DATA)
    found = text.encode() if isinstance(text, str) else data
    return found if isinstance(found, bytes) and len(found) <= FIELD_BYTES_MAX else None


def _pairs_of(fields: dict[Any, Any], only_mqtt: dict[Any, Any]) -> Pairs:
    pairs = only_mqtt.get(_PAIRS)
    if isinstance(pairs, list) and all(_is_pair(pair) for pair in pairs):
        return tuple([(name, value) for name, value in pairs])
    return _apart(_map_of(fields, USER_PROPERTIES_KEY))


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair))


def sender_of(row: Row) -> str | None:
    """Give the client name of who sent a row, if it says that."""
    sender = unpack_properties(row[4]).get(_SENDER_ID)
    return sender if isinstance(sender, str) else None


def qos_of(row: Row) -> int:
    """Give the QoS with which a row was published."""
    if not row[2] & wire.FLAG_MODE:
        return 0
    return 2 if _map_of(unpack_properties(row[4]), MQTT_KEY).get(_QOS) == 2 else 1
