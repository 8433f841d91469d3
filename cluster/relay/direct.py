"""One direction of a channel: what one router delivers is published at the other, what one node wants is told there.

Messages keep their order: rounds leave in the order in which their DELIVERs came, within the credit of the router that
takes them, and the other one's credit is renewed as they leave. So a slow neighbour makes its messages wait where they
come from, where there are queues with limits, and not here.

A batch is not opened if the router that takes it has one worker, and its rows are in order. Else it is cut by worker,
as a client would, so that no router has to.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from angarium import slots, wire
from angarium.slots import Round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium.client.protocol.events import Welcome
    from cluster.relay.session import Entries, Exported, Inside, LinkSession, Passed

#: A row with its meta left packed: what is in it is for others.
OpenRow = tuple[int, str, int, msgspec.Raw, bytes | None, bytes]
_decode_rows: Final = msgspec.msgpack.Decoder(list[OpenRow]).decode
_encode_rows: Final = msgspec.msgpack.Encoder().encode
_index_of: Final = itemgetter(wire.ROW_INDEX)
#: What the head of a batch takes at most, and the numbers of a row.
_HEAD_BYTES: Final = 5
_ROW_HEAD_BYTES: Final = 48


class _Waiting(NamedTuple):
    """A round that waits for credit, and what its leaving gives back to the router that it came from."""

    round: Round
    opened: list[int]
    rows: int
    size_bytes: int
    inside: Inside | None = None


class Relay:
    """Carries messages and wishes from one session to the other."""

    def __init__(
        self, source: LinkSession, admit: Callable[[list[OpenRow]], list[OpenRow]] | None = None
    ) -> None:
        """Begin with what the source says; `admit` gives which rows go on, None lets all go on as they came."""
        self._source = source
        self._admit = admit
        self._target: LinkSession | None = None
        #: The slot table of the target.
        self._epoch = 0
        self._table = b""
        #: In the order of their coming; bounded by the credit of the source.
        self._rounds: deque[_Waiting] = deque()
        #: Wishes of the source's node that the target was not told yet, in pieces with the newest of each pattern;
        #: changes that follow each other are one piece, so all of them are bounded by what that node exports.
        self._wishes: deque[tuple[int, dict[str, int]]] = deque()
        #: True once the target has confirmed all of a snapshot.
        self.is_synchronised = False
        self.messages = 0
        self.bytes = 0
        #: Messages that were discarded before they came here, and here because they fit into no batch.
        self.discarded = 0

    def open(self, target: LinkSession) -> None:
        """The other session is open."""
        welcome = target.welcome
        assert welcome is not None
        self._target = target
        self.set_table(welcome.epoch, welcome.slots)
        self.go_on()

    def set_table(self, epoch: int, table: bytes) -> None:
        """Cut by another table; what was cut already is cut again by the router."""
        self._epoch, self._table = epoch, table

    @property
    def waiting(self) -> int:
        """Count the rounds that wait for credit."""
        return len(self._rounds)

    @property
    def untold(self) -> int:
        """Count the wishes that wait to be told."""
        return sum(len(wishes) for _, wishes in self._wishes)

    def passed(self, event: Passed) -> None:
        """Take messages of the source."""
        self.discarded += event.dropped
        target = self._target
        if target is None or target.welcome is None:
            self._source.passed_on(event.rows, event.size_bytes)
            self.discarded += event.rows
            return
        welcome = target.welcome
        if self._passes_unopened(event, welcome):
            part = Round(0, [(0, event.rows)], [event.parts[0][1]], event.rows, event.size_bytes)
            self._rounds.append(_Waiting(part, event.opened, event.rows, event.size_bytes, event.inside))
        else:
            self._cut(event, welcome)
        self._publish()

    def _passes_unopened(self, event: Passed, welcome: Welcome) -> bool:
        """Tell whether the target takes a batch as it is."""
        return (
            self._admit is None
            and len(event.parts) == 1
            and welcome.workers == 1
            and not event.is_unsorted
            and event.rows <= welcome.max_batch_rows
            and event.size_bytes <= welcome.max_batch_bytes
        )

    def _cut(self, event: Passed, welcome: Welcome) -> None:
        rows: list[OpenRow] = []
        for _, batch in event.parts:
            rows += _decode_rows(batch)
        if event.is_unsorted:
            rows.sort(key=_index_of)
        if self._admit is not None:
            rows = self._admit(rows)
        rounds = [self._round(chunk) for chunk in self._chunks(rows, welcome)]
        for part in rounds[:-1]:
            self._rounds.append(_Waiting(part, event.opened, 0, 0))
        if rounds:
            self._rounds.append(_Waiting(rounds[-1], event.opened, event.rows, event.size_bytes))
        else:
            self._source.passed_on(event.rows, event.size_bytes)

    def _chunks(self, rows: list[OpenRow], welcome: Welcome) -> Iterator[list[OpenRow]]:
        """Give the rows in pieces that the target takes; one that is too large alone is dropped."""
        room = welcome.max_batch_bytes - _HEAD_BYTES * welcome.workers
        chunk: list[OpenRow] = []
        size = 0
        for row in rows:
            more = len(_encode_rows(row)) if len(row[5]) > room // 2 else _row_bytes(row)
            if more > room:
                self.discarded += 1
                continue
            if chunk and (size + more > room or len(chunk) >= welcome.max_batch_rows):
                yield chunk
                chunk, size = [], 0
            chunk.append(row)
            size += more
        if chunk:
            yield chunk

    def _round(self, rows: list[OpenRow]) -> Round:
        parts = slots.partition(rows, self._table)
        batches = [_encode_rows(part) for part in parts.values()]
        heads = [(worker, len(part)) for worker, part in parts.items()]
        return Round(self._epoch, heads, batches, len(rows), sum(map(len, batches)))

    def exported(self, event: Exported) -> None:
        """Take what the source's node wants; changes that wait are told together."""
        if self._wishes and self._wishes[-1][0] == event.kind == wire.EXPORTS_CHANGES:
            self._wishes[-1][1].update(event.entries)
        else:
            self._wishes.append((event.kind, dict(event.entries)))
        self.go_on()

    def go_on(self) -> None:
        """Do what credit allows now."""
        self._publish()
        target = self._target
        while self._wishes and target is not None and target.can_tell():
            target.tell(*self._next_wishes())

    def _next_wishes(self) -> tuple[int, Entries]:
        """Take what is told next."""
        kind, wishes = self._wishes[0]
        entries = list(islice(wishes.items(), wire.MAX_WISHES_PER_FRAME))
        if kind != wire.EXPORTS_CHANGES or len(entries) == len(wishes):
            self._wishes.popleft()
            return kind, list(wishes.items())
        for pattern, _ in entries:
            del wishes[pattern]
        return kind, entries

    def _publish(self) -> None:
        target, rounds = self._target, self._rounds
        if target is None:
            return
        while rounds and target.can_publish():
            waiting = rounds.popleft()
            target.publish_open(waiting.round, waiting.opened, waiting.inside)
            self.messages += waiting.round.rows
            self.bytes += waiting.round.size_bytes
            if waiting.rows:
                self._source.passed_on(waiting.rows, waiting.size_bytes)


def _row_bytes(row: OpenRow) -> int:
    """Give at least what a row takes in a batch."""
    return len(row[5]) + len(row[4] or b"") + len(row[3]) + 4 * len(row[1]) + _ROW_HEAD_BYTES
