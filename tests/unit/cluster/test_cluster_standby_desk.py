"""What the keeper hears of the processes of its node, over real sockets and as its loop is woken."""

from __future__ import annotations

import select
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from angarium_server.frames.shipping import Followed, Order
from angarium_server.watch import Watch
from cluster.standby.desk import FRESH_S, GONE_S, ORDER_S, Desk

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 20.0
#: A socket of ZeroMQ looks for news when it sends, but not each time.
_IDLE_S = 0.01


class Keeper:
    """A desk in a loop, which waits for the descriptor of its watch."""

    def __init__(self, directory: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.watch = Watch()
        self.desk = Desk(self.context, directory)
        self.now = 0.0
        self.watch.add(self.desk.socket, lambda: self.desk.receive(self.now))
        self.process = self.context.socket(zmq.DEALER)
        self.process.connect(self.desk.address)

    def is_woken(self, timeout_s: float = LIMIT_S) -> bool:
        return bool(select.select((self.watch.descriptor,), (), (), timeout_s)[0])

    def says(self, caught_up: int | None, *, follows: bool = True) -> None:
        self.process.send_multipart(Followed("0", "beta", follows, caught_up, 0, 0).frames())


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with tempfile.TemporaryDirectory(prefix="ang-") as name:  # short, for a socket is in it
        made = Keeper(Path(name))
        yield made
        made.context.destroy(linger=0)
        made.watch.close()


@pytest.mark.requirement("R265")
def test_what_comes_while_an_order_is_said_is_heard(keeper: Keeper) -> None:
    keeper.says(None)
    while "0" not in keeper.desk.followed:
        assert keeper.is_woken(), "nothing is heard"
        keeper.watch.wait(0.0)
    keeper.desk.say(Order(1, 10.0, 7))
    for round_number in range(1, 4):
        keeper.says(round_number)
        assert keeper.is_woken()
        # The signal is there, and to send on the socket takes it away, if it was not used a moment ago.
        time.sleep(_IDLE_S)
        keeper.now += 2 * ORDER_S
        keeper.desk.tick(keeper.now)
        while keeper.is_woken(0.0):
            keeper.watch.wait(0.0)
        said, _ = keeper.desk.followed["0"]
        assert said.caught_up == round_number
    keeper.now += GONE_S
    keeper.desk.tick(keeper.now)
    assert keeper.process.poll(int(LIMIT_S * 1000)), "the process hears no order"


def test_a_process_that_is_away_says_nothing_of_the_standby(keeper: Keeper) -> None:
    def hear(*, follows: bool) -> None:
        keeper.says(None, follows=follows)
        while keeper.desk.followed.get("0", (None,))[0] is None or keeper.desk.follows(["0"], 0.0) != follows:
            assert keeper.is_woken(), "nothing is heard"
            keeper.watch.wait(0.0)

    hear(follows=True)
    assert not keeper.desk.follows(["0", "1"], 0.0), "nobody has spoken of store 1"
    assert not keeper.desk.misses(["0", "1"], 0.0)
    hear(follows=False)
    assert keeper.desk.misses(["0", "1"], 0.0)
    assert not keeper.desk.misses(["0", "1"], FRESH_S), "that was a while ago"


@pytest.mark.requirement("R265")
def test_a_process_that_has_just_come_is_told_at_once(keeper: Keeper) -> None:
    desk = keeper.desk
    desk.say(Order(1, 10.0, 7))
    desk.tick(5.0)
    keeper.says(None)
    while "0" not in desk.followed:
        assert keeper.is_woken(), "nothing is heard"
        keeper.watch.wait(0.0)
    desk.tick(5.0)
    assert keeper.process.poll(int(LIMIT_S * 1_000)), "it is not told before the next order is due"
