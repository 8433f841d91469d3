"""One batch of one session on its way through matching: what it is made of and what came back.

A round knows its session, and the producer of its messages, only to hand them on, so the type of the session is a
parameter here and the producer is not looked into.

What each message makes one of is a `Struct`: it is made in a quarter of the time that a class in Python takes.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from angarium import wire
from angarium.message import pack_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.sessions.interest import FilterSet
    from router.sessions.producer import Producer

S = TypeVar("S")
#: Packed rows; a round has another thing of the name of their type.
Batch: TypeAlias = bytes


#: Of a round from whose answer nothing is learned.
NEVER: Final = -1
#: Of nearly every round, which is spared a dict of its own.
NOBODY: Final[Mapping[str, frozenset[int] | None]] = MappingProxyType({})


class Part(msgspec.Struct, frozen=True):
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
    """Rows for every session of a set."""

    set: FilterSet[S]
    rows: int
    classes: int
    batch: bytes
    #: All topics that are inside, if they are known and few; there may be more of them than are inside.
    topics: Sequence[str] | None = None
    #: The rows of which no batch was made yet: most rounds of gateways leave as a whole (`Round.whole`).
    unpacked: list[Any] | None = None

    def packed(self) -> PlainResult[S]:
        """Give the same with its batch."""
        if self.unpacked is None:
            return self
        return msgspec.structs.replace(self, batch=pack_rows(self.unpacked), unpacked=None)


class ChoiceResult(msgspec.Struct, Generic[S], frozen=True, eq=False):
    """Rows of which each needs a choice; the batch is an array of packed rows."""

    set: FilterSet[S]
    plain_set: FilterSet[S] | None
    dto: bool
    rows: int
    classes: int
    batch: bytes


class EndpointResult(msgspec.Struct, frozen=True, eq=False):
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


class Round(msgspec.Struct, Generic[S], eq=False):
    """One batch under way."""

    session: S
    number: int
    parts: list[Part]
    #: The publish rules under which it is judged, as the workers know them.
    rules_id: int
    rows: int
    #: As the client counts its credit, however the router cuts the batches.
    bytes: int
    #: Parts not answered yet; all of them before the round is dispatched.
    waiting: int
    flush: bool
    #: Whose guaranteed messages these are; None for direct ones.
    producer: Producer[S] | None = None
    #: Of a round that came over a link: indices of deliver-to-one rows for which a client is to be chosen here.
    open: frozenset[int] = frozenset()
    #: Of a gateway whose clients have its rows already: the indices of those that they have not; None: of all others.
    kept: frozenset[int] | None = None
    #: Of one that came over a link: classes and topics of its only batch, if the neighbour said them.
    inside: Inside | None = None
    #: Neighbour -> indices of the rows that the queue of its link has, None for all: of these its session gets no copy.
    spooled_for: Mapping[str, frozenset[int] | None] = NOBODY
    #: What workers are to tell of its topics if it has more rows than a small round (`wire.LEARN_...`).
    learn: int = wire.LEARN_NOTHING
    #: What the workers are to take its messages for (`wire.MATCH_...`).
    mode: int = wire.MATCH_DIRECT
    #: The sequence of a row is this number and its index; 0 in a direct round.
    first: int = 0
    #: First and last index, if they are known without opening its batches, and that none comes twice.
    span: tuple[int, int] | None = None
    #: The number of the next filter when it came: workers may have matched it without those from there on.
    next_filter: int = 0
    #: How many filters had changed when it came; NEVER if a worker was still to be told of some.
    stamp: int = NEVER
    #: True once it has waited in a worker's line.
    waited: bool = False
    #: True if a worker could make nothing of one of its batches: a guaranteed round is dropped as a whole then.
    broken: bool = False
    plain: list[PlainResult[S]] = msgspec.field(default_factory=list)
    #: All rows in order, in one batch, if that is known to be what `plain` has in several.
    whole: Batch | None = None
    #: These two are lists as soon as there is something: what is chosen for, and what endpoints take.
    choice: Sequence[ChoiceResult[S]] = ()
    endpoints: Sequence[EndpointResult] = ()
    #: True if rows of it may have been stored before: it is matched without publish rules then.
    resent: bool = False
    #: Of a guaranteed round: what the workers took out.
    refused: Sequence[Refusal] = ()
    #: What has not been sent on of one for which that takes long (`router.matching.pieces.Pieces`), or None.
    pieces: Any = None
