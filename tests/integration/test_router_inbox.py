"""What workers say is heard, whoever asked the socket last: the signals of ZeroMQ are edges."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import zmq

from angarium_server.frames.homes import FlowMessagesFrame
from angarium_server.frames.matching import Confirm, Result
from angarium_server.watch import Watch
from router.inbox import DRAIN_BYTES, DRAIN_MAX, DRAIN_S, Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULT, CONFIRM, DELIVER = Result.operation, Confirm.operation, FlowMessagesFrame.operation
#: Longer than a frame takes from one socket to the other.
ARRIVED_S = 0.05
#: More turns than anything here takes.
TURNS = 50


class Bench:
    """A worker, and the router as far as it hears that one."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket, self.worker = self.context.socket(zmq.ROUTER), self.context.socket(zmq.DEALER)
        self.worker.setsockopt(zmq.ROUTING_ID, b"w0.1")
        self.socket.bind("inproc://workers")
        self.worker.connect("inproc://workers")
        self.watch = Watch()
        self.inbox = Inbox(self.socket, self._handle, self.watch.touch)
        self.watch.add(self.socket, self._read)
        #: The operation and number of each frame that was handled.
        self.handled: list[tuple[bytes, int]] = []
        #: The same -> what is done then.
        self.meanwhile: dict[tuple[bytes, int], Callable[[], None]] = {}

    def _read(self) -> bool:
        self.inbox.hear()
        return True

    def _handle(self, identity: bytes, frames: list[bytes], _now: float) -> None:
        assert identity == b"w0.1"
        frame = frames[0], int(frames[1])
        self.handled.append(frame)
        self.meanwhile.get(frame, lambda: None)()

    def say(self, operation: bytes, *numbers: int, size: int = 0) -> None:
        """Say something with a body of some bytes, and wait until it is there."""
        for number in numbers:
            self.worker.send_multipart([operation, b"%d" % number, bytes(size)])
        time.sleep(ARRIVED_S)

    def turn(self) -> None:
        self.watch.wait(0.0)
        self.inbox.take_matched(time.monotonic())


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.watch.close()
    made.context.destroy(linger=0)


def test_what_comes_while_dear_results_are_taken_is_heard_although_its_signal_was_used_up(
    bench: Bench,
) -> None:
    """A confirmation stayed in the socket until the router sent something, and a client waited for it that long."""
    bench.meanwhile = {
        (RESULT, 1): lambda: time.sleep(2 * DRAIN_S),  # so the second is left for another turn
        (RESULT, 2): lambda: bench.say(CONFIRM, 3),
    }
    bench.say(RESULT, 1, 2)
    bench.turn()
    assert bench.handled == [(RESULT, 1)]
    for _ in range(TURNS):
        bench.turn()
    assert bench.handled == [(RESULT, 1), (RESULT, 2), (CONFIRM, 3)]


def test_what_homes_say_does_not_wait_for_what_was_matched(bench: Bench) -> None:
    bench.say(RESULT, 1, 2)
    bench.say(DELIVER, 3)
    bench.turn()
    assert bench.handled == [(DELIVER, 3), (RESULT, 1), (RESULT, 2)]


def test_what_is_large_leaves_before_the_next_is_looked_at(bench: Bench) -> None:
    """It would leave the cache of the core meanwhile."""
    bench.say(RESULT, 1, 2, 3, size=DRAIN_BYTES)
    for count in range(1, 4):
        bench.turn()
        assert [number for _, number in bench.handled] == [1, 2, 3][:count]


def test_more_than_one_turn_takes_is_taken_in_the_next_ones(bench: Bench) -> None:
    numbers = range(2 * DRAIN_MAX + 1)
    bench.say(DELIVER, *numbers)
    bench.turn()
    assert 0 < len(bench.handled) <= DRAIN_MAX
    for _ in range(TURNS):
        bench.turn()
    assert [number for _, number in bench.handled] == [*numbers]


def test_all_that_has_come_is_taken_at_once_if_who_said_it_is_gone(bench: Bench) -> None:
    """What a worker says last may be why it ends."""
    bench.say(RESULT, 1, 2, size=DRAIN_BYTES)
    bench.say(DELIVER, 3, 4, size=DRAIN_BYTES)
    bench.say(DELIVER, 5)
    bench.inbox.take_all()
    assert bench.handled == [(DELIVER, 3), (DELIVER, 4), (DELIVER, 5), (RESULT, 1), (RESULT, 2)]
    bench.say(DELIVER, 6)
    bench.turn()
    assert bench.handled[-1] == (DELIVER, 6)
