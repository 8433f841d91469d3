"""What consumers may rely on: what they get, when, how often, marked how, and in which order.

Most of it is judged where a home sends, because there nothing is under way; what a client got counts for marks,
selectors and limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from angarium.topic import matches
from node.home.spool import writing
from node.home.spool.writing import FULL_RETRY_S
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.index import is_moved
from tests.simulation.guaranteed.records import HomeSettled, endpoint_of
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.event_history import ConnectionRecord
    from tests.simulation.guaranteed.index import Got, GuaranteedIndex
    from tests.simulation.guaranteed.records import (
        Emitted,
        EndpointRecord,
        FlowDelivery,
        FlowRecord,
        Place,
        ProducerRecord,
        Stored,
    )

#: A home looks at its clock at least so often while it sends.
CLOCK_S = 0.3
#: A home that lives knows settings that are in force after so long.
TOLD_S = 0.6
#: Nobody loses more messages at once in a run.
LOST_MIN = 1_000
#: What is due is in the next commit that begins; a little more if another one was out.
WRITE_S = 0.01


def unsynced(index: GuaranteedIndex) -> Iterator[Violation]:
    """Nothing is sent to a consumer before it is on disk, but for relaxed endpoints (R164).

    Direct messages that an endpoint attracts are relaxed everywhere.
    """
    for place, sent in index.emitted.items():
        endpoint, stored = index.endpoint(place), index.stored.get(place)
        if endpoint is None or index.history.is_relaxed(endpoint) or (stored and stored.at <= sent[0].at):
            continue
        names = [stored.what] if stored else [one.delivery.what for one in index.got.get(place, ())]
        if any(index.history.publication(what) is not None for what in names):
            text = f"{endpoint} sent {place} at {sent[0].at:.4f}, it was on disk at {stored and stored.at}"
            yield Violation("unsynced", text, whats=tuple(names))


def _whats(index: GuaranteedIndex, place: Place) -> tuple[str, ...]:
    stored = index.stored.get(place)
    return () if stored is None else (stored.what,)


def resurrections(index: GuaranteedIndex) -> Iterator[Violation]:
    """What is gone from the disk is never sent again: acknowledged, purged, expired or deleted (R165)."""
    for place, gone in index.gone.items():
        for sent in index.emitted.get(place, ()):
            if sent.at > gone.at:
                text = f"{index.endpoint(place)} sent {place} at {sent.at:.4f}, it was gone at {gone.at:.4f}"
                yield Violation("resurrected", text, whats=_whats(index, place))
                break


def forgotten(index: GuaranteedIndex) -> Iterator[Violation]:
    """What a consumer accepted is written with the next commit that begins after the delay for it, and stays gone.

    Nobody confirms it to the consumer, who has to expect a redelivery after a crash; but not for ever. What was not on
    disk itself when it was accepted comes again with the STORE that the router sends again.
    """
    if writing.DEAD_PER_WRITE < LOST_MIN:
        return  # what was accepted takes several commits, as many as there are messages
    for lane, events in index.lanes.items():
        for event in events:
            if not isinstance(event, HomeSettled) or event.outcome != wire.OUTCOME_ACCEPTED:
                continue
            written = _written_by(index, event)
            for position in event.positions:
                sent = index.emitted.get((lane, position), [])
                # Only what that flow had then: a late word on what is somebody else's counts for nothing, though that
                # flow has it in the same moment.
                last = max((one for one in sent if one.at < event.at), key=_time, default=None)
                if last is None or last.flow != event.flow or last.worker != event.worker:
                    continue
                if index.is_leased(lane) and _died_between(index, event.worker, last.at, event.at):
                    continue  # refused: what consumers had is a reader group's now
                stored = index.stored.get((lane, position))
                if stored is None or stored.at > event.at:
                    continue
                if any(one.at > written for one in sent):
                    text = f"{(lane, position)} was accepted at {event.at:.4f}, written by {written:.4f}"
                    yield Violation(
                        "forgotten", f"{text}, and sent again", whats=_whats(index, (lane, position))
                    )


def _died_between(index: GuaranteedIndex, worker: int, start: float, end: float) -> bool:
    """Tell whether a worker died in that time."""
    return any(start <= at <= end for at, died in index.deaths if died == worker)


def _written_by(index: GuaranteedIndex, event: HomeSettled) -> float:
    """Give when what was settled is on disk for certain; FOREVER if the process may have died before."""
    due = event.at + index.history.ack_delay_s + WRITE_S
    died = min(
        (at for at, worker in index.deaths if worker == event.worker and at >= event.at), default=FOREVER
    )
    # What was in a commit for which there was no room is not in the next ones: it waits before it is tried again.
    full = index.full.get(event.worker, ())
    writes = index.writes.get(event.worker, ())
    return next(
        (
            one.at
            for one in writes
            if one.begun_at >= due
            and one.at <= died
            and not any(0 <= one.begun_at - at <= FULL_RETRY_S + WRITE_S for at in full)
        ),
        FOREVER,
    )


def _time(event: Emitted) -> float:
    return event.at


def purges(index: GuaranteedIndex) -> Iterator[Violation]:
    """What an operator was told to be purged or deleted never comes again."""
    for endpoint in index.history.endpoints.values():
        for operation in endpoint.operations:
            if not operation.is_done or operation.kind not in ("purge", "delete"):
                continue
            lane = endpoint.id << wire.LANE_BITS | operation.partition
            for place, sent in index.emitted.items():
                if place[0] != lane or sent[-1].at <= operation.answered_at:
                    continue
                stored = index.stored.get(place)
                named = operation.positions is None or place[1] in operation.positions
                if stored is not None and stored.at <= operation.asked_at and named:
                    text = (
                        f"{endpoint} sent {place} at {sent[-1].at:.4f}, {operation.kind} was answered before"
                    )
                    yield Violation("resurrected", text, whats=_whats(index, place))


def contents(index: GuaranteedIndex) -> Iterator[Violation]:
    """A consumer gets what is stored at a position, from an endpoint of its own Message VPN, and nothing else."""
    for flow in index.history.flows:
        for delivery in flow.deliveries:
            fault = _wrong(index, flow, delivery)
            if fault:
                text = f"{flow} got {delivery.what!r} from {delivery.place}: {fault}"
                yield Violation("leak", text, whats=(delivery.what,))


def _wrong(index: GuaranteedIndex, flow: FlowRecord, delivery: FlowDelivery) -> str:
    endpoint = index.endpoint(delivery.place)
    if endpoint is None or endpoint.id != flow.endpoint_id:
        return f"it is bound to endpoint {flow.endpoint_id}"
    if endpoint.vpn != flow.connection.vpn:
        return f"the endpoint is in {endpoint.vpn}"
    stored = index.stored.get(delivery.place)
    if stored is not None and stored.what != delivery.what:
        return f"{stored.what!r} is stored there"
    if flow.selector is not None and not selects(flow.selector, delivery.what):
        return f"the selector {flow.selector!r} does not select it"
    if flow.no_local and index.senders_of(delivery.what) == {flow.connection.client}:
        return "its own client sent it, and it is bound with no_local"
    origin = index.origin_of(delivery.what)
    if origin is None or delivery.origin is not None or (stored is not None and is_moved(stored, endpoint)):
        return ""
    vpn, topic, sent_at, _ = origin
    if vpn != endpoint.vpn:
        return f"it was published in {vpn}"
    if sent_at > delivery.at or not index.may_take(endpoint, topic, sent_at, delivery.at):
        return f"no subscription took {topic!r}"
    return ""


#: Messages have one of these as their property "color", by their number.
COLORS = ("red", "green", "blue")


def color_of(what: str) -> str:
    """Give the property of a message that selectors ask for."""
    return COLORS[int(what.lstrip("g")) % len(COLORS)]


def selects(selector: str, what: str) -> bool:
    """Tell whether a selector of the simulation (`color = 'red'`) selects a message; direct ones have no color."""
    return what[:1] == "g" and what[1:].isdigit() and f"'{color_of(what)}'" in selector


def marks(index: GuaranteedIndex) -> Iterator[Violation]:
    """What may have been delivered before is marked as redelivered: unmarked it comes once at most (R190).

    So it is when it was moved to another partition of its queue meanwhile. A direct message that was sent before it was
    on disk, and whose worker died then, is stored again and comes as a new one.
    """
    unmarked: dict[tuple[int | Place, str], list[Got]] = {}
    for place, got in index.got.items():
        for one in got:
            is_direct = index.history.publication(one.delivery.what) is None
            if one.delivery.tries == 0 and not (is_direct and place not in index.stored):
                moved = one.delivery.what in index.rehomed and index.origin_of(one.delivery.what) is not None
                # What came from another endpoint may come from there again.
                within = moved and one.delivery.origin is None
                where: int | Place = endpoint_of(place[0]) if within else place
                unmarked.setdefault((where, one.delivery.what), []).append(one)
    for (_, what), got in unmarked.items():
        endpoint = index.endpoint(got[0].delivery.place)
        if len(got) < 2 or endpoint is None or index.history.is_relaxed(endpoint):
            continue
        shown = [f"{one.flow} from {one.delivery.place} at {one.delivery.at:.4f}" for one in got]
        yield Violation("unmarked", f"{what!r} came unmarked to {shown}", whats=(what,))


def first_order(index: GuaranteedIndex) -> Iterator[Violation]:
    """A flow gets the messages of a lane in the order of their positions, the first time (R101)."""
    for flow in index.history.flows:
        endpoint = index.history.endpoints.get(flow.endpoint_id)
        if endpoint is None or not keeps_order(endpoint, index):
            continue
        if any(one.kind in ("move", "redrive") for one in endpoint.operations):
            continue  # what its target refuses comes back, and others were delivered meanwhile
        last: dict[int, FlowDelivery] = {}
        for delivery in flow.deliveries:
            lane, position = delivery.place
            before = last.get(lane)
            if flow.is_browser and index.had_homes(lane) > 1:
                continue  # a browser begins again at another home
            if delivery.tries == 0 and not (shares(endpoint) and _was_with_another(index, delivery)):
                if before is not None and before.place[1] >= position:
                    text = f"{flow} got {delivery.what!r} from {delivery.place} behind {before.place}"
                    yield Violation("order", text, whats=(before.what, delivery.what))
                last[lane] = delivery


def shares(endpoint: EndpointRecord) -> bool:
    """Tell whether several consumers may have had messages of one lane at a time."""
    return any(
        change.attributes.get("access_type") == "non-exclusive"
        and not change.attributes.get("partition_count")
        for change in endpoint.changes
    )


def _was_with_another(index: GuaranteedIndex, delivery: FlowDelivery) -> bool:
    """Tell whether another flow had it and gave it back unseen; others may have got later ones meanwhile."""
    return len({one.flow for one in index.emitted.get(delivery.place, ()) if one.at < delivery.at}) > 1


def keeps_order(endpoint: EndpointRecord, index: GuaranteedIndex) -> bool:
    """Tell whether nothing that the documentation names may change the order of an endpoint."""
    return not any(
        change.attributes.get("respect_priority")
        or change.attributes.get("delivery_delay_s")
        or change.attributes.get("redelivery_delay_enabled")
        for change in endpoint.changes
    ) and not any(one.delay_ms for one in index.history.publications)


def times(index: GuaranteedIndex) -> Iterator[Violation]:
    """Nothing is sent after its time to live, and nothing before its delay is over (R198, R200)."""
    for place, sent in index.emitted.items():
        stored, endpoint = index.stored.get(place), index.endpoint(place)
        if stored is None or endpoint is None:
            continue
        latest = index.expiry_ms(place, earliest=False)
        last = sent[-1]
        if index.history.wall_between(last.at - CLOCK_S, last.at)[0] > latest:
            text = f"{endpoint} sent {place} at {last.at:.4f}, it had expired at wall {latest}"
            yield Violation("expired", text, whats=(stored.what,))
        if _was_over(index, endpoint, stored, last.at):
            text = f"{endpoint} sent {place} at {last.at:.4f}, longer after {stored.stored_ms} than its settings say"
            yield Violation("expired", text, whats=(stored.what,))
        publication = index.history.publication(stored.what)
        if publication is None or stored.origin is not None or not publication.delay_ms:
            continue
        if index.is_leased(place[0]):
            continue  # ranges of reader groups go by positions, and what is ready for them stays ready
        due = stored.stored_ms + publication.delay_ms
        if index.history.wall_between(stored.at, sent[0].at)[1] + 1 < due:
            text = f"{endpoint} sent {publication} at {sent[0].at:.4f}, its delay ends at wall {due}"
            yield Violation("delay", text, whats=(stored.what,))


def _was_over(index: GuaranteedIndex, endpoint: EndpointRecord, stored: Stored, at: float) -> bool:
    """Tell whether all settings that may have been in force when a message was sent say that its time was over."""
    now_ms = index.history.wall_between(at - CLOCK_S, at)[0]
    return all(
        one.get("respect_ttl", True)
        and one.get("max_ttl_s", 0)
        and stored.stored_ms + one["max_ttl_s"] * 1000 < now_ms
        for one in endpoint.possible(at - TOLD_S, at)
    )


def credit(index: GuaranteedIndex) -> Iterator[Violation]:
    """A flow never gets more messages than it granted."""
    for flow in index.history.flows:
        for fault in flow.faults:
            yield Violation("credit", f"{flow}: {fault}")


def copies_of_demoted(index: GuaranteedIndex) -> Iterator[Violation]:
    """Copies for direct subscribers stay in their Message VPN, and go to whom a subscription let them (R156)."""
    for connection, number, _, at in index.history.demoted:
        publication = index.history.publications[number]
        if publication.vpn != connection.vpn:
            yield Violation("leak", f"{connection} got a copy of {publication} of another Message VPN")
        elif index.publish_verdict(publication) is False:
            yield Violation("leak", f"{connection} got a copy of {publication} against the ACL")
        elif not any(
            one.may_hold(publication.sent_at, at) and matches(one.parsed.pattern, publication.topic)
            for one in connection.subscriptions
        ):
            yield Violation("leak", f"{connection} got a copy of {publication}, no subscription held")


def order_of_demoted(index: GuaranteedIndex) -> Iterator[Violation]:
    """A direct subscriber gets what a producer published once, in its order, however often it was sent (R156)."""
    last: dict[tuple[ConnectionRecord, ProducerRecord, int], int] = {}
    for connection, number, share, _ in index.history.demoted:
        publication = index.history.publications[number]
        if share is not None or publication.flags & wire.FLAG_ELIDING:
            continue
        # While a subscriber is slow, a class of service may overtake another one.
        line = connection, publication.producer, publication.flags & wire.FLAG_COS
        before = last.get(line, 0)
        if publication.sequence <= before:
            rule = "duplicate" if publication.sequence == before else "order"
            yield Violation(rule, f"{connection} got a copy of {publication} behind that with {before}")
        last[line] = max(before, publication.sequence)


RULES = (
    unsynced,
    resurrections,
    forgotten,
    purges,
    contents,
    marks,
    first_order,
    times,
    credit,
    copies_of_demoted,
    order_of_demoted,
)
