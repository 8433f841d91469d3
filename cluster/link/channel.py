"""One Message VPN of a link: connects to both routers, relays between them, and begins anew when one of them goes.

    waiting --due--> calling (the neighbour) --open--> joining (the own router) --open--> up
       ^                |                                |                               |
       +----------------+----- either session ends ------+-------------------------------+

The neighbour is asked first: its WELCOME names it, and the session at the own router stands for the node that really
answers. When one session ends the other is ended too, so that both routers take interest back; then there is a pause
with back-off and jitter. Pure: effects go into an outbox that the shell carries out.
"""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from angarium import errors, wire
from angarium.client.events import Closed, Noticed, Opened, Replied, Retired, TableChanged
from angarium.client.session import Hello
from angarium.errors import AngariumError, error_for
from cluster.link.relay import Relay
from cluster.link.session import Exported, Imported, LinkSession, Passed, Settled, Spooled, Told
from cluster.link.spooled import Carrier

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from cluster.link.config import LinkConfig, LinkRuntime

#: The two sides of a channel.
OWN: Final = 0
FAR: Final = 1
#: An attempt at one address: a far node behind a slow path answers within a second.
ATTEMPT_TIMEOUT_S: Final = 5.0
#: Pauses between attempts grow from the first to the last of these.
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
#: A flow or a producer that was refused, because a process is being replaced, is asked for again after this time.
OPEN_AGAIN_S: Final = 0.5
#: A link that was up for so long begins with short pauses again.
FORGIVE_AFTER_S: Final = 5.0
KEEPALIVE_MS: Final = 1_000
#: Ends that pass by themselves, of which operators need no event.
_PASSING: Final = (
    errors.CONNECT_FAILED,
    errors.NOT_CONNECTED,
    errors.TIMEOUT,
    errors.KEEPALIVE_TIMEOUT,
    errors.SHUTTING_DOWN,
    errors.SESSION_UNKNOWN,
    errors.CONNECT_RATE_EXCEEDED,
)


class State(enum.Enum):
    """Where a channel is."""

    WAITING = "waiting"
    CALLING = "calling"
    JOINING = "joining"
    UP = "up"
    OVER = "over"


class Connect(NamedTuple):
    """Connect a side of a channel; what is queued in its session is its first frame."""

    channel: Channel
    side: int
    url: str
    server_key: str


class Disconnect(NamedTuple):
    """Close the connection of a side; what is queued in its session still leaves."""

    channel: Channel
    side: int


class Emit(NamedTuple):
    """Tell the operators."""

    event: dict[str, Any]


Effect: TypeAlias = Connect | Disconnect | Emit


class Channel:
    """One Message VPN of a link."""

    def __init__(
        self,
        vpn: str,
        runtime: LinkRuntime,
        config: LinkConfig,
        incarnation: int,
        own_url: str,
        outbox: list[Effect],
        rng: random.Random,
        now: float,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Wait for the first tick.

        Args:
            vpn: the Message VPN.
            runtime: who this node is.
            config: of the link.
            incarnation: of the process.
            own_url: of the own router.
            outbox: takes effects.
            rng: for jitter.
            now: monotonic, in seconds, like every `now` here.
            wall_s: gives the time of the day in seconds.
        """
        self._wall_s = wall_s
        self.vpn = vpn
        self._runtime = runtime
        self._config = config
        self._incarnation = incarnation
        self._own_url = own_url
        self._outbox = outbox
        self._random = rng
        self.state = State.WAITING
        #: The sessions of both sides; None where there is no connection.
        self.sessions: list[LinkSession | None] = [None, None]
        #: Of the messages that come from a side.
        self.relays: list[Relay | None] = [None, None]
        #: When the state is looked at again: the next attempt, or the end of the one under way.
        self._due = now
        self._up_since = now
        self._pause_s = BACKOFF_FIRST_S
        self._attempts = 0
        #: Why it is not up; None if it is, or was not tried.
        self.error: AngariumError | None = None
        #: Codes that operators were told since it was up last.
        self._told: dict[int, None] = {}
        #: Of the queues of the link at a side.
        self.carriers: list[list[Carrier]] = [[], []]
        #: The wall clock of each router less our own, in ms.
        self._offsets_ms = [0, 0]
        #: When flows and producers that were refused are asked for again.
        self._open_at: float | None = None
        #: Codes with which messages were refused since it is up.
        self._refusals: dict[int, None] = {}
        #: Messages that a router refused, by code.
        self.refused: dict[int, int] = {}

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
            self._fail(error_for(errors.CONNECT_FAILED, f"no answer within {ATTEMPT_TIMEOUT_S:g} s"), now)
            return self._due
        wake = self._due if self.state is not State.UP else float("inf")
        if self._open_at is not None and now >= self._open_at:
            self._open_at = None
            for carrier in (*self.carriers[OWN], *self.carriers[FAR]):
                carrier.open_again()
        wake = wake if self._open_at is None else min(wake, self._open_at)
        for side in (OWN, FAR):
            session = self.sessions[side]
            if session is not None:
                self._take(side, session.tick(now), now)
                wake = min(wake, now + session.tick_interval_s)
        return wake

    def received(self, side: int, frames: list[bytes], now: float) -> None:
        """A router sent something."""
        session = self.sessions[side]
        if session is not None:
            self._take(side, session.receive(frames, now), now)

    def lost(self, side: int, reason: str, now: float) -> None:
        """The connection of a side is gone."""
        session = self.sessions[side]
        if session is not None:
            self._take(side, session.lose(error_for(errors.NOT_CONNECTED, reason)), now)

    def leave(self, now: float) -> None:
        """End it for good."""
        if self.state is not State.OVER:
            self._close(now)
            self.state = State.OVER

    # -- connecting ------------------------------------------------------------------------------------------

    def _call(self, now: float) -> None:
        """Connect to the neighbour, at the next of its addresses."""
        addresses = self._config.addresses
        if not addresses:
            detail = f"link {self._config.neighbour!r} names no address of the neighbour"
            self._fail(error_for(errors.CONNECT_FAILED, detail), now)
            return
        url = addresses[self._attempts % len(addresses)]
        self._attempts += 1
        self.state = State.CALLING
        node, node_id = self._runtime.node, self._runtime.identity.node_id
        self._greet(FAR, self._runtime.identity.secret, node, node_id, now)
        self._outbox.append(Connect(self, FAR, url, self._config.public_key))

    def _join(self, now: float) -> None:
        """Connect to the own router, on behalf of the node that answered."""
        far = self.sessions[FAR]
        assert far is not None
        assert far.welcome is not None
        answers = str(far.welcome.link.get("node", ""))
        if answers != self._config.neighbour:
            detail = f"link {self._config.neighbour!r} leads to node {answers!r}"
            self._fail(error_for(errors.LINK_WRONG_NODE, detail), now)
            return
        self.state = State.JOINING
        node_id = str(far.welcome.link.get("node_id", ""))
        self._greet(OWN, self._runtime.identity.local_secret, answers, node_id, now)
        self._outbox.append(Connect(self, OWN, self._own_url, self._runtime.local_key))

    def _greet(self, side: int, secret: str, node: str, node_id: str, now: float) -> None:
        """Make the session of a side; at its router it stands for the node of that name."""
        self._due = now + ATTEMPT_TIMEOUT_S
        link = {
            "node": node,
            "node_id": node_id,
            "cluster": self._runtime.identity.cluster,
            "incarnation": self._incarnation,
        }
        hello = Hello(self.vpn, wire.LINK_USERNAME, secret or None, keepalive_ms=KEEPALIVE_MS, link=link)
        session = LinkSession(hello, now)
        self.sessions[side], self.relays[side] = session, Relay(session)

    def _opened(self, side: int, now: float) -> None:
        session = self.sessions[side]
        assert session is not None
        assert session.welcome is not None
        said_ms = session.welcome.link.get("wall_ms", 0)
        self._offsets_ms[side] = int(said_ms) - int(self._wall_s() * 1000)
        if side == FAR:
            self._join(now)
            return
        self.state = State.UP
        self._up_since = now
        self.error = None
        self._told.clear()
        self._refusals.clear()
        for source, target in ((OWN, FAR), (FAR, OWN)):
            relay, session = self.relays[source], self.sessions[target]
            assert relay is not None
            assert session is not None
            relay.open(session)
            self._carry(source)

    def _carry(self, source: int) -> None:
        """Carry the queues of the link at one side to the other."""
        here, there = self.sessions[source], self.sessions[1 - source]
        assert here is not None
        assert there is not None
        assert here.welcome is not None
        assert there.welcome is not None
        queue = f"{wire.LINK_NAME_PREFIX}{there.welcome.node}"
        offset_ms = self._offsets_ms[source]
        for name in (queue, queue + wire.LINK_RETRY_SUFFIX):
            carrier = Carrier(here, there, name, offset_ms)
            self.carriers[source].append(carrier)
            carrier.open()

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
                for carrier in self.carriers[1 - side]:
                    carrier.go_on()
            elif kind is Exported:
                assert from_here is not None
                from_here.exported(event)
            elif kind is Imported and to_here is not None:
                to_here.is_synchronised |= event.is_complete
                to_here.go_on()
            elif kind is TableChanged and to_here is not None:
                to_here.set_table(event.epoch, event.slots)
            elif kind is Spooled:
                self._spooled(side, event, now)
            elif kind is Settled:
                self._settled(side, event, now)
            elif kind is Told and event.event == wire.FLOW_CLOSED:
                self._fail(error_for(event.code or errors.SHUTTING_DOWN, "a flow of the link ended"), now)
            elif kind is Replied and event.error is not None:
                self.error = event.error
                self._open_at = now + OPEN_AGAIN_S
            elif kind is Noticed:
                self.refused[event.code] = self.refused.get(event.code, 0) + event.messages
            elif kind is Opened:
                self._opened(side, now)
            elif kind is Closed:
                self._ended(side, event.error, now)

    def _spooled(self, side: int, event: Spooled, now: float) -> None:
        try:
            for carrier in self.carriers[side]:
                if carrier.flow == event.flow:
                    carrier.messages(event.parts, event.batches, int(self._wall_s() * 1000))
        except AngariumError as error:
            self._fail(error, now)

    def _settled(self, side: int, event: Settled, now: float) -> None:
        """A router settled what came from the other side."""
        if event.code:
            self._fail(error_for(event.code, "another session opened the producer of the link"), now)
            return
        for carrier in self.carriers[1 - side]:
            if carrier.producer == event.producer:
                for _, code, _ in event.nacks:
                    self._tell_message_refused(code)
                carrier.acked(event.upto, event.nacks)

    def _tell_message_refused(self, code: int) -> None:
        """Tell once in the life of a connection, for each code."""
        if code in self._refusals:
            return
        self._refusals[code] = None
        text = (
            f"node {self._config.neighbour!r} or this one refused a message of the link in Message VPN "
            f"{self.vpn!r}: {error_for(code)}; it is tried once more, then it goes to the dead message queue"
        )
        event = {
            "severity": "warning",
            "scope": "SYSTEM",
            "event": "SYSTEM_LINK_MESSAGE_REFUSED",
            "text": text,
        }
        self._outbox.append(Emit({**event, "link": self._config.neighbour, "vpn": self.vpn, "code": code}))

    def _ended(self, side: int, error: AngariumError | None, now: float) -> None:
        error = error or error_for(errors.SHUTTING_DOWN, "the router said goodbye")
        if side == FAR and error.code not in (*_PASSING, *self._told):
            self._tell_refused(error)
        self._fail(error, now)

    def _tell_refused(self, error: AngariumError) -> None:
        self._told[error.code] = None
        text = f"the link to node {self._config.neighbour!r} in Message VPN {self.vpn!r} was refused: {error}"
        event = {"severity": "error", "scope": "SYSTEM", "event": "SYSTEM_LINK_REFUSED", "text": text}
        self._outbox.append(
            Emit({**event, "link": self._config.neighbour, "vpn": self.vpn, "code": error.code})
        )

    # -- ends ------------------------------------------------------------------------------------------------

    def _fail(self, error: AngariumError, now: float) -> None:
        """Let go of both sides, and wait."""
        if error.code == errors.LINK_WRONG_NODE and error.code not in self._told:
            self._tell_refused(error)
        self.error = error
        if self.state is State.UP and now - self._up_since >= FORGIVE_AFTER_S:
            self._pause_s = BACKOFF_FIRST_S
        self._close(now)
        self._due = now + self._random.uniform(self._pause_s / 2, self._pause_s)
        self._pause_s = min(self._pause_s * 2, BACKOFF_MAX_S)

    def _close(self, now: float) -> None:
        for side in (OWN, FAR):
            session = self.sessions[side]
            if session is not None:
                session.leave()
                self._outbox.append(Disconnect(self, side))
        self.state = State.WAITING
        self._due = now

    def forget(self, side: int) -> None:
        """The connection of a side is closed."""
        self.sessions[side] = self.relays[side] = None
        self.carriers[side].clear()

    def describe(self) -> dict[str, Any]:
        """Give what `angarium link show` says of it."""
        own, far = self.relays
        return {
            "vpn": self.vpn,
            "state": self.state.value,
            "error": "" if self.error is None or self.state is State.UP else str(self.error),
            "attempts": self._attempts,
            "relayed_out": own.messages if own is not None else 0,
            "relayed_in": far.messages if far is not None else 0,
            "rounds_waiting": sum(relay.waiting for relay in self.relays if relay is not None),
            "wishes_waiting": sum(relay.untold for relay in self.relays if relay is not None),
            "discarded": sum(relay.discarded for relay in self.relays if relay is not None),
            "refused": {str(code): count for code, count in sorted(self.refused.items())},
            "queues": [carrier.describe() for side in self.carriers for carrier in side],
        }

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
