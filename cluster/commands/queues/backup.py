"""A backup of a node in one file, and the way back: config store and spools.

The processes of the node write their copies into a directory beside the file (`spool.backup` of the admin API), while
they go on; those of a node at another host into one of its own, from which they are fetched. Here the copies become an
archive (`storage/maintenance.py`), and an archive becomes a data directory again. What is restored is verified first,
and what stood in its place is kept beside it, never deleted.

A restored node gets another id: neighbours remember by the id what they have received from it, and positions that a
backup holds have been used again since. It leaves out numbers of producers: those that were given while the
backup was made are in its spools and not in its config store.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from angarium import errors
from angarium_server.process import utc_now
from cluster.catalog.producers import COUNTER
from cluster.data.data_dir import CONFIG_FOLDER, SPOOL_FOLDER, SPOOLS, DataDirectory
from cluster.data.node_file import NODE_FILE
from cluster.supervisor.stores import stamp
from storage import maintenance
from storage.config_store import ConfigStore, Counter
from storage.spool import DATA_FILE
from storage.sync import sync_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cluster.admin.client import Admin

#: More producers and stages than are opened while a backup is made.
NUMBERS_SKIPPED: Final = 1_000_000
#: Kinds of objects that have the node connect to others.
_REACHING: Final = ("link", "bridge", "webhook")
#: Name in the archive of the spool of a worker; its number follows.
_SPOOL_MEMBER: Final = "spool-"
#: Where a backup is unpacked, in the data directory, which one process at a time has.
_FRESH: Final = ".restore"


#: What a node at another host may call a part: it becomes a path here.
_PART: Final = re.compile(rf"{CONFIG_FOLDER}|{SPOOL_FOLDER}/[0-9]{{1,4}}")


class Manifest(msgspec.Struct, kw_only=True):
    """What has to be known of the node that a backup is of."""

    node: str
    node_id: str
    workers: int
    taken: str


class Restored(NamedTuple):
    """What was restored, and where that is which it replaced."""

    manifest: Manifest
    #: None if the data directory held nothing.
    replaced: Path | None
    #: Links, bridges and webhooks that were switched off.
    switched_off: int


@contextlib.contextmanager
def parts_folder(file: Path) -> Iterator[Path]:
    """Give the path of a directory beside the file for the copies; it is removed at the end.

    Raises:
        ConflictError: the file exists (40901).
    """
    if file.exists():
        detail = f"{file}; a backup is never written over"
        raise errors.error_for(errors.OBJECT_EXISTS, detail, "choose another path, or remove it")
    folder = file.with_name(f".{file.name}.{os.getpid()}.parts").absolute()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fetch(connection: Admin, copy: str, parts: list[str], folder: Path, tell: Callable[[int], None]) -> None:
    """Fetch the copies that a node at another host made into a directory.

    Raises:
        AngariumError: the node is gone, or the copy is.
        UnavailableError: what comes is not what was copied, or has a name that is no part of a backup (50322).
        InvalidRequestError: the directory is there already, or cannot be made (40018).
    """
    if len(set(parts)) != len(parts) or not all(map(_PART.fullmatch, parts)):
        raise errors.error_for(errors.SPOOL_DAMAGED, f"the node calls the parts of its backup {parts!r}")
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:  # a link there would lead elsewhere
        raise errors.invalid(f"{folder}: {error.strerror}") from None
    fetched = 0
    for part in parts:
        place = folder / part
        place.mkdir(mode=0o700, parents=True)
        with (place / DATA_FILE).open("xb") as file:
            size = 1
            while (offset := file.tell()) < size:
                piece = connection.call("spool.fetch", copy=copy, part=part, offset=offset)
                size = piece["size"]
                if offset < size and not piece["data"]:
                    raise errors.error_for(
                        errors.SPOOL_DAMAGED, f"{part} of the backup ends at {offset} of {size}"
                    )
                file.write(piece["data"])
                fetched += len(piece["data"])
                tell(fetched)


def pack(
    folder: Path, file: Path, node: str, node_id: str, workers: int, tell: Callable[[int, int], None]
) -> Manifest:
    """Make the file of the copies in a directory, durably; gives what it says of the node."""
    manifest = Manifest(node=node, node_id=node_id, workers=workers, taken=utc_now())
    members = {CONFIG_FOLDER: folder / CONFIG_FOLDER}
    members |= {f"{_SPOOL_MEMBER}{path.name}": path for path in spools_of(folder)}
    maintenance.pack(members, file, msgspec.to_builtins(manifest), tell)
    return manifest


def read_manifest(file: Path) -> Manifest:
    """Give what a backup says of its node.

    Raises:
        UnavailableError: it is no backup, or one of another version (50322).
    """
    found = maintenance.read_manifest(file)
    try:
        return msgspec.convert(found, Manifest)
    except msgspec.ValidationError as error:
        raise errors.error_for(errors.SPOOL_DAMAGED, f"backup {file}: {error}") from None


def restore(
    file: Path, data_dir: Path, tell: Callable[[str, int, int], None], *, is_trial: bool = False
) -> Restored:
    """Make the data directory hold what a backup holds; a node must not run on it.

    Args:
        file: made by `pack`.
        data_dir: made if it is not there.
        tell: called with (what is done, done, total).
        is_trial: the node is to connect to nobody: what the one of the backup posts and passes on, that one does.

    Raises:
        ConflictError: a node runs on the directory (40902).
        UnavailableError: the file is no backup, or something in it is damaged; nothing was changed (50322).
    """
    manifest = read_manifest(file)
    name = "" if (data_dir / NODE_FILE).exists() else manifest.node
    with DataDirectory(data_dir, name) as data:
        fresh = data.path / _FRESH
        # One that was killed left all that it had unpacked.
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            maintenance.unpack(file, fresh, lambda done, total: tell("reading the file", done, total))
            _arrange(fresh)
            _verify(fresh, lambda done, total: tell("verifying", done, total))
            data_id = _renew_id(fresh, manifest.workers)
            _skip_numbers(fresh / CONFIG_FOLDER)
            switched_off = _switch_off(fresh / CONFIG_FOLDER) if is_trial else 0
            replaced = _put_aside(data.path)
            for folder in (CONFIG_FOLDER, SPOOL_FOLDER):
                (fresh / folder).rename(data.path / folder)
            sync_path(data.path)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        data.save(node_id=uuid.uuid4().hex, workers=manifest.workers, data_id=data_id)
        if data.fault:
            raise errors.error_for(errors.DISK_FULL, f"{data.path / NODE_FILE}: {data.fault}")
    return Restored(manifest, replaced, switched_off)


def spools_of(data_dir: Path) -> list[Path]:
    """Give the directories of the spools in a data directory, by the number of their worker."""
    place = data_dir / SPOOL_FOLDER
    found = [path for path in place.iterdir() if path.name.isdecimal()] if place.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def _arrange(fresh: Path) -> None:
    """Put what came out of an archive where a data directory has it."""
    (fresh / SPOOL_FOLDER).mkdir(mode=0o700)
    for path in sorted(fresh.glob(f"{_SPOOL_MEMBER}*")):
        path.rename(fresh / SPOOL_FOLDER / path.name.removeprefix(_SPOOL_MEMBER))


def _verify(fresh: Path, tell: Callable[[int, int], None]) -> None:
    for directory in spools_of(fresh):
        faults = maintenance.verify(directory, tell)
        if faults:
            detail = f"the spool of worker {directory.name} in the backup: {faults[0]}; {len(faults)} faults in all"
            raise errors.error_for(errors.SPOOL_DAMAGED, detail)
        maintenance.renew_environment(directory)


def _renew_id(fresh: Path, workers: int) -> str:
    """Let everything that was restored belong to one data directory, which is another one than before; gives its id."""
    data_id = uuid.uuid4().hex
    for directory in spools_of(fresh):
        stamp(directory, data_id)
    store = ConfigStore(fresh / CONFIG_FOLDER)
    try:
        store.set_data_id(data_id)
        store.commit([Counter(SPOOLS, workers)])
    finally:
        store.close()
    return data_id


def _skip_numbers(directory: Path) -> None:
    """Let no producer or stage get a number that one of later had: the spools were copied after the config store.

    What a home has under such a number would be taken for its own.

    Raises:
        InvalidRequestError: the config store is damaged (40017).
    """
    store = ConfigStore(directory)
    try:
        store.commit([Counter(COUNTER, store.load_counters().get(COUNTER, 1) + NUMBERS_SKIPPED)])
    finally:
        store.close()


def _switch_off(directory: Path) -> int:
    """Let the node connect to nobody; gives how many objects had it do that."""
    store = ConfigStore(directory)
    try:
        found = [
            one._replace(attributes={**(one.attributes or {}), "enabled": False})
            for one in store.load()
            if one.kind in _REACHING and (one.attributes or {}).get("enabled", True)
        ]
        store.commit(found)
    finally:
        store.close()
    return len(found)


def _put_aside(data_dir: Path) -> Path | None:
    """Move what a backup will replace into a directory of its own, and give that; None if there is nothing."""
    there = [data_dir / folder for folder in (CONFIG_FOLDER, SPOOL_FOLDER) if (data_dir / folder).exists()]
    if not there:
        return None
    aside = data_dir / f"replaced-{utc_now().replace(':', '').replace('.', '')}"
    aside.mkdir(mode=0o700)
    for path in there:
        path.rename(aside / path.name)
    sync_path(aside)
    return aside
