"""What the config store keeps beside the objects: producers, counters, and a copy of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from storage.config_store import Change, ConfigStore, Counter, Producer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConfigStore]:
    store = ConfigStore(tmp_path / "config")
    yield store
    store.close()


def test_producers_and_counters_stand_beside_the_objects(store: ConfigStore) -> None:
    store.commit(
        [
            Counter("endpoint", 7),
            Producer("default", "alice", "p", 3, 738_000),
            Change("vpn", "", "default", {"enabled": True}),
        ]
    )
    assert store.load_counters() == {"endpoint": 7}
    assert store.load_producers() == [Producer("default", "alice", "p", 3, 738_000)]
    assert store.load() == [Change("vpn", "", "default", {"enabled": True})]


def test_they_are_there_after_reopening_and_a_removed_producer_is_not(tmp_path: Path) -> None:
    first = ConfigStore(tmp_path / "config")
    first.commit([Producer("v", "u", name, 1, 1) for name in ("a", "b", "ü" * 80)])
    first.commit([Producer("v", "u", "a", None, 0), Counter("producer", 4)])
    first.commit([Counter("producer", 5)])
    first.close()
    second = ConfigStore(tmp_path / "config")
    assert [producer.name for producer in second.load_producers()] == ["b", "ü" * 80]
    assert second.load_counters() == {"producer": 5}
    second.close()


def test_a_failing_change_takes_its_counter_along(store: ConfigStore) -> None:
    with pytest.raises(TypeError):
        store.commit([Counter("endpoint", 9), Change("vpn", "", "b", {"x": object()})])
    assert store.load_counters() == {}


@pytest.mark.requirement("R97")
def test_a_copy_holds_what_was_committed(store: ConfigStore, tmp_path: Path) -> None:
    store.commit([Change("vpn", "", "a", {}), Counter("endpoint", 2)])
    place = tmp_path / "copy"
    place.mkdir()
    store.copy_to(place)
    copy = ConfigStore(place)
    assert [change.name for change in copy.load()] == ["a"]
    assert copy.load_counters() == {"endpoint": 2}
    copy.close()


def test_a_copy_that_cannot_be_written_is_an_os_error(store: ConfigStore, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        store.copy_to(tmp_path / "missing")
