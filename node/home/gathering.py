"""GATHER: what all lanes here know of a producer, told when everything that came before is stored.

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from angarium import wire
from node.home.spool.writing import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.home.lanes.adoption import Adoptions
    from node.home.spool.records import Records
    from node.home.spool.stream import Stream
    from node.home.spool.writing import Writing

_encode = msgspec.msgpack.Encoder().encode


class GatherHeader(NamedTuple):
    """The header of GATHER."""

    router: int
    reference: int
    producer: int
    forget: bool


class Gathering:
    """The GATHERs that wait."""

    def __init__(
        self,
        stream: Stream,
        records: Records,
        writing: Writing,
        adoptions: Adoptions,
        say: Callable[[bytes, tuple[object, ...]], None],
    ) -> None:
        """Make it; `say` sends an operation with the fields behind the incarnation."""
        self._stream = stream
        self._records = records
        self._writing = writing
        self._adoptions = adoptions
        self._say = say
        #: With the serial of the STORE before each, in order.
        self._waiting: deque[tuple[int, GatherHeader]] = deque()

    def clear(self) -> None:
        """Forget them: their router is gone."""
        self._waiting.clear()

    def take(self, header: GatherHeader) -> None:
        """Take a GATHER; everything before it is written now."""
        self._stream.flush()
        self._waiting.append((self._stream.serial, header))
        self.answer()

    def answer(self) -> None:
        """Answer those for which everything before them is stored, and every lane is here with its records."""
        while (
            self._waiting and not self._adoptions.is_busy and self._stream.is_stored_upto(self._waiting[0][0])
        ):
            _, header = self._waiting.popleft()
            fields = (header.reference, self._records.gather(header.producer))
            if header.forget:
                self._records.forget(header.producer)
                self._writing.add(Task(list, partial(self._say, wire.RECORDS, fields)))
            else:
                self._say(wire.RECORDS, fields)
