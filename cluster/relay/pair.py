"""Two sessions with two routers that stand and fall together: what links and bridges have in common.

    waiting --due--> calling (the far router) --open--> joining (the own router) --open--> up
       ^                |                                |                               |
       +----------------+----- either session ends ------+-------------------------------+

When one session ends the other is ended too, so that both routers take back what it stood for; then there is a pause
with back-off and jitter. Who is called, as whom, and what is carried once both are open, is said by `Channel` for links
and by `cluster.bridge.bridge` for bridges. Pure: effects go into an outbox that the shell carries out.
"""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from angarium import errors, wire
from angarium.client.protocol.events import Closed, Noticed, Opened, Replied, Retired, TableChanged
from angarium.errors import AngariumError, error_for
from angarium_server.connections.encryption import Trust
from cluster.relay.direct import Relay
from cluster.relay.session import LinkSession, Passed, Settled, Spooled, Told

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from angarium.client.protocol.session import Hello
    from cluster.relay.runtime import RelayRuntime
    from cluster.relay.spooled import Forwarder

#: The two sides of a pair.
OWN: Final = 0
FAR: Final = 1
#: An attempt at one address: a far node over a slow network answers within a second.
ATTEMPT_TIMEOUT_S: Final = 5.0
#: Pauses between attempts grow from the first to the last of these.
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
#: The longest pause with several addresses, and an attempt at one of them: they are of the two hosts of a node, one of
#: which may take over at any moment, while nothing comes from the other one.
BACKOFF_SEVERAL_S: Final = 0.5
ATTEMPT_SEVERAL_S: Final = 2.0
#: A flow or a producer that was refused, because a process is being replaced, is asked for again after this time.
OPEN_AGAIN_S: Final = 0.5
#: What is refused for so long does not pass by itself: operators are told.
REFUSED_S: Final = 5.0
#: A pair that was up for so long begins with short pauses again.
FORGIVE_AFTER_S: Final = 5.0
KEEPALIVE_MS: Final = 1_000
#: What comes of a batch, or of an answer, that is none: they are looked into here, and not by the session.
_NONSENSE: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError)
#: What is refused is tried again and again: one event for a reason in this time.
REFUSAL_EVENT_S: Final = 60.0


class State(enum.Enum):
    """Where a pair is."""

    WAITING = "waiting"
    CALLING = "calling"
    JOINING = "joining"
    UP = "up"
    OVER = "over"


class Connect(NamedTuple):
    """Connect a side of a pair; what is queued in its session is its first frame."""

    channel: Pair
    side: int
    url: str
    trust: Trust


class Disconnect(NamedTuple):
    """Close the connection of a side; what is queued in its session still leaves."""

    channel: Pair
    side: int


class Emit(NamedTuple):
    """Tell the operators."""

    event: dict[str, Any]


Effect: TypeAlias = Connect | Disconnect | Emit


class Surroundings(NamedTuple):
    """What a link or bridge process gives to each of its pairs."""

    #: Who this node is.
    runtime: RelayRuntime
    #: Of the process.
    incarnation: int
    #: Address of the own router.
    own_url: str
    #: Takes effects, in order.
    outbox: list[Effect]
    #: For jitter.
    random: random.Random
    #: Gives the time of the day in seconds.
    wall_s: Callable[[], float] = time.time


class Pair(ABC):
    """A session with the far router and one with the own router."""

    def __init__(self, around: Surroundings, labels: dict[str, str], now: float) -> None:
        """Wait for the first tick; `now` is monotonic, in seconds, as everywhere here. Events have the labels."""
        self._labels = labels
        self._runtime, self._incarnation, self._own_url = around.runtime, around.incarnation, around.own_url
        self._outbox, self._random, self._wall_s = around.outbox, around.random, around.wall_s
        self.state = State.WAITING
        #: The sessions of both sides; None where there is no connection.
        self.sessions: list[LinkSession | None] = [None, None]
        #: Of the messages that come from a side.
        self.relays: list[Relay | None] = [None, None]
        #: Of the queues at a side.
        self.forwarders: list[list[Forwarder]] = [[], []]
        #: When the state is looked at again: the next attempt, or the end of the one under way.
        self._due = now
        self._up_since = now
        self._pause_s = BACKOFF_FIRST_S
        #: How long pauses get, and the attempt that is under way may take.
        self._pause_max_s = BACKOFF_MAX_S
        self._attempt_s = ATTEMPT_TIMEOUT_S
        self._attempts = 0
        #: The address that is tried, or was last; empty before the first.
        self._far_url = ""
        #: Why it is not up; None if it is, or was not tried.
        self.error: AngariumError | None = None
        #: Code of a refusal -> when operators were told of it.
        self._told: dict[int, float] = {}
        #: The wall clock of each router less `_clock_ms`.
        self._offsets_ms = [0, 0]
        #: When flows and producers that were refused are asked for again.
        self._open_at: float | None = None
        #: The reason, since when it is always this one, and when it was given last.
        self._refusal = 0, 0.0, 0.0
        #: Codes with which messages were refused since it is up.
        self._refusals: dict[int, None] = {}
        #: Messages that a router refused, by code.
        self.refused: dict[int, int] = {}

    # -- what links and bridges say each for themselves ------------------------------------------------------

    @abstractmethod
    def _far_addresses(self) -> tuple[list[str], Trust]:
        """Give the addresses of the far router, and whom to expect there.

        Raises:
            AngariumError: there are none.
        """

    @abstractmethod
    def _hello(self, side: int) -> Hello:
        """Give what is said to the router of a side; to the own one after the far one has answered.

        Raises:
            AngariumError: it cannot be said, or another node answered.
        """

    @abstractmethod
    def _became_up(self) -> None:
        """Both sessions are open: begin to carry."""

    @abstractmethod
    def _take_more(self, side: int, event: Any, now: float) -> None:
        """Act on what only links, or only bridges, are told."""

    @abstractmethod
    def _tell_refused(self, error: AngariumError) -> None:
        """Tell the operators that the far router does not want it."""

    @abstractmethod
    def _tell_message_refused(self, code: int) -> None:
        """Tell the operators that a message was refused."""

    def _tell(self, severity: str, event: str, text: str, code: int = 0) -> None:
        told = {"severity": severity, "event": event, "text": text, **self._labels, "code": code}
        self._outbox.append(Emit(told))

    @property
    def _self_proof(self) -> dict[str, str]:
        """What shows the own router that this is a process of its node (`behalf` of HELLO)."""
        return {"secret": self._runtime.identity.local_secret}

    # -- events ----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what is due; gives when to call again."""
        if self.state is State.OVER:
            return float("inf")
        if self.state is State.WAITING:
            if now >= self._due:
                self._call(now)
            return self._due
        if self.state is not State.UP and now >= self._due:
            self._fail(error_for(errors.CONNECT_FAILED, f"no answer within {self._attempt_s:g} s"), now)
            return self._due
        wake = self._due if self.state is not State.UP else float("inf")
        if self._open_at is not None and now >= self._open_at:
            self._open_at = None
            for forwarder in (*self.forwarders[OWN], *self.forwarders[FAR]):
                forwarder.open_again()
        wake = wake if self._open_at is None else min(wake, self._open_at)
        for side in (OWN, FAR):
            for forwarder in self.forwarders[side]:
                wake = min(wake, forwarder.tick(now))
            session = self.sessions[side]
            if session is not None:
                self._take(side, session.tick(now), now)
                wake = min(wake, now + session.tick_interval_s)
        return wake

    def received(self, side: int, frames: list[bytes], now: float) -> None:
        """A router sent something."""
        session = self.sessions[side]
        if (
            session is not None and self.state is not State.WAITING
        ):  # what comes after the end says nothing new
            try:
                self._take(side, session.receive(frames, now), now)
            except _NONSENSE as error:
                self._ended(side, error_for(errors.MALFORMED_FRAME, f"the router sent: {error!r}"), now)

    def heard(self, side: int, at: float) -> None:
        """Something came of a router then that was no whole message."""
        session = self.sessions[side]
        if session is not None:
            session.heard(at)

    def lost(self, side: int, error: AngariumError, now: float) -> None:
        """The connection of a side is gone, or could not be made."""
        session = self.sessions[side]
        if session is not None:
            self._take(side, session.lose(error), now)

    def leave(self, now: float) -> None:
        """End it for good."""
        if self.state is not State.OVER:
            self._close(now)
            self.state = State.OVER

    # -- connecting ------------------------------------------------------------------------------------------

    def _call(self, now: float) -> None:
        """Connect to the far router, at the next of its addresses."""
        self._attempts += 1
        try:
            addresses, trust = self._far_addresses()
            self._far_url = addresses[(self._attempts - 1) % len(addresses)]
            hello = self._hello(FAR)
        except AngariumError as error:
            self._refuse(error, now)
            return
        self.state = State.CALLING
        has_several = len(addresses) > 1
        self._pause_max_s = BACKOFF_SEVERAL_S if has_several else BACKOFF_MAX_S
        self._greet(FAR, hello, now, ATTEMPT_SEVERAL_S if has_several else ATTEMPT_TIMEOUT_S)
        self._outbox.append(Connect(self, FAR, self._far_url, trust))

    def _join(self, now: float) -> None:
        """Connect to the own router; the far one has answered."""
        try:
            hello = self._hello(OWN)
        except AngariumError as error:
            self._refuse(error, now)
            return
        self.state = State.JOINING
        self._greet(OWN, hello, now, ATTEMPT_TIMEOUT_S)
        self._outbox.append(Connect(self, OWN, self._own_url, Trust()))

    def _greet(self, side: int, hello: Hello, now: float, timeout_s: float) -> None:
        self._attempt_s = timeout_s
        self._due = now + timeout_s
        session = LinkSession(hello, now)
        self.sessions[side], self.relays[side] = session, Relay(session)

    def _opened(self, side: int, now: float) -> None:
        session = self.sessions[side]
        assert session is not None
        assert session.welcome is not None
        said_ms = session.welcome.link.get("wall_ms", 0)
        self._offsets_ms[side] = int(said_ms) - self._clock_ms(side, now)
        if side == FAR:
            self._join(now)
            return
        self.state = State.UP
        self._up_since = now
        self.error = None
        self._refusals.clear()
        self._became_up()

    def _clock_ms(self, side: int, now: float) -> int:
        """Give the time that the clock of a router is compared with: one of this host is set when ours is."""
        is_here = side == OWN or self._far_url == self._own_url
        return int((self._wall_s() if is_here else now) * 1000)

    # -- relaying --------------------------------------------------------------------------------------------

    def _take(self, side: int, events: list[Any], now: float) -> None:
        """Act on what a session tells."""
        for event in events:
            kind = type(event)
            from_here, to_here = self.relays[side], self.relays[1 - side]
            if kind is Passed:
                assert from_here is not None
                from_here.passed(event)
            elif kind is Retired and to_here is not None:
                to_here.go_on()
                for forwarder in self.forwarders[1 - side]:
                    forwarder.go_on()
            elif kind is TableChanged and to_here is not None:
                to_here.set_table(event.epoch, event.slots)
            elif kind is Spooled:
                self._spooled(side, event, now)
            elif kind is Settled:
                self._settled(side, event, now)
            elif kind is Told and event.event == wire.FLOW_CLOSED:
                self._fail(error_for(event.code or errors.SHUTTING_DOWN, "a flow ended"), now)
            elif kind is Replied and event.error is not None:
                self._not_opened(event.error, now)
            elif kind is Noticed:
                self.refused[event.code] = self.refused.get(event.code, 0) + event.messages
            elif kind is Opened:
                self._opened(side, now)
            elif kind is Closed:
                self._ended(side, event.error, now)
            else:
                self._take_more(side, event, now)

    def _not_opened(self, error: AngariumError, now: float) -> None:
        """A flow or a producer was refused, because a process is being replaced for instance: ask again."""
        code, since, last = self._refusal
        if code != error.code or now - last > 3 * OPEN_AGAIN_S:
            since = now
        elif now - since >= REFUSED_S:
            self._tell_once(error, now)
        self._refusal = error.code, since, now
        self.error = error
        self._open_at = now + OPEN_AGAIN_S

    def _spooled(self, side: int, event: Spooled, now: float) -> None:
        try:
            for forwarder in self.forwarders[side]:
                if forwarder.flow == event.flow:
                    forwarder.messages(event.parts, event.batches, self._clock_ms(side, now))
        except AngariumError as error:
            self._fail(error, now)

    def _settled(self, side: int, event: Settled, now: float) -> None:
        """A router settled what came from the other side."""
        if event.code:
            self._fail(error_for(event.code, "another session opened the producer"), now)
            return
        for forwarder in self.forwarders[1 - side]:
            if forwarder.producer == event.producer:
                for _, code, _ in event.nacks:
                    # Once in the life of a connection, for each code.
                    if code not in self._refusals:
                        self._refusals[code] = None
                        self._tell_message_refused(code)
                forwarder.acked(event.upto, event.nacks)

    # -- ends ------------------------------------------------------------------------------------------------

    def _ended(self, side: int, error: AngariumError | None, now: float) -> None:
        error = error or error_for(errors.SHUTTING_DOWN, "the router said goodbye")
        if side == FAR:
            self._refuse(error, now)
        else:
            self._fail(error, now)

    def _refuse(self, error: AngariumError, now: float) -> None:
        """Let go for a reason that operators hear of, unless it passes by itself."""
        self._tell_once(error, now)
        self._fail(error, now)

    def _tell_once(self, error: AngariumError, now: float) -> None:
        """Tell operators of a refusal, unless it passes by itself or they were told lately."""
        told_at = self._told.get(error.code, float("-inf"))
        if error.code not in errors.PASSING and now - told_at >= REFUSAL_EVENT_S:
            self._told[error.code] = now
            self._tell_refused(error)

    def _fail(self, error: AngariumError, now: float) -> None:
        """Let go of both sides, and wait."""
        self.error = error
        if self.state is State.UP and now - self._up_since >= FORGIVE_AFTER_S:
            self._pause_s = BACKOFF_FIRST_S
        self._close(now, error)
        self._due = now + self._random.uniform(self._pause_s / 2, self._pause_s)
        self._pause_s = min(self._pause_s * 2, self._pause_max_s)

    def _close(self, now: float, error: AngariumError | None = None) -> None:
        """Say goodbye on both sides, and why: the router that refused nothing has not heard of it."""
        for side in (OWN, FAR):
            session = self.sessions[side]
            if session is not None:
                session.leave_for(error)
                self._outbox.append(Disconnect(self, side))
        self.state = State.WAITING
        self._due = now

    def forget(self, side: int) -> None:
        """The connection of a side is closed."""
        session = self.sessions[side]
        if session is not None:  # who waits for an answer knows the session: nobody collects garbage here
            session.guaranteed.clear()
        self.sessions[side] = self.relays[side] = None
        self.forwarders[side].clear()

    def validate(self) -> None:
        """Check that state and sessions agree."""
        own, far = (session is not None for session in self.sessions)
        expected = {
            State.WAITING: (False, False),
            State.CALLING: (False, True),
            State.JOINING: (True, True),
            State.UP: (True, True),
            State.OVER: (False, False),
        }
        assert (own, far) == expected[self.state], f"{self.state}: {own}, {far}"
