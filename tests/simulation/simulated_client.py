"""A client of the simulation: the SDK's own state machine and row gatherer, and an application around them.

The application publishes, subscribes, unsubscribes, acts as a subscription manager, consumes at once, late or
not at all, and comes back when its connection ends. It writes the history down as it sees it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from angarium import errors, wire
from angarium.client.protocol.events import (
    Answered,
    Closed,
    Delivered,
    Event,
    Noticed,
    Opened,
    Retired,
    TableChanged,
)
from angarium.client.protocol.session import ClientSession, EgressWindow, Hello, State
from angarium.message import Row, pack_rows
from angarium.slots import Round, RowGatherer
from tests.simulation.client_interest import ClientInterest, Wish
from tests.simulation.event_history import FOREVER, WHAT_PROPERTY, ConnectionRecord, Delivery, what_of
from tests.simulation.simulated_network import Connection, Endpoint, Frames

if TYPE_CHECKING:
    import random

    from tests.simulation.event_history import History
    from tests.simulation.simulated_network import Loop
    from tests.simulation.simulated_node import SimulatedNode

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
    network_priority: int = 1
    no_local: bool = False
    #: Messages that the router may send ahead.
    window: int = WIDE_WINDOW
    #: Never lacks credit, as the router sees it.
    is_prompt: bool = True
    #: Consumes at once; else from time to time, when `consume` is called.
    is_consuming: bool = True
    #: Subscribes to the address for replies that each connection gets.
    wants_replies: bool = False
    #: Whether its client profile may elide.
    is_eliding: bool = False
    #: Cuts its batches by the newest table it has; else leaves that to the router.
    is_cutting: bool = True
    #: Never takes over a new table on a connection.
    is_stale: bool = False


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
        self._window = EgressWindow(plan.window, 1 << 40 if plan.is_consuming else 60 * plan.window)
        self._gatherer = RowGatherer()
        #: The connection in use, with its session and record; None in between.
        self.connection: Connection | None = None
        self.session: ClientSession | None = None
        self.record: ConnectionRecord | None = None
        self.interest = ClientInterest(loop, history, plan.username)
        #: Messages and bytes that the application has not consumed.
        self._unconsumed: deque[tuple[int, int]] = deque()
        #: When PING n was sent, by n.
        self._pings: dict[int, float] = {}
        self._last_ping = 0
        self._token: bytes | None = None
        self._client_name = plan.name
        self._inbox: deque[Frames] = deque()
        self.is_paused = False
        #: Where others may send replies; of the newest connection, or empty.
        self.reply_topic = ""
        #: True while the application takes everything at once.
        self.is_consuming = plan.is_consuming

    def narrow(self, window: int) -> None:
        """Let the router send so few messages ahead, before it ever connects."""
        self.plan = self.plan._replace(window=window, is_prompt=False)
        self._window = EgressWindow(window, 1 << 40)

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
            network_priority=plan.network_priority,
            no_local=plan.no_local,
            token=self._token,
            keepalive_ms=KEEPALIVE_MS,
        )
        record = self.record = self._history.connect(plan.name, plan.vpn, plan.username)
        record.no_local, record.priority = plan.no_local, plan.local_priority
        record.network_priority = plan.network_priority
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
        self.interest.close()
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
                self.interest.answered(event)
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
            else:
                self.take_more(event)

    def take_more(self, event: Event) -> None:
        """Act on what concerns guaranteed messages."""

    def _opened(self, record: ConnectionRecord, event: Opened) -> None:
        welcome = event.welcome
        record.opened_at = self.loop.now
        record.session = welcome.session
        self._token, self._client_name = welcome.token, welcome.client_name
        self._gatherer.set_table(welcome.epoch, welcome.slots)
        self._gatherer.set_limits(welcome.max_message_bytes, welcome.max_batch_rows, welcome.max_batch_bytes)
        session = self.session
        self.ask(list(self.interest.wishes))
        if session is not None and self.plan.wants_replies:
            self.reply_topic = welcome.inbox
            self.interest.ask(record, session, [(welcome.inbox, False)])
            self._transmit()

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
                what = what_of(row)
                if what.isdigit():
                    record.deliveries.append(Delivery(messages[int(what)], delivery.share, now))
                elif what[:1] == "g":
                    self.demoted(record, int(what[1:]), delivery.share)
            self._unconsumed.append((len(delivery.rows), delivery.size_bytes))
        if self.is_consuming:
            self.consume(len(self._unconsumed))

    def demoted(self, record: ConnectionRecord, number: int, share: str | None) -> None:
        """A direct copy of a guaranteed message came."""

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
        self.interest.wishes.update(dict.fromkeys(wishes))
        if self.record is not None and self.session is not None:
            self.interest.ask(self.record, self.session, wishes)
            self._transmit()

    def give_back(self, wishes: list[Wish]) -> None:
        """Unsubscribe."""
        if self.session is not None:
            self.interest.give_back(self.session, wishes)
            self._transmit()

    def manage(self, target: SimulatedClient, text: str, *, is_wanted: bool) -> None:
        """Act as a subscription manager on another client."""
        if self.session is not None and target.record is not None:
            act = self.interest.add_for if is_wanted else self.interest.remove_for
            act(self.session, target.record, text)
            self._transmit()

    # Publishing.

    def can_publish(self) -> bool:
        """Tell whether a round may leave now."""
        return not self.is_paused and self.session is not None and self.session.can_publish()

    def publish(
        self, contents: list[tuple[str, int]], *, flush: bool = False, is_empty: bool = False
    ) -> None:
        """Send a round of (topic, flags), perhaps without payloads; the caller has asked `can_publish`."""
        session, record = self.session, self.record
        assert session is not None
        assert record is not None
        number = session.last_round + 1
        rows: list[Row] = []
        for index, (topic, flags) in enumerate(contents):
            message = self._history.publish(record, topic, flags, (number, index), self.loop.now)
            if is_empty:
                message.is_empty = True
                rows.append((index, topic, flags, None, wire.pack({WHAT_PROPERTY: f"{message.number}"}), b""))
                continue
            padding = LARGE if self._rng.random() < 0.06 else int(self._rng.random() ** 3 * PADDING_MAX)
            payload = b"%d.%s" % (message.number, b"." * padding)
            rows.append((index, topic, flags, None, None, payload))
        session.publish(self._round_of(rows), flush=flush)
        self._transmit()

    def ask_retired(self) -> None:
        """Ask to be told of retirement, as a flush does when the last round did not ask."""
        if self.session is not None and not self.is_paused:
            self.session.ask_retired()
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
