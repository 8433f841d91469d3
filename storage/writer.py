"""The thread that writes a spool: one group of changes at a time, so that the loop beside it goes on.

LMDB demands that the thread which begins a write transaction also ends it; here one thread does all of it.
The caller hands over a ready list and is woken when the group is on disk.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from storage.spool import SpoolFailedError, SpoolFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from storage.spool import Change, Spool

_log = logging.getLogger(__name__)


class Written(NamedTuple):
    """What became of a group."""

    number: int
    #: None: it is on disk. Else there was no room, and nothing of it is.
    full: SpoolFullError | None


class Writer:
    """Writes groups in the order in which they were submitted."""

    def __init__(self, spool: Spool, wake: Callable[[], None]) -> None:
        """Start the thread; `wake` is called in it after each group."""
        self._spool = spool
        self._wake = wake
        self._submitted: deque[tuple[int, Sequence[Change]] | None] = deque()
        self._signal = threading.Semaphore(0)
        #: A deque is safe between two threads.
        self._written: deque[Written] = deque()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)
        self._thread.start()

    def submit(self, number: int, changes: Sequence[Change]) -> None:
        """Have a group written."""
        self._submitted.append((number, changes))
        self._signal.release()

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
        """Write what was submitted, and end the thread."""
        self._submitted.append(None)
        self._signal.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._signal.acquire()
            group = self._submitted.popleft()
            if group is None:
                return
            try:
                self._written.append(self._write(*group))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the loop has to learn it and end
                _log.critical("the spool cannot be written: %s", error)
                self._failure = error
                self._wake()
                return
            self._wake()

    def _write(self, number: int, changes: Sequence[Change]) -> Written:
        try:
            self._spool.commit(changes)
        except SpoolFullError as error:
            return Written(number, error)
        return Written(number, None)
