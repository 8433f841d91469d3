"""Blocking clients that a program leaves open when it ends: what they have queued is sent before that.

The thread of a client is a daemon, which would end in the middle of everything: a program that publishes and ends would
publish nothing, without a word. `angarium.blocking.client` registers its clients.
"""

from __future__ import annotations

import atexit
import time
from typing import Final, Protocol

#: How long the end of a program is held up at most, by all its clients together; what `close` takes by default.
LEAVE_TIMEOUT_S: Final = 5.0


class _Leaving(Protocol):
    def _leave(self, timeout_s: float) -> None:
        """Send what is queued, and let go."""


#: Clients that are not closed.
_open: Final[dict[_Leaving, None]] = {}


def opened(client: _Leaving) -> None:
    """Take note that a client is in use."""
    _open[client] = None


def closed(client: _Leaving) -> None:
    """Take note that it is not any more."""
    _open.pop(client, None)


def _leave_all() -> None:
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    for client in list(_open):
        client._leave(max(deadline - time.monotonic(), 0.1))


atexit.register(_leave_all)
