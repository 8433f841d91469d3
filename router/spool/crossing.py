"""Guaranteed messages and links: which copy of a message crosses, and what becomes of it on the other side.

A guaranteed message that an endpoint of the neighbour wants crosses once, as a guaranteed one, through the queue of the
link; the neighbour's clients get their copies there. So its session gets no direct copy of it here. Deliver-to-one is
the exception: who gets such a message is decided where it was published, and the direct copy carries that (`open`). The
guaranteed copy then is for the endpoints alone:

    message         queue of the link has it    crosses as                      clients there get
    direct          never                       direct                          the direct copy
    guaranteed      no                          direct                          the direct copy; no endpoint does
    guaranteed      yes                         guaranteed                      a copy of it
    ... with DTO    yes                         guaranteed, and perhaps direct  the direct copy
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from router.spool.rows import decode_rows, encode_rows, spool_bytes

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint
    from router.matching.round import EndpointResult, Round
    from router.session import Session

Frame = tuple["EndpointResult", "tuple[Endpoint, ...]"]


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
            plain.append(result._replace(rows=len(rows), batch=encode_rows(rows)))
    a_round.plain = plain


def only_direct(frames: list[Frame]) -> list[Frame]:
    """Of a direct round that came over a link: what is a demoted copy is for no endpoint."""
    kept = []
    for result, endpoints in frames:
        rows = decode_rows(result.batch)
        direct = [row for row in rows if not row.flags & wire.FLAG_MODE]
        if len(direct) == len(rows):
            kept.append((result, endpoints))
        elif direct:
            result = result._replace(
                rows=len(direct),
                spool_bytes=spool_bytes(direct),
                largest=max(row.message_bytes for row in direct),
                low_priority=sum(row.is_low_priority for row in direct),
                batch=encode_rows(direct),
            )
            kept.append((result, endpoints))
    return kept
