"""Clients of MQTT for tests: one of paho, as applications have it, and one by hand, which says what it likes."""

from __future__ import annotations

import queue
import socket
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from gateway.mqtt.codec import V5, Parser, Sender, write
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from gateway.mqtt.codec import Packet

#: Longer than anything here takes on a machine that others use as well.
LIMIT_S: Final = 20.0


def properties_of(message: paho.MQTTMessage) -> Any:
    """Give the properties of a message; the library sets their names as attributes."""
    assert message.properties is not None
    return message.properties


def publish_properties(**values: Any) -> Properties:
    """Give properties of a PUBLISH by their names in the library."""
    made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


def place_of(url: str) -> tuple[str, int]:
    """Give host and port of an address."""
    host, _, port = url.partition("://")[2].partition("/")[0].rpartition(":")
    return host, int(port)


class Paho:
    """A client of paho in a thread of its own; a context manager that connects and disconnects it."""

    def __init__(
        self,
        url: str,
        name: str = "",
        *,
        version: int = V5,
        username: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
        keeps: bool = False,
    ) -> None:
        """Be there; `keeps` wants the session kept, in 3.1.1."""
        self.url = url
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        #: Reasons of CONNACK, SUBACK and UNSUBACK, and of the end, as they come.
        self.connacks: queue.Queue[Any] = queue.Queue()
        self.answers: queue.Queue[list[Any]] = queue.Queue()
        self.ends: queue.Queue[Any] = queue.Queue()
        transport: Literal["tcp", "websockets"] = "websockets" if url.startswith("ws") else "tcp"
        self.client = client = paho.Client(
            CallbackAPIVersion.VERSION2,
            name,
            clean_session=False if keeps else None,
            protocol=MQTTProtocolVersion(version),
            transport=transport,
        )
        if tls is not None:
            client.tls_set_context(tls)
        if username:
            client.username_pw_set(username, password)
        client.on_message = lambda _client, _data, message: self.messages.put(message)
        client.on_connect = lambda _client, _data, _flags, reason, _properties: self.connacks.put(reason)
        client.on_subscribe = lambda _client, _data, _id, reasons, _properties: self.answers.put(reasons)
        client.on_unsubscribe = lambda _client, _data, _id, reasons, _properties: self.answers.put(reasons)
        client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self.ends.put(reason)

    def connect(self, keepalive: int = 60) -> Any:
        """Connect, and give the reason of the CONNACK."""
        self.client.connect(*place_of(self.url), keepalive)
        self.client.loop_start()
        return self.connacks.get(timeout=LIMIT_S)

    def __enter__(self) -> Self:
        reason = self.connect()
        assert not reason.is_failure, reason
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self, *filters: str, options: Any = None) -> list[Any]:
        """Subscribe, and give the reasons."""
        found, _ = self.client.subscribe([(text, options or 0) for text in filters])
        assert found == paho.MQTT_ERR_SUCCESS
        return self.answers.get(timeout=LIMIT_S)

    def unsubscribe(self, *filters: str) -> list[Any]:
        """Unsubscribe, and give the reasons; 3.1.1 has none."""
        self.client.unsubscribe(list(filters))
        return self.answers.get(timeout=LIMIT_S)

    def publish(self, topic: str, payload: bytes = b"", **more: Any) -> None:
        """Publish with QoS 0."""
        assert self.client.publish(topic, payload, **more).rc == paho.MQTT_ERR_SUCCESS

    def receive(self, timeout_s: float = LIMIT_S) -> paho.MQTTMessage:
        """Give the next message."""
        return self.messages.get(timeout=timeout_s)

    def receive_many(self, count: int) -> list[tuple[str, bytes]]:
        """Give topics and payloads of the next messages."""
        return [(message.topic, bytes(message.payload)) for message in (self.receive() for _ in range(count))]


class Raw:
    """A client by hand; a context manager that closes it."""

    def __init__(self, url: str, version: int = V5, receive_bytes: int = 0) -> None:
        """Be connected, without a CONNECT; `receive_bytes` is what the system keeps for it."""
        self.version = version
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(LIMIT_S)
        try:
            self.socket.connect(place_of(url))
        except OSError:
            self.socket.close()
            raise
        self._parser = Parser(Sender.SERVER, version=version)
        self._packets: list[Packet] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, *packets: Packet) -> None:
        """Send packets."""
        self.socket.sendall(b"".join(write(packet, self.version) for packet in packets))

    def connect(self, name: str = "", **more: Any) -> ConnAck:
        """Say CONNECT, and give what is answered."""
        self.say(Connect(version=self.version, client_id=name, **more))
        answer = self.next()
        assert isinstance(answer, ConnAck), answer
        return answer

    def subscribe(self, *filters: str, qos: int = 0) -> tuple[int, ...]:
        """Subscribe, and give the codes."""
        self.say(Subscribe(7, tuple(Subscription(text, qos) for text in filters)))
        answer = self.next()
        assert isinstance(answer, SubAck), answer
        return answer.codes

    def next(self) -> Packet | None:
        """Give the next packet; None if the connection has ended."""
        while not self._packets:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._packets += self._parser.feed(data)
            assert self._parser.fault is None, self._parser.fault
        return self._packets.pop(0)

    def come(self, count: int) -> list[Publish]:
        """Give the next packets, which are messages."""
        found = [self.next() for _ in range(count)]
        assert all(isinstance(one, Publish) for one in found), found
        return found  # type: ignore[return-value]

    def payloads(self) -> Iterable[bytes]:
        """Give what comes, until it is no message."""
        while isinstance(packet := self.next(), Publish):
            yield packet.payload
