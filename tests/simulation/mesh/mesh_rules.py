"""Which clients of a mesh get a direct message, and which must not.

Some rules hold whatever is disturbed: there is no transit, and of a share group one member of each node gets a message.
The others judge the calm at the end of a run, when every subscription has long been known to the neighbours. There
a message reaches exactly who wants it:

    on its own node         every plain subscription, and one member of each share group
    on a neighbour          the same, if a client or an endpoint there attracts it (`#noexport/` does not)
    deliver-to-one          one client: on its own node if there is one, else on the neighbour with the best network
                            priority; who always wants messages gets them besides
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium.topic import matches, parse_filter
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.records import filters_of
from tests.simulation.history_index import Violation
from tests.simulation.mesh.mesh_end import NOEXPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.event_history import ConnectionRecord, Message, SubscriptionRecord
    from tests.simulation.history_index import Index
    from tests.simulation.mesh.demoted_rules import Asked
    from tests.simulation.mesh.mesh_history import MeshHistory

#: A node without a candidate.
NO_PRIORITY = 5


class MeshIndex:
    """The history as the rules ask for it."""

    def __init__(self, history: MeshHistory, index: Index) -> None:
        self.history = history
        self.index = index
        self._attracting: dict[tuple[str, str, str], bool] = {}

    def calm_messages(self) -> Iterator[Message]:
        """Give the messages of the calm that were dispatched for certain."""
        for message in self.index.history.messages:
            if message.sent_at >= self.history.calm_since and message.retired_at < FOREVER:
                yield message

    def steady(self, message: Message | Asked, node: str) -> list[SubscriptionRecord]:
        """Give the subscriptions at a node that match, and were in force all through the calm."""
        return [
            one
            for one in self.index.matcher.find(message)
            if one.connection.node == node
            and one.connection.is_open
            and one.confirmed_at <= self.history.calm_since
            and one.leaving_at == FOREVER
        ]

    def has_endpoint(self, vpn: str, topic: str, node: str) -> bool:
        """Tell whether an endpoint of a node attracts a topic in the calm."""
        key = vpn, topic, node
        if key not in self._attracting:
            self._attracting[key] = any(
                matches(pattern, topic)
                for one in self.history.nodes[node].guaranteed.endpoints.values()
                if one.vpn == vpn and one.deleted_at == FOREVER and not one.name.startswith("#link/")
                for pattern in filters_of(one.kind, one.changes[-1].attributes)[0]
            )
        return self._attracting[key]

    def attracts(self, message: Message | Asked, node: str) -> bool:
        """Tell whether a neighbour wants a message whatever is chosen elsewhere."""
        return self.has_endpoint(message.publisher.vpn, message.topic, node) or any(
            _is_exported(one) and (one.deliver_always or not message.is_dto)
            for one in self.steady(message, node)
        )

    def got(self, message: Message, node: str) -> list[tuple[ConnectionRecord, str | None]]:
        """Give which clients of a node got a message, and by which share."""
        return [
            (one.connection, one.delivery.share)
            for one in self.index.received.get(message.number, ())
            if one.connection.node == node
        ]

    def chosen_node(self, message: Message) -> str:
        """Name the node of which a client gets a deliver-to-one message; empty for none."""
        origin = message.publisher.node
        if any(not one.deliver_always for one in self.steady(message, origin)):
            return origin
        best, chosen = NO_PRIORITY, ""
        for neighbour in self.history.nodes[origin].neighbours:
            for one in self.steady(message, neighbour):
                priority = one.connection.network_priority
                if not one.deliver_always and _is_exported(one) and priority < best:
                    best, chosen = priority, neighbour
        return chosen


def _is_exported(one: SubscriptionRecord) -> bool:
    return not one.text.startswith(NOEXPORT)


# Whatever is disturbed.


def transit(index: MeshIndex) -> Iterator[Violation]:
    """A message reaches its own node and the neighbours of that one, nobody else: there is no transit (R214)."""
    for received in index.index.received.values():
        for connection, delivery in received:
            message = delivery.message
            if connection.node not in index.history.reach(message.publisher.node):
                text = (
                    f"{connection} on node {connection.node} got {message} of node {message.publisher.node}"
                )
                yield Violation("transit", text, (message,), (connection,))


def groups(index: MeshIndex) -> Iterator[Violation]:
    """One member of a share group on each node at most gets a message (R31)."""
    for number, received in index.index.received.items():
        members: dict[tuple[str, str, str], list[ConnectionRecord]] = {}
        for connection, delivery in received:
            if delivery.share is not None:
                parsed = parse_filter(delivery.share)
                key = connection.node, str(parsed.share), parsed.pattern
                members.setdefault(key, []).append(connection)
        for group, got in members.items():
            if len(got) > 1:
                message = index.index.history.messages[number]
                text = f"{len(got)} members of {group} got {message}: {got}"
                yield Violation("shared", text, (message,), tuple(got))


# In the calm.


def _expected(index: MeshIndex, message: Message, node: str) -> list[SubscriptionRecord]:
    """Give the plain subscriptions at a node that get a message for certain."""
    is_open = message.is_dto and index.chosen_node(message) == node
    if node != message.publisher.node and not is_open and not index.attracts(message, node):
        return []
    return [
        one
        for one in index.steady(message, node)
        if one.parsed.share is None and (one.deliver_always or not message.is_dto)
    ]


def completeness(index: MeshIndex) -> Iterator[Violation]:
    """A message reaches everybody who wants it, on its node and on neighbours (R82, R167, R214)."""
    for message in index.calm_messages():
        for node in index.history.reach(message.publisher.node):
            got = {connection.number for connection, share in index.got(message, node) if share is None}
            for one in _expected(index, message, node):
                if one.connection.number not in got:
                    text = f"{one} on node {node}, but never got {message} of node {message.publisher.node}"
                    yield Violation("lost", text, (message,), (one.connection,))


def strangers(index: MeshIndex) -> Iterator[Violation]:
    """What no exported filter attracts stays at home (R18, R90, R215)."""
    for message in index.calm_messages():
        for node in index.history.nodes[message.publisher.node].neighbours:
            got = index.got(message, node)
            if not got or index.attracts(message, node):
                continue
            if not message.is_dto or index.chosen_node(message) != node:
                text = (
                    f"{got[0][0]} got {message} of node {message.publisher.node}, which nobody here attracts"
                )
                yield Violation("noexport", text, (message,), (got[0][0],))


def members(index: MeshIndex) -> Iterator[Violation]:
    """One member of a share group on each node gets a message (R17, R31)."""
    for message in index.calm_messages():
        if message.is_dto:
            continue
        for node in index.history.reach(message.publisher.node):
            if node != message.publisher.node and not index.attracts(message, node):
                continue
            got = index.got(message, node)
            for group in dict.fromkeys(one.group for one in index.steady(message, node)):
                if group is None:
                    continue
                records = [one for one in index.steady(message, node) if one.group == group]
                numbers = [one.connection.number for one in records]
                texts = [one.text for one in records]
                if not any(
                    connection.number in numbers and (share is None or share in texts)
                    for connection, share in got
                ):
                    text = f"nobody of the group {group} on node {node} got {message}: {records}"
                    yield Violation("shared", text, (message,), tuple(one.connection for one in records))


def deliver_to_one(index: MeshIndex) -> Iterator[Violation]:
    """One client gets a deliver-to-one message: here, else of the best neighbour (R75, R76, R78, R216)."""
    for message in index.calm_messages():
        if not message.is_dto:
            continue
        node = index.chosen_node(message)
        origin = message.publisher.node
        for other in index.history.reach(origin):
            always = [one.connection for one in index.steady(message, other) if one.deliver_always]
            chosen = [one for one, _ in index.got(message, other) if one not in always]
            candidates = [one for one in index.steady(message, other) if not one.deliver_always]
            involved = tuple(one.connection for one in candidates)
            if other != node and chosen:
                text = (
                    f"{chosen} of node {other} got {message} of node {origin}, it was for node {node or '-'}"
                )
                yield Violation("deliver-to-one", text, (message,), involved)
            if other == node:
                yield from _best(message, other == origin, chosen, candidates, always)


def _best(
    message: Message,
    is_local: bool,
    chosen: list[ConnectionRecord],
    candidates: list[SubscriptionRecord],
    always: list[ConnectionRecord],
) -> Iterator[Violation]:
    """One candidate of the best priority got it, or gets it anyway."""

    def priority(one: ConnectionRecord) -> int:
        return one.priority if is_local else one.network_priority

    best = min(priority(one.connection) for one in candidates)
    is_served = any(one.connection in always and priority(one.connection) == best for one in candidates)
    involved = tuple(one.connection for one in candidates)
    if not chosen and not is_served:
        yield Violation("deliver-to-one", f"nobody got {message}: {candidates}", (message,), involved)
    elif chosen and priority(chosen[0]) != best:
        text = f"{chosen[0]} of priority {priority(chosen[0])} got {message}, the best present is {best}"
        yield Violation("deliver-to-one", text, (message,), involved)
