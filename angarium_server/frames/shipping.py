"""The frames between a store of a primary and its standby, and between a process and the keeper of its host.

A store is the spool of a worker or the config store. Batches of changes are MessagePack arrays of
`[table, key, value]`; a value of nil deletes.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - msgspec reads the types of fields
from typing import Annotated, Any, ClassVar, Final

from angarium_server.frames.frame import Frame, Record, about

TO_STANDBY: Final = "primary → standby"
TO_PRIMARY: Final = "standby → primary"
TO_KEEPER: Final = "process → keeper"
FROM_KEEPER: Final = "keeper → process"

#: Of these frames; a host of another one is refused.
VERSION: Final = 1
#: The order by which nothing counts without a standby although none is in the in-sync set: so it is with `required`
#: when a primary begins alone, and while a standby that lacks much is brought it. Others begin at 1.
BY_POLICY: Final = 0


class BegunRow(Record):
    """A run."""

    run: str
    first: int


class PastRow(Record):
    """Where a store is."""

    begun: Annotated[list[BegunRow], about("runs, the oldest first")]
    newest: Annotated[int, about("number of the newest group; 0: none")]
    oldest: Annotated[int, about("the first group of which the keys are known")]


class Meet(Frame):
    """The first frame: a store of a primary wants to be followed."""

    operation: ClassVar[bytes] = b"1"
    direction: ClassVar[str] = TO_STANDBY

    version: Annotated[int, about("of these frames")]
    node: Annotated[str, about("name of the node, the same on both hosts")]
    data: Annotated[str, about("id of the data directory of the primary")]
    secret: Annotated[str, about("that both hosts have")]
    store: Annotated[str, about("`config`, `files`, or the index of a worker")]
    epoch: Annotated[int, about("of the primary")]


class ShipGroup(Frame):
    """What is committed at once."""

    operation: ClassVar[bytes] = b"2"
    direction: ClassVar[str] = TO_STANDBY
    batches: ClassVar[str] = "the changes"

    number: Annotated[int, about("rises by one")]
    run: Annotated[str, about("of the process that writes it")]


class ShipPatch(Frame):
    """What makes a store that has everything up to a group like that of the primary."""

    operation: ClassVar[bytes] = b"3"
    direction: ClassVar[str] = TO_STANDBY
    batches: ClassVar[str] = "the touched keys as `[table, key]`; the changes"

    base: Annotated[int, about("the group")]
    past: Annotated[PastRow, about("where the store is then")]


class ShipFresh(Frame):
    """Parts follow that are everything the primary has."""

    operation: ClassVar[bytes] = b"4"
    direction: ClassVar[str] = TO_STANDBY


class ShipPart(Frame):
    """Some rows, as they are now."""

    operation: ClassVar[bytes] = b"5"
    direction: ClassVar[str] = TO_STANDBY
    batches: ClassVar[str] = "the changes"


class ShipBrought(Frame):
    """All parts were sent: the standby says where it is."""

    operation: ClassVar[bytes] = b"6"
    direction: ClassVar[str] = TO_STANDBY
    batches: ClassVar[str] = "the touched keys as `[table, key]`"

    base: Annotated[
        int | None, about("the group up to which it had everything; nil: it has got everything anew")
    ]
    past: Annotated[PastRow, about("where it is then")]


class AskTouched(Frame):
    """Which keys did groups touch that only the standby has?"""

    operation: ClassVar[bytes] = b"7"
    direction: ClassVar[str] = TO_STANDBY

    since: Annotated[int, about("the newest group that both have")]


class AskSynced(Frame):
    """Are you there, and what is on your disk?"""

    operation: ClassVar[bytes] = b"8"
    direction: ClassVar[str] = TO_STANDBY


class LeaseGiven(Frame):
    """The lease was given back: the host stopped in order, and nobody needs to wait. It is the last that it says."""

    operation: ClassVar[bytes] = b"g"
    direction: ClassVar[str] = TO_STANDBY


class ShipFiles(Frame):
    """What a node has beside its stores; all of it, whenever some of it has changed."""

    operation: ClassVar[bytes] = b"9"
    direction: ClassVar[str] = TO_STANDBY

    number: Annotated[int, about("comes back when they are on disk")]
    node: Annotated[dict[str, Any], about("of `node.json`: what both hosts have alike")]
    files: Annotated[dict[str, bytes], about("by their path in the data directory")]
    epoch: Annotated[int, about("of the primary")] = 0
    primary: Annotated[str, about("its name in the pair")] = ""
    in_sync: Annotated[
        Sequence[str], about("who has everything that was acknowledged, as the primary knows")
    ] = ()


class Whereabouts(Frame):
    """Where the store of the standby is: the answer to the first frame, and when parts have arrived."""

    operation: ClassVar[bytes] = b"a"
    direction: ClassVar[str] = TO_PRIMARY

    past: Annotated[PastRow, about("it")]
    host: Annotated[str, about("name of the standby in the pair")]


class ToldTouched(Frame):
    """The answer to the question for touched keys."""

    operation: ClassVar[bytes] = b"b"
    direction: ClassVar[str] = TO_PRIMARY
    batches: ClassVar[str] = "the touched keys as `[table, key]`"

    since: Annotated[int, about("as asked")]
    is_known: Annotated[bool, about("false: it is too long ago")]


class ToldSynced(Frame):
    """Everything up to this group is on the disk of the standby."""

    operation: ClassVar[bytes] = b"c"
    direction: ClassVar[str] = TO_PRIMARY

    number: Annotated[int, about("the group")]


class NotFollowed(Frame):
    """Why a store is not followed; the connection ends."""

    operation: ClassVar[bytes] = b"d"
    direction: ClassVar[str] = TO_PRIMARY

    code: Annotated[int, about("that of an error")]
    detail: Annotated[str, about("the reason")]


class Order(Frame):
    """What holds for a process of this host; again several times a second."""

    operation: ClassVar[bytes] = b"o"
    direction: ClassVar[str] = FROM_KEEPER

    epoch: Annotated[int, about("of this primary")]
    acts_until: Annotated[float, about("by the clock of the host: then nothing is acknowledged or delivered")]
    required_by: Annotated[
        int | None,
        about(
            "the order by which nothing counts without the standby; 0: though it is not in the in-sync set;"
            " nil: it does"
        ),
    ]


class Followed(Frame):
    """How far the standby follows a store."""

    operation: ClassVar[bytes] = b"f"
    direction: ClassVar[str] = TO_KEEPER

    store: Annotated[str, about("as in the first frame of a conversation")]
    host: Annotated[str, about("name of the standby; empty: it has not said it")]
    follows: Annotated[bool, about("it gets groups as they come, and owes no answer for long")]
    caught_up: Annotated[int | None, about("the order since which it has everything; nil: it has not")]
    lag_groups: Annotated[int, about("groups that it has not confirmed")]
    bringing: Annotated[int, about("bytes that were sent to bring it here; 0: it is not being brought")]
    sent: Annotated[int, about("bytes that the process has given to its connection with it")] = 0
    lacks_much: Annotated[
        bool, about("it needs parts, which it does not get while it is in the in-sync set")
    ] = False


#: Those of both conversations.
FRAMES: Final = (
    *(Meet, ShipGroup, ShipPatch, ShipFresh, ShipPart, ShipBrought, AskTouched, AskSynced),
    *(LeaseGiven, ShipFiles),
    *(Whereabouts, ToldTouched, ToldSynced, NotFollowed, Order, Followed),
)
