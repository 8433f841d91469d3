"""The frames between the router and the homes of endpoints: lanes, stored messages, records, moves, flows, leases."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - msgspec reads the types of fields
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from msgspec import Meta

from angarium import wire
from angarium_server.frames.frame import Frame, Record, about
from angarium_server.frames.matching import FromRouter, FromWorker, Natural, Positive
from angarium_server.frames.settings import FlowOptions, LaneSettings  # noqa: TC001 - msgspec reads them

#: Delivery attempts of a message that are counted, and the latest time and the highest position there are.
TRIES_MAX: Final = 255
TIME_MAX_MS: Final = (1 << 63) - 1
POSITION_MAX: Final = (1 << 63) - 1
#: A note is small: it is written as a whole each time.
NOTE_BYTES_MAX: Final = 64 << 10
#: Messages that go with it.
NOTE_DONE_MAX: Final = 4_096

Time = Annotated[int, Meta(ge=0, le=TIME_MAX_MS)]
Position = Annotated[int, Meta(ge=0, le=POSITION_MAX)]
PositivePosition = Annotated[int, Meta(ge=1, le=POSITION_MAX)]
#: A sequence of a producer, and the code with which it was refused.
Refusal = tuple[int, int]
#: Numbers that follow each other: the first, and how many.
Run = tuple[int, int]
#: Where a moved row comes from: kind and name of an endpoint, and why it was moved.
Origin = tuple[str, str, str]
#: What a row had behind it in another partition: delivery attempts, wall ms of spooling, expiry and end of its delay.
Past = tuple[Annotated[int, Meta(ge=0, le=TRIES_MAX)], Time, Time, Time]


# -- lanes -------------------------------------------------------------------------------------------------------


class LanePut(Record):
    """A lane that a home has, or is to have."""

    lane: int
    generation: int
    settings: LaneSettings


class LanesFrame(FromRouter):
    """Assigns lanes to a home; HOME answers a complete one, LANES_CONFIRM the others."""

    operation: ClassVar[bytes] = wire.LANES

    number: Annotated[int, about("rises by one with each LANES to this worker, over its incarnations")]
    complete: Annotated[bool, about("whether these are all lanes of the home")]
    puts: Annotated[Sequence[LanePut], about("lanes with their settings")]
    deletes: Annotated[
        list[int],
        about("lanes that are gone; in a complete one the first lane of each endpoint that was deleted"),
    ]
    leaving: Annotated[
        Sequence[int], about("in a complete one: lanes with another home, which a STORE will name in `parts`")
    ] = ()
    elsewhere: Annotated[
        Sequence[int], about("in a complete one: all other lanes that have their home elsewhere")
    ] = ()


class LanesConfirmFrame(FromWorker):
    """What a LANES said is durable and in force."""

    operation: ClassVar[bytes] = wire.LANES_CONFIRM

    number: Annotated[int, about("that of the LANES")]


# -- reports -----------------------------------------------------------------------------------------------------


class LaneTotals(Record):
    """What is in a lane; absolute figures."""

    lane: int
    messages: int
    bytes: int
    oldest_ms: int | None
    unacked: int
    complete: bool = True
    moving: tuple[int, int, int] | None = None
    reader_group: str = ""
    traffic: tuple[int, int, int, int] = (0, 0, 0, 0)


class SpoolFigures(Record):
    """What a home tells of its spool as a whole."""

    used: Sequence[Run]
    freed: Sequence[Run]
    newest_bytes: int
    disk_bytes: int
    unacked: int
    importing: int = 0
    staged_messages: int = 0
    staged_bytes: int = 0
    allowance: int = 0
    wanted: int = 0
    aside: int = 0
    room_bytes: int | None = None
    stages: Sequence[int] = ()


_TOTALS = about(
    "figures of all lanes, absolute. `bytes` are spool bytes, `oldest_ms` is "
    "the wall "
    "time at which the oldest message was spooled. `complete` is false if the figures are not "
    "[complete](#endpoints-and-the-number-of-workers); `moving` is `[first, messages, bytes]` of a [MOVE](#moves) "
    "that is under way and still in them; `reader_group` has [leased](#leases) the lane; `traffic` counts what came in "
    "and what left it for good, since the home has the lane: messages in, spool bytes in, messages out, bytes out"
)
_SPOOL = about(
    "the [spool files](#store) that are in use now, and those that are not any more, of those that changed "
    "(HOME: all in "
    "use), as runs `[first, how many]`; in HOME the spool bytes in the newest of them; bytes on disk; messages "
    "that are "
    "delivered and unacknowledged; lanes that are being taken over from other homes; messages and spool bytes that "
    "belong to [stages](#stages); the [allowance](#allowances) in force and what is wanted; lanes that are "
    "[kept aside](#lanes); bytes of batches that may be on their way for the disk (0: it has no room for "
    "anything new); "
    "in HOME the numbers of the stages"
)


class HomeFrame(FromWorker):
    """A home is there, with all that it has: answers a complete LANES."""

    operation: ClassVar[bytes] = wire.HOME

    router: Annotated[int, about("the incarnation of the router that sent LANES")]
    number: Annotated[int, about("that of the LANES")]
    stored: Annotated[int, about("up to this number STOREs of this router are durable")]
    totals: Annotated[Sequence[LaneTotals], _TOTALS]
    spool: Annotated[SpoolFigures, _SPOOL]


class CommittedFrame(FromWorker):
    """What is accepted and stored now; sent after each write, and at most every 20 ms when only totals changed."""

    operation: ClassVar[bytes] = wire.COMMITTED

    accepted: Annotated[int, about("STOREs up to this number count, also relaxed ones")]
    stored: Annotated[int, about("STOREs up to this number are durable")]
    totals: Annotated[Sequence[LaneTotals], about("as in HOME, of the lanes that changed")]
    spool: Annotated[SpoolFigures, about("as in HOME; of the spool files those that changed")]


class AllowanceFrame(FromRouter):
    """Sets how many messages a home may have delivered and not settled."""

    operation: ClassVar[bytes] = wire.ALLOWANCE

    messages: Annotated[int, about("the allowance")]


# -- storing -----------------------------------------------------------------------------------------------------


class StoreProducer(Record):
    """Whose rows they are."""

    id: Positive
    first: int


class RowGroup(Record):
    """Rows of one batch, which each of some lanes gets."""

    lanes: Sequence[Natural]
    rows: Natural
    origins: list[Origin | None] | None


class LaneRefusals(Record):
    """What a lane is to remember as refused."""

    lane: Natural
    refusals: Sequence[Refusal]


class LanePartitions(Record):
    """How many partitions the endpoint of a lane had."""

    lane: Natural
    partitions: Positive


class StoreFrame(FromRouter):
    """What one home is to store of one round; COMMITTED answers it."""

    operation: ClassVar[bytes] = wire.STORE
    batches: ClassVar[str] = "one batch per group"

    number: Annotated[Positive, about("from 1 per incarnation of the router, without gaps")]
    relaxed: Annotated[bool, about("accept at once, write later, and not at all what was consumed by then")]
    producer: Annotated[
        StoreProducer | None,
        about("the sequence of a row is first + index; nil for direct messages that endpoints take"),
    ]
    groups: Annotated[
        Sequence[RowGroup], about("the rows of each batch go to each of these lanes. A row is in one group")
    ]
    refused: Annotated[
        Sequence[LaneRefusals], about("verdicts `[sequence, code]` to keep beside what is stored")
    ]
    wall_ms: Annotated[Natural, about("when the router took it; time to live and delay count from here")]
    publisher: Annotated[
        Natural | dict[int, Natural],
        about(
            "the number of the client that published the rows, a hash of its name; 0: unknown. Of a move a map "
            "from the "
            "index of a row to it. It is stored with the rows"
        ),
    ] = 0
    counts: Annotated[
        Sequence[LanePartitions],
        about(
            "how many partitions the endpoint had when the router chose the lane; those that are not named have one"
        ),
    ] = ()
    pasts: Annotated[
        dict[int, Past] | None,
        about(
            "of what comes from a closed partition, from the index of a row to what goes on: delivery "
            "attempts, wall ms "
            "of spooling, of its expiry, of the end of its delay; else nil"
        ),
    ] = None
    file: Annotated[Natural, about("the spool file of the rows; 0 without rows")] = 0
    stage: Annotated[
        Natural,
        about(
            "the [stage](#stages) that the rows belong to; it may be left out, like the next two: then they "
            "belong to none"
        ),
    ] = 0
    release: Annotated[Sequence[Positive], about("stages whose rows go to their lanes")] = ()
    drop: Annotated[Sequence[Positive], about("stages that go")] = ()
    parts: Annotated[
        Sequence[int],
        about("lanes that have another home: [it parts with them](#a-lane-moves) behind all before"),
    ] = ()


# -- records -----------------------------------------------------------------------------------------------------


class GatherFrame(FromRouter):
    """Asks what a home knows of a producer; RECORDS answers it when every STORE before it is durable."""

    operation: ClassVar[bytes] = wire.GATHER

    reference: Annotated[int, about("comes back in RECORDS")]
    producer: Annotated[int, about("its number")]
    forget: Annotated[bool, about("whether the records are deleted then")]


class LaneRecord(Record):
    """What a lane knows of a producer."""

    lane: int
    lasts: Sequence[tuple[int, int]]
    refused: Sequence[Refusal]


class RecordsFrame(FromWorker):
    """What all lanes of a home know of a producer."""

    operation: ClassVar[bytes] = wire.RECORDS

    reference: Annotated[int, about("that of the GATHER")]
    records: Annotated[
        Sequence[LaneRecord],
        about(
            "`lasts` are `[partitions, last sequence]` for each number of partitions, `refused` `[sequence, code]`"
        ),
    ]


# -- moves -------------------------------------------------------------------------------------------------------


class MoveFrame(FromWorker):
    """Messages that a home publishes itself; MOVED answers it."""

    operation: ClassVar[bytes] = wire.MOVE
    batches: ClassVar[str] = "the batch"

    lane: Annotated[int, about("where they come from")]
    first: Annotated[int, about("the sequence of index 0")]
    target: Annotated[
        Sequence[str | int], about('`[kind, vpn, name]` of an endpoint, or `["lane-home", endpoint id]`')
    ]
    rows: Annotated[int, about("rows in the batch, up to 255")]
    origins: Annotated[
        list[Origin | None] | None,
        about(
            "where each row comes from: `[kind, name, reason]`, the reason being `expired`, `redeliveries`, "
            "`rejected`, `moved`, `copied` or `redriven`"
        ),
    ]
    publishers: Annotated[dict[int, int], about("who published the rows, by their indices")]
    pasts: Annotated[dict[int, Past], about("between partitions, what rows had behind them, as in STORE")]
    file: Annotated[
        int | None,
        about("the spool file in which the rows go on, nil if they are copied: copies are new messages"),
    ]


class MovedFrame(FromRouter):
    """The homes of the target have stored what it took of a MOVE."""

    operation: ClassVar[bytes] = wire.MOVED

    lane: Annotated[int, about("that of the MOVE")]
    first: Annotated[int, about("that of the MOVE")]
    upto: Annotated[int, about("the last sequence of the MOVE")]
    refused: Annotated[
        list[Refusal],
        about("what the target did not take, as `[sequence, code]`; 40404: there is no such endpoint"),
    ]


# -- flows -------------------------------------------------------------------------------------------------------


class Bind(Record, tag="bind"):
    """The flow gets messages of a lane from now on. The options are below."""

    lane: int
    browse: bool
    selector: str | None
    messages: Natural
    bytes: Natural
    options: FlowOptions


class Credit(Record, tag="credit"):
    """What the flow may be sent: totals since its bind."""

    messages: Natural
    bytes: Natural


class Settle(Record, tag="settle"):
    """What a consumer says of ranges `[first, last]`: outcome 0 accepted, 1 released, 2 failed, 3 rejected."""

    outcome: int
    ranges: Sequence[tuple[Positive, Positive]]


class Unbind(Record, tag="unbind"):
    """Nil ends it at once; else nothing more is handed out, and it is closed when all is settled, or the time over.

    What is `released` is given back first, as if it had not been delivered: ranges `[first, last]`.
    """

    hand_off_ms: Natural | None
    released: Sequence[tuple[Positive, Positive]] = ()


FlowVerb = Bind | Credit | Settle | Unbind


class FlowOrder(Record):
    """What the router says about one flow."""

    flow: Positive
    verb: FlowVerb


class FlowFrame(FromRouter):
    """What the router says about flows at a home."""

    operation: ClassVar[bytes] = wire.FLOW

    orders: Annotated[
        list[FlowOrder],
        about(
            "in this order: a number of the router that is never used again, and what it says of that flow, see below"
        ),
    ]


class FlowPart(Record):
    """Rows of one block, as the client gets them in MESSAGES."""

    partition: int
    rows: int
    runs: Sequence[Run]
    counts: Sequence[int] | None
    stored_ms: int | Sequence[int]
    origins: list[Origin | None] | None


class FlowMessagesFrame(FromWorker):
    """Messages for a flow."""

    operation: ClassVar[bytes] = wire.FLOW_MESSAGES
    batches: ClassVar[str] = "one batch per part"

    flow: Annotated[int, about("that of FLOW")]
    parts: Annotated[Sequence[FlowPart], about("as in [MESSAGES](protocol.md#consuming)")]
    bytes: Annotated[int, about("what the frame costs of the credit in bytes")]


class FlowEvent(NamedTuple):
    """What happened to a flow."""

    flow: int
    event: int
    code: int
    detail: str


class FlowEventFrame(FromWorker):
    """What happened to flows."""

    operation: ClassVar[bytes] = wire.FLOW_EVENT

    events: Annotated[
        Sequence[FlowEvent],
        about(
            "what happened, in this order: `flow` is that of FLOW, `event` as in "
            "[INDICATION](protocol.md#consuming): 0 closed, 1 active, 2 inactive, 4 settle refused; `code` says why, "
            "0 if there is no reason, and `detail` the same in words"
        ),
    ]


# -- leases ------------------------------------------------------------------------------------------------------


class OpenLease(Record, tag="open"):
    """Lease the lane. Gives figures, `epoch`, `continued`; nil: a partition that went and holds nothing."""

    group: str
    lease_ms: PositivePosition


class AskPositions(Record, tag="positions"):
    """Where the group is. Gives figures."""

    group: str
    epoch: Position


class AskFigures(Record, tag="figures"):
    """Which positions there are, for browsers: it needs no lease. Gives figures."""


class CountFrom(Record, tag="count"):
    """How much there is from a position on. Gives `[messages, bytes]`."""

    group: str
    epoch: Position
    start: Position


class FindTime(Record, tag="find_time"):
    """Which message was spooled at a time or later. Gives its position."""

    group: str
    epoch: Position
    wall_ms: Position


class PlanRange(Record, tag="plan"):
    """Plan a range of so much at most; `end` 0: all that is there. Gives `[start, end, messages, bytes]`."""

    group: str
    epoch: Position
    start: Position
    end: Position
    messages: PositivePosition
    bytes: PositivePosition


class AcknowledgeUpto(Record, tag="acknowledge"):
    """Acknowledge what was planned before a position. Gives how many messages."""

    group: str
    epoch: Position
    end: Position


class ReleaseLease(Record, tag="release"):
    """End the lease; epoch 0: the one that the group has. Gives whether there was one."""

    group: str
    epoch: Position


class ReadRetained(Record, tag="retained"):
    """Read what is [retained](#what-is-retained), by rising topics. Gives `[upto, next]`, and a batch."""

    filter: str
    after: str
    upto: Position
    bytes: PositivePosition


class KeepNote(Record, tag="keep"):
    """Keep a note of a consumer in the lane, empty: none, and delete messages, as one write. Gives nil.

    Of a holder: the messages in `held` are its own from now on, and no others. Gives those that its flow does not have.
    """

    note: Annotated[bytes, Meta(max_length=NOTE_BYTES_MAX)]
    done: Annotated[list[PositivePosition], Meta(max_length=NOTE_DONE_MAX)]
    holder: str = ""
    held: Annotated[Sequence[PositivePosition], Meta(max_length=NOTE_DONE_MAX)] = ()


class ReadNote(Record, tag="note"):
    """Read that note; it needs no lease. Gives it, empty if there is none; of a holder `[note, held]`."""

    holder: str = ""


class ListHolders(Record, tag="holders"):
    """Who holds messages or has a note. Gives the holders."""


LeaseVerb = (
    OpenLease
    | AskPositions
    | AskFigures
    | CountFrom
    | FindTime
    | PlanRange
    | AcknowledgeUpto
    | ReleaseLease
    | ReadRetained
    | KeepNote
    | ReadNote
    | ListHolders
)


class LeaseFrame(FromRouter):
    """What a reader group asks of a lane; LEASED answers it."""

    operation: ClassVar[bytes] = wire.LEASE

    reference: Annotated[int, about("comes back in LEASED")]
    lane: Annotated[int, about("which lane is asked")]
    verb: Annotated[LeaseVerb, about("what is asked, see below")]


class LeasedFrame(FromWorker):
    """Answers a LEASE."""

    operation: ClassVar[bytes] = wire.LEASED
    batches: ClassVar[str] = "the rows that `retained` gives"

    reference: Annotated[int, about("that of the LEASE")]
    code: Annotated[int, about("0, or why it is refused")]
    value: Annotated[Any, about("the answer, see below; of a refusal the reason in words")]


#: In the order of the documentation.
FRAMES: Final[tuple[type[Frame], ...]] = (
    LanesFrame,
    LanesConfirmFrame,
    HomeFrame,
    StoreFrame,
    CommittedFrame,
    GatherFrame,
    RecordsFrame,
    FlowFrame,
    FlowMessagesFrame,
    FlowEventFrame,
    LeaseFrame,
    AllowanceFrame,
    LeasedFrame,
    MoveFrame,
    MovedFrame,
)
