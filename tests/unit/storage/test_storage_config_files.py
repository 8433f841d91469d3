"""The two files of a config store: a damaged record is restored from the other one or refused, never believed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import lmdb
import msgpack
import pytest

from angarium import errors
from storage.config_file import ConfigFile
from storage.config_store import (
    Change,
    ConfigStore,
    Counter,
    Deletion,
    Producer,
    Sink,
    Stage,
    config_faults,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from storage.config_store import Entry

ENTRIES: Final[list[Entry]] = [
    Change("vpn", "", "default", {"enabled": True}),
    Change("acl", "default", "a", {"publish_topic_exceptions": ["public/>", "x" * 5_000]}),
    Counter("endpoint", 77),
    Producer("default", "alice", "import", 3, 738_000),
    Stage("default", "alice", "s", 4, 1, 1_700_000_000, "sink"),
    Sink("default", "alice", "sink", 9, 1_700_000_000),
    Deletion(12, is_complete=False),
]


def content(store: ConfigStore) -> list[Any]:
    return [
        store.load(),
        store.load_counters(),
        store.load_producers(),
        store.load_stages(),
        store.load_sinks(),
        store.load_deletions(),
    ]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of a store in which every table has records."""
    place = tmp_path / "config"
    store = ConfigStore(place)
    store.commit(ENTRIES)
    store.close()
    return place


@pytest.fixture
def sound(place: Path) -> list[Any]:
    """What it holds."""
    return look(place)[0]


def look(place: Path) -> tuple[list[Any], list[str]]:
    """Open a store; gives what it holds, and what it says of itself."""
    store = ConfigStore(place)
    try:
        assert store.faults() == []
        return content(store), store.take_notices()
    finally:
        store.close()


def flip(file: Path, text: bytes, bit: int = 0) -> int:
    """Flip a bit in every occurrence of a text; gives how many there are."""
    data = bytearray(file.read_bytes())
    at, found = data.find(text), 0
    while at >= 0:
        data[at] ^= 1 << bit
        at, found = data.find(text, at + 1), found + 1
    file.write_bytes(data)
    return found


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:16_384])  # behind the records is only what is allocated ahead


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero_pages(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:8192] + bytes(file.stat().st_size - 8192))


def remove(file: Path) -> None:
    file.unlink()


DAMAGE = [truncate, empty, zero_pages, remove]
LIVE = [b"public/>", b"enabled", b"alice\0import", b"alice\0s", b"counter:endpoint", b"\0\0default"]


@pytest.mark.requirement("R282")
@pytest.mark.parametrize("text", LIVE)
@pytest.mark.parametrize("bit", [0, 3])
def test_a_flipped_bit_in_a_live_record_is_restored_and_told(
    place: Path, sound: list[Any], text: bytes, bit: int
) -> None:
    assert flip(place / "data.mdb", text, bit)
    assert len(config_faults(place)) == 1
    found, notices = look(place)
    assert found == sound
    assert len(notices) == 1
    assert "restored from its copy" in notices[0]
    assert len(list(place.glob("damaged-*.mdb"))) == 1
    assert look(place) == (sound, [])


@pytest.mark.requirement("R282")
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_torn_or_missing_file_is_restored_and_told(
    place: Path, sound: list[Any], damage: Callable[[Path], None]
) -> None:
    damage(place / "data.mdb")
    found, notices = look(place)
    assert found == sound
    assert len(notices) == 1
    assert look(place) == (sound, [])
    assert config_faults(place) == []


@pytest.mark.requirement("R282")
@pytest.mark.parametrize("damage", [*DAMAGE, lambda file: flip(file, b"public/>")])
def test_a_damaged_copy_is_made_again(place: Path, sound: list[Any], damage: Callable[[Path], None]) -> None:
    damage(place / "copy" / "data.mdb")
    found, _ = look(place)
    assert found == sound
    assert config_faults(place) == []
    shutil.rmtree(place / "copy")
    assert look(place)[0] == sound
    assert config_faults(place) == []


@pytest.mark.requirement("R282")
def test_a_record_that_is_damaged_in_both_files_is_refused(place: Path) -> None:
    flip(place / "data.mdb", b"public/>")
    flip(place / "copy" / "data.mdb", b"enabled")
    before = (place / "data.mdb").read_bytes()
    with pytest.raises(errors.InvalidRequestError, match="checksum") as caught:
        ConfigStore(place)
    assert caught.value.code == errors.INVALID_CONFIGURATION
    assert "restore" in caught.value.advice
    assert (place / "data.mdb").read_bytes() == before
    assert len(config_faults(place)) == 2


@pytest.mark.requirement("R282")
def test_a_file_that_lost_commits_is_not_believed(place: Path) -> None:
    older = (place / "data.mdb").read_bytes()
    store = ConfigStore(place)
    store.commit([Deletion(13, is_complete=False)])
    newest = content(store)
    store.close()
    (place / "data.mdb").write_bytes(older)
    found, notices = look(place)
    assert found == newest
    assert "1 commits" in notices[0]


def test_a_crash_between_the_two_commits_leaves_the_first_file_right(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ConfigStore(place)
    assert store._copy is not None
    monkeypatch.setattr(store._copy, "write", lambda *_: None)
    store.commit([Counter("endpoint", 78)])
    store.close()
    found, notices = look(place)
    assert found[1] == {"endpoint": 78}
    assert notices == []
    truncate(place / "data.mdb")
    assert look(place)[0][1] == {"endpoint": 78}


@pytest.mark.requirement("R282")
def test_without_room_for_the_copy_commits_go_on_and_it_is_made_later(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise lmdb.DiskError("no space left on device")

    store = ConfigStore(place)
    assert store._copy is not None
    monkeypatch.setattr(store._copy, "write", refuse)
    store.commit([Counter("endpoint", 78)])
    assert "no space left" in caplog.text
    monkeypatch.setattr(ConfigFile, "copy_to", refuse)
    store._copy_retry_at = 0.0
    store.commit([Counter("endpoint", 79)])
    monkeypatch.undo()
    store.commit([Counter("endpoint", 80)])
    assert store._copy is None
    store._copy_retry_at = 0.0
    store.commit([Counter("endpoint", 81)])
    store.close()
    truncate(place / "data.mdb")
    assert look(place)[0][1] == {"endpoint": 81}


def old_store(place: Path, version: bytes) -> None:
    """Make a store as earlier versions did: without seals, commits and a copy."""
    place.mkdir()
    environment = lmdb.open(str(place), max_dbs=8)
    with environment.begin(write=True) as transaction:
        for table, key, value in (
            (b"meta", b"format", version),
            (b"meta", b"counter:endpoint", b"77"),
            (b"objects", b"acl\0default\0a", msgpack.packb({"publish_topic_exceptions": ["public/>"]})),
            (b"producers", b"default\0alice\0import", msgpack.packb([3, 738_000])),
        ):
            transaction.put(key, value, db=environment.open_db(table, transaction))
    environment.close()


@pytest.mark.requirement("R282")
@pytest.mark.parametrize("version", [b"1", b"2", b"3"])
def test_a_store_without_checksums_gets_them_at_the_first_start(tmp_path: Path, version: bytes) -> None:
    place = tmp_path / "config"
    old_store(place, version)
    assert config_faults(place) == []
    store = ConfigStore(place)
    assert store.load() == [Change("acl", "default", "a", {"publish_topic_exceptions": ["public/>"]})]
    assert store.load_counters() == {"endpoint": 77}
    assert store.load_producers() == [Producer("default", "alice", "import", 3, 738_000)]
    assert store.take_notices() == []
    store.close()
    assert flip(place / "data.mdb", b"public/>")
    found, notices = look(place)
    assert found[0] == [Change("acl", "default", "a", {"publish_topic_exceptions": ["public/>"]})]
    assert len(notices) == 1


def test_an_open_store_says_which_of_its_records_is_damaged(place: Path) -> None:
    store = ConfigStore(place)
    with store._file._environment.begin(write=True) as transaction:
        table = store._file._environment.open_db(b"objects", transaction)
        transaction.put(b"vpn\0\0default", b"1234\x80", db=table)
    (fault,) = store.faults()
    assert "data.mdb" in fault
    assert "default" in fault
    with pytest.raises(errors.InvalidRequestError, match="checksum"):
        store.load()
    store.close()
