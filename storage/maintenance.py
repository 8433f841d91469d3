"""Checks, copies and restores of spools, with or without the process that owns them.

    verify     walks the pages of one environment, reads every value and compares checksums, and looks whether
               keys fit together
    pack       makes one file of directories: copies of environments, and a manifest with checksums
    unpack     puts them into an empty place after everything was checked

What a segment or a block means is the home's business (`node/home/spool/layout.py`). Known here are a block, whose
first four bytes are the CRC-32 of the rest, the lengths of keys, and that a segment is a MessagePack array
whose second field is its block. What belongs to a lane that does not exist is no fault: a purge that was
interrupted leaves it over, and the home deletes it at its next start.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from array import array
from bisect import bisect_left
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import msgpack

from angarium import errors
from storage import pages
from storage.spool import DATA_FILE, KEY_ENVIRONMENT, Table, damaged, open_readonly, open_spool, try_look
from storage.sync import sync_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from storage.spool import Spool

#: Values read in one go: blocks are large, the others small.
_BLOCKS_BATCH: Final = 64
_BATCH: Final = 5_000
#: Faults that are listed; of a destroyed file the first ones say enough.
FAULTS_MAX: Final = 100
_CRC_BYTES: Final = 4
#: A lane has a row and, with one byte more, a second one, and a third while it is leased.
_KEY_BYTES: Final = {
    Table.LANES: (8, 9),
    Table.SEGMENTS: (16,),
    Table.STATES: (16,),
    Table.BLOCKS: (8,),
    Table.RECORDS: (16,),
    Table.MOVES: (8,),
    Table.STAGED: (24,),
}
#: Where a segment names its block.
_BLOCK_FIELD: Final = 1
#: What stands before the segment in a staged row: the generation of its endpoint.
_STAGED_HEAD_BYTES: Final = 8
MANIFEST: Final = "manifest.json"
ARCHIVE_FORMAT: Final = 1
_COPY_BYTES: Final = 1 << 20
_RESTORING: Final = ".restoring"

#: Called with (done, total) now and then.
Tell: TypeAlias = "Callable[[int, int], None]"


def verify(directory: Path, tell: Tell) -> list[str]:
    """Check the spool in a directory; gives each fault as a sentence.

    Another process may have it open and go on: then its pages are not walked (that process did it when it
    opened them), and what changes under the check is no fault.

    Args:
        directory: of one environment.
        tell: called with blocks.

    Raises:
        UnavailableError: it cannot be opened at all (50320, 50322).
    """
    _check_pages(directory)
    spool = open_readonly(directory)
    try:
        check = _Check(spool, tell)
        check.run()
        return check.faults[:FAULTS_MAX]
    finally:
        spool.close()


def _check_pages(directory: Path) -> None:
    """Walk all pages, if nobody writes them."""
    if not (directory / DATA_FILE).exists():
        return
    lock = try_look(directory)
    if lock is None:
        return
    try:
        pages.check_file(directory / DATA_FILE)
    except (pages.PageFaultError, OSError) as error:
        raise damaged(directory, str(error)) from None
    finally:
        os.close(lock)


class _Check:
    """One check of a spool that may change meanwhile.

    A key is never made again once it was deleted: blocks and positions are numbered without end. So a row
    that lacks another one is at fault only if it is still there after the other one was missed.
    """

    def __init__(self, spool: Spool, tell: Tell) -> None:
        self._spool = spool
        self._tell = tell
        self.faults: list[str] = []
        #: Blocks that are there, by rising number.
        self._blocks: array[int] = array("Q")

    def run(self) -> None:
        for check in (self._check_blocks, self._check_segments, self._check_states, self._check_others):
            try:
                check()
            except errors.UnavailableError as error:
                # Reading found a value without its checksum, or LMDB could not go on; the next table may be sound.
                if error.detail not in self.faults:
                    self.faults.append(error.detail)

    def _rows(self, table: Table, batch: int = _BATCH) -> Iterator[tuple[bytes, bytes]]:
        """Give the rows of a table whose keys are sound, up to the limit of faults."""
        sizes, start = _KEY_BYTES.get(table), b""
        while found := self._spool.scan(table, start, limit=batch):
            for key, value in found:
                if len(self.faults) >= FAULTS_MAX:
                    return
                if key < start:
                    self.faults.append(f"{_name(table)}: the key {key.hex()} is behind a greater one")
                elif sizes is not None and len(key) not in sizes:
                    self.faults.append(f"{_name(table)}: the key {key.hex()} has {len(key)} bytes")
                else:
                    yield key, value
                start = key + b"\0"

    def _check_blocks(self) -> None:
        total = self._spool.count(Table.BLOCKS)
        self._tell(0, total)
        for key, value in self._rows(Table.BLOCKS, _BLOCKS_BATCH):
            block = int.from_bytes(key, "big")
            self._blocks.append(block)
            if not is_intact(value):
                self.faults.append(f"block {block} does not have its checksum")
            if len(self._blocks) % _BLOCKS_BATCH == 0:
                self._tell(min(len(self._blocks), total), total)
        self._tell(total, total)

    def _check_segments(self) -> None:
        for table, head in ((Table.SEGMENTS, 0), (Table.STAGED, _STAGED_HEAD_BYTES)):
            for key, value in self._rows(table):
                block = _block_of(value[head:])
                if block is None:
                    self.faults.append(f"{_name(table)}: the key {key.hex()} has no segment")
                elif not self._has_block(block) and self._spool.get(table, key) == value:
                    self.faults.append(
                        f"{_name(table)}: the block {block} of the key {key.hex()} is not there"
                    )

    def _has_block(self, block: int) -> bool:
        at = bisect_left(self._blocks, block)
        if at < len(self._blocks) and self._blocks[at] == block:
            return True
        # It may have come since.
        return self._spool.get(Table.BLOCKS, block.to_bytes(8, "big")) is not None

    def _check_states(self) -> None:
        for key, _ in self._rows(Table.STATES):
            if (
                self._spool.get(Table.SEGMENTS, key) is None
                and self._spool.get(Table.STATES, key) is not None
            ):
                self.faults.append(f"states: the key {key.hex()} is of a segment that is not there")

    def _check_others(self) -> None:
        for table in (Table.META, Table.LANES, Table.RECORDS, Table.MOVES):
            for _ in self._rows(table):
                pass


def _name(table: Table) -> str:
    return table.name.lower()


def _block_of(value: bytes) -> int | None:
    """Give the block that a segment names, or None if it is none."""
    try:
        block = msgpack.unpackb(value, strict_map_key=False)[_BLOCK_FIELD]
    except (ValueError, TypeError, LookupError, msgpack.exceptions.UnpackException):
        return None
    return block if isinstance(block, int) and 0 <= block < 1 << 64 else None


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
        tell: called with bytes; each is read twice, for its checksum and for the file.
    """
    files = {
        f"{name}/{path.name}": path
        for name, directory in sorted(members.items())
        for path in sorted(directory.iterdir())
        if path.is_file()
    }
    read = _Bytes(2 * sum(path.stat().st_size for path in files.values()), tell)
    sums = {name: _sum_of(path, read) for name, path in files.items()}
    manifest = {**about, "format": ARCHIVE_FORMAT, "files": sums}
    manifest["checksum"] = _manifest_sum(manifest)
    partial = archive.with_name(f"{archive.name}.partial")
    try:
        with partial.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            with tarfile.open(fileobj=file, mode="w") as tar:
                _add(tar, MANIFEST, json.dumps(manifest, indent=1).encode())
                for name, path in files.items():
                    with path.open("rb") as source:
                        tar.addfile(tar.gettarinfo(path, name), _Reader(source, read))
            file.flush()
            os.fsync(file.fileno())
        partial.rename(archive)
    finally:
        partial.unlink(missing_ok=True)
    sync_path(archive.parent)


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
        # A file that is no archive at all is answered with a line for each format that it is not.
        raise _unusable(archive, f"it is no backup: {str(error).partition(chr(10))[0].rstrip(':')}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != ARCHIVE_FORMAT:
        raise _unusable(archive, f"its manifest is not of format {ARCHIVE_FORMAT}")
    if manifest.get("checksum") != _manifest_sum(manifest) or not isinstance(manifest.get("files"), dict):
        raise _unusable(archive, "the checksum of its manifest does not fit")
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
    names = sorted({_folder_and_name(archive, name)[0] for name in sums})
    for name in names:
        if (directory / name).exists():
            advice = "restore into an empty data directory"
            raise errors.error_for(errors.OBJECT_EXISTS, f"{directory / name}", advice)
    place = directory / _RESTORING
    # One that was killed left its files.
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700, parents=True)
    try:
        _extract(archive, place, sums, tell)
        for name in names:
            sync_path(place / name)
            (place / name).rename(directory / name)
    finally:
        shutil.rmtree(place)
    sync_path(directory)
    return manifest


def renew_environment(directory: Path) -> None:
    """Give the environment of a restored spool an id of its own: it is another one than the one backed up.

    Raises:
        UnavailableError: it is damaged, or a process has it open (50320, 50322).
    """
    spool = open_spool(directory)
    try:
        spool.commit([(Table.META, KEY_ENVIRONMENT, os.urandom(8).hex().encode())])
    finally:
        spool.close()


def _extract(archive: Path, place: Path, sums: dict[str, str], tell: Tell) -> None:
    written = _Bytes(archive.stat().st_size, tell)
    try:
        with tarfile.open(archive) as tar:
            for name, expected in sums.items():
                folder, file_name = _folder_and_name(archive, name)
                source = tar.extractfile(name)
                if source is None:
                    raise _unusable(archive, f"{name} is no file")
                (place / folder).mkdir(mode=0o700, exist_ok=True)
                found = _write(place / folder / file_name, _Reader(source, written))
                if found != expected:
                    raise _unusable(archive, f"the checksum of {name} does not fit")
    except KeyError as error:
        raise _unusable(archive, f"a file is missing: {error}") from None
    except (tarfile.TarError, EOFError) as error:
        raise _unusable(archive, f"it cannot be read: {error}") from None


def _folder_and_name(archive: Path, name: str) -> tuple[str, str]:
    """Give the two parts of the name of a file in an archive, which must not lead anywhere else."""
    folder, _, file_name = name.partition("/")
    if {folder, file_name} & {"..", ".", ""} or "/" in file_name:
        raise _unusable(archive, f"it names the file {name!r}")
    return folder, file_name


class _Bytes:
    """How many bytes of a total are done; tells it."""

    def __init__(self, total: int, tell: Tell) -> None:
        self._done = 0
        self._total = total
        self._tell = tell

    def add(self, count: int) -> None:
        self._done += count
        self._tell(min(self._done, self._total), self._total)


class _Reader:
    """A file whose bytes are counted while they are read: one file may be all that there is."""

    def __init__(self, file: IO[bytes], count: _Bytes) -> None:
        self._file = file
        self._count = count

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self._count.add(len(found))
        return found


def _write(path: Path, source: _Reader) -> str:
    """Write a file durably; gives its checksum."""
    digest = hashlib.sha256()
    with path.open("xb") as target:
        os.fchmod(target.fileno(), 0o600)
        while chunk := source.read(_COPY_BYTES):
            target.write(chunk)
            digest.update(chunk)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _sum_of(path: Path, read: _Bytes) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        source = _Reader(file, read)
        while chunk := source.read(_COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _manifest_sum(manifest: Mapping[str, Any]) -> str:
    """Give the checksum of what a manifest says besides it."""
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _unusable(archive: Path, what: str) -> errors.AngariumError:
    return errors.error_for(errors.SPOOL_DAMAGED, f"backup {archive}: {what}; use another backup")
