"""The frames that the session of a gateway has beside those of the client protocol: rights and counters of its clients.

A gateway speaks another protocol with its clients and has one session per Message VPN with the router, its *carrier*.
Its clients are *attached* to that by a number: frames of one client travel inside of `wire.ATTACHED`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from angarium import message, wire
from angarium_server.frames.frame import Frame, Record, about

#: The number of an attached client: they rise, and a process uses none twice.
Number = Annotated[int, Meta(ge=1, lt=1 << 62)]
_Total = Annotated[int, Meta(ge=0, lt=1 << 62)]

#: Clients in one COUNTED, so that it is a short step.
COUNTED_MAX: Final = 500
#: Bytes of the payload of a will: MQTT cannot say more.
WILL_BYTES_MAX: Final = 65_535


class Rights(Record):
    """What a client may do, as far as its gateway has to judge that."""

    #: The ACL profile: whether it may publish what no exception names, and the exceptions.
    publish_allowed: bool
    publish_exceptions: list[str]
    #: Work units of direct messages that may wait for it (`queue_direct_1_max_depth`).
    queue_units: int
    may_share: bool
    may_send_guaranteed: bool
    may_receive_guaranteed: bool


class Will(Record):
    """The message that is published when a client ends without a word: a row, and how long that waits."""

    topic: str
    flags: Annotated[int, Meta(ge=0, le=wire.FLAGS_MAX)]
    meta: message.Meta | None
    #: As packed; who has sent it is added.
    properties: bytes | None
    payload: Annotated[bytes, Meta(max_length=WILL_BYTES_MAX)]
    delay_s: Annotated[int, Meta(ge=0, lt=1 << 32)]

    def row(self, properties: bytes | None) -> message.Row:
        """Give the row with these properties."""
        return 0, self.topic, self.flags, self.meta, properties, self.payload


class RightsFrame(Frame):
    """What some clients may do from now on: an operator has changed it."""

    operation: ClassVar[bytes] = wire.RIGHTS
    direction: ClassVar[str] = "router to gateway"

    rights: Annotated[
        Rights,
        about(
            "as in WELCOME; the first two are those of the ACL profile, `queue_units` is `queue_direct_1_max_depth`"
        ),
    ]
    numbers: Annotated[list[Number], about("whose rights these are, each attached to this session")]


class CostlyFrame(Frame):
    """Something in a round of the gateway is dear for the node; its clients are to publish less at a time."""

    operation: ClassVar[bytes] = wire.COSTLY
    direction: ClassVar[str] = "router to gateway"

    round: Annotated[int, about("its number; it is not retired yet")]


class AloneFrame(Frame):
    """Whether only clients of the gateway get what they publish, as its rounds show: those may wait a moment."""

    operation: ClassVar[bytes] = wire.ALONE
    direction: ClassVar[str] = "router to gateway"

    is_alone: Annotated[
        bool, about("true: none has in the last second that rounds came; false, as before the first: one has")
    ]


class Counts(Record):
    """What a gateway has counted of one client since it attached."""

    number: Number
    #: Name of a counter -> total; `discard.*` are shown apart.
    totals: dict[Annotated[str, Meta(max_length=64)], _Total]
    #: What waits for it in the gateway.
    queued_messages: _Total
    queued_bytes: _Total


class CountedFrame(Frame):
    """What the gateway has counted of clients, every 2 s of those that changed, and before each leaves."""

    operation: ClassVar[bytes] = wire.COUNTED
    direction: ClassVar[str] = "gateway to router"

    clients: Annotated[
        list[Counts],
        Meta(max_length=COUNTED_MAX),
        about("`[number, {name: total}, queued_messages, queued_bytes]`, up to 500"),
    ]


FRAMES: Final[tuple[type[Frame], ...]] = (RightsFrame, CostlyFrame, AloneFrame, CountedFrame)
