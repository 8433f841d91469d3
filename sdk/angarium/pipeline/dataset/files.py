"""The few file operations that an archive rests on, on this machine's file system or any other that Spark knows.

Paths are relative to the root of an archive and use `/`. What the jobs promise over a kill at any instant rests on two
of them: `create` makes a whole file or none, and only if it is not there; `move` is a rename. Both implementations
pass one suite of tests. On this machine a file counts as there only when it and its directory are synced; other file
systems (HDFS, ABFS) do that themselves. An object store that cannot rename in one step is not enough for an archive
that is written.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

#: How messages are written as Parquet. Else it looks at what it holds only after a hundred of them, which may have many
#: MB each, and who reads them needs as much memory as that.
PARQUET: Final = {"parquet.page.size.row.check.min": "1"}
#: What makes a pattern of a path that Spark reads; one that it writes is taken as it is.
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")


class Entry(NamedTuple):
    """A file or directory."""

    path: str
    is_directory: bool
    bytes: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Files(Protocol):
    """File operations below one root."""

    def url(self, path: str) -> str:
        """Give a path as Spark takes it."""

    def entries(self, path: str) -> list[Entry]:
        """Give what is in a directory, by name; nothing if there is no such directory."""

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file or directory."""

    def read(self, path: str) -> str:
        """Give the text of a file."""

    def create(self, path: str, text: str) -> bool:
        """Make a file in one step, durably; tell whether it was made: False if there was one before."""

    def move(self, source: str, target: str) -> None:
        """Rename a file into a directory that is made if need be.

        Raises:
            OSError, UnavailableError: it is not there, or cannot be renamed (SPARK_FAILED).
        """

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; nothing happens if there is none."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make files and the directories that they are in durable."""

    def hold(self, path: str) -> AbstractContextManager[bool]:
        """Keep a file for this run alone, or until its process dies; give whether a file system can do that.

        Raises:
            ConflictError: another run has it (OBJECT_IN_USE).
        """


def files_of(spark: SparkSession, root: str) -> Files:
    """Give the files below a root, as Spark would find it.

    Raises:
        InvalidRequestError: Spark knows no file system for it (INVALID_ARGUMENT).
    """
    from py4j.protocol import Py4JJavaError

    context = spark.sparkContext
    path = _jvm(spark).org.apache.hadoop.fs.Path(root)
    try:
        system = path.getFileSystem(context._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        raise errors.invalid(f"{root}: {error.java_exception.getMessage()}") from None
    if system.getScheme() == "file":
        return LocalFiles(Path(system.makeQualified(path).toUri().getPath()))
    return ClusterFiles(spark, system, system.makeQualified(path))


def literal(url: str) -> str:
    """Give the path of one file or directory as Spark's readers take it, who look for patterns in it."""
    return _PATTERN.sub(r"\\\g<0>", url)


def walk(files: Files, path: str = "") -> Iterator[Entry]:
    """Give every Parquet file below a directory that readers of Parquet would see."""
    for entry in files.entries(path):
        if entry.name.startswith(("_", ".")):
            continue
        if entry.is_directory:
            yield from walk(files, entry.path)
        elif entry.name.endswith(".parquet"):
            yield entry


class LocalFiles:
    """Files of this machine."""

    def __init__(self, root: Path) -> None:
        """Work below a root, which need not be there yet."""
        self.root = root

    def url(self, path: str) -> str:
        """Give a path as Spark takes it."""
        return f"file:{self.root / path}"

    def entries(self, path: str) -> list[Entry]:
        """Give what is in a directory, by name; nothing if there is no such directory."""
        try:
            with os.scandir(self.root / path) as found:
                entries = (_entry_of(path, one) for one in found)
                return sorted(entry for entry in entries if entry is not None and not _is_check_sum(entry))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file or directory."""
        return (self.root / path).exists()

    def read(self, path: str) -> str:
        """Give the text of a file."""
        return (self.root / path).read_text(encoding="utf-8")

    def create(self, path: str, text: str) -> bool:
        """Make a file in one step, durably; tell whether it was made: False if there was one before."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, target)
        except FileExistsError:
            return False
        finally:
            partial.unlink(missing_ok=True)
        self._sync_names([path])
        return True

    def move(self, source: str, target: str) -> None:
        """Rename a file into a directory that is made if need be."""
        place = self.root / target
        if not place.parent.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            self._sync_names([target])
        # Spark's check sum of a file has its name, and would be taken for that of another one.
        (self.root / source).with_name(f".{PurePosixPath(source).name}.crc").unlink(missing_ok=True)
        (self.root / source).rename(place)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; nothing happens if there is none."""
        target = self.root / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files and the directories that they are in durable."""
        paths = list(paths)
        for path in paths:
            _sync(self.root / path)
        self._sync_names(paths)

    @contextlib.contextmanager
    def hold(self, path: str) -> Iterator[bool]:
        """Keep a file for this run alone, or until its process dies; give whether the file system can do that."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a") as file:
            yield _is_locked(file.fileno(), str(place.parent))

    def _sync_names(self, paths: Iterable[str]) -> None:
        """Make the names of files durable, and those of the directories that lead to them, whoever made them."""
        for parent in sorted({parent for path in paths for parent in PurePosixPath(path).parents}):
            _sync(self.root / parent)


class ClusterFiles:
    """Files of any file system that Spark knows, through the driver's Java."""

    def __init__(self, spark: SparkSession, system: Any, root: Any) -> None:
        """Work below a root, an `org.apache.hadoop.fs.Path` of that file system."""
        self._jvm = _jvm(spark)
        self._system = system
        self._root = root

    def url(self, path: str) -> str:
        """Give a path as Spark takes it."""
        return str(self._path(path).toString())

    def entries(self, path: str) -> list[Entry]:
        """Give what is in a directory, by name; nothing if there is no such directory."""
        place = self._path(path)
        if not self._system.exists(place):
            return []
        found = (
            Entry(_join(path, one.getPath().getName()), one.isDirectory(), one.getLen())
            for one in self._system.listStatus(place)
        )
        return sorted(entry for entry in found if not _is_check_sum(entry))

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file or directory."""
        return bool(self._system.exists(self._path(path)))

    def read(self, path: str) -> str:
        """Give the text of a file."""
        stream = self._system.open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def create(self, path: str, text: str) -> bool:
        """Make a file in one step, durably; tell whether it was made: False if there was one before."""
        target = self._path(path)
        if self._system.exists(target):
            return False
        partial = self._path(_join(path.rpartition("/")[0], f".{uuid.uuid4().hex}"))
        stream = self._system.create(partial)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        made = bool(self._system.rename(partial, target))
        if not made:
            self._system.delete(partial, False)  # noqa: FBT003 - Java's signature
        return made

    def move(self, source: str, target: str) -> None:
        """Rename a file into a directory that is made if need be."""
        from py4j.protocol import Py4JJavaError

        place = self._path(target)
        why = ""
        try:
            self._system.mkdirs(place.getParent())
            moved = bool(self._system.rename(self._path(source), place))
        except Py4JJavaError as error:
            moved, why = False, f": {error.java_exception.getMessage()}"
        if not moved:
            detail = f"{self.url(source)} could not be renamed to {self.url(target)}{why}"
            raise errors.error_for(errors.SPARK_FAILED, detail)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it; nothing happens if there is none."""
        self._system.delete(self._path(path), True)  # noqa: FBT003 - Java's signature

    def sync(self, paths: Iterable[str]) -> None:
        """Do nothing: such a file system has what it has written."""

    def hold(self, path: str) -> AbstractContextManager[bool]:  # noqa: ARG002 - the signature of the protocol
        """Keep nothing: there is nothing that ends with a process and that all such file systems have."""
        return contextlib.nullcontext(enter_result=False)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _entry_of(folder: str, found: os.DirEntry[str]) -> Entry | None:
    """Give an entry of a directory; None if somebody has removed it meanwhile, which says nothing of the others."""
    try:
        return Entry(_join(folder, found.name), found.is_dir(), found.stat().st_size)
    except FileNotFoundError:
        return None


def _is_check_sum(entry: Entry) -> bool:
    """Tell whether Hadoop made it beside a file; a directory of such a name is that of a topic."""
    return entry.name.endswith(".crc") and not entry.is_directory


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_locked(descriptor: int, shown: str) -> bool:
    """Lock a file as long as it is open; tell whether its file system has locks."""
    import fcntl  # not on every system that reads archives

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        detail = f"another run of this job is at work in {shown}"
        raise errors.error_for(errors.OBJECT_IN_USE, detail, "wait until it has ended") from None
    except OSError:
        return False
    return True


def _sync(path: Path) -> None:
    """Sync a file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
