"""Waiting for sockets and descriptors: nothing is slept over, although the signals of ZeroMQ are edges."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
import zmq

from angarium.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium.watch import Watched

#: Longer than any wait that ends by itself here; a wait that lasts so long has missed something.
LONG_S = 5.0


class Bench:
    """A watch and pairs of sockets: one that is watched, and one that sends to it."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.watch = Watch()
        self.called: list[str] = []
        #: Kept, because a socket that nobody holds is closed with a warning.
        self._pairs: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []

    def pair(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        watched, sender = self.context.socket(zmq.PAIR), self.context.socket(zmq.PAIR)
        watched.bind(f"inproc://{len(self._pairs)}")
        sender.connect(f"inproc://{len(self._pairs)}")
        self._pairs.append((watched, sender))
        return watched, sender

    def take_one(self, socket: zmq.Socket[bytes], name: str) -> None:
        """Do what a handler does that bounds its work."""
        self.called.append(f"{name} {socket.recv(zmq.NOBLOCK).decode()}")

    def wait(self, seconds: float = LONG_S) -> list[str]:
        """Wait once, and give what was called."""
        self.called.clear()
        started = time.monotonic()
        self.watch.wait(seconds)
        assert time.monotonic() - started < LONG_S, "it slept over something"
        return self.called.copy()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.watch.close()
    made.context.destroy(linger=0)


@pytest.mark.parametrize("kind", ["add", "add_rare"])
def test_a_socket_is_served_until_it_is_empty(bench: Bench, kind: str) -> None:
    socket, sender = bench.pair()
    getattr(bench.watch, kind)(socket, lambda: bench.take_one(socket, "it"))
    assert bench.wait(0.0) == []
    sender.send(b"1")
    sender.send(b"2")
    assert bench.wait() == ["it 1"]
    assert bench.wait() == ["it 2"]
    assert bench.wait(0.0) == []


@pytest.mark.parametrize("kind", ["add", "add_rare"])
def test_what_came_before_a_socket_was_watched_is_served(bench: Bench, kind: str) -> None:
    socket, sender = bench.pair()
    sender.send(b"1")
    assert socket.getsockopt(zmq.EVENTS) & zmq.POLLIN  # which uses up the signal
    getattr(bench.watch, kind)(socket, lambda: bench.take_one(socket, "it"))
    assert bench.wait() == ["it 1"]


def test_a_send_on_a_rare_socket_may_use_up_a_signal_and_is_told_by_a_touch(bench: Bench) -> None:
    socket, sender = bench.pair()
    bench.watch.add_rare(socket, lambda: bench.take_one(socket, "rare"))
    assert bench.wait(0.0) == []
    sender.send(b"1")
    assert socket.getsockopt(zmq.EVENTS) & zmq.POLLIN
    assert bench.wait(0.0) == []
    bench.watch.touch()
    assert bench.wait() == ["rare 1"]


def test_sockets_that_are_often_readable_do_not_keep_the_rare_ones_waiting(bench: Bench) -> None:
    often, often_sender = bench.pair()
    rare, rare_sender = bench.pair()
    bench.watch.add(often, lambda: bench.take_one(often, "often"))
    bench.watch.add_rare(rare, lambda: bench.take_one(rare, "rare"))
    for number in (b"1", b"2", b"3"):
        often_sender.send(number)
    bench.wait()
    rare_sender.send(b"1")
    assert sorted(bench.wait()) == ["often 2", "rare 1"]
    assert bench.wait() == ["often 3"]


def test_a_descriptor_is_served(bench: Bench) -> None:
    reader, writer = os.pipe()
    try:
        bench.watch.add_rare(reader, lambda: bench.called.append(os.read(reader, 10).decode()))
        assert bench.wait(0.0) == []
        os.write(writer, b"woken")
        assert bench.wait() == ["woken"]
        bench.watch.remove(reader)
        os.write(writer, b"again")
        assert bench.wait(0.0) == []
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("kind", ["add", "add_rare"])
def test_what_an_earlier_handler_removed_is_not_served(bench: Bench, kind: str) -> None:
    ends = {"first": bench.pair(), "second": bench.pair()}
    watched: dict[str, Watched] = {}

    def handle(name: str, other: str) -> None:
        bench.take_one(ends[name][0], name)
        bench.watch.remove(watched.pop(other))

    for name, other in (("first", "second"), ("second", "first")):
        watched[name] = ends[name][0]
        getattr(bench.watch, kind)(ends[name][0], lambda name=name, other=other: handle(name, other))
        ends[name][1].send(b"1")
    assert bench.wait() == ["first 1"]
    assert bench.wait(0.0) == []
