"""`node.json` of a data directory: what a node keeps over restarts, where it runs now, and whether it does.

Read by everything that looks for a node; written by its supervisor only (`cluster.data.data_dir`).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec
import psutil

from angarium import errors

#: Of /proc/PID/stat, behind the name of the program.
_START_FIELD: Final = 19

NODE_FILE: Final = "node.json"
#: Held by the supervisor for as long as it lives.
LOCK_FILE: Final = "lock"
#: Held by a host of a pair for as long as it lives, also while no supervisor runs, with its runtime directory in it.
HOST_LOCK_FILE: Final = "standby.lock"
#: What it says of itself meanwhile: `cluster.admin.answers.HostStatus`.
HOST_STATUS_FILE: Final = "standby-status.json"
#: What it was last, and the highest epoch that it has seen; it stays when the host has ended.
HOST_ROLE_FILE: Final = "standby.role"


class NodeFile(msgspec.Struct, kw_only=True):
    """What `node.json` holds: what a node keeps over restarts, and where it runs now."""

    #: Known to this version, else the file is refused.
    format: int = 1
    #: The name operators see; set at first start and kept.
    node: str
    #: Made with the data directory, never equal on two nodes.
    node_id: str
    #: That config store and spools carry too; empty before they do.
    data_id: str = ""
    #: Worker processes, chosen at the first start and kept; 0 before that.
    workers: int
    #: Rises with each `up`; part of every incarnation.
    starts: int = 0
    #: Addresses that were bound at first and are bound again, the first one is announced.
    urls: list[str] = []
    #: What was configured when `urls` were bound, entry by entry.
    listen: list[str] = []
    #: The first of `urls`, or empty before the router was ready for the first time.
    url: str = ""
    #: Entry of `mqtt.listen` -> the same with the port it got, which it gets again; of the last start.
    mqtt: dict[str, str] = {}
    #: What `--mqtt` named at the last start, or at an earlier one and this one named none; empty if the file did.
    mqtt_named: list[str] = []
    #: The same two of `http.listen` and `--http`, and of `management.listen` and `--management`.
    http: dict[str, str] = {}
    http_named: list[str] = []
    management: dict[str, str] = {}
    management_named: list[str] = []
    #: Of the running supervisor; 0 after an orderly stop.
    pid: int = 0
    #: When it began, in clock ticks after the boot of the host; 0 in the file of an earlier version.
    pid_start: int = 0
    #: Of the running node; empty after an orderly stop.
    runtime: str = ""
    #: Address of the admin API of the running node; empty after an orderly stop.
    admin: str = ""
    #: Where the health endpoint of the running node answers, http://HOST:PORT; empty without one.
    health: str = ""
    #: Under which {"vpn", "username"} clients of its host came in without a password when it was ready.
    passwordless: list[dict[str, str]] = []
    started: str = ""


def read_node_file(data_dir: str | os.PathLike[str]) -> NodeFile:
    """Read `node.json` of a data directory.

    Raises:
        UnavailableError: there is none: no node was ever started here (50308).
        InvalidRequestError: it cannot be understood, or is somebody else's (40017).
    """
    path = Path(data_dir) / NODE_FILE
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if os.geteuid() != 0:  # root looks after the nodes of others; what it may end says `node_runs`
                refuse_foreign(path, os.fstat(file.fileno()))
            return msgspec.json.decode(file.read(), type=NodeFile)
    except FileNotFoundError:
        detail = f"no node was started on the data directory {str(data_dir)!r}"
        raise errors.error_for(errors.NODE_UNREACHABLE, detail) from None
    except (OSError, msgspec.DecodeError) as error:
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"{path}: {error}") from error


def refuse_foreign(path: Path, found: os.stat_result) -> None:
    """Refuse what somebody else made: a data directory names what is removed and which process is ended.

    A directory of root is fine, for that is how orchestrators mount volumes, and root needs no such detour.

    Raises:
        InvalidRequestError: it belongs neither to this user nor to root (40017).
    """
    user = os.geteuid()
    if found.st_uid not in (user, 0):
        advice = "name a data directory of yours with --data, or run the command as the user who owns it"
        detail = f"{path} belongs to user {found.st_uid}, not to {user}"
        raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice)


def node_runs(data_dir: str | os.PathLike[str], node: NodeFile) -> bool:
    """Say whether the supervisor that `node.json` names is alive, not just a process with its pid.

    The process began when the supervisor did, is of the user who wrote the file, and the directory is locked.
    """
    place = Path(data_dir)
    if not process_runs(node.pid, node.pid_start) or not is_locked(place / LOCK_FILE):
        return False
    return is_of_owner(node.pid, place / NODE_FILE)


class _HostProcess(msgspec.Struct):
    """Of what a host of a pair says of itself."""

    pid: int
    pid_start: int


def host_process(data_dir: str | os.PathLike[str]) -> tuple[int, int]:
    """Give the process of the host of a pair that runs on a data directory, and when it began; 0: none runs."""
    place = Path(data_dir)
    try:
        host = msgspec.json.decode((place / HOST_STATUS_FILE).read_bytes(), type=_HostProcess)
    except (OSError, msgspec.DecodeError):
        return 0, 0
    runs = process_runs(host.pid, host.pid_start) and is_locked(place / HOST_LOCK_FILE)
    return (host.pid, host.pid_start) if runs and is_of_owner(host.pid, place / HOST_STATUS_FILE) else (0, 0)


def is_of_owner(pid: int, path: Path) -> bool:
    """Say whether a process is of the user who wrote the file that names it: nobody names that of another one."""
    try:
        return bool(psutil.Process(pid).uids().effective == path.stat().st_uid)
    except (psutil.NoSuchProcess, OSError):
        return False


def process_runs(pid: int, start: int = 0) -> bool:
    """Say whether a process exists and is not a zombie; with `start`, whether it is the one that began then."""
    found = process_start(pid)
    return found is not None and start in (0, found)


def process_start(pid: int) -> int | None:
    """Give when a process began, in clock ticks after the boot of the host; None if there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[_START_FIELD])


def is_locked(path: Path) -> bool:
    """Say whether a process holds the lock of a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
