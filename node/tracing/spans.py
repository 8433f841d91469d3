"""Spans as a worker makes them, and as collectors take them: OTLP as JSON.

The encoding is that of the protocol's own mapping to JSON: ids in hexadecimal, numbers of 64 bits as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Value = str | int | bool

#: `SpanKind` of the protocol.
INTERNAL, PRODUCER, CONSUMER = 1, 4, 5
#: Flags of a span: sampled; whether it is known that its parent is in another process, and whether it is.
_SAMPLED, _HAS_IS_REMOTE, _IS_REMOTE = 0x01, 0x100, 0x200
_STATUS_ERROR: Final = 2
SCOPE: Final = "angarium.node"

_to_json = msgspec.json.Encoder().encode


class Span(NamedTuple):
    """What was done with one message."""

    name: str
    kind: int
    #: 32 and 16 hexadecimal digits.
    trace_id: str
    span_id: str
    parent_id: str
    #: Since 1970.
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    #: What went wrong; empty: nothing.
    error: str = ""
    #: Whether the parent is a span of somebody else.
    is_remote: bool = False


def encode(spans: Sequence[Span], resource: Mapping[str, Value], version: str) -> bytes:
    """Give the body of a request that brings spans to a collector."""
    scoped = {"scope": {"name": SCOPE, "version": version}, "spans": [_span(one) for one in spans]}
    return _to_json(
        {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scoped]}]}
    )


def _span(span: Span) -> dict[str, Any]:
    told: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "flags": _SAMPLED | _HAS_IS_REMOTE | (_IS_REMOTE if span.is_remote else 0),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.error:
        told["status"] = {"code": _STATUS_ERROR, "message": span.error}
    return told


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
