"""What acknowledgements promise across nodes: each message once in every endpoint that wants it, here and there.

A message is judged by the disks: where it was stored by its publisher's doing, which is not where a home moved it to.
At its own node it is in every endpoint that took it before it is acknowledged. At a neighbour it comes to every queue
that never changed what it wants, sooner or later, once; or it stands in the dead message queue of the link because the
neighbour refused it, and then it is in no queue over there. What a link has on disk, it carries over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from angarium.topic import matches as takes_topic
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.index import is_moved
from tests.simulation.guaranteed.records import PUBLICATION_MARK, Emitted, Stored, endpoint_of, takes
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.event_history import ConnectionRecord
    from tests.simulation.guaranteed.records import Attributes, EndpointRecord, Publication
    from tests.simulation.mesh.mesh_history import MeshHistory

#: Clocks count whole milliseconds.
ROUNDING_MS = 3


class Copy:
    """One message in one endpoint, put there by a publisher or a link."""

    __slots__ = ("endpoint", "node", "stored")

    def __init__(self, node: str, endpoint: EndpointRecord, stored: Stored) -> None:
        self.node = node
        self.endpoint = endpoint
        self.stored = stored

    def __repr__(self) -> str:
        return f"{self.endpoint} of node {self.node} at {self.stored.place}, {self.stored.at:.4f}"


class CrossingIndex:
    """The history as the rules ask for it."""

    def __init__(self, history: MeshHistory) -> None:
        self.history = history
        #: What -> its copies, in endpoints of clients.
        self.copies: dict[str, list[Copy]] = {}
        #: What -> its copies in queues of links, by (node, name of the queue); moved ones too.
        self.carried: dict[str, dict[tuple[str, str], Copy]] = {}
        #: (node, place) -> when homes sent it to a consumer first.
        self.emitted: dict[tuple[str, int, int], float] = {}
        for name, records in history.nodes.items():
            for event in records.guaranteed.home_events:
                if isinstance(event, Stored):
                    self._sort_in(name, event)
                elif isinstance(event, Emitted):
                    for position in event.positions:
                        self.emitted.setdefault((name, event.lane, position), event.at)

    def _sort_in(self, node: str, stored: Stored) -> None:
        endpoint = self.history.nodes[node].guaranteed.endpoints.get(endpoint_of(stored.place[0]))
        if endpoint is None:
            return
        copy = Copy(node, endpoint, stored)
        if endpoint.name.startswith(wire.LINK_NAME_PREFIX):
            self.carried.setdefault(stored.what, {}).setdefault((node, endpoint.name), copy)
        elif not is_moved(stored, endpoint):
            known = self.copies.setdefault(stored.what, [])
            # A lane that gets another home keeps its positions.
            if all((one.node, one.stored.place) != (node, stored.place) for one in known):
                known.append(copy)

    def acknowledged(self) -> Iterator[tuple[Publication, str]]:
        """Give what was acknowledged, with the node where it was published."""
        for publication in self.history.publications:
            if publication.is_acked:
                yield publication, self.history.node_of(publication)

    def endpoints(self, node: str, vpn: str) -> list[EndpointRecord]:
        """Give the endpoints of clients that a node has in a Message VPN."""
        return [
            one
            for one in self.history.nodes[node].guaranteed.endpoints.values()
            if one.vpn == vpn and not one.name.startswith(wire.LINK_NAME_PREFIX)
        ]

    def where(self, what: str, endpoint: EndpointRecord, node: str) -> list[Copy]:
        """Give the copies in one endpoint."""
        return [one for one in self.copies.get(what, ()) if one.endpoint is endpoint and one.node == node]

    def is_dead(self, what: str, node: str, neighbour: str) -> bool:
        """Tell whether a link of a node gave a message up."""
        name = f"{wire.LINK_NAME_PREFIX}{neighbour}{wire.LINK_DMQ_SUFFIX}"
        return (node, name) in self.carried.get(what, {})


def name_of(publication: Publication) -> str:
    """Give what its payload says."""
    return f"{PUBLICATION_MARK}{publication.number}"


def _wanted(endpoint: EndpointRecord, topic: str, since: float, left_at: float) -> bool:
    """Tell whether an endpoint wanted a topic all the time since then, and was not emptied after the message left.

    Another topic empties a topic endpoint, also of what is on its way there for the topic before (R149).
    """
    return (
        endpoint.existed(since, FOREVER)
        and all(_takes(endpoint, one, topic) for one in endpoint.possible(since, FOREVER))
        and len({one.get("generation") for one in endpoint.possible(left_at, FOREVER)}) == 1
    )


def _takes(endpoint: EndpointRecord, attributes: Attributes, topic: str) -> bool:
    """Tell whether an endpoint with these attributes stores every message on a topic, or refuses it."""
    return (
        takes(endpoint, attributes, topic)
        and attributes.get("reject_to_sender", "always") == "always"
        and not attributes.get("selector")
        and attributes.get("max_spool_usage_mb") != 0  # a last-value queue
    )


def transit(index: CrossingIndex) -> Iterator[Violation]:
    """A message is stored on its own node and on neighbours only; what came over a link goes into no other (R214)."""
    for publication in index.history.publications:
        origin, what = index.history.node_of(publication), name_of(publication)
        for copy in index.copies.get(what, ()):
            if copy.node not in index.history.reach(origin):
                yield Violation("transit", f"{publication} of node {origin} is in {copy}", whats=(what,))
        for copy in index.carried.get(what, {}).values():
            if copy.node != origin:
                text = f"{publication} came over a link from node {origin}, and goes on in {copy}"
                yield Violation("transit", text, whats=(what,))


def duplicates(index: CrossingIndex) -> Iterator[Violation]:
    """A message is stored once in each endpoint, whichever way it came (R91)."""
    for what, copies in index.copies.items():
        if not what.startswith(PUBLICATION_MARK):
            continue
        seen: dict[tuple[str, int], Copy] = {}
        for copy in copies:
            known = seen.setdefault((copy.node, copy.endpoint.id), copy)
            if known is not copy and not copy.endpoint.is_repartitioned:
                yield Violation("duplicate", f"{what} is in {known}, and in {copy}", whats=(what,))


def refusals(index: CrossingIndex) -> Iterator[Violation]:
    """What was refused is nowhere, on no node."""
    for publication in index.history.publications:
        what = name_of(publication)
        if publication.refused_at == FOREVER:
            continue
        for copy in [*index.copies.get(what, ()), *index.carried.get(what, {}).values()]:
            text = f"{publication} was refused with {publication.code}, and is in {copy}"
            yield Violation("refused", text, whats=(what,))


def stored_here(index: CrossingIndex) -> Iterator[Violation]:
    """What is acknowledged is on the disk of every endpoint of the node before that (R155)."""
    for publication, origin in index.acknowledged():
        what = name_of(publication)
        for endpoint in index.endpoints(origin, publication.vpn):
            states = endpoint.possible(publication.sent_at, publication.acked_at)
            is_wanted = all(_takes(endpoint, one, publication.topic) for one in states)
            if not endpoint.existed(publication.sent_at, publication.acked_at) or not is_wanted:
                continue
            if len({one.get("generation") for one in states}) > 1:
                continue  # another topic emptied it, also of what was on its way (R149)
            copies = index.where(what, endpoint, origin)
            if not copies or copies[0].stored.at > publication.acked_at:
                text = (
                    f"{publication} was acknowledged at {publication.acked_at:.4f}, {endpoint} has {copies}"
                )
                yield Violation("lost", text, whats=(what,))


def stored_there(index: CrossingIndex) -> Iterator[Violation]:
    """What is acknowledged comes to every queue of a neighbour that always wanted it (R89, R167)."""
    settled_at = index.history.settled_at
    for publication, origin in index.acknowledged():
        if publication.sent_at < settled_at or publication.topic.startswith(wire.QUEUE_TOPIC_PREFIX):
            continue
        what = name_of(publication)
        for neighbour in index.history.nodes[origin].neighbours:
            for endpoint in index.endpoints(neighbour, publication.vpn):
                is_calm = publication.sent_at >= index.history.calm_since
                since = index.history.calm_since if is_calm else settled_at
                if not _wanted(endpoint, publication.topic, since, publication.sent_at):
                    continue
                copies = index.where(what, endpoint, neighbour)
                is_dead = index.is_dead(what, origin, neighbour)
                if not copies and not is_dead:
                    text = f"{publication} of {origin} was acknowledged, and never came to {endpoint} of {neighbour}"
                    yield Violation("lost", text, whats=(what,))


def carried(index: CrossingIndex) -> Iterator[Violation]:
    """What a link has taken for an endpoint of the neighbour comes there, or is dead, and not both (R167)."""
    for what, copies in index.carried.items():
        for node, name in copies:
            neighbour = name.removeprefix(wire.LINK_NAME_PREFIX)
            if "/" in neighbour:
                continue
            there = [one for one in index.copies.get(what, ()) if one.node == neighbour]
            is_dead = index.is_dead(what, node, neighbour)
            copy = copies[node, name]
            publication = index.history.nodes[node].guaranteed.publication(what)
            if publication is None:
                yield Violation("transit", f"direct message {what} goes on in {copy}", whats=(what,))
                continue
            is_wanted = any(
                _wanted(one, publication.topic, copy.stored.at, copy.stored.at)
                for one in index.endpoints(neighbour, publication.vpn)
            )
            if is_wanted and not there and not is_dead and index.history.is_over:
                yield Violation("lost", f"{what} was in {copy}, and is nowhere", whats=(what,))
            if there and is_dead and not publication.ttl_ms:
                text = f"{what} is in the dead message queue of {node} for {neighbour}, and in {there[0]}"
                yield Violation("refused", text, whats=(what,))


def order(index: CrossingIndex) -> Iterator[Violation]:
    """Messages of one producer keep their order across a link, but for those that were tried again (R3)."""
    last: dict[tuple[str, int, str, str], tuple[int, Publication]] = {}
    found = [
        (copy.node, copy.stored.place, publication)
        for publication in index.history.publications
        for copy in index.copies.get(name_of(publication), ())
        if not _is_late(index, publication, copy)
    ]
    for node, (lane, position), publication in sorted(found, key=lambda one: (one[0], one[1])):
        producer = publication.producer
        key = node, lane, producer.name, f"{producer.username}@{producer.vpn}"
        known = last.get(key)
        if known is not None and known[0] > publication.sequence:
            text = f"{publication} is behind {known[1]} in lane {lane} of node {node} at {position}"
            yield Violation("order", text, whats=(name_of(publication), name_of(known[1])))
        last[key] = publication.sequence, publication


def _is_late(index: CrossingIndex, publication: Publication, copy: Copy) -> bool:
    """Tell whether a message was refused once over there."""
    origin = index.history.node_of(publication)
    name = f"{wire.LINK_NAME_PREFIX}{copy.node}{wire.LINK_RETRY_SUFFIX}"
    return (origin, name) in index.carried.get(name_of(publication), {})


def delivered(index: CrossingIndex) -> Iterator[Violation]:
    """What came to a queue that consumers emptied was delivered, unless its time was over (R199)."""
    got: dict[tuple[str, int, int], None] = {}
    drained: dict[tuple[str, int], None] = {}
    for name, records in index.history.nodes.items():
        drained.update({(name, endpoint): None for endpoint in records.guaranteed.drained})
        for flow in records.guaranteed.flows:
            for one in flow.deliveries:
                got[name, *one.place] = None
    if not index.history.is_over:
        return
    for publication in index.history.publications:
        what = name_of(publication)
        for copy in index.copies.get(what, ()):
            if (
                publication.ttl_ms
                or (copy.node, copy.endpoint.id) not in drained
                or copy.endpoint.kind != "queue"
            ):
                continue
            if any(_may_die_alone(one.attributes) for one in copy.endpoint.changes):
                continue
            if (copy.node, *copy.stored.place) not in got:
                yield Violation("lost", f"{publication} is in {copy}, and was never delivered", whats=(what,))


def _may_die_alone(attributes: Attributes) -> bool:
    """Tell whether messages of an endpoint with these attributes may go before they came to a consumer."""
    return bool(
        attributes.get("max_spool_usage_mb") == 0
        or attributes.get("max_ttl_s")
        or attributes.get("max_redelivery_count")
        or not attributes.get("redelivery_enabled", True)
    )


def times(index: CrossingIndex) -> Iterator[Violation]:
    """The time to live that is left over there is not more than what was left when it went (R199, R204)."""
    for publication in index.history.publications:
        what, origin = name_of(publication), index.history.node_of(publication)
        if not publication.ttl_ms:
            continue
        for copy in index.copies.get(what, ()):
            if copy.node == origin:
                continue
            left = publication.ttl_ms - _waited_ms(index, what, origin, copy.node)
            slack = ROUNDING_MS + index.history.greeting_max_s * 1000
            if not 1 <= copy.stored.ttl_ms <= max(left + slack, 1):
                text = f"{publication} has {copy.stored.ttl_ms} ms to live in {copy}, at most {left:.0f} were left"
                yield Violation("ttl", text, whats=(what,))


def _waited_ms(index: CrossingIndex, what: str, origin: str, neighbour: str) -> float:
    """Give for how long a message waited in the queue of a link before it left for the first time."""
    copy = index.carried.get(what, {}).get((origin, f"{wire.LINK_NAME_PREFIX}{neighbour}"))
    if copy is None:
        return 0.0
    left_at = index.emitted.get((origin, *copy.stored.place))
    return 0.0 if left_at is None else max(0.0, (left_at - copy.stored.at) * 1000)


def copies(index: CrossingIndex) -> Iterator[Violation]:
    """A client gets one direct copy of a guaranteed message at most, where it comes from a neighbour too.

    What was sent again may have crossed as a direct copy before, and now an endpoint over there wants it too.
    """
    for records in index.history.nodes.values():
        seen: dict[tuple[int, int, str | None], None] = {}
        for connection, number, share, _ in records.history.copies:
            publication = index.history.publications[number]
            key = connection.number, number, share
            if key in seen and len(publication.sends) == 1:
                text = f"{connection} got {publication} of node {index.history.node_of(publication)} twice, by {share}"
                yield Violation("duplicate", text, (), (connection,), (name_of(publication),))
            seen[key] = None


def chosen(index: CrossingIndex) -> Iterator[Violation]:
    """One client of the mesh at most gets the direct copy of a guaranteed deliver-to-one message (R78)."""
    got: dict[int, list[ConnectionRecord]] = {}
    for records in index.history.nodes.values():
        for connection, number, _, at in records.history.copies:
            publication = index.history.publications[number]
            if not publication.flags & wire.FLAG_DTO:
                continue
            if not any(
                one.deliver_always and one.may_hold(publication.sent_at, at)
                for one in connection.subscriptions
                if takes_topic(one.parsed.pattern, publication.topic)
            ):
                got.setdefault(number, []).append(connection)
    for number, connections in got.items():
        publication = index.history.publications[number]
        if len(connections) > 1 and len(publication.sends) == 1:
            text = f"{len(connections)} clients got {publication}: {connections}"
            yield Violation("deliver-to-one", text, (), tuple(connections), (name_of(publication),))
