"""All clients of one broker: the processes that hold them, what they are told to do, and what came of it."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from benchmarks.crowd.plan import Load
from benchmarks.crowd.task import (
    AWAIT_BACK,
    CONNECT,
    COUNT,
    PATTERNS,
    PUBLISH,
    TAKE,
    TO_COLLECTOR,
    GroupTask,
)
from benchmarks.figures import WARM_UP_PART
from benchmarks.harness import ClientProcess, say, unique_prefix
from benchmarks.subscriptions import settled_rss

if TYPE_CHECKING:
    from types import TracebackType

    from benchmarks.brokers.server import Broker

#: Processes that hold clients, the same for every broker; the collector has one of its own.
GROUPS: Final = 4
#: What is not connected by then stays out, who is not back by then does not count as back.
CONNECT_TIMEOUT_S: Final = 120.0
BACK_TIMEOUT_S: Final = 120.0
#: From the order to the first message, so that all processes are ready.
LEAD_S: Final = 0.2
#: Messages on their way are waited for until none came for so long.
STALL_S: Final = 1.5
DRAIN_TIMEOUT_S: Final = 20.0
_LOOK_S: Final = 0.1
#: The rate at which each client publishes once before anything is measured.
FIRST_RATE: Final = 2_000
WARM_UP_SIZE: Final = 9
#: Runs are told apart by a byte.
_RUNS: Final = 256


@dataclass(frozen=True)
class Connected:
    """How connecting went."""

    clients: int
    per_s: float
    #: Who did not connect, and which attempts failed before others did not; empty if there is nothing to say.
    lacking: str
    failures: str


@dataclass(frozen=True)
class Back:
    """How coming back went."""

    seconds: float
    note: str


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a load has shown."""

    due: int
    sent: int
    received: int
    #: Clients whose connection was lost meanwhile, and came back.
    back: int
    #: The latest that a message left after it was due.
    late_ms: float
    #: From the first message that came to the last.
    seconds: float
    latencies_ns: list[int] = field(repr=False)
    #: CPU seconds of each role of the broker, and of the clients.
    cpu_s: dict[str, float]
    broker_cpu_s: float
    #: The part of a core that the busiest client process used.
    busiest_part: float

    @property
    def rate(self) -> float:
        """Messages that came per second."""
        return self.received / max(1e-9, self.seconds)

    def us_per_message(self, cpu_s: float) -> float:
        """Give CPU time per message that came, in microseconds."""
        return cpu_s / max(1, self.received) * 1e6


class People:
    """A collector and many clients; a context manager that ends their processes."""

    def __init__(self, broker: Broker, module: str, size: int, groups: int = GROUPS) -> None:
        """Start the processes; with the collector they are to have so many connections."""
        self._broker = broker
        self._clients = size - 1
        self._stack = contextlib.ExitStack()
        prefix, url = unique_prefix(), broker.url
        tasks = [GroupTask(role="collector", module=module, url=url, prefix=prefix)]
        tasks += [
            replace(tasks[0], role="clients", clients=self._clients, group=group, groups=groups)
            for group in range(groups)
        ]
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(ClientProcess(broker, task)) for task in tasks]
            for process in started:
                process.wait_ready()
            self._stack = stack.pop_all()
        self._collector, self._groups = started[0], started[1:]
        self._run = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def rss_bytes(self) -> int:
        """Give the resident memory of the broker when it does not change any more."""
        return sum(settled_rss(self._broker).values())

    def connect(self) -> Connected:
        """Connect all, the collector first."""
        _ask([self._collector], CONNECT, timeout_s=CONNECT_TIMEOUT_S)
        started_ns = time.monotonic_ns()
        answers = _ask(self._groups, CONNECT, timeout_s=CONNECT_TIMEOUT_S)
        seconds = (max(one["done_ns"] for one in answers) - started_ns) / 1e9
        connected = sum(one["connected"] for one in answers)
        failed = sum(one["failed_attempts"] for one in answers)
        lacking = f"{connected:,} of {self._clients:,} connected" if connected < self._clients else ""
        texts = [text for one in answers for text in one["failures"]]
        failures = f"{failed:,} attempts failed, such as with {texts[0]}" if texts else ""
        return Connected(connected, connected / seconds, lacking, failures)

    def publish_once_each(self) -> None:
        """Let every client publish once to the collector and to its partner: all topics are known then."""
        for pattern in PATTERNS:
            self.publish(Load(FIRST_RATE, pattern), self._clients / FIRST_RATE)

    def publish(self, load: Load, seconds: float) -> Loaded:
        """Offer messages for some time, wait for those on their way, and give what came."""
        receivers = [self._collector] if load.pattern == TO_COLLECTOR else self._groups
        self._run = (self._run + 1) % _RUNS
        counts = _ask([self._collector, *self._groups], COUNT, run=self._run)
        due = math.ceil(load.rate * seconds)
        start_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
        for number, group in enumerate(self._groups):
            messages = len(range(number, due, len(self._groups)))
            group.order(
                PUBLISH,
                run=self._run,
                rate=load.rate,
                messages=messages,
                start_ns=start_ns,
                pattern=load.pattern,
            )
        time.sleep(max(0.0, start_ns / 1e9 - time.monotonic()))
        cpu, started = self._broker.cpu_s(), time.monotonic()
        sent = [group.result() for group in self._groups]
        _drain(receivers, sum(one["sent"] for one in sent))
        spent = {role: total - cpu[role] for role, total in self._broker.cpu_s().items()}
        lasted_s = time.monotonic() - started
        used = _ask([self._collector, *self._groups], COUNT)
        clients_s = [after["cpu_s"] - before["cpu_s"] for after, before in zip(used, counts, strict=True)]
        came = _ask(receivers, TAKE)
        return Loaded(
            due=due,
            sent=sum(one["sent"] for one in sent),
            received=sum(len(one["latencies_ns"]) for one in came),
            back=sum(one["back"] for one in used),
            late_ms=max(one["late_ms"] for one in sent),
            seconds=_span_s(came),
            latencies_ns=[latency for one in came for latency in _warm(one["latencies_ns"])],
            cpu_s=spent | {"collector": clients_s[0], "clients": sum(clients_s[1:])},
            broker_cpu_s=sum(spent.values()),
            busiest_part=max(clients_s) / lasted_s,
        )

    def storm(self) -> Back:
        """Kill what all are connected to, and wait until all are back."""
        everybody = [self._collector, *self._groups]
        for group in everybody:
            group.order(AWAIT_BACK, timeout_s=BACK_TIMEOUT_S)
        for group in everybody:
            group.result()
        killed_ns = time.monotonic_ns()
        self._broker.strike()
        answers = [group.result() for group in everybody]
        back = back_after(answers, self._clients + 1, killed_ns)
        if back.note:
            say(str(self._broker.failure(back.note)))
        return back


def back_after(answers: list[dict[str, Any]], wanted: int, killed_ns: int) -> Back:
    """Give when the last of so many was back; if some never were, how long they were waited for."""
    back = sum(one["back"] for one in answers)
    seconds = (max(one["last_ns"] for one in answers) - killed_ns) / 1e9
    if back >= wanted:
        return Back(seconds, "")
    note = (
        f"{back:,} of {wanted:,} were back after {BACK_TIMEOUT_S:g} s, the last of them after {seconds:.1f} s"
    )
    gone = [f"{count:,} gave up: {reason}" for one in answers for reason, count in one["gone"].items()]
    return Back(BACK_TIMEOUT_S, ", ".join([note, *gone]))


def warm_up(broker: Broker, module: str) -> None:
    """Let a broker do some work for a few clients, which leave again."""
    with People(broker, module, WARM_UP_SIZE, groups=1) as people:
        people.connect()
        people.publish_once_each()


def _ask(processes: list[ClientProcess], order: str, **arguments: Any) -> list[dict[str, Any]]:
    """Give an order to all at once; give what each answers."""
    for process in processes:
        process.order(order, **arguments)
    return [process.result() for process in processes]


def _drain(receivers: list[ClientProcess], awaited: int) -> None:
    """Wait until so many messages came, or no more do."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    seen, since = -1, time.monotonic()
    while time.monotonic() < deadline:
        received = sum(one["received"] for one in _ask(receivers, COUNT))
        if received >= awaited or (received == seen and time.monotonic() - since > STALL_S):
            return
        if received != seen:
            seen, since = received, time.monotonic()
        time.sleep(_LOOK_S)


def _span_s(came: list[dict[str, Any]]) -> float:
    """Give the time from the first message that came anywhere to the last."""
    some = [one for one in came if one["latencies_ns"]]
    if not some:
        return 0.0
    return float(max(one["last_ns"] for one in some) - min(one["first_ns"] for one in some)) / 1e9


def _warm(latencies_ns: list[int]) -> list[int]:
    return latencies_ns[int(len(latencies_ns) * WARM_UP_PART) :]
