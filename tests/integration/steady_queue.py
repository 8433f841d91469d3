"""A publisher and a consumer of a queue that go on beside an attack, in a process of their own.

As `steady_pair`, which asks it and starts it, for guaranteed messages: each one is acknowledged before the next ones
are published, what was acknowledged has to come, once and in order.
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.integration.steady_pair import Watch, answer

QUEUE = "steady/queue"
BATCH = 4
INTERVAL_S = 0.25


async def _run(url: str) -> None:
    import angarium

    watch = Watch()
    first = asyncio.Event()
    async with angarium.connect(url) as source, angarium.connect(url) as sink:
        await source.create_queue(QUEUE, ignore_exists=True)
        flow = await sink.consume(QUEUE)
        producer = await source.producer()

        async def receive() -> None:
            async for message in flow:
                watch.arrived([message.payload])
                first.set()

        async def publish() -> None:
            due = time.monotonic()
            while not watch.is_over:
                start = watch.published
                rows = [(f"#P2P/QUE/{QUEUE}", n.to_bytes(8, "big")) for n in range(start, start + BATCH)]
                watch.published += BATCH
                report = await producer.publish_many(rows)
                # What was refused never comes, so it shows as missing in the end.
                assert report.acknowledged == BATCH, report
                due = max(due + INTERVAL_S, time.monotonic() - INTERVAL_S)
                await asyncio.sleep(max(0.0, due - time.monotonic()))

        def reconnects() -> int:
            return int(source.stats["reconnects"] + sink.stats["reconnects"])

        receiving, publishing = asyncio.create_task(receive()), asyncio.create_task(publish())
        await first.wait()
        await answer(watch, reconnects, publishing)
        receiving.cancel()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
