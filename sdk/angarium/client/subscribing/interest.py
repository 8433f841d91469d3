"""What a client wants the router to send it, over all its connections.

`Interest` counts who wants a filter, asks the router when the first one comes and the last one leaves,
gathers what is asked in one step of the loop into one request, and asks for everything again on a new
connection. Requests of a subscription manager for other clients pass through it too, but they are not
remembered: they belong to the other client, and end with its connection.

Answers are futures that get the error or None as their result, never an exception, because several callers
may wait for one. No sockets; `angarium.client.client` feeds it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from angarium import errors, wire
from angarium.topic import parse_filter

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.protocol.session import ClientSession

#: A filter and its flags; the same filter with other flags is another subscription.
Wish: TypeAlias = tuple[str, int]
Answer: TypeAlias = "asyncio.Future[errors.AngariumError | None]"


def make_wish(filter_text: str, *, deliver_always: bool) -> Wish:
    """Give what is asked for a filter.

    Raises:
        InvalidRequestError: it is no filter.
    """
    return parse_filter(filter_text).text, wire.SUBSCRIBE_DELIVER_ALWAYS if deliver_always else 0


class _Want:
    """One filter with its flags, wanted by this client."""

    __slots__ = ("answer", "references")

    def __init__(self, answer: Answer) -> None:
        #: What the router said; pending until it was asked on some connection and answered.
        self.answer = answer
        #: Who wants it, never 0.
        self.references = 0


class _Ask:
    """One filter of a request."""

    __slots__ = ("answer", "client_name", "is_restored", "operation", "wish")

    def __init__(self, operation: bytes, wish: Wish, client_name: str | None, answer: Answer) -> None:
        self.operation: Final = operation
        self.wish: Final = wish
        #: The client for which a manager asks; None for this client.
        self.client_name: Final = client_name
        self.answer: Final = answer
        #: Whether it is asked again after a reconnect.
        self.is_restored = False


class Interest:
    """Filters wanted, and requests on their way."""

    def __init__(
        self,
        on_refused: Callable[[Wish, errors.AngariumError], None],
        on_restored: Callable[[], None],
    ) -> None:
        """Want nothing; later a new connection refuses a filter, or has answered for all of them."""
        self._on_refused = on_refused
        self._on_restored = on_restored
        self._loop = asyncio.get_running_loop()
        #: What is wanted, in the order in which it was first.
        self._wanted: dict[Wish, _Want] = {}
        #: What the router is to be asked, the oldest first; empty while there is no connection.
        self._queue: deque[_Ask] = deque()
        #: Request -> what was asked with it, in order.
        self._sent: dict[int, list[_Ask]] = {}
        self._is_online = False
        #: Filters asked again on this connection and not answered.
        self._restoring = 0

    def __len__(self) -> int:
        """Count the filters wanted."""
        return len(self._wanted)

    def add(self, wish: Wish) -> Answer:
        """Want a filter, give the answer; it waits for a connection if there is none."""
        want = self._wanted.get(wish)
        if want is None:
            want = self._wanted[wish] = _Want(self._loop.create_future())
            self._ask(_Ask(wire.SUBSCRIBE, wish, None, want.answer))
        want.references += 1
        return want.answer

    def remove(self, wish: Wish) -> Answer:
        """Want a filter once less, give the answer; nothing happens if it is not wanted any more."""
        answer: Answer = self._loop.create_future()
        want = self._wanted.get(wish)
        if want is not None:
            want.references -= 1
        if want is None or want.references:
            answer.set_result(None)
            return answer
        del self._wanted[wish]
        is_refused = want.answer.done() and want.answer.result() is not None
        if self._is_online and not is_refused:
            self._ask(_Ask(wire.UNSUBSCRIBE, wish, None, answer))
        else:
            _settle(want.answer, errors.error_for(errors.NOT_CONNECTED))
            answer.set_result(None)
        return answer

    def ask_for(self, operation: bytes, wish: Wish, client_name: str) -> Answer:
        """Ask for another client, give the answer; it is an error at once if there is no connection."""
        answer: Answer = self._loop.create_future()
        if self._is_online:
            self._ask(_Ask(operation, wish, client_name, answer))
        else:
            answer.set_result(errors.error_for(errors.NOT_CONNECTED))
        return answer

    def _ask(self, ask: _Ask) -> None:
        if self._is_online:
            self._queue.append(ask)

    def send(self, session: ClientSession) -> None:
        """Send what is queued, like with like in one request, as far as the session takes it."""
        queue = self._queue
        while queue and session.can_request():
            first = queue[0]
            asks: list[_Ask] = []
            while (
                queue
                and len(asks) < wire.MAX_FILTERS_PER_REQUEST
                and queue[0].operation == first.operation
                and queue[0].client_name == first.client_name
            ):
                asks.append(queue.popleft())
            filters = [ask.wish for ask in asks]
            if first.operation == wire.SUBSCRIBE:
                request = session.subscribe(filters, first.client_name)
            else:
                request = session.unsubscribe(filters, first.client_name)
            self._sent[request] = asks

    def answered(self, request: int, results: list[errors.AngariumError | None]) -> None:
        """Pass the router's answers to their callers."""
        for ask, error in zip(self._sent.pop(request), results, strict=True):
            is_known = ask.answer.done()
            _settle(ask.answer, error)
            if ask.is_restored:
                self._restoring -= 1
                want = self._wanted.get(ask.wish)
                if is_known and error is not None and want is not None:
                    want.answer = self._loop.create_future()
                    want.answer.set_result(error)
                    self._on_refused(ask.wish, error)
                if not self._restoring:
                    self._on_restored()

    def go_online(self) -> None:
        """Ask for everything that is wanted, on a new connection."""
        assert not self._queue
        assert not self._sent
        self._is_online = True
        for wish, want in self._wanted.items():
            ask = _Ask(wire.SUBSCRIBE, wish, None, want.answer)
            ask.is_restored = True
            self._queue.append(ask)
        self._restoring = len(self._queue)
        if not self._restoring:
            self._on_restored()

    def go_offline(self) -> None:
        """Take note that the connection is gone, and all its subscriptions with it."""
        self._is_online = False
        asks = [*self._queue, *(ask for sent in self._sent.values() for ask in sent)]
        self._queue.clear()
        self._sent.clear()
        self._restoring = 0
        for ask in asks:
            if ask.client_name is not None:
                _settle(
                    ask.answer, errors.error_for(errors.NOT_CONNECTED, "the connection was lost meanwhile")
                )
            elif ask.operation == wire.UNSUBSCRIBE:
                _settle(ask.answer, None)

    def close(self, error: errors.AngariumError) -> None:
        """Answer everybody who waits, and want nothing more."""
        self.go_offline()
        for want in self._wanted.values():
            _settle(want.answer, error)
        self._wanted.clear()

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(want.references > 0 for want in self._wanted.values())
        assert self._is_online or not (self._queue or self._sent or self._restoring)
        pending = [*self._queue, *(ask for sent in self._sent.values() for ask in sent)]
        assert self._restoring == sum(ask.is_restored for ask in pending)


def _settle(answer: Answer, error: errors.AngariumError | None) -> None:
    if not answer.done():
        answer.set_result(error)
