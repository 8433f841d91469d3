"""The home in a simulated worker process: the real state machine over a disk that takes its time and fails.

What `node.server` does around it: frames in, ticks, frames out, one write at a time beside the loop. A write that
is under way when the process dies is on disk as a whole, or not at all; a disk may be full for a while; a sync
that fails ends the process, which tells the router so with its last frame.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from node.home.operations import Answer
from storage.spool import SpoolFailedError, SpoolFullError
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.control_plane import ControlPort
from tests.simulation.guaranteed.home_observer import DiskObserver, FrameObserver
from tests.simulation.guaranteed.records import LackedRoom, WasFull, Wrote
from tests.simulation.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from node.home.home import Home, HomeLimits
    from storage.spool import Change
    from tests.simulation.event_history import History
    from tests.simulation.guaranteed.records import GuaranteedHistory
    from tests.simulation.guaranteed.simulated_controller import SimulatedController
    from tests.simulation.simulated_network import Frames, Loop
    from tests.simulation.simulated_worker import SimulatedWorker

#: A step of reading the spool takes so long at most.
RECOVERY_STEP_MAX_S = 0.1
#: A disk that another process has is tried again after so long.
OPEN_RETRY_S = 0.1
#: A process that ends waits so long for its last frame to leave: longer than any is under way.
LINGER_S = 0.06
#: What may be under way to a disk that was full once: a few messages.
SMALL_ROOM_BYTES = 2_000
#: No loop looks at the clock more often.
POLL_MIN_S = 0.001


class ObservedDisk(SimulatedDisk):
    """A disk whose commits are written down."""

    def __init__(self, history: GuaranteedHistory, index: int, loop: Loop) -> None:
        super().__init__()
        self.observer = DiskObserver(history, index)
        self._history = history
        self._index = index
        self._loop = loop
        self._begun_at = 0.0

    def begin(self, changes: Sequence[Change]) -> None:
        """Hand a group over."""
        try:
            super().begin(changes)
        except SpoolFullError:
            self._history.home_events.append(WasFull(self._loop.now, self._index))
            raise
        self._begun_at = self._loop.now

    def finish(self) -> None:
        """Make the group durable."""
        changes = self._begun
        super().finish()
        assert changes is not None
        self.observer.committed(self, changes, self._loop.now)
        self._history.home_events.append(Wrote(self._loop.now, self._index, self._begun_at))


class WorkerDisk:
    """The disk of one worker index; it outlives the processes."""

    def __init__(self, history: GuaranteedHistory, index: int, loop: Loop, write_max_s: float) -> None:
        self._history = history
        self._loop = loop
        self.disk = ObservedDisk(history, index, loop)
        self.observer = self.disk.observer
        #: The process that has it open: its own worker, or one that takes lanes over.
        self.owner: SimulatedHome | None = None
        #: Lanes that a process waits to take over from here.
        self.claims: dict[int, None] = {}
        #: (lane, hand-overs) of those that may be deleted here: they are elsewhere.
        self.taken: dict[tuple[int, int], None] = {}
        #: A commit takes so long at most.
        self.write_max_s = write_max_s
        #: Until then commits take much longer.
        self.slow_until = 0.0
        #: What may be under way otherwise.
        self.room_bytes = 1 << 40
        #: Until then there is no room; and until then only for what is under way.
        self.full_until = self.low_until = 0.0

    def fill(self, duration: float, *, takes_nothing: bool) -> None:
        """Leave room only for what is under way for a while, or none at all."""
        until = self._loop.now + duration
        self.room_bytes = SMALL_ROOM_BYTES
        self._history.home_events.append(LackedRoom(self._loop.now, until))
        if takes_nothing:
            self.full_until = until
            self._loop.at(until, self.look)
        else:
            self.low_until = until

    def look(self) -> None:
        """Find out whether it is full; also one whose worker has left, which others take lanes from."""
        self.disk.is_full = self._loop.now < self.full_until

    def duration_s(self, rng: random.Random, now: float) -> float:
        """Draw how long a commit takes."""
        if now < self.slow_until:
            return 0.1 + rng.random() * 1.5
        return 0.0001 + rng.random() ** 2 * self.write_max_s


class SimulatedNeighbours:
    """Implements `node.home.lanes.others.Neighbours`: the disks of the other workers."""

    def __init__(self, home: SimulatedHome, disks: dict[int, WorkerDisk], own: int, loop: Loop) -> None:
        self._home = home
        self._disks = disks
        self._own = own
        self._loop = loop
        self._opened: WorkerDisk | None = None

    def names(self) -> list[str]:
        """Give the names of the other disks."""
        return [str(index) for index in sorted(self._disks) if index != self._own]

    @contextmanager
    def view(self, name: str) -> Iterator[SimulatedDisk]:
        """Give a disk to look at."""
        yield self._disks[int(name)].disk

    def read(self, name: str) -> SimulatedDisk:
        """Give a disk to read."""
        return self._disks[int(name)].disk

    def stop_reading(self, name: str) -> None:
        """Nothing is kept open."""

    def open(self, name: str) -> SimulatedDisk | None:
        """Open a disk for writing, None while another process has it."""
        assert self._opened is None
        place = self._disks[int(name)]
        if place.owner is not None:
            return None
        place.owner = self._home
        self._opened = place
        return place.disk

    def close(self) -> None:
        """Let go of the disk that is open."""
        if self._opened is not None:
            self._opened.owner = None
            self._opened = None

    def remove(self, name: str) -> None:
        """Delete a disk."""
        place = self._disks.pop(int(name))
        place.observer.removed(self._loop.now)

    def is_running(self, name: str) -> bool:
        """Tell whether another process has a disk open."""
        return self._disks[int(name)].owner not in (None, self._home)

    def claim(self, name: str, lane_id: int) -> None:
        """Leave a word that a lane is waited for."""
        self._disks[int(name)].claims[lane_id] = None

    def unclaim(self, name: str, lane_id: int) -> None:
        """Take it back."""
        place = self._disks.get(int(name))
        if place is not None:
            place.claims.pop(lane_id, None)

    def is_claimed(self, lane_id: int) -> bool:
        """Tell whether another worker waits for a lane of ours."""
        place = self._disks.get(self._own)
        return place is not None and lane_id in place.claims

    def tell_taken(self, name: str, lane_id: int, handovers: int) -> None:
        """Leave a word that a lane is elsewhere with all it has."""
        self._disks[int(name)].taken[lane_id, handovers] = None

    def is_taken(self, lane_id: int, handovers: int) -> bool:
        """Tell whether that was said of a lane of ours."""
        return (lane_id, handovers) in self._disks[self._own].taken

    def forget_taken(self, lane_id: int) -> None:
        """Forget what was said of a lane of ours."""
        place = self._disks[self._own]
        place.claims.pop(lane_id, None)
        for key in [key for key in place.taken if key[0] == lane_id]:
            del place.taken[key]


class SimulatedHome:
    """The home of one worker process."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        history: History,
        guaranteed: GuaranteedHistory,
        worker: SimulatedWorker,
        disks: dict[int, WorkerDisk],
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
        self.place = disks[worker.index]
        self._on_death = on_death
        self._neighbours = SimulatedNeighbours(self, disks, worker.index, loop)
        self.home = home_class(self.place.disk, worker.incarnation, limits, self._neighbours)
        self._observer = FrameObserver(guaranteed, worker.index)
        self.is_ready = False
        self._next_tick = FOREVER
        #: Number of the write that is out.
        self._out: int | None = None
        #: What the writer has done, and the paused process has not heard of.
        self._done: list[Callable[[], None]] = []
        self.port: ControlPort | None = None
        #: Answers that are known later, by request.
        self._later: dict[int, Answer] = {}
        #: The steps of the recovery that are left; None before and after it.
        self._recovery: Iterator[str] | None = None
        loop.after(0.0, self._open)

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
            if not self._worker.is_paused:
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
        if self._out is not None:
            self.place.disk.crash(self._rng)
        self._out = None
        self._neighbours.close()
        if self.place.owner is self:
            self.place.owner = None
        if self.port is not None:
            self.port.close()

    def _open(self) -> None:
        """Open the disk, when whoever had it has let go of it."""
        if not self._alive():
            return
        if self.place.owner is not None:
            self._loop.after(OPEN_RETRY_S, self._open)
            return
        self.place.owner = self
        self._run(self._begin_recovery)

    def _begin_recovery(self) -> None:
        self._recovery = self.home.recover(self._loop.now, self._guaranteed.wall_ms(self._loop.now))
        self._recover_later()

    def _recover_later(self) -> None:
        self._loop.after(self._rng.random() ** 2 * RECOVERY_STEP_MAX_S, lambda: self._run(self._recover))

    def _recover(self) -> None:
        """Do one step; the loop goes on in between."""
        assert self._recovery is not None
        if next(self._recovery, None) is None:
            self._recovery = None
            self.is_ready = True
        else:
            self._recover_later()

    def stop(self) -> bool:
        """Put everything on disk; True when it is there."""
        if self.is_ready and not self._worker.is_paused:
            now = self._loop.now
            self._run(lambda: self.home.stop(now, self._guaranteed.wall_ms(now)))
        return self.home.is_stopped or not self.is_ready

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
        self.place.look()
        self.place.disk.room_bytes = 0 if now < self.place.low_until else self.place.room_bytes
        duration = self.place.duration_s(self._rng, now)
        try:
            self.place.disk.begin(changes)
        except SpoolFullError:
            self._loop.after(duration, lambda: self._run(lambda: self._failed(number)))
            return
        self._out = number
        self._loop.after(duration, lambda: self._finish(number))

    def _failed(self, number: int) -> None:
        self.home.failed(number, "the simulated disk is full", self._loop.now)

    def _finish(self, number: int) -> None:
        """The writer is done; a paused process hears of it later."""
        if self._out is None or self._out != number or not self._alive():
            return
        try:
            self.place.disk.finish()
        except SpoolFailedError:
            self._run(self._end)
            return
        self._out = None

        def tell() -> None:
            now = self._loop.now
            self.home.written(number, now, self._guaranteed.wall_ms(now))

        self._run(tell)

    def _end(self) -> None:
        """Say that the disk failed, do nothing any more, and die."""
        worker = self._worker
        self._history.fault(self._loop.now, f"worker {worker.index}", "ends because a sync failed")
        self._history.lose_worker(worker.index, self._loop.now)
        if worker.connection is not None:
            worker.connection.up.send([wire.SPOOL_FAILED, wire.pack([worker.incarnation])])
        worker.pause(FOREVER)
        self._loop.after(LINGER_S, self._on_death)

    # Requests of the controller.

    def _request(self, number: int, operation: str, arguments: Any) -> None:
        assert self.port is not None
        now = self._loop.now
        if operation == "stats":
            # The worker answers it, and asks the home.
            self.port.reply(number, ok=True, value={"home": self.home.stats() if self.is_ready else {}})
            return
        if operation == "metrics":
            self.port.reply(number, ok=True, value=self._worker.worker.metrics())
            return
        try:
            if operation not in self.home.operations:
                raise errors.error_for(errors.UNKNOWN_OPERATION, operation)
            if not self.is_ready:
                raise errors.error_for(errors.HOME_NOT_READY, "the worker reads its spool")
            answer = self.home.request(operation, arguments, now, self._guaranteed.wall_ms(now))
        except errors.AngariumError as error:
            self.port.reply(number, ok=False, value=[error.code, error.detail])
            return
        if isinstance(answer, Answer):
            self._later[number] = answer
        else:
            self.port.reply(number, ok=True, value=answer)

    def _answer_later(self) -> None:
        self.home.operations.take_answers()
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
