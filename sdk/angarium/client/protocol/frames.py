"""Frames that a router sends: how a header is decoded, and how a breach of the protocol is told.

`angarium.client.protocol.session` and its guaranteed half use it. What is wrong with a frame is an
`InvalidRequestError` with the code 40001, which ends the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors, wire

if TYPE_CHECKING:
    from collections.abc import Callable


def malformed(detail: str) -> errors.AngariumError:
    """Give the error of a frame that breaks the protocol."""
    return errors.error_for(errors.MALFORMED_FRAME, detail)


def header(decode: Callable[[bytes], Any], frames: list[bytes], *, parts: int | None) -> Any:
    """Decode the header of a peer, with its types, its size and the number of batches behind it checked.

    Args:
        decode: a typed decoder.
        frames: the whole multipart.
        parts: how many batches there must be, or None if the header says it.

    Raises:
        InvalidRequestError: it is of another shape (40001).
    """
    if parts is not None and len(frames) - 2 != parts:
        raise malformed(f"{len(frames)} frames behind {frames[0]!r}")
    return wire.decode_header(decode, frames[1])
