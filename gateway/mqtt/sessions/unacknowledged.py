"""Messages with QoS 1 and 2 that a client was sent and that are not over, by their packet identifiers.

The identifier follows from the position in the queue, so nobody has to remember it: after a reconnect, in whatever
process, a message comes with the one that it had. It is the same for positions that are IDS apart; of these only one
is on its way, and the others wait.

The flow that brings messages may end while its client stays, because a worker is replaced. The next one brings all
again of which the queue does not know that they are done with. None is sent twice on one connection [MQTT-4.4.0-1]:
flows bring rising positions, so what is not above the highest one is on its way, or done with.

With QoS 2 a message is *released* when its PUBREC came: it is never sent again, and its identifier is free after its
PUBCOMP, as soon as it is remembered that it is over. No I/O, no clock.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from gateway.mqtt.codec.acknowledge import PubRel
from gateway.mqtt.codec.errors import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from angarium.client.protocol.flow_window import FlowWindow
    from gateway.mqtt.sessions.host import SessionOwner

#: A message on its way.
T = TypeVar("T")

#: Packet identifiers are from 1 to this.
IDS: Final = 32_767
#: Those above are given out: to what comes of queues that are shared, and to what is retained, of which there is never
#: more on its way than these.
IDS_OF_SHARES: Final = range(IDS + 1, 65_280)
IDS_OF_RETAINED: Final = range(65_280, 65_536)
#: Reason codes from this one on say that something was refused.
FAILURE: Final = 0x80
#: A part of what may wait for a client that reads slowly.
IN_FLIGHT_BYTES_MAX: Final = 1 << 20


class Verdict(Enum):
    """What is to be done with a message that came."""

    SEND = "send it"
    #: Another message has its packet identifier.
    WAIT = "wait"
    #: It is on its way already.
    KNOWN = "known"
    #: It is done with already.
    DONE = "done"


class Awaited(Enum):
    """What answers a message."""

    PUBACK = 1
    PUBREC = 2
    PUBCOMP = 3


class Out(NamedTuple):
    """A message on its way."""

    position: int
    size_bytes: int
    qos: int
    #: Of the flow that brought it last.
    window: FlowWindow


def packet_id_of(position: int) -> int:
    """Give the packet identifier of a position."""
    return 1 + position % IDS


class InFlight:
    """How much one client was sent and has not acknowledged, of its session, of what it shares and what is retained."""

    __slots__ = ("_holds", "bytes", "messages", "messages_max")

    def __init__(self, messages_max: int) -> None:
        self.messages_max = messages_max
        self.messages = self.bytes = 0
        #: How many want that only what is retained is sent.
        self._holds = 0

    @property
    def has_room(self) -> bool:
        """Whether another message of a queue may be sent, whatever its size."""
        return self.has_place and not self._holds

    @property
    def has_place(self) -> bool:
        """Whether another message may be sent that is retained, whatever its size."""
        return self.messages < self.messages_max and self.bytes < IN_FLIGHT_BYTES_MAX

    def hold(self) -> None:
        """Send nothing of queues; each call needs its `release`."""
        self._holds += 1

    def release(self) -> None:
        """Send it again, if nobody else holds it."""
        self._holds -= 1
        assert self._holds >= 0

    def add(self, size_bytes: int) -> None:
        """Take note of a message that is sent."""
        self.messages += 1
        self.bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        """Take note that a message is acknowledged."""
        self.messages -= 1
        self.bytes -= size_bytes
        assert self.messages >= 0


class Released:
    """A message with QoS 2 after its PUBREC."""

    __slots__ = ("is_told", "is_written", "out", "position")

    def __init__(self, position: int, out: Out | None) -> None:
        self.position = position
        #: As it was on its way; None: it is of an earlier connection.
        self.out = out
        #: Whether it is remembered, and is not in the queue any more.
        self.is_written = out is None
        #: Whether PUBREL was said, since which PUBCOMP may come.
        self.is_told = False


class Numbered(Generic[T]):
    """Messages on their way whose packet identifiers are given out as they are sent, and free when they are over."""

    __slots__ = ("_ids", "_last", "_others", "_out", "_released", "_twice")

    def __init__(self, ids: range, others: Container[int] = ()) -> None:
        """Have none; never so many as there are identifiers will be on their way, with those that `others` use."""
        self._ids = ids
        self._others = others
        self._last = ids[-1]
        self._out: dict[int, T] = {}
        #: The identifiers of those with QoS 2, and of those that PUBREL was said of.
        self._twice: set[int] = set()
        self._released: set[int] = set()

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._out

    def __getitem__(self, packet_id: int) -> T:
        return self._out[packet_id]

    def __setitem__(self, packet_id: int, message: T) -> None:
        self._out[packet_id] = message

    def add(self, message: T, qos: int) -> int:
        """Take note of a message that is sent; gives its packet identifier."""
        packet_id = self.free_id()
        self._out[packet_id] = message
        if qos > 1:
            self._twice.add(packet_id)
        return packet_id

    def awaited(self, packet_id: int) -> Awaited | None:
        """Give what is to answer a message next; None if there is none."""
        if packet_id not in self._out:
            return None
        if packet_id in self._released:
            return Awaited.PUBCOMP
        return Awaited.PUBREC if packet_id in self._twice else Awaited.PUBACK

    def free_id(self) -> int:
        """Give a packet identifier that nobody uses."""
        while True:
            self._last = self._ids[0] if self._last == self._ids[-1] else self._last + 1
            if self._last not in self._out and self._last not in self._others:
                return self._last

    def take(self, packet_id: int) -> T | None:
        """Take out a message that is over; None if there is none."""
        self._twice.discard(packet_id)
        self._released.discard(packet_id)
        return self._out.pop(packet_id, None)

    def receive(self, packet_id: int, code: int, owner: SessionOwner, now: float) -> bool:
        """Answer a PUBREC; true if it is a refusal, so that the message is over."""
        if code >= FAILURE:
            return True
        if packet_id in self._out:
            self._released.add(packet_id)
            owner.released(PubRel(packet_id), now)
        else:
            owner.released(PubRel(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), now)
        return False

    def is_released(self, packet_id: int) -> bool:
        """Tell whether a PUBCOMP is awaited."""
        return packet_id in self._released

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(one in self._ids and one not in self._others for one in self._out)
        assert self._released <= self._twice <= self._out.keys()


class Unacknowledged:
    """Those of one session on one connection."""

    __slots__ = ("_highest", "_out", "_over", "_released")

    def __init__(self) -> None:
        #: By packet identifier.
        self._out: dict[int, Out] = {}
        #: Those after their PUBREC; and after PUBCOMP, until that is remembered.
        self._released: dict[int, Released] = {}
        self._over: dict[int, Released] = {}
        #: The highest position that was sent, or that the client does not get.
        self._highest = 0

    def __len__(self) -> int:
        return len(self._out)

    def judge(self, position: int) -> Verdict:
        """Say what is to be done with a message that came."""
        packet_id = packet_id_of(position)
        out = self._out.get(packet_id)
        if self._released or self._over:
            released = self._released.get(packet_id) or self._over.get(packet_id)
            if released is not None:
                if released.position != position:
                    return Verdict.WAIT
                return Verdict.DONE if released.is_written else Verdict.KNOWN
        if out is not None:
            return Verdict.KNOWN if out.position == position else Verdict.WAIT
        return Verdict.DONE if position <= self._highest else Verdict.SEND

    def passed(self, position: int) -> None:
        """Take note of a message whose turn has come."""
        self._highest = max(self._highest, position)

    def sent(self, out: Out) -> int:
        """Take note of a message that is sent; gives its packet identifier."""
        packet_id = packet_id_of(out.position)
        assert packet_id not in self._out
        self._out[packet_id] = out
        return packet_id

    def came_again(self, position: int, window: FlowWindow) -> bool:
        """Take note that a flow brought a message on its way; false if it is that which had brought it before."""
        packet_id = packet_id_of(position)
        known = self._out.get(packet_id)
        if known is None:
            released = self._released[packet_id]
            known = released.out
            assert known is not None
            released.out = known._replace(window=window)
        else:
            self._out[packet_id] = known._replace(window=window)
        return known.window is not window

    def awaited(self, packet_id: int) -> Awaited | None:
        """Give what is to answer a message next; None if there is none, or it was answered."""
        out = self._out.get(packet_id)
        if out is not None:
            return Awaited.PUBREC if out.qos > 1 else Awaited.PUBACK
        return Awaited.PUBCOMP if packet_id in self._released else None

    def acknowledged(self, packet_id: int) -> Out | None:
        """Take an acknowledgement; None if it is for nothing, as one of an earlier connection."""
        return self._out.pop(packet_id, None)

    def load(self, positions: Sequence[int]) -> None:
        """Go on with those that an earlier connection has released."""
        self._released = {packet_id_of(one): Released(one, None) for one in positions}

    def released(self, packet_id: int) -> Released | None:
        """Give a message after its PUBREC."""
        return self._released.get(packet_id)

    @property
    def last_exact(self) -> int:
        """Give the highest position that is on its way with QoS 2, before its PUBREC; 0 if none is."""
        return max([out.position for out in self._out.values() if out.qos > 1], default=0)

    def release(self, packet_id: int) -> Released | None:
        """Take the PUBREC of a message; None if it is for nothing that is on its way."""
        out = self._out.pop(packet_id, None)
        if out is None:
            return None
        released = self._released[packet_id] = Released(out.position, out)
        return released

    def complete(self, packet_id: int) -> None:
        """Take the PUBCOMP of a message that is released; `forget` follows when that is remembered."""
        self._over[packet_id] = self._released.pop(packet_id)

    def forget(self, packet_id: int) -> None:
        """Let another message have the identifier."""
        del self._over[packet_id]

    def is_held(self, position: int) -> bool:
        """Tell whether a message waits only until it is remembered that another one is over."""
        return packet_id_of(position) in self._over

    @property
    def released_count(self) -> int:
        """Count those after their PUBREC."""
        return len(self._released)

    def all_released(self) -> list[Released]:
        """Give those after their PUBREC, in its order."""
        return list(self._released.values())

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(packet_id == packet_id_of(out.position) for packet_id, out in self._out.items())
        assert all(out.position <= self._highest for out in self._out.values())
        assert not self._out.keys() & (self._released.keys() | self._over.keys())
        assert not self._released.keys() & self._over.keys()
