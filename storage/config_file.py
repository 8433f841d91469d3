"""One file of the config store: tables of sealed records in LMDB, written in synced transactions.

A record is stored with four bytes in front of it: the CRC-32 of table, key and value. It is checked whenever the
record is read, so a flipped bit in a value or a key is found and never believed. Before LMDB reads the file its index
is walked (`storage.pages`): LMDB ends the process at a page that is not as it wrote it.

A full disk is found out before anything is written (`storage.headroom`): the file is allocated ahead, and records that
may be refused leave a reserve, so that what removes something finds room for the pages that LMDB copies.

`storage.config_store` keeps two such files and decides between them.
"""

from __future__ import annotations

import enum
import os
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import lmdb

from storage import pages
from storage.headroom import STEP_BYTES_MIN, NoRoomError, SpaceGuard, Usage, usage_of
from storage.spool import DATA_FILE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

#: Raised when the form of what is stored changes; a store of another format is refused, never guessed at.
FORMAT_VERSION: Final = b"4"
#: Formats whose records get their seals at the first start: before 2 there were no producers and counters, before 3 no
#: stages, before 4 no seals.
UPGRADED_FORMATS: Final = (b"1", b"2", b"3")
#: Sparse, so a large map costs nothing; 100,000 objects take about 60 MB.
MAP_BYTES: Final = 1 << 30
#: Readers at the same time; the controller reads once, at its start, and tools may look.
MAX_READERS: Final = 16

_FORMAT_KEY: Final = b"format"
#: How many transactions made the file what it is.
COMMITS_KEY: Final = b"commits"
_SEAL_BYTES: Final = 4


class Section(enum.Enum):
    """The tables, by the names that they have in the file."""

    META = b"meta"
    OBJECTS = b"objects"
    PRODUCERS = b"producers"
    STAGES = b"stages"
    SINKS = b"sinks"
    DELETIONS = b"deletions"


#: Table, key, value; None deletes.
Row: TypeAlias = tuple[Section, bytes, bytes | None]


class ConfigDamageError(Exception):
    """The file is not as it was written; the text says which check failed."""


class UnknownFormatError(Exception):
    """The file is of a version of the software that this one does not know; the text says which."""


class ConfigFile:
    """One open file; `close` it before the process ends."""

    def __init__(self, directory: Path) -> None:
        """Open the file in a directory that exists, making it if there is none.

        Raises:
            ConfigDamageError: it is damaged.
            UnknownFormatError: its format is not known.
        """
        self.directory = directory
        _check_pages(directory / DATA_FILE)
        try:
            self._environment = lmdb.open(
                str(directory),
                map_size=MAP_BYTES,
                max_dbs=8,
                max_readers=MAX_READERS,
                mode=0o600,
                metasync=True,
                sync=True,
                writemap=False,
            )
        except lmdb.Error as error:
            raise ConfigDamageError(f"LMDB says {error}") from error
        try:
            self._environment.reader_check()
            with self._environment.begin(write=True) as transaction:  # one, since each is a wait for the disk
                self._tables = {
                    section: self._environment.open_db(section.value, transaction) for section in Section
                }
                self._check_format(transaction)
            self._descriptor = os.open(directory / DATA_FILE, os.O_RDWR | os.O_CLOEXEC)
            self._space = SpaceGuard(self._descriptor, MAP_BYTES, self._usage)
        except lmdb.Error as error:
            self._environment.close()
            raise ConfigDamageError(f"LMDB says {error}") from error
        except BaseException:
            self._environment.close()
            raise

    @property
    def commits(self) -> int:
        """Give how many transactions made it what it is.

        Raises:
            ConfigDamageError: the number is damaged.
        """
        with self._environment.begin(db=self._tables[Section.META]) as transaction:
            return self._commits(transaction)

    def rows(self, section: Section) -> Iterator[tuple[bytes, bytes]]:
        """Give the records of a table, by rising key.

        Raises:
            ConfigDamageError: one is damaged.
        """
        with self._environment.begin(db=self._tables[section]) as transaction:
            yield from _unsealed_rows(transaction, section)

    def get(self, section: Section, key: bytes) -> bytes | None:
        """Give one record, or None.

        Raises:
            ConfigDamageError: it is damaged.
        """
        with self._environment.begin(db=self._tables[section]) as transaction:
            found = transaction.get(key)
        return None if found is None else _unsealed(section, key, bytes(found))

    def scan(
        self, section: Section, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Give records with start <= key < end, by rising key, at most `limit`.

        Raises:
            ConfigDamageError: one is damaged.
        """
        found: list[tuple[bytes, bytes]] = []
        with self._environment.begin(db=self._tables[section]) as transaction:
            for key, value in _unsealed_rows(transaction, section, start):
                if (end is not None and key >= end) or len(found) == limit:
                    break
                found.append((key, value))
        return found

    def check(self) -> None:
        """Read every record.

        Raises:
            ConfigDamageError: one is damaged.
        """
        for section in Section:
            for _ in self.rows(section):
                pass

    def write(self, rows: Sequence[Row], refusable: Collection[Section] = ()) -> None:
        """Write records in one synced transaction.

        Args:
            rows: what to write.
            refusable: tables whose new records leave the reserve.

        Raises:
            NoRoomError: there is no room on the disk or in the map; nothing was written.
            lmdb.Error: nobody knows whether it was written.
        """
        self._space.take([(int(section in refusable), key, value) for section, key, value in rows], 1)
        try:
            with self._environment.begin(write=True) as transaction:
                for section, key, value in (*rows, self._count(transaction)):
                    if value is None:
                        transaction.delete(key, db=self._tables[section])
                    else:
                        transaction.put(key, _seal(section, key, value), db=self._tables[section])
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise NoRoomError(str(error)) from None
        except lmdb.Error as error:
            # A write of which a full disk took a part is an I/O error to LMDB; the head is written last.
            if self._space.has_reserve():
                raise
            raise NoRoomError(str(error)) from None

    def has_room(self) -> bool:
        """Tell whether something new finds room, and whoever else writes here, so far as is known before it comes."""
        disk = os.statvfs(self.directory)
        return self._space.has_reserve() and disk.f_bavail * disk.f_frsize >= STEP_BYTES_MIN

    def copy_to(self, directory: Path) -> None:
        """Write a compact copy into an empty directory that exists.

        Raises:
            lmdb.Error: it cannot be written.
        """
        self._environment.copy(str(directory), compact=True)
        (directory / DATA_FILE).chmod(0o600)  # LMDB leaves it to the umask

    def close(self) -> None:
        """Close the file; the object is of no use afterwards."""
        self._environment.close()
        os.close(self._descriptor)

    def size_bytes(self) -> int:
        """Give the bytes of the pages in use."""
        return self._usage().used_bytes

    def _usage(self) -> Usage:
        return usage_of(self._environment, self._tables.values())

    def _count(self, transaction: Any) -> Row:
        return Section.META, COMMITS_KEY, str(self._commits(transaction) + 1).encode()

    def _commits(self, transaction: Any) -> int:
        stored = transaction.get(COMMITS_KEY, db=self._tables[Section.META])
        return 0 if stored is None else int(_unsealed(Section.META, COMMITS_KEY, bytes(stored)))

    def _check_format(self, transaction: Any) -> None:
        meta = self._tables[Section.META]
        stored = transaction.get(_FORMAT_KEY, db=meta)
        if stored is not None and bytes(stored) == FORMAT_VERSION:
            return
        if stored is not None and bytes(stored) in UPGRADED_FORMATS:
            self._seal_all(transaction)
        elif stored is not None:
            text, known = bytes(stored).decode(errors="replace"), FORMAT_VERSION.decode()
            raise UnknownFormatError(f"the format check found {text!r}, this version knows {known}")
        transaction.put(_FORMAT_KEY, FORMAT_VERSION, db=meta)

    def _seal_all(self, transaction: Any) -> None:
        """Seal the records of a store that was made without."""
        for section, table in self._tables.items():
            found = [(bytes(key), bytes(value)) for key, value in transaction.cursor(db=table)]
            for key, value in found:
                if (section, key) != (Section.META, _FORMAT_KEY):
                    transaction.put(key, _seal(section, key, value), db=table)


def fault_of(directory: Path) -> str | None:
    """Say what is wrong with the file in a directory, which nobody has open, without changing it; None: nothing is."""
    try:
        if not (directory / DATA_FILE).exists():
            return "there is no such file"
        _check_pages(directory / DATA_FILE)
        environment = lmdb.open(str(directory), max_dbs=8, readonly=True, create=False)
        try:
            with environment.begin(db=environment.open_db(Section.META.value, create=False)) as transaction:
                if transaction.get(_FORMAT_KEY) in UPGRADED_FORMATS:
                    return None
            for section in Section:
                table = environment.open_db(section.value, create=False)
                with environment.begin(db=table) as transaction:
                    for _ in _unsealed_rows(transaction, section):
                        pass
        finally:
            environment.close()
    except ConfigDamageError as error:
        return str(error)
    except lmdb.Error as error:
        return f"LMDB says {error}"
    return None


def _check_pages(file: Path) -> None:
    try:
        if not file.exists():
            return
        if not file.stat().st_size:
            raise ConfigDamageError("the file is empty")
        pages.check_file(file)
    except pages.PageFaultError as error:
        raise ConfigDamageError(str(error)) from None
    except OSError as error:
        raise ConfigDamageError(f"the page check failed: {error}") from error


def _unsealed_rows(transaction: Any, section: Section, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    cursor = transaction.cursor()
    if not (cursor.set_range(start) if start else cursor.first()):
        return
    for key, value in cursor:
        if (section, bytes(key)) != (Section.META, _FORMAT_KEY):
            yield bytes(key), _unsealed(section, bytes(key), bytes(value))


def _seal(section: Section, key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key, zlib.crc32(section.value))).to_bytes(_SEAL_BYTES, "big") + value


def _unsealed(section: Section, key: bytes, value: bytes) -> bytes:
    content = value[_SEAL_BYTES:]
    if _seal(section, key, content) != value:
        raise ConfigDamageError(f"the checksum of the key {key!r} in {section.value.decode()} does not fit")
    return content
