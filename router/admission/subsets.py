"""Parts of a round: which of its rows are admitted now, which cross a link, which an exception keeps out.

**Cutting.** What was sent again may have more to wait for than its endpoints ever have room for at once. So such a
round is not admitted as a whole or not at all: the rows before the first one that has to wait go on, and are
acknowledged; the rest waits.

**Links.** A guaranteed message that an endpoint of the neighbour wants crosses once, as a guaranteed one, through the
queue of the link; the neighbour's clients get their copies there. So its session gets no direct copy of it here.
Deliver-to-one is the exception: who gets such a message is decided where it was published, and the direct copy carries
that (`open`). The guaranteed copy then is for the endpoints alone:

    message         queue of the link has it    crosses as                      clients there get
    direct          never                       direct                          the direct copy
    guaranteed      no                          direct                          the direct copy; no endpoint does
    guaranteed      yes                         guaranteed                      a copy of it
    ... with DTO    yes                         guaranteed, and perhaps direct  the direct copy

**Late exceptions.** A queue that gets a filter which workers know already takes what matches that at once, also what
was handed to workers before. An exception that comes with it is new to them, so what they found does not tell whom it
keeps out. No state of the queue ever took such a message (R122, R126); so the router asks these exceptions itself, row
by row. That is rare: rounds are under way for a moment only.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from msgspec.structs import replace

from angarium import wire
from angarium.topic import matches
from router.matching.copies import leave_out
from router.matching.rows import Row, decode_rows, encode_rows, result_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.guaranteed.endpoints import Endpoint
    from router.sessions.round import EndpointResult, Part, Round
    from router.sessions.session import Session

#: A frame with the endpoints that its rows match.
Frame = tuple["EndpointResult", "tuple[Endpoint, ...]"]


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
    a_round.span = None
    a_round.parts = [found for part in a_round.parts if (found := _part(part, wanted)) is not None]
    a_round.rows = sum(part.rows for part in a_round.parts)
    results = [_result(result, wanted) for result in a_round.endpoints]
    a_round.endpoints = [result for result in results if result is not None]
    refused = [one._replace(indices=[at for at in one.indices if wanted(at)]) for one in a_round.refused]
    a_round.refused = [one for one in refused if one.indices]
    leave_out(a_round, lambda at: not wanted(at))


def _part(part: Part, wanted: Callable[[int], bool]) -> Part | None:
    rows = [row for row in decode_rows(part.batch) if wanted(row.index)]
    return replace(part, rows=len(rows), batch=encode_rows(rows)) if rows else None


def _result(result: EndpointResult, wanted: Callable[[int], bool]) -> EndpointResult | None:
    rows = [row for row in decode_rows(result.batch) if wanted(row.index)]
    return result_with(result, rows) if rows else None


def spooled_for(a_round: Round[Session], frames: list[Frame]) -> dict[str, frozenset[int] | None]:
    """Give the neighbours whose links' queues have rows of a round: node -> indices, None for all of them."""
    found: dict[str, list[EndpointResult]] = {}
    for result, endpoints in frames:
        for endpoint in endpoints:
            if endpoint.link:
                found.setdefault(endpoint.link, []).append(result)
    if not found:
        return {}
    mixed = any(result.classes & wire.CLASS_DTO for result in a_round.plain) or bool(a_round.choice)
    return {
        node: _indices(results) if mixed or sum(one.rows for one in results) < a_round.rows else None
        for node, results in found.items()
    }


def _indices(results: list[EndpointResult]) -> frozenset[int]:
    """Give the rows of which no direct copy is needed."""
    rows = (row for result in results for row in decode_rows(result.batch))
    return frozenset(row.index for row in rows if not row.flags & wire.FLAG_DTO)


def leave_dto_out(a_round: Round[Session]) -> None:
    """Of a guaranteed round that came over a link: clients get deliver-to-one messages by their direct copies."""
    a_round.choice = [choice for choice in a_round.choice if not choice.dto]
    plain = []
    for result in a_round.plain:
        if not result.classes & wire.CLASS_DTO:
            plain.append(result)
            continue
        rows = [row for row in decode_rows(result.batch) if not row.flags & wire.FLAG_DTO]
        if rows:
            plain.append(replace(result, rows=len(rows), batch=encode_rows(rows)))
    a_round.plain = plain


def only_direct(frames: list[Frame]) -> list[Frame]:
    """Of a direct round that came over a link: a demoted copy is for no endpoint but the queue that retains."""
    kept: list[Frame] = []
    for result, endpoints in frames:
        rows = decode_rows(result.batch)
        direct = [row for row in rows if not row.flags & wire.FLAG_MODE]
        if len(direct) == len(rows):
            kept.append((result, endpoints))
            continue
        if direct:
            kept.append((result_with(result, direct), endpoints))
        retaining = tuple([one for one in endpoints if one.retains])
        if retaining:
            demoted = [row for row in rows if row.flags & wire.FLAG_MODE]
            kept.append((result_with(result, demoted), retaining))
    return kept


def apply_late_exceptions(frames: list[Frame], next_filter: int) -> list[Frame]:
    """Leave endpoints out that an exception keeps out, of those that were made with this number or a later one."""
    found: list[Frame] = []
    for result, endpoints in frames:
        late = {one: patterns for one in endpoints if (patterns := one.exceptions_from(next_filter))}
        if not late:
            found.append((result, endpoints))
            continue
        groups: dict[tuple[Endpoint, ...], list[Row]] = {}
        for row in decode_rows(result.batch):
            takers = tuple(one for one in endpoints if not _is_kept_out(row.topic, late.get(one, [])))
            groups.setdefault(takers, []).append(row)
        found += [(result_with(result, rows), takers) for takers, rows in groups.items()]
    return found


def _is_kept_out(topic: str, exceptions: list[str]) -> bool:
    """Judge like a worker: what is sent to a queue by name is not matched."""
    return not topic.startswith(wire.QUEUE_TOPIC_PREFIX) and any(matches(one, topic) for one in exceptions)
