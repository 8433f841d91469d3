"""ZMTP as the listening side speaks it, besides what each framing does."""

from __future__ import annotations

import random

import pytest

from angarium.client.transport import zmtp
from angarium_server.connections.framing import FramingError, FramingLimits
from angarium_server.connections.zmtp import COMMANDS_MAX, PARTS_MAX, START, ZmtpFraming
from tests.share import short

LIMITS = FramingLimits(frame_bytes=100_000, message_bytes=300_000)
#: What the SDK sends after the greeting of the other side.
READY = zmtp.pack_command(b"READY", b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0")
HANDSHAKE = zmtp.GREETING + READY


def opened() -> ZmtpFraming:
    framing = ZmtpFraming(LIMITS)
    assert framing.received(HANDSHAKE) == []
    assert framing.is_open
    return framing


def packed(*messages: list[bytes]) -> bytes:
    return b"".join(piece for message in messages for piece in zmtp.pack(message))


def taken(framing: ZmtpFraming, data: bytes) -> list[list[bytes]]:
    messages = framing.received(data)
    while framing.has_more:
        messages += framing.received(b"")
    framing.validate()
    return messages


def receive_in_pieces(framing: ZmtpFraming, data: bytes) -> None:
    for at in range(0, len(data), 100):
        framing.received(data[at : at + 100])


def test_both_sides_understand_each_other() -> None:
    client, server = zmtp.Zmtp(), ZmtpFraming(LIMITS)
    assert server.received(client.start()) == []
    assert server.is_open
    room = client.room()
    room[: len(START)] = START
    room.release()
    client.received(len(START), [])
    assert client.is_open


@pytest.mark.parametrize("seed", range(short(5, long=20)))
def test_messages_are_the_same_however_the_bytes_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [0, 1, 2, 254, 255, 256, 257, 60_000, 99_999]
    messages = [[rng.randbytes(rng.choice(sizes)) for _ in range(rng.randint(1, 4))] for _ in range(50)]
    messages = [message for message in messages if sum(map(len, message)) <= LIMITS.message_bytes]
    data = HANDSHAKE + packed(*messages)
    framing, got, at = ZmtpFraming(LIMITS), [], 0
    while at < len(data):
        step = rng.choice([1, 7, 64, 1_000, 100_000])
        got += taken(framing, data[at : at + step])
        at += step
    assert got == messages


def test_the_identity_of_a_peer_is_not_looked_at() -> None:
    framing = ZmtpFraming(LIMITS)
    body = b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x05\0\0\0\0\x01"
    framing.received(zmtp.GREETING + zmtp.pack_command(b"READY", body))
    assert framing.is_open


def test_a_ping_is_answered_with_its_context() -> None:
    framing = opened()
    framing.received(zmtp.pack_command(b"PING", b"\0\x0aabc"))
    assert framing.replies == zmtp.pack_command(b"PONG", b"abc")
    framing.received(zmtp.pack_command(b"PING", b"\0\x0a" + bytes(200)))
    assert framing.replies.endswith(zmtp.pack_command(b"PONG", bytes(16)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "another protocol"),
        (b"\x16\x03\x01", "another protocol"),
        (zmtp.GREETING[:10] + b"\x01" + zmtp.GREETING[11:], "another protocol"),
        (zmtp.GREETING.replace(b"NULL", b"CURV"), "encrypts"),
        (zmtp.GREETING + packed([b"H"]), "before the handshake"),
        (zmtp.GREETING + zmtp.pack_command(b"ERROR", b"\x03bad"), "given up"),
        (HANDSHAKE + b"\x02" + (1 << 62).to_bytes(8, "big"), "a frame of"),
        (HANDSHAKE + packed([b"x" * 90_000] * 4), "of more than 300000 bytes"),
        (HANDSHAKE + packed([b""] * (PARTS_MAX + 2)), "parts"),
        (HANDSHAKE + zmtp.pack_command(b"PING", b"\0\0") * (COMMANDS_MAX + 1), "commands"),
    ],
)
@pytest.mark.requirement("R228")
def test_what_is_not_the_protocol_ends_it(data: bytes, reason: str) -> None:
    with pytest.raises(FramingError, match=reason):
        ZmtpFraming(LIMITS).received(data)
    with pytest.raises(FramingError, match=reason):
        receive_in_pieces(ZmtpFraming(LIMITS), data)


@pytest.mark.requirement("R228")
def test_an_unauthenticated_peer_may_send_little_and_one_who_has_logged_in_more() -> None:
    framing = ZmtpFraming(FramingLimits(100, 100))
    framing.received(HANDSHAKE)
    framing.trust(LIMITS)
    assert taken(framing, packed([b"x" * 90_000])) == [[b"x" * 90_000]]
    peer = ZmtpFraming(FramingLimits(100, 100))
    peer.received(HANDSHAKE)
    with pytest.raises(FramingError, match="the limit is 100"):
        peer.received(packed([b"x" * 101]))


@pytest.mark.parametrize("seed", range(short(5, long=30)))
@pytest.mark.requirement("R228")
def test_garbage_is_taken_or_refused_and_nothing_else(seed: int) -> None:
    """No other exception, and never more held than may be."""
    rng = random.Random(seed)
    for _ in range(200):
        framing = opened()
        data = bytearray(packed(*[[rng.randbytes(rng.randint(0, 300)) for _ in range(3)] for _ in range(5)]))
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            for at in range(0, len(data), 97):
                taken(framing, bytes(data[at : at + 97]))
        except FramingError:
            continue
        framing.validate()
