"""A process of clients of MQTT without a library: packets over sockets, cheap, so that the broker is what is measured.

It prints READY when it is connected. A publisher then waits for GO and prints one line of JSON when it has all PUBACKs.
A subscriber counts and acknowledges; it prints its line when it was told how many should come, and has them or waited
long enough. A subscriber of what is retained subscribes only when it is told.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final, TextIO
from urllib.parse import urlsplit

from benchmarks.mqtt import packets
from benchmarks.mqtt.task import PAYLOAD_BYTES, PUBLISH, MqttTask, read_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: A broker that does not answer, or does not read, for so long is not waited for.
TIMEOUT_S: Final = 30.0
#: What is on its way is waited for until nothing came for so long, and no longer than so long after the last publish.
STALL_S: Final = 5.0
DRAIN_TIMEOUT_S: Final = 60.0
#: With QoS 0 so many messages are one write.
CHUNK_MESSAGES: Final = 64
_READ_BYTES: Final = 1 << 18
_LOOK_S: Final = 0.1
_PAYLOAD: Final = bytes(PAYLOAD_BYTES)


class Connection:
    """One connection; packets come whole."""

    def __init__(self, url: str, name: str, *, clean: bool = True) -> None:
        """Connect and log in."""
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.send(packets.connect(name, clean=clean))
        if self._answer(packets.CONNACK)[1]:
            raise ConnectionRefusedError(name)

    def send(self, data: bytes) -> None:
        """Send, and wait while the broker does not read."""
        self.socket.sendall(data)

    def receive(self) -> list[tuple[int, bytes]]:
        """Give what has come, or wait for it."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the broker has closed the connection")
        found, self._rest = packets.split(self._rest + data)
        return found

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe; return when it is in force."""
        self.send(packets.subscribe(topic_filter, qos))
        if self._answer(packets.SUBACK)[2] == packets.REFUSED:
            raise PermissionError(topic_filter)

    def _answer(self, kind: int) -> bytes:
        """Give the body of the first packet, which is of a kind."""
        while not (found := self.receive()):
            pass
        ((first, body),) = found
        assert first >> 4 == kind, found
        return body


class Sender:
    """One connection of a publisher, and what it has not yet sent."""

    def __init__(self, task: MqttTask, number: int) -> None:
        """Connect."""
        self.connection = Connection(task.url, f"{task.prefix}-p{number}")
        heads = (
            packets.publish_head(
                f"{task.prefix}/{number}/{topic}", PAYLOAD_BYTES, task.qos, retain=task.retained
            )
            for topic in range(task.topics)
        )
        self._heads: Iterator[bytes] = heads if task.retained else cycle(list(heads))
        self._identifiers = cycle(packets.IDENTIFIERS)
        self.sent = self.acknowledged = 0

    def send(self, messages: int) -> None:
        """Send so many messages with QoS 1 in one write, or those that are left."""
        some = [
            head + identifier + _PAYLOAD
            for head, identifier in zip(islice(self._heads, messages), self._identifiers, strict=False)
        ]
        self.sent += len(some)
        if some:
            self.connection.send(b"".join(some))

    def pour(self, until: float) -> None:
        """Send messages with QoS 0 for a time, as fast as they are taken."""
        chunk = b"".join(head + _PAYLOAD for head in islice(self._heads, CHUNK_MESSAGES))
        while time.monotonic() < until:
            self.connection.send(chunk)
            self.sent += CHUNK_MESSAGES

    def take(self) -> int:
        """Take what has come; give how many PUBACKs that was."""
        came = sum(first >> 4 == packets.PUBACK for first, _ in self.connection.receive())
        self.acknowledged += came
        return came


def publish(task: MqttTask) -> dict[str, Any]:
    """Publish for a time; tell how many left and were acknowledged, and when."""
    senders = [Sender(task, number) for number in range(task.connections)]
    _ready()
    sys.stdin.readline()
    first_ns = time.monotonic_ns()
    until = time.monotonic() + task.seconds
    if task.qos:
        _keep_full(senders, task.window, until)
    else:
        senders[0].pour(until)
    return {
        "sent": sum(one.sent for one in senders),
        "acknowledged": sum(one.acknowledged for one in senders),
        "first_ns": first_ns,
        "last_ns": time.monotonic_ns(),
    }


def _keep_full(senders: list[Sender], window: int, until: float) -> None:
    """Have a window of messages on the way on each connection, then wait for all PUBACKs."""
    with selectors.DefaultSelector() as selector:
        for one in senders:
            selector.register(one.connection.socket, selectors.EVENT_READ, one)
            one.send(window)
        while any(one.sent > one.acknowledged for one in senders):
            ready = selector.select(DRAIN_TIMEOUT_S)
            if not ready:
                return
            is_time = time.monotonic() < until
            for key, _ in ready:
                came = key.data.take()
                if is_time:
                    key.data.send(came)


class Subscriber:
    """A client that counts and acknowledges."""

    def __init__(self, task: MqttTask, orders: TextIO) -> None:
        """Connect; subscribe, unless it is for what is retained. With QoS 1 its session outlives the connection."""
        self._task = task
        self._orders = orders
        self._name = f"{task.prefix}-s{task.number}"
        self._connection = Connection(task.url, self._name, clean=not task.qos)
        if not task.retained:
            self._connection.subscribe(f"{task.prefix}/#", task.qos)
        self._received = 0
        #: How many are to come; none before it was told.
        self._wanted: int | None = None
        self._first_ns = self._last_ns = 0
        #: Since when nothing has come, and when it was told.
        self._quiet_since = self._told_at = 0.0

    def run(self) -> dict[str, Any]:
        """Count until all have come; tell how many did, and when."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.socket, selectors.EVENT_READ, self._take)
            selector.register(self._orders, selectors.EVENT_READ, self._obey)
            while not self._is_over():
                for key, _ in selector.select(_LOOK_S):
                    act: Callable[[], None] = key.data
                    act()
        return {"received": self._received, "first_ns": self._first_ns, "last_ns": self._last_ns}

    def forget(self) -> None:
        """Leave nothing behind in the broker."""
        self._connection.socket.close()
        if self._task.qos:
            Connection(self._task.url, self._name).socket.close()

    def _is_over(self) -> bool:
        if self._wanted is None:
            return False
        now = time.monotonic()
        late = now - self._quiet_since > STALL_S or now - self._told_at > DRAIN_TIMEOUT_S
        return self._received >= self._wanted or late

    def _take(self) -> None:
        bodies = [
            (first, body) for first, body in self._connection.receive() if first >> 4 == packets.PUBLISH
        ]
        if not bodies:
            return
        with_qos = [body for first, body in bodies if first & 6]
        if with_qos:
            self._connection.send(packets.pubacks(with_qos))
        self._received += len(bodies)
        self._last_ns = time.monotonic_ns()
        self._first_ns = self._first_ns or self._last_ns
        self._quiet_since = time.monotonic()

    def _obey(self) -> None:
        self._wanted = json.loads(self._orders.readline())["messages"]
        self._told_at = self._quiet_since = time.monotonic()
        if self._task.retained:
            self._first_ns = time.monotonic_ns()
            self._connection.send(packets.subscribe(f"{self._task.prefix}/#", self._task.qos))


def _ready() -> None:
    print("READY", flush=True)


def main() -> None:
    """Do what the task says, and print what came of it."""
    task = read_task()
    if task.role == PUBLISH:
        figures = publish(task)
    else:
        subscriber = Subscriber(task, sys.stdin)
        _ready()
        figures = subscriber.run()
        subscriber.forget()
    print(json.dumps(figures | {"cpu_s": time.process_time()}), flush=True)


if __name__ == "__main__":
    main()
