"""The session of a gateway with its router: like that of a client, with the frames of attached clients inside of it.

Everything that keeps a session alive and within its credit is the client's (`angarium.client.protocol.session`). What
comes besides: the frame `@` in and out, RIGHTS and COUNTED, and a producer for all clients. It knows nothing of a
client but its number and what it has asked for; who the clients are is the business of `gateway.carrier`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from angarium import errors, wire
from angarium.client.protocol.events import Replied
from angarium.client.protocol.guaranteed import GuaranteedProtocol
from angarium.client.protocol.session import ClientSession, EgressWindow, Hello, State, merge, read_deliver
from angarium.errors import error_for
from angarium.message import Delivery, unpack_rows
from angarium.wire import header, malformed
from angarium_server.frames.frame import decoder
from angarium_server.frames.gateways import AloneFrame, CostlyFrame, CountedFrame, Rights, RightsFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.client.protocol.events import Arrived, Event, Indicated
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import Range
    from angarium.errors import AngariumError
    from angarium.slots import Round

#: What the router may send ahead: messages without a bound, because only bytes matter, and half of what it keeps for a
#: gateway that is busy.
WINDOW_MESSAGES: Final = 1 << 40
WINDOW_BYTES: Final = 32 << 20
#: It is looked so often whether more is to be granted, which it is from half of that on.
RENEWED_BYTES: Final = WINDOW_BYTES // 16
#: Filters in one request of an attached client.
FILTERS_MAX: Final = 16
#: Credit of an attached client: its gateway bounds what waits for it.
UNBOUNDED_CREDIT: Final = (1 << 62, 1 << 62)

_Natural = Annotated[int, msgspec.Meta(ge=0)]


class Identity(msgspec.Struct, frozen=True):
    """What a gateway process says of itself."""

    #: That the supervisor made for this run.
    secret: str
    #: Of the protocol: "mqtt".
    name: str
    index: int
    incarnation: int

    def hello(self, vpn: str) -> Hello:
        """Give the HELLO of a carrier."""
        gateway = {"name": self.name, "index": self.index, "incarnation": self.incarnation}
        more: dict[str, Any] = {"behalf": {"secret": self.secret}, "gateway": gateway}
        return Hello(vpn, wire.GATEWAY_USERNAME, more=more)

    def producer(self, node: str) -> str:
        """Give the name of the producer of a carrier; it is another one in each Message VPN."""
        return f"#{self.name}/{node}/{self.index}"


class AttachedWelcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the router says when it attaches a client."""

    session: str
    client_name: str
    #: As the router knows it: a token names it, or the client.
    username: str
    #: The topic that only this client gets.
    inbox: str
    token: bytes
    resumed: bool
    max_message_bytes: Annotated[int, msgspec.Meta(ge=1)]
    rights: Rights
    #: The name that the queue of its session is to have; empty if that is there, and has to be asked for.
    new_session: str = ""


class Welcomed(NamedTuple):
    """A client is attached."""

    number: int
    welcome: AttachedWelcome


class Ended(NamedTuple):
    """A client is not attached any more, or was not let in; without an error it had said BYE."""

    number: int
    error: AngariumError | None


class Judged(NamedTuple):
    """A SUBSCRIBE or UNSUBSCRIBE of a client took effect: 0 or an error code for each filter, in the order asked."""

    number: int
    codes: list[int]
    #: Whether what is retained has to be read: if not, there is nothing.
    may_be_retained: bool


class _SubAck(msgspec.Struct, array_like=True):
    """The answer to a SUBSCRIBE or UNSUBSCRIBE."""

    request: _Natural
    results: list[tuple[int, str] | None]
    may_be_retained: bool = True


class Brought(NamedTuple):
    """Messages for one client came, of its shared subscriptions and its inbox; before them `dropped` were discarded."""

    number: int
    deliveries: list[Delivery]
    dropped: int


class RightsChanged(NamedTuple):
    """These clients may do something else from now on."""

    rights: Rights
    numbers: list[int]


class Costly(NamedTuple):
    """Messages in this round are dear: very many filters match them, and all behind them wait."""

    round: int


class Alone(NamedTuple):
    """Nobody but clients of this process gets what they publish directly; or somebody does again."""

    is_alone: bool


class ProducerOpened(msgspec.Struct, frozen=True):
    """The producer of the gateway is open."""

    producer: Annotated[int, msgspec.Meta(ge=1)]
    #: The newest sequence that the node knows of it, 0 for none.
    last_sequence: _Natural
    #: Messages that may be unacknowledged.
    window: Annotated[int, msgspec.Meta(ge=1)]


class ProducerRefused(NamedTuple):
    """It is not."""

    error: AngariumError


class Acknowledged(NamedTuple):
    """What became of guaranteed messages."""

    producer: int
    #: All up to this sequence are settled: stored, but for those that are refused.
    upto: int
    #: Sequence, code and detail.
    nacks: list[tuple[int, int, str]]
    #: Why nothing more of this producer is taken; 0: it is.
    code: int
    #: First and number of those that nobody wanted.
    unroutable: list[tuple[int, int]]


class Guaranteed(NamedTuple):
    """Something about an operation or a flow of a client."""

    number: int
    event: Replied | Arrived | Indicated | Acknowledged


OfAttached: TypeAlias = Welcomed | Ended | Judged | Brought | RightsChanged | Guaranteed | Costly | Alone
_OfProducer: TypeAlias = ProducerOpened | ProducerRefused | Acknowledged

_decode_rights: Final = decoder(RightsFrame)
_decode_costly: Final = decoder(CostlyFrame)
_decode_alone: Final = decoder(AloneFrame)
_decode_welcome: Final = msgspec.msgpack.Decoder(AttachedWelcome).decode
_decode_closed: Final = msgspec.msgpack.Decoder(tuple[_Natural, str]).decode
_decode_suback: Final = msgspec.msgpack.Decoder(_SubAck).decode
_decode_number: Final = msgspec.msgpack.Decoder(tuple[_Natural]).decode
_decode_producer: Final = msgspec.msgpack.Decoder(ProducerOpened).decode
_Sequence = Annotated[int, msgspec.Meta(ge=1)]
_decode_acked: Final = msgspec.msgpack.Decoder(
    tuple[
        _Sequence,
        _Natural,
        list[tuple[_Sequence, _Sequence, str]],
        _Natural,
        list[tuple[_Sequence, _Sequence]],
    ]
).decode


class GatewaySession(ClientSession):
    """One connection of a gateway, without the connection."""

    def __init__(self, hello: Hello, now: float) -> None:
        self._held: Final = EgressWindow(WINDOW_MESSAGES, WINDOW_BYTES)
        super().__init__(hello, self._held, now)
        #: When so many bytes have come it is looked whether more is to be granted.
        self._renew_at = 0
        #: Whether the router may have had more than there was credit for, when all was passed on.
        self._was_short = False
        #: Client -> its request without an answer, and how many filters that has; one of each client at most.
        self._asked: dict[int, tuple[int, int]] = {}
        #: The request that is to open the producer; 0: none.
        self._opening = 0
        #: Client -> its operations and flows; of those that have any.
        self._guaranteed: dict[int, GuaranteedProtocol] = {}

    def greet(self, number: int, hello: Hello) -> None:
        """Say HELLO for a client; `Welcomed` or `Ended` follows."""
        self._send_of(number, wire.HELLO, hello.pack(UNBOUNDED_CREDIT))

    def ask(self, number: int, operation: bytes, filters: Sequence[tuple[str, int]]) -> None:
        """Send SUBSCRIBE or UNSUBSCRIBE of a client that has none under way; `Judged` follows."""
        assert number not in self._asked, "a request too many"
        assert 0 < len(filters) <= FILTERS_MAX
        self._last_request += 1
        self._asked[number] = self._last_request, len(filters)
        self._send_of(number, operation, wire.pack((self._last_request, filters, None)))

    def guaranteed_of(self, number: int) -> GuaranteedProtocol:
        """Give the operations and flows of a client that has not ended; `Guaranteed` follows what is asked there."""
        found = self._guaranteed.get(number)
        if found is None:
            found = self._guaranteed[number] = GuaranteedProtocol(partial(self._send_of, number))
            found.takes_released = True  # The router is of the same version.
        return found

    def settle(self, number: int, window: FlowWindow, outcome: int, ranges: Sequence[Range]) -> None:
        """Say what became of messages of a client's flow, and grant more, if that flow is still bound."""
        found = self._guaranteed.get(number)
        if found is not None and window.flow:
            found.settle(window.flow, outcome, ranges)
            found.renew(window)

    def publish_given(self, batch: Round, kept: list[int], *, flush: bool) -> None:
        """Send a round whose rows the clients of this process have already, but for those with these indices."""
        self._publish(batch, batch.rows, flush=flush, tail=(kept,))

    def publish_of(self, number: int, batch: Round, round_number: int, producer: int, first: int) -> None:
        """Send a round of a client's own producer, the only one that is under way; `Guaranteed` follows."""
        head = wire.pack((round_number, batch.epoch, False, batch.parts, producer, first))
        self._send_of(number, wire.PUBLISH, head, *batch.batches)

    def dismiss(self, number: int, farewell: tuple[int, ...] = ()) -> None:
        """Say BYE for a client; what still comes for it is of no interest."""
        self._forget(number)
        self._send_of(number, wire.BYE, wire.pack(farewell))

    def _forget(self, number: int) -> None:
        self._asked.pop(number, None)
        if guaranteed := self._guaranteed.pop(number, None):
            guaranteed.clear()

    def count(self, frame: CountedFrame) -> None:
        """Tell what was counted of clients."""
        self._outgoing.append(frame.frames())

    def open_producer(self, name: str) -> None:
        """Ask for the producer; `ProducerOpened` or `ProducerRefused` follows."""
        self._opening = self.guaranteed.ask("producer.open", {"name": name}, _decode_producer)

    def passed_on(self) -> None:
        """Take note that all that came has been passed on: there is room for more."""
        held = self._held
        held.release(held.held_messages, held.held_bytes)
        if self._received[1] >= self._renew_at:
            self._was_short = self.was_short
            self.renew_credit()
            self._renew_at = self._received[1] + RENEWED_BYTES

    @property
    def was_short(self) -> bool:
        """Tell whether messages may ever have waited in the router for credit: it may be done with a round before."""
        return self._was_short or self._received[1] >= self._granted[1]

    def _send_of(self, number: int, operation: bytes, *parts: bytes) -> None:
        self._outgoing.append(
            [wire.ATTACHED, number.to_bytes(wire.ATTACHED_NUMBER_BYTES, "big"), operation, *parts]
        )

    # Frames in.

    def _on_answer(self, frames: list[bytes]) -> list[Event]:
        events = self.guaranteed.on_answer(frames)
        for at, event in enumerate(events):
            if isinstance(event, Replied) and event.request == self._opening:
                told = event.value if event.error is None else ProducerRefused(event.error)
                events[at : at + 1] = _events(told)
        return events

    def _on_acked(self, frames: list[bytes]) -> list[Event]:
        return _events(Acknowledged(*header(_decode_acked, frames, parts=0)))

    def _on_rights(self, frames: list[bytes]) -> list[Event]:
        told = header(_decode_rights, frames, parts=0)
        return _events(RightsChanged(told.rights, told.numbers))

    def _on_costly(self, frames: list[bytes]) -> list[Event]:
        told = header(_decode_costly, frames, parts=0)
        return _events(Costly(told.round))

    def _on_alone(self, frames: list[bytes]) -> list[Event]:
        return _events(Alone(header(_decode_alone, frames, parts=0).is_alone))

    def _on_attached(self, frames: list[bytes]) -> list[Event]:
        if len(frames) < 4 or len(frames[1]) != wire.ATTACHED_NUMBER_BYTES:
            raise malformed("no message of an attached client")
        handler = _OF_ATTACHED.get(frames[2])
        if handler is None:
            raise error_for(errors.UNKNOWN_OPERATION, f"{frames[2][:8]!r} for an attached client")
        return handler(self, int.from_bytes(frames[1], "big"), frames[2:])

    def _welcomed(self, number: int, frames: list[bytes]) -> list[Event]:
        return _events(Welcomed(number, header(_decode_welcome, frames, parts=0)))

    def _ended(self, number: int, frames: list[bytes]) -> list[Event]:
        code, detail = header(_decode_closed, frames, parts=0)
        self._forget(number)
        return _events(Ended(number, error_for(code, detail) if code else None))

    def _judged(self, number: int, frames: list[bytes]) -> list[Event]:
        told = header(_decode_suback, frames, parts=0)
        asked = self._asked.pop(number, None)
        if asked is None:  # it has left meanwhile
            return []
        if asked != (told.request, len(told.results)):
            found = f"{len(told.results)} answers to request {told.request}"
            raise malformed(f"{found}; request and filters were {asked}")
        codes = [0 if one is None else one[0] for one in told.results]
        return _events(Judged(number, codes, told.may_be_retained))

    def _brought(self, number: int, frames: list[bytes]) -> list[Event]:
        flags, parts, dropped = read_deliver(frames)
        deliveries: list[Delivery] = []
        for (count, share), batch in zip(parts, frames[2:], strict=True):
            rows = unpack_rows(batch)
            if len(rows) != count:
                raise malformed(f"a batch of {len(rows)} rows, announced were {count}")
            deliveries.append(Delivery(rows, share, len(batch)))
        if flags & wire.DELIVER_UNSORTED:
            deliveries = merge(deliveries)
        return _events(Brought(number, deliveries, dropped))

    def _acked(self, number: int, frames: list[bytes]) -> list[Event]:
        return _events(Guaranteed(number, Acknowledged(*header(_decode_acked, frames, parts=0))))

    def _of_guaranteed(self, number: int, frames: list[bytes]) -> list[Event]:
        guaranteed = self._guaranteed.get(number)
        if guaranteed is None:  # it has left meanwhile
            return []
        events = _OF_GUARANTEED[frames[0]](guaranteed, frames)
        if guaranteed.is_idle():
            del self._guaranteed[number]
        return _events(*[Guaranteed(number, cast("Any", event)) for event in events])

    def _pinged(self, number: int, frames: list[bytes]) -> list[Event]:
        (ping,) = header(_decode_number, frames, parts=0)
        self._send_of(number, wire.PONG, wire.pack((ping,)))
        return self._check_outgoing()

    def _passed_over(self, _number: int, _frames: list[bytes]) -> list[Event]:
        """Do nothing about what concerns those who publish rounds of their own."""
        return []

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        super().validate()
        assert all(0 < filters <= FILTERS_MAX for _, filters in self._asked.values())
        for guaranteed in self._guaranteed.values():
            guaranteed.validate()
            assert not guaranteed.is_idle()


def _events(*events: OfAttached | _OfProducer) -> list[Event]:
    """Give events among those of a client: the carrier, which reads them, knows more kinds."""
    return cast("list[Event]", [*events])


_OF_GUARANTEED: Final[dict[bytes, Callable[[GuaranteedProtocol, list[bytes]], list[Event]]]] = {
    wire.ANSWER: GuaranteedProtocol.on_answer,
    wire.MESSAGES: GuaranteedProtocol.on_messages,
    wire.INDICATION: GuaranteedProtocol.on_indication,
}
_OF_ATTACHED: Final[dict[bytes, Callable[[GatewaySession, int, list[bytes]], list[Event]]]] = {
    wire.WELCOME: GatewaySession._welcomed,
    wire.CLOSED: GatewaySession._ended,
    wire.SUBACK: GatewaySession._judged,
    wire.DELIVER: GatewaySession._brought,
    wire.PING: GatewaySession._pinged,
    wire.ACKED: GatewaySession._acked,
    wire.TABLE: GatewaySession._passed_over,
    wire.RETIRED: GatewaySession._passed_over,
    **dict.fromkeys(_OF_GUARANTEED, GatewaySession._of_guaranteed),
}
_MORE: Final[dict[bytes, Any]] = {
    wire.ATTACHED: GatewaySession._on_attached,
    wire.RIGHTS: GatewaySession._on_rights,
    wire.COSTLY: GatewaySession._on_costly,
    wire.ALONE: GatewaySession._on_alone,
    wire.ANSWER: GatewaySession._on_answer,
    wire.ACKED: GatewaySession._on_acked,
}
GatewaySession.handlers = {
    state: {**known, **_MORE} if state is not State.GREETING else known
    for state, known in ClientSession.handlers.items()
}
