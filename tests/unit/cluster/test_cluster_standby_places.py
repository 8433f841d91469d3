"""Where a standby keeps a store, and another one that is made anew beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from cluster.standby import places
from cluster.standby.places import ConfigPlace, SpoolPlace, damages
from storage.config_store import COPY_FOLDER
from storage.spool import DATA_FILE, Table, remove_spool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROW = (Table.META, b"row", b"new")


def spool_place(data: Path) -> SpoolPlace:
    return SpoolPlace(data, "0", 16 << 20)


def replace_and_die(place: Any, store: Path, patch: pytest.MonkeyPatch) -> None:
    """End just when the earlier store is gone and the new one has not taken its place."""

    def remove_and_die(directory: Path) -> None:
        remove_spool(directory)
        if directory == store:
            os._exit(9)

    patch.setattr(places, "remove_spool", remove_and_die)
    place.begin_anew()
    place.write([ROW])
    place.finish()


@pytest.mark.parametrize(("make", "name"), [(spool_place, "spool/0"), (ConfigPlace, "config")])
def test_a_store_that_was_made_anew_is_there_if_the_host_ends_as_it_takes_its_place(
    tmp_path: Path, make: Callable[[Path], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (child := os.fork()) == 0:
        place = make(tmp_path)
        place.open()
        replace_and_die(place, tmp_path / name, monkeypatch)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    place = make(tmp_path)
    log = place.open()
    assert log._spool.get(Table.META, b"row") == b"new"
    place.close()


def test_a_store_that_is_missing_is_as_bad_as_one_that_is_damaged(tmp_path: Path) -> None:
    """It would be made anew and empty, while the outside store takes this host for one that has everything."""
    for name in ("0", "1", "3"):
        place = SpoolPlace(tmp_path, name, 16 << 20)
        place.open()
        place.close()
    (tmp_path / "spool" / "1" / DATA_FILE).unlink()
    (tmp_path / "spool" / "3").rename(tmp_path / "spool" / "copying-3")  # the host ended as it took its place
    said = damages(tmp_path, ["config", "0", "1", "2", "3"], 16 << 20)
    no_file = f"spool {tmp_path / 'spool' / '1' / DATA_FILE}: there is no such file"
    assert said == ["store config is missing", no_file, "store 2 is missing"]
    assert not (tmp_path / "spool" / "2").exists()


def break_config(data: Path, files: list[str]) -> None:
    for name in files:
        (data / "config" / name / DATA_FILE).write_bytes(b"?" * 20_000)


def test_a_config_store_whose_files_are_both_damaged_is_damaged_and_no_other(tmp_path: Path) -> None:
    place = ConfigPlace(tmp_path)
    place.open()
    place.close()
    assert damages(tmp_path, ["config"], 16 << 20) == []
    break_config(tmp_path, [""])
    assert damages(tmp_path, ["config"], 16 << 20) == [], "it is restored from its copy"
    break_config(tmp_path, ["", COPY_FOLDER])
    (said,) = damages(tmp_path, ["config"], 16 << 20)
    assert said.startswith(f"config store {tmp_path / 'config' / DATA_FILE}: ")
    for name in ("", COPY_FOLDER):
        (tmp_path / "config" / name / DATA_FILE).unlink()
    assert damages(tmp_path, ["config"], 16 << 20) == ["store config is missing"]


def test_a_config_store_without_files_is_missing_also_beside_one_that_is_not_complete(tmp_path: Path) -> None:
    """That one takes no place of a directory: the store would be made anew and empty."""
    place = ConfigPlace(tmp_path)
    place.open()
    place.close()
    (tmp_path / "config").rename(tmp_path / "copying-config")
    for name in ("", COPY_FOLDER):
        (tmp_path / "config" / name).mkdir(exist_ok=True)
    assert damages(tmp_path, ["config"], 16 << 20) == ["store config is missing"]
    assert (tmp_path / "copying-config" / DATA_FILE).exists(), "nothing was touched"
