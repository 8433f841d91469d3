"""A process that holds many clients of one broker: connects them, paces their messages, notes what comes.

It is the same for all brokers; a module for each, beside this one, says how a client connects and publishes. All
clients of a process share one event loop, and each message is due at a fixed time whatever the client library does.
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from selectors import EpollSelector
from typing import Any, Final, TypeAlias

from benchmarks.crowd.task import (
    AWAIT_BACK,
    CONNECT,
    COUNT,
    PAYLOAD_BYTES,
    PUBLISH,
    STAMP_BYTES,
    TAKE,
    GroupTask,
    read_task,
)

#: Connects under way in one process.
CONNECTS_AT_ONCE: Final = 25
#: One attempt of a client that is then tried again.
ATTEMPT_S: Final = 15.0
#: Between two attempts of a client, and between a lost connection and the next attempt where the library can be told.
RETRY_S: Final = 0.25
#: A publisher that is late gives the loop its turn after so many messages, and gives up after so many seconds.
LATE_MESSAGES: Final = 20
LATE_MAX_S: Final = 5.0
_FILLER: Final = bytes(PAYLOAD_BYTES - STAMP_BYTES - 1)
_LOOK_S: Final = 0.02

Publish: TypeAlias = Callable[[str, bytes], Awaitable[object]]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a client is to be."""

    url: str
    name: str
    #: What it subscribes to, with levels as the broker spells them.
    subscription: str
    #: Takes each payload that comes.
    take: Callable[[bytes], None]
    #: Told when it is connected again, and subscribed.
    back: Callable[[], None]
    #: Told why, when its library has given up and it never comes back.
    gone: Callable[[str], None]
    #: Whether the broker may send it as much as it likes.
    collects: bool


#: Connects a client and returns once its subscription is in force.
Connect: TypeAlias = Callable[[Wish], Awaitable[Publish]]


class Arrivals:
    """The messages of the present run that came to the clients of this process."""

    def __init__(self) -> None:
        """Begin without a run."""
        self.begin(0)

    def begin(self, run: int) -> None:
        """Forget all runs but this one."""
        self._run = run
        self.first_ns = self.last_ns = 0
        #: One per message, in the order of arrival.
        self.latencies_ns: list[int] = []

    def take(self, payload: bytes) -> None:
        """Note a message; one of an earlier run does not count."""
        now = time.monotonic_ns()
        if payload[STAMP_BYTES] != self._run:
            return
        if not self.latencies_ns:
            self.first_ns = now
        self.last_ns = now
        self.latencies_ns.append(now - int.from_bytes(payload[:STAMP_BYTES], "little"))


def stamped(run: int) -> bytes:
    """Give a payload that leaves now."""
    return time.monotonic_ns().to_bytes(STAMP_BYTES, "little") + bytes((run,)) + _FILLER


def due_ns(start_ns: int, rate: float, sent: int, group: int, groups: int) -> float:
    """Give when a process sends its next message; the processes take turns."""
    return start_ns + (sent * groups + group) * 1e9 / rate


class ExactSelector(EpollSelector):
    """epoll that sleeps as exactly as timers allow; alone it takes whole milliseconds, and messages leave in pairs."""

    def select(self, timeout: float | None = None) -> Any:
        """Wait for the descriptor of epoll itself, with select, which takes microseconds."""
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


class Group:
    """The clients of this process."""

    def __init__(self, task: GroupTask, connect: Connect, spell: Callable[[str], str]) -> None:
        """Connect nobody yet."""
        self._task = task
        self._connect_one = connect
        self._spell = spell
        #: Number of a client -> how it publishes; only those that are connected.
        self._publishes: dict[int, Publish] = {}
        self._arrivals = Arrivals()
        #: Clients that came back since the begin of a run or AWAIT_BACK, and when the last of them did.
        self._back: set[int] = set()
        self._back_ns = 0
        #: Why clients are gone for good -> how many.
        self._gone: Counter[str] = Counter()

    async def serve(self) -> None:
        """Carry out orders until there are no more."""
        orders: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            CONNECT: self._connect,
            PUBLISH: self._publish,
            COUNT: self._count,
            TAKE: self._take,
            AWAIT_BACK: self._await_back,
        }
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            say(await orders[order.pop("do")](**order))

    async def _connect(self, timeout_s: float) -> dict[str, Any]:
        """Connect all clients, some at a time, each as often as it takes."""
        task = self._task
        deadline = time.monotonic() + timeout_s
        failures: Counter[str] = Counter()
        gate = asyncio.Semaphore(CONNECTS_AT_ONCE)

        async def one(number: int, subscription: str) -> None:
            async with gate:
                while number not in self._publishes and (left_s := deadline - time.monotonic()) > 0:
                    try:
                        publish = await asyncio.wait_for(
                            self._connect_one(self._wish(number, subscription)), min(ATTEMPT_S, left_s)
                        )
                    except Exception as error:  # noqa: BLE001 - whatever a client library raises is counted
                        failures[f"{type(error).__name__}: {error}"[:200]] += 1
                        await asyncio.sleep(RETRY_S)
                    else:
                        self._publishes[number] = publish

        mine = {number: task.own_topic(number) for number in task.numbers}
        wanted = mine or {-1: task.collector_filter}
        await asyncio.gather(*(one(number, topic) for number, topic in wanted.items()))
        return {
            "connected": len(self._publishes),
            "done_ns": time.monotonic_ns(),
            "failed_attempts": failures.total(),
            "failures": [text for text, _ in failures.most_common(1)],
        }

    def _wish(self, number: int, subscription: str) -> Wish:
        def back() -> None:
            self._back.add(number)
            self._back_ns = time.monotonic_ns()

        def gone(reason: str) -> None:
            self._gone[reason] += 1

        return Wish(
            url=self._task.url,
            name=f"{self._task.prefix}-{number}",
            subscription=self._spell(subscription),
            take=self._arrivals.take,
            back=back,
            gone=gone,
            collects=number < 0,
        )

    async def _publish(
        self, run: int, rate: float, messages: int, start_ns: int, pattern: str
    ) -> dict[str, Any]:
        """Publish every message of this process when it is due, the clients in turn."""
        task, late_ns, sent = self._task, 0.0, 0
        clients = [
            (publish, self._spell(task.target(number, pattern)))
            for number, publish in self._publishes.items()
        ]
        for number in range(messages):
            due = due_ns(start_ns, rate, number, task.group, task.groups)
            while (left_ns := due - time.monotonic_ns()) > 0:
                await asyncio.sleep(left_ns / 1e9)
            late_ns = max(late_ns, -left_ns)
            if late_ns > LATE_MAX_S * 1e9 or not clients:
                break
            if number % LATE_MESSAGES == 0:
                await asyncio.sleep(0)
            publish, topic = clients[number % len(clients)]
            try:
                await publish(topic, stamped(run))
                sent += 1
            except Exception:  # noqa: BLE001 - its connection was lost; what did not leave is not counted
                continue
        return {"sent": sent, "late_ms": late_ns / 1e6}

    async def _count(self, run: int | None = None) -> dict[str, Any]:
        """Tell how many messages came in this run, and how many clients came back; or begin another run."""
        if run is not None:
            self._arrivals.begin(run)
            self._back.clear()
        received = len(self._arrivals.latencies_ns)
        return {"received": received, "back": len(self._back), "cpu_s": time.process_time()}

    async def _take(self) -> dict[str, Any]:
        """Tell what came in this run."""
        arrivals = self._arrivals
        return {
            "first_ns": arrivals.first_ns,
            "last_ns": arrivals.last_ns,
            "latencies_ns": arrivals.latencies_ns,
        }

    async def _await_back(self, timeout_s: float) -> dict[str, Any]:
        """Look who comes back from now on; end when all who were connected have."""
        self._back.clear()
        say({})
        deadline = time.monotonic() + timeout_s
        while len(self._back) < len(self._publishes) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
        return {"back": len(self._back), "last_ns": self._back_ns, "gone": dict(self._gone)}


def say(figures: dict[str, Any]) -> None:
    """Answer an order."""
    print(json.dumps(figures), flush=True)


def main(connect: Connect, spell: Callable[[str], str]) -> None:
    """Be such a process for a broker.

    Args:
        connect: how a client connects.
        spell: turns a topic or a filter of ours into one of the broker.
    """
    group = Group(read_task(), connect, spell)
    print("READY", flush=True)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ExactSelector())) as runner:
        runner.run(group.serve())
