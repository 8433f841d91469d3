"""Checks, backups and restores of spools: every fault is told, and a damaged backup changes nothing."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from storage import maintenance
from storage.spool import Table, open_spool

if TYPE_CHECKING:
    from pathlib import Path

    from storage.spool import Change

MAP_BYTES = 64 << 20
LANE = (7).to_bytes(8, "big")


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def block(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "big") + content


def silent(_done: int, _total: int) -> None:
    """Take the progress."""


def make(directory: Path, *more: Change) -> None:
    spool = open_spool(directory, MAP_BYTES)
    spool.commit([(Table.LANES, LANE, b"lane")])
    spool.commit([(Table.BLOCKS, key(number), block(b"%d" % number * 100)) for number in range(1, 601)])
    spool.commit([(Table.SEGMENTS, LANE + key(1), b"s"), (Table.STATES, LANE + key(1), b"t"), *more])
    spool.close()


def test_a_sound_spool_has_no_faults_and_tells_how_far_it_is(tmp_path: Path) -> None:
    make(tmp_path)
    told: list[tuple[int, int]] = []
    assert maintenance.verify(tmp_path, lambda done, total: told.append((done, total))) == []
    assert told[0] == (0, 600)
    assert told[-1] == (600, 600)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ((Table.BLOCKS, key(300), b"\0\0\0\0damaged"), "block 300 does not have its checksum"),
        ((Table.BLOCKS, key(601), b""), "block 601"),
        ((Table.STATES, LANE + key(9), b"x"), "segment that is not there"),
        ((Table.SEGMENTS, key(8) + key(1), b"x"), "lane that is not there"),
        ((Table.RECORDS, b"short", b"x"), "has 5 bytes, not 16"),
    ],
)
def test_each_fault_is_told(tmp_path: Path, change: Change, fault: str) -> None:
    make(tmp_path, change)
    (found,) = maintenance.verify(tmp_path, silent)
    assert fault in found


def packed(tmp_path: Path) -> Path:
    for index in range(2):
        make(tmp_path / "spool" / str(index))
        spool = open_spool(tmp_path / "spool" / str(index), MAP_BYTES)
        (tmp_path / "copy" / str(index)).mkdir(parents=True)
        spool.copy_to(tmp_path / "copy" / str(index))
        spool.close()
    members = {str(index): tmp_path / "copy" / str(index) for index in range(2)}
    maintenance.pack(members, tmp_path / "backup.tar", {"node": "n"}, silent)
    return tmp_path / "backup.tar"


@pytest.mark.requirement("R97")
def test_a_backup_comes_back_as_it_was(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    assert archive.stat().st_mode & 0o777 == 0o600
    target = tmp_path / "restored"
    target.mkdir()
    assert maintenance.unpack(archive, target, silent)["node"] == "n"
    before = open_spool(tmp_path / "spool" / "1", MAP_BYTES)
    maintenance.renew_environment(target / "1")
    after = open_spool(target / "1", MAP_BYTES)
    for table in Table:
        if table is not Table.META:
            assert before.scan(table) == after.scan(table)
    assert before.environment_id != after.environment_id
    before.close()
    after.close()
    assert sorted(path.name for path in target.iterdir()) == ["0", "1"]


def test_a_restore_overwrites_nothing(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    target = tmp_path / "restored"
    (target / "1").mkdir(parents=True)
    with pytest.raises(errors.ConflictError, match="empty data directory"):
        maintenance.unpack(archive, target, silent)
    assert [path.name for path in target.iterdir()] == ["1"]


@pytest.mark.parametrize("damage", ["flip", "cut", "noise"])
def test_a_damaged_backup_changes_nothing(tmp_path: Path, damage: str) -> None:
    archive = packed(tmp_path)
    content = bytearray(archive.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[:] = b"noise" * 1_000
    archive.write_bytes(content)
    target = tmp_path / "restored"
    target.mkdir()
    with pytest.raises(errors.UnavailableError) as caught:
        maintenance.unpack(archive, target, silent)
    assert caught.value.code == errors.SPOOL_DAMAGED
    assert list(target.iterdir()) == []
