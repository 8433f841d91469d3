"""How deliveries find the subscriptions of a client.

The router sends a client each message once; which of the client's subscriptions it belongs to is found here, by a
trie and a cache of its answers, and by the share string for shared subscriptions.

Order: a subscription gives messages in the order of their publisher. Between two subscriptions there is none; an
application that needs it puts several filters in one subscription.

A subscription with `on_full="stall"` that nobody reads keeps messages from coming to all others of its client: what
waits in it fills the egress window. A full window is usual while a reader is slow; it is a stall when nothing is read
for `STALL_S`, which `StallWatch` notices.

No sockets here. `angarium.client.client` feeds `Dispatcher` and wakes what is ready.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from angarium.client.subscribing.mailbox import Chunk, Hold, Mailbox
from angarium.topic_cache import CacheEntry, TopicCache
from angarium.trie import FilterTrie

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from angarium.client.protocol.session import EgressWindow
    from angarium.client.subscribing.mailbox import Mailbox
    from angarium.message import Delivery, Row

#: Topics of which the SDK remembers the subscriptions; an entry takes about 200 bytes.
KNOWN_TOPICS_MAX: Final = 20_000
#: Topics that are looked at when a subscription ends, 0.1 ms: they have its mailbox until somebody does.
SWEPT_TOPICS: Final = 32


class _Entry(CacheEntry, eq=False):
    """The subscriptions of a topic, each once."""

    subscriptions: tuple[Mailbox, ...]


class Dispatcher:
    """Finds the subscriptions of what came, and pushes it to their mailboxes."""

    def __init__(self, release: Callable[[int, int], None]) -> None:
        """Know no subscription; `release` takes messages and bytes that nobody holds any more."""
        self._release = release
        self._trie: FilterTrie[Mailbox] = FilterTrie()
        self._cache: TopicCache[_Entry] = TopicCache(lambda _: None, KNOWN_TOPICS_MAX)
        #: Shared subscription string -> its subscriptions, never none.
        self._shares: dict[str, tuple[Mailbox, ...]] = {}
        #: All subscriptions that were added and not removed.
        self.subscriptions: dict[Mailbox, None] = {}
        #: Subscriptions that got something since `take_ready`.
        self.awake: dict[Mailbox, None] = {}
        #: Messages that came and matched no subscription.
        self.unclaimed_messages = 0

    def add(self, subscription: Mailbox) -> None:
        """Let messages reach a subscription."""
        self.subscriptions[subscription] = None
        for one in subscription.filters:
            if one.share is not None:
                others = self._shares.get(one.text, ())
                self._shares[one.text] = tuple(dict.fromkeys((*others, subscription)))
            else:
                self._trie.add(one.pattern, subscription)
                self._cache.changed(one.pattern)

    def remove(self, subscription: Mailbox) -> None:
        """Let no more messages reach a subscription; nothing happens if none do."""
        if subscription not in self.subscriptions:
            return
        del self.subscriptions[subscription]
        self.awake.pop(subscription, None)
        filters = subscription.filters
        for text in dict.fromkeys(one.text for one in filters if one.share is not None):
            others = tuple(one for one in self._shares.pop(text) if one is not subscription)
            if others:
                self._shares[text] = others
        for pattern in dict.fromkeys(one.pattern for one in filters if one.share is None):
            self._trie.remove(pattern, subscription)
            self._cache.changed(pattern)
        self._cache.sweep(SWEPT_TOPICS)

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

    def take_ready(self) -> list[Mailbox]:
        """Give the subscriptions that got something since the last call."""
        ready = list(self.awake)
        self.awake.clear()
        return ready

    def _match(self, topic: str) -> tuple[Mailbox, ...]:
        cache = self._cache
        entry = cache.entries.get(topic)
        if entry is not None and entry.valid_at != cache.number:
            entry = cache.get(topic)
        if entry is None:
            entry = _Entry(tuple(dict.fromkeys(self._trie.match(topic))))
            cache.put(topic, entry)
        return entry.subscriptions

    def _push_all(self, members: tuple[Mailbox, ...], delivery: Delivery) -> None:
        """Push a delivery whole, which is the usual case."""
        rows, size_bytes = delivery.rows, delivery.size_bytes
        if not members:
            self.unclaimed_messages += len(rows)
        holds = self._hold(members, len(rows), size_bytes)
        for mailbox in members:
            mailbox.push(Chunk(rows, delivery, size_bytes, holds if mailbox.stalls else ()))
            self.awake[mailbox] = None

    def _hold(self, members: tuple[Mailbox, ...], messages: int, size_bytes: int) -> tuple[Hold, ...]:
        """Give what ties messages to the egress window; their credit goes back at once if nobody stalls."""
        stalling = 0
        for mailbox in members:
            stalling += mailbox.stalls
        if stalling:
            return (Hold(messages, size_bytes, stalling, self._release),)
        self._release(messages, size_bytes)
        return ()

    def _push_mixed(self, found: dict[str, tuple[Mailbox, ...]], delivery: Delivery) -> None:
        """Push each row to its own subscriptions; rows with the same ones share a hold."""
        rows = delivery.rows
        split: dict[Mailbox, list[Row]] = {one: [] for members in found.values() for one in members}
        appends = {topic: [split[one].append for one in members] for topic, members in found.items()}
        for row in rows:
            for append in appends[row[1]]:
                append(row)
        counts: Counter[tuple[Mailbox, ...]] = Counter()
        for topic, count in Counter([row[1] for row in rows]).items():
            counts[found[topic]] += count
        left_bytes = delivery.size_bytes
        left_rows = len(rows)
        holds: dict[Mailbox, list[Hold]] = {one: [] for one in split}
        sizes = dict.fromkeys(split, 0)
        for members, count in counts.items():
            size_bytes = left_bytes * count // left_rows
            left_bytes -= size_bytes
            left_rows -= count
            if not members:
                self.unclaimed_messages += count
            hold = self._hold(members, count, size_bytes)
            for one in members:
                sizes[one] += size_bytes
                if one.stalls:
                    holds[one] += hold
        for one, own in split.items():
            one.push(Chunk(own, delivery, sizes[one], holds[one]))
            self.awake[one] = None

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        self._trie.validate()
        self._cache.validate()
        assert all(self._shares.values())
        for members in self._shares.values():
            assert all(one in self.subscriptions for one in members)
        assert all(one in self.subscriptions for one in self.awake)


#: The window is full and nothing was read for so long: long beside the work on one batch.
STALL_S: Final = 1.0


class StallWatch:
    """Looks at the egress window when messages have come; costs nothing else."""

    def __init__(
        self, window: EgressWindow, mailboxes: Collection[Mailbox], on_stalled: Callable[[str], None]
    ) -> None:
        """Watch; `on_stalled` is called with the reason, once until messages come again."""
        self._window = window
        self._mailboxes = mailboxes
        self._on_stalled = on_stalled
        self._loop = asyncio.get_running_loop()
        #: Set while the window is full and that is no stall yet.
        self._timer: asyncio.TimerHandle | None = None
        #: Messages that had been read when it was set.
        self._released = 0
        #: ... when the last stall was reported; there is nothing new to say before more were.
        self._reported = -1

    @property
    def detail(self) -> str:
        """Why nothing comes; empty unless the window is full."""
        if self._window.has_room():
            return ""
        advice = "read it, close it, or subscribe with on_full='drop'"
        largest = max(self._mailboxes, key=lambda one: one.messages * one.stalls, default=None)
        if largest is None or not largest.stalls or not largest.messages:
            return f"the last messages that were read hold the window of this client: {self._window.held_messages:,}"
        waiting = f"{largest.messages:,} messages of {self._window.held_messages:,}"
        return f"{largest} holds the window of this client ({waiting}), and nothing more comes: {advice}"

    def look(self) -> None:
        """Something came: look whether there is room for more."""
        if self._timer is None and not self._window.has_room():
            self._released = self._window.released_messages
            if self._released == self._reported:
                return
            self._timer = self._loop.call_later(STALL_S, self._check)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if self._window.released_messages == self._released and not self._window.has_room():
            self._reported = self._released
            self._on_stalled(self.detail)
        else:
            self.look()
