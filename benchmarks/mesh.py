"""Two nodes and one link: what crossing it costs, what distance costs, and how soon interest is known.

The same clients send the same messages to nodes with the same number of workers, once inside the near node and once
from the near node to the far one, one after the other in every repetition, so that a machine that becomes slower
becomes slower for both. Both nodes run all the time. The distance is a proxy in front of the near node that holds
back what passes, 100 ms each way; it is compared with the same proxy without a delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import angarium
from benchmarks.brokers.pair import Pair
from benchmarks.brokers.proxy import Proxy
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.direct import start_warm
from benchmarks.figures import Better, Row, cpu_us_per_message
from benchmarks.guaranteed import store_and_drain, task_of
from benchmarks.harness import ClientProcess, publisher, run_trial, say, subscriber, unique_prefix
from cluster.commands.bench.process import BATCHED, DRAIN, STORE, percentile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.direct import Settings
    from benchmarks.harness import Trial

DIRECT, GUARANTEED = "direct", "guaranteed"
PAYLOADS: Final = {128: "128 B", 1024: "1 KiB"}
#: Where messages go: from a client of the near node to another one of it, or over the link, which leads to the node
#: itself or to a proxy.
INSIDE, LINK, PROXY, SLOW = (
    "inside one node",
    "over a link",
    "over a link through a proxy",
    "over a slow link",
)
ONE_WAY_MS: Final = 100
#: (kind, way) -> first target of its rate, against `_AGAINST`.
TARGETS: Final = {(DIRECT, LINK): 0.7, (GUARANTEED, LINK): 0.5, (DIRECT, SLOW): 0.8, (GUARANTEED, SLOW): 0.8}
_AGAINST: Final = {LINK: INSIDE, SLOW: PROXY}
#: Guaranteed messages of one second at full speed, so that these runs take about as long as the others.
_PER_SECOND: Final = 60_000
#: A run over a slow link is as much longer, so that the filling of the path weighs little.
_SLOW_FACTOR: Final = 2.0
#: Looks at how soon a subscription attracts messages of the other node, and how often one is published meanwhile.
INTEREST_LOOKS: Final = 200
INTEREST_TARGET_MS: Final = 100.0
_INTEREST_EVERY_S: Final = 0.001
_INTEREST_TIMEOUT_S: Final = 10.0
#: By which `--rows` chooses the other rows.
INTEREST_TITLE: Final = "from subscribing until the first message of the neighbour"
SYNCHRONISE_TITLE: Final = "subscriptions of the neighbour, synchronised"


@dataclass(frozen=True)
class Kind:
    """What is sent which way."""

    kind: str
    way: str
    size: int

    @property
    def title(self) -> str:
        """Name it in a row."""
        way = f"{self.way} of {2 * ONE_WAY_MS} ms" if self.way == SLOW else self.way
        return f"{self.kind}, {PAYLOADS[self.size]}, {way}"


class Links:
    """The run that all rows share."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Describe the nodes; nothing is started."""
        self._settings = settings
        self._pair = Pair(directory)
        self._proxies = {PROXY: Proxy(directory, 0), SLOW: Proxy(directory, ONE_WAY_MS)}
        self._trials: dict[Kind, list[Trial]] = {}
        self._interest_ms: list[float] = []
        self._synchronised_s: list[float] = []

    def run(self) -> list[Row]:
        """Measure what the chosen rows need, and give them."""
        error = ""
        with contextlib.ExitStack() as stack:
            stack.callback(self._pair.stop)
            try:
                start_warm(self._pair.near)
                self._measure(stack)
            except BrokerFailedError as failure:
                say(str(failure))
                error = failure.summary
        return [row for row in self._rows(error) if row.ours or (error and self._settings.rows in row.name)]

    def versions(self) -> dict[str, str]:
        """Give the versions of what takes part."""
        return {"angarium": self._pair.version()}

    # -- measuring -------------------------------------------------------------------------------------------

    def _measure(self, stack: contextlib.ExitStack) -> None:
        self._pair.join()
        chosen = [pair for pair in _pairs() if self._settings.rows in _name(*pair)]
        kinds = list(dict.fromkeys(kind for pair in chosen for kind in pair))
        for way, proxy in self._proxies.items():
            if any(kind.way == way for kind in kinds):
                stack.callback(proxy.stop)
                proxy.start_before(self._pair.near.url)
        for repetition in range(self._settings.repetitions):
            for way in (LINK, *self._proxies):
                self._run_way(way, kinds, repetition)
        self._pair.lead(self._pair.near.url)
        if self._settings.rows in INTEREST_TITLE:
            self._interest_ms = asyncio.run(_interest_latencies(self._pair, self._looks()))
        if self._settings.rows in SYNCHRONISE_TITLE:
            for _ in range(self._settings.repetitions):
                self._synchronised_s.append(self._synchronise())

    def _looks(self) -> int:
        return max(3, INTEREST_LOOKS * self._settings.repetitions // 3)

    def _run_way(self, way: str, kinds: list[Kind], repetition: int) -> None:
        """Run what goes this way, and what it is compared with if that needs no other address."""
        mine = [kind for kind in kinds if kind.way == way or (way == LINK and kind.way == INSIDE)]
        if not mine:
            return
        proxy = self._proxies.get(way)
        self._pair.lead(self._pair.near.url if proxy is None else proxy.url)
        for kind in mine[:: -1 if repetition % 2 else 1]:
            trial = run_kind(self._pair, kind, self._settings.seconds)
            self._trials.setdefault(kind, []).append(trial)
            say(
                f"{repetition + 1}/{self._settings.repetitions} {kind.title:45} {_rate(kind, trial):10,.0f}/s  "
                f"lost {trial.lost:,}  {trial.seconds:.2f} s  calib {trial.calibration:.1f}  "
                f"stolen {trial.stolen_s:.2f} s"
            )

    def _synchronise(self) -> float:
        """Give the seconds from switching a link on until the near node knows a large table of the far one."""
        pair, prefix, count = self._pair, unique_prefix(), self._settings.table
        pair.change(enabled=False)
        pair.await_link(lambda link: link["state"] == "disabled")
        with ClientProcess(pair.far, subscriber(pair.far, prefix, table=count)) as holder:
            holder.wait_ready()
            started = time.monotonic()
            pair.change(enabled=True)
            pair.await_link(lambda link: link["state"] == "up")
            pair.await_near(lambda link: link["state"] == "up" and link["subscriptions_in"] >= count)
            took = time.monotonic() - started
        say(f"{count:,} {SYNCHRONISE_TITLE} in {took:.2f} s")
        return took

    # -- rows ------------------------------------------------------------------------------------------------

    def _rows(self, error: str) -> list[Row]:
        return [*self._rate_rows(error), *self._interest_rows(error), self._synchronise_row(error)]

    def _rate_rows(self, error: str) -> list[Row]:
        rows = []
        for kind, other in _pairs():
            ours, others = self._trials.get(kind, []), self._trials.get(other, [])
            rows.append(
                Row(
                    name=_name(kind, other),
                    unit="messages/s",
                    better=Better.HIGHER,
                    ours=[_rate(kind, trial) for trial in ours],
                    peer=[_rate(other, trial) for trial in others],
                    against=other.way,
                    first_target=TARGETS[kind.kind, kind.way],
                    note=_note(ours, others),
                    error=error,
                    details={
                        "payload_bytes": kind.size,
                        "our_cpu_us_per_message": cpu_us_per_message(ours),
                        "peer_cpu_us_per_message": cpu_us_per_message(others),
                    },
                )
            )
        return rows

    def _interest_rows(self, error: str) -> list[Row]:
        found = self._interest_ms
        return [
            Row(
                name=f"{INTEREST_TITLE}, {title}, against 100 ms",
                unit="ms",
                better=Better.LOWER,
                ours=[percentile(found, part)] if found else [],
                peer=[INTEREST_TARGET_MS] if found else [],
                against="100 ms",
                first_target=1.0,
                note=f"{len(found)} subscriptions, a message every {1_000 * _INTEREST_EVERY_S:g} ms",
                error=error,
            )
            for title, part in (("p50", 0.50), ("p99", 0.99))
        ]

    def _synchronise_row(self, error: str) -> Row:
        return Row(
            name=f"{self._settings.table:,} {SYNCHRONISE_TITLE}",
            unit="s",
            better=Better.LOWER,
            ours=self._synchronised_s,
            note="from switching the link on until both nodes say that it is up",
            error=error,
        )


def run_kind(pair: Pair, kind: Kind, seconds: float) -> Trial:
    """Send so long; a run through a proxy is longer."""
    broker: Broker = pair.near if kind.way == INSIDE else pair
    sink: Broker = pair.near if kind.way == INSIDE else pair.far
    seconds *= _SLOW_FACTOR if kind.way in (PROXY, SLOW) else 1.0
    prefix = unique_prefix()
    if kind.kind == GUARANTEED:
        count = max(1_000, round(_PER_SECOND * seconds))
        source_task = task_of(broker, STORE, prefix, count, kind.size)
        if kind.way != INSIDE:
            source_task = replace(source_task, queues=0)  # the only queue is on the far node
        return store_and_drain(broker, source_task, task_of(sink, DRAIN, prefix, count, kind.size))
    receiving = subscriber(sink, prefix, payload_bytes=kind.size, api=BATCHED)
    source = publisher(broker, prefix, payload_bytes=kind.size, api=BATCHED, seconds=seconds)
    return run_trial(broker, [receiving], source)


def _pairs() -> Iterator[tuple[Kind, Kind]]:
    """Give what is measured, each with what it is compared with."""
    for kind in (DIRECT, GUARANTEED):
        for size in PAYLOADS:
            for way, other in _AGAINST.items():
                yield Kind(kind, way, size), Kind(kind, other, size)


def _name(kind: Kind, other: Kind) -> str:
    return f"{kind.title}, against {other.way}"


def _rate(kind: Kind, trial: Trial) -> float:
    """Give messages per second; the time that the path holds everything back is no work and does not count."""
    held_s = ONE_WAY_MS / 1_000 if kind.way == SLOW else 0.0
    return trial.received / (trial.seconds - held_s)


def _note(ours: list[Trial], others: list[Trial]) -> str:
    parts = []
    for who, trials in (("ours", ours), ("the other", others)):
        lost = sum(trial.lost for trial in trials)
        if lost:
            parts.append(f"{who} lost {lost:,} of {sum(trial.published for trial in trials):,}")
    return "; ".join(parts)


async def _interest_latencies(pair: Pair, looks: int) -> list[float]:
    """Subscribe again and again at the far node; gives the ms until the first message of the near one came."""
    found = []
    async with angarium.connect(pair.near.url) as near, angarium.connect(pair.far.url) as far:
        for _ in range(looks):
            found.append(await _interest_latency(near, far, f"{unique_prefix()}/interest"))
    return found


async def _interest_latency(near: angarium.Client, far: angarium.Client, topic: str) -> float:
    async def keep_publishing() -> None:
        while True:
            await near.publish(topic, b"x")
            await asyncio.sleep(_INTEREST_EVERY_S)

    publishing = asyncio.create_task(keep_publishing())
    try:
        started = time.monotonic()
        subscription = await far.subscribe(topic)
        await subscription.receive(_INTEREST_TIMEOUT_S)
        took = time.monotonic() - started
    finally:
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing
    await subscription.close()
    return 1_000 * took
