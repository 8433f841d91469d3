"""What acknowledgements promise of disks: what is there, when, how often, where, and in which order.

A home is judged by its disk alone. A relaxed endpoint may acknowledge what is not written yet, and may never
write what was consumed by then; so there a delivery counts like a copy, and a death of a home excuses a loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.index import is_moved, partition_of
from tests.simulation.guaranteed.records import endpoint_of
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.guaranteed.index import GuaranteedIndex
    from tests.simulation.guaranteed.records import (
        Attributes,
        EndpointRecord,
        FlowRecord,
        Publication,
        Stored,
    )


def completeness(index: GuaranteedIndex) -> Iterator[Violation]:
    """An acknowledged message is on the disk of every endpoint that took it, before it is acknowledged."""
    for publication in index.history.publications:
        if not publication.is_acked or publication.number in index.ambiguous:
            continue
        start, end = publication.sent_at, publication.acked_at
        for endpoint in index.certain(
            publication.vpn, publication.topic, start, end, is_retained=publication.is_retained
        ):
            if not _must_store(endpoint, start, end) or _never_takes(index, endpoint, publication):
                continue
            if index.history.is_relaxed(endpoint, start, end):
                fault = _missing_relaxed(index, endpoint, publication)
            else:
                fault = _missing(index, endpoint, publication)
            if fault:
                text = f"{publication} was acknowledged at {end:.4f}, but {endpoint} {fault}"
                yield Violation("lost", text, whats=(_name(publication),))


def _must_store(endpoint: EndpointRecord, start: float, end: float) -> bool:
    """Tell whether the endpoint has no right to leave out what is acknowledged: it has it refused instead."""
    for attributes in endpoint.possible(start, end):
        behaviour = attributes.get("reject_to_sender", "always")
        if behaviour == "never":
            return False
        if behaviour == "when-enabled" and not attributes.get("ingress_enabled", True):
            return False
    return True


def _never_takes(index: GuaranteedIndex, endpoint: EndpointRecord, publication: Publication) -> bool:
    """Tell whether others may have had it from an earlier sending, and this one could not take it however empty."""
    is_low = (publication.flags & wire.FLAG_COS) >> wire.COS_SHIFT < 2
    start, end = publication.sent_at, publication.acked_at
    others = [
        one
        for one in index.possible(
            publication.vpn, publication.topic, start, end, is_retained=publication.is_retained
        )
        if one is not endpoint
    ]
    return (
        len(publication.sends) > 1
        and bool(others)
        and any(
            _CAUSES[errors.MESSAGE_TOO_LARGE](publication, attributes)
            or (
                is_low
                and attributes.get("reject_low_priority")
                and not attributes.get("reject_low_priority_limit")
            )
            for attributes in endpoint.possible(publication.sent_at, publication.acked_at)
        )
    )


def _missing(index: GuaranteedIndex, endpoint: EndpointRecord, publication: Publication) -> str:
    copies = index.copies_in(endpoint, _name(publication))
    if not copies:
        return "never stored it"
    if copies[0].at > publication.acked_at:
        return f"had it on disk at {copies[0].at:.4f} only"
    return ""


def _missing_relaxed(index: GuaranteedIndex, endpoint: EndpointRecord, publication: Publication) -> str:
    what = _name(publication)
    if index.copies_in(endpoint, what) or any(at >= publication.sent_at for at, _ in index.deaths):
        return ""
    delivered = any(
        delivery.what == what for flow in _flows_of(index, endpoint) for delivery in flow.deliveries
    )
    return "" if delivered or may_vanish_unwritten(endpoint) else "neither stored nor delivered it"


def may_vanish_unwritten(endpoint: EndpointRecord) -> bool:
    """Tell whether messages may go by themselves before they are written."""
    return (
        endpoint.deleted_at < FOREVER
        or bool(endpoint.operations)
        or len({change.attributes.get("generation") for change in endpoint.changes}) > 1
        or any(
            change.attributes.get("max_ttl_s")
            or change.attributes.get("selector")
            or change.attributes.get("respect_ttl", True)
            or change.attributes.get("max_spool_usage_mb") == 0
            for change in endpoint.changes
        )
    )


def _flows_of(index: GuaranteedIndex, endpoint: EndpointRecord) -> Iterator[FlowRecord]:
    return (flow for flow in index.history.flows if flow.endpoint_id == endpoint.id)


def duplicates(index: GuaranteedIndex) -> Iterator[Violation]:
    """A publication is stored once in each endpoint, however often it was sent."""
    for what, copies in index.copies.items():
        publication = index.history.publication(what)
        if index.origin_of(what) is None or (publication and publication.number in index.ambiguous):
            continue
        places: dict[int, list[Stored]] = {}
        for one in copies:
            endpoint = index.endpoint(one.place)
            if endpoint is not None and not is_moved(one, endpoint):
                known = places.setdefault(endpoint.id, [])
                # A lane that gets another home keeps its positions.
                if all(one.place != other.place for other in known):
                    known.append(one)
        for endpoint_id, stored in places.items():
            if len(stored) > 1 + _partitions_left(index, what, endpoint_id):
                shown = [f"{one.place} at {one.at:.4f}" for one in stored]
                text = f"{index.history.endpoints[endpoint_id]} stored {publication or what} at {shown}"
                yield Violation("duplicate", text, whats=(what,))


def _partitions_left(index: GuaranteedIndex, what: str, endpoint_id: int) -> int:
    """Give how often a message was moved out of a closed partition, which makes one more, and the source goes."""
    return sum(endpoint_of(lane) == endpoint_id for lane, _ in index.rehomed.get(what, ()))


def refusals(index: GuaranteedIndex) -> Iterator[Violation]:
    """A refused message went to no endpoint at all, and to no subscriber."""
    for publication in index.history.publications:
        if publication.refused_at == FOREVER or publication.number in index.ambiguous:
            continue
        copies = [one for one in index.copies.get(_name(publication), ()) if _counts(index, one, publication)]
        if copies:
            text = f"{publication} was refused with {publication.code} and is stored at {copies[0].place}"
            yield Violation("refused", text, whats=(_name(publication),))
        if publication.is_acked:
            text = f"{publication} was refused with {publication.code}, and acknowledged"
            yield Violation("refused", text, whats=(_name(publication),))
    for flow in index.history.flows:
        for delivery in flow.deliveries:
            sent = index.history.publication(delivery.what)
            if (
                sent is not None
                and sent.refused_at < FOREVER
                and publication.number not in index.ambiguous
                and index.history.endpoints[flow.endpoint_id].deleted_at > publication.refused_at
            ):
                text = f"{publication} was refused, and {flow} got it"
                yield Violation("refused", text, whats=(delivery.what,))


def unroutable(index: GuaranteedIndex) -> Iterator[Violation]:
    """Publishers hear of exactly those acknowledged messages that no endpoint took."""
    for publication in index.history.publications:
        if not publication.is_acked or publication.number in index.ambiguous:
            continue
        name = _name(publication)
        if publication.is_unroutable:
            copies = [one for one in index.copies.get(name, ()) if _counts(index, one, publication)]
            if copies:
                text = f"{publication} was acknowledged as unroutable and is stored at {copies[0].place}"
                yield Violation("unroutable", text, whats=(name,))
        elif len(publication.sends) == 1:
            start, end = publication.sent_at, publication.acked_at
            is_stored = name in index.copies  # against the rules of interest, if nobody wanted it
            if not is_stored and not index.possible(
                publication.vpn, publication.topic, start, end, is_retained=publication.is_retained
            ):
                text = f"{publication} was acknowledged as taken, and no endpoint wanted it"
                yield Violation("unroutable", text, whats=(name,))


def _counts(index: GuaranteedIndex, stored: Stored, publication: Publication) -> bool:
    """Tell whether a copy speaks against a verdict: what is known of a message goes with its endpoint."""
    endpoint, at = index.endpoint(stored.place), publication.settled_at
    return endpoint is None or (endpoint.deleted_at > at and not was_emptied(endpoint, at))


def was_emptied(endpoint: EndpointRecord, at: float) -> bool:
    """Tell whether topic or selector were changed, which empties a topic endpoint (R149)."""
    generations = [change.attributes.get("generation") for change in endpoint.changes if change.at <= at]
    return len(dict.fromkeys(generations)) > 1


def reasons(index: GuaranteedIndex) -> Iterator[Violation]:
    """Messages are refused for what is the case, and nobody who may not publish is acknowledged (R57)."""
    for publication in index.history.publications:
        if publication.settled_at == FOREVER or publication.number in index.ambiguous:
            continue
        verdict = index.publish_verdict(publication)
        if publication.is_acked and verdict is False:
            text = f"{publication} was acknowledged against the ACL"
            yield Violation("leak", text, whats=(_name(publication),))
        if publication.refused_at < FOREVER and not _is_reason(index, publication, verdict):
            text = f"{publication} was refused with {publication.code} without a cause"
            yield Violation("refused", text, whats=(_name(publication),))


def _is_reason(index: GuaranteedIndex, publication: Publication, verdict: bool | None) -> bool:
    code = publication.code
    if code == errors.PUBLISH_DENIED:
        return verdict is not True
    start, end = publication.sent_at, publication.refused_at
    vpn, topic = publication.vpn, publication.topic
    if code == errors.UNKNOWN_ENDPOINT:
        return topic.startswith("#P2P/QUE/") and not index.certain(vpn, topic, start, end)
    if code == errors.NO_SUBSCRIPTION_MATCH:
        return not index.certain(vpn, topic, start, end, is_retained=publication.is_retained)
    possible = index.possible(vpn, topic, start, end, is_retained=publication.is_retained)
    if code == errors.DISK_FULL:
        return bool(possible) and any(
            one.at <= end and start <= one.until + ROOM_TOLD_S for one in index.lacks
        )
    ask = _CAUSES.get(code)
    return ask is not None and any(
        ask(publication, attributes) for endpoint in possible for attributes in endpoint.possible(start, end)
    )


def _may_be_full(_publication: Publication, _attributes: Attributes) -> bool:
    # Whether a quota was full is judged while the run goes on, by `quota`.
    return True


#: A router hears of room after a look of the home, which may hang, be ended because of that, and be replaced meanwhile.
ROOM_TOLD_S: Final = 8.0
#: Code -> whether these attributes of an endpoint are a reason for it.
_CAUSES: Final[dict[int, Callable[[Publication, Attributes], bool]]] = {
    errors.SPOOL_OVER_QUOTA: _may_be_full,
    errors.SPOOL_FILES_EXCEEDED: _may_be_full,
    errors.ENDPOINT_SHUTDOWN: lambda _, attributes: not attributes.get("ingress_enabled", True),
    errors.LOW_PRIORITY_CONGESTION: lambda _, attributes: bool(attributes.get("reject_low_priority")),
    errors.MESSAGE_TOO_LARGE: lambda publication, attributes: (
        publication.size - 64 > attributes.get("max_message_bytes", 10_000_000)
    ),
}


def positions(index: GuaranteedIndex) -> Iterator[Violation]:
    """A position names one message for ever, and new messages get higher ones (contract: never reused)."""
    names: dict[tuple[int, int], str] = {}
    #: (lane, worker) -> the newest; a lane that gets another home is at two for a while.
    newest: dict[tuple[int, int], int] = {}
    for what, place, worker in _uses(index):
        known = names.setdefault(place, what)
        if known != what:
            text = f"position {place} was {known!r}, and later {what!r}"
            yield Violation("position", text, whats=(known, what))
        if worker is not None:
            lane, position = place
            last = newest.get((lane, worker), 0)
            if position <= last:
                text = f"{what!r} was stored at {place}, when {last} had been given already"
                yield Violation("position", text, whats=(what,))
            newest[lane, worker] = max(last, position)


def _uses(index: GuaranteedIndex) -> Iterator[tuple[str, tuple[int, int], int | None]]:
    """Give every (what, place), and the worker that stored it if that was new."""
    for event in index.stored.values():
        yield event.what, event.place, event.worker
    for copies in index.copies.values():
        for one in copies:
            yield one.what, one.place, None
    for flow in index.history.flows:
        for delivery in flow.deliveries:
            yield delivery.what, delivery.place, None


def order(index: GuaranteedIndex) -> Iterator[Violation]:
    """Each lane stores the messages of one producer in the order of their sequences (R163)."""
    last: dict[tuple[int, int], Publication] = {}
    for stored in index.stored.values():
        endpoint = index.endpoint(stored.place)
        publication = index.history.publication(stored.what)
        if publication is None or stored.origin is not None or endpoint is None:
            continue
        if publication.number in index.ambiguous:
            continue  # its sequence means another message too
        if endpoint.is_repartitioned:
            continue  # a key is in another partition after it, and messages are moved along
        key = (stored.place[0], id(publication.producer))
        before = last.get(key)
        if before is not None and before.sequence > publication.sequence:
            text = f"{endpoint} stored {publication} at {stored.place}, behind {before}"
            yield Violation("order", text, whats=(_name(before), stored.what))
        last[key] = publication


def partitions(index: GuaranteedIndex) -> Iterator[Violation]:
    """Messages with one partition key go to one partition, that of the key."""
    for stored in index.stored.values():
        endpoint = index.endpoint(stored.place)
        publication = index.history.publication(stored.what)
        if publication is None or endpoint is None or publication.key is None or stored.origin is not None:
            continue
        counts = {
            attributes.get("partition_count", 0)
            for attributes in endpoint.possible(publication.sent_at, FOREVER)
        }
        right = [partition_of(publication.key, count) if count else 0 for count in sorted(counts)]
        if stored.place[0] & 1023 not in right:
            text = f"{publication} with the key {publication.key!r} is at {stored.place}, right are {right}"
            yield Violation("partition", text, whats=(stored.what,))


def strangers(index: GuaranteedIndex) -> Iterator[Violation]:
    """An endpoint stores only what its subscriptions let it, of its own Message VPN (R53)."""
    for what, copies in index.copies.items():
        for stored in copies:
            endpoint = index.endpoint(stored.place)
            if index.origin_of(what) is None:
                continue  # a hostile client's, or nobody's
            if endpoint is None:
                text = f"{stored.what!r} is stored at {stored.place}, which was never made"
                yield Violation("leak", text, whats=(what,))
            elif not is_moved(stored, endpoint):
                fault = _stranger(index, endpoint, stored)
                if fault:
                    text = f"{endpoint} stored {stored.what!r} at {stored.at:.4f}: {fault}"
                    yield Violation("leak", text, whats=(what,))
            elif not _came_from(index, endpoint, stored):
                text = f"{endpoint} stored {stored.what!r} from {stored.origin}, which never had it"
                yield Violation("leak", text, whats=(what,))


def _stranger(index: GuaranteedIndex, endpoint: EndpointRecord, stored: Stored) -> str:
    origin = index.origin_of(stored.what)
    if origin is None:
        return ""
    vpn, topic, sent_at, _ = origin
    if vpn != endpoint.vpn:
        return f"it is of another Message VPN, {vpn}"
    if sent_at > stored.at:
        return f"it was sent at {sent_at:.4f}"
    is_retained = index.is_retained(stored.what)
    if not index.may_take(endpoint, topic, sent_at, stored.at, is_retained=is_retained):
        return f"no subscription took {topic!r}"
    return ""


def _came_from(index: GuaranteedIndex, endpoint: EndpointRecord, stored: Stored) -> bool:
    assert stored.origin is not None
    kind, name, _ = stored.origin
    for one in index.history.endpoints.values():
        if (one.vpn, one.kind, one.name) != (endpoint.vpn, kind, name):
            continue
        if index.history.is_relaxed(one) or stored.what.isdigit():
            return True
        if any(
            endpoint_of(copy.place[0]) == one.id and copy.at <= stored.at
            for copy in index.copies[stored.what]
        ):
            return True
    return False


def moves(index: GuaranteedIndex) -> Iterator[Violation]:
    """Every move is a publish, once: of each message that dies one copy comes out."""
    for what, copies in index.copies.items():
        if index.origin_of(what) is None:
            continue
        counts: dict[tuple[str, str, str, int], int] = {}
        for one in copies:
            endpoint = index.endpoint(one.place)
            if one is not index.stored[one.place]:
                continue
            if endpoint is None or one.origin is None or not is_moved(one, endpoint):
                continue
            kind, name, reason = one.origin
            if reason != "copied":
                key = (endpoint.vpn, kind, name, endpoint.id)
                counts[key] = counts.get(key, 0) + 1
        for (vpn, kind, name, target), count in counts.items():
            sources = [
                one
                for one in copies
                if one is index.stored[one.place]
                and (source := index.endpoint(one.place)) is not None
                and (source.vpn, source.kind, source.name) == (vpn, kind, name)
            ]
            relaxed = any(
                index.history.is_relaxed(one)
                for one in index.history.endpoints.values()
                if (one.vpn, one.kind, one.name) == (vpn, kind, name)
            )
            came = count - _partitions_left(index, what, target)
            if came > len(sources) and not relaxed and not what.isdigit():
                text = f"{what!r} came {came} times from {name!r} to {index.history.endpoints[target]}"
                text += f", which had it {len(sources)} times"
                yield Violation("duplicate", text, whats=(what,))


def last_sequences(index: GuaranteedIndex) -> Iterator[Violation]:
    """Whoever opens a producer is told at least the newest sequence that some endpoint holds of it."""
    for producer in (*index.history.producers.values(), *index.history.forgotten):
        for opening in producer.opens:
            if opening.code != 0 or opening.answered_at > producer.forgotten_at:
                continue  # refused, or somebody may have had the name forgotten before
            newest = _newest_known(index, producer, opening.asked_at, opening.answered_at)
            if newest is not None and newest.sequence > opening.last_sequence:
                text = f"{producer} was opened at {opening.answered_at:.4f} with {opening.last_sequence}"
                yield Violation("sequence", f"{text}, but {newest} is stored", whats=(_name(newest),))


def _newest_known(
    index: GuaranteedIndex, producer: object, before: float, until: float
) -> Publication | None:
    newest = None
    for one in index.history.publications:
        if one.producer is not producer or one.acked_at > before or one.number in index.ambiguous:
            continue
        held = any(
            (endpoint := index.endpoint(copy.place)) is not None
            and not is_moved(copy, endpoint)
            and endpoint.deleted_at > until
            and len({change.attributes.get("generation") for change in endpoint.changes}) == 1
            and not index.history.is_relaxed(endpoint)
            for copy in index.copies.get(_name(one), ())
        )
        if held and (newest is None or newest.sequence < one.sequence):
            newest = one
    return newest


def settlement(index: GuaranteedIndex) -> Iterator[Violation]:
    """In the end every publisher that stays knows what became of each message."""
    if index.history.drained_at == FOREVER:
        return
    for one in index.history.publications:
        if one.sends and one.settled_at == FOREVER and one.abandoned_at == FOREVER:
            text = f"{one} was sent at {one.sent_at:.4f}, and never settled"
            yield Violation("unsettled", text, whats=(_name(one),))


def _name(publication: Publication) -> str:
    return f"g{publication.number}"


RULES = (
    completeness,
    duplicates,
    refusals,
    unroutable,
    reasons,
    positions,
    order,
    partitions,
    strangers,
    moves,
    last_sequences,
    settlement,
)
