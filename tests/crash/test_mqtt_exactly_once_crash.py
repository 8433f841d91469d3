"""Clients of MQTT publish and get messages with QoS 2 while gateway, router and workers are killed: each comes once."""

from __future__ import annotations

import time
from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Self

import pytest

from gateway.mqtt.codec import V3, V5
from gateway.mqtt.codec.acknowledge import PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription
from tests.crash.watched_node import is_replaced, look_until
from tests.integration.mqtt_clients import Raw
from tests.integration.mqtt_node import drained, mqtt_node

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.mqtt.codec import Packet

pytestmark = pytest.mark.slow

CLIENTS: Final = 20
#: Of each client that are under way at a time.
WINDOW: Final = 5
#: Few packet identifiers, so that they are used again at once.
IDS: Final = 7
#: Between two faults, in which load goes on.
PAUSE_S: Final = 0.7
LIMIT_S: Final = 60.0
QUEUES: Final = ("first", "second")


class Device:
    """A client that publishes numbers, gets those of another one, and remembers both over all connections."""

    def __init__(self, url: str, number: int, begin: Event, stop: Event) -> None:
        self._url, self._begin, self._stop = url, begin, stop
        self._name, self._other = f"c{number}", f"c{(number + 1) % CLIENTS}"
        self._version = V3 if number % 2 else V5
        #: By packet identifier, in order: the payload before PUBREC; after it None.
        self._out: dict[int, bytes | None] = {}
        self._held: set[int] = set()
        self._next_id = 1
        self.published = 0
        self.acknowledged: set[str] = set()
        self.got: list[str] = []
        self.wrong: list[Packet] = []
        self.connections = 0
        self.is_subscribed = False
        #: What is to be got in the end; None: that is not known yet.
        self.wanted: set[str] | None = None
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self._name} waits for {self._out}, has {len(self.got)}"

    @property
    def is_quiet(self) -> bool:
        """Whether all that it has published is over."""
        return self._stop.is_set() and not self._out

    @property
    def _is_done(self) -> bool:
        is_complete = self.wanted is not None and self.wanted <= set(self.got) and not self._held
        return self.is_quiet and is_complete

    def _run(self) -> None:
        while not self._is_done:
            try:
                with Raw(self._url, self._version) as client:
                    client.socket.settimeout(2.0)
                    self._talk(client)
            except OSError:
                time.sleep(0.05)

    def _talk(self, client: Raw) -> None:
        given = Properties(session_expiry_interval=600) if self._version == V5 else NONE
        client.say(Connect(version=self._version, client_id=self._name, clean_start=False, properties=given))
        accepted = client.next()
        if not isinstance(accepted, ConnAck) or accepted.code:
            return
        self.connections += 1
        if not accepted.session_present:
            assert not self.got
            client.say(Subscribe(999, (Subscription(f"load/{self._other}", 2),)))
        again = [
            PubRel(one) if payload is None else self._message(one, payload, dup=True)
            for one, payload in self._out.items()
        ]
        if again:
            client.say(*again)
        while not self._is_done:
            if self.is_subscribed:
                self._begin.wait(LIMIT_S)
                self._publish(client)
            packet = client.next()
            if packet is None:
                return
            self._take(client, packet)

    def _publish(self, client: Raw) -> None:
        while len(self._out) < WINDOW and not self._stop.is_set():
            while self._next_id in self._out:
                self._next_id = self._next_id % IDS + 1
            payload = f"{self._name} {self.published}".encode()
            self.published += 1
            self._out[self._next_id] = payload
            client.say(self._message(self._next_id, payload))

    def _message(self, packet_id: int, payload: bytes, *, dup: bool = False) -> Publish:
        return Publish(f"load/{self._name}", payload, qos=2, packet_id=packet_id, dup=dup)

    def _take(self, client: Raw, packet: Packet) -> None:
        if isinstance(packet, PubRec):
            payload = self._out[packet.packet_id]
            if packet.code:
                self.wrong.append(packet)
            elif payload is not None:
                self.acknowledged.add(payload.decode())
                self._out[packet.packet_id] = None
            client.say(PubRel(packet.packet_id))
        elif isinstance(packet, SubAck):
            assert packet.codes == (2,)
            self.is_subscribed = True
        elif isinstance(packet, PubComp):
            self._out.pop(packet.packet_id, None)
        elif isinstance(packet, Publish):
            if packet.qos != 2:
                self.wrong.append(packet)
            if packet.packet_id not in self._held:
                self._held.add(packet.packet_id)
                self.got.append(packet.payload.decode())
            client.say(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            self._held.discard(packet.packet_id)
            client.say(PubComp(packet.packet_id))


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
        for role, index in [("mqtt", 0), ("worker", 0), ("router", 0), ("worker", 1)]:
            time.sleep(PAUSE_S)
            look_until(node, "its successor", is_replaced(role, index, node.kill(role, index)))
        time.sleep(PAUSE_S)
        stop.set()
        look_until(node, "PUBCOMPs", lambda _: all(device.is_quiet for device in devices))
        first = set[str]()
        for number, device in enumerate(devices):
            devices[number - 1].wanted = device.acknowledged
            first |= device.acknowledged
        for device in devices:
            device.join()
        assert [device.wrong for device in devices] == [[]] * CLIENTS
        assert len(first) > CLIENTS * WINDOW
        for queue in QUEUES:
            stored = drained(node, queue)
            assert (first - set(stored), _doubled(stored)) == (set(), [])
        for number, device in enumerate(devices):
            missing = devices[(number + 1) % CLIENTS].acknowledged - set(device.got)
            assert (missing, _doubled(device.got)) == (set(), [])
        print(f"{len(first)} messages, connections {[device.connections for device in devices]}")


def _doubled(found: list[str]) -> list[str]:
    return [one for one, count in Counter(found).items() if count > 1]
