"""Questions to the controller that a client's request leads to: charged until the answer comes, and answered then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from router.asking.asks import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.asking.asks import Asks
    from router.asking.requests import Answer
    from router.guaranteed.memory_accounts import MemoryAccounts
    from router.sessions.session import Session


class ChargedAsks:
    """Asks for clients what costs memory; from the answer on the endpoint is charged, or nobody."""

    def __init__(
        self, asks: Asks, memory: MemoryAccounts, on_refused: Callable[[Session, int], None]
    ) -> None:
        self._asks = asks
        self._memory = memory
        #: Told the session and the code when the controller refuses.
        self._on_refused = on_refused

    def ask(
        self,
        operation: str,
        arguments: dict[str, Any],
        answer: Answer,
        then: Callable[[Any], None],
        size: int = 0,
    ) -> None:
        """Ask for something of so many bytes; `then` is given what the controller says, unless it refuses.

        Raises:
            UnavailableError: no memory is left for the client (50325).
        """
        session = answer.session
        self._memory.charge(session, size)

        def done(ok: bool, value: Any, _at: float) -> None:  # noqa: FBT001 - the form of an answer
            self._memory.refund(session, size)
            if ok:
                then(value)
                return
            error = refusal(value)
            self._on_refused(session, error.code)
            answer.refuse(error)

        self._asks.ask(operation, arguments, done, session)
