"""A benchmark client of RabbitMQ quorum queues with pika: publisher confirms in a window, prefetch 1,000.

The publisher uses pika's SelectConnection, the only one that pipelines confirms. The consumer acknowledges
100 messages at a time (`multiple`).
"""

from __future__ import annotations

from typing import Any

import pika

from cluster.commands.bench.process import STORE, Task, ready, wait_for_go
from cluster.commands.bench.queueing import Drained, Stored, queue_names

PREFETCH = 1_000
ACK_EVERY = 100
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def declare(url: str, task: Task) -> str:
    """Make the queues, and the exchange if there are several; gives the exchange."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    exchange = task.prefix if task.queues > 1 else ""
    if exchange:
        channel.exchange_declare(exchange, "fanout", durable=True)
    for name in queue_names(task):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        if exchange:
            channel.queue_bind(name, exchange)
    connection.close()
    return exchange


class Publisher:
    """Publishes with a window of unconfirmed messages."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._exchange = declare(task.url, task)
        self._key = queue_names(task)[0]
        self._stored = Stored(task)
        self._sent = 0
        self._channel: Any = None
        self._connection = pika.SelectConnection(pika.URLParameters(task.url), on_open_callback=self._opened)

    def run(self) -> None:
        self._connection.ioloop.start()

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=self._begin)

    def _begin(self, _frame: Any) -> None:
        ready()
        wait_for_go()
        self._stored.begin()
        self._fill()

    def _fill(self) -> None:
        publish, payload = self._channel.basic_publish, self._stored.payload
        room = self._stored.confirmed + self._stored.refused + self._task.window
        while self._sent < min(room, self._task.count):
            publish(self._exchange, self._key, payload, PERSISTENT)
            self._sent += 1

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        done = self._stored.confirmed + self._stored.refused
        count = method.delivery_tag - done if method.multiple else 1
        if type(method).__name__ == "Ack":
            self._stored.confirmed += count
        else:
            self._stored.refused += count
        if self._stored.confirmed + self._stored.refused >= self._task.count:
            self._stored.report()
            self._connection.ioloop.stop()
        else:
            self._fill()


def drain(task: Task) -> None:
    declare(task.url, task)
    connection = pika.BlockingConnection(pika.URLParameters(task.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    drained = Drained(task)

    def on_message(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        done = drained.take((body,))
        if done or drained.received % ACK_EVERY == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if done:
            channel.stop_consuming()

    ready()
    wait_for_go()
    drained.begin()
    channel.basic_consume(queue_names(task)[0], on_message)
    channel.start_consuming()
    connection.process_data_events(0)
    drained.report()
    connection.close()


def main() -> None:
    task = Task.read()
    if task.role == STORE:
        Publisher(task).run()
    else:
        drain(task)


if __name__ == "__main__":
    main()
