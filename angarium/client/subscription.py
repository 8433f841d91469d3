"""Subscriptions of an application, and how deliveries find them.

The router sends a client each message once; which of the client's subscriptions it belongs to is found here,
by a trie and a cache of its answers, and by the share string for shared subscriptions. Messages wait in the
subscription as rows, in chunks as they came, until the application takes them. `Hold` ties what waits to the
egress credit: the router may send more only when every subscription that a message went to is done with it,
so a slow application holds one window of messages and never more.

Order: a subscription gives messages in the order of their publisher. Between two subscriptions there is none;
who needs it puts several filters in one subscription.

No sockets here. `angarium.client.client` feeds `Dispatcher` and wakes what is ready; `angarium.blocking` takes
chunks from another thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter, deque
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from angarium import errors
from angarium.message import Delivery, Message, MessageBatch, ReceivedMessage, Row
from angarium.trie import CacheEntry, FilterTrie, TopicCache

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from angarium.topic import Filter

#: Called with each message; an `async def` is awaited before the next message.
MessageCallback: TypeAlias = "Callable[[Message], None] | Callable[[Message], Awaitable[None]]"

#: Calls of callbacks before the loop gets its turn; at a microsecond each a millisecond.
CALLBACKS_PER_STEP: Final = 1_000
#: Messages in one batch of `Subscription.batches` unless asked otherwise.
BATCH_MESSAGES: Final = 10_000
#: Topics of which the SDK remembers the subscriptions; an entry takes about 200 bytes.
KNOWN_TOPICS_MAX: Final = 20_000

_logger = logging.getLogger(__name__)


class Hold:
    """Messages that count against the egress window until all subscriptions they went to are done."""

    __slots__ = ("_release", "messages", "references", "size_bytes")

    def __init__(
        self, messages: int, size_bytes: int, references: int, release: Callable[[int, int], None]
    ) -> None:
        """Hold messages for so many subscriptions."""
        self.messages = messages
        self.size_bytes = size_bytes
        #: Subscriptions that are not done; at 0 the credit is given back.
        self.references = references
        self._release = release

    def release(self) -> None:
        """Take note that one subscription is done."""
        assert self.references > 0, "released twice"
        self.references -= 1
        if not self.references:
            self._release(self.messages, self.size_bytes)


class Chunk:
    """Rows of one delivery that belong to one subscription."""

    __slots__ = ("_holds", "delivery", "rows")

    def __init__(self, rows: list[Row], delivery: Delivery, holds: Sequence[Hold]) -> None:
        """Tie rows to what they hold."""
        self.rows = rows
        self.delivery = delivery
        #: Empty once released.
        self._holds = holds

    def release(self) -> None:
        """Give back what the rows hold; nothing happens the second time."""
        holds, self._holds = self._holds, ()
        for hold in holds:
            hold.release()


class Subscription:
    """Messages of one or more filters, in the order of their publishers.

    Read with one of: `async for message in subscription`, `async for batch in subscription.batches()`,
    `receive`, or give a callback to `Client.subscribe`. What is not read holds the client's egress window,
    and when the window is full the router sends this client nothing more: an application reads all its
    subscriptions, or unsubscribes.
    """

    def __init__(
        self,
        filters: tuple[Filter, ...],
        unsubscribe: Callable[[Subscription], Awaitable[None]],
        *,
        deliver_always: bool = False,
        local_only: bool = False,
        callback: MessageCallback | None = None,
    ) -> None:
        """Belong to a client; only `Client.subscribe` makes subscriptions."""
        self._parsed = filters
        self._unsubscribe = unsubscribe
        #: Whether deliver-to-one messages come here whatever others subscribe to.
        self.deliver_always: Final = deliver_always
        #: Whether only this client knows it: it gets what comes anyway, and the router is never told.
        self.local_only: Final = local_only
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        #: Chunks that nobody took, the oldest first. Bounded by the egress window.
        self._chunks: deque[Chunk] = deque()
        #: The chunk whose rows are handed out; `_rows` iterates over them.
        self._open: Chunk | None = None
        self._rows: Iterator[Row] = iter(())
        #: Readers that wait for a chunk or the end.
        self._waiters: list[asyncio.Future[None]] = []
        #: Nothing will come any more; what is buffered can still be read unless it was thrown away.
        self._is_ended = False
        self._is_discarded = False
        #: Why it ended, None for unsubscribe and close.
        self._error: errors.AngariumError | None = None
        #: Whether `_run_callback` will be called in the next step of the loop.
        self._is_scheduled = False
        #: Calls of the callback that raised.
        self.callback_errors = 0
        #: Called instead of waking readers; the blocking client's door. Set before the first message.
        self.on_ready: Callable[[], None] | None = None
        is_async = callback is not None and _is_coroutine_function(callback)
        self._task = self._loop.create_task(self._await_callback()) if is_async else None

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters as they were given."""
        return tuple(one.text for one in self._parsed)

    @property
    def parsed_filters(self) -> tuple[Filter, ...]:
        """The filters taken apart."""
        return self._parsed

    @property
    def buffered(self) -> int:
        """Messages that wait to be read, without those of the chunk that is being read."""
        return sum(len(chunk.rows) for chunk in list(self._chunks))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Give messages until the subscription ends.

        Raises:
            AngariumError: why it ended, if it was neither unsubscribed nor closed.
        """
        while await self._ready():
            assert self._open is not None
            delivery = self._open.delivery
            for row in self._rows:
                yield ReceivedMessage(row, delivery)
                if self._is_discarded:
                    return

    async def batches(self, max_messages: int = BATCH_MESSAGES) -> AsyncIterator[MessageBatch]:
        """Give messages as they came, together; the fastest way to read.

        A batch counts as consumed when the next one is asked for.

        Raises:
            AngariumError: why the subscription ended, if it was neither unsubscribed nor closed.
        """
        _check_batch(max_messages)
        while await self._ready():
            assert self._open is not None
            delivery = self._open.delivery
            while rows := list(islice(self._rows, max_messages)):
                yield MessageBatch(rows, delivery)
                if self._is_discarded:
                    return

    async def receive(self, timeout_s: float | None = None) -> Message:
        """Give the next message, waiting so many seconds for it, or for ever.

        Raises:
            TimeoutExpiredError: none came in time (TIMEOUT).
            ConnectionLostError: the subscription has ended (CLIENT_CLOSED), or the connection for good.
        """
        while True:
            for row in self._rows:
                assert self._open is not None
                return ReceivedMessage(row, self._open.delivery)
            try:
                async with asyncio.timeout(timeout_s):
                    is_ready = await self._ready()
            except TimeoutError:
                raise errors.error_for(errors.TIMEOUT, f"no message within {timeout_s} s") from None
            if not is_ready:
                raise errors.error_for(errors.CLIENT_CLOSED, f"the subscription {self} has ended")

    async def unsubscribe(self) -> None:
        """End the subscription; what is buffered and unread is thrown away.

        Raises:
            AngariumError: the router's answer, for example that an ACL denies it. It has ended here all the
                same.
        """
        await self._unsubscribe(self)

    def __repr__(self) -> str:
        return f"Subscription({', '.join(map(repr, self.filters))})"

    # What the client and the blocking client call.

    def push(self, chunk: Chunk) -> None:
        """Buffer a chunk; `wake` follows when the loop is done with what came."""
        if self._is_discarded:
            chunk.release()
        else:
            self._chunks.append(chunk)

    def wake(self) -> None:
        """Tell whoever reads that there is something to read."""
        if self.on_ready is not None:
            self.on_ready()
        elif self._callback is not None and self._task is None:
            if not self._is_scheduled:
                self._run_callback()
        else:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def take_chunk(self) -> Chunk | None:
        """Give the oldest chunk, to be released by the caller; safe from any thread."""
        try:
            return self._chunks.popleft()
        except IndexError:
            return None

    def end(self, error: errors.AngariumError | None) -> None:
        """Let nothing more come; what is buffered can still be read."""
        if not self._is_ended:
            self._is_ended = True
            self._error = error
        self.wake()

    def discard(self) -> None:
        """Throw away what is buffered, and end."""
        self._is_discarded = True
        while (chunk := self.take_chunk()) is not None:
            chunk.release()
        if self._open is not None:
            self._open.release()
            self._rows = iter(())
        self.end(None)

    @property
    def outcome(self) -> tuple[bool, errors.AngariumError | None]:
        """Whether it has ended, and why."""
        return self._is_ended, self._error

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that awaits an async callback."""
        return self._task

    # Reading.

    def _advance(self) -> bool:
        """Release the chunk that was handed out and open the next one, if there is one."""
        if self._open is not None:
            self._open.release()
        self._open = self.take_chunk()
        if self._open is None:
            self._rows = iter(())
            return False
        self._rows = iter(self._open.rows)
        return True

    async def _ready(self) -> bool:
        """Wait for rows; give False at the end."""
        if self._open is not None and length_hint(self._rows):
            return True
        while not self._advance():
            if self._is_ended:
                if self._error is not None:
                    raise self._error
                return False
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True

    def _run_callback(self) -> None:
        """Call the callback for what is buffered, a bounded number of times per step of the loop."""
        self._is_scheduled = True
        callback: Any = self._callback
        budget = CALLBACKS_PER_STEP
        while budget > 0 and self._advance():
            assert self._open is not None
            delivery = self._open.delivery
            for row in self._rows:
                try:
                    callback(ReceivedMessage(row, delivery))
                except Exception:
                    self.callback_errors += 1
                    _logger.exception("the callback of %s raised", self)
                if self._is_discarded:
                    break
            budget -= len(self._open.rows)
            self._open.release()
        self._is_scheduled = bool(self._chunks)
        if self._is_scheduled:
            self._loop.call_soon(self._run_callback)

    async def _await_callback(self) -> None:
        callback: Any = self._callback
        try:
            async for message in self:
                try:
                    await callback(message)
                except Exception:
                    self.callback_errors += 1
                    _logger.exception("the callback of %s raised", self)
        except errors.AngariumError as error:
            _logger.warning("%s has ended: %s", self, error)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert not self._is_discarded or not self._chunks
        assert not self._is_discarded or self._is_ended
        assert all(chunk.rows for chunk in self._chunks)


class _Entry(CacheEntry):
    """The subscriptions of a topic, each once."""

    __slots__ = ("subscriptions",)

    def __init__(self, subscriptions: tuple[Subscription, ...]) -> None:
        super().__init__()
        self.subscriptions: Final = subscriptions


class Dispatcher:
    """Finds the subscriptions of what came, and pushes it to them."""

    def __init__(self, release: Callable[[int, int], None]) -> None:
        """Know no subscription; `release` takes messages and bytes that nobody holds any more."""
        self._release = release
        self._trie: FilterTrie[Subscription] = FilterTrie()
        self._cache: TopicCache[_Entry] = TopicCache(lambda _: None, KNOWN_TOPICS_MAX)
        #: Shared subscription string -> its subscriptions, never none.
        self._shares: dict[str, tuple[Subscription, ...]] = {}
        #: All subscriptions that were added and not removed.
        self.subscriptions: dict[Subscription, None] = {}
        #: Subscriptions that got something since `take_ready`.
        self._awake: dict[Subscription, None] = {}
        #: Messages that came and matched no subscription.
        self.unclaimed_messages = 0

    def add(self, subscription: Subscription) -> None:
        """Let messages reach a subscription."""
        self.subscriptions[subscription] = None
        for one in subscription.parsed_filters:
            if one.share is not None:
                others = self._shares.get(one.text, ())
                self._shares[one.text] = tuple(dict.fromkeys((*others, subscription)))
            else:
                self._trie.add(one.pattern, subscription)
                self._cache.changed(one.pattern)

    def remove(self, subscription: Subscription) -> None:
        """Let no more messages reach a subscription; nothing happens if none do."""
        if subscription not in self.subscriptions:
            return
        del self.subscriptions[subscription]
        self._awake.pop(subscription, None)
        filters = subscription.parsed_filters
        for text in dict.fromkeys(one.text for one in filters if one.share is not None):
            others = tuple(one for one in self._shares.pop(text) if one is not subscription)
            if others:
                self._shares[text] = others
        for pattern in dict.fromkeys(one.pattern for one in filters if one.share is None):
            self._trie.remove(pattern, subscription)
            self._cache.changed(pattern)

    def dispatch(self, delivery: Delivery) -> None:
        """Push rows to all subscriptions that they match.

        A shared subscription that a subscription manager made has no subscription of its own here; what comes
        through it is dispatched by topic.
        """
        rows = delivery.rows
        if delivery.share is not None and (members := self._shares.get(delivery.share)):
            self._push_all(members, delivery)
        elif len(rows) == 1:
            self._push_all(self._match(rows[0][1]), delivery)
        else:
            topics = dict.fromkeys([row[1] for row in rows])
            found = {topic: self._match(topic) for topic in topics}
            groups = dict.fromkeys(found.values())
            if len(groups) == 1:
                self._push_all(next(iter(groups)), delivery)
            else:
                self._push_mixed(found, delivery)

    def take_ready(self) -> list[Subscription]:
        """Give the subscriptions that got something since the last call."""
        ready = list(self._awake)
        self._awake.clear()
        return ready

    def _match(self, topic: str) -> tuple[Subscription, ...]:
        entry = self._cache.get(topic)
        if entry is None:
            entry = _Entry(tuple(dict.fromkeys(self._trie.match(topic))))
            self._cache.put(topic, entry)
        return entry.subscriptions

    def _push_all(self, members: tuple[Subscription, ...], delivery: Delivery) -> None:
        """Push a delivery whole, which is the usual case."""
        rows = delivery.rows
        if not members:
            self.unclaimed_messages += len(rows)
            self._release(len(rows), delivery.size_bytes)
            return
        holds = (Hold(len(rows), delivery.size_bytes, len(members), self._release),)
        for subscription in members:
            subscription.push(Chunk(rows, delivery, holds))
            self._awake[subscription] = None

    def _push_mixed(self, found: dict[str, tuple[Subscription, ...]], delivery: Delivery) -> None:
        """Push each row to its own subscriptions; rows with the same ones share a hold."""
        rows = delivery.rows
        split: dict[Subscription, list[Row]] = {one: [] for members in found.values() for one in members}
        appends = {topic: [split[one].append for one in members] for topic, members in found.items()}
        for row in rows:
            for append in appends[row[1]]:
                append(row)
        counts: Counter[tuple[Subscription, ...]] = Counter()
        for topic, count in Counter([row[1] for row in rows]).items():
            counts[found[topic]] += count
        left_bytes = delivery.size_bytes
        left_rows = len(rows)
        holds: dict[Subscription, list[Hold]] = {one: [] for one in split}
        for members, count in counts.items():
            size_bytes = left_bytes * count // left_rows
            left_bytes -= size_bytes
            left_rows -= count
            if not members:
                self.unclaimed_messages += count
                self._release(count, size_bytes)
                continue
            hold = Hold(count, size_bytes, len(members), self._release)
            for one in members:
                holds[one].append(hold)
        for one, own in split.items():
            one.push(Chunk(own, delivery, holds[one]))
            self._awake[one] = None

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._trie.validate()
        self._cache.validate()
        assert all(self._shares.values())
        for members in self._shares.values():
            assert all(one in self.subscriptions for one in members)
        assert all(one in self.subscriptions for one in self._awake)


def _is_coroutine_function(callback: object) -> bool:
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
        getattr(callback, "__call__", None)  # noqa: B004 - asks what kind of callable it is, not whether it is one
    )


def _check_batch(max_messages: int) -> None:
    if max_messages < 1:
        raise errors.error_for(
            errors.INVALID_ARGUMENT, f"max_messages is {max_messages}, from 1 on is possible"
        )
