"""MQTT in frames of WebSocket: the request, frames of all kinds however they are cut, and every end."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from wsproto import ConnectionType, WSConnection, events

from angarium_server.connections.framing import MESSAGES_MAX, FramingError, FramingLimits, PeerEndedError
from gateway.mqtt.codec import V5, PacketError, write
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Disconnect, PingReq
from gateway.mqtt.codec.publish import Publish, Seen
from gateway.mqtt.framing import MqttFraming
from gateway.mqtt.websocket import REQUEST_BYTES_MAX, WebSocketFraming
from tests.garbage import uncollected
from tests.share import short
from tests.unit.gateway import websocket_client as ws

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = FramingLimits(frame_bytes=10_000, message_bytes=100_000)
CONNECT = Connect(client_id="c")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The library logs a fault of its own, and of the code around it."""
    with caplog.at_level(logging.DEBUG):
        yield
    assert not caplog.records


def made() -> WebSocketFraming:
    return WebSocketFraming(LIMITS, partial(MqttFraming, seen=Seen()))


def upgraded() -> WebSocketFraming:
    framing = made()
    assert framing.received(ws.request()) == []
    assert framing.replies.startswith(b"HTTP/1.1 101 ")
    framing.replies = b""
    return framing


def opened() -> WebSocketFraming:
    framing = upgraded()
    assert framing.received(ws.frame(write(CONNECT, V5))) == [CONNECT]
    assert framing.is_open
    return framing


def taken(framing: WebSocketFraming, data: bytes) -> list[Any]:
    messages = framing.received(data)
    while framing.has_more:
        messages += framing.received(b"")
    framing.validate()
    return messages


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /mq",
        ws.request("/elsewhere"),
        ws.request(),
        ws.request() + ws.frame(write(CONNECT, V5)) + b"\x82",
        ws.request() + ws.frame(write(CONNECT, V5)) + ws.frame(b"", ws.CLOSE),
        ws.request() + ws.frame(b"x", ws.TEXT),
        ws.request() + b"\xff" * 20,
    ],
)
def test_nothing_is_left_of_a_connection_that_is_gone(said: bytes) -> None:
    with uncollected():
        framing = made()
        with contextlib.suppress(FramingError, PeerEndedError):
            taken(framing, said)
        framing.end()
        del framing
        kinds = (WebSocketFraming, ServerProtocol, StreamReader)
        assert not [one for one in gc.get_objects() if isinstance(one, kinds)]


@pytest.mark.parametrize("path", ["/", "/mqtt", "/mqtt?token=1"])
@pytest.mark.parametrize("size", [1, 50, 1_000])
def test_a_request_is_answered_when_it_is_whole(path: str, size: int) -> None:
    framing, data = made(), ws.request(path)
    for at in range(0, len(data), size):
        assert framing.replies == b""
        assert framing.received(data[at : at + size]) == []
    assert framing.replies.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"\r\nSec-WebSocket-Accept: " + ws.ACCEPT + b"\r\n" in framing.replies
    assert b"\r\nSec-WebSocket-Protocol: mqtt\r\n" in framing.replies
    assert b"Sec-WebSocket-Extensions" not in framing.replies
    assert not framing.is_open, "he has not said that he speaks MQTT"


@pytest.mark.parametrize(
    ("origin", "is_foreign_page"),
    [
        (None, False),
        ("http://localhost", False),
        ("https://LOCALHOST:8000", False),
        ("http://127.9.8.7:1", False),
        ("http://[::1]:3000", False),
        ("", True),
        ("null", True),
        ("https://elsewhere.example", True),
        ("http://localhost.example", True),
        ("http://127.0.0.1.example", True),
        ("http://localhost@elsewhere.example", True),
        ("http://[::1", True),
        ("http://[2001:db8::1]", True),
        ("http://0.0.0.0", True),
        ("file://localhost", True),
        ("moz-extension://127.0.0.1", True),
    ],
)
def test_it_is_known_whether_a_page_of_another_site_asks(
    origin: str | None,
    is_foreign_page: bool,
) -> None:
    framing = made()
    assert framing.received(ws.request(Origin=origin)) == []
    assert framing.replies.startswith(b"HTTP/1.1 101 ")
    assert framing.is_foreign_page is is_foreign_page


def test_compression_is_not_taken() -> None:
    framing = made()
    framing.received(ws.request(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"))
    assert b"Sec-WebSocket-Extensions" not in framing.replies
    with pytest.raises(FramingError):
        taken(framing, b"\xc2" + ws.frame(write(CONNECT, V5))[1:])


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (ws.request("/other"), 404),
        (ws.request("/mqtt/"), 404),
        (ws.request(Sec_WebSocket_Protocol=None), 400),
        (ws.request(Sec_WebSocket_Protocol="mqttv3.1"), 400),
        (ws.request(Sec_WebSocket_Version="8"), 400),
        (ws.request(Sec_WebSocket_Key="x"), 400),
        (ws.request(Sec_WebSocket_Key=None), 400),
        (ws.request(Upgrade="h2c"), 426),
        (ws.request(Upgrade=None, Connection="close"), 426),
        (ws.request(Cookie="x" * 9_000), 431),
        (ws.request(**{f"X{number}": "y" for number in range(200)}), 431),
        (b"GET /mqtt HTTP/1.1\r\nHost: node\r\n\r\n", 426),
    ],
)
@pytest.mark.parametrize("behind", [b"", ws.frame(b""), ws.frame(b"\x03\xe8", ws.CLOSE), b"\xff" * 100])
def test_another_request_is_refused_in_its_language(request_: bytes, status: int, behind: bytes) -> None:
    """Whatever comes behind it, which the library takes for frames."""
    framing = made()
    with pytest.raises(FramingError, match="no WebSocket"):
        framing.received(request_ + behind)
    assert framing.replies.startswith(b"HTTP/1.1 %d " % status)
    assert not framing.is_open
    assert framing.wrap(b"x") == b""
    assert framing.end() == b""


@pytest.mark.requirement("R228")
@pytest.mark.parametrize(
    "said",
    [b"POST / HTTP/1.1\r\n\r\n", b"G\0", b"\x16\x03\x01", write(CONNECT, V5), ws.frame(write(CONNECT, V5))],
)
def test_who_asks_for_nothing_is_refused_with_his_first_bytes(said: bytes) -> None:
    framing = made()
    with pytest.raises(FramingError):
        framing.received(said)
    assert framing.replies == b""


def receive_in_pieces(framing: WebSocketFraming, data: bytes) -> None:
    for at in range(0, len(data), 1_000):
        framing.received(data[at : at + 1_000])


@pytest.mark.requirement("R228")
@pytest.mark.parametrize(
    "said",
    [
        b"GET /" + b"x" * REQUEST_BYTES_MAX,
        ws.request(Cookie="x" * REQUEST_BYTES_MAX),
        b"GET / nothing\r\n\r\n",
    ],
)
def test_a_request_is_bounded(said: bytes) -> None:
    framing = made()
    with pytest.raises(FramingError):
        receive_in_pieces(framing, said)


@pytest.mark.parametrize("seed", range(short(4, long=30)))
@pytest.mark.parametrize("sizes", [[0, 1, 2], [1, 100, 126, 5_000], [10_000]])
def test_the_frames_are_one_stream_however_they_are_cut(seed: int, sizes: list[int]) -> None:
    rng = random.Random(seed)
    packets = [Publish("a/b", rng.randbytes(rng.choice([0, 1, 200]))) for _ in range(100)]
    packets += [Publish("a", bytes(30_000))] if 10_000 in sizes else []
    data = ws.request() + ws.chopped(
        rng, write(CONNECT, V5) + b"".join(write(one, V5) for one in packets), sizes
    )
    framing, got, at = made(), [], 0
    while at < len(data):
        size = rng.choice([1, 13, 1_000, 50_000])
        got += taken(framing, data[at : at + size])
        at += size
    assert got == [CONNECT, *packets]


def test_a_ping_is_answered_and_a_pong_is_not() -> None:
    framing = opened()
    assert taken(framing, ws.frame(b"hello", ws.PING) + ws.frame(b"", ws.PONG)) == []
    assert framing.replies == b"\x8a\x05hello"


def test_empty_frames_and_pings_come_in_turns() -> None:
    framing = opened()
    assert framing.received(ws.frame(b"", ws.PING) * 20_000) == []
    assert framing.has_more
    assert len(framing.replies) < 2 * 2_000
    assert taken(framing, b"") == []
    assert framing.replies == b"\x8a\x00" * 20_000


def test_many_packets_in_one_frame_come_in_turns_and_before_what_is_behind() -> None:
    framing = opened()
    ping, last = write(PingReq(), V5), Publish("t", b"last")
    first = framing.received(ws.frame(ping * 1_000) + ws.frame(write(last, V5)))
    assert len(first) == MESSAGES_MAX
    assert first + taken(framing, b"") == [PingReq()] * 1_000 + [last]


@pytest.mark.parametrize("code", [b"", b"\x03\xe8", b"\x03\xe9going"])
def test_a_close_is_answered_and_comes_behind_the_packets_before_it(code: bytes) -> None:
    """A client says DISCONNECT and closes at once; if that were lost its will would be published."""
    framing = opened()
    said = ws.frame(write(Publish("t"), V5)) + ws.frame(write(Disconnect(), V5)) + ws.frame(code, ws.CLOSE)
    assert framing.received(said + ws.frame(write(Publish("behind"), V5))) == [Publish("t"), Disconnect()]
    assert framing.replies == bytes([0x88, len(code)]) + code
    assert framing.has_more
    with pytest.raises(PeerEndedError):
        framing.received(b"")
    assert framing.wrap(b"more") == b""
    assert framing.end() == b""


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (ws.frame(b"text", ws.TEXT), 1003),
        (ws.frame(b"bad", 3), 1002),
        (ws.frame(b"unmasked")[:1] + b"\x01x", 1002),
        (ws.frame(b"", ws.CONTINUATION), 1002),
        (ws.frame(b"", is_last=False) + ws.frame(b"b"), 1002),
        (ws.frame(bytes(126), ws.PING), 1002),
        (ws.frame(b"x", ws.PING, is_last=False), 1002),
        (ws.frame(b"x", ws.CLOSE), 1002),
        (ws.frame(b"\x03\xed", ws.CLOSE), 1002),
        (ws.frame(b"\x03\xe8\xff", ws.CLOSE), 1007),
        (b"\xf2" + ws.frame(b"reserved")[1:], 1002),
        (ws.frame(bytes(10_001))[:8], 1009),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1009),
    ],
)
def test_who_breaks_a_rule_is_told_which_and_read_no_further(said: bytes, code: int) -> None:
    framing = opened()
    good = ws.frame(write(Publish("t"), V5))
    assert framing.received(good + said + good) == [Publish("t")]
    with pytest.raises(FramingError) as raised:
        framing.received(b"")
    assert not isinstance(raised.value, PeerEndedError)
    assert framing.replies[:1] == b"\x88"
    assert framing.replies[2:4] == code.to_bytes(2, "big")
    assert framing.wrap(b"more") == b""


def test_a_frame_may_be_larger_after_the_login() -> None:
    framing = opened()
    framing.trust(FramingLimits(50_000, 45_000))
    large = Publish("t", bytes(40_000))
    assert taken(framing, ws.frame(write(large, V5))) == [large]
    assert isinstance(taken(framing, ws.frame(write(Publish("t", bytes(45_000)), V5)))[-1], PacketError)


def test_what_is_no_packet_is_the_last_message() -> None:
    framing = opened()
    messages = taken(framing, ws.frame(write(Publish("t"), V5) + b"\xff\x00") + ws.frame(b"\x00"))
    assert messages[0] == Publish("t")
    assert isinstance(messages[1], PacketError)
    assert len(messages) == 2
    with pytest.raises(FramingError):
        taken(upgraded(), ws.frame(b"\xff\x00"))


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536, 200_000])
def test_another_library_understands_what_is_said(size: int) -> None:
    framing, client = made(), WSConnection(ConnectionType.CLIENT)
    asked = client.send(events.Request(host="node", target="/mqtt", subprotocols=["mqtt"]))
    framing.received(asked)
    client.receive_data(framing.replies)
    framing.replies = b""
    (accepted,) = client.events()
    assert isinstance(accepted, events.AcceptConnection)
    assert accepted.subprotocol == "mqtt"
    assert taken(framing, client.send(events.BytesMessage(write(CONNECT, V5)))) == [CONNECT]
    payload = random.Random(size).randbytes(size)
    client.receive_data(framing.wrap(write(ConnAck(), V5)) + framing.wrap(payload) + framing.end())
    told = list(client.events())
    data = b"".join(bytes(one.data) for one in told if isinstance(one, events.BytesMessage))
    assert data == write(ConnAck(), V5) + payload
    assert isinstance(told[-1], events.CloseConnection)
    assert told[-1].code == 1000


@pytest.mark.requirement("R228")
@pytest.mark.parametrize("seed", range(short(6, long=40)))
def test_damaged_streams_are_taken_or_refused_and_nothing_else(seed: int) -> None:
    """No other exception, and no line in the log."""
    rng = random.Random(seed)
    for _ in range(50):
        packets = b"".join(write(Publish("t", rng.randbytes(rng.randrange(200))), V5) for _ in range(5))
        asked = bytearray(ws.request())
        for _ in range(rng.randrange(3)):
            asked[rng.randrange(len(asked))] = rng.randrange(256)
        data = bytearray(ws.chopped(rng, write(CONNECT, V5) + packets, [1, 7, 150]))
        for _ in range(rng.randrange(6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        framing, all_data = made(), bytes(asked + data)
        size = rng.choice([1, 97, 1_000, 100_000])
        try:
            for at in range(0, len(all_data), size):
                taken(framing, all_data[at : at + size])
        except FramingError:
            assert isinstance(framing.end(), bytes)
        framing.validate()
