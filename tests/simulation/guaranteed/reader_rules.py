"""Reader groups: what they read of a queue is all of it, once, in the order of positions (R221).

A range that was planned is whole, whatever dies: nothing in it goes away before it is acknowledged, and what is read
is what was stored, each position once, rising. Who goes on from a checkpoint reads on where it stopped. Consumers get
nothing of a leased lane.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.records import Emitted, Gone
from tests.simulation.guaranteed.removal_rules import covers, reasons
from tests.simulation.guaranteed.storage_rules import was_emptied
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.guaranteed.index import GuaranteedIndex
    from tests.simulation.guaranteed.reader_records import Plan, ReaderRecord
    from tests.simulation.guaranteed.records import Place


def ranges(index: GuaranteedIndex) -> Iterator[Violation]:
    """A range is read as it was stored, and as a whole; nothing in it goes away before it is acknowledged."""
    for reader in index.history.readers:
        for plan in reader.plans:
            got = dict(plan.got)
            for place, stored in index.stored_in(plan.lane, plan.start, plan.end):
                if not _is_sure(index, plan, place):
                    continue
                text = f"{stored.what!r} at {place} is in {plan} of {reader}, given at {plan.planned_at:.4f}"
                if plan.read_at is not None and place[1] not in got:
                    yield Violation("unread", f"{text}, and was not read", whats=(stored.what,))
                gone = index.gone.get(place)
                until = min(plan.acknowledged_at, _end_of_lease(reader, plan))
                if gone is not None and gone.at < until:
                    yield Violation("taken", f"{text}, and was gone at {gone.at:.4f}", whats=(stored.what,))
            for position, what in plan.got:
                found = index.stored.get((plan.lane, position))
                if found is None or found.what != what:
                    text = f"{reader} read {what!r} at {(plan.lane, position)}, where {found} is"
                    yield Violation("misread", text, whats=(what,))


def once(index: GuaranteedIndex) -> Iterator[Violation]:
    """What a reader has read of a lane rises, without a position twice, and goes on where it stopped."""
    for reader in index.history.readers:
        next_of: dict[int, int] = {}
        for plan in reader.plans:
            if plan.read_at is None:
                continue
            positions = [position for position, _ in plan.got]
            if any(a >= b for a, b in pairwise(positions)):
                yield Violation("twice", f"{reader} read {positions} of {plan}")
            if positions and not plan.start <= positions[0] <= positions[-1] < plan.end:
                yield Violation("twice", f"{reader} read {positions}, which is not {plan}")
            if plan.start < next_of.get(plan.lane, 1):
                yield Violation(
                    "twice", f"{reader} read {plan}, and everything below {next_of[plan.lane]} before"
                )
            next_of[plan.lane] = plan.end


def standing_by(index: GuaranteedIndex) -> Iterator[Violation]:
    """Consumers get nothing of a lane that a reader group has leased."""
    for reader in index.history.readers:
        for lane, spans in reader.leases.items():
            endpoint = index.endpoint((lane, 0))
            for event in index.lanes.get(lane, ()):
                if not isinstance(event, Emitted) or event.is_browser:
                    continue
                if endpoint is not None and _began_anew(index, lane):
                    continue
                if any(start < event.at < end for start, end in spans):
                    text = (
                        f"{reader} has leased lane {lane}, and flow {event.flow} was sent {event.positions}"
                    )
                    yield Violation("leased", f"{text} at {event.at:.4f}")


def _began_anew(index: GuaranteedIndex, lane: int) -> bool:
    """Tell whether a lane lost its lease with its endpoint."""
    endpoint = index.endpoint((lane, 0))
    assert endpoint is not None
    return endpoint.deleted_at < FOREVER or was_emptied(endpoint, FOREVER)


def _end_of_lease(reader: ReaderRecord, plan: Plan) -> float:
    ends = [end for start, end in reader.leases.get(plan.lane, ()) if start <= plan.planned_at <= end]
    losses = [at for at, lane in reader.lost if lane == plan.lane and at >= plan.planned_at]
    return min([*ends, *losses], default=FOREVER)


def _is_sure(index: GuaranteedIndex, plan: Plan, place: Place) -> bool:
    """Tell whether a message certainly was in a lane when it was planned, and nobody may have taken it since."""
    stored, endpoint = index.stored[place], index.endpoint(place)
    if endpoint is None or stored.at > plan.planned_at:
        return False
    gone = index.gone.get(place)
    if gone is not None and (gone.at <= plan.planned_at or gone.is_purge):
        return False
    if endpoint.deleted_at < FOREVER or was_emptied(endpoint, FOREVER):
        return False
    if any(covers(one, place, FOREVER) for one in endpoint.operations):
        return False
    # What had a reason to be gone by then may have been on its way out.
    at_plan = Gone(plan.planned_at, place, False)
    return not reasons(index, endpoint, stored, at_plan)


RULES = (ranges, once, standing_by)
