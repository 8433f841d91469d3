"""What a home is told by name: what an operator set for the endpoint of a lane, and what a flow asks for.

Router and home use the same structs, so a setting is added in one place. On the wire, and on disk, they are maps;
unknown keys are ignored, so that a spool may have been written by a newer version.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from angarium import errors

#: Redeliveries after the first attempt; 0 for no limit.
MAX_REDELIVERIES: Final = 255

_Natural = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]

#: First delay in ms, longest delay in ms, factor in hundredths (200: each delay is twice the one before).
RedeliveryDelay: TypeAlias = tuple[_Natural, _Natural, Annotated[int, Meta(ge=100)]]


class FlowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a bind may ask for besides selector and credit."""

    #: Number of the client whose messages are not for this flow (`Segment.publishers`); 0: all are.
    no_local: int = 0
    #: Lowers the limit of the endpoint (R192); never raises it.
    max_unacked: int | None = None
    #: The flow existed before its home was restarted, so it may settle what it got then.
    resume: bool = False
    #: Name of the client, and its username.
    client: str = ""
    username: str = ""
    #: Messages come by rising positions, whatever their priorities and delays.
    in_order: bool = False
    #: Whether the client wants to know that it is active; lanes always tell, the router filters.
    active_indication: bool = False
    #: Of a browser that reads a range: the positions from `first` to before `end`, and the reader group whose they
    #: are; without a group it sees what is there.
    group: str = ""
    first: int = 0
    end: int = -1
    #: Whose flow it is, if what it has may be held beyond it (`keep` of LEASE); it gets first what is.
    holder: str = ""

    @property
    def has_range(self) -> bool:
        """Whether it reads a range."""
        return self.end >= 0


class LaneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a lane, and of every other of its endpoint; they change only as a whole (`Lane.configure`).

    A field with the name of an attribute of endpoints has its value, unless the router says otherwise
    (`lane_settings`).
    """

    kind: Literal["queue", "topic-endpoint"] = "queue"
    vpn: str = "default"
    name: str = ""
    #: Client username on whose account the selector of a topic endpoint examines messages.
    owner: str = ""
    #: How many partitions the endpoint has; 0: it has none, and one lane.
    partitions: _Natural = 0
    access_type: Literal["exclusive", "non-exclusive"] = "exclusive"
    egress_enabled: bool = True
    #: Delivered and unsettled messages of one flow at which its delivery stops (R192).
    max_unacked: _Positive = 10_000
    max_redeliveries: Annotated[int, Meta(ge=0, le=MAX_REDELIVERIES)] = 0
    #: False: a message that was sent once is never sent again; it is dead.
    redelivery_enabled: bool = True
    redelivery_delay: RedeliveryDelay | None = None
    #: Life of a message on the endpoint, 0 for no end; like the message's own it counts if `respect_ttl`.
    max_ttl_s: _Natural = 0
    respect_ttl: bool = True
    respect_priority: bool = False
    #: True: dead messages whose publisher did not set the flag are deleted and not moved.
    respect_dmq_eligible: bool = False
    #: Queue of the same VPN to which dead messages move; empty: they are deleted.
    dead_message_queue: str = ""
    delivery_delay_ms: _Natural = 0
    #: The newest message replaces the one before.
    last_value: bool = False
    #: The newest message of each topic replaces the one before, and one without payload removes it.
    retains: bool = False
    durability: Literal["synced", "relaxed"] = "synced"
    #: Of a topic endpoint: messages that it does not select are removed before any flow sees them (R145).
    selector: str | None = None
    temporary: bool = False

    def __post_init__(self) -> None:
        """Have the partitions of an endpoint share their names: each of a thousand is told all of them."""
        for field in ("vpn", "name", "owner", "dead_message_queue"):
            force_setattr(self, field, sys.intern(getattr(self, field)))

    @property
    def exclusive(self) -> bool:
        """Whether one flow at a time is fed: the access type, and always so for a partition (R101)."""
        return self.partitions > 0 or self.access_type == "exclusive"

    @property
    def by_priority(self) -> bool:
        """Whether higher priorities go first; partitions and last-value queues ignore them."""
        return self.respect_priority and not self.partitions and not self.last_value

    @property
    def moves_dead(self) -> bool:
        """Whether dead messages go to another queue; the dead message queue does not move to itself."""
        own_queue = self.kind == "queue" and self.dead_message_queue == self.name
        return bool(self.dead_message_queue) and not own_queue

    def redelivery_delay_ms(self, tries: int) -> int:
        """Give how long a message waits that was sent so many times, at least once, and failed."""
        if self.redelivery_delay is None:
            return 0
        first_ms, longest_ms, hundredths = self.redelivery_delay
        # Beyond 64 doublings the cap has long been reached; it also bounds the power of 1.00 .. 5.00.
        delay_ms = first_ms * (hundredths / 100) ** min(tries - 1, 64)
        return int(min(delay_ms, longest_ms))


def settings_from(value: dict[str, Any]) -> LaneSettings:
    """Give the settings of a map.

    Raises:
        InvalidRequestError: a value is of another type or out of range (40001).
    """
    try:
        return msgspec.convert(value, LaneSettings)
    except (ValueError, RecursionError) as error:
        raise errors.error_for(errors.MALFORMED_FRAME, f"settings of a lane: {error}") from None


def settings_map(settings: LaneSettings) -> dict[str, Any]:
    """Give settings as the map from which `settings_from` makes equal ones."""
    value: dict[str, Any] = msgspec.to_builtins(settings)
    return value
