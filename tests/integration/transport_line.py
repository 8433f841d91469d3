"""One transport of the SDK in a running loop, and what it told: what the tests of transports have in common."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from angarium.client.transport.stream import StreamTransport

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from angarium.errors import AngariumError


class Line:
    """A transport that is made at once; what it has to send waits in `outgoing`."""

    def __init__(self, url: str, *, context: ssl.SSLContext | None = None) -> None:
        self.got: list[list[bytes]] = []
        #: Why the connection was lost: a text or an error.
        self.ends: list[str | AngariumError] = []
        self.drained = 0
        self.outgoing: deque[list[bytes]] = deque()
        self.on_message: Callable[[list[bytes]], None] = self.got.append
        loop = asyncio.get_running_loop()
        calls = (lambda frames: self.on_message(frames)), self._on_drained, self.ends.append
        self.transport = StreamTransport(loop, url, context, *calls)

    @property
    def lost(self) -> list[str]:
        """The ends, as texts."""
        return [str(end) for end in self.ends]

    def _on_drained(self) -> None:
        self.drained += 1
        self.transport.send(self.outgoing)

    def send(self, *frames: bytes) -> None:
        self.outgoing.append(list(frames))
        self.transport.send(self.outgoing)
