"""The home in a simulated worker process: the real state machine over a disk that takes its time and fails.

What `node.server` does around it: frames in, ticks, frames out, one write at a time beside the loop. A write that
is under way when the process dies is on disk as a whole, or not at all; a disk may be full for a while; a sync
that fails ends the process.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from event_history import FOREVER
from simulated_disk import SimulatedDisk

from angarium import errors
from guaranteed.control_plane import ControlPort
from guaranteed.home_observer import DiskObserver, FrameObserver
from node.home.home import Home
from node.home.operations import Answer
from storage.spool import SpoolFailedError, SpoolFullError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from event_history import History
    from simulated_network import Frames, Loop
    from simulated_worker import SimulatedWorker

    from guaranteed.records import GuaranteedHistory
    from guaranteed.simulated_controller import SimulatedController
    from node.home.home import HomeLimits
    from storage.spool import Change

#: Reading the spool at a start takes so long at most, whatever is in it.
RECOVERY_MAX_S = 0.2
#: No loop looks at the clock more often.
POLL_MIN_S = 0.001


class WorkerDisk:
    """The disk of one worker index; it outlives the processes."""

    def __init__(self, history: GuaranteedHistory, index: int, write_max_s: float) -> None:
        self.disk = SimulatedDisk()
        self.observer = DiskObserver(history, index)
        #: A commit takes so long at most.
        self.write_max_s = write_max_s
        #: Until then commits take much longer.
        self.slow_until = 0.0
        #: Until then there is no room.
        self.full_until = 0.0

    def duration_s(self, rng: random.Random, now: float) -> float:
        """Draw how long a commit takes."""
        if now < self.slow_until:
            return 0.1 + rng.random() * 1.5
        return 0.0001 + rng.random() ** 2 * self.write_max_s


class SimulatedHome:
    """The home of one worker process."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        history: History,
        guaranteed: GuaranteedHistory,
        worker: SimulatedWorker,
        disk: WorkerDisk,
        limits: HomeLimits,
        home_class: type[Home],
        on_death: Callable[[], None],
    ) -> None:
        """Start to read the disk; `is_ready` follows."""
        self._loop = loop
        self._rng = rng
        self._history = history
        self._guaranteed = guaranteed
        self._worker = worker
        self.place = disk
        self._on_death = on_death
        self.home = home_class(disk.disk, worker.incarnation, limits)
        self._observer = FrameObserver(guaranteed, worker.index)
        self.is_ready = False
        self._next_tick = FOREVER
        #: Number and changes of the write that is out.
        self._out: tuple[int, list[Change]] | None = None
        #: What the writer has done, and the paused process has not heard of.
        self._done: list[Callable[[], None]] = []
        self.port: ControlPort | None = None
        #: Answers that are known later, by request.
        self._later: dict[int, Answer] = {}
        loop.after(0.001 + rng.random() * RECOVERY_MAX_S, self._recover)

    def connect(self, controller: SimulatedController) -> None:
        """Let the controller reach this process."""
        place = ("worker", self._worker.index)
        self.port = ControlPort(
            self._loop,
            self._rng,
            controller,
            place,
            self._worker.incarnation,
            self._run,
            self._request,
        )
        controller.ports.append(self.port)

    # The process.

    def _alive(self) -> bool:
        return not self._worker.is_dead

    def _run(self, call: Callable[[], None]) -> None:
        """Have something done by the process: later if it is paused, never if it is dead."""
        if not self._alive():
            return
        if self._worker.is_paused:
            self._done.append(call)
            return
        try:
            call()
            self._after()
        except Exception:  # noqa: BLE001 - whatever it is, it would have ended the process
            self._history.break_rule(
                f"worker {self._worker.index} ends with {traceback.format_exc(limit=-4)} at {self._loop.now:.4f}"
            )
            self._history.fault(self._loop.now, f"worker {self._worker.index}", "ends by itself")
            self._on_death()

    def resumed(self) -> None:
        """The process runs again."""
        done, self._done = self._done, []
        for call in done:
            self._run(call)
        self._run(_nothing)

    def killed(self) -> None:
        """The process died: the write under way is on disk, or it is not."""
        self._observer.died(self._loop.now)
        out, self._out = self._out, None
        if out is not None and not self.place.disk.crash(self._rng):
            self.place.observer.committed(self.place.disk, out[1], self._loop.now)
        if self.port is not None:
            self.port.close()

    def _recover(self) -> None:
        def recover() -> None:
            for _ in self.home.recover(self._loop.now, self._guaranteed.wall_ms(self._loop.now)):
                pass
            self.is_ready = True

        self._run(recover)

    # Frames.

    def handle(self, frames: Frames) -> None:
        """Take a frame of the router."""
        now = self._loop.now
        self._observer.incoming(frames, now)
        self._run(lambda: self.home.handle(frames, now, self._guaranteed.wall_ms(now)))

    def _after(self) -> None:
        """Do what a round of the loop does at its end."""
        if not self.is_ready:
            return
        now = self._loop.now
        wake = self.home.tick(now, self._guaranteed.wall_ms(now))
        connection = self._worker.connection
        for frames in self.home.take_frames():
            self._observer.outgoing(frames, now)
            if connection is not None:
                connection.up.send(frames)
        self._write()
        self._answer_later()
        if wake is not None:
            wake = max(wake, now + POLL_MIN_S)
            if wake < self._next_tick or self._next_tick <= now:
                self._next_tick = wake
                self._loop.at(wake, self._tick)

    def _tick(self) -> None:
        if self._loop.now >= self._next_tick and self._alive():
            self._next_tick = FOREVER
            if not self._worker.is_paused:
                self._run(_nothing)

    # Writes.

    def _write(self) -> None:
        write = self.home.take_write() if self._out is None else None
        if write is None:
            return
        number, changes = write
        now = self._loop.now
        self.place.disk.is_full = now < self.place.full_until
        duration = self.place.duration_s(self._rng, now)
        try:
            self.place.disk.begin(changes)
        except SpoolFullError:
            self._loop.after(duration, lambda: self._run(lambda: self._failed(number)))
            return
        self._out = number, changes
        self._loop.after(duration, lambda: self._finish(number))

    def _failed(self, number: int) -> None:
        self.home.failed(number, "the simulated disk is full", self._loop.now)

    def _finish(self, number: int) -> None:
        """The writer is done; a paused process hears of it later."""
        if self._out is None or self._out[0] != number or not self._alive():
            return
        _, changes = self._out
        try:
            self.place.disk.finish()
        except SpoolFailedError:
            self._history.fault(self._loop.now, f"worker {self._worker.index}", "ends because a sync failed")
            self._on_death()
            return
        self._out = None
        self.place.observer.committed(self.place.disk, changes, self._loop.now)

        def tell() -> None:
            now = self._loop.now
            self.home.written(number, now, self._guaranteed.wall_ms(now))

        self._run(tell)

    # Requests of the controller.

    def _request(self, number: int, operation: str, arguments: Any) -> None:
        assert self.port is not None
        now = self._loop.now
        try:
            if not self.is_ready or not self.home.answers_to(operation):
                raise errors.error_for(errors.UNKNOWN_OPERATION, operation)
            answer = self.home.request(operation, arguments, now, self._guaranteed.wall_ms(now))
        except errors.AngariumError as error:
            self.port.reply(number, ok=False, value=[error.code, error.detail])
            return
        if isinstance(answer, Answer):
            self._later[number] = answer
        else:
            self.port.reply(number, ok=True, value=answer)

    def _answer_later(self) -> None:
        self.home.take_answers()
        for number, answer in list(self._later.items()):
            if answer.is_known:
                del self._later[number]
                assert self.port is not None
                if answer.error is not None:
                    value = [answer.error.code, answer.error.detail]
                    self.port.reply(number, ok=False, value=value)
                else:
                    self.port.reply(number, ok=True, value=answer.value)

    def validate(self) -> None:
        """Let the home check itself."""
        if self.is_ready:
            self.home.validate()


def _nothing() -> None:
    """Only what comes after every event."""
