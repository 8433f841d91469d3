"""Many clients of RabbitMQ with pika's asyncio connection: a topic exchange and an exclusive queue for each client.

pika does not reconnect by itself, so a client does here what an application has to do.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from benchmarks.crowd.group import RETRY_S, main

if TYPE_CHECKING:
    from benchmarks.crowd.group import Publish, Wish

EXCHANGE = "amq.topic"
#: A broker that takes seconds to start is not to be kept busy, nor the clients, by thousands of attempts.
RETRY_MAX_S = 5.0


class Member:
    """One client; each step is begun when the broker has answered the one before."""

    def __init__(self, wish: Wish) -> None:
        """Begin to connect."""
        self._wish = wish
        self._loop = asyncio.get_running_loop()
        self._is_given_up = False
        #: Before the next attempt, once the connection is lost.
        self._retry_s = RETRY_S
        #: Done when it is connected for the first time.
        self.connected: asyncio.Future[None] = self._loop.create_future()
        self._open()

    def _open(self) -> None:
        if not self._is_given_up:
            self._connection = AsyncioConnection(
                pika.URLParameters(self._wish.url),
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_lost,
                on_close_callback=self._on_lost,
                custom_ioloop=self._loop,
            )

    def _on_open(self, connection: AsyncioConnection) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.queue_declare("", exclusive=True, auto_delete=True, callback=self._on_queue)

    def _on_queue(self, frame: Any) -> None:
        self._queue = frame.method.queue
        self._channel.queue_bind(self._queue, EXCHANGE, self._wish.subscription, callback=self._on_bound)

    def _on_bound(self, _frame: Any) -> None:
        self._channel.basic_consume(self._queue, self._on_message, auto_ack=True, callback=self._on_consuming)

    def _on_consuming(self, _frame: Any) -> None:
        self._retry_s = RETRY_S
        if self.connected.done():
            self._wish.back()
        else:
            self.connected.set_result(None)

    def _on_lost(self, _connection: AsyncioConnection, error: Exception) -> None:
        if self.connected.done():
            self._loop.call_later(random.uniform(self._retry_s / 2, self._retry_s), self._open)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        else:
            self.connected.set_exception(error)

    def _on_message(self, _channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        self._wish.take(body)

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish a transient message."""
        self._channel.basic_publish(EXCHANGE, topic, payload)

    def give_up(self) -> None:
        """Connect no more."""
        self._is_given_up = True
        if self._connection.is_open:
            self._connection.close()


async def connect(wish: Wish) -> Publish:
    """Give how a client publishes, once it is connected and subscribed."""
    member = Member(wish)
    try:
        await member.connected
    except BaseException:
        member.give_up()
        raise
    return member.publish


def spell(topic: str) -> str:
    """Give a routing key or a binding key."""
    return topic.replace("/", ".")


if __name__ == "__main__":
    main(connect, spell)
