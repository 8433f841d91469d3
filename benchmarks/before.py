"""This checkout beside another one of this project: what a change costs.

A node of each runs all the time. Its clients are the same programs for both, each with the SDK of its checkout. Every
round has each of them do the same work once, one directly after the other and in turn first. A row is the median of the
rounds' ratios, so what makes the machine slower for longer than a second changes both, and its interval says what can
be told at all. Two processes of the same code may differ by a tenth as long as they live, so there are other nodes
after some rounds.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks import guaranteed, mesh, plan
from benchmarks.brokers.angarium import Angarium
from benchmarks.brokers.pair import Pair
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.direct import WARM_UP_S, tasks_of
from benchmarks.figures import Better, Row, broker_s_per_million, latency_us, median_interval, ratios
from benchmarks.harness import Trial, publisher, run_trial, say, subscriber, unique_prefix
from cluster.commands.bench.process import BATCHED, SINGLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.direct import Settings

    Figure = Callable[[Trial], float]
    Work = Callable[[Broker, float], Trial]

NOW, BEFORE = "now", "before"
#: What `--only` may name.
DIRECT, GUARANTEED, MESH = SUBJECTS = ("direct", "guaranteed", "mesh")
#: An interval of twenty ratios is still half as wide as they are.
ROUNDS: Final = 30
#: After so many there are other nodes: a row knows as much as it has had pairs of them.
ROUNDS_OF_NODES: Final = 2
#: Publishing time of a run, unless told otherwise: longer ones meet more of the machine's weather.
SECONDS: Final = 0.5
#: What a change may cost, and what it may cost in CPU time.
RATE_TARGET, COST_TARGET = 0.97, 1.03
INTERVAL: Final = "95 %"
_COST: Final = ("CPU us of the node per message", Better.LOWER, COST_TARGET)
_QUEUED_PER_SECOND: Final = 60_000
#: Made anew for each run.
TABLE: Final = 10_000


class Subject(NamedTuple):
    """What is compared: the brokers that do it, and the work by title."""

    name: str
    broker: Callable[..., Broker]
    works: Mapping[str, Work]


def _direct(scenario: plan.Scenario, api: str, broker: Broker, seconds: float) -> Trial:
    entry = plan.Entry(scenario, broker.name, api)
    return run_trial(broker, *tasks_of(broker, entry, seconds * scenario.seconds_part))


def _people(count: int) -> str:
    return f"{count} client{'s' * (count > 1)}"


def _matching(count: int, broker: Broker, seconds: float) -> Trial:
    shared: dict[str, Any] = {"prefix": unique_prefix(), "table": TABLE, "api": BATCHED}
    holders = [subscriber(broker, holders=count, holder=one, **shared) for one in range(count)]
    return run_trial(broker, holders, publisher(broker, seconds=seconds, **shared), copies=1)


def _queued(size: int, broker: Broker, seconds: float) -> Trial:
    count = max(1_000, round(_QUEUED_PER_SECOND * seconds))
    return guaranteed.both(broker, count, size)


def _over_link(kind: str, size: int, broker: Broker, seconds: float) -> Trial:
    assert isinstance(broker, Pair)
    return mesh.run_kind(broker, mesh.Kind(kind, mesh.LINK, size), seconds)


def _directs() -> Iterator[tuple[str, Work]]:
    for api in (BATCHED, SINGLY):
        for scenario in (plan.DIRECT_128, plan.DIRECT_1K, plan.FAN_OUT):
            yield f"{scenario.title}, {plan.INTERFACES[api]}", functools.partial(_direct, scenario, api)
    yield plan.LATENCY.title, functools.partial(_direct, plan.LATENCY, SINGLY)


def subjects() -> list[Subject]:
    """Give everything that can be compared."""
    queued = {
        f"guaranteed, publish and consume, {title}": functools.partial(_queued, size)
        for size, title in guaranteed.PAYLOADS.items()
    }
    matching = {
        f"matching {TABLE:,} subscriptions of {_people(count)}": functools.partial(_matching, count)
        for count in (1, 10)
    }
    linked = {
        mesh.Kind(kind, mesh.LINK, size).title: functools.partial(_over_link, kind, size)
        for kind in (mesh.DIRECT, mesh.GUARANTEED)
        for size in mesh.PAYLOADS
    }
    return [
        Subject(DIRECT, Angarium, {**dict(_directs()), **matching}),
        Subject(GUARANTEED, Angarium, queued),
        Subject(MESH, Pair, linked),
    ]


class Beside:
    """The runs of both checkouts."""

    def __init__(self, directory: Path, settings: Settings, checkout: Path) -> None:
        """Say where the other checkout is; nothing is started."""
        self._directory, self._settings, self._checkout = directory, settings, checkout
        self._speeds: list[float] = []

    def run(self, only: str | None) -> list[Row]:
        """Measure one subject or all of them, and give the rows."""
        return [row for one in subjects() if only in (None, one.name) for row in self._run(one)]

    def versions(self) -> dict[str, str]:
        """Give the versions of both."""
        return {
            NOW: Angarium(self._directory).version(),
            BEFORE: f"{Angarium(self._directory, checkout=self._checkout).version()} in {self._checkout}",
        }

    def conditions(self) -> str:
        """Say how steady the machine was."""
        speeds = self._speeds or [0.0]
        return f"a fixed loop ran at {min(speeds):.0f} to {max(speeds):.0f} million steps/s before the runs"

    def _run(self, subject: Subject) -> Iterator[Row]:
        chosen = {title: work for title, work in subject.works.items() if self._settings.rows in title}
        found: dict[str, list[tuple[Trial, Trial]]] = {title: [] for title in chosen}
        left = self._settings.repetitions if chosen else 0
        try:
            while left > 0:
                rounds = min(left, ROUNDS_OF_NODES)
                left -= rounds
                with self._nodes(subject, left) as brokers:
                    for title, work in chosen.items():
                        found[title] += alternate(work, brokers, rounds, self._settings.seconds)
                        say(f"{title}: {len(found[title])} of {self._settings.repetitions} rounds")
        except BrokerFailedError as failure:
            say(str(failure))
            yield Row(name=subject.name, unit="", better=Better.HIGHER, ours=[], error=failure.summary)
        for title, pairs in found.items():
            self._speeds += [trial.calibration for pair in pairs for trial in pair]
            if pairs:
                yield from rows(title, pairs)

    @contextlib.contextmanager
    def _nodes(self, subject: Subject, number: int) -> Iterator[list[Broker]]:
        """Start what does the work of a subject, of both checkouts."""
        brokers = [
            subject.broker(self._directory / f"{NOW}-{number}"),
            subject.broker(self._directory / f"{BEFORE}-{number}", checkout=self._checkout),
        ]
        with contextlib.ExitStack() as stack:
            for broker in brokers:
                stack.callback(broker.stop)
                broker.start()
            yield brokers


def alternate(work: Work, brokers: list[Broker], rounds: int, seconds: float) -> list[tuple[Trial, Trial]]:
    """Have two brokers do the same in turn, each first in every second round; gives both trials of each round."""
    for broker in brokers:
        work(broker, WARM_UP_S)
    found = []
    for number in range(rounds):
        turn = -1 if number % 2 else 1
        now, before = [work(broker, seconds) for broker in brokers[::turn]][::turn]
        found.append((now, before))
    return found


def rows(title: str, pairs: list[tuple[Trial, Trial]]) -> Iterator[Row]:
    """Compare rates, or latencies where the rate is given, and what the node paid."""
    first: tuple[Figure, str, Better, float] = (_rate, "deliveries/s", Better.HIGHER, RATE_TARGET)
    if pairs[0][0].latencies_ns:
        first = (_p50, "us, p50", Better.LOWER, COST_TARGET)
    for figure, unit, better, target in (first, (broker_s_per_million, *_COST)):
        ours, others = ([figure(trial) for trial in side] for side in zip(*pairs, strict=True))
        least, most = median_interval(ratios(ours, others))
        yield Row(
            name=title,
            unit=unit,
            better=better,
            ours=ours,
            peer=others,
            against=BEFORE,
            first_target=target,
            is_paired=True,
            note=f"{unit}: between {least:.3f} and {most:.3f} ({INTERVAL})",
        )


def _rate(trial: Trial) -> float:
    return trial.rate


def _p50(trial: Trial) -> float:
    return latency_us(trial, 0.50)
