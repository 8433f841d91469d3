"""The shell of a router: what clients brought in a turn does not wait for what takes milliseconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cluster import objects
from router.matching.feed import FRAME_LEVELS_MAX, FRAMES_MAX
from router.server import DEAR_BYTES, WORKERS_WAIT_S, RouterServer
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from tests.unit.router.wired_node import WiredNode


class Turn:
    """A shell around a router that does nothing, and what was done in a turn."""

    def __init__(self, *, has_dear_rounds: bool = False, is_subscribing: bool = False) -> None:
        self.done: list[str] = []
        self.turns = [object()] if has_dear_rounds else []
        self.is_busy = is_subscribing
        self.has_matched = False
        self.is_resting = False
        self.peer = self.id = b"1"
        self.server = server = RouterServer.__new__(RouterServer)
        self.rounds = self.subscriptions = self
        server._router = server._inbox = server._door = server._pace = self  # type: ignore[assignment]
        server._look_at, server._is_stirred, server._lists, server._ready = 1e9, False, (), True  # type: ignore[assignment]
        server._turn_began, server._memory_wait_s = None, 1.0
        self.out = SimpleNamespace(take=self._take, effects=[])

    def _take(self) -> list[object]:
        self.done.append("carried out")
        return []

    def flush(self) -> None:
        """Nothing is sent."""

    def next_tick(self) -> float:
        return 0.0

    def tick(self, _now: float) -> None:
        self.done.append("ticked")

    def read_rest(self) -> bool:
        return False

    def heard(self, _who: bytes) -> None:
        """The pace is nothing here."""

    def client_frames(self, _who: bytes, frames: list[bytes], _now: float, _peer: str) -> bool:
        self.done.append(frames[0].decode())
        return True


@pytest.mark.requirement("R278")
@pytest.mark.parametrize("what", ["has_dear_rounds", "is_subscribing"])
def test_what_clients_brought_is_carried_out_before_a_dear_tick(what: str) -> None:
    turn = Turn(**{what: True})
    turn.server._client_message(turn, [b"P"], 1e9)  # type: ignore[arg-type]
    turn.server.tick(0.0)
    assert turn.done == ["P", "carried out", "ticked", "carried out"]


def test_a_tick_that_is_not_dear_shares_what_is_sent_with_the_turn() -> None:
    turn = Turn()
    turn.server._client_message(turn, [b"P"], 1e9)  # type: ignore[arg-type]
    turn.server.tick(0.0)
    assert turn.done == ["P", "ticked", "carried out"]


@pytest.mark.requirement("R278")
def test_what_came_before_a_large_batch_does_not_wait_for_it() -> None:
    turn = Turn()
    for frames in ([b"P"], [b"P", bytes(DEAR_BYTES)], [b"P", bytes(DEAR_BYTES + 1)]):
        turn.server._client_message(turn, frames, 1e9)  # type: ignore[arg-type]
    assert turn.done == ["P", "P", "carried out", "P"]


def queue_of_many_filters() -> list[Any]:
    """Give a queue of which a worker hears in more frames than are sent before it has confirmed one."""
    filters = [f"devices/{number}" for number in range((FRAMES_MAX + 1) * FRAME_LEVELS_MAX)]
    attributes = {**objects.complete("queue", {"subscriptions": filters}), "id": 77, "generation": 1}
    attributes |= {"created_by": "operator", "durable": True, "homes": [0], "client_subscriptions": []}
    return ["queue", "default", "big", attributes]


@pytest.mark.requirement("R278")
@pytest.mark.parametrize("waited_s", [0.0, WORKERS_WAIT_S])
def test_nobody_comes_before_the_workers_were_told_of_all_that_queues_want(
    node: WiredNode, waited_s: float
) -> None:
    """The configuration comes after the workers, as when the router alone was started again.

    What a client published before would be acknowledged as taken by nobody.
    """
    server = RouterServer.__new__(RouterServer)
    server._router, server._started_at = node.router, node.now
    now = node.now + waited_s
    assert server._may_open(now)
    node.pause(0)
    node.router.operators.configure([*snapshot(), queue_of_many_filters()], node.now)
    node.settle()
    assert not server._may_open(now)
    node.unpause(0)
    assert server._may_open(now)


@pytest.mark.requirement("R278")
def test_a_worker_that_does_not_come_back_is_waited_for_a_moment_only(node: WiredNode) -> None:
    server = RouterServer.__new__(RouterServer)
    server._router, server._started_at = node.router, node.now
    node.pause(0)
    node.router.operators.configure([*snapshot(), queue_of_many_filters()], node.now)
    node.kill_worker(0)
    assert not server._may_open(node.now)
    assert server._may_open(node.now + WORKERS_WAIT_S)
