"""Blocking clients that a program leaves open when it ends: what they have queued is sent before that.

The thread of a client is a daemon, which would end in the middle of everything: a program that publishes and ends would
publish nothing, without a word. `angarium.blocking.client` registers its clients.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import warnings
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future

#: How long the end of a program is held up at most, by all its clients together; what `close` takes by default.
LEAVE_TIMEOUT_S: Final = 5.0

_logger = logging.getLogger(__name__)


class _Leaving(Protocol):
    def _leave(self, timeout_s: float) -> Future[None] | None:
        """Begin to send what is queued, and to let go."""


#: Clients that are not closed.
_open: Final[dict[_Leaving, None]] = {}


def opened(client: _Leaving) -> None:
    """Take note that a client is in use."""
    _open[client] = None


def closed(client: _Leaving) -> None:
    """Take note that it is not any more."""
    _open.pop(client, None)


def _leave_all() -> None:
    """Have all of them leave at the same time: a thread that is in a callback of the program may never answer."""
    begun = [(client, client._leave(LEAVE_TIMEOUT_S)) for client in list(_open)]
    left = {future: client for client, future in begun if future is not None}
    _, late = concurrent.futures.wait(left, LEAVE_TIMEOUT_S)
    for future in late:
        _logger.warning("%s had no time to close before the end of the program", left[future])
    for client in left.values():  # Last: a warning may be an error.
        warnings.warn(f"{client} was not closed", ResourceWarning, stacklevel=2, source=client)


atexit.register(_leave_all)
