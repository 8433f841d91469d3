"""What requests take from a queue: credit for what they ask for, leases, and what becomes of what nobody settles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from angarium import errors, wire
from angarium.client.protocol.events import Arrived, Indicated
from angarium.client.protocol.flow_window import spool_size
from angarium.client.protocol.messages import GuaranteedDelivery
from angarium.errors import error_for
from angarium.message import Message
from gateway.http.queues import HELD_S, LINGER_S, RECEIVERS_MAX, Reader, Receipts, Receiver, Taken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import Range
    from angarium.errors import AngariumError
    from gateway.asking import Done
    from gateway.attached import Attached

OWNER = ("v", "anna", "q")


class FakeAttached:
    """A client at a node that does as it is told."""

    def __init__(self) -> None:
        self.window: FlowWindow | None = None
        self.bound: Done | None = None
        self.settled: list[tuple[int, int]] = []
        self.unbound = 0
        self.unseen: list[Range] = []

    def bind(self, window: FlowWindow, arguments: dict[str, Any], done: Done) -> None:
        assert arguments == {"name": "q"}
        window.flow = 1
        self.window, self.bound = window, done

    def unbind(self, window: FlowWindow, unseen: Sequence[Range] = ()) -> None:
        assert window is self.window
        self.unseen += unseen
        self.window = None
        self.unbound += 1

    def settle(self, window: FlowWindow, partition: int, position: int, outcome: int) -> None:
        assert window is self.window
        assert partition == 3
        self.settled.append((position, outcome))

    def renew(self, window: FlowWindow) -> None:
        assert window is self.window
        window.renew()

    @property
    def credit(self) -> int:
        assert self.window is not None
        return self.window.granted_messages - self.window.received_messages


class World:
    """A reader, and requests that note what they get."""

    def __init__(self) -> None:
        self.attached = FakeAttached()
        self.receipts = Receipts()
        self.reader = Reader(cast("Attached", self.attached), OWNER, self.receipts)
        self.got: list[Taken] = []
        self.codes: list[int] = []
        self.position = 0
        self.now = 0.0

    def done(self, taken: Sequence[Taken], error: AngariumError | None) -> None:
        self.got += taken
        self.codes += [error.code] if error else []

    def receive(self, most: int = 1, lease_s: float = 30.0) -> Receiver:
        receiver = Receiver(most, lease_s, self.done)
        self.reader.receive(receiver, self.now)
        return receiver

    def comes(self, count: int = 1) -> None:
        assert self.attached.credit >= count, "more than was asked for"
        window = self.attached.window
        assert window is not None
        rows = [Message("t", b"x", mode="persistent").row] * count
        runs = [(self.position + 1, count)]
        self.position += count
        size = spool_size(rows)
        window.receive(count, size)
        delivery = GuaranteedDelivery(window, 3, rows, runs, None, 7, None, size)
        self.reader.take(Arrived(window, [delivery]), self.now)

    def settle(self, outcome: int = wire.OUTCOME_ACCEPTED, owner: tuple[str, str, str] = OWNER) -> list[str]:
        return self.receipts.settle_all([one.receipt for one in self.got], owner, outcome, self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.reader.tick(self.now)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.reader.validate()


def test_credit_is_what_requests_ask_for(world: World) -> None:
    world.receive(2)
    assert world.attached.credit == 2
    world.receive(3)
    assert world.attached.credit == 5
    world.comes(2)
    assert len(world.got) == 2
    assert world.attached.credit == 3


def test_a_request_gets_what_is_there_and_waits_for_no_more(world: World) -> None:
    world.receive(10)
    world.comes(3)
    assert [one.stored_ms for one in world.got] == [7, 7, 7]
    assert len({one.receipt for one in world.got}) == 3


def test_what_is_settled_is_told_to_the_queue_once(world: World) -> None:
    world.receive(2)
    world.comes(2)
    assert world.settle() == []
    assert world.attached.settled == [(1, wire.OUTCOME_ACCEPTED), (2, wire.OUTCOME_ACCEPTED)]
    assert world.settle() == [one.receipt for one in world.got]
    assert len(world.receipts) == 0


@pytest.mark.parametrize("owner", [("v", "bob", "q"), ("w", "anna", "q"), ("v", "anna", "r")])
def test_a_receipt_is_for_who_got_it(world: World, owner: tuple[str, str, str]) -> None:
    world.receive()
    world.comes()
    assert len(world.settle(owner=owner)) == 1
    assert not world.attached.settled


def test_a_lease_that_is_over_fails_the_message(world: World) -> None:
    world.receive(1, lease_s=10)
    world.comes()
    world.passes(9.9)
    assert not world.attached.settled
    world.passes(0.1)
    assert world.attached.settled == [(1, wire.OUTCOME_FAILED)]
    assert len(world.settle()) == 1


def test_what_comes_too_late_is_for_the_next_request_or_goes_back_unseen(world: World) -> None:
    receiver = world.receive(2)
    world.reader.give_up(receiver, world.now)
    world.comes()
    world.receive()
    assert len(world.got) == 1
    world.settle()
    world.comes()
    world.passes(HELD_S)
    assert world.attached.settled == [(1, wire.OUTCOME_ACCEPTED)]
    assert world.attached.unseen == [(3, 2, 2)]
    assert not world.reader.is_bound


def test_what_comes_too_late_beside_a_lease_goes_back_unseen_and_the_lease_stays(world: World) -> None:
    world.reader.give_up(world.receive(3), world.now)
    world.receive(1, lease_s=60)
    world.comes()
    world.comes()
    world.passes(HELD_S)
    assert world.attached.settled == [(2, wire.OUTCOME_RELEASED)]
    assert world.reader.is_bound
    assert world.settle() == []


def test_the_flow_of_who_gave_up_is_unbound_at_once_and_of_who_got_all_later(world: World) -> None:
    receiver = world.receive()
    world.reader.give_up(receiver, world.now)
    world.passes(0)
    assert world.attached.unbound == 1
    world.receive()
    world.comes()
    world.settle()
    world.passes(LINGER_S - 0.1)
    assert world.attached.unbound == 1
    world.passes(0.1)
    assert world.attached.unbound == 2
    assert not world.reader.is_bound


def test_a_reader_with_a_successor_does_not_linger(world: World) -> None:
    world.receive()
    world.comes()
    world.reader.is_last = True
    world.passes(1.0)
    assert world.reader.is_bound, "a message is on lease"
    world.settle()
    world.passes(0)
    assert not world.reader.is_bound


def test_a_flow_that_is_refused_or_ends_is_told_to_who_waits(world: World) -> None:
    world.receive()
    assert world.attached.bound is not None
    world.attached.bound(None, error_for(errors.UNKNOWN_ENDPOINT), world.now)
    assert world.codes == [errors.UNKNOWN_ENDPOINT]
    world.receive(2)
    world.comes()
    world.receive()
    window = world.attached.window
    assert window is not None
    world.reader.indicated(Indicated(window, wire.FLOW_CLOSED, 0, "", []), world.now)
    assert world.codes[1:] == [errors.HOME_NOT_READY]
    assert len(world.settle()) == 1, "its lease is over"


def test_what_is_on_lease_of_a_partition_that_is_lost_is_on_lease_no_more(world: World) -> None:
    """Another consumer gets it: who settles it here is told so, and no request gets what came of it last."""
    world.receive(2)
    world.comes(2)
    receiver = world.receive()
    world.reader.give_up(receiver, world.now)
    world.comes()
    window = world.attached.window
    assert window is not None
    for partitions in ([3, 4], [4]):
        assert len(world.receipts) == 2
        world.reader.indicated(Indicated(window, wire.FLOW_PARTITIONS, 0, "", partitions), world.now)
    world.receive()
    assert len(world.got) == 2
    assert world.settle() == [one.receipt for one in world.got]
    assert world.attached.settled == []
    assert window.held_messages == 0


def test_what_no_request_got_of_a_partition_that_is_to_move_goes_back_untried(world: World) -> None:
    world.receive()
    world.comes()
    receiver = world.receive()
    world.reader.give_up(receiver, world.now)
    world.comes()
    window = world.attached.window
    assert window is not None
    for partitions in ([4], [3, 4]):
        assert world.attached.settled == []
        world.reader.indicated(Indicated(window, wire.FLOW_LEAVING, 0, "", partitions), world.now)
    assert world.attached.settled == [(2, wire.OUTCOME_RELEASED)]
    assert world.settle() == []
    assert world.attached.settled[1:] == [(1, wire.OUTCOME_ACCEPTED)], "what is on lease stays so"
    assert (window.held_messages, world.reader.is_idle) == (0, True)


def test_requests_that_wait_are_bounded(world: World) -> None:
    for _ in range(RECEIVERS_MAX):
        assert not world.reader.is_full
        world.receive()
    assert world.reader.is_full
