"""What workers say to the router: homes are heard at once, and what was matched has its turn behind them.

Results of matching may be dear, and the deliveries of homes that come over the same socket do not wait for them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import zmq

from angarium_server.frames.matching import OF_MATCHING
from angarium_server.parts import is_readable, receive

if TYPE_CHECKING:
    from collections.abc import Callable

#: Frames taken before other sockets get their turn.
DRAIN_MAX: Final = 200
#: And so long at most: effects of the first frame must not wait for a hundred dear ones.
DRAIN_S: Final = 0.003
#: And so many bytes: what leaves is read again, and is not to have left the cache of the core until then.
DRAIN_BYTES: Final = 128 << 10


class Inbox:
    """The socket of the workers, as far as they are heard."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        handle: Callable[[bytes, list[bytes], float], Any],
        touch: Callable[[zmq.Socket[bytes]], None],
    ) -> None:
        """Take nothing yet.

        Args:
            socket: the ROUTER that workers talk to.
            handle: called with the identity of a worker, a frame of it, and the time.
            touch: called when the socket was asked although nobody had been told that it is readable: what is left in
                it has no signal any more (`angarium_server.watch`).
        """
        self._socket = socket
        self._handle = handle
        self._touch = touch
        #: What was matched and has not been handled, behind the identities of workers.
        self._matched: deque[list[bytes]] = deque()

    @property
    def has_matched(self) -> bool:
        """Whether `take_matched` has something to do."""
        return bool(self._matched)

    def hear(self) -> None:
        """Take what is there, so long at most; for the handler of the socket, which says that some may be left.

        What is large is handled at once: what others send meanwhile would push it out of the cache.
        """
        if self._hear(time.monotonic() + DRAIN_S) >= DRAIN_BYTES:
            self.take_matched(time.monotonic())

    def take_matched(self, now: float) -> None:
        """Take what was matched, also what comes meanwhile if it is small: a connection gets it in one piece.

        What is left has its turn behind what homes say until then.
        """
        until, taken_bytes = now + DRAIN_S, 0
        while self._matched and now < until and taken_bytes < DRAIN_BYTES:
            identity, *frames = self._matched.popleft()
            taken_bytes += len(frames[-1])
            self._handle(identity, frames, now)
            if not self._matched and taken_bytes < DRAIN_BYTES and is_readable(self._socket):
                self._touch(self._socket)
                self._hear(until)
            now = time.monotonic()

    def take_all(self) -> None:
        """Take what has come, however large: who said it may be gone, and is not heard any more behind that."""
        for _ in range(DRAIN_MAX):
            if not is_readable(self._socket):
                break
            self._hear(time.monotonic() + DRAIN_S)
        while self._matched:
            self.take_matched(time.monotonic())
        self._touch(self._socket)

    def _hear(self, until: float) -> int:
        """Take what is there, and give how many bytes of bodies that was."""
        socket, handle, heard_bytes = self._socket, self._handle, 0
        for _ in range(DRAIN_MAX):
            now = time.monotonic()
            if now >= until or heard_bytes >= DRAIN_BYTES:
                break
            try:
                frames = receive(socket)
            except zmq.Again:
                break
            heard_bytes += len(frames[-1])
            if frames[1] in OF_MATCHING:
                self._matched.append(frames)
            else:
                handle(frames[0], frames[1:], now)
        return heard_bytes
