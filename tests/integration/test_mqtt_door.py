"""Clients of MQTT at a real door, by TCP, TLS and WebSocket: packets come in order, bad ones end their sender."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from wsproto import ConnectionType, WSConnection, events

from angarium_server.connections.framing import FramingLimits
from gateway.mqtt.codec import V5, PacketError, Parser, ReasonCode, Sender, write
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Disconnect, PingReq
from gateway.mqtt.codec.publish import Publish, Seen
from gateway.mqtt.framing import MqttFraming
from gateway.mqtt.websocket import WebSocketFraming
from tests.integration.house import House, Peer
from tests.unit.gateway import websocket_client as ws

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from angarium_server.connections.framing import Speak
    from gateway.mqtt.codec import Packet
    from tests.integration.certificates import Authority, Pair

CONNECT = Connect(version=V5, client_id="c")
SMALL = FramingLimits(1_000, 1_000)


class Client(Peer):
    """A client of MQTT by hand."""

    def encoded(self, data: bytes) -> bytes:
        return data

    def say_bytes(self, data: bytes) -> None:
        self.send(self.encoded(data))

    def say(self, *packets: Packet) -> None:
        self.say_bytes(b"".join(write(packet, V5) for packet in packets))

    def told(self) -> bytes:
        """Give the stream of packets that the house has sent."""
        return self.read()

    def connect(self) -> bytes:
        """Log in, and give by what the house knows this client."""
        count = len(self.house.messages)
        self.say(CONNECT)
        self.house.until(lambda: len(self.house.messages) > count, "the CONNECT")
        identity, packet = self.house.messages[-1]
        assert packet == CONNECT
        return identity

    def heard(self) -> list[Packet]:
        """Give all packets that the house has said."""
        return Parser(Sender.SERVER, version=V5).feed(self.told())


class WebSocketClient(Client):
    """The same, with another library for WebSocket than the house has."""

    def __init__(self, house: House, url: str, context: ssl.SSLContext | None = None) -> None:
        super().__init__(house, url, context)
        self.protocol = WSConnection(ConnectionType.CLIENT)
        self.taken = 0
        self.payload = b""
        self.events: list[events.Event] = []
        self.send(self.protocol.send(events.Request(host="node", target="/mqtt", subprotocols=["mqtt"])))
        house.until(lambda: self.told() == b"" and self.events, "the answer to the request")
        assert isinstance(self.events.pop(), events.AcceptConnection)

    def encoded(self, data: bytes) -> bytes:
        written: bytes = self.protocol.send(events.BytesMessage(data))
        return written

    def told(self) -> bytes:
        received = self.read()
        if len(received) > self.taken:
            self.protocol.receive_data(received[self.taken :])
            self.taken = len(received)
        for event in self.protocol.events():
            if isinstance(event, events.BytesMessage):
                self.payload += event.data
            else:
                self.events.append(event)
        return self.payload


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.close()


def listening(house: House, scheme: str, server: ssl.SSLContext | None = None) -> str:
    speak: Speak = partial(MqttFraming, seen=Seen())
    if scheme.startswith("ws"):
        speak = partial(WebSocketFraming, speak=speak)
    return house.door.listen(f"{scheme}://127.0.0.1:0", server, speak=speak)


@pytest.fixture(params=["tcp", "tls", "ws", "wss"])
def come(
    request: pytest.FixtureRequest, house: House, authority: Authority, server_pair: Pair
) -> Iterator[Callable[[], Client]]:
    """Have a client connect."""
    clients: list[Client] = []
    scheme = request.param
    is_encrypted = scheme in ("tls", "wss")
    url = listening(house, scheme, server_pair.server_context() if is_encrypted else None)

    def made() -> Client:
        kind = WebSocketClient if scheme.startswith("ws") else Client
        clients.append(kind(house, url, authority.client_context() if is_encrypted else None))
        return clients[-1]

    yield made
    for one in clients:
        one.close()


@pytest.fixture
def client(come: Callable[[], Client]) -> Client:
    return come()


@pytest.fixture
def browser(house: House) -> Iterator[WebSocketClient]:
    made = WebSocketClient(house, listening(house, "ws"))
    yield made
    made.close()


def said_by(house: House, identity: bytes) -> list[object]:
    return [message for one, message in house.messages if one == identity]


def test_packets_go_both_ways(house: House, client: Client) -> None:
    identity = client.connect()
    assert house.door.unauthenticated == 0
    answers: list[Packet] = [ConnAck(), *(Publish("t", b"%d" % number) for number in range(300))]
    for answer in answers:
        assert house.door.send_bytes(identity, write(answer, V5)) is None
    packets = [Publish(f"a/{number % 7}", b"x" * number) for number in range(1_000)]
    client.say(*packets)
    house.until(lambda: len(house.messages) == 1 + len(packets), "all packets")
    assert said_by(house, identity) == [CONNECT, *packets]
    house.until(lambda: client.heard() == answers, "all answers")
    assert not house.lost


def test_nothing_is_said_before_the_client_has_spoken(house: House, client: Client) -> None:
    house.until(lambda: len(house.door) == 1, "the connection")
    for _ in range(5):
        house.turn()
    assert client.told() == b""


def test_a_packet_may_be_large_after_the_login_and_not_before(
    house: House, client: Client, come: Callable[[], Client]
) -> None:
    large = Publish("t", bytes(500_000))
    identity = client.connect()
    client.say(large)
    house.until(lambda: said_by(house, identity) == [CONNECT, large], "the large packet")
    house.admits = False
    stranger = come()
    known = stranger.connect()
    data = write(large, V5)
    for at in range(0, len(data), 10_000):  # a frame of WebSocket is bounded as well
        stranger.say_bytes(data[at : at + 10_000])
    house.until(lambda: len(said_by(house, known)) == 2, "the fault")
    fault = said_by(house, known)[-1]
    assert isinstance(fault, PacketError)
    assert fault.code == ReasonCode.PACKET_TOO_LARGE


def test_what_comes_right_behind_the_connect_may_be_large_if_it_waits_for_the_login(
    house: House, client: Client
) -> None:
    house.admits, house.pauses = False, True
    packets = [Publish("t", b"%d" % number) for number in range(200)] + [Publish("t", bytes(500_000))]
    data = write(CONNECT, V5) + b"".join(write(one, V5) for one in packets)
    rest = [data[at : at + 10_000] for at in range(0, len(data), 10_000)]
    client.say_bytes(rest.pop(0))
    house.until(lambda: house.messages, "the CONNECT")
    identity = house.messages[0][0]
    client.say_bytes(rest.pop(0))
    for _ in range(5):
        house.turn(0.0)
    assert said_by(house, identity) == [CONNECT]
    house.admits = True
    house.door.admit(identity)
    house.door.resume(identity)
    while rest:
        client.say_bytes(rest.pop(0))
    house.until(lambda: len(house.messages) == 1 + len(packets), "all of them")
    assert said_by(house, identity) == [CONNECT, *packets]


def test_many_small_packets_of_one_let_others_have_their_turn(
    house: House, client: Client, come: Callable[[], Client]
) -> None:
    flood, innocent = client.connect(), come()
    known = innocent.connect()
    client.socket.send(client.encoded(write(PingReq(), V5) * 5_000))
    innocent.socket.send(innocent.encoded(write(PingReq(), V5)))
    before = len(house.messages)
    house.until(lambda: len(said_by(house, known)) == 2, "the turn of the innocent")
    assert len(house.messages) < before + 5_000
    house.until(lambda: len(said_by(house, flood)) == 5_001, "all of them")


def test_a_broken_packet_is_the_last_and_its_sender_is_told_why(house: House, client: Client) -> None:
    identity = client.connect()
    client.say(Publish("t", b"before"))
    client.say_bytes(b"\x36\x00" + write(Publish("t", b"behind"), V5))
    house.until(lambda: len(house.messages) == 3, "the fault")
    fault = house.messages[-1][1]
    assert isinstance(fault, PacketError)
    assert fault.code == ReasonCode.MALFORMED_PACKET
    client.say(Publish("t", b"behind"))
    for _ in range(5):
        house.turn()
    assert said_by(house, identity) == [CONNECT, Publish("t", b"before"), fault]
    house.door.send_bytes(identity, write(ConnAck(), V5) + write(Disconnect(fault.code), V5))
    house.door.finish(identity, time.monotonic())
    house.until(client.closed, "the end")
    assert client.heard() == [ConnAck(), Disconnect(ReasonCode.MALFORMED_PACKET)]
    assert not house.lost


def test_who_speaks_another_version_is_given_to_be_answered(house: House, client: Client) -> None:
    client.say_bytes(b"\x10\x0d\0\4MQTT\6\2\0\0\0\0\0")
    house.until(lambda: house.messages, "the fault")
    _, fault = house.messages[-1]
    assert isinstance(fault, PacketError)
    assert (fault.code, fault.version) == (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, V5)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", write(PingReq(), V5), b"\x10\xff\xff\xff\x7f", b"\xff" * 100]
)
def test_who_does_not_begin_with_a_connect_is_closed_and_no_other(
    house: House, client: Client, come: Callable[[], Client], said: bytes
) -> None:
    innocent = come()
    known = innocent.connect()
    with contextlib.suppress(OSError):
        client.say_bytes(said)
    house.until(client.closed, "the end")
    assert client.told() == b""
    assert len(house.refused) == 1
    assert house.faults == house.lost == []
    assert house.door.send_bytes(known, write(ConnAck(), V5)) is None
    house.until(lambda: innocent.heard() == [ConnAck()], "the innocent is served")


def test_who_says_nothing_has_a_deadline(house: House, client: Client) -> None:
    house.until(client.closed, "the end")
    assert house.refused == ["no login within 0.5 s"]


def test_what_is_not_taken_is_offered_again_and_a_fault_behind_it_too(house: House, client: Client) -> None:
    identity = client.connect()
    house.takes = False
    packets = [Publish("t", b"%d" % number) for number in range(100)]
    client.say(*packets)
    client.say_bytes(b"\xff\x00")
    for _ in range(5):
        house.turn(0.0)
    assert said_by(house, identity) == [CONNECT]
    house.takes = True
    house.until(lambda: len(house.messages) == 102, "all of them")
    assert said_by(house, identity)[:-1] == [CONNECT, *packets]
    assert isinstance(house.messages[-1][1], PacketError)


def test_the_end_of_a_client_is_noticed_and_told_with_the_packets_before(
    house: House, client: Client
) -> None:
    identity = client.connect()
    client.say(Disconnect())
    client.close()
    house.until(lambda: house.lost, "the end")
    assert said_by(house, identity) == [CONNECT, Disconnect()]
    assert [one for one, _ in house.lost] == [identity]


def test_a_browser_is_told_of_the_end_as_websocket_has_it(house: House, browser: WebSocketClient) -> None:
    identity = browser.connect()
    house.door.send_bytes(identity, write(ConnAck(), V5))
    house.door.finish(identity, time.monotonic())
    house.until(browser.closed, "the end")
    assert browser.heard() == [ConnAck()]
    (end,) = browser.events
    assert isinstance(end, events.CloseConnection)
    assert end.code == 1000


def test_a_browser_that_closes_is_lost_behind_what_it_said_and_answered(
    house: House, browser: WebSocketClient
) -> None:
    identity = browser.connect()
    close = browser.protocol.send(events.CloseConnection(code=1001))
    browser.send(ws.frame(write(Disconnect(), V5)) + close)
    house.until(browser.closed, "the end")
    assert said_by(house, identity) == [CONNECT, Disconnect()]
    assert house.lost == [(identity, "the WebSocket was closed")]
    browser.told()
    (end,) = browser.events
    assert isinstance(end, events.CloseConnection)
    assert end.code == 1001


def test_a_browser_that_sends_text_is_told_that_and_its_owner_too(
    house: House, browser: WebSocketClient
) -> None:
    identity = browser.connect()
    browser.send(browser.protocol.send(events.TextMessage("text")))
    house.until(browser.closed, "the end")
    assert house.faults == [(identity, "WebSocket: MQTT is binary")]
    browser.told()
    (end,) = browser.events
    assert isinstance(end, events.CloseConnection)
    assert end.code == 1003


def test_a_page_at_another_place_is_not_found(house: House) -> None:
    peer = Peer(house, listening(house, "ws"))
    peer.send(ws.request("/elsewhere"))
    house.until(peer.closed, "the end")
    assert peer.received.startswith(b"HTTP/1.1 404 ")
    assert len(house.refused) == 1
    peer.close()


@pytest.mark.requirement("R228")
def test_who_has_himself_answered_and_does_not_read_is_bounded(
    house: House, browser: WebSocketClient
) -> None:
    identity = browser.connect()
    pings = ws.frame(bytes(125), ws.PING) * 1_000
    sent = 0
    with contextlib.suppress(OSError):
        while not house.lost:
            browser.send(pings)
            sent += len(pings)
            assert sent < 100 << 20
    assert house.lost == [(identity, "the peer does not read")]
