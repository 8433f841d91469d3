"""Keeps a client connected: tries addresses, greets, notices the end, and tries again.

A `Connection` outlives its connections. Each has its own socket and its own `ClientSession`; what follows
from their events is the client's to say, which gets every event of an open session from here. Attempts go
round the addresses, each bounded in time, with a back-off between the rounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from angarium import errors
from angarium.client.connection.backoff import EAGER, RELUCTANT, waits
from angarium.client.connection.tokens import keep_renewed
from angarium.client.protocol.events import Closed, Event, Opened
from angarium.client.protocol.session import DEFAULT_USERNAME, ClientSession, EgressWindow, Hello, State
from angarium.client.transport.address import is_encrypted, parse
from angarium.client.transport.stream import StreamTransport

if TYPE_CHECKING:
    from angarium.client.connection.tokens import Tokens
    from angarium.client.transport.credentials import Credentials
    from angarium.errors import AngariumError

#: One attempt at one address; a busy node answers within a second.
ATTEMPT_TIMEOUT_S: Final = 5.0
#: The longest wait between rounds of attempts.
BACKOFF_MAX_S: Final = 5.0
#: With several addresses, because another host may take over at any moment: a hand-over is over after half a second.
BACKOFF_SEVERAL_S: Final = 0.5
#: What ends a session this soon may end the next one too, so that is not begun at once.
BRIEF_S: Final = 1.0
#: ... and one of them may be of a host without power, from which not even a refusal comes: a client that was connected
#: waits so long for a connection in the first rounds, and then longer, for a network on which that takes longer.
CONNECT_SEVERAL_S: Final = 1.0
PATIENT_AFTER_ROUNDS: Final = 10
#: Levels of a deliver-to-one priority, 1 is the highest.
PRIORITIES: Final = range(1, 5)

#: Refusals of a first connect that may be over in a moment.
_TRANSIENT: Final = (
    errors.CONNECT_FAILED,
    errors.TIMEOUT,
    errors.KEEPALIVE_TIMEOUT,
    errors.NOT_CONNECTED,
    errors.SESSION_UNKNOWN,
    errors.SHUTTING_DOWN,
    errors.SHARD_UNAVAILABLE,
    errors.CONNECT_RATE_EXCEEDED,
    errors.INTERNAL,
)
#: Families of refusals that no later attempt changes. A conflict passes: the router may not have noticed yet that the
#: connection with this name is gone.
_LASTING_FAMILIES: Final = (400, 401, 403)
#: Ends of an open session after which coming back by itself would be wrong.
FINAL_ENDS: Final = (errors.DISCONNECTED_BY_OPERATOR, errors.PUT_ASIDE)

#: For who gave no username, and so is `default`, which is let in without a password until any username has one.
_ANYBODY_ADVICE: Final = (
    "no username was given: give one with its password ('--user' and '--password-file' of commands); or let in "
    "'default' from the node's own host: 'angarium username update default --set enabled=true'; events say why"
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Something that happened to a client, for `on_event`.

    Attributes:
        kind: `connected`, `disconnected` (code and detail say why), `reconnected` (all subscriptions are
            back), `notice` (the router refused `messages` published ones, or with 0 of them what a subscription
            needs, which has ended; code and detail say why), `discard`
            (`messages` for this client were discarded by the router, because it is slow), `slow` (a subscription
            is full and drops its oldest messages; once until its reader has caught up), `stalled` (a subscription
            that does not drop is full and is not read, so nothing comes to this client any more), `failed` (no
            reconnect follows; code and detail). About guaranteed messages, with code and detail: `producer_failed` and
            `flow_failed` (one is over), `standby` (a flow gets no messages, because another one is active),
            `flow_lost` (one will be bound again), `settle_refused` (the node does not take what was said of
            messages; they come again).
        code: one of `angarium.errors`, or 0.
        detail: what happened, or empty.
        messages: how many are concerned, or 0.
        url: the address.
    """

    kind: str
    code: int = 0
    detail: str = ""
    messages: int = 0
    url: str = ""


EventCallback: TypeAlias = Callable[[ClientEvent], None]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client connects; `angarium.connect` explains each."""

    urls: tuple[str, ...]
    hello: Hello
    #: None where no address is one of TLS.
    credentials: Credentials | None
    timeout_s: float
    retry_for_s: float | None
    reconnect: bool
    window_messages: int
    window_bytes: int
    on_event: EventCallback | None
    #: None for those who log in otherwise.
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        """Check the arguments of the application.

        Raises:
            InvalidRequestError: one is out of range, or an address is none (INVALID_ARGUMENT).
        """
        for url in self.urls:
            parse(url)
        faults = {
            "url": not self.urls,
            "local_priority": self.hello.local_priority not in PRIORITIES,
            "network_priority": self.hello.network_priority not in PRIORITIES,
            "timeout_s": not self.timeout_s > 0,
            "retry_for_s": self.retry_for_s is not None and not self.retry_for_s > 0,
            "window_messages": not self.window_messages > 0,
            "window_bytes": not self.window_bytes > 0,
        }
        for name, is_wrong in faults.items():
            if is_wrong:
                raise errors.invalid(f"connect: {name} is out of range")


class Connection:
    """The connection of a client, and the next one when it is lost."""

    def __init__(
        self,
        options: ClientOptions,
        window: EgressWindow,
        on_event: Callable[[Event], None],
        on_drained: Callable[[], None],
        on_failed: Callable[[AngariumError], None],
    ) -> None:
        """Be ready to connect; `on_drained` follows several events, `on_failed` comes once when it is lost."""
        self._options = options
        self._window = window
        self._on_event = on_event
        self._on_drained = on_drained
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        if type(self._loop).add_reader is asyncio.AbstractEventLoop.add_reader:
            detail = f"{type(self._loop).__name__} cannot watch sockets"
            advice = "use asyncio.SelectorEventLoop; the default of Windows is another one"
            raise errors.invalid(detail, advice)
        #: The address of the last connection, or the one tried.
        self.url = options.urls[0]
        #: The session that is open, or leaving; None in between.
        self.session: ClientSession | None = None
        #: The session that greets; None unless an attempt is under way.
        self._greeting: ClientSession | None = None
        self._transport: StreamTransport | None = None
        #: The next attempt hears the node first: the last one was connected and ended before WELCOME, as at a node of
        #: 0.1.0. It takes a round trip more, which is not for those who come back to a router that was away.
        self._hears_first = False
        #: The end of the attempt under way: None as its result means open.
        self._attempted: asyncio.Future[AngariumError | None] = self._loop.create_future()
        #: Messages of rounds that were not retired when their connection was lost.
        self.lost_messages = 0
        #: What makes the next connection the same client, and the name it goes with.
        self._token: bytes | None = None
        #: The client's name at the router; empty before the first session.
        self.client_name = ""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        #: When the newest session was opened, and the waits between sessions that were brief.
        self._opened_at = 0.0
        self._pauses = waits(BACKOFF_MAX_S, RELUCTANT)
        #: Brings fresh tokens; None for a session without, or with one that is not renewed.
        self._renewing: asyncio.Task[None] | None = None
        #: BYE was said: what ends after it does not come back.
        self.is_leaving = False
        self._is_closed = False

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            AngariumError: the router refuses, or no address answers within the time (CONNECT_FAILED).
        """
        deadline = self._loop.time() + (self._options.retry_for_s or self._options.timeout_s)
        try:
            error = await self._connect(deadline, _is_lasting_at_first)
            if error is not None:
                raise error
        except BaseException:
            self.close()
            raise

    def transmit(self) -> None:
        """Send what the session wants to send."""
        session = self.session or self._greeting
        if session is not None and self._transport is not None:
            self._transport.send(session.take_outgoing())

    def leave(self) -> bool:
        """Say BYE if a session is open, and come back no more; tell whether its end will be an event."""
        self.is_leaving = True
        if self.session is None:
            return False
        self.session.leave()
        self.transmit()
        return True

    def close(self) -> None:
        """Let go of everything; nothing is called after it."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        if self.session is not None:
            self.lost_messages += self.session.unretired_rows()
        self._drop()

    def abandon(self) -> None:
        """Leave the connection to the process that this one was forked from."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abandon()
        self.session = self._greeting = self._transport = None

    def outlook(self, error: AngariumError) -> str:
        """Say what follows from the loss of the connection."""
        if not self._is_tried_again(error):
            return "it is not tried again"
        retry_for_s = self._options.retry_for_s
        return "trying again" if retry_for_s is None else f"trying again for {retry_for_s:g} s"

    def _is_tried_again(self, error: AngariumError) -> bool:
        return self._options.reconnect and error.code not in FINAL_ENDS

    async def _connect(
        self, deadline: float | None, is_lasting: Callable[[AngariumError], bool]
    ) -> AngariumError | None:
        """Try all addresses until one works; give the error that ends it."""
        urls = self._options.urls
        pauses = waits(BACKOFF_SEVERAL_S, EAGER) if len(urls) > 1 else waits(BACKOFF_MAX_S, RELUCTANT)
        for rounds, wait_s in enumerate(pauses):
            patience_s = ATTEMPT_TIMEOUT_S
            if len(urls) > 1 and self._token is not None:
                patience_s = CONNECT_SEVERAL_S * max(1.0, rounds / PATIENT_AFTER_ROUNDS)
            lasting = 0
            error: AngariumError | None = None
            for url in urls:
                timeout_s = ATTEMPT_TIMEOUT_S if deadline is None else deadline - self._loop.time()
                if timeout_s <= 0:
                    break
                error = await self._attempt(url, min(timeout_s, ATTEMPT_TIMEOUT_S), patience_s)
                if error is None:
                    return None
                lasting += is_lasting(error)
            if lasting == len(urls):
                return error
            if deadline is not None and self._loop.time() + wait_s >= deadline:
                return error or errors.error_for(errors.CONNECT_FAILED, f"{', '.join(urls)}: no time is left")
            _logger.debug("no connection: %s; trying again in %.2f s", error, wait_s)
            await asyncio.sleep(wait_s)
        raise AssertionError("there are more rounds")

    async def _attempt(self, url: str, timeout_s: float, connect_s: float) -> AngariumError | None:
        """Try one address, to which there has to be a connection sooner; give None if the session is open."""
        self.url = url
        hello = self._options.hello
        if self._token is not None:
            hello = hello._replace(token=self._token, client_name=self.client_name)
        if self._options.tokens is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    hello = hello._replace(jwt=await self._options.tokens.fresh())
            except TimeoutError:
                return errors.error_for(errors.CONNECT_FAILED, f"no token within {timeout_s:.1f} s")
            except errors.AngariumError as unable:
                return unable
        self._greeting = ClientSession(hello, self._window, self._loop.time())
        self._attempted = attempted = self._loop.create_future()
        expiry = self._loop.call_later(timeout_s, self._give_up, attempted, timeout_s)
        hurry = self._loop.call_later(connect_s, self._give_up_unconnected, attempted, connect_s)
        try:
            self._transport = self._make_transport(url)
            self.transmit()
            error: AngariumError | None = await attempted
        except BaseException as unable:
            self._drop()
            if isinstance(unable, errors.ConnectionLostError):
                return unable
            raise
        finally:
            expiry.cancel()
            hurry.cancel()
        return error

    def _give_up(self, attempted: asyncio.Future[AngariumError | None], waited_s: float) -> None:
        """Nobody answered in time."""
        if not attempted.done():
            self._drop()
            detail = f"{self.url}: no answer within {waited_s:.1f} s"
            attempted.set_result(errors.error_for(errors.CONNECT_FAILED, detail))

    def _give_up_unconnected(self, attempted: asyncio.Future[AngariumError | None], waited_s: float) -> None:
        """Nothing came from the host of the address."""
        if self._transport is not None and not self._transport.is_connected:
            self._give_up(attempted, waited_s)

    def _make_transport(self, url: str) -> StreamTransport:
        credentials = self._options.credentials
        context = credentials.context() if credentials is not None and is_encrypted(url) else None
        calls = self._on_message, self._drained, self._on_lost
        return StreamTransport(self._loop, url, context, *calls, hears_first=self._hears_first)

    def _renew_tokens(self) -> None:
        tokens, session = self._options.tokens, self.session
        if tokens is None or not tokens.is_renewable or session is None or session.welcome is None:
            return
        if session.welcome.token_ms is not None:
            renewing = keep_renewed(tokens, session, session.welcome.token_ms, self.transmit)
            self._renewing = self._loop.create_task(renewing)

    def _drop(self) -> None:
        self.session = self._greeting = None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _on_message(self, frames: list[bytes]) -> None:
        session = self.session or self._greeting
        if session is not None:
            for event in session.receive(frames, self._loop.time()):
                self._take(event)

    def _drained(self) -> None:
        self._on_drained()
        self.transmit()

    def _on_lost(self, reason: str | AngariumError) -> None:
        session = self.session or self._greeting
        if session is not None:
            is_greeting = session.state is State.GREETING
            self._hears_first = is_greeting and self._transport is not None and self._transport.is_connected
            code = errors.CONNECT_FAILED if is_greeting else errors.NOT_CONNECTED
            advice = ""
            if isinstance(reason, errors.AngariumError):
                code, advice, reason = reason.code, reason.advice, reason.detail
            for event in session.lose(errors.error_for(code, f"{self.url}: {reason}", advice)):
                self._take(event)

    def _take(self, event: Event) -> None:
        if self.session is None and self._attempted.done():
            return  # The attempt was cancelled in this very step; what it has made is dropped in the next.
        if isinstance(event, Opened):
            self.session, self._greeting = self._greeting, None
            self._opened_at = self._loop.time()
            self._token = event.welcome.token
            self.client_name = event.welcome.client_name
            self._attempted.set_result(None)
            self._schedule_tick()
            self._renew_tokens()
        elif isinstance(event, Closed):
            self._end(event)
            return
        self._on_event(event)

    def _end(self, event: Closed) -> None:
        """Act on the end of a session: of an attempt, after BYE, or of an open one."""
        was_open = self.session is not None
        if self.session is not None and event.error is not None:
            self.lost_messages += self.session.unretired_rows()
        self._drop()
        error = event.error or errors.error_for(errors.NOT_CONNECTED, f"{self.url}: the router has closed")
        if not was_open:
            self._attempted.set_result(self._advised(error))
            return
        self._on_event(event)
        if self._is_closed or self.is_leaving:
            return
        if self._is_tried_again(error):
            self._task = self._loop.create_task(self._reconnect())
        else:
            self._on_failed(error)

    def _advised(self, error: AngariumError) -> AngariumError:
        """Say what helps somebody who was refused and has said nothing of who it is."""
        hello = self._options.hello
        is_nobody = (hello.username, hello.password, self._options.tokens) == (DEFAULT_USERNAME, None, None)
        if error.code != errors.UNAUTHORIZED or not is_nobody:
            return error
        return errors.error_for(error.code, error.detail, _ANYBODY_ADVICE)

    async def _reconnect(self) -> None:
        if self._loop.time() - self._opened_at < BRIEF_S:
            await asyncio.sleep(next(self._pauses))
        else:
            self._pauses = waits(BACKOFF_MAX_S, RELUCTANT)
        retry_for_s = self._options.retry_for_s  # Nobody was asked in the pause.
        deadline = None if retry_for_s is None else self._loop.time() + retry_for_s
        error = await self._connect(deadline, _is_lasting_again)
        if error is not None and not self._is_closed:
            self._on_failed(error)

    def _schedule_tick(self) -> None:
        if self.session is not None:
            self._timer = self._loop.call_later(self.session.tick_interval_s, self._tick)

    def _tick(self) -> None:
        session, transport = self.session, self._transport
        if session is not None:
            if transport is not None:
                session.heard(transport.part_at)
            for event in session.tick(self._loop.time()):
                self._take(event)
            self.transmit()
            self._schedule_tick()

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self.session is None or self._greeting is None
        for session in (self.session, self._greeting):
            if session is not None:
                session.validate()


def _is_lasting_at_first(error: AngariumError) -> bool:
    """Tell whether another attempt of a first connect would be refused too."""
    return error.code not in _TRANSIENT


def _is_lasting_again(error: AngariumError) -> bool:
    """Tell whether another attempt of a client that was connected would be refused too."""
    return error.code // 100 in _LASTING_FAMILIES
