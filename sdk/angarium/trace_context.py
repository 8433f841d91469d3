"""The W3C Trace Context of a message: which trace it belongs to, in its user properties `traceparent` and `tracestate`.

    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
                 version, trace, span of who made the message, flags (1: sampled)

Nodes carry it as any property. What is no such value is read as absent; a gateway drops it where a message comes in,
and where it would become a header. `Contexts` counts what it dropped.

No I/O. SDK, gateways and workers use it; the SDK itself needs no OpenTelemetry for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

#: Of a later version there may be more behind the flags, which is not read.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?"
)
#: What Trace Context asks everybody to carry at least, and the members that a state may have.
TRACESTATE_BYTES_MAX: Final = 512
_MEMBERS_MAX: Final = 32
_VALUE: Final = r"\x21-\x2b\x2d-\x3c\x3e-\x7e"
_MEMBER: Final = re.compile(rf"[a-z0-9][a-z0-9_\-*/@]{{0,255}}=[ {_VALUE}]{{0,255}}[{_VALUE}]")
_FLAG_SAMPLED: Final = 0x01
#: How a traceparent of version 00 begins in packed properties: a text of 11 bytes, and one of 55. To find it is much
#: cheaper than to unpack. And the rest of one with the flag "sampled".
_PACKED_HEAD: Final = b"\xabtraceparent\xd9\x3700-"
_PACKED_REST: Final = re.compile(rb"(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f][13579bdf]")


class TraceContext(NamedTuple):
    """What a traceparent says: 32 and 16 lower case hexadecimal digits, and whether the trace is recorded."""

    trace_id: str
    span_id: str
    is_sampled: bool


def parse(value: object) -> TraceContext | None:
    """Read the value of a traceparent; None if it is none."""
    found = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    if found is None or (found[1] == "00" and found[5] is not None):
        return None
    return TraceContext(found[2], found[3], bool(int(found[4], 16) & _FLAG_SAMPLED))


def is_tracestate(value: object) -> bool:
    """Tell whether something is the value of a tracestate that is carried on."""
    if not isinstance(value, str) or not 0 < len(value) <= TRACESTATE_BYTES_MAX:
        return False
    members = [one.strip(" \t") for one in value.split(",")]
    return len(members) <= _MEMBERS_MAX and all(not one or _MEMBER.fullmatch(one) for one in members)


def sampled_in(packed: bytes) -> TraceContext | None:
    """Find the context of a sampled trace in packed properties, without unpacking them; None if there is none."""
    at = packed.find(_PACKED_HEAD)
    if at < 0:
        return None
    found = _PACKED_REST.match(packed, at + len(_PACKED_HEAD))
    return None if found is None else TraceContext(found[1].decode(), found[2].decode(), is_sampled=True)


def context_of(properties: Mapping[Any, Any]) -> dict[str, str]:
    """Give what is well-formed of the context in user properties: traceparent, perhaps with tracestate, or nothing."""
    traceparent = properties.get(TRACEPARENT)
    if traceparent is None or parse(traceparent) is None:
        return {}
    found = {TRACEPARENT: traceparent}
    tracestate = properties.get(TRACESTATE)
    return found | {TRACESTATE: tracestate} if is_tracestate(tracestate) else found


class Contexts:
    """Lets contexts pass that are well-formed, and counts those that are not."""

    def __init__(self) -> None:
        """Nothing was dropped yet."""
        #: Messages of which a traceparent or a tracestate was dropped.
        self.dropped = 0

    def cleaned(self, properties: dict[str, Any]) -> dict[str, Any]:
        """Give user properties without a context that is malformed; the same object if there is nothing to drop."""
        if TRACEPARENT not in properties and TRACESTATE not in properties:
            return properties
        kept = context_of(properties)
        lost = [name for name in (TRACEPARENT, TRACESTATE) if name in properties and name not in kept]
        if not lost:
            return properties
        self.dropped += 1
        return {name: value for name, value in properties.items() if name not in lost}


#: Of this process, for its metrics.
CONTEXTS: Final = Contexts()
