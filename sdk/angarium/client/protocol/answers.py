"""What a node answers to operations: the types that an ANSWER is checked by.

A node of a later version may say more; what is not listed here is ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from angarium import wire

PRODUCER_WINDOW_MAX: Final = wire.PRODUCER_WINDOW_MAX
STAGE_WINDOW_MAX: Final = wire.STAGE_WINDOW_MAX

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Number = Annotated[int, msgspec.Meta(ge=1)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=wire.MAX_PARTITIONS)]


class ProducerOpened(msgspec.Struct, frozen=True):
    """A producer is open."""

    #: Its number in this session.
    producer: _Number
    #: The name that was asked for, or the one that the node made up.
    name: str
    #: The newest sequence that the node knows of it, 0 for none.
    last_sequence: _Natural
    #: Messages that may be unacknowledged; at most what was asked for.
    window: Annotated[int, msgspec.Meta(ge=1, le=STAGE_WINDOW_MAX)]


class FlowBound(msgspec.Struct, frozen=True):
    """A flow is bound."""

    #: Its number in this session.
    flow: _Number
    #: Of the endpoint.
    name: str
    endpoint_id: _Natural
    #: Whether messages come now; others of an exclusive endpoint stand by.
    active: bool
    #: What it has of a partitioned queue.
    partitions: list[_Partition]
    access_type: str
    #: Messages that may be unsettled, if the node says.
    max_unacked: _Number | None = None


class GroupFigures(msgspec.Struct, frozen=True):
    """What the home of a partition says to a reader group."""

    oldest: _Natural
    next: _Natural
    acknowledged: _Natural
    planned: _Natural
    lost: _Natural
    messages: _Natural
    bytes: _Natural
    #: Of the lease; with the answer that gave it only.
    epoch: _Natural = 0
    continued: bool = False


class GroupOpened(msgspec.Struct, frozen=True):
    """A reader group has leased a queue."""

    name: str
    endpoint_id: _Natural
    #: Of each partition.
    lanes: list[tuple[_Partition, GroupFigures]]
    #: Of the node: with another one positions are given again. Empty: an earlier version does not tell.
    node_id: str = ""


class EndpointCreated(msgspec.Struct, frozen=True):
    """An endpoint is there."""

    name: str
    #: False if it was there before.
    created: bool


class StagesCommitted(msgspec.Struct, frozen=True):
    """Stages are published, or were before."""

    #: False if somebody committed that batch before, or a later one.
    committed: bool


class TokenRenewed(msgspec.Struct, frozen=True):
    """A token follows the one before."""

    #: How long it is good from now on.
    ms: _Natural


decode_producer: Final = msgspec.msgpack.Decoder(ProducerOpened).decode
decode_flow: Final = msgspec.msgpack.Decoder(FlowBound).decode
decode_committed: Final = msgspec.msgpack.Decoder(StagesCommitted).decode
decode_created: Final = msgspec.msgpack.Decoder(EndpointCreated).decode
decode_group: Final = msgspec.msgpack.Decoder(GroupOpened).decode
decode_group_figures: Final = msgspec.msgpack.Decoder(list[tuple[_Partition, GroupFigures]]).decode
decode_group_numbers: Final = msgspec.msgpack.Decoder(list[tuple[_Partition, int]]).decode
decode_group_counts: Final = msgspec.msgpack.Decoder(
    list[tuple[_Partition, tuple[_Natural, _Natural]]]
).decode
decode_group_plans: Final = msgspec.msgpack.Decoder(
    list[tuple[_Partition, tuple[_Natural, _Natural, _Natural, _Natural]]]
).decode
decode_results: Final = msgspec.msgpack.Decoder(list[tuple[int, str] | None]).decode
decode_shown: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode
#: Position up to which pages go, and the topic after which the next one begins; None: this was the last.
decode_page: Final = msgspec.msgpack.Decoder(tuple[_Natural, str | None]).decode
decode_renewed: Final = msgspec.msgpack.Decoder(TokenRenewed).decode
#: Of operations whose answer says nothing but that they are done.
decode_done: Final = msgspec.msgpack.Decoder(Any).decode
