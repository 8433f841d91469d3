"""A benchmark client of RabbitMQ with pika's blocking connection.

A topic exchange, an exclusive queue per subscriber, transient messages, no acknowledgement.
"""

from __future__ import annotations

from typing import Any

import pika

from benchmarks.clients.task import DirectTask
from cluster.commands.bench.process import (
    PUBLISH,
    Source,
    Tally,
    ready,
    report,
    wait_for_go,
)

EXCHANGE = "amq.topic"


def publish(connection: pika.BlockingConnection, task: DirectTask) -> None:
    channel = connection.channel()
    source = Source(task, ".")
    ready()
    wait_for_go()

    def send(topic: str, payload: bytes) -> None:
        channel.basic_publish(EXCHANGE, topic, payload)

    if task.rate:
        source.publish_in_time(send)
    else:
        payload = source.payload
        for topics in source.chunks():
            for topic in topics:
                send(topic, payload)
    send(task.end_topic("."), b"")
    connection.close()
    report(source.figures())


def subscribe(connection: pika.BlockingConnection, task: DirectTask) -> None:
    channel = connection.channel()
    tally = Tally(task, channel.stop_consuming)
    take = tally.clock if task.rate else tally.count

    def on_message(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        take(body)

    queue = channel.queue_declare("", exclusive=True, auto_delete=True).method.queue
    channel.queue_bind(queue, EXCHANGE, f"{task.prefix}.#")
    channel.basic_consume(queue, on_message, auto_ack=True)
    ready()
    channel.start_consuming()
    connection.close()


def main() -> None:
    task = DirectTask.read()
    connection = pika.BlockingConnection(pika.URLParameters(task.url))
    if task.role == PUBLISH:
        publish(connection, task)
    else:
        subscribe(connection, task)


if __name__ == "__main__":
    main()
