"""The client for programs without asyncio: the same names, no `await`.

    from angarium import blocking

    with blocking.connect("tcp://127.0.0.1:55555") as client:
        with client.subscribe("orders/>") as subscription:
            client.publish("orders/17", b"paid")
            for message in subscription:
                print(message.topic, message.payload)

Each client has one background thread, in which an `angarium.client.Client` runs. Calls that wait for the
router run there and are waited for. `publish` does not wait for a direct message: it queues for the thread, which
takes many at a time. Subscriptions and flows are read where the application reads them: chunks of messages
cross the threads, never single ones. Every method may be called from any thread but the client's own, in which
only `on_event`, `on_ack` and `on_active` are called.
"""

from __future__ import annotations

from angarium.blocking.client import Client, connect
from angarium.blocking.flow import Flow
from angarium.blocking.producer import Producer, Receipt, Stage
from angarium.blocking.reader_group import ReaderGroup
from angarium.blocking.subscription import Subscription

__all__ = ["Client", "Flow", "Producer", "ReaderGroup", "Receipt", "Stage", "Subscription", "connect"]
