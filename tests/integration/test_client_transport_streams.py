"""What a peer can do to a connection, byte by byte: the same over tcp, ipc and tls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from angarium.client.transport import stream, zmtp
from tests.integration.scripted_router import run
from tests.integration.stream_peer import GREETING, READY, Conversation, StreamPeer, frame
from tests.integration.transport_line import Line
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.certificates import Authority, Pair

KINDS = ("tcp", "ipc", "tls")
#: More than the system keeps for a connection that nobody reads.
MANY_BYTES = 32 * 1024 * 1024


class Ends:
    """A peer, and how to connect to it."""

    def __init__(self, kind: str, peer: StreamPeer, context: ssl.SSLContext | None) -> None:
        self.kind = kind
        self.peer = peer
        self._context = context

    def line(self) -> Line:
        return Line(self.peer.url, context=self._context)

    async def opened(self) -> tuple[Line, Conversation]:
        """Connect, and give both sides."""
        line = self.line()
        taken = await asyncio.to_thread(self.peer.accept_open)
        await until(lambda: line.transport._protocol.is_open)
        return line, taken


@pytest.fixture(params=KINDS)
def ends(
    request: pytest.FixtureRequest, tmp_path: Path, authority: Authority, server_pair: Pair
) -> Iterator[Ends]:
    kind = str(request.param)
    peer = StreamPeer(kind, tmp_path, server_pair.server_context())
    yield Ends(kind, peer, authority.client_context() if kind == "tls" else None)
    peer.close()


def test_a_lone_message_leaves_and_comes_at_once(ends: Ends) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        for number in range(50):
            text = b"%d" % number
            line.send(b"P", text)
            assert await asyncio.to_thread(taken.take_message) == [b"P", text]
            taken.give(frame(text))
            await until(lambda: len(line.got) > number)  # noqa: B023 - it is called at once
        assert line.got == [[b"%d" % number] for number in range(50)]
        line.transport.close()

    run(test())


def test_batches_of_a_megabyte_go_both_ways_at_once(ends: Ends) -> None:
    """Neither direction waits for the other one."""
    rng = random.Random(7)
    batches = [rng.randbytes(1 << 20) for _ in range(16)]

    def answer(taken: Conversation) -> None:
        for batch in batches:
            taken.give(frame(b"D", more=True) + frame(batch))
            assert taken.take_message() == [b"P", batch]

    async def test() -> None:
        line, taken = await ends.opened()
        answering = asyncio.create_task(asyncio.to_thread(answer, taken))
        for batch in batches:
            line.send(b"P", batch)
        await answering
        await until(lambda: len(line.got) == len(batches))
        assert line.got == [[b"D", batch] for batch in batches]
        line.transport.close()

    run(test())


def test_many_records_that_come_together_are_all_handed_on_at_once(ends: Ends) -> None:
    """With TLS nothing is left in the library of which the loop does not know."""

    async def test() -> None:
        line, taken = await ends.opened()
        for number in range(1_000):
            await asyncio.to_thread(taken.give, frame(b"%d" % number))
        await until(lambda: len(line.got) == 1_000)
        assert [int(frames[0]) for frames in line.got] == list(range(1_000))
        line.transport.close()

    run(test())


def test_every_byte_may_come_alone(ends: Ends) -> None:
    async def test() -> None:
        line = ends.line()
        taken = await asyncio.to_thread(ends.peer.accept)
        for byte in GREETING + READY + frame(b"D", more=True) + frame(b"x" * 9):
            await asyncio.to_thread(taken.give, bytes((byte,)))
        await until(lambda: line.got)
        assert line.got == [[b"D", b"x" * 9]]
        line.transport.close()

    run(test())


def test_a_peer_that_does_not_read_makes_messages_wait_and_gets_them_in_order(ends: Ends) -> None:
    size = 100_000
    count = MANY_BYTES // size

    def take_all(taken: Conversation) -> list[int]:
        return [int.from_bytes(taken.take_message()[0][:4], "big") for _ in range(count)]

    async def test() -> None:
        line, taken = await ends.opened()
        for number in range(count):
            line.send(number.to_bytes(4, "big") + bytes(size))
        await asyncio.sleep(0.05)
        waiting = len(line.outgoing)
        assert waiting, "they are kept where the client counts them"
        taken.give(frame(b"still heard"))
        await until(lambda: line.got)
        assert len(line.outgoing) == waiting
        assert await asyncio.to_thread(take_all, taken) == list(range(count))
        assert not line.outgoing
        line.transport.close()

    run(test())


def test_what_the_system_took_before_a_close_arrives(ends: Ends) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        for number in range(100):
            line.send(b"%d" % number)
        line.transport.close()
        for number in range(100):
            assert await asyncio.to_thread(taken.take_message) == [b"%d" % number]
        assert await asyncio.to_thread(taken.socket.recv, 1) == b""  # with TLS only after a goodbye
        assert line.ends == []

    run(test())


def test_a_close_with_unsent_data_ends_in_the_middle_and_at_once(ends: Ends) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        line.send(bytes(MANY_BYTES))
        line.transport.close()
        line.transport.close()

        def read_on() -> int:
            total = 0
            try:
                while more := taken.socket.recv(1 << 20):
                    total += len(more)
            except OSError:  # TLS says that the end came too early
                pass
            return total

        assert 0 < await asyncio.to_thread(read_on) < MANY_BYTES
        assert line.ends == []

    run(test())


def test_a_close_of_the_peer_comes_after_what_it_said(ends: Ends) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        taken.give(b"".join(frame(b"%d" % number) for number in range(100)))
        taken.close()
        await until(lambda: line.ends)
        assert len(line.got) == 100
        assert line.ends == ["the connection was closed"]
        assert line.transport.closed

    run(test())


def test_a_goodbye_is_an_end_although_the_socket_stays_open(ends: Ends) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        taken.give(frame(b"last"))
        if isinstance(taken.socket, ssl.SSLSocket):
            taken.socket.settimeout(0)
            with contextlib.suppress(ssl.SSLError):
                taken.socket.unwrap()
        else:
            taken.socket.shutdown(socket.SHUT_WR)
        await until(lambda: line.ends)
        assert (line.got, line.ends) == ([[b"last"]], ["the connection was closed"])

    run(test())


@pytest.mark.parametrize("sent", [b"", frame(b"x" * 1_000)[:500], frame(b"x" * MANY_BYTES)[: 1 << 20]])
def test_a_peer_that_vanishes_in_the_middle_of_a_frame_is_an_end(ends: Ends, sent: bytes) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        await asyncio.to_thread(taken.give, frame(b"whole") + sent)
        await until(lambda: line.got)
        taken.vanish()
        await until(lambda: line.ends)
        assert line.got == [[b"whole"]]
        assert line.ends == ["the connection was closed"]

    run(test())


def test_a_peer_that_vanishes_while_messages_wait_is_an_end(ends: Ends) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        line.send(bytes(MANY_BYTES))
        await asyncio.sleep(0.01)
        taken.vanish()
        await until(lambda: line.ends)
        line.send(b"to nobody")
        assert line.ends == ["the connection was closed"]

    run(test())


@pytest.mark.parametrize("said", [b"", GREETING[:1], GREETING[:40], GREETING, GREETING + READY[:10]])
def test_a_handshake_that_ends_half_way_is_told(ends: Ends, said: bytes) -> None:
    async def test() -> None:
        line = ends.line()
        taken = await asyncio.to_thread(ends.peer.accept)
        taken.give(said)
        taken.close()
        await until(lambda: line.ends)
        assert "is it a node" in line.lost[0]
        assert line.got == []

    run(test())


def test_a_handshake_that_stands_still_can_be_given_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it may stand is the connection's to say. Nothing secret is said before the other side has answered."""
    monkeypatch.setattr(stream, "is_of_this_host", lambda _: False)

    async def test() -> None:
        line = ends.line()
        raw = await asyncio.to_thread(ends.peer.accept_raw)
        line.send(b"waits")
        await asyncio.sleep(0.02)
        assert line.ends == []
        line.transport.close()
        raw.setblocking(True)

        def read_on() -> bytes:
            said = b""
            while more := raw.recv(1_000):
                said += more
            return said

        assert b"waits" not in await asyncio.to_thread(read_on)

    run(test())


def test_on_this_host_the_first_message_does_not_wait_for_the_handshake(ends: Ends) -> None:
    async def test() -> None:
        line = ends.line()
        line.send(b"hello")
        taken = await asyncio.to_thread(ends.peer.accept)
        await asyncio.to_thread(taken.take, 64 + len(READY))
        assert await asyncio.to_thread(taken.take_message) == [b"hello"]
        await asyncio.to_thread(taken.give, GREETING + READY + frame(b"welcome"))
        await until(lambda: line.got)
        assert (line.got, line.ends) == ([[b"welcome"]], [])
        line.transport.close()

    run(test())


def test_nobody_there_is_told_once(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        for url in (f"tcp://127.0.0.1:{port}", f"tcp://[::1]:{port}", f"ipc://{tmp_path}/nobody"):
            line = Line(url)
            line.send(b"lost")
            await until(lambda line=line: line.ends)  # type: ignore[misc]
            assert "nobody answers at the address" in line.lost[0]
            assert len(line.ends) == 1

    run(test())


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0", b"\xff" * 64, bytes(100)])
def test_garbage_before_the_greeting_is_told(ends: Ends, garbage: bytes) -> None:
    async def test() -> None:
        line = ends.line()
        taken = await asyncio.to_thread(ends.peer.accept)
        taken.give(garbage)
        await until(lambda: line.ends)
        assert "is it a node" in line.lost[0]

    run(test())


def test_garbage_behind_messages_is_the_end_after_them(ends: Ends) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        taken.give(frame(b"1") + frame(b"2") + b"\x02" + b"\xff" * 8)
        await until(lambda: line.ends)
        assert line.got == [[b"1"], [b"2"]]
        assert f"the limit is {zmtp.FRAME_BYTES_MAX}" in line.lost[0]

    run(test())


def test_random_bytes_never_do_more_than_end_the_connection(ends: Ends) -> None:
    rng = random.Random(11)

    async def once() -> None:
        line, taken = await ends.opened()
        taken.give(rng.randbytes(3_000))
        taken.close()
        await until(lambda: line.ends)
        assert len(line.ends) == 1

    for _ in range(10):
        run(once())


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_that_abandons_it_leaves_it_alone(ends: Ends) -> None:
    async def test() -> None:
        line, taken = await ends.opened()
        pid = os.fork()
        if not pid:
            line.transport.abandon()
            line.send(b"of the child")
            line.transport.close()
            os._exit(0)
        os.waitpid(pid, 0)
        line.send(b"of the parent")
        assert await asyncio.to_thread(taken.take_message) == [b"of the parent"]
        taken.give(frame(b"heard"))
        await until(lambda: line.got)
        assert (line.got, line.ends) == ([[b"heard"]], [])
        line.transport.close()

    run(test())


def test_a_connection_that_was_closed_leaves_no_descriptor(ends: Ends) -> None:
    async def test() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            line, taken = await ends.opened()
            line.transport.close()
            taken.close()
        assert len(os.listdir("/proc/self/fd")) <= before + 1

    run(test())
