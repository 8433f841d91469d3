"""Clients of MQTT that publish and get numbers under faults, and remember what became of each."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Self

from gateway.mqtt.codec import V3, V5
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription
from tests.integration.mqtt_clients import Raw
from tests.share import short

if TYPE_CHECKING:
    from gateway.mqtt.codec import Packet

#: Of each kind, and how long each rests when all that it has published is acknowledged.
CLIENTS: Final = short(4, long=20)
REST_S: Final = short(0.2, long=0.0)
#: Of each client that are unacknowledged at a time, with QoS 1 and with QoS 2.
ONCE_MAX: Final = 10
TWICE_MAX: Final = 5
#: Few packet identifiers, so that they are used again at once.
IDS: Final = 7
#: Between two faults, in which load goes on.
PAUSE_S: Final = 0.7
#: A client that hears nothing for so long gives up.
LIMIT_S: Final = 60.0
#: A client that waits looks so often whether it still has to.
LOOK_S: Final = 0.5
QUEUES: Final = ("first", "second")


class Loader:
    """A client that publishes numbers, each until it is acknowledged, over as many connections as that takes."""

    def __init__(self, url: str, number: int, stop: Event, prefix: str = "c") -> None:
        self._url, self._stop = url, stop
        self._name = f"{prefix}{number}"
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
            if not self._unacknowledged and not self._stop.is_set():
                time.sleep(REST_S)
                for _ in range(ONCE_MAX):
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


class Device:
    """A client that publishes numbers, gets those of another one, and remembers both over all connections."""

    def __init__(self, url: str, number: int, begin: Event, stop: Event, share: str = "") -> None:
        self._url, self._begin, self._stop = url, begin, stop
        self._name, self._other = f"c{number}", f"c{(number + 1) % CLIENTS}"
        self._filter = share or f"load/{self._other}"
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
        self._is_publishing = False
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
        """Whether all that it has published is over, and nothing is published any more.

        Asked by another thread: who is told to stop while it rests would publish once more, so in this order.
        """
        return self._stop.is_set() and not self._is_publishing and not self._out

    @property
    def _is_done(self) -> bool:
        is_complete = self.wanted is not None and self.wanted <= set(self.got) and not self._held
        return self.is_quiet and is_complete

    def _run(self) -> None:
        while not self._is_done:
            try:
                with Raw(self._url, self._version) as client:
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
            client.say(Subscribe(999, (Subscription(self._filter, 2),)))
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
            packet = self._next(client)
            if packet is None:
                return
            self._take(client, packet)

    def _next(self, client: Raw) -> Packet | None:
        """Give the next packet; None if there is no connection any more, or if nothing else is to come."""
        deadline = time.monotonic() + LIMIT_S
        client.socket.settimeout(LOOK_S)
        while not self._is_done and time.monotonic() < deadline:
            with suppress(TimeoutError):
                packet = client.next()
                client.socket.settimeout(LIMIT_S)
                return packet
        return None

    def _publish(self, client: Raw) -> None:
        self._is_publishing = True
        try:
            if not self._out and not self._stop.is_set():
                time.sleep(REST_S)
                self._publish_some(client)
        finally:
            self._is_publishing = False

    def _publish_some(self, client: Raw) -> None:
        while len(self._out) < TWICE_MAX:
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
