"""What tests of sessions of clients say to each other: rows, subscriptions, connections that follow one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire
from angarium.message import pack_fields
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscribe, Subscription
from tests.unit.gateway.clients.conversation import Conversation

if TYPE_CHECKING:
    from angarium.message import Meta, Row

KEPT: dict[int, dict[str, Any]] = {
    V3: {"clean_start": False},
    V5: {"clean_start": False, "properties": Properties(session_expiry_interval=60)},
}


def row(
    payload: str = "", topic: str = "a", flags: int = wire.MODE_PERSISTENT, ttl_ms: int = 0, sender: str = ""
) -> Row:
    meta: Meta | None = (ttl_ms, 0, None, None) if ttl_ms else None
    return 0, topic, flags, meta, pack_fields({3: sender}) if sender else None, payload.encode()


def twice(payload: str) -> Row:
    """Give a message that was published with QoS 2."""
    return (*row(payload)[:4], pack_fields({11: {0: 2}}), payload.encode())


def subscribed(
    talk: Conversation, *subscriptions: Subscription, properties: Properties = NONE
) -> Conversation:
    talk.says(Subscribe(1, subscriptions, properties))
    talk.node_does_all()
    assert talk.hears_one().codes == tuple(one.qos for one in subscriptions)
    return talk


def again(talk: Conversation, **fields: Any) -> Conversation:
    """Give the same client on its next connection; the node has its session."""
    new = Conversation(talk.version).connect(**{**KEPT[talk.version], **fields})
    new.node.session = talk.node.session
    return new


def payloads(talk: Conversation) -> list[tuple[str, int, bool]]:
    found = talk.hears()
    assert all(isinstance(one, Publish) for one in found)
    return [(one.payload.decode(), one.packet_id, one.dup) for one in found if isinstance(one, Publish)]
