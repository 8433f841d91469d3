"""Opening the spool of a worker, with a word on how far it is: a start without news is taken for hung.

The check of a large index takes seconds to minutes, and a predecessor that was killed may hold the spool for a
moment. The supervisor hears of both several times a second, the log every few seconds.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from angarium import errors
from storage.spool import KEY_DATA, LmdbSpool, Table, open_spool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: A predecessor that was killed may hold the spool for a moment.
OPEN_TRIES: Final = 50
OPEN_RETRY_S: Final = 0.1
#: Far below the silence after which a start is taken for hung; each word costs a message to the supervisor.
TELL_INTERVAL_S: Final = 0.25
#: A start that takes less needs no line in the log.
LOG_INTERVAL_S: Final = 5.0

_log = logging.getLogger(__name__)


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
    return errors.error_for(errors.INVALID_CONFIGURATION, f"{what}; {advice}")
