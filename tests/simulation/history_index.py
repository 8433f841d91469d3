"""A history as the rules ask for it: who was subscribed to a topic, and who got a message.

Matching is brute force, by `angarium.topic.matches`, and each question is asked once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from angarium.topic import matches

if TYPE_CHECKING:
    from tests.simulation.event_history import (
        ConnectionRecord,
        Delivery,
        History,
        Message,
        SubscriptionRecord,
    )
    from tests.simulation.mesh.demoted_rules import Asked


class Violation(NamedTuple):
    """A broken rule, how it was broken, and whose records tell the story."""

    rule: str
    text: str
    messages: tuple[Message, ...] = ()
    connections: tuple[ConnectionRecord, ...] = ()
    #: What guaranteed messages it is about: what is in their payloads.
    whats: tuple[str, ...] = ()


class Matcher:
    """Which subscriptions match a topic, in every Message VPN; brute force, asked once per topic."""

    def __init__(self, history: History) -> None:
        self._by_vpn: dict[str, list[SubscriptionRecord]] = {}
        for connection in history.connections:
            accepted = [one for one in connection.subscriptions if one.refused is None]
            self._by_vpn.setdefault(connection.vpn, []).extend(accepted)
        self._found: dict[tuple[str, str], list[SubscriptionRecord]] = {}
        self._pairs: dict[tuple[str, str], bool] = {}

    def find(self, message: Message | Asked) -> list[SubscriptionRecord]:
        """Give every subscription of the message's Message VPN whose filter matches it, at whatever time."""
        key = message.publisher.vpn, message.topic
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = [
                one for one in self._by_vpn.get(key[0], ()) if self._matches(one.parsed.pattern, key[1])
            ]
        return found

    def _matches(self, pattern: str, topic: str) -> bool:
        verdict = self._pairs.get((pattern, topic))
        if verdict is None:
            verdict = self._pairs[pattern, topic] = matches(pattern, topic)
        return verdict


class Received(NamedTuple):
    """One message at one client."""

    connection: ConnectionRecord
    delivery: Delivery


class Index:
    """The history as the rules ask for it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.matcher = Matcher(history)
        #: Message number -> who got it, in the order of connections.
        self.received: dict[int, list[Received]] = {}
        for connection in history.connections:
            for delivery in connection.deliveries:
                self.received.setdefault(delivery.message.number, []).append(Received(connection, delivery))
        #: (message number, connection number, share) of every delivery.
        self.got = {
            (message.number, connection.number, share)
            for connection in history.connections
            for message, share, _ in connection.deliveries
        }
        self._own: dict[tuple[int, str, str], list[SubscriptionRecord]] = {}

    def own(self, connection: ConnectionRecord, message: Message) -> list[SubscriptionRecord]:
        """Give the subscriptions of a connection whose filters match a message, at whatever time."""
        key = connection.number, message.publisher.vpn, message.topic
        found = self._own.get(key)
        if found is None:
            found = self._own[key] = [
                one for one in self.matcher.find(message) if one.connection is connection
            ]
        return found
