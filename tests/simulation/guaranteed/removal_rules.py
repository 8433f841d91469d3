"""Why messages are gone: each one that leaves a disk has a reason, and the dead ones went where they should.

A consumer accepted it, or it died (rejected, expired, tried too often), an operator removed it, its endpoint was
deleted or emptied, a newer value replaced it, or it moved to another home. What has none of these is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.flow_rules import selects
from tests.simulation.guaranteed.index import DEAD
from tests.simulation.guaranteed.records import endpoint_of
from tests.simulation.guaranteed.storage_rules import was_emptied
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.guaranteed.index import GuaranteedIndex
    from tests.simulation.guaranteed.records import EndpointRecord, Gone, Operation, Place, Stored

#: Quotas from here on are never full in a run.
WIDE_MB = 1_000
#: Wall clocks of a home and of its router may be read at different moments of one step.
CLOCK_MS = 20


def vanished(index: GuaranteedIndex) -> Iterator[Violation]:
    """A stored message leaves the disk for a reason only (R165, R166, R180)."""
    for place, gone in index.gone.items():
        stored, endpoint = index.stored.get(place), index.endpoint(place)
        if stored is None or endpoint is None:
            continue
        if not reasons(index, endpoint, stored, gone):
            text = f"{stored.what!r} at {place} of {endpoint} was gone at {gone.at:.4f} without a reason"
            yield Violation("vanished", text, whats=(stored.what,))


def reasons(index: GuaranteedIndex, endpoint: EndpointRecord, stored: Stored, gone: Gone) -> list[str]:
    """Give every reason there may be."""
    found = []
    for said in index.said.get(stored.place, ()):
        if said.at <= gone.at and said.outcome == wire.OUTCOME_ACCEPTED:
            found.append("accepted")
        elif said.at <= gone.at and said.outcome == wire.OUTCOME_REJECTED:
            found.append("rejected")
    if any(
        plan.acknowledged_at <= gone.at
        for reader in index.history.readers
        for plan in reader.plans
        if plan.lane == stored.place[0] and plan.start <= stored.place[1] < plan.end
    ):
        found.append("read")
    if index.expiry_ms(stored.place, earliest=True) <= _latest_ms(index, gone.at):
        found.append("expired")
    if _was_tried_out(index, endpoint, stored.place, gone.at):
        found.append("redeliveries")
    if endpoint.deleted_at <= gone.at or was_emptied(endpoint, gone.at):
        found.append("deleted")
    if any(covers(one, stored.place, gone.at) for one in endpoint.operations):
        found.append("operator")
    if _was_replaced(index, endpoint, stored, gone.at):
        found.append("replaced")
    if _was_filtered(endpoint, stored, gone.at):
        found.append("filtered")
    if _went_along(index, stored, gone.at):
        found.append("moved along")
    return found


def _latest_ms(index: GuaranteedIndex, end: float) -> int:
    """Give the latest wall time that a home may have read; it may have done so long before it wrote a message."""
    return index.history.wall_between(0.0, end)[1] + CLOCK_MS


def _was_tried_out(index: GuaranteedIndex, endpoint: EndpointRecord, place: Place, at: float) -> bool:
    tried = sum(one.at <= at for one in index.emitted.get(place, ()))
    # After an unclean stop what may have been sent counts as tried.
    tried += sum(died <= at for died, _ in index.deaths)
    # So does what was planned for a reader group, or taken back for it from a consumer.
    tried += index.tries_of_readers(place[0], at)
    for attributes in endpoint.possible(0.0, at):
        if not attributes.get("redelivery_enabled", True):
            return tried > 0
        limit = attributes.get("max_redelivery_count", 0)
        if limit and tried > limit:
            return True
    return False


def covers(operation: Operation, place: Place, at: float) -> bool:
    """Tell whether an operator's wish may have taken a message by then."""
    return (
        operation.kind != "copy"
        and operation.asked_at <= at
        and operation.partition == place[0] & (1 << wire.LANE_BITS) - 1
        and (operation.positions is None or place[1] in operation.positions)
    )


def _was_replaced(index: GuaranteedIndex, endpoint: EndpointRecord, stored: Stored, at: float) -> bool:
    if endpoint.retains:
        return _was_superseded(index, endpoint, stored, at)
    if not any(one.get("max_spool_usage_mb") == 0 for one in endpoint.possible(0.0, at)):
        return False
    # A newer one that is not synced may replace it before it is on disk itself, and never get there.
    lane, position = stored.place
    return any(place[0] == lane and place[1] > position for place in (*index.stored, *index.emitted))


def _was_superseded(index: GuaranteedIndex, endpoint: EndpointRecord, stored: Stored, at: float) -> bool:
    """Tell whether a message that is retained ended its topic, or a newer one of it was on disk or over by then."""
    own = index.kept.get(stored.what)
    lane, position = stored.place
    if own is None or own.is_empty:
        return own is not None
    on_disk = index.retained_at(lane, own.topic)
    if any(place > position and other.at <= at for place, other in on_disk.items()):
        return True
    newer = [
        one
        for one in index.kept.values()
        if (one.vpn, one.topic) == (own.vpn, own.topic) and one.sent_at <= at and not one.precedes(own)
    ]
    # What ends a topic goes with what it ended, perhaps before it is written.
    if any(one.is_empty for one in newer):
        return True
    # What replaces before it is written may expire before, and is never on disk; what it replaced is not back then.
    stored_ever = {other.what for other in on_disk.values()}
    until = _latest_ms(index, at)
    return index.history.is_relaxed(endpoint) and any(
        one.ttl_ms
        and index.history.wall_ms(one.sent_at) + one.ttl_ms <= until
        and one.what not in stored_ever
        for one in newer
    )


def _was_filtered(endpoint: EndpointRecord, stored: Stored, at: float) -> bool:
    """Tell whether the selector of a topic endpoint left it out (R145)."""
    for attributes in endpoint.possible(stored.at, at):
        selector = attributes.get("selector")
        if endpoint.kind != "queue" and selector and not selects(selector, stored.what):
            return True
    return False


def _went_along(index: GuaranteedIndex, stored: Stored, at: float) -> bool:
    """Tell whether the endpoint has it elsewhere by then: another home of the lane, or another partition."""
    for other in index.copies.get(stored.what, ()):
        if other.place == stored.place or endpoint_of(other.place[0]) != endpoint_of(stored.place[0]):
            continue
        # A closed partition that is open again may get its own messages.
        is_elsewhere = other.place[0] != stored.place[0] or other.worker != stored.worker
        moved = any(lane == stored.place[0] for lane, _ in index.rehomed.get(stored.what, ()))
        if other.at <= at and (is_elsewhere or moved):
            return True
    return False


def dead_messages(index: GuaranteedIndex) -> Iterator[Violation]:
    """Who is dead goes to the dead message queue, if that is there, has room, and takes it (R202)."""
    for place, gone in index.gone.items():
        stored, endpoint = index.stored.get(place), index.endpoint(place)
        if stored is None or endpoint is None or gone.is_purge:
            continue
        why = reasons(index, endpoint, stored, gone)
        if not why or any(reason not in DEAD for reason in why):
            continue
        target = _dead_message_queue(index, endpoint, stored, gone.at)
        if target is None:
            continue
        moved = [
            one
            for one in index.copies[stored.what]
            if endpoint_of(one.place[0]) == target.id
            and one.origin is not None
            and one.origin[1] == endpoint.name
            and one.at <= gone.at
        ]
        if not moved:
            text = f"{stored.what!r} of {endpoint} died ({', '.join(why)}) and never came to {target}"
            yield Violation("dmq", text, whats=(stored.what,))


def _dead_message_queue(
    index: GuaranteedIndex, endpoint: EndpointRecord, stored: Stored, at: float
) -> EndpointRecord | None:
    """Give the queue that certainly must have got a dead message, None if none must."""
    states = endpoint.possible(stored.at, at)
    names = dict.fromkeys(one.get("dead_message_queue", "#DEAD_MSG_QUEUE") for one in states)
    publication = index.history.publication(stored.what)
    eligible = publication is not None and publication.is_dmq_eligible
    if len(names) != 1 or (not eligible and any(one.get("respect_dmq_eligible") for one in states)):
        return None
    name = next(iter(names))
    target = index.find(endpoint.vpn, "queue", name, at) if name and name != endpoint.name else None
    if target is None or not target.existed(stored.at, at) or not _has_room(index, target, at):
        return None
    return None if index.history.is_relaxed(target) else target


def _has_room(index: GuaranteedIndex, target: EndpointRecord, at: float) -> bool:
    vpns = [attributes for _, attributes in index.history.vpns.get(target.vpn, [])]
    return (
        index.history.is_node_wide
        and all(one.get("max_spool_usage_mb", WIDE_MB) >= WIDE_MB for one in vpns)
        and all(
            one.get("max_spool_usage_mb", WIDE_MB) >= WIDE_MB
            and one.get("ingress_enabled", True)
            and not one.get("reject_low_priority")
            and one.get("max_message_bytes", 1 << 30) >= 1_000_000
            for one in target.possible(0.0, at)
        )
    )


def leftovers(index: GuaranteedIndex) -> Iterator[Violation]:
    """Consumers that take everything get everything: nothing is left behind in the end (R168)."""
    if index.history.drained_at == FOREVER:
        return
    for place, stored in index.stored.items():
        if place in index.gone or endpoint_of(place[0]) not in index.history.drained:
            continue
        text = f"{stored.what!r} is still at {place} of {index.endpoint(place)} in the end"
        yield Violation("left", text, whats=(stored.what,))


RULES = (vanished, dead_messages, leftovers)
