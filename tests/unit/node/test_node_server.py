"""The shell of a worker: how long frames are taken in one turn of its loop."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import zmq

from angarium_server.black_box import BlackBox
from node.server import DRAIN_S, WorkerServer

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAME_S = 0.001


class Frames:
    """Frames that are there, each of which takes a worker some time, and its loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.there, self.taken = 100.0, 0, 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.server = server = WorkerServer.__new__(WorkerServer)
        server._socket = self  # type: ignore[assignment]
        server._worker = SimpleNamespace(  # type: ignore[assignment]
            handle=self.handle, work=list, has_work=False, found_faulty=""
        )
        server._box, server._home, server._frames_per_wake, server._now = BlackBox(), None, 1_000, 0.0
        server._announce = server._tidy = lambda _now: None  # type: ignore[assignment,method-assign,return-value]
        self.turn()

    def turn(self) -> None:
        self.server._tick(self.now)

    def recv(self, _flags: int) -> bytes:
        if not self.there:
            raise zmq.Again
        self.there -= 1
        return b"x"

    def get(self, _option: int) -> int:
        """Tell that the frame was the only one of its message."""
        return 0

    def handle(self, _frames: list[bytes], _now: float) -> Iterator[list[bytes]]:
        self.now += FRAME_S
        self.taken += 1
        return iter(())

    def drain(self, there: int) -> tuple[int, bool | None]:
        """Have so many frames come; give how many are taken, and whether there may be more."""
        self.there += there
        before = self.taken
        more = self.server._drain()
        return self.taken - before, more


@pytest.mark.requirement("R278")
def test_frames_that_come_while_a_turn_goes_on_do_not_make_it_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    most = round(DRAIN_S / FRAME_S)
    frames = Frames(monkeypatch)
    assert frames.drain(most - 1) == (most - 1, False)
    assert frames.drain(10) == (1, True), "what is left of the turn"
    assert frames.drain(0) == (0, True)
    frames.turn()
    assert frames.drain(0) == (most, True)
