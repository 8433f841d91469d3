"""What clients published to be retained, and what they read of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.event_history import FOREVER

if TYPE_CHECKING:
    from tests.simulation.event_history import ConnectionRecord, History
    from tests.simulation.guaranteed.records import GuaranteedHistory


class Kept(NamedTuple):
    """A message that was published to be retained, direct or guaranteed."""

    what: str
    vpn: str
    topic: str
    sent_at: float
    #: When its publisher knew what became of it.
    settled_at: float
    #: What publishes in order: a producer, or a connection with direct messages; and the place in its order.
    source: object
    place: tuple[int, int]
    #: It was sent once, and stored or dispatched as far as its publisher knows.
    is_sure: bool
    is_empty: bool
    ttl_ms: int

    def precedes(self, other: Kept) -> bool:
        """Tell whether its publishers see to it that another one of its topic is newer."""
        if self.source is other.source:
            return self.place < other.place
        return self.settled_at < other.sent_at


class Got(NamedTuple):
    """A message that a subscriber was given."""

    topic: str
    what: str
    at: float
    #: Whether it was read, and did not come live.
    is_retained: bool


class Pages:
    """What was read of one filter."""

    def __init__(self, pattern: str, at: float) -> None:
        self.pattern = pattern
        self.asked_at = at
        #: (topic, what), as they came.
        self.rows: list[tuple[str, str]] = []
        #: When the last page came.
        self.done_at = FOREVER


class Reading:
    """What one client reads of what is retained on one connection; for itself, or for a subscription."""

    def __init__(self, connection: ConnectionRecord, filters: tuple[str, ...], *, is_live: bool) -> None:
        self.connection = connection
        self.filters = filters
        self.is_live = is_live
        #: Each reading of a filter; one that was refused began again.
        self.pages: list[Pages] = []
        #: What the subscriber was given, in order.
        self.got: list[Got] = []
        #: Topics of which something came live before that: another subscription may have led to it.
        self.early: dict[str, None] = {}
        #: When its subscriptions were in force, and it asked for the first page.
        self.begun_at = FOREVER
        #: When all was read.
        self.done_at = FOREVER
        #: When it was given up: unsubscribed, or its connection was over.
        self.ended_at = FOREVER
        #: Codes with which it was refused.
        self.refusals: list[int] = []

    def __repr__(self) -> str:
        return f"{self.connection} reading {', '.join(self.filters)}{' live' if self.is_live else ''}"


def all_kept(direct: History, guaranteed: GuaranteedHistory) -> dict[str, Kept]:
    """Give everything that was sent to be retained and not refused, by what is in it."""
    found: dict[str, Kept] = {}
    for one in guaranteed.publications:
        if one.is_retained and one.sends and one.refused_at == FOREVER:
            is_sure = one.is_acked and len(one.sends) == 1
            found[f"g{one.number}"] = Kept(
                f"g{one.number}",
                one.vpn,
                one.topic,
                one.sent_at,
                one.acked_at,
                one.producer,
                (one.sequence, 0),
                is_sure,
                one.is_empty,
                one.ttl_ms,
            )
    for message in direct.messages:
        if message.is_retained:
            found[f"{message.number}"] = Kept(
                f"{message.number}",
                message.publisher.vpn,
                message.topic,
                message.sent_at,
                message.retired_at,
                message.publisher,
                message.place,
                message.retired_at < FOREVER and direct.publish_verdict(message) is True,
                message.is_empty,
                0,
            )
    return found
