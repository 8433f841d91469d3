"""The config store: what operators created, in LMDB, so that it survives restarts.

One process of a node, the controller, opens it, after its own start (LMDB is never used across a fork), and
is its only writer. An object is stored as MessagePack under its kind, Message VPN and name. Every `commit` is
one synced transaction: when it returns, all its changes are on disk, and after a crash all or none of them
are there.

Beside the objects it keeps the names of producers, stages and sinks, and counters: single numbers, such as the next id
of an endpoint, which is never given twice, whatever was deleted meanwhile.

It knows nothing about what attributes mean; `cluster/controller/controller.py` does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import lmdb

from angarium import errors, wire

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Raised when the form of what is stored changes; a store of another format is refused, never guessed at.
FORMAT_VERSION: Final = 3
#: Formats that need nothing but a new number: before 2 there were no producers and counters, before 3 no stages.
UPGRADED_FORMATS: Final = (b"1", b"2")
#: Sparse, so a large map costs nothing; 100,000 objects take about 60 MB.
MAP_BYTES: Final = 1 << 30
#: Readers at the same time; the controller reads once, at its start, and tools may look.
MAX_READERS: Final = 16

_FORMAT_KEY: Final = b"format"
_COUNTER_PREFIX: Final = b"counter:"
_SEPARATOR: Final = b"\0"


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


Entry: TypeAlias = Change | Counter | Producer | Stage | Sink


class ConfigStore:
    """The open store; `close` it before the process ends."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open the store, making it if there is none.

        Raises:
            InvalidRequestError: it is damaged, or of a format that this version does not know (40017).
        """
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        #: The process that opened it: LMDB breaks when a child of fork goes on using it.
        self._owner = os.getpid()
        self._environment = self._open_environment()
        try:
            self._environment.reader_check()
            self._meta = self._environment.open_db(b"meta")
            self._objects = self._environment.open_db(b"objects")
            self._producers = self._environment.open_db(b"producers")
            self._stages = self._environment.open_db(b"stages")
            self._sinks = self._environment.open_db(b"sinks")
            self._check_format()
        except lmdb.Error as error:
            self._environment.close()
            raise self._refusal(f"LMDB says {error}") from error
        except errors.AngariumError:
            self._environment.close()
            raise

    def load(self) -> list[Change]:
        """Give every object, ordered by kind, Message VPN and name.

        Raises:
            InvalidRequestError: an entry cannot be read (40017).
        """
        assert self._owner == os.getpid(), "the config store is used across a fork"
        found = []
        with self._environment.begin(db=self._objects) as transaction:
            for key, value in transaction.cursor():
                found.append(self._decode(bytes(key), bytes(value)))
        return found

    def load_counters(self) -> dict[str, int]:
        """Give every counter by its name."""
        with self._environment.begin(db=self._meta) as transaction:
            return {
                bytes(key).removeprefix(_COUNTER_PREFIX).decode(): int(bytes(value))
                for key, value in transaction.cursor()
                if bytes(key).startswith(_COUNTER_PREFIX)
            }

    def load_producers(self) -> list[Producer]:
        """Give every producer, ordered by Message VPN, username and name.

        Raises:
            InvalidRequestError: an entry cannot be read (40017).
        """
        with self._environment.begin(db=self._producers) as transaction:
            return [self._decode_producer(bytes(key), bytes(value)) for key, value in transaction.cursor()]

    def load_stages(self) -> list[Stage]:
        """Give every stage, ordered by Message VPN, username and name.

        Raises:
            InvalidRequestError: an entry cannot be read (40017).
        """
        with self._environment.begin(db=self._stages) as transaction:
            return [Stage(*self._decode_row(key, value, (3, 4))) for key, value in transaction.cursor()]

    def load_sinks(self) -> list[Sink]:
        """Give every sink, ordered by Message VPN, username and name.

        Raises:
            InvalidRequestError: an entry cannot be read (40017).
        """
        with self._environment.begin(db=self._sinks) as transaction:
            return [Sink(*self._decode_row(key, value, (3, 2))) for key, value in transaction.cursor()]

    def copy_to(self, directory: str | os.PathLike[str]) -> None:
        """Write a compacted copy into an empty directory that exists: a backup, as of the last commit.

        Raises:
            OSError: the copy cannot be written.
        """
        try:
            self._environment.copy(str(directory), compact=True)
        except lmdb.Error as error:
            raise OSError(f"{directory}: {error}") from error

    def commit(self, changes: Sequence[Entry]) -> None:
        """Make all changes durable in one synced transaction.

        An `lmdb.Error` other than a full map is not handled by anybody on purpose: after a failed sync nobody
        knows what is on disk, so the process has to end and read again.

        Raises:
            UnavailableError: the map is full; nothing was changed (50001).
        """
        assert self._owner == os.getpid(), "the config store is used across a fork"
        try:
            with self._environment.begin(write=True) as transaction:
                for change in changes:
                    self._put(transaction, change)
        except lmdb.MapFullError:
            detail = f"{self.directory} holds its {MAP_BYTES} bytes: delete objects that nobody needs"
            raise errors.error_for(errors.INTERNAL, detail) from None

    def close(self) -> None:
        """Close the store; the object is of no use afterwards."""
        self._environment.close()

    def _put(self, transaction: Any, change: Entry) -> None:
        value: Any
        match change:
            case Counter(name, number):
                transaction.put(_COUNTER_PREFIX + name.encode(), str(number).encode(), db=self._meta)
                return
            case Producer(vpn, username, name, producer, used_day):
                database, key = self._producers, _key(vpn, username, name)
                value = None if producer is None else [producer, used_day]
            case Stage(vpn, username, name, stage, state, used_s, sink):
                database, key = self._stages, _key(vpn, username, name)
                value = None if stage is None else [stage, state, used_s, sink]
            case Sink(vpn, username, name, batch, used_s):
                database, key = self._sinks, _key(vpn, username, name)
                value = None if batch is None else [batch, used_s]
            case Change(kind, vpn, name, attributes):
                database, key, value = self._objects, _key(kind, vpn, name), attributes
        if value is None:
            transaction.delete(key, db=database)
        else:
            transaction.put(key, wire.pack(value), db=database)

    def _open_environment(self) -> Any:
        try:
            return lmdb.open(
                str(self.directory),
                map_size=MAP_BYTES,
                max_dbs=8,
                max_readers=MAX_READERS,
                mode=0o600,
                metasync=True,
                sync=True,
                writemap=False,
            )
        except lmdb.Error as error:
            raise self._refusal(f"LMDB says {error}") from error

    def _check_format(self) -> None:
        with self._environment.begin(db=self._meta, write=True) as transaction:
            stored = transaction.get(_FORMAT_KEY)
            if stored is None or bytes(stored) in UPGRADED_FORMATS:
                transaction.put(_FORMAT_KEY, str(FORMAT_VERSION).encode())
            elif bytes(stored) != str(FORMAT_VERSION).encode():
                text = bytes(stored).decode(errors="replace")
                raise self._refusal(f"the format check found {text!r}, this version knows {FORMAT_VERSION}")

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
        return errors.error_for(errors.INVALID_CONFIGURATION, f"config store {place}: {what}; {advice}")


def _key(*names: str) -> bytes:
    parts = [part.encode() for part in names]
    assert all(_SEPARATOR not in part for part in parts), "names hold no NUL"
    return _SEPARATOR.join(parts)
