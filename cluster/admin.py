"""The client of the admin API: how the command line, tests and tools talk to the controller of a node.

It is synchronous, makes one call at a time and belongs to one thread. The operations are listed in
`cluster/controller.py`. It does not decide anything and prints nothing.

The local way is ipc: `node.json` in the data directory says where. The far way is a tcp address of the
controller (`[admin] listen` of the configuration) with CURVE keys.

One MessagePack array per frame: [id, operation, arguments] there, [id, ok, value] back; a refusal has the
value [code, detail].
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

from typing import Any, Final, Self

import msgspec
import psutil
import zmq

from angarium import errors, wire

#: Longer than the controller waits for the slowest of its processes, so that its answer explains what is
#: wrong.
DEFAULT_TIMEOUT_S: Final = 10.0
#: A node that drains everything its bounds allow is gone within this time.
SHUT_DOWN_TIMEOUT_S: Final = 60.0
#: How often it is looked whether a process is gone.
_LOOK_INTERVAL_S: Final = 0.05

NODE_FILE: Final = "node.json"


class NodeFile(msgspec.Struct, kw_only=True):
    """What `node.json` holds: what a node keeps over restarts, and where it runs now."""

    #: Known to this version, else the file is refused.
    format: int = 1
    #: The name operators see; set at first start and kept.
    node: str
    #: Made with the data directory, never equal on two nodes.
    node_id: str
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
    #: Of the running supervisor; 0 after an orderly stop.
    pid: int = 0
    #: Of the running node; empty after an orderly stop.
    runtime: str = ""
    #: Address of the admin API of the running node; empty after an orderly stop.
    admin: str = ""
    started: str = ""


def read_node_file(data_dir: str | os.PathLike[str]) -> NodeFile:
    """Read `node.json` of a data directory.

    Raises:
        UnavailableError: there is none: no node was ever started here (50308).
        InvalidRequestError: it cannot be understood (40017).
    """
    path = Path(data_dir) / NODE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeFile)
    except FileNotFoundError:
        detail = f"no node was started on the data directory {str(data_dir)!r}"
        raise errors.error_for(errors.NODE_UNREACHABLE, detail) from None
    except (OSError, msgspec.DecodeError) as error:
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"{path}: {error}") from error


def process_runs(pid: int) -> bool:
    """Say whether a process exists and is not a zombie."""
    try:
        return pid > 0 and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Admin:
    """One connection to the controller of a node."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        admin_url: str | None = None,
        server_key: str = "",
        key_file: str | os.PathLike[str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Connect to a node, by its data directory or by the address of its admin API.

        Args:
            data_dir: where the node on this host keeps its data.
            admin_url: tcp address of a far controller, used instead of the data directory.
            server_key: public CURVE key of the far controller (Z85), needed with a tcp address.
            key_file: our secret CURVE key file, needed with a tcp address.
            timeout_s: how long a call waits unless it says otherwise.

        Raises:
            UnavailableError: no node runs on the data directory (50308).
            InvalidRequestError: neither or both are given, or keys are missing (40018).
        """
        raise NotImplementedError

    def call(self, operation: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Have the controller do an operation and give what it answers.

        Raises:
            AngariumError: what the operation refused, with its code.
            TimeoutExpiredError: no answer in time; whether it was done is unknown (40801).
            UnavailableError: the node ended meanwhile (50308).
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection; the object is of no use afterwards."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def shut_down(data_dir: str | os.PathLike[str], timeout_s: float = SHUT_DOWN_TIMEOUT_S) -> None:
    """Stop the node of a data directory in order and return when every process is gone."""
    raise NotImplementedError
