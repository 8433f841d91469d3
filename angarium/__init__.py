"""Angarium: the client SDK of the event broker, and what all its parts share.

    import angarium

    async with angarium.connect("tcp://127.0.0.1:55555") as client:
        subscription = await client.subscribe("orders/>")
        await client.publish("orders/17", b"paid")
        async for message in subscription:
            print(message.topic, message.payload)

Guaranteed messages are stored until a consumer has accepted them:

    await client.create_queue("billing", subscriptions=["orders/>"], ignore_exists=True)
    await client.publish("orders/17", b"paid", mode="persistent")
    async for message in await client.consume("billing"):
        print(message.topic, message.payload)

`angarium.blocking` has the same names for programs without asyncio.
"""

from __future__ import annotations

from angarium.client.client import Client
from angarium.client.connecting import Connecting, connect
from angarium.client.connection import ClientEvent
from angarium.client.consuming.flow import Flow
from angarium.client.consuming.messages import GuaranteedBatch, GuaranteedMessage, Origin
from angarium.client.consuming.reader_group import Planned, ReaderGroup, ReaderPosition
from angarium.client.sending.producer import Producer
from angarium.client.sending.receipts import Acknowledgement, PublishReport, Receipt
from angarium.client.sending.stage import Stage
from angarium.client.subscription import Subscription
from angarium.errors import (
    AngariumError,
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
    TimeoutExpiredError,
    UnauthorizedError,
    UnavailableError,
)
from angarium.message import DeliveryMode, Message, MessageBatch

__all__ = [
    "Acknowledgement",
    "AngariumError",
    "Client",
    "ClientEvent",
    "ConflictError",
    "Connecting",
    "ConnectionLostError",
    "DeliveryMode",
    "Flow",
    "ForbiddenError",
    "GuaranteedBatch",
    "GuaranteedMessage",
    "InvalidRequestError",
    "Message",
    "MessageBatch",
    "NotFoundError",
    "Origin",
    "Planned",
    "Producer",
    "PublishReport",
    "RateLimitError",
    "ReaderGroup",
    "ReaderPosition",
    "Receipt",
    "Stage",
    "Subscription",
    "TimeoutExpiredError",
    "UnauthorizedError",
    "UnavailableError",
    "connect",
]
