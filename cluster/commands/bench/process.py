"""What every client process of a measurement does around its broker: its task, READY, GO, one JSON line.

The parent (`client_process`) writes the task as one line of JSON on standard input: it may hold a password, so it is
no argument. The client connects, subscribes if it is a subscriber, and prints READY; all but subscribers then wait
for GO. When a run is over it prints one line of JSON: what it published or received, and when. Before that it may
print `DONE` with how many messages it has handled, or `ERROR` with what went wrong. Times are CLOCK_MONOTONIC in
nanoseconds, which all processes of a machine share. An empty payload ends a run.

Only the standard library is used: `scripts/bench` compares with other brokers, whose clients run in an environment of
their own. What is done per message is the same in all of them, so that only the client libraries differ.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from selectors import SelectSelector
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

#: The send time in nanoseconds, at the start of each payload of a latency run.
STAMP_BYTES: Final = 8
#: Messages between two looks at the clock in a run at full speed: a millisecond or so of work.
CHUNK_MESSAGES: Final = 1_000
#: What is not received waits in memory somewhere; so many messages of 1 KiB are 10 GiB.
MESSAGES_MAX: Final = 10_000_000
#: A subscriber that got something and then nothing for so long has missed the end of its run: longer than a loaded
#: machine pauses.
STALL_S: Final = 10.0
#: One that got nothing at all for so long waits for something that will not come.
NOTHING_S: Final = 120.0
_LOOK_INTERVAL_S: Final = 0.25
#: Topics of a run, used in turn.
TOPICS: Final = 16
#: Between two words on how far a client is: often enough for a bar, too seldom to be measured.
TELL_INTERVAL_S: Final = 0.2

READY: Final = "READY"
GO: Final = "GO"
DONE: Final = "DONE"
ERROR: Final = "ERROR"

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
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

    #: PUBLISH, SUBSCRIBE, STORE or DRAIN.
    role: str
    #: Where the broker listens.
    url: str
    #: First levels of the topics of this run, so that no run gets messages of another; and the names of its queues.
    prefix: str
    #: Further arguments of `angarium.connect`.
    options: dict[str, Any] = field(default_factory=dict)
    payload_bytes: int = 128
    #: Topics of this run, used in turn.
    topic_count: int = TOPICS
    #: How long a publisher publishes, unless `count` says how many messages it sends.
    seconds: float = 1.0
    count: int = 0
    #: Messages or changes per second; 0 for full speed.
    rate: float = 0
    #: SINGLY or BATCHED.
    api: str = SINGLY
    #: Messages of a batch; 0 for what suits the client.
    batch: int = 0
    #: How many publishers send to this subscriber, each with an end of its own.
    publishers: int = 1
    #: How many runs a subscriber stays for.
    runs: int = 1
    #: Messages that a storing client may have unconfirmed.
    window: int = 255
    #: Queues that get each message.
    queues: int = 1
    #: How long a queue holds each message back.
    delay_ms: int = 0
    #: Whether no two payloads are equal; else they are all alike.
    distinct: bool = False
    #: Whether somebody watches: the client says now and then how far it is.
    is_watched: bool = False

    def pack(self) -> bytes:
        """Give the line for standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls) -> Self:
        """Read the task from standard input."""
        return cls(**json.loads(sys.stdin.readline()))

    def topics(self, separator: str = "/") -> list[str]:
        """Give the topics of this run, spelled for a broker."""
        return [f"{self.prefix}{separator}{number}" for number in range(self.topic_count)]

    def end_topic(self, separator: str = "/") -> str:
        """Give the topic of the end; every subscriber of this run gets it."""
        return f"{self.prefix}{separator}end"

    @property
    def messages(self) -> int:
        """How many messages a publisher with a rate sends."""
        return self.count or round(self.rate * self.seconds)


def percentile(values: Sequence[float], part: float) -> float:
    """Give the value at or below which a part of the values lies, or 0 if there is none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return float(ordered[max(0, math.ceil(len(ordered) * part) - 1)])


def ready() -> None:
    """Tell the parent that this client is connected, and subscribed if it is to be.

    The garbage collector looks at what the start made before that: else a run pays a millisecond for it, or does not,
    depending on how many objects a client library happens to make while it connects.
    """
    gc.collect()
    _cpu.begin()
    print(READY, flush=True)


def wait_for_go() -> None:
    """Wait until all others are ready too."""
    line = sys.stdin.readline()
    if line != f"{GO}\n":
        sys.exit(f"instead of {GO} came {line!r}")


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


def report_error(code: int, text: str) -> None:
    """Print why nothing was measured."""
    print(ERROR, json.dumps([code, text]), flush=True)


class _CpuTime:
    """CPU seconds of this process since it was ready, or since its last report."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._since_s = time.process_time()

    def end(self) -> float:
        return time.process_time() - self._since_s


_cpu = _CpuTime()


class Telling:
    """Says now and then how many messages a client has handled, if somebody watches."""

    def __init__(self, task: Task) -> None:
        #: When it is due again; never if nobody watches.
        self._next_at = 0.0 if task.is_watched else math.inf

    def __call__(self, done: int) -> None:
        """Take how many are done by now."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + TELL_INTERVAL_S
            print(DONE, done, flush=True)


class Tally:
    """What a subscriber has received in this run."""

    def __init__(self, task: Task, on_end: Callable[[], None]) -> None:
        """Begin; `on_end` is called when the last run is over."""
        self._runs_left = task.runs
        self._may_hear_nothing = task.runs > 1
        self._publishers = task.publishers
        self._on_end = on_end
        self._reset()
        threading.Thread(target=self._watch, daemon=True).start()

    def _reset(self) -> None:
        self.messages = 0
        self.last_ns = 0
        self._ends_left = self._publishers
        #: One per message of a run with a rate, in the order of arrival.
        self.latencies_ns: list[int] = []

    def count(self, payload: bytes) -> None:
        """Take a message of a run at full speed."""
        if payload:
            self.messages += 1
        else:
            self.last_ns = time.monotonic_ns()
            self._take_ends(1)

    def count_many(self, payloads: list[bytes]) -> None:
        """Take messages that came together, of a run at full speed."""
        ends = payloads.count(b"")
        messages = len(payloads) - ends
        if messages:
            self.last_ns = time.monotonic_ns()
            self.messages += messages
        if ends:
            self._take_ends(ends)

    def clock(self, payload: bytes) -> None:
        """Take a message of a run with a rate."""
        now = time.monotonic_ns()
        self.last_ns = now
        if payload:
            self.messages += 1
            self.latencies_ns.append(now - int.from_bytes(payload[:STAMP_BYTES], "little"))
        else:
            self._take_ends(1)

    def _take_ends(self, ends: int) -> None:
        self._ends_left -= ends
        if self._ends_left <= 0:
            self.end(complete=True)

    def end(self, *, complete: bool) -> None:
        """Report this run and be ready for the next one."""
        report(
            {
                "received": self.messages,
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
            silent_s = time.monotonic() - since
            if self.messages != seen:
                seen, since = self.messages, time.monotonic()
            elif seen and silent_s > STALL_S:
                self.last_ns = self.last_ns or round(since * 1e9)
                self.end(complete=False)
                os._exit(0)
            elif not self._may_hear_nothing and silent_s > NOTHING_S:
                print(f"no message came within {NOTHING_S:g} s", file=sys.stderr, flush=True)
                os._exit(1)


class Source:
    """The payloads and topics of a publisher, and what it reports."""

    def __init__(self, task: Task, separator: str = "/") -> None:
        self._task = task
        self._topics: Iterator[str] = cycle(task.topics(separator))
        self._messages_max = task.count or MESSAGES_MAX
        self._tell = Telling(task)
        self.payload = bytes(task.payload_bytes)
        self._filler = bytes(task.payload_bytes - STAMP_BYTES)
        self.published = 0
        self._first_ns = 0

    def chunks(self) -> Iterator[list[str]]:
        """Give the topics of some messages at a time, until as many as asked for are out, or the time is over."""
        self._first_ns = time.monotonic_ns()
        deadline_ns = math.inf if self._task.count else self._first_ns + self._task.seconds * 1e9
        chunk = self._task.batch or CHUNK_MESSAGES
        while time.monotonic_ns() < deadline_ns and self.published < self._messages_max:
            messages = min(chunk, self._messages_max - self.published)
            yield list(islice(self._topics, messages))
            self.published += messages
            self._tell(self.published)

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
            self._tell(self.published)

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
