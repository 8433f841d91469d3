"""The connection of a carrier to the router, as the process gives it: what a carrier wants of it, and is told by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from angarium.errors import AngariumError


class Line(Protocol):
    """A connection to the router; `angarium_server.connections.outgoing.Connection` is one."""

    @property
    def wake_at(self) -> float:
        """Give when `tick` is wanted, whatever the socket signals."""

    @property
    def is_gone(self) -> bool:
        """Tell whether nothing is left of it."""

    def tick(self, now: float, /) -> None:
        """Do what is due."""

    def send(self, outgoing: deque[list[bytes]], /) -> None:
        """Send what is queued, as far as the socket takes it; the rest stays in the queue."""

    def close(self, outgoing: deque[list[bytes]], /) -> None:
        """Tell nothing more, and close when what was sent and what is queued has left."""


class Connect(Protocol):
    """Begins a connection to the router."""

    def __call__(
        self,
        on_message: Callable[[list[bytes], float], None],
        on_drained: Callable[[], None],
        on_lost: Callable[[AngariumError, float], None],
        /,
    ) -> Line:
        """Give a connection, before it calls any of these.

        Args:
            on_message: takes each message that comes, with the time.
            on_drained: called when there may be room to send more.
            on_lost: called once when it is gone; nothing is called after it, nor after `close`.
        """
