"""What a spool in LMDB does besides its contract: one owner, refusals that say what to do, copies, a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import pytest

from angarium import errors
from storage import pages
from storage.maintenance import verify
from storage.spool import (
    DATA_FILE,
    FORMAT_VERSION,
    KEY_FORMAT,
    LOCK_FILE,
    LmdbSpool,
    SpoolFailedError,
    SpoolFullError,
    Table,
    is_owned,
    open_readonly,
    open_spool,
)
from tests.share import short
from tests.unit.storage.filled_spool import MAP_BYTES, filled, key, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[3]


def run_python(code: str, *arguments: str) -> str:
    """The output of a program; fails with what it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["read", "verify"])
def test_who_looks_at_a_spool_keeps_no_other_from_checking_its_pages_and_takes_it_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whoever reads pages that nobody has checked may be ended by LMDB."""
    directory = tmp_path / "0"
    open_spool(directory, MAP_BYTES).close()
    walked: list[Path] = []

    def look_meanwhile(walk: Callable[..., None], file: Path, *tell: Any) -> None:
        walked.append(file)
        if len(walked) == 1:
            open_readonly(directory).close()
            assert not is_owned(directory)
            with pytest.raises(errors.UnavailableError, match=r"50320.*another process"):
                open_spool(directory, MAP_BYTES)
        walk(file, *tell)

    for name in ("check_index", "check_file"):
        monkeypatch.setattr(pages, name, partial(look_meanwhile, getattr(pages, name)))
    if how == "read":
        open_readonly(directory).close()
    else:
        assert verify(directory, lambda _done, _total: None) == []
    assert len(walked) == 2 + (how == "verify")
    open_spool(directory, MAP_BYTES).close()


# -- durability ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R163")
def test_every_commit_is_synced(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    flags = spool._environment.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert not flags["writemap"]
    assert not flags["map_async"]
    spool.close()


def test_a_failed_commit_is_the_end(directory: Path) -> None:
    """A key that LMDB does not take stands for all that it does not foresee."""
    spool = open_spool(directory, MAP_BYTES)
    with pytest.raises(SpoolFailedError, match=r"data\.mdb failed"):
        spool.commit([(Table.LANES, b"a", b"b"), (Table.LANES, bytes(512), b"c")])
    assert spool.get(Table.LANES, b"a") is None
    spool.close()


def test_a_reader_sees_whole_commits_while_another_thread_writes(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    seen: list[int] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            found = spool.scan(Table.RECORDS)
            seen.append(len(found) if len({value for _, value in found}) <= 1 else -1)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(60):
        spool.commit([(Table.RECORDS, key(row), b"%d" % number) for row in range(20)])
    is_over.set()
    reader.join(10)
    assert 20 in seen
    assert set(seen) <= {0, 20}
    spool.close()


def test_readers_keep_no_page_from_being_used_again(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    for number in range(1, 150):
        spool.commit(
            [(Table.BLOCKS, key(number), bytes(40_000)), (Table.BLOCKS, key(max(number, 1) - 1), None)]
        )
        spool.scan(Table.BLOCKS)
        spool.get(Table.BLOCKS, key(number))
    end = (spool._environment.info()["last_pgno"] + 1) * 4096
    assert end < 2 << 20, "150 blocks of 40,000 bytes would take 6,000,000"
    spool.close()


def test_a_reader_that_is_killed_keeps_no_page_from_being_used_again(directory: Path) -> None:
    """As a worker that is killed while it looks into the spool of a neighbour."""
    spool = open_spool(directory, MAP_BYTES)
    spool.commit([(Table.BLOCKS, key(1), bytes(100_000))])
    code = """\
        import os, signal, sys
        from pathlib import Path
        from storage.spool import open_readonly
        spool = open_readonly(Path(sys.argv[1]))
        with spool._environment.begin():
            os.kill(os.getpid(), signal.SIGKILL)
    """
    with pytest.raises(AssertionError):
        run_python(code, str(directory))
    for _ in range(400):
        spool.commit([(Table.BLOCKS, key(1), bytes(100_000))])
    assert spool._usage().end_bytes < 16 << 20
    spool.close()


def test_blocks_in_append_order_fill_their_pages(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    for first in range(0, 4_000, 500):
        spool.commit([(Table.BLOCKS, key(number), bytes(100)) for number in range(first, first + 500)])
    assert spool.size_bytes() < 4_000 * 116 * 1.15
    spool.close()


# -- one owner -----------------------------------------------------------------------------------------------


def test_one_process_has_a_spool(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    assert is_owned(directory)
    with pytest.raises(errors.UnavailableError, match="another process") as caught:
        open_spool(directory, MAP_BYTES)
    assert caught.value.code == errors.HOME_NOT_READY
    spool.close()
    spool.close()
    assert not is_owned(directory)
    assert not is_owned(directory / "nowhere")
    open_spool(directory, MAP_BYTES).close()


def test_opening_tells_how_far_it_is(directory: Path) -> None:
    """A supervisor takes a start without news for hung."""
    spool = open_spool(directory, MAP_BYTES)
    for first in range(0, 40_000, 10_000):
        spool.commit(
            [(Table.SEGMENTS, key(1) + key(number), bytes(90)) for number in range(first, first + 10_000)]
        )
    spool.close()
    told: list[tuple[int, int]] = []
    open_spool(directory, MAP_BYTES, lambda *step: told.append(step)).close()
    assert len(told) >= 2
    assert told == sorted(told)
    assert all(0 < done <= total for done, total in told)


def test_asking_who_has_it_leaves_nothing_behind(directory: Path) -> None:
    assert not is_owned(directory)
    assert not directory.exists()


_OWNED_CHILD = """
    import os, sys
    from pathlib import Path
    from storage.spool import Table, is_owned, open_readonly, open_spool
    from angarium.errors import AngariumError
    print(is_owned(Path(sys.argv[1])))
    try:
        open_spool(Path(sys.argv[1]), 64 << 20)
    except AngariumError as error:
        print(error.code)
    spool = open_readonly(Path(sys.argv[1]))
    print(spool.count(Table.BLOCKS), spool.get(Table.BLOCKS, bytes(8)))
    spool.close()
"""


@pytest.mark.slow
def test_another_process_may_read_but_not_write(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    spool.commit([(Table.BLOCKS, key(0), b"x")])
    assert run_python(_OWNED_CHILD, str(directory)).split() == ["True", "50320", "1", "b'x'"]
    spool.commit([(Table.BLOCKS, key(0), b"y")])
    spool.close()


def test_a_child_of_fork_cannot_write(directory: Path) -> None:
    spool = open_spool(directory, MAP_BYTES)
    spool._owner += 1
    with pytest.raises(AssertionError, match="fork"):
        spool.commit([(Table.BLOCKS, key(1), b"x")])
    spool.close()


def test_what_is_open_for_reading_cannot_be_written(directory: Path) -> None:
    filled(directory)
    spool = open_readonly(directory)
    with pytest.raises(AssertionError, match="for reading"):
        spool.commit([(Table.BLOCKS, key(1), b"x")])
    assert spool.count(Table.BLOCKS) == 50
    assert len(spool.scan(Table.SEGMENTS)) == 50
    spool.close()


_GROWING_CHILD = """
    import sys
    from pathlib import Path
    from storage.spool import Table, open_readonly
    spool = open_readonly(Path(sys.argv[1]))
    for line in sys.stdin:
        print(spool.count(Table.BLOCKS), len(spool.scan(Table.BLOCKS)), flush=True)
"""


@pytest.mark.slow
def test_a_reader_follows_a_spool_that_grows(directory: Path) -> None:
    """It was opened when the spool was as small as it was made."""
    spool = open_spool(directory, MAP_BYTES)
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_GROWING_CHILD), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for expected in (0, 30):
            spool.commit([(Table.BLOCKS, key(number), bytes(1_000_000)) for number in range(expected)])
            child.stdin.write("count\n")
            child.stdin.flush()
            assert child.stdout.readline().split() == [str(expected)] * 2
        child.stdin.close()
        assert child.wait(20) == 0
    spool.close()


# -- refusals ------------------------------------------------------------------------------------------------


def test_an_environment_keeps_its_id(directory: Path) -> None:
    first = open_spool(directory / "a", MAP_BYTES)
    other = open_spool(directory / "b", MAP_BYTES)
    assert first.environment_id != other.environment_id
    assert len(first.environment_id) == 16
    other.close()
    known = first.environment_id
    first.close()
    again = open_spool(directory / "a", MAP_BYTES)
    assert again.environment_id == known
    again.close()


def test_another_format_is_refused(directory: Path) -> None:
    filled(directory)
    environment = lmdb.open(str(directory), max_dbs=8, map_size=MAP_BYTES)
    with environment.begin(write=True) as transaction:
        assert transaction.get(KEY_FORMAT) == FORMAT_VERSION
        transaction.put(KEY_FORMAT, b"99")
    environment.close()
    assert "the format check found b'99', this program knows 1" in refused(directory)


def test_an_environment_of_another_program_is_refused(directory: Path) -> None:
    directory.parent.mkdir()
    environment = lmdb.open(str(directory), map_size=MAP_BYTES)
    with environment.begin(write=True) as transaction:
        transaction.put(b"their key", b"their value")
    environment.close()
    assert "the format check found None" in refused(directory)


def test_a_table_that_is_missing_is_refused(directory: Path) -> None:
    filled(directory)
    environment = lmdb.open(str(directory), max_dbs=8, map_size=MAP_BYTES)
    with environment.begin(write=True) as transaction:
        transaction.drop(environment.open_db(b"records", transaction))
    environment.close()
    assert "the table check failed" in refused(directory)


def test_a_file_that_was_cut_is_refused(directory: Path) -> None:
    filled(directory)
    os.truncate(directory / DATA_FILE, 40_960)
    assert "the length check found 40,960 bytes" in refused(directory)


def test_a_file_that_is_none_of_lmdb_is_refused(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / DATA_FILE).write_bytes(random.Random(1).randbytes(100_000))
    assert "the head check found no head of LMDB" in refused(directory)


def test_what_is_not_there_cannot_be_read(directory: Path) -> None:
    with pytest.raises(errors.UnavailableError, match="no such file") as caught:
        open_readonly(directory)
    assert caught.value.code == errors.SPOOL_DAMAGED
    assert not directory.exists()


def test_a_fault_of_the_system_is_not_taken_for_damage(directory: Path) -> None:
    """A directory where LMDB wants its lock table: nothing is wrong with the messages."""
    filled(directory)
    (directory / "lock.mdb").unlink()
    (directory / "lock.mdb").mkdir()
    assert "cannot be opened" in refused(directory, errors.HOME_NOT_READY)


@pytest.mark.parametrize("table", [table for table in Table if table is not Table.BLOCKS])
def test_a_row_that_was_changed_on_disk_is_not_believed(directory: Path, table: Table) -> None:
    """One bit anywhere in the row, or the row under another key."""
    spool = open_spool(directory, MAP_BYTES)
    spool.commit([(table, key(1), b"what was written"), (table, key(2), b"and more")])
    spool.close()
    environment = lmdb.open(str(directory), max_dbs=8, map_size=MAP_BYTES)
    rows = environment.open_db(table.name.lower().encode())
    with environment.begin(write=True, db=rows) as transaction:
        stored = bytearray(transaction.get(key(1)) or b"")
        stored[-1] ^= 1
        transaction.put(key(1), bytes(stored))
        transaction.put(key(3), transaction.get(key(2)) or b"")
    environment.close()
    spool = open_spool(directory, MAP_BYTES)
    for number in (1, 3):
        for read in (lambda n: spool.get(table, key(n)), lambda n: spool.scan(table, key(n), key(n + 1))):
            with pytest.raises(errors.UnavailableError, match="checksum") as caught:
                read(number)
            assert caught.value.code == errors.SPOOL_DAMAGED
            assert key(number).hex() in caught.value.detail
    assert spool.get(table, key(2)) == b"and more"
    spool.close()


# -- copies --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R97")
def test_a_copy_has_the_newest_commit_and_no_room_ahead(directory: Path) -> None:
    filled(directory / "spool")
    spool = open_spool(directory / "spool", MAP_BYTES)
    (directory / "copy").mkdir()
    spool.copy_to(directory / "copy")
    copied = (directory / "copy" / DATA_FILE).stat().st_size
    assert copied <= spool.size_bytes() + (64 << 10)
    copy = open_spool(directory / "copy", MAP_BYTES)
    assert copy.scan(Table.BLOCKS) == spool.scan(Table.BLOCKS)
    assert copy.scan(Table.SEGMENTS) == spool.scan(Table.SEGMENTS)
    copy.close()
    spool.close()


def test_a_copy_is_one_moment_while_commits_go_on(directory: Path) -> None:
    spool = open_spool(directory / "spool", MAP_BYTES)
    spool.commit([(Table.BLOCKS, key(number), bytes(50_000)) for number in range(200)])
    (directory / "copy").mkdir()
    copying = threading.Thread(target=spool.copy_to, args=(directory / "copy",))
    copying.start()
    number = 0
    while copying.is_alive() or number < 20:
        number += 1
        spool.commit([(Table.RECORDS, key(row), key(number)) for row in range(2)])
    copying.join()
    spool.close()
    copy = open_spool(directory / "copy", MAP_BYTES)
    assert copy.count(Table.BLOCKS) == 200
    assert len({value for _, value in copy.scan(Table.RECORDS)}) <= 1
    copy.close()


def test_a_copy_that_cannot_be_written_leaves_nothing(directory: Path) -> None:
    filled(directory / "spool")
    spool = open_spool(directory / "spool", MAP_BYTES)
    with pytest.raises(OSError, match="cannot be copied"):
        spool.copy_to(directory / "nowhere")
    (directory / "copy").mkdir()
    spool.copy_to(directory / "copy")
    spool.close()


class Leaky:
    """An environment with pages that nobody uses: LMDB then refuses to copy compactly."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment

    def copy(self, path: str, *, compact: bool) -> None:
        if compact:
            (Path(path) / DATA_FILE).write_bytes(b"begun")
            raise lmdb.IncompatibleError("page leak or corrupt DB")
        self._environment.copy(path, compact=False)

    def close(self) -> None:
        self._environment.close()


def test_lost_pages_do_not_keep_from_a_backup(directory: Path) -> None:
    filled(directory / "spool")
    spool = open_spool(directory / "spool", MAP_BYTES)
    spool._environment = Leaky(spool._environment)
    (directory / "copy").mkdir()
    spool.copy_to(directory / "copy")
    spool.close()
    copy = open_spool(directory / "copy", MAP_BYTES)
    assert copy.count(Table.BLOCKS) == 50
    copy.close()


# -- full ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_map_that_is_smaller_than_the_spool_takes_deletions(directory: Path) -> None:
    """The setting was lowered: LMDB takes what is there, and nothing more comes in."""
    filled(directory, 500)
    spool = open_spool(directory, 1 << 20)
    with pytest.raises(SpoolFullError):
        spool.commit([(Table.BLOCKS, key(501), bytes(3_000))])
    for number in range(500):
        spool.commit([(Table.BLOCKS, key(number), None), (Table.SEGMENTS, key(1) + key(number), None)])
    assert spool.count(Table.BLOCKS) == 0
    spool.close()


def test_a_full_disk_is_found_before_anything_is_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(directory, MAP_BYTES)

    def full(_descriptor: int, _offset: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        patched.setattr(LmdbSpool, "_write", _only_if_allocated(LmdbSpool._write))
        stored = _fill(spool)
        for number in range(stored):
            spool.commit([(Table.BLOCKS, key(number), None)])
    assert stored > 10
    spool.commit([(Table.BLOCKS, key(number), bytes(40_000)) for number in range(2 * stored)])
    assert spool.count(Table.BLOCKS) == 2 * stored
    spool.close()


def _fill(spool: LmdbSpool) -> int:
    """Store blocks until it is full; gives how many."""
    stored = 0
    with contextlib.suppress(SpoolFullError):
        while True:
            spool.commit([(Table.BLOCKS, key(stored), bytes(40_000))])
            stored += 1
    with pytest.raises(SpoolFullError, match="bytes are used"):
        spool.commit([(Table.BLOCKS, key(stored), bytes(40_000))])
    return stored


def _only_if_allocated(write: Callable[..., None]) -> Callable[..., None]:
    def checked(spool: LmdbSpool, *arguments: Any) -> None:
        write(spool, *arguments)
        end = (spool._environment.info()["last_pgno"] + 1) * 4096
        assert end <= spool._space._allocated, "LMDB wrote where the disk may have no room"

    return checked


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=20m", "angarium-test", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    # Lazily, so that a test that failed with its spool open leaves nothing mounted.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_a_disk_without_room_stops_blocks_and_not_the_process(small_disk: Path) -> None:
    """Deletions go on, what they free is used again (until it is too scattered), and with room all goes on."""
    directory = small_disk / "spool"
    spool = open_spool(directory, 256 << 20)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(5 << 20))
    took = []
    for _ in range(short(2, long=4)):
        took.append(_fill(spool))
        spool.commit([(Table.STATES, key(number), bytes(20)) for number in range(1_000)])
        for number in range(took[-1]):
            spool.commit([(Table.BLOCKS, key(number), None), (Table.STATES, key(number), None)])
    assert took[0] * 40_000 > 7_000_000
    assert took[1] > 0.7 * took[0]
    spool.close()
    spool = open_spool(directory, 256 << 20)
    ballast.unlink()
    for number in range(took[0] + 20):
        spool.commit([(Table.BLOCKS, key(number), bytes(40_000))])
    assert spool.count(Table.BLOCKS) == took[0] + 20
    spool.close()
    pages.check_file(directory / DATA_FILE)


def test_a_disk_that_others_fill_is_told_and_changes_nothing(small_disk: Path) -> None:
    """There is no byte left, not even what the spool has allocated: the write itself fails."""
    directory = small_disk / "spool"
    spool = open_spool(directory, 256 << 20)
    spool.commit([(Table.BLOCKS, key(1), bytes(40_000))])
    os.truncate(directory / DATA_FILE, (spool._environment.info()["last_pgno"] + 1) * 4096)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4_096))
    for _ in range(3):
        with pytest.raises(SpoolFullError, match="No space left"):
            spool.commit([(Table.LANES, b"a", b"b"), (Table.BLOCKS, key(2), bytes(40_000))])
    assert spool.get(Table.LANES, b"a") is None
    ballast.unlink()
    spool.commit([(Table.LANES, b"a", b"c"), (Table.BLOCKS, key(2), bytes(40_000))])
    spool.close()
    pages.check_file(directory / DATA_FILE)
    spool = open_spool(directory, 256 << 20)
    assert spool.get(Table.LANES, b"a") == b"c"
    assert spool.count(Table.BLOCKS) == 2
    spool.close()


def test_the_lock_is_not_what_a_backup_takes(directory: Path) -> None:
    filled(directory / "spool")
    spool = open_spool(directory / "spool", MAP_BYTES)
    (directory / "copy").mkdir()
    spool.copy_to(directory / "copy")
    spool.close()
    assert [path.name for path in (directory / "copy").iterdir()] == [DATA_FILE]
    assert (directory / "spool" / LOCK_FILE).exists()
