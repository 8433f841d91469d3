"""The shell of a home: its spool, the thread that writes it, copies of it, and time.

It lives in the loop of a worker process (`node.server`) and carries the effects of `node.home.home` out. The
index is read in steps of the loop, so the worker matches direct messages from its start; frames for the home
wait until it is read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium_server.process import KEEPER_VARIABLE, DeferredReply
from node.home.home import Home
from node.home.operations import Answer
from node.home.spool.folders import OtherSpools, StartNews, open_own
from storage.groups import GroupLog, forget_groups
from storage.writer import Writer

if KEEPER_VARIABLE in os.environ:
    # A worker that waits at a standby has it when it begins; for all others TLS is megabytes that they do not need.
    import_module("storage.shipping.line")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium_server.black_box import BlackBox
    from angarium_server.process import Process
    from node.home.lanes.jobs import BackupJob
    from node.home.parts import HomeLimits
    from node.home.spool.folders import SpoolDirectory
    from node.tracing.tracing import Tracing
    from storage.shipping.line import ShippingLine
    from storage.shipping.settings import StandbySettings

#: How often a start looks whether the standby has what it found.
WAIT_S: Final = 0.05
#: Without news a home is looked at so often.
IDLE_S: Final = 0.1

_log = logging.getLogger(__name__)


class HomeServer:
    """A home at work in a worker process."""

    def __init__(
        self,
        process: Process,
        directory: SpoolDirectory,
        limits: HomeLimits,
        send: Callable[[list[bytes]], None],
        box: BlackBox,
        tracing: Tracing | None = None,
    ) -> None:
        """Open the spool, and begin to read it.

        Args:
            process: of the worker.
            directory: with its spool and those of the other workers.
            limits: what the home may use.
            send: sends frames to the router.
            box: takes which lane is served.
            tracing: makes spans of sampled messages; None: nobody wants them.

        Raises:
            UnavailableError: the spool is damaged (50322), or another process has it (50320).
        """
        self._process = process
        self._send = send
        #: How far the start is; None of it is told once the index is read.
        self._news = StartNews(process.progress)
        own = str(process.index)
        self._spool = open_own(directory.path / own, directory.map_bytes, self._news, directory.data_id)
        self._others = OtherSpools(directory.path, own, directory.map_bytes)
        self._tracing = tracing
        watch = None if tracing is None else tracing.watch
        self._home = Home(self._spool, process.incarnation, limits, self._others, box, watch)
        self._recovery: Iterator[str] | None = self._home.recover(time.monotonic(), wall_ms_now())
        #: Readable when something was written, or a copy is ready.
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        #: What the standby gets; None: there is none.
        self._line = self._make_line(directory.standby, own)
        #: What is on this disk and does not count yet: the number of the write; None: nothing.
        self._not_counted: int | None = None
        self._writer = Writer(self._spool, self._wake)
        #: When there is something to do, if nothing comes until then.
        self._due_at = 0.0
        #: Operators that wait for an answer.
        self._waiting: dict[Answer, DeferredReply] = {}
        #: Copies that ended: the job, and what went wrong. A deque is safe between threads.
        self._copies: deque[tuple[BackupJob, str | None]] = deque()
        process.add(self._waker, self._woken)

    def _make_line(self, standby: StandbySettings | None, own: str) -> ShippingLine | None:
        if standby is None:
            forget_groups(self._spool)
            return None
        from angarium_server.connections.names import Names
        from storage.shipping.line import ShippingLine, found

        log = found(GroupLog(self._spool), self._spool.commit)
        return ShippingLine(self._process, Names(self._process), standby, own, log)

    @property
    def is_ready(self) -> bool:
        """Whether the index is read."""
        return self._recovery is None

    @property
    def is_storing(self) -> bool:
        """Whether the disk is waited for."""
        return self._home.writing.out is not None

    # -- the loop --------------------------------------------------------------------------------------------

    def handle(self, frames: list[bytes]) -> bool:
        """Take a frame of the router; True if a tick should come before the next one."""
        self._due_at = 0.0
        self._home.handle(frames, time.monotonic(), wall_ms_now())
        return self._home.is_spent

    def tick(self, now: float) -> float:
        """Do what is due and carry the effects out; gives in how many seconds there is more to do."""
        if now < self._due_at and self._line is None:  # a standby may say at any time that it has something
            return self._due_at - now
        wait_s = self._do_due(now)
        self._due_at = now + min(wait_s, IDLE_S)
        return wait_s

    def _do_due(self, now: float) -> float:
        shipped_s = inf if self._line is None else self._line.tick(now)
        if self._recovery is not None:
            if self._line is not None and not self._line.found_counts:
                return min(shipped_s, WAIT_S)  # nobody is shown what the standby may lack
            self._recover_further()
            return 0.0
        self._count()
        due = self._home.tick(now, wall_ms_now())
        self._submit()
        for frames in self._home.take_frames():
            self._send(frames)
        for event in self._home.take_events():
            self._process.emit_event(event)
        if self._tracing is not None:
            self._tracing.carry()
        if self._waiting:
            self._reply()
        for job in self._home.operations.take_backups():
            threading.Thread(target=self._copy, args=(job,), name="spool-copy", daemon=True).start()
        return shipped_s if due is None else min(shipped_s, max(due - now, 0.0))

    def _recover_further(self) -> None:
        assert self._recovery is not None
        text = next(self._recovery, None)
        if text is None:
            self._recovery = None
            _log.info("the index of the spool is read")
        else:
            self._news.tell(text)

    def _submit(self) -> None:
        write = self._home.take_write()
        if write is None:
            return
        number, changes = write
        self._writer.submit(number, changes if self._line is None else self._line.group(changes))

    def _wake(self) -> None:
        """Wake the loop; called in other threads."""
        os.eventfd_write(self._waker, 1)

    def _woken(self) -> None:
        """Take what was written; the next group goes out at once, the frames with the next tick.

        Raises:
            SpoolFailedError: the disk failed; the process has to end.
        """
        os.eventfd_read(self._waker)
        self._due_at = 0.0
        for group in self._writer.take_written():
            if group.full is None:
                self._on_disk(group.number)
            else:
                if self._line is not None:
                    self._line.not_written()
                self._home.failed(group.number, str(group.full), time.monotonic())
        self._submit()
        while self._copies:
            job, fault = self._copies.popleft()
            if fault is None:
                job.done = 1
                job.end()
            else:
                job.fail(errors.INVALID_ARGUMENT, fault)

    def _on_disk(self, number: int) -> None:
        """Go on with a write, when it counts."""
        if self._line is not None:
            self._line.written()
            self._not_counted = number
            self._count()
        else:
            self._home.written(number, time.monotonic(), wall_ms_now())

    def _count(self) -> None:
        """Go on with the write that is on this disk, if the standby has it too, or needs not have it."""
        if self._not_counted is not None and self._line is not None and self._line.counts:
            number, self._not_counted = self._not_counted, None
            self._home.written(number, time.monotonic(), wall_ms_now())

    def stop(self) -> bool:
        """Put everything on disk; True when it is there."""
        if self._recovery is not None:
            return True
        self._due_at = 0.0
        self._home.stop(time.monotonic(), wall_ms_now())
        self._submit()
        return self._home.is_stopped

    def close(self) -> None:
        """Let go of the spool, when what was submitted is written."""
        self._process.remove(self._waker)
        self._writer.close()
        if self._line is not None:
            self._line.close()
        self._others.close_all()
        os.close(self._waker)
        self._spool.close()

    # -- operators -------------------------------------------------------------------------------------------

    def answers_to(self, operation: str) -> bool:
        """Tell whether this is an operation of a home."""
        return operation in self._home.operations

    def request(self, operation: str, arguments: Any) -> Any:
        """Answer an operator.

        Raises:
            AngariumError: as `Home.request`; the index is not read yet (50320).
        """
        if self._recovery is not None:
            raise errors.error_for(errors.HOME_NOT_READY, "the worker reads its spool")
        self._due_at = 0.0
        answer = self._home.request(operation, arguments, time.monotonic(), wall_ms_now())
        if not isinstance(answer, Answer):
            return answer
        deferred = self._waiting[answer] = DeferredReply()
        return deferred

    def _reply(self) -> None:
        for answer in self._home.operations.take_answers():
            deferred = self._waiting.pop(answer)
            if answer.error is None:
                self._process.reply(deferred, True, answer.value)  # noqa: FBT003 - the form of every answer
            else:
                refusal = [answer.error.code, answer.error.detail]
                self._process.reply(deferred, False, refusal)  # noqa: FBT003 - the form of every answer

    @property
    def cached_bytes(self) -> int:
        """Give what is kept of messages that are on disk."""
        return self._home.parts.blocks.cached_bytes

    @property
    def freed_bytes(self) -> int:
        """Give what lanes took that are gone since the process started."""
        return self._home.parts.changes.freed_bytes

    def stats(self) -> dict[str, Any]:
        """Give the metrics of the home."""
        return self._home.stats()

    def _copy(self, job: BackupJob) -> None:
        """Copy the spool into a directory; runs in a thread of its own."""
        fault = None
        try:
            directory = Path(job.directory)
            directory.mkdir(mode=0o700, parents=True)
            self._spool.copy_to(directory)
        except Exception as error:  # noqa: BLE001 - whatever it is, the operator has to learn it
            fault = f"{job.directory}: {error}"
        self._copies.append((job, fault))
        self._wake()


def wall_ms_now() -> int:
    """Give the wall time in ms."""
    return time.time_ns() // 1_000_000
