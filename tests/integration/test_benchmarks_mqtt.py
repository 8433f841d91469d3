"""The clients of the benchmarks of MQTT and HTTP against a node: all that is published is acknowledged, and comes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.brokers.server import Broker
from benchmarks.http import suite as http
from benchmarks.mqtt import plan
from benchmarks.mqtt.suite import exchange
from tests.integration.mqtt_node import mqtt_node
from tests.share import some

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psutil

SECONDS = 0.05
TOPICS = 200


class Running(Broker):
    """A node that somebody else has started."""

    name = "node"
    http_url = ""

    def client_python(self) -> str:
        """Give the interpreter of its clients."""
        return sys.executable

    def roles(self) -> dict[str, list[psutil.Process]]:
        """Give no processes: what they take is not looked at."""
        return {}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Give a node as the benchmark sees it."""
    folder: Path = tmp_path_factory.mktemp("node")
    with mqtt_node(folder, "http://127.0.0.1:0") as node:
        running = Running(folder)
        running.url, running.http_url = node.mqtt_url, node.http_url
        node.run(
            "queue", "create", http.ROOT, "--set", "owner=default", "--set", f"subscriptions={http.ROOT}/>"
        )
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    # To ten with QoS 1 is the same, and more.
    [
        pytest.param(
            one, id=one.title, marks=[pytest.mark.long] if (one.qos, one.subscribers) == (0, 10) else []
        )
        for one in plan.SCENARIOS
    ],
)
def test_a_scenario_loses_nothing(broker: Broker, scenario: plan.Scenario) -> None:
    found = exchange(broker, scenario, SECONDS, TOPICS)
    assert found.sent > 0
    assert found.received == found.wanted == found.sent * scenario.subscribers
    assert found.acknowledged == (found.sent if scenario.qos else 0)
    assert all(found.figure(what) > 0 for what in scenario.figures)
    if scenario.retained:
        assert found.sent == TOPICS


@pytest.mark.slow
@pytest.mark.parametrize("window", some((http.HTTP, *http.WINDOWS), of=2))
def test_what_is_posted_is_stored(broker: Running, window: int) -> None:
    mqtt_url, broker.url = broker.url, broker.http_url
    try:
        found = http.post(broker, mqtt_url, window, SECONDS)
    finally:
        broker.url = mqtt_url
    assert found.sent == found.stored >= http.CONNECTIONS
