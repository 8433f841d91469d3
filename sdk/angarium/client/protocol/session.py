"""The client's half of the protocol: frames in, events out; calls in, frames out.

A `ClientSession` lives as long as one connection. It owns no socket and no clock: who has them feeds
`receive` and `tick`, carries out the events, and sends what `take_outgoing` gives. `docs/protocol.md`
describes the frames. Whatever bytes come, `receive` gives events; a router that breaks the protocol gives one
`Closed` with the code that says how, and nothing after it. The shape is that of h11
(https://h11.readthedocs.io, `_connection.py`).

What outlives a connection is elsewhere: gathered rows in `angarium.slots.RowGatherer`, what the application
has not consumed in `EgressWindow`, the wish for subscriptions in `angarium.client.client`. Operations, producers
and flows are the business of `ClientSession.guaranteed` (`angarium.client.protocol.guaranteed`).

Ingress credit: at most `rounds` rounds are unretired, and a new one may leave while the unretired ones hold
less than `bytes`. The router tells of retirement when nothing is left to retire, and when a round asks
(`flush`); a round asks whenever half of the window is out since the last one that did, so a publisher at full
speed is answered twice per window.

Egress credit: what the router may deliver of direct messages, in cumulative totals of messages and bytes of
batches. The window covers all that waits in subscriptions which stall, including what came over earlier
connections; it is renewed when half of it can be.
"""

from __future__ import annotations

import enum
from collections import deque
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

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
    Welcome,
)
from angarium.client.protocol.guaranteed import GuaranteedProtocol
from angarium.message import Delivery, Row, unpack_rows
from angarium.slots import EMPTY_ROUND
from angarium.topic import SLOTS
from angarium.wire import decode_header, header, malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from angarium.client.protocol.send_window import Departure
    from angarium.slots import Round

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Table = Annotated[bytes, msgspec.Meta(min_length=SLOTS, max_length=SLOTS)]

#: What the SDK calls itself in HELLO.
SDK_NAME: Final = "angarium-python"
KEEPALIVE_MS: Final = 3_000
#: A peer that says nothing for so many keepalive intervals is gone.
KEEPALIVE_MISSES: Final = 3
#: Control requests that may wait for their answer; each holds up to 1,000 filters, so this is plenty in
#: flight.
REQUESTS_PENDING_MAX: Final = 16
#: Frames that wait for the socket. Only a peer that does not read makes it grow, and its connection is of no
#: use.
OUTGOING_MAX: Final = 10_000
#: The router may overdraw egress credit by a frame. Beyond a large frame and another window it is a fault.
OVERDRAFT_BYTES_MAX: Final = 64 * 1024 * 1024


class State(enum.StrEnum):
    """Where a session is: HELLO sent, open, BYE sent, over."""

    GREETING = "greeting"
    OPEN = "open"
    LEAVING = "leaving"
    CLOSED = "closed"


#: For the path of messages: to look up a member of an enumeration costs more than a call.
_OPEN: Final = State.OPEN
_CLOSED: Final = State.CLOSED
_SPEAKING: Final = (State.OPEN, State.LEAVING)


#: Who connects without a word of who it is.
DEFAULT_USERNAME: Final = "default"


class Hello(NamedTuple):
    """What a client says about itself when it connects; see `angarium.connect`."""

    vpn: str = "default"
    username: str = DEFAULT_USERNAME
    password: str | None = None
    client_name: str = ""
    local_priority: int = 1
    network_priority: int = 1
    no_local: bool = False
    #: From the WELCOME of an earlier connection, to be the same client again.
    token: bytes | None = None
    keepalive_ms: int = KEEPALIVE_MS
    #: A token of the application.
    jwt: str | None = None
    #: What processes of nodes say besides, by its keys.
    more: Mapping[str, Any] = MappingProxyType({})

    def pack(self, credit: tuple[int, int]) -> bytes:
        """Give the header of HELLO."""
        header: dict[str, Any] = {"version": wire.PROTOCOL_VERSION, "sdk": SDK_NAME, "credit": list(credit)}
        header["unroutable"] = header["leaving"] = True
        header.update((name, value) for name, value in self._asdict().items() if value is not None)
        header.update(header.pop("more"))
        return wire.pack(header)


class EgressWindow:
    """What has come and waits in subscriptions that stall, over all connections of a client."""

    __slots__ = ("bytes_max", "held_bytes", "held_messages", "messages_max", "released_messages")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        assert messages_max > 0
        assert bytes_max > 0
        self.messages_max: Final = messages_max
        self.bytes_max: Final = bytes_max
        #: Messages handed to the application's buffers and not consumed. Never negative.
        self.held_messages = 0
        #: Bytes of their batches. Never negative.
        self.held_bytes = 0
        #: Messages consumed or thrown away since the start.
        self.released_messages = 0

    def hold(self, messages: int, size_bytes: int) -> None:
        """Count what came."""
        self.held_messages += messages
        self.held_bytes += size_bytes

    def release(self, messages: int, size_bytes: int) -> None:
        """Count what was consumed or thrown away."""
        self.held_messages -= messages
        self.held_bytes -= size_bytes
        self.released_messages += messages

    def free(self) -> tuple[int, int]:
        """Give the messages and bytes that may come now."""
        messages, size_bytes = self.messages_max - self.held_messages, self.bytes_max - self.held_bytes
        return messages if messages > 0 else 0, size_bytes if size_bytes > 0 else 0

    def has_room(self) -> bool:
        """Tell whether anything may come now."""
        return self.held_messages < self.messages_max and self.held_bytes < self.bytes_max

    def validate(self) -> None:
        """Check the sentences above."""
        assert self.held_messages >= 0
        assert self.held_bytes >= 0


class ClientSession:
    """One connection of a client, without the connection."""

    #: What is understood in each state; anything else ends the session.
    handlers: ClassVar[dict[State, dict[bytes, _Handler]]]
    #: In how many pieces windows are renewed: the more, the more of one is always on a long path.
    window_pieces: ClassVar[int] = 2

    def __init__(self, hello: Hello, window: EgressWindow, now: float) -> None:
        """Greet the router; `now` is monotonic, in seconds, like every `now` here."""
        self.state = State.GREETING
        #: What is understood now.
        self._handlers = self.handlers[State.GREETING]
        #: What the router said; None until the session was open.
        self.welcome: Welcome | None = None
        #: Frames to send, the oldest first; at most OUTGOING_MAX multiparts.
        self._outgoing: deque[list[bytes]] = deque()
        self._window: Final = window
        #: Egress credit granted since HELLO; cumulative, never falls.
        self._granted = window.free()
        #: Messages and bytes delivered since HELLO.
        self._received = [0, 0]
        outgoing = self._outgoing
        #: Operations, producers and flows. Who knows the frames and not the session goes with it without the garbage
        #: collector, which processes of nodes hardly ever run.
        self.guaranteed: Final = GuaranteedProtocol(
            lambda operation, header: outgoing.append([operation, header])
        )
        #: Rounds sent and not retired, with their bytes and direct rows; numbers are consecutive and end at
        #: `last_round`.
        self._unretired: deque[tuple[int, int, int]] = deque()
        #: The sum of their bytes.
        self._unretired_bytes = 0
        #: The newest round sent, 0 for none.
        self.last_round = 0
        #: The newest round that asked to be answered at once.
        self._flushed_round = 0
        #: Bytes sent since then.
        self._unflushed_bytes = 0
        #: Request -> how many filters it asked for. At most REQUESTS_PENDING_MAX.
        self._requests: dict[int, int] = {}
        self._last_request = 0
        self._keepalive_s = hello.keepalive_ms / 1000
        self._last_ping = 0
        self._received_at = self._pinged_at = self._ticked_at = now
        self._send(wire.HELLO, hello.pack(self._granted))

    # Frames out.

    def take_outgoing(self) -> deque[list[bytes]]:
        """Give the queue of frames to send; the caller takes from its left what it could send."""
        return self._outgoing

    def can_publish(self) -> bool:
        """Tell whether ingress credit allows another round."""
        welcome = self.welcome
        return (
            self.state is _OPEN
            and welcome is not None
            and len(self._unretired) < welcome.rounds
            and self._unretired_bytes < welcome.round_bytes
        )

    def publish(self, batch: Round, *, flush: bool, reports: bool = False) -> int:
        """Send a round of direct messages, give its number; `flush` asks for RETIRED as soon as it retires.

        `reports` asks for a `Noticed` with NO_SUBSCRIPTION_MATCH for each topic that nobody subscribed to. The caller
        has asked `can_publish`.
        """
        is_able = self.welcome is not None and self.welcome.reports_unmatched
        return self._publish(batch, batch.rows, flush=flush, tail=(True,) if reports and is_able else ())

    def publish_guaranteed(self, departure: Departure, handle: int) -> int:
        """Send a round of a producer that is open, give its number.

        The caller has asked `can_publish`. Its messages are acknowledged apart from its retirement.
        """
        return self._publish(departure.round, 0, flush=False, tail=(handle, departure.first))

    def _publish(self, batch: Round, direct_rows: int, *, flush: bool, tail: tuple[Any, ...]) -> int:
        assert self.can_publish(), "publish without credit"
        assert self.welcome is not None
        self.last_round += 1
        self._unretired.append((self.last_round, batch.size_bytes, direct_rows))
        self._unretired_bytes += batch.size_bytes
        self._unflushed_bytes += batch.size_bytes
        flush = (
            flush
            or (self.last_round - self._flushed_round) * self.window_pieces >= self.welcome.rounds
            or self._unflushed_bytes * self.window_pieces >= self.welcome.round_bytes
        )
        if flush:
            self._flushed_round = self.last_round
            self._unflushed_bytes = 0
        head = wire.pack((self.last_round, batch.epoch, flush, batch.parts, *tail))
        self._outgoing.append([wire.PUBLISH, head, *batch.batches])
        return self.last_round

    def ask_retired(self) -> None:
        """Ask to be told at once when everything published has retired, unless the last round asks already."""
        if self._unretired and self._flushed_round < self.last_round and self.can_publish():
            self.publish(EMPTY_ROUND, flush=True)

    def is_retired(self, number: int) -> bool:
        """Tell whether a round, and all before it, are retired."""
        return not self._unretired or self._unretired[0][0] > number

    def unretired_rows(self) -> int:
        """Count the direct messages of rounds that are not retired; guaranteed ones are sent again."""
        return sum(rows for _, _, rows in self._unretired)

    @property
    def is_open(self) -> bool:
        """Whether it greeted and did not say BYE."""
        return self.state is _OPEN

    def can_ask(self) -> bool:
        """Tell whether an operation may be asked for."""
        return self.state is _OPEN and self.guaranteed.can_ask()

    def can_request(self) -> bool:
        """Tell whether another SUBSCRIBE or UNSUBSCRIBE may be sent."""
        return self.state is _OPEN and len(self._requests) < REQUESTS_PENDING_MAX

    def subscribe(self, filters: Sequence[tuple[str, int]], client_name: str | None = None) -> int:
        """Ask for filters with their flags, for a named client or this one; give the request's number."""
        return self._request(wire.SUBSCRIBE, filters, client_name)

    def unsubscribe(self, filters: Sequence[tuple[str, int]], client_name: str | None = None) -> int:
        """Ask for filters to go; give the number of the request."""
        return self._request(wire.UNSUBSCRIBE, filters, client_name)

    def _request(self, operation: bytes, filters: Sequence[tuple[str, int]], client_name: str | None) -> int:
        assert self.can_request(), "a request too many"
        assert 0 < len(filters) <= wire.MAX_FILTERS_PER_REQUEST
        self._last_request += 1
        self._requests[self._last_request] = len(filters)
        self._send(operation, wire.pack((self._last_request, filters, client_name)))
        return self._last_request

    def renew_credit(self) -> bool:
        """Grant what there is room for if it is a piece of a window; tell whether a frame is to be sent."""
        if self.state not in _SPEAKING:
            return False
        free_messages, free_bytes = self._window.free()
        messages = self._received[0] + free_messages
        size_bytes = self._received[1] + free_bytes
        more_messages = messages - self._granted[0]
        more_bytes = size_bytes - self._granted[1]
        pieces, window = self.window_pieces, self._window
        if more_messages * pieces < window.messages_max and more_bytes * pieces < window.bytes_max:
            return False
        self._granted = max(messages, self._granted[0]), max(size_bytes, self._granted[1])
        self._send(wire.CREDIT, wire.pack(self._granted))
        return True

    def leave(self) -> None:
        """Say BYE; `Closed(None)` follows when everything sent has retired."""
        if self.state is State.OPEN:
            self._enter(State.LEAVING)
            self._send(wire.BYE, wire.pack(()))

    def _enter(self, state: State) -> None:
        self.state, self._handlers = state, self.handlers[state]

    def heard(self, at: float) -> None:
        """Take note that something came of the router then that was no whole message: it is not silent."""
        self._received_at = max(self._received_at, at)

    def tick(self, now: float) -> list[Event]:
        """Keep the connection alive; call it at least once per keepalive interval.

        A caller that was late itself has not been able to hear the peer, so the peer gets the time back.
        """
        if self.state is State.CLOSED:
            return []
        late = now - self._ticked_at - self._keepalive_s
        self._ticked_at = now
        if late > 0:
            self._received_at += late
        if now - self._received_at > self._keepalive_s * KEEPALIVE_MISSES:
            detail = f"nothing heard for {now - self._received_at:.1f} s"
            return self._close(errors.KEEPALIVE_TIMEOUT, detail)
        if now - self._pinged_at >= self._keepalive_s and self.state is not State.GREETING:
            self._pinged_at = now
            self._last_ping += 1
            self._send(wire.PING, wire.pack((self._last_ping,)))
        return self._check_outgoing()

    def _check_outgoing(self) -> list[Event]:
        """Give up a router that makes us say more than it listens to."""
        if len(self._outgoing) <= OUTGOING_MAX:
            return []
        return self._close(errors.KEEPALIVE_TIMEOUT, f"{len(self._outgoing)} frames wait for the router")

    @property
    def tick_interval_s(self) -> float:
        """How often `tick` wants to be called."""
        return self._keepalive_s / 2

    def _send(self, operation: bytes, header: bytes) -> None:
        self._outgoing.append([operation, header])

    # Frames in.

    def receive(self, frames: list[bytes], now: float) -> list[Event]:
        """Take one multipart in; give what happened, in order. Never raises."""
        if self.state is _CLOSED:
            return []
        self._received_at = now
        try:
            if len(frames) < 2:
                raise malformed("a message of less than two frames")
            handler = self._handlers.get(frames[0])
            if handler is None:
                detail = f"{frames[0][:8]!r} while {self.state.value}"
                raise errors.error_for(errors.UNKNOWN_OPERATION, detail)
            return handler(self, frames)
        except errors.InvalidRequestError as error:
            return self._close(error.code, f"the router sent: {error.detail}")

    def lose(self, error: errors.AngariumError) -> list[Event]:
        """Take note that the connection is gone."""
        return [] if self.state is State.CLOSED else self._close(error.code, error.detail, error.advice)

    def _close(self, code: int, detail: str, advice: str = "") -> list[Event]:
        self.state = State.CLOSED
        self._outgoing.clear()
        self._requests.clear()
        self.guaranteed.clear()
        return [Closed(errors.error_for(code, detail, advice) if code else None)]

    def _on_welcome(self, frames: list[bytes]) -> list[Event]:
        welcome: Welcome = header(_decode_welcome, frames, parts=0)
        self.welcome = welcome
        self.guaranteed.takes_released = welcome.takes_released
        self._keepalive_s = welcome.keepalive_ms / 1000
        self._enter(State.OPEN)
        # The application may have consumed while HELLO was under way, and may have nothing more to release.
        self.renew_credit()
        return [Opened(welcome)]

    def _on_deliver(self, frames: list[bytes]) -> list[Event]:
        flags, parts, dropped = read_deliver(frames)
        deliveries: list[Delivery] = []
        messages = size_bytes = 0
        for (count, share), batch in zip(parts, frames[2:], strict=True):
            rows = unpack_rows(batch)
            if len(rows) != count:
                raise malformed(f"a batch of {len(rows)} rows, announced were {count}")
            size = len(batch)
            if rows:
                deliveries.append(Delivery(rows, share, size))
            messages += count
            size_bytes += size
        self.count_received(messages, size_bytes)
        if flags & wire.DELIVER_UNSORTED:
            deliveries = merge(deliveries)
        if flags & wire.DELIVER_DISCARD_INDICATION:
            _indicate_discard(deliveries)
        return [Delivered(deliveries, dropped)]

    def count_received(self, messages: int, size_bytes: int) -> None:
        """Count what came against the credit, so that no router can fill the memory of a slow application."""
        window, received, granted = self._window, self._received, self._granted
        over_messages = received[0] - granted[0] - wire.MAX_BATCH_ROWS
        over_bytes = received[1] - granted[1] - OVERDRAFT_BYTES_MAX
        if over_messages > window.messages_max or over_bytes > window.bytes_max:
            raise malformed("more messages than there is credit for")
        received[0] += messages
        received[1] += size_bytes
        window.hold(messages, size_bytes)

    def _on_retired(self, frames: list[bytes]) -> list[Event]:
        (number,) = header(_decode_number, frames, parts=0)
        if number > self.last_round:
            raise malformed(f"round {number} retired, the last one sent is {self.last_round}")
        unretired = self._unretired
        while unretired and unretired[0][0] <= number:
            self._unretired_bytes -= unretired.popleft()[1]
        return [Retired(number)]

    def _on_suback(self, frames: list[bytes]) -> list[Event]:
        request, results = header(_decode_suback, frames, parts=0)
        count = self._requests.pop(request, None)
        if count != len(results):
            raise malformed(f"{len(results)} answers to request {request}, which has {count} filters")
        return [Answered(request, [None if one is None else errors.error_for(*one) for one in results])]

    def _on_notice(self, frames: list[bytes]) -> list[Event]:
        code, detail, count, number = header(_decode_notice, frames, parts=0)
        return [Noticed(code, detail, count, number or 0)]

    def _on_table(self, frames: list[bytes]) -> list[Event]:
        epoch, slots = header(_decode_table, frames, parts=0)
        return [TableChanged(epoch, slots)]

    def _on_ping(self, frames: list[bytes]) -> list[Event]:
        (number,) = header(_decode_number, frames, parts=0)
        self._send(wire.PONG, wire.pack((number,)))
        return self._check_outgoing()

    def _on_pong(self, frames: list[bytes]) -> list[Event]:
        header(_decode_number, frames, parts=0)
        return []

    def _on_closed(self, frames: list[bytes]) -> list[Event]:
        code, detail = header(_decode_closed, frames, parts=0)
        return self._close(code, detail)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert (self.welcome is not None) or self.state in (State.GREETING, State.CLOSED)
        assert self._unretired_bytes == sum(size for _, size, _ in self._unretired)
        numbers = [number for number, _, _ in self._unretired]
        assert numbers == list(range(self.last_round - len(numbers) + 1, self.last_round + 1))
        assert self._flushed_round <= self.last_round
        assert len(self._requests) <= REQUESTS_PENDING_MAX
        assert self.welcome is None or len(self._unretired) <= self.welcome.rounds
        self._window.validate()
        self.guaranteed.validate()


def read_deliver(frames: list[bytes]) -> tuple[int, list[tuple[int, str | None]], int]:
    """Give flags, parts and the number of discarded messages of a DELIVER, whose batches are still unopened.

    Raises:
        InvalidRequestError: it is of another shape (40001).
    """
    flags, parts, dropped = decode_header(_decode_deliver, frames[1])
    if len(parts) != len(frames) - 2:
        raise malformed(f"{len(frames) - 2} batches for {len(parts)} parts")
    return flags, parts, dropped


def merge(deliveries: list[Delivery]) -> list[Delivery]:
    """Sort rows by index over all deliveries of one round that go the same way.

    Workers answer each for its own topics, so the rows of a round come in several runs; merging runs is what
    the sort of Python is good at. Rows of different shared subscriptions have no common order to restore.
    """
    merged: dict[str | None, Delivery] = {}
    for delivery in deliveries:
        known = merged.get(delivery.share)
        if known is None:
            merged[delivery.share] = delivery
        else:
            known.rows += delivery.rows
            known.size_bytes += delivery.size_bytes
    for delivery in merged.values():
        delivery.rows.sort(key=_index_of)
    return list(merged.values())


def _indicate_discard(deliveries: list[Delivery]) -> None:
    """Mark the first of all rows: the messages before it were discarded."""
    if deliveries:
        first = min(deliveries, key=lambda delivery: delivery.rows[0][0])
        first.head = first.rows[0]


_index_of: Final[Callable[[Row], int]] = itemgetter(0)


_decode_welcome: Final = msgspec.msgpack.Decoder(Welcome).decode
_decode_deliver: Final = msgspec.msgpack.Decoder(
    tuple[_Natural, list[tuple[_Natural, str | None]], _Natural]
).decode
_decode_number: Final = msgspec.msgpack.Decoder(tuple[_Natural]).decode
_decode_suback: Final = msgspec.msgpack.Decoder(tuple[_Natural, list[tuple[int, str] | None]]).decode
_decode_notice: Final = msgspec.msgpack.Decoder(tuple[int, str, _Natural, int | None]).decode
_decode_table: Final = msgspec.msgpack.Decoder(tuple[_Positive, _Table]).decode
_decode_closed: Final = msgspec.msgpack.Decoder(tuple[_Natural, str]).decode

_Handler: TypeAlias = "Callable[[ClientSession, list[bytes]], list[Event]]"
_ALWAYS: Final[dict[bytes, _Handler]] = {
    wire.PING: ClientSession._on_ping,
    wire.PONG: ClientSession._on_pong,
    wire.CLOSED: ClientSession._on_closed,
}
_WHILE_OPEN: Final[dict[bytes, _Handler]] = {
    **_ALWAYS,
    wire.DELIVER: ClientSession._on_deliver,
    wire.RETIRED: ClientSession._on_retired,
    wire.SUBACK: ClientSession._on_suback,
    wire.NOTICE: ClientSession._on_notice,
    wire.TABLE: ClientSession._on_table,
    wire.ANSWER: lambda session, frames: session.guaranteed.on_answer(frames),
    wire.ACKED: lambda session, frames: session.guaranteed.on_acked(frames),
    wire.MESSAGES: lambda session, frames: session.guaranteed.on_messages(frames),
    wire.INDICATION: lambda session, frames: session.guaranteed.on_indication(frames),
}
ClientSession.handlers = {
    State.GREETING: {**_ALWAYS, wire.WELCOME: ClientSession._on_welcome},
    State.OPEN: _WHILE_OPEN,
    State.LEAVING: _WHILE_OPEN,
}
