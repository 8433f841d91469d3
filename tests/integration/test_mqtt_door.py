"""Clients of MQTT at a real door, plain and by TLS: their packets come in order, and bad ones end them alone."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from angarium_server.connections.framing import MESSAGES_MAX, FramingLimits
from gateway.mqtt.codec import V5, PacketError, Parser, ReasonCode, Sender, write
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Disconnect, PingReq
from gateway.mqtt.codec.publish import Publish, Seen
from gateway.mqtt.framing import MqttFraming
from tests.integration.house import House, Peer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from gateway.mqtt.codec import Packet
    from tests.integration.certificates import Authority, Pair

CONNECT = Connect(version=V5, client_id="c")
SMALL = FramingLimits(1_000, 1_000)


class Client(Peer):
    """A client of MQTT by hand."""

    def say(self, *packets: Packet) -> None:
        self.send(b"".join(write(packet, V5) for packet in packets))

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
        return Parser(Sender.SERVER, version=V5).feed(self.read())


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.close()


@pytest.fixture(params=["tcp", "tls"])
def context(request: pytest.FixtureRequest, authority: Authority) -> ssl.SSLContext | None:
    return authority.client_context() if request.param == "tls" else None


@pytest.fixture
def url(house: House, context: ssl.SSLContext | None, server_pair: Pair) -> str:
    speak = partial(MqttFraming, seen=Seen())
    if context is None:
        return house.door.listen("tcp://127.0.0.1:0", speak=speak)
    return house.door.listen("tls://127.0.0.1:0", server_pair.server_context(), speak=speak)


@pytest.fixture
def client(house: House, url: str, context: ssl.SSLContext | None) -> Iterator[Client]:
    made = Client(house, url, context)
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
    assert client.read() == b""


def test_a_packet_may_be_large_after_the_login_and_not_before(
    house: House, url: str, client: Client, context: ssl.SSLContext | None
) -> None:
    large = Publish("t", bytes(500_000))
    identity = client.connect()
    client.say(large)
    house.until(lambda: said_by(house, identity) == [CONNECT, large], "the large packet")
    house.admits = False
    stranger = Client(house, url, context)
    known = stranger.connect()
    stranger.say(large)
    house.until(lambda: len(said_by(house, known)) == 2, "the fault")
    fault = said_by(house, known)[-1]
    assert isinstance(fault, PacketError)
    assert fault.code == ReasonCode.PACKET_TOO_LARGE
    stranger.close()


def test_many_small_packets_of_one_let_others_have_their_turn(
    house: House, url: str, client: Client, context: ssl.SSLContext | None
) -> None:
    flood, innocent = client.connect(), Client(house, url, context)
    known = innocent.connect()
    client.socket.send(write(PingReq(), V5) * 5_000)
    innocent.socket.send(write(PingReq(), V5))
    before = len(house.messages)
    house.until(lambda: len(said_by(house, known)) == 2, "the turn of the innocent")
    assert len(house.messages) - before <= 3 * MESSAGES_MAX
    house.until(lambda: len(said_by(house, flood)) == 5_001, "all of them")
    innocent.close()


def test_a_broken_packet_is_the_last_and_its_sender_is_told_why(house: House, client: Client) -> None:
    identity = client.connect()
    client.say(Publish("t", b"before"))
    client.send(b"\x36\x00" + write(Publish("t", b"behind"), V5))
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
    client.send(b"\x10\x0d\0\4MQTT\6\2\0\0\0\0\0")
    house.until(lambda: house.messages, "the fault")
    _, fault = house.messages[-1]
    assert isinstance(fault, PacketError)
    assert (fault.code, fault.version) == (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, V5)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", write(PingReq(), V5), b"\x10\xff\xff\xff\x7f", b"\xff" * 100]
)
def test_who_does_not_begin_with_a_connect_is_closed_and_no_other(
    house: House, url: str, client: Client, context: ssl.SSLContext | None, said: bytes
) -> None:
    innocent = Client(house, url, context)
    known = innocent.connect()
    with contextlib.suppress(OSError):
        client.send(said)
    house.until(client.closed, "the end")
    assert client.received == b""
    assert len(house.refused) == 1
    assert house.faults == house.lost == []
    assert house.door.send_bytes(known, write(ConnAck(), V5)) is None
    house.until(lambda: innocent.heard() == [ConnAck()], "the innocent is served")
    innocent.close()


def test_who_says_nothing_has_a_deadline(house: House, client: Client) -> None:
    house.until(client.closed, "the end")
    assert house.refused == ["no login within 0.5 s"]


def test_what_is_not_taken_is_offered_again_and_a_fault_behind_it_too(house: House, client: Client) -> None:
    identity = client.connect()
    house.takes = False
    packets = [Publish("t", b"%d" % number) for number in range(100)]
    client.say(*packets)
    client.send(b"\xff\x00")
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
