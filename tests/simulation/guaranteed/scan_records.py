"""What somebody read of an endpoint between two positions, without a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.event_history import FOREVER

if TYPE_CHECKING:
    from tests.simulation.event_history import ConnectionRecord


class Scan:
    """One range on one connection."""

    __slots__ = ("asked_at", "connection", "done_at", "end", "first", "got", "lane", "selector")

    def __init__(
        self, connection: ConnectionRecord, selector: str | None, first: int, end: int, at: float
    ) -> None:
        self.connection = connection
        self.selector = selector
        self.first = first
        self.end = end
        self.asked_at = at
        #: Known when it is bound.
        self.lane = 0
        #: When the node said that it is complete.
        self.done_at = FOREVER
        #: (position, what), in the order in which they came.
        self.got: list[tuple[int, str]] = []

    def __repr__(self) -> str:
        return (
            f"{self.connection} reading [{self.first}, {self.end}) of lane {self.lane} with {self.selector}"
        )
