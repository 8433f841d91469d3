"""What is told of guaranteed messages when a rule was broken: everything that happened to them, and to their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.records import (
    PUBLICATION_MARK,
    Bound,
    Died,
    Emitted,
    Gone,
    HomeSettled,
    Stored,
    endpoint_of,
    takes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.guaranteed.records import (
        EndpointRecord,
        GuaranteedHistory,
        HomeEvent,
        Place,
        Publication,
    )

Line = tuple[float, str]
OUTCOMES = {
    wire.OUTCOME_ACCEPTED: "accepted",
    wire.OUTCOME_FAILED: "failed",
    wire.OUTCOME_REJECTED: "rejected",
}


def life_of(history: GuaranteedHistory, what: str) -> Iterator[Line]:
    """Give what happened to one message, unsorted."""
    publication = history.publication(what)
    if publication is not None:
        yield from _publishing(what, publication)
    places = {
        event.place: None for event in history.home_events if isinstance(event, Stored) and event.what == what
    }
    for flow in history.flows:
        places |= {one.place: None for one in flow.deliveries if one.what == what}
    for event in history.home_events:
        for text in _at_home(event, what, places):
            yield event.at, text
    for flow in history.flows:
        for delivery in flow.deliveries:
            if delivery.place in places:
                browsed = " to browse" if flow.is_browser else ""
                yield (
                    delivery.at,
                    f"{what} came to {flow} from {delivery.place}, count {delivery.tries}{browsed}",
                )
        for settle in flow.settles:
            for place in settle.places:
                if place in places:
                    yield settle.at, f"{flow} {OUTCOMES[settle.outcome]} {what} at {place}"


def _publishing(what: str, publication: Publication) -> Iterator[Line]:
    for at, connection in publication.sends:
        yield at, f"{what}: {publication} left on {connection} with flags {publication.flags:#x}"
    if publication.acked_at < FOREVER:
        yield publication.acked_at, f"{what} was acknowledged"
    if publication.refused_at < FOREVER:
        yield publication.refused_at, f"{what} was refused with {publication.code}"
    if publication.abandoned_at < FOREVER:
        yield publication.abandoned_at, f"{what} was given up by its publisher"


def _at_home(event: HomeEvent, what: str, places: dict[Place, None]) -> Iterator[str]:
    if isinstance(event, Stored) and event.what == what:
        yield f"{what} was on the disk of worker {event.worker} at {event.place}, from {event.origin}"
    elif isinstance(event, Gone) and event.place in places:
        yield f"{what} was gone from the disk of worker {event.worker} at {event.place}"
    elif isinstance(event, Emitted):
        for position, count in zip(event.positions, event.counts, strict=True):
            place = (event.lane, position)
            if place in places:
                yield f"worker {event.worker} sent {what} from {place} to flow {event.flow}, count {count}"
    elif isinstance(event, HomeSettled):
        for position in event.positions:
            if (event.lane, position) in places:
                outcome = OUTCOMES[event.outcome]
                yield f"worker {event.worker} heard that flow {event.flow} {outcome} {(event.lane, position)}"
    elif isinstance(event, Died):
        yield f"worker {event.worker} died"
    elif isinstance(event, Bound) and any(event.lane == place[0] for place in places):
        yield f"worker {event.worker} was told to bind flow {event.flow} to lane {event.lane}"


def endpoints(history: GuaranteedHistory, what: str) -> Iterator[Line]:
    """Give the lives of the endpoints that had a message or should have."""
    publication = history.publication(what)
    for endpoint in history.endpoints.values():
        if publication is not None and not _concerns(history, publication, endpoint):
            continue
        before: dict[str, object] = {}
        for change in endpoint.changes:
            new = {name: value for name, value in change.attributes.items() if before.get(name) != value}
            shown = {name: new[name] for name in SHOWN if name in new}
            yield change.at, f"{endpoint}: {shown}, in force at {change.in_force_at:.4f}"
            before = change.attributes
        if endpoint.deleted_at < FOREVER:
            yield endpoint.deleted_at, f"{endpoint} was deleted, in force at {endpoint.gone_at:.4f}"


def _concerns(history: GuaranteedHistory, publication: Publication, endpoint: EndpointRecord) -> bool:
    """Tell whether an endpoint ever had a message, or ever wanted such messages."""
    if endpoint.vpn != publication.vpn:
        return False
    what = f"{PUBLICATION_MARK}{publication.number}"
    return any(
        takes(endpoint, change.attributes, publication.topic, is_retained=publication.is_retained)
        for change in endpoint.changes
    ) or any(
        isinstance(event, Stored) and event.what == what and endpoint_of(event.place[0]) == endpoint.id
        for event in history.home_events
    )


#: Attributes that explain most.
SHOWN = (
    "subscriptions",
    "client_subscriptions",
    "topic",
    "selector",
    "generation",
    "homes",
    "access_type",
    "partition_count",
    "durability",
    "max_spool_usage_mb",
    "max_ttl_s",
    "respect_ttl",
    "max_redelivery_count",
    "redelivery_enabled",
    "dead_message_queue",
    "ingress_enabled",
    "egress_enabled",
    "reject_to_sender",
)
