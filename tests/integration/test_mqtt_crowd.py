"""The sockets of clients in the loop of a process: signals begin turns, or the clock does; nothing is slept over."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from angarium_server.watch import Watch
from cluster.mqtt.crowd import LOOK_S, PACE_S, PACED_FROM, Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_S = 5.0
#: A machine that does much else sends so many messages a second only at times.
PACED_MAX_S = 60.0


class Bench:
    """The loop of a process, and some clients of it."""

    def __init__(self, clients: int) -> None:
        self.loop = Watch()
        self.crowd = Crowd(self.loop)
        self.pairs = [socket.socketpair() for _ in range(clients)]
        self.read: list[bytes] = []
        for ours, _ in self.pairs:
            self.crowd.watch.add(ours.fileno(), lambda ours=ours: self.read.append(ours.recv(100)))  # type: ignore[misc]

    def turn(self) -> None:
        """Wait, as the loop of a process does, and go through one turn."""
        now = time.monotonic()
        self.loop.wait(min(LONG_S, max(0.0, self.crowd.tick(now) - now)))
        self.crowd.tick(time.monotonic())

    def wait_for(self, count: int) -> None:
        until = time.monotonic() + LONG_S
        while len(self.read) < count:
            self.turn()
            assert time.monotonic() < until, "something was slept over"

    def pace(self) -> None:
        """Let so much come that sockets are read by the clock."""
        until = time.monotonic() + PACED_MAX_S
        while not self.crowd.is_paced:
            assert time.monotonic() < until, "so many messages are not read by the clock"
            before = len(self.read)
            for _, theirs in self.pairs:
                theirs.send(b"x")
            self.wait_for(before + len(self.pairs))
        self.read.clear()

    def close(self) -> None:
        self.crowd.close()
        self.loop.close()
        for pair in self.pairs:
            for one in pair:
                one.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(50)
    yield made
    made.close()


def test_a_lone_message_begins_a_turn(bench: Bench) -> None:
    for _, theirs in bench.pairs[:3]:
        began = time.monotonic()
        theirs.send(b"x")
        bench.turn()
        assert time.monotonic() - began < LONG_S
    assert bench.read == [b"x"] * 3


def test_what_gathers_is_read_without_a_signal(bench: Bench) -> None:
    bench.pace()
    for _, theirs in bench.pairs:
        theirs.send(b"y")
    assert bench.loop.wait(0.0) == 0, "the loop does not wait for them"
    bench.wait_for(len(bench.pairs))
    assert bench.read == [b"y"] * len(bench.pairs)


def test_a_lone_message_begins_a_turn_again_when_it_is_quiet(bench: Bench) -> None:
    bench.pace()
    until = time.monotonic() + LONG_S
    while bench.crowd.tick(now := time.monotonic()) < float("inf"):
        # Not a whole turn: the tick before its wait may end the pace, and then it waits for a message.
        bench.loop.wait(PACE_S)
        assert now < until
    bench.pairs[0][1].send(b"z")
    assert bench.loop.wait(LONG_S) == 1
    assert bench.read == [b"z"]


def test_so_much_is_many() -> None:
    assert PACED_FROM * LOOK_S > 50, "a burst of some messages in a quiet moment is read at once"
