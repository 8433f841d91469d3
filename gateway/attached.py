"""One client at the node: what its protocol says to the node, and what the node says to that.

A client goes one way: it waits for its carrier, has said HELLO, is open, is over. One that is open when its carrier is
lost may wait for the next one: then it is *away*, until it is open again. It asks for one thing at a time, in pieces
that the router takes in one step; the rest waits. Nothing here tells a guest anything while the guest calls, so a guest
may call whatever it likes while it is told something.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from angarium import errors, wire
from angarium.client.protocol.session import Hello
from angarium.message import row_size
from angarium_server.frames.gateways import Counts
from gateway.asking import DECODE_ANY, UNBIND, Operation, Request
from gateway.gathering import WINDOW_FIRST

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from angarium.client.protocol.events import Arrived, Indicated, Replied
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.errors import AngariumError
    from angarium.message import Meta, Row
    from angarium_server.connections.tls import Certificate
    from angarium_server.frames.gateways import Will
    from gateway.asking import Accepting, Asking, Decode, Done
    from gateway.counting import Counting
    from gateway.gathering import Exchange, Gathering, Windows
    from gateway.line import Connect
    from gateway.producing import Producing, Settled
    from gateway.rights import ClientRights, KnownRights
    from gateway.session import Acknowledged, AttachedWelcome, Brought, GatewaySession, Identity, Judged

#: Filters that may wait for their turn; who has more of them does not wait for answers.
FILTERS_WAITING_MAX: Final = 10_000
#: Of guaranteed messages of a client so much may be unacknowledged; one more message always fits. So one that floods
#: does not fill what all clients share.
UNACKNOWLEDGED_BYTES_MAX: Final = 2 << 20
#: What is told to those that are not attached again, where it says nothing about them: somebody else has the name; what
#: the node gave them is not good any more, which the next login with a password may be; there is no router.
_TOLD_AGAIN: Final = {
    errors.CLIENT_NAME_IN_USE: errors.TAKEN_OVER,
    errors.UNAUTHORIZED: errors.NOT_CONNECTED,
    errors.VPN_UNAVAILABLE: errors.NOT_CONNECTED,
}
#: An operation with its arguments.
Wish: TypeAlias = tuple[str, dict[str, Any]]


class Login(NamedTuple):
    """What HELLO says on behalf of a client; its username is empty for whom `jwt` names."""

    username: str
    password: str | None
    #: Empty: the router gives it one.
    client_name: str
    address: str
    #: That TLS has shown; None without one.
    certificate: Certificate | None
    #: What `angarium client list` shows as its software.
    sdk: str
    #: What is published when it ends without a word; None if nothing is.
    will: Will | None = None
    #: Whether it begins a new session.
    is_clean: bool = False
    takes_over: bool = True
    jwt: str | None = None
    password_may_be_token: bool = True
    #: Whether it shows who it is; false if operators have said as whom it comes.
    needs_password: bool = True
    #: Whether it is a page of another site in a browser: being on the host of the node does not stand for it.
    is_foreign_page: bool = False
    #: That the node gave it when it let it in the last time, so that it needs no password.
    token: bytes | None = None

    def hello(self, vpn: str, secret: str) -> Hello:
        """Give the HELLO of the client."""
        behalf = {
            "secret": secret,
            "address": self.address,
            "certificate": self.certificate,
            "takes_over": self.takes_over,
            "password_may_be_token": self.password_may_be_token,
            "needs_password": self.needs_password,
            "is_foreign_page": self.is_foreign_page,
            "will": None if self.will is None else msgspec.structs.astuple(self.will),
            "clean": self.is_clean,
        }
        more = {"sdk": self.sdk, "behalf": behalf}
        return Hello(
            vpn, self.username, self.password, self.client_name, token=self.token, jwt=self.jwt, more=more
        )

    def again(self, welcome: AttachedWelcome) -> Login:
        """Give how it goes on when its carrier is lost: in nobody's place, by what it was given and its token (JWT)."""
        return self._replace(
            password=self.password if (self.password or "").startswith("eyJ") else None,
            client_name=welcome.client_name,
            is_clean=False,
            takes_over=False,
            token=welcome.token,
        )


class Guest(Protocol):
    """A client of another protocol, as it is told what the node says."""

    def welcomed(self, welcome: AttachedWelcome, now: float, /) -> None:
        """It is attached."""

    def refused(self, error: AngariumError, now: float, /) -> None:
        """It is not let in; nothing is told after it."""

    def ended(self, error: AngariumError | None, now: float, /) -> None:
        """Its session is over, by itself or with its carrier; nothing is told after it."""

    def away(self, now: float, /) -> bool:
        """Its carrier is lost; false if it cannot go on with another one, and is to be told `ended`.

        What it asks for here is asked first when it is attached again, then what had no answer, except for flows:
        nothing that it had at the node is there. `may_go_on` follows, or `ended`.
        """

    def answered(self, codes: Sequence[int], now: float, /) -> None:
        """One subscribe() or unsubscribe() is in force: 0 or an error code per filter; in the order of asking."""

    def acknowledged(self, answers: Sequence[tuple[int, int]], now: float, /) -> None:
        """Guaranteed messages are stored, or refused: what it calls each, and 0 or an error code, in their order.

        NO_SUBSCRIPTION_MATCH is no refusal: nobody wanted the message.
        """

    def stored(self, event: Acknowledged, now: float, /) -> None:
        """What it has published by its own producer is settled, up to a sequence."""

    def may_go_on(self, now: float, /) -> None:
        """It had too many messages under way, and may publish again."""

    def delivered(self, rows: Sequence[Row], share: str | None, now: float, /) -> None:
        """Messages came for this client alone: of a shared subscription, or without one to its inbox."""

    def spooled(self, event: Arrived, now: float, /) -> None:
        """Messages of a queue came, through the flow that was bound."""

    def indicated(self, event: Indicated, now: float, /) -> None:
        """Something happened to that flow."""


class Surroundings(NamedTuple):
    """What all carriers of a process work with."""

    identity: Identity
    connect: Connect
    #: Takes the rows that came for plain subscriptions, in order: Message VPN, rows, time. False if some are not passed
    #: on yet; `VpnCarriers.passed_on` follows.
    on_rows: Callable[[str, list[Row], float], bool]
    #: Whether it takes, besides, what clients of the process publish for each other, before the router has it.
    exchanges: bool
    random: random.Random
    #: Of the clients of the process: they rise.
    numbers: Iterator[int]
    rights: KnownRights
    #: Attaches a client in the Message VPN that its token names.
    move: Callable[[Attached, str], None]


class Carrying(Protocol):
    """What a client wants of its carrier (`gateway.carrier`)."""

    @property
    def vpn(self) -> str:
        """Give its Message VPN."""

    gathering: Gathering
    producing: Producing[Attached]
    counting: Counting
    accepting: Accepting
    asking: Asking
    windows: Windows
    exchange: Exchange
    #: Of those who may do nothing yet.
    no_rights: ClientRights

    def has_room(self) -> bool:
        """Tell whether another message of a client is taken."""

    def has_room_guaranteed(self) -> bool:
        """Tell whether another guaranteed message of a client is taken."""

    def leaves(self, client: Attached, /) -> None:
        """Have a client leave."""

    def throw_out(self, client: Attached, error: AngariumError, /) -> None:
        """End a client that wants too much."""


class AttachState(enum.Enum):
    """Where a client is."""

    WAITING = "waiting for the carrier"
    GREETING = "greeting"
    OPEN = "open"
    #: It left before the answer to its HELLO.
    RENOUNCED = "renounced"
    #: Its session is over, and its guest is about to be told.
    ENDING = "ending"
    OVER = "over"


#: For the path of messages: to look up a member of an enumeration costs more than a call.
_OPEN: Final = AttachState.OPEN


class Attached:
    """One client at the node."""

    __slots__ = (
        "_carrier",
        "_filters_waiting",
        "_guest",
        "_is_asking",
        "_message_bytes_max",
        "_own_round",
        "_queued",
        "_requests",
        "_rounds",
        "_totals",
        "_unacknowledged_bytes",
        "behind",
        "farewell",
        "has_moved",
        "is_ahead",
        "is_away",
        "is_full",
        "last",
        "login",
        "may_be_retained",
        "name",
        "number",
        "rights",
        "state",
        "unretired",
        "wait_until",
        "window",
    )

    def __init__(self, carrier: Carrying, guest: Guest, login: Login, wait_until: float) -> None:
        self._carrier = carrier
        self._guest = guest
        #: Once it is open it has no password in it.
        self.login = login
        #: Whether it was open when its carrier was lost, and waits to be attached again.
        self.is_away = False
        #: Whether its token named another Message VPN than that where it came.
        self.has_moved = False
        #: How long it waits for its carrier at most.
        self.wait_until = wait_until
        self.state = AttachState.WAITING
        #: Of its HELLO; 0 while it waits.
        self.number = 0
        #: In force at the node; empty before it is open.
        self.name = ""
        #: What it may do; nothing before it is open.
        self.rights: ClientRights = carrier.no_rights
        self._message_bytes_max = 0
        #: Whether what is retained for the filters that were judged last has to be read.
        self.may_be_retained = True
        #: What it asked for, the oldest first; only of that one some filters may be answered or under way.
        self._requests: list[Request | Operation] = []
        #: Filters in them without an answer, at most FILTERS_WAITING_MAX.
        self._filters_waiting = 0
        #: Whether some are under way.
        self._is_asking = False
        #: What it asks for when it has left: an operation and its arguments.
        self.last: Sequence[Wish] = ()
        #: How many rows of the carrier leave before its BYE, since its own are among them: direct, guaranteed.
        self.behind = (0, 0)
        #: What its BYE says: nothing if it is done, else for how many seconds its session is kept.
        self.farewell: tuple[int, ...] = ()
        #: What is to leave by its own producer: its number, the first sequence, and the rows; and how many rounds have.
        self._own_round: tuple[int, int, Sequence[Row]] | None = None
        self._rounds = 0
        self._totals: dict[str, int] = {}
        self._queued = (0, 0)
        #: Bytes of guaranteed messages that it was not told of, and that are not refused here.
        self._unacknowledged_bytes = 0
        #: What `gateway.gathering` keeps of it.
        self.unretired, self.window, self.is_full, self.is_ahead = 0, WINDOW_FIRST, False, True

    @property
    def vpn(self) -> str:
        """Give the Message VPN that it is in; another one than where it came if its token says so."""
        return self._carrier.vpn

    @property
    def _is_in(self) -> bool:
        """Whether what it asks for is asked, now or when it is attached again."""
        return self.state is AttachState.OPEN or self.is_away

    # What the protocol says.

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        """Ask for filters with their flags; `answered` follows."""
        self._ask(Request(wire.SUBSCRIBE, filters))

    def unsubscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        """Ask for filters to go; `answered` follows."""
        self._ask(Request(wire.UNSUBSCRIBE, filters))

    def subscribe_again(
        self, filters: Sequence[tuple[str, int]], done: Callable[[Sequence[int], float], None]
    ) -> None:
        """Ask, while away, for filters that were in force; `done` is told the codes."""
        self._ask(Request(wire.SUBSCRIBE, filters, done))

    def _ask(self, request: Request) -> None:
        assert request.filters
        if not self._is_in:
            return
        self._filters_waiting += len(request.filters)
        if self._filters_waiting > FILTERS_WAITING_MAX:
            detail = f"{self._filters_waiting} filters wait, the limit is {FILTERS_WAITING_MAX}"
            self._carrier.throw_out(self, errors.error_for(errors.CONTROL_RATE_EXCEEDED, detail))
            return
        self._line_up(request)

    def _line_up(self, request: Request | Operation) -> None:
        self._requests.append(request)
        if len(self._requests) == 1 and not self.is_away:
            self._carrier.asking.add(self)

    def request(
        self, operation: str, arguments: dict[str, Any], done: Done, decode: Decode = DECODE_ANY
    ) -> None:
        """Ask for an operation; `done` is told what became of it, unless this client is over before."""
        if self._is_in:
            self._line_up(Operation(operation, arguments, decode, done, None))

    def bind(self, window: FlowWindow, arguments: dict[str, Any], done: Done) -> None:
        """Ask for a flow with this credit; `done` is told, and then come `spooled` and `indicated`."""
        if self._is_in:
            self._line_up(Operation("flow.bind", arguments, DECODE_ANY, done, window))

    def unbind(self, window: FlowWindow, unseen: Sequence[tuple[int, int, int]] = ()) -> None:
        """Have nothing more of a flow: what was not accepted is for others, what is `unseen` was never delivered."""
        if self._is_in:
            self._line_up(Operation(UNBIND, {"released": unseen}, DECODE_ANY, nothing, window))

    def accept(self, window: FlowWindow, position: int) -> None:
        """Be done with a message of a flow: its queue deletes it."""
        if self.state is AttachState.OPEN and window.flow:
            self._carrier.accepting.add(self.number, window, position)

    def settle(self, window: FlowWindow, partition: int, position: int, outcome: int) -> None:
        """Say what became of a message of a flow, whose queue may have partitions."""
        if self.state is AttachState.OPEN and window.flow:
            self._carrier.accepting.add(self.number, window, position, partition, outcome)

    def renew(self, window: FlowWindow) -> None:
        """Have more granted to a flow: its client has room again."""
        if self.state is AttachState.OPEN and window.flow:
            self._carrier.accepting.renew(self.number, window)

    def refusal_of(self, topic: str, size: int) -> int:
        """Give the error code for which a message with so many bytes of payload and properties is refused, or 0."""
        rights = self.rights
        verdict = rights.verdicts.get(topic)
        if verdict is None:
            verdict = rights.refusal_of(topic)
        return verdict or (errors.MESSAGE_TOO_LARGE if size > self._message_bytes_max else 0)

    def has_room(self) -> bool:
        """Tell whether another message is taken."""
        if self.state is not _OPEN or not self._carrier.has_room():
            return False
        return self.unretired < self.window or self._carrier.windows.may_publish(self)

    def publish(
        self, topic: str, flags: int, meta: Meta | None, properties: bytes | None, payload: bytes
    ) -> None:
        """Publish a direct message; the caller has asked `refusal_of` and `has_room`."""
        if self.state is _OPEN:
            carrier, row = self._carrier, (0, topic, flags, meta, properties, payload)
            exchange = carrier.exchange
            if exchange.is_used and self.is_ahead and not flags and topic[0] != "#":  # nearly always
                exchange.rows.append(row)
            else:
                exchange.take(self, row, carrier.gathering.end)
            carrier.gathering.add(row)
            carrier.windows.add(self)

    def report(self, topic: str, refused: Callable[[int], None]) -> None:
        """Call this, with the error code, if the message that is published next reaches nobody."""
        if self.state is _OPEN:
            self._carrier.windows.report(self, topic, refused)

    def guaranteed_refusal_of(self, topic: str, size: int) -> int:
        """Give the error code for which such a guaranteed message is refused, or 0 as far as it is known here."""
        if not self.rights.may_send_guaranteed:
            return errors.GUARANTEED_SEND_DENIED
        return self.refusal_of(topic, size)

    def has_room_guaranteed(self) -> bool:
        """Tell whether another guaranteed message is taken."""
        is_full = self._unacknowledged_bytes >= UNACKNOWLEDGED_BYTES_MAX
        return self.state is AttachState.OPEN and not is_full and self._carrier.has_room_guaranteed()

    def publish_guaranteed(
        self, topic: str, flags: int, meta: Meta | None, properties: bytes | None, payload: bytes, name: int
    ) -> None:
        """Publish a guaranteed message; the caller has asked `guaranteed_refusal_of` and `has_room_guaranteed`.

        `acknowledged` follows, with the name that the message has here.
        """
        if self._is_in:
            row = (0, topic, flags, meta, properties, payload)
            self._unacknowledged_bytes += row_size(row)
            self._carrier.producing.add(self, name, row)

    def publish_own(self, producer: int, first: int, rows: Sequence[Row]) -> None:
        """Publish a round by a producer of its own, opened with `producer.open`; `stored` follows.

        The next one follows that: so there is always credit for it. While away it is forgotten.
        """
        if self.state is AttachState.OPEN:
            assert self._own_round is None
            self._own_round = producer, first, rows
            self._carrier.asking.add(self)

    def refuse_guaranteed(self, name: int, code: int) -> None:
        """Have a message answered by an error, when those before it are answered."""
        if self._is_in:
            self._carrier.producing.refuse(self, name, code)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter that operators see."""
        self._totals[name] = self._totals.get(name, 0) + amount
        if self.state is AttachState.OPEN:
            self._carrier.counting.changed(self)

    @property
    def queued(self) -> tuple[int, int]:
        """Messages and bytes that wait for the client in the gateway."""
        return self._queued

    @queued.setter
    def queued(self, queued: tuple[int, int]) -> None:
        if queued != self._queued:
            self._queued = queued
            if self.state is AttachState.OPEN:
                self._carrier.counting.changed(self)

    def leave(self, last: Sequence[Wish] = (), *, will_within_s: int | None = None) -> None:
        """Say BYE, and before it ask for the last operations; nothing is told any more.

        Its will is published after its delay, but within so many seconds; None: it is not.
        """
        if self._is_in:
            self.last = last
            self.farewell = () if will_within_s is None else (will_within_s,)
        self._carrier.leaves(self)

    # What the carrier does with it.

    @property
    def asks_controller(self) -> bool:
        """Whether what it asks for next is a matter of the controller."""
        is_next = self.state is _OPEN and not self._is_asking and len(self._requests) > 0
        return is_next and self._requests[0].is_of_controller

    def ask(self, session: GatewaySession) -> None:
        """Send its round, and ask for what comes next, if there is anything and nothing is under way."""
        if self._own_round is not None and self.state is AttachState.OPEN:
            (producer, first, rows), self._own_round = self._own_round, None
            self._rounds += 1
            batch = self._carrier.gathering.cut(deque(rows))
            assert batch.rows == len(rows), "more than a round"
            session.publish_of(self.number, batch, self._rounds, producer, first)
        if self.state is AttachState.OPEN and self._requests and not self._is_asking:
            self._is_asking = True
            self._requests[0].send(session, self.number)

    def dismiss(self, session: GatewaySession) -> None:
        """Ask for the last operations, and say BYE."""
        for operation, arguments in self.last:
            session.guaranteed_of(self.number).ask(operation, arguments)
        session.dismiss(self.number, self.farewell)

    def replied(self, event: Replied, now: float) -> None:
        """Take the answer to the operation that was under way."""
        assert self._is_asking
        self._is_asking = False
        operation = self._requests.pop(0)
        assert isinstance(operation, Operation)
        if self._requests:
            self._carrier.asking.add(self)
        operation.done(event.value, event.error, now)

    def spooled(self, event: Arrived, now: float) -> None:
        """Hand on messages of a queue."""
        if self.state is AttachState.OPEN:
            self._guest.spooled(event, now)

    def acked(self, event: Acknowledged, now: float) -> None:
        """Hand on what became of a round of its own."""
        if self.state is AttachState.OPEN:
            self._guest.stored(event, now)

    def indicated(self, event: Indicated, now: float) -> None:
        """Hand on what happened to a flow."""
        if self.state is AttachState.OPEN:
            self._guest.indicated(event, now)

    def judged(self, event: Judged, now: float) -> None:
        """Take the answer to the piece that was under way."""
        codes = event.codes
        assert self._is_asking
        self._is_asking = False
        self._filters_waiting -= len(codes)
        request = self._requests[0]
        assert isinstance(request, Request)
        # The pieces before were judged earlier: what has come since is in the last one.
        self.may_be_retained = event.may_be_retained or (bool(request.codes) and self.may_be_retained)
        request.codes += codes
        is_done = not request.waiting
        if is_done:
            del self._requests[0]
        if self._requests:
            self._carrier.asking.add(self)
        if is_done:
            (request.done or self._guest.answered)(request.codes, now)

    def go_on(self, now: float) -> None:
        """Have the guest publish again."""
        if self.state is AttachState.OPEN:
            self._guest.may_go_on(now)

    def settled(self, settled: Settled, now: float) -> None:
        """Tell what became of guaranteed messages."""
        self._unacknowledged_bytes -= settled.size_bytes
        if self._is_in:
            self._guest.acknowledged(settled.answers, now)

    def move(self, carrier: Carrying) -> None:
        """Wait for another carrier."""
        self._carrier = carrier
        self.has_moved = True
        self.state, self.number = AttachState.WAITING, 0

    def suspend(self, wait_until: float, now: float) -> None:
        """Be without a carrier, and wait for the next one, if the guest can."""
        self.is_away, self.state, self.number = True, AttachState.WAITING, 0
        self.wait_until = wait_until
        self._is_asking, self._own_round, self._rounds = False, None, 0
        self.unretired, self.window, self.is_full, self.is_ahead = 0, WINDOW_FIRST, False, True
        pending, self._requests, self._filters_waiting = self._requests, [], 0
        if self._guest.away(now):
            self._ask_again(pending, now)
        else:
            self.is_away, self.state = False, AttachState.OPEN

    def _ask_again(self, pending: list[Request | Operation], now: float) -> None:
        """Line up what had no answer, except for what went with the carrier; answers have the order of asking."""
        is_behind = False
        for request in pending:
            if isinstance(request, Operation) and request.window is not None:
                request.window.flow = 0  # the next router gives its number to another flow
            elif isinstance(request, Operation):
                self._line_up(request)
            elif request.operation == wire.UNSUBSCRIBE and not is_behind:  # none of them is in force any more
                self._guest.answered([0] * len(request.filters), now)
            elif request.done is None:
                is_behind = True
                request.codes.clear()
                self._ask(request)

    def welcomed(self, welcome: AttachedWelcome, message_bytes_max: int, now: float) -> None:
        """Be open."""
        was_away, self.is_away = self.is_away, False
        self.state = AttachState.OPEN
        self.login = self.login.again(welcome)
        self.name = welcome.client_name
        self._message_bytes_max = message_bytes_max
        if not was_away:
            self._guest.welcomed(welcome, now)
            return
        self._carrier.counting.changed(self)
        if self._requests:
            self._carrier.asking.add(self)
        self._guest.may_go_on(now)

    def brought(self, event: Brought, now: float) -> None:
        """Hand on what came for this client alone."""
        for delivery in event.deliveries:
            if self.state is AttachState.OPEN:
                self._guest.delivered(delivery.rows, delivery.share, now)

    def refuse(self, error: AngariumError, now: float) -> None:
        """Be over without having been open, or attached again."""
        was_away = self.is_away
        self.stop(AttachState.OVER)
        if was_away:
            code = _TOLD_AGAIN.get(error.code)
            self._guest.ended(errors.error_for(code, error.detail) if code else error, now)
        else:
            self._guest.refused(error, now)

    def end(self, error: AngariumError | None, now: float) -> None:
        """Be over."""
        self.stop(AttachState.OVER)
        self._guest.ended(error, now)

    def stop(self, state: AttachState) -> None:
        """Be in this state, and ask for nothing more."""
        self.state, self.is_away = state, False
        self._requests.clear()
        self._filters_waiting = 0

    def counts(self) -> Counts:
        """Give what was counted."""
        return Counts(self.number, dict(self._totals), *self._queued)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._filters_waiting == sum(one.waiting for one in self._requests) <= FILTERS_WAITING_MAX
        assert all(isinstance(one, Operation) or not one.codes for one in self._requests[1:])
        assert self._requests or not self._is_asking or self.state is not AttachState.OPEN
        assert self._unacknowledged_bytes >= 0
        assert self.number or self.state in (AttachState.WAITING, AttachState.OVER)
        assert not self.is_away or self.state in (AttachState.WAITING, AttachState.GREETING)
        assert bool(self.name) or self.state is not AttachState.OPEN


def nothing(*_: object) -> None:
    """Be what is called where nobody waits, or wants to know."""
