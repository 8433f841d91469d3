"""Names of spans and their attributes, by OpenTelemetry's semantic conventions for messaging.

These conventions may still change, so their names stand here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from angarium import wire
from angarium.message import HEADER_KEYS, unpack_properties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.message import Row
    from angarium.tracing import Place

SYSTEM: Final = "angarium"
CREATE, SEND, RECEIVE, PROCESS, SETTLE = "create", "send", "receive", "process", "settle"
#: Outcome -> the name of its operation.
OUTCOMES: Final = {
    wire.OUTCOME_ACCEPTED: "accept",
    wire.OUTCOME_FAILED: "fail",
    wire.OUTCOME_REJECTED: "reject",
}

_MESSAGE_ID: Final = HEADER_KEYS["application_message_id"]
_CORRELATION_ID: Final = HEADER_KEYS["correlation_id"]


class Described(NamedTuple):
    """A span to be."""

    name: str
    attributes: dict[str, Any]


def describe(
    operation: str, kind: str, rows: Sequence[Row], place: Place, partition: int | None = None
) -> Described:
    """Give name and attributes of what is done with messages: `kind` is one of the operations above.

    Several messages share what is the same for all of them: their number, and their destination if it is one.
    """
    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    shown = _destination(attributes, rows, place)
    if partition is not None:
        attributes["messaging.destination.partition.id"] = str(partition)
    if len(rows) == 1:
        _message(attributes, rows[0])
    if place.client:
        attributes["messaging.client.id"] = place.client
    _server(attributes, place.url)
    return Described(f"{operation} {shown}" if shown else operation, attributes)


def _destination(attributes: dict[str, Any], rows: Sequence[Row], place: Place) -> str:
    """Say where the messages go or come from, and give that for the name of the span.

    There are as many topics as there are orders or devices, and names group spans: so no topic is in one.
    """
    if place.is_endpoint:
        attributes["messaging.destination.name"] = place.name
        if len(rows) == 1 and not rows[0][1].startswith(wire.QUEUE_TOPIC_PREFIX):
            attributes["messaging.destination_publish.name"] = rows[0][1]
        return place.name
    topics = {row[1] for row in rows}
    if len(topics) != 1:
        return place.name
    topic = topics.pop()
    if topic.startswith(wire.QUEUE_TOPIC_PREFIX):
        queue = attributes["messaging.destination.name"] = topic.removeprefix(wire.QUEUE_TOPIC_PREFIX)
        return queue
    if topic.startswith("#"):
        # An inbox: the topic of one connection.
        attributes["messaging.destination.temporary"] = True
        attributes["messaging.destination.name"] = topic
        return "(temporary)"
    attributes["messaging.destination.name"] = topic
    if place.name:
        attributes["messaging.destination.template"] = place.name
    return place.name


def _message(attributes: dict[str, Any], row: Row) -> None:
    attributes["messaging.message.body.size"] = len(row[5])
    fields = unpack_properties(row[4])
    for name, key in (
        ("messaging.message.id", _MESSAGE_ID),
        ("messaging.message.conversation_id", _CORRELATION_ID),
    ):
        if isinstance(text := fields.get(key), str):
            attributes[name] = text


def _server(attributes: dict[str, Any], url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return
    if parts.scheme == "ipc":
        attributes["server.address"] = parts.path
    elif host:
        attributes["server.address"] = host
        if port is not None:
            attributes["server.port"] = port
