"""One run of a benchmark: start the clients, let them go, take what they say, and see what the broker paid.

Every client is a process: it prints READY, a publisher waits for GO, and each prints one line of JSON per run
(`cluster.commands.bench.process`). Nothing here knows what is compared with what.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.brokers.server import ROOT, BrokerFailedError
from benchmarks.clients.task import DirectTask
from cluster.commands.bench import client_process
from cluster.commands.bench.process import PUBLISH, SUBSCRIBE, Task

if TYPE_CHECKING:
    from benchmarks.brokers.server import Broker
    from benchmarks.crowd.task import GroupTask
    from benchmarks.http.client import PostTask
    from benchmarks.mqtt.task import MqttTask

#: A client that says nothing for so long hangs.
ANSWER_TIMEOUT_S: Final = 180.0
#: Loops of pure Python that show how fast the machine is just now.
CALIBRATION_LOOPS: Final = 300_000


class ClientProcess(client_process.ClientProcess):
    """One client of a broker; a context manager that ends it."""

    answer_timeout_s = ANSWER_TIMEOUT_S

    def __init__(self, broker: Broker, task: Task | GroupTask | MqttTask | PostTask) -> None:
        """Start it with its task; the broker knows the module of most."""
        module = broker.module_of(task) if isinstance(task, Task) else task.module
        super().__init__(
            f"a client of {broker.name} ({task.role})",
            [broker.client_python(), "-m", module],
            task.pack(),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *map(str, broker.sdk)])},
        )

    def error(self, code: int, text: str, output: str = "") -> BrokerFailedError:
        """Give what is raised when the client failed, with all that it printed."""
        return BrokerFailedError(f"{text}\n{output}")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one run with one publisher has shown."""

    published: int
    #: Deliveries to all subscribers that are counted.
    received: int
    #: Deliveries that should have come and did not; negative for duplicates.
    lost: int
    #: From the first publish to the last receive.
    seconds: float
    #: Nanoseconds from publish to receive, in the order of arrival, of a run with a rate.
    latencies_ns: list[int] = field(repr=False)
    #: Rounds that the publisher sent; 0 for a peer.
    rounds: int
    #: CPU seconds that each role of the broker took, and the clients (`publisher`, `subscribers`).
    cpu_s: dict[str, float]
    #: Million steps of a fixed loop per second just before.
    calibration: float
    #: CPU seconds that the host took away meanwhile.
    stolen_s: float

    @property
    def rate(self) -> float:
        """Deliveries per second."""
        return self.received / self.seconds


def unique_prefix() -> str:
    """Give a first level that no other run uses."""
    return f"b{uuid.uuid4().hex[:8]}"


def run_trial(broker: Broker, subscribers: list[DirectTask], publisher: DirectTask, copies: int = 0) -> Trial:
    """Run fresh subscribers and one publisher; frozen ones are stopped before the start and not counted.

    `copies` is how many deliveries each message makes, if not one per subscriber.

    Raises:
        BrokerFailedError: a client failed, or said nothing for too long.
    """
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ClientProcess(broker, task)) for task in subscribers]
        source = stack.enter_context(ClientProcess(broker, publisher))
        for client in [*clients, source]:
            client.wait_ready()
        for client, task in zip(clients, subscribers, strict=True):
            if task.frozen:
                client.freeze()
        broker.settle(publisher.prefix)
        counted = [client for client, task in zip(clients, subscribers, strict=True) if not task.frozen]
        return measure(broker, counted, source, copies)


def measure(
    broker: Broker, subscribers: list[ClientProcess], source: ClientProcess, copies: int = 0
) -> Trial:
    """Let a publisher go and wait for the end at the subscribers, which are ready.

    Args:
        broker: whose CPU time is taken.
        subscribers: all who get the end of this run.
        source: the publisher.
        copies: how many deliveries each message makes, if not one per subscriber.
    """
    calibration = calibrate()
    stolen, cpu = psutil.cpu_times().steal, broker.cpu_s()
    source.go()
    sent = source.result()
    received = [client.result() for client in subscribers]
    spent = {role: total - cpu.get(role, 0.0) for role, total in broker.cpu_s().items()}
    spent["publisher"] = sent["cpu_s"]
    spent["subscribers"] = sum(figures["cpu_s"] for figures in received)
    total = sum(figures["received"] for figures in received)
    return Trial(
        published=sent["published"],
        received=total,
        lost=sent["published"] * (copies or len(subscribers)) - total,
        seconds=(max(figures["last_ns"] for figures in received) - sent["first_ns"]) / 1e9,
        latencies_ns=received[0]["latencies_ns"],
        rounds=sent.get("rounds", 0),
        cpu_s=spent,
        calibration=calibration,
        stolen_s=psutil.cpu_times().steal - stolen,
    )


def calibrate() -> float:
    """Give the speed of a fixed loop of pure Python, in million steps per second."""
    started = time.perf_counter()
    total = 0
    for number in range(CALIBRATION_LOOPS):
        total += number & 7
    return CALIBRATION_LOOPS / (time.perf_counter() - started) / 1e6


def publisher(broker: Broker, prefix: str, **fields: Any) -> DirectTask:
    """Give the task of a publisher."""
    return DirectTask(role=PUBLISH, url=broker.url, prefix=prefix, **fields)


def subscriber(broker: Broker, prefix: str, **fields: Any) -> DirectTask:
    """Give the task of a subscriber."""
    return DirectTask(role=SUBSCRIBE, url=broker.url, prefix=prefix, **fields)


def say(text: str) -> None:
    """Tell what goes on, on standard error."""
    print(text, file=sys.stderr, flush=True)
