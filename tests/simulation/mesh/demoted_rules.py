"""Direct copies of guaranteed messages, judged in the calm: whoever subscribed gets one, on neighbours too.

What an endpoint of a neighbour wants crosses through the queue of the link, and its clients get their copies over
there; what only its clients want crosses as a direct copy. A subscriber sees no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from angarium import errors, wire
from tests.simulation.history_index import Violation
from tests.simulation.mesh.crossing_rules import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.event_history import ConnectionRecord
    from tests.simulation.guaranteed.records import Publication
    from tests.simulation.mesh.crossing_rules import CrossingIndex
    from tests.simulation.mesh.mesh_rules import MeshIndex


class Asked(NamedTuple):
    """A guaranteed message as `MeshIndex` asks for it."""

    publisher: ConnectionRecord
    topic: str
    is_dto: bool = False


def _calm(index: MeshIndex) -> Iterator[tuple[Publication, Asked]]:
    for publication in index.history.publications:
        if publication.sent_at < index.history.calm_since or not publication.sends:
            continue
        if publication.topic.startswith(wire.QUEUE_TOPIC_PREFIX) or publication.flags & wire.FLAG_DTO:
            continue
        yield publication, Asked(publication.sends[0][1], publication.topic)


def completeness(index: MeshIndex, crossing: CrossingIndex) -> Iterator[Violation]:
    """Every subscriber gets a copy of what is acknowledged and lives for ever (R156, R167)."""
    got = {
        (number, connection.number)
        for records in index.history.nodes.values()
        for connection, number, share, _ in records.history.copies
        if share is None
    }
    for publication, asked in _calm(index):
        origin = asked.publisher.node
        if not publication.is_acked or publication.ttl_ms or not index.history.is_over:
            continue
        for node in index.history.reach(origin):
            if node != origin and (
                not index.attracts(asked, node) or crossing.is_dead(name_of(publication), origin, node)
            ):
                continue
            for one in index.steady(asked, node):
                if one.parsed.share is None and (publication.number, one.connection.number) not in got:
                    text = f"{one} on node {node}, but never got a copy of {publication} of node {origin}"
                    yield Violation("lost", text, (), (one.connection,), (name_of(publication),))


def matches(index: MeshIndex, crossing: CrossingIndex) -> Iterator[Violation]:
    """Nothing is refused for want of a match that a neighbour attracts (R167)."""
    del crossing
    for publication, asked in _calm(index):
        if publication.code != errors.NO_SUBSCRIPTION_MATCH:
            continue
        for node in index.history.nodes[asked.publisher.node].neighbours:
            if index.attracts(asked, node):
                text = f"{publication} was refused with {publication.code}, though node {node} attracts it"
                yield Violation("refused", text, whats=(name_of(publication),))
