"""Streams at work: how many there may be, when each is asked and sent, and what ends it.

A client that does not read what waits for it is ended, and counted. Who may not see any more what a stream says, has
another password, or has logged out loses it within seconds; a stream also ends after a while without a word, and its
client comes again and shows who it is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from angarium import errors
from angarium_server.http import outlet as outlets
from angarium_server.http import sse
from angarium_server.http.problems import RefusedError
from angarium_server.http.sse import QUIET_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiohttp import web
    from aiohttp.web import BaseRequest

    from angarium_server.http.outlet import Outlet
    from cluster.management.access.outcomes import Caller
    from cluster.management.streams.sources import Ask, Source

#: A client that takes nothing of what waits for it for so long is not there.
STALLED_S: Final = 20.0


class Pace:
    """That of one stream; time is a parameter."""

    def __init__(self, now: float, stalled_s: float = STALLED_S) -> None:
        self._stalled_s = stalled_s
        self._written = 0
        #: Bytes that the client has taken, when that was more than before, or nothing waited.
        self._taken = 0
        self._moved_at = now
        self._said_at = now

    def said(self, size: int, now: float) -> None:
        """Note that so many bytes were written."""
        self._written += size
        self._said_at = now

    def is_quiet(self, now: float) -> bool:
        """Tell whether something is to be said, so that both sides know that the other is there."""
        return now - self._said_at >= QUIET_S

    def is_stalled(self, unsent: int, now: float) -> bool:
        """Tell whether the client has stopped to read, by what has not left."""
        taken = self._written - unsent
        if taken > self._taken or not unsent:
            self._taken, self._moved_at = taken, now
        return now - self._moved_at >= self._stalled_s


#: A stream asks for nothing more while so much waits for its client; and the kernel takes so much besides.
UNSENT_BYTES_MAX: Final = 64 << 10
KERNEL_BYTES: Final = 128 << 10
#: It is looked so often whether the client has taken something of that.
BLOCKED_S: Final = 0.1
#: How often it is looked whether a login still counts.
STANDING_S: Final = 2.0
#: A stream ends after so long, as a session that is not used, so that it keeps none alive.
LIFETIME_S: Final = 1_800.0
#: Refusals that pass: the controller is replaced, or slow.
PASSING: Final = (errors.CONTROLLER_UNAVAILABLE, errors.TIMEOUT, errors.CONTROL_RATE_EXCEEDED)


class Limits(Protocol):
    """How many there may be; a section of the configuration has it."""

    @property
    def max_streams(self) -> int:
        """Give how many all operators together may have."""

    @property
    def max_streams_per_operator(self) -> int:
        """Give how many one may have."""


class Standing:
    """Whether the login of somebody still counts."""

    def __init__(self, ask: Ask, operator: str, login_counts: Callable[[], Awaitable[None]]) -> None:
        """Ask the controller in this way, on behalf of nobody; the other one raises what is wrong with the login."""
        self._ask = ask
        self._login_counts = login_counts
        self._operator = operator
        self._login: tuple[bool, str] | None = None
        self._look_at = 0.0

    async def check(self, now: float) -> None:
        """Look, if it is time to.

        Raises:
            UnauthorizedError: he is disabled, or has another password; his token, session or certificate does not
                count any more (40101).
        """
        if now < self._look_at:
            return
        self._look_at = now + STANDING_S
        try:
            await self._login_counts()
        except RefusedError as refused:
            raise refused.error from None
        known = await self._ask("operators.credentials", {"name": self._operator})
        found = bool(known["enabled"]), str(known["password"]) if known["password_set"] else ""
        if self._login is None:
            self._login = found
        if not found[0] or found != self._login:
            detail = "the operator is disabled, or has another password since"
            raise errors.error_for(errors.UNAUTHORIZED, detail, "log in again")


class Client(Protocol):
    """The connection that a stream is sent over."""

    #: Called when it has ended.
    when_lost: Callable[[], None] | None


class _Stream:
    """One of them."""

    def __init__(self, operator: str, session: frozenset[tuple[str, str]]) -> None:
        self.operator = operator
        #: The cookies that it came with.
        self.session = session
        #: Done when it is to end, with the reason; None: there is nobody to tell.
        self.ended: asyncio.Future[errors.AngariumError | None] = asyncio.get_running_loop().create_future()

    def end(self, error: errors.AngariumError | None = None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


class Streams:
    """Those of the process."""

    def __init__(self, limits: Limits, headers: Mapping[str, str], stalled_s: float = STALLED_S) -> None:
        self._limits = limits
        self._headers = headers
        self._stalled_s = stalled_s
        self._open: dict[_Stream, None] = {}
        self._per_operator: Counter[str] = Counter()
        #: Streams that were ended because their client did not read.
        self.slow = 0

    def __len__(self) -> int:
        """Count them."""
        return len(self._open)

    async def serve(
        self, request: BaseRequest, client: Client, caller: Caller, source: Source, standing: Standing
    ) -> web.StreamResponse:
        """Send what a source says, until one side goes.

        Raises:
            RateLimitError: there are too many (42902).
            AngariumError: the controller refuses it, before anything was sent.
        """
        stream = self._admit(request, caller)
        client.when_lost = stream.end
        try:
            await standing.check(time.monotonic())
            data = await source.next()
            response, outlet = await outlets.begin(request, self._headers)
            outlet.bound_kernel(KERNEL_BYTES)
            try:
                await self._go_on(stream, outlet, source, standing, data)
            except errors.AngariumError as error:
                outlet.send(sse.farewell_of(error))
        finally:
            client.when_lost = None
            self._forget(stream)
        response.force_close()
        return response

    async def _go_on(
        self, stream: _Stream, outlet: Outlet, source: Source, standing: Standing, data: bytes
    ) -> None:
        began = time.monotonic()
        pace = Pace(began, self._stalled_s)
        while True:
            if data:
                outlet.send(data)
                pace.said(len(data), time.monotonic())
            if source.is_over:
                return
            await _pause(stream, outlet, source)
            now = time.monotonic()
            if stream.ended.done() and (error := stream.ended.result()):
                raise error
            if stream.ended.done() or outlet.is_gone or now - began >= LIFETIME_S:
                return
            if pace.is_stalled(outlet.unsent(), now):
                self.slow += 1
                outlet.drop()
                return
            data = b""
            if outlet.unsent() <= UNSENT_BYTES_MAX:
                data = await _asked(source, standing, now)
                if not data and pace.is_quiet(now):
                    data = source.beat()

    def _admit(self, request: BaseRequest, caller: Caller) -> _Stream:
        own = self._per_operator[caller.operator]
        if own >= self._limits.max_streams_per_operator or len(self._open) >= self._limits.max_streams:
            detail = f"there are {len(self._open)} streams, {own} of them of operator {caller.operator!r}"
            advice = "close some; management.max_streams and max_streams_per_operator have the limits"
            raise errors.error_for(errors.CONTROL_RATE_EXCEEDED, detail, advice)
        stream = _Stream(caller.operator, session_of(request))
        self._open[stream] = None
        self._per_operator[stream.operator] += 1
        return stream

    def _forget(self, stream: _Stream) -> None:
        del self._open[stream]
        self._per_operator[stream.operator] -= 1
        if not self._per_operator[stream.operator]:
            del self._per_operator[stream.operator]

    def end_session(self, request: BaseRequest) -> None:
        """End those that came with the same cookies as the request that logs out."""
        session = session_of(request)
        for stream in self._open:
            if session and stream.session == session:
                stream.end(errors.error_for(errors.UNAUTHORIZED, "the session is over", "log in again"))

    def end_all(self, error: errors.AngariumError) -> None:
        """Tell all why nothing more comes."""
        for stream in self._open:
            stream.end(error)


def session_of(request: BaseRequest) -> frozenset[tuple[str, str]]:
    """Give what tells a session from another one: the cookies that a request brings."""
    return frozenset(request.cookies.items())


def wants_stream(request: BaseRequest) -> bool:
    """Tell whether the answer is to be a stream of events."""
    return request.method == "GET" and sse.CONTENT_TYPE in request.headers.get("Accept", "")


async def _pause(stream: _Stream, outlet: Outlet, source: Source) -> None:
    """Wait until there is something to do."""
    if outlet.unsent() > UNSENT_BYTES_MAX:
        await asyncio.wait((stream.ended,), timeout=BLOCKED_S)
        return
    waits: list[asyncio.Future[Any]] = [stream.ended]
    if source.changed is not None:
        waits.append(source.changed)
    await asyncio.wait(waits, timeout=source.wait_s, return_when=asyncio.FIRST_COMPLETED)


async def _asked(source: Source, standing: Standing, now: float) -> bytes:
    """Give what is new; nothing while the controller cannot say.

    Raises:
        AngariumError: the controller refuses it from now on.
    """
    try:
        await standing.check(now)
        return await source.next()
    except errors.AngariumError as error:
        if error.code not in PASSING:
            raise
        await asyncio.sleep(BLOCKED_S)
        return b""
