"""How often the flows of a client may say something: a node ends a session that says too much.

A node takes 10,000 frames other than PUBLISH per second from one session on average (42902 beyond), where 64
ranges of a SETTLE count as one more. Flows with small windows could say more: each message of a window of one costs a
SETTLE and a FLOW_CREDIT. So the flows of a client share one `Pace`; who may not speak now is called a moment later and
says in one frame what it would have said in several. Nothing is lost by it but a few milliseconds, and only at rates
where that is how batches come about.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Frames per second; the rest of the node's limit is for everything else that a client says.
FRAMES_PER_SECOND: Final = 8_000
#: Frames that may be said at once after a silence; a node takes twice its rate.
FRAMES_BURST: Final = 4_000
#: So many ranges of a SETTLE count as one more frame.
RANGES_PER_FRAME: Final = 64
#: How long who may not speak waits.
WAIT_S: Final = 0.002


class Pace:
    """A bucket of frames, and who waits for it to fill."""

    def __init__(self) -> None:
        """Start full."""
        self._loop = asyncio.get_running_loop()
        #: Never above FRAMES_BURST; below 0 by the frames that could not be split.
        self._frames = float(FRAMES_BURST)
        self._filled_at = self._loop.time()
        #: Who waits to speak, the first first. Each once, so at most one per flow.
        self._waiting: dict[Callable[[], None], None] = {}
        #: How often somebody had to wait.
        self.waits = 0

    def take(self, frames: int = 1) -> bool:
        """Take so many frames if there is one at all; tell whether they may be said now."""
        now = self._loop.time()
        self._frames = min(self._frames + (now - self._filled_at) * FRAMES_PER_SECOND, FRAMES_BURST)
        self._filled_at = now
        if self._frames < 1:
            return False
        self._frames -= frames
        return True

    def wait(self, speak: Callable[[], None]) -> None:
        """Have somebody called soon who may not speak now; nothing happens if it waits already."""
        if speak in self._waiting:
            return
        self.waits += 1
        if not self._waiting:
            self._loop.call_later(WAIT_S, self._go_on)
        self._waiting[speak] = None

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for speak in waiting:
            speak()

    def validate(self) -> None:
        """Check the sentences above."""
        assert self._frames <= FRAMES_BURST
