"""The spool of a worker on disk: seven tables of keys and values, written in synced groups.

`Spool` is the port. What is committed is on disk, synced, when `commit` returns, all of it or nothing; what
the keys and values mean is the home's business (`node/home/layout.py`). `LmdbSpool` keeps it in LMDB; the
disk of the simulation passes the same contract suite.

How LMDB is used (design section 8):

- Never WRITEMAP, NOSYNC or MAPASYNC. A reader lives for one call, so that no page is kept from being used
  again.
- The map is sized once, sparse, above the quota. Before each commit the free space of the file system is
  looked at, because a full disk must never be found out by a sync: after a failed sync nobody knows what is
  on disk, and trying again would "succeed". Such a failure ends the process (`SpoolFailedError`).
- One process at a time has an environment for writing: a lock on a file beside it.
- A file that is shorter than LMDB's own count of its pages would end the process at the first look behind
  its end, so its length is checked before anything is read.
"""

from __future__ import annotations

import enum
import fcntl
import os
import secrets
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import lmdb

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: What is stored says this; another one is refused, never misread.
FORMAT_VERSION: Final = b"1"
#: Sparse: a new spool takes a few pages of it.
MAP_BYTES: Final = 64 << 30
#: Free space that a commit leaves besides twice its own bytes: pages that LMDB copies, and its tables.
RESERVE_BYTES: Final = 4 << 20
#: Threads of one process, and a backup.
MAX_READERS: Final = 64
#: The data file, as LMDB names it, and the lock of ours.
DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "owner.lock"
KEY_FORMAT: Final = b"format"
KEY_ENVIRONMENT: Final = b"environment"


class Table(enum.IntEnum):
    """What a spool has; each has keys of its own."""

    META = 0
    LANES = 1
    SEGMENTS = 2
    STATES = 3
    BLOCKS = 4
    RECORDS = 5
    MOVES = 6


#: Table, key, value; None deletes, and deleting what is not there is fine.
Change: TypeAlias = tuple[Table, bytes, bytes | None]


class SpoolFullError(Exception):
    """There is no room for a commit: nothing was changed, and it may be tried again later."""


class SpoolFailedError(Exception):
    """A write or a sync failed: nobody knows what is on disk, so the process has to end and read again."""


class Spool(Protocol):
    """What a home needs of a disk."""

    def commit(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, in their order, or none; to be called by one thread only.

        Raises:
            SpoolFullError: there is no room; nothing was changed.
            SpoolFailedError: the disk failed; the process has to end.
        """

    def get(self, table: Table, key: bytes) -> bytes | None:
        """Give a value of the newest commit, or None; any thread may ask."""

    def scan(
        self, table: Table, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Give keys and values with start <= key < end, by rising key, at most `limit`."""

    def count(self, table: Table) -> int:
        """Count the keys of a table."""

    def size_bytes(self) -> int:
        """Give the bytes of the pages in use."""

    def close(self) -> None:
        """Let go of it."""


class LmdbSpool:
    """A spool in an LMDB environment; `open_spool` makes one."""

    def __init__(self, directory: Path, environment: Any, lock: int | None) -> None:
        """Take over an environment that was checked."""
        self.directory = directory
        self._environment = environment
        self._lock = lock
        self._tables = {table: environment.open_db(table.name.lower().encode()) for table in Table}
        #: Table -> the greatest key that was appended; what is greater is appended, which is faster.
        self._tails: dict[Table, bytes] = {Table.BLOCKS: self._tail(Table.BLOCKS)}

    @property
    def environment_id(self) -> str:
        """Give what names this environment, made when it was: a restored backup gets another one."""
        return (self.get(Table.META, KEY_ENVIRONMENT) or b"").decode()

    def commit(self, changes: Sequence[Change]) -> None:
        """See `Spool.commit`."""
        self._check_room(changes)
        tables, tails = self._tables, self._tails
        try:
            with self._environment.begin(write=True) as transaction:
                for table, key, value in changes:
                    if value is None:
                        transaction.delete(key, db=tables[table])
                    elif key > tails.get(table, key):
                        transaction.put(key, value, db=tables[table], append=True)
                        tails[table] = key
                    else:
                        transaction.put(key, value, db=tables[table])
        except lmdb.MapFullError as error:
            self._tails = {Table.BLOCKS: self._tail(Table.BLOCKS)}
            raise SpoolFullError(f"the map of {self.directory} is full: {error}") from None
        except lmdb.Error as error:
            raise SpoolFailedError(f"a commit to {self.directory / DATA_FILE} failed: {error}") from error

    def _check_room(self, changes: Sequence[Change]) -> None:
        needed = RESERVE_BYTES + 2 * sum(len(value) for _, _, value in changes if value is not None)
        disk = os.statvfs(self.directory)
        free = disk.f_bavail * disk.f_frsize
        if free < needed:
            raise SpoolFullError(f"{self.directory} has {free:,} bytes left, a commit wants {needed:,}")

    def get(self, table: Table, key: bytes) -> bytes | None:
        """See `Spool.get`."""
        with self._environment.begin(db=self._tables[table]) as transaction:
            value: bytes | None = transaction.get(key)
            return value

    def scan(
        self, table: Table, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """See `Spool.scan`."""
        found: list[tuple[bytes, bytes]] = []
        with (
            self._environment.begin(db=self._tables[table]) as transaction,
            transaction.cursor() as cursor,
        ):
            if not (cursor.set_range(start) if start else cursor.first()):
                return found
            for entry in cursor.iternext():
                if (end is not None and entry[0] >= end) or len(found) == limit:
                    break
                found.append(entry)
        return found

    def count(self, table: Table) -> int:
        """See `Spool.count`."""
        with self._environment.begin() as transaction:
            return int(transaction.stat(self._tables[table])["entries"])

    def size_bytes(self) -> int:
        """See `Spool.size_bytes`."""
        pages = 0
        with self._environment.begin() as transaction:
            for table in self._tables.values():
                stat = transaction.stat(table)
                pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return int(pages * self._environment.stat()["psize"])

    def copy_to(self, directory: Path) -> None:
        """Write a compact copy of the newest commit into an empty directory, while commits go on."""
        self._environment.copy(str(directory), compact=True)

    def close(self) -> None:
        """See `Spool.close`."""
        self._environment.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _tail(self, table: Table) -> bytes:
        with (
            self._environment.begin(db=self._tables[table]) as transaction,
            transaction.cursor() as cursor,
        ):
            return bytes(cursor.key()) if cursor.last() else b""


def open_spool(directory: Path, map_bytes: int = MAP_BYTES) -> LmdbSpool:
    """Open the spool in a directory, or make it.

    Raises:
        UnavailableError: another process has it (50320), or it is damaged or of another format; the text names
            the file, the check that failed and what to do (50322).
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _lock(directory)
    try:
        environment = _open_environment(directory, map_bytes=map_bytes)
        _check_format(directory, environment, make=True)
        environment.reader_check()
        return LmdbSpool(directory, environment, lock)
    except BaseException:
        os.close(lock)
        raise


def open_readonly(directory: Path) -> LmdbSpool:
    """Open the spool of a process that does not run, or that may go on writing, to read it.

    Raises:
        UnavailableError: it is not there, damaged, or of another format (50322).
    """
    if not (directory / DATA_FILE).exists():
        raise _damaged(directory, "there is no such file")
    environment = _open_environment(directory, readonly=True)
    _check_format(directory, environment, make=False)
    return LmdbSpool(directory, environment, None)


def is_owned(directory: Path) -> bool:
    """Tell whether some process has the spool of a directory open for writing."""
    try:
        os.close(_lock(directory))
    except errors.AngariumError:
        return True
    except FileNotFoundError:
        return False
    return False


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        detail = f"another process has the spool {directory} open"
        raise errors.error_for(errors.HOME_NOT_READY, detail) from None
    return descriptor


def _open_environment(directory: Path, map_bytes: int = MAP_BYTES, *, readonly: bool = False) -> Any:
    try:
        environment = lmdb.open(
            str(directory),
            map_size=map_bytes,
            max_dbs=len(Table) + 1,
            max_readers=MAX_READERS,
            mode=0o600,
            readonly=readonly,
            readahead=False,
            meminit=False,
        )
    except lmdb.Error as error:
        raise _damaged(directory, f"LMDB says {error}") from error
    try:
        pages, page_bytes = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
        size = (directory / DATA_FILE).stat().st_size
        if size < pages * page_bytes:
            what = f"the length check found {size:,} bytes, its {pages:,} pages have {pages * page_bytes:,}"
            raise _damaged(directory, what)
    except BaseException:
        environment.close()
        raise
    return environment


def _check_format(directory: Path, environment: Any, *, make: bool) -> None:
    """Find the format version, or note it in a new environment."""
    try:
        meta = environment.open_db(Table.META.name.lower().encode())
        with environment.begin(db=meta, write=make) as transaction:
            stored = transaction.get(KEY_FORMAT)
            if stored is None and make:
                transaction.put(KEY_FORMAT, FORMAT_VERSION)
                transaction.put(KEY_ENVIRONMENT, secrets.token_hex(8).encode())
                stored = FORMAT_VERSION
    except lmdb.Error as error:
        environment.close()
        raise _damaged(directory, f"the table check failed: LMDB says {error}") from error
    if stored != FORMAT_VERSION:
        environment.close()
        known = FORMAT_VERSION.decode()
        raise _damaged(directory, f"the format check found {stored!r}, this program knows {known}")


def _damaged(directory: Path, what: str) -> errors.AngariumError:
    advice = (
        "restore it with 'angarium spool restore', or start the program that wrote it, "
        "or move the directory away: its messages are then lost"
    )
    return errors.error_for(errors.SPOOL_DAMAGED, f"spool {directory / DATA_FILE}: {what}; {advice}")
