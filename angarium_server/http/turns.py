"""A process of a node in a loop of asyncio, which HTTP servers need: the process has its turns there.

What the callbacks of one pass of the loop brought is taken together: `soon` has the end of a turn come behind all of
them.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Final

from angarium_server.memory.memory import FreedMemory, in_use_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.process import Process

#: How often it is looked at how much memory is in use, and whether much was freed.
MEMORY_S: Final = 1.0
#: When the next turn comes after one that had a fault.
AFTER_FAULT_S: Final = 0.1
#: How often it is looked whether something is done, when the process ends.
LOOK_S: Final = 0.01


class Turns:
    """The turns of a process."""

    def __init__(self, process: Process, tick: Callable[[float], float]) -> None:
        """Begin with none; `tick` ends a turn, and says when it is to be called again at the latest."""
        self._process = process
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        #: The next one, and whether that comes as soon as it can.
        self._next: asyncio.Handle | None = None
        self._is_soon = False
        self._stopping = asyncio.Event()
        self._memory = FreedMemory()
        self._memory_at = 0.0

    def begin(self) -> None:
        """Have turns from now on."""
        self._loop.add_reader(self._process.descriptor, self._take)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop)
        self._take()

    async def stopping(self) -> None:
        """Wait until the process is asked to stop."""
        await self._stopping.wait()

    async def until(self, is_done: Callable[[], bool], limit_s: float) -> None:
        """Have turns until something is done, or for so long."""
        deadline = time.monotonic() + limit_s
        while not is_done() and time.monotonic() < deadline:
            self.soon()
            await asyncio.sleep(LOOK_S)

    def end(self) -> None:
        """Have no more."""
        self._loop.remove_reader(self._process.descriptor)
        if self._next is not None:
            self._next.cancel()

    def soon(self) -> None:
        """Have a turn behind what is at work now: there is something to send."""
        if not self._is_soon:
            self._is_soon = True
            if self._next is not None:
                self._next.cancel()
            self._next = self._loop.call_soon(self._take)

    def _take(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._is_soon = False
        wait_s = AFTER_FAULT_S
        try:
            wait_s = self._turn()
        finally:  # the loop tells of a fault and goes on, so there has to be a next turn
            if not self._is_soon:
                self._next = self._loop.call_later(wait_s, self._take)
        if self._process.stopping:
            self._stopping.set()

    def _turn(self) -> float:
        """Do what is there; gives in how many seconds the next one is due."""
        due_s = self._process.turn()
        now = time.monotonic()
        return min(due_s, max(0.0, self._tick(now) - now), self._look_at_memory(now))

    def _look_at_memory(self, now: float) -> float:
        """Give memory back that clients took, such as bodies and streams; gives when to look again."""
        if now >= self._memory_at:
            self._memory.update(0, now, held_bytes=in_use_bytes())
            self._memory_at = now + min(MEMORY_S, self._memory.wait_s)
        return self._memory_at - now

    def _stop(self) -> None:
        self._process.stopping = True
        self._take()
