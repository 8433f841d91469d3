"""A config store on a full disk: what is new is refused, what removes something is not."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from storage.config_store import Change, ConfigStore, Counter, Deletion

if TYPE_CHECKING:
    from pathlib import Path

#: About 100 kB each.
LARGE = {"subscriptions": ["x" * 1_000] * 100}


def test_a_full_disk_refuses_what_is_new_and_takes_removals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ConfigStore(tmp_path / "config")
    allocate = os.posix_fallocate

    def full(_descriptor: int, _offset: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(errors.UnavailableError) as caught:  # noqa: PT012 - one of many is refused
        for number in range(100):
            store.commit([Change("queue", "v", f"q{number}", LARGE)])
    assert caught.value.code == errors.DISK_FULL
    kept = [change.name for change in store.load()]
    assert kept
    assert not store.has_room()
    store.commit([Change("queue", "v", kept[0], None), Deletion(7, is_complete=False), Counter("n", 1)])
    store.commit_with_reserve([Change("queue", "v", "needed", {})])
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    assert store.has_room()
    store.commit([Change("queue", "v", "new", LARGE)])
    store.close()
    names = {change.name for change in ConfigStore(tmp_path / "config").load()}
    assert names == {*kept[1:], "needed", "new"}
