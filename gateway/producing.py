"""What clients have published to be stored, and who waits for the node to say that it is.

One producer carries the guaranteed messages of all clients of a carrier. Their sequences have no gaps and are
acknowledged in order, so who waits is a queue beside them:

    add ──► gathered ──take──► under way ──acknowledge──► settled: who waited is told, with 0 or an error code

What is refused here, before it has a sequence, waits behind what came before it, so that answers come in the order of
the messages. Rows are kept until they are acknowledged. When the session is lost, those go first on the next one, with
the sequences that they had: so homes take none twice, and who waits need not know. Whoever opens the same producer
next goes on above the highest sequence that homes know.

No I/O and no clock; numbers here begin at 1, those of the node where the process before stopped.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from angarium import errors
from angarium.client.protocol.send_window import Departure
from angarium.errors import error_for
from angarium.message import row_size
from angarium.slots import ROUND_ROWS_MAX
from angarium.wire import malformed
from gateway.gathering import TURN_BYTES_MAX, TURN_ROWS_MAX, Gathering
from gateway.session import Acknowledged, ProducerOpened, ProducerRefused

if TYPE_CHECKING:
    from angarium.client.protocol.events import Welcome
    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.session import GatewaySession

#: While the node cannot open it, this is tried so often, and for so long until those who wait are refused.
OPEN_PAUSE_S: Final = 0.5
OPEN_WAIT_S: Final = 10.0
#: Families of error codes that mean "later": what is refused with one of them is tried again.
_PASSING_FAMILIES: Final = (408, 429, 500, 503)
_NEVER: Final = float("inf")

#: A client that publishes.
P = TypeVar("P")


class Settled(NamedTuple):
    """What became of messages of one client, in the order in which it published them."""

    #: What it calls each message, and 0 or an error code; NO_SUBSCRIPTION_MATCH: nobody wanted it.
    answers: list[tuple[int, int]]
    #: What they took.
    size_bytes: int


class _Waiting(NamedTuple, Generic[P]):
    """Who waits for an answer."""

    #: Of the message, or of the one before it if this one is refused already.
    number: int
    publisher: P
    #: What it calls the message.
    name: int
    size_bytes: int
    #: Why it is refused; 0: it is not.
    code: int


class Producing(Generic[P]):
    """The producer of a carrier."""

    def __init__(self) -> None:
        self._gathering: Final = Gathering()
        #: Those that have not left.
        self.rows: Final = self._gathering.rows
        #: Its number in the session; 0 while it is not open.
        self.handle = 0
        #: The newest number that has left in an earlier session.
        self._left = 0
        #: Whether the node was asked to open it and has not answered.
        self.is_opening = False
        #: When it may be asked again, and since when it cannot be opened; None as long as nobody has refused.
        self._open_at = 0.0
        self._refused_since: float | None = None
        #: What sequences of the node have more than numbers here.
        self._offset = 0
        #: Messages and bytes that may be under way.
        self._window = self._bytes_max = 0
        #: The newest numbers that were given to messages, that have left, and that are acknowledged; each is at most
        #: the one before.
        self._added = self._sent = self._acknowledged = 0
        #: The last number, the bytes and the rows of each round under way, the oldest first, and the sum of the bytes.
        self._under_way: deque[tuple[int, int, list[Row]]] = deque()
        self._under_way_bytes = 0
        #: Number -> error code of those under way that the node did not take.
        self._codes: dict[int, int] = {}
        #: By rising number; all that is not settled.
        self.waiting: deque[_Waiting[P]] = deque()

    @property
    def taken(self) -> int:
        """Count the messages that have left, or were given up."""
        return self._gathering.taken

    @property
    def end(self) -> int:
        """Give what `taken` will be when all that is here now has left."""
        return self._gathering.end

    # What clients say.

    def has_room(self) -> bool:
        """Tell whether another message is taken, however large it is."""
        return self._gathering.has_room()

    def add(self, publisher: P, name: int, row: Row) -> None:
        """Take the row of a guaranteed message that workers would take: its topic is legal, and it is not too large."""
        self._gathering.add(row)
        self._added += 1
        self.waiting.append(_Waiting(self._added, publisher, name, row_size(row), 0))

    def refuse(self, publisher: P, name: int, code: int) -> None:
        """Have a message answered by an error when those before it are."""
        self.waiting.append(_Waiting(self._added, publisher, name, 0, code))

    # Opening.

    def limit(self, welcome: Welcome) -> None:
        """Take over what the router says of rounds."""
        self._gathering.open(welcome)
        self._bytes_max = welcome.producer_bytes

    def cut_by(self, epoch: int, table: bytes) -> None:
        """Cut by a new table from now on."""
        self._gathering.cut_by(epoch, table)

    def open_at(self) -> float:
        """Give when it is to be opened; never as long as nobody needs it."""
        if self.handle or self.is_opening or not self._gathering.rows:
            return _NEVER
        return self._open_at

    def hear(self, event: ProducerOpened | ProducerRefused | Acknowledged, now: float) -> None:
        """Take what the node says; see `has_settled`.

        Raises:
            AngariumError: it grants less than a round, or speaks of what is not under way (40001); another session has
                opened the producer (40903).
        """
        match event:
            case Acknowledged():
                self._acknowledge(event)
            case ProducerOpened():
                self._opened(event)
            case ProducerRefused():
                self._refused(event.error, now)

    def _opened(self, answer: ProducerOpened) -> None:
        if answer.window < ROUND_ROWS_MAX:
            raise malformed(f"a window of {answer.window} messages, a round has {ROUND_ROWS_MAX}")
        self.is_opening = False
        self._refused_since = None
        if answer.last_sequence > self._offset + self._left:
            if self._is_in_doubt:
                raise error_for(errors.PRODUCER_FENCED, "somebody else has published by it")
            self._offset = answer.last_sequence - self._sent
        self.handle, self._window = answer.producer, answer.window

    @property
    def _is_in_doubt(self) -> bool:
        """Whether the node may have messages that it has not acknowledged, and that are to leave again."""
        return self._acknowledged < self._left

    def lose(self) -> None:
        """Take note that the session is lost: what is not acknowledged leaves again in the next one."""
        rows = [row for _, _, each in self._under_way for row in each]
        self._gathering.put_back(rows[len(rows) - (self._sent - self._acknowledged) :])
        self._under_way.clear()
        self._under_way_bytes = 0
        self._left = max(self._left, self._sent)
        self._sent = self._acknowledged
        self._codes = {number: code for number, code in self._codes.items() if number <= self._sent}
        self.handle, self.is_opening = 0, False
        self._open_at, self._refused_since = 0.0, None

    def _refused(self, error: AngariumError, now: float) -> None:
        """Try again later, or give up what waits."""
        self.is_opening = False
        self._open_at = now + OPEN_PAUSE_S
        if self._refused_since is None:
            self._refused_since = now
        is_passing = error.code // 100 in _PASSING_FAMILIES
        if self._is_in_doubt and not is_passing:
            raise error
        if not is_passing or (now - self._refused_since >= OPEN_WAIT_S and not self._is_in_doubt):
            self._refused_since = None
            self._give_up(error.code)

    def _give_up(self, code: int) -> None:
        """Refuse all that waits; nothing is under way."""
        assert not self._under_way
        self._gathering.clear()
        self.waiting = deque([one._replace(code=one.code or code) for one in self.waiting])
        self._sent = self._acknowledged = self._added

    # Out.

    def can_send(self) -> bool:
        """Tell whether a round may leave."""
        waiting = len(self._gathering.rows)
        room = self._window - (self._sent - self._acknowledged)
        return (
            bool(self.handle and waiting)
            and room >= min(ROUND_ROWS_MAX, waiting)
            and self._under_way_bytes < self._bytes_max
        )

    def take(self) -> Departure:
        """Give the next round; the caller has asked `can_send`."""
        rows = list(islice(self._gathering.rows, ROUND_ROWS_MAX))
        made = self._gathering.take()
        del rows[made.rows :]
        first = self._offset + self._sent + 1
        self._sent += made.rows
        self._under_way.append((self._sent, made.size_bytes, rows))
        self._under_way_bytes += made.size_bytes
        return Departure(first, made)

    def send_rounds(self, session: GatewaySession) -> int:
        """Send rounds, as many as a turn may; give how many messages that was."""
        rows = size_bytes = 0
        while (
            rows < TURN_ROWS_MAX and size_bytes < TURN_BYTES_MAX and self.can_send() and session.can_publish()
        ):
            departure = self.take()
            session.publish_guaranteed(departure, self.handle)
            rows += departure.round.rows
            size_bytes += departure.round.size_bytes
        return rows

    # In.

    def _acknowledge(self, acked: Acknowledged) -> None:
        if acked.code:
            raise error_for(acked.code, "another gateway process has the producer")
        upto = acked.upto - self._offset
        if not self._acknowledged <= upto <= self._sent:
            raise malformed(f"number {upto} acknowledged, {self._acknowledged} to {self._sent} could be")
        for sequence, code, _ in acked.nacks:
            self._note(sequence, 1, code)
        for first, count in acked.unroutable:
            self._note(first, count, errors.NO_SUBSCRIPTION_MATCH)
        self._acknowledged = upto
        while self._under_way and self._under_way[0][0] <= upto:
            self._under_way_bytes -= self._under_way.popleft()[1]

    def _note(self, sequence: int, count: int, code: int) -> None:
        """Remember why the node did not take some messages."""
        first = sequence - self._offset
        if not self._acknowledged < first <= first + count - 1 <= self._sent:
            raise malformed(f"{count} numbers from {first} on are not under way")
        self._codes.update(dict.fromkeys(range(first, first + count), code))

    def has_settled(self) -> bool:
        """Tell whether somebody is to be told something."""
        return bool(self.waiting) and self.waiting[0].number <= self._acknowledged

    def settled(self) -> dict[P, Settled]:
        """Give, once, what is known of messages, for each client."""
        waiting, codes, upto = self.waiting, self._codes, self._acknowledged
        found: dict[P, tuple[list[tuple[int, int]], list[int]]] = {}
        while waiting and waiting[0].number <= upto:
            number, publisher, name, size, code = waiting.popleft()
            answers, sizes = found.setdefault(publisher, ([], []))
            answers.append((name, code or (codes.pop(number, 0) if codes else 0)))
            sizes.append(size)
        return {one: Settled(answers, sum(sizes)) for one, (answers, sizes) in found.items()}

    # Telling.

    @property
    def unacknowledged(self) -> int:
        """Count the messages that are taken and not acknowledged."""
        return self._added - self._acknowledged

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._gathering.validate()
        assert self._acknowledged <= self._sent <= self._added
        assert self._added - self._sent == len(self._gathering.rows)
        assert self._sent - self._acknowledged <= self._window or not self.handle
        assert self._under_way_bytes == sum(size for _, size, _ in self._under_way)
        assert sum(len(rows) for _, _, rows in self._under_way) >= self._sent - self._acknowledged
        lasts = [last for last, _, _ in self._under_way]
        assert lasts == sorted(set(lasts))
        assert not lasts or (self._acknowledged < lasts[0] and lasts[-1] == self._sent)
        numbers = [one.number for one in self.waiting]
        assert numbers == sorted(numbers)
        assert not numbers or numbers[-1] <= self._added
        assert {one.number for one in self.waiting if not one.code} >= {
            *range(self._acknowledged + 1, self._added + 1)
        }
        assert all(number <= self._sent for number in self._codes)
        assert not (self.handle and self.is_opening)
