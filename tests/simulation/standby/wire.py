"""A connection between two processes of different hosts: ordered, late, cut in one direction or in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.simulation.simulated_network import Loop

#: Each side says that it is there; one that is not heard for longer has gone.
ALIVE_S: Final = 0.5
SILENT_S: Final = 1.5


class Cuts:
    """Directions in which nothing arrives, and how long the others take."""

    def __init__(self, delay_max_s: float) -> None:
        self.delay_max_s = delay_max_s
        self.pairs: set[tuple[str, str]] = set()

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Tell whether what one host sends another one does not arrive."""
        return (sender, receiver) in self.pairs


class Wire:
    """One direction. What is sent while it is cut is lost, and all that comes after it: the connection is over."""

    def __init__(self, loop: Loop, rng: random.Random, cuts: Cuts, way: tuple[str, str]) -> None:
        self._loop = loop
        self._rng = rng
        self._cuts = cuts
        self._way = way
        #: What the receiver does, once it has taken the connection: until then only signs of life come.
        self.deliver: Callable[[Any], None] | None = None
        self._due = 0.0
        self.is_over = False

    def send(self, message: Any) -> None:
        """Put a message on its way."""
        if self.is_over or self._cuts.is_cut(*self._way):
            self.is_over = True
            return
        self._due = max(self._due, self._loop.now + self._rng.random() * self._cuts.delay_max_s)
        self._loop.at(self._due, lambda: self._arrive(message))

    def _arrive(self, message: Any) -> None:
        if not self.is_over and self.deliver is not None:
            self.deliver(message)
