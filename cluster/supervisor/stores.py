"""Whether the config store and the spools of a data directory belong together, before a process is spawned.

All of them carry the id of the data directory, which is made with it and stands in `node.json` too; those of earlier
versions get it once. A store that is missing, or that has another id, is a refusal: what is left is not touched, and
everything is as it was when the right one is put back. `angarium up --accept-loss` goes on without it: what does not
belong here is moved aside, what is missing is made anew, and lanes that the new config store does not know are kept
aside by their homes.

The ids in the spools are compared by their workers (`node.home.spool.folders`). Called by the supervisor's shell.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from cluster.catalog.catalog import COUNTER as ENDPOINT_COUNTER
from cluster.catalog.producers import COUNTER as PRODUCER_COUNTER
from cluster.data.data_dir import CONFIG_FOLDER, SPOOL_FOLDER, SPOOLS
from storage.config_store import ConfigStore, Counter, is_there
from storage.headroom import NO_ROOM
from storage.spool import (
    KEY_DATA,
    SpoolFullError,
    Table,
    open_readonly,
    open_spool,
    remove_spool,
)
from storage.sync import sync_path

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.data.data_dir import DataDirectory

_log = logging.getLogger("supervisor")


def prepare(data: DataDirectory, workers: int, *, accept_loss: bool = False) -> str:
    """Have all stores of a data directory there, and belonging together; gives their id.

    Raises:
        InvalidRequestError: one is missing, damaged, or of another data directory (40017).
    """
    known, config, spools = data.node.data_id, data.path / CONFIG_FOLDER, data.path / SPOOL_FOLDER
    if accept_loss:
        _part_with_others(data, known)
    is_first = not known and not any(spools.glob("[0-9]*"))
    if not is_there(config) and not is_first and not accept_loss:
        raise _refusal(f"config store {config}: it is missing, and the spools are there or were")
    is_new = not is_there(config)
    store = ConfigStore(config)
    try:
        data_id = _adopt(store, known, is_new=is_new)
        if is_new and not is_first:
            _log.error("the config store of %s is made anew: lanes of the spools are kept aside", data.path)
            store.commit(_numbers_above(spools))
        # A config store that is made anew does not say which spools there were.
        made = range(workers) if is_new and not is_first else expected_spools(store, workers)
        missing = [index for index in made if not (spools / str(index)).exists()]
        if missing and not accept_loss:
            raise _refusal(
                f"spool {spools / str(missing[0])}: it is missing, and the config store says it was made"
            )
        for index in missing:
            _log.error("spool %s is missing and is made anew: its messages are lost", spools / str(index))
        if missing:
            # Neighbours and checkpoints know by this id what they have; its positions are given again.
            data.save(node_id=uuid.uuid4().hex)
        make_spools(data, workers, data_id)
        if store.load_counters().get(SPOOLS) != workers:
            store.commit([Counter(SPOOLS, workers)])
    finally:
        store.close()
    if data.node.data_id != data_id:
        data.save(data_id=data_id)
    return data_id


def make_spools(data: DataDirectory, workers: int, data_id: str) -> None:
    """Make the spools that are not there yet; nothing is left of one that cannot be made.

    Raises:
        UnavailableError: the disk is full (50329), or LMDB cannot open one (50320).
        OSError: the folder cannot be used.
        SpoolFailedError: the disk failed.
    """
    spools = data.path / SPOOL_FOLDER
    try:
        spools.mkdir(mode=0o700, exist_ok=True)
        for directory in (spools / str(index) for index in range(workers)):
            if not directory.exists():
                _make_spool(directory, data_id)
    except (SpoolFullError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            raise
        raise errors.error_for(errors.DISK_FULL, f"a spool in {spools} cannot be made: {error}") from None


def _make_spool(directory: Path, data_id: str) -> None:
    try:
        stamp(directory, data_id)
    except BaseException:
        remove_spool(directory)
        raise


def drop_left(data: DataDirectory, index: int) -> None:
    """Remove the spool of a worker that has left, if all its lanes are elsewhere; else nothing is touched."""
    directory = data.path / SPOOL_FOLDER / str(index)
    try:
        spool = open_spool(directory)
    except errors.UnavailableError as error:
        _log.error("the spool of worker %d, which has left, stays: %s", index, error)
        return
    try:
        lanes = spool.count(Table.LANES)
    finally:
        spool.close()
    if lanes:
        _log.error("the spool of worker %d, which has left, stays: something is in it", index)
    else:
        remove_spool(directory)


def stamp(directory: Path, data_id: str) -> None:
    """Give a spool the id of a data directory, making it if it is not there.

    Raises:
        UnavailableError: it is damaged, or a process has it open (50320, 50322).
    """
    spool = open_spool(directory)
    try:
        spool.commit([(Table.META, KEY_DATA, data_id.encode())])
    finally:
        spool.close()


def expected_spools(store: ConfigStore, workers: int) -> list[int]:
    """Give the workers whose spools were made; of a store of an earlier version those that are homes."""
    noted = store.load_counters().get(SPOOLS)
    if noted is not None:
        return list(range(min(noted, workers)))
    homes = {home for change in store.load() for home in (change.attributes or {}).get("homes", ())}
    return sorted(home for home in homes if home < workers)


def _adopt(store: ConfigStore, known: str, *, is_new: bool) -> str:
    """Give the id of a config store, which gets one if it is new or of an earlier version."""
    found = store.data_id
    if found and known in ("", found):
        return found
    if known and not is_new:
        whose = f"data directory {found}" if found else "no data directory that is known"
        raise _refusal(f"config store {store.directory}: it is of {whose}, this is data directory {known}")
    data_id = known or uuid.uuid4().hex
    store.set_data_id(data_id)
    if not is_new:
        _log.info("the config store of an earlier version is taken over into data directory %s", data_id)
    return data_id


def _part_with_others(data: DataDirectory, known: str) -> None:
    """Move aside what is damaged or of another data directory; nothing is deleted."""
    config = data.path / CONFIG_FOLDER
    if is_there(config) and not _is_ours(config, known):
        _put_aside(data, config)
    for directory in sorted((data.path / SPOOL_FOLDER).glob("[0-9]*")):
        found = _id_of(directory)
        if known and found not in ("", known):
            _put_aside(data, directory)


def _is_ours(config: Path, known: str) -> bool:
    try:
        store = ConfigStore(config)
    except errors.AngariumError:
        return False
    try:
        return not known or store.data_id == known
    finally:
        store.close()


def _id_of(directory: Path) -> str:
    spool = open_readonly(directory)
    try:
        return (spool.get(Table.META, KEY_DATA) or b"").decode()
    finally:
        spool.close()


def _put_aside(data: DataDirectory, path: Path) -> None:
    place = data.path / f"replaced-{uuid.uuid4().hex[:8]}"
    place.mkdir(mode=0o700)
    path.rename(place / path.name)
    sync_path(data.path)
    _log.error("%s does not belong here, and is kept as %s", path, place / path.name)


def _numbers_above(spools: Path) -> list[Any]:
    """Give counters above every endpoint and producer that the spools know: none of their numbers is given again."""
    lane = producer = 0
    for directory in spools.glob("[0-9]*"):
        spool = open_readonly(directory)
        try:
            for key, _ in spool.scan(Table.LANES):
                lane = max(lane, int.from_bytes(key[:8], "big"))
            start = b""
            while found := spool.scan(Table.RECORDS, start, None, 10_000):
                start = found[-1][0] + b"\x00"
                producer = max(producer, *(int.from_bytes(key[8:], "big") for key, _ in found))
        finally:
            spool.close()
    return [Counter(ENDPOINT_COUNTER, (lane >> wire.LANE_BITS) + 1), Counter(PRODUCER_COUNTER, producer + 1)]


def _refusal(what: str) -> errors.AngariumError:
    advice = (
        "put the right one back, or restore a backup with 'angarium spool restore'; "
        "'angarium up --accept-loss' starts without it: nothing is deleted, lanes nobody claims are kept aside"
    )
    return errors.error_for(errors.INVALID_CONFIGURATION, what, advice)
