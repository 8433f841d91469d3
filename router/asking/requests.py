"""REQUEST from a client and its ANSWER: operations by name, arguments checked by their types.

    REQUEST [request, operation, arguments]      ANSWER [request, code, value]

A handler answers at once, or later: some wait for the controller, some for a home. It may raise an AngariumError, which
becomes the answer. A client has at most REQUESTS_MAX of them waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from angarium import errors, wire
from angarium.errors import AngariumError, error_for

if TYPE_CHECKING:
    from router.asking.asks import Asks
    from router.delivery.egress import Egress
    from router.ground.ground import Counters
    from router.sessions.session import Session

#: Requests of one client without an answer; one more is refused.
REQUESTS_MAX: Final = 256
#: Characters of what was wrong that are told: a request may be large, and an error may repeat parts of it.
DETAIL_MAX: Final = 500
#: Bytes of an operation that an error repeats.
_SHOWN_MAX: Final = 100

_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_decode_request = msgspec.msgpack.Decoder(tuple[_Number, str, msgspec.Raw]).decode

#: What attributes a client may give; nothing else of MessagePack is handed on to the controller.
GivenAttributes = dict[str, bool | int | float | str | list[str] | None]

ArgumentsT = TypeVar("ArgumentsT")
#: Takes the session, its arguments, the answer to give, and the time.
Handler = Callable[["Session", ArgumentsT, "Answer", float], None]


class Answer:
    """The answer to one request; it is given once."""

    __slots__ = ("_counters", "_egress", "_number", "is_given", "session")

    def __init__(self, session: Session, number: int, egress: Egress, counters: Counters) -> None:
        self.session = session
        self._number = number
        self._egress = egress
        self._counters = counters
        self.is_given = False

    def give(self, value: Any, *batches: bytes) -> None:
        """Say that it is done."""
        self._send(0, value, batches)

    def refuse(self, error: AngariumError) -> None:
        """Say why not."""
        self._counters.errors[error.code] += 1
        self._send(error.code, error.detail[:DETAIL_MAX])

    def _send(self, code: int, value: Any, batches: tuple[bytes, ...] = ()) -> None:
        assert not self.is_given, "a request has one answer"
        self.is_given = True
        self.session.requests -= 1
        if not self.session.closed:
            self._egress.answer(self.session, [wire.ANSWER, wire.pack([self._number, code, value]), *batches])


class Requests:
    """The operations that clients may ask for."""

    def __init__(self, egress: Egress, counters: Counters, asks: Asks) -> None:
        #: What handlers ask the controller.
        self.asks = asks
        self._egress = egress
        self._counters = counters
        #: Operation -> (decoder of its arguments, handler).
        self._operations: dict[str, tuple[Callable[[Any], Any], Handler[Any]]] = {}

    def register(self, operation: str, arguments: type[ArgumentsT], handler: Handler[ArgumentsT]) -> None:
        """Add an operation; `arguments` is a msgspec Struct, whose types are the check."""
        assert operation not in self._operations
        self._operations[operation] = (msgspec.msgpack.Decoder(arguments).decode, handler)

    def handle(self, session: Session, header: bytes, now: float) -> None:
        """Take a REQUEST.

        Raises:
            InvalidRequestError: the frame itself is malformed (40001).
        """
        number, operation, arguments = wire.decode_header(_decode_request, header)
        answer = Answer(session, number, self._egress, self._counters)
        session.requests += 1
        try:
            if session.requests > REQUESTS_MAX:
                raise error_for(errors.CONTROL_RATE_EXCEEDED, f"{REQUESTS_MAX} requests wait for an answer")
            self._do(session, operation, arguments, answer, now)
        except AngariumError as error:
            answer.refuse(error)

    def _do(
        self, session: Session, operation: str, arguments: msgspec.Raw, answer: Answer, now: float
    ) -> None:
        known = self._operations.get(operation)
        if known is None:
            raise error_for(errors.UNKNOWN_OPERATION, repr(operation[:_SHOWN_MAX]))
        decode, handler = known
        try:
            decoded = decode(arguments)
        except (ValueError, RecursionError) as error:
            raise errors.invalid(f"{operation}: {error}") from None
        handler(session, decoded, answer, now)
