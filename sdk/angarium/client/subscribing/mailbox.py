"""What has come for one subscription and was not read: bounded, and never a burden to the others.

Messages wait as rows, in chunks as they came. What happens when too many wait is the subscription's own choice:

- `drop`: the oldest go, and are counted. What waits does not count against the egress window of the client, so a
  subscription that nobody reads costs memory up to its bound and nothing else.
- `stall`: nothing is lost here. `Hold` ties what waits to the egress window, so the router stops sending to this
  client, for all its subscriptions, when a window of messages waits.

Readers are `angarium.client.subscribing.subscription` and, for threads, `angarium.blocking.subscription`;
`angarium.client.subscribing.dispatch` fills mailboxes.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from angarium import errors, tracing, wire
from angarium.message import Delivery
from angarium.topic import Filter, parse_filter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from angarium.message import Row

#: What a subscription does when it is full.
OnFull: TypeAlias = Literal["drop", "stall"]

#: Messages that may wait in a subscription: a second of a fast publisher, and about 100 MB of small messages.
BUFFER_MESSAGES: Final = 250_000
#: Bytes of their batches that may wait.
BUFFER_BYTES: Final = 64 * 1024 * 1024


class Hold(msgspec.Struct, eq=False):
    """Messages that count against the egress window until all subscriptions that they stall are done."""

    messages: int
    size_bytes: int
    #: Subscriptions that are not done; at 0 the credit is given back.
    references: int
    _release: Callable[[int, int], None]

    def release(self) -> None:
        """Take note that one subscription is done."""
        assert self.references > 0, "released twice"
        self.references -= 1
        if not self.references:
            self._release(self.messages, self.size_bytes)


class Chunk(msgspec.Struct, eq=False):
    """Rows of one delivery that belong to one subscription."""

    rows: list[Row]
    delivery: Delivery
    #: What the rows took on the wire, an estimate if others came with them.
    size_bytes: int
    #: Empty once released.
    _holds: Sequence[Hold] = ()
    #: The first row that was not dropped.
    start: int = 0

    def release(self) -> None:
        """Give back what the rows hold; nothing happens the second time."""
        holds, self._holds = self._holds, ()
        for hold in holds:
            hold.release()

    def trim(self, *, is_after_drop: bool) -> None:
        """Leave out what was dropped; mark the first row if it, or what was before it, was dropped."""
        if self.start:
            self.rows = self.rows[self.start :]
            self.start = 0
        if is_after_drop:
            delivery = Delivery(self.delivery.rows, self.delivery.share, self.delivery.size_bytes)
            delivery.head = self.rows[0]
            self.delivery = delivery


class Terms(NamedTuple):
    """How a subscription was asked for; `Client.subscribe` explains each."""

    deliver_always: bool = False
    local_only: bool = False
    on_full: OnFull = "drop"
    buffer_messages: int = BUFFER_MESSAGES
    buffer_bytes: int = BUFFER_BYTES
    retained: bool = False

    def check(self, filters: Sequence[str]) -> tuple[Filter, ...]:
        """Check the arguments of the application, and give its filters taken apart.

        Raises:
            InvalidRequestError: one is illegal or out of range (INVALID_ARGUMENT, INVALID_FILTER), or a filter is
                shared and local (SHARED_LOCAL_DISPATCH).
        """
        parsed = tuple(map(parse_filter, filters))
        if not parsed:
            _refuse("there is no filter; a subscription has one at least")
        if self.local_only and any(one.share is not None for one in parsed):
            raise errors.error_for(errors.SHARED_LOCAL_DISPATCH, ", ".join(one.text for one in parsed))
        if self.retained and (self.local_only or any(one.share is not None for one in parsed)):
            _refuse("a shared or local subscription gets nothing that is retained")
        if self.on_full not in ("drop", "stall"):
            _refuse(f"on_full is {self.on_full!r}, not 'drop' or 'stall'")
        for name in ("buffer_messages", "buffer_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                _refuse(f"{name} is {value!r}, from 1 on is possible")
        if self.on_full == "stall" and self[3:5] != (BUFFER_MESSAGES, BUFFER_BYTES):
            _refuse(
                "buffer_messages and buffer_bytes are for on_full='drop'; a subscription that stalls is bounded "
                "by window_messages and window_bytes of connect"
            )
        return parsed


class Mailbox:
    """What waits for the readers of one subscription; safe to be read from any thread, filled by one."""

    def __init__(self, filters: tuple[Filter, ...], terms: Terms, on_slow: Callable[[Mailbox], None]) -> None:
        """Be empty; `on_slow` is called when messages are dropped, once until the reader has caught up."""
        self.filters: Final = filters
        self.terms: Final = terms
        #: Whether what waits counts against the egress window.
        self.stalls: Final = terms.on_full == "stall"
        self._messages_max: Final = sys.maxsize if self.stalls else terms.buffer_messages
        self._bytes_max: Final = sys.maxsize if self.stalls else terms.buffer_bytes
        self._on_slow = on_slow
        #: What its messages come through; None if nobody said it.
        self.connection: tracing.Peer | None = None
        #: Guards all that follows; a reader may be another thread.
        self._lock: Final = threading.Lock()
        #: What nobody took, the oldest first.
        self._chunks: deque[Chunk] = deque()
        #: What came live while what is retained is read, and goes behind it; None: that is over.
        self._held: deque[Chunk] | None = deque() if terms.retained else None
        #: Messages in it, their bytes, and topics of those to be retained.
        self._held_messages = self._held_bytes = 0
        self._held_topics: set[str] = set()
        #: Messages in it that were not dropped, and their bytes. Unless it stalls at most those of the terms, or one
        #: chunk whose bytes are more.
        self.messages = 0
        self.size_bytes = 0
        #: Since the start.
        self.received = 0
        self.dropped = 0
        #: Whether messages were dropped and the reader has not found it empty since.
        self.is_slow = False
        #: Whether messages were dropped since the last chunk was taken.
        self._has_gap = False
        #: Nothing will come any more; what waits can still be read unless it was thrown away.
        self._is_ended = False
        self.is_discarded = False
        #: Why it ended, None for the application's own wish.
        self._error: errors.AngariumError | None = None
        #: Called when there may be something to read, or nothing any more; set by the reader.
        self.on_ready: Callable[[], None] = _ignore
        #: Whether a plain callback is called for what waits, or will be in the next step of the loop.
        self.is_calling = False
        #: What awaits an async callback.
        self.tasks: list[asyncio.Task[None]] = []
        #: Calls of callbacks that raised.
        self.callback_errors = 0

    @property
    def place(self) -> tracing.Place:
        """Where its messages come from, for a tracer: one filter stands for all topics that it matches."""
        return tracing.place_of(self.connection, self.filters[0].text if len(self.filters) == 1 else "")

    @property
    def texts(self) -> tuple[str, ...]:
        """The filters as they were given."""
        return tuple(one.text for one in self.filters)

    @property
    def outcome(self) -> tuple[bool, errors.AngariumError | None]:
        """Whether it has ended, and why."""
        return self._is_ended, self._error

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is buffered is of this moment."""
        return {
            "received_messages": self.received,
            "dropped_messages": self.dropped,
            "buffered_messages": self.messages,
            "buffered_bytes": self.size_bytes,
            "callback_errors": self.callback_errors,
        }

    @property
    def wishes(self) -> list[tuple[str, int]]:
        """What the router is asked for, each filter once with its flags."""
        if self.terms.local_only:
            return []
        flags = wire.SUBSCRIBE_DELIVER_ALWAYS if self.terms.deliver_always else 0
        return list(dict.fromkeys((text, flags) for text in self.texts))

    def push(self, chunk: Chunk) -> None:
        """Add a chunk; `wake` follows when the loop is done with what came."""
        with self._lock:
            if self.is_discarded:
                chunk.release()
                return
            self.received += len(chunk.rows)
            if self._held is not None:
                self._hold(self._held, chunk)
                return
            became_slow = self._append(chunk)
        if became_slow:
            self._on_slow(self)

    def _append(self, chunk: Chunk) -> bool:
        """Let the readers have a chunk; tell whether they have become too slow."""
        self._chunks.append(chunk)
        self.messages += len(chunk.rows)
        self.size_bytes += chunk.size_bytes
        if self.messages <= self._messages_max and self.size_bytes <= self._bytes_max:
            return False
        self._drop_oldest()
        was_slow = self.is_slow
        self.is_slow = was_slow or self._has_gap
        return self.is_slow and not was_slow

    # What is retained comes before what comes live.

    def hold(self) -> None:
        """Keep back what comes from now on: what is retained is read, again after a lost connection.

        What was kept back until then came before what is read now: it goes first, and is no newer.
        """
        self.let_go()
        with self._lock:
            self._held = deque()

    def _hold(self, held: deque[Chunk], chunk: Chunk) -> None:
        held.append(chunk)
        self._held_messages += len(chunk.rows)
        self._held_bytes += chunk.size_bytes
        self._held_topics.update(row[1] for row in chunk.rows if row[2] & wire.FLAG_RETAIN)
        while len(held) > 1 and (
            self._held_messages > self._messages_max or self._held_bytes > self._bytes_max
        ):
            oldest = held.popleft()
            self._held_messages -= len(oldest.rows)
            self._held_bytes -= oldest.size_bytes
            self.dropped += len(oldest.rows)
            self._has_gap = True
            oldest.release()

    def push_retained(self, rows: list[Row], size_bytes: int) -> None:
        """Add what is retained, but for topics of which something newer, or the same, has come live."""
        with self._lock:
            rows = [row for row in rows if row[1] not in self._held_topics]
            if not rows or self.is_discarded or self._held is None:
                return
            self.received += len(rows)
            became_slow = self._append(Chunk(rows, Delivery(rows, None, size_bytes), size_bytes))
        if became_slow:
            self._on_slow(self)

    def let_go(self) -> None:
        """All that is retained was read: what came live meanwhile follows."""
        with self._lock:
            held, self._held = self._held or (), None
            self._held_messages = self._held_bytes = 0
            self._held_topics = set()
            became_slow = [self._append(chunk) for chunk in held]
        if any(became_slow):
            self._on_slow(self)

    def _drop_oldest(self) -> None:
        """Drop messages until what waits is within the bounds; the newest chunk is kept whatever its bytes."""
        before = self.messages
        while (excess := self.messages - self._messages_max) > 0 or (
            self.size_bytes > self._bytes_max and len(self._chunks) > 1
        ):
            oldest = self._chunks[0]
            left = len(oldest.rows) - oldest.start
            if 0 < excess < left:
                size_bytes = oldest.size_bytes * excess // left
                oldest.start += excess
                oldest.size_bytes -= size_bytes
            else:
                excess, size_bytes = left, oldest.size_bytes
                self._chunks.popleft()
            self.messages -= excess
            self.size_bytes -= size_bytes
        self._has_gap = self._has_gap or self.messages < before
        self.dropped += before - self.messages

    def take(self) -> Chunk | None:
        """Give the oldest chunk, to be released by the caller."""
        if not self._chunks and not self.is_slow:
            return None  # After each delivery a reader looks for more in vain; that takes no lock.
        with self._lock:
            if not self._chunks:
                self.is_slow = False
                return None
            chunk = self._chunks.popleft()
            if self._has_gap:
                chunk.trim(is_after_drop=True)
                self._has_gap = False
            self.messages -= len(chunk.rows)
            self.size_bytes -= chunk.size_bytes
            return chunk

    def wake(self) -> None:
        """Tell the reader that there may be something to read."""
        self.on_ready()

    def end(self, error: errors.AngariumError | None) -> None:
        """Let nothing more come; what waits can still be read."""
        if not self._is_ended:
            self._error = error
            self._is_ended = True
        self.wake()

    def discard(self) -> None:
        """Throw away what waits, and end."""
        with self._lock:
            self.is_discarded = True
        self.let_go()
        while (chunk := self.take()) is not None:
            chunk.release()
        self.end(None)
        # There is nothing to say any more, and topics that are known may keep this object for long.
        self.on_ready = _ignore

    def __str__(self) -> str:
        return f"Subscription({', '.join(map(repr, self.texts))})"

    def __repr__(self) -> str:
        state = "closed" if self._is_ended else "open"
        return f"<Subscription to {', '.join(map(repr, self.texts))}, {state}, {self.messages} buffered>"

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        with self._lock:
            assert self.messages == sum(len(chunk.rows) - chunk.start for chunk in self._chunks)
            assert self.size_bytes == sum(chunk.size_bytes for chunk in self._chunks)
            assert all(chunk.start < len(chunk.rows) for chunk in self._chunks)
            assert all(not chunk.start for chunk in list(self._chunks)[1:])
            assert self.stalls or self.messages <= self.terms.buffer_messages
            assert not self.is_discarded or (self._is_ended and not self._chunks)


def _ignore() -> None:
    """Nobody reads."""


def _refuse(detail: str) -> None:
    raise errors.invalid(f"subscribe: {detail}")
