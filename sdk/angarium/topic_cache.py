"""A bounded cache of what is known about topics, for owners whose answers change with filters.

`TopicCache` remembers answers, because publishers repeat their topics. The question is what a new filter
invalidates. Dropping everything makes one busy subscriber slow down all publishers; searching the cache for
the touched topics (as https://github.com/nats-io/nats-server/blob/main/server/sublist.go does) costs as much
as the cache is large. Here a change takes the next number and goes to a bounded log, every entry knows the
number at which it was last right, and an old entry is tested against the changes since then when it is used
next (`angarium.change_log`).

Workers cache the matches of published topics, the router those of its fast path, the SDK those of deliveries. No I/O,
no clock, no thread.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from angarium.change_log import ChangeLog
from angarium.topic import has_wildcard

if TYPE_CHECKING:
    from collections.abc import Callable

#: Entries of a cache: about 300 bytes each, so 30 MB, for more hot topics than most applications have.
TOPIC_CACHE_MAX: Final = 100_000
#: Owners that give memory back call `age` so often: what was not asked for in this time is forgotten within the next.
AGE_INTERVAL_S: Final = 15.0
#: Nodes of the log that one step of `sweep` visits: about 2 ms.
_SWEEP_TESTED_MAX: Final = 2_500

#: A dict takes up to 200 bytes for an entry. One that takes so much is made again when entries were dropped.
_TABLE_BYTES_MAX: Final = 100_000
_TABLE_BYTES_PER_ENTRY_MAX: Final = 400

#: A text beyond ASCII without its characters.
_WIDE_TEXT_BYTES: Final = 76


class CacheEntry(msgspec.Struct, eq=False, kw_only=True):
    """What a `TopicCache` holds; subclasses add what was found out about the topic.

    Its own attribute belongs to the cache, which sets it when the entry is put into it.
    """

    #: The number of the last change by which this entry is known to be right; negative if nobody asked for it since it
    #: was looked at by a sweep that forgets what is idle.
    valid_at: int = 0


E = TypeVar("E", bound=CacheEntry)


def text_bytes(text: str) -> int:
    """Give what a text takes, whenever it is asked: what is charged for it is taken back later.

    The interpreter counts the UTF-8 of a text beyond ASCII too, from when it was first encoded on. Here it counts from
    the beginning: with it a text takes two to five bytes for each character, and more only where most are emoji.
    """
    return text.__sizeof__() if text.isascii() else _WIDE_TEXT_BYTES + 4 * len(text)


class TopicCache(Generic[E]):
    """A bounded cache by topic, in which a changed pattern invalidates what it matches, at a constant price.

    An entry is charged `entry_bytes` and its topic; for what entries share, the owner adds to `bytes` and takes away.

    The loop that cannot afford a call per message looks for itself: `entries.get(topic)` is a hit if its
    `valid_at` equals `number`; in all other cases `get` decides.
    """

    __slots__ = (
        "_bytes_max",
        "_entries_max",
        "_entry_bytes",
        "_on_drop",
        "_unaged",
        "_unswept",
        "bytes",
        "dropped",
        "entries",
        "evicted",
        "log",
        "number",
        "pending",
    )

    def __init__(
        self,
        on_drop: Callable[[E], None],
        entries_max: int = TOPIC_CACHE_MAX,
        bytes_max: int = sys.maxsize,
        entry_bytes: int = 0,
    ) -> None:
        assert entries_max > 0
        self._on_drop = on_drop
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entry_bytes = entry_bytes
        #: At most `entries_max` entries, the oldest first, and one alone if there are more than `bytes_max`
        #: bytes. An `OrderedDict`, because the first key of a dict that loses its first keys is slow to find.
        self.entries: OrderedDict[str, E] = OrderedDict()
        #: What the entries were charged for, and what the owner added.
        self.bytes = 0
        #: So many of the oldest entries were not looked at since the newest change; see `sweep`.
        self._unswept = 0
        #: And so many were not asked whether they are idle; see `age`.
        self._unaged = 0
        #: The number of the newest wildcard change. No entry has a higher one.
        self.number = 0
        #: Answers that are being worked out and began at an earlier number: changes count for them too.
        self.pending = 0
        #: The changes against which old entries are tested; it counts what that costs.
        self.log = ChangeLog()
        #: Entries lost for lack of room.
        self.evicted = 0
        #: Entries lost because a change may have touched them.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, topic: str) -> E | None:
        """Give the entry of a topic if it is there and no change since it was made touches the topic."""
        entry = self.entries.get(topic)
        if entry is None or entry.valid_at == self.number or self.is_right(topic, entry):
            return entry
        self.drop(topic)
        return None

    def is_right(self, topic: str, entry: E) -> bool:
        """Test an entry of this cache against the changes since it was right last; `log.tested` says what that cost.

        Whoever found it without `get` drops it if it is wrong.
        """
        at = entry.valid_at
        if not self.log.is_untouched(topic, at if at >= 0 else -at):
            return False
        entry.valid_at = self.number
        return True

    def put(self, topic: str, entry: E, since: int | None = None) -> None:
        """Add an entry that is right for a topic that has none; the oldest make room for it.

        Changes with wildcards after the number `since` need not be in it yet; None stands for the newest.
        """
        entries = self.entries
        assert topic not in entries, "get() drops the old entry first"
        entry.valid_at = self.number if since is None else since
        self.bytes += self._entry_bytes + text_bytes(topic)
        entries[topic] = entry
        if self.bytes > self._bytes_max or len(entries) > self._entries_max:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest entries until both bounds hold."""
        while len(self.entries) > self._entries_max or (
            self.bytes > self._bytes_max and len(self.entries) > 1
        ):
            self.evicted += 1
            self._drop_first()

    def changed(self, pattern: str) -> None:
        """Take note that a pattern was added or removed, so that what is known about its topics is wrong."""
        if not self.entries and not self.pending:
            return
        if not has_wildcard(pattern):
            if pattern in self.entries:
                self.drop(pattern)
            return
        self.number += 1
        self._unswept = len(self.entries)
        self.log.add(pattern, self.number)

    def drop_oldest(self, count: int) -> None:
        """Drop so many entries, or all if there are fewer; who drops a large cache does it in steps."""
        for _ in range(min(count, len(self.entries))):
            self._drop_first()

    def sweep(self, count: int) -> bool:
        """Look at so many of the oldest entries, and drop those that a change made wrong; true if more are left.

        Topics that nobody publishes to any more are not looked up, so their entries would stay for ever. If tests are
        dear, because changes overlap much, those for which there is no time are dropped: matching afresh is no dearer.
        """
        tested_max = self.log.tested + _SWEEP_TESTED_MAX
        left = min(count, max(self._unswept, self._unaged), len(self.entries))
        while left:
            left -= 1
            topic, entry = next(iter(self.entries.items()))
            if self._is_kept(topic, entry, tested_max):
                self.entries.move_to_end(topic)
            else:
                self.drop(topic)
            self._unswept, self._unaged = max(self._unswept - 1, 0), max(self._unaged - 1, 0)
        self._unswept, self._unaged = (
            min(self._unswept, len(self.entries)),
            min(self._unaged, len(self.entries)),
        )
        if not self._unswept and len(self.log):  # every entry is right
            self.log.clear(self.number)
        has_more = self._unswept > 0 or self._unaged > 0
        # A dict that lost most of its entries keeps the table that it had for all of them.
        fair = _TABLE_BYTES_MAX + _TABLE_BYTES_PER_ENTRY_MAX * len(self.entries)
        if not has_more and sys.getsizeof(self.entries) > fair:
            kept = [*self.entries.items()]
            self.entries.clear()
            self.entries.update(kept)
        return has_more

    def _is_kept(self, topic: str, entry: E, tested_max: int) -> bool:
        """Tell whether a sweep keeps an entry, and note if nobody asked for it yet."""
        was_idle = entry.valid_at < 0
        if was_idle and self._unaged:
            return False
        is_stale = abs(entry.valid_at) != self.number
        if is_stale and (self.log.tested > tested_max or not self.is_right(topic, entry)):
            return False
        entry.valid_at = -self.number if was_idle or self._unaged else self.number
        return True

    def age(self) -> None:
        """Have the next sweep drop what nobody asked for since the last time; what it keeps has to be asked for again.

        Whoever asks for an entry pays for one test of it after each of these sweeps.
        """
        if not self._unaged:
            self.number = self.number or 1  # there is no negative zero
            self._unaged = len(self.entries)

    def drop(self, topic: str) -> None:
        """Drop an entry that a change has touched."""
        self.dropped += 1
        self._let_go(topic, self.entries.pop(topic))

    def _drop_first(self) -> None:
        self._let_go(*self.entries.popitem(last=False))

    def _let_go(self, topic: str, entry: E) -> None:
        self.bytes -= self._entry_bytes + text_bytes(topic)
        self._on_drop(entry)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert len(self.entries) <= self._entries_max
        assert self.bytes <= self._bytes_max or len(self.entries) == 1
        assert sum(self._entry_bytes + text_bytes(topic) for topic in self.entries) <= self.bytes
        assert all(abs(entry.valid_at) <= self.number for entry in self.entries.values())
        self.log.validate()
