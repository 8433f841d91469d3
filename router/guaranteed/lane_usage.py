"""One lane as the router's accounts see it: what its home told, what is on its way, what another home may hold.

A lane that gets another home (`worker scale`) is there at once, and what it has is still in the spool of the worker
before. The new home tells figures without that until it could count it; so the router goes on counting what the old one
told. A router that was not there at the change does not know it, and admits nothing until the home does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire

if TYPE_CHECKING:
    from angarium_server.frames.homes import LaneTotals


class LaneUsage:
    """One lane as the quotas see it."""

    __slots__ = (
        "bytes",
        "home",
        "inflight_bytes",
        "inflight_messages",
        "is_complete",
        "is_known",
        "is_reported",
        "lane_id",
        "left_bytes",
        "left_messages",
        "messages",
        "oldest_stored_ms",
        "reader_group",
        "unacked",
    )

    def __init__(self, lane_id: int, home: int) -> None:
        self.lane_id = lane_id
        #: Index of the worker that holds it.
        self.home = home
        #: What the home reported last, absolute; spool bytes.
        self.messages = self.bytes = self.unacked = 0
        #: Wall time in ms at which the oldest message was spooled; 0: there is none.
        self.oldest_stored_ms = 0
        #: The reader group that has leased it; empty: none has.
        self.reader_group = ""
        #: Admitted, and not in any report yet.
        self.inflight_messages = self.inflight_bytes = 0
        #: False until the home reported anything of it since it was told of the lane.
        self.is_reported = False
        #: False while it was not told what the home that it had before holds.
        self.is_complete = True
        #: What that is at most, if this router was there at the change; nobody knows it if not `is_known`.
        self.left_messages = self.left_bytes = 0
        self.is_known = True

    @property
    def partition(self) -> int:
        """Give the number of its partition."""
        return self.lane_id & ((1 << wire.LANE_BITS) - 1)

    @property
    def held_messages(self) -> int:
        """Give how many messages it has, with those on their way."""
        return self.messages + self.left_messages + self.inflight_messages

    @property
    def held_bytes(self) -> int:
        """Give their spool bytes."""
        return self.bytes + self.left_bytes + self.inflight_bytes

    def move_to(self, home: int) -> None:
        """Another worker is its home: it takes over what the one before has."""
        self.home = home
        self.left_messages += self.messages
        self.left_bytes += self.bytes
        self.messages = self.bytes = self.unacked = 0
        self.is_complete = self.is_reported = False

    def report(self, totals: LaneTotals) -> None:
        """Take what its home tells."""
        self.messages, self.bytes, self.unacked = totals.messages, totals.bytes, totals.unacked
        self.oldest_stored_ms = totals.oldest_ms or 0
        self.is_reported = True
        self.reader_group = totals.reader_group
        if totals.complete:
            self.left_messages = self.left_bytes = 0
            self.is_known = True
        elif self.is_complete:
            self.is_known = False
        self.is_complete = totals.complete

    def describe(self) -> dict[str, Any]:
        """Give what `angarium queue show` says of it; sizes in bytes, times in wall ms."""
        return {
            "lane_id": self.lane_id,
            "partition": self.partition,
            "home": self.home,
            "messages": self.held_messages,
            "bytes": self.held_bytes,
            "unacked": self.unacked,
            "oldest_stored_ms": self.oldest_stored_ms,
            "reader_group": self.reader_group,
        }
