"""The session of a client as its gateway sees it: opened, changed, bound and left at the node, which keeps it.

The node has a queue for it (`docs/mqtt.md`): from the start if it outlives the connection, else from the first topic
filter with QoS 1. While the client is here a flow brings what comes to the queue. A flow that ends for a while, because
a process of the node is replaced, is bound again; with the queue itself the connection ends.

A step for each thing that is asked; the client hears of the answer. No I/O, no clock.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors, wire
from angarium.client.protocol.flow_window import FlowWindow, is_passing
from angarium.errors import error_for
from gateway.mqtt.codec.subscribe import Subscription
from gateway.mqtt.codec.topics import shared
from gateway.mqtt.delivering import MqttSubscription
from gateway.mqtt.sessions.note import NoNote, Note, State, pack, unpack
from gateway.mqtt.sessions.outgoing import Outgoing
from gateway.mqtt.sessions.received import Received
from gateway.mqtt.sessions.retained import Retained
from gateway.mqtt.sessions.shares import BIND_AGAIN_S, Shares
from gateway.mqtt.sessions.storing import Own, Shared
from gateway.mqtt.sessions.unacknowledged import IDS_OF_RETAINED, IDS_OF_SHARES, InFlight
from gateway.mqtt.topics import filters_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from angarium.client.protocol.events import Arrived, Indicated
    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.attached import Attached, Wish
    from gateway.mqtt.sessions.host import SessionHost, SessionOwner
    from gateway.mqtt.sessions.unacknowledged import Awaited
    from gateway.session import Acknowledged

#: Messages on their way to a client whose receive maximum is larger.
IN_FLIGHT_MAX: Final = 255
#: Topic filters in one request, of those put and those dropped.
FILTERS_PER_REQUEST: Final = 16


class _Opened(msgspec.Struct):
    """What the node says of a session that is open."""

    #: Of its queue.
    name: str
    #: Whether it was there before.
    present: bool
    #: Whether its queue goes with the connection.
    temporary: bool
    #: Topic filter -> filters of the queue, options and identifier.
    filters: dict[str, tuple[list[str], int, int]]


_decode_opened: Final = msgspec.msgpack.Decoder(_Opened).decode
_decode_note: Final = msgspec.msgpack.Decoder(bytes).decode
_decode_changed: Final = msgspec.msgpack.Decoder(list[tuple[int, str] | None]).decode


class _Change(NamedTuple):
    """One request of several that change the session."""

    put: Sequence[MqttSubscription]
    drop: Sequence[str]
    #: What the node has said to all of them so far.
    answers: dict[str, int]
    is_last: bool


class Session:
    """That of one connection."""

    __slots__ = (
        "_attached",
        "_bind_at",
        "_expiry_s",
        "_host",
        "_in_flight",
        "_name",
        "_note",
        "_outgoing",
        "_own",
        "_owner",
        "_received",
        "_retained",
        "_shares",
        "_window",
        "is_temporary",
    )

    def __init__(self, owner: SessionOwner, attached: Attached, host: SessionHost, receive_max: int) -> None:
        """Be none yet; `receive_max` is what the client takes without having acknowledged it."""
        self._owner = owner
        self._attached = attached
        self._host = host
        self._in_flight = InFlight(min(receive_max, IN_FLIGHT_MAX))
        #: `outgoing` and `received` as soon as somebody has asked for them: most clients need neither.
        self._outgoing: Outgoing | None = None
        self._received: Received | None = None
        #: The queues that it shares with others; None before it does.
        self._shares: Shares | None = None
        #: What is retained and on its way to it; None before there is any.
        self._retained: Retained | None = None
        #: For how long it outlives the connection.
        self._expiry_s = 0
        #: If it outlives the connection: its note, and the producer of what the client publishes with QoS 2.
        self._note: Note | None = None
        self._own: Own | None = None
        #: Of its queue; empty before it is open.
        self._name = ""
        #: Whether it ends with the connection, and keeps nothing but filters of the queue.
        self.is_temporary = True
        #: The credit of the flow that is bound, or about to be; None without one.
        self._window: FlowWindow | None = None
        #: When the flow is bound again.
        self._bind_at = math.inf

    # -- what the client does --------------------------------------------------------------------------------

    def begin(self, name: str, now: float) -> None:
        """Begin one that ends with the connection, where the node has none; its queue is to have this name."""
        self._name = name
        self._begin(None, b"", now)

    def open(self, *, clean: bool, expiry_s: int) -> None:
        """Open it; `opened` follows."""
        self._expiry_s = expiry_s
        arguments = {"clean": clean, "expiry_s": expiry_s, "version": self._owner.version}
        self._attached.request("session.open", arguments, self._opened, _decode_opened)

    def _opened(self, value: _Opened | None, error: AngariumError | None, now: float) -> None:
        if value is None:
            assert error is not None
            self._owner.end(error, now)
            return
        self._name, self.is_temporary = value.name, value.temporary
        present = None
        if value.present:
            present = [self._restored(text, *more[1:]) for text, more in value.filters.items()]
        if self.is_temporary or not value.present:
            self._begin(present, b"", now)
        else:
            self._attached.request("session.note", {}, partial(self._noted, present), _decode_note)

    def _noted(
        self,
        present: list[MqttSubscription] | None,
        value: bytes | None,
        error: AngariumError | None,
        now: float,
    ) -> None:
        if error is not None:
            self._owner.end(error, now)
        else:
            self._begin(present, value or b"", now)

    def _begin(self, present: list[MqttSubscription] | None, note: bytes, now: float) -> None:
        """Go on where the connection before has stopped."""
        for one in present or ():
            if has_own_queue(one):
                self.outgoing.add(one)
        if not self.is_temporary:
            self._remember(note, now, is_new=present is None)
            self._bind()
        self._owner.opened(present, now)
        if not self.is_temporary:
            self.outgoing.resume(now)
            if left := unpack(note).left:
                self._sharing().load_left(left)

    @property
    def outgoing(self) -> Outgoing:
        """What its own queue brings."""
        if self._outgoing is None:
            self._outgoing = Outgoing(self._owner, self._attached, self._host, self._in_flight)
        return self._outgoing

    @property
    def received(self) -> Received:
        """What the client publishes with QoS 2."""
        if self._received is None:
            self._received = Received(NoNote(), Shared(self._attached), self._owner.answer)
        return self._received

    def _remember(self, note: bytes, now: float, *, is_new: bool) -> None:
        """Have what the session is in the middle of kept at the node."""
        state = unpack(note)
        self._note = Note(self._attached, self._wish, _heard, self._wake, self._owner.end, note)
        self._note.on_written = self._remembered
        self._own = Own(self._attached, self._name, self._wake, self._may_store, self._cannot_store)
        self._received = Received(self._note, self._own, self._owner.answer)
        self._wake_for(self.received.load(state.next_sequence, state.received, now))
        self.outgoing.keep_by(self._note, state, is_new=is_new)

    def _wish(self) -> dict[str, Any]:
        received, outgoing = self.received, self.outgoing
        left = [] if self._shares is None else self._shares.left
        state = State(received.next_sequence, received.sequences, outgoing.released, left, outgoing.exact)
        return {"note": pack(state), "done": outgoing.done}

    def _remembered(self, now: float) -> None:
        self.received.remembered(now)

    def _may_store(self, now: float) -> None:
        self.received.opened(now)

    def _cannot_store(self, error: AngariumError, now: float) -> None:
        if not self.received.fail(error.code, now):
            self._owner.end(error, now)

    def _wake_for(self, at: float) -> None:
        if at < math.inf:
            self._wake(at)

    def _wake(self, at: float) -> None:
        self._host.wake(self._owner.connection_id, at)

    def _restored(self, text: str, options: int, identifier: int) -> MqttSubscription:
        return MqttSubscription(self._owner, options_of(text, options), identifier or None)

    def change(self, put: Sequence[MqttSubscription], drop: Sequence[str]) -> None:
        """Have topic filters in it, with QoS 1 or without, and others no more; `changed` follows."""
        if self._outgoing is not None:
            self._outgoing.expect(put)
        if self._note is not None and self._shares is not None and self._shares.left:
            # What is held is remembered before it is not known any more that the queue was shared.
            self._note.after(lambda _: self._change(put, drop), 0.0)
        else:
            self._change(put, drop)

    def _change(self, put: Sequence[MqttSubscription], drop: Sequence[str]) -> None:
        answers: dict[str, int] = {}
        end = max(len(put), len(drop))
        for start in range(0, end, FILTERS_PER_REQUEST):
            stop = start + FILTERS_PER_REQUEST
            piece = _Change(put[start:stop], drop[start:stop], answers, stop >= end)
            arguments = {
                "put": {one.options.filter: _told(one) for one in piece.put},
                "drop": piece.drop,
                "temporary": self.is_temporary,
            }
            done = partial(self._changed, piece)
            self._attached.request("session.change", arguments, done, _decode_changed)

    def _changed(self, piece: _Change, value: Any, error: AngariumError | None, now: float) -> None:
        if error is not None and piece.drop:  # nobody can be told that these are still there
            self._owner.end(error, now)
            return
        for at, one in enumerate(piece.put):
            refusal = error.code if error is not None else value[at][0] if value[at] else 0
            piece.answers[one.options.filter] = refusal
            if not refusal and has_own_queue(one) and self._window is None and self._bind_at == math.inf:
                self._bind()
        if piece.is_last:
            self._owner.changed(piece.answers, now)

    def share(self, subscriptions: Iterable[MqttSubscription]) -> dict[str, int] | None:
        """Have the queues of shared filters: 0 or an error code for each; None: `changed` follows.

        For each 0 `add` or `remove` follows.
        """
        return self._sharing().join(subscriptions)

    def _sharing(self) -> Shares:
        if self._shares is None:
            on_left = None if self._note is None else self._note.again
            self._shares = Shares(
                self._owner, self._attached, self._host, self._in_flight, self._expiry_s, on_left
            )
        return self._shares

    def add(self, subscription: MqttSubscription) -> None:
        """Let messages of the queue go by a subscription."""
        self._way_of(subscription).add(subscription)

    def remove(self, subscription: MqttSubscription) -> None:
        """Let them do that no more; those of its own queue that are on their way still come."""
        self._way_of(subscription).remove(subscription)

    def _way_of(self, subscription: MqttSubscription) -> Outgoing | Shares:
        if has_own_queue(subscription):
            return self.outgoing
        assert self._shares is not None
        return self._shares

    def awaited(self, packet_id: int) -> Awaited | None:
        """Give what the client is to answer next to a message; None if none is on its way with this identifier."""
        return self._way_with(packet_id).awaited(packet_id)

    def acknowledged(self, packet_id: int, now: float) -> None:
        """Take a PUBACK."""
        way = self._way_with(packet_id)
        way.acknowledged(packet_id)
        self._go_on(way, now)

    def took(self, packet_id: int, code: int, now: float) -> None:
        """Take a PUBREC."""
        way = self._way_with(packet_id)
        way.received(packet_id, code, now)
        self._go_on(way, now)

    def completed(self, packet_id: int, now: float) -> None:
        """Take a PUBCOMP."""
        way = self._way_with(packet_id)
        way.completed(packet_id, now)
        self._go_on(way, now)

    def _way_with(self, packet_id: int) -> Outgoing | Shares | Retained:
        """Give whose packet identifier it is."""
        if self._retained is not None and packet_id in IDS_OF_RETAINED:
            return self._retained
        if self._shares is not None and packet_id in IDS_OF_SHARES:
            return self._shares
        return self.outgoing

    def _go_on(self, last: Outgoing | Shares | Retained | None, now: float) -> None:
        """Send what there is room for: what is retained, and what the other queues have brought before those of one."""
        queues = (self._outgoing, self._shares) if last is self._shares else (self._shares, self._outgoing)
        if not all(one is None or one.go_on(now) for one in (self._retained, *queues)):
            self._owner.end(error_for(errors.EGRESS_BLOCKED), now)

    # -- what is retained ------------------------------------------------------------------------------------

    def begin_retained(self) -> None:
        """Send nothing of queues until `end_retained`."""
        self._in_flight.hold()

    def take_retained(self, subscription: MqttSubscription, rows: Sequence[Row], now: float) -> None:
        """Send what is retained to a subscription with QoS 1 or 2."""
        if self._retained is None:
            self._retained = Retained(
                self._owner, self._host, self._in_flight, outlives_connection=not self.is_temporary
            )
        self._retained.take(subscription, rows, now)

    @property
    def is_taking_retained(self) -> bool:
        """Whether some of that waits for room."""
        return self._retained is not None and self._retained.is_waiting

    def end_retained(self, now: float) -> None:
        """Go on with what queues have brought, behind what still waits."""
        self._in_flight.release()
        self._go_on(None, now)

    def stored(self, event: Acknowledged, now: float) -> None:
        """Be told what became of what the client has published by its own producer."""
        if self._own is None:
            return
        try:
            self.received.settled(self._own.acknowledged(event), now)
        except errors.AngariumError as error:
            self._owner.end(error, now)

    def leave(self, expiry_s: int | None) -> list[Wish]:
        """End with the connection; gives what is to be asked last: to keep it for so long, None as was agreed."""
        self._give_back()
        last = [] if self._shares is None else self._shares.clear()
        if self._note is not None:
            last.append(self._note.stop())
        self._own = self._received = None  # they know it
        if self.is_temporary:
            return []
        if expiry_s == 0:
            return [("session.close", {})]
        # Or PUBREL would come again after its PUBCOMP [MQTT-4.4.0-1].
        wishes: list[Wish] = [("session.keep", one) for one in last if one is not None]
        return wishes if expiry_s is None else [*wishes, ("session.change", {"expiry_s": expiry_s})]

    @property
    def holds(self) -> bool:
        """Whether it holds messages of queues that are shared."""
        return self._shares is not None and self._shares.holds

    def away(self) -> None:
        """Have what it had at the node there again, when its client is attached again."""
        if self._note is not None:
            self._attached.request("session.note", {}, self._compared, _decode_note)
        if self._own is not None:
            self._own.away()
        is_bound = self._window is not None or self._bind_at < math.inf
        if self._window is not None:
            self._window.flow = 0
        self._give_back()
        if is_bound:
            self.outgoing.interrupt()
            self._bind()
        if self._shares is not None:
            self._shares.away()

    def _compared(self, value: bytes | None, error: AngariumError | None, now: float) -> None:
        """End if another connection went on with the session, of which the router before has not told this one."""
        assert self._note is not None
        if error is not None:
            self._owner.end(error, now)
        elif not self._note.may_be(value or b""):
            self._owner.end(error_for(errors.TAKEN_OVER), now)

    # -- the flow --------------------------------------------------------------------------------------------

    def _bind(self) -> None:
        self._bind_at = math.inf
        self._window = FlowWindow(self._in_flight.messages_max, self._host.credit.take())
        arguments = {"name": self._name, "temporary": self.is_temporary, "in_order": True}
        self._attached.bind(self._window, arguments, self._bound)

    def _bound(self, _value: Any, error: AngariumError | None, now: float) -> None:
        if error is not None:
            self._unbound(error, now)

    def _unbound(self, error: AngariumError, now: float) -> None:
        """Bind again after a while, or end the connection."""
        self._give_back()
        self.outgoing.interrupt()
        if is_passing(error.code):
            self._bind_at = now + BIND_AGAIN_S
            self._wake(self._bind_at)
        elif error.code == errors.UNKNOWN_ENDPOINT:
            self._owner.end(error_for(errors.DISCONNECTED_BY_OPERATOR, "its session was deleted"), now)
        else:
            self._owner.end(error, now)

    def _give_back(self) -> None:
        if self._window is not None:
            self._host.credit.give_back(self._window.bytes_max)
            self._window = None

    def spooled(self, event: Arrived, now: float) -> None:
        """Send what came to the queue."""
        if event.window is self._window:
            is_taken = self.outgoing.take(event.deliveries, now)
        else:
            is_taken = self._shares is None or self._shares.take(event, now)
        if not is_taken:
            self._owner.end(error_for(errors.EGRESS_BLOCKED), now)

    def indicated(self, event: Indicated, now: float) -> None:
        """Take note that a flow is over."""
        if event.event != wire.FLOW_CLOSED:
            return
        if event.window is not self._window:
            if self._shares is not None:
                self._shares.flow_closed(event, now)
        else:
            self._unbound(error_for(event.code or errors.HOME_NOT_READY, event.detail), now)

    def tick(self, now: float) -> None:
        """Do again what could not be done, if it is time for that."""
        if self._bind_at <= now:
            self._bind()
        if self._outgoing is not None and self._outgoing.is_put_off:
            self._go_on(None, now)
        if self._shares is not None:
            self._shares.tick(now)
        if self._note is not None and self._own is not None:
            self._note.tick(now)
            self._own.tick(now)
            self._wake_for(self.received.tick(now))

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        if self._outgoing is not None:
            self._outgoing.validate()
        if self._shares is not None:
            self._shares.validate()
        if self._retained is not None:
            self._retained.validate()
        self.received.validate()
        assert self._window is None or self._bind_at == math.inf
        assert self._name or self._window is None


def _heard(_value: Any, _now: float) -> None:
    """Go on: the node answers nothing to a note of the session's own queue."""


def _told(one: MqttSubscription) -> tuple[tuple[str, ...], int, int]:
    """Give a subscription as the node keeps it."""
    options = one.options
    filters = filters_of(options.filter) if has_own_queue(one) else ()
    return filters, byte_of(options), one.identifier or 0


def has_own_queue(one: MqttSubscription) -> bool:
    """Tell whether the messages of a subscription come to the queue of its session."""
    return one.options.qos > 0 and shared(one.options.filter) is None


def byte_of(options: Subscription) -> int:
    """Give the options of a subscription as SUBSCRIBE writes them."""
    return (
        options.qos | options.no_local << 2 | options.retain_as_published << 3 | options.retain_handling << 4
    )


def options_of(text: str, options: int) -> Subscription:
    """Give a topic filter with such options."""
    return Subscription(text, options & 3, bool(options & 4), bool(options & 8), options >> 4 & 3)
