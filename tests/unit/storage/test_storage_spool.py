"""The contract of a spool, held by LMDB and by the disk of the simulation; and what LMDB alone must do."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angarium import errors
from storage.spool import (
    DATA_FILE,
    KEY_FORMAT,
    LmdbSpool,
    SpoolFailedError,
    SpoolFullError,
    Table,
    is_owned,
    open_readonly,
    open_spool,
)
from storage.writer import Writer
from tests.simulation.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.spool import Change, Spool

MAP_BYTES = 64 << 20
ROOT = Path(__file__).resolve().parents[3]
_OWN = (Table.META,)


@pytest.fixture(params=["lmdb", "simulated"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spool]:
    made: Spool = open_spool(tmp_path / "spool", MAP_BYTES) if request.param == "lmdb" else SimulatedDisk()
    yield made
    made.close()


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


# -- the contract --------------------------------------------------------------------------------------------


@pytest.mark.requirement("R212")
def test_what_is_committed_is_there(spool: Spool) -> None:
    spool.commit([(Table.BLOCKS, key(1), b"one"), (Table.LANES, key(1), b"lane")])
    assert spool.get(Table.BLOCKS, key(1)) == b"one"
    assert spool.get(Table.LANES, key(1)) == b"lane"
    assert spool.get(Table.BLOCKS, key(2)) is None


def test_changes_of_a_commit_happen_in_their_order(spool: Spool) -> None:
    spool.commit([(Table.MOVES, b"a", b"1"), (Table.MOVES, b"a", None), (Table.MOVES, b"b", b"2")])
    spool.commit([(Table.MOVES, b"b", b"3"), (Table.MOVES, b"b", b"4"), (Table.MOVES, b"missing", None)])
    assert spool.scan(Table.MOVES) == [(b"b", b"4")]
    assert spool.count(Table.MOVES) == 1


def test_a_scan_is_in_key_order_from_start_up_to_end(spool: Spool) -> None:
    numbers = [5, 1, 300, 2, 256, 9]
    spool.commit([(Table.SEGMENTS, key(number), b"%d" % number) for number in numbers])
    assert [value for _, value in spool.scan(Table.SEGMENTS)] == [b"1", b"2", b"5", b"9", b"256", b"300"]
    assert [value for _, value in spool.scan(Table.SEGMENTS, key(2), key(256))] == [b"2", b"5", b"9"]
    assert [value for _, value in spool.scan(Table.SEGMENTS, key(6), limit=2)] == [b"9", b"256"]
    assert spool.scan(Table.SEGMENTS, key(301)) == []
    assert spool.scan(Table.STATES) == []


def test_appended_and_rewritten_keys_are_both_right(spool: Spool) -> None:
    for number in (1, 2, 3, 7):
        spool.commit([(Table.BLOCKS, key(number), b"a")])
    spool.commit([(Table.BLOCKS, key(5), b"b"), (Table.BLOCKS, key(8), b"c"), (Table.BLOCKS, key(2), None)])
    spool.commit([(Table.BLOCKS, key(8), None), (Table.BLOCKS, key(6), b"d"), (Table.BLOCKS, key(8), b"e")])
    expected = {1: b"a", 3: b"a", 5: b"b", 6: b"d", 7: b"a", 8: b"e"}
    assert dict(spool.scan(Table.BLOCKS)) == {key(number): value for number, value in expected.items()}


def test_the_size_grows_and_shrinks(spool: Spool) -> None:
    empty = spool.size_bytes()
    spool.commit([(Table.BLOCKS, key(number), bytes(5_000)) for number in range(100)])
    assert spool.size_bytes() - empty >= 500_000
    spool.commit([(Table.BLOCKS, key(number), None) for number in range(100)])
    assert spool.size_bytes() - empty < 100_000


_tables = st.sampled_from([Table.LANES, Table.BLOCKS, Table.STATES])
_changes = st.lists(
    st.tuples(_tables, st.binary(min_size=1, max_size=2), st.one_of(st.none(), st.binary(max_size=4))),
    max_size=20,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(_changes, max_size=6))
def test_both_do_what_dictionaries_do(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[Change]]
) -> None:
    spools: list[Spool] = [open_spool(tmp_path_factory.mktemp("spool"), MAP_BYTES), SimulatedDisk()]
    model: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
    try:
        for changes in commits:
            for table, name, value in changes:
                if value is None:
                    model[table].pop(name, None)
                else:
                    model[table][name] = value
            for one in spools:
                one.commit(changes)
                for table, rows in model.items():
                    if table not in _OWN:
                        assert one.scan(table) == sorted(rows.items())
                        assert one.count(table) == len(rows)
    finally:
        for one in spools:
            one.close()


# -- faults --------------------------------------------------------------------------------------------------


def test_a_full_map_changes_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 1 << 20)
    spool.commit([(Table.BLOCKS, key(1), b"x")])
    with pytest.raises(SpoolFullError):
        spool.commit([(Table.LANES, b"a", b"b"), (Table.BLOCKS, key(2), bytes(2 << 20))])
    assert spool.get(Table.LANES, b"a") is None
    spool.commit([(Table.BLOCKS, key(2), b"y")])
    assert spool.count(Table.BLOCKS) == 2
    spool.close()


def test_a_full_disk_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(tmp_path, MAP_BYTES)
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:3], 0, 0, *real[5:]))
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda _: full)
        with pytest.raises(SpoolFullError, match="bytes left"):
            spool.commit([(Table.LANES, b"a", b"b")])
    assert spool.get(Table.LANES, b"a") is None
    spool.commit([(Table.LANES, b"a", b"b")])
    spool.close()


def test_one_process_has_a_spool(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, MAP_BYTES)
    assert is_owned(tmp_path)
    with pytest.raises(errors.UnavailableError, match="another process") as caught:
        open_spool(tmp_path, MAP_BYTES)
    assert caught.value.code == errors.HOME_NOT_READY
    spool.close()
    assert not is_owned(tmp_path)
    assert not is_owned(tmp_path / "nowhere")
    open_spool(tmp_path, MAP_BYTES).close()


def test_an_environment_keeps_its_id(tmp_path: Path) -> None:
    first = open_spool(tmp_path / "a", MAP_BYTES)
    other = open_spool(tmp_path / "b", MAP_BYTES)
    assert first.environment_id != other.environment_id
    assert len(first.environment_id) == 16
    other.close()
    known = first.environment_id
    first.close()
    again = open_spool(tmp_path / "a", MAP_BYTES)
    assert again.environment_id == known
    again.close()


def damaged(directory: Path) -> str:
    with pytest.raises(errors.UnavailableError) as caught:
        open_spool(directory, MAP_BYTES)
    assert caught.value.code == errors.SPOOL_DAMAGED
    assert str(directory / DATA_FILE) in caught.value.detail
    assert "spool restore" in caught.value.detail
    return caught.value.detail


def filled(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    for number in range(50):
        spool.commit([(Table.BLOCKS, key(number), bytes(3_000))])
    spool.close()


def test_another_format_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    environment = lmdb.open(str(tmp_path), max_dbs=8, map_size=MAP_BYTES)
    with environment.begin(write=True, db=environment.open_db(b"meta")) as transaction:
        transaction.put(KEY_FORMAT, b"99")
    environment.close()
    assert "the format check found b'99'" in damaged(tmp_path)


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    os.truncate(tmp_path / DATA_FILE, 40_000)
    assert "the length check" in damaged(tmp_path)


def test_a_file_that_is_none_of_lmdb_is_refused(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / DATA_FILE).write_bytes(random.Random(1).randbytes(100_000))
    assert "LMDB says" in damaged(tmp_path)


def test_reading_needs_no_right_to_write(tmp_path: Path) -> None:
    with pytest.raises(errors.UnavailableError, match="no such file"):
        open_readonly(tmp_path)
    filled(tmp_path)
    spool = open_readonly(tmp_path)
    assert spool.count(Table.BLOCKS) == 50
    spool.close()


def test_a_copy_has_the_newest_commit_and_takes_no_more_room(tmp_path: Path) -> None:
    filled(tmp_path / "spool")
    spool = open_spool(tmp_path / "spool", MAP_BYTES)
    (tmp_path / "copy").mkdir()
    spool.copy_to(tmp_path / "copy")
    spool.close()
    copy = open_spool(tmp_path / "copy", MAP_BYTES)
    assert copy.count(Table.BLOCKS) == 50
    copy.close()


# -- the writer ----------------------------------------------------------------------------------------------


class Woken:
    """Waits for the writer as a loop would."""

    def __init__(self) -> None:
        self._signal = threading.Semaphore(0)

    def __call__(self) -> None:
        self._signal.release()

    def wait(self) -> None:
        assert self._signal.acquire(timeout=10)


def test_the_writer_writes_groups_in_order(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, MAP_BYTES)
    woken = Woken()
    writer = Writer(spool, woken)
    for number in range(3):
        writer.submit(number, [(Table.LANES, b"newest", b"%d" % number)])
        woken.wait()
    assert [(done.number, done.full) for done in writer.take_written()] == [(0, None), (1, None), (2, None)]
    assert spool.get(Table.LANES, b"newest") == b"2"
    writer.close()
    spool.close()


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
    with pytest.raises(SpoolFailedError, match="sync"):
        writer.take_written()
    assert disk.commits == 0


# -- kill -9 -------------------------------------------------------------------------------------------------

_CHILD = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from storage.spool import Table, open_spool

    spool = open_spool(Path(sys.argv[1]), 1 << 28)
    number = int.from_bytes(spool.get(Table.LANES, b"newest") or bytes(8), "big")
    while True:
        number += 1
        packed = number.to_bytes(8, "big")
        spool.commit([(Table.LANES, b"newest", packed), (Table.BLOCKS, packed, packed * 500)])
        print(number, flush=True)
    """
)


@pytest.mark.requirement("R163")
def test_what_was_committed_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    """Every commit that was told is there, whole, and nothing behind the newest one is missing."""
    rng = random.Random(7)
    told = 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert child.stdout is not None
        told = max(told, int(child.stdout.readline()))
        time.sleep(rng.uniform(0.0, 0.1))
        child.send_signal(signal.SIGKILL)
        child.wait()
        rest = [int(line) for line in child.stdout.read().split(b"\n")[:-1]]
        told = max([told, *rest])
        child.stdout.close()
        spool = open_spool(tmp_path, 1 << 28)
        newest = int.from_bytes(spool.get(Table.LANES, b"newest") or b"", "big")
        assert told <= newest <= told + 1
        assert [name for name, _ in spool.scan(Table.BLOCKS)] == [key(one) for one in range(1, newest + 1)]
        assert all(value == name * 500 for name, value in spool.scan(Table.BLOCKS))
        assert isinstance(spool, LmdbSpool)
        spool.close()
    assert told > 50
