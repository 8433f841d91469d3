"""Numbered messages of several publishers, and who counts them: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBER = struct.Struct(">II")


def payload(publisher: int, number: int) -> bytes:
    """Give the payload of a publisher's message."""
    return _NUMBER.pack(publisher, number)


class Tally:
    """What a subscriber got, by publisher."""

    def __init__(self) -> None:
        #: Publisher -> the newest number.
        self.newest: dict[int, int] = {}
        #: Publisher -> how many.
        self.received: dict[int, int] = {}
        #: (publisher, number before, number) of each that is not above the one before it.
        self.not_rising: list[tuple[int, int, int]] = []

    @property
    def total(self) -> int:
        """All that came."""
        return sum(self.received.values())

    def take(self, payloads: Iterable[bytes]) -> None:
        """Count payloads in the order in which they came."""
        newest, received = self.newest, self.received
        for one in payloads:
            publisher, number = _NUMBER.unpack(one)
            before = newest.get(publisher, -1)
            if number <= before:
                self.not_rising.append((publisher, before, number))
            newest[publisher] = number
            received[publisher] = received.get(publisher, 0) + 1
