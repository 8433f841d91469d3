"""Cutting a round in two: what can be admitted now, and what has to wait.

What was sent again may have more to wait for than its endpoints ever have room for at once. So such a round is not
admitted as a whole or not at all: the rows before the first one that has to wait go on, and are acknowledged; the rest
waits.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from router.matching.copies import leave_out
from router.spool.rows import decode_rows, encode_rows, result_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.matching.round import EndpointResult, Part, Round
    from router.session import Session


def cut(a_round: Round[Session], index: int) -> Round[Session] | None:
    """Take the rows below an index out of a round, and give them as one of their own; None if there are none.

    The bytes of the round stay with the rest: a publisher has them back when all of it is settled.
    """
    head = copy(a_round)
    _keep(head, lambda at: at < index)
    if not head.parts:
        return None
    head.bytes = 0
    _keep(a_round, lambda at: at >= index)
    return head


def _keep(a_round: Round[Session], wanted: Callable[[int], bool]) -> None:
    """Leave out what is not wanted, of the batches and of all that was found for them."""
    a_round.parts = [found for part in a_round.parts if (found := _part(part, wanted)) is not None]
    a_round.rows = sum(part.rows for part in a_round.parts)
    results = [_result(result, wanted) for result in a_round.endpoints]
    a_round.endpoints = [result for result in results if result is not None]
    refused = [one._replace(indices=[at for at in one.indices if wanted(at)]) for one in a_round.refused]
    a_round.refused = [one for one in refused if one.indices]
    leave_out(a_round, lambda at: not wanted(at))


def _part(part: Part, wanted: Callable[[int], bool]) -> Part | None:
    rows = [row for row in decode_rows(part.batch) if wanted(row.index)]
    return part._replace(rows=len(rows), batch=encode_rows(rows)) if rows else None


def _result(result: EndpointResult, wanted: Callable[[int], bool]) -> EndpointResult | None:
    rows = [row for row in decode_rows(result.batch) if wanted(row.index)]
    return result_with(result, rows) if rows else None
