"""Many clients of NATS with nats-py: `publish` and a callback per message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nats

from benchmarks.crowd.group import RETRY_S, main

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from benchmarks.crowd.group import Publish, Wish

#: No limit, so that a slow subscriber shows as time and not as loss.
UNLIMITED = 0
FOR_EVER = -1


async def connect(wish: Wish) -> Publish:
    """Give how a client publishes, once it is connected and subscribed."""

    async def on_message(message: Msg) -> None:
        wish.take(message.data)

    async def on_back() -> None:
        wish.back()

    client = await nats.connect(
        wish.url, reconnected_cb=on_back, reconnect_time_wait=RETRY_S, max_reconnect_attempts=FOR_EVER
    )
    try:
        await client.subscribe(
            wish.subscription, cb=on_message, pending_msgs_limit=UNLIMITED, pending_bytes_limit=UNLIMITED
        )
        await client.flush()
    except BaseException:
        await client.close()
        raise
    publish: Publish = client.publish
    return publish


def spell(topic: str) -> str:
    """Give a subject."""
    return topic.replace("/", ".")


if __name__ == "__main__":
    main(connect, spell)
