"""The shell of a worker process: the socket to the router around its two state machines, matching and home.

It carries frames and decides nothing but when to announce the worker: from each new connection until the
router starts it. So a router that was restarted hears of its workers although it never knew them. The home of
guaranteed messages lives in the same loop, with a shell of its own (`node.home.server`).

Dear batches may wait in dozens, and what goes to disk or to a consumer does not wait for them: frames for the home are
handled as they come, and those for matching have their turn behind them.

The socket has no high-water marks. A DEALER at its mark would block the worker while the router waits for it;
what is out at a worker is bounded by the router's window instead.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import zmq

from angarium import errors
from angarium_server import black_box
from angarium_server.frames.frame import MalformedFrameError
from angarium_server.frames.matching import SpoolFailed, Start
from angarium_server.memory.memory import FreedMemory, collect_rarely, in_use_bytes
from angarium_server.parts import receive, send
from angarium_server.process import Process, at_work
from node import config
from node.home.home import OPERATIONS, HomeLimits
from node.home.server import HomeServer
from node.home.spool.folders import SpoolDirectory
from node.matching.inbox import Inbox
from node.matching.worker import Worker
from node.tracing.tracing import NOTHING, Tracing
from storage.spool import SpoolFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Often enough that a start is not felt, rare enough to mean nothing.
READY_INTERVAL_S: Final = 0.2
#: A router that restarts is back in well under a second.
RECONNECT_INTERVAL_MS: Final = 50
#: What a worker says last may be why it ends; nobody waits longer for it.
WORKER_LINGER_MS: Final = 200

#: Frames are taken for so long at most in a turn, before other work gets its part of it.
DRAIN_S: Final = 0.003
#: A larger batch is handled before more is read: what is looked at is not to have left the cache of the core by then.
LARGE_BYTES: Final = 32 << 10
#: And those for matching are handled for so long, one at least; but for less while something is being stored: who
#: publishes it and who consumes it wait for several turns.
MATCH_S: Final = 0.003
STORING_MATCH_S: Final = 0.001

#: The thread that writes the spool gets its turn so often beside a busy loop: a commit is 0.9 ms then, and 11
#: with the default of 5 ms.
SWITCH_INTERVAL_S: Final = 1e-4

_FOR_THE_HOME: Final = frozenset(OPERATIONS)

_log = logging.getLogger(__name__)


class WorkerServer:
    """One worker process at work."""

    def __init__(self, process: Process, settings: config.WorkerRuntime) -> None:
        self._process = process
        self._frames_per_wake = settings.frames_per_wake
        #: Tells what this worker died of.
        self._box = black_box.BlackBox(black_box.path_of(process.runtime_dir, process.index))
        self._worker = Worker(process.index, process.incarnation, settings, self._box)
        #: When to tell the router next that this worker is there; None while it knows, or is not there.
        self._next_announcement: float | None = 0.0
        #: The newest time of the loop, and for how long frames may still be taken in this turn.
        self._now, self._drain_s = 0.0, DRAIN_S
        #: Frames that came for matching and have not been handled; the router's window bounds them.
        self._unmatched = Inbox()
        #: What may take milliseconds; the first one is asked first.
        self._dear = self._dear_work()
        #: Answers that nobody took, because the router was gone.
        self._undelivered = 0
        #: Faults of the worker that were logged.
        self._faults_logged = 0
        self._memory = FreedMemory()
        self._socket = self._make_socket()
        # Before the connect: a connection that is there sooner than its monitor is told to nobody.
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(f"ipc://{process.runtime_dir}/workers")
        process.add(self._socket, self._drain)
        process.add(self._monitor, self._connected)
        process.on_request(self._answer)
        process.progress("waiting for the router")
        self._tracing = self._make_tracing(settings)
        #: What holds guaranteed messages; None where there is no place for a spool.
        self._home = self._make_home(settings) if settings.spool_dir else None

    def _make_home(self, settings: config.WorkerRuntime) -> HomeServer:
        directory = SpoolDirectory(
            Path(settings.spool_dir), settings.spool_map_bytes, settings.data_id, settings.standby
        )
        limits = HomeLimits(
            ack_delay_ms=settings.ack_delay_ms,
            write_delay_ms=settings.write_delay_ms,
            selector_ms_per_s=settings.selector_ms_per_s,
        )
        return HomeServer(self._process, directory, limits, self._send, self._box, self._tracing)

    def _dear_work(self) -> deque[tuple[Callable[[], bool], Callable[[], None]]]:
        """Give the dear work: whether it is due, and what does a part of it. Who was asked goes to the end."""
        worker = self._worker
        return deque(
            [
                (lambda: bool(self._unmatched), self._match_some),
                (lambda: worker.has_work, self._go_on),
                (lambda: self._now >= worker.next_tidy, self._tidy),
            ]
        )

    def _make_tracing(self, settings: config.WorkerRuntime) -> Tracing | None:
        """Make spans if somebody wants them; what is wrong there keeps no message from anybody."""
        if not settings.tracing.endpoint:
            return None
        try:
            return Tracing(settings.tracing, settings.node, self._process.index)
        except (OSError, ValueError) as error:
            _log.error("there are no spans: tracing.ca_file %s: %s", settings.tracing.ca_file, error)
            return None

    def _make_socket(self) -> zmq.Socket[bytes]:
        process = self._process
        socket = process.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, f"w{process.index}.{process.incarnation}".encode())
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, WORKER_LINGER_MS)
        # Nothing waits for a router that is not there: the next one could not use it.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
        return socket

    def run(self) -> None:
        """Work until the process is asked to stop and its home has everything on disk.

        Raises:
            SpoolFailedError: the disk failed.
            UnavailableError: the spool is damaged (50322).
            MalformedFrameError: the router found a frame of this worker that no worker sends.
        """
        try:
            self._process.run(self._tick, self._stop)
        except (SpoolFailedError, errors.UnavailableError):
            # Or the router takes the frame that is out here for the cause, and the controller what is served.
            self._box.end()
            self._send(SpoolFailed(self._process.incarnation).frames())
            raise

    def close(self) -> None:
        """End the watch over the connection; the process closes the sockets."""
        self._process.remove(self._monitor)
        self._socket.disable_monitor()
        if self._home is not None:
            self._home.close()
        if self._tracing is not None:
            self._tracing.close()

    def _drain(self) -> bool:
        """Take the frames that are there, up to a bound: those for the home at once, those for matching in the tick.

        Some come while others are served: then it is called twice in a turn.
        """
        if self._drain_s <= 0.0:
            return True
        socket, home, unmatched = self._socket, self._home, self._unmatched
        begun = time.monotonic()
        self._box.turn(begun)
        until = begun + self._drain_s
        for _ in range(self._frames_per_wake):
            try:
                frames = receive(socket)
            except zmq.Again:
                self._drain_s = until - time.monotonic()
                return False
            if home is None or frames[0] not in _FOR_THE_HOME:
                unmatched.put(frames)
                if frames[0] == Start.operation:
                    self._start(frames)
                elif len(frames[-1]) > LARGE_BYTES:
                    break
            elif home.handle(frames) or time.monotonic() >= until:
                break
        self._drain_s = until - time.monotonic()
        return True

    def _start(self, frames: list[bytes]) -> None:
        """Take a START, which is for both, behind all that came before it."""
        self._match(inf)
        if self._home is not None:
            self._home.handle(frames)

    def _match_some(self) -> None:
        is_storing = self._home is not None and self._home.is_storing
        self._match(STORING_MATCH_S if is_storing else MATCH_S)

    def _match(self, seconds: float) -> None:
        """Handle frames for matching for so long, but one of them at least."""
        unmatched, worker, now = self._unmatched, self._worker, self._now
        until = time.monotonic() + seconds
        while unmatched:
            worker.share(len(unmatched))
            for answer in worker.handle(unmatched.take(), now):
                self._send(answer)
            if time.monotonic() >= until:
                break
        if not worker.has_work:
            worker.work()  # what comes next has a step of its own

    def _send(self, frames: list[bytes]) -> None:
        self._process.touch(self._socket)
        try:
            send(self._socket, frames)
        except zmq.Again:
            self._undelivered += 1

    def _connected(self) -> None:
        """Take the news of connections: the router of a new one does not know us."""
        while self._monitor.poll(0):
            self._monitor.recv_multipart(zmq.NOBLOCK)
            self._worker.connected()
            self._next_announcement = self._now

    def _tick(self, now: float) -> float | None:
        self._now = now
        self._box.turn(now)
        if self._worker.found_faulty:
            raise MalformedFrameError(self._worker.found_faulty)
        # First, and then one part of what is dear: what is stored and delivered does not wait for more of it.
        waits = [None if self._home is None else self._home.tick(now)]
        self._drain_s = DRAIN_S
        for _ in range(len(self._dear)):
            self._dear.rotate(-1)
            is_due, do_part = self._dear[-1]
            if is_due():
                do_part()
                break
        has_more = self._worker.has_work or self._unmatched
        waits += [0.0 if has_more else None, self._announce(now), self._follow_memory(now)]
        return min((one for one in waits if one is not None), default=None)

    def _go_on(self) -> None:
        for answer in self._worker.work():
            self._send(answer)

    def _tidy(self) -> None:
        for frames in self._worker.tidy(self._now):
            self._send(frames)

    def _follow_memory(self, now: float) -> float:
        held, freed = self._worker.cached_bytes, self._worker.freed_bytes
        if self._home is not None:
            held, freed = held + self._home.cached_bytes, freed + self._home.freed_bytes
        self._memory.update(freed, now, held)
        return min(self._worker.next_tidy - now, self._memory.wait_s)

    def _stop(self) -> bool:
        return self._home is None or self._home.stop()

    def _announce(self, now: float) -> float | None:
        """Tell the router that this worker is there, until it starts it; gives when to do so again."""
        worker = self._worker
        if worker.faults > self._faults_logged:
            _log.error("%d frames that no router sends were dropped", worker.faults - self._faults_logged)
            self._faults_logged = worker.faults
        if self._next_announcement is None:
            return None
        if worker.started:
            self._next_announcement = None
            self._process.ready({})
            return None
        if now >= self._next_announcement:
            # The router may answer before the news of its connection are read: it would have started us for nothing.
            self._connected()
            self._send(worker.ready_frames())
            self._next_announcement = now + READY_INTERVAL_S
        return self._next_announcement - now

    def _answer(self, operation: str, arguments: Any) -> Any:
        home = self._home
        if operation == "metrics":
            return {**self._worker.metrics(), **self._spans()}
        if operation == "stats":
            stats = {
                **self._worker.stats(),
                "undelivered_answers": self._undelivered,
                "in_use_bytes": in_use_bytes(),
                **self._spans(),
            }
            # While the spool is read nobody knows what is being taken over.
            return stats if home is None or not home.is_ready else {**stats, "home": home.stats()}
        if home is not None and home.answers_to(operation):
            return home.request(operation, arguments)
        raise errors.error_for(errors.UNKNOWN_OPERATION, f"{operation!r} is no operation of this worker")

    def _spans(self) -> dict[str, int]:
        """Give what is counted of spans."""
        return NOTHING if self._tracing is None else self._tracing.stats()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker process as the command line says."""
    with at_work(config.ROLE, arguments) as process:
        process.obey()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            _work(process)
        except SpoolFailedError as error:
            _log.critical("nobody knows what is on disk, so this process ends and reads it again: %s", error)
            raise SystemExit(1) from None
        except MalformedFrameError as error:
            _log.critical("the router ends this worker because of what it sent: %s", error)
            raise SystemExit(1) from None


def _work(process: Process) -> None:
    server = WorkerServer(process, config.load(process.runtime_dir))
    collect_rarely()
    try:
        server.run()
    finally:
        server.close()
