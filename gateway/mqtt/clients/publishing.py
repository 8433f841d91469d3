"""What an MQTT client publishes: judged, and given to the node with what others publish.

What a client may not publish with QoS 0 is dropped and counted: MQTT has no answer to it. With QoS 1 it is answered, in
the order of the messages, and so with QoS 2, which `sessions.received` knows more of. What no client of this server may
publish ends the connection, as the specification demands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from angarium import errors
from gateway.mqtt.clients import rules
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.messages import row_of
from gateway.mqtt.topics import topic_of

if TYPE_CHECKING:
    from gateway.attached import Attached
    from gateway.mqtt.clients.settings import Settings
    from gateway.mqtt.codec.publish import Publish
    from gateway.mqtt.sessions.received import Received

#: Codes for which a message that may be stored already is not refused: the node knows it.
_RIGHTS: Final = (errors.PUBLISH_DENIED, errors.GUARANTEED_SEND_DENIED)
#: How dropped messages are counted, by what was wrong with them; as in the node.
_DISCARDS: Final = {
    errors.PUBLISH_DENIED: "discard.publish-topic-acl",
    errors.INVALID_TOPIC: "discard.topic-parse-error",
    errors.RESERVED_TOPIC: "discard.topic-reserved",
}


class Publisher(Protocol):
    """The client."""

    @property
    def version(self) -> int:
        """The version that it speaks."""

    @property
    def received(self) -> Received:
        """What it publishes with QoS 2."""


class Publishing:
    """The messages of one client, from its CONNACK on."""

    __slots__ = ("_aliases", "_attached", "_publisher", "_settings", "_version", "unanswered")

    def __init__(self, publisher: Publisher, attached: Attached, settings: Settings) -> None:
        self._publisher = publisher
        self._attached = attached
        self._settings = settings
        self._version = publisher.version
        #: Topic alias -> topic; of this connection alone [MQTT-3.3.2-7]. None before the first one.
        self._aliases: dict[int, str] | None = None
        #: Messages with QoS 1 without PUBACK.
        self.unanswered = 0

    def take(self, publish: Publish, now: float) -> bool:
        """Publish a message; false if there is no room for it now.

        Raises:
            PacketError: it breaks what was agreed.
        """
        attached, qos = self._attached, publish.qos
        if qos == 2 and self._publisher.received.again(publish.packet_id, now):
            return True
        if not (self._has_room_guaranteed() if qos else attached.has_room()):
            return False
        if qos or publish.retain:
            self._check(publish)
        alias = publish.properties.topic_alias
        topic = self._aliased(publish.topic, alias) if alias else publish.topic
        if topic[0] == "$":  # all others are the same here
            topic = topic_of(topic)
        flags, meta, properties = row_of(publish, attached.name)
        size = len(publish.payload) + len(properties)
        code = attached.guaranteed_refusal_of(topic, size) if qos else attached.refusal_of(topic, size)
        if code and not (
            qos == 2 and code in _RIGHTS and self._publisher.received.is_known(publish.packet_id)
        ):
            self._refuse(publish, code, now)
        elif qos == 2:
            row = (0, topic, flags, meta, properties, publish.payload)
            self._publisher.received.take(publish.packet_id, row, now)
        elif qos:
            self.unanswered += 1
            attached.publish_guaranteed(topic, flags, meta, properties, publish.payload, publish.packet_id)
        else:
            attached.publish(topic, flags, meta, properties, publish.payload)
        return True

    def _refuse(self, publish: Publish, code: int, now: float) -> None:
        if code == errors.MESSAGE_TOO_LARGE:
            raise PacketError(rules.MESSAGE_SIZE, f"{len(publish.payload)} bytes of payload", self._version)
        self._attached.count(_DISCARDS.get(code, f"discard.refused-{code}"))
        if publish.qos == 2:
            self._publisher.received.refuse(publish.packet_id, code, now)
        elif publish.qos:
            self.unanswered += 1
            self._attached.refuse_guaranteed(publish.packet_id, code)

    def _has_room_guaranteed(self) -> bool:
        """Tell whether a message with QoS 1 or 2 is taken now.

        3.1.1 has no such limit: it waits, but not for what it has to say itself behind the message, its PUBRELs.

        Raises:
            PacketError: its client has more of them unacknowledged than 5.0 was told.
        """
        received, most = self._publisher.received, self._settings.receive_max
        waiting = self.unanswered + (received.unfinished if self._version == V5 else len(received))
        if received.is_full() or (waiting >= most and self._version == V5):
            raise PacketError(rules.RECEIVE_MAXIMUM, f"more than {most}", self._version)
        return waiting < most and received.has_room() and self._attached.has_room_guaranteed()

    def _check(self, publish: Publish) -> None:
        capabilities = self._settings.capabilities
        if publish.qos > capabilities.qos_max:
            raise PacketError(rules.QOS, f"{publish.qos}", self._version)
        if publish.retain and not capabilities.retain:
            raise PacketError(rules.RETAIN, "a message that is to be", self._version)

    def _aliased(self, topic: str, alias: int) -> str:
        """Give the topic that an alias stands for, which one with a topic changes (5.0 section 3.3.2.3.4)."""
        if alias > self._settings.topic_alias_max:
            raise PacketError(rules.ALIAS, f"{alias}", self._version)
        if self._aliases is None:
            self._aliases = {}
        if topic:
            self._aliases[alias] = topic
            return topic
        known = self._aliases.get(alias)
        if known is None:
            raise PacketError(rules.UNKNOWN_ALIAS, f"{alias}", self._version)
        return known
