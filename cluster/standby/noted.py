"""What a host of a pair remembers of itself over its starts, in files of its data directory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cluster.data.data_dir import write_durably, write_in_turns
from cluster.data.node_file import HOST_ROLE_FILE
from cluster.standby import files
from cluster.standby.pair.member import Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: There while this host lacks stores: it began with an empty disk, or one is damaged, and it may be in an in-sync set
#: that means what it had before.
NEW_FILE: Final = "standby.new"

_log = logging.getLogger("standby")


class Noted:
    """Of one host."""

    def __init__(self, data: Path) -> None:
        """Read what is remembered."""
        self._data = data
        #: Files that could not be written when it was tried last.
        self._behind: set[str] = set()
        #: What this host was last, and the highest epoch that it has seen; and what is on disk of that.
        self.role, self.epoch = self._on_disk = self._known()
        #: Whether it has nothing but what it was sent since its disk was new, or lacks a store that was damaged;
        #: remembered, for it soon has something.
        self.is_new = self._begins_with_nothing()

    def _known(self) -> tuple[str, int]:
        """Give what was remembered; an earlier version knew no epoch."""
        role, _, epoch = _remembered(self._data).partition(" ")
        return role, int(epoch or 0)

    def _begins_with_nothing(self) -> bool:
        place = self._data / NEW_FILE
        if not files.data_id_of(self._data) and not place.exists():
            write_durably(place, b"")
        return place.exists()

    def note(self, role: Role | None, epoch: int) -> None:
        """Remember what this host is, and the highest epoch that it has seen; None: what it was.

        What a full disk does not take is tried again at the next call.
        """
        self.role, self.epoch = role.value if role is not None else self.role, max(epoch, self.epoch)
        if (self.role, self.epoch) == self._on_disk:
            return
        content = f"{self.role} {self.epoch}\n".encode()
        if self.write(HOST_ROLE_FILE, lambda: write_in_turns(self._data / HOST_ROLE_FILE, content)):
            self._on_disk = self.role, self.epoch

    def note_lacking(self) -> None:
        """What this host has is not what it is taken for.

        Raises:
            OSError: that cannot be written.
        """
        if not self.is_new:
            write_durably(self._data / NEW_FILE, b"")
            self.is_new = True

    def note_whole(self) -> None:
        """This host has been brought everything, or begins without it."""
        if self.is_new:
            self.is_new = False
            (self._data / NEW_FILE).unlink(missing_ok=True)

    def write(self, name: str, write: Callable[[], None]) -> bool:
        """Write what is good to know, and tell whether it is on disk: a full one keeps nobody from taking over."""
        try:
            write()
        except OSError as error:
            if name not in self._behind:
                _log.error("%s cannot be written and is behind: %s", name, error.strerror)
            self._behind.add(name)
            return False
        self._behind.discard(name)
        return True


def is_standby(data: Path) -> bool:
    """Tell whether a host was a standby when it ran on a data directory last."""
    return _remembered(data).partition(" ")[0] == Role.CANDIDATE.value


def _remembered(data: Path) -> str:
    place = data / HOST_ROLE_FILE
    return place.read_text(encoding="ascii").strip() if place.exists() else ""
