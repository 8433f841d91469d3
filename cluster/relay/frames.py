"""Frames of guaranteed messages as a link reads them: MESSAGES with their batches unopened, ACKED, and rows."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from angarium.trail import Route
from angarium.wire import header, malformed

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Number = Annotated[int, msgspec.Meta(ge=1)]
Meta = tuple[int, int, int | None, Route]
Row = tuple[int, str, int, Meta | None, bytes | None, bytes]
_Runs = list[tuple[_Number, _Number]]
#: Partition, rows, runs of positions, earlier attempts, when stored (of all or of each), where from.
Part = tuple[int, int, _Runs, Any, _Natural | list[_Natural], list[tuple[str, str, str] | None] | None]
_decode_messages: Final = msgspec.msgpack.Decoder(tuple[_Number, list[Part]]).decode
decode_rows: Final = msgspec.msgpack.Decoder(list[Row]).decode
encode_rows: Final = msgspec.msgpack.Encoder().encode

Range = tuple[int, int]


def read_messages(frames: list[bytes]) -> tuple[int, list[Part]]:
    """Give flow and parts of MESSAGES.

    Raises:
        InvalidRequestError: it is of another shape (40001).
    """
    flow, parts = header(_decode_messages, frames, parts=None)
    if len(parts) != len(frames) - 2:
        raise malformed(f"{len(frames) - 2} batches for {len(parts)} parts")
    return flow, parts
