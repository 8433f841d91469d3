"""Whether the disk has room for anything new, as the router and operators are told.

It is *full* from the commit on that leaves room only for what is under way (`storage.room`), or from one that found
none, until a commit leaves more. While it is full and nothing else is written, `Writing` looks again and again.

No clock, no disk; `node.home.home` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors
from node.home.spool.writing import FULL_RETRY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.home.spool.writing import Writing
    from storage.spool import Spool


class DiskRoom:
    """What is known of the room on the disk of one home."""

    def __init__(self, spool: Spool, writing: Writing, event: Callable[[str, str, str], None]) -> None:
        """Begin with room; `event` takes severity, name and text."""
        self._spool = spool
        self._writing = writing
        self._event = event
        #: Whether the router is to admit nothing new.
        self.is_full = False
        #: It stays so until then, however fast consumers make room and publishers take it.
        self._until = 0.0

    @property
    def bytes(self) -> int:
        """How many bytes of messages the router may have under way; 0 if it is to admit nothing new."""
        return 0 if self.is_full else max(self._spool.room_bytes, 1)

    def written(self, now: float) -> None:
        """A commit that was not only to free space is durable."""
        if not self._spool.room_bytes:
            self.lacks("there is room only for what is under way", now)
        if self.is_full and now < self._until:
            self._writing.look_at = self._until
            return
        self._writing.look_at = None
        if self.is_full:
            self.is_full = False
            self._event("info", "SYSTEM_AD_DISK_FULL_CLEAR", "the disk takes messages again")

    def lacks(self, detail: str, now: float) -> None:
        """There is no room."""
        self._until = now + FULL_RETRY_S
        if not self.is_full:
            self.is_full = True
            text = f"new messages are refused ({errors.DISK_FULL}) until there is room: {detail}"
            self._event("error", "SYSTEM_AD_DISK_FULL", text)
