"""The thread that writes a spool: one group of changes at a time, so that the loop beside it goes on.

LMDB demands that the thread which begins a write transaction also ends it; here one thread does all of it.
The caller hands over a ready list and is woken when the group is on disk.

A thread that waits for the interpreter's lock beside a busy loop waits for a whole switch interval, and then for a
core, so the process has set a short one (`sys.setswitchinterval`). Each call to LMDB gives the lock away and takes it
back: a group of a hundred changes would wait a hundred times. So the caller waits while a group is handed to LMDB,
which takes as long in either thread, and goes on when only the disk is left to wait for.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from storage.spool import SpoolFailedError, SpoolFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage.spool import Change, Spool

#: Should LMDB have to read pages from the disk first, the loop goes on meanwhile.
HAND_OVER_MAX_S: Final = 0.005
#: A disk that takes longer for what was submitted will not be waited for when the process ends.
CLOSE_TIMEOUT_S: Final = 30.0

_log = logging.getLogger(__name__)


class Written(NamedTuple):
    """What became of a group."""

    number: int
    #: None: it is on disk. Else there was no room, and nothing of it is.
    full: SpoolFullError | None


class Writer:
    """Writes groups in the order in which they were submitted, until one fails."""

    def __init__(self, spool: Spool, wake: Callable[[], None]) -> None:
        """Start the thread, which alone commits; `wake` is called in it after each group, and must not raise."""
        self._spool = spool
        self._wake = wake
        #: Set when nothing but the disk is waited for.
        self._is_handed_over = threading.Event()
        #: The caller has one group out at a time, so it needs no limit.
        self._submitted: SimpleQueue[tuple[int, Sequence[Change]] | None] = SimpleQueue()
        #: A deque is safe between two threads.
        self._written: deque[Written] = deque()
        #: After it nothing is written any more.
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)
        self._thread.start()

    def submit(self, number: int, changes: Sequence[Change]) -> None:
        """Have a group written; the caller leaves the list alone from here on."""
        self._is_handed_over.clear()
        self._submitted.put((number, changes))
        self._is_handed_over.wait(HAND_OVER_MAX_S)

    def take_written(self) -> list[Written]:
        """Give what was written since the last call.

        Raises:
            SpoolFailedError: the disk failed; the process has to end.
        """
        if self._failure is not None:
            raise SpoolFailedError(str(self._failure)) from self._failure
        written = []
        while self._written:
            written.append(self._written.popleft())
        return written

    def close(self) -> None:
        """Write what was submitted, and end the thread; it must not be called twice.

        Raises:
            SpoolFailedError: the disk takes too long; the spool must not be closed then, but the process end.
        """
        self._submitted.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise SpoolFailedError(f"a write was not done after {CLOSE_TIMEOUT_S:.0f} s")

    def _run(self) -> None:
        get, wake, written = self._submitted.get, self._wake, self._written
        while (group := get()) is not None:
            try:
                written.append(self._write(*group))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the loop has to learn it and end
                is_ours = not isinstance(error, SpoolFailedError)
                _log.critical("the spool cannot be written: %s", error, exc_info=is_ours)
                self._failure = error
                wake()
                return
            # Kept until the next comes, each of its rows would keep a megabyte of freed memory around it.
            del group
            wake()

    def _write(self, number: int, changes: Sequence[Change]) -> Written:
        try:
            self._spool.commit(changes, self._is_handed_over.set)
        except SpoolFullError as error:
            return Written(number, error)
        finally:
            self._is_handed_over.set()
        return Written(number, None)
