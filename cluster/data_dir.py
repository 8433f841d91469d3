"""A node's directories: the data directory, which stays, and the runtime directory, which goes.

One node per data directory: a lock file says so for as long as the supervisor lives, however it ends. What
the node keeps over restarts without the config store (name, id, number of workers, ports) is in `node.json`.
The runtime directory is short, because the path of a socket has at most 107 bytes, belongs to this user only,
and holds nothing that has to last. Called by the supervisor's shell.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from angarium import errors
from cluster.admin import LOCK_FILE, NODE_FILE, NodeFile, read_node_file

if TYPE_CHECKING:
    from types import TracebackType

NODE_FORMAT: Final = 1
TOKEN_KEY_FILE: Final = "token.key"  # noqa: S105 - the name of a file
TOKEN_KEY_BYTES: Final = 32
#: The folders in a data directory, and in a backup of it.
CONFIG_FOLDER: Final = "config"
SPOOL_FOLDER: Final = "spool"
#: Where copies wait for an operator at another host, in the data directory; never in a backup.
COPIES_FOLDER: Final = "copies"
#: A socket's path may have 107 bytes; the longest name in the directory, with a slash, has 11.
RUNTIME_PATH_BYTES_MAX: Final = 90
_RUNTIME_PREFIX: Final = "angarium-"


class DataDirectory:
    """The locked data directory of a node; a context manager that gives the lock back."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        """Take the lock and read `node.json`, making both if this is the first start.

        Args:
            path: made if it does not exist.
            name: what the configuration calls the node; empty for the host name. A node keeps its first name
            unless the
                configuration gives it another.

        Raises:
            ConflictError: another node runs on the directory (40902).
            InvalidRequestError: it cannot be used, or `node.json` has an unknown format (40017).
        """
        self.path = Path(path).absolute()
        self._lock = self._take_lock()
        try:
            #: What `node.json` holds; `save` changes both together.
            self.node = self._load(name)
            self.save(starts=self.node.starts + 1)
        except BaseException:
            os.close(self._lock)
            raise

    def save(self, **changes: Any) -> None:
        """Change fields of `node.json` durably."""
        self.node = msgspec.structs.replace(self.node, **changes)
        encoded = msgspec.json.format(msgspec.json.encode(self.node), indent=2)
        write_durably(self.path / NODE_FILE, encoded + b"\n")

    def token_key_hex(self) -> str:
        """Give the secret under which the router seals resume tokens, made at the first start and kept."""
        path = self.path / TOKEN_KEY_FILE
        if not path.exists():
            write_durably(path, secrets.token_hex(TOKEN_KEY_BYTES).encode() + b"\n")
        return path.read_text(encoding="ascii").strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def _take_lock(self) -> int:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            detail = f"data directory {self.path}: {error.strerror}"
            raise errors.error_for(errors.INVALID_CONFIGURATION, detail) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            detail = f"a node runs on {self.path}"
            advice = (
                f"'angarium status --data {self.path}' shows it, 'angarium down --data {self.path}' stops it"
            )
            raise errors.error_for(errors.OBJECT_IN_USE, detail, advice) from None
        return descriptor

    def _load(self, name: str) -> NodeFile:
        try:
            node = read_node_file(self.path)
        except errors.UnavailableError:
            first_name = name or socket.gethostname()
            return NodeFile(node=first_name, node_id=uuid.uuid4().hex, workers=0)
        if node.format != NODE_FORMAT:
            detail = (
                f"{self.path / NODE_FILE}: the format check found {node.format}, not {NODE_FORMAT}; "
                "start it with the version that wrote it"
            )
            raise errors.error_for(errors.INVALID_CONFIGURATION, detail)
        return msgspec.structs.replace(node, node=name) if name else node


class RuntimeDirectory:
    """A fresh directory for sockets, mode 0700; a context manager that removes it."""

    def __init__(self, earlier: str = "") -> None:
        """Make the directory, and remove that of an earlier run that was killed before it could."""
        if Path(earlier).name.startswith(_RUNTIME_PREFIX):
            shutil.rmtree(earlier, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=_RUNTIME_PREFIX, dir=_runtime_parent()))
        # systemd-tmpfiles leaves a locked directory alone, however old its files are.
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, name: str, content: bytes) -> None:
        """Write a file for the processes; a reader sees the old or the new one, whole."""
        temporary = self.path / f".{name}"
        temporary.write_bytes(content)
        temporary.chmod(0o600)
        temporary.replace(self.path / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file so that after a crash it is the old or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make durable which files a directory holds."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _runtime_parent() -> str:
    """Give the temporary directory, unless its path is too long; XDG_RUNTIME_DIR would go at the next logout."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) + len(_RUNTIME_PREFIX) + 10 <= RUNTIME_PATH_BYTES_MAX
    return usual if fits else "/tmp"  # noqa: S108 - mkdtemp makes a private directory below it
