"""Guaranteed messaging, ours and the peers', in one interleaved run.

Every broker confirms only what is on disk; each row names its setting, and how many syncs a window of
confirmed messages took. A run publishes with confirmation into an empty queue, then takes and acknowledges
all of it, then does both at once on a fresh queue.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.brokers.angarium import AngariumQueues
from benchmarks.brokers.nats import JetStream
from benchmarks.brokers.rabbitmq import RabbitMqQuorum
from benchmarks.brokers.redis import RedisStreams
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.figures import Better, Row
from benchmarks.harness import ClientProcess, calibrate, measure, say, unique_prefix
from benchmarks.syncs import counting_syncs
from cluster.commands.bench.process import BATCHED, DRAIN, STORE, Task

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.direct import Settings
    from benchmarks.harness import Trial

OURS: Final = "angarium-queues"
#: Peer as in `--peers` -> the broker that is started for it.
PEERS: Final = {"nats": "nats-jetstream", "redis": "redis-streams", "rabbitmq": "rabbitmq-quorum"}
#: Messages of one second at full speed, so that runs take about equally long.
_PER_SECOND: Final = {
    OURS: 100_000,
    "nats-jetstream": 5_000,
    "redis-streams": 80_000,
    "rabbitmq-quorum": 25_000,
}
#: Messages of the run whose syncs are counted.
SYNC_MESSAGES: Final = 5_000
WINDOW: Final = 255
PAYLOADS: Final = {128: "128 B", 1024: "1 KiB"}
FAN_OUT: Final = 10
PUBLISH, CONSUME, BOTH, SPREAD = "publish", "consume", "publish and consume", f"publish to {FAN_OUT} queues"
#: (what, bytes, peer) -> first target, from the design.
TARGETS: Final = {
    (PUBLISH, 128, "rabbitmq"): 2.0,
    (PUBLISH, 1024, "rabbitmq"): 2.0,
    (BOTH, 128, "rabbitmq"): 1.5,
    (PUBLISH, 128, "nats"): 8.0,
}


@dataclass
class Figures:
    """Messages per second of one broker, one per repetition."""

    rates: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    #: Syncs of SYNC_MESSAGES confirmed messages; None if they were not counted.
    syncs: int | None = None
    error: str = ""

    def add(self, what: str, size: int, rate: float) -> None:
        """Take the figure of a run."""
        self.rates.setdefault((what, size), []).append(rate)


class Queues:
    """The run that all rows share."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Find out what is installed; nothing is started."""
        self._settings = settings
        found: list[Broker] = [JetStream(directory), RedisStreams(directory), RabbitMqQuorum(directory)]
        found.append(AngariumQueues(directory, 1, OURS))
        self.brokers = {broker.name: broker for broker in found}
        names = [PEERS[peer] for peer in settings.peers]
        self.missing = {name: lack for name in names if (lack := self.brokers[name].missing())}
        self._figures = {name: Figures() for name in [*names, OURS] if name not in self.missing}

    def run(self) -> list[Row]:
        """Measure everything and give the rows."""
        with contextlib.ExitStack() as stack:
            for name, figures in self._figures.items():
                stack.callback(self.brokers[name].stop)
                with self._noting(figures):
                    self.brokers[name].start()
                    self._count_syncs(name, figures)
            for repetition in range(self._settings.repetitions):
                for name, figures in self._figures.items():
                    with self._noting(figures):
                        self._measure(name, figures, repetition)
        return self._rows()

    def versions(self) -> dict[str, str]:
        """Give the versions of what takes part."""
        return {name: self.brokers[name].version() for name in self._figures}

    @contextlib.contextmanager
    def _noting(self, figures: Figures) -> Any:
        if figures.error:
            yield
            return
        try:
            yield
        except BrokerFailedError as error:
            say(str(error))
            figures.error = error.summary

    def _count_syncs(self, name: str, figures: Figures) -> None:
        broker = self.brokers[name]
        store(broker, SYNC_MESSAGES // 10, 128)  # nobody pays for cold caches
        with counting_syncs(broker) as found:
            store(broker, SYNC_MESSAGES, 128)
        figures.syncs = found.calls

    def _measure(self, name: str, figures: Figures, repetition: int) -> None:
        if figures.error:
            return
        broker = self.brokers[name]
        count = max(1_000, round(_PER_SECOND[name] * self._settings.seconds))
        for size in PAYLOADS:
            for what, rate in rates(broker, count, size).items():
                figures.add(what, size, rate)
        if name in (OURS, PEERS["rabbitmq"]):
            figures.add(SPREAD, 128, FAN_OUT * store(broker, count // 5, 128, queues=FAN_OUT))
        said = ", ".join(
            f"{what} {PAYLOADS[size]} {found[-1]:,.0f}/s" for (what, size), found in figures.rates.items()
        )
        say(f"{repetition + 1}/{self._settings.repetitions} {name:16} {said}  calib {calibrate():.1f}")

    def _rows(self) -> list[Row]:
        peers = [peer for peer in ("rabbitmq", "nats", "redis") if peer in self._settings.peers]
        rows = [
            self._row(what, size, peer)
            for what in (PUBLISH, CONSUME, BOTH)
            for size in PAYLOADS
            for peer in peers
        ]
        if "rabbitmq" in peers:
            rows.append(self._row(SPREAD, 128, "rabbitmq"))
        return [row for row in rows if self._settings.rows in row.name]

    def _row(self, what: str, size: int, peer: str) -> Row:
        name = PEERS[peer]
        ours, other = self._figures[OURS], self._figures.get(name, Figures())
        notes = [self._note(who, figures) for who, figures in ((OURS, ours), (name, other))]
        return Row(
            name=f"guaranteed, {what}, {PAYLOADS[size]}, window {WINDOW}, against {peer}",
            unit="messages/s" if what != SPREAD else "stored messages/s",
            better=Better.HIGHER,
            ours=ours.rates.get((what, size), []),
            peer=other.rates.get((what, size), []),
            against=peer,
            first_target=TARGETS.get((what, size, peer)),
            note="; ".join(notes),
            install=self.brokers[name].install if name in self.missing else "",
            error="; ".join(filter(None, (ours.error, other.error))),
            details={"payload_bytes": size},
        )

    def _note(self, name: str, figures: Figures) -> str:
        syncs = "not counted" if figures.syncs is None else f"{figures.syncs:,}"
        return f"{name} ({self.brokers[name].durability}): {syncs} syncs for {SYNC_MESSAGES:,} messages"


def rates(broker: Broker, count: int, size: int) -> dict[str, float]:
    """Give messages per second of publishing into an empty queue, of taking them, and of both at once.

    Raises:
        BrokerFailedError: a client failed, or not all messages came.
    """
    prefix = unique_prefix()
    return {
        PUBLISH: store(broker, count, size, prefix),
        CONSUME: _drain(broker, count, size, prefix),
        BOTH: both(broker, count, size).rate,
    }


def store(broker: Broker, count: int, size: int, prefix: str = "", queues: int = 1) -> float:
    """Publish with confirmation; give messages per second."""
    task = task_of(broker, STORE, prefix or unique_prefix(), count, size, queues)
    with ClientProcess(broker, task) as client:
        client.wait_ready().go()
        done = client.result()
    _check(broker, done["published"], count)
    return float(count / (done["last_ns"] - done["first_ns"]) * 1e9)


def _drain(broker: Broker, count: int, size: int, prefix: str) -> float:
    """Take and acknowledge what was stored; give messages per second."""
    with ClientProcess(broker, task_of(broker, DRAIN, prefix, count, size)) as client:
        client.wait_ready().go()
        done = client.result()
    _check(broker, done["received"], count)
    return float(count / (done["last_ns"] - done["first_ns"]) * 1e9)


def both(broker: Broker, count: int, size: int) -> Trial:
    """Do both at once on a fresh queue."""
    prefix = unique_prefix()
    source, sink = (task_of(broker, role, prefix, count, size) for role in (STORE, DRAIN))
    return store_and_drain(broker, source, sink)


def store_and_drain(broker: Broker, source_task: Task, sink_task: Task) -> Trial:
    """Publish with confirmation into a fresh queue, and take and acknowledge everything at the same time.

    Raises:
        BrokerFailedError: a client failed, or not all messages came.
    """
    with ClientProcess(broker, source_task) as source, ClientProcess(broker, sink_task) as sink:
        for client in (source, sink):
            client.wait_ready()
        broker.settle(source_task.prefix)
        sink.go()
        trial = measure(broker, [sink], source)
    _check(broker, trial.received, source_task.count)
    return trial


def task_of(broker: Broker, role: str, prefix: str, count: int, size: int, queues: int = 1) -> Task:
    """Give the task of a client of queues."""
    return Task(
        role=role,
        url=broker.url,
        prefix=prefix,
        payload_bytes=size,
        count=count,
        window=WINDOW,
        queues=queues,
        api=BATCHED,
    )


def _check(broker: Broker, found: int, wanted: int) -> None:
    if found < wanted:
        raise BrokerFailedError(f"{broker.name} handled {found:,} of {wanted:,} messages")
