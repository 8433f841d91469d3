"""Notes long turns of the router's loop; Python imports this at its start where a test has put it on the path.

A turn is all that the loop does between two waits, so it is what a message waits for. What is noted is its CPU time:
the time that passes depends on who else uses the machine.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import select

#: Names the file: a line for each turn from `NOTED_S` on, its milliseconds.
VARIABLE = "TIMED_ROUTER_TURNS"
NOTED_S = 0.001


def _is_router() -> bool:
    return "angarium_server.launch" in sys.orig_argv and "router" in sys.orig_argv


class TimedEpoll:
    """An epoll that notes what happens between its waits."""

    def __init__(self, epoll: select.epoll, file: int) -> None:
        self._epoll = epoll
        self._file = file
        self._began: float | None = None
        self.register, self.unregister, self.modify = epoll.register, epoll.unregister, epoll.modify
        self.close = epoll.close

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        if self._began is not None and (took := time.thread_time() - self._began) >= NOTED_S:
            os.write(self._file, b"%.2f\n" % (1_000 * took))
        found = self._epoll.poll(seconds)
        self._began = time.thread_time()
        return found


def _arm(path: str) -> None:
    from angarium_server.watch import Watch

    begin = Watch.__init__

    def begin_timed(self: Watch) -> None:
        begin(self)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._signals = TimedEpoll(self._signals, file)  # type: ignore[assignment]

    Watch.__init__ = begin_timed  # type: ignore[method-assign]


if _is_router() and VARIABLE in os.environ:
    _arm(os.environ[VARIABLE])
