"""Where a standby keeps a store of its primary, and another one that is made anew beside it until it is complete."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from angarium import errors
from angarium.errors import UnavailableError
from cluster.data.data_dir import CONFIG_FOLDER, SPOOL_FOLDER
from storage.config_store import BothDamagedError, ConfigStore, is_there
from storage.groups import GroupLog
from storage.spool import LmdbSpool, open_spool, remove_spool
from storage.sync import sync_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from storage.spool import Change

StoreT = TypeVar("StoreT", LmdbSpool, ConfigStore)


class Place(Generic[StoreT]):
    """One store on the disk of a standby. All its calls block, and are made in one thread."""

    def __init__(self, directory: Path, fresh: Path) -> None:
        """Open nothing yet.

        Args:
            directory: of the store.
            fresh: of one that is made anew.
        """
        self._directory, self._fresh_directory = directory, fresh
        self._store: StoreT | None = None
        self._fresh: StoreT | None = None

    @abstractmethod
    def _open(self, directory: Path) -> StoreT:
        """Open a store, making it if there is none."""

    @abstractmethod
    def _log_of(self, store: StoreT) -> GroupLog:
        """Give the groups of a store."""

    @abstractmethod
    def _commit(self, store: StoreT, changes: Sequence[Change]) -> None:
        """Write durably."""

    @property
    def is_there(self) -> bool:
        """Whether it has a directory, or one that is about to take its place."""
        return self._directory.exists() or self._fresh_directory.exists()

    def open(self) -> GroupLog:
        """Open the store; gives its groups. One that was about to take the place of another does so."""
        if self._fresh_directory.exists() and not self._directory.exists():
            self._take_place()
        remove_spool(self._fresh_directory)
        self._store = self._open(self._directory)
        return self._log_of(self._store)

    def open_empty(self) -> GroupLog:
        """Open it with nothing in it; what is there, which is damaged, is kept beside it until the next one is."""
        aside = self._directory.with_name(f"damaged-{self._directory.name}")
        remove_spool(aside)
        self._directory.rename(aside)
        sync_path(self._directory.parent)
        return self.open()

    def begin_anew(self) -> None:
        """Have what is written next in a store of its own."""
        self.forget_anew()
        self._fresh = self._open(self._fresh_directory)

    def forget_anew(self) -> None:
        """Let go of one that is not complete."""
        if self._fresh is not None:
            self._fresh.close()
            self._fresh = None
        remove_spool(self._fresh_directory)

    def write(self, changes: Sequence[Change]) -> None:
        """Write durably."""
        store = self._fresh or self._store
        assert store is not None
        self._commit(store, changes)

    def finish(self) -> GroupLog:
        """Put the new one, if there is one, in the place of the other."""
        assert self._store is not None
        if self._fresh is not None:
            self._fresh.close()
            self._store.close()
            remove_spool(self._directory)
            self._take_place()
            self._fresh = None
            self._store = self._open(self._directory)
        return self._log_of(self._store)

    def _take_place(self) -> None:
        self._fresh_directory.rename(self._directory)
        sync_path(self._directory.parent)

    def close(self) -> None:
        """Let go of all."""
        self.forget_anew()
        if self._store is not None:
            self._store.close()
            self._store = None


class SpoolPlace(Place[LmdbSpool]):
    """The spool of one worker."""

    def __init__(self, data: Path, name: str, map_bytes: int) -> None:
        spools = data / SPOOL_FOLDER
        super().__init__(spools / name, spools / f"copying-{name}")
        self._map_bytes = map_bytes

    def _open(self, directory: Path) -> LmdbSpool:
        return open_spool(directory, self._map_bytes)

    def _log_of(self, store: LmdbSpool) -> GroupLog:
        return GroupLog(store)

    def _commit(self, store: LmdbSpool, changes: Sequence[Change]) -> None:
        store.commit(changes)


class ConfigPlace(Place[ConfigStore]):
    """The config store."""

    def __init__(self, data: Path) -> None:
        super().__init__(data / CONFIG_FOLDER, data / f"copying-{CONFIG_FOLDER}")

    @property
    def is_there(self) -> bool:
        """Whether it has a file, or one that is about to take its place: that of a directory it does not."""
        is_about_to = self._fresh_directory.exists() and not self._directory.exists()
        return is_there(self._directory) or is_about_to

    def _open(self, directory: Path) -> ConfigStore:
        try:
            return ConfigStore(directory)
        except BothDamagedError as error:
            raise errors.error_for(errors.SPOOL_DAMAGED, error.detail) from None

    def _log_of(self, store: ConfigStore) -> GroupLog:
        return GroupLog(store.spool())

    def _commit(self, store: ConfigStore, changes: Sequence[Change]) -> None:
        store.write_changes(changes)


def damages(data: Path, stores: Sequence[str], map_bytes: int) -> list[str]:
    """Say what is wrong with these stores, of which one that is missing would be made anew; nobody has them open."""
    found: list[str] = []
    for name in stores:
        place = ConfigPlace(data) if name == CONFIG_FOLDER else SpoolPlace(data, name, map_bytes)
        if not place.is_there:
            found.append(f"store {name} is missing")
        else:
            found += _damage_of(place)
    return found


def _damage_of(place: SpoolPlace | ConfigPlace) -> list[str]:
    try:
        place.open()
    except UnavailableError as error:
        # What is to be done about a node that is alone would be wrong here.
        return [error.detail.partition("; ")[0]] if error.code == errors.SPOOL_DAMAGED else []
    finally:
        place.close()
    return []
