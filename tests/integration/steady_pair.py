"""A publisher and a subscriber that go on beside an attack, in a process of their own, and what they noticed.

`SteadyPair` is for tests; this module as a program is the process that it starts. The pair publishes small batches
at a steady rate, numbers them, and looks at what arrives: rising numbers, the longest pause between two arrivals.
A process of its own, because an attack in the same interpreter would make pauses of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
#: Batches larger than this go to the workers; smaller ones the router may answer by itself.
BATCH = 8
#: It runs beside whole modules of tests: as seldom as shows pauses of the seconds that tests allow.
INTERVAL_S = 0.1
#: Longer than the longest pause that any test allows.
ANSWER_S = 20.0
DRAIN_S = 5.0


class Noticed(NamedTuple):
    """What a pair saw since it was asked last; the last two count from its start."""

    received: int
    not_rising: int
    longest_pause_ms: float
    reconnects: int
    missing: int


class SteadyPair:
    """A running pair; a context manager that ends it."""

    def __init__(self, url: str, topics: Sequence[str], *, script: str = __file__) -> None:
        """Start it; it has received its first messages when this returns. `script` is the program of the pair."""
        from tests.command_server import PROGRAM  # not in the process of a pair, which has no tests
        from tests.conftest import COMMANDS

        (asked, asks), (tells, tell) = os.pipe(), os.pipe()
        self._asks, self._tells = os.fdopen(asks, "wb"), os.fdopen(tells, "rb")
        self._told, theirs = socket.socketpair()
        with theirs:
            command = [PROGRAM, script, url, *topics]
            COMMANDS.run_for(theirs, command, dict(os.environ), str(ROOT), [asked, tell, os.dup(2)])
        #: Its process.
        self.pid = int(self._told.recv(100).split()[0])
        self._process = os.pidfd_open(self.pid)
        try:
            assert self._read() == "ready"
        except BaseException:
            self._end()
            raise

    def look(self) -> Noticed:
        """Give what was noticed since the last look."""
        return Noticed(**self._ask("look"))

    def finish(self) -> Noticed:
        """Publish no more, wait for what is under way, and give what was noticed since the last look."""
        return Noticed(**self._ask("finish"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        select.select([self._process], [], [])
        os.close(self._process)
        for one in (self._asks, self._tells, self._told):
            one.close()

    def _ask(self, command: str) -> Any:
        self._asks.write(f"{command}\n".encode())
        self._asks.flush()
        return self._read()

    def _read(self) -> Any:
        line = self._tells.readline()
        assert line, "the pair has ended"
        return json.loads(line)


class Watch:
    """What the process of the pair counts."""

    def __init__(self) -> None:
        self.published = 0
        #: Whether no more is published than what was begun: what is cut off would be taken for lost.
        self.is_over = False
        #: The newest number that came; all before it came or are missing.
        self.newest = -1
        self.total = 0
        self.received = 0
        self.not_rising = 0
        self.longest_pause_s = 0.0
        self.arrived_at = time.monotonic()

    def arrived(self, payloads: list[bytes]) -> None:
        """Count what came together."""
        now = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now - self.arrived_at)
        self.arrived_at = now
        self.received += len(payloads)
        self.total += len(payloads)
        for payload in payloads:
            number = int.from_bytes(payload, "big")
            self.not_rising += number <= self.newest
            self.newest = max(self.newest, number)

    def report(self, reconnects: int) -> dict[str, Any]:
        """Give what was counted, and start over; a pause that has not ended counts."""
        pause_s = max(self.longest_pause_s, time.monotonic() - self.arrived_at)
        noticed = Noticed(
            self.received, self.not_rising, round(pause_s * 1000, 1), reconnects, self.published - self.total
        )
        self.received = self.not_rising = 0
        self.longest_pause_s = 0.0
        self.arrived_at = time.monotonic()
        return noticed._asdict()


async def _run(url: str, topics: list[str]) -> None:
    import angarium

    watch = Watch()
    first = asyncio.Event()
    async with angarium.connect(url) as source, angarium.connect(url) as sink:
        subscription = await sink.subscribe(topics)

        async def receive() -> None:
            async for batch in subscription.batches():
                watch.arrived(batch.payloads)
                first.set()

        async def publish() -> None:
            due = time.monotonic()
            while not watch.is_over:
                start = watch.published
                rows = [(topics[n % len(topics)], n.to_bytes(8, "big")) for n in range(start, start + BATCH)]
                watch.published += BATCH
                await source.publish_many(rows)
                due = max(due + INTERVAL_S, time.monotonic() - INTERVAL_S)
                await asyncio.sleep(max(0.0, due - time.monotonic()))

        def reconnects() -> int:
            return int(source.stats["reconnects"] + sink.stats["reconnects"])

        receiving, publishing = asyncio.create_task(receive()), asyncio.create_task(publish())
        await first.wait()
        await answer(watch, reconnects, publishing)
        receiving.cancel()


async def answer(watch: Watch, reconnects: Callable[[], int], publishing: asyncio.Task[None]) -> None:
    """Say that the pair is ready, and report whenever a line of the standard input asks for it."""

    def say(value: Any) -> None:
        print(json.dumps(value), flush=True)

    watch.report(0)
    say("ready")
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if command == "finish":
            watch.is_over = True
            deadline = time.monotonic() + DRAIN_S
            await asyncio.wait([publishing], timeout=DRAIN_S)
            while watch.total < watch.published and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
        say(watch.report(reconnects()))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2:]))
