"""Room for commits: allocated ahead in steps, looked up seldom, a reserve for those that add no messages."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from storage.headroom import (
    AHEAD_BYTES_MIN,
    COMMIT_BYTES,
    RESERVE_BYTES,
    STEP_BYTES_MIN,
    NoRoomError,
    SpaceGuard,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCKS = 4
OTHER = 2
MAP_BYTES = 256 << 20
BODY = bytes(40_000)


class File:
    """A data file whose use a test sets, as LMDB would tell it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.end = 32_768
        self.used = 32_768
        self.index = 8_192
        self.looks = 0

    def look(self) -> Usage:
        self.looks += 1
        return Usage(self.end, self.used, self.index)

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    @property
    def on_disk(self) -> int:
        return os.fstat(self.descriptor).st_blocks * 512


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = File(tmp_path / "data.mdb")
    yield made
    os.close(made.descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the disk takes at most of a file, and how it says no."""
    limits = {"bytes": 1 << 40, "errno": errno.ENOSPC}
    real = os.posix_fallocate

    def fallocate(descriptor: int, offset: int, length: int) -> None:
        if offset + length > limits["bytes"]:
            raise OSError(limits["errno"], "no")
        real(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    return limits


def store(room: SpaceGuard, file: File, count: int = 1) -> None:
    """Commit blocks; LMDB then takes new pages for them."""
    for number in range(count):
        room.take([(BLOCKS, b"%d" % number, BODY), (OTHER, b"s", bytes(300))], BLOCKS)
        file.end += 60_000
        file.used += 60_000


def test_the_file_has_room_on_disk_ahead_of_every_commit(file: File) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    assert file.on_disk >= file.end + RESERVE_BYTES
    for _ in range(500):
        store(room, file)
        assert file.on_disk >= file.end
    assert file.size < file.end * 2


def test_a_new_spool_takes_little(file: File) -> None:
    SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    assert file.size <= file.end + RESERVE_BYTES + STEP_BYTES_MIN


def test_lmdb_is_asked_seldom(file: File) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    store(room, file, 1_000)
    assert file.looks < 100


def test_what_is_used_again_costs_no_room(file: File) -> None:
    """The file does not grow for commits that take pages that others gave back."""
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    before = file.size
    for number in range(1_000):
        room.take([(BLOCKS, b"%d" % number, BODY), (BLOCKS, b"old", None)], BLOCKS)
    assert file.size == before


def test_a_full_disk_refuses_blocks_and_nothing_else(file: File, disk: dict[str, int]) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    disk["bytes"] = file.size
    with pytest.raises(NoRoomError, match="a commit wants"):
        store(room, file, 1_000)
    assert file.on_disk - file.end >= RESERVE_BYTES // 2, "the reserve is left"
    for number in range(1_000):
        room.take(
            [(OTHER, b"%d" % number, None), (BLOCKS, b"%d" % number, None), (OTHER, b"s", b"x")], BLOCKS
        )
    with pytest.raises(NoRoomError):
        store(room, file)


def test_a_full_disk_takes_blocks_where_others_were(file: File, disk: dict[str, int]) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    disk["bytes"] = file.size
    with pytest.raises(NoRoomError):
        store(room, file, 1_000)
    file.used = file.end - (1 << 20)
    for number in range(100):
        room.take([(BLOCKS, b"%d" % number, BODY)], BLOCKS)
    file.used = file.end - 100_000
    with pytest.raises(NoRoomError):
        room.take([(BLOCKS, b"x", BODY)], BLOCKS)


def test_when_there_is_room_again_everything_goes_on(file: File, disk: dict[str, int]) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    disk["bytes"] = file.size
    with pytest.raises(NoRoomError):
        store(room, file, 1_000)
    disk["bytes"] = 1 << 40
    store(room, file, 1_000)


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EFBIG])
def test_a_quota_is_a_full_disk(file: File, disk: dict[str, int], code: int) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    disk.update(bytes=file.size, errno=code)
    with pytest.raises(NoRoomError):
        store(room, file, 1_000)


def test_a_file_system_that_cannot_allocate_ahead_is_no_full_one(file: File, disk: dict[str, int]) -> None:
    disk.update(bytes=0, errno=errno.EOPNOTSUPP)
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    store(room, file, 100)


def test_a_step_that_the_disk_does_not_take_is_made_smaller(file: File, disk: dict[str, int]) -> None:
    file.end = file.used = 20 << 20
    disk["bytes"] = file.end + RESERVE_BYTES + 500_000
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    store(room, file, 3)


def test_the_end_of_the_map_leaves_a_reserve_too(file: File) -> None:
    room = SpaceGuard(file.descriptor, 32 << 20, file.look)
    with pytest.raises(NoRoomError):
        store(room, file, 1_000)
    assert (32 << 20) - file.end >= RESERVE_BYTES
    assert file.size <= 32 << 20
    room.take([(BLOCKS, b"x", None), (OTHER, b"s", b"x")], BLOCKS)
    file.used = 1 << 20
    room.take([(BLOCKS, b"x", BODY)], BLOCKS)


def test_a_spool_that_is_larger_than_its_map_only_shrinks(file: File) -> None:
    file.end = file.used = 8 << 20
    room = SpaceGuard(file.descriptor, 4 << 20, file.look)
    with pytest.raises(NoRoomError):
        room.take([(BLOCKS, b"x", BODY)], BLOCKS)
    room.take([(BLOCKS, b"x", None)], BLOCKS)


def test_thousands_of_deletions_want_no_more_than_the_index(file: File, disk: dict[str, int]) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    disk["bytes"] = file.size
    purge = [(OTHER, b"%d" % number, None) for number in range(12_000)]
    room.take([*purge, (BLOCKS, b"x", bytes(COMMIT_BYTES))], BLOCKS)


def test_opening_on_a_full_disk_keeps_what_is_allocated(file: File, disk: dict[str, int]) -> None:
    SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    disk["bytes"] = file.size
    file.used = file.end
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look)
    store(room, file)


@pytest.mark.requirement("R281")
def test_room_is_low_before_it_is_full_and_what_is_under_way_still_fits(
    file: File, disk: dict[str, int]
) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look, has_ahead=True)
    assert file.on_disk >= file.end + RESERVE_BYTES + AHEAD_BYTES_MIN
    assert not room.is_low
    disk["bytes"] = file.size
    while not room.is_low:
        store(room, file)
    before = file.end
    with pytest.raises(NoRoomError):
        store(room, file, 1_000)
    assert file.end - before > AHEAD_BYTES_MIN - 500_000
    assert file.on_disk - file.end >= RESERVE_BYTES // 2, "the other reserve is left"


def test_what_consumers_free_ends_it_when_it_is_more_than_the_reserve(
    file: File, disk: dict[str, int]
) -> None:
    file.end = file.used = 20 << 20
    disk["bytes"] = file.end + RESERVE_BYTES
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look, has_ahead=True)
    for freed, is_low in ((0, True), (AHEAD_BYTES_MIN * 9 // 8, True), (AHEAD_BYTES_MIN * 3 // 2, False)):
        file.used = file.end - freed
        room.take([(OTHER, b"x", None)], BLOCKS)
        assert room.is_low == is_low


def test_when_there_is_room_again_it_is_low_no_more(file: File, disk: dict[str, int]) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look, has_ahead=True)
    disk["bytes"] = file.size
    while not room.is_low:
        store(room, file)
    disk["bytes"] = 1 << 40
    room.take([], BLOCKS)
    assert not room.is_low


@pytest.mark.parametrize(("left_mb", "is_low"), [(15, True), (24, False)])
def test_the_reserve_is_a_part_of_a_large_file(
    file: File, disk: dict[str, int], left_mb: int, *, is_low: bool
) -> None:
    file.end = file.used = 128 << 20
    disk["bytes"] = file.end + RESERVE_BYTES + (left_mb << 20)
    os.truncate(file.descriptor, file.end)
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look, has_ahead=True)
    room.take([(BLOCKS, b"x", BODY)], BLOCKS)
    assert room.is_low == is_low


def test_a_spool_that_is_opened_on_a_full_disk_is_low(file: File, disk: dict[str, int]) -> None:
    disk["bytes"] = file.end + RESERVE_BYTES
    assert SpaceGuard(file.descriptor, MAP_BYTES, file.look, has_ahead=True).is_low


def test_a_file_that_grew_to_the_end_of_its_disk_takes_messages_when_half_of_it_is_free(
    file: File, disk: dict[str, int]
) -> None:
    """Freed pages were too scattered for a while, so that the end moved on."""
    file.end = 20 << 20
    file.used = file.end // 2 + STEP_BYTES_MIN
    disk["bytes"] = file.end + RESERVE_BYTES // 8
    os.truncate(file.descriptor, disk["bytes"])
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look, has_ahead=True)
    with pytest.raises(NoRoomError):
        room.take([(BLOCKS, b"x", BODY)], BLOCKS)
    file.used = file.end // 2 - STEP_BYTES_MIN
    room.take([(BLOCKS, b"x", BODY)], BLOCKS)
    assert not room.is_low


@pytest.mark.requirement("R281")
@pytest.mark.parametrize("size", [1_000, 40_000, 400_000])
def test_what_may_be_under_way_finds_room_on_a_disk_that_is_full(
    file: File, disk: dict[str, int], size: int
) -> None:
    """As one commit, or as several."""
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look, has_ahead=True)
    disk["bytes"] = file.size
    body = bytes(size)
    while room.room_bytes > 2 * size:
        for number in range(room.room_bytes // size // 2):
            room.take([(BLOCKS, b"%d" % number, body)], BLOCKS)
            file.end = file.used = file.end + size + 4_096
    assert room.room_bytes == 0
    assert file.on_disk - file.end >= RESERVE_BYTES // 2


def test_what_may_be_under_way_grows_with_the_file(file: File) -> None:
    room = SpaceGuard(file.descriptor, MAP_BYTES, file.look, has_ahead=True)
    before = room.room_bytes
    assert before >= AHEAD_BYTES_MIN // 4
    store(room, file, 3_000)
    assert room.room_bytes > 4 * before
