"""The nodes of this user that run on this host, so that a command finds them from any directory.

A supervisor keeps one file here for as long as it runs, named after its data directory and holding nothing but the path
of it: everything else is in the `node.json` there, which is never out of date. Whether a node runs is decided by its
lock, so a file that a killed node left is noticed, and removed by the next look.

The directory is `$XDG_RUNTIME_DIR/angarium` if that belongs to us, else one in the temporary directory with the number
of the user in its name. Others can write to the latter's parent, so a directory that is not ours, or that others may
write to, is refused: its files could lead a command to somebody else's node.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from cluster.data.node_file import node_runs, read_node_file

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME_CHARACTERS: Final = 24
#: Far more nodes than one user runs on one host; what is beyond is not looked at.
ENTRIES_MAX: Final = 1_000
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class RunningNode(NamedTuple):
    """A node of this host that runs."""

    name: str
    #: Its data directory.
    data: str
    #: Where clients connect; empty before it is ready for the first time.
    url: str
    #: Of its supervisor.
    pid: int = 0


class Registration:
    """The entry of a node that runs. A node whose entry cannot be written is found by `--data` all the same."""

    def __init__(self, data: Path, environment: Mapping[str, str] = os.environ) -> None:
        """Say which node it is; `keep` writes the entry."""
        self._data = data.absolute()
        self._path = folder(environment) / f"{_entry_name(self._data)}.node"

    def keep(self) -> str:
        """Write the entry if it is not there, and give why it cannot be written; nothing if it can.

        Called again and again: a runtime directory goes with the last session of its user.
        """
        try:
            if self._path.exists():
                return ""
            _check(self._path.parent)
            partial = self._path.with_suffix(f".{os.getpid()}")
            partial.write_bytes(os.fsencode(self._data))
            partial.replace(self._path)
        except (errors.AngariumError, OSError) as error:
            return str(error)
        return ""

    def end(self) -> None:
        """Remove the entry."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Give the directory of the registry, which may not exist yet."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    # That of somebody else stays in the environment after `su`.
    with contextlib.suppress(OSError):
        if os.path.isabs(runtime) and os.stat(os.path.join(runtime, "")).st_uid == os.getuid():
            return Path(runtime) / "angarium"
    return Path(environment.get("TMPDIR") or tempfile.gettempdir()) / f"angarium-user-{os.getuid()}"


def running_nodes(environment: Mapping[str, str] = os.environ) -> list[RunningNode]:
    """Give the nodes that run, by their data directories, and remove the entries of those that do not.

    Raises:
        InvalidRequestError: the directory cannot be trusted or read (40017).
    """
    place = folder(environment)
    if not place.exists():
        return []
    _check(place)
    found = []
    for entry in sorted(place.glob("*.node"))[:ENTRIES_MAX]:
        node = _running(entry)
        if node is None:
            with contextlib.suppress(OSError):
                entry.unlink(missing_ok=True)
        else:
            found.append(node)
    return sorted(found, key=lambda node: node.data)


def running_node(data: str | os.PathLike[str]) -> RunningNode | None:
    """Give the node that runs on a data directory, or None."""
    try:
        node = read_node_file(data)
    except errors.AngariumError:
        return None
    if not node_runs(data, node):
        return None
    return RunningNode(node.node, os.fspath(data), node.url, node.pid)


def _running(entry: Path) -> RunningNode | None:
    try:
        data = os.fsdecode(entry.read_bytes())
    except OSError:
        return None
    return running_node(data) if os.path.isabs(data) and "\0" not in data else None


def _entry_name(data: Path) -> str:
    return hashlib.sha256(os.fsencode(data)).hexdigest()[:_NAME_CHARACTERS]


def _check(place: Path) -> None:
    """Make the directory if it is not there, and refuse one that is not ours alone."""
    advice = (
        "remove it, or set XDG_RUNTIME_DIR to a directory of yours; --data, --url and contexts do without it"
    )
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError as error:
        detail = f"the registry of running nodes, {place}: {error.strerror}"
        raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None
    fault = ""
    if not stat.S_ISDIR(found.st_mode):
        fault = "is no directory"
    elif found.st_uid != os.getuid():
        fault = f"belongs to user {found.st_uid}, not to {os.getuid()}"
    elif found.st_mode & _OTHERS_MAY_WRITE:
        fault = f"may be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    elif not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        fault = f"cannot be read (mode {stat.S_IMODE(found.st_mode):04o})"
    if fault:
        detail = f"the registry of running nodes, {place}, {fault}"
        raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice)
