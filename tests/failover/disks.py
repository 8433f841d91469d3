"""A disk of its own for each host, which can be made to hang: a file system in a file, frozen and thawed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

DISK_MB: Final = 2_048
_UNMOUNT_S, _UNMOUNT_AGAIN_S = 20.0, 0.1


class Disk:
    """A folder with a file system of its own, where that is allowed."""

    def __init__(self, place: Path, *, can_hang: bool = True) -> None:
        """Make the folder, and mount a file system there if that is possible."""
        self.place = place
        place.mkdir()
        self._image = place.with_name(f"{place.name}.image")
        #: Whether it can be frozen.
        self.is_own = can_hang and self._mount()
        self._is_frozen = False

    def _mount(self) -> bool:
        if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "mount", "fsfreeze"))):
            return False
        with self._image.open("wb") as file:
            file.truncate(DISK_MB << 20)
        # Without lazy initialisation nothing writes to it in the background.
        made = _try("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        return made and _try("mount", "-o", "loop", str(self._image), str(self.place))

    def freeze(self) -> None:
        """Have every write hang."""
        if self.is_own and not self._is_frozen:
            self._is_frozen = _try("fsfreeze", "--freeze", str(self.place))

    def thaw(self) -> None:
        """Let writes go on."""
        if self._is_frozen:
            _try("fsfreeze", "--unfreeze", str(self.place))
            self._is_frozen = False

    def remove(self) -> None:
        """Unmount it; a process that was killed may hold it for a moment."""
        self.thaw()
        give_up_at = time.monotonic() + _UNMOUNT_S
        while self.is_own and not _try("umount", str(self.place)) and time.monotonic() < give_up_at:
            time.sleep(_UNMOUNT_AGAIN_S)
        with contextlib.suppress(OSError):
            self._image.unlink()


def _try(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0
