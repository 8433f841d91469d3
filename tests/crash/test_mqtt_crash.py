"""Clients of MQTT publish with QoS 1 while gateway, router and workers are killed: what had a PUBACK is stored."""

from __future__ import annotations

import time
from collections import deque
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Self

import pytest

from gateway.mqtt.codec import V3, V5
from gateway.mqtt.codec.acknowledge import PubAck
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.publish import Publish
from tests.crash.watched_node import is_replaced, look_until
from tests.integration.mqtt_clients import Raw
from tests.integration.mqtt_node import drained, mqtt_node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

CLIENTS: Final = 20
#: Of each client that are unacknowledged at a time.
WINDOW: Final = 10
QUEUES: Final = ("first", "second")
#: Between two faults, in which load goes on.
PAUSE_S: Final = 0.7
#: A client that hears nothing for so long gives up.
LIMIT_S: Final = 60.0


class Loader:
    """A client that publishes numbers, each until it is acknowledged, over as many connections as that takes."""

    def __init__(self, url: str, number: int, stop: Event) -> None:
        self._url, self._stop = url, stop
        self._name = f"c{number}"
        self._version = V3 if number % 2 else V5
        self._unacknowledged: deque[int] = deque()
        self._next = 0
        self.acknowledged: set[str] = set()
        self.wrong: list[PubAck] = []
        self.connections = 0
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self._name} waits for {len(self._unacknowledged)} messages"

    def _run(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while (not self._stop.is_set() or self._unacknowledged) and time.monotonic() < deadline:
            try:
                with Raw(self._url, self._version) as client:
                    self._publish(client)
            except OSError:
                time.sleep(0.05)

    def _publish(self, client: Raw) -> None:
        client.say(Connect(version=self._version, client_id=self._name))
        accepted = client.next()
        if not isinstance(accepted, ConnAck) or accepted.code:
            return
        self.connections += 1
        client.say(*[self._message(number, dup=True) for number in self._unacknowledged])
        while True:
            while len(self._unacknowledged) < WINDOW and not self._stop.is_set():
                self._unacknowledged.append(self._next)
                client.say(self._message(self._next))
                self._next += 1
            if not self._unacknowledged:
                return
            answer = client.next()
            if not isinstance(answer, PubAck):
                return
            number = self._unacknowledged.popleft()
            self.acknowledged.add(f"{self._name} {number}")
            if (answer.packet_id, answer.code) != (1 + number % 65_535, 0):
                self.wrong.append(answer)

    def _message(self, number: int, *, dup: bool = False) -> Publish:
        payload = f"{self._name} {number}".encode()
        return Publish(
            f"load/{self._name}/{number % 4}", payload, qos=1, packet_id=1 + number % 65_535, dup=dup
        )


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
        assert len(acknowledged) > CLIENTS * WINDOW
        assert [loader.wrong for loader in loaders] == [[]] * CLIENTS
        assert all(loader.connections >= 4 for loader in loaders), "the faults were felt"
        for queue in QUEUES:
            stored = drained(node, queue)
            assert acknowledged - set(stored) == set()
            firsts = list(dict.fromkeys(stored))
            for number in range(CLIENTS):
                own = [int(one.split()[1]) for one in firsts if one.startswith(f"c{number} ")]
                assert own == list(range(len(own)))
