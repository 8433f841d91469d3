"""Exceptions (`!filter`) that a round was matched without, because they came while it was under way.

A queue that gets a filter which workers know already takes what matches that at once, also what was handed to workers
before. An exception that comes with it is new to them, so what they found does not tell whom it keeps out. No state of
the queue ever took such a message (R122, R126); so the router asks these exceptions itself, row by row. That is rare:
rounds are under way for a moment only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from angarium.topic import matches
from router.spool.rows import Row, decode_rows, result_with

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint
    from router.matching.round import EndpointResult

#: A frame with the endpoints that its rows match.
_Frame = tuple["EndpointResult", "tuple[Endpoint, ...]"]


def apply(frames: list[_Frame], next_filter: int) -> list[_Frame]:
    """Leave endpoints out that an exception keeps out, of those that were made with this number or a later one."""
    found: list[_Frame] = []
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
