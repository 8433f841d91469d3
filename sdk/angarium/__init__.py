"""Angarium: the client SDK of the event broker, and what all its parts share.

    import angarium

    async with angarium.connect("tcp://127.0.0.1:55555") as client:
        async with client.subscribe("orders/>") as subscription:
            await client.publish("orders/17", b"paid")
            async for message in subscription:
                print(message.topic, message.payload)

Guaranteed messages are stored until a consumer has accepted them:

    await client.create_queue("billing", subscriptions=["orders/>"], ignore_exists=True)
    await client.publish("orders/17", b"paid", mode="persistent")
    async with client.consume("billing") as flow:
        async for message in flow:
            print(message.topic, message.payload)

`angarium.blocking` has the same names for programs without asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium.errors import (
    AngariumError,
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    InvalidArgumentError,
    InvalidRequestError,
    NoRespondersError,
    NotFoundError,
    RateLimitError,
    TimeoutExpiredError,
    UnauthorizedError,
    UnavailableError,
)
from angarium.message import DeliveryMode, Message, MessageBatch
from angarium.on_demand import on_demand

if TYPE_CHECKING:
    from angarium.client.client import Client
    from angarium.client.connecting import Connecting, connect
    from angarium.client.connection.connection import ClientEvent
    from angarium.client.connection.opening import Opening
    from angarium.client.consuming.flow import Flow
    from angarium.client.consuming.reader_group import Planned, ReaderGroup, ReaderPosition
    from angarium.client.protocol.messages import GuaranteedBatch, GuaranteedMessage, Origin
    from angarium.client.publishing.producer import Producer, Stage
    from angarium.client.publishing.receipts import Acknowledgement, PublishReport, Receipt
    from angarium.client.subscribing.subscription import Subscription
else:
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "Acknowledgement": "angarium.client.publishing.receipts",
            "Client": "angarium.client.client",
            "ClientEvent": "angarium.client.connection.connection",
            "Connecting": "angarium.client.connecting",
            "Flow": "angarium.client.consuming.flow",
            "GuaranteedBatch": "angarium.client.protocol.messages",
            "GuaranteedMessage": "angarium.client.protocol.messages",
            "Opening": "angarium.client.connection.opening",
            "Origin": "angarium.client.protocol.messages",
            "Planned": "angarium.client.consuming.reader_group",
            "Producer": "angarium.client.publishing.producer",
            "PublishReport": "angarium.client.publishing.receipts",
            "ReaderGroup": "angarium.client.consuming.reader_group",
            "ReaderPosition": "angarium.client.consuming.reader_group",
            "Receipt": "angarium.client.publishing.receipts",
            "Stage": "angarium.client.publishing.producer",
            "Subscription": "angarium.client.subscribing.subscription",
            "connect": "angarium.client.connecting",
        },
    )

__version__ = "0.1.0"

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
    "InvalidArgumentError",
    "InvalidRequestError",
    "Message",
    "MessageBatch",
    "NoRespondersError",
    "NotFoundError",
    "Opening",
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
    "__version__",
    "connect",
]
