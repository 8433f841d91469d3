"""The config store on a real LMDB environment in a temporary directory."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import lmdb
import pytest

from angarium import errors
from storage.config_store import Change, ConfigStore, config_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConfigStore]:
    store = ConfigStore(tmp_path / "config")
    yield store
    store.close()


def test_a_new_store_is_empty(store: ConfigStore) -> None:
    assert store.load() == []


@pytest.mark.requirement("R97")
def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    first = ConfigStore(tmp_path / "config")
    first.commit(
        [
            Change("vpn", "", "default", {"enabled": True}),
            Change("acl", "default", "a", {"publish_topic_exceptions": ["ä/>", "b"]}),
        ]
    )
    first.close()
    second = ConfigStore(tmp_path / "config")
    assert second.load() == [
        Change("acl", "default", "a", {"publish_topic_exceptions": ["ä/>", "b"]}),
        Change("vpn", "", "default", {"enabled": True}),
    ]
    second.close()


def test_an_object_that_a_commit_writes_twice_does_not_look_damaged(tmp_path: Path) -> None:
    """As a standby does, which writes all groups at once that came while it wrote others."""
    store = ConfigStore(tmp_path)
    long, short = (Change("queue", "v", "q", {"subscriptions": ["x" * size]}) for size in (20_000, 9_000))
    store.commit([long, short])
    store.close()
    assert config_faults(tmp_path) == []
    store = ConfigStore(tmp_path)
    assert store.load() == [short]
    assert store.take_notices() == []
    store.close()


def test_a_change_without_attributes_removes_the_object(store: ConfigStore) -> None:
    store.commit([Change("vpn", "", "a", {}), Change("vpn", "", "b", {})])
    store.commit([Change("vpn", "", "a", None), Change("vpn", "", "never-there", None)])
    assert [change.name for change in store.load()] == ["b"]


def test_the_same_name_in_two_message_vpns_is_two_objects(store: ConfigStore) -> None:
    store.commit([Change("acl", "one", "x", {"n": 1}), Change("acl", "two", "x", {"n": 2})])
    assert [change.attributes for change in store.load()] == [{"n": 1}, {"n": 2}]


def test_the_longest_names_fit(store: ConfigStore) -> None:
    store.commit([Change("username", "v" * 128, "ü" * 94, {})])
    assert store.load()[0].name == "ü" * 94


def test_a_format_that_this_version_does_not_know_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "config"
    ConfigStore(place).close()
    environment = lmdb.open(str(place), max_dbs=4)
    with environment.begin(db=environment.open_db(b"meta"), write=True) as transaction:
        transaction.put(b"format", b"99")
    environment.close()
    with pytest.raises(errors.InvalidRequestError) as caught:
        ConfigStore(place)
    assert caught.value.code == errors.INVALID_CONFIGURATION
    for expected in (str(place), "'99'", "format check", "restore"):
        assert expected in str(caught.value)


def test_a_damaged_file_is_refused_and_named(tmp_path: Path) -> None:
    place = tmp_path / "config"
    ConfigStore(place).close()
    for file in (place / "data.mdb", place / "copy" / "data.mdb"):
        file.write_bytes(b"no database at all" * 1000)
    with pytest.raises(errors.InvalidRequestError, match=r"data\.mdb"):
        ConfigStore(place)


def test_a_failing_change_leaves_nothing_of_its_transaction(store: ConfigStore) -> None:
    with pytest.raises(TypeError):
        store.commit([Change("vpn", "", "a", {}), Change("vpn", "", "b", {"x": object()})])
    assert store.load() == []


def test_a_child_of_fork_may_not_use_it(store: ConfigStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(AssertionError, match="fork"):
        store.load()
    with pytest.raises(AssertionError, match="fork"):
        store.commit([])


@pytest.mark.slow
def test_a_commit_survives_the_kill_of_its_process(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from storage.config_store import Change, ConfigStore\n"
        "store = ConfigStore(sys.argv[1])\n"
        "store.commit([Change('vpn', '', 'kept', {'enabled': True})])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "config")], cwd=root, check=False, timeout=30
    )
    store = ConfigStore(tmp_path / "config")
    assert [change.name for change in store.load()] == ["kept"]
    store.close()
