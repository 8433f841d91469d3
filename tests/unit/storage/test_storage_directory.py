"""The directory of a spool comes and goes as a whole; one that lost its file is no new spool."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from angarium import errors
from storage.spool import DATA_FILE, LOCK_FILE, Table, open_readonly, open_spool, remove_spool
from tests.unit.storage.filled_spool import MAP_BYTES, filled, refused


@pytest.mark.parametrize("is_left", [True, False])
def test_a_directory_that_lost_its_messages_is_no_new_spool(directory: Path, *, is_left: bool) -> None:
    """A repair of the file system left the file empty, or none; only an absent directory starts over."""
    filled(directory)
    if is_left:
        os.truncate(directory / DATA_FILE, 0)
    else:
        (directory / DATA_FILE).unlink()
    assert ("the file is empty" if is_left else "there is no such file") in refused(directory)
    shutil.rmtree(directory)
    open_spool(directory, MAP_BYTES).close()


def test_a_spool_is_there_when_it_is_complete(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks while it is made finds none; one whose making was cut short is created again."""
    seen: list[list[str]] = []
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        seen.append(sorted(found.name for found in directory.parent.iterdir()))
        with pytest.raises(errors.UnavailableError, match="no such file"):
            open_readonly(directory)
        with pytest.raises(errors.UnavailableError, match="another process"):
            open_spool(directory, MAP_BYTES)
        return real(path, target)

    aside = directory.parent / ".0.aside"
    (aside / "more").mkdir(parents=True)
    (aside / DATA_FILE).write_bytes(b"half of it")
    monkeypatch.setattr(Path, "rename", rename)
    open_spool(directory, MAP_BYTES).close()
    assert seen == [[aside.name]]
    assert sorted(found.name for found in directory.iterdir()) == [DATA_FILE, "lock.mdb", LOCK_FILE]


def test_what_is_removed_is_gone_as_a_whole(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it deletes the files leaves nothing that looks like a spool."""
    filled(directory)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    remove_spool(directory)
    monkeypatch.undo()
    assert not directory.exists()
    spool = open_spool(directory, MAP_BYTES)
    assert spool.count(Table.BLOCKS) == 0
    spool.close()
    remove_spool(directory)
    remove_spool(directory)
    assert list(directory.parent.iterdir()) == []
