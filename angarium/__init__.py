"""Angarium: the client SDK of the event broker, and what all its parts share.

    import angarium

    async with angarium.connect("tcp://127.0.0.1:55555") as client:
        subscription = await client.subscribe("orders/>")
        await client.publish("orders/17", b"paid")
        async for message in subscription:
            print(message.topic, message.payload)

`angarium.blocking` has the same names for programs without asyncio.
"""

from __future__ import annotations

from angarium.client.client import Client
from angarium.client.connecting import Connecting, connect
from angarium.client.connection import ClientEvent
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
    "AngariumError",
    "Client",
    "ClientEvent",
    "ConflictError",
    "Connecting",
    "ConnectionLostError",
    "DeliveryMode",
    "ForbiddenError",
    "InvalidRequestError",
    "Message",
    "MessageBatch",
    "NotFoundError",
    "RateLimitError",
    "Subscription",
    "TimeoutExpiredError",
    "UnauthorizedError",
    "UnavailableError",
    "connect",
]
