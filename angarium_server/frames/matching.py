"""The frames of matching: a worker's start, filters, rules, batches and what they are answered with."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - msgspec reads the types of fields
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from angarium import wire
from angarium.topic import SLOTS
from angarium_server.frames.frame import Frame, Record, about

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]

#: Of a batch of this mean size of a row on, payloads are opened as views: to copy them takes longer.
LARGE_ROW_BYTES: Final = 512


class FromRouter(Frame):
    """A frame to a worker."""

    direction: ClassVar[str] = "to a worker"

    router: Annotated[int, about("the incarnation of the router")]


class FromWorker(Frame):
    """A frame to the router."""

    direction: ClassVar[str] = "to the router"

    incarnation: Annotated[int, about("that of the worker")]


# -- to the router -----------------------------------------------------------------------------------------------


class Ready(Frame):
    """A worker is there; sent from its start, and again on each new connection, until a START comes."""

    operation: ClassVar[bytes] = wire.READY
    direction: ClassVar[str] = "to the router"

    index: Annotated[Natural, about("which worker of the node it is, from 0")]
    incarnation: Annotated[Positive, about("that of the worker")]


class Confirm(FromWorker):
    """The filters of a FILTERS are in force, and those of all before it."""

    operation: ClassVar[bytes] = wire.CONFIRM

    sequence: Annotated[int, about("that of the FILTERS")]


class SetDefinition(Record):
    """The filters of a set, under the number that its worker gave it."""

    set: int
    filters: Sequence[int]


class Retire(FromWorker):
    """The worker will not name these sets again; sent while there is no RESULT that could say so."""

    operation: ClassVar[bytes] = wire.RETIRE

    retired: Annotated[list[int], about("numbers of sets")]


class Sets(FromWorker):
    """Defines large sets before a RESULT names them."""

    operation: ClassVar[bytes] = wire.SETS

    defs: Annotated[list[SetDefinition], about("sets that are named for the first time")]


class Work(FromWorker):
    """What the topics of a batch cost beyond what is free; sent when the batch has to wait, and before its RESULT."""

    operation: ClassVar[bytes] = wire.WORK

    reference: Annotated[int, about("that of the MATCH")]
    work: Annotated[Natural, about("nodes of the tree of filters, without those that WORK told before")]


class SpoolFailed(FromWorker):
    """The worker ends, because its disk failed or its spool is damaged: no frame of a client killed it."""

    operation: ClassVar[bytes] = wire.SPOOL_FAILED


class PlainHead(Record):
    """A batch of rows for all receivers of a set."""

    set: int
    rows: int
    bytes: int
    classes: int


class ChoiceHead(Record):
    """A batch of rows of which each goes to one receiver of a set; each row is packed on its own."""

    choice_set: int
    plain_set: int
    dto: bool
    rows: int
    bytes: int
    classes: int


class EndpointHead(Record):
    """A batch of rows for the endpoints of a set."""

    set: int
    rows: int
    spool_bytes: int
    largest_message: int
    low_priority_rows: int


class RefusedRows(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Rows that a worker took out for one reason; it counts in it while it goes over a batch."""

    code: int
    rows: int
    first_topic: str
    indices: list[int]


class Learned(Record):
    """The sets to which a topic leads, 0 for none."""

    topic: str
    plain: int
    shared: int
    deliver_always: int
    candidates: int
    endpoints: int


class Result(FromWorker):
    """Answers one MATCH: the same rows, grouped by where they go."""

    operation: ClassVar[bytes] = wire.RESULT
    batches: ClassVar[str] = "body, or none"

    reference: Annotated[int, about("that of the MATCH")]
    defs: Annotated[Sequence[SetDefinition], about("sets that are named for the first time")]
    retired: Annotated[
        Sequence[int],
        about(
            "sets that the worker will not name again; never one that this RESULT names; up to 1,000, and more if "
            "these are large"
        ),
    ]
    plain: Annotated[Sequence[PlainHead], about("batches of rows for all receivers of a set")]
    choice: Annotated[Sequence[ChoiceHead], about("batches of rows of which each goes to one")]
    unmatched: Annotated[int, about("direct rows that match nothing")]
    refused: Annotated[
        Sequence[RefusedRows],
        about(
            "rows taken out: 40004, 40007, 40302, 40311, 42903; of guaranteed ones also those that match nothing: "
            "50309, or 40404 for a queue that is not there. The indices are those of guaranteed rows only"
        ),
    ]
    learned: Annotated[
        Sequence[Learned], about("with `learn`: the five sets of each topic that was not refused")
    ]
    endpoints: Annotated[Sequence[EndpointHead], about("batches of rows for the endpoints of a set")]


# -- to a worker -------------------------------------------------------------------------------------------------


class Start(FromRouter):
    """The worker belongs to this router from now on, and forgets filters, rules and sets."""

    operation: ClassVar[bytes] = wire.START

    router: Annotated[Positive, about("the incarnation of the router")]
    epoch: Annotated[int, about("the version of the slot table")]
    slots: Annotated[
        bytes, Meta(min_length=SLOTS, max_length=SLOTS), about("the table: the owner of each of 1,024 slots")
    ]


class Fault(FromRouter):
    """The worker sent what no worker sends; it ends, and its successor begins with an empty state."""

    operation: ClassVar[bytes] = b"!"

    text: Annotated[str, about("what was wrong")]


class FilterEntry(Record):
    """One filter, as workers know it."""

    id: Positive
    vpn: Natural
    pattern: str
    kind: Annotated[int, Meta(ge=wire.KIND_PLAIN, le=wire.KIND_RETAINED)]


class Filters(FromRouter):
    """Filters that a worker has to match from now on, and others that are gone; CONFIRM answers it."""

    operation: ClassVar[bytes] = wire.FILTERS

    sequence: Annotated[int, about("rises by one with each FILTERS to this worker, over its incarnations")]
    added: Annotated[list[FilterEntry], about("filters it now has")]
    removed: Annotated[list[int], about("numbers of filters that it no longer has")]


class PublishRules(Record):
    """Which topics may be published to."""

    default_allow: bool
    exceptions: Sequence[str]


class Rules(FromRouter):
    """One list of publish rules, under its number."""

    operation: ClassVar[bytes] = wire.RULES

    rules_id: Annotated[Positive, about("the number of the list; 0 allows everything and is never sent")]
    rules: Annotated[PublishRules | None, about("the list; nil drops the number")]


class Match(FromRouter):
    """A batch to be matched; RESULT answers it."""

    operation: ClassVar[bytes] = wire.MATCH
    batches: ClassVar[str] = "the batch"

    reference: Annotated[int, about("comes back in RESULT")]
    vpn: Annotated[Natural, about("the Message VPN of the publisher")]
    rules_id: Annotated[Natural, about("the publish rules to judge by")]
    learn: Annotated[
        int,
        Meta(ge=wire.LEARN_NOTHING, le=wire.LEARN_FEW),
        about(
            "tell what was found out about the topics: 0 nothing; 1 all of it, for up to 4 rows, for guaranteed ones, "
            "and for some of links; 2 all if there are up to 64 topics, of what may go over links"
        ),
    ]
    rows: Annotated[Natural, about("rows in the batch")]
    mode: Annotated[
        int,
        Meta(ge=wire.MATCH_DIRECT, le=wire.MATCH_AS_DIRECT | wire.MATCH_TRAILS | wire.MATCH_REPORT),
        about(
            "0: all rows are direct. 1: all are persistent or non-persistent. A row that is not makes the batch "
            "malformed. 2: any, taken as direct: they came over a link. 4 is added if rows may say where they have "
            "been ([Bridges](#bridges)); of others such a row is malformed. 8 is added if direct rows that match "
            "nothing are to be listed in `refused` by topic, with 50309, instead of counted in `unmatched`"
        ),
    ]
    publisher: Annotated[
        Natural,
        about(
            "the number of the session; batches that take [several steps](#steps-and-work) take turns by it"
        ),
    ]


class Bundle(Frame):
    """Messages that leave together, either way."""

    operation: ClassVar[bytes] = wire.BUNDLE
    direction: ClassVar[str] = "both"

    messages: Annotated[list[list[bytes]], about("the messages, each as `[operation, header, ...]`")]


#: What the matching of a worker says, in an order that matters. Its home says everything else, and the two do not wait
#: for each other: who reads both may take one before the other.
OF_MATCHING: Final = frozenset(
    kind.operation for kind in (Ready, Confirm, Retire, Sets, Work, Result, Bundle)
)

#: In the order of the documentation.
FRAMES: tuple[type[Frame], ...] = (
    Ready,
    Confirm,
    Retire,
    Sets,
    Work,
    SpoolFailed,
    Result,
    Start,
    Filters,
    Rules,
    Fault,
    Bundle,
    Match,
)
