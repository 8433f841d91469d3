"""Whether the disk of this host still answers: a small file is written and synced, again and again, in a thread.

A disk that hangs holds the thread and nothing else: `answered_at` stays, and a primary does not renew its lease. The
file is overwritten in place, so a disk that is full still answers.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from cluster.standby.stores import clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 0.5
#: As long as whoever ends the probe waits for a write that is under way.
END_S: Final = 1.0
_BYTES: Final = 64


class Probe:
    """Of one disk; use it as a context manager."""

    def __init__(self, write: Callable[[bytes], None], interval_s: float = INTERVAL_S) -> None:
        """Write nothing yet; `write` writes and syncs, or raises OSError: `file_in` gives one."""
        self._write = write
        self._interval_s = interval_s
        #: When the last write was begun that came to its end, by `clock`: the disk answers at least since then.
        self.answered_at = float("-inf")
        #: Writes that failed.
        self.failures = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk-probe", daemon=True)

    def __enter__(self) -> Probe:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, or leave a write behind that hangs."""
        self._is_over.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        failed = False
        while True:
            begun = clock.now()
            try:
                self._write(f"{begun:.3f}\n".encode().ljust(_BYTES))
                self.answered_at = begun
                failed = False
            except OSError as error:
                self.failures += 1
                if not failed:
                    logger.error("disk probe: a write failed: %s", error.strerror)
                failed = True
            if self._is_over.wait(self._interval_s):
                return


def file_in(directory: Path) -> Callable[[bytes], None]:
    """Give what overwrites one file of a directory and syncs it."""
    path = directory / "standby.probe"

    def write(content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, content, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    return write
