"""Clients of MQTT publish with QoS 1 while gateway, router and workers are killed: what had a PUBACK is stored."""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING

import pytest

from tests.crash.mqtt_load import CLIENTS, ONCE_MAX, PAUSE_S, QUEUES, Loader
from tests.crash.watched_node import is_replaced, look_until
from tests.integration.mqtt_node import drained, mqtt_node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.long  # test_mqtt_router_crash.py kills routers, test_mqtt_exactly_once_crash.py all, with QoS 2
@pytest.mark.requirement("R235")
@pytest.mark.timeout(240)
def test_what_had_a_puback_is_in_every_queue_in_order_whoever_was_killed(tmp_path: Path) -> None:
    """A message may be there twice: its client was not told of the first one."""
    stop = Event()
    with mqtt_node(tmp_path) as node:
        for queue in QUEUES:
            node.run("queue", "create", queue, "--subscription=load/>")
        loaders = [Loader(node.mqtt_url, number, stop).start() for number in range(CLIENTS)]
        for role, index in [
            ("mqtt", 0),
            ("worker", 0),
            ("router", 0),
            ("worker", 1),
            ("mqtt", 0),
            ("router", 0),
        ]:
            time.sleep(PAUSE_S)
            look_until(node, "its successor", is_replaced(role, index, node.kill(role, index)))
        time.sleep(PAUSE_S)
        stop.set()
        for loader in loaders:
            loader.join()
        acknowledged = set[str]().union(*[loader.acknowledged for loader in loaders])
        assert len(acknowledged) > CLIENTS * ONCE_MAX
        assert [loader.wrong for loader in loaders] == [[]] * CLIENTS
        assert all(loader.connections == 3 for loader in loaders), "only with the gateway connections end"
        for queue in QUEUES:
            stored = drained(node, queue)
            assert acknowledged - set(stored) == set()
            firsts = list(dict.fromkeys(stored))
            for number in range(CLIENTS):
                own = [int(one.split()[1]) for one in firsts if one.startswith(f"c{number} ")]
                assert own == list(range(len(own)))
