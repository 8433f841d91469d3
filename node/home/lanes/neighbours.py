"""The spools of the other workers of a node, as a home reaches them to take lanes over.

Worker I has the folder I in the spool directory of the node. A spool is looked at read-only for a moment, or
opened for writing under its lock, which its own worker holds while it runs. A claim is an empty file
`claim-<lane>` in the folder of the worker that has the lane.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from angarium import errors
from storage.spool import LmdbSpool, is_owned, open_readonly, open_spool, remove_spool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CLAIM: Final = "claim-"


class OtherSpools:
    """Implements `node.home.lanes.adoption.Neighbours` on the folders of a node."""

    def __init__(self, directory: Path, own: str, map_bytes: int) -> None:
        """Know the spool directory of the node, and which folder is ours."""
        self._directory = directory
        self._own = own
        self._map_bytes = map_bytes
        #: The spool that is open for writing; LMDB must not open it a second time.
        self._opened: LmdbSpool | None = None

    def names(self) -> list[str]:
        """See `Neighbours.names`."""
        folders = (path.name for path in self._directory.iterdir() if path.is_dir())
        return sorted((name for name in folders if name.isdecimal() and name != self._own), key=int)

    @contextmanager
    def view(self, name: str) -> Iterator[LmdbSpool]:
        """See `Neighbours.view`."""
        if self._opened is not None and self._opened.directory.name == name:
            yield self._opened
            return
        spool = open_readonly(self._directory / name)
        try:
            yield spool
        finally:
            spool.close()

    def open(self, name: str) -> LmdbSpool | None:
        """See `Neighbours.open`."""
        assert self._opened is None
        try:
            self._opened = open_spool(self._directory / name, self._map_bytes)
        except errors.UnavailableError as error:
            if error.code == errors.HOME_NOT_READY:
                return None
            raise
        return self._opened

    def close(self) -> None:
        """See `Neighbours.close`."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def remove(self, name: str) -> None:
        """See `Neighbours.remove`."""
        remove_spool(self._directory / name)

    def is_running(self, name: str) -> bool:
        """See `Neighbours.is_running`."""
        is_ours = self._opened is not None and self._opened.directory.name == name
        return not is_ours and is_owned(self._directory / name)

    def claim(self, name: str, lane_id: int) -> None:
        """See `Neighbours.claim`."""
        (self._directory / name / f"{_CLAIM}{lane_id}").touch()

    def unclaim(self, name: str, lane_id: int) -> None:
        """See `Neighbours.unclaim`."""
        (self._directory / name / f"{_CLAIM}{lane_id}").unlink(missing_ok=True)

    def is_claimed(self, lane_id: int) -> bool:
        """See `Neighbours.is_claimed`."""
        return (self._directory / self._own / f"{_CLAIM}{lane_id}").exists()
