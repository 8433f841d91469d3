"""Checks, copies and restores of spools, with or without the process that owns them.

    verify     reads every block of one environment and compares checksums, and looks whether keys fit together
    pack       makes one file of directories: copies of environments, and a manifest with checksums
    unpack     puts them into an empty place after everything was checked

What a segment or a block means is the home's business; here a block is a value whose first four bytes are
the CRC-32 of the rest, and the keys of segments, states and records begin with the eight bytes of a lane.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import lmdb

from angarium import errors
from storage.spool import KEY_ENVIRONMENT, Table, open_readonly, open_spool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from storage.spool import Spool

#: Blocks read in one go.
_BATCH: Final = 256
#: Faults that are listed; of a destroyed file the first ones say enough.
FAULTS_MAX: Final = 100
_CRC_BYTES: Final = 4
_LANE_BYTES: Final = 8
_KEY_BYTES: Final = {Table.SEGMENTS: 16, Table.STATES: 16, Table.BLOCKS: 8, Table.RECORDS: 16}
MANIFEST: Final = "manifest.json"
ARCHIVE_FORMAT: Final = 1
_COPY_BYTES: Final = 1 << 20

#: Called with (done, total) now and then.
Tell: TypeAlias = "Callable[[int, int], None]"


def verify(directory: Path, tell: Tell) -> list[str]:
    """Check the spool in a directory, which another process may have open; gives each fault as a sentence.

    Raises:
        UnavailableError: it cannot be opened at all (50322).
    """
    spool = open_readonly(directory)
    try:
        return [*_check_keys(spool), *_check_blocks(spool, tell)][:FAULTS_MAX]
    except lmdb.Error as error:
        return [f"the tables cannot be read: LMDB says {error}"]
    finally:
        spool.close()


def _check_keys(spool: Spool) -> list[str]:
    """Look whether keys have their length, states their segments, and segments and records their lanes."""
    faults = []
    lanes = {key[:_LANE_BYTES] for key, _ in spool.scan(Table.LANES)}
    segments = {key for key, _ in spool.scan(Table.SEGMENTS)}
    for table, size in _KEY_BYTES.items():
        if table is Table.BLOCKS:
            continue
        for key, _ in spool.scan(table):
            if len(key) != size:
                faults.append(f"{table.name.lower()}: the key {key.hex()} has {len(key)} bytes, not {size}")
            elif key[:_LANE_BYTES] not in lanes:
                faults.append(f"{table.name.lower()}: the key {key.hex()} is of a lane that is not there")
            elif table is Table.STATES and key not in segments:
                faults.append(f"states: the key {key.hex()} is of a segment that is not there")
            if len(faults) >= FAULTS_MAX:
                return faults
    return faults


def _check_blocks(spool: Spool, tell: Tell) -> list[str]:
    faults: list[str] = []
    total = spool.count(Table.BLOCKS)
    done, start = 0, b""
    while len(faults) < FAULTS_MAX:
        tell(done, total)
        entries = spool.scan(Table.BLOCKS, start, limit=_BATCH)
        if not entries:
            break
        for key, value in entries:
            if len(key) != _KEY_BYTES[Table.BLOCKS] or not is_intact(value):
                faults.append(f"block {int.from_bytes(key, 'big')} does not have its checksum")
        done += len(entries)
        start = entries[-1][0] + b"\0"
    tell(total, total)
    return faults


def is_intact(value: bytes) -> bool:
    """Tell whether a block has its checksum."""
    return len(value) > _CRC_BYTES and int.from_bytes(value[:_CRC_BYTES], "big") == zlib.crc32(
        memoryview(value)[_CRC_BYTES:]
    )


# -- archives ------------------------------------------------------------------------------------------------


def pack(members: Mapping[str, Path], archive: Path, about: Mapping[str, Any], tell: Tell) -> None:
    """Make one file of directories; it has its name only when it is complete and on disk.

    Args:
        members: name in the archive -> directory with plain files.
        archive: the file to make; one that is there is replaced.
        about: what the manifest says besides the checksums.
        tell: called with bytes.
    """
    files = {
        f"{name}/{path.name}": path
        for name, directory in sorted(members.items())
        for path in sorted(directory.iterdir())
        if path.is_file()
    }
    total = sum(path.stat().st_size for path in files.values())
    sums = {name: _sum_of(path) for name, path in files.items()}
    manifest = {"format": ARCHIVE_FORMAT, "files": sums, **about}
    partial = archive.with_name(f"{archive.name}.partial")
    done = 0
    with partial.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        with tarfile.open(fileobj=file, mode="w") as tar:
            _add(tar, MANIFEST, json.dumps(manifest, indent=1).encode())
            for name, path in files.items():
                tar.add(path, name, recursive=False)
                done += path.stat().st_size
                tell(done, total)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(archive)
    _sync_directory(archive.parent)


def read_manifest(archive: Path) -> dict[str, Any]:
    """Give what an archive says about itself.

    Raises:
        UnavailableError: it is no archive of a spool, or of another format (50322).
    """
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(MANIFEST)
            manifest = json.load(member) if member is not None else None
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise _unusable(archive, f"it is no backup: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != ARCHIVE_FORMAT:
        raise _unusable(archive, f"its manifest is not of format {ARCHIVE_FORMAT}")
    return manifest


def unpack(archive: Path, directory: Path, tell: Tell) -> dict[str, Any]:
    """Put the directories of an archive below a directory that has none of them; gives the manifest.

    Everything is written and checked beside its place first, so a backup that is damaged changes nothing.

    Raises:
        UnavailableError: the archive is damaged or of another format (50322).
        ConflictError: there is something in its place (40901).
    """
    manifest = read_manifest(archive)
    sums: dict[str, str] = manifest["files"]
    names = sorted({name.split("/")[0] for name in sums})
    for name in names:
        if (directory / name).exists():
            detail = f"{directory / name} is there: restore into an empty data directory"
            raise errors.error_for(errors.OBJECT_EXISTS, detail)
    place = directory / ".restoring"
    place.mkdir(mode=0o700, parents=True)
    try:
        _extract(archive, place, sums, tell)
        for name in names:
            (place / name).rename(directory / name)
    finally:
        _remove(place)
    _sync_directory(directory)
    return manifest


def renew_environment(directory: Path) -> None:
    """Give the environment of a restored spool an id of its own: it is another one than the one backed up."""
    spool = open_spool(directory)
    spool.commit([(Table.META, KEY_ENVIRONMENT, os.urandom(8).hex().encode())])
    spool.close()


def _extract(archive: Path, place: Path, sums: dict[str, str], tell: Tell) -> None:
    done, total = 0, archive.stat().st_size
    with tarfile.open(archive) as tar:
        for name, expected in sums.items():
            folder, _, file_name = name.partition("/")
            if not file_name or {folder, file_name} & {"..", ".", ""} or "/" in file_name:
                raise _unusable(archive, f"it names the file {name!r}")
            try:
                source = tar.extractfile(name)
            except KeyError:
                source = None
            if source is None:
                raise _unusable(archive, f"{name} is missing")
            (place / folder).mkdir(mode=0o700, exist_ok=True)
            digest = hashlib.sha256()
            with (place / folder / file_name).open("wb") as target:
                while chunk := source.read(_COPY_BYTES):
                    target.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    tell(min(done, total), total)
                target.flush()
                os.fsync(target.fileno())
            if digest.hexdigest() != expected:
                raise _unusable(archive, f"the checksum of {name} does not fit")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(place: Path) -> None:
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    place.rmdir()


def _unusable(archive: Path, what: str) -> errors.AngariumError:
    return errors.error_for(errors.SPOOL_DAMAGED, f"backup {archive}: {what}; use another backup")
