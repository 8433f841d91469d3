"""Breaks real nodes under load for some minutes and counts what was promised: the program behind scripts/crash.

Each round starts a node, publishes a file of numbered lines with the `pub` command (a named producer that
retries over everything), consumes one queue all the time, breaks something every few seconds, waits until the
publisher is done, and drains a second queue. Every acknowledged line must be in both queues; in the second
one once and in order; in the first one again only with the redelivered flag. A line that was refused, because the disk
was full, must be in none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import angarium
from angarium import errors
from angarium_server.testing import Node
from tests.crash.accounts import Account
from tests.crash.breaking import Breaker, describe, lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("kill", "stop", "enospc", "eio")
WORKERS = 2
LINES = 40_000
RATE = 2_000
#: Between two faults.
PAUSE_S = (0.5, 3.0)
#: Longer than any fault and the restart after it.
RETRY_S = 120
#: A queue that gave all that was acknowledged, and from which nothing more comes for so long, is empty.
DRAINED_S = 2.0
#: What did not come within this time is lost.
LOST_S = 60.0
DISK_MB = 512
#: A process that was killed may hold the disk for a moment.
UNMOUNT_S, UNMOUNT_AGAIN_S = 10.0, 0.1
LIVE, FINAL = "live", "final"
TOPIC = "crash/{line%20}"


class Round:
    """One node, its load, and what it is judged by."""

    def __init__(self, directory: Path, disk: Path | None, kinds: list[str], rng: random.Random) -> None:
        data = (disk or directory) / f"data-{rng.randrange(1 << 30):x}"
        self._directory = directory
        self._rng = rng
        self.node = Node(data, workers=WORKERS)
        self.breaker = Breaker(self.node, kinds, rng, disk)
        self._acked = directory / f"{data.name}.acked"
        self.live = Account(LIVE, redelivers=True)
        self.final = Account(FINAL, redelivers=False)
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    def run(self, deadline: float, lines: int, rate: int, faults_min: int) -> dict[str, Any]:
        """Publish, break, wait, drain and judge; gives what is wrong, empty if nothing is."""
        self.node.start()
        try:
            for queue in (LIVE, FINAL):
                self.node.run("queue", "create", queue, "--subscription", "crash/>")
            consumer = threading.Thread(target=self._consume_live, daemon=True)
            consumer.start()
            with self._publisher(lines, rate) as publisher:
                self._break_until(publisher, deadline, faults_min)
                summary = self._wait(publisher)
            self._stop.set()
            consumer.join(RETRY_S)
            for account in (self.live, self.final):
                asyncio.run(self._drain(account, self._acknowledged()))
        finally:
            self._stop.set()
            with contextlib.suppress(Exception):
                self.node.stop()
            self.node.kill_all()
        return self._judge(lines, summary)

    @contextlib.contextmanager
    def _publisher(self, lines: int, rate: int) -> Iterator[subprocess.Popen[bytes]]:
        source = self._directory / "lines"
        source.write_bytes(b"".join(b"%d\n" % number for number in range(lines)))
        command = [sys.executable, "-P", "-m", "angarium_server", "pub", TOPIC, "--lines", str(source)]
        command += ["--mode", "persistent", "--producer", "campaign", "--retry-for", str(RETRY_S)]
        command += ["--acked-file", str(self._acked), "--rate", str(rate), "--json"]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "ANGARIUM_URL": self.node.url, "ANGARIUM_DATA": str(self.node.data)},
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _break_until(self, publisher: subprocess.Popen[bytes], deadline: float, faults_min: int) -> None:
        done = 0
        while publisher.poll() is None and (time.monotonic() < deadline or done < faults_min):
            time.sleep(self._rng.uniform(*PAUSE_S))
            say(self.breaker.break_something())
            done += 1

    def _wait(self, publisher: subprocess.Popen[bytes]) -> dict[str, Any]:
        output, told = publisher.communicate(timeout=2 * RETRY_S)
        is_refusal = "enospc" in self.breaker.done and f"error {errors.DISK_FULL}".encode() in told
        if publisher.returncode != 0 and not is_refusal:
            self._failures.append(RuntimeError(f"pub: {publisher.returncode} {told.decode()[-2_000:]}"))
            return {}
        summary: dict[str, Any] = json.loads(output.splitlines()[-1])
        return summary

    def _consume_live(self) -> None:
        try:
            asyncio.run(self._consume(LIVE, self.live, lambda _idle: self._stop.is_set()))
        except BaseException as error:  # noqa: BLE001 - told at the end of the round
            self._failures.append(error)

    async def _drain(self, account: Account, acknowledged: set[int]) -> None:
        def is_over(idle_s: float) -> bool:
            return idle_s > (DRAINED_S if acknowledged <= account.got.keys() else LOST_S)

        await self._consume(account.queue, account, is_over)

    async def _consume(self, queue: str, account: Account, is_over: Any) -> None:
        """Take and accept everything until it is over; told how long nothing has come."""
        last = time.monotonic()
        async with angarium.connect(self.node.url, timeout_s=RETRY_S) as client:
            flow = await client.consume(queue, ack="manual")

            async def read() -> None:
                nonlocal last
                async for batch in flow.batches():
                    last = time.monotonic()
                    for message in batch:
                        account.take(int(message.payload), redelivered=message.redelivered)
                    flow.accept(batch)

            reader = asyncio.create_task(read())
            while not is_over(time.monotonic() - last) and not reader.done():
                await asyncio.sleep(0.1)
            await flow.close()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    def _acknowledged(self) -> set[int]:
        text = self._acked.read_text() if self._acked.exists() else ""
        return {int(line) for line in text.split()}

    def _judge(self, lines: int, summary: dict[str, Any]) -> dict[str, Any]:
        acknowledged = self._acknowledged()
        found: dict[str, Any] = {}
        self.refused = summary.get("nacked", 0)
        others = frozenset(range(lines)) - acknowledged
        refused = others if len(others) == self.refused else frozenset()
        for account in (self.live, self.final):
            wrong = account.judge(lines, acknowledged, refused)
            if wrong:
                found[account.queue] = {kind: [len(some), some[:5]] for kind, some in wrong.items()}
        if summary and summary["acknowledged"] != len(acknowledged):
            found["summary"] = [summary, len(acknowledged)]
        if self._failures:
            found["failures"] = [repr(failure) for failure in self._failures]
        self.acknowledged = len(acknowledged)
        return found


@contextlib.contextmanager
def small_disk(directory: Path, *, wanted: bool) -> Iterator[Path | None]:
    """Mount a small file system for the data of nodes; None if that is not wanted or not allowed."""
    place = directory / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "angarium-crash", str(place)]
    if not wanted or subprocess.run(command, check=False, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        give_up_at = time.monotonic() + UNMOUNT_S
        while (
            subprocess.run(["umount", str(place)], check=False).returncode and time.monotonic() < give_up_at
        ):
            time.sleep(UNMOUNT_AGAIN_S)


def say(text: str) -> None:
    """Tell what goes on, on standard error."""
    print(text, file=sys.stderr, flush=True)


def campaign(
    kinds: list[str], minutes: float, seed: int, lines: int = LINES, rate: int = RATE, faults_min: int = 1
) -> dict[str, Any]:
    """Run rounds until the time is over, at least one, each with some faults; gives the verdict."""
    rng = random.Random(seed)
    deadline = time.monotonic() + minutes * 60
    faults: dict[str, int] = {}
    broken: list[Any] = []
    rounds = acknowledged = refused = 0
    with (
        tempfile.TemporaryDirectory(prefix="angarium-crash-") as name,
        small_disk(Path(name), wanted="enospc" in kinds) as disk,
    ):
        missing = lacking(kinds, disk)
        kinds = [kind for kind in kinds if kind not in missing]
        while not rounds or time.monotonic() < deadline:
            one = Round(Path(name), disk, kinds, rng)
            wrong = one.run(deadline, lines, rate, faults_min)
            rounds += 1
            acknowledged += one.acknowledged
            refused += one.refused
            for what, count in one.breaker.done.items():
                faults[what] = faults.get(what, 0) + count
            if wrong:
                broken.append({"round": rounds, **wrong})
                say(f"round {rounds}: {wrong}\n{one.node.output()[-3_000:]}")
            shutil.rmtree(one.node.data, ignore_errors=True)
            say(f"round {rounds}: {one.acknowledged:,} lines acknowledged, {'broken' if wrong else 'kept'}")
    return {
        "seed": seed,
        "rounds": rounds,
        "faults": describe(faults),
        "skipped": missing,
        "acknowledged": acknowledged,
        "refused": refused,
        "broken": broken,
        "verdict": "bad" if broken else "good",
    }


def main() -> int:
    """Run a campaign as the command line says."""
    parser = argparse.ArgumentParser(prog="scripts/crash", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", default=",".join(KINDS), help="kinds of faults [%(default)s]")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long [%(default)s]")
    parser.add_argument(
        "--seed", type=int, default=0, help="chooses the faults and their times [%(default)s]"
    )
    parser.add_argument("--json", action="store_true", help="nothing: the verdict is JSON anyway")
    options = parser.parse_args()
    kinds = [kind for kind in options.faults.split(",") if kind]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        parser.error(f"faults are {', '.join(KINDS)}")
    verdict = campaign(kinds, options.minutes, options.seed)
    print(json.dumps(verdict), flush=True)
    return int(verdict["verdict"] != "good")


if __name__ == "__main__":
    sys.exit(main())
