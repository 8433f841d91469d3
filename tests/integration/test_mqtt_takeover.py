"""Sessions that go from one gateway process to another while messages flow; by sets."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest

import angarium.blocking
from gateway.mqtt.codec.acknowledge import PubAck
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscribe, Subscription
from tests.integration.mqtt_clients import LIMIT_S, Raw
from tests.integration.mqtt_node import two_gateways
from tests.share import short
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R238")]

TOPICS = 4
MESSAGES = short(300, long=1_500)
KEPT = Properties(session_expiry_interval=300)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Node]:
    with two_gateways(tmp_path) as node:
        yield node


class Got(NamedTuple):
    """A message as a client got it."""

    connection: int
    topic: str
    number: int
    packet_id: int
    is_again: bool


class Restless:
    """A client with a kept session that connects again and again, and acknowledges most of what it gets."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.got: list[Got] = []
        #: Of the connections: whether there was a session, but for those that the end of a gateway took.
        self.present: list[bool] = []
        #: How many connections there were.
        self.connections = 0
        #: Earlier connections that the client did not end: they are taken over.
        self.left: list[Raw] = []

    def connect(self) -> Raw | None:
        """Give a connection; None if a gateway was just not there."""
        try:
            raw = Raw(self.url)
        except OSError:
            return None
        with suppress(AssertionError, OSError):
            raw.socket.settimeout(LIMIT_S)
            raw.say(Connect(client_id="restless", clean_start=False, properties=KEPT))
            answer = raw.next()
            if isinstance(answer, ConnAck) and not answer.code:
                self.present.append(answer.session_present)
                self.connections += 1
                return raw
        raw.socket.close()
        return None

    def subscribe(self) -> None:
        """Begin the session."""
        raw = self.connect()
        assert raw is not None
        raw.say(Subscribe(1, (Subscription("load/#", 1),)))
        assert raw.next() is not None
        self.end(raw)

    def live(self) -> None:
        """Be connected for some messages, and end in one of three ways."""
        raw = self.connect()
        if raw is None:
            return
        raw.socket.settimeout(0.2)
        with suppress(OSError):
            for _ in range(self.random.randrange(1, 40)):
                packet = raw.next()
                if not isinstance(packet, Publish):
                    break
                self.take(raw, packet)
        self.end(raw)

    def take(self, raw: Raw, packet: Publish) -> None:
        number = int(packet.payload)
        self.got.append(Got(self.connections, packet.topic, number, packet.packet_id, packet.dup))
        if self.random.random() < 0.9:
            raw.say(PubAck(packet.packet_id))

    def end(self, raw: Raw) -> None:
        how = self.random.randrange(3)
        if how == 0:
            with suppress(OSError):
                raw.say(Disconnect())
        if how == 1:
            self.left.append(raw)
        else:
            raw.socket.close()

    def close(self) -> None:
        for raw in self.left:
            raw.socket.close()


class Load:
    """Messages that are published and stored while the client comes and goes."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.published = 0
        self._thread = threading.Thread(target=self._publish)
        self.error: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(LIMIT_S * 3)
        assert not self._thread.is_alive()
        assert self.error is None, self.error

    def _publish(self) -> None:
        try:
            with angarium.blocking.connect(self.node.url) as client:
                for number in range(MESSAGES):
                    client.publish(f"load/{number % TOPICS}", b"%d" % number, mode="persistent")
                    self.published += 1
                    time.sleep(0.002)
                client.flush()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


def check(client: Restless) -> None:
    """Nothing is lost, each connection got its messages in order, and what came again is marked."""
    assert {one.number for one in client.got} == set(range(MESSAGES))
    seen: dict[int, Got] = {}
    last: dict[tuple[int, str], int] = {}
    newest: dict[str, int] = {}
    for one in client.got:
        before = seen.get(one.number)
        if before is None:
            assert one.number > newest.get(one.topic, -1), f"{one} comes after {newest[one.topic]}"
            newest[one.topic] = one.number
        else:
            assert one.is_again, f"{one} was {before}"
            assert one.packet_id == before.packet_id
            assert one.connection != before.connection, f"{one} came twice on one connection"
        seen[one.number] = one
        assert last.get((one.connection, one.topic), -1) < one.number, f"{one} is out of order"
        last[one.connection, one.topic] = one.number
    assert client.present[0] is False
    assert all(client.present[1:])
    assert client.left, "nothing was taken over"
    assert any(one.is_again for one in client.got), "nothing came again"


def drain(client: Restless) -> None:
    """Have the client get what is left."""
    end = time.monotonic() + 4 * LIMIT_S
    while {one.number for one in client.got} != set(range(MESSAGES)):
        assert time.monotonic() < end, set(range(MESSAGES)) - {one.number for one in client.got}
        client.live()


def test_a_session_goes_from_process_to_process_under_load(pair: Node) -> None:
    client = Restless(pair.mqtt_url, seed=238)
    client.subscribe()
    with Load(pair) as load:
        while not load.is_over:
            client.live()
    drain(client)
    client.close()
    assert client.connections > MESSAGES / 50
    check(client)


@pytest.mark.long
def test_a_session_survives_the_deaths_of_gateways_under_load(pair: Node) -> None:
    client = Restless(pair.mqtt_url, seed=239)
    client.subscribe()
    kills = [MESSAGES // 4, MESSAGES // 2, 3 * MESSAGES // 4]
    with Load(pair) as load:
        while not load.is_over:
            client.live()
            if kills and load.published >= kills[0]:
                pair.kill("mqtt", len(kills) % 2)
                del kills[0]
    assert not kills
    wait_for(
        lambda: [row["state"] for row in pair.status()["processes"] if row["role"] == "mqtt"],
        lambda seen: seen == ["ready"] * 2,
    )
    drain(client)
    client.close()
    check(client)
