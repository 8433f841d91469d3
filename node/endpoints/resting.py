"""A lane that rests: nobody has a part in it, and nothing in it waits for a time.

Most partitions of a queue of very many are like that, and a `Lane` has a dozen parts for what may happen in one. So the
home keeps this in its place. It answers what is asked of every lane; whatever else is wanted of it rouses the lane,
which is in its place from then on.

No I/O, no clock; `node.home.spool.held_lanes` lets lanes rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium_server.frames.settings import LaneSettings
from node.backlog.backlog import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from node.backlog.segment import Segment
    from node.endpoints.flow import Flow


class LaneStart(NamedTuple):
    """Where a lane goes on after an earlier process, or after it rested."""

    #: The lowest position that was never used.
    next_position: int
    #: The highest position that a flow may have got; 0: none did.
    delivered_upto: int
    #: Messages up to it without a recorded attempt count as tried once: `delivered_upto` if the home did not stop in
    #: order, else 0.
    tried_upto: int
    #: The highest position that an earlier process may have delivered; None: `delivered_upto`.
    recovered_upto: int | None = None


#: Of a lane that never was.
FIRST_START: Final = LaneStart(1, 0, 0)
#: Of all lanes that rest with nothing in them, and that never had anything. It stays empty, and so do these.
_NOTHING: Final = Backlog(LaneSettings())
_NO_FLOWS: Final[Mapping[int, Flow]] = {}


class RestingLane:
    """What is kept of a lane that rests. Ask for the lane each time: this one is not it any more once it is roused."""

    __slots__ = ("_backlog", "_lane", "_rouse", "generation", "lane_id", "settings", "start")

    #: As of any lane without flows in which all messages are ready.
    unacked = at_consumers = 0
    more = barred = has_dead = wants_effort = has_lease_news = may_rest = False
    lease = retained = None
    flows = _NO_FLOWS

    def __init__(
        self,
        lane_id: int,
        generation: int,
        settings: LaneSettings,
        start: LaneStart,
        rouse: Callable[[RestingLane], Any],
        backlog: Backlog | None = None,
    ) -> None:
        """Let a lane rest without a selector or anything to retain; `rouse` puts the lane in its place."""
        self.lane_id = lane_id
        self.generation = generation
        self.settings = settings
        #: Most were never used, and share it.
        self.start = FIRST_START if start == FIRST_START else start
        self._rouse = rouse
        self._backlog = backlog or _NOTHING
        #: The lane that is in its place now.
        self._lane: Any = None

    def __getattr__(self, name: str) -> Any:
        """Rouse the lane for what only that has."""
        if self._lane is None:
            self._lane = self._rouse(self)
        return getattr(self._lane, name)

    @property
    def backlog(self) -> Backlog | None:
        """What is in it; None: nothing."""
        return None if self._backlog is _NOTHING else self._backlog

    @property
    def next_position(self) -> int:
        """Above all positions ever used."""
        return self.start.next_position

    @property
    def delivered_upto(self) -> int:
        """The highest position that a consumer ever got."""
        return self.start.delivered_upto

    @property
    def messages(self) -> int:
        """Messages that are not gone."""
        return self._backlog.messages

    @property
    def bytes(self) -> int:
        """Spool size of these messages."""
        return self._backlog.bytes

    @property
    def oldest_stored_ms(self) -> int:
        """Wall ms when the oldest message was spooled, 0 if there is none."""
        return self._backlog.oldest_stored_ms

    @property
    def segments(self) -> Iterator[Segment]:
        """The segments with messages in them, by position."""
        return iter(self._backlog.segments)

    def segments_from(self, position: int) -> Iterator[Segment]:
        """Give the segments with messages at or above a position, in order."""
        return self._backlog.segments_from(position)

    def find(self, position: int) -> tuple[Segment, int] | None:
        """Give the segment and row of a message, None if it is gone or never was."""
        return self._backlog.find(position)

    def stats(self) -> dict[str, int]:
        """Give counts since it was made, and what there is now."""
        return {
            **self._backlog.stats(),
            "next_position": self.next_position,
            "delivered_upto": self.delivered_upto,
            "consumers": 0,
            "browsers": 0,
        }

    def hand_out(self, *_: object) -> list[Any]:
        """Hand nothing out."""
        return []

    def tick(self, *_: object) -> list[Any]:
        """Do nothing."""
        return []

    def next_due(self) -> None:
        """Wait for no time."""

    def take_changed(self) -> list[Segment]:
        """Give no segment: none changed."""
        return []

    def take_dead(self, *_: object) -> list[Any]:
        """Give no messages: none died."""
        return []

    def end_flows(self, *_: object) -> None:
        """Remove no flows."""

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        assert self._lane is None
        assert not _NO_FLOWS
        for backlog in (self._backlog, _NOTHING):
            backlog.validate()
            assert not any((backlog.changed, backlog.timers.count))
        assert not any((_NOTHING.messages, _NOTHING.statistics))
        assert self._backlog is _NOTHING or self._backlog.settings is self.settings
        assert all(segment.last < self.next_position for segment in self.segments)
        assert not any((self.settings.selector, self.settings.retains))
