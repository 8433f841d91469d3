"""The spool folders of a node: a worker opens its own, and reaches those of the others to take lanes over.

Worker I has the folder I in the spool directory of the node. The check of a large index takes seconds to minutes,
and a predecessor that was killed may hold the spool for a moment. The supervisor hears of both several times a
second, the log every few seconds: a start without news is taken for hung.

The spool of another worker is looked at read-only for a moment, or opened for writing under its lock, which its own
worker holds while it runs. A claim is an empty file `claim-<lane>` in the folder of the worker that has the lane;
when all of the lane is elsewhere, `taken-<lane>-<hand-overs>` tells a worker that runs to delete it.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from storage.spool import KEY_DATA, LmdbSpool, Table, is_owned, open_readonly, open_spool, remove_spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from storage.shipping.settings import StandbySettings

#: A predecessor that was killed may hold the spool for a moment.
OPEN_TRIES: Final = 50
OPEN_RETRY_S: Final = 0.1
#: Far below the silence after which a start is taken for hung; each word costs a message to the supervisor.
TELL_INTERVAL_S: Final = 0.25
#: A start that takes less needs no line in the log.
LOG_INTERVAL_S: Final = 5.0

_CLAIM: Final = "claim-"
_TAKEN: Final = "taken-"

_log = logging.getLogger(__name__)


class SpoolDirectory(NamedTuple):
    """Where the spools of a node are."""

    path: Path
    #: Of the sparse map of one worker's spool.
    map_bytes: int
    #: Of the data directory; empty: a spool that is missing is made.
    data_id: str
    #: Where a copy of the spool is kept; None: nowhere.
    standby: StandbySettings | None = None


class StartNews:
    """Hands on how far a start is, as often as its hearers need it."""

    def __init__(self, progress: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        """Begin; `progress` tells the supervisor."""
        self._progress = progress
        self._now = now
        #: When supervisor and log were told last; a start that is over at once is in no log.
        self._told_at = float("-inf")
        self._logged_at = now()

    def tell(self, text: str) -> None:
        """Say what the start is at, if it is time for that."""
        now = self._now()
        if now - self._told_at >= TELL_INTERVAL_S:
            self._told_at = now
            self._progress(text)
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            _log.info("%s", text)


def open_own(directory: Path, map_bytes: int, news: StartNews, data_id: str = "") -> LmdbSpool:
    """Open the spool of this worker, when the process before has let go of it.

    Args:
        directory: of the spool.
        map_bytes: as `open_spool`.
        news: hears how far it is.
        data_id: of the data directory, whose spools are made by the supervisor; empty: it is made if it is missing.

    Raises:
        InvalidRequestError: it is missing, or of another data directory (40017).
        UnavailableError: as `open_spool`.
    """

    def tell(done: int, total: int) -> None:
        news.tell(f"checking the spool: {done:,} pages of the index, of {total:,} pages in all")

    for attempt in range(1, OPEN_TRIES + 1):
        if data_id and not directory.exists():
            raise _refusal(f"spool {directory}: it is missing")
        try:
            return _checked(open_spool(directory, map_bytes, tell), data_id)
        except errors.UnavailableError as error:
            if error.code != errors.HOME_NOT_READY or attempt == OPEN_TRIES:
                raise
            news.tell(f"waiting for the spool, attempt {attempt}")
            time.sleep(OPEN_RETRY_S)
    raise AssertionError("the last attempt returns or raises")


def _checked(spool: LmdbSpool, data_id: str) -> LmdbSpool:
    """Give a spool if it is of this data directory; one of an earlier version gets the id."""
    found = (spool.get(Table.META, KEY_DATA) or b"").decode()
    if data_id and not found:
        spool.commit([(Table.META, KEY_DATA, data_id.encode())])
        _log.info("the spool of an earlier version is taken over into data directory %s", data_id)
    elif data_id and found != data_id:
        spool.close()
        raise _refusal(
            f"spool {spool.directory}: it is of data directory {found}, this is data directory {data_id}"
        )
    return spool


def _refusal(what: str) -> errors.AngariumError:
    advice = (
        "put the right one back, or restore a backup with 'angarium spool restore'; "
        "'angarium up --accept-loss' starts without it"
    )
    return errors.error_for(errors.INVALID_CONFIGURATION, what, advice)


class OtherSpools:
    """Implements `node.home.lanes.others.Neighbours` on the folders of a node."""

    def __init__(self, directory: Path, own: str, map_bytes: int) -> None:
        self._directory = directory
        self._own = own
        self._map_bytes = map_bytes
        #: The spool that is open for writing; LMDB must not open it a second time.
        self._opened: LmdbSpool | None = None
        #: Those that are open for reading; of these, too, LMDB opens each once.
        self._read: dict[str, LmdbSpool] = {}

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
        if name in self._read:
            yield self._read[name]
            return
        spool = open_readonly(self._directory / name)
        try:
            yield spool
        finally:
            spool.close()

    def read(self, name: str) -> LmdbSpool:
        """See `Neighbours.read`."""
        spool = self._read.get(name)
        if spool is None:
            spool = self._read[name] = open_readonly(self._directory / name)
        return spool

    def stop_reading(self, name: str) -> None:
        """See `Neighbours.stop_reading`."""
        spool = self._read.pop(name, None)
        if spool is not None:
            spool.close()

    def open(self, name: str) -> LmdbSpool | None:
        """See `Neighbours.open`."""
        assert self._opened is None
        self.stop_reading(name)
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

    def close_all(self) -> None:
        """Close whatever is open."""
        self.close()
        for name in list(self._read):
            self.stop_reading(name)

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

    def tell_taken(self, name: str, lane_id: int, handovers: int) -> None:
        """See `Neighbours.tell_taken`."""
        (self._directory / name / f"{_TAKEN}{lane_id}-{handovers}").touch()

    def is_taken(self, lane_id: int, handovers: int) -> bool:
        """See `Neighbours.is_taken`."""
        return (self._directory / self._own / f"{_TAKEN}{lane_id}-{handovers}").exists()

    def forget_taken(self, lane_id: int) -> None:
        """See `Neighbours.forget_taken`."""
        folder = self._directory / self._own
        for path in (folder / f"{_CLAIM}{lane_id}", *folder.glob(f"{_TAKEN}{lane_id}-*")):
            path.unlink(missing_ok=True)
