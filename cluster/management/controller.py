"""Requests to the controller, many at a time, on behalf of operators; they come in by the local door.

Frames are those of `cluster.admin.client`, with a fourth field for who asks. A controller that ends takes its requests
with it: who waits is told when the supervisor tells of another one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

import zmq

from angarium import errors, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium_server.frames.control import TableRow
    from angarium_server.process import Process
    from cluster.management.access.outcomes import Caller

#: Longer than the controller waits for the slowest of its processes.
DEFAULT_TIMEOUT_S: Final = 10.0
#: Requests without an answer; one more is refused.
WAITING_MAX: Final = 500
#: Frames taken in one turn.
FRAMES_PER_TURN: Final = 100

_log = logging.getLogger("management")


class Controller:
    """The controller, as the management process sees it."""

    def __init__(self, process: Process, touched: Callable[[], None]) -> None:
        """Connect; `touched` is called after each request, so that the process looks at its sockets."""
        self._process = process
        self._touched = touched
        self._numbers = itertools.count(1)
        #: Number of a request -> who waits for its answer.
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        #: Incarnation of the controller; 0 before it is known.
        self._incarnation = 0
        self._socket = process.context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # Nothing is queued for a controller that is not there: who asks is told.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._socket.connect(f"ipc://{process.runtime_dir}/admin")
        process.add(self._socket, self._read)
        process.on_table(self._note_controller)

    @property
    def waiting(self) -> int:
        """Give how many requests have no answer."""
        return len(self._waiting)

    async def ask(
        self,
        operation: str,
        arguments: Any,
        caller: Caller | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Have an operation done and give what it answers.

        Args:
            operation: its name.
            arguments: of it, checked by the controller.
            caller: on whose behalf; None: of the process itself, which may do everything.
            timeout_s: how long the answer is waited for.

        Raises:
            AngariumError: what the operation refused, with its code.
            RateLimitError: too many requests wait (42902).
            TimeoutExpiredError: no answer in time; whether it was done is unknown (40801).
            UnavailableError: there is no controller, or it ended before it answered (50321).
        """
        if len(self._waiting) >= WAITING_MAX:
            detail = f"{WAITING_MAX} requests wait for the controller"
            raise errors.error_for(errors.CONTROL_RATE_EXCEEDED, detail)
        number = next(self._numbers)
        self._send([number, operation, arguments, *([] if caller is None else [caller._asdict()])])
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            detail = f"no answer to {operation!r} within {timeout_s:g} s; whether it was done is not known"
            raise errors.error_for(errors.TIMEOUT, detail) from None
        finally:
            del self._waiting[number]

    def _send(self, request: list[Any]) -> None:
        try:
            frame = wire.pack(request)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise errors.invalid(f"{request[1]}: {error}") from None
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            raise errors.error_for(errors.CONTROLLER_UNAVAILABLE) from None
        self._process.touch(self._socket)
        self._touched()

    def _read(self) -> bool:
        for _ in range(FRAMES_PER_TURN):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            try:
                number, ok, value = wire.unpack(frame)
            except (errors.AngariumError, TypeError, ValueError) as error:
                _log.error("an answer of the controller cannot be read and is dropped: %s", error)
                continue
            self._answered(number, ok=ok, value=value)
        return True

    def _answered(self, number: int, *, ok: bool, value: Any) -> None:
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        if ok:
            answer.set_result(value)
        else:
            answer.set_exception(errors.error_for(*value))

    def _note_controller(self, rows: Sequence[TableRow]) -> None:
        """Refuse what was asked of a controller that is gone: its successor does not know of it."""
        now = next((row.incarnation for row in rows if row.role == "controller"), self._incarnation)
        earlier, self._incarnation = self._incarnation, now
        if earlier in (0, now):
            return
        for number in list(self._waiting):
            detail = "it was restarted before it answered; whether it was done is not known"
            self._answered(number, ok=False, value=[errors.CONTROLLER_UNAVAILABLE, detail])
