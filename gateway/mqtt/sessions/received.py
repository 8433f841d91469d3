"""Messages that a client publishes with QoS 2, from their PUBLISH to PUBCOMP: each is stored exactly once.

    PUBLISH ──► NEW ──► NOTED ──► SENT ──► STORED: PUBREC ──PUBREL──► RELEASED ──► PUBCOMP, and it is forgotten
                 │ remembered      │                                    remembered
                 └ refused here    └► REFUSED by the node ──► PUBREC with the reason, and it is forgotten
                                                      remembered

A message gets a sequence, and *packet identifier -> sequence* is remembered before the message leaves: so when its
PUBLISH comes again, on whatever connection, it leaves with the same sequence, and the node knows whether it has it.
PUBCOMP is said when it is remembered that the identifier is free: the client uses it for another message then.

The node takes what has a lower sequence than something before for stored. So messages leave by rising sequences, and on
a new connection nothing does before all that are KNOWN have come again, or their PUBRELs, which is what a client says
first [MQTT-4.4.0-1]. One that has forgotten some is waited for in vain, and then they are forgotten here, too. PUBRECs
have the order of the messages [MQTT-4.6.0-3].

A session that ends with its connection remembers nothing (`NoNote`). No I/O, no clock.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from angarium.message import row_size
from gateway.mqtt.codec.kinds import PacketType
from gateway.mqtt.sessions.storing import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from angarium.message import Row
    from gateway.mqtt.sessions.note import Keeping
    from gateway.mqtt.sessions.storing import Way

#: Messages of a session without PUBREL; only those that never say it, over many connections, come to so many.
MESSAGES_MAX: Final = 4_096
#: How long messages wait for others that are known and do not come again.
PATIENCE_S: Final = 30.0
#: Bytes of them that are not stored; one more always fits.
BYTES_MAX: Final = 2 << 20


class ExchangeState(Enum):
    """How far a message is."""

    #: From an earlier connection: it may be stored, and its PUBLISH or its PUBREL comes next.
    KNOWN = "known"
    NEW = "new"
    #: It has a sequence, which is about to be remembered.
    NUMBERED = "numbered"
    NOTED = "noted"
    SENT = "sent"
    STORED = "stored"
    #: The node has refused it, and that it is forgotten is about to be remembered.
    REFUSED = "refused"
    #: It is forgotten when the client is told.
    FORGOTTEN = "forgotten"
    RELEASED = "released"


#: What is remembered.
_KEPT: Final = (
    ExchangeState.KNOWN,
    ExchangeState.NUMBERED,
    ExchangeState.NOTED,
    ExchangeState.SENT,
    ExchangeState.STORED,
)
#: What has been decided, so that PUBREC can be said.
_DECIDED: Final = (ExchangeState.STORED, ExchangeState.FORGOTTEN)


class Answer(NamedTuple):
    """What a client is told."""

    #: PUBREC or PUBCOMP.
    kind: PacketType
    packet_id: int
    #: 0 or why; of a PUBCOMP whether the identifier was unknown.
    code: int = 0


class _Exchange:
    """One message."""

    __slots__ = ("code", "is_of_here", "packet_id", "row", "sequence", "state")

    def __init__(self, packet_id: int, sequence: int, state: ExchangeState) -> None:
        self.packet_id = packet_id
        self.sequence = sequence
        self.state = state
        #: Whether this connection has brought its PUBLISH.
        self.is_of_here = state is not ExchangeState.KNOWN
        #: Until it is stored.
        self.row: Row | None = None
        self.code = 0


class Received:
    """Those of one client, on one connection."""

    __slots__ = (
        "_awaited",
        "_awaited_until",
        "_exchanges",
        "_keeping",
        "_line",
        "_tell",
        "_way",
        "next_sequence",
        "size_bytes",
        "unfinished",
    )

    def __init__(self, keeping: Keeping, way: Way, tell: Callable[[Sequence[Answer], float], None]) -> None:
        """Begin without any.

        Args:
            keeping: remembers `sequences`.
            way: how they are stored; what it says is told to `opened` and `settled`.
            tell: tells the client something.
        """
        self._keeping = keeping
        self._way = way
        self._tell = tell
        #: By packet identifier.
        self._exchanges: dict[int, _Exchange] = {}
        #: Those without PUBREC of this connection, in the order in which they came.
        self._line: list[_Exchange] = []
        #: Those that are KNOWN, and how long they are waited for.
        self._awaited: dict[int, None] = {}
        self._awaited_until = math.inf
        #: Above all that were ever given out.
        self.next_sequence = 1
        #: Of what is not stored.
        self.size_bytes = 0
        #: Messages of this connection whose client was told neither PUBCOMP nor a refusal.
        self.unfinished = 0

    def load(self, next_sequence: int, sequences: Mapping[int, int], now: float) -> float:
        """Go on with what was remembered; gives when `tick` is to be called."""
        self.next_sequence = next_sequence
        for packet_id, sequence in sequences.items():
            self._exchanges[packet_id] = _Exchange(packet_id, sequence, ExchangeState.KNOWN)
        self._awaited = dict.fromkeys(sequences)
        return self.tick(now)

    def tick(self, now: float) -> float:
        """Wait no longer for what does not come; gives when to come again."""
        if self._awaited_until <= now:
            for packet_id in self._awaited:
                del self._exchanges[packet_id]
            self._awaited.clear()
            self._awaited_until = math.inf
            self._go_on(now)
        elif self._awaited and self._awaited_until == math.inf:
            self._awaited_until = now + PATIENCE_S
        return self._awaited_until

    def _came(self, packet_id: int, now: float) -> None:
        """Take note that a message that is known has come again, or its PUBREL."""
        if packet_id in self._awaited:
            del self._awaited[packet_id]
            self._awaited_until = now + PATIENCE_S if self._awaited else math.inf

    @property
    def sequences(self) -> dict[int, int]:
        """What is to be remembered."""
        return {
            one.packet_id: one.sequence
            for one in self._exchanges.values()
            if one.sequence and one.state in _KEPT
        }

    # -- what the client says --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Count those without PUBREC."""
        return len(self._line)

    def has_room(self) -> bool:
        """Tell whether another message is taken, however large it is."""
        return self.size_bytes < BYTES_MAX

    def is_full(self) -> bool:
        """Tell whether there are so many that no client comes to, which says PUBREL now and then."""
        return len(self._exchanges) >= MESSAGES_MAX

    def is_known(self, packet_id: int) -> bool:
        """Tell whether a message may be stored already, so that only the node may refuse it."""
        exchange = self._exchanges.get(packet_id)
        return exchange is not None and exchange.state is ExchangeState.KNOWN

    def again(self, packet_id: int, now: float) -> bool:
        """Take a PUBLISH of a message that this connection has brought before; false: it has not."""
        exchange = self._exchanges.get(packet_id)
        if exchange is None or exchange.state is ExchangeState.KNOWN:
            return False
        if exchange.state is ExchangeState.STORED and exchange not in self._line:
            self._tell([Answer(PacketType.PUBREC, packet_id, exchange.code)], now)
        return True

    def take(self, packet_id: int, row: Row, now: float) -> None:
        """Take a message; the caller has asked `again`."""
        exchange = self._exchanges.get(packet_id)
        if exchange is None:
            exchange = self._exchanges[packet_id] = _Exchange(packet_id, 0, ExchangeState.NEW)
        else:
            assert exchange.state is ExchangeState.KNOWN
            exchange.state, exchange.is_of_here = ExchangeState.NOTED, True
            self._came(packet_id, now)
        self.unfinished += 1
        exchange.row = row
        self.size_bytes += row_size(row)
        self._line.append(exchange)
        self._go_on(now)

    def refuse(self, packet_id: int, code: int, now: float) -> None:
        """Refuse a message; the caller has asked `again`.

        Of one that is known it is remembered first that it is over: its identifier is that of a new message then.
        """
        is_kept = packet_id in self._exchanges
        state = ExchangeState.REFUSED if is_kept else ExchangeState.FORGOTTEN
        exchange = self._exchanges[packet_id] = _Exchange(packet_id, 0, state)
        exchange.code = code
        self.unfinished += 1
        self._line.append(exchange)
        if is_kept:
            self._came(packet_id, now)
            self._keeping.after(lambda then: self._forgotten(exchange, then), now)
            self._go_on(now)
        else:
            self._answer(now)

    def release(self, packet_id: int, now: float) -> bool:
        """Take a PUBREL; false if the client has not been told PUBREC, and may not say it."""
        exchange = self._exchanges.get(packet_id)
        if exchange is None:
            self._tell([Answer(PacketType.PUBCOMP, packet_id, errors.NOT_DELIVERED)], now)
            return True
        if exchange.state is ExchangeState.RELEASED:
            return True
        if exchange.state not in (ExchangeState.KNOWN, ExchangeState.STORED) or exchange in self._line:
            return False
        exchange.state = ExchangeState.RELEASED
        self._came(packet_id, now)
        self._keeping.after(lambda then: self._completed(exchange, then), now)
        self._go_on(now)
        return True

    def _completed(self, exchange: _Exchange, now: float) -> None:
        self._end(exchange)
        self._tell([Answer(PacketType.PUBCOMP, exchange.packet_id)], now)

    def _end(self, exchange: _Exchange) -> None:
        del self._exchanges[exchange.packet_id]
        self.unfinished -= exchange.is_of_here

    # -- what the node says ----------------------------------------------------------------------------------

    def opened(self, now: float) -> None:
        """Be told that messages can be stored."""
        self.next_sequence = max(self.next_sequence, self._way.last_sequence + 1)
        self._go_on(now)

    def remembered(self, now: float) -> None:
        """Be told that all has been called which waited for one write: what is noted leaves together."""
        self._go_on(now)

    def settled(self, answers: Sequence[tuple[int, int]], now: float) -> None:
        """Be told what became of messages: 0 or an error code."""
        for packet_id, code in answers:
            exchange = self._exchanges[packet_id]
            assert exchange.state is ExchangeState.SENT
            assert exchange.row is not None
            self.size_bytes -= row_size(exchange.row)
            exchange.row, exchange.code = None, code
            if code in (0, errors.NO_SUBSCRIPTION_MATCH):
                exchange.state = ExchangeState.STORED
            else:
                exchange.state = ExchangeState.REFUSED
                self._keeping.after(lambda then, one=exchange: self._forgotten(one, then), now)  # type: ignore[misc]
        self._answer(now)
        self._go_on(now)

    def _forgotten(self, exchange: _Exchange, now: float) -> None:
        exchange.state = ExchangeState.FORGOTTEN
        self._answer(now)

    def fail(self, code: int, now: float) -> bool:
        """Be told that nothing can be stored; false if something may be already, so that it cannot be refused."""
        waiting = [one for one in self._line if one.row is not None]
        if any(one.state is not ExchangeState.NEW for one in waiting):
            return False
        for exchange in waiting:
            assert exchange.row is not None
            self.size_bytes -= row_size(exchange.row)
            exchange.row, exchange.code, exchange.state = None, code, ExchangeState.FORGOTTEN
        self._answer(now)
        return True

    # -- steps -----------------------------------------------------------------------------------------------

    def _go_on(self, now: float) -> None:
        """Number what is new, and send what is noted."""
        if not self._line:
            return
        if not self._way.is_open:
            self._way.open()
            return
        if self._awaited:
            return
        new = [one for one in self._line if one.state is ExchangeState.NEW]
        for exchange in new:
            exchange.sequence = self.next_sequence
            self.next_sequence += 1
            exchange.state = ExchangeState.NUMBERED
        if new:
            self._keeping.after(lambda _: self._noted(new), now)
        self._send()

    def _noted(self, exchanges: list[_Exchange]) -> None:
        for exchange in exchanges:
            exchange.state = ExchangeState.NOTED

    def _send(self) -> None:
        if not self._way.is_free or not self._way.is_open:
            return
        # What has come again has lower sequences than what is new, wherever it stands.
        ready = sorted(
            [one for one in self._line if one.state is ExchangeState.NOTED], key=lambda one: one.sequence
        )
        if ready:
            sent = self._way.send(
                [Message(one.packet_id, one.sequence, one.row) for one in ready if one.row is not None]
            )
            for exchange in ready[:sent]:
                exchange.state = ExchangeState.SENT

    def _answer(self, now: float) -> None:
        """Tell what is decided, up to the first message that is not."""
        told: list[Answer] = []
        while self._line and self._line[0].state in _DECIDED:
            exchange = self._line.pop(0)
            told.append(Answer(PacketType.PUBREC, exchange.packet_id, exchange.code))
            if exchange.state is ExchangeState.FORGOTTEN:
                self._end(exchange)
        if told:
            self._tell(told, now)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(packet_id == one.packet_id for packet_id, one in self._exchanges.items())
        assert all(self._exchanges.get(one.packet_id) is one for one in self._line)
        known = [one.packet_id for one in self._exchanges.values() if one.state is ExchangeState.KNOWN]
        assert sorted(self._awaited) == sorted(known)
        going = (ExchangeState.NUMBERED, ExchangeState.SENT)
        assert not self._awaited or not any(one.state in going for one in self._line)
        assert all(one.sequence < self.next_sequence for one in self._exchanges.values())
        waiting = [one.row for one in self._exchanges.values() if one.row is not None]
        assert self.size_bytes == sum(map(row_size, waiting))
        assert self.unfinished == sum(one.is_of_here for one in self._exchanges.values())
