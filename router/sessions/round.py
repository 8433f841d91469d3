"""One batch of one session on its way through matching: what it is made of and what came back.

A round knows its session, and the producer of its messages, only to hand them on, so the type of the session is a
parameter here and the producer is not looked into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.sessions.interest import FilterSet
    from router.sessions.producer import Producer

S = TypeVar("S")


#: Of a round from whose answer nothing is learned.
NEVER: Final = -1


class Part(NamedTuple):
    """The rows of a round that one worker matches."""

    worker: int
    rows: int
    batch: bytes


class Inside(NamedTuple):
    """What is in a batch that nobody here has opened, as a neighbour says."""

    classes: int
    #: All of them, and perhaps some more.
    topics: Sequence[str]


class PlainResult(msgspec.Struct, Generic[S], frozen=True, eq=False):
    """Rows for every session of a set. A struct, because a round of many topics has thousands."""

    set: FilterSet[S]
    rows: int
    classes: int
    batch: bytes
    #: All topics that are inside, if they are known and few; there may be more of them than are inside.
    topics: Sequence[str] | None = None


class ChoiceResult(NamedTuple, Generic[S]):
    """Rows of which each needs a choice; the batch is an array of packed rows."""

    set: FilterSet[S]
    plain_set: FilterSet[S] | None
    dto: bool
    rows: int
    classes: int
    batch: bytes


class EndpointResult(NamedTuple):
    """Rows for every endpoint of a set, with what admission asks of them."""

    set: FilterSet[Any]
    rows: int
    #: Payloads, properties and `wire.SPOOL_OVERHEAD_BYTES` for each row.
    spool_bytes: int
    #: Payload and properties of the largest row.
    largest: int
    #: Rows of class of service 1 or 2.
    low_priority: int
    batch: bytes


class Refusal(NamedTuple):
    """Guaranteed rows that a worker took out: none of them has a place to go."""

    code: int
    #: The topic of the first one.
    topic: str
    indices: list[int]


class Round(Generic[S]):
    """One batch under way."""

    __slots__ = (
        "broken",
        "bytes",
        "choice",
        "endpoints",
        "first",
        "flush",
        "inside",
        "learn",
        "mode",
        "next_filter",
        "number",
        "open",
        "parts",
        "plain",
        "producer",
        "refused",
        "resent",
        "rows",
        "rules_id",
        "session",
        "spooled_for",
        "stamp",
        "waited",
        "waiting",
    )

    def __init__(
        self,
        session: S,
        number: int,
        parts: list[Part],
        rules_id: int,
        *,
        flush: bool,
        producer: Producer[S] | None = None,
        first: int = 0,
    ) -> None:
        self.session = session
        self.number = number
        self.parts = parts
        self.flush = flush
        #: Whose guaranteed messages these are; None for direct ones.
        self.producer = producer
        #: Of a round that came over a link: indices of deliver-to-one rows for which a client is to be chosen here.
        self.open: frozenset[int] = frozenset()
        #: Of one that came over a link: classes and topics of its only batch, if the neighbour said them.
        self.inside: Inside | None = None
        #: Neighbour -> indices of the rows that the queue of its link has, None for all: of these its session gets no
        #: copy.
        self.spooled_for: dict[str, frozenset[int] | None] = {}
        #: What workers are to tell of its topics if it has more rows than a small round (`wire.LEARN_...`).
        self.learn = wire.LEARN_NOTHING if producer is None else wire.LEARN_ALL
        #: What the workers are to take its messages for (`wire.MATCH_...`).
        self.mode = wire.MATCH_DIRECT if producer is None else wire.MATCH_GUARANTEED
        #: The sequence of a row is this number and its index; 0 in a direct round.
        self.first = first
        if len(parts) == 1:
            self.rows, self.bytes = parts[0].rows, len(parts[0].batch)
        else:
            self.rows = sum(part.rows for part in parts)
            self.bytes = sum(len(part.batch) for part in parts)
        #: The publish rules under which it is judged, as the workers know them.
        self.rules_id = rules_id
        #: The number of the next filter when it came: workers may have matched it without those from there on.
        self.next_filter = 0
        #: How many filters had changed when it came; NEVER if a worker was still to be told of some.
        self.stamp = NEVER
        #: Parts not answered yet; all of them before the round is dispatched.
        self.waiting = len(parts)
        #: True once it has waited in a worker's line.
        self.waited = False
        #: True if a worker could make nothing of one of its batches: a guaranteed round is dropped as a whole then.
        self.broken = False
        self.plain: list[PlainResult[S]] = []
        self.choice: list[ChoiceResult[S]] = []
        #: What endpoints take; a list as soon as there is something.
        self.endpoints: Sequence[EndpointResult] = ()
        #: True if rows of it may have been stored before: it is matched without publish rules then.
        self.resent = False
        #: Of a guaranteed round: what the workers took out.
        self.refused: Sequence[Refusal] = ()
