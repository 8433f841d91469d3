"""The client of the admin API: how the command line, tests and tools talk to the controller of a node.

It is synchronous, makes one call at a time and belongs to one thread. The operations are listed in
`cluster/controller/controller.py`. It does not decide anything and prints nothing.

The local way is ipc: `node.json` in the data directory says where. The far way is a tcp address of the
controller (`[admin] listen` of the configuration) with CURVE keys.

One MessagePack array per frame: [id, operation, arguments] there, [id, ok, value] back; a refusal has the
value [code, detail].
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import psutil
import zmq

from angarium import errors, wire
from cluster import keys

if TYPE_CHECKING:
    from types import TracebackType

#: Longer than the controller waits for the slowest of its processes, so that its answer explains what is
#: wrong.
DEFAULT_TIMEOUT_S: Final = 10.0
#: A node that drains everything its bounds allow is gone within this time.
SHUT_DOWN_TIMEOUT_S: Final = 60.0
#: How often it is looked whether a process is gone.
_LOOK_INTERVAL_S: Final = 0.05
#: How often a call that waits looks whether the node still runs.
_RUNS_INTERVAL_S: Final = 0.25

NODE_FILE: Final = "node.json"
#: Held by the supervisor for as long as it lives.
LOCK_FILE: Final = "lock"


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
    #: Where the health endpoint of the running node answers, http://HOST:PORT; empty without one.
    health: str = ""
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


def node_runs(data_dir: str | os.PathLike[str], node: NodeFile) -> bool:
    """Say whether the supervisor that `node.json` names is alive, not just a process with its pid."""
    return process_runs(node.pid) and _is_locked(Path(data_dir) / LOCK_FILE)


def process_runs(pid: int) -> bool:
    """Say whether a process exists and is not a zombie."""
    try:
        return pid > 0 and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
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
        if (data_dir is None) == (admin_url is None):
            raise errors.error_for(
                errors.INVALID_ARGUMENT, "give either a data directory or an admin address"
            )
        self._timeout_s = timeout_s
        #: The supervisor of a node on this host, whose end makes waiting pointless; 0 for a far node.
        self._pid = 0
        if data_dir is not None:
            node = read_node_file(data_dir)
            if not node.admin or not node_runs(data_dir, node):
                detail = f"no node runs on the data directory {str(data_dir)!r}"
                raise errors.error_for(errors.NODE_UNREACHABLE, detail)
            self._pid = node.pid
            admin_url = node.admin
        assert admin_url is not None
        self._url = admin_url
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # A controller that is being restarted gets the request when it is back.
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._numbers = itertools.count(1)
        try:
            if admin_url.startswith("tcp:"):
                self._secure(server_key, key_file)
            self._socket.connect(admin_url)
        except zmq.ZMQError as error:
            self.close()
            raise errors.error_for(errors.INVALID_ARGUMENT, f"{admin_url!r}: {error}") from None
        except errors.AngariumError:
            self.close()
            raise

    def call(self, operation: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Have the controller do an operation and give what it answers.

        Raises:
            AngariumError: what the operation refused, with its code.
            TimeoutExpiredError: no answer in time; whether it was done is unknown (40801).
            UnavailableError: the node ended meanwhile (50308).
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        number = next(self._numbers)
        try:
            self._socket.send(wire.pack([number, operation, arguments]))
        except (TypeError, ValueError, OverflowError) as error:
            raise errors.error_for(errors.INVALID_ARGUMENT, f"{operation}: {error}") from None
        answered, ok, value = self._await_answer(operation, wait_s)
        while answered != number:  # the late answer of a call that was given up
            answered, ok, value = self._await_answer(operation, wait_s)
        if not ok:
            code, detail = value
            raise errors.error_for(code, detail)
        return value

    def close(self) -> None:
        """Close the connection; the object is of no use afterwards."""
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_answer(self, operation: str, wait_s: float) -> tuple[int, bool, Any]:
        deadline = time.monotonic() + wait_s
        while True:
            left_s = deadline - time.monotonic()
            if self._socket.poll(int(max(0.0, min(left_s, _RUNS_INTERVAL_S)) * 1000)):
                number, ok, value = wire.unpack(self._socket.recv())
                return number, ok, value
            if self._pid and not process_runs(self._pid):
                detail = f"the node ended before it answered {operation!r}"
                raise errors.error_for(errors.NODE_UNREACHABLE, detail)
            if left_s <= 0:
                detail = f"no answer to {operation!r} from {self._url} within {wait_s:g} s"
                raise errors.error_for(errors.TIMEOUT, detail)

    def _secure(self, server_key: str, key_file: str | os.PathLike[str] | None) -> None:
        if not server_key or key_file is None:
            detail = f"{self._url} needs the public key of the controller and a secret key file of yours"
            raise errors.error_for(errors.INVALID_ARGUMENT, detail)
        public, secret = keys.read_secret(key_file)
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, public.encode())
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())


def shut_down(data_dir: str | os.PathLike[str], timeout_s: float = SHUT_DOWN_TIMEOUT_S) -> None:
    """Stop the node of a data directory in order and return when every process is gone.

    The supervisor ends last, so its end is waited for. It gets a signal rather than a request: a node whose
    controller is hung has to stop too. A node that does not run is stopped already.

    Raises:
        UnavailableError: no node was ever started there (50308).
        TimeoutExpiredError: it still runs (40801).
    """
    node = read_node_file(data_dir)
    if not node_runs(data_dir, node):
        return
    pid = node.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while process_runs(pid):
        if time.monotonic() >= deadline:
            detail = f"the supervisor (process {pid}) still runs after {timeout_s:g} s"
            raise errors.error_for(errors.TIMEOUT, detail)
        time.sleep(_LOOK_INTERVAL_S)
