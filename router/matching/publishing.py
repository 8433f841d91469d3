"""PUBLISH from the frame to the round, and RESULT from the worker to the publisher's account.

A batch is checked here without opening it where that is possible: numbers, credit, sizes, the slot table's
version. What is inside is the worker's to check, and its verdict comes back with the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from angarium import errors, slots, wire
from angarium.errors import error_for
from router.matching.rounds import partition
from router.sessions.producer import SEQUENCE_MAX, over
from router.sessions.round import Inside, Part, Round

if TYPE_CHECKING:
    from router.ground.config import RouterConfig
    from router.matching.shards import Shards
    from router.sessions.session import Session

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
#: Worker and rows of each part; more parts than there can be workers are no round.
_Parts = Annotated[list[tuple[_Natural, _Positive]], msgspec.Meta(max_length=slots.MAX_WORKERS)]
#: Round, epoch, flush, parts.
_Direct = tuple[_Positive, _Natural, bool, _Parts]
#: The same, the handle that `producer.open` answered, and the sequence of the row with index 0.
_Guaranteed = tuple[
    _Positive,
    _Natural,
    bool,
    _Parts,
    _Positive,
    Annotated[int, msgspec.Meta(ge=-SEQUENCE_MAX, le=SEQUENCE_MAX)],
]
#: The same, and whether rows that match nothing are to be reported.
_Reporting = tuple[_Positive, _Natural, bool, _Parts, bool]
#: The same of a link, with the indices of rows for which a client is to be chosen.
_Open = tuple[_Positive, _Natural, bool, _Parts, list[_Natural]]
#: The same, with classes (`wire.CLASS_...`) and topics of the rows of its only batch.
_Described = tuple[
    _Positive,
    _Natural,
    bool,
    Annotated[list[tuple[_Natural, _Positive]], msgspec.Meta(min_length=1, max_length=1)],
    list[_Natural],
    Annotated[int, msgspec.Meta(ge=1, lt=wire.CLASS_DTO)],
    Annotated[list[str], msgspec.Meta(min_length=1, max_length=wire.FEW_TOPICS_MAX)],
]
_decode_described = msgspec.msgpack.Decoder(_Described).decode
_decode_open = msgspec.msgpack.Decoder(_Open).decode
_decode_reporting = msgspec.msgpack.Decoder(_Reporting).decode
_decode_direct = msgspec.msgpack.Decoder(_Direct).decode
_decode_guaranteed = msgspec.msgpack.Decoder(_Guaranteed).decode
#: How MessagePack begins arrays of seven, six, five and four.
_SEVEN_FIELDS: Final = wire.array_head(7)
_SIX_FIELDS: Final = wire.array_head(6)
_FIVE_FIELDS: Final = wire.array_head(5)
_FOUR_FIELDS: Final = wire.array_head(4)


def read_publish(
    session: Session, frames: list[bytes], shards: Shards, config: RouterConfig
) -> Round[Session]:
    """Check a PUBLISH and make it a round.

    Raises:
        InvalidRequestError: 40001 malformed, 40008 too large, 40009 more than the credit; of a guaranteed one
        also 40026, 40027, 40030 (`Producer.charge`). Each ends the session.
    """
    handle = first = 0
    reports = False
    opened: list[int] = []
    inside: Inside | None = None
    if frames[1].startswith(_FOUR_FIELDS):
        number, epoch, flush, parts = wire.decode_header(_decode_direct, frames[1])
    elif frames[1].startswith(_SIX_FIELDS):
        number, epoch, flush, parts, handle, first = wire.decode_header(_decode_guaranteed, frames[1])
    elif frames[1].startswith(_FIVE_FIELDS) and session.link is None:
        number, epoch, flush, parts, reports = wire.decode_header(_decode_reporting, frames[1])
    elif frames[1].startswith(_FIVE_FIELDS):
        number, epoch, flush, parts, opened = wire.decode_header(_decode_open, frames[1])
    elif session.link is not None and frames[1].startswith(_SEVEN_FIELDS):
        number, epoch, flush, parts, opened, *described = wire.decode_header(_decode_described, frames[1])
        inside = Inside(*described)
    else:
        number, epoch, flush, parts = wire.decode_header(_decode_direct, frames[1])
    if len(parts) != len(frames) - 2:
        raise error_for(errors.MALFORMED_FRAME, "PUBLISH has one batch for each of its parts")
    _check_credit(session, number)
    checked = []
    count = size = 0
    for (worker, rows), batch in zip(parts, frames[2:], strict=True):
        checked.append(Part(worker, rows, batch))
        count += rows
        size += len(batch)
    if count > config.max_batch_rows:
        raise error_for(errors.BATCH_TOO_LARGE, f"the limit is {config.max_batch_rows} messages")
    if size > config.max_batch_bytes:
        raise error_for(errors.BATCH_TOO_LARGE, f"{size} bytes, the limit is {config.max_batch_bytes}")
    a_round = Round(session, number, _assign(checked, epoch, shards), session.publish_rules_id, flush=flush)
    if session.link is not None:
        a_round.mode = wire.MATCH_AS_DIRECT
        a_round.open = frozenset(opened)
        a_round.inside = inside
    elif reports:
        a_round.mode |= wire.MATCH_REPORT
    a_round.bytes = size  # as the client counts its credit, however the router cuts the batches
    if handle and checked:
        _charge_producer(a_round, handle, first, config)
    return a_round


def _charge_producer(a_round: Round[Session], handle: int, first: int, config: RouterConfig) -> None:
    """Make a round one of guaranteed messages, within the window of their producer."""
    session = a_round.session
    producer = session.producers.get(handle)
    if producer is None or not producer.takes_rounds:
        if not 0 < handle < session.next_producer:
            raise error_for(errors.UNKNOWN_PRODUCER, f"handle {handle}")
        a_round.producer = over(session)
        a_round.mode, a_round.learn = wire.MATCH_GUARANTEED, wire.LEARN_ALL
        return
    bytes_max = config.producer_window_bytes if session.is_client else wire.LINK_WINDOW_BYTES
    producer.charge(a_round.rows, a_round.bytes, first, bytes_max)
    a_round.producer = producer
    a_round.mode, a_round.learn = wire.MATCH_GUARANTEED, wire.LEARN_ALL
    a_round.first = first
    a_round.resent = producer.memory.is_known(first)


def _check_credit(session: Session, number: int) -> None:
    if number != session.round_number + 1:
        raise error_for(errors.MALFORMED_FRAME, f"round {number} after round {session.round_number}")
    if len(session.open_rounds) >= session.rounds_max:
        raise error_for(errors.INGRESS_CREDIT_EXCEEDED, f"{session.rounds_max} rounds are under way")
    if session.unretired_bytes >= session.bytes_max:
        raise error_for(errors.INGRESS_CREDIT_EXCEEDED, f"{session.bytes_max} bytes are under way")


def _assign(parts: list[Part], epoch: int, shards: Shards) -> list[Part]:
    """Give each part to its worker.

    Batches that were cut by an older slot table, or not at all, are cut here.
    """
    count = len(shards.shards)
    if not epoch and len(parts) > 1:
        raise error_for(errors.MALFORMED_FRAME, "a round that is not cut has one part")
    if count == 1 and len(parts) == 1:
        return parts if not parts[0].worker else [Part(0, parts[0].rows, parts[0].batch)]
    if epoch == shards.epoch:
        if len({part.worker for part in parts}) != len(parts) or any(part.worker >= count for part in parts):
            raise error_for(errors.MALFORMED_FRAME, "parts name each worker of the table at most once")
        return parts
    return recut(parts, shards)


def recut(parts: list[Part], shards: Shards) -> list[Part]:
    """Cut parts by the slot table in force.

    Raises:
        InvalidRequestError: a batch is malformed (40001).
    """
    cut = [piece for part in parts for piece in partition(part.batch, part.rows, shards.table)]
    return cut if len(parts) == 1 else _merge(cut)


def _merge(parts: list[Part]) -> list[Part]:
    """Join the pieces for each worker, in the order of their indices."""
    by_worker: dict[int, list[Any]] = {}
    for part in parts:
        by_worker.setdefault(part.worker, []).extend(wire.unpack(part.batch))
    merged = []
    for worker, rows in by_worker.items():
        rows.sort(key=_index)
        merged.append(Part(worker, len(rows), wire.pack(rows)))
    return merged


def _index(row: list[Any]) -> int:
    index = row[wire.ROW_INDEX]
    return index if type(index) is int else -1  # the worker refuses it
