"""What all requests with the same credentials from one address are at the node: one attached client.

A request does not log in: it joins the client that is there, or makes one. What it publishes waits here while there is
no room, and is answered when it left (direct), or when it is stored (guaranteed).

    GREETING ──welcomed──► OPEN ──leave──► OVER
        └──────refused──────────ended─────────►

No I/O; who asks is told by callbacks, perhaps while it asks.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from angarium import errors, wire
from angarium.errors import error_for
from angarium.message import row_size
from gateway.http.queues import Owner, Reader
from gateway.http.replies import Replies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.client.protocol.events import Arrived, Indicated
    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.attached import Attached
    from gateway.http.queues import Receipts
    from gateway.http.replies import Replied
    from gateway.http.streams import Stream
    from gateway.session import Acknowledged, AttachedWelcome

#: Messages of a client that wait for room, and requests that wait until it is let in; one more is refused.
WAITING_MAX: Final = 1_000

#: Is told why something was not done, or None.
Done: TypeAlias = "Callable[[AngariumError | None], None]"


class ClientState(enum.Enum):
    """Where a client is."""

    GREETING = "greeting"
    OPEN = "open"
    OVER = "over"


class _Publication(NamedTuple):
    """A message that waits for room."""

    row: Row
    done: Done
    #: Called with the error code if it reaches nobody; None: nobody wants to know.
    refused: Callable[[int], None] | None = None


class HttpClient:
    """One of them; `gateway.attached.Guest` describes what it is told by the node."""

    def __init__(self, waiting: dict[HttpClient, None], readings: dict[str, Reader] | None = None) -> None:
        """Wait for the node.

        Args:
            waiting: of all clients, those whose messages wait for room.
            readings: what reads queues, by their names, of all clients with the same credentials.
        """
        self._waiting = waiting
        self._readings: Final = {} if readings is None else readings
        #: Its requests that wait for replies, and the queues that it reads, by name; what waits there counts as work.
        self.replies: Final = Replies()
        self.readers: Final[dict[str, Reader]] = {}
        self._inbox = ""
        #: As whom it was let in.
        self._username = ""
        #: Its streams; the filters of all of them, each with their number; and who is told the answers of the node.
        self.streams: Final[dict[Stream, None]] = {}
        self._filters: Counter[str] = Counter()
        self._answers: deque[Callable[[Sequence[int]], None]] = deque()
        self.attached: Attached
        self.state = ClientState.GREETING
        #: Why it is over.
        self.error: AngariumError | None = None
        #: Until it is let in, the one that it is to follow.
        self.before: HttpClient | None = None
        #: Requests that are at work with it, and since when there are none.
        self.users = 0
        self.idle_since = 0.0
        #: Whether it serves no new requests: the inbox that it knows is that of a router that is gone.
        self.is_last = False
        #: Requests that wait until it is let in; none when it is.
        self._entering: list[Done] = []
        self._held: deque[_Publication] = deque()
        #: Guaranteed messages that are not stored, by the number that they have here.
        self._unstored: dict[int, Done] = {}
        self._last = 0

    # What requests say.

    def enter(self, done: Done) -> None:
        """Tell when it is let in, or why not; only while it is GREETING."""
        assert self.state is ClientState.GREETING
        self._entering.append(done)

    @property
    def is_joined(self) -> bool:
        """Whether new requests may join it."""
        return self.state is not ClientState.OVER and not self.is_last

    @property
    def is_serving(self) -> bool:
        """Whether new requests may join it, and need not wait."""
        return self.state is ClientState.OPEN and not self.is_last

    @property
    def is_full(self) -> bool:
        """Whether one more request is too many."""
        return len(self._entering) >= WAITING_MAX or len(self._held) >= WAITING_MAX

    def publish(self, row: Row, done: Done, refused: Callable[[int], None] | None = None) -> None:
        """Publish a message; the caller has asked `refusal_of`, and `is_full`.

        `refused` is called when a direct one has left and the router says that it reaches nobody, and why.
        """
        assert self.state is not ClientState.GREETING
        if self.state is ClientState.OVER:  # since the body of the request began to come
            done(self.error or error_for(errors.SESSION_UNKNOWN))
            return
        self._held.append(_Publication(row, done, refused))
        self.go_on()

    def withdraw(self, done: Done) -> None:
        """Publish a message not any more, if it has not left: who asked for it has given it up."""
        if self._held:
            self._held = deque(one for one in self._held if one.done is not done)
            self.go_on()

    def refusal_of(self, row: Row) -> int:
        """Give the error code for which a message is refused, or 0."""
        judge = self.attached.guaranteed_refusal_of if _is_guaranteed(row) else self.attached.refusal_of
        return judge(row[1], row_size(row))

    def go_on(self) -> None:
        """Publish what waits, as far as there is room."""
        held = self._held
        while held and self._has_room(held[0].row):
            publication = held.popleft()
            _, topic, flags, meta, properties, payload = publication.row
            if _is_guaranteed(publication.row):
                self._last += 1
                self._unstored[self._last] = publication.done
                self.attached.publish_guaranteed(topic, flags, meta, properties, payload, self._last)
            else:
                if publication.refused is not None:
                    self.attached.report(topic, publication.refused)
                self.attached.publish(topic, flags, meta, properties, payload)
                publication.done(None)
        if held:
            self._waiting[self] = None
        else:
            self._waiting.pop(self, None)

    def _has_room(self, row: Row) -> bool:
        attached = self.attached
        return attached.has_room_guaranteed() if _is_guaranteed(row) else attached.has_room()

    @property
    def is_idle(self) -> bool:
        """Whether nobody would miss it."""
        is_reading = any(not reader.is_idle for reader in self.readers.values())
        return not (self.users or self._unstored or self._held or self._entering or is_reading)

    def request(self, row_of: Callable[[str, str], Row], done: Replied) -> Callable[[], None]:
        """Publish a request, made with reply topic and correlation id; see `publish`.

        Gives what is called when nobody waits for the reply any more: a request that has not left is not published.

        Raises:
            AngariumError: it cannot be published, or too many wait.
        """
        if self.is_last:
            raise error_for(errors.NOT_CONNECTED, "the router was lost")
        if not self.replies.inbox:
            self._answers.append(lambda _codes: None)
            self.replies.open(self.attached, self._inbox)
        correlation_id = self.replies.expect(done)
        try:
            row = row_of(self._inbox, correlation_id)
            if code := self.refusal_of(row):
                raise error_for(code, repr(row[1]))
        except errors.AngariumError:
            self.replies.give_up(correlation_id)
            raise

        def left(error: AngariumError | None) -> None:
            if error is not None:
                self.replies.fail(correlation_id, error)

        def refused(code: int) -> None:
            why = errors.NO_RESPONDERS if code == errors.NO_SUBSCRIPTION_MATCH else code
            self.replies.fail(correlation_id, error_for(why, repr(row[1])))

        def give_up() -> None:
            if self.replies.give_up(correlation_id):
                self.withdraw(left)

        self.publish(row, left, refused)
        return give_up

    def subscribe(self, filters: Sequence[str], done: Done) -> None:
        """Have what filters match come to the process; `unsubscribe` follows, also if one is refused."""
        self._filters.update(filters)

        def answered(codes: Sequence[int]) -> None:
            found = next((at for at, code in enumerate(codes) if code), None)
            done(None if found is None else error_for(codes[found], repr(filters[found])))

        self._answers.append(answered)
        self.attached.subscribe([(one, wire.SUBSCRIBE_DELIVER_ALWAYS) for one in filters])

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Have no more come of what no other stream wants."""
        self._filters.subtract(filters)
        gone = [one for one in filters if self._filters[one] <= 0]
        for one in gone:
            del self._filters[one]
        if gone and self.state is ClientState.OPEN:
            self._answers.append(lambda _codes: None)
            self.attached.unsubscribe([(one, wire.SUBSCRIBE_DELIVER_ALWAYS) for one in gone])

    def owner(self, queue: str) -> Owner:
        """Give whose receipts for messages of a queue are good here; only while it is let in."""
        return self.attached.vpn, self._username, queue

    def reader(self, queue: str, receipts: Receipts) -> Reader:
        """Give what reads a queue; only while it is let in.

        As long as that is a client before it, this goes on: an exclusive queue gives nothing to two of them.
        """
        before = self._readings.get(queue)
        if before is not None and before.is_bound:
            return before
        found = self.readers.get(queue)
        if found is None:
            found = self.readers[queue] = Reader(self.attached, self.owner(queue), receipts)
        self._readings[queue] = found
        return found

    def tick(self, now: float) -> None:
        """Do what is due in its queues."""
        for name, reader in [*self.readers.items()]:
            reader.tick(now)
            if reader.is_idle and not reader.is_bound:
                del self.readers[name]
                self._forget(name, reader)

    def wait_no_more(self, error: AngariumError) -> None:
        """Have its requests wait for messages and replies no more; what they have on lease stays so."""
        for reader in self.readers.values():
            reader.wait_no_more(error)
        self.replies.end(error)

    def leave(self) -> None:
        """Be over."""
        if self.state is not ClientState.OVER:
            self.state = ClientState.OVER
            self.attached.leave()
            self._end_reading(error_for(errors.SESSION_UNKNOWN))

    def fail(self) -> None:
        """Be over because of a fault of ours; all who wait are told."""
        if self.state is not ClientState.OVER:
            self.attached.leave()
            self._end(error_for(errors.INTERNAL))

    # What the node says.

    def welcomed(self, welcome: AttachedWelcome, _now: float) -> None:
        """It is let in."""
        self.state, self.before = ClientState.OPEN, None
        self._inbox, self._username = welcome.inbox, welcome.username
        self._let_in(None)

    def refused(self, error: AngariumError, _now: float) -> None:
        """It is not."""
        self._end(error)

    def ended(self, error: AngariumError | None, _now: float) -> None:
        """It is over: what was not stored may be, or not."""
        self._end(error or error_for(errors.SESSION_UNKNOWN))

    def _end(self, error: AngariumError) -> None:
        self.state, self.error = ClientState.OVER, error
        self._let_in(error)
        self._end_reading(error)
        self.replies.end(error)
        unstored, self._unstored = self._unstored, {}
        held, self._held = self._held, deque()
        self._waiting.pop(self, None)
        for done in unstored.values():
            done(error)
        for publication in held:
            publication.done(error)

    def _forget(self, queue: str, reader: Reader) -> None:
        if self._readings.get(queue) is reader:
            del self._readings[queue]

    def _end_reading(self, error: AngariumError) -> None:
        for name, reader in self.readers.items():
            reader.end(error)
            self._forget(name, reader)
        for stream in [*self.streams]:
            stream.end(error)

    def _let_in(self, error: AngariumError | None) -> None:
        entering, self._entering = self._entering, []
        for done in entering:
            done(error)

    def away(self, _now: float) -> bool:
        """Wait for the next router with what was published, which then goes on; all else is over."""
        self.is_last = True
        error = error_for(errors.NOT_CONNECTED, "the router was lost")
        self._end_reading(error)
        self.replies.end(error)
        return True

    def acknowledged(self, answers: Sequence[tuple[int, int]], _now: float) -> None:
        """Guaranteed messages are stored, or refused."""
        for name, code in answers:
            if done := self._unstored.pop(name, None):
                done(error_for(code) if code else None)
        self.go_on()

    def may_go_on(self, _now: float) -> None:
        """There is room for direct messages again."""
        self.go_on()

    def answered(self, codes: Sequence[int], _now: float) -> None:
        """Filters are in force, or refused; in the order of asking."""
        self._answers.popleft()(codes)

    def stored(self, event: Acknowledged, now: float) -> None:
        """It has no producer of its own."""

    def delivered(self, rows: Sequence[Row], _share: str | None, _now: float) -> None:
        """Replies came."""
        self.replies.take(rows)

    def spooled(self, event: Arrived, now: float) -> None:
        """Messages of a queue came."""
        for reader in self.readers.values():
            reader.take(event, now)

    def indicated(self, event: Indicated, now: float) -> None:
        """Something happened to a flow."""
        for reader in self.readers.values():
            reader.indicated(event, now)


def _is_guaranteed(row: Row) -> bool:
    return row[2] & wire.FLAG_MODE != wire.MODE_DIRECT
