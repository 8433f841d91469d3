"""What direct messaging is compared with: scenarios, who runs them, and the rows with their first targets.

Data and nothing else; `benchmarks.direct` runs it. The targets are ratios inside one run, because machines
drift by up to a factor of two between runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Better, broker_s_per_million, latency_us, router_us_per_round
from cluster.commands.bench.process import BATCHED, SINGLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness import Trial

#: The node that a machine of two cores has by default.
OURS: Final = "angarium-1"
PEERS: Final = ("nats", "redis", "rabbitmq")
#: Latency is measured so long at so many messages per second, whatever `--seconds` says.
LATENCY_S: Final = 10.0
LATENCY_RATE: Final = 1_000
#: Messages of one work unit (2,048 bytes) that fill a frozen subscriber's credit (16 MiB, 8,000 of them) and its
#: queue (20,000 units), and then some: every further message for it costs another one.
FROZEN_BURST: Final = 40_000


@dataclass(frozen=True)
class Scenario:
    """What is published, and to how many."""

    title: str
    payload_bytes: int = 128
    subscribers: int = 1
    #: Messages per second; 0 for full speed.
    rate: int = 0
    #: Part of `--seconds` that is published; many subscribers take longer than the publisher.
    seconds_part: float = 1.0
    #: Whether subscribers have no bound on what waits for them.
    unbounded: bool = True
    #: Whether one more subscriber is stopped with its queue full.
    frozen: bool = False


@dataclass(frozen=True)
class Entry:
    """A scenario as one broker runs it through one interface."""

    scenario: Scenario
    broker: str
    api: str = SINGLY


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A row to be: one figure of our entry, over that of another one."""

    name: str
    ours: Entry
    other: Entry | None = None
    figure: Callable[[Trial], float]
    unit: str
    better: Better
    first_target: float | None = None


DIRECT_128: Final = Scenario("direct 1->1, 128 B")
DIRECT_1K: Final = Scenario("direct 1->1, 1 KiB", payload_bytes=1024)
FAN_OUT: Final = Scenario("fan-out 1->10, 128 B", subscribers=10, seconds_part=0.5)
LATENCY: Final = Scenario("latency at 1,000 msg/s, 128 B", rate=LATENCY_RATE)
FROZEN: Final = Scenario("latency beside a frozen subscriber, 128 B", rate=LATENCY_RATE, frozen=True)
BOUNDED: Final = Scenario("direct 1->1, 128 B, default window", unbounded=False)

INTERFACES: Final = {BATCHED: "publish_many + batches()", SINGLY: "publish + callback"}


def _rate(trial: Trial) -> float:
    return trial.rate


def _p50(trial: Trial) -> float:
    return latency_us(trial, 0.50)


def _p99(trial: Trial) -> float:
    return latency_us(trial, 0.99)


def _lost_percent(trial: Trial) -> float:
    return 100 * trial.lost / max(1, trial.lost + trial.received)


def comparisons(peers: tuple[str, ...] = PEERS) -> list[Comparison]:
    """Give all rows, with those peers only."""
    rows = [*_rates(), *_interfaces_and_workers(), *_latencies(), *_costs()]
    return [
        row for row in rows if row.other is None or row.other.broker not in PEERS or row.other.broker in peers
    ]


def _rates() -> list[Comparison]:
    """Full speed against the peers; the target is for the interface that is made for speed."""
    targets = {(DIRECT_128, BATCHED, "nats"): 2.0, (FAN_OUT, BATCHED, "nats"): 2.0}
    return [
        Comparison(
            name=f"{scenario.title}, {INTERFACES[api]}, against {peer}",
            ours=Entry(scenario, OURS, api),
            other=Entry(scenario, peer),
            figure=_rate,
            unit="deliveries/s",
            better=Better.HIGHER,
            first_target=targets.get((scenario, api, peer)),
        )
        for scenario in (DIRECT_128, DIRECT_1K, FAN_OUT)
        for peer in ("nats", "redis")
        for api in (BATCHED, SINGLY)
    ]


def _interfaces_and_workers() -> list[Comparison]:
    """Full speed against ourselves."""
    one = Entry(DIRECT_128, OURS, BATCHED)
    rows = [
        Comparison(
            name=f"{DIRECT_128.title}, {workers} workers, against 1 worker",
            ours=Entry(DIRECT_128, f"angarium-{workers}", BATCHED),
            other=one,
            figure=_rate,
            unit="deliveries/s",
            better=Better.HIGHER,
        )
        for workers in (2, 4)
    ]
    bounded = Entry(BOUNDED, OURS, BATCHED)
    figures = ((_rate, "deliveries/s", Better.HIGHER), (_lost_percent, "% discarded", Better.LOWER))
    for figure, unit, better in figures:
        rows.append(
            Comparison(
                name=f"{BOUNDED.title} ({unit}), against no window",
                ours=bounded,
                other=one,
                figure=figure,
                unit=unit,
                better=better,
            )
        )
    return rows


def _latencies() -> list[Comparison]:
    targets = {("p50", "rabbitmq"): 1.3, ("p99", "rabbitmq"): 1.0}
    percentiles = (("p50", _p50), ("p99", _p99))
    ours = Entry(LATENCY, OURS)
    rows = [
        Comparison(
            name=f"{LATENCY.title}, {title}, against {peer}",
            ours=ours,
            other=Entry(LATENCY, peer),
            figure=figure,
            unit="us",
            better=Better.LOWER,
            first_target=targets.get((title, peer)),
        )
        for peer in ("rabbitmq", "nats", "redis")
        for title, figure in percentiles
    ]
    rows += [
        Comparison(
            name=f"{FROZEN.title}, {title}, against nobody frozen",
            ours=Entry(FROZEN, OURS),
            other=ours,
            figure=figure,
            unit="us",
            better=Better.LOWER,
        )
        for title, figure in percentiles
    ]
    return rows


def _costs() -> list[Comparison]:
    """CPU time; it costs no run of its own."""
    direct = Entry(DIRECT_128, OURS, BATCHED)
    rows = [
        Comparison(
            name=f"CPU of the whole broker, {DIRECT_128.title}, against {peer}",
            ours=direct,
            other=Entry(DIRECT_128, peer),
            figure=broker_s_per_million,
            unit="s per million messages",
            better=Better.LOWER,
        )
        for peer in ("nats", "redis")
    ]
    rounds = {
        "rounds of a publisher at full speed to 1 subscriber": direct,
        "rounds of a publisher at full speed to 10 subscribers": Entry(FAN_OUT, OURS, BATCHED),
        "rounds of one message to 1 subscriber": Entry(LATENCY, OURS),
    }
    rows += [
        Comparison(
            name=f"CPU of the router, {title}",
            ours=entry,
            figure=router_us_per_round,
            unit="us per round",
            better=Better.LOWER,
        )
        for title, entry in rounds.items()
    ]
    return rows
