"""Positions of a lane are dense: 1, 2, 3, wherever its home was and whatever ended it (R221).

Of every position up to the highest that anybody saw somebody knows a message: a disk had it, or a consumer or a browser
got it. Three kinds need not be known. What a purge, or an endpoint that was created again, emptied at once. What was
delivered before it was on disk, or is consumed, expired or replaced by then: direct messages, and those of relaxed
endpoints; there may be no more unknown positions than messages of this kind. And what was lost with home and router
after consumers may have seen it: its home notes the gap, which is no longer than the positions reserved ahead.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from node.home.spool.held_lanes import PROVISIONAL, RESERVED_LEAST
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.records import endpoint_of
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.guaranteed.index import GuaranteedIndex

#: Unknown positions that a violation names.
SHOWN_MAX = 10


def density(index: GuaranteedIndex) -> Iterator[Violation]:
    """Every position up to the highest one is known, but for what the rules allow."""
    stored: dict[int, Counter[str]] = {}
    for place, one in index.stored.items():
        if one.origin is None:  # what came from another endpoint says nothing of what came here before
            stored.setdefault(place[0], Counter())[one.what] += 1
    for lane, known in sorted(_known(index).items()):
        endpoint = index.history.endpoints.get(endpoint_of(lane))
        if endpoint is None:
            continue
        highest, emptied = max(known), index.history.emptied.get(lane, 0)
        if highest > PROVISIONAL:
            text = f"a provisional position of lane {lane} of {endpoint} was shown: {highest}"
            yield Violation("gap", text)
            continue
        noted = _noted(index, lane)
        unknown = [at for at in range(1, highest + 1) if at not in known and at > emptied]
        missing = [at for at in unknown if at not in noted]
        unsynced = index.history.unsynced.get(lane, Counter())
        allowed = (unsynced - stored.get(lane, Counter())).total()
        if len(missing) > allowed:
            text = f"lane {lane} of {endpoint} has no {missing[:SHOWN_MAX]}, {len(missing)} in all, below {highest}"
            yield Violation("gap", f"{text}; {allowed} may be missing")
        gaps = sorted(index.history.gaps.get(lane, ()))
        longest = RESERVED_LEAST + 2 * unsynced.total() if unsynced else 0
        if any(last - first >= longest for first, last in gaps):
            yield Violation("gap", f"lane {lane} of {endpoint} notes gaps {gaps}, {longest} is the longest")


def _known(index: GuaranteedIndex) -> dict[int, dict[int, None]]:
    """Give the positions of each lane with which somebody knows a message.

    What an endpoint got while it was taken over has no true ones if it was deleted before that was done.
    """
    known: dict[int, dict[int, None]] = {}
    for lane, position in (*index.stored, *index.emitted):
        endpoint = index.history.endpoints.get(endpoint_of(lane))
        is_gone = endpoint is not None and endpoint.deleted_at < FOREVER
        if position < PROVISIONAL or (lane, position) in index.emitted or not is_gone:
            known.setdefault(lane, {})[position] = None
    for flow in index.history.flows:
        for delivery in flow.deliveries:
            known.setdefault(delivery.place[0], {})[delivery.place[1]] = None
    return known


def _noted(index: GuaranteedIndex, lane: int) -> dict[int, None]:
    return {at: None for first, last in index.history.gaps.get(lane, ()) for at in range(first, last + 1)}


RULES = (density,)
