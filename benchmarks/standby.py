"""What a standby costs: a node with two hosts and one without, in turn; and what it takes to have one."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from benchmarks.brokers.angarium import AngariumQueues
from benchmarks.brokers.hosts import Hosts
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.figures import Better, Row
from benchmarks.guaranteed import BOTH, CONSUME, PAYLOADS, PUBLISH, WINDOW, rates, store
from benchmarks.harness import publisher, run_trial, say, subscriber, unique_prefix
from cluster.commands.bench.process import BATCHED

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.direct import Settings

AGAINST: Final = "without a standby"
DIRECT: Final = "direct 1->1, 128 B, publish_many + batches()"
JOIN: Final = "a standby joins"
REQUESTS: Final = "requests to etcd"
#: Messages of one second at full speed of the one with two hosts, so that runs take about equally long.
PER_SECOND: Final = 60_000
#: Messages that a standby is brought, of so many bytes.
JOINED, JOINED_BYTES = 1_000_000, 128
#: What is compared with a limit, and its unit.
LIMITS: Final = {JOIN: (60.0, "s"), REQUESTS: (10.0, "requests/s")}
GUARANTEED_TARGET, DIRECT_TARGET = 0.5, 0.98


class Standby:
    """The run that all rows share."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Describe both nodes; nothing is started."""
        self._settings = settings
        self._hosts = Hosts(directory, "angarium-hosts")
        self._alone = AngariumQueues(directory, 1, "angarium-alone")
        #: Figure -> one per repetition, of each.
        self._found: dict[str, dict[str, list[float]]] = {
            broker.name: defaultdict(list) for broker in (self._hosts, self._alone)
        }

    def run(self) -> list[Row]:
        """Measure everything, and give the rows."""
        lacks, error = self._hosts.missing(), ""
        if not lacks:
            try:
                self._measure()
            except BrokerFailedError as failed:
                say(str(failed))
                error = failed.summary
        install = self._hosts.install if lacks else ""
        return self._rows(install, error)

    def versions(self) -> dict[str, str]:
        """Give the versions of what takes part."""
        return {} if self._hosts.missing() else {self._hosts.name: self._hosts.version()}

    def _measure(self) -> None:
        with contextlib.ExitStack() as stack:
            for broker in (self._hosts, self._alone):
                stack.callback(broker.stop)
            self._alone.start()
            self._hosts.start_alone()
            if self._is_wanted(self._title(JOIN)):
                store(self._hosts, self._joined, JOINED_BYTES)
            self._note(self._hosts, JOIN, self._hosts.join())
            if self._is_wanted(self._title(REQUESTS)):
                self._count_requests()
            for repetition in range(self._settings.repetitions):
                for broker in (self._hosts, self._alone):
                    self._compare(broker, repetition)

    def _count_requests(self) -> None:
        """Count what the hosts ask while nothing else happens: it does not depend on messages."""
        before, began = self._hosts.requests_to_etcd(), time.monotonic()
        time.sleep(self._settings.latency_s)
        count = self._hosts.requests_to_etcd() - before
        self._note(self._hosts, REQUESTS, count / (time.monotonic() - began))

    def _compare(self, broker: Broker, repetition: int) -> None:
        count = max(1_000, round(PER_SECOND * self._settings.seconds))
        for size in PAYLOADS:
            titles = {what: _guaranteed(what, size) for what in (PUBLISH, CONSUME, BOTH)}
            if any(self._is_wanted(self._title(title)) for title in titles.values()):
                for what, rate in rates(broker, count, size).items():
                    self._note(broker, titles[what], rate)
        if self._is_wanted(self._title(DIRECT)):
            prefix = unique_prefix()
            sink = subscriber(broker, prefix, api=BATCHED)
            source = publisher(broker, prefix, seconds=self._settings.seconds, api=BATCHED)
            self._note(broker, DIRECT, run_trial(broker, [sink], source).rate)
        said = ", ".join(f"{what} {figures[-1]:,.0f}" for what, figures in self._found[broker.name].items())
        say(f"{repetition + 1}/{self._settings.repetitions} {broker.name}: {said}")

    def _note(self, broker: Broker, what: str, figure: float) -> None:
        self._found[broker.name][what].append(figure)

    @property
    def _joined(self) -> int:
        """How many messages a standby is brought: fewer if the figures mean nothing."""
        return min(JOINED, 10 * self._settings.table)

    def _is_wanted(self, title: str) -> bool:
        return self._settings.rows in title

    def _title(self, what: str) -> str:
        """Give the name of the row of a figure."""
        limit = LIMITS.get(what)
        if limit is None:
            return f"{what}, with a standby, against {AGAINST}"
        more = f", {self._joined:,} messages of {JOINED_BYTES} B" if what == JOIN else " of both hosts"
        return f"{what}{more}, against {limit[0]:g} {limit[1]}"

    def _rows(self, install: str, error: str) -> list[Row]:
        ours, alone = (self._found[broker.name] for broker in (self._hosts, self._alone))
        shared: dict[str, Any] = {"install": install, "error": error}
        rows = [
            Row(
                name=self._title(what),
                unit="messages/s",
                better=Better.HIGHER,
                ours=ours[what],
                peer=alone[what],
                against=AGAINST,
                first_target=DIRECT_TARGET if what == DIRECT else GUARANTEED_TARGET,
                note="" if what == DIRECT else self._hosts.durability,
                **shared,
            )
            for what in COMPARED
        ]
        rows += [
            Row(
                name=self._title(what),
                unit=unit,
                better=Better.LOWER,
                ours=ours[what],
                peer=[limit],
                against=f"{limit:g} {unit}",
                first_target=1.0,
                **shared,
            )
            for what, (limit, unit) in LIMITS.items()
        ]
        return [row for row in rows if self._is_wanted(row.name)]


def _guaranteed(what: str, size: int) -> str:
    return f"guaranteed, {what}, {PAYLOADS[size]}, window {WINDOW}"


#: What is measured with a standby and without one.
COMPARED: Final = [_guaranteed(what, size) for size in PAYLOADS for what in (PUBLISH, CONSUME, BOTH)] + [
    DIRECT
]
