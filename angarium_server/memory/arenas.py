"""What the C library keeps of what was freed, and how it is given back from all of its arenas.

The glibc has an arena for each thread that takes memory: that of the loop, those of ZeroMQ in which messages come, and
that which writes a spool. `malloc_trim` gives back what is free inside of each, and what is free at its *end* only of
the first: the others give that back when something is freed in them and more is free than the trim threshold says,
which is as much as an arena may have, because batches come and go. So a worker kept five megabytes of the messages that
were large once.

To have something freed in an arena a thread has to be in it. New threads share the arenas that are there when there may
be no more, one after the other; so each thread frees something in its arena while those before it are still there.

    three threads that had 8 MB each   7,816 KiB of each arena resident, 8 after it

One arena for all threads would need none of that, and took 5 to 20 % more CPU time for a guaranteed message: they wait
for each other.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from _thread import start_new_thread
from contextlib import suppress
from typing import Final

#: Of mallopt(3).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
#: What is kept is bounded by the trim threshold. The comparison of a password takes a little more than 16 MiB, which is
#: mapped and unmapped: it would stay.
_OPTIONS: Final = {_M_MMAP_THRESHOLD: 16 << 20, _M_TRIM_THRESHOLD: 64 << 20, _M_TOP_PAD: 4 << 20}
#: More than the threads of a process, of which each has one at most.
ARENAS_MAX: Final = 16
#: An arena looks at its end when so much or more is freed in it; the glibc takes 64 KiB for much.
_MUCH_BYTES: Final = 128 << 10
#: An arena but the first begins at a multiple of it, so it names one.
_ARENA_BYTES: Final = 64 << 20


def _library() -> ctypes.PyDLL | None:
    """Give the functions of the C library if it is the glibc; they keep the interpreter's lock, so others wait."""
    library = ctypes.PyDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        return None
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    return library


class Arenas:
    """The arenas of this process; there is one, because there is one C library."""

    def __init__(self) -> None:
        self._library = _library()
        #: Whether more is kept at the end of each than the C library would keep.
        self._is_kept = False
        #: Whether threads give back now.
        self.is_busy = False

    def keep(self) -> None:
        """Have the allocator reuse the memory of batches instead of giving it back and faulting it in again.

        A batch of hundreds of kilobytes comes and goes thousands of times a second; by default the C library maps
        and unmaps each. Measured with 1 KiB messages, five runs in turn: 178 k/s before, 374 k/s after (medians).
        """
        if self._library is not None:
            self._is_kept = True
            for option, size in _OPTIONS.items():
                self._library.mallopt(option, size)

    def give_back(self) -> None:
        """Have what is free at the end of each arena given back, beside the caller, who does not wait."""
        if self._is_kept and not self.is_busy:
            assert self._library is not None
            self._library.mallopt(_M_ARENA_MAX, 1)
            self.is_busy = True
            try:
                start_new_thread(self._give_back, ())  # to start a `Thread` is to wait until it runs
            except RuntimeError:  # there may be no more threads; it is given back the next time
                self.is_busy = False

    def _give_back(self) -> None:
        try:
            self._trim(frozenset())
        finally:
            self.is_busy = False

    def _trim(self, seen: frozenset[int]) -> None:
        """Give back the end of the arena of this thread; then a new one does so in the next, until all are seen.

        Whoever frees much meanwhile, a fraction of a millisecond, gives it back, too.
        """
        library = self._library
        assert library is not None
        library.mallopt(_M_TRIM_THRESHOLD, 0)
        library.mallopt(_M_TOP_PAD, 0)
        taken = library.malloc(_MUCH_BYTES)
        library.free(taken)
        for option, size in _OPTIONS.items():
            library.mallopt(option, size)
        arena = taken // _ARENA_BYTES
        if arena not in seen and len(seen) < ARENAS_MAX:
            thread = threading.Thread(target=self._trim, args=(seen | {arena},), daemon=True)
            with suppress(RuntimeError):
                thread.start()
                thread.join()
