"""A node's directories: the data directory, which stays, and the runtime directory, which goes.

One node per data directory: a lock file says so for as long as the supervisor lives, however it ends. What
the node keeps over restarts without the config store (name, id, number of workers, ports) is in `node.json`.
The runtime directory is short, because the path of a socket has at most 107 bytes, belongs to this user only,
and holds nothing that has to last. Called by the supervisor's shell.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pwd
import re
import secrets
import shutil
import socket
import stat
import tempfile
import uuid
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from angarium import errors
from angarium_server.process import KEEPER_VARIABLE
from cluster.data.node_file import (
    HOST_LOCK_FILE,
    LOCK_FILE,
    NODE_FILE,
    NodeFile,
    is_locked,
    read_node_file,
    refuse_foreign,
)
from storage.sync import sync_path

NODE_FORMAT: Final = 1
#: `node.json` is filled up to such sizes with blanks, so that the next one fits into the place of the last but one.
NODE_FILE_STEP_BYTES: Final = 4_096
TOKEN_KEY_FILE: Final = "token.key"  # noqa: S105 - the name of a file
TOKEN_KEY_BYTES: Final = 32
#: The folders in a data directory, and in a backup of it.
CONFIG_FOLDER: Final = "config"
SPOOL_FOLDER: Final = "spool"
#: The counter of the config store that says how many spools were made.
SPOOLS: Final = "spools"
#: Where copies wait for an operator at another host, in the data directory; never in a backup.
COPIES_FOLDER: Final = "copies"
#: What addresses of issuers gave last.
ISSUERS_FOLDER: Final = "issuers"
#: What operators did.
AUDIT_FOLDER: Final = "audit"
#: A socket's path may have 107 bytes; the longest name in the directory, with a slash, has 11.
RUNTIME_PATH_BYTES_MAX: Final = 90
#: What is kept of join tokens; the secret that a node makes for its cluster; what it got when it joined one, and has
#: while it tries to.
JOIN_TOKENS_FILE: Final = "join-tokens.json"
SECRET_FILE: Final = "cluster.secret"  # noqa: S105 - the name of a file
JOINED_FOLDER: Final = "cluster"
JOINING_FOLDER: Final = "joining"
#: What a node and its commands make in a data directory.
_KEPT: Final = (
    *(CONFIG_FOLDER, SPOOL_FOLDER, COPIES_FOLDER, ISSUERS_FOLDER, AUDIT_FOLDER, "log", "replaced-*"),
    *(JOIN_TOKENS_FILE, SECRET_FILE, JOINED_FOLDER, JOINING_FOLDER, "left-*"),
    *(LOCK_FILE, TOKEN_KEY_FILE, NODE_FILE, ".node.json.*", "events.jsonl*", "ready.json"),
)
_RUNTIME_PREFIX: Final = "angarium-"
#: What `mkdtemp` makes of it.
_RUNTIME_NAME: Final = re.compile(rf"{_RUNTIME_PREFIX}[a-z0-9_]{{8}}")
_OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

_log = logging.getLogger("supervisor")


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
            ConflictError: another node runs on the directory, or a host of a pair, which did not start us (40902).
            InvalidRequestError: it cannot be used, is somebody else's, or `node.json` has an unknown format (40017).
        """
        self.path = Path(path).absolute()
        self._lock = self._take_lock()
        try:
            #: What `node.json` shall hold; what `save` could not write is written by `keep`.
            _make_private(self.path)
            self.node = self._load(name)
            #: Whether the last node here ended without its orderly stop; also of a copy of a running one.
            self.was_killed = self.node.pid > 0
            #: Why `node.json` is behind; empty if it is not.
            self.fault = ""
            # From here on the lock is ours: no command may take an earlier supervisor, or another's, for the holder.
            self.save(starts=self.node.starts + 1, pid=0, pid_start=0, admin="", health="")
            if self.fault:
                # No later start may have the same number: incarnations are made of it.
                raise errors.error_for(errors.DISK_FULL, f"{self.path / NODE_FILE}: {self.fault}")
        except BaseException:
            os.close(self._lock)
            raise

    def save(self, **changes: Any) -> None:
        """Change fields of `node.json` durably, as soon as the disk takes it; what changes nothing is not written."""
        before, self.node = self.node, msgspec.structs.replace(self.node, **changes)
        if self.node == before and not self.fault:
            return
        try:
            self._write()
        except OSError as error:
            self.fault = error.strerror or str(error)
            _log.error("%s cannot be written and is behind: %s", self.path / NODE_FILE, self.fault)
        else:
            self.fault = ""

    def keep(self) -> None:
        """Write what `save` could not, if there is anything."""
        if self.fault:
            self.save()

    def _write(self) -> None:
        encoded = msgspec.json.format(msgspec.json.encode(self.node), indent=2)
        size = -(-len(encoded) // NODE_FILE_STEP_BYTES) * NODE_FILE_STEP_BYTES
        write_in_turns(self.path / NODE_FILE, encoded.ljust(size - 1) + b"\n")

    def token_key_hex(self) -> str:
        """Give the secret under which the router seals resume tokens, made at the first start and kept."""
        path = self.path / TOKEN_KEY_FILE
        if not path.exists():
            write_durably(path, secrets.token_hex(TOKEN_KEY_BYTES).encode() + b"\n")
        return path.read_text(encoding="ascii").strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _take_lock(self) -> int:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_foreign(self.path, self.path.stat())
            descriptor = os.open(self.path / LOCK_FILE, _LOCK_FLAGS, 0o600)
        except OSError as error:
            detail = f"data directory {self.path}: {error.strerror}"
            raise errors.error_for(errors.INVALID_CONFIGURATION, detail) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise in_use(self.path) from None
        if KEEPER_VARIABLE not in os.environ and is_locked(self.path / HOST_LOCK_FILE):
            os.close(descriptor)
            # It writes what its primary sends, or starts the node here at any moment.
            raise in_use(self.path)
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


def _make_private(data: Path) -> None:
    """Take from others what earlier versions let them read; only what a node makes there, and what is ours."""
    for kept in _KEPT:
        for top in data.glob(kept):
            _forbid_others(top)
            for place, folders, files in os.walk(top):
                for name in (*folders, *files):
                    _forbid_others(Path(place, name))


def _forbid_others(path: Path) -> None:
    with contextlib.suppress(OSError):  # it went meanwhile, or the file system has no modes
        found = os.lstat(path)
        is_kept = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
        if is_kept and found.st_uid == os.geteuid() and found.st_mode & _OTHERS_MODE:
            os.chmod(path, stat.S_IMODE(found.st_mode) & ~_OTHERS_MODE)


def in_use(path: Path) -> errors.AngariumError:
    """Give the error of a data directory on which a node runs."""
    advice = f"'angarium status --data {path}' shows it, 'angarium down --data {path}' stops it"
    return errors.error_for(errors.OBJECT_IN_USE, f"a node runs on {path}", advice)


class RuntimeDirectory:
    """A fresh directory for sockets, mode 0700; a context manager that removes it."""

    def __init__(self, earlier: str = "") -> None:
        """Make the directory, and remove that of an earlier run that was killed before it could."""
        if earlier:
            _remove_left(Path(earlier))
        #: Name -> content.
        self._written: dict[str, bytes] = {}
        self.path = Path(tempfile.mkdtemp(prefix=_RUNTIME_PREFIX, dir=_runtime_parents()[0]))
        # systemd-tmpfiles leaves a locked directory alone, however old its files are.
        self._lock = os.open(self.path, _DIRECTORY_FLAGS)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, name: str, content: bytes) -> None:
        """Write a file for the processes; a reader sees the old or the new one, whole.

        A disk that takes no new one leaves the processes with the old one.

        Raises:
            UnavailableError: there is no old one (50329).
        """
        if self._written.get(name) == content:
            return
        temporary = self.path / f".{name}"
        try:
            temporary.write_bytes(content)
            temporary.chmod(0o600)
            temporary.replace(self.path / name)
        except OSError as error:
            detail = f"{self.path / name}: {error.strerror}"
            if name not in self._written:
                raise errors.error_for(errors.DISK_FULL, detail) from None
            _log.error("a process starts with earlier settings: %s", detail)
        else:
            self._written[name] = content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left(path: Path) -> None:
    """Remove the runtime directory that `node.json` names, if a node made it that does not run any more.

    The file may be a copy of that of a running node, or may have been written by anybody.
    """
    if not _RUNTIME_NAME.fullmatch(path.name) or str(path.parent) not in _runtime_parents():
        _log.warning("%s is left alone: it is no runtime directory of a node here", path)
        return
    try:
        descriptor = os.open(path, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("the runtime directory %s is left alone: %s", path, error.strerror)
        return
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_MODE:
            _log.warning("the runtime directory %s is left alone: it is not ours", path)
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        _log.warning("the runtime directory %s is left alone: another node runs in it", path)
    finally:
        os.close(descriptor)


def user_of_node() -> str:
    """Give the user of the operating system who alone can open what is in the runtime directory."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a number
        return str(os.getuid())


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it is the old or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def write_in_turns(path: Path, content: bytes) -> None:
    """Do the same into the place that the last but one had, so that a full disk takes what is not larger.

    Two files take turns: the one that is replaced stays beside the new one, and is written over the next time. It
    gets a second name for the moment in which the new one takes its place; a crash may leave that.
    """
    spare, before = path.with_name(f".{path.name}.spare"), path.with_name(f".{path.name}.before")
    if before.exists():
        before.unlink() if before.samefile(path) else before.replace(spare)
    if spare.exists() and spare.stat().st_nlink > 1:
        spare.unlink()  # something made a copy of the directory by links: the file is not ours alone
    with os.fdopen(os.open(spare, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(OSError):  # the first one, or a file system without links
        os.link(path, before)
    spare.replace(path)
    with contextlib.suppress(FileNotFoundError):
        before.replace(spare)
    sync_path(path.parent)


def _runtime_parents() -> tuple[str, ...]:
    """Give where runtime directories are made: the temporary directory, and /tmp if its path is too long.

    XDG_RUNTIME_DIR would go at the next logout.
    """
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) + len(_RUNTIME_PREFIX) + 10 <= RUNTIME_PATH_BYTES_MAX
    return (usual, "/tmp") if fits else ("/tmp",)  # noqa: S108 - mkdtemp makes a private directory below it
