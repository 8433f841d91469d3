"""A file of lines that is rotated by size, so that it does not grow without bound: FILE.1 is newer than FILE.2.

Only the user of the node can read it. What its lines mean is the business of those who write them: events, deeds.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class RotatedFile:
    """The file and its predecessors."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        """Name the files; nothing is opened before the first line."""
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max

    def append(self, line: bytes, *, is_synced: bool = False) -> None:
        """Append a line, as a whole or not at all.

        Args:
            line: with its line feed.
            is_synced: whether it has to survive a power cut.

        Raises:
            OSError: it cannot be written; for want of room `storage.headroom.NO_ROOM` has its number.
        """
        with open(self._path, "ab", buffering=0, opener=private) as file:
            size = file.tell()
            if file.write(line) < len(line):
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            if is_synced:
                os.fdatasync(file.fileno())
        if size + len(line) >= self._bytes_max:
            self._rotate()

    def end_last_line(self) -> None:
        """End a line that a crash cut off, so that it does not swallow the next one."""
        with contextlib.suppress(
            OSError
        ):  # there is none, or no room: then the next line is lost with this one
            content = self._path.read_bytes()
            if content and not content.endswith(b"\n"):
                with self._path.open("ab") as file:
                    file.write(b"\n")

    def files(self) -> Iterator[tuple[Path, list[bytes]]]:
        """Give the lines of each file, the newest file first."""
        for number in range(self._files_max + 1):
            path = self._numbered(number)
            with contextlib.suppress(FileNotFoundError):
                yield path, path.read_bytes().splitlines()

    def _rotate(self) -> None:
        for number in range(self._files_max, 0, -1):
            earlier = self._numbered(number - 1)
            if earlier.exists():
                earlier.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def private(path: str, flags: int) -> int:
    """Open a file that nobody else reads: an `opener`."""
    return os.open(path, flags, 0o600)
