"""Direct messaging, ours and the peers', in one interleaved run.

Every repetition runs every entry of the plan once, so that a machine that becomes slower becomes slower for
all; a figure is the median over the repetitions. Brokers that a phase needs stay up during it and are idle
while others are measured; nodes with more workers than usual are started for their own run only.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks import plan
from benchmarks.brokers.angarium import Angarium
from benchmarks.brokers.nats import Nats
from benchmarks.brokers.rabbitmq import RabbitMq
from benchmarks.brokers.redis import Redis
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.figures import Row, cpu_us_per_message
from benchmarks.harness import Trial, publisher, run_trial, say, subscriber, unique_prefix

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.clients.task import DirectTask
    from benchmarks.plan import Comparison, Entry

#: Publishing time of a run at full speed, unless told otherwise: all of it takes seven minutes then.
SECONDS: Final = 1.5
REPETITIONS: Final = 3
#: Brokers that stay up during a phase; further nodes run for their own runs only, they are not quite idle.
LASTING: Final = {plan.OURS, *plan.PEERS}
#: Each broker gets so much to do before it is measured, so that no first run pays for cold caches.
WARM_UP_S: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is measured."""

    peers: tuple[str, ...] = plan.PEERS
    #: How long a publisher at full speed publishes.
    seconds: float = SECONDS
    #: How long one with a rate does.
    latency_s: float = plan.LATENCY_S
    repetitions: int = REPETITIONS
    #: Subscriptions of the rows about many subscriptions.
    table: int = 100_000
    #: Connections of the rows about many clients.
    crowds: tuple[int, ...] = (1_000, 5_000)
    #: Only rows whose name has this text.
    rows: str = ""


class Comparing:
    """The run that all comparisons share: which brokers there are, and what their runs showed."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Find out what is installed; nothing is started."""
        self._settings = settings
        found: list[Broker] = [Nats(directory), Redis(directory), RabbitMq(directory)]
        found += [Angarium(directory, workers) for workers in (1, 2, 4)]
        self.brokers = {broker.name: broker for broker in found}
        #: Peers that cannot be measured, with what they lack.
        self.missing = {name: lack for name in settings.peers if (lack := self.brokers[name].missing())}
        self._trials: dict[Entry, list[Trial]] = {}
        self._errors: dict[Entry, str] = {}

    def run(self) -> list[Row]:
        """Measure everything that the chosen rows need, and give them."""
        rows = [row for row in plan.comparisons(self._settings.peers) if self._settings.rows in row.name]
        needed = dict.fromkeys(
            entry
            for row in rows
            for entry in (row.ours, row.other)
            if entry is not None and self._can_run(entry)
        )
        self._phase([entry for entry in needed if not entry.scenario.rate])
        self._phase([entry for entry in needed if entry.scenario.rate])
        return [self._row(row) for row in rows]

    def versions(self) -> dict[str, str]:
        """Give the versions of what takes part."""
        names = (plan.OURS, *self._settings.peers)
        return {name: self.brokers[name].version() for name in names if name not in self.missing}

    def conditions(self) -> str:
        """Say how steady the machine was during the runs."""
        trials = [trial for some in self._trials.values() for trial in some]
        if not trials:
            return "nothing was compared"
        speeds = [trial.calibration for trial in trials]
        stolen_s = sum(trial.stolen_s for trial in trials)
        return (
            f"a fixed loop ran at {min(speeds):.0f} to {max(speeds):.0f} million steps/s before the runs, "
            f"the host took {stolen_s:.1f} CPU seconds away during them"
        )

    def _can_run(self, entry: Entry) -> bool:
        return entry.broker not in self.missing

    def _phase(self, entries: list[Entry]) -> None:
        """Run entries, all of them once per repetition, each time beginning with another one."""
        names = dict.fromkeys(entry.broker for entry in entries)
        with contextlib.ExitStack() as stack:
            for name in names:
                if name in LASTING:
                    self._start(stack, name, entries)
            for repetition in range(self._settings.repetitions):
                first = repetition * len(entries) // self._settings.repetitions
                for entry in entries[first:] + entries[:first]:
                    if entry not in self._errors:
                        self._run_entry(entry, repetition)

    def _start(self, stack: contextlib.ExitStack, name: str, entries: list[Entry]) -> None:
        stack.callback(self.brokers[name].stop)
        try:
            start_warm(self.brokers[name])
        except BrokerFailedError as error:
            say(str(error))
            self._errors.update((entry, error.summary) for entry in entries if entry.broker == name)

    def _run_entry(self, entry: Entry, repetition: int) -> None:
        broker = self.brokers[entry.broker]
        try:
            with contextlib.ExitStack() as stack:
                if broker.name not in LASTING:
                    stack.callback(broker.stop)
                    start_warm(broker)
                scenario = entry.scenario
                full_s = self._settings.seconds * scenario.seconds_part
                seconds = self._settings.latency_s if scenario.rate else full_s
                trial = run_trial(broker, *tasks_of(broker, entry, seconds))
        except BrokerFailedError as error:
            self._errors[entry] = error.summary
            say(f"{entry.scenario.title}: {error}")
            return
        self._trials.setdefault(entry, []).append(trial)
        title = f"{repetition + 1}/{self._settings.repetitions} {entry.scenario.title:42}"
        say(
            f"{title} {broker.name:11} {entry.api:8} "
            f"{trial.rate:10,.0f}/s  lost {trial.lost:,}  {trial.seconds:.2f} s  "
            f"calib {trial.calibration:.1f}  stolen {trial.stolen_s:.2f} s"
        )

    def _row(self, row: Comparison) -> Row:
        """Put a row together from what was measured."""
        ours = self._trials.get(row.ours, [])
        others = self._trials.get(row.other, []) if row.other else []
        broker = self.brokers[row.other.broker] if row.other else None
        is_missing = row.other is not None and row.other.broker in self.missing
        errors = [self._errors[entry] for entry in (row.ours, row.other) if entry in self._errors]
        return Row(
            name=row.name,
            unit=row.unit,
            better=row.better,
            ours=[row.figure(trial) for trial in ours],
            peer=[row.figure(trial) for trial in others],
            against=self._against(row),
            first_target=row.first_target,
            note=_note(row, ours, others),
            install=broker.install if broker is not None and is_missing else "",
            error="; ".join(errors),
            details={
                "payload_bytes": row.ours.scenario.payload_bytes,
                "our_cpu_us_per_message": cpu_us_per_message(ours),
                "peer_cpu_us_per_message": cpu_us_per_message(others),
            },
        )

    def _against(self, row: Comparison) -> str:
        if row.other is None:
            return ""
        if row.other.broker in plan.PEERS:
            return row.other.broker
        return row.name.rpartition("against ")[2]


def tasks_of(broker: Broker, entry: Entry, seconds: float) -> tuple[list[DirectTask], DirectTask]:
    """Give the tasks of the subscribers, and of a publisher that publishes so long."""
    scenario, prefix = entry.scenario, unique_prefix()
    shared = {"payload_bytes": scenario.payload_bytes, "rate": scenario.rate, "api": entry.api}
    shared["unbounded"] = scenario.unbounded
    receiving = [subscriber(broker, prefix, **shared) for _ in range(scenario.subscribers)]
    if scenario.frozen:
        receiving.append(subscriber(broker, prefix, **shared | {"unbounded": False, "frozen": True}))
    burst = plan.FROZEN_BURST if scenario.frozen else 0
    return receiving, publisher(broker, prefix, seconds=seconds, burst=burst, **shared)


def start_warm(broker: Broker) -> None:
    """Start a broker and let it do some work.

    Raises:
        BrokerFailedError: it does not start, or does not work.
    """
    broker.start()
    prefix = unique_prefix()
    run_trial(broker, [subscriber(broker, prefix)], publisher(broker, prefix, seconds=WARM_UP_S))


def _note(row: Comparison, ours: list[Trial], others: list[Trial]) -> str:
    """Say what was lost, if anything was; a peer's losses flatter nobody."""
    parts = []
    for who, trials in (("ours", ours), ("peer", others)):
        lost = sum(trial.lost for trial in trials)
        if lost:
            total = sum(trial.lost + trial.received for trial in trials)
            parts.append(f"{who} lost {lost:,} of {total:,}")
    return "; ".join(parts)
