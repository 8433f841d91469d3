"""Where a standby keeps a store, and another one that is made anew beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from cluster.standby import places
from cluster.standby.places import ConfigPlace, SpoolPlace
from storage.spool import Table, remove_spool

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
