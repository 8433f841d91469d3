"""Messages of MQTT through our node and the peers, one broker after the other, in every repetition from another one on.

A visit of a broker: it starts with nothing on disk, does some work, and goes through all scenarios that are wanted
of it. Every wait has a bound; what did not come, or was not acknowledged, is said in the note of the row.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.brokers.mqtt import MosquittoSaved, mqtt_brokers
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.figures import Better, Row, shortened
from benchmarks.harness import ClientProcess, calibrate, say, unique_prefix
from benchmarks.mqtt import plan
from benchmarks.mqtt.task import PUBLISH, SUBSCRIBE, TAKE, MqttTask

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.direct import Settings
    from benchmarks.mqtt.plan import Comparison, Scenario

#: No more topics are set after so long.
SET_MAX_S: Final = 60.0
WARM_UP_S: Final = 0.2

#: A broker and the title of what it did.
Deed = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What one run of a scenario has shown."""

    sent: int
    acknowledged: int
    received: int
    wanted: int
    #: From the first publish to the last PUBACK, and to the last message that came; that is from SUBSCRIBE on if it
    #: was retained.
    publish_s: float
    receive_s: float
    cpu_s: dict[str, float]

    def figure(self, what: str) -> float:
        """Give what a row tells."""
        if what in (plan.SET, plan.ACKNOWLEDGED):
            return self.acknowledged / self.publish_s
        return self.received / max(1e-9, self.receive_s)

    def note(self, what: str, qos: int) -> str:
        """Say what is missing, or came twice."""
        parts = []
        if self.received != self.wanted and what != plan.SET:
            parts.append(f"{self.received:,} of {self.wanted:,} messages came")
        if self.acknowledged < self.sent and qos:
            parts.append(f"{self.acknowledged:,} of {self.sent:,} were acknowledged")
        return ", ".join(parts)


class Exchanges:
    """The run that all rows share."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Find out what is installed; nothing is started."""
        self._settings = settings
        self._brokers = {
            broker.name: broker for broker in (*mqtt_brokers(directory), MosquittoSaved(directory))
        }
        peers = [peer for peer in plan.PEERS if peer in settings.peers]
        self._missing = {peer: lack for peer in peers if (lack := self._brokers[peer].missing())}
        self._calibrations: list[float] = []
        self._stolen_s = 0.0
        self._exchanges: dict[Deed, list[Exchange]] = defaultdict(list)
        self._errors: dict[Deed, str] = {}

    def run(self) -> list[Row]:
        """Measure everything that the chosen rows need, and give them."""
        rows = [row for row in plan.comparisons(self._settings.peers) if self._settings.rows in row.name]
        wanted: dict[str, dict[str, Scenario]] = {}
        for row in rows:
            for name in (row.ours, row.other):
                if name and row.peer not in self._missing:
                    wanted.setdefault(name, {})[row.scenario.title] = row.scenario
        names, repetitions = list(wanted), self._settings.repetitions
        for repetition in range(repetitions):
            first = repetition * len(names) // repetitions
            for name in names[first:] + names[:first]:
                say(f"{repetition + 1}/{repetitions} {name}")
                self._visit(self._brokers[name], list(wanted[name].values()))
        return [self._row(row) for row in rows]

    def conditions(self) -> str:
        """Say how steady the machine was during the runs."""
        if not self._calibrations:
            return "nothing was measured"
        return (
            f"a fixed loop ran at {min(self._calibrations):.0f} to {max(self._calibrations):.0f} million steps/s "
            f"before the runs, the host took {self._stolen_s:.1f} CPU seconds away during them"
        )

    def _visit(self, broker: Broker, scenarios: list[Scenario]) -> None:
        """Start a broker, let it do all of them, and stop it; one that fails leaves the others alone."""
        shutil.rmtree(broker.directory, ignore_errors=True)
        with contextlib.ExitStack() as stack:
            stack.callback(broker.stop)
            try:
                broker.start()
                exchange(broker, plan.SCENARIOS[0], WARM_UP_S, self._settings.table)
            except BrokerFailedError as error:
                say(str(error))
                self._errors.update({(broker.name, one.title): error.summary for one in scenarios})
                return
            for scenario in scenarios:
                self._measure(broker, scenario)

    def _measure(self, broker: Broker, scenario: Scenario) -> None:
        deed = (broker.name, scenario.title)
        if deed in self._errors:
            return
        self._calibrations.append(calibrate())
        stolen_s = psutil.cpu_times().steal
        try:
            found = exchange(broker, scenario, self._settings.seconds, self._settings.table)
        except BrokerFailedError as error:
            say(str(error))
            self._errors[deed] = error.summary
            return
        self._stolen_s += psutil.cpu_times().steal - stolen_s
        self._exchanges[deed].append(found)
        rates = [f"{found.figure(what):,.0f} {plan.UNITS[what]}" for what in scenario.figures]
        said = ", ".join(filter(None, [*rates, found.note(scenario.figures[-1], scenario.qos)]))
        say(f"    {scenario.title}: {said}  calib {self._calibrations[-1]:.1f}")

    def _row(self, row: Comparison) -> Row:
        """Put a row together from what was measured."""
        title = row.scenario.title
        ours, others = self._exchanges[row.ours, title], self._exchanges[row.other, title]
        is_missing = row.peer in self._missing
        sides = [("ours", row.ours), (row.peer, row.other)] if row.peer else [("ours", row.ours)]
        notes = [self._note(row, who, name) for who, name in sides]
        details = {
            "our_cpu_us_per_message": cpu_us_per_message(ours),
            "peer_cpu_us_per_message": cpu_us_per_message(others),
        }
        errors = [self._errors[name, title] for _, name in sides if (name, title) in self._errors]
        return Row(
            name=row.name,
            unit=plan.UNITS[row.figure],
            better=Better.HIGHER,
            ours=[one.figure(row.figure) for one in ours],
            peer=[one.figure(row.figure) for one in others],
            against=row.peer,
            note="; ".join(filter(None, notes)),
            install=self._brokers[row.peer].install if is_missing else "",
            error="; ".join(errors),
            details={name: value for name, value in details.items() if value},
        )

    def _note(self, row: Comparison, who: str, name: str) -> str:
        """Say what a PUBACK has behind it, and what did not come."""
        scenario = row.scenario
        exchanges = self._exchanges[name, scenario.title]
        said = [plan.BEHIND_PUBACK[scenario.retained][name]] if scenario.qos and exchanges else []
        said += dict.fromkeys(filter(None, (one.note(row.figure, scenario.qos) for one in exchanges)))
        return f"{who}: {', '.join(said)}" if said else ""


def exchange(broker: Broker, scenario: Scenario, seconds: float, topics: int) -> Exchange:
    """Let fresh clients do what a scenario says.

    Args:
        broker: one that runs.
        scenario: what they do.
        seconds: how long is published, unless it is retained.
        topics: how many are set if it is.

    Raises:
        BrokerFailedError: a client failed, or said nothing for too long.
    """
    task = MqttTask(
        role=SUBSCRIBE,
        url=broker.url,
        prefix=unique_prefix(),
        qos=0 if scenario.retained else scenario.qos,
        retained=scenario.retained,
    )
    with contextlib.ExitStack() as stack:
        subscribers = [
            stack.enter_context(ClientProcess(broker, replace(task, number=number)))
            for number in range(scenario.subscribers)
        ]
        source = stack.enter_context(ClientProcess(broker, publisher_of(task, scenario, seconds, topics)))
        for client in (*subscribers, source):
            client.wait_ready()
        cpu = broker.cpu_s()
        source.go()
        sent = source.result()
        for client in subscribers:
            client.order(TAKE, messages=sent["sent"])
        came = [client.result() for client in subscribers]
        spent = {role: total - cpu.get(role, 0.0) for role, total in broker.cpu_s().items()}
    first_ns = min(one["first_ns"] for one in came) if scenario.retained else sent["first_ns"]
    return Exchange(
        sent=sent["sent"],
        acknowledged=sent["acknowledged"],
        received=sum(one["received"] for one in came),
        wanted=sent["sent"] * scenario.subscribers,
        publish_s=(sent["last_ns"] - sent["first_ns"]) / 1e9,
        receive_s=max(0, max(one["last_ns"] for one in came) - first_ns) / 1e9,
        cpu_s=spent | {"publisher": sent["cpu_s"], "subscribers": sum(one["cpu_s"] for one in came)},
    )


def publisher_of(task: MqttTask, scenario: Scenario, seconds: float, topics: int) -> MqttTask:
    """Give the task of the publisher beside that of a subscriber."""
    found = replace(
        task, role=PUBLISH, qos=scenario.qos, connections=scenario.publishers, window=scenario.window
    )
    if scenario.retained:
        return replace(found, seconds=SET_MAX_S, topics=topics)
    return replace(found, seconds=seconds)


def cpu_us_per_message(exchanges: list[Exchange]) -> dict[str, float]:
    """Give CPU time per message that was published, by process: medians over repetitions."""
    roles = dict.fromkeys(role for one in exchanges for role in one.cpu_s)
    return {
        role: shortened(median(one.cpu_s.get(role, 0.0) / max(1, one.sent) * 1e6 for one in exchanges))
        for role in roles
    }
