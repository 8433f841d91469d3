"""ZMTP: whatever pieces the bytes come in, the same messages come out; what is no node is said so."""

from __future__ import annotations

import random

import pytest

from angarium.client.transport import zmtp
from angarium.client.transport.zmtp import Zmtp, ZmtpError, pack

READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"
#: As libzmq sends it: version 3.1, a server or not.
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL" + bytes(48)


def feed(peer: Zmtp, data: bytes) -> list[list[bytes]]:
    """Let bytes come, as many at a time as there is room for."""
    messages: list[list[bytes]] = []
    while data:
        room = peer.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        room.release()
        peer.received(count, messages)
        peer.validate()
        data = data[count:]
    return messages


def opened() -> Zmtp:
    made = Zmtp()
    assert feed(made, GREETING + READY) == []
    assert made.is_open
    made.take_replies()
    return made


def packed(*messages: list[bytes]) -> bytes:
    return b"".join(piece for frames in messages for piece in pack(frames))


def test_both_sides_greet_and_say_ready() -> None:
    peer = Zmtp()
    assert len(peer.start()) == len(GREETING)
    assert peer.start()[10:36] == b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(4)
    assert feed(peer, GREETING[:63]) == []
    assert peer.take_replies() == b""
    assert feed(peer, GREETING[63:]) == []
    assert peer.take_replies() == (
        b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    )
    assert not peer.is_open
    assert feed(peer, READY) == []
    assert peer.is_open
    assert peer.take_replies() == b""


def test_messages_are_packed_as_the_protocol_says() -> None:
    assert packed([b"P"]) == b"\x00\x01P"
    assert packed([b"P", b""]) == b"\x01\x01P\x00\x00"
    assert packed([b"x" * 255, b"y"]) == b"\x01\xff" + b"x" * 255 + b"\x00\x01y"
    assert packed([b"x" * 256]) == b"\x02\x00\x00\x00\x00\x00\x00\x01\x00" + b"x" * 256
    assert packed([b"x" * 256, b""])[:9] == b"\x03\x00\x00\x00\x00\x00\x00\x01\x00"


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_in_which_bytes_come_make_no_difference(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [0, 1, 2, 255, 256, 1_000, 70_000]
    messages = [
        [rng.randbytes(rng.choice(sizes)) for _ in range(rng.choice((1, 2, 3, 9)))] for _ in range(30)
    ]
    data = GREETING + READY + packed(*messages)
    peer = Zmtp()
    got = []
    while data:
        count = rng.choice((1, 2, 3, 10, 300, 100_000))
        got += feed(peer, data[:count])
        data = data[count:]
    assert got == messages


def test_a_message_of_single_bytes_is_put_together() -> None:
    peer = opened()
    data = packed([b"D", b"x" * 300], [b"E", b""])
    got = [message for byte in data for message in feed(peer, bytes((byte,)))]
    assert got == [[b"D", b"x" * 300], [b"E", b""]]


def test_a_large_frame_makes_the_buffer_grow_and_it_shrinks_again() -> None:
    peer = opened()
    large = random.Random(1).randbytes(5 * zmtp.READ_BYTES + 7)
    assert feed(peer, packed([b"D", large], [b"E"])) == [[b"D", large], [b"E"]]
    assert len(peer.room()) == zmtp.READ_BYTES
    assert feed(peer, packed([b"F"])) == [[b"F"]]


def test_a_ping_is_answered_with_what_it_brought() -> None:
    peer = opened()
    ping = b"\x04\x0b\x04PING\x01\x2cabcd"
    assert feed(peer, ping + packed([b"D"]) + ping[:5]) == [[b"D"]]
    assert peer.take_replies() == b"\x04\x09\x04PONGabcd"
    assert feed(peer, ping[5:]) == []
    assert peer.take_replies() == b"\x04\x09\x04PONGabcd"


def test_commands_that_nobody_knows_are_passed_over() -> None:
    peer = opened()
    assert feed(peer, b"\x04\x05\x04PONG" + b"\x04\x00" + packed([b"D"])) == [[b"D"]]
    assert peer.take_replies() == b""


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400", "is it a node"),
        (GREETING.replace(b"NULL\0", b"PLAIN"), "does it want tls"),
        (GREETING.replace(b"\x7f\x03", b"\x7f\x01"), "handshake failed"),
        (GREETING + b"\x04\x0a\x05ERROR\x03400", "refused: 400"),
        (GREETING + packed([b"D"]), "handshake failed"),
        (GREETING + READY + b"\x02\x00\x00\x00\x00\x10\x00\x00\x01", "268435457 bytes"),
        (GREETING + READY + b"\x02\xff\xff\xff\xff\xff\xff\xff\xff", "the limit is 268435456"),
    ],
)
def test_what_is_no_node_or_refuses_is_told(data: bytes, text: str) -> None:
    with pytest.raises(ZmtpError, match=text):
        feed(Zmtp(), data)
