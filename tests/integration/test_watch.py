"""Waiting for sockets and descriptors: nothing is slept over, although the signals of ZeroMQ are edges."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
import zmq

from angarium_server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.watch import Watched

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

    def take_one(self, socket: zmq.Socket[bytes], name: str) -> bool:
        """Do what a handler does that bounds its work."""
        self.called.append(f"{name} {socket.recv(zmq.NOBLOCK).decode()}")
        return True

    def take_all(self, socket: zmq.Socket[bytes], name: str) -> bool:
        """Do what a handler does that goes on until there is nothing."""
        try:
            while True:
                self.take_one(socket, name)
        except zmq.Again:
            return False

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


def test_a_handler_that_stopped_before_its_socket_was_empty_is_called_again(bench: Bench) -> None:
    socket, sender = bench.pair()
    bench.watch.add(socket, lambda: bench.take_one(socket, "it"))
    assert bench.wait(0.0) == []
    sender.send(b"1")
    sender.send(b"2")
    assert bench.wait() == ["it 1"]
    assert bench.wait() == ["it 2"]
    assert bench.wait(0.0) == []
    sender.send(b"3")
    assert bench.wait() == ["it 3"]


def test_a_socket_that_its_handler_found_empty_signals_what_comes_next(bench: Bench) -> None:
    socket, sender = bench.pair()
    bench.watch.add(socket, lambda: bench.take_all(socket, "it"))
    sender.send(b"1")
    sender.send(b"2")
    assert bench.wait() == ["it 1", "it 2"]
    assert bench.wait(0.0) == []
    sender.send(b"3")
    assert bench.wait() == ["it 3"]


def test_what_came_before_a_socket_was_watched_is_served(bench: Bench) -> None:
    socket, sender = bench.pair()
    sender.send(b"1")
    assert int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN  # which uses up the signal
    bench.watch.add(socket, lambda: bench.take_all(socket, "it"))
    assert bench.wait() == ["it 1"]


def test_a_send_may_use_up_a_signal_and_is_told_by_a_touch(bench: Bench) -> None:
    socket, sender = bench.pair()
    bench.watch.add(socket, lambda: bench.take_all(socket, "it"))
    assert bench.wait(0.0) == []
    sender.send(b"1")
    assert int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
    assert bench.wait(0.0) == []
    bench.watch.touch(socket)
    assert bench.wait() == ["it 1"]


def test_a_handler_that_sends_on_another_socket_does_not_let_that_be_slept_over(bench: Bench) -> None:
    first, first_sender = bench.pair()
    second, second_sender = bench.pair()

    def pass_on() -> bool:
        bench.take_all(first, "first")
        second_sender.send(b"meanwhile")
        assert int(second.getsockopt(zmq.EVENTS)) & zmq.POLLIN  # what a send may do
        bench.watch.touch(second)
        return False

    bench.watch.add(first, pass_on)
    bench.watch.add(second, lambda: bench.take_all(second, "second"))
    assert bench.wait(0.0) == []
    first_sender.send(b"1")
    assert bench.wait() == ["first 1"]
    assert bench.wait() == ["second meanwhile"]


def test_a_socket_that_always_has_more_does_not_keep_the_others_waiting(bench: Bench) -> None:
    busy, busy_sender = bench.pair()
    calm, calm_sender = bench.pair()
    bench.watch.add(busy, lambda: bench.take_one(busy, "busy"))
    bench.watch.add(calm, lambda: bench.take_all(calm, "calm"))
    for number in (b"1", b"2", b"3"):
        busy_sender.send(number)
    assert bench.wait() == ["busy 1"]
    calm_sender.send(b"1")
    assert bench.wait() == ["busy 2", "calm 1"]
    assert bench.wait() == ["busy 3"]


def test_a_descriptor_is_served(bench: Bench) -> None:
    reader, writer = os.pipe()
    try:
        bench.watch.add(reader, lambda: bench.called.append(os.read(reader, 10).decode()))
        assert bench.wait(0.0) == []
        os.write(writer, b"woken")
        assert bench.wait() == ["woken"]
        bench.watch.remove(reader)
        os.write(writer, b"again")
        assert bench.wait(0.0) == []
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("in_doubt", [True, False])
def test_what_an_earlier_handler_removed_is_not_served(bench: Bench, in_doubt: bool) -> None:
    ends = {"first": bench.pair(), "second": bench.pair()}
    watched: dict[str, Watched] = {}

    def handle(name: str, other: str) -> bool:
        bench.watch.remove(watched.pop(other))
        return bench.take_all(ends[name][0], name)

    for name, other in (("first", "second"), ("second", "first")):
        watched[name] = ends[name][0]
        bench.watch.add(ends[name][0], partial(handle, name, other))
    if not in_doubt:
        assert bench.wait(0.0) == []
    for _, sender in ends.values():
        sender.send(b"1")
    assert len(bench.wait()) == 1
    assert bench.wait(0.0) == []


def test_one_watch_watches_another(bench: Bench) -> None:
    inner = Watch()
    read_end, write_end = os.pipe()
    try:
        inner.add(read_end, lambda: bench.called.append(os.read(read_end, 10).decode()))
        bench.watch.add(inner.descriptor, lambda: bool(inner.wait(0.0)) and None)
        assert bench.wait(0.05) == []
        os.write(write_end, b"x")
        assert bench.wait() == ["x"]
        bench.watch.remove(inner.descriptor)
    finally:
        inner.close()
        os.close(read_end)
        os.close(write_end)


def test_less_than_a_millisecond_is_slept_as_exactly_and_not_for_nothing(bench: Bench) -> None:
    began = time.monotonic()
    assert bench.wait(0.0005) == []
    assert time.monotonic() - began >= 0.0005
    watched, sender = bench.pair()
    bench.watch.add(watched, partial(bench.take_all, watched, "a"))
    bench.wait(0.0)
    sender.send(b"1")
    until = time.monotonic() + LONG_S
    while bench.wait(0.0005) != ["a 1"]:
        assert time.monotonic() < until, "it slept over something"
