"""What a client needs of its transports, the same of all, against a ROUTER of libzmq."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
import zmq

from angarium import errors
from angarium.client.transport import stream, tls, zmtp
from angarium.client.transport.stream import StreamTransport
from tests.integration.scripted_router import LIMIT_S, run
from tests.integration.tls_front import tls_front
from tests.integration.transport_line import Line
from tests.share import short
from tests.waiting import until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.certificates import Authority, Pair


#: The transports, with "joined" as tcp is on a system that takes one piece at a time.
KINDS = ("tcp", "joined", "ipc", "tls")


class Peer:
    """A ROUTER socket, used by one thread at a time."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], kind: str, folder: Path, **options: int
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 1_000)
        self.socket.setsockopt(zmq.RCVTIMEO, round(LIMIT_S * 1_000))
        for name, value in options.items():
            self.socket.set(getattr(zmq, name), value)
        self.kind = kind
        self.context: ssl.SSLContext | None = None
        if kind == "ipc":
            self.url = f"ipc://{folder}/peer"
            self.socket.bind(self.url)
        else:
            self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
            self.url = f"tcp://127.0.0.1:{self.port}"

    def line(self) -> Line:
        return Line(self.url, context=self.context)


@pytest.fixture
def make_peer(
    tmp_path: Path, authority: Authority, server_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Peer]]:
    """Give a maker of peers; each is closed at the end.

    libzmq takes no message before it has sent its own READY, so lines wait for that, as they do for other hosts.
    """
    monkeypatch.setattr(stream, "is_of_this_host", lambda _: False)
    monkeypatch.setattr(tls, "Zmtp", lambda **_: zmtp.Zmtp())
    made: list[Peer] = []
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(zmq.Context())

        def make(kind: str = "tcp", **options: int) -> Peer:
            peer = Peer(context, kind, tmp_path, **options)
            made.append(peer)
            if kind == "tls":
                peer.url = stack.enter_context(tls_front(peer.port, server_pair.server_context()))
                peer.context = authority.client_context()
            return peer

        yield make
        for peer in made:
            peer.socket.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tell which transport."""
    if request.param == "joined":
        monkeypatch.setattr(stream, "GATHERS", False)
    return str(request.param)


@pytest.fixture
def peer(make_peer: Callable[..., Peer], kind: str) -> Peer:
    return make_peer(kind)


def await_arrival(line: Line, size: int) -> None:
    """Wait until so many bytes have come that nobody has read."""
    assert isinstance(line.transport, StreamTransport)
    connected = line.transport._socket
    assert connected is not None
    deadline = time.monotonic() + LIMIT_S
    arrived = 0
    while arrived < size:
        assert time.monotonic() < deadline
        time.sleep(0.001)
        with contextlib.suppress(BlockingIOError):
            arrived = len(connected.recv(size, socket.MSG_PEEK))


async def greeted(peer: Peer) -> tuple[Line, bytes]:
    """Give a line over which a first message went, and its routing id."""
    line = peer.line()
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
    count = short(1_000, long=5_000)

    async def test() -> None:
        line = peer.line()
        for number in range(count):
            line.send(b"%d" % number, b"")
        received = [(await asyncio.to_thread(peer.socket.recv_multipart))[1] for _ in range(count)]
        assert received == [b"%d" % number for number in range(count)]
        line.transport.close()

    run(test())


def test_what_a_slow_peer_does_not_take_waits_and_comes_in_order(
    make_peer: Callable[..., Peer], kind: str
) -> None:
    peer = make_peer(kind, RCVHWM=1)
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
        # Who closes while something is unread takes back what has not arrived: a rule of TCP.
        await_arrival(line, sum(4 + len(b"%d" % number) for number in range(100)))
        peer.socket.close()
        for _ in range(3):
            line.send(b"to nobody")  # which fails as soon as the end is here
            time.sleep(0.01)  # so that nothing is read meanwhile
        await until(lambda: ends)
        assert [int(frames[0]) for frames in line.got] == list(range(100))
        assert ends == [100]
        assert line.transport.closed

    run(test())


def test_nobody_at_the_address_is_told_once(peer: Peer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        scheme = peer.url.partition(":")[0]
        peer.url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
    if peer.kind == "ipc":
        peer.url = f"ipc://{tmp_path}/nobody"

    async def test() -> None:
        line = peer.line()
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
        line = peer.line()
        line.transport.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == tasks
        assert (line.got, line.lost) == ([], [])

    run(test())


@pytest.mark.parametrize("url", ["nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "udp://127.0.0.1:1"])
def test_an_address_that_cannot_be_is_refused_at_once(url: str, peer: Peer) -> None:
    async def test() -> None:
        with pytest.raises(errors.AngariumError, match=url) as caught:
            Line(url, context=peer.context)
        assert caught.value.code == errors.INVALID_ARGUMENT

    run(test())


def test_what_is_no_node_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async def test() -> None:
            line = Line(f"tcp://127.0.0.1:{server.getsockname()[1]}")
            await until(lambda: line.lost)
            assert "is it a node" in line.lost[0]

        thread = threading.Thread(target=answer)
        thread.start()
        run(test())
        thread.join(LIMIT_S)


def test_heartbeats_of_the_router_are_answered(make_peer: Callable[..., Peer], kind: str) -> None:
    """A router of libzmq closes a connection that leaves them unanswered."""
    peer = make_peer(kind, HEARTBEAT_IVL=10, HEARTBEAT_TIMEOUT=200)

    async def test() -> None:
        line, identity = await greeted(peer)
        await asyncio.sleep(0.4)
        peer.socket.send_multipart([identity, b"D", b""])
        await until(lambda: line.got)
        assert line.lost == []
        line.transport.close()

    run(test())


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_a_name_is_an_address_too(make_peer: Callable[..., Peer], kind: str) -> None:
    peer = make_peer(kind)
    peer.url = peer.url.replace("127.0.0.1", "localhost")

    async def test() -> None:
        line, _ = await greeted(peer)
        line.transport.close()

    run(test())


@pytest.mark.parametrize("url", [f"tcp://{'a' * 64}:1", "tcp://a..b:1", "ipc://\0", f"ipc:///{'a' * 200}"])
def test_a_host_or_path_that_cannot_be_is_nobody(url: str) -> None:
    async def test() -> None:
        line = Line(url)
        await until(lambda: line.lost)
        assert "nobody answers" in line.lost[0]

    run(test())
