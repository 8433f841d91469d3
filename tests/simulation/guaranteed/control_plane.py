"""The connections between the controller and the other processes of a node: requests, questions, answers.

What `angarium_server.process.Process` does for a real process, without its sockets: a hello each second, questions that
wait for a controller, are refused when it does not answer in time or was replaced, and requests that may be
answered later. Everything is packed on its way, so nobody changes what others hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from angarium import errors, wire
from angarium_server.process import ASK_TIMEOUT_S, HELLO_INTERVAL_S
from tests.simulation.simulated_network import Connection, Endpoint

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.simulation.simulated_network import Frames, Loop

#: Frames inside a node are fast.
DELAY_MAX_S = 0.005
#: Between the start of a controller and the connection of a process to it.
RECONNECT_S = 0.05

Place = tuple[str, int]
#: Takes (ok, value).
Answered = "Callable[[bool, Any], None]"


class Desk(Protocol):
    """Where processes connect: the controller."""

    @property
    def is_up(self) -> bool:
        """Tell whether the process runs, paused or not."""

    def accept(self, port: ControlPort, near: Endpoint) -> Connection:
        """Take the connection of a process."""


class ControlPort:
    """The control socket of one process that is not the controller."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        desk: Desk,
        place: Place,
        incarnation: int,
        run: Callable[[Callable[[], None]], None],
        on_request: Callable[[int, str, Any], None],
    ) -> None:
        """Connect as soon as there is a controller.

        Args:
            loop: the clock.
            rng: of delays.
            desk: the controller.
            place: role and index.
            incarnation: of the process.
            run: has something done by the process, later if it is paused, never if it is dead.
            on_request: takes number, operation and arguments of a request.
        """
        self._loop = loop
        self._rng = rng
        self._desk = desk
        self.place = place
        self.incarnation = incarnation
        self.identity = f"{place[0]}{place[1]}.{incarnation}".encode()
        self._run = run
        self._on_request = on_request
        self._connection: Connection | None = None
        #: Number -> (frame, who wants the answer); in the order of asking.
        self._asked: dict[int, tuple[list[Any], Any]] = {}
        #: Numbers that no controller has got yet.
        self._unsent: dict[int, None] = {}
        self._next_ask = 1
        self.is_closed = False
        self._hello()

    def close(self) -> None:
        """The process died."""
        self.is_closed = True
        if self._connection is not None:
            self._connection.close_near(is_noticed=True)
            self._connection = None

    def _hello(self) -> None:
        if self.is_closed:
            return
        self._loop.after(HELLO_INTERVAL_S, self._hello)
        if self._connection is None and self._desk.is_up:
            self._loop.after(self._rng.random() * RECONNECT_S, self._connect)
        elif self._connection is not None:
            self._run(self._say_hello)

    def _connect(self) -> None:
        if self.is_closed or self._connection is not None or not self._desk.is_up:
            return
        connection: Connection | None = None

        def arrived(frames: Frames) -> None:
            if self._connection is connection:
                self._run(lambda: self._take(wire.unpack(frames[0])))

        def ended() -> None:
            if self._connection is connection:
                self._connection = None
                self._loop.after(self._rng.random() * RECONNECT_S, self._connect)

        connection = self._connection = self._desk.accept(self, Endpoint(arrived, ended))
        self._run(self._say_hello)

    def controller_started(self) -> None:
        """The supervisor tells of another controller: what was asked of the one before is not answered any more."""
        value = [errors.CONTROLLER_UNAVAILABLE, "it was restarted before it answered"]
        for number in [number for number in self._asked if number not in self._unsent]:
            self._run(lambda number=number: self._answer(number, ok=False, value=value))  # type: ignore[misc]
        self._loop.after(self._rng.random() * RECONNECT_S, self._connect)

    def _say_hello(self) -> None:
        self.send(["hello", *self.place, self.incarnation, 1])
        for number in list(self._unsent):
            if number not in self._asked or self.send(self._asked[number][0]):
                del self._unsent[number]

    def send(self, frame: list[Any]) -> bool:
        """Send something to the controller; False if there is no connection."""
        if self._connection is None:
            return False
        self._connection.up.send([wire.pack(frame)])
        return True

    def ask(self, operation: str, arguments: Any, done: Any) -> None:
        """Ask the controller; `done(ok, value)` comes later, once."""
        number = self._next_ask
        self._next_ask += 1
        frame = ["ask", number, operation, arguments]
        self._asked[number] = frame, done
        if not self.send(frame):
            self._unsent[number] = None
        detail = f"it did not answer within {ASK_TIMEOUT_S:g} s"

        def give_up() -> None:
            self._answer(number, ok=False, value=[errors.CONTROLLER_UNAVAILABLE, detail])

        self._loop.after(ASK_TIMEOUT_S, lambda: self._run(give_up))

    def reply(self, number: int, *, ok: bool, value: Any) -> None:
        """Answer a request."""
        self.send(["reply", number, ok, value])

    def _take(self, frame: list[Any]) -> None:
        if frame[0] == "answer":
            self._answer(frame[1], ok=frame[2], value=frame[3])
        else:
            self._on_request(*frame[1:])

    def _answer(self, number: int, *, ok: bool, value: Any) -> None:
        asked = self._asked.pop(number, None)
        self._unsent.pop(number, None)
        if asked is not None and not self.is_closed:
            asked[1](ok, value)
