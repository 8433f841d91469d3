"""A spool with some blocks, and the refusal of a damaged one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import errors
from storage.spool import (
    DATA_FILE,
    Table,
    is_owned,
    open_readonly,
    open_spool,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


MAP_BYTES = 64 << 20


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def filled(place: Path, blocks: int = 50) -> None:
    spool = open_spool(place, MAP_BYTES)
    for number in range(blocks):
        spool.commit(
            [(Table.BLOCKS, key(number), bytes(3_000)), (Table.SEGMENTS, key(1) + key(number), bytes(300))]
        )
    spool.close()


def refused(directory: Path, code: int = errors.SPOOL_DAMAGED) -> str:
    """The text of the refusal, which has to name the file, and what to do if it is damaged."""
    openers: list[Callable[[], object]] = [
        lambda: open_spool(directory, MAP_BYTES),
        lambda: open_readonly(directory),
    ]
    for open_it in openers:
        with pytest.raises(errors.UnavailableError) as caught:
            open_it()
        assert caught.value.code == code
        assert str(directory / DATA_FILE) in caught.value.detail
        if code == errors.SPOOL_DAMAGED:
            assert "angarium spool restore" in caught.value.detail
    assert not is_owned(directory), "a refusal lets go of it"
    return caught.value.detail
