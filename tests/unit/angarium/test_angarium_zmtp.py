"""ZMTP: whatever pieces the bytes come in, the same messages come out; what is no node is said so."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from angarium.client.transport import zmtp
from angarium.client.transport.zmtp import Zmtp, ZmtpError, pack
from tests.share import short

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
    return made


def packed(*messages: list[bytes]) -> bytes:
    return b"".join(piece for frames in messages for piece in pack(frames))


def test_both_sides_greet_and_say_ready() -> None:
    peer = Zmtp()
    assert peer.start()[10:36] == b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(4)
    assert peer.start()[len(GREETING) :] == (
        b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    )
    assert feed(peer, GREETING[:63]) == []
    assert feed(peer, GREETING[63:]) == []
    assert not peer.is_open
    assert not peer.may_send
    assert feed(peer, READY) == []
    assert peer.is_open
    assert peer.may_send
    assert peer.take_replies() == b""


def test_messages_may_follow_at_once_where_that_is_wanted() -> None:
    peer = Zmtp(at_once=True)
    assert peer.may_send
    assert not peer.is_open
    assert feed(peer, GREETING + READY + packed([b"W"])) == [[b"W"]]
    assert peer.is_open


def test_messages_are_packed_as_the_protocol_says() -> None:
    assert packed([b"P"]) == b"\x00\x01P"
    assert packed([b"P", b""]) == b"\x01\x01P\x00\x00"
    assert packed([b"x" * 255, b"y"]) == b"\x01\xff" + b"x" * 255 + b"\x00\x01y"
    assert packed([b"x" * 256]) == b"\x02\x00\x00\x00\x00\x00\x00\x01\x00" + b"x" * 256
    assert packed([b"x" * 256, b""])[:9] == b"\x03\x00\x00\x00\x00\x00\x00\x01\x00"


@pytest.mark.parametrize("seed", range(short(4, long=20)))
def test_the_pieces_in_which_bytes_come_make_no_difference(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [0, 1, 2, 255, 256, 1_000, zmtp.OWN_BYTES - 1, zmtp.OWN_BYTES, 70_000, 2 * zmtp.GROWTH_BYTES + 1]
    weights = [8] * (len(sizes) - 1) + [1]
    pings = 0
    # Several connections of one thread, which read in turn, share the place where bytes come in.
    peers = [Zmtp() for _ in range(3)]
    sent: list[list[list[bytes]]] = [[] for _ in peers]
    coming = [memoryview(GREETING + READY) for _ in peers]
    got: list[list[list[bytes]]] = [[] for _ in peers]
    for number in range(len(peers)):
        data = bytes(coming[number])
        for _ in range(20):
            frames = [rng.randbytes(size) for size in rng.choices(sizes, weights, k=rng.choice((1, 2, 3, 9)))]
            sent[number].append(frames)
            if rng.random() < 0.2:
                data += b"\x04\x0b\x04PING\x01\x2cabcd"
                pings += 1
            data += packed(frames)
        coming[number] = memoryview(data)
    pongs = 0
    while any(coming):
        number = rng.choice([number for number, data in enumerate(coming) if data])
        # A few bytes at a time between the large pieces, so that heads of frames are cut too.
        count = rng.choice((1, 2, 3, 10, 300, zmtp.OWN_BYTES, 100_000, 3_000_000))
        got[number] += feed(peers[number], bytes(coming[number][:count]))
        coming[number] = coming[number][count:]
        pongs += peers[number].take_replies().count(b"PONGabcd")
    assert got == sent
    assert pongs == pings
    assert all(type(frame) is bytes for messages in got for frames in messages for frame in frames)


def test_a_message_of_single_bytes_is_put_together() -> None:
    peer = opened()
    data = packed([b"D", b"x" * 300], [b"E", b""])
    got = [message for byte in data for message in feed(peer, bytes((byte,)))]
    assert got == [[b"D", b"x" * 300], [b"E", b""]]


def test_a_large_frame_has_memory_for_what_came_and_little_more() -> None:
    peer = opened()
    large = random.Random(1).randbytes(5 * zmtp.GROWTH_BYTES + 7)
    data = packed([b"D", large], [b"E"])
    tracemalloc.start()
    try:
        assert feed(peer, data[:100]) == []
        assert tracemalloc.get_traced_memory()[0] < 1.2 * zmtp.GROWTH_BYTES
        assert feed(peer, data[100:]) == [[b"D", large], [b"E"]]
    finally:
        tracemalloc.stop()
    assert feed(peer, packed([b"F"])) == [[b"F"]]


def test_a_connection_between_messages_holds_no_buffer() -> None:
    peers = [opened()]  # the first has the place made that all share
    tracemalloc.start()
    try:
        for _ in range(20):
            peers.append(opened())
            feed(peers[-1], packed([b"D", bytes(300_000)], [b"E"]))
        assert tracemalloc.get_traced_memory()[0] < 20 * 4_096
    finally:
        tracemalloc.stop()


def test_a_large_frame_before_the_handshake_is_over_gets_no_memory() -> None:
    with pytest.raises(ZmtpError, match="handshake failed"):
        feed(Zmtp(), GREETING + packed([bytes(zmtp.OWN_BYTES)])[:20])


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
