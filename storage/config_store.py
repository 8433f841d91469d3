"""The config store: what operators created, in LMDB, so that it survives restarts.

One process of a node, the controller, opens it, after its own start (LMDB is never used across a fork), and
is its only writer. An object is stored as MessagePack under its kind, Message VPN and name. Every `commit` is
one synced transaction: when it returns, all its changes are on disk, and after a crash all or none of them
are there.

There are two files, `data.mdb` and `copy/data.mdb` (`storage.config_file`). Each commit goes into the first one and
then into the copy, before it is answered. So if the first one is missing, empty, torn or holds one damaged record, the
copy has everything that was answered, and takes its place; the damaged file is kept beside it. If the copy is at fault
it is made again. If both are, the store is refused.

Beside the objects it keeps the names of producers, stages and sinks, which endpoints were deleted, and counters: single
numbers, such as the next id of an endpoint, which is never given twice, whatever was deleted meanwhile.

It knows nothing about what attributes mean; `cluster/controller/controller.py` does.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import lmdb

from angarium import errors, wire
from storage.config_file import (
    ConfigDamageError,
    ConfigFile,
    Row,
    Section,
    UnknownFormatError,
    fault_of,
)
from storage.config_spool import ConfigSpool, changes_of, rows_of
from storage.groups import GroupLog
from storage.headroom import NoRoomError
from storage.spool import DATA_FILE
from storage.sync import sync_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from storage.spool import Change as StoreChange

#: Where the second file is, in the directory of the store.
COPY_FOLDER: Final = "copy"
#: After a copy could not be written (the disk is full) it is tried again this much later.
COPY_RETRY_S: Final = 10.0

_COUNTER_PREFIX: Final = b"counter:"
_DATA_KEY: Final = b"data"
_NOTICES_KEY: Final = b"notices"
_SEPARATOR: Final = b"\0"
#: New records of these are refused on a full disk; numbers, and what is to be deleted, are not.
_REFUSABLE: Final = (Section.OBJECTS, Section.PRODUCERS, Section.STAGES, Section.SINKS)
_MISSING: Final = "there is no such file"
#: Of LMDB, beside its data file.
_LOCK_FILE: Final = "lock.mdb"

_log = logging.getLogger(__name__)


class Change(NamedTuple):
    """One object as it shall be; attributes None removes it."""

    kind: str
    vpn: str
    name: str
    attributes: dict[str, Any] | None


class Counter(NamedTuple):
    """A number that is kept under a name."""

    name: str
    value: int


class Producer(NamedTuple):
    """A producer's name, its id and the day (ordinal) of its last use; id None removes it."""

    vpn: str
    username: str
    name: str
    id: int | None
    used_day: int


class Stage(NamedTuple):
    """A stage, its number, where it stands, since when (s since 1970), and who committed it; number None removes it."""

    vpn: str
    username: str
    name: str
    number: int | None
    state: int
    used_s: int
    #: The sink; empty before a commit, and of one without a sink.
    sink: str


class Sink(NamedTuple):
    """A sink, the newest batch that it committed, and when (s since 1970); batch None removes it."""

    vpn: str
    username: str
    name: str
    batch: int | None
    used_s: int


class Deletion(NamedTuple):
    """An endpoint whose deletion was decided, and whether nothing of it is left: then the record goes."""

    endpoint_id: int
    is_complete: bool


Entry: TypeAlias = Change | Counter | Producer | Stage | Sink | Deletion


class BothDamagedError(errors.InvalidRequestError):
    """Nothing is left to restore a store from: neither of its files can be used."""


class ConfigStore:
    """The open store; `close` it before the process ends."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open the store, making it if there is none, and restore what is damaged from the other file.

        Raises:
            InvalidRequestError: both files are damaged (`BothDamagedError`), or of a format that this version does not
                know (40017).
        """
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        #: The process that opened it: LMDB breaks when a child of fork goes on using it.
        self._owner = os.getpid()
        #: What had to be restored at this opening, as sentences for operators.
        self._notices: list[str] = []
        #: None while it cannot be written, and when that is tried again.
        self._copy: ConfigFile | None = None
        self._copy_retry_at = 0.0
        #: The groups of a store that has a standby, what gives changes as the next one, and what hears that it is on
        #: disk; None: it has none.
        self.log: GroupLog | None = None
        self._group: Callable[[Sequence[StoreChange]], Sequence[StoreChange]] | None = None
        self._written: Callable[[], None] = lambda: None
        try:
            self._file = self._open()
            self._follow_groups()
            if self._copy is None:
                self._make_copy()
            if self._notices:  # the supervisor opens the store first, and the controller has the events
                self._note(_NOTICES_KEY, "\n".join(self._notices).encode())
        except (UnknownFormatError, OSError) as error:
            raise self._refusal(str(error)) from None

    # -- the two files ---------------------------------------------------------------------------------------

    def _open(self) -> ConfigFile:
        """Give the first file, and keep the copy open if it is the same; what is damaged or older is not used."""
        file, fault = _sound_file(self.directory)
        copy, copy_fault = _sound_file(self.directory / COPY_FOLDER)
        if file is None and copy is None and not fault and not copy_fault:
            return self._make_file()
        if file is not None and copy is not None and copy.commits > file.commits:
            fault = f"it lacks {copy.commits - file.commits} commits that its copy has"
            file.close()
            file = None
        if file is None:
            if copy is None:
                refusal = self._refusal(f"{fault or _MISSING}; its copy: {copy_fault or _MISSING}")
                raise BothDamagedError(refusal.code, refusal.detail, refusal.advice)
            copy.close()
            self._restore(fault or _MISSING)
            file, copy = ConfigFile(self.directory), ConfigFile(self.directory / COPY_FOLDER)
        if copy is not None and copy.commits == file.commits:
            self._copy = copy
        elif copy is not None:
            copy.close()
        elif copy_fault:
            self._notices.append(
                f"{self.directory / COPY_FOLDER / DATA_FILE}: {copy_fault}; it was made again"
            )
        return file

    def _make_file(self) -> ConfigFile:
        """Make an empty file; it has its place only when it is complete and on disk."""
        fresh = self.directory / ".fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        ConfigFile(fresh).close()
        (fresh / DATA_FILE).rename(self.directory / DATA_FILE)
        shutil.rmtree(fresh, ignore_errors=True)
        sync_path(self.directory)
        return ConfigFile(self.directory)

    def _restore(self, fault: str) -> None:
        """Put the copy, which is sound, in the place of the first file, which is kept beside it."""
        place, fresh = self.directory / DATA_FILE, self.directory / f".{DATA_FILE}"
        shutil.copyfile(self.directory / COPY_FOLDER / DATA_FILE, fresh)
        fresh.chmod(0o600)
        sync_path(fresh)
        kept = ""
        if place.exists():
            aside = self.directory / f"damaged-{time.time_ns()}.mdb"
            os.link(place, aside)
            kept = f", and is kept as {aside.name}"
        fresh.replace(place)
        (self.directory / _LOCK_FILE).unlink(missing_ok=True)  # of LMDB; it may be torn too
        sync_path(self.directory)
        self._notices.append(f"{place}: {fault}; it was restored from its copy{kept}")

    def _make_copy(self) -> None:
        """Make the copy anew; without room for it the store goes on with one file, and tries again later."""
        place, fresh = self.directory / COPY_FOLDER, self.directory / f".{COPY_FOLDER}"
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o700)
            self._file.copy_to(fresh)
            sync_path(fresh / DATA_FILE)
            shutil.rmtree(place, ignore_errors=True)
            fresh.rename(place)
            sync_path(self.directory)
            self._copy = ConfigFile(place)
        except (lmdb.Error, OSError, ConfigDamageError) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            self._lose_copy(error)

    def _write_copy(self, rows: list[Row]) -> None:
        if self._copy is None:
            if time.monotonic() >= self._copy_retry_at:
                self._make_copy()
            return
        try:
            self._copy.write(rows)
        except (lmdb.Error, NoRoomError, ConfigDamageError) as error:
            self._copy.close()
            self._lose_copy(error)

    def _lose_copy(self, error: Exception) -> None:
        self._copy, self._copy_retry_at = None, time.monotonic() + COPY_RETRY_S
        _log.error("the copy of the config store %s cannot be written: %s", self.directory, error)

    def faults(self) -> list[str]:
        """Read every record of both files; gives what is wrong as sentences."""
        found = []
        for file in (self._file, *([] if self._copy is None else [self._copy])):
            try:
                file.check()
            except ConfigDamageError as error:
                found.append(f"config store {file.directory / DATA_FILE}: {error}")
        return found

    def take_notices(self) -> list[str]:
        """Give what had to be restored since this was asked last, as sentences for operators."""
        found = dict(self._rows(Section.META)).get(_NOTICES_KEY, b"").decode().splitlines()
        if found:
            self._note(_NOTICES_KEY, None)
        return found

    def _note(self, key: bytes, value: bytes | None) -> None:
        self._write([(Section.META, key, value)])

    # -- a standby -------------------------------------------------------------------------------------------

    def _follow_groups(self) -> None:
        """Go on numbering what is committed, if that was ever begun: whoever writes, a standby has to get it."""
        log = GroupLog(ConfigSpool(self._file))
        if log.past.newest:
            run = secrets.token_hex(8)
            self.log, self._group = log, lambda changes: log.group(run, changes).changes

    def begin_groups(self) -> GroupLog:
        """Number what is committed from now on, for a standby; gives the groups."""
        if self.log is None:
            first = GroupLog(ConfigSpool(self._file)).found(secrets.token_hex(8))
            assert first is not None, "a store with groups follows them"
            self.write_changes(first.changes)
            self._follow_groups()
        assert self.log is not None
        return self.log

    def ship(
        self, group: Callable[[Sequence[StoreChange]], Sequence[StoreChange]], written: Callable[[], None]
    ) -> None:
        """Have groups made by another one from now on, which sends them to the standby, and tell it what is on disk."""
        self._group, self._written = group, written

    def write_changes(self, changes: Sequence[StoreChange]) -> None:
        """Write what a primary sent, as it is, durably.

        Raises:
            NoRoomError: there is no room; nothing was written.
        """
        rows = rows_of(changes)
        self._file.write(rows)
        self._write_copy(rows)

    def spool(self) -> ConfigSpool:
        """Give what reads it as a store that is shipped."""
        return ConfigSpool(self._file)

    def _write(self, rows: list[Row], refusable: Collection[Section] = ()) -> None:
        """Write records into both files, as a group if there is a standby."""
        if self._group is not None:
            rows = rows_of(self._group(changes_of(rows)))
        self._file.write(rows, refusable)
        self._write_copy(rows)
        self._written()

    @property
    def data_id(self) -> str:
        """Give the id of the data directory that the store belongs to; empty if it has none yet."""
        return dict(self._rows(Section.META)).get(_DATA_KEY, b"").decode()

    def set_data_id(self, data_id: str) -> None:
        """Let the store belong to a data directory, durably."""
        self._note(_DATA_KEY, data_id.encode())

    # -- what is stored --------------------------------------------------------------------------------------

    def load(self) -> list[Change]:
        """Give every object, ordered by kind, Message VPN and name.

        Raises:
            InvalidRequestError: an entry cannot be read (40017).
        """
        assert self._owner == os.getpid(), "the config store is used across a fork"
        return [self._decode(key, value) for key, value in self._rows(Section.OBJECTS)]

    def load_counters(self) -> dict[str, int]:
        """Give every counter by its name."""
        return {
            key.removeprefix(_COUNTER_PREFIX).decode(): int(value)
            for key, value in self._rows(Section.META)
            if key.startswith(_COUNTER_PREFIX)
        }

    def load_producers(self) -> list[Producer]:
        """Give every producer, ordered by Message VPN, username and name.

        Raises:
            InvalidRequestError: an entry cannot be read (40017).
        """
        return [self._decode_producer(key, value) for key, value in self._rows(Section.PRODUCERS)]

    def load_stages(self) -> list[Stage]:
        """Give every stage, ordered by Message VPN, username and name.

        Raises:
            InvalidRequestError: an entry cannot be read (40017).
        """
        return [Stage(*self._decode_row(key, value, (3, 4))) for key, value in self._rows(Section.STAGES)]

    def load_sinks(self) -> list[Sink]:
        """Give every sink, ordered by Message VPN, username and name.

        Raises:
            InvalidRequestError: an entry cannot be read (40017).
        """
        return [Sink(*self._decode_row(key, value, (3, 2))) for key, value in self._rows(Section.SINKS)]

    def load_deletions(self) -> list[Deletion]:
        """Give every endpoint whose deletion is not known to be complete, by its id."""
        found = self._rows(Section.DELETIONS)
        return [Deletion(int.from_bytes(key, "big"), is_complete=False) for key, _ in found]

    def _rows(self, section: Section) -> list[tuple[bytes, bytes]]:
        try:
            return list(self._file.rows(section))
        except ConfigDamageError as error:
            raise self._refusal(str(error)) from None

    def copy_to(self, directory: str | os.PathLike[str]) -> None:
        """Write a compacted copy into an empty directory that exists: a backup, as of the last commit.

        Raises:
            OSError: the copy cannot be written.
        """
        try:
            self._file.copy_to(Path(directory))
        except lmdb.Error as error:
            raise OSError(f"{directory}: {error}") from error

    def commit(self, changes: Sequence[Entry]) -> None:
        """Make all changes durable, in one synced transaction of each file.

        An `lmdb.Error` is not handled by anybody on purpose: after a failed sync nobody knows what is on disk, so the
        process has to end and read again.

        Raises:
            UnavailableError: the disk or the map is full; nothing was changed (50329).
        """
        self._commit(changes, _REFUSABLE)

    def commit_with_reserve(self, changes: Sequence[Entry]) -> None:
        """Do the same for what a node cannot start without: it may take the reserve.

        Raises:
            UnavailableError: there is not even that (50329).
        """
        self._commit(changes, ())

    def has_room(self) -> bool:
        """Tell whether something new finds room."""
        return self._file.has_room()

    def _commit(self, changes: Sequence[Entry], refusable: Collection[Section]) -> None:
        assert self._owner == os.getpid(), "the config store is used across a fork"
        rows = [_row_of(change) for change in changes]
        try:
            self._write(rows, refusable)
        except NoRoomError as error:
            if self.log is not None:
                self.log.forget_ahead()
            raise errors.error_for(errors.DISK_FULL, f"{self.directory / DATA_FILE}: {error}") from None

    def close(self) -> None:
        """Close the store; the object is of no use afterwards."""
        self._file.close()
        if self._copy is not None:
            self._copy.close()

    def _decode(self, key: bytes, value: bytes) -> Change:
        try:
            kind, vpn, name = (part.decode() for part in key.split(_SEPARATOR))
            attributes = wire.unpack(value)
        except (ValueError, errors.AngariumError) as error:
            raise self._refusal(f"the entry check failed at key {key!r}: {error}") from error
        if not isinstance(attributes, dict):
            raise self._refusal(f"the entry check failed at key {key!r}: it is no map")
        return Change(kind, vpn, name, attributes)

    def _decode_producer(self, key: bytes, value: bytes) -> Producer:
        try:
            vpn, username, name = (part.decode() for part in key.split(_SEPARATOR))
            number, used_day = wire.unpack(value)
        except (ValueError, TypeError, errors.AngariumError) as error:
            raise self._refusal(f"the producer check failed at key {key!r}: {error}") from error
        return Producer(vpn, username, name, number, used_day)

    def _decode_row(self, key: bytes, value: bytes, fields: tuple[int, int]) -> list[Any]:
        """Give the names in a key and what is stored under it, if there are so many of each."""
        try:
            names, stored = [part.decode() for part in key.split(_SEPARATOR)], wire.unpack(value)
            if not isinstance(stored, list) or (len(names), len(stored)) != fields:
                raise ValueError(f"{len(names)} names")
        except (ValueError, errors.AngariumError) as error:
            raise self._refusal(f"the stage check failed at key {key!r}: {error}") from error
        return [*names, *stored]

    def _refusal(self, what: str) -> errors.AngariumError:
        place = self.directory / "data.mdb"
        advice = (
            "start it with the version that wrote it, or restore the directory from a backup, "
            "or move it away and apply an exported configuration"
        )
        return errors.error_for(errors.INVALID_CONFIGURATION, f"config store {place}: {what}", advice)


def _row_of(entry: Entry) -> Row:
    """Give the record of an entry."""
    value: Any
    match entry:
        case Counter(name, number):
            return Section.META, _COUNTER_PREFIX + name.encode(), str(number).encode()
        case Producer(vpn, username, name, producer, used_day):
            section, key = Section.PRODUCERS, _key(vpn, username, name)
            value = None if producer is None else [producer, used_day]
        case Stage(vpn, username, name, stage, state, used_s, sink):
            section, key = Section.STAGES, _key(vpn, username, name)
            value = None if stage is None else [stage, state, used_s, sink]
        case Sink(vpn, username, name, batch, used_s):
            section, key = Section.SINKS, _key(vpn, username, name)
            value = None if batch is None else [batch, used_s]
        case Deletion(endpoint_id, is_complete):
            section, key = Section.DELETIONS, endpoint_id.to_bytes(8, "big")
            value = None if is_complete else []
        case Change(kind, vpn, name, attributes):
            section, key, value = Section.OBJECTS, _key(kind, vpn, name), attributes
    return section, key, None if value is None else wire.pack(value)


def is_there(directory: Path) -> bool:
    """Tell whether a directory has a config store, damaged or not."""
    return (directory / DATA_FILE).exists() or (directory / COPY_FOLDER / DATA_FILE).exists()


def config_faults(directory: Path) -> list[str]:
    """Check both files of a store that nobody has open, without changing them; gives each fault as a sentence."""
    places = [directory, directory / COPY_FOLDER]
    found = [(place / DATA_FILE, fault_of(place)) for place in places if place == directory or place.exists()]
    return [f"config store {file}: {fault}" for file, fault in found if fault]


def _sound_file(place: Path) -> tuple[ConfigFile | None, str]:
    """Open the file in a directory and read every record; gives what is wrong if it is there and not sound."""
    if not (place / DATA_FILE).exists():
        return None, ""
    try:
        file = ConfigFile(place)
    except ConfigDamageError as error:
        return None, str(error)
    try:
        file.check()
    except ConfigDamageError as error:
        file.close()
        return None, str(error)
    return file, ""


def _key(*names: str) -> bytes:
    parts = [part.encode() for part in names]
    assert all(_SEPARATOR not in part for part in parts), "names hold no NUL"
    return _SEPARATOR.join(parts)
