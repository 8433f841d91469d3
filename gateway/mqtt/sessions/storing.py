"""How messages that a client publishes with QoS 2 are stored: two ways, of which a session has one.

A session that ends with its connection publishes with all others of its process (`Shared`): whoever is gone asks for
nothing again. One that is kept has a producer of its own (`Own`), with which the node knows a message that it has: it
comes again with the sequence that it had. Messages of a round have sequences that follow each other, and one round is
on its way at a time. No I/O, no clock.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from angarium import errors, wire
from angarium.errors import error_for
from angarium.message import row_size
from angarium.slots import ROUND_BYTES_MAX, ROW_OVERHEAD_BYTES
from gateway.session import ProducerOpened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.attached import Attached
    from gateway.session import Acknowledged

#: Added to packet identifiers, so that those of QoS 1 are others.
QOS_2: Final = 1 << 16
#: Messages of a round; a producer has a window of so many.
ROUND_MAX: Final = wire.PRODUCER_WINDOW_MAX
#: A producer that cannot be opened is tried again after so long, if that may help.
OPEN_AGAIN_S: Final = 0.5
_PASSING_FAMILIES: Final = (408, 429, 500)
_NAME_BYTES_MAX: Final = 160
_decode_opened: Final = msgspec.msgpack.Decoder(ProducerOpened).decode


class Message(NamedTuple):
    """A message that is to be stored."""

    packet_id: int
    sequence: int
    row: Row


class Way(Protocol):
    """One of the two."""

    @property
    def last_sequence(self) -> int:
        """The highest sequence that the node knew when it was opened."""

    @property
    def is_open(self) -> bool:
        """Whether the node knows it."""

    @property
    def is_free(self) -> bool:
        """Whether messages may be sent now, if it is open."""

    def open(self) -> None:
        """Have it opened, if it is not, and is not about to be; who waits for that is told by `on_open`."""

    def send(self, messages: list[Message]) -> int:
        """Send some of these, from the first one on; gives how many."""


class Shared:
    """By the producer of all clients of a process."""

    __slots__ = ("_attached",)

    last_sequence = 0
    is_free = is_open = True

    def __init__(self, attached: Attached) -> None:
        self._attached = attached

    def open(self) -> None:
        """Be open."""

    def send(self, messages: list[Message]) -> int:
        """Send all; `Client.acknowledged` follows."""
        for packet_id, _, row in messages:
            self._attached.publish_guaranteed(*row[1:], packet_id | QOS_2)
        return len(messages)


class Own:
    """By a producer of the client itself."""

    def __init__(
        self,
        attached: Attached,
        queue: str,
        wake: Callable[[float], None],
        on_open: Callable[[float], None],
        fail: Callable[[AngariumError, float], None],
    ) -> None:
        """Open nothing yet.

        Args:
            attached: the client at the node.
            queue: of its session; the producer has the same name.
            wake: has `tick` called then.
            on_open: is told that messages can be sent.
            fail: is told why they never can.
        """
        self._attached = attached
        self._name = (
            queue if len(queue.encode()) <= _NAME_BYTES_MAX and queue.isprintable() else _hashed(queue)
        )
        self._wake = wake
        self._on_open = on_open
        self._fail = fail
        self.last_sequence = 0
        #: Its number at the node, 0 while it is not open; and whether the node was asked for it.
        self._handle = 0
        self._is_opening = False
        self._open_at = math.inf
        #: What is on its way, by rising sequence.
        self._sent: list[Message] = []

    @property
    def is_open(self) -> bool:
        """Whether the node has it."""
        return bool(self._handle)

    @property
    def is_free(self) -> bool:
        """Whether nothing is on its way."""
        return not self._sent

    def open(self) -> None:
        """Ask the node for it, if that is to be done."""
        if not self._handle and not self._is_opening and self._open_at == math.inf:
            self._is_opening = True
            self._attached.request("producer.open", {"name": self._name}, self._opened, _decode_opened)

    def _opened(self, value: ProducerOpened | None, error: AngariumError | None, now: float) -> None:
        self._is_opening = False
        if value is not None:
            self._handle, self.last_sequence = value.producer, value.last_sequence
            self._publish()
            self._on_open(now)
        elif error is not None and error.code // 100 in _PASSING_FAMILIES:
            self._open_at = now + OPEN_AGAIN_S
            self._wake(self._open_at)
        elif error is not None:
            self._fail(error, now)

    def away(self) -> None:
        """Be without the router: the next one is to open it, and gets again what is on its way."""
        if self._handle:
            self._handle = 0
            self.open()

    def tick(self, now: float) -> None:
        """Open it again if it is time for that."""
        if self._open_at <= now:
            self._open_at = math.inf
            self.open()

    def send(self, messages: list[Message]) -> int:
        """Send the first of these that are a round; `acknowledged` follows."""
        assert self._handle
        assert not self._sent
        first, size = messages[0].sequence, 0
        for at, message in enumerate(messages[:ROUND_MAX]):
            size += row_size(message.row) + ROW_OVERHEAD_BYTES
            if message.sequence != first + at or (at and size > ROUND_BYTES_MAX):
                break
            self._sent.append(message)
        self._publish()
        return len(self._sent)

    def _publish(self) -> None:
        if self._sent:
            rows = [message.row for message in self._sent]
            self._attached.publish_own(self._handle, self._sent[0].sequence, rows)

    def acknowledged(self, event: Acknowledged) -> list[tuple[int, int]]:
        """Give the packet identifiers of what is settled, each with 0 or an error code.

        Raises:
            AngariumError: another session has the producer (40903).
        """
        if event.code:
            raise error_for(event.code, "another connection of the client has its producer")
        codes = {sequence: code for sequence, code, _ in event.nacks}
        codes.update(dict.fromkeys(_each(event.unroutable), errors.NO_SUBSCRIPTION_MATCH))
        settled = [one for one in self._sent if one.sequence <= event.upto]
        del self._sent[: len(settled)]
        return [(one.packet_id, codes.get(one.sequence, 0)) for one in settled]


def _each(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [sequence for first, count in ranges for sequence in range(first, first + count)]


def _hashed(queue: str) -> str:
    return f"#mqtt/{blake2b(queue.encode(errors='replace'), digest_size=24).hexdigest()}"
