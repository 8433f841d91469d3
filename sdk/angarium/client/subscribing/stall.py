"""Notices that a subscription which nobody reads keeps messages from coming to all others of its client.

Only subscriptions with `on_full="stall"` can do that: what waits in them fills the egress window. A full window is
usual while a reader is slow; it is a stall when nothing is read for `STALL_S`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from angarium.client.protocol.session import EgressWindow
    from angarium.client.subscribing.mailbox import Mailbox

#: The window is full and nothing was read for so long: long beside the work on one batch.
STALL_S: Final = 1.0


class StallWatch:
    """Looks at the egress window when messages have come; costs nothing else."""

    def __init__(
        self, window: EgressWindow, mailboxes: Collection[Mailbox], on_stalled: Callable[[str], None]
    ) -> None:
        """Watch; `on_stalled` is called with the reason, once until messages come again."""
        self._window = window
        self._mailboxes = mailboxes
        self._on_stalled = on_stalled
        self._loop = asyncio.get_running_loop()
        #: Set while the window is full and that is no stall yet.
        self._timer: asyncio.TimerHandle | None = None
        #: Messages that had been read when it was set.
        self._released = 0
        #: ... when the last stall was reported; there is nothing new to say before more were.
        self._reported = -1

    @property
    def detail(self) -> str:
        """Why nothing comes; empty unless the window is full."""
        if self._window.has_room():
            return ""
        advice = "read it, close it, or subscribe with on_full='drop'"
        largest = max(self._mailboxes, key=lambda one: one.messages * one.stalls, default=None)
        if largest is None or not largest.stalls or not largest.messages:
            return f"the last messages that were read hold the window of this client: {self._window.held_messages:,}"
        waiting = f"{largest.messages:,} messages of {self._window.held_messages:,}"
        return f"{largest} holds the window of this client ({waiting}), and nothing more comes: {advice}"

    def look(self) -> None:
        """Something came: look whether there is room for more."""
        if self._timer is None and not self._window.has_room():
            self._released = self._window.released_messages
            if self._released == self._reported:
                return
            self._timer = self._loop.call_later(STALL_S, self._check)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if self._window.released_messages == self._released and not self._window.has_room():
            self._reported = self._released
            self._on_stalled(self.detail)
        else:
            self.look()
