"""The config store as something that can be shipped: its sections under the numbers of the tables of a spool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage.config_file import COMMITS_KEY, Section
from storage.spool import Table, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from storage.config_file import ConfigFile, Row
    from storage.spool import Change

#: Where each section is; META is META, and what a store has less than a spool is empty.
_SECTIONS: Final = dict(
    zip(Table, (Section.META, *(one for one in Section if one is not Section.META)), strict=False)
)
_TABLES: Final = {section: table for table, section in _SECTIONS.items()}


def changes_of(rows: Iterable[Row]) -> list[Change]:
    """Give records as changes."""
    return [(_TABLES[section], key, value) for section, key, value in rows]


def rows_of(changes: Iterable[Change]) -> list[Row]:
    """Give changes as records."""
    return [(_SECTIONS[table], key, value) for table, key, value in changes]


class ConfigSpool:
    """Reads one file of a config store as `storage.spool.Spool` says; `ConfigStore` writes it, and its copy."""

    #: What may be under way is nothing that this one has to bound.
    room_bytes: Final = 1 << 30

    def __init__(self, file: ConfigFile) -> None:
        """Read a file that stays open."""
        self._file = file

    def get(self, table: Table, key: bytes) -> bytes | None:
        """See `Spool.get`."""
        section = _SECTIONS.get(table)
        return None if section is None else self._file.get(section, key)

    def scan(
        self, table: Table, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """See `Spool.scan`; without the number of commits, which each file counts for itself."""
        section = _SECTIONS.get(table)
        if section is None:
            return []
        found = self._file.scan(section, start, end, limit)
        return [row for row in found if (section, row[0]) != (Section.META, COMMITS_KEY)]

    def commit(self, changes: Sequence[Change], handed_over: Callable[[], None] = nothing) -> None:
        """See `Spool.commit`; the file takes all at once."""
        self._file.write(rows_of(changes))
        handed_over()

    def count(self, table: Table) -> int:
        """See `Spool.count`."""
        return len(self.scan(table))

    def size_bytes(self) -> int:
        """See `Spool.size_bytes`."""
        return self._file.size_bytes()

    def close(self) -> None:
        """The owner of the file closes it."""
