"""Operations that a client asks for, over all its connections, and opening things again on each.

`Operations` sends requests on the open session and passes the answers to their callers. A request in flight when the
connection is lost fails with 60001, because it is unknown whether it was carried out; one that was not sent yet waits
for the next connection, as long as its caller does.

`Opener` keeps one thing open: it opens it on every connection, retries with a back-off when the node refuses for a
temporary reason, and gives up otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from angarium import errors
from angarium.client.connection.backoff import EAGER, waits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from angarium.client.protocol.events import Replied
    from angarium.client.protocol.session import ClientSession

_T = TypeVar("_T")

#: The longest wait between attempts.
BACKOFF_MAX_S: Final = 3.0


_Answer: TypeAlias = "asyncio.Future[tuple[Any, errors.AngariumError | None]]"


class _Ask(NamedTuple):
    """A request and who waits for its answer."""

    #: Sends it, gives its number.
    send: Callable[[ClientSession], int]
    answer: _Answer
    #: Takes a value that nobody waits for any more, or None.
    on_late: Callable[[Any], None] | None


class Operations:
    """Requests on their way."""

    def __init__(self, transmit: Callable[[], None]) -> None:
        """Be offline; `transmit` sends what a session wants to send."""
        self._transmit = transmit
        self._loop = asyncio.get_running_loop()
        #: None while there is no connection.
        self._session: ClientSession | None = None
        #: Not sent yet. Empty while there is no connection.
        self._queue: deque[_Ask] = deque()
        #: Sent on this connection, by number.
        self._sent: dict[int, _Ask] = {}
        #: Set while there is a connection, or there will be none any more.
        self._online = asyncio.Event()
        #: Why there will be none any more.
        self._refusal: errors.AngariumError | None = None

    @property
    def is_online(self) -> bool:
        """Whether there is a connection."""
        return self._session is not None

    async def ask(
        self, send: Callable[[ClientSession], int], on_late: Callable[[Any], None] | None = None
    ) -> Any:
        """Ask on the connection that there is, give the value.

        Args:
            send: sends the request on a session and gives its number.
            on_late: takes the value if the caller was cancelled meanwhile.

        Raises:
            AngariumError: the node refuses; or the connection is not there, or is lost (NOT_CONNECTED).
        """
        if self._session is None:
            raise self._refusal or errors.error_for(errors.NOT_CONNECTED)
        ask = _Ask(send, self._loop.create_future(), on_late)
        self._queue.append(ask)
        self._send_queue()
        value, error = await ask.answer
        if error is not None:
            raise error
        return value

    def tell(self, send: Callable[[ClientSession], int]) -> _Answer:
        """Ask on the connection that there is, for something that is wanted whether anybody waits for it or not."""
        answer: _Answer = self._loop.create_future()
        if self._session is None:
            answer.set_result((None, self._refusal or errors.error_for(errors.NOT_CONNECTED)))
        else:
            self._queue.append(_Ask(send, answer, None))
            self._send_queue()
        return answer

    async def finish(self, send: Callable[[ClientSession], int]) -> None:
        """Ask for the end of something as `tell` does, and wait for the answer.

        Raises:
            AngariumError: as for `ask`.
        """
        _, error = await asyncio.shield(self.tell(send))
        if error is not None:
            raise error

    async def call(self, send: Callable[[ClientSession], int], timeout_s: float) -> Any:
        """Wait for a connection if there is none, ask, give the value.

        Raises:
            TimeoutExpiredError: all that took too long (TIMEOUT).
            AngariumError: as for `ask`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.online()
                return await self.ask(send)
        except errors.AngariumError:
            raise
        except TimeoutError:
            raise self.too_late(timeout_s) from None

    async def insist(self, attempt: Callable[[], Awaitable[_T]], timeout_s: float) -> _T:
        """Wait for a connection, try, and try again while the node is starting or a process of it is replaced.

        Raises:
            TimeoutExpiredError: not within the time (TIMEOUT).
            AngariumError: what `attempt` raises, if that does not pass or did not pass in time.
        """
        last: errors.AngariumError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                for wait_s in waits(BACKOFF_MAX_S, EAGER):
                    await self.online()
                    try:
                        return await attempt()
                    except errors.AngariumError as error:
                        if error.code not in STARTING:
                            raise
                        last = error
                    await asyncio.sleep(wait_s)
        except errors.AngariumError:
            raise
        except TimeoutError:
            raise last or self.too_late(timeout_s) from None
        raise AssertionError("there are more attempts")

    def too_late(self, timeout_s: float) -> errors.AngariumError:
        """Give the error of who waited for so long: for a connection, or for a node whose workers are not all there."""
        if not self.is_online:
            return errors.error_for(errors.TIMEOUT, f"there was no connection within {timeout_s:g} s")
        detail = f"the node did not answer within {timeout_s:g} s"
        advice = "it waits for all its workers, and 'angarium status' shows if one is missing; or wait longer"
        return errors.error_for(errors.TIMEOUT, detail, advice)

    async def online(self) -> None:
        """Wait until there is a connection.

        Raises:
            ConnectionLostError: there will be none.
        """
        while self._session is None:
            if self._refusal is not None:
                raise self._refusal
            await self._online.wait()

    def replied(self, event: Replied) -> None:
        """Pass an answer to its caller."""
        ask = self._sent.pop(event.request, None)
        if ask is not None:  # A token is renewed past this.
            if not ask.answer.done():
                ask.answer.set_result((event.value, event.error))
            elif ask.on_late is not None and event.error is None:
                ask.on_late(event.value)
        self._send_queue()

    def go_online(self, session: ClientSession) -> None:
        """Ask on a session from now on."""
        assert not self._queue
        assert not self._sent
        self._session = session
        self._online.set()

    def go_offline(self) -> None:
        """Take note that the connection is gone."""
        self._session = None
        if self._refusal is None:
            self._online.clear()
        asks = [*self._queue, *self._sent.values()]
        self._queue.clear()
        self._sent.clear()
        lost = errors.error_for(errors.NOT_CONNECTED, "the connection was lost meanwhile")
        for ask in asks:
            if not ask.answer.done():
                ask.answer.set_result((None, lost))

    def close(self, error: errors.AngariumError) -> None:
        """Let everybody who waits, or comes, have an error."""
        self._refusal = self._refusal or error
        self.go_offline()
        self._online.set()

    def _send_queue(self) -> None:
        session = self._session
        if session is None:
            return
        while self._queue and session.can_ask():
            ask = self._queue.popleft()
            if ask.answer.done():
                continue
            try:
                self._sent[ask.send(session)] = ask
            except errors.InvalidRequestError as error:  # its caller's, who may not be who sends the queue
                ask.answer.set_result((None, error))
        self._transmit()

    def validate(self) -> None:
        """Check the sentences above."""
        assert self._session is not None or not (self._queue or self._sent)


class Opener:
    """Keeps one thing open over connections."""

    def __init__(
        self,
        operations: Operations,
        attempt: Callable[[], Awaitable[None]],
        is_passing: Callable[[int], bool],
        on_failed: Callable[[errors.AngariumError], None],
    ) -> None:
        """Keep nothing open yet; `attempt` raises what the node says, `is_passing` whether to try again."""
        self._operations = operations
        self._attempt = attempt
        self._is_passing = is_passing
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def open(self, timeout_s: float) -> None:
        """Open it for the first time: wait for a connection and for a node that is starting, no longer.

        Raises:
            TimeoutExpiredError: not within the time (TIMEOUT).
            AngariumError: the node refuses.
        """
        await self._operations.insist(self._attempt, timeout_s)

    def start(self) -> None:
        """Open it again on the connection that there is now; what was tried on an older one is over."""
        self.stop()
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Do not open it any more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        for wait_s in waits(BACKOFF_MAX_S, EAGER):
            if not self._operations.is_online:
                return
            try:
                await self._attempt()
                return
            except errors.AngariumError as error:
                if error.code != errors.NOT_CONNECTED and not self._is_passing(error.code):
                    self._on_failed(error)
                    return
            await asyncio.sleep(wait_s)


#: Refusals of a first attempt that are over when the node has started, or a process of it was replaced.
STARTING: Final = frozenset(
    {
        errors.NOT_CONNECTED,
        errors.HOME_NOT_READY,
        errors.CONTROLLER_UNAVAILABLE,
        errors.SHARD_UNAVAILABLE,
        errors.SHUTTING_DOWN,
        errors.INTERNAL,
    }
)
