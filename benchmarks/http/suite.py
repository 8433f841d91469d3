"""Guaranteed messages over HTTP through one node, in turn with QoS 1 of MQTT through the same one.

Both have as many connections, their messages go to one queue, and both are answered after a synced commit. A connection
of HTTP has one request on its way; one of MQTT has one message, and in a second row ten.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.brokers.angarium import Angarium
from benchmarks.brokers.server import BrokerFailedError
from benchmarks.figures import Better, Row, shortened
from benchmarks.harness import ClientProcess, say, unique_prefix
from benchmarks.http.client import PAYLOAD_BYTES, PostTask
from benchmarks.mqtt.task import PUBLISH, MqttTask
from cluster.admin.client import Admin

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker
    from benchmarks.direct import Settings

TITLE: Final = f"messages over HTTP, guaranteed POSTs over 50 kept connections, {PAYLOAD_BYTES} B"
CONNECTIONS: Final = 50
#: The first level of all topics.
ROOT: Final = "posted"
#: Messages on the way on a connection of MQTT -> what ours is to reach of it at first.
WINDOWS: Final[dict[int, float | None]] = {1: 0.5, 10: None}
HTTP: Final = 0


class AngariumHttp(Angarium):
    """A node whose clients are of HTTP and of MQTT."""

    mqtt_url = ""

    def options(self) -> list[str]:
        """Give more options of `angarium up`."""
        return ["--mqtt", "tcp://127.0.0.1:0", "--http", "http://127.0.0.1:0"]

    def start(self) -> None:
        """Start it, with a queue that takes all messages."""
        super().start()
        ready = json.loads((self.directory / "ready.json").read_text(encoding="utf-8"))
        self.url, self.mqtt_url = ready["http"][0], ready["mqtt"][0].replace("tcp://", "mqtt://")
        with Admin(self.directory / "data") as admin:
            wanted = {"subscriptions": [f"{ROOT}/>"], "max_spool_usage_mb": 100_000, "owner": "default"}
            admin.call("objects.create", kind="queue", name=ROOT, attributes=wanted)

    def empty(self) -> None:
        """Take all messages away."""
        with Admin(self.directory / "data") as admin:
            admin.call("endpoints.purge", kind="queue", name=ROOT)


@dataclass(frozen=True)
class Posted:
    """What one run has shown."""

    sent: int
    stored: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        """Stored messages per second."""
        return self.stored / self.seconds

    def cpu_us(self, role: str) -> float:
        """Give the CPU time of a process, or of all of the node, per message."""
        found = sum(self.cpu_s.values()) if role == "node" else self.cpu_s.get(role, 0.0)
        return found / max(1, self.sent) * 1e6


def rows(directory: Path, settings: Settings) -> list[Row]:
    """Measure, and give the rows."""
    broker = AngariumHttp(directory, 1, "angarium-http")
    posted: dict[int, list[Posted]] = defaultdict(list)
    kinds, error = (HTTP, *WINDOWS), ""
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        try:
            broker.start()
            for repetition in range(settings.repetitions):
                at = repetition % len(kinds)
                for window in kinds[at:] + kinds[:at]:
                    found = post(broker, broker.mqtt_url, window, settings.seconds)
                    broker.empty()
                    posted[window].append(found)
                    name = f"MQTT, {window} on the way" if window else "HTTP"
                    said = (
                        f"{found.rate:,.0f} messages/s, {found.cpu_us('node'):.0f} us of CPU of the node each"
                    )
                    say(f"{repetition + 1}/{settings.repetitions} {name}: {said}")
        except BrokerFailedError as failed:
            say(str(failed))
            error = failed.summary
    return [_row(posted, window, target, error) for window, target in WINDOWS.items()]


def post(broker: Broker, mqtt_url: str, window: int, seconds: float) -> Posted:
    """Let a fresh client post for a time, or publish with QoS 1 and so many messages on the way of each connection.

    Raises:
        BrokerFailedError: the client failed, or said nothing for too long.
    """
    prefix = f"{ROOT}/{unique_prefix()}"
    task: PostTask | MqttTask = PostTask(
        url=broker.url, prefix=prefix, connections=CONNECTIONS, seconds=seconds
    )
    if window:
        task = MqttTask(
            role=PUBLISH,
            url=mqtt_url,
            prefix=prefix,
            qos=1,
            connections=CONNECTIONS,
            window=window,
            seconds=seconds,
        )
    with ClientProcess(broker, task) as client:
        client.wait_ready()
        before = broker.cpu_s()
        client.go()
        told = client.result()
        spent = {role: total - before.get(role, 0.0) for role, total in broker.cpu_s().items()}
    return Posted(told["sent"], told["acknowledged"], (told["last_ns"] - told["first_ns"]) / 1e9, spent)


def _row(posted: dict[int, list[Posted]], window: int, target: float | None, error: str) -> Row:
    missing = sum(one.sent - one.stored for runs in posted.values() for one in runs)
    against = f"MQTT with QoS 1, {window} on the way of each of 50 connections"
    return Row(
        name=f"{TITLE}, against {against}",
        unit="messages/s",
        better=Better.HIGHER,
        ours=[one.rate for one in posted[HTTP]],
        peer=[one.rate for one in posted[window]],
        against=against,
        first_target=target,
        note=f"{missing:,} were not acknowledged" if missing else "",
        error=error,
        details={
            name: {role: shortened(median(one.cpu_us(role) for one in runs)) for role in roles_of(runs)}
            for name, runs in (
                ("our_cpu_us_per_message", posted[HTTP]),
                ("peer_cpu_us_per_message", posted[window]),
            )
            if runs
        },
    )


def roles_of(runs: list[Posted]) -> list[str]:
    """Give the processes of the node, and the node."""
    return [*dict.fromkeys(role for one in runs for role in one.cpu_s), "node"]
