"""PUBLISH from the frame to the round, and RESULT from the worker to the publisher's account.

A batch is checked here without opening it where that is possible: numbers, credit, sizes, the slot table's
version. What is inside is the worker's to check, and its verdict comes back with the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from angarium.errors import error_for
from router.round import Part, Round
from router.rounds import partition

if TYPE_CHECKING:
    from router.config import RouterConfig
    from router.session import Session
    from router.shards import Shards


def read_publish(
    session: Session, frames: list[bytes], shards: Shards, config: RouterConfig
) -> Round[Session]:
    """Check a PUBLISH and make it a round.

    Raises:
        InvalidRequestError: 40001 malformed, 40008 too large, 40009 more than the credit. Each ends the
        session.
    """
    match wire.unpack_header(frames[1]):
        case [int(number), int(epoch), bool(flush), [_, *_] as parts] if len(parts) == len(frames) - 2:
            pass
        case _:
            raise error_for(
                errors.MALFORMED_FRAME, "PUBLISH is [round, epoch, flush, parts] and one batch a part"
            )
    _check_credit(session, number, config)
    checked = [_read_part(part, batch, config) for part, batch in zip(parts, frames[2:], strict=True)]
    if sum(part.rows for part in checked) > config.max_batch_rows:
        raise error_for(errors.BATCH_TOO_LARGE, f"the limit is {config.max_batch_rows} messages")
    return Round(session, number, _assign(checked, epoch, shards), session.publish_rules_id, flush=flush)


def _check_credit(session: Session, number: int, config: RouterConfig) -> None:
    if number != session.round_number + 1:
        raise error_for(errors.MALFORMED_FRAME, f"round {number} after round {session.round_number}")
    if len(session.open_rounds) >= config.ingress_rounds:
        raise error_for(errors.INGRESS_CREDIT_EXCEEDED, f"{config.ingress_rounds} rounds are under way")
    if session.unretired_bytes >= config.ingress_bytes:
        raise error_for(errors.INGRESS_CREDIT_EXCEEDED, f"{config.ingress_bytes} bytes are under way")


def _read_part(part: Any, batch: bytes, config: RouterConfig) -> Part:
    match part:
        case [int(worker), int(rows)] if worker >= 0 and rows > 0:
            pass
        case _:
            raise error_for(errors.MALFORMED_FRAME, "a part is [worker, rows]")
    if len(batch) > config.max_batch_bytes:
        raise error_for(errors.BATCH_TOO_LARGE, f"{len(batch)} bytes, the limit is {config.max_batch_bytes}")
    return Part(worker, rows, batch)


def _assign(parts: list[Part], epoch: int, shards: Shards) -> list[Part]:
    """Give each part to its worker.

    Batches that were cut by an older slot table, or not at all, are cut here.
    """
    count = len(shards.shards)
    if count == 1:
        return [Part(0, part.rows, part.batch) for part in parts]
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
