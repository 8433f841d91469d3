"""A benchmark client of Redis streams with redis-py: XADD in pipelines of a window, XREADGROUP and XACK.

A pipeline is a batch, not a sliding window: the next leaves when all of the last are confirmed.
"""

from __future__ import annotations

import contextlib

import redis

from cluster.commands.bench.process import STORE, Task, ready, wait_for_go
from cluster.commands.bench.queueing import Drained, Stored

READ = 1_000
GROUP = "bench"


def declare(client: redis.Redis[bytes], task: Task) -> None:
    with contextlib.suppress(redis.ResponseError):
        client.xgroup_create(task.prefix, GROUP, id="0", mkstream=True)


def store(client: redis.Redis[bytes], task: Task) -> None:
    stored = Stored(task)
    ready()
    wait_for_go()
    stored.begin()
    while stored.confirmed < task.count:
        pipeline = client.pipeline(transaction=False)
        for _ in range(min(task.window, task.count - stored.confirmed)):
            pipeline.xadd(task.prefix, {"p": stored.payload})
        stored.confirmed += len(pipeline.execute())
    stored.report()


def drain(client: redis.Redis[bytes], task: Task) -> None:
    drained = Drained(task)
    ready()
    wait_for_go()
    drained.begin()
    done = False
    while not done:
        found = client.xreadgroup(GROUP, "one", {task.prefix: ">"}, count=READ, block=30_000)
        entries = found[0][1]
        done = drained.take([fields[b"p"] for _, fields in entries])
        client.xack(task.prefix, GROUP, *[number for number, _ in entries])
    drained.report()


def main() -> None:
    task = Task.read()
    client: redis.Redis[bytes] = redis.Redis.from_url(task.url)
    declare(client, task)
    (store if task.role == STORE else drain)(client, task)


if __name__ == "__main__":
    main()
