"""The check of the pages of an LMDB file: it finds what LMDB would end the process at, and nothing else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import pages
from storage.spool import DATA_FILE, Table, open_spool
from tests.share import short
from tests.unit.storage.filled_spool import key

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage.spool import Change

ROOT = Path(__file__).resolve().parents[3]
MAP_BYTES = 64 << 20
PAGE = 4096
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
#: The end of the head of a large value: what it is, and how many pages it has.
_VALUE_OF_THREE = bytes((_OVERFLOW, 0, 3, 0, 0, 0))


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool with trees of two levels, large values, and free pages; without room ahead."""
    directory = tmp_path_factory.mktemp("used") / "0"
    rng = random.Random(5)
    spool = open_spool(directory, MAP_BYTES)
    for first in range(0, short(300, long=600), 50):
        changes: list[Change] = []
        for number in range(first, first + 50):
            changes.append((Table.BLOCKS, key(number), rng.randbytes(rng.choice([10, 3_000, 9_000]))))
            changes.append((Table.SEGMENTS, key(rng.randrange(20)) + key(number), bytes(400)))
            if number % 3 == 0 and number > 60:
                changes.append((Table.BLOCKS, key(number - 60), None))
        spool.commit(changes)
    end = spool._usage().end_bytes
    spool.close()
    os.truncate(directory / DATA_FILE, end)
    return directory


def pages_of(directory: Path) -> tuple[int, int]:
    """Pages of indexes, but for those of the list of free pages, and of large values, as LMDB counts them."""
    environment = lmdb.open(str(directory), max_dbs=8, map_size=MAP_BYTES, readonly=True)
    tables = [environment.open_db(table.name.lower().encode(), create=False) for table in Table]
    with environment.begin() as transaction:
        stats = [environment.stat(), *(transaction.stat(table) for table in tables)]
    environment.close()
    index = sum(stat["branch_pages"] + stat["leaf_pages"] for stat in stats)
    return index, sum(stat["overflow_pages"] for stat in stats)


def verdict(check: Callable[[Path], None], file: Path) -> str:
    """What the check finds; empty for nothing."""
    try:
        check(file)
    except pages.PageFaultError as error:
        return str(error)
    return ""


def changed(source: Path, target: Path, at: int, content: bytes) -> Path:
    data = bytearray((source / DATA_FILE).read_bytes())
    data[at : at + len(content)] = content
    target.mkdir(exist_ok=True)
    (target / DATA_FILE).write_bytes(data)
    return target / DATA_FILE


def flags_of(data: bytes, page: int) -> int:
    return int.from_bytes(data[page * PAGE + 10 : page * PAGE + 12], sys.byteorder)


def test_a_sound_file_passes(used: Path) -> None:
    pages.check_index(used / DATA_FILE)
    pages.check_file(used / DATA_FILE)


def test_a_sound_file_passes_after_every_commit(directory: Path) -> None:
    rng = random.Random(8)
    spool = open_spool(directory, MAP_BYTES)
    live: list[int] = []
    for number in range(120):
        changes: list[Change] = [(Table.BLOCKS, key(number), rng.randbytes(rng.choice([10, 40_000])))]
        live.append(number)
        while live and rng.random() < 0.5:
            changes.append((Table.BLOCKS, key(live.pop(rng.randrange(len(live)))), None))
        spool.commit(changes)
        pages.check_file(directory / DATA_FILE)
    spool.close()


@pytest.mark.parametrize("sizes", [(20_000, 9_000), (20_000, 100), (9_000, 5_000, 30_000, 20_000)])
def test_a_value_that_got_shorter_in_its_transaction_keeps_its_pages(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    spool = open_spool(tmp_path / "0", MAP_BYTES)
    spool.commit([(Table.MOVES, key(1), bytes(size)) for size in sizes])
    spool.commit([(Table.BLOCKS, key(2), bytes(9_000))])
    assert verdict(pages.check_file, tmp_path / "0" / DATA_FILE) == ""
    spool.commit([(Table.MOVES, key(1), None)])
    spool.commit([(Table.BLOCKS, key(number), bytes(9_000)) for number in range(3, 20)])
    assert verdict(pages.check_file, tmp_path / "0" / DATA_FILE) == ""
    spool.close()


def test_a_head_with_the_pages_of_another_value_is_found(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "0", MAP_BYTES)
    spool.commit([(Table.BLOCKS, key(1), bytes(9_000)), (Table.BLOCKS, key(2), bytes(9_000))])
    spool.close()
    data = (tmp_path / "0" / DATA_FILE).read_bytes()
    heads = [at for at in range(0, len(data), PAGE) if data[at + 10 : at + 16] == _VALUE_OF_THREE]
    assert len(heads) == 2
    file = changed(tmp_path / "0", tmp_path / "1", min(heads) + 12, (4).to_bytes(4, "little"))
    assert "in two places" in verdict(pages.check_file, file)


@pytest.mark.slow
@pytest.mark.parametrize("check", [pages.check_index, pages.check_file])
def test_each_lost_page_of_the_index_is_found_and_no_other(
    used: Path, tmp_path: Path, check: Callable[[Path], None]
) -> None:
    data = (used / DATA_FILE).read_bytes()
    found = 0
    for page in range(2, len(data) // PAGE):
        if flags_of(data, page) in (_BRANCH, _LEAF):
            text = verdict(check, changed(used, tmp_path / "c", page * PAGE, bytes(PAGE)))
            assert not text or f"index page {page}" in text
            found += bool(text)
    expected, _ = pages_of(used)
    assert expected > 20
    assert expected < found <= expected + 3, "the list of free pages has some pages of its own"


@pytest.mark.slow
def test_a_lost_head_of_a_large_value_is_found_by_the_whole_check(used: Path, tmp_path: Path) -> None:
    """LMDB takes from it how many pages become free with the value."""
    found = 0
    data = (used / DATA_FILE).read_bytes()
    for page in range(2, len(data) // PAGE):
        if flags_of(data, page) != _OVERFLOW:
            continue
        file = changed(used, tmp_path / "c", page * PAGE, bytes(16))
        if "no head of a value" in verdict(pages.check_file, file):
            assert verdict(pages.check_index, file) == ""
            found += 1
    _, of_values = pages_of(used)
    assert of_values / 3 <= found <= of_values, "a value here has up to three pages, and one head"


_OPEN = """
import sys
from pathlib import Path
from angarium.errors import AngariumError
from storage.maintenance import verify
from storage.spool import open_spool
for attempt in (lambda path: open_spool(path, 64 << 20), lambda path: verify(path, lambda done, total: None)):
    try:
        attempt(Path(sys.argv[1]))
    except AngariumError as error:
        print(error.code)
"""


@pytest.mark.slow
def test_a_lost_page_is_refused_where_lmdb_would_end_the_process(used: Path, tmp_path: Path) -> None:
    data = (used / DATA_FILE).read_bytes()
    rng = random.Random(2)
    candidates = [page for page in range(2, len(data) // PAGE) if flags_of(data, page) in (_BRANCH, _LEAF)]
    refused = 0
    for page in rng.sample(candidates, 6):
        file = changed(used, tmp_path / "c", page * PAGE, bytes(PAGE))
        if verdict(pages.check_index, file):
            done = subprocess.run(
                [sys.executable, "-c", _OPEN, str(file.parent)],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert (done.returncode, done.stdout.split()) == (0, ["50322", "50322"]), done.stderr
            refused += 1
    assert refused


def test_a_page_on_the_list_of_free_ones_that_is_in_use_is_found(directory: Path) -> None:
    """The next commit would write over it."""
    spool = open_spool(directory, MAP_BYTES)
    for number in range(40):
        spool.commit([(Table.BLOCKS, key(number), bytes(3_000)), (Table.BLOCKS, key(number // 2), None)])
    end = spool._usage().end_bytes
    spool.close()
    os.truncate(directory / DATA_FILE, end)
    data = (directory / DATA_FILE).read_bytes()
    heads = [int.from_bytes(data[at + 16 + 120 + 8 : at + 16 + 120 + 16], sys.byteorder) for at in (0, PAGE)]
    at = (PAGE if heads[1] > heads[0] else 0) + 16 + 24
    free_root, main_root = (
        int.from_bytes(data[at + tree * 48 + 40 : at + tree * 48 + 48], sys.byteorder) for tree in (0, 1)
    )
    content = data[free_root * PAGE : (free_root + 1) * PAGE]
    offset = int.from_bytes(content[16:18], sys.byteorder)
    first = free_root * PAGE + offset + 8 + 8 + 8
    assert int.from_bytes(data[first : first + 8], sys.byteorder) < end // PAGE
    in_use = main_root.to_bytes(8, sys.byteorder)
    with pytest.raises(
        pages.PageFaultError, match=f"free list check found page {main_root}, which is in use"
    ):
        pages.check_index(changed(directory, directory / "c", first, in_use))
    with pytest.raises(pages.PageFaultError, match="free list check found page 99999 of"):
        pages.check_index(changed(directory, directory / "c", first, (99_999).to_bytes(8, sys.byteorder)))
    with pytest.raises(pages.PageFaultError, match="free list check found 99999 pages"):
        pages.check_index(changed(directory, directory / "c", first - 8, (99_999).to_bytes(8, sys.byteorder)))


def test_a_cut_file_is_found(used: Path, tmp_path: Path) -> None:
    data = (used / DATA_FILE).read_bytes()
    for size, what in (
        (100, "head check found 100 bytes"),
        (PAGE, "head check"),
        (10 * PAGE, "length check"),
    ):
        (tmp_path / DATA_FILE).write_bytes(data[:size])
        with pytest.raises(pages.PageFaultError, match=what):
            pages.check_index(tmp_path / DATA_FILE)
    (tmp_path / DATA_FILE).write_bytes(b"")
    pages.check_index(tmp_path / DATA_FILE)


def test_room_ahead_is_no_fault(used: Path, tmp_path: Path) -> None:
    (tmp_path / DATA_FILE).write_bytes((used / DATA_FILE).read_bytes() + bytes(10 * PAGE))
    pages.check_file(tmp_path / DATA_FILE)


def test_a_file_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pages.check_index(tmp_path / DATA_FILE)


@pytest.mark.slow
@given(st.data())
def test_whatever_is_in_the_file_the_check_ends_with_a_verdict(
    used: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    size = (used / DATA_FILE).stat().st_size
    content = bytearray((used / DATA_FILE).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        page = data.draw(st.integers(0, size // PAGE - 1))
        inside = data.draw(st.one_of(st.integers(0, 63), st.integers(0, PAGE - 1)))
        noise = data.draw(st.one_of(st.binary(min_size=1, max_size=16), st.just(b"\xff" * 16)))
        content[page * PAGE + inside : page * PAGE + inside + len(noise)] = noise
    file = tmp_path_factory.getbasetemp() / "noise.mdb"
    file.write_bytes(content[:size])
    texts = [verdict(check, file) for check in (pages.check_index, pages.check_file)]
    assert all("check" in text for text in texts if text)
    assert texts[1] or not texts[0], "the whole check finds what the other one finds"
