"""What every client process of a benchmark does around its broker: its task, READY, GO, one JSON line.

The parent (`benchmarks.harness`) writes the task as one line of JSON on standard input. The client
connects, subscribes if it is a subscriber, and prints READY; a publisher then waits for GO. When a run is
over it prints one line of JSON: what it published or received, and when. Times are CLOCK_MONOTONIC in
nanoseconds, which all processes of a machine share. An empty payload ends a run.

Only the standard library is used: the clients of the peers run in an environment of their own. What is done
per message is the same in all of them, so that only the client libraries differ.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import threading
import time
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from selectors import SelectSelector
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

#: The send time in nanoseconds, at the start of each payload of a latency run.
STAMP_BYTES: Final = 8
#: Messages between two looks at the clock in a run at full speed: a millisecond or so of work.
CHUNK_MESSAGES: Final = 1_000
#: What is not received waits in memory somewhere; so many messages of 1 KiB are 10 GiB.
MESSAGES_MAX: Final = 10_000_000
#: Publishing each topic of the table once ends by itself, unless something is wrong.
EACH_ONCE_S: Final = 60.0
#: A subscriber that got something and then nothing for so long has missed the end of its run.
STALL_S: Final = 5.0
_LOOK_INTERVAL_S: Final = 0.25
#: Topics of a run, used in turn.
TOPICS: Final = 16

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
CHURN: Final = "churn"
#: Publish messages to a queue with confirmation, and take and acknowledge them.
STORE: Final = "store"
DRAIN: Final = "drain"
#: One call per message on both sides, which every client library has.
SINGLY: Final = "singly"
#: One call per batch on both sides, where the library has it.
BATCHED: Final = "batched"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client does."""

    #: PUBLISH, SUBSCRIBE, CHURN, STORE or DRAIN.
    role: str
    #: Where the broker listens.
    url: str
    #: First level of the topics of this run, so that no run gets messages of another.
    prefix: str
    payload_bytes: int = 128
    #: How long a publisher publishes, or a churning client churns.
    seconds: float = 1.0
    #: Messages or changes per second; 0 for full speed.
    rate: int = 0
    #: SINGLY or BATCHED.
    api: str = SINGLY
    #: Whether the subscriber lets the broker send as much as it likes.
    unbounded: bool = True
    #: How many runs a subscriber stays for.
    runs: int = 1
    #: Subscriptions of the table of filters that all holders have together, and which share this one holds.
    table: int = 0
    holder: int = 0
    holders: int = 1
    #: Whether a publisher publishes each topic of the table once, instead of any of them for a time.
    each_once: bool = False
    #: Messages that fill the queue of a frozen subscriber before the run; its topic is `burst_topic`.
    burst: int = 0
    #: Whether this subscriber also gets the burst, and is not to be missed for a minute.
    frozen: bool = False
    #: Messages that a storing or draining client handles; the prefix names the queue.
    count: int = 0
    #: Messages that a storing client may have unconfirmed.
    window: int = 255
    #: Queues that get each message.
    queues: int = 1
    #: How long a queue holds each message back.
    delay_ms: int = 0
    #: Whether no two payloads are equal; else they are all alike.
    distinct: bool = False

    def pack(self) -> bytes:
        """Give the line for standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"

    def topics(self, separator: str = "/") -> list[str]:
        """Give the topics of this run, spelled for a broker."""
        if self.table:
            topics = table_topics(self.table)
            return topics if self.each_once else random.Random(0).choices(topics, k=2 * self.table)
        return [f"{self.prefix}{separator}{number}" for number in range(TOPICS)]

    def end_topic(self, separator: str = "/") -> str:
        """Give the topic of the end; every subscriber of this run gets it."""
        return f"{self.prefix}{separator}end"

    @property
    def burst_topic(self) -> str:
        """Where the burst for a frozen subscriber goes."""
        return f"{self.prefix}-burst/0"

    @property
    def messages(self) -> int:
        """How many messages a publisher with a rate sends."""
        return round(self.rate * self.seconds)


def table_filters(count: int) -> list[str]:
    """Give a table of filters, half of them exact (`a/{i}/b`) and half with a wildcard (`a/*/c{i}`)."""
    return [f"a/{number}/b" if number % 2 else f"a/*/c{number}" for number in range(count)]


def table_topics(count: int) -> list[str]:
    """Give one topic for each filter of the table, which matches it alone, in an order without locality."""
    topics = [f"a/{number}/b" if number % 2 else f"a/x/c{number}" for number in range(count)]
    random.Random(count).shuffle(topics)
    return topics


def read_task() -> Task:
    """Read the task from standard input."""
    return Task(**json.loads(sys.stdin.readline()))


def ready() -> None:
    """Tell the parent that this client is connected, and subscribed if it is to be.

    The garbage collector looks at what the start made before that: else a run pays a millisecond for it, or does not,
    depending on how many objects a client library happens to make while it connects.
    """
    gc.collect()
    _cpu.begin()
    print("READY", flush=True)


def wait_for_go() -> None:
    """Wait until all others are ready too."""
    line = sys.stdin.readline()
    if line != "GO\n":
        sys.exit(f"instead of GO came {line!r}")


def run_loop(main: Coroutine[Any, Any, None], task: Task) -> None:
    """Run a client in a loop of asyncio; one that publishes at a rate sleeps exactly in it.

    epoll, which asyncio takes by default, sleeps in whole milliseconds, so messages would leave in pairs; select
    sleeps as exactly as `time.sleep`, which paces the clients without a loop.
    """
    is_paced = task.role == PUBLISH and task.rate
    with asyncio.Runner(loop_factory=_exact_loop if is_paced else None) as runner:
        runner.run(main)


def _exact_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(SelectSelector())


def report(figures: dict[str, Any]) -> None:
    """Print what was measured."""
    line = json.dumps({**figures, "cpu_s": _cpu.end()})
    print(line, flush=True)
    _cpu.begin()


class _CpuTime:
    """CPU seconds of this process since it was ready, or since its last report."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._since_s = time.process_time()

    def end(self) -> float:
        return time.process_time() - self._since_s


_cpu = _CpuTime()


class Tally:
    """What a subscriber has received in this run."""

    def __init__(self, task: Task, on_end: Callable[[], None]) -> None:
        """Begin; `on_end` is called when the last run is over."""
        self._runs_left = task.runs
        self._on_end = on_end
        self._reset()
        threading.Thread(target=self._watch, daemon=True).start()

    def _reset(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.last_ns = 0
        #: One per message of a run with a rate, in the order of arrival.
        self.latencies_ns: list[int] = []

    def count(self, payload: bytes) -> None:
        """Take a message of a run at full speed."""
        if payload:
            self.messages += 1
            self.bytes += len(payload)
        else:
            self.last_ns = time.monotonic_ns()
            self.end(complete=True)

    def count_many(self, payloads: list[bytes]) -> None:
        """Take messages that came together, of a run at full speed; the end is the last of a batch."""
        messages = len(payloads) - (not payloads[-1])
        if messages:
            self.last_ns = time.monotonic_ns()
            self.messages += messages
            self.bytes += sum(map(len, payloads))
        if not payloads[-1]:
            self.end(complete=True)

    def clock(self, payload: bytes) -> None:
        """Take a message of a run with a rate."""
        now = time.monotonic_ns()
        self.last_ns = now
        if payload:
            self.messages += 1
            self.bytes += len(payload)
            self.latencies_ns.append(now - int.from_bytes(payload[:STAMP_BYTES], "little"))
        else:
            self.end(complete=True)

    def end(self, *, complete: bool) -> None:
        """Report this run and be ready for the next one."""
        report(
            {
                "received": self.messages,
                "bytes": self.bytes,
                "last_ns": self.last_ns,
                "latencies_ns": self.latencies_ns,
                "complete": complete,
            }
        )
        self._reset()
        self._runs_left -= 1
        if self._runs_left <= 0:
            self._on_end()

    def _watch(self) -> None:
        """End the process when the end of a run was lost."""
        seen, since = 0, time.monotonic()
        while self._runs_left > 0:
            time.sleep(_LOOK_INTERVAL_S)
            if self.messages != seen:
                seen, since = self.messages, time.monotonic()
            elif seen and time.monotonic() - since > STALL_S:
                self.last_ns = self.last_ns or round(since * 1e9)
                self.end(complete=False)
                os._exit(0)


class Source:
    """The payloads and topics of a publisher, and what it reports."""

    def __init__(self, task: Task, separator: str = "/") -> None:
        """Prepare everything that needs no broker."""
        self._task = task
        topics = task.topics(separator)
        self._topics: Iterator[str] = cycle(topics)
        #: More than any run publishes, or each topic once.
        self._messages_max = len(topics) if task.each_once else MESSAGES_MAX
        self.payload = bytes(task.payload_bytes)
        self._filler = bytes(task.payload_bytes - STAMP_BYTES)
        self.published = 0
        self._first_ns = 0
        self._deadline_ns = 0

    def chunks(self) -> Iterator[list[str]]:
        """Give the topics of some messages at a time, until the time is over or each was used once."""
        self._first_ns = time.monotonic_ns()
        seconds = EACH_ONCE_S if self._task.each_once else self._task.seconds
        deadline_ns = self._first_ns + round(seconds * 1e9)
        while time.monotonic_ns() < deadline_ns and self.published < self._messages_max:
            messages = min(CHUNK_MESSAGES, self._messages_max - self.published)
            yield list(islice(self._topics, messages))
            self.published += messages

    def publish_in_time(self, publish: Callable[[str, bytes], object]) -> None:
        """Publish each message when it is due; one that is late leaves at once."""
        self._first_ns = time.monotonic_ns()
        interval_ns = 1e9 / self._task.rate
        for number in range(self._task.messages):
            due_ns = self._first_ns + number * interval_ns
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / 1e9)
            publish(next(self._topics), self._stamped())
            self.published += 1

    async def publish_in_time_async(self, publish: Callable[[str, bytes], Awaitable[object]]) -> None:
        """Do the same in a loop of asyncio, which `run_loop` made."""
        self._first_ns = time.monotonic_ns()
        interval_ns = 1e9 / self._task.rate
        for number in range(self._task.messages):
            due_ns = self._first_ns + number * interval_ns
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(left_ns / 1e9)
            await publish(next(self._topics), self._stamped())
            self.published += 1

    def _stamped(self) -> bytes:
        return time.monotonic_ns().to_bytes(STAMP_BYTES, "little") + self._filler

    def figures(self, **more: int) -> dict[str, Any]:
        """Give what this publisher reports when everything has left."""
        return {
            "published": self.published,
            "first_ns": self._first_ns,
            "last_ns": time.monotonic_ns(),
            **more,
        }
