"""A history of guaranteed messages as the rules ask for it: what had to be where, and where everything was."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from angarium import wire
from angarium.topic import matches
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.records import (
    Bound,
    Emitted,
    Gone,
    HomeSettled,
    LackedRoom,
    Rehomed,
    Stored,
    Unbound,
    WasFull,
    Wrote,
    endpoint_of,
    filters_of,
    takes,
)
from tests.simulation.guaranteed.retained_records import all_kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.access import TopicRules
    from tests.simulation.event_history import ConnectionRecord, History, Message
    from tests.simulation.guaranteed.records import (
        Attributes,
        EndpointRecord,
        FlowDelivery,
        FlowRecord,
        GuaranteedHistory,
        HomeEvent,
        Place,
        Publication,
    )


#: Why a message was moved by its home.
DEAD = ("rejected", "expired", "redeliveries")


class Got(NamedTuple):
    """One message at one flow."""

    flow: FlowRecord
    delivery: FlowDelivery


class Said(NamedTuple):
    """What a client said of one message."""

    flow: FlowRecord
    outcome: int
    at: float


class GuaranteedIndex:
    """The history as the rules ask for it."""

    def __init__(self, history: History, guaranteed: GuaranteedHistory) -> None:
        self.direct = history
        self.history = guaranteed
        #: What -> where it was stored, in order.
        self.copies: dict[str, list[Stored]] = {}
        #: Place -> the first time something was stored there.
        self.stored: dict[Place, Stored] = {}
        self.gone: dict[Place, Gone] = {}
        #: Place -> the workers on whose disks it is.
        self._disks: dict[Place, dict[int, None]] = {}
        #: Place -> what homes sent of it to consumers, in order.
        self.emitted: dict[Place, list[Emitted]] = {}
        #: Lane -> everything that concerns it, in order. Deaths are in `deaths`.
        self.lanes: dict[int, list[HomeEvent]] = {}
        #: Worker -> its commits, in order.
        self.writes: dict[int, list[Wrote]] = {}
        #: What -> the moves between partitions that were asked for: (lane, sequence).
        self.rehomed: dict[str, dict[tuple[int, int], None]] = {}
        #: Worker -> when its disk had no room for a commit, in order.
        self.full: dict[int, list[float]] = {}
        #: When some disk had no room for anything new.
        self.lacks: list[LackedRoom] = []
        #: (time, worker).
        self.deaths: list[tuple[float, int]] = []
        for event in guaranteed.home_events:
            self._sort_in(event)
        #: Place -> flows that got it, in the order of binds; browsers are left out.
        self.got: dict[Place, list[Got]] = {}
        self.said: dict[Place, list[Said]] = {}
        for flow in guaranteed.flows:
            self._sort_flow_in(flow)
        self._by_vpn: dict[str, list[EndpointRecord]] = {}
        for endpoint in guaranteed.endpoints.values():
            self._by_vpn.setdefault(endpoint.vpn, []).append(endpoint)
        self._takes: dict[tuple[int, int, str, bool], bool] = {}
        self.ambiguous = self._shared_sequences()
        #: What was published to be retained, and not refused.
        self.kept = all_kept(history, guaranteed)
        self._retained_at: dict[tuple[int, str], dict[int, Stored]] | None = None

    def _sort_in(self, event: HomeEvent) -> None:
        if isinstance(event, Stored):
            self._disks.setdefault(event.place, {})[event.worker] = None
            self.copies.setdefault(event.what, []).append(event)
            self.stored.setdefault(event.place, event)
            self.lanes.setdefault(event.place[0], []).append(event)
        elif isinstance(event, Gone):
            self._note_gone(event)
        elif isinstance(event, Emitted):
            for position in event.positions if not event.is_browser else ():
                self.emitted.setdefault((event.lane, position), []).append(event)
            self.lanes.setdefault(event.lane, []).append(event)
        elif isinstance(event, (Bound, HomeSettled, Unbound)):
            self.lanes.setdefault(event.lane, []).append(event)
        elif isinstance(event, Rehomed):
            self.rehomed.setdefault(event.what, {})[event.lane, event.sequence] = None
        elif isinstance(event, Wrote):
            self.writes.setdefault(event.worker, []).append(event)
        elif isinstance(event, WasFull):
            self.full.setdefault(event.worker, []).append(event.at)
        elif isinstance(event, LackedRoom):
            self.lacks.append(event)
        else:
            self.deaths.append((event.at, event.worker))

    def _note_gone(self, event: Gone) -> None:
        """A place is gone when no disk has it: a lane that gets another home is on two for a moment."""
        disks = self._disks.get(event.place, {})
        disks.pop(event.worker, None)
        if not disks:
            self.gone.setdefault(event.place, event)
            self.lanes.setdefault(event.place[0], []).append(event)

    def stored_in(self, lane: int, start: int, end: int) -> Iterator[tuple[Place, Stored]]:
        """Give what was ever stored in a range of positions."""
        for position in range(start, end):
            found = self.stored.get((lane, position))
            if found is not None:
                yield (lane, position), found

    def had_homes(self, lane: int) -> int:
        """Count the workers that stored messages of a lane."""
        return len({one.worker for one in self.lanes.get(lane, ()) if isinstance(one, Stored)})

    def tries_of_readers(self, lane: int, at: float) -> int:
        """Count how often messages of a lane may have been tried because of reader groups: when they came, and went."""
        spans = [span for reader in self.history.readers for span in reader.leases.get(lane, ())]
        return sum((start <= at) + (end <= at) for start, end in spans)

    def is_leased(self, lane: int) -> bool:
        """Tell whether a reader group had a lane at some time."""
        return any(lane in reader.leases for reader in self.history.readers)

    def _sort_flow_in(self, flow: FlowRecord) -> None:
        if flow.is_browser:
            return
        for delivery in flow.deliveries:
            self.got.setdefault(delivery.place, []).append(Got(flow, delivery))
        for settle in flow.settles:
            for place in settle.places:
                self.said.setdefault(place, []).append(Said(flow, settle.outcome, settle.at))

    def _shared_sequences(self) -> set[int]:
        """Give the publications whose producer's name somebody else used with the same sequence.

        Then nobody can tell them apart, by the rules of the protocol: the name and the sequence are the identity.
        """
        users: dict[tuple[int, int], list[int]] = {}
        for one in self.history.publications:
            if one.sends:
                users.setdefault((id(one.producer), one.sequence), []).append(one.number)
        found = {number for numbers in users.values() if len(numbers) > 1 for number in numbers}
        # Who sends again what another one made the node forget, sends something new.
        found |= {
            one.number for one in self.history.publications if one.producer.forgotten_at < one.settled_at
        }
        return found

    # Matching.

    def takes(
        self, endpoint: EndpointRecord, attributes: Attributes, topic: str, *, is_retained: bool = False
    ) -> bool:
        """Tell whether an endpoint with these attributes takes a topic; asked once each."""
        key = (endpoint.id, id(attributes), topic, is_retained)
        verdict = self._takes.get(key)
        if verdict is None:
            verdict = self._takes[key] = takes(endpoint, attributes, topic, is_retained=is_retained)
        return verdict

    def certain(
        self, vpn: str, topic: str, start: float, end: float, *, is_retained: bool = False
    ) -> list[EndpointRecord]:
        """Give the endpoints that certainly took a topic all the time between, by one and the same subscription."""
        return [
            endpoint
            for endpoint in self._by_vpn.get(vpn, ())
            if endpoint.existed(start, end)
            and all(
                self.takes(endpoint, one, topic, is_retained=is_retained)
                for one in endpoint.possible(start, end)
            )
            and self._is_steady(endpoint, topic, start, end)
        ]

    def _is_steady(self, endpoint: EndpointRecord, topic: str, start: float, end: float) -> bool:
        """Tell whether one subscription of those that match was there all the time, and the endpoint never emptied."""
        states = endpoint.possible(start, end)
        if len({one.get("generation") for one in states}) > 1:
            return False
        if topic.startswith(wire.QUEUE_TOPIC_PREFIX) or len(states) == 1 or endpoint.retains:
            return True
        common = set.intersection(*(set(filters_of(endpoint.kind, one)[0]) for one in states))
        return any(matches(pattern, topic) for pattern in sorted(common))

    def may_take(
        self, endpoint: EndpointRecord, topic: str, start: float, end: float, *, is_retained: bool = False
    ) -> bool:
        """Tell whether an endpoint may have taken a topic at some time between."""
        return any(
            self.takes(endpoint, one, topic, is_retained=is_retained) for one in endpoint.possible(start, end)
        )

    def possible(
        self, vpn: str, topic: str, start: float, end: float, *, is_retained: bool = False
    ) -> list[EndpointRecord]:
        """Give the endpoints that may have taken a topic at some time between."""
        return [
            one
            for one in self._by_vpn.get(vpn, ())
            if self.may_take(one, topic, start, end, is_retained=is_retained)
        ]

    def retained_at(self, lane: int, topic: str) -> dict[int, Stored]:
        """Give what a lane ever stored to retain it of a topic, by positions."""
        if self._retained_at is None:
            self._retained_at = {}
            for (its, position), stored in self.stored.items():
                endpoint, kept = self.history.endpoints.get(endpoint_of(its)), self.kept.get(stored.what)
                if endpoint is not None and endpoint.retains and kept is not None:
                    self._retained_at.setdefault((its, kept.topic), {})[position] = stored
        return self._retained_at.get((lane, topic), {})

    def is_retained(self, what: str) -> bool:
        """Tell whether what is in a payload was published to be retained."""
        publication = self.history.publication(what)
        if publication is not None:
            return publication.is_retained
        return what.isdigit() and self.direct.messages[int(what)].is_retained

    def find(self, vpn: str, kind: str, name: str, at: float) -> EndpointRecord | None:
        """Give the endpoint of a name that certainly was there at a time."""
        for endpoint in self._by_vpn.get(vpn, ()):
            if (endpoint.kind, endpoint.name) == (kind, name) and endpoint.existed(at, at):
                return endpoint
        return None

    # Messages.

    def origin_of(self, what: str) -> tuple[str, str, float, float] | None:
        """Give VPN, topic, first sending and settlement of what is in a payload; None if nobody of ours sent it."""
        publication = self.history.publication(what)
        if publication is not None:
            return publication.vpn, publication.topic, publication.sent_at, publication.settled_at
        if not what.isdigit():
            return None
        message: Message = self.direct.messages[int(what)]
        return message.publisher.vpn, message.topic, message.sent_at, message.retired_at

    def senders_of(self, what: str) -> frozenset[str]:
        """Name the clients that sent what is in a payload."""
        publication = self.history.publication(what)
        if publication is not None:
            return publication.senders
        return frozenset([self.direct.messages[int(what)].publisher.client] if what.isdigit() else [])

    def copies_in(self, endpoint: EndpointRecord, what: str) -> list[Stored]:
        """Give where an endpoint stored something, but for what was moved there from another one."""
        return [
            one
            for one in self.copies.get(what, ())
            if endpoint_of(one.place[0]) == endpoint.id and not is_moved(one, endpoint)
        ]

    def endpoint(self, place: Place) -> EndpointRecord | None:
        """Give the endpoint of a place; None if nobody ever made it."""
        return self.history.endpoints.get(endpoint_of(place[0]))

    def publish_verdict(self, publication: Publication) -> bool | None:
        """Tell whether the publisher was allowed to, all the time that counts; None if that changed."""
        timeline = self.direct.rights[publication.vpn, publication.producer.username]
        start, end = publication.sent_at, publication.settled_at
        current = max((one.since for one in timeline if one.since <= start), default=0.0)
        rules: list[TopicRules] = [one.publish for one in timeline if current <= one.since <= end]
        verdicts = {one.allows_publish(publication.topic) for one in rules}
        return verdicts.pop() if len(verdicts) == 1 else None

    def flows_on(self, connection: ConnectionRecord) -> list[FlowRecord]:
        """Give the flows of a connection."""
        return [flow for flow in self.history.flows if flow.connection is connection]

    def expiry_ms(self, place: Place, *, earliest: bool) -> float:
        """Give the wall ms at which a stored message expires: at the earliest, or at the latest."""
        stored, endpoint = self.stored.get(place), self.endpoint(place)
        if stored is None or endpoint is None:
            return FOREVER
        own = self._own_end_ms(stored, earliest=earliest)
        moments = []
        for attributes in endpoint.possible(stored.at, FOREVER):
            longest = attributes.get("max_ttl_s", 0) * 1000
            limit = stored.stored_ms + longest if longest else FOREVER
            moments.append(min(own, limit) if attributes.get("respect_ttl", True) else FOREVER)
        choose = min if earliest else max
        return choose(moments, default=FOREVER)

    def _own_end_ms(self, stored: Stored, *, earliest: bool) -> float:
        """Give when the message's own time to live ends; what was dead once has none any more."""
        publication = self.history.publication(stored.what)
        if publication is None or not publication.ttl_ms:
            return FOREVER
        if stored.origin is None:
            return stored.stored_ms + publication.ttl_ms
        if stored.origin[2] in DEAD:
            return FOREVER
        # Where it was before some of its time passed, or it died there and has none.
        sent_ms = self.history.wall_ms(publication.sent_at)
        return sent_ms + publication.ttl_ms if earliest else FOREVER


def is_moved(stored: Stored, endpoint: EndpointRecord) -> bool:
    """Tell whether a copy came from another endpoint, not from its publisher."""
    return stored.origin is not None and tuple(stored.origin[:2]) != (endpoint.kind, endpoint.name)


def partition_of(key: str, partitions: int) -> int:
    """Give the partition of a key."""
    return zlib.crc32(key.encode()) % partitions
