"""Clients of MQTT publish and get messages with QoS 2 while gateway, router and workers are killed: each comes once."""

from __future__ import annotations

import time
from collections import Counter
from threading import Event
from typing import TYPE_CHECKING

import pytest

from tests.crash.mqtt_load import CLIENTS, PAUSE_S, QUEUES, TWICE_MAX, Device
from tests.crash.watched_node import is_replaced, look_until
from tests.integration.mqtt_node import drained, mqtt_node

if TYPE_CHECKING:
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow


@pytest.mark.requirement("R236")
@pytest.mark.timeout(240)
def test_each_message_comes_exactly_once_whoever_is_killed(tmp_path: Path) -> None:
    begin, stop = Event(), Event()
    with mqtt_node(tmp_path) as node:
        for queue in QUEUES:
            node.run("queue", "create", queue, "--subscription=load/>")
        devices = [Device(node.mqtt_url, number, begin, stop).start() for number in range(CLIENTS)]
        look_until(node, "sessions", lambda _: all(device.is_subscribed for device in devices))
        begin.set()
        _kill_all(node)
        stop.set()
        look_until(node, "PUBCOMPs", lambda _: all(device.is_quiet for device in devices))
        first = set[str]()
        for number, device in enumerate(devices):
            devices[number - 1].wanted = device.acknowledged
            first |= device.acknowledged
        for device in devices:
            device.join()
        assert [device.wrong for device in devices] == [[]] * CLIENTS
        assert len(first) > CLIENTS * TWICE_MAX
        for queue in QUEUES:
            stored = drained(node, queue)
            assert (first - set(stored), _doubled(stored)) == (set(), [])
        for number, device in enumerate(devices):
            missing = devices[(number + 1) % CLIENTS].acknowledged - set(device.got)
            assert (missing, _doubled(device.got)) == (set(), [])
        print(f"{len(first)} messages, connections {[device.connections for device in devices]}")


@pytest.mark.long  # the rule is simulated (shared_once), and tests/integration/test_mqtt_shares.py kills
@pytest.mark.requirement("R241")
@pytest.mark.timeout(240)
def test_each_message_comes_to_a_group_exactly_once_whoever_is_killed(tmp_path: Path) -> None:
    begin, stop = Event(), Event()
    with mqtt_node(tmp_path) as node:
        devices = [
            Device(node.mqtt_url, number, begin, stop, "$share/crew/load/#").start()
            for number in range(CLIENTS)
        ]
        look_until(node, "sessions", lambda _: all(device.is_subscribed for device in devices))
        begin.set()
        _kill_all(node)
        stop.set()
        look_until(node, "PUBCOMPs", lambda _: all(device.is_quiet for device in devices))
        acknowledged = set[str]().union(*[device.acknowledged for device in devices])

        def got() -> list[str]:
            return [one for device in devices for one in list(device.got)]

        look_until(node, "all messages", lambda _: acknowledged <= set(got()))
        for device in devices:
            device.wanted = set()
        for device in devices:
            device.join()
        assert [device.wrong for device in devices] == [[]] * CLIENTS
        assert len(acknowledged) > CLIENTS * TWICE_MAX
        assert _doubled(got()) == []
        print(f"{len(acknowledged)} messages, connections {[device.connections for device in devices]}")


def _kill_all(node: Node) -> None:
    """Kill one process of each kind, and both workers, one after the other."""
    for role, index in [("mqtt", 0), ("worker", 0), ("router", 0), ("worker", 1)]:
        time.sleep(PAUSE_S)
        look_until(node, "its successor", is_replaced(role, index, node.kill(role, index)))
    time.sleep(PAUSE_S)


def _doubled(found: list[str]) -> list[str]:
    return [one for one, count in Counter(found).items() if count > 1]
