"""Questions of the router to the controller, and what follows from the answers.

The controller owns everything that is durable besides messages: endpoints, the names of producers. The router judges
rights, asks (an effect), and goes on when the answer comes. `angarium.process.Process.ask` bounds how many wait, and
for how long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from angarium import errors
from angarium.errors import AngariumError, error_for
from router.effects import AskController

if TYPE_CHECKING:
    from router.effects import Outbox

#: Takes (ok, value, now); a refusal has the value [code, detail].
Answered = Callable[[bool, Any, float], None]


class Asks:
    """Questions without an answer."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._next_ticket = 1
        self._waiting: dict[int, Answered] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, operation: str, arguments: dict[str, Any], done: Answered) -> None:
        """Ask the controller; `done` is called once, with 50321 if it does not answer."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting[ticket] = done
        self._outbox.effects.append(AskController(ticket, operation, arguments))

    def answered(self, ticket: int, ok: bool, value: Any, now: float) -> None:  # noqa: FBT001 - part of the answer
        """The controller answered, or will not."""
        done = self._waiting.pop(ticket, None)
        if done is not None:
            done(ok, value, now)


def refusal(value: Any) -> AngariumError:
    """Give the error of a refused question."""
    try:
        code, detail = value
        return error_for(int(code), str(detail))
    except (TypeError, ValueError):
        return error_for(errors.INTERNAL, "the controller gave no reason")
