"""What clients have published and what has not left yet.

Rows wait in the order in which they came, and readers are held up once there are many. They are cut by worker when a
round leaves (`angarium.slots.RowGatherer`), by the table that counts then.

And how many direct messages of one client may be on their way through the node at once. What all clients of a carrier
publish goes through the node in one order: a message that very many filters match takes long there, and all behind it
wait. So nobody has many under way before it is known what they cost: a client begins with a few, may have twice as many
with each round that brought nothing dear, and one after a round that did. Who has as many as it may is not read until
the node is done with some.

    publish ──► gathered ──leave──► under way ──retire──► may publish as many again

And what clients of one process publish for each other (`Exchange`): they get it in the turn that brings it, and the
router, which knows who else wants it, passes over them. A round says of which of its rows that is not so: these are
*kept* for the way by the router, if the node retains them or they are for one client. A subscriber gets what one
publisher says in its order, so what that says behind a kept row is kept too, until the node is done with both.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from angarium.message import row_size
from angarium.slots import ROW_OVERHEAD_BYTES, RowGatherer

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.protocol.events import Welcome
    from angarium.message import Row
    from angarium.slots import Round
    from gateway.session import GatewaySession

#: What leaves in one turn, so that others get theirs.
TURN_ROWS_MAX: Final = 2_000
TURN_BYTES_MAX: Final = 1 << 20
#: While nobody but clients of this process gets them rounds leave so far apart, unless they have so many rows. Somebody
#: who comes to get them waits so long for the first one.
ALONE_S: Final = 0.02
ALONE_ROWS: Final = 96
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


class _Asked(NamedTuple):
    """A message that is reported if the router refuses it, or nobody has subscribed to its topic."""

    #: Among those that are gathered.
    place: int
    topic: str
    #: Who has published it (`Windowed`), and what it is told.
    publisher: Any
    refused: Callable[[int], None]


class _Round(msgspec.Struct, eq=False):
    """What is under way of one round."""

    number: int
    #: Who has published each of its messages (`Windowed`).
    publishers: list[Any]
    asked: list[_Asked]
    is_costly: bool = False


class Windows:
    """What clients of a carrier have under way, for one session."""

    def __init__(self) -> None:
        #: Who has published each message that is gathered, the oldest first.
        self._gathered: list[Windowed] = []
        #: Of them, those that are reported, by rising place.
        self._asked: list[_Asked] = []
        #: Whether one of them waits for the end of what is gathered, or soon will: half of its window is used.
        self.is_pressed = False
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
        if client.unretired * 2 >= client.window:
            self.is_pressed = True

    def report(self, client: Windowed, topic: str, refused: Callable[[int], None]) -> None:
        """Have the message that a client publishes next reported, if it reaches nobody, with the error code."""
        self._asked.append(_Asked(len(self._gathered), topic, client, refused))

    def are_reported(self, rows: int) -> bool:
        """Tell whether any of the next messages to leave is."""
        return bool(self._asked) and self._asked[0].place < rows

    def leave(self, number: int, rows: int) -> bool:
        """Take note that so many messages leave in a round; true if one waits for its end, or soon will."""
        gathered, is_pressed = self._gathered, self.is_pressed
        if rows == len(gathered):  # as nearly always
            publishers, self._gathered = gathered, []
            self.is_pressed = False
        else:
            publishers = gathered[:rows]
            del gathered[:rows]
        self._rounds.append(_Round(number, publishers, self._take_asked(rows) if self._asked else []))
        return is_pressed

    def _take_asked(self, rows: int) -> list[_Asked]:
        """Take out those that leave."""
        leaving = [one for one in self._asked if one.place < rows]
        self._asked = [one._replace(place=one.place - rows) for one in self._asked[len(leaving) :]]
        return leaving

    def refused(self, number: int, topic: str) -> list[tuple[Windowed, Callable[[int], None]]]:
        """Take note that messages to a topic in a round reach nobody; gives who is to be told, and how."""
        asked = next((one.asked for one in self._rounds if one.number == number), ())
        return [(one.publisher, one.refused) for one in asked if one.topic == topic]

    def costly(self, number: int) -> bool:
        """Take note that something in a round is dear; false if that was no round of direct messages."""
        for one in self._rounds:
            if one.number == number:
                one.is_costly = self.is_pressed = True
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
        assert all(one.place < len(self._gathered) for one in self._asked)
        counted = Counter(self._gathered)
        for one in self._rounds:
            counted.update(one.publishers)
        for client, rows in counted.items():
            assert client.unretired == rows
            assert 1 <= client.window <= WINDOW_MAX


class Publisher(Protocol):
    """A client."""

    #: Whether nothing that it has published is on its way to clients of this process by the router.
    is_ahead: bool
    #: Its direct messages that are gathered or under way.
    unretired: int


class Exchange:
    """Direct messages of the clients of a carrier for each other."""

    __slots__ = ("_kept", "is_alone", "is_behind", "is_starved", "is_used", "rows")

    def __init__(self, *, is_used: bool) -> None:
        """Begin empty; if it is not used, all goes by the router and nothing is noted."""
        self.is_used: Final = is_used
        #: Rows to be handed over, the oldest first.
        self.rows: list[Row] = []
        #: Places of kept rows that have not left, among all rows that the carrier gathers; they rise.
        self._kept: deque[int] = deque()
        #: Whether nobody but clients of this process gets them, as far as the router has seen.
        self.is_alone = False
        #: Whether rows that were handed over wait for another turn: no more are to come.
        self.is_behind = False
        #: Whether more may have come by the router than there was credit for: it may say that it is done with a row
        #: that has yet to come.
        self.is_starved = False

    def take(self, client: Publisher, row: Row, place: int) -> None:
        """Take a row that cannot be handed over without a look at it; it is gathered next, at this place."""
        if not self.is_used:
            return
        if row[2] or row[1][0] == "#":
            client.is_ahead = False
        elif not client.is_ahead and not client.unretired and not self.is_starved:
            client.is_ahead = True
        if client.is_ahead:
            self.rows.append(row)
        else:
            self._kept.append(place)

    def leave(self, first: int, rows: int) -> list[int] | None:
        """Give the indices of the kept rows in a round that leaves now; None: all are."""
        if not self.is_used:
            return None
        kept, found = self._kept, []
        while kept and kept[0] < first + rows:
            found.append(kept.popleft() - first)
        return found if len(found) < rows else None

    @property
    def pause_s(self) -> float:
        """How long a round may wait for more rows: nobody waits for these."""
        return ALONE_S if self.is_alone and not self._kept else 0.0

    def restart(self) -> None:
        """Begin anew with another session: what was gathered is lost."""
        self.rows = []
        self._kept.clear()
        self.is_alone = self.is_starved = False

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert [*self._kept] == sorted(set(self._kept))
        assert self.is_used or not (self.rows or self._kept)


def send_rounds(session: GatewaySession, gathering: Gathering, windows: Windows, exchange: Exchange) -> int:
    """Send rounds of what is gathered, as many as a turn may; give how many messages that was."""
    rows = size_bytes = 0
    while gathering.rows and rows < TURN_ROWS_MAX and size_bytes < TURN_BYTES_MAX and session.can_publish():
        first, batch = gathering.taken, gathering.take()
        reports = windows.are_reported(batch.rows)
        flush = windows.leave(session.last_round + 1, batch.rows)
        kept = exchange.leave(first, batch.rows)
        if kept is None:
            session.publish(batch, flush=flush, reports=reports)
        else:
            session.publish_given(batch, kept, flush=flush)
        rows += batch.rows
        size_bytes += batch.size_bytes
    return rows
