"""Filters that a client wants an endpoint to have: judged some at a time, because each costs tens of microseconds.

Who judges them goes on when all of them were judged. `router.subscriptions.subscriptions` says when it is whose turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from angarium.errors import AngariumError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.asking.requests import Answer
    from router.asking.work import Work
    from router.sessions.session import Session


class FilterChecks:
    """The filters of one request."""

    def __init__(
        self, answer: Answer, texts: Sequence[str], judge: Callable[[str], None], then: Callable[[], None]
    ) -> None:
        """Begin; `judge` and `then`, which follows, may raise an AngariumError, which becomes the answer."""
        self._answer = answer
        self._texts = texts
        self._judge = judge
        self._then = then
        #: So many were judged.
        self._at = 0
        self._error: AngariumError | None = None

    @property
    def actor(self) -> Session:
        """Give who asks."""
        return self._answer.session

    @property
    def is_done(self) -> bool:
        """Tell whether all were judged, or one was refused."""
        return self._at == len(self._texts) or self._error is not None

    def do(self, limit: int) -> int:
        """Judge the next ones."""
        some = self._texts[self._at : self._at + limit]
        try:
            for text in some:
                self._judge(text)
        except AngariumError as error:
            self._error = error
        self._at += len(some)
        return len(some)

    def finish(self) -> None:
        """Refuse the request, or go on with it."""
        # Its traceback holds us, who hold it: a cycle, and the process hardly ever collects those.
        refusal, self._error = self._error, None
        if self.actor.closed:
            return
        if refusal is not None:
            self._answer.refuse(refusal)
            return
        try:
            self._then()
        except AngariumError as error:
            self._answer.refuse(error)


def do_at_once(work: Work) -> None:
    """Do work without taking turns."""
    while not work.is_done:
        work.do(wire.MAX_FILTERS_PER_REQUEST)
    work.finish()
