"""What clients have published and what has not left yet.

Rows wait in the order in which they came, and readers are held up once there are many. They are cut by worker when a
round leaves (`angarium.slots.RowGatherer`), by the table that counts then.

And how many direct messages of one client may be on their way through the node at once. What all clients of a carrier
publish goes through the node in one order: a message that very many filters match takes long there, and all behind it
wait. So nobody has many under way before it is known what they cost: a client begins with a few, may have twice as many
with each round that brought nothing dear, and one after a round that did. Who has as many as it may is not read until
the node is done with some.

    publish ──► gathered ──leave──► under way ──retire──► may publish as many again
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from angarium.message import row_size
from angarium.slots import ROW_OVERHEAD_BYTES, RowGatherer

if TYPE_CHECKING:
    from angarium.client.protocol.events import Welcome
    from angarium.message import Row
    from angarium.slots import Round

#: From so much on no more is taken: a few rounds, so that the router never waits for one.
GATHERED_BYTES_MAX: Final = 4 << 20
#: Messages under way: at the beginning, and at most; with fewer, one that publishes all the time is slowed down.
WINDOW_FIRST: Final = 16
WINDOW_MAX: Final = 512


class Gathering:
    """Rows on their way to the router, of many clients."""

    __slots__ = ("_round", "message_bytes_max", "rows", "size_bytes", "taken")

    def __init__(self) -> None:
        #: Empty, but while a round is made.
        self._round = RowGatherer()
        #: Those that have not left, the oldest first.
        self.rows: Final[deque[Row]] = deque()
        #: How many have left, or were dropped.
        self.taken = 0
        #: What they take, with overhead.
        self.size_bytes = 0
        #: How large a message may be; none before it is open.
        self.message_bytes_max = 0

    @property
    def end(self) -> int:
        """Give what `taken` will be when all that is here now has left."""
        return self.taken + len(self.rows)

    def has_room(self) -> bool:
        """Tell whether another row is taken, however large it is."""
        return self.size_bytes < GATHERED_BYTES_MAX

    def open(self, welcome: Welcome) -> None:
        """Take over what the router says of rounds."""
        self.message_bytes_max = min(welcome.max_message_bytes, welcome.max_batch_bytes - ROW_OVERHEAD_BYTES)
        self._round.set_limits(welcome.max_message_bytes, welcome.max_batch_rows, welcome.max_batch_bytes)
        self.cut_by(welcome.epoch, welcome.slots)

    def cut_by(self, epoch: int, table: bytes) -> None:
        """Cut by a new table from now on."""
        self._round.set_table(epoch, table)

    def add(self, row: Row) -> None:
        """Add a row that the router would take: its topic is legal, and it is not too large."""
        self.rows.append(row)
        size = len(row[5]) + len(row[4] or b"") if row[3] is None else row_size(row)
        self.size_bytes += size + ROW_OVERHEAD_BYTES

    def cut(self, rows: deque[Row]) -> Round:
        """Give a round of rows that do not wait here, as many of the first as it takes."""
        self._round.fill_rows(rows)
        return self._round.take()

    def take(self) -> Round:
        """Give the next round."""
        made = self._round
        made.fill_rows(self.rows)
        self.size_bytes -= made.size_bytes
        self.taken += made.rows
        return made.take()

    def put_back(self, rows: list[Row]) -> None:
        """Have rows that were taken last leave again, before all others."""
        self.rows.extendleft(reversed(rows))
        self.taken -= len(rows)
        self.size_bytes += sum([row_size(row) + ROW_OVERHEAD_BYTES for row in rows])

    def clear(self) -> None:
        """Drop what has not left."""
        self.taken = self.end
        self.rows.clear()
        self.size_bytes = 0

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert not self._round.rows
        assert self.size_bytes == sum(row_size(row) + ROW_OVERHEAD_BYTES for row in self.rows)


class Windowed(Protocol):
    """A client that publishes."""

    #: Direct messages that are gathered or under way, and how many may be.
    unretired: int
    window: int
    #: Whether it has one more, which was not taken.
    is_full: bool


class _Round(msgspec.Struct, eq=False):
    """What is under way of one round."""

    number: int
    #: Who has published each of its messages (`Windowed`).
    publishers: list[Any]
    is_costly: bool = False


class Windows:
    """What clients of a carrier have under way, for one session."""

    def __init__(self) -> None:
        #: Who has published each message that is gathered, the oldest first.
        self._gathered: list[Windowed] = []
        #: By rising number.
        self._rounds: deque[_Round] = deque()

    def may_publish(self, client: Windowed) -> bool:
        """Tell whether another message of a client is taken; if not, it is among those that `retired` gives."""
        client.is_full = client.unretired >= client.window
        return not client.is_full

    def add(self, client: Windowed) -> None:
        """Take note of a message that is gathered."""
        client.unretired += 1
        self._gathered.append(client)

    def leave(self, number: int, rows: int) -> bool:
        """Take note that so many messages leave in a round; true if one waits for its end, or soon will."""
        gathered = self._gathered
        if rows == len(gathered):  # as nearly always
            publishers, self._gathered = gathered, []
        else:
            publishers = gathered[:rows]
            del gathered[:rows]
        self._rounds.append(_Round(number, publishers))
        return any(one.unretired * 2 >= one.window for one in publishers)

    def costly(self, number: int) -> bool:
        """Take note that something in a round is dear; false if that was no round of direct messages."""
        for one in self._rounds:
            if one.number == number:
                one.is_costly = True
                for client in one.publishers:
                    client.window = 1
                return True
        return False

    def retired(self, number: int) -> list[Windowed]:
        """Take note that all rounds up to one are done with; give the clients that were full and are not any more."""
        free: dict[Windowed, None] = {}
        while self._rounds and self._rounds[0].number <= number:
            done = self._rounds.popleft()
            for client in done.publishers:
                client.unretired -= 1
            for client in dict.fromkeys(done.publishers):
                if not done.is_costly and client.window < WINDOW_MAX:
                    client.window *= 2
                if client.is_full:
                    free[client] = None
        return [client for client in free if self.may_publish(client)]

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        numbers = [one.number for one in self._rounds]
        assert numbers == sorted(set(numbers))
        counted = Counter(self._gathered)
        for one in self._rounds:
            counted.update(one.publishers)
        for client, rows in counted.items():
            assert client.unretired == rows
            assert 1 <= client.window <= WINDOW_MAX
