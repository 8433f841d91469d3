"""The files of the audit log: they outlive a controller, a damaged line, their own growth, and a full disk."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from cluster.controller.access.audit_file import RESERVE_BYTES, RESERVE_NAME, WAITING_MAX, AuditFile
from cluster.controller.access.audit_log import AuditLog
from cluster.data.rotated_file import RotatedFile

if TYPE_CHECKING:
    from pathlib import Path


def line(number: int, **more: Any) -> bytes:
    return json.dumps({"number": number, "time": "2031-05-04T10:00:00.000Z", **more}).encode() + b"\n"


def numbers(directory: Path) -> list[int]:
    entries = AuditFile(directory, 100_000, 4).load()
    AuditLog(entries).validate()
    return [entry["number"] for entry in entries]


def room(file: AuditFile) -> str:
    """Give what there is now."""
    return file.room


class Disk:
    """A disk that takes no more lines when a test says so, and gives no room for a file that is deleted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: Lines that it takes; None: as many as there are.
        self.takes: int | None = None
        append, allocate = RotatedFile.append, os.posix_fallocate

        def limited(file: RotatedFile, line: bytes, *, is_synced: bool = False) -> None:
            if self.takes is not None:
                if self.takes <= 0:
                    raise OSError(errno.ENOSPC, "full")
                self.takes -= 1
            append(file, line, is_synced=is_synced)

        def allocated(descriptor: int, offset: int, length: int) -> None:
            if self.takes is not None:
                raise OSError(errno.ENOSPC, "full")
            allocate(descriptor, offset, length)

        monkeypatch.setattr(RotatedFile, "append", limited)
        monkeypatch.setattr(os, "posix_fallocate", allocated)


def test_entries_are_there_after_a_restart_and_for_nobody_else(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, 100_000, 4)
    for number in (1, 2, 3):
        file.append(line(number))
    assert numbers(tmp_path) == [1, 2, 3]
    for path in ((tmp_path / "audit"), (tmp_path / "audit" / "audit.jsonl")):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.requirement("R259")
def test_files_are_rotated_by_size_and_the_oldest_go(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, 1_000, 2)
    for number in range(1, 101):
        file.append(line(number, text="x" * 100))
    names = sorted(path.name for path in (tmp_path / "audit").iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "reserve"] or names == [
        *("audit.jsonl.1", "audit.jsonl.2", "reserve")
    ]
    found = [entry["number"] for entry in AuditFile(tmp_path, 1_000, 2).load()]
    assert found == list(range(found[0], 101))
    assert 5 < len(found) < 40


@pytest.mark.parametrize(
    "damage", [b'{"number": 3, "ti', b"\xff\xfe", b"{}", b"[]", b'{"number":"x","time":"2031-05-04"}']
)
def test_a_damaged_line_costs_no_other(tmp_path: Path, damage: bytes) -> None:
    file = AuditFile(tmp_path, 100_000, 4)
    for number in (1, 2):
        file.append(line(number))
    with (tmp_path / "audit" / "audit.jsonl").open("ab") as raw:
        raw.write(damage)
    AuditFile(tmp_path, 100_000, 4).append(line(3))
    assert numbers(tmp_path) == [1, 2, 3]


def test_a_full_disk_leaves_room_for_the_line_that_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, file = Disk(monkeypatch), AuditFile(tmp_path, 100_000, 4)
    assert room(file) == "plenty"
    disk.takes = 0
    file.append(line(1))
    assert (room(file), numbers(tmp_path)) == ("low", [1])
    half = "x" * (RESERVE_BYTES // 2)
    for number in (2, 3, 4):
        file.append(line(number, text=half if number > 2 else ""))
    assert (room(file), numbers(tmp_path)) == ("none", [1, 2, 3]), "a reserve has an end"
    file.look()
    assert room(file) == "none"
    disk.takes = None
    file.look()
    assert (room(file), numbers(tmp_path)) == ("plenty", [1, 2, 3, 4]), "what waited is written in order"
    assert not (tmp_path / "audit" / RESERVE_NAME).read_bytes().strip(b"\0")


def test_lines_of_the_reserve_outlive_a_controller_and_come_into_the_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, file = Disk(monkeypatch), AuditFile(tmp_path, 100_000, 4)
    disk.takes = 0
    file.append(line(1))
    file.append(line(2))
    with (tmp_path / "audit" / RESERVE_NAME).open("r+b") as raw:
        raw.seek(2 * len(line(1)))
        raw.write(b'{"number": 3, "a crash cut')
    later = AuditFile(tmp_path, 100_000, 4)
    assert room(later) == "low"
    later.append(line(4))
    assert numbers(tmp_path) == [1, 2, 4]
    disk.takes = 1  # and a crash: line 1 is in both
    later.look()
    assert numbers(tmp_path) == [1, 2, 4]
    disk.takes = None
    last = AuditFile(tmp_path, 100_000, 4)
    last.look()
    assert (room(last), numbers(tmp_path)) == ("plenty", [1, 2, 4])


def test_only_so_many_lines_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, file = Disk(monkeypatch), AuditFile(tmp_path, 10_000_000, 4)
    disk.takes = 0
    file.append(line(1, text="x" * (RESERVE_BYTES - 100)))
    for number in range(2, WAITING_MAX + 12):
        file.append(line(number, text="x" * 100))
    disk.takes = None
    file.look()
    assert numbers(tmp_path)[-1] == WAITING_MAX + 1


def test_a_directory_that_cannot_be_written_is_as_good_as_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file")
    file = AuditFile(tmp_path, 100_000, 4)
    assert room(file) == "low"
    file.append(line(1))
    assert room(file) == "none"
