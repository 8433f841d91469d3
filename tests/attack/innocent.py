"""A client that does its work beside an attack, in a process of its own, and says how long each message took.

`Innocent` is for the campaign; this module as a program is the process that it starts. It publishes a direct and a
guaranteed message in turn, each when the one before has come back to it or is given up, so what it measures is what
a user of the node feels, and what is lost is known at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

import angarium

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "innocent/queue"
DIRECT = "innocent/direct"
INTERVAL_S = 0.01
#: A guaranteed message may wait for a worker that starts again; a direct one that takes longer is lost.
LOST_S = 30.0
READY_S = 60.0


class Noticed(NamedTuple):
    """What it saw since it was asked last."""

    messages: int
    #: Not come back in time, and refused: nobody who keeps within the limits may be.
    lost: int
    refused: int
    reconnects: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


class Innocent:
    """The running client; a context manager that ends it."""

    def __init__(self, url: str, password_file: str = "") -> None:
        """Start it; messages come back to it when this returns."""
        path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "sdk"), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, __file__, url, password_file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._read() == "ready"

    def look(self) -> Noticed:
        """Give what was noticed since the last look."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"look\n")
        self._process.stdin.flush()
        return Noticed(**self._read())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the innocent client has ended with status {self._process.wait()}"
        return json.loads(line)


class _Counts:
    """What is told at the next look."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []
        self.lost = self.refused = 0

    def report(self, reconnects: int) -> dict[str, Any]:
        """Give what was counted, and start over."""
        took = sorted(self.took_ms) or [0.0]
        shares = [round(took[int((len(took) - 1) * share)], 2) for share in (0.5, 0.99, 1.0)]
        noticed = Noticed(len(took), self.lost, self.refused, reconnects, *shares)
        self.took_ms, self.lost, self.refused = [], 0, 0
        return noticed._asdict()


async def _run(url: str, password_file: str) -> None:
    counts = _Counts()
    login: dict[str, Any] = {}
    if password_file:
        login = {"username": "innocent", "password": Path(password_file).read_text(encoding="utf-8").strip()}
    async with angarium.connect(url, timeout_s=READY_S, **login) as client:
        await client.create_queue(QUEUE, ignore_exists=True)
        producer = await client.producer()
        subscription = await client.subscribe(DIRECT)
        flow = await client.consume(QUEUE)
        sent = 0

        async def there_and_back() -> None:
            nonlocal sent
            sent += 1
            payload, began = b"%d" % sent, time.monotonic()
            try:
                async with asyncio.timeout(LOST_S):
                    if sent % 2:
                        await client.publish(DIRECT, payload)
                        while (await subscription.receive()).payload != payload:
                            pass
                    else:
                        await producer.publish(f"#P2P/QUE/{QUEUE}", payload)
                        while (await flow.receive()).payload != payload:
                            pass
            except TimeoutError:
                counts.lost += 1
            except angarium.AngariumError:
                counts.refused += 1
            else:
                counts.took_ms.append((time.monotonic() - began) * 1000)

        async def work() -> None:
            while True:
                await there_and_back()
                await asyncio.sleep(INTERVAL_S)

        await there_and_back()
        assert not counts.lost, "nothing comes back"
        counts.report(0)
        working = asyncio.create_task(work())
        print('"ready"', flush=True)
        loop, known = asyncio.get_running_loop(), 0
        while (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            reconnects = int(client.stats["reconnects"])
            print(json.dumps(counts.report(reconnects - known)), flush=True)
            known = reconnects
        working.cancel()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2]))
