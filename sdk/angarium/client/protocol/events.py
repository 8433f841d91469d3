"""What a session tells: events, in the order in which they happened.

`angarium.client.protocol.session` makes them of frames, `angarium.client.client` acts on them. They carry values only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec

from angarium.topic import SLOTS

if TYPE_CHECKING:
    from angarium import errors
    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import GuaranteedDelivery
    from angarium.client.protocol.send_window import SendWindow
    from angarium.message import Delivery

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Table = Annotated[bytes, msgspec.Meta(min_length=SLOTS, max_length=SLOTS)]


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the router says when it opens a session."""

    session: str
    client_name: str
    vpn: str
    node: str
    token: bytes
    resumed: bool
    epoch: _Positive
    slots: _Table
    workers: _Positive
    rounds: _Positive
    round_bytes: _Positive = msgspec.field(name="bytes")
    keepalive_ms: Annotated[int, msgspec.Meta(ge=100, le=3_600_000)]
    max_message_bytes: _Positive
    max_batch_rows: _Positive
    max_batch_bytes: Annotated[int, msgspec.Meta(ge=1024)]
    inbox: str
    #: Whether the node has queues and takes guaranteed messages.
    guaranteed: bool = False
    #: Whether a round may ask for a report of rows that match nothing.
    reports_unmatched: bool = False
    #: Whether `flow.unbind` may give back what the application has not seen.
    takes_released: bool = False
    #: Bytes of batches that one producer may have unacknowledged before its next round.
    producer_bytes: _Positive = 16 * 1024 * 1024
    #: How long the token of this client is good from now on; None without one.
    token_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    #: What the process of a link or a bridge is told of the node: name, id, cluster, clock; nothing for clients.
    link: dict[str, str | int] = {}

    def with_table(self, event: TableChanged) -> Welcome:
        """Give this with the table by which rows are to be cut now."""
        return msgspec.structs.replace(self, epoch=event.epoch, slots=event.slots)


class Opened(NamedTuple):
    """The session is open."""

    welcome: Welcome


class Answered(NamedTuple):
    """A SUBSCRIBE or UNSUBSCRIBE took effect; None or the error for each filter, in the order asked."""

    request: int
    results: list[errors.AngariumError | None]


class Delivered(msgspec.Struct, frozen=True):
    """Messages came, all of one round of one publisher; before them `dropped` were discarded."""

    deliveries: list[Delivery]
    dropped: int


class Retired(NamedTuple):
    """All rounds up to this one were matched and handed on; there may be room for more."""

    round: int


class Noticed(NamedTuple):
    """The router refused `messages` rows that this client published."""

    code: int
    detail: str
    messages: int
    #: That they were in; 0 for several.
    round: int = 0


class TableChanged(NamedTuple):
    """Rows are to be cut by a new table."""

    epoch: int
    slots: bytes


class Replied(NamedTuple):
    """An operation was carried out, with this value, or refused."""

    request: int
    value: Any
    error: errors.AngariumError | None


class Acknowledged(NamedTuple):
    """Messages of the producer with these rows are settled up to `upto`: stored, but for those that were refused.

    Of these no endpoint took the `unroutable` ones.

    With an error the producer is over: another session opened it.
    """

    rows: SendWindow
    upto: int
    refused: list[tuple[int, errors.AngariumError]]
    unroutable: list[range]
    error: errors.AngariumError | None


class Arrived(NamedTuple):
    """Messages of the flow with this window came; each delivery is of one partition, by rising position."""

    window: FlowWindow
    deliveries: list[GuaranteedDelivery]


class Indicated(NamedTuple):
    """Something happened to the flow with this window: one of `wire.FLOW_...`, with what it is about."""

    window: FlowWindow
    event: int
    code: int
    detail: str
    #: Of FLOW_PARTITIONS: what the flow has from now on; of FLOW_LEAVING: what it is about to lose.
    partitions: list[int]


class Closed(NamedTuple):
    """The session is over: None after BYE, else why. No event follows."""

    error: errors.AngariumError | None


Event: TypeAlias = (
    Opened
    | Answered
    | Delivered
    | Retired
    | Noticed
    | TableChanged
    | Replied
    | Acknowledged
    | Arrived
    | Indicated
    | Closed
)
