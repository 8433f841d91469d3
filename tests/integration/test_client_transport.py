"""What a client needs of its transports, the same of both, against a ROUTER of libzmq."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import pytest
import zmq
from scripted_router import LIMIT_S, run, until

from angarium import errors
from angarium.client.transport.plain import PlainTransport
from angarium.client.transport.secure import SecureTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Peer:
    """A ROUTER socket, used by one thread at a time."""

    def __init__(self, *, is_secure: bool = False, **options: int) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 1_000)
        self.socket.setsockopt(zmq.RCVTIMEO, round(LIMIT_S * 1_000))
        for name, value in options.items():
            self.socket.set(getattr(zmq, name), value)
        self.key: str | None = None
        if is_secure:
            public, secret = zmq.curve_keypair()
            self.key = public.decode()
            self.socket.curve_server = True
            self.socket.curve_secretkey = secret
        self.url = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    def close(self) -> None:
        self.socket.close()
        self.context.term()


class Line:
    """A transport of a running loop, and what it told."""

    def __init__(self, url: str, key: str | None) -> None:
        self.got: list[list[bytes]] = []
        self.lost: list[str] = []
        self.drained = 0
        self.outgoing: deque[list[bytes]] = deque()
        self.on_message: Callable[[list[bytes]], None] = self.got.append
        loop = asyncio.get_running_loop()
        calls = (lambda frames: self.on_message(frames)), self._on_drained, self.lost.append
        self.transport: PlainTransport | SecureTransport
        if key is None:
            self.transport = PlainTransport(loop, url, *calls)
        else:
            self.transport = SecureTransport(loop, url, key, *calls)

    def _on_drained(self) -> None:
        self.drained += 1
        self.transport.send(self.outgoing)

    def await_arrival(self, size: int) -> None:
        """Wait until so many bytes have come that nobody has read."""
        assert isinstance(self.transport, PlainTransport)
        connected = self.transport._socket
        assert connected is not None
        deadline = time.monotonic() + LIMIT_S
        arrived = 0
        while arrived < size:
            assert time.monotonic() < deadline
            time.sleep(0.001)
            with contextlib.suppress(BlockingIOError):
                arrived = len(connected.recv(size, socket.MSG_PEEK))

    def send(self, *frames: bytes) -> None:
        self.outgoing.append(list(frames))
        self.transport.send(self.outgoing)


@pytest.fixture
def make_peer() -> Iterator[Callable[..., Peer]]:
    """Give a maker of peers; each is closed at the end."""
    made: list[Peer] = []

    def make(*, is_secure: bool = False, **options: int) -> Peer:
        made.append(Peer(is_secure=is_secure, **options))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@pytest.fixture(params=[False, True], ids=["plain", "secure"])
def is_secure(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def peer(make_peer: Callable[..., Peer], is_secure: bool) -> Peer:
    return make_peer(is_secure=is_secure)


async def greeted(peer: Peer) -> tuple[Line, bytes]:
    """Give a line over which a first message went, and its routing id."""
    line = Line(peer.url, peer.key)
    line.send(b"H", b"")
    identity, *frames = await asyncio.to_thread(peer.socket.recv_multipart)
    assert frames == [b"H", b""]
    return line, identity


def test_messages_go_both_ways_in_order_whatever_their_size(peer: Peer) -> None:
    rng = random.Random(1)
    messages = [[b"M", rng.randbytes(size), b""] for size in (0, 1, 255, 256, 5_000, 300_000, 3_000_000, 7)]

    def answer() -> None:
        for _ in messages:
            peer.socket.send_multipart(peer.socket.recv_multipart())

    async def test() -> None:
        line, _ = await greeted(peer)
        for message in messages:
            line.send(*message)
        await asyncio.to_thread(answer)
        await until(lambda: len(line.got) == len(messages))
        assert line.got == messages
        line.transport.close()
        assert line.lost == []

    run(test())


def test_many_small_messages_that_leave_together_come_in_order(peer: Peer) -> None:
    count = 5_000

    async def test() -> None:
        line = Line(peer.url, peer.key)
        for number in range(count):
            line.send(b"%d" % number, b"")
        received = [(await asyncio.to_thread(peer.socket.recv_multipart))[1] for _ in range(count)]
        assert received == [b"%d" % number for number in range(count)]
        line.transport.close()

    run(test())


def test_what_a_slow_peer_does_not_take_waits_and_comes_in_order(
    make_peer: Callable[..., Peer], is_secure: bool
) -> None:
    peer = make_peer(is_secure=is_secure, RCVHWM=1)
    count, size = 200, 200_000  # more than the system keeps for a connection
    received: list[bytes] = []

    def take() -> None:
        for _ in range(count):
            received.append(peer.socket.recv_multipart()[1][:4])

    async def test() -> None:
        line, _ = await greeted(peer)
        for number in range(count):
            line.send(number.to_bytes(4, "big") + bytes(size))
        await asyncio.to_thread(take)
        line.transport.close()

    run(test())
    assert received == [number.to_bytes(4, "big") for number in range(count)]


def test_what_came_before_the_end_is_handed_on_before_the_end_is_told(peer: Peer) -> None:
    async def test() -> None:
        line, identity = await greeted(peer)
        ends: list[int] = []
        line.transport._on_lost = lambda _: ends.append(len(line.got))
        for number in range(100):
            peer.socket.send_multipart([identity, b"%d" % number, b""])
        if peer.key is None:
            # Who closes while something is unread takes back what has not arrived: a rule of TCP.
            line.await_arrival(sum(4 + len(b"%d" % number) for number in range(100)))
        peer.socket.close()
        for _ in range(3):
            line.send(b"to nobody")  # which fails as soon as the end is here
            time.sleep(0.01)  # so that nothing is read meanwhile
        await until(lambda: ends)
        assert [int(frames[0]) for frames in line.got] == list(range(100))
        assert ends == [100]
        assert line.transport.closed

    run(test())


def test_nobody_at_the_address_is_told_once(peer: Peer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"

    async def test() -> None:
        line = Line(url, peer.key)
        await until(lambda: line.lost)
        assert "nobody answers" in line.lost[0]
        await asyncio.sleep(0)
        line.transport.close()
        assert len(line.lost) == 1
        assert line.got == []

    run(test())


def test_nothing_is_told_after_close(peer: Peer) -> None:
    async def test() -> None:
        line, identity = await greeted(peer)
        for _ in range(3):
            peer.socket.send_multipart([identity, b"D", b""])

        def close(frames: list[bytes]) -> None:
            line.got.append(frames)
            line.transport.close()

        line.on_message = close
        await until(lambda: line.got)
        line.send(b"too late")
        await asyncio.sleep(0.01)
        assert len(line.got) == 1
        assert line.lost == []

    run(test())


def test_a_close_while_connecting_leaves_nothing(peer: Peer) -> None:
    async def test() -> None:
        tasks = asyncio.all_tasks()
        line = Line(peer.url, peer.key)
        line.transport.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == tasks
        assert (line.got, line.lost) == ([], [])

    run(test())


@pytest.mark.parametrize("url", ["nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "udp://127.0.0.1:1"])
def test_an_address_that_cannot_be_is_refused_at_once(url: str, is_secure: bool) -> None:
    async def test() -> None:
        key = zmq.curve_keypair()[0].decode() if is_secure else None
        with pytest.raises(errors.ConnectionLostError, match=url):
            Line(url, key)

    run(test())


def test_a_wrong_key_is_told(make_peer: Callable[..., Peer]) -> None:
    peer = make_peer(is_secure=True)

    async def test() -> None:
        line = Line(peer.url, zmq.curve_keypair()[0].decode())
        await until(lambda: line.lost)
        assert "handshake" in line.lost[0]

    run(test())


def test_without_a_key_a_node_that_wants_one_is_told(make_peer: Callable[..., Peer]) -> None:
    peer = make_peer(is_secure=True)

    async def test() -> None:
        line = Line(peer.url, None)
        await until(lambda: line.lost)
        assert "does it want a server key?" in line.lost[0]

    run(test())


def test_what_is_no_node_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async def test() -> None:
            line = Line(f"tcp://127.0.0.1:{server.getsockname()[1]}", None)
            await until(lambda: line.lost)
            assert "is it a node" in line.lost[0]

        thread = threading.Thread(target=answer)
        thread.start()
        run(test())
        thread.join(LIMIT_S)


def test_heartbeats_of_the_router_are_answered(make_peer: Callable[..., Peer]) -> None:
    """A router of libzmq closes a connection that leaves them unanswered."""
    peer = make_peer(HEARTBEAT_IVL=10, HEARTBEAT_TIMEOUT=200)

    async def test() -> None:
        line, identity = await greeted(peer)
        await asyncio.sleep(0.4)
        peer.socket.send_multipart([identity, b"D", b""])
        await until(lambda: line.got)
        assert line.lost == []
        line.transport.close()

    run(test())


def test_a_name_and_a_path_are_addresses_too(make_peer: Callable[..., Peer], tmp_path: Path) -> None:
    peer = make_peer()
    path = f"ipc://{tmp_path}/it"
    peer.socket.bind(path)

    async def test() -> None:
        for url in (peer.url.replace("127.0.0.1", "localhost"), path):
            peer.url = url
            line, _ = await greeted(peer)
            line.transport.close()

    run(test())
