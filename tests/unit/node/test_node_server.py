"""The shell of a worker: what is done in one turn of its loop, and how long frames are taken."""

from __future__ import annotations

import time
from collections import deque

import pytest
import zmq

from angarium import wire
from angarium_server.black_box import BlackBox
from node.matching.inbox import Inbox
from node.server import DRAIN_S, LARGE_BYTES, MATCH_S, WorkerServer

FRAME_S = 0.001


class Turns:
    """A worker whose frames take some time each, and what is done in each of its turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.there: deque[bytes] = deque()
        self.done: list[str] = []
        self.paused, self.is_storing = 0, False
        self.next_tidy = float("inf")
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.server = server = WorkerServer.__new__(WorkerServer)
        server._socket = self  # type: ignore[assignment]
        server._worker = self  # type: ignore[assignment]
        server._home = self  # type: ignore[assignment]
        server._box, server._frames_per_wake, server._unmatched = BlackBox(), 1_000, Inbox()
        server._now, server._drain_s, server._dear = 0.0, DRAIN_S, server._dear_work()
        server._announce = server._follow_memory = lambda _now: None  # type: ignore[assignment,method-assign,return-value]

    # -- the socket

    def recv(self, _flags: int) -> bytes:
        if not self.there:
            raise zmq.Again
        return self.there.popleft()

    def get(self, _option: int) -> int:
        """Tell that the frame was the only one of its message."""
        return 0

    # -- the worker and the home

    found_faulty = ""

    @property
    def has_work(self) -> bool:
        return self.paused > 0

    def share(self, _waiting: int) -> None:
        """A part of the step is nothing here."""

    def handle(self, frames: list[bytes], *_now: float) -> list[list[bytes]]:
        self._spend("stored" if frames == [wire.STORE] else frames[0].decode())
        return []

    def work(self) -> list[list[bytes]]:
        if self.paused:
            self.paused -= 1
            self._spend("went on")
        return []

    def tidy(self, _now: float) -> list[list[bytes]]:
        self._spend("tidied")
        return []

    def tick(self, _now: float) -> float:
        self.done.append("home")
        return 1.0

    def _spend(self, what: str) -> None:
        self.now += FRAME_S
        self.done.append(what)

    # -- the loop

    def turn(self, *frames: bytes) -> list[str]:
        """Have frames come, and give what is done in the turn."""
        self.there += frames
        self.done = []
        self.server._drain()
        self.server._tick(self.now)
        return self.done


@pytest.mark.requirement("R278")
def test_what_is_for_the_home_does_not_wait_for_batches_that_came_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(monkeypatch)
    turns.is_storing = True
    assert turns.turn(wire.MATCH, wire.MATCH, wire.STORE) == ["stored", "home", "m"]
    assert turns.turn(wire.STORE) == ["stored", "home", "m"]
    assert turns.turn() == ["home"]


def test_while_nothing_is_stored_more_is_matched_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    most = round(MATCH_S / FRAME_S)
    assert turns.turn(*[wire.MATCH] * (most + 1)) == ["home", *["m"] * most]


@pytest.mark.requirement("R278")
def test_a_turn_has_one_part_of_what_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    turns.paused, turns.next_tidy = 2, 0.0
    turns.is_storing = True
    assert turns.turn(*[wire.MATCH] * 3) == ["home", "m"]
    done = [turns.turn() for _ in range(6)]
    assert sorted(done[:3]) == [["home", "m"], ["home", "tidied"], ["home", "went on"]]
    assert sorted(done[3:]) == sorted(done[:3])


@pytest.mark.requirement("R278")
def test_frames_that_come_while_a_turn_goes_on_do_not_make_it_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    most = round(DRAIN_S / FRAME_S)
    turns.there += [wire.STORE] * (most - 1)
    assert not turns.server._drain()
    turns.there += [wire.STORE] * 10
    assert turns.server._drain(), "what is left of the turn"
    assert turns.server._drain()
    assert turns.done == ["stored"] * most
    assert turns.turn() == ["home"]
    assert turns.turn() == [*["stored"] * most, "home"]


def test_a_large_batch_is_handled_before_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, large = Turns(monkeypatch), wire.MATCH * (LARGE_BYTES + 1)
    assert turns.turn(large, wire.STORE) == ["home", large.decode()]
    assert turns.turn() == ["stored", "home"]


def test_a_worker_without_a_home_does_not_pass_over_what_is_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts it as a fault, like all that no router sends."""
    turns = Turns(monkeypatch)
    turns.server._home = None
    assert turns.turn(wire.STORE) == ["stored"]


def test_a_start_is_taken_behind_all_that_came_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    assert turns.turn(wire.MATCH, wire.START, wire.STORE) == ["m", "s", "s", "stored", "home"]
