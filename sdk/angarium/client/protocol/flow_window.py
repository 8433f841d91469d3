"""What may come through a flow: credit in messages and bytes, renewed as the application takes messages.

A window belongs to one bind; the next one has another. Totals count from the bind and never fall. Bytes are
what the messages cost in the spool (`spool_size`), so that both sides count the same without looking at
frames. No I/O, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium.wire import malformed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.message import Row

#: A home may overdraw the bytes by one message, and a partitioned queue has several homes. Beyond this it is
#: a fault.
OVERDRAFT_BYTES_MAX: Final = 64 * 1024 * 1024
#: The largest total that a node takes.
UNLIMITED: Final = 1 << 62

#: Ends of a flow, and refusals to bind again, that pass: the endpoint is switched off (an operator will switch
#: it on), an old bind of ours may still count, the home or the controller is being replaced. All others are for
#: good: the endpoint is gone, this client may not use it, selector or topic do not fit.
_PASSING: Final = frozenset(
    {
        0,
        errors.ALREADY_BOUND,
        errors.TIMEOUT,
        errors.INTERNAL,
        errors.SHUTTING_DOWN,
        errors.SHARD_UNAVAILABLE,
        errors.ENDPOINT_SHUTDOWN,
        errors.MAX_BIND_COUNT_EXCEEDED,
        errors.TOO_MANY_FLOWS,
        errors.HOME_NOT_READY,
        errors.CONTROLLER_UNAVAILABLE,
    }
)


def spool_size(rows: Sequence[Row]) -> int:
    """Give what rows cost of the byte credit: payload, properties, and 64 bytes each."""
    size = len(rows) * wire.SPOOL_OVERHEAD_BYTES + sum([len(row[5]) for row in rows])
    return size + sum([len(row[4]) for row in rows if row[4] is not None])


def is_passing(code: int) -> bool:
    """Tell whether a flow that was ended or refused with this code is worth another try."""
    return code in _PASSING


class FlowWindow:
    """The credit of one bind."""

    __slots__ = (
        "bytes_max",
        "flow",
        "granted_bytes",
        "granted_messages",
        "limit",
        "messages_max",
        "received_bytes",
        "received_messages",
        "taken_bytes",
        "taken_messages",
    )

    def __init__(self, messages_max: int, bytes_max: int, limit: int = UNLIMITED) -> None:
        """Grant the first window, and never more than `limit` messages in all."""
        assert messages_max > 0
        assert bytes_max > 0
        assert limit >= 0
        #: What `granted_messages` never exceeds.
        self.limit = limit
        self.messages_max: Final = messages_max
        self.bytes_max: Final = bytes_max
        #: The number of the flow in its session; 0 until it is bound.
        self.flow = 0
        #: What the node may send: totals since the bind. They never fall.
        self.granted_messages = min(messages_max, limit)
        self.granted_bytes = bytes_max
        #: What came.
        self.received_messages = 0
        self.received_bytes = 0
        #: What the application took, or what was thrown away; at most what came.
        self.taken_messages = 0
        self.taken_bytes = 0

    @property
    def held_messages(self) -> int:
        """Messages that wait for the application."""
        return self.received_messages - self.taken_messages

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for the application."""
        return self.received_bytes - self.taken_bytes

    def receive(self, messages: int, size_bytes: int) -> None:
        """Count what came, so that no node can fill the memory of a slow application.

        Raises:
            InvalidRequestError: it is far more than what was granted (40001).
        """
        over_messages = self.received_messages - self.granted_messages - wire.MAX_BATCH_ROWS
        over_bytes = self.received_bytes - self.granted_bytes - OVERDRAFT_BYTES_MAX
        if over_messages > self.messages_max or over_bytes > self.bytes_max:
            raise malformed(f"more messages than there is credit for on flow {self.flow}")
        self.received_messages += messages
        self.received_bytes += size_bytes

    def take(self, messages: int, size_bytes: int) -> None:
        """Count what the application took."""
        self.taken_messages += messages
        self.taken_bytes += size_bytes

    def can_renew(self) -> bool:
        """Tell whether there is half a window more to grant, in messages or bytes, or the last messages."""
        messages = min(self.taken_messages + self.messages_max, self.limit)
        more_messages = messages - self.granted_messages
        more_bytes = self.taken_bytes + self.bytes_max - self.granted_bytes
        is_last = messages == self.limit and more_messages > 0
        return more_messages * 2 >= self.messages_max or more_bytes * 2 >= self.bytes_max or is_last

    def renew(self) -> tuple[int, int] | None:
        """Give new totals to grant if there is enough more, else None."""
        if not self.can_renew():
            return None
        self.granted_messages = min(self.taken_messages + self.messages_max, self.limit)
        self.granted_bytes = self.taken_bytes + self.bytes_max
        return self.granted_messages, self.granted_bytes

    def validate(self) -> None:
        """Check the sentences above."""
        assert 0 <= self.taken_messages <= self.received_messages
        assert 0 <= self.taken_bytes <= self.received_bytes
        assert self.granted_messages <= min(self.taken_messages + self.messages_max, self.limit)
        assert self.granted_bytes <= self.taken_bytes + self.bytes_max
