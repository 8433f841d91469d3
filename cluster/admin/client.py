"""The client of the admin API: how the command line, tests and tools talk to the controller of a node.

It is synchronous, makes one call at a time and belongs to one thread. The operations are listed in
`cluster/controller/controller.py`. It does not decide anything and prints nothing.

The local way is ipc: `node.json` in the data directory says where. The far way is TLS to an address of the
controller (`[admin] listen` of the configuration), with a certificate that says who the operator is:
`cluster/controller/remote`. Over HTTP it is an address of the management process: `cluster.management`.

One MessagePack array per frame: [id, operation, arguments] there, [id, ok, value] back; a refusal has the
value [code, detail]. The first over a connection from afar is `hello`. The management process, which asks on behalf of
others, says of whom behind the arguments: `cluster/controller/access/callers.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import zmq

from angarium import errors, wire
from cluster.data.node_file import host_process, node_runs, process_runs, read_node_file

if TYPE_CHECKING:
    from angarium.client.transport.credentials import PathLike
    from cluster.admin.http import HttpOperator

#: Longer than the controller waits for the slowest of its processes, so that its answer explains what is
#: wrong.
DEFAULT_TIMEOUT_S: Final = 10.0
#: A node that drains everything its bounds allow is gone within this time.
SHUT_DOWN_TIMEOUT_S: Final = 60.0
#: How often it is looked whether a process is gone.
_LOOK_INTERVAL_S: Final = 0.05
#: How often a call that waits looks whether the node still runs.
_RUNS_INTERVAL_S: Final = 0.25

#: Number of an answer that is none to a certain call: why a connection ends.
_EVERY_CALL: Final = 0


class Transport(Protocol):
    """A way to a controller."""

    def connect(self, deadline: float) -> bool:
        """Connect, if that is needed; tell whether hello is to be said."""

    def send(self, frame: bytes, deadline: float) -> None:
        """Send a frame."""

    def receive(self, wait_s: float) -> bytes | None:
        """Give the next frame, None if there is none within so many seconds."""

    def drop(self) -> None:
        """Forget a connection of which nothing good comes."""

    def close(self) -> None:
        """End the connection."""


class _LocalTransport:
    """A socket of this host; libzmq connects again by itself, and a controller that comes back gets the request."""

    def __init__(self, url: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        try:
            self._socket.connect(url)
        except zmq.ZMQError as error:
            self.close()
            raise errors.invalid(f"{url!r}: {error}") from None

    def connect(self, _deadline: float) -> bool:
        return False

    def send(self, frame: bytes, _deadline: float) -> None:
        self._socket.send(frame)

    def receive(self, wait_s: float) -> bytes | None:
        return self._socket.recv() if self._socket.poll(int(wait_s * 1000)) else None

    def drop(self) -> None:
        pass

    def close(self) -> None:
        self._context.destroy(linger=0)


class Admin:
    """One connection to the controller of a node."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        admin_url: str | None = None,
        ca_file: PathLike | None = None,
        cert_file: PathLike | None = None,
        key_file: PathLike | None = None,
        operator: HttpOperator | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Prepare for a node, by its data directory or by the address of its admin API.

        Args:
            data_dir: where the node on this host keeps its data.
            admin_url: `tls://` address of a remote controller, or that of a management API, `http://` or `https://`,
                used instead of the data directory.
            ca_file: authorities that may sign the certificate of a remote controller; by default those of the system.
            cert_file: our certificate, needed for a remote controller; a management API may ask for one.
            key_file: its private key; by default it is in `cert_file`.
            operator: as whom to log in at a management API, where it is needed.
            timeout_s: how long a call waits unless it says otherwise.

        Raises:
            UnavailableError: no node runs on the data directory (50308).
            InvalidRequestError: neither or both are given, or a file is missing or cannot be used (40018).
        """
        if (data_dir is None) == (admin_url is None):
            raise errors.invalid("give either a data directory or an admin address")
        self._timeout_s = timeout_s
        #: The supervisor of a node on this host, whose end makes waiting pointless; 0 for a far node.
        self._pid = self._pid_start = 0
        if data_dir is not None:
            node = read_node_file(data_dir)
            if not node.admin or not node_runs(data_dir, node):
                detail = f"no node runs on the data directory {str(data_dir)!r}"
                raise errors.error_for(errors.NODE_UNREACHABLE, detail)
            self._pid, self._pid_start = node.pid, node.pid_start
            admin_url = node.admin
        assert admin_url is not None
        self._url = admin_url
        self._numbers = itertools.count(1)
        self._transport: Transport
        if admin_url.startswith("http"):
            from cluster.admin.http import HttpTransport

            if operator is None:
                raise errors.invalid(f"{admin_url} needs an operator")
            self._transport = HttpTransport(admin_url, operator, ca_file, cert_file, key_file)
        elif admin_url.startswith("tls:"):
            from cluster.admin.remote import RemoteTransport

            self._transport = RemoteTransport.of_operator(admin_url, ca_file, cert_file, key_file)
        else:
            self._transport = _LocalTransport(admin_url)

    def call(self, operation: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Have the controller do an operation and give what it answers.

        Raises:
            AngariumError: what the operation refused, with its code.
            TimeoutExpiredError: no answer in time; whether it was done is unknown (40801).
            UnavailableError: the node ended meanwhile (50308).
            ConnectionLostError: no admin API answers there (60003, 60006), or it ended before it answered (60003).
            UnauthorizedError: we are no operator there (40101).
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + wait_s
        if self._transport.connect(deadline):
            try:
                self._exchange("hello", {}, wait_s, deadline)
            except errors.AngariumError:
                self._transport.drop()
                raise
        return self._exchange(operation, arguments, wait_s, deadline)

    def close(self) -> None:
        """Close the connection; the object is of no use afterwards."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(self, operation: str, arguments: dict[str, Any], wait_s: float, deadline: float) -> Any:
        number = next(self._numbers)
        try:
            frame = wire.pack([number, operation, arguments])
        except (TypeError, ValueError, OverflowError) as error:
            raise errors.invalid(f"{operation}: {error}") from None
        self._transport.send(frame, deadline)
        answered, ok, value = self._await_answer(operation, wait_s, deadline)
        while answered not in (number, _EVERY_CALL):  # the late answer of a call that was given up
            answered, ok, value = self._await_answer(operation, wait_s, deadline)
        if not ok:
            code, detail = value
            raise errors.error_for(code, detail)
        return value

    def _await_answer(self, operation: str, wait_s: float, deadline: float) -> tuple[int, bool, Any]:
        while True:
            left_s = deadline - time.monotonic()
            answer = self._transport.receive(max(0.0, min(left_s, _RUNS_INTERVAL_S)))
            if answer is not None:
                return self._opened(answer)
            if self._pid and not process_runs(self._pid, self._pid_start):
                detail = f"the node ended before it answered {operation!r}"
                raise errors.error_for(errors.NODE_UNREACHABLE, detail)
            if left_s <= 0:
                detail = f"no answer to {operation!r} from {self._url} within {wait_s:g} s"
                raise errors.error_for(errors.TIMEOUT, detail)

    def _opened(self, answer: bytes) -> tuple[int, bool, Any]:
        """Give the parts of an answer.

        Raises:
            ConnectionLostError: it is none of an admin API (60003).
        """
        try:
            number, ok, value = wire.unpack(answer)
        except (errors.InvalidRequestError, TypeError, ValueError):
            detail = f"{self._url} is an address for clients, or of something else"
            advice = "--admin-url is that of [admin] listen in the configuration of the node"
            raise errors.error_for(errors.CONNECT_FAILED, detail, advice) from None
        return number, ok, value


def shut_down(data_dir: str | os.PathLike[str], timeout_s: float = SHUT_DOWN_TIMEOUT_S) -> bool:
    """Stop the node of a data directory in order, or its host of a pair, and return when every process is gone.

    The supervisor ends last, so its end is waited for. It gets a signal rather than a request: a node whose
    controller is hung has to stop too. A node that does not run is stopped already.

    Returns:
        Whether anything ran.

    Raises:
        UnavailableError: no node was ever started there (50308).
        InvalidRequestError: the directory is somebody else's (40017).
        TimeoutExpiredError: it still runs (40801).
    """
    pid, start = _to_stop(data_dir)
    if not pid:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while process_runs(pid, start):
        if time.monotonic() >= deadline:
            detail = f"the supervisor (process {pid}) still runs after {timeout_s:g} s"
            raise errors.error_for(errors.TIMEOUT, detail)
        time.sleep(_LOOK_INTERVAL_S)
    return True


def _to_stop(data_dir: str | os.PathLike[str]) -> tuple[int, int]:
    """Give the process that ends last, and when it began; 0: nothing runs."""
    host = host_process(data_dir)
    if host[0]:
        return host
    node = read_node_file(data_dir)
    return (node.pid, node.pid_start) if node_runs(data_dir, node) else (0, 0)
