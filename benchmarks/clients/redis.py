"""A benchmark client of Redis pub/sub with redis-py and hiredis: pipelines of 500 at full speed.

The channels are subscribed to by name: a pattern would be matched against every message, one after the
other, which is slower in Redis.
"""

from __future__ import annotations

from typing import Any

import redis

from benchmarks.clients.task import DirectTask
from cluster.commands.bench.process import (
    PUBLISH,
    Source,
    Tally,
    ready,
    report,
    wait_for_go,
)

PIPELINE_MESSAGES = 500


def publish(client: redis.Redis[bytes], task: DirectTask) -> None:
    source = Source(task)
    ready()
    wait_for_go()
    if task.rate:
        source.publish_in_time(client.publish)
    else:
        payload = source.payload
        for topics in source.chunks():
            for start in range(0, len(topics), PIPELINE_MESSAGES):
                pipeline = client.pipeline(transaction=False)
                for topic in topics[start : start + PIPELINE_MESSAGES]:
                    pipeline.publish(topic, payload)
                pipeline.execute()
    client.publish(task.end_topic(), b"")
    report(source.figures())


def subscribe(client: redis.Redis[bytes], task: DirectTask) -> None:
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True

    tally = Tally(task, end)
    take = tally.clock if task.rate else tally.count
    channels = [*task.topics(), task.end_topic()]
    subscription: Any = client.pubsub()
    subscription.subscribe(*channels)
    confirmed = 0
    for message in subscription.listen():
        if message["type"] == "message":
            take(message["data"])
            if is_over:
                return
        else:
            confirmed += 1
            if confirmed == len(channels):
                ready()


def main() -> None:
    task = DirectTask.read()
    client: redis.Redis[bytes] = redis.Redis.from_url(task.url)
    if task.role == PUBLISH:
        publish(client, task)
    else:
        subscribe(client, task)


if __name__ == "__main__":
    main()
