"""TLS of the SDK without a socket: whatever pieces the bytes come in, and whatever somebody does to them on the way."""

from __future__ import annotations

import contextlib
import random
import ssl
from typing import TYPE_CHECKING, NamedTuple

import pytest

from angarium.client.transport import tls
from angarium.client.transport.tls import Tls
from angarium.client.transport.zmtp import ZmtpError, pack
from tests.integration.stream_peer import GREETING, READY, frame

if TYPE_CHECKING:
    from tests.integration.certificates import Authority, Pair


class Far:
    """The other side, in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_ended = False

    def shake(self, data: bytes) -> bytes:
        self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._outgoing.read()

    def seal(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def opened(self, data: bytes) -> bytes:
        """Give what is inside of what came."""
        self._incoming.write(data)
        found = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError):
            while more := self._tls.read(1 << 16):
                found += more
            self.is_ended = True
        return bytes(found)

    def goodbye(self) -> bytes:
        with contextlib.suppress(ssl.SSLError):  # among them: the client has yet to say it
            self._tls.unwrap()
        return self._outgoing.read()


class Both(NamedTuple):
    near: Tls
    far: Far

    def feed(self, data: bytes, got: list[list[bytes]]) -> None:
        """Let bytes come, as many at a time as there is room for."""
        while data:
            room = self.near.room()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            room.release()
            self.near.received(count, got)
            self.near.validate()
            data = data[count:]


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def both(request: pytest.FixtureRequest, authority: Authority, server_pair: Pair) -> Both:
    """Two sides through the handshake, where messages may be sent."""
    context = server_pair.server_context()
    context.maximum_version = request.param
    both = Both(Tls(authority.client_context(), "localhost"), Far(context))
    data = both.near.start()
    while data:
        both.feed(both.far.shake(data), [])
        data = both.near.take_replies()
    both.feed(both.far.seal(GREETING + READY), [])
    both.far.opened(both.near.take_replies())
    assert both.near.is_open
    return both


@pytest.mark.parametrize("seed", range(10))
def test_the_pieces_in_which_bytes_come_make_no_difference(both: Both, seed: int) -> None:
    rng = random.Random(seed)
    messages = [[rng.randbytes(rng.choice((0, 1, 300, 20_000))) for _ in range(3)] for _ in range(30)]
    plain = b"".join(piece for message in messages for piece in pack(message))
    records = []
    while plain:  # records that end anywhere
        size = rng.choice((1, 100, 16_384))
        records.append(both.far.seal(plain[:size]))
        plain = plain[size:]
    data = b"".join(records)
    got: list[list[bytes]] = []
    while data:
        size = rng.choice((1, 5, 29, 5_000, 300_000))
        both.feed(data[:size], got)
        data = data[size:]
    assert got == messages


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 3 * tls.SEAL_BYTES + 1, 32_000_000])
def test_what_is_sent_is_whole_on_the_other_side_and_leaves_nothing_behind(both: Both, size: int) -> None:
    pieces = pack([b"P", random.Random(size).randbytes(size)])
    sealed = both.near.seal(pieces)
    assert len(sealed) <= tls.SEAL_PIECES
    assert both.far.opened(b"".join(sealed)) == b"".join(pieces)
    assert both.near.take_replies() == b""


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_were_changed_on_the_way_end_it_after_the_messages_before(both: Both, seed: int) -> None:
    rng = random.Random(seed)
    good = both.far.seal(frame(b"good"))
    bad = bytearray(both.far.seal(frame(b"bad")))
    bad[rng.randrange(5, len(bad))] ^= rng.randrange(1, 256)
    got: list[list[bytes]] = []
    with pytest.raises(ZmtpError, match="TLS failed"):
        both.feed(good + bytes(bad), got)
    assert got == [[b"good"]]
    assert both.near.take_replies(), "the other side is told"


@pytest.mark.parametrize("seed", range(20))
def test_bytes_without_tls_in_between_are_never_a_message(both: Both, seed: int) -> None:
    garbage = random.Random(seed).randbytes(40_000)
    got: list[list[bytes]] = []
    with contextlib.suppress(ZmtpError):
        both.feed(garbage + frame(b"plain"), got)
    assert got == []


@pytest.mark.parametrize("more", [b"", b"anything", frame(b"plain") * 100])
def test_a_goodbye_is_the_end_after_what_came_before_it(both: Both, more: bytes) -> None:
    got: list[list[bytes]] = []
    with pytest.raises(ZmtpError, match="the connection was closed"):
        both.feed(both.far.seal(frame(b"last")) + both.far.goodbye() + more, got)
    assert got == [[b"last"]]


def test_records_that_come_twice_or_in_another_order_are_refused(both: Both) -> None:
    first, second = both.far.seal(frame(b"1")), both.far.seal(frame(b"2"))
    got: list[list[bytes]] = []
    with pytest.raises(ZmtpError, match="TLS failed"):
        both.feed(second + first, got)
    assert got == []


def test_the_goodbye_of_the_client_is_understood(both: Both) -> None:
    assert both.far.opened(both.near.farewell()) == b""
    assert both.far.is_ended


def test_without_a_handshake_there_is_nothing_to_say_at_the_end(authority: Authority) -> None:
    near = Tls(authority.client_context(), "localhost")
    assert near.start()
    assert near.farewell() == b""


def test_the_scope_of_an_address_is_not_a_part_of_its_name(authority: Authority) -> None:
    assert Tls(authority.client_context(), "fe80::1%eth0")._tls.server_hostname == "fe80::1"
