"""The files of the audit log, `<data>/audit/audit.jsonl` and its predecessors, and a reserve for a disk that is full.

A line that finds no room is written into the reserve, over zeros that are on the disk already, so that the change that
it is about, and those that make room, are written down; everything else is refused until its lines are in the log.
(A reserve that was deleted for its room lost it to whoever wrote next, and then nobody could delete anything.)
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from angarium import errors
from cluster.controller.access.audit_log import ENTRIES_BYTES_MAX, ENTRIES_MAX, Entry, Room, moment_of
from cluster.data.data_dir import AUDIT_FOLDER
from cluster.data.rotated_file import RotatedFile, private
from storage.headroom import NO_ROOM

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "audit.jsonl"
RESERVE_NAME: Final = "reserve"
#: Lines of thousands of changes that make room.
RESERVE_BYTES: Final = 1 << 20
#: Lines that wait for room in memory; more are lost, and told of in the log.
WAITING_MAX: Final = 1_000

_log = logging.getLogger("controller")


class AuditFile:
    """What outlives a controller of the audit log."""

    def __init__(self, data_dir: Path, bytes_max: int, files_max: int) -> None:
        """Make the directory, and the reserve if there is room."""
        self._directory = data_dir / AUDIT_FOLDER
        with contextlib.suppress(OSError):  # without room, or a right: the first line finds out
            self._directory.mkdir(mode=0o700, exist_ok=True)
        self._file = RotatedFile(self._directory / FILE_NAME, bytes_max, files_max)
        self._reserve = Reserve(self._directory / RESERVE_NAME)
        #: Lines that found no room in the reserve either, in order.
        self._waiting: list[bytes] = []
        self._file.end_last_line()

    def load(self) -> list[Entry]:
        """Give the newest entries of earlier runs, oldest first, without lines that are damaged."""
        found: list[Entry] = []
        size = 0
        for path, lines in self._file.files():
            entries = [entry for line in lines if (entry := _read(path, line)) is not None]
            found = entries + found
            size += sum(map(len, lines))
            if len(found) >= ENTRIES_MAX or size >= ENTRIES_BYTES_MAX:
                break
        found += [entry for line in self._reserve.lines if (entry := _read(self._reserve.path, line))]
        rising: list[Entry] = []
        for entry in found[-ENTRIES_MAX:]:
            if not rising or entry["number"] > rising[-1]["number"]:
                rising.append(entry)
        return rising

    @property
    def room(self) -> Room:
        """What there is for lines that come."""
        if self._waiting:
            return "none"
        return "plenty" if self._reserve.is_whole else "low"

    def append(self, line: bytes) -> None:
        """Write a line, into the reserve if need be; what finds no room at all waits for some."""
        if not self._waiting and self._written(line):
            return
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(line)
        else:
            _log.error("the audit log has no room; this is lost: %s", line.decode().rstrip())

    def look(self) -> None:
        """Bring the lines of the reserve into the log and write what waits, if there is room by now."""
        for line in list(self._reserve.lines):
            if not self._is_appended(line):
                return
            self._reserve.lines.popleft()
        if not self._reserve.is_whole:
            self._reserve.fill()
        while self._waiting and self._written(self._waiting[0]):
            del self._waiting[0]

    def _written(self, line: bytes) -> bool:
        is_next = not self._reserve.lines
        return (is_next and self._is_appended(line)) or self._reserve.take(line)

    def _is_appended(self, line: bytes) -> bool:
        try:
            self._file.append(line, is_synced=True)
        except OSError as error:
            if error.errno not in NO_ROOM:
                _log.error("the audit log cannot be written: %s", error)
            return False
        return True


class Reserve:
    """A file of zeros that lines overwrite from its start: they need no room that is not theirs already."""

    def __init__(self, path: Path) -> None:
        """Take over the lines that an earlier run left, or fill the file."""
        self.path = path
        #: Lines that are here and not in the log, in order.
        self.lines: deque[bytes] = deque()
        self.is_whole = False
        self._used = RESERVE_BYTES
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            written = content.split(b"\0", 1)[0]
            self.lines.extend(line for line in written.splitlines(keepends=True) if line.endswith(b"\n"))
            if len(content) == RESERVE_BYTES:
                self._used = sum(map(len, self.lines))
        if not self.lines:
            self.fill()

    def fill(self) -> None:
        """Make it zeros again, if there is room."""
        try:
            with open(self.path, "r+b" if self.path.exists() else "wb", opener=private) as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
                file.write(bytes(RESERVE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self.path.unlink()
            # Some file systems do not allocate ahead: there a full disk shows with the first line that finds no room.
            self.is_whole = error.errno not in NO_ROOM and self.path.parent.is_dir()
        else:
            self.is_whole, self._used = True, 0

    def take(self, line: bytes) -> bool:
        """Write a line behind the others; whether it had a place."""
        self.is_whole = False
        if self._used + len(line) > RESERVE_BYTES:
            return False
        try:
            with self.path.open("r+b") as file:
                file.seek(self._used)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            return False
        self._used += len(line)
        self.lines.append(line)
        return True


def _read(path: Path, line: bytes) -> Entry | None:
    try:
        entry: Entry = json.loads(line)
        moment_of(entry["time"])
        return {**entry, "number": int(entry["number"])}
    except (ValueError, KeyError, TypeError, errors.AngariumError):
        if line:
            _log.warning("%s holds a line that is no entry: %r", path, line[:100])
        return None
