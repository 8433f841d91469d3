"""Many subscriptions on our own node: what one costs in memory, and how fast messages find theirs.

The table has half exact filters (`a/{i}/b`) and half with a wildcard (`a/*/c{i}`), and every message
matches one of them: first each topic once, when nobody has seen it, then topics at random. Hardly two
messages of a batch go to the same subscription, which is the worst case. Then the same while another client
changes 1,000 subscriptions per second; workers forget topics meanwhile, so they are shown all of them again
before the next run without changes.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.brokers.angarium import Angarium
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.clients.task import CHURN, DirectTask
from benchmarks.direct import start_warm
from benchmarks.figures import Better, Row, cpu_us_per_message
from benchmarks.harness import ClientProcess, measure, publisher, say, subscriber, unique_prefix
from cluster.commands.bench.process import BATCHED, percentile

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.direct import Settings
    from benchmarks.harness import Trial

#: By which `--rows` chooses these rows, all of them together.
TITLE: Final = "subscriptions, memory, made, matching under churn"
CHANGES_PER_S: Final = 1_000
#: Memory is read when it changes by less than this part between two looks.
SETTLED_PART: Final = 0.002
SETTLE_TIMEOUT_S: Final = 15.0
SETTLE_INTERVAL_S: Final = 0.5


@dataclass
class Findings:
    """What one node with one number of clients has shown."""

    #: Bytes of resident memory per subscription, by role.
    bytes_each: dict[str, float] = field(default_factory=dict)
    #: Subscriptions per second while they were made.
    installed_per_s: float = 0.0
    #: Each topic for the first time.
    first: list[Trial] = field(default_factory=list)
    #: Topics that were seen before, and the same under churn.
    plain: list[Trial] = field(default_factory=list)
    churned: list[Trial] = field(default_factory=list)
    #: What the client that changed subscriptions said.
    churn: list[dict[str, Any]] = field(default_factory=list)


def rows(directory: Path, settings: Settings) -> list[Row]:
    """Measure with 1 and with 10 clients, and give the rows."""
    found: list[Row] = []
    for clients in (1, 10):
        try:
            findings = run(directory, settings, clients)
        except BrokerFailedError as error:
            say(str(error))
            name = f"{settings.table:,} subscriptions of {clients} clients"
            found.append(Row(name=name, unit="", better=Better.HIGHER, ours=[], error=error.summary))
            continue
        found += memory_rows(findings, settings, clients) if clients == 1 else []
        found += matching_rows(findings, settings, clients)
    return found


def run(directory: Path, settings: Settings, clients: int) -> Findings:
    """Start a node, hold the table with some clients, and publish to it in every repetition."""
    findings = Findings()
    broker = Angarium(directory, 1, f"table-{clients}")
    prefix = unique_prefix()
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        start_warm(broker)
        before = settled_rss(broker)
        started = time.monotonic()
        tasks = _holders(broker, prefix, settings, clients)
        holders = [stack.enter_context(ClientProcess(broker, task)) for task in tasks]
        for holder in holders:
            holder.wait_ready()
        findings.installed_per_s = settings.table / (time.monotonic() - started)
        after = settled_rss(broker)
        findings.bytes_each = {role: (after[role] - before[role]) / settings.table for role in after}
        findings.first.append(_publish_each_once(broker, holders, prefix, settings))
        knows_topics = True
        for churned in _order(settings.repetitions):
            if churned:
                _publish_under_churn(broker, holders, prefix, settings, findings)
            else:
                if not knows_topics:
                    _publish_each_once(broker, holders, prefix, settings)
                _publish(broker, holders, prefix, settings, findings)
            knows_topics = not churned
    return findings


def _order(repetitions: int) -> list[bool]:
    """Give the order of runs, True for those under churn, with as few changes between the kinds as may be."""
    return [churned for number in range(repetitions) for churned in (number % 2 == 1, number % 2 == 0)]


def _holders(broker: Broker, prefix: str, settings: Settings, clients: int) -> list[DirectTask]:
    runs = 3 * settings.repetitions  # at most: each topic once, plain, under churn
    shared: dict[str, Any] = {"table": settings.table, "holders": clients, "api": BATCHED, "runs": runs}
    return [subscriber(broker, prefix, holder=number, **shared) for number in range(clients)]


def settled_rss(broker: Broker) -> dict[str, int]:
    """Give the resident memory by role when it does not change any more."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    found = broker.rss_bytes()
    while time.monotonic() < deadline:
        time.sleep(SETTLE_INTERVAL_S)
        previous, found = found, broker.rss_bytes()
        if all(abs(found[role] - previous[role]) <= SETTLED_PART * previous[role] for role in found):
            break
    return found


def _publish_each_once(
    broker: Broker, holders: list[ClientProcess], prefix: str, settings: Settings
) -> Trial:
    task = publisher(broker, prefix, table=settings.table, count=settings.table, each_once=True, api=BATCHED)
    with ClientProcess(broker, task) as source:
        source.wait_ready()
        trial = measure(broker, holders, source, copies=1)
    _tell(trial, settings, len(holders), ", each topic once")
    return trial


def _publish(
    broker: Broker, holders: list[ClientProcess], prefix: str, settings: Settings, findings: Findings
) -> None:
    with ClientProcess(broker, _publisher(broker, prefix, settings)) as source:
        source.wait_ready()
        trial = measure(broker, holders, source, copies=1)
    findings.plain.append(trial)
    _tell(trial, settings, len(holders), "")


def _publish_under_churn(
    broker: Broker, holders: list[ClientProcess], prefix: str, settings: Settings, findings: Findings
) -> None:
    task = DirectTask(role=CHURN, url=broker.url, prefix=prefix, seconds=settings.seconds, rate=CHANGES_PER_S)
    with (
        ClientProcess(broker, _publisher(broker, prefix, settings)) as source,
        ClientProcess(broker, task) as churning,
    ):
        source.wait_ready()
        churning.wait_ready().go()
        trial = measure(broker, holders, source, copies=1)
        findings.churn.append(churning.result())
    findings.churned.append(trial)
    _tell(trial, settings, len(holders), ", under churn")


def _publisher(broker: Broker, prefix: str, settings: Settings) -> DirectTask:
    """Give a publisher to the holders, which stay; each message goes to one of them."""
    return publisher(broker, prefix, seconds=settings.seconds, table=settings.table, api=BATCHED)


def _tell(trial: Trial, settings: Settings, clients: int, what: str) -> None:
    title = f"{settings.table:,} subscriptions of {clients} clients{what}"
    say(f"{title}: {trial.rate:,.0f}/s, lost {trial.lost:,}")


def memory_rows(findings: Findings, settings: Settings, clients: int) -> list[Row]:
    """Give the memory per subscription of those processes that hold it, and how fast they were made."""
    title = f"{settings.table:,} subscriptions of {clients} client"
    each = findings.bytes_each
    parts = {
        "the worker": each["worker"],
        "the router": each["router"],
        "both": each["worker"] + each["router"],
    }
    made = [
        Row(
            name=f"{title}, memory of {who}",
            unit="bytes per subscription",
            better=Better.LOWER,
            ours=[size],
            note="difference of resident memory, half exact, half wildcard",
        )
        for who, size in parts.items()
    ]
    speed = Row(
        name=f"{title}, made",
        unit="subscriptions/s",
        better=Better.HIGHER,
        ours=[findings.installed_per_s],
        note="from the start of the client process to its last confirmation",
    )
    return [*made, speed]


def matching_rows(findings: Findings, settings: Settings, clients: int) -> list[Row]:
    """Give the matching rates, undisturbed and under churn."""
    title = f"{settings.table:,} subscriptions of {clients} client{'s' * (clients > 1)}"
    plain = [trial.rate for trial in findings.plain]
    changes = statistics.median(one["changes"] / one["seconds"] for one in findings.churn)
    settled_us = percentile([ns / 1_000 for one in findings.churn for ns in one["latencies_ns"]], 0.99)
    lost = sum(trial.lost for trial in [*findings.first, *findings.plain, *findings.churned])
    return [
        Row(
            name=f"{title}, matching each topic for the first time",
            unit="messages/s",
            better=Better.HIGHER,
            ours=[trial.rate for trial in findings.first],
            details={"our_cpu_us_per_message": cpu_us_per_message(findings.first)},
        ),
        Row(
            name=f"{title}, matching",
            unit="messages/s",
            better=Better.HIGHER,
            ours=plain,
            note=f"lost {lost:,}" if lost else "",
            details={"our_cpu_us_per_message": cpu_us_per_message(findings.plain)},
        ),
        Row(
            name=f"{title}, matching under churn, against no churn",
            unit="messages/s",
            better=Better.HIGHER,
            ours=[trial.rate for trial in findings.churned],
            peer=plain,
            against="no churn",
            note=f"{changes:,.0f} changes/s, a subscription took effect within {settled_us:,.0f} us (p99)",
            details={"our_cpu_us_per_message": cpu_us_per_message(findings.churned)},
        ),
    ]
