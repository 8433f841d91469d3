"""The files of the trail, `<data>/audit/audit.jsonl` and its predecessors, and a reserve for a disk that is full.

A line that finds no room gets that of the reserve, so that the change that it is about, and those that make room, are
written down; everything else is refused from then on, until the reserve is there again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import TYPE_CHECKING, Final

from angarium import errors
from cluster.controller.access.trail import ENTRIES_BYTES_MAX, ENTRIES_MAX, Entry, Room, moment_of
from cluster.data.data_dir import AUDIT_FOLDER
from cluster.data.rotated_file import RotatedFile
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


class TrailFile:
    """What outlives a controller of the trail."""

    def __init__(self, data_dir: Path, bytes_max: int, files_max: int) -> None:
        """Make the directory, and the reserve if there is room."""
        self._directory = data_dir / AUDIT_FOLDER
        with contextlib.suppress(OSError):  # without room, or a right: the first line finds out
            self._directory.mkdir(mode=0o700, exist_ok=True)
        self._file = RotatedFile(self._directory / FILE_NAME, bytes_max, files_max)
        #: Lines that found no room, in order, with the reserve used up.
        self._waiting: list[bytes] = []
        self._file.end_last_line()
        self._has_reserve = self._make_reserve()

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
        return "plenty" if self._has_reserve else "low"

    def append(self, line: bytes) -> None:
        """Write a line, from the reserve if need be; what finds no room at all waits for some."""
        if not self._waiting and self._written(line):
            return
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(line)
        else:
            _log.error("the audit log has no room; this is lost: %s", line.decode().rstrip())

    def look(self) -> None:
        """Write what waits and make the reserve again, if there is room by now."""
        while self._waiting and self._written(self._waiting[0]):
            del self._waiting[0]
        if not self._waiting and not self._has_reserve:
            self._has_reserve = self._make_reserve()

    def _written(self, line: bytes) -> bool:
        if self._is_appended(line):
            return True
        if not self._has_reserve:
            return False
        self._has_reserve = False
        with contextlib.suppress(OSError):
            (self._directory / RESERVE_NAME).unlink()
        return self._is_appended(line)

    def _is_appended(self, line: bytes) -> bool:
        try:
            self._file.append(line, is_synced=True)
        except OSError as error:
            if error.errno not in NO_ROOM:
                _log.error("the audit log cannot be written: %s", error)
            return False
        return True

    def _make_reserve(self) -> bool:
        path = self._directory / RESERVE_NAME
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            # Some file systems do not allocate ahead: there a full disk shows with the first line that finds no room.
            return error.errno not in NO_ROOM and self._directory.is_dir()
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
