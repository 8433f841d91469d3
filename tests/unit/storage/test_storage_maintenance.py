"""Checks, backups and restores of spools: every fault is told, and a damaged backup changes nothing."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import msgpack
import pytest

from angarium import errors
from storage import maintenance
from storage.spool import DATA_FILE, Table, open_readonly, open_spool
from tests.unit.storage.filled_spool import key

if TYPE_CHECKING:
    from storage.spool import Change, LmdbSpool

ROOT = Path(__file__).resolve().parents[3]
MAP_BYTES = 64 << 20
LANE = (7).to_bytes(8, "big")
PAGE = 4096


def block(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "big") + content


def segment(block_id: int) -> bytes:
    packed: bytes = msgpack.packb([1, block_id, 100, "whatever the home has there"])
    return packed


def silent(_done: int, _total: int) -> None:
    """Take the progress."""


def stored(number: int) -> list[Change]:
    """What a home stores at once: a block, a segment in it, and what happened to the segment."""
    return [
        (Table.BLOCKS, key(number), block(b"%d" % number * 100)),
        (Table.SEGMENTS, LANE + key(number * 100), segment(number)),
        (Table.STATES, LANE + key(number * 100), b"gone"),
    ]


def make(directory: Path, *more: Change, blocks: int = 600) -> None:
    spool = open_spool(directory, MAP_BYTES)
    spool.commit(
        [
            (Table.LANES, LANE, b"lane"),
            (Table.LANES, LANE + b"\1", b"positions"),
            (Table.RECORDS, LANE + key(3), b"record"),
            (Table.MOVES, LANE, b"move"),
            (Table.META, b"stored", b"number"),
        ]
    )
    spool.commit([change for number in range(1, blocks + 1) for change in stored(number)])
    spool.commit(more)
    spool.close()


# -- verify --------------------------------------------------------------------------------------------------


def test_a_sound_spool_has_no_faults_and_tells_how_far_it_is(directory: Path) -> None:
    make(directory)
    told: list[tuple[int, int]] = []
    assert maintenance.verify(directory, lambda done, total: told.append((done, total))) == []
    assert told[0] == (0, 600)
    assert told[-1] == (600, 600)
    assert len(told) > 5
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_new_spool_has_no_faults(directory: Path) -> None:
    open_spool(directory, MAP_BYTES).close()
    assert maintenance.verify(directory, silent) == []


def test_what_a_purge_left_over_is_no_fault(directory: Path) -> None:
    """The row of the lane goes first, its segments in the writes after that: a backup may fall in between."""
    make(directory, (Table.LANES, LANE, None))
    assert maintenance.verify(directory, silent) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ((Table.BLOCKS, key(300), b"\0\0\0\0damaged"), "block 300 does not have its checksum"),
        ((Table.BLOCKS, key(601), b""), "block 601 does not"),
        ((Table.BLOCKS, b"short", block(b"x")), "blocks: the key 73686f7274 has 5 bytes"),
        ((Table.BLOCKS, key(300), None), "segments: the block 300 of the key"),
        ((Table.SEGMENTS, LANE + key(5), segment(999)), "segments: the block 999"),
        ((Table.SEGMENTS, LANE + key(5), b"\xc1"), "has no segment"),
        ((Table.SEGMENTS, LANE + key(5), b""), "has no segment"),
        ((Table.SEGMENTS, LANE + key(5), msgpack.packb([1, "x"])), "has no segment"),
        ((Table.SEGMENTS, b"short", segment(1)), "segments: the key 73686f7274 has 5 bytes"),
        ((Table.STATES, LANE + key(9), b"x"), "is of a segment that is not there"),
        ((Table.RECORDS, b"short", b"x"), "records: the key 73686f7274 has 5 bytes"),
        ((Table.LANES, LANE + b"too long", b"x"), "lanes: the key"),
        ((Table.MOVES, b"short", b"x"), "moves: the key"),
    ],
)
def test_each_fault_is_told(directory: Path, change: Change, fault: str) -> None:
    make(directory, change)
    (found,) = maintenance.verify(directory, silent)
    assert fault in found


def test_a_destroyed_spool_does_not_fill_the_terminal(directory: Path) -> None:
    make(directory, *((Table.BLOCKS, key(number), b"damaged value") for number in range(1, 601)))
    faults = maintenance.verify(directory, silent)
    assert len(faults) == maintenance.FAULTS_MAX


@pytest.mark.parametrize(
    "table", [Table.META, Table.LANES, Table.SEGMENTS, Table.STATES, Table.RECORDS, Table.MOVES]
)
def test_a_bit_that_flipped_on_disk_is_found_in_every_table(directory: Path, table: Table) -> None:
    make(directory)
    spool = open_readonly(directory)
    name, _ = spool.scan(table)[-1]
    spool.close()
    environment = lmdb.open(str(directory), max_dbs=8, map_size=MAP_BYTES)
    rows = environment.open_db(table.name.lower().encode())
    with environment.begin(write=True, db=rows) as transaction:
        value = bytearray(transaction.get(name) or b"")
        value[-1] ^= 0x10
        transaction.put(name, bytes(value))
    environment.close()
    faults = maintenance.verify(directory, silent)
    assert len(faults) == 1
    assert f"the checksum of the key {name.hex()} in {table.name.lower()} does not fit" in faults[0]


@pytest.mark.slow
def test_a_lost_page_is_refused_and_not_the_end_of_the_process(directory: Path) -> None:
    make(directory)
    data = bytearray((directory / DATA_FILE).read_bytes())
    refused = 0
    for page in range(2, 12):
        damaged = bytearray(data)
        damaged[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
        (directory / DATA_FILE).write_bytes(damaged)
        try:
            maintenance.verify(directory, silent)
        except errors.UnavailableError as error:
            refused += error.code == errors.SPOOL_DAMAGED
    assert refused


@pytest.mark.slow
def test_a_spool_in_use_is_checked_while_it_changes(directory: Path) -> None:
    """Nothing that comes or goes under the check is a fault; it takes whole groups of messages at any moment."""
    make(directory)
    code = (
        "import sys, pathlib\n"
        "from storage.maintenance import verify\n"
        "for _ in range(12):\n"
        "    print(verify(pathlib.Path(sys.argv[1]), lambda done, total: None))\n"
    )
    spool = open_spool(directory, MAP_BYTES)
    found: list[str] = []
    checker = threading.Thread(target=lambda: found.extend(_run(code, str(directory)).splitlines()))
    checker.start()
    churn(spool, random.Random(4), checker)
    checker.join(30)
    spool.close()
    assert found == ["[]"] * 12


def churn(spool: LmdbSpool, rng: random.Random, until: threading.Thread) -> None:
    """Store new messages and forget some, as a home does, while a thread lives."""
    live, number = list(range(1, 601)), 600
    while until.is_alive():
        changes: list[Change] = []
        for _ in range(20):
            number += 1
            live.append(number)
            changes.extend(stored(number))
            gone = live.pop(rng.randrange(len(live)))
            changes.extend((table, name, None) for table, name, _ in stored(gone))
        spool.commit(changes)


def _run(code: str, argument: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, argument],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- archives ------------------------------------------------------------------------------------------------


def packed(tmp_path: Path) -> Path:
    """A backup of two workers, as their homes and the command make it."""
    for index in range(2):
        make(tmp_path / "spool" / str(index), blocks=50)
        spool = open_spool(tmp_path / "spool" / str(index), MAP_BYTES)
        (tmp_path / "copy" / str(index)).mkdir(parents=True)
        spool.copy_to(tmp_path / "copy" / str(index))
        spool.close()
    members = {str(index): tmp_path / "copy" / str(index) for index in range(2)}
    maintenance.pack(members, tmp_path / "backup.tar", {"node": "n", "format": 99, "files": "theirs"}, silent)
    return tmp_path / "backup.tar"


@pytest.mark.requirement("R97")
def test_a_backup_comes_back_as_it_was(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    assert archive.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "copy", "spool"]
    target = tmp_path / "restored"
    target.mkdir()
    assert maintenance.unpack(archive, target, silent)["node"] == "n"
    assert (target / "1" / DATA_FILE).stat().st_mode & 0o777 == 0o600
    before = open_spool(tmp_path / "spool" / "1", MAP_BYTES)
    maintenance.renew_environment(target / "1")
    assert maintenance.verify(target / "1", silent) == []
    after = open_spool(target / "1", MAP_BYTES)
    for table in Table:
        if table is not Table.META:
            assert before.scan(table) == after.scan(table)
    assert before.environment_id != after.environment_id
    before.close()
    after.close()
    assert sorted(path.name for path in target.iterdir()) == ["0", "1"]


def test_progress_of_packing_and_unpacking_rises_to_its_end(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    told: list[tuple[int, int]] = []
    maintenance.pack({"0": tmp_path / "copy" / "0"}, archive, {}, lambda *step: told.append(step))
    assert told[-1][0] == told[-1][1] > 0
    told.clear()
    (tmp_path / "restored").mkdir()
    maintenance.unpack(archive, tmp_path / "restored", lambda *step: told.append(step))
    assert 0 < told[-1][0] <= told[-1][1]
    assert told == sorted(told)


def test_progress_of_one_large_file_is_told_while_it_is_packed_and_unpacked(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / DATA_FILE).write_bytes(bytes(5 << 20))
    told: list[tuple[int, int]] = []
    maintenance.pack({"0": tmp_path / "big"}, tmp_path / "tar", {}, lambda *step: told.append(step))
    shares = {done * 10 // total for done, total in told}
    assert shares == set(range(1, 11))
    told.clear()
    maintenance.unpack(tmp_path / "tar", tmp_path / "restored", lambda *step: told.append(step))
    assert len({done for done, _ in told}) >= 5


def test_a_restore_overwrites_nothing(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    target = tmp_path / "restored"
    (target / "1").mkdir(parents=True)
    with pytest.raises(errors.ConflictError, match="empty data directory"):
        maintenance.unpack(archive, target, silent)
    assert [path.name for path in target.iterdir()] == ["1"]


def test_a_restore_that_was_killed_is_begun_anew(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    left = tmp_path / "restored" / ".restoring" / "0"
    left.mkdir(parents=True)
    (left / DATA_FILE).write_bytes(b"half of it")
    maintenance.unpack(archive, tmp_path / "restored", silent)
    assert sorted(path.name for path in (tmp_path / "restored").iterdir()) == ["0", "1"]
    assert maintenance.verify(tmp_path / "restored" / "0", silent) == []


def test_a_pack_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar"
    archive.write_bytes(b"the one before")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / DATA_FILE).write_bytes(b"x" * 10)

    def fail(_done: int, _total: int) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        maintenance.pack({"0": tmp_path / "copy"}, archive, {}, fail)
    assert archive.read_bytes() == b"the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "copy"]


def refused(archive: Path, target: Path) -> str:
    target.mkdir(exist_ok=True)
    with pytest.raises(errors.UnavailableError) as caught:
        maintenance.unpack(archive, target, silent)
    assert caught.value.code == errors.SPOOL_DAMAGED
    assert str(archive) in caught.value.detail
    assert "use another backup" in caught.value.detail
    assert list(target.iterdir()) == []
    return caught.value.detail


@pytest.mark.slow
def test_a_backup_that_was_cut_changes_nothing(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    content = archive.read_bytes()
    rng = random.Random(3)
    # A tar ends with empty records: what is cut there was nothing.
    data = len(content) - 20_480
    for size in (0, 100, 600, *(rng.randrange(data) for _ in range(15))):
        archive.write_bytes(content[:size])
        refused(archive, tmp_path / "restored")


@pytest.mark.slow
def test_a_bit_that_flipped_anywhere_in_a_backup_is_found_or_does_not_matter(tmp_path: Path) -> None:
    """Every byte of what is restored has a checksum, also the manifest; the rest is names of users and padding."""
    archive = packed(tmp_path)
    content = archive.read_bytes()
    expected = maintenance.read_manifest(archive)
    rng = random.Random(6)
    places = [*(rng.randrange(3_000) for _ in range(60)), *(rng.randrange(len(content)) for _ in range(40))]
    found = 0
    for number, place in enumerate(places):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        archive.write_bytes(flipped)
        target = tmp_path / f"restored-{number}"
        target.mkdir()
        try:
            assert maintenance.unpack(archive, target, silent) == expected
        except errors.UnavailableError:
            found += 1
            assert list(target.iterdir()) == []
        else:
            for index in range(2):
                copied = (tmp_path / "copy" / str(index) / DATA_FILE).read_bytes()
                assert (target / str(index) / DATA_FILE).read_bytes() == copied
    assert found > 40


def test_noise_is_no_backup(tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar"
    archive.write_bytes(b"noise" * 1_000)
    told = refused(archive, tmp_path / "restored")
    assert "it is no backup" in told
    assert "\n" not in told


def forged(archive: Path, manifest: Any, files: dict[str, bytes]) -> Path:
    """An archive with whatever manifest, whose checksum is right if it is a map."""
    if isinstance(manifest, dict):
        manifest = {**manifest, "checksum": maintenance._manifest_sum(manifest)}
    with tarfile.open(archive, "w") as tar:
        for name, content in {maintenance.MANIFEST: json.dumps(manifest).encode(), **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive


@pytest.mark.parametrize(
    ("manifest", "what"),
    [
        ([], "its manifest is not of format 1"),
        ({"format": 2, "files": {}}, "its manifest is not of format 1"),
        ({"format": 1}, "its manifest does not fit"),
        ({"format": 1, "files": {"0/data.mdb": "x"}}, "missing"),
        ({"format": 1, "files": {"../data.mdb": "x"}}, "it names the file '../data.mdb'"),
        ({"format": 1, "files": {"/data.mdb": "x"}}, "it names the file"),
        ({"format": 1, "files": {"0/../../data.mdb": "x"}}, "it names the file"),
        ({"format": 1, "files": {"data.mdb": "x"}}, "it names the file"),
        ({"format": 1, "files": {"0/..": "x"}}, "it names the file"),
        ({"format": 1, "files": {"1/data.mdb": "x"}}, "the checksum of 1/data.mdb does not fit"),
    ],
)
def test_a_forged_backup_writes_nowhere(tmp_path: Path, manifest: Any, what: str) -> None:
    files = {
        "../data.mdb": b"x",
        "/data.mdb": b"x",
        "0/../../data.mdb": b"x",
        "1/data.mdb": b"x",
        "data.mdb": b"x",
    }
    archive = forged(tmp_path / "backup.tar", manifest, files)
    assert what in refused(archive, tmp_path / "restored")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "restored"]
