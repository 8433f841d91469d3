"""Many clients of this broker with its SDK: `publish` and a callback per message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

# Named here, so that the SDK is loaded before anything is measured, as those of the peers are: it loads on demand.
from angarium import connect as connect_client
from benchmarks.crowd.group import main

if TYPE_CHECKING:
    from angarium.client.connection.connection import ClientEvent
    from benchmarks.crowd.group import Publish, Wish

#: More than any run publishes.
NO_LIMIT: Final = 1 << 40


async def connect(wish: Wish) -> Publish:
    """Give how a client publishes, once it is connected and subscribed."""

    def on_event(event: ClientEvent) -> None:
        if event.kind == "reconnected":
            wish.back()
        elif event.kind == "failed":
            wish.gone(f"{event.code} {event.detail}")

    options: dict[str, Any] = {}
    if wish.collects:
        options = {"window_messages": NO_LIMIT, "window_bytes": NO_LIMIT}
    client = await connect_client(wish.url, on_event=on_event, **options)
    try:
        await client.subscribe(wish.subscription, lambda message: wish.take(message.payload), on_full="stall")
    except BaseException:
        await client.close()
        raise
    return client.publish


if __name__ == "__main__":
    main(connect, str)
