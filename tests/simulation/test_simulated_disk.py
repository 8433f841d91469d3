"""What the disk of the simulation does that no test wants of a real one; the rest is in its contract suite."""

from __future__ import annotations

import random

import pytest

from storage.spool import SpoolFailedError, SpoolFullError, Table
from tests.simulation.simulated_disk import SimulatedDisk


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def stored(disk: SimulatedDisk) -> int:
    disk.validate()
    return disk.count(Table.BLOCKS)


def test_a_group_under_way_is_not_there_before_its_end() -> None:
    disk = SimulatedDisk()
    disk.begin([(Table.BLOCKS, key(1), b"a")])
    assert stored(disk) == 0
    disk.finish()
    assert stored(disk) == 1


def test_a_crash_keeps_or_loses_the_group_under_way_as_a_whole() -> None:
    seen = set()
    for seed in range(20):
        disk = SimulatedDisk()
        disk.commit([(Table.BLOCKS, key(9), b"old")])
        disk.begin([(Table.BLOCKS, key(1), b"a"), (Table.BLOCKS, key(2), b"b"), (Table.BLOCKS, key(9), None)])
        is_lost = disk.crash(random.Random(seed))
        assert [name for name, _ in disk.scan(Table.BLOCKS)] == ([key(9)] if is_lost else [key(1), key(2)])
        seen.add(is_lost)
        disk.commit([(Table.BLOCKS, key(3), b"c")])
    assert seen == {False, True}


def test_commits_that_are_durable_survive_every_crash() -> None:
    disk = SimulatedDisk()
    for number in range(20):
        disk.commit([(Table.BLOCKS, key(number), b"a")])
        assert not disk.crash(random.Random(number))
    assert stored(disk) == 20


def lying(seed: int) -> tuple[SimulatedDisk, bool]:
    disk = SimulatedDisk()
    disk.commit([(Table.BLOCKS, key(0), b"synced"), (Table.LANES, b"newest", key(0))])
    disk.holds_syncs = True
    for number in range(1, 9):
        disk.commit([(Table.BLOCKS, key(number), b"a"), (Table.LANES, b"newest", key(number))])
    disk.commit(
        [(Table.BLOCKS, key(0), None), (Table.BLOCKS, key(0), b"again"), (Table.LANES, b"newest", key(9))]
    )
    return disk, disk.crash(random.Random(seed))


def test_a_disk_that_lies_loses_whole_commits_from_the_end() -> None:
    left = set()
    for seed in range(60):
        disk, is_lost = lying(seed)
        newest = int.from_bytes(disk.get(Table.LANES, b"newest") or b"", "big")
        assert [name for name, _ in disk.scan(Table.BLOCKS)] == [key(n) for n in range(min(newest, 8) + 1)]
        assert disk.get(Table.BLOCKS, key(0)) == (b"again" if newest == 9 else b"synced")
        assert is_lost == (newest < 9)
        disk.validate()
        left.add(newest)
    assert left == set(range(10))


def test_a_seed_tells_what_is_lost() -> None:
    for seed in range(5):
        assert lying(seed)[0].scan(Table.BLOCKS) == lying(seed)[0].scan(Table.BLOCKS)


def test_what_was_synced_after_all_stays() -> None:
    disk = SimulatedDisk()
    disk.holds_syncs = True
    disk.commit([(Table.BLOCKS, key(1), b"a")])
    disk.sync()
    assert not disk.crash(random.Random(1))
    assert stored(disk) == 1


def test_a_full_disk_changes_nothing() -> None:
    disk = SimulatedDisk()
    disk.is_full = True
    with pytest.raises(SpoolFullError):
        disk.commit([(Table.BLOCKS, key(1), b"a")])
    disk.is_full = False
    assert stored(disk) == 0
    disk.commit([(Table.BLOCKS, key(1), b"a")])
    assert stored(disk) == 1


def test_after_a_failed_sync_the_crash_decides() -> None:
    outcomes = set()
    for seed in range(20):
        disk = SimulatedDisk()
        disk.is_failing = True
        with pytest.raises(SpoolFailedError):
            disk.commit([(Table.BLOCKS, key(1), b"a")])
        assert stored(disk) == 0
        assert disk.crash(random.Random(seed)) == (stored(disk) == 0)
        outcomes.add(stored(disk))
        disk.commit([(Table.BLOCKS, key(2), b"b")])
    assert outcomes == {0, 1}


def test_keys_that_lmdb_would_not_take_are_found() -> None:
    for name in (b"", bytes(512)):
        with pytest.raises(AssertionError, match="no such key"):
            SimulatedDisk().commit([(Table.BLOCKS, name, b"a")])
