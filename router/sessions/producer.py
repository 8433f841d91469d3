"""One opened producer: its window, and the rounds of it that are not settled yet.

`producers` opens and closes them, `spooling` judges what they publish, `acks` tells what became of it. What a session
is does not matter here, so its type is a parameter.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from angarium import errors
from angarium.errors import error_for
from router.sessions.producer_memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

S = TypeVar("S")

#: Sequences and their arithmetic stay far inside 64 bits.
SEQUENCE_MAX: Final = 1 << 62


#: Of sequences: the first, and how many follow each other.
Range = tuple[int, int]


class Nack(NamedTuple):
    """A message that was refused: it went to no endpoint."""

    sequence: int
    code: int
    detail: str


class Pending(Generic[S]):
    """A round that was judged, until its homes have what they were given."""

    __slots__ = ("bytes", "homes", "nacks", "producer", "rows", "unroutable", "upto")

    def __init__(
        self,
        producer: Producer[S],
        upto: int,
        rows: int,
        size: int,
        nacks: list[Nack],
        unroutable: list[Range],
    ) -> None:
        self.producer = producer
        #: Its last sequence.
        self.upto = upto
        self.rows = rows
        self.bytes = size
        #: By rising sequence.
        self.nacks = nacks
        #: What no endpoint took, rising.
        self.unroutable = unroutable
        #: STOREs of it that are not covered by what their home reported.
        self.homes = 0


class Producer(Generic[S]):
    """A named publisher of guaranteed messages in one session. Compares by identity."""

    __slots__ = (
        "acks",
        "closed_by",
        "handle",
        "id",
        "is_open",
        "is_over",
        "is_stage",
        "last",
        "memory",
        "nacks",
        "name",
        "repeated_upto",
        "session",
        "told",
        "unacked_bytes",
        "unacked_rows",
        "unsettled",
        "username",
        "vpn_name",
        "window",
    )

    def __init__(self, session: S, handle: int, vpn_name: str, username: str, name: str, window: int) -> None:
        self.session = session
        #: Unique in its session.
        self.handle = handle
        self.vpn_name = vpn_name
        self.username = username
        self.name = name
        #: Messages that may be unacknowledged.
        self.window = window
        #: The number of (Message VPN, username, name) in the registry; 0 until it is known.
        self.id = 0
        self.memory = Memory(0, window)
        #: Whether what it publishes waits for a commit; it is known to the registry of stages then.
        self.is_stage = False
        #: True from the answer to its opening on.
        self.is_open = False
        #: True once nothing more of it is taken, nor told: it was fenced, or broke a rule.
        self.is_over = False
        #: Called once everything that was accepted is settled; nothing more is accepted meanwhile.
        self.closed_by: Callable[[float], None] | None = None
        #: The last sequence that was judged; falls never.
        self.last = 0
        #: Up to here direct subscribers had their copies before this opening, in the life of this router.
        self.repeated_upto = 0
        #: Published, and neither acknowledged nor refused; bytes as packed.
        self.unacked_rows = self.unacked_bytes = 0
        #: Judged and not told, oldest first.
        self.unsettled: deque[Pending[S]] = deque()
        #: The sequence up to which it was told.
        self.told = 0
        #: Totals for the operators.
        self.acks = self.nacks = 0

    @property
    def takes_rounds(self) -> bool:
        """Tell whether what it publishes is taken; if not, its client may not have heard so yet, and it is dropped."""
        return self.is_open and not self.is_over and self.closed_by is None

    def charge(self, rows: int, size: int, first: int, bytes_max: int) -> None:
        """Count a round towards the window.

        Raises:
            InvalidRequestError: 40026 more than the window, 40027 a sequence below 1. Each ends the session.
        """
        if self.unacked_rows + rows > self.window:
            detail = f"{self.unacked_rows} and {rows} messages, the window is {self.window}"
            raise error_for(errors.PRODUCER_WINDOW_EXCEEDED, detail)
        if self.unacked_bytes >= bytes_max:
            detail = f"{self.unacked_bytes} bytes are not acknowledged, allowed are {bytes_max}"
            raise error_for(errors.PRODUCER_WINDOW_EXCEEDED, detail)
        if not 0 < first <= SEQUENCE_MAX:
            raise error_for(errors.INVALID_SEQUENCE, f"{first}, sequences start at 1")
        self.unacked_rows += rows
        self.unacked_bytes += size

    def release(self, rows: int, size: int) -> None:
        """Give window back."""
        self.unacked_rows -= rows
        self.unacked_bytes -= size

    def end(self) -> None:
        """Take nothing more, and tell nothing more."""
        self.is_over = True
        self.unsettled.clear()
        self.unacked_rows = self.unacked_bytes = 0

    def validate(self) -> None:
        """Check the sentences above."""
        assert 0 <= self.unacked_rows <= self.window
        assert sum(one.rows for one in self.unsettled) <= self.unacked_rows
        assert sum(one.bytes for one in self.unsettled) <= self.unacked_bytes
        assert self.told <= self.last
        uptos = [one.upto for one in self.unsettled]
        assert uptos == sorted(uptos)
        assert not uptos or self.told < uptos[0]
        self.memory.validate()


def join_ranges(known: list[Range], more: Iterable[Range]) -> list[Range]:
    """Add ranges to a list of lower ones; neighbours become one."""
    for first, count in more:
        if known and sum(known[-1]) == first:
            known[-1] = known[-1][0], known[-1][1] + count
        else:
            known.append((first, count))
    return known


def over(session: S) -> Producer[S]:
    """Give a producer of whose rounds nothing is taken: one that was closed or fenced."""
    producer = Producer(session, 0, "", "", "", 1)
    producer.end()
    return producer
