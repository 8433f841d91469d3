"""The router is killed again and again under clients of MQTT with QoS 0, 1 and 2: all keep their connections."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Self

import pytest

from gateway.mqtt.codec.publish import Publish
from tests.crash.mqtt_load import CLIENTS, LIMIT_S, PAUSE_S, QUEUES, REST_S, Device, Loader
from tests.crash.watched_node import is_replaced, look_until
from tests.integration.mqtt_clients import Raw
from tests.integration.mqtt_node import drained, mqtt_node
from tests.share import short

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

#: Besides those with QoS 1 and with QoS 2.
CLIENTS_DIRECT: Final = short(2, long=10)
KILLS: Final = short(2, long=3)


class Direct:
    """A client that publishes numbers with QoS 0 to itself, on one connection."""

    def __init__(self, url: str, number: int, stop: Event) -> None:
        self._url, self._stop, self._topic = url, stop, f"direct/{number}"
        self.published = 0
        self.got: list[int] = []
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self._topic} has {len(self.got)} of {self.published}"

    def _run(self) -> None:
        with Raw(self._url) as client:
            client.connect(self._topic.replace("/", "-"))
            client.subscribe(self._topic)
            client.socket.settimeout(0.01)
            while not self._stop.is_set():
                self._say(client)
                self._hear(client)
                time.sleep(REST_S)
            client.socket.settimeout(LIMIT_S)
            self._say(client)  # nothing is lost any more
            while self.got[-1:] != [self.published - 1]:
                self._hear(client)

    def _say(self, client: Raw) -> None:
        client.say(Publish(self._topic, b"%d" % self.published))
        self.published += 1

    def _hear(self, client: Raw) -> None:
        try:
            packet = client.next()
        except TimeoutError:
            return
        assert isinstance(packet, Publish)
        self.got.append(int(packet.payload))


@pytest.mark.requirement("R230")
@pytest.mark.requirement("R235")
@pytest.mark.requirement("R236")
@pytest.mark.timeout(240)
def test_a_killed_router_costs_no_connection_nothing_acknowledged_and_no_order(tmp_path: Path) -> None:
    begin, stop = Event(), Event()
    with mqtt_node(tmp_path) as node:
        for queue in QUEUES:
            node.run("queue", "create", queue, "--subscription=load/>")
        devices = [Device(node.mqtt_url, number, begin, stop).start() for number in range(CLIENTS)]
        loaders = [Loader(node.mqtt_url, number, stop, "w").start() for number in range(CLIENTS)]
        directs = [Direct(node.mqtt_url, number, stop).start() for number in range(CLIENTS_DIRECT)]
        look_until(node, "sessions", lambda _: all(device.is_subscribed for device in devices))
        begin.set()
        for _ in range(KILLS):
            time.sleep(PAUSE_S)
            look_until(node, "its successor", is_replaced("router", 0, node.kill("router")))
        time.sleep(PAUSE_S)
        stop.set()
        look_until(node, "PUBCOMPs", lambda _: all(device.is_quiet for device in devices))
        for number, device in enumerate(devices):
            devices[number - 1].wanted = device.acknowledged
        clients: list[Device | Loader] = [*devices, *loaders]
        for client in [*clients, *directs]:
            client.join()
        assert {one.connections for one in clients} == {1}
        assert [one.wrong for one in clients if one.wrong] == []
        twice = set[str]().union(*[device.acknowledged for device in devices])
        once = set[str]().union(*[loader.acknowledged for loader in loaders])
        assert len(twice) > CLIENTS
        assert len(once) > CLIENTS
        for queue in QUEUES:
            stored = drained(node, queue)
            assert (twice | once) - set(stored) == set()
            assert len(stored) == len(set(stored)), "nothing is there twice, with QoS 1 neither"
            for number in range(CLIENTS):
                own = [int(one.split()[1]) for one in stored if one.startswith(f"w{number} ")]
                assert own == list(range(len(own)))
        for number, device in enumerate(devices):
            missing = devices[(number + 1) % CLIENTS].acknowledged - set(device.got)
            assert (missing, len(device.got)) == (set(), len(set(device.got)))
        for direct in directs:
            assert direct.got == sorted(set(direct.got))
        lost = sum(direct.published - len(direct.got) for direct in directs)
        print(f"{len(once)} with QoS 1, {len(twice)} with 2; of QoS 0 {lost} lost")
