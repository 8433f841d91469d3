"""Frames that came for matching and wait for their turn: a small batch is not behind the large ones of others.

A worker may have a dozen batches whose topics are dear. They are handled in the order in which they came, but that
small batches go before large ones. No batch goes before what came sooner and is none: whoever subscribes and then
publishes finds his subscription.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A batch is small up to so many bytes: a lone message, or those of some clients in one frame.
SMALL_BYTES: Final = 1_024
#: So many small ones go before a large one that waits.
SMALL_IN_A_ROW: Final = 16

_BATCHES: Final = frozenset((wire.MATCH, wire.BUNDLE))


class _Section:
    """A frame that is no batch, and the batches behind it up to the next such frame."""

    def __init__(self, first: list[bytes] | None = None) -> None:
        #: None if it is handled.
        self.first = first
        self.small: deque[list[bytes]] = deque()
        self.large: deque[list[bytes]] = deque()


class Inbox:
    """The frames that wait, in the order in which they are handled."""

    def __init__(self) -> None:
        #: The last one takes the batches that come; those before it have some.
        self._sections = deque([_Section()])
        self._count = 0
        #: Small batches that were taken in a row.
        self._in_a_row = 0

    def __len__(self) -> int:
        """Count the frames."""
        return self._count

    def put(self, frames: list[bytes]) -> None:
        """Add what came."""
        self._count += 1
        if frames[0] not in _BATCHES:
            self._sections.append(_Section(frames))
            return
        last = self._sections[-1]
        (last.small if _is_small(frames) else last.large).append(frames)

    def take(self) -> list[bytes]:
        """Give what is handled next; there has to be something."""
        assert self._count
        self._count -= 1
        section = self._sections[0]
        while section.first is None and not section.small and not section.large:
            self._sections.popleft()
            section = self._sections[0]
        if section.first is not None:
            frames, section.first = section.first, None
        elif section.small and (self._in_a_row < SMALL_IN_A_ROW or not section.large):
            self._in_a_row += 1
            frames = section.small.popleft()
        else:
            self._in_a_row = 0
            frames = section.large.popleft()
        return frames


def _is_small(frames: Sequence[bytes]) -> bool:
    return sum(map(len, frames)) <= SMALL_BYTES
