"""Messages with QoS 2 of a queue that a kept session shares, from their coming to PUBCOMP: they are its own.

    comes ──► TAKING ──► SENT ──PUBREC──► RELEASING ──► RELEASED: PUBREL ──PUBCOMP──► OVER, and it is forgotten
                 │ held           or refused: REFUSED ──► forgotten │ deleted                  remembered
                 └► refused by the node: somebody else has it

What is sent is *held* before: the node gives it to nobody else while the session is there, whoever dies, and first of
all to its next connection. It is held in the lane of the queue by one write with the note that says which packet
identifier stands for which position, and deleted by the write that says that PUBREL is to come. So each step is one
transaction of one home, and there is nothing to be found out later.

What the next connection finds is KNOWN until the node brings it. What it does not hold was purged, so it is released,
and nobody else gets it; or it was refused, and never sent, so that PUBREL means nothing. No I/O, no clock.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.attached import nothing
from gateway.mqtt.codec.acknowledge import PubRel
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.sessions.note import Note
from gateway.mqtt.sessions.unacknowledged import FAILURE, Awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.client.protocol.flow_window import FlowWindow
    from gateway.attached import Attached
    from gateway.mqtt.sessions.host import SessionOwner
    from gateway.mqtt.sessions.packets import Came
    from gateway.mqtt.sessions.unacknowledged import InFlight


class ExchangeState(Enum):
    """How far a message is."""

    #: From an earlier connection, and not here yet.
    KNOWN = "known"
    TAKING = "taking"
    SENT = "sent"
    RELEASING = "releasing"
    RELEASED = "released"
    #: The client does not want it.
    REFUSED = "refused"
    OVER = "over"


#: What is held.
_HELD: Final = (ExchangeState.KNOWN, ExchangeState.TAKING, ExchangeState.SENT)
#: What is deleted with the next write.
_DONE: Final = (ExchangeState.RELEASING, ExchangeState.REFUSED)
#: Whose PUBREL is to be said.
_RELEASED: Final = (ExchangeState.RELEASING, ExchangeState.RELEASED)


class HoldingState(msgspec.Struct, frozen=True, array_like=True):
    """What a note says; it changes only if all who read notes of older processes know both forms."""

    #: Packet identifier -> position of what is held.
    sent: dict[int, int] = {}
    #: Packet identifiers between PUBREC and PUBCOMP.
    released: list[int] = []


_decode_state: Final = msgspec.msgpack.Decoder(HoldingState).decode
#: The note of a session in the lane of a queue, and what it holds.
decode_holding: Final = msgspec.msgpack.Decoder(tuple[bytes, list[int]]).decode


class Exchange:
    """One message."""

    __slots__ = ("packet_id", "parts", "position", "size_bytes", "state", "window")

    def __init__(self, packet_id: int, position: int, state: ExchangeState) -> None:
        self.packet_id = packet_id
        #: 0 of what an earlier connection has released, or asked for in vain: it is not in the queue, or for anybody.
        self.position = position
        self.state = state
        #: Of the flow of this connection that brought it last, since when it counts as in flight; None: none did.
        self.window: FlowWindow | None = None
        self.size_bytes = 0
        #: Of its PUBLISH, while it is TAKING.
        self.parts: list[bytes] = []


class Holding:
    """Those of one queue on one connection."""

    __slots__ = (
        "_asked",
        "_attached",
        "_by_position",
        "_exchanges",
        "_ids",
        "_in_flight",
        "_owner",
        "_queue",
        "_send",
        "note",
        "on_over",
    )

    def __init__(
        self,
        owner: SessionOwner,
        attached: Attached,
        in_flight: InFlight,
        queue: str,
        ids: dict[int, Holding],
        send: Callable[[list[bytes], float], None],
        wake: Callable[[float], None],
    ) -> None:
        """Hold nothing.

        Args:
            owner: the client.
            attached: the same at the node.
            in_flight: what it was sent.
            queue: which is shared.
            ids: packet identifiers in use, each with who uses it.
            send: sends the parts of a PUBLISH.
            wake: has `tick` called then.
        """
        self._owner = owner
        self._attached = attached
        self._in_flight = in_flight
        self._queue = queue
        self._ids = ids
        self._send = send
        #: In the lane of the queue.
        self.note = Note(attached, self._wish, self._heard, wake, owner.end)
        #: By position: those that are to be held with the write that is under way.
        self._asked: dict[int, Exchange] = {}
        #: By packet identifier; and those that the queue has, by position.
        self._exchanges: dict[int, Exchange] = {}
        self._by_position: dict[int, Exchange] = {}
        #: Called when the last one is over.
        self.on_over: Callable[[], None] = nothing

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def awaits(self) -> bool:
        """Whether the node is to bring something that it has brought before."""
        return any(one.state is ExchangeState.KNOWN for one in self._exchanges.values())

    def load(self, note: bytes, held: Sequence[int], now: float) -> None:
        """Go on with what an earlier connection was in the middle of [MQTT-4.4.0-1]."""
        state = _decode_state(note) if note else HoldingState()
        sent = {packet_id: position for packet_id, position in state.sent.items() if position in held}
        for packet_id, position in sent.items():
            self._add(Exchange(packet_id, position, ExchangeState.KNOWN))
        for packet_id in [*(state.sent.keys() - sent.keys()), *state.released]:
            self._add(Exchange(packet_id, 0, ExchangeState.RELEASED))
        for one in self._exchanges.values():
            if one.state is ExchangeState.RELEASED:
                self._owner.released(PubRel(one.packet_id), now)

    def _add(self, one: Exchange) -> None:
        self._exchanges[one.packet_id] = one
        self._ids[one.packet_id] = self
        if one.position:
            self._by_position[one.position] = one

    # -- what the node brings --------------------------------------------------------------------------------

    def find(self, position: int) -> Exchange | None:
        """Give the exchange of a message that came."""
        return self._by_position.get(position)

    def begin(self, packet_id: int, came: Came, parts: list[bytes], now: float) -> None:
        """Take a message; its PUBLISH is sent when it is held."""
        one = Exchange(packet_id, came.position, ExchangeState.TAKING)
        one.window, one.size_bytes, one.parts = came.window, came.size_bytes, parts
        self._in_flight.add(came.size_bytes)
        self._add(one)
        self.note.after(lambda then: self._taken(one, then), now)

    def _taken(self, one: Exchange, now: float) -> None:
        is_asked = self._asked.get(one.position) is one
        if is_asked and one.state is ExchangeState.TAKING and self._exchanges.get(one.packet_id) is one:
            one.state = ExchangeState.SENT
            self._send(one.parts, now)
            one.parts = []

    def came_again(self, one: Exchange, came: Came) -> bool:
        """Take note that a flow brought a message; true if it is to be sent again."""
        if one.state is ExchangeState.TAKING and one.window is not came.window:
            # What is asked may be refused, because the flow before was over: this one has it.
            self._take_anew(one)
        before, one.window, one.size_bytes = one.window, came.window, came.size_bytes
        if before is None:
            self._in_flight.add(came.size_bytes)
        elif before is came.window:
            came.window.take(1, came.size_bytes)
        if one.state is not ExchangeState.KNOWN:
            return False
        one.state = ExchangeState.SENT
        return True

    def _take_anew(self, one: Exchange) -> None:
        self._asked.pop(one.position, None)
        self.note.after(lambda then: self._taken(one, then), 0.0)

    # -- what the client says --------------------------------------------------------------------------------

    def received(self, packet_id: int, code: int, now: float) -> None:
        """Take a PUBREC: the client has the message, or does not want it."""
        one = self._exchanges[packet_id]
        if one.state in (ExchangeState.KNOWN, ExchangeState.SENT):
            self.release(one, now) if code < FAILURE else self._refuse(one, now)
        elif code >= FAILURE:  # no PUBREL follows what is refused
            pass
        elif one.state is ExchangeState.RELEASED:
            self._owner.released(PubRel(packet_id), now)
        elif one.state is not ExchangeState.RELEASING:
            self._owner.released(PubRel(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), now)

    def release(self, one: Exchange, now: float) -> None:
        """Have a message deleted, and say PUBREL then."""
        one.state = ExchangeState.RELEASING
        self.note.after(lambda then: self._released(one, then), now)

    def _released(self, one: Exchange, now: float) -> None:
        one.state = ExchangeState.RELEASED
        self._by_position.pop(one.position, None)
        self._owner.released(PubRel(one.packet_id), now)

    def _refuse(self, one: Exchange, now: float) -> None:
        one.state = ExchangeState.REFUSED
        self._land(one)
        self.note.after(lambda _: self._forget(one), now)

    def awaited(self, packet_id: int) -> Awaited | None:
        """Give what is to answer a message next; None if it was not sent here, or is over."""
        state = self._exchanges[packet_id].state
        if state is ExchangeState.SENT:
            return Awaited.PUBREC
        return Awaited.PUBCOMP if state in _RELEASED else None

    def completed(self, packet_id: int, now: float) -> None:
        """Take a PUBCOMP; the identifier is free when that is remembered."""
        one = self._exchanges[packet_id]
        if one.state is ExchangeState.RELEASED:
            one.state = ExchangeState.OVER
            self._land(one)
            # Who has left waits until nothing is there any more.
            remember = self.note.later if self.on_over is nothing else self.note.after
            remember(lambda _: self._forget(one), now)

    def _land(self, one: Exchange) -> None:
        """Be in flight no more."""
        if one.window is not None:
            one.window.take(1, one.size_bytes)
            self._attached.renew(one.window)
            self._in_flight.remove(one.size_bytes)
            one.window = None

    def _forget(self, one: Exchange) -> None:
        self._land(one)  # a flow may have brought again what was refused
        del self._exchanges[one.packet_id]
        self._by_position.pop(one.position, None)
        self._ids.pop(one.packet_id, None)
        if not self._exchanges:
            self.on_over()

    def leave(self, on_over: Callable[[], None]) -> None:
        """Take nothing new; what was not sent is for others, and `on_over` is called when the rest is over."""
        for one in [one for one in self._exchanges.values() if one.state is ExchangeState.TAKING]:
            self._forget(one)
            self.note.after(self._let_go, 0.0)
        self.note.hurry()
        self.on_over = on_over

    def _let_go(self, _now: float) -> None:
        """It is remembered that what was not sent is not held: that may have been all."""
        if not self._exchanges:
            self.on_over()

    def stop(self) -> dict[str, Any] | None:
        """Be over with the connection, and hold nothing that was not sent; gives what is to be asked last."""
        taken = {key: one for key, one in self._exchanges.items() if one.state is not ExchangeState.TAKING}
        self._exchanges = taken
        last = self.note.stop()
        # What it calls knows it: that would be a cycle, and the process hardly ever collects those.
        self._send = self.on_over = nothing
        return last

    def stay(self) -> None:
        """Take new messages again."""
        self.on_over = nothing

    # -- what is remembered ----------------------------------------------------------------------------------

    def _wish(self) -> dict[str, Any]:
        held = {one.packet_id: one.position for one in self._exchanges.values() if one.state in _HELD}
        released = [one.packet_id for one in self._exchanges.values() if one.state in _RELEASED]
        state = HoldingState(held, released)
        self._asked = {
            one.position: one for one in self._exchanges.values() if one.state is ExchangeState.TAKING
        }
        return {
            "share": self._queue,
            "note": msgspec.msgpack.encode(state) if held or released else b"",
            "held": list(held.values()),
            "done": [one.position for one in self._exchanges.values() if one.state in _DONE],
        }

    def _heard(self, refused: list[int] | None, _now: float) -> None:
        """Let go what somebody else has."""
        for position in refused or ():
            one = self._asked.get(position)
            if (
                one is not None
                and one.state is ExchangeState.TAKING
                and self._exchanges.get(one.packet_id) is one
            ):
                self._forget(one)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        for packet_id, one in self._exchanges.items():
            assert one.packet_id == packet_id
            assert self._ids[packet_id] is self
            assert (one.state is ExchangeState.TAKING) == bool(one.parts)
            assert one.state not in _HELD or self._by_position[one.position] is one
