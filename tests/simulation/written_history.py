"""Histories written by hand, to show what the checker sees in them.

The base is right in every respect; a test changes one thing and expects one rule to object.
"""

from __future__ import annotations

from angarium import wire
from angarium.slots import slot_table
from angarium_server.access import TopicRules
from tests.simulation.event_history import (
    ConnectionRecord,
    Delivery,
    History,
    Message,
    Rights,
    SubscriptionRecord,
)

VPN = "default"
#: Subscriptions are in force from here, messages are sent every tenth of a second from then on.
SUBSCRIBED_AT = 10.0
FIRST_AT = 20.0
END = 100.0


class WrittenHistory:
    """One publisher, and whoever a test lets subscribe."""

    def __init__(self) -> None:
        self.history = History()
        self.history.tables.append((0.0, slot_table(1)))
        self.publisher = self.connect("publisher")

    def connect(self, name: str, vpn: str = VPN, **traits: object) -> ConnectionRecord:
        """Open a connection that stays open and proves everything."""
        record = self.history.connect(name, vpn, "app")
        record.opened_at = 5.0
        record.session = f"{record.number}"
        record.proven_until = END
        for trait, value in traits.items():
            setattr(record, trait, value)
        self.history.counters[record.session] = {}
        self.allow(vpn)
        return record

    def allow(self, vpn: str, exceptions: tuple[str, ...] = ()) -> None:
        """Let everybody publish everything but the exceptions."""
        rules = TopicRules(exceptions, default_allow=True)
        self.history.rights[vpn, "app"] = [Rights(0.0, rules, TopicRules(default_allow=True))]

    def subscribe(
        self, connection: ConnectionRecord, text: str, *, deliver_always: bool = False
    ) -> SubscriptionRecord:
        """Subscribe for certain before any message."""
        one = SubscriptionRecord(connection, text, SUBSCRIBED_AT, deliver_always=deliver_always)
        one.confirmed_at = SUBSCRIBED_AT + 1
        connection.subscriptions.append(one)
        return one

    def publish(self, topic: str, *, flags: int = 0, publisher: ConnectionRecord | None = None) -> Message:
        """Publish a round of one message and let it retire."""
        at = FIRST_AT + len(self.history.messages) * 0.1
        place = (len(self.history.messages) + 1, 0)
        publisher = publisher or self.publisher
        message = self.history.publish(publisher, topic, flags, place, at)
        publisher.retire(place[0], at + 0.05)
        return message

    def deliver(
        self,
        connection: ConnectionRecord,
        *messages: Message,
        share: str | None = None,
        at: float | None = None,
    ) -> None:
        """Let messages reach a client."""
        for message in messages:
            time = message.sent_at + 0.04 if at is None else at
            connection.deliveries.append(Delivery(message, share, time))


DTO = wire.FLAG_DTO
ELIDING = wire.FLAG_ELIDING
