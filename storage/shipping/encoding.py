"""What a primary and its standby say to each other about a store, as frames; the messages know nothing of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium_server.frames.frame import MalformedFrameError, encode
from angarium_server.frames.shipping import (
    AskTouched,
    BegunRow,
    PastRow,
    ShipBrought,
    ShipFresh,
    ShipGroup,
    ShipPart,
    ShipPatch,
    ToldSynced,
    ToldTouched,
    Whereabouts,
)
from storage.groups import Begun, Brought, Group, Past, Patch
from storage.shipping.receiving import Fresh, Part
from storage.shipping.shipping import Here, Synced, TellTouched, TellTouchedBy
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage.shipping.receiving import FromPrimary
    from storage.shipping.shipping import FromStandby

_Changes = list[tuple[Table, bytes, bytes | None]]
_Touched = tuple[tuple[Table, bytes], ...]

_decode_changes: Final = msgspec.msgpack.Decoder(_Changes).decode
_decode_touched: Final = msgspec.msgpack.Decoder(_Touched).decode


def frames_to_standby(message: FromPrimary) -> list[bytes]:
    """Give what a primary says."""
    match message:
        case Group(number, run, changes):
            return ShipGroup(number, run).frames(encode(changes))
        case Patch(base, past, touched, changes):
            return ShipPatch(base, _row_of(past)).frames(encode(touched), encode(changes))
        case Fresh():
            return ShipFresh().frames()
        case Part(changes):
            return ShipPart().frames(encode(changes))
        case Brought(base, past, touched):
            return ShipBrought(base, _row_of(past)).frames(encode(touched))
        case TellTouched(since):
            return AskTouched(since).frames()
    raise AssertionError(message)


def frames_to_primary(message: FromStandby, host: str) -> list[bytes]:
    """Give what a standby of this name says."""
    match message:
        case Here(past):
            return Whereabouts(_row_of(past), host).frames()
        case TellTouchedBy(since, touched):
            return ToldTouched(since, touched is not None).frames(encode(touched or ()))
        case Synced(number):
            return ToldSynced(number).frames()
    raise AssertionError(message)


def from_primary(frames: list[bytes]) -> FromPrimary | None:
    """Read what a primary says; None: it is none of these messages.

    Raises:
        MalformedFrameError: it is not as the structs say.
    """
    found: FromPrimary | None = _read(frames, _FROM_PRIMARY)
    return found


def from_standby(frames: list[bytes]) -> FromStandby | None:
    """Read what a standby says; None: it is none of these messages.

    Raises:
        MalformedFrameError: it is not as the structs say.
    """
    found: FromStandby | None = _read(frames, _FROM_STANDBY)
    return found


def _read(frames: list[bytes], known: dict[bytes, tuple[Any, Callable[..., Any]]]) -> Any:
    found = known.get(frames[0])
    if found is None:
        return None
    decode, make = found
    try:
        return make(decode(frames[1]), *frames[2:])
    except (IndexError, TypeError, ValueError, RecursionError) as error:
        raise MalformedFrameError(f"operation {frames[0]!r}: {error}") from None


def _row_of(past: Past) -> PastRow:
    return PastRow([BegunRow(*one) for one in past.begun], past.newest, past.oldest)


def _past_of(row: PastRow) -> Past:
    return Past(tuple(Begun(one.run, one.first) for one in row.begun), row.newest, row.oldest)


def _entry(kind: Any, make: Callable[..., Any]) -> tuple[bytes, tuple[Any, Callable[..., Any]]]:
    return kind.operation, (msgspec.msgpack.Decoder(kind).decode, make)


_FROM_PRIMARY: Final = dict(
    (
        _entry(ShipGroup, lambda head, changes: Group(head.number, head.run, _decode_changes(changes))),
        _entry(
            ShipPatch,
            lambda head, touched, changes: Patch(
                head.base, _past_of(head.past), _decode_touched(touched), tuple(_decode_changes(changes))
            ),
        ),
        _entry(ShipFresh, lambda _head: Fresh()),
        _entry(ShipPart, lambda _head, changes: Part(_decode_changes(changes))),
        _entry(
            ShipBrought,
            lambda head, touched: Brought(head.base, _past_of(head.past), _decode_touched(touched)),
        ),
        _entry(AskTouched, lambda head: TellTouched(head.since)),
    )
)
_FROM_STANDBY: Final = dict(
    (
        _entry(Whereabouts, lambda head: Here(_past_of(head.past))),
        _entry(
            ToldTouched,
            lambda head, touched: TellTouchedBy(
                head.since, _decode_touched(touched) if head.is_known else None
            ),
        ),
        _entry(ToldSynced, lambda head: Synced(head.number)),
    )
)
