"""Frames that wait for LANES: what is stored, and said of flows, elsewhere does not wait with them.

A queue of a thousand partitions that comes or goes is a dozen LANES, and each takes a millisecond. A home carries out
one in a turn; the others stand in line, with what has to find them done: everything but

- STORE and FLOW that name none of their lanes,
- ALLOWANCE, which is about no lane, and START, before which all of them are carried out.

Once something else than LANES stands here nothing goes before it: it may be about any lane, and STOREs have an order.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from angarium_server.frames.homes import AllowanceFrame, Bind, FlowFrame, LanesFrame, StoreFrame
from angarium_server.frames.matching import Start

if TYPE_CHECKING:
    from collections.abc import Iterator


_ABOUT_NO_LANE: Final = (AllowanceFrame, Start)


class Line:
    """The frames in line."""

    def __init__(self) -> None:
        #: With their headers, the one that has waited longest first.
        self.frames: deque[tuple[Any, list[bytes]]] = deque()
        #: Lanes that LANES in here name -> how many of these.
        self._lanes: Counter[int] = Counter()
        #: How many of them are no LANES, or one that is complete.
        self._others = 0

    def is_before(self, header: Any) -> bool:
        """Tell whether a frame has its turn behind those that are here; there have to be some."""
        if type(header) in _ABOUT_NO_LANE:
            return False
        if self._others:
            return True
        if type(header) is StoreFrame:
            return _is_about_more(header) or not self._lanes.keys().isdisjoint(_stored_in(header))
        return type(header) is not FlowFrame or not self._lanes.keys().isdisjoint(_bound_to(header))

    def put(self, header: Any, frames: list[bytes]) -> None:
        """Have a frame wait."""
        self.frames.append((header, frames))
        if type(header) is LanesFrame:
            self._lanes.update(_named(header))
        self._others += not _is_change(header)

    def take(self) -> tuple[Any, list[bytes]]:
        """Give the one that has waited longest, which is carried out now."""
        header, frames = self.frames.popleft()
        if type(header) is LanesFrame:
            self._lanes -= Counter(_named(header))
        self._others -= not _is_change(header)
        return header, frames

    def clear(self) -> None:
        """Nobody waits any more."""
        self.frames.clear()
        self._lanes.clear()
        self._others = 0


def _is_change(header: Any) -> bool:
    """Tell whether a frame says that some lanes came, went or changed, and no more."""
    return type(header) is LanesFrame and not header.complete


def _named(header: LanesFrame) -> Iterator[int]:
    return chain((put.lane for put in header.puts), header.deletes)


def _is_about_more(header: StoreFrame) -> bool:
    """Tell whether a STORE is about lanes that it does not name: what is staged for them, or parting with one."""
    return bool(header.stage or header.release or header.drop or header.parts)


def _stored_in(header: StoreFrame) -> Iterator[int]:
    in_groups = chain.from_iterable(group.lanes for group in header.groups)
    return chain(in_groups, (one.lane for one in header.refused))


def _bound_to(header: FlowFrame) -> Iterator[int]:
    """Give the lanes that flows are bound to; what else is said of one that is not bound changes nothing."""
    return (order.verb.lane for order in header.orders if isinstance(order.verb, Bind))
