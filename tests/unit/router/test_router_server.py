"""The shell of a router: what clients brought in a turn does not wait for what takes milliseconds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from router.server import DEAR_BYTES, RouterServer


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
