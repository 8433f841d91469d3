"""A client of the simulation: the SDK's own state machine and row gatherer, and an application around them.

The application publishes, subscribes, unsubscribes, acts as a subscription manager, consumes at once, late or
not at all, and comes back when its connection ends. It writes the history down as it sees it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from angarium import errors, wire
from angarium.message import Row, pack_rows
from angarium.session import (
    Answered,
    ClientSession,
    Closed,
    Delivered,
    EgressWindow,
    Event,
    Hello,
    Noticed,
    Opened,
    Retired,
    State,
    TableChanged,
)
from angarium.slots import Round, RowGatherer
from event_history import FOREVER, ConnectionRecord, Delivery, SubscriptionRecord
from simulated_network import Connection, Endpoint, Frames

if TYPE_CHECKING:
    import random

    from event_history import History
    from simulated_network import Loop
    from simulated_node import SimulatedNode

#: A connection attempt without an answer is given up after so long.
ATTEMPT_TIMEOUT_S = 1.5
#: An application comes back after so long at most.
RETURN_MAX_S = 0.4
KEEPALIVE_MS = 500
#: More messages than any run has, so that such a window never closes.
WIDE_WINDOW = 1_000_000
#: What a message carries beside its number, at most.
PADDING_MAX = 120
#: A few are so large that small queues overflow.
LARGE = 1500


class ClientPlan(NamedTuple):
    """What kind of client it is."""

    name: str
    vpn: str
    username: str
    password: str | None = None
    local_priority: int = 1
    no_local: bool = False
    #: Messages that the router may send ahead.
    window: int = WIDE_WINDOW
    #: Consumes at once; else from time to time, when `consume` is called.
    is_prompt: bool = True
    #: Whether its client profile may elide.
    is_eliding: bool = False
    #: Cuts its batches by the newest table it has; else leaves that to the router.
    is_cutting: bool = True
    #: Never takes over a new table on a connection.
    is_stale: bool = False


#: (text, deliver always).
Wish = tuple[str, bool]
#: (record, whether it is asked for rather than given back).
Asked = list[tuple[SubscriptionRecord, bool]]


class SimulatedClient:
    """One client over all its connections."""

    def __init__(
        self, loop: Loop, rng: random.Random, node: SimulatedNode, history: History, plan: ClientPlan
    ) -> None:
        self.loop = loop
        self._rng = rng
        self._node = node
        self._history = history
        self.plan = plan
        self._window = EgressWindow(plan.window, 1 << 40 if plan.is_prompt else 60 * plan.window)
        self._gatherer = RowGatherer()
        #: The connection in use, with its session and record; None in between.
        self.connection: Connection | None = None
        self.session: ClientSession | None = None
        self.record: ConnectionRecord | None = None
        #: What it wants to be subscribed to, by itself.
        self.wishes: dict[Wish, None] = {}
        #: What it asked the router for on this connection: (filter, flag) -> record.
        self.held: dict[Wish, SubscriptionRecord] = {}
        self._requests: dict[int, Asked] = {}
        #: Request -> whose managed subscription shall go, and when that was asked.
        self._removals: dict[int, tuple[ConnectionRecord, str, float]] = {}
        #: Messages and bytes that the application has not consumed.
        self._unconsumed: deque[tuple[int, int]] = deque()
        #: When PING n was sent, by n.
        self._pings: dict[int, float] = {}
        self._last_ping = 0
        self._token: bytes | None = None
        self._client_name = plan.name
        self._inbox: deque[Frames] = deque()
        self.is_paused = False
        #: True while the application takes everything at once.
        self.is_consuming = plan.is_prompt

    # Connecting.

    def connect(self) -> None:
        """Open a connection if there is none; tries again until it works."""
        if self.connection is not None:
            return
        if not self._node.is_listening or self.is_paused:
            self._return_later()
            return
        plan = self.plan
        hello = Hello(
            vpn=plan.vpn,
            username=plan.username,
            password=plan.password,
            client_name=self._client_name,
            local_priority=plan.local_priority,
            no_local=plan.no_local,
            token=self._token,
            keepalive_ms=KEEPALIVE_MS,
        )
        record = self.record = self._history.connect(plan.name, plan.vpn, plan.username)
        record.no_local, record.priority = plan.no_local, plan.local_priority
        record.is_prompt, record.is_eliding = plan.is_prompt, plan.is_eliding
        session = self.session = ClientSession(hello, self._window, self.loop.now)
        connection: Connection | None = None

        def arrived(frames: Frames) -> None:
            if self.connection is connection:
                self._receive(frames)

        def ended() -> None:
            if self.connection is connection:
                self._take(session.lose(errors.error_for(errors.NOT_CONNECTED, "the connection is gone")))

        connection = self.connection = self._node.accept(Endpoint(arrived, ended), "127.0.0.1")
        self._transmit()
        self._tick_later(session)
        self.loop.after(ATTEMPT_TIMEOUT_S, lambda: self._give_up(session))

    def _give_up(self, session: ClientSession) -> None:
        if self.session is session and session.state is State.GREETING:
            self._end(None, is_noticed=True)

    def _return_later(self) -> None:
        self.loop.after(0.05 + self._rng.random() * RETURN_MAX_S, self.connect)

    def crash(self, *, is_noticed: bool) -> None:
        """The process dies without BYE and comes back as a new one."""
        self._token = None
        self._end(None, is_noticed=is_noticed)

    def leave(self) -> None:
        """Say BYE; it comes back afterwards."""
        if self.session is not None and self.session.state is State.OPEN and not self.is_paused:
            self._token = None
            self.session.leave()
            self._transmit()

    def _end(self, code: int | None, *, is_noticed: bool) -> None:
        record, connection = self.record, self.connection
        if connection is None or record is None:
            return
        record.closed_at = self.loop.now
        record.close_code = code
        connection.close_near(is_noticed=is_noticed)
        self.connection = self.session = self.record = None
        self.held.clear()
        self._requests.clear()
        self._removals.clear()
        self._pings.clear()
        self._last_ping = 0
        self._inbox.clear()
        self._return_later()

    @property
    def is_open(self) -> bool:
        """Tell whether it has an open session."""
        return self.session is not None and self.session.state is State.OPEN

    @property
    def is_settled(self) -> bool:
        """Tell whether it has an open session, and nothing is wrong with the connection."""
        connection = self.connection
        return (
            self.is_open
            and not self.is_paused
            and connection is not None
            and not any(pipe.closed or pipe.stalled for pipe in (connection.up, connection.down))
        )

    # Time.

    def _tick_later(self, session: ClientSession) -> None:
        self.loop.after(session.tick_interval_s, lambda: self._tick(session))

    def _tick(self, session: ClientSession) -> None:
        if self.session is not session:
            return
        if not self.is_paused:
            self.tick()
        self._tick_later(session)

    def tick(self) -> None:
        """Let the session look at the clock."""
        session = self.session
        if session is None:
            return
        self._take(session.tick(self.loop.now))
        if session._last_ping != self._last_ping:
            self._last_ping = session._last_ping
            self._pings[self._last_ping] = self.loop.now
        self._transmit()

    def probe(self) -> None:
        """Send a PING of one's own, whose answer proves that everything before it has come."""
        session = self.session
        if session is not None and self.is_open:
            session._pinged_at = -FOREVER
            self.tick()

    def pause(self, duration_s: float) -> None:
        """Stop the process for a while; frames queue."""
        self.is_paused = True
        self.loop.after(duration_s, self._resume)

    def _resume(self) -> None:
        self.is_paused = False
        while self._inbox and not self.is_paused:
            self._receive(self._inbox.popleft())
        self.consume(0)

    # Frames.

    def _receive(self, frames: Frames) -> None:
        if self.is_paused:
            self._inbox.append(frames)
            return
        session, record = self.session, self.record
        if session is None or record is None:
            return
        if frames[0] == wire.DELIVER:
            self._check_credit(session, record)
        elif frames[0] == wire.PONG:
            sent_at = self._pings.pop(wire.unpack(frames[1])[0], None)
            if sent_at is not None:
                record.proven_until = sent_at
                record.answers.append((sent_at, self.loop.now))
        self._take(session.receive(frames, self.loop.now))
        self._transmit()

    def _check_credit(self, session: ClientSession, record: ConnectionRecord) -> None:
        messages, size_bytes = session._received
        if messages >= session._granted[0] or size_bytes >= session._granted[1]:
            text = f"{messages} messages and {size_bytes} bytes had come, granted were {session._granted}"
            record.overdrafts.append(text)

    def _transmit(self) -> None:
        session, connection = self.session, self.connection
        if session is None or connection is None:
            return
        outgoing = session.take_outgoing()
        while outgoing:
            connection.up.send(outgoing.popleft())

    def _take(self, events: list[Event]) -> None:
        record, now = self.record, self.loop.now
        for event in events:
            if record is None:
                return
            if isinstance(event, Delivered):
                self._delivered(record, event)
            elif isinstance(event, Retired):
                record.retire(event.round, now)
            elif isinstance(event, Answered):
                self._answered(event)
            elif isinstance(event, Noticed):
                if event.code == errors.SHARD_UNAVAILABLE:
                    record.lost_rows += event.messages
                else:
                    record.refusals[event.code] = record.refusals.get(event.code, 0) + event.messages
            elif isinstance(event, TableChanged):
                if not self.plan.is_stale:
                    self._gatherer.set_table(event.epoch, event.slots)
            elif isinstance(event, Opened):
                self._opened(record, event)
            elif isinstance(event, Closed):
                self._closed(record, event)

    def _opened(self, record: ConnectionRecord, event: Opened) -> None:
        welcome = event.welcome
        record.opened_at = self.loop.now
        record.session = welcome.session
        self._token, self._client_name = welcome.token, welcome.client_name
        self._gatherer.set_table(welcome.epoch, welcome.slots)
        self._gatherer.set_limits(welcome.max_message_bytes, welcome.max_batch_rows, welcome.max_batch_bytes)
        session = self.session
        if session is not None:
            session.renew_credit()  # the application may have consumed while HELLO was under way
        self.ask(list(self.wishes))

    def _closed(self, record: ConnectionRecord, event: Closed) -> None:
        code = None if event.error is None else event.error.code
        if event.error is None:
            record.retire(max(record.rounds, default=0), self.loop.now)  # BYE is answered after all retired
        if code == errors.DISCONNECTED_BY_OPERATOR:
            self._token = None
        self._end(code, is_noticed=True)

    def _delivered(self, record: ConnectionRecord, event: Delivered) -> None:
        now, messages = self.loop.now, self._history.messages
        record.dropped += event.dropped
        for delivery in event.deliveries:
            for row in delivery.rows:
                payload = row[wire.ROW_PAYLOAD]
                number = payload.partition(b".")[0]
                if number.isdigit():
                    record.deliveries.append(Delivery(messages[int(number)], delivery.share, now))
            self._unconsumed.append((len(delivery.rows), delivery.size_bytes))
        if self.is_consuming:
            self.consume(len(self._unconsumed))

    def consume(self, deliveries: int) -> None:
        """Let the application take so many deliveries."""
        while deliveries > 0 and self._unconsumed:
            self._window.release(*self._unconsumed.popleft())
            deliveries -= 1
        if self.session is not None and not self.is_paused and self.session.renew_credit():
            self._transmit()

    @property
    def unconsumed(self) -> int:
        """Count the deliveries that the application has not taken."""
        return len(self._unconsumed)

    # Subscribing.

    def ask(self, wishes: list[Wish]) -> None:
        """Subscribe; what is asked for stays wanted on the next connections."""
        self.wishes.update(dict.fromkeys(wishes))
        record, session = self.record, self.session
        new = [wish for wish in wishes if wish not in self.held]
        if record is None or session is None or not session.can_request() or not new:
            return
        asked: Asked = []
        for text, always in new:
            one = SubscriptionRecord(record, text, self.loop.now, deliver_always=always)
            record.subscriptions.append(one)
            self.held[text, always] = one
            asked.append((one, True))
        self._requests[session.subscribe([(text, int(always)) for text, always in new])] = asked
        self._transmit()

    def give_back(self, wishes: list[Wish]) -> None:
        """Unsubscribe."""
        for wish in wishes:
            self.wishes.pop(wish, None)
        session = self.session
        known = [wish for wish in wishes if wish in self.held]
        if session is None or not session.can_request() or not known:
            return
        asked: Asked = []
        for wish in known:
            one = self.held.pop(wish)
            one.leaving_at = self.loop.now
            asked.append((one, False))
        self._requests[session.unsubscribe([(text, int(always)) for text, always in known])] = asked
        self._transmit()

    def manage(self, target: SimulatedClient, text: str, *, is_wanted: bool) -> None:
        """Act as a subscription manager on another client."""
        session, theirs = self.session, target.record
        if session is None or not session.can_request() or theirs is None:
            return
        filters = [(text, 0)]
        if is_wanted:
            one = SubscriptionRecord(
                theirs, text, self.loop.now, deliver_always=False, asker=self.plan.username
            )
            theirs.subscriptions.append(one)
            self._requests[session.subscribe(filters, target.plan.name)] = [(one, True)]
        else:
            mine = [one for one in theirs.subscriptions if one.asker and one.text == text]
            for one in mine:
                one.leaving_at = min(one.leaving_at, self.loop.now)
            number = session.unsubscribe(filters, target.plan.name)
            # Of others that are asked for meanwhile, nobody but the router knows whether they came first.
            self._requests[number] = [(one, False) for one in mine if one.confirmed_at < FOREVER]
            self._removals[number] = (theirs, text, self.loop.now)
        self._transmit()

    def _answered(self, event: Answered) -> None:
        asked = self._requests.pop(event.request)
        now = self.loop.now
        theirs, text, since = self._removals.pop(event.request, (None, "", 0.0))
        for one in theirs.subscriptions if theirs is not None else ():
            if one.asker and one.text == text and one.confirmed_at >= since:
                one.leaving_at = min(one.leaving_at, since)
        for (one, is_wanted), error in zip(asked, event.results * len(asked), strict=False):
            if is_wanted:
                one.confirmed_at = now
                one.refused = None if error is None else error.code
                if error is not None:
                    for wish in [wish for wish, held in self.held.items() if held is one]:
                        del self.held[wish]
                        self.wishes.pop(wish, None)
                elif one.asker:
                    self._note_successors(one)
            elif error is None or error.code == errors.SUBSCRIPTION_NOT_FOUND:
                one.gone_at = min(one.gone_at, now)

    def _note_successors(self, one: SubscriptionRecord) -> None:
        """The target may have come back meanwhile; then its new connection may have the subscription."""
        theirs = one.connection
        for record in self._history.connections[theirs.number :]:
            if record.client == theirs.client:
                other = SubscriptionRecord(
                    record, one.text, one.asked_at, deliver_always=False, asker=one.asker
                )
                record.subscriptions.append(other)

    # Publishing.

    def can_publish(self) -> bool:
        """Tell whether a round may leave now."""
        return not self.is_paused and self.session is not None and self.session.can_publish()

    def publish(self, contents: list[tuple[str, int]], *, flush: bool = False) -> None:
        """Send a round of (topic, flags); the caller has asked `can_publish`."""
        session, record = self.session, self.record
        assert session is not None
        assert record is not None
        number = session.last_round + 1
        rows: list[Row] = []
        for index, (topic, flags) in enumerate(contents):
            message = self._history.publish(record, topic, flags, (number, index), self.loop.now)
            padding = LARGE if self._rng.random() < 0.06 else int(self._rng.random() ** 3 * PADDING_MAX)
            payload = b"%d.%s" % (message.number, b"." * padding)
            rows.append((index, topic, flags, None, None, payload))
        session.publish(self._round_of(rows), flush=flush)
        self._transmit()

    def _round_of(self, rows: list[Row]) -> Round:
        if not self.plan.is_cutting:
            batch = pack_rows(rows)
            return Round(0, [(0, len(rows))], [batch], len(rows), len(batch))
        for row in rows:
            self._gatherer.add_row(row)
        return self._gatherer.take()

    def validate(self) -> None:
        """Let the parts check themselves."""
        self._window.validate()
        self._gatherer.validate()
        if self.session is not None:
            self.session.validate()
