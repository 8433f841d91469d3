"""Whether config store and spools belong together is decided before anything is spawned, and nothing is deleted."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from angarium import errors, wire
from cluster.data.data_dir import DataDirectory
from cluster.supervisor.stores import drop_left, expected_spools, make_spools, prepare, stamp
from node.home.spool.folders import StartNews, open_own
from storage.config_store import Change, ConfigStore, is_there
from storage.spool import KEY_DATA, Table, open_readonly, open_spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAP_BYTES = 16 << 20


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    """A data directory with stores for two workers."""
    with DataDirectory(tmp_path / "data", "n") as data:
        prepare(data, 2)
        yield data


def id_of_spool(directory: Path) -> str:
    spool = open_readonly(directory)
    try:
        return (spool.get(Table.META, KEY_DATA) or b"").decode()
    finally:
        spool.close()


def refused(data: DataDirectory, workers: int = 2) -> str:
    before = sorted(data.path.rglob("*.mdb"))
    with pytest.raises(errors.InvalidRequestError) as caught:
        prepare(data, workers)
    assert caught.value.code == errors.INVALID_CONFIGURATION
    assert sorted(data.path.rglob("*.mdb")) == before, "nothing was made or removed"
    return str(caught.value)


@pytest.mark.requirement("R282")
def test_all_stores_carry_one_id_that_stays(data: DataDirectory) -> None:
    assert data.node.data_id
    assert prepare(data, 2) == data.node.data_id
    assert [id_of_spool(data.path / "spool" / name) for name in "01"] == [data.node.data_id] * 2
    store = ConfigStore(data.path / "config")
    assert (store.data_id, store.load_counters()["spools"]) == (data.node.data_id, 2)
    store.close()


@pytest.mark.requirement("R282")
@pytest.mark.parametrize("knows", [True, False], ids=["with node.json", "without"])
def test_a_config_store_that_is_missing_is_refused(data: DataDirectory, knows: bool) -> None:
    shutil.rmtree(data.path / "config")
    if not knows:
        data.save(data_id="")
    assert "--accept-loss" in refused(data)
    assert not is_there(data.path / "config")


@pytest.mark.requirement("R282")
def test_with_everything_gone_but_its_node_file_a_data_directory_is_refused(data: DataDirectory) -> None:
    shutil.rmtree(data.path / "config")
    shutil.rmtree(data.path / "spool")
    refused(data)


@pytest.mark.requirement("R282")
@pytest.mark.parametrize("other", ["f" * 32, ""])
def test_a_config_store_of_another_data_directory_is_refused(data: DataDirectory, other: str) -> None:
    store = ConfigStore(data.path / "config")
    store.set_data_id(other)
    store.close()
    assert str(data.node.data_id) in refused(data)


@pytest.mark.requirement("R282")
def test_a_spool_that_was_made_and_is_missing_is_refused(data: DataDirectory) -> None:
    shutil.rmtree(data.path / "spool" / "1")
    assert "spool/1" in refused(data)
    assert prepare(data, 1)


def test_a_spool_of_a_worker_that_is_new_is_made(data: DataDirectory) -> None:
    make_spools(data, 3, data.node.data_id)
    assert id_of_spool(data.path / "spool" / "2") == data.node.data_id
    prepare(data, 4)
    assert id_of_spool(data.path / "spool" / "3") == data.node.data_id


def test_of_an_earlier_version_the_homes_say_which_spools_there_were(tmp_path: Path) -> None:
    store = ConfigStore(tmp_path / "config")
    store.commit([Change("queue", "default", "q", {"homes": [1, 5]}), Change("vpn", "", "default", {})])
    assert expected_spools(store, 4) == [1]
    store.close()


@pytest.mark.requirement("R282")
def test_a_data_directory_of_an_earlier_version_gets_its_id_once(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "data", "n") as data:
        ConfigStore(data.path / "config").close()
        open_spool(data.path / "spool" / "0", MAP_BYTES).close()
        data_id = prepare(data, 1)
        open_own(data.path / "spool" / "0", MAP_BYTES, StartNews(lambda _: None), data_id).close()
        assert id_of_spool(data.path / "spool" / "0") == data_id
        assert prepare(data, 1) == data_id


@pytest.mark.requirement("R282")
def test_whoever_accepts_the_loss_gets_new_stores_and_no_number_twice(data: DataDirectory) -> None:
    lane = (90 << wire.LANE_BITS).to_bytes(8, "big")
    spool = open_spool(data.path / "spool" / "1", MAP_BYTES)
    spool.commit([(Table.LANES, lane, b"x"), (Table.RECORDS, lane + (500).to_bytes(8, "big"), b"x")])
    spool.close()
    store = ConfigStore(data.path / "config")
    store.set_data_id("f" * 32)
    store.close()
    stamp(data.path / "spool" / "0", "e" * 32)
    assert prepare(data, 2, accept_loss=True) == data.node.data_id
    assert id_of_spool(data.path / "spool" / "0") == data.node.data_id
    assert sorted(path.name for path in data.path.glob("replaced-*/*")) == ["0", "config"]
    store = ConfigStore(data.path / "config")
    counters = store.load_counters()
    assert (counters["endpoint"], counters["producer"]) == (91, 501)
    store.close()
    assert prepare(data, 2) == data.node.data_id


@pytest.mark.requirement("R282")
def test_a_node_with_a_spool_that_is_made_anew_is_another_one_for_who_knows_its_positions(
    data: DataDirectory,
) -> None:
    """They are given again: a neighbour, or a query with a checkpoint, would take new messages for what it has."""
    before = data.node.node_id
    prepare(data, 2, accept_loss=True)
    assert data.node.node_id == before, "nothing is missing"
    prepare(data, 3)
    assert data.node.node_id == before, "a spool of a worker that is new has nothing that was there before"
    shutil.rmtree(data.path / "spool" / "1")
    prepare(data, 3, accept_loss=True)
    assert data.node.node_id not in ("", before)


@pytest.mark.requirement("R282")
@pytest.mark.parametrize("lost", [[], ["1"], ["0", "1"]])
def test_a_node_that_lost_its_config_store_is_another_one_if_it_lost_a_spool_too(
    data: DataDirectory, lost: list[str]
) -> None:
    """Of a spool that is there no number is given again, but who knows the numbers of the one that is not?"""
    before = data.node.node_id
    for name in ("config", *(f"spool/{index}" for index in lost)):
        shutil.rmtree(data.path / name)
    prepare(data, 2, accept_loss=True)
    assert (data.node.node_id != before) is bool(lost)


@pytest.mark.requirement("R282")
def test_a_worker_opens_no_spool_that_is_missing_or_of_another_data_directory(data: DataDirectory) -> None:
    news = StartNews(lambda _: None)
    with pytest.raises(errors.InvalidRequestError, match="missing"):
        open_own(data.path / "spool" / "7", MAP_BYTES, news, data.node.data_id)
    assert not (data.path / "spool" / "7").exists()
    with pytest.raises(errors.InvalidRequestError, match="of data directory"):
        open_own(data.path / "spool" / "0", MAP_BYTES, news, "f" * 32)
    open_own(data.path / "spool" / "0", MAP_BYTES, news, data.node.data_id).close()


@pytest.mark.requirement("R268")
def test_the_spool_of_a_worker_that_left_goes_if_there_is_nothing_in_it(data: DataDirectory) -> None:
    spool = open_spool(data.path / "spool" / "1", MAP_BYTES)
    spool.commit([(Table.LANES, b"lane", b"x")])
    spool.close()
    drop_left(data, 1)
    assert (data.path / "spool" / "1").exists()
    spool = open_spool(data.path / "spool" / "1", MAP_BYTES)
    drop_left(data, 1)
    assert (data.path / "spool" / "1").exists(), "somebody has it open"
    spool.commit([(Table.LANES, b"lane", None)])
    spool.close()
    drop_left(data, 1)
    assert sorted(path.name for path in (data.path / "spool").iterdir()) == ["0"]
