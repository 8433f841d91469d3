"""Server-Sent Events as text (https://html.spec.whatwg.org/multipage/server-sent-events.html): pure.

An event is an id, by which a client that comes again says where it was; a kind, which is left out where there is one
only; and data, which is JSON here, in one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from angarium.errors import AngariumError

CONTENT_TYPE: Final = "text/event-stream"
#: A stream that is quiet says something so often, which proxies and clients expect.
QUIET_S: Final = 15.0
COMMENT: Final = b":\n\n"
#: The kind of the last event of a stream: why there are no more.
END: Final = "end"

_to_json = msgspec.json.Encoder().encode


def event_of(value: Any, name: str = "", kind: str = "") -> bytes:
    """Give a value as an event; one with a name says by that where to go on."""
    head = f"id: {name}\n" if name else ""
    if kind:
        head += f"event: {kind}\n"
    return b"%bdata: %b\n\n" % (head.encode(), _to_json(value))


def place_of(name: str) -> bytes:
    """Tell where to go on, and nothing else: clients keep it, and see no event."""
    return f"id: {name}\n\n".encode()


def farewell_of(error: AngariumError) -> bytes:
    """Give the last event of a stream: why there are no more."""
    told = {"code": error.code, "title": error.text, "detail": error.detail, "advice": error.advice}
    return event_of(told, kind=END)
