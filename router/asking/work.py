"""What a client asks for and takes several steps: done some at a time, in turns, while others are served.

Who takes turns, and how much a step is, `router.subscriptions.subscriptions` says. No I/O, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router.sessions.session import Session


class Work(Protocol):
    """What a client asks for and takes several steps."""

    @property
    def actor(self) -> Session:
        """Give who asks."""

    @property
    def is_done(self) -> bool:
        """Tell whether nothing is left but `finish`."""

    def do(self, limit: int) -> int:
        """Do so much of it at most, in units of a short filter; gives what that cost, more than 0."""

    def finish(self) -> None:
        """All of it is done, or its session is over."""
