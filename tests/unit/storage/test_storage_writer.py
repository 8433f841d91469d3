"""The thread that writes a spool: groups in order, a full disk is told, a failed one is the end."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest

from storage import writer as writer_module
from storage.spool import SpoolFailedError, SpoolFullError, Table, nothing, open_spool
from storage.writer import Writer
from tests.simulation.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from storage.spool import Change

MAP_BYTES = 64 << 20


class Woken:
    """Waits for the writer as a loop would."""

    def __init__(self) -> None:
        self._signal = threading.Semaphore(0)

    def __call__(self) -> None:
        self._signal.release()

    def wait(self) -> None:
        assert self._signal.acquire(timeout=20)


class Group(list["Change"]):
    """A list that tells whether somebody has it."""


class SlowDisk(SimulatedDisk):
    """A commit takes until it is let go, and says in which thread it is."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.threads: set[int] = set()

    def commit(self, changes: Sequence[Change], handed_over: Callable[[], None] = nothing) -> None:
        self.threads.add(threading.get_ident())
        handed_over()
        assert self.release.wait(20)
        super().commit(changes)


@pytest.mark.requirement("R163")
def test_the_writer_writes_groups_in_order(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    woken = Woken()
    writer = Writer(spool, woken)
    for number in range(3):
        writer.submit(number, [(Table.LANES, b"newest", b"%d" % number)])
        woken.wait()
    assert [(done.number, done.full) for done in writer.take_written()] == [(0, None), (1, None), (2, None)]
    assert writer.take_written() == []
    assert spool.get(Table.LANES, b"newest") == b"2"
    writer.close()
    spool.close()


def test_the_writer_keeps_nothing_of_what_it_wrote(directory: Path) -> None:
    spool, woken = open_spool(directory, MAP_BYTES), Woken()
    writer = Writer(spool, woken)
    group = Group([(Table.LANES, b"newest", b"1")])
    kept = weakref.ref(group)
    writer.submit(1, group)
    del group
    woken.wait()
    assert kept() is None
    writer.close()
    spool.close()


@pytest.mark.requirement("R163")
def test_nothing_is_said_before_it_is_on_disk_and_the_caller_does_not_wait() -> None:
    disk, woken = SlowDisk(), Woken()
    writer = Writer(disk, woken)
    writer.submit(1, [(Table.LANES, b"a", b"b")])
    assert writer.take_written() == []
    assert disk.get(Table.LANES, b"a") is None
    disk.release.set()
    woken.wait()
    assert [done.number for done in writer.take_written()] == [1]
    assert disk.threads != {threading.get_ident()}
    assert len(disk.threads) == 1
    writer.close()


def test_the_caller_waits_while_a_group_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call to LMDB would wait for a caller that is busy."""
    monkeypatch.setattr(writer_module, "HAND_OVER_MAX_S", 20)
    disk, woken, seen = SlowDisk(), Woken(), list[str]()
    commit = disk.commit

    def note(changes: Sequence[Change], handed_over: Callable[[], None] = nothing) -> None:
        time.sleep(0.1)
        seen.append("handed over")
        commit(changes, handed_over)

    monkeypatch.setattr(disk, "commit", note)
    writer = Writer(disk, woken)
    writer.submit(1, [(Table.LANES, b"a", b"b")])
    assert seen
    assert writer.take_written() == []
    disk.release.set()
    woken.wait()
    writer.close()


def test_the_caller_does_not_wait_for_long_while_lmdb_reads_from_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, woken, release = SimulatedDisk(), Woken(), threading.Event()
    commit = disk.commit

    def slow(changes: Sequence[Change], handed_over: Callable[[], None] = nothing) -> None:
        assert release.wait(20)
        commit(changes, handed_over)

    monkeypatch.setattr(disk, "commit", slow)
    writer = Writer(disk, woken)
    writer.submit(1, [(Table.LANES, b"a", b"b")])
    assert writer.take_written() == []
    release.set()
    woken.wait()
    writer.close()


def test_the_writer_tells_of_a_full_disk_and_goes_on() -> None:
    disk, woken = SimulatedDisk(), Woken()
    writer = Writer(disk, woken)
    disk.is_full = True
    writer.submit(1, [(Table.LANES, b"a", b"b")])
    woken.wait()
    (written,) = writer.take_written()
    assert isinstance(written.full, SpoolFullError)
    disk.is_full = False
    writer.submit(2, [(Table.LANES, b"a", b"b")])
    woken.wait()
    assert [(done.number, done.full) for done in writer.take_written()] == [(2, None)]
    writer.close()


def test_after_a_failed_sync_the_writer_writes_nothing_more() -> None:
    disk, woken = SimulatedDisk(), Woken()
    writer = Writer(disk, woken)
    disk.is_failing = True
    writer.submit(1, [(Table.LANES, b"a", b"b")])
    woken.wait()
    disk.is_failing = False
    writer.submit(2, [(Table.LANES, b"a", b"b")])
    for _ in range(2):
        with pytest.raises(SpoolFailedError, match="sync"):
            writer.take_written()
    writer.close()
    assert disk.commits == 0


def test_our_own_mistake_is_told_like_a_failed_disk() -> None:
    disk, woken = SimulatedDisk(), Woken()
    writer = Writer(disk, woken)
    writer.submit(1, [(Table.LANES, b"", b"no key")])
    woken.wait()
    with pytest.raises(SpoolFailedError, match="no such key"):
        writer.take_written()
    writer.close()


def test_closing_writes_what_was_submitted() -> None:
    disk, woken = SimulatedDisk(), Woken()
    writer = Writer(disk, woken)
    for number in range(20):
        writer.submit(number, [(Table.BLOCKS, b"%d" % number, b"x")])
    writer.close()
    assert disk.count(Table.BLOCKS) == 20
    assert len(writer.take_written()) == 20


def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, woken = SlowDisk(), Woken()
    monkeypatch.setattr(writer_module, "CLOSE_TIMEOUT_S", 0.05)
    writer = Writer(disk, woken)
    writer.submit(1, [(Table.LANES, b"a", b"b")])
    with pytest.raises(SpoolFailedError, match="not done"):
        writer.close()
    disk.release.set()
    woken.wait()
