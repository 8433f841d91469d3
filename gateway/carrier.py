"""The carrier of a gateway process in one Message VPN: the session that its clients are attached to.

It opens when a client wants to attach, and closes a while after the last one has left. What clients publish in one turn
of the process leaves in rounds of the carrier, many clients in each; what they ask for leaves behind that, one request
of each client at a time. When its connection is lost, because the router died, those of them that can wait are attached
again, with the next one, and what they have published to be stored goes on; when it ends for another reason all are
told that they are over. Who wants to attach opens it again.

No I/O and no clock: the connection is given, and whoever has it calls `tick` at the end of each turn, and when it is
time. Guests are told only from inside of `tick` and what the connection calls, so they may call whatever they like
while they are told something.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from angarium import errors
from angarium.client.protocol.events import (
    Arrived,
    Closed,
    Delivered,
    Noticed,
    Opened,
    Replied,
    Retired,
    TableChanged,
)
from angarium.client.protocol.session import State
from angarium.errors import error_for
from angarium_server.frames.gateways import COUNTED_MAX, CountedFrame
from gateway.asking import Accepting, Asking
from gateway.attached import Attached, AttachState
from gateway.counting import Counting
from gateway.gathering import ALONE_ROWS, GATHERED_BYTES_MAX, Exchange, Gathering, Windows, send_rounds
from gateway.producing import Producing
from gateway.rights import NO_RIGHTS
from gateway.session import (
    Acknowledged,
    Alone,
    Brought,
    Costly,
    Ended,
    GatewaySession,
    Guaranteed,
    Judged,
    ProducerOpened,
    ProducerRefused,
    RightsChanged,
    Welcomed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.protocol.provisioning import Send
    from angarium.errors import AngariumError
    from gateway.attached import Guest, Login, Surroundings
    from gateway.line import Line

#: How long a client waits for its carrier, or for the next one, and so long what it has published does.
WAIT_S: Final = 10.0
#: Pauses between tries to open it, the first and the longest.
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0
#: How long it stays open without clients, so that one that comes and goes does not open it each time.
IDLE_S: Final = 60.0
#: The clock is looked at so often, and not in every turn.
LOOK_S: Final = 0.05
#: How long the router may take to say that it has heard BYE.
LEAVE_S: Final = 5.0
#: A will waits for its own delay.
WILL_MAX_S: Final = (1 << 32) - 1
#: Frames that wait for the socket before HELLO, SUBSCRIBE and so on of clients wait for those.
OUTGOING_FULL: Final = 2_000
#: Guests that are told of the end of their carrier in one turn: the ways of many protocols to say so are dear.
ENDINGS_PER_TURN: Final = 200
#: Refusals of the carrier that would not be others at the next try.
_FINAL: Final = (errors.VPN_NOT_ALLOWED, errors.VPN_UNAVAILABLE)

#: For the path of messages: to look up a member of an enumeration costs more than a call.
_SESSION_OPEN: Final = State.OPEN

_log = logging.getLogger("gateway")
_NEVER: Final = float("inf")
#: Takes the value of an answer, or the error, and the time.
Then: TypeAlias = "Callable[[Any, AngariumError | None, float], None]"


class Carrier:
    """The carrier in one Message VPN."""

    def __init__(self, vpn: str, around: Surroundings) -> None:
        self.vpn: Final = vpn
        self._around: Final = around
        self.no_rights = around.rights.find(NO_RIGHTS)
        #: The session and its connection; None between two of them.
        self._session: GatewaySession | None = None
        self._line: Line | None = None
        #: Connections that are closed and have yet to say so to the router.
        self._closing: list[Line] = []
        #: What clients have published: direct messages that have not left, and guaranteed ones.
        self.gathering = Gathering()
        self.producing: Producing[Attached] = Producing()
        self.counting = Counting()
        self.accepting = Accepting()
        self.asking = Asking()
        self.windows = Windows()
        #: What clients have published for each other.
        self.exchange = Exchange(is_used=around.exchanges)
        #: What takes the answers to what the gateway asked for itself, by number of the request.
        self._asked: dict[int, Then] = {}
        #: Those that have said HELLO and have not ended, by number.
        self._clients: dict[int, Attached] = {}
        #: Those that wait until they may say HELLO, the oldest first; some may have left.
        self._waiting: deque[Attached] = deque()
        #: Those that are open at the router and have left.
        self._leaving: deque[Attached] = deque()
        #: Those that have yet to be told that they are over.
        self._ending: deque[tuple[Attached, AngariumError]] = deque()
        #: When it may be opened again, and the pause after the next failure.
        self._open_at = 0.0
        self._pause_s = BACKOFF_FIRST_S
        #: Until when what was published to be stored waits for the next session.
        self._kept_until = 0.0
        #: Whether the session ends because its connection is lost.
        self._is_lost = False
        #: Why it is not open; None before the first failure.
        self._error: AngariumError | None = None
        #: Since when it has no clients; None while it has some. And until when it waits for the answer to its BYE.
        self._idle_since: float | None = None
        self._leave_until = 0.0
        #: When the clock is looked at next, and when that is wanted.
        self._look_at = self._due_at = 0.0
        #: How far apart rounds of direct messages leave, at least, and when the last one has.
        self.pace_s = self._left_at = 0.0
        self._is_stopping = self._was_open = False
        #: Messages of clients that have left for the router.
        self.published = 0
        #: Direct messages that the router refused by error code, those that it discarded for want of room here, and
        #: those that may be lost because the carrier was.
        self.refused: Counter[int] = Counter()
        self.discarded = 0
        self.lost = 0

    # What clients want.

    def attach(self, guest: Guest, login: Login, now: float) -> Attached:
        """Log a client in; its guest is told `welcomed` or `refused` later."""
        client = Attached(self, guest, login, now + WAIT_S)
        self._waiting.append(client)
        self._idle_since, self._look_at = None, now  # if we stop, it is refused before it is let in
        return client

    def adopt(self, client: Attached) -> None:
        """Log a client in that was elsewhere before."""
        client.move(self)
        self._waiting.appendleft(client)
        self._idle_since, self._look_at = None, 0.0

    def has_room(self) -> bool:
        """Tell whether another message of a client is taken."""
        session = self._session
        has_room = self.gathering.size_bytes < GATHERED_BYTES_MAX and not self.exchange.is_behind
        return has_room and session is not None and session.state is _SESSION_OPEN

    def has_room_guaranteed(self) -> bool:
        """Tell whether another guaranteed message of a client is taken."""
        return self.producing.has_room() and self._is_open

    @property
    def _is_open(self) -> bool:
        return self._session is not None and self._session.is_open

    @property
    def _is_wanted(self) -> bool:
        """Whether it is to be opened, if it is not."""
        return bool(self._waiting or self.producing.rows)

    def ask(self, send: Send, then: Then) -> bool:
        """Ask the router for an operation; false if that cannot be now. If the session ends, that is the answer."""
        session = self._session
        if session is None or not session.can_ask():
            return False
        self._asked[send(session)] = then
        self._send()
        return True

    def leaves(self, client: Attached) -> None:
        """Have a client leave."""
        state = client.state
        if state is AttachState.OPEN:
            del self._clients[client.number]
            self.asking.over(client)
            client.behind = self.gathering.end, self.producing.end
            self._leaving.append(client)
        elif state in (AttachState.RENOUNCED, AttachState.OVER):
            return
        client.stop(AttachState.RENOUNCED if state is AttachState.GREETING else AttachState.OVER)

    def throw_out(self, client: Attached, error: AngariumError) -> None:
        """End a client that wants too much."""
        client.farewell = (WILL_MAX_S,)
        self.leaves(client)
        client.stop(AttachState.ENDING)
        self._ending.append((client, error))

    # Out.

    def _flush(self, now: float) -> None:
        session = self._session
        if session is None:
            if self._is_wanted and now >= self._open_at:
                self._open(now)
        elif session.state is _SESSION_OPEN:
            if self.producing.rows:
                self._send_guaranteed(session, now)
            if self.gathering.rows and self._round_at() <= now:
                self._left_at = now
                self.published += send_rounds(session, self.gathering, self.windows, self.exchange)
            if self.accepting.gathered:
                self.accepting.send(session, _has_room)
            if self._leaving or self.asking or self._waiting:
                self._send_leaving(session)
                self.asking.send(session, _has_room)
                self._send_hellos(session)
            if self.counting.wake_at <= now and _has_room(session):
                session.count(self.counting.frame(now))
        self._send()

    def _send(self) -> None:
        if self._line is not None and self._session is not None and (frames := self._session.take_outgoing()):
            self._line.send(frames)

    def _send_guaranteed(self, session: GatewaySession, now: float) -> None:
        """Send what is to be stored, before direct messages: it waits for the node besides, they do not."""
        producing = self.producing
        if producing.open_at() <= now and session.can_ask():
            assert session.welcome is not None
            producing.is_opening = True
            session.open_producer(self._around.identity.producer(session.welcome.node))
        self.published += producing.send_rounds(session)

    def _send_leaving(self, session: GatewaySession) -> None:
        """Say BYE for those that left, and before it what was counted of them last."""
        leaving = self._leaving
        while self._may_dismiss() and _has_room(session):
            some = [leaving.popleft()]
            while len(some) < COUNTED_MAX and self._may_dismiss():
                some.append(leaving.popleft())
            if counts := [client.counts() for client in some if self.counting.forget(client)]:
                session.count(CountedFrame(counts))
            for client in some:
                client.dismiss(session)

    def _may_dismiss(self) -> bool:
        """Tell whether somebody has left of whom nothing is here any more."""
        if not self._leaving:
            return False
        direct, guaranteed = self._leaving[0].behind
        return self.gathering.taken >= direct and self.producing.taken >= guaranteed

    def _send_hellos(self, session: GatewaySession) -> None:
        waiting = self._waiting
        while waiting and _has_room(session):
            client = waiting.popleft()
            if client.state is AttachState.WAITING:
                assert client.login is not None
                client.state = AttachState.GREETING
                client.number = next(self._around.numbers)
                self._clients[client.number] = client
                session.greet(client.number, client.login.hello(self.vpn, self._around.identity.secret))

    # In.

    def _received(self, frames: list[bytes], now: float) -> None:
        assert self._session is not None
        self._act(self._session.receive(frames, now), now)

    def _act(self, events: list[Any], now: float) -> None:
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, now)

    def _delivered(self, event: Delivered, now: float) -> None:
        self.discarded += event.dropped
        is_passed_on = True
        for delivery in event.deliveries:
            is_passed_on = self._around.on_rows(self.vpn, delivery.rows, now) and is_passed_on
        if is_passed_on and self._session is not None:
            self._session.passed_on()

    def hand_over(self, now: float) -> None:
        """Pass on what clients have published for each other."""
        exchange = self.exchange
        rows, exchange.rows = exchange.rows, []
        exchange.is_behind = not self._around.on_rows(self.vpn, rows, now)

    def passed_on(self) -> None:
        """Take note that all rows that came have been passed on: more may come."""
        self.exchange.is_behind = False
        if self._session is not None:
            self._session.passed_on()

    def _noticed(self, event: Noticed, _now: float) -> None:
        if event.code != errors.NO_SUBSCRIPTION_MATCH:
            self.refused[event.code] += event.messages
        for client, refused in self.windows.refused(event.round, event.detail):
            self._tell(cast("Attached", client), refused, event.code)

    def _retired(self, event: Retired, now: float) -> None:
        assert self._session is not None
        self.exchange.is_starved = self._session.was_short
        for client in self.windows.retired(event.round):
            self._tell(cast("Attached", client), cast("Attached", client).go_on, now)

    def _costly(self, event: Costly, _now: float) -> None:
        """Have its clients publish one by one, so ask to be told when that round is done."""
        assert self._session is not None
        if self.windows.costly(event.round):
            self._session.ask_retired()

    def _alone(self, event: Alone, _now: float) -> None:
        self.exchange.is_alone = event.is_alone

    def _replied(self, event: Replied, now: float) -> None:
        self._asked.pop(event.request)(event.value, event.error, now)

    def _table_changed(self, event: TableChanged, _now: float) -> None:
        self.gathering.cut_by(event.epoch, event.slots)
        self.producing.cut_by(event.epoch, event.slots)

    def _of_producer(self, event: ProducerOpened | ProducerRefused | Acknowledged, now: float) -> None:
        """Take what the router says of the producer; another process that has opened it is our successor."""
        assert self._session is not None
        try:
            self.producing.hear(event, now)
        except errors.AngariumError as error:
            self._act(self._session.lose(error), now)

    def _tell_settled(self, now: float) -> None:
        for client, settled in self.producing.settled().items():
            self._tell(client, client.settled, settled, now)

    def _welcomed(self, event: Welcomed, now: float) -> None:
        client = self._clients.get(event.number)
        assert self._session is not None
        if client is None:
            return
        # Who goes on has what a token stands for: else somebody of its name has been there meanwhile.
        is_another = client.is_away and not event.welcome.resumed
        if client.state is not AttachState.GREETING or is_another:
            del self._clients[event.number]
            self._session.dismiss(event.number, client.farewell)
            if is_another:
                self._tell(client, client.refuse, error_for(errors.CLIENT_NAME_IN_USE), now)
        else:
            client.rights = self._around.rights.find(event.welcome.rights)
            bytes_max = min(event.welcome.max_message_bytes, self.gathering.message_bytes_max)
            self._tell(client, client.welcomed, event.welcome, bytes_max, now)

    def _ended(self, event: Ended, now: float) -> None:
        client = self._clients.pop(event.number, None)
        if client is None:
            return
        self.counting.forget(client)
        self.asking.over(client)
        if client.state is AttachState.OPEN:
            self._tell(client, client.end, event.error, now)
        elif client.state is AttachState.GREETING:
            error = event.error or error_for(errors.SESSION_UNKNOWN)
            if error.code == errors.OTHER_VPN and not client.has_moved:
                self._around.move(client, error.detail)
            else:
                self._tell(client, client.refuse, error, now)

    def _judged(self, event: Judged, now: float) -> None:
        if client := self._clients.get(event.number):
            self._tell(client, client.judged, event, now)

    def _brought(self, event: Brought, now: float) -> None:
        self.discarded += event.dropped
        if client := self._clients.get(event.number):
            self._tell(client, client.brought, event, now)

    def _guaranteed(self, event: Guaranteed, now: float) -> None:
        client = self._clients.get(event.number)
        if client is None:
            return
        inner = event.event
        if isinstance(inner, Replied):
            self.asking.over(client)
            self._tell(client, client.replied, inner, now)
        elif isinstance(inner, Arrived):
            self._tell(client, client.spooled, inner, now)
        elif isinstance(inner, Acknowledged):
            self._tell(client, client.acked, inner, now)
        else:
            self._tell(client, client.indicated, inner, now)

    def _rights_changed(self, event: RightsChanged, _now: float) -> None:
        rights = self._around.rights.find(event.rights)
        for number in event.numbers:
            if client := self._clients.get(number):
                client.rights = rights

    def _tell(self, client: Attached, tell: Callable[..., None], *what: Any) -> None:
        """Tell a client something; a fault of ours that one client can provoke costs that client only."""
        try:
            tell(*what)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("what a client was told led to a fault of the gateway")
            if client.state is AttachState.OPEN or client.is_away:
                self.throw_out(client, error_for(errors.INTERNAL))

    # Beginning and end.

    def _open(self, now: float) -> None:
        self._session = GatewaySession(self._around.identity.hello(self.vpn), now)
        self._line = self._around.connect(self._received, self._send, self._line_lost)
        self._look_at = 0.0

    def _opened(self, event: Opened, _now: float) -> None:
        self._look_at, self._was_open, self._error = 0.0, True, None
        self._pause_s = BACKOFF_FIRST_S
        self.gathering.open(event.welcome)
        self.producing.limit(event.welcome)

    def _line_lost(self, error: AngariumError, now: float) -> None:
        assert self._session is not None
        self._is_lost = True
        self._act(self._session.lose(error), now)

    def _closed(self, event: Closed, now: float) -> None:
        """Take note that the session is over: all clients with it, but for those that were not in."""
        session, line = self._session, self._line
        assert session is not None
        assert line is not None
        self._session = self._line = None
        self._look_at = 0.0
        line.close(deque())
        self._closing.append(line)
        error = event.error or error_for(errors.SHUTTING_DOWN, "the gateway has left the router")
        if event.error is None:
            self._open_at = now
        else:
            self._error = error
            self._open_at = now + self._around.random.uniform(self._pause_s / 2, self._pause_s)
            self._pause_s = min(self._pause_s * 2, BACKOFF_MAX_S)
        self.lost += session.unretired_rows() + len(self.gathering.rows)
        is_lost, self._is_lost = self._is_lost and not self._is_stopping, False
        if session.welcome is not None:
            self.gathering, self.windows = Gathering(), Windows()
            self.exchange.restart()
            self._keep_published(now, is_lost=is_lost)
        self._end_clients(error, now, is_lost=is_lost)
        asked, self._asked = self._asked, {}
        for then in asked.values():
            then(None, error, now)
        if session.welcome is None and error.code in _FINAL:
            self._refuse_waiting(error, now)

    def _keep_published(self, now: float, *, is_lost: bool) -> None:
        """Have what is not stored for the next session, or forget it: its clients are over, and send it again."""
        if is_lost:
            self.producing.lose()
            self._kept_until = now + WAIT_S
        else:
            self.producing = Producing()

    def _end_clients(self, error: AngariumError, now: float, *, is_lost: bool) -> None:
        clients = [*self._clients.values()]
        self.asking = Asking()
        if is_lost:
            for client in clients:
                if client.state is AttachState.OPEN:
                    self._tell(client, client.suspend, now + WAIT_S, now)
        self._clients.clear()
        self._leaving.clear()
        self.counting = Counting()
        self.accepting = Accepting()
        for client in clients:
            if client.state is AttachState.GREETING:
                client.state, client.number = AttachState.WAITING, 0
        # Those that were to be let in have waited for longer.
        again = [one for one in clients if one.state is AttachState.WAITING]
        again.sort(key=lambda one: one.wait_until)
        self._waiting.extendleft(reversed(again))
        for client in clients:
            if client.state is AttachState.OPEN:
                client.stop(AttachState.ENDING)
                self._ending.append((client, error))

    def _refuse_waiting(self, error: AngariumError, now: float) -> None:
        waiting, self._waiting = self._waiting, deque()
        for client in waiting:
            if client.state is AttachState.WAITING:
                self._tell(client, client.refuse, error, now)

    def _refuse_overdue(self, now: float) -> None:
        """Refuse those that have waited for too long, and forget those that have left."""
        waiting = self._waiting
        while waiting and (waiting[0].state is not AttachState.WAITING or now >= waiting[0].wait_until):
            client = waiting.popleft()
            if client.state is AttachState.WAITING:
                detail = f"the gateway has no session with the router: {self._error or 'it does not answer'}"
                self._tell(client, client.refuse, error_for(errors.VPN_UNAVAILABLE, detail), now)

    def _tell_endings(self, now: float) -> None:
        for _ in range(min(len(self._ending), ENDINGS_PER_TURN)):
            client, error = self._ending.popleft()
            if client.state is AttachState.ENDING:
                self._tell(client, client.end, error, now)

    def stop(self) -> None:
        """Let nobody in any more, and leave when what clients brought has left."""
        self._is_stopping = True
        self._look_at = 0.0

    @property
    def is_gone(self) -> bool:
        """Tell whether nothing is left of it: no session, and no connection."""
        return self._session is None and not self._closing

    def is_forgotten(self, now: float) -> bool:
        """Tell whether nobody misses it: it was never open, or not for a while, and nobody waits or is to be told."""
        is_idle = self.is_gone and not (self._is_wanted or self._ending)
        return is_idle and now >= self._open_at + IDLE_S * self._was_open

    # Time.

    def tick(self, now: float) -> float:
        """Do what is due, and end a turn: send what it brought; gives when to come again."""
        if (wake := self._quiet_until(now)) > now:  # all that came was for clients
            return wake
        if self._line is not None and self._line.wake_at <= now:
            self._line.tick(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(now)
        if self._ending:
            self._tell_endings(now)
        if self.producing.has_settled():
            self._tell_settled(now)
        self._flush(now)
        wake = self._quiet_until(now)
        return wake if wake > now else self._wake_at(now)

    def _quiet_until(self, now: float) -> float:
        """Give when `tick` is wanted if nothing waits for it, as behind most messages; 0 if something does."""
        session, line = self._session, self._line
        if session is None or line is None or session.state is not _SESSION_OPEN or now >= self._look_at:
            return 0.0
        if self.producing.rows or self.accepting.gathered or session.take_outgoing():
            return 0.0
        if self._waiting or self.asking or self._leaving or self._ending:
            return 0.0
        if self.producing.waiting and self.producing.has_settled():
            return 0.0
        wake = self._round_at() if self.gathering.rows else _NEVER
        return min(wake, self._due_at, self.counting.wake_at, line.wake_at)

    def _round_at(self) -> float:
        """Give when the next round of direct messages may leave."""
        is_full = self.windows.is_pressed or len(self.gathering.rows) >= ALONE_ROWS
        return self._left_at + max(0.0 if is_full else self.exchange.pause_s, self.pace_s)

    def _look(self, now: float) -> None:
        """Do what time brings."""
        if self._session is not None:
            self._act(self._session.tick(now), now)
        for line in self._closing:
            line.tick(now)
        self._closing = [line for line in self._closing if not line.is_gone]
        if self._is_stopping:
            self._refuse_waiting(error_for(errors.SHUTTING_DOWN), now)
        if self.producing.rows and not self._is_open and now >= self._kept_until:
            self.producing = Producing()
        self._refuse_overdue(now)
        self._close_idle(now)
        self._due_at = max(self._time_at(now), self._look_at)

    def _close_idle(self, now: float) -> None:
        """Leave when there have been no clients for a while."""
        session = self._session
        if session is None or not session.is_open:
            if session is not None and session.state is State.LEAVING and now >= self._leave_until:
                self._act(session.lose(error_for(errors.NOT_CONNECTED, "no answer to BYE")), now)
            return
        has_clients = bool(self._clients or self._waiting) and not self._is_stopping
        if has_clients or self._leaving or self.gathering.rows:
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        if self._is_stopping or now - self._idle_since >= IDLE_S:
            session.leave()
            self._leave_until = now + LEAVE_S

    def _wake_at(self, now: float) -> float:
        """Give when `tick` is wanted."""
        session, line, producing = self._session, self._line, self.producing
        if now >= self._look_at or self._ending or producing.has_settled():
            return now
        if session is None or line is None:
            return min(self._due_at, self._open_at if self._is_wanted else _NEVER)
        wake = min(self._due_at, line.wake_at)
        if session.state is not _SESSION_OPEN:
            return wake
        if self.gathering.rows or producing.rows:
            if session.can_publish():
                at = self._round_at() if self.gathering.rows else _NEVER
                if at <= now or producing.can_send():
                    return now
                wake = min(wake, at)
            wake = min(wake, producing.open_at())
        at = self.counting.wake_at
        if self._waiting or self.asking or self.accepting.gathered or self._may_dismiss():
            at = now
        return at if at < wake and _has_room(session) else wake

    def _time_at(self, now: float) -> float:
        """Give when time brings something."""
        at = _NEVER if self._session is None else now + self._session.tick_interval_s
        if self._idle_since is not None:
            at = min(at, self._idle_since + IDLE_S)
        if self._waiting:
            at = min(at, self._waiting[0].wait_until)
        return min([at, *[line.wake_at for line in self._closing]])

    # Telling.

    def describe(self) -> dict[str, Any]:
        """Give what metrics and operators are told of it."""
        return {
            "vpn": self.vpn,
            "is_open": self._is_open,
            "clients": len(self._clients),
            "waiting": len(self._waiting),
            "gathered_messages": len(self.gathering.rows) + len(self.producing.rows),
            "unacknowledged": self.producing.unacknowledged,
            "published": self.published,
            "refused": {str(code): count for code, count in sorted(self.refused.items())},
            "discarded": self.discarded,
            "lost": self.lost,
            "error": "" if self._error is None else str(self._error),
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert (self._session is None) == (self._line is None)
        if self._session is not None:
            self._session.validate()
            assert self._session.state is not State.CLOSED
        self.gathering.validate()
        self.producing.validate()
        self.windows.validate()
        self.exchange.validate()
        for number, client in self._clients.items():
            assert client.number == number
            assert client.state in (AttachState.GREETING, AttachState.OPEN, AttachState.RENOUNCED)
            client.validate()
        assert self._session is not None or not (self._clients or self.asking or self._leaving)
        self.asking.validate()
        assert [*self._clients] == sorted(self._clients)


def _has_room(session: GatewaySession) -> bool:
    """Tell whether frames of clients may join those that wait for the socket."""
    return len(session.take_outgoing()) < OUTGOING_FULL


_HANDLERS: Final[dict[type[Any], Callable[[Carrier, Any, float], None]]] = {
    Opened: Carrier._opened,
    Closed: Carrier._closed,
    Delivered: Carrier._delivered,
    Noticed: Carrier._noticed,
    Replied: Carrier._replied,
    Retired: Carrier._retired,
    Costly: Carrier._costly,
    Alone: Carrier._alone,
    TableChanged: Carrier._table_changed,
    Welcomed: Carrier._welcomed,
    Ended: Carrier._ended,
    Judged: Carrier._judged,
    Brought: Carrier._brought,
    Guaranteed: Carrier._guaranteed,
    RightsChanged: Carrier._rights_changed,
    ProducerOpened: Carrier._of_producer,
    ProducerRefused: Carrier._of_producer,
    Acknowledged: Carrier._of_producer,
}
