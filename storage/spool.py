"""The spool of a worker on disk: eight tables of keys and values, written in synced groups.

`Spool` is the port. What is committed is on disk, synced, when `commit` returns, all of it or nothing; what
the keys and values mean is the home's business (`node/home/spool/layout.py`). `LmdbSpool` keeps it in LMDB; the
disk of the simulation passes the same contract suite.

How LMDB is used:

- Never WRITEMAP, NOSYNC or MAPASYNC. A reader lives for one call, so that no page is kept from being used
  again; one that was killed meanwhile is cleared before the file grows.
- The map is sized once, sparse, above the quota. Before each commit room is made for it on the disk
  (`storage.headroom`). After a failed sync nobody knows what is on disk, and trying again would "succeed": such a
  failure ends the process (`SpoolFailedError`).
- One process at a time has an environment for writing: a lock on a file beside it. LMDB breaks when two
  processes size one map, or when a child of fork goes on using it.
- LMDB ends the process at a page that was lost, and at one behind the end of the file. So the index is walked
  before LMDB reads it (`storage.pages`).
- A block is a value with a checksum of its own (`storage.maintenance`). All other values are sealed here: four
  bytes in front of them are the CRC-32 of table, key and value, checked whenever they are read.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import secrets
import shutil
import zlib
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import lmdb

from angarium import errors
from storage import pages
from storage.headroom import NoRoomError, SpaceGuard, Usage, usage_of
from storage.sync import sync_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from storage.pages import Tell

#: What is stored says this; another one is refused, never misread.
FORMAT_VERSION: Final = b"1"
#: Sparse: a new spool takes some megabytes of it.
MAP_BYTES: Final = 64 << 30
#: Of a reader: a writer never grows past it while it reads. It is addresses only, whatever the size of the file.
READER_MAP_BYTES: Final = 1 << 40
#: Threads of one process, and tools that look. A spool has few readers, and those that died are cleared.
MAX_READERS: Final = 64
#: The data file, as LMDB names it, and the lock of ours.
DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "owner.lock"
#: The format is a key of LMDB's own table of tables, the id a row of META.
KEY_FORMAT: Final = b"#format"
KEY_ENVIRONMENT: Final = b"environment"
#: The id of the data directory that the spool belongs to, a row of META too; none in one of an earlier version.
KEY_DATA: Final = b"data"
_SEAL_BYTES: Final = 4
#: A new environment is made in a directory beside its own, and one that is removed gets such a name first: whoever
#: is killed meanwhile leaves no directory that looks like a spool which lost its messages.
_ASIDE: Final = ".aside"
#: What LMDB raises when the file is not as it wrote it; anything else is a fault of the system around it.
_DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
    lmdb.NotFoundError,
    lmdb.IncompatibleError,
    lmdb.BadTxnError,
)


class Table(enum.IntEnum):
    """What a spool has; each has keys of its own."""

    META = 0
    LANES = 1
    SEGMENTS = 2
    STATES = 3
    BLOCKS = 4
    RECORDS = 5
    MOVES = 6
    STAGED = 7


#: Tables that spools of earlier versions lack: whoever opens one for writing makes them.
ADDED: Final = (Table.STAGED,)

#: Table, key, value; None deletes, and deleting what is not there is fine.
Change: TypeAlias = tuple[Table, bytes, bytes | None]


class SpoolFullError(Exception):
    """There is no room for a commit: nothing was changed, and it may be tried again later."""


class SpoolFailedError(Exception):
    """A write or a sync failed: nobody knows what is on disk, so the process has to end and read again."""


def nothing() -> None:
    """Nobody wants to know."""


class Spool(Protocol):
    """What a home needs of a disk."""

    @property
    def room_bytes(self) -> int:
        """How many bytes of messages may be under way; 0 if there is no room but for these."""

    def commit(self, changes: Sequence[Change], handed_over: Callable[[], None] = nothing) -> None:
        """Make all changes durable, in their order, or none; to be called by one thread only.

        `handed_over` is called when only the disk is left to wait for, unless something is wrong before that.

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
    """A spool in an LMDB environment; `open_spool` and `open_readonly` make one."""

    def __init__(self, directory: Path, environment: Any, lock: int | None, map_bytes: int) -> None:
        """Take over an environment that was checked, and the lock that says that it is ours; None: to read."""
        self.directory = directory
        self._environment = environment
        self._lock = lock
        self._owner = os.getpid()
        self._tables: dict[Table, Any] = {
            table: environment.open_db(_name(table), create=False) for table in Table if table not in ADDED
        }
        self._open_added(environment, may_create=lock is not None)
        #: Table -> a key that none in it exceeds. What is greater is appended, which fills pages better;
        #: blocks and the segments of the newest lane come by rising keys.
        self._tails: dict[Table, bytearray] = {}
        self._descriptor: int | None = None
        if lock is not None:
            self._find_tails()
            self._descriptor = os.open(directory / DATA_FILE, os.O_RDWR | os.O_CLOEXEC)
            self._space = SpaceGuard(self._descriptor, map_bytes, self._look, has_ahead=True)

    def _open_added(self, environment: Any, *, may_create: bool) -> None:
        """Open the tables that may be missing; to a reader one that is missing is empty."""
        for table in ADDED:
            with contextlib.suppress(*(() if may_create else (lmdb.NotFoundError, lmdb.ReadonlyError))):
                self._tables[table] = environment.open_db(_name(table), create=may_create)

    @property
    def environment_id(self) -> str:
        """Give what names this environment, made when it was: a restored backup gets another one."""
        return (self.get(Table.META, KEY_ENVIRONMENT) or b"").decode()

    @property
    def room_bytes(self) -> int:
        """See `Spool.room_bytes`; any thread may ask."""
        return self._space.room_bytes

    def commit(self, changes: Sequence[Change], handed_over: Callable[[], None] = nothing) -> None:
        """See `Spool.commit`."""
        assert self._owner == os.getpid(), "the spool is used across a fork"
        assert self._lock is not None, "the spool is open for reading only, or closed"
        try:
            self._space.take(changes, Table.BLOCKS)
        except NoRoomError as error:
            raise SpoolFullError(f"{self.directory}: {error}") from None
        try:
            self._write(changes, handed_over)
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            # LMDB writes its head last, after a sync of all else: on disk is what was there before. Should the
            # disk have had no room for the head itself LMDB panics at the next call, and the process ends.
            self._find_tails()
            raise SpoolFullError(f"{self.directory} is full: {error}") from None
        except lmdb.Error as error:
            raise SpoolFailedError(f"a commit to {self.directory / DATA_FILE} failed: {error}") from error

    def _write(self, changes: Sequence[Change], handed_over: Callable[[], None]) -> None:
        """Write changes in one transaction; each call to LMDB gives the interpreter's lock away, so few are made."""
        tables, tails, blocks = self._tables, self._tails, Table.BLOCKS
        with self._environment.begin(write=True) as transaction:
            for table, key, value in changes:
                if value is None:
                    transaction.delete(key, db=tables[table])
                    continue
                stored = value if table is blocks else _seal(table, key, value)
                if key > tails.get(table, key):
                    transaction.put(key, stored, db=tables[table], append=True)
                    tails[table][:] = key
                else:
                    transaction.put(key, stored, db=tables[table])
            handed_over()

    def get(self, table: Table, key: bytes) -> bytes | None:
        """See `Spool.get`.

        Raises:
            UnavailableError: it is damaged (50322).
        """
        try:
            with self._environment.begin(db=self._tables[table]) as transaction:
                value: bytes | None = transaction.get(key)
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error
        if value is None or table is Table.BLOCKS:
            return value
        return self._unsealed(table, key, value)

    def scan(
        self, table: Table, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """See `Spool.scan`.

        Raises:
            UnavailableError: something in it is damaged (50322).
        """
        try:
            found = self._scan(table, start, end, limit)
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error
        if table is Table.BLOCKS:
            return found
        return [(key, self._unsealed(table, key, value)) for key, value in found]

    def _scan(
        self, table: Table, start: bytes, end: bytes | None, limit: int | None
    ) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        if table not in self._tables:
            return found
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

    def _unsealed(self, table: Table, key: bytes, value: bytes) -> bytes:
        content = value[_SEAL_BYTES:]
        if _seal(table, key, content) != value:
            what = f"the checksum of the key {key.hex()} in {table.name.lower()} does not fit"
            raise damaged(self.directory, what)
        return content

    def count(self, table: Table) -> int:
        """See `Spool.count`."""
        if table not in self._tables:
            return 0
        with self._environment.begin() as transaction:
            return int(transaction.stat(self._tables[table])["entries"])

    def size_bytes(self) -> int:
        """See `Spool.size_bytes`."""
        return self._usage().used_bytes

    def _look(self) -> Usage:
        """Give what is used, before the file grows; whoever was killed while he read keeps no pages from now on."""
        self._environment.reader_check()
        return self._usage()

    def _usage(self) -> Usage:
        return usage_of(self._environment, self._tables.values())

    def copy_to(self, directory: Path) -> None:
        """Write a compact copy of the newest commit into an empty directory, durably, while commits go on.

        Any thread may call it. Pages that commits free meanwhile are not used again before it is done, so the
        spool grows by as much as is written in that time.

        Raises:
            OSError: the copy cannot be written; nothing of it is left.
        """
        copy = directory / DATA_FILE
        try:
            try:
                self._environment.copy(str(directory), compact=True)
            except lmdb.IncompatibleError:
                # Pages that nobody uses and nobody may use again keep LMDB from making it compact.
                copy.unlink(missing_ok=True)
                self._environment.copy(str(directory), compact=False)
            for path in (copy, directory):
                sync_path(path)
        except (lmdb.Error, OSError) as error:
            copy.unlink(missing_ok=True)
            raise OSError(f"the spool cannot be copied to {directory}: {error}") from error

    def close(self) -> None:
        """See `Spool.close`; no call may be under way."""
        self._environment.close()
        for descriptor in (self._descriptor, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._lock = None

    def _find_tails(self) -> None:
        for table in (Table.BLOCKS, Table.SEGMENTS):
            with (
                self._environment.begin(db=self._tables[table]) as transaction,
                transaction.cursor() as cursor,
            ):
                self._tails[table] = bytearray(cursor.key() if cursor.last() else b"")

    def _unreadable(self, table: Table, error: Exception) -> errors.AngariumError:
        return damaged(self.directory, f"reading {table.name.lower()} failed: LMDB says {error}")


def open_spool(directory: Path, map_bytes: int = MAP_BYTES, tell: Tell = pages.silent) -> LmdbSpool:
    """Open the spool in a directory; make it if there is no such directory.

    A directory without the data file, or with an empty one, is no new spool: something took its messages away.

    Args:
        directory: of the environment.
        map_bytes: what it may grow to; it may be another size each time.
        tell: called with (pages of the index that were checked, pages of the file) many times a second: who
            is watched by a supervisor says with it that it lives.

    Raises:
        UnavailableError: another process has it, or the system does not let it be opened (50320); or it is
            damaged or of another format, and the text names the file, the check that failed and what to do
            (50322).
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    lock = _make(directory) if not directory.exists() else try_lock(directory)
    if lock is None:
        raise _taken(directory)
    try:
        _check_pages(directory, tell)
        # What is committed must not hang on names that are not on disk, also if one before was killed here.
        for path in (directory, directory.parent, *(path.parent for path in missing)):
            sync_path(path)
        return _open(directory, lock, map_bytes)
    except BaseException:
        os.close(lock)
        raise


def remove_spool(directory: Path) -> None:
    """Delete a spool, or another store of one directory, for ever; nobody sees half of it."""
    aside = _aside(directory)
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        directory.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def open_readonly(directory: Path) -> LmdbSpool:
    """Open the spool of another process, which may go on writing or not run, to read it.

    Raises:
        UnavailableError: the system does not let it be opened (50320); or it is not there, damaged, or of
            another format (50322).
    """
    if not (directory / DATA_FILE).exists():
        raise damaged(directory, "there is no such file")
    try:
        lock = try_look(directory)
    except OSError as error:
        raise _refused(directory, error) from error
    if lock is not None:
        # Nobody writes it: its pages stand still.
        try:
            _check_pages(directory, pages.silent)
        finally:
            os.close(lock)
    return _open(directory, None, 0)


def is_owned(directory: Path) -> bool:
    """Tell whether some process has the spool of a directory open for writing."""
    if not (directory / LOCK_FILE).exists():
        return False
    lock = try_look(directory)
    if lock is None:
        return True
    os.close(lock)
    return False


def try_lock(directory: Path) -> int | None:
    """Take the lock of a spool; gives a descriptor to close, or None if another process has it or looks at pages."""
    return _try(directory, fcntl.LOCK_EX)


def try_look(directory: Path) -> int | None:
    """Keep a spool from being opened for writing while its pages are looked at, which others may do too.

    Gives a descriptor to close, or None if another process has it open for writing.
    """
    return _try(directory, fcntl.LOCK_SH)


def _try(directory: Path, operation: int) -> int | None:
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def damaged(directory: Path, what: str) -> errors.AngariumError:
    """Give the error of a spool that is not as it was written (50322)."""
    advice = (
        "restore it with 'angarium spool restore', or start the program that wrote it, "
        "or move the directory away: its messages are then lost"
    )
    return errors.error_for(errors.SPOOL_DAMAGED, f"spool {directory / DATA_FILE}: {what}; {advice}")


def _name(table: Table) -> bytes:
    return table.name.lower().encode()


def _seal(table: Table, key: bytes, value: bytes) -> bytes:
    """Give a value with its checksum in front, as it is stored."""
    return zlib.crc32(value, zlib.crc32(key, table)).to_bytes(_SEAL_BYTES, "big") + value


def _taken(directory: Path) -> errors.AngariumError:
    return errors.error_for(errors.HOME_NOT_READY, f"another process has the spool {directory} open")


def _check_pages(directory: Path, tell: Tell) -> None:
    file = directory / DATA_FILE
    try:
        if not file.exists():
            raise damaged(directory, "there is no such file")
        if not file.stat().st_size:
            raise damaged(directory, "the file is empty")
        pages.check_index(file, tell)
    except pages.PageFaultError as error:
        raise damaged(directory, str(error)) from None
    except OSError as error:
        raise damaged(directory, f"the page check failed: {error}") from error


def _aside(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}{_ASIDE}")


def _make(directory: Path) -> int | None:
    """Make an environment; gives its lock, or None if another process makes it.

    It has its place only when it is complete and on disk, so others never see half of it.
    """
    place = _aside(directory)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        lock = try_lock(place)
    except FileNotFoundError:  # another process was faster
        return None
    if lock is None:
        return None
    try:
        _make_files(place)
        place.rename(directory)
    except OSError as error:
        os.close(lock)
        if directory.exists():
            return None
        raise _refused(directory, error) from error
    except BaseException:
        os.close(lock)
        raise
    return lock


def _make_files(place: Path) -> None:
    """Make the files of an environment in a directory of which we have the lock; what is in it is left over."""
    for path in place.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()
    environment = None
    try:
        environment = lmdb.open(str(place), max_dbs=len(Table), mode=0o600)
        with environment.begin(write=True) as transaction:  # one, since each is a wait for the disk
            tables = {table: environment.open_db(_name(table), transaction) for table in Table}
            environment_id = _seal(Table.META, KEY_ENVIRONMENT, secrets.token_hex(8).encode())
            transaction.put(KEY_ENVIRONMENT, environment_id, db=tables[Table.META])
            transaction.put(KEY_FORMAT, FORMAT_VERSION)
    except lmdb.Error as error:
        raise _refused(place, error) from error
    finally:
        if environment is not None:
            environment.close()


def _open(directory: Path, lock: int | None, map_bytes: int) -> LmdbSpool:
    """Open a spool that is there, for writing, or for reading if there is no lock."""
    try:
        environment = lmdb.open(
            str(directory),
            map_size=map_bytes if lock is not None else READER_MAP_BYTES,
            max_dbs=len(Table),
            max_readers=MAX_READERS,
            mode=0o600,
            readonly=lock is None,
            create=False,
            readahead=False,
            meminit=False,
        )
    except lmdb.Error as error:
        raise _refused(directory, error) from error
    try:
        environment.reader_check()
        _check_format(directory, environment)
        return LmdbSpool(directory, environment, lock, map_bytes)
    except (lmdb.Error, OSError) as error:
        environment.close()
        raise _refused(directory, error) from error
    except BaseException:
        environment.close()
        raise


def _refused(directory: Path, error: Exception) -> errors.AngariumError:
    if isinstance(error, _DAMAGE):
        return damaged(directory, f"the table check failed: LMDB says {error}")
    detail = f"the spool {directory / DATA_FILE} cannot be opened: {error}"
    return errors.error_for(errors.HOME_NOT_READY, detail)


def _check_format(directory: Path, environment: Any) -> None:
    with environment.begin() as transaction:
        stored = transaction.get(KEY_FORMAT)
    if stored != FORMAT_VERSION:
        known = FORMAT_VERSION.decode()
        raise damaged(directory, f"the format check found {stored!r}, this program knows {known}")
