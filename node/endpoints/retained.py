"""The messages that a lane retains: the newest of each topic, found by topic.

The lane of such a queue keeps an index from topics to positions. It is made from the messages themselves, in bounded
steps and in the order of their positions: at once from what was just stored, in the background from what is there
after a start. A newer message of a topic replaces the older one, and one without payload ends the topic.

**Order on disk.** A message that was replaced goes when the one that replaced it is on disk, never before: after a
crash there is the old one, the new one, or both, and of both the index finds the new one again. So what is replaced
waits in the backlog, where the index does not lead to it any more. A message that ends a topic goes with what it ended.

Messages go for other reasons, too: they expire, or operators delete them. Then nothing that they replaced may come
back: what expires waits for the index, and what it replaced goes no later. The index does not hear of that itself. It
asks the backlog before it gives anything, and when it has many more topics than there are messages it looks for those
that lead nowhere. So its memory is bounded by the messages that there are.

No I/O, no clock; `node.endpoints.lane` uses this.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from angarium.topic import matches
from node.backlog.segment import GONE, MOVING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium.topic import Filter
    from node.backlog.backlog import Backlog
    from node.backlog.lifetimes import Lifetimes
    from node.backlog.segment import Segment
    from node.endpoints.consumers import Sources

#: What one step takes: messages that are put into the index, that are removed, topics that are asked for their message.
STEP_ROWS: Final = 2_000
#: Topics that one page looks at: a filter that matches few of very many gives pages with nothing in them.
PAGE_TOPICS: Final = 2_000
#: What it costs to look at a topic, in steps of `Effort`, besides reading its block.
TOPIC_STEPS: Final = 2_000
#: Topics of messages that are gone, beyond one for each message that is there, before they are looked for.
GONE_MAX: Final = 1_000
#: Topics of one chunk of `SortedTopics`: what moves when one comes or goes.
CHUNK_TOPICS: Final = 1_000


class SortedTopics:
    """Topics in rising order.

    It is a list of sorted chunks, so a topic costs one chunk, however many there are. One list that is sorted when
    somebody reads was rejected: with a million topics the read after a new topic would stop the home for long.
    """

    __slots__ = ("_chunks", "_lasts")

    def __init__(self) -> None:
        #: Each is sorted, below the next, and not empty.
        self._chunks: list[list[str]] = []
        #: The last topic of each.
        self._lasts: list[str] = []

    def add(self, topic: str) -> None:
        """Add a topic that is not there."""
        if not self._chunks:
            self._chunks, self._lasts = [[topic]], [topic]
            return
        k = min(bisect_left(self._lasts, topic), len(self._lasts) - 1)
        chunk = self._chunks[k]
        insort(chunk, topic)
        self._lasts[k] = chunk[-1]
        if len(chunk) > CHUNK_TOPICS:
            half = len(chunk) // 2
            self._chunks[k : k + 1] = [chunk[:half], chunk[half:]]
            self._lasts.insert(k, chunk[half - 1])

    def remove(self, topic: str) -> None:
        """Remove a topic that is there."""
        k = bisect_left(self._lasts, topic)
        chunk = self._chunks[k]
        del chunk[bisect_left(chunk, topic)]
        if chunk:
            self._lasts[k] = chunk[-1]
        else:
            del self._chunks[k], self._lasts[k]

    def since(self, start: str) -> Iterator[str]:
        """Give the topics from one on, in rising order; nothing may change meanwhile."""
        k = bisect_left(self._lasts, start)
        if k < len(self._chunks):
            chunk = self._chunks[k]
            yield from chunk[bisect_left(chunk, start) :]
            for chunk in self._chunks[k + 1 :]:
                yield from chunk

    def clear(self) -> None:
        """Remove everything."""
        self._chunks.clear()
        self._lasts.clear()

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        assert all(self._chunks)
        assert self._lasts == [chunk[-1] for chunk in self._chunks]
        assert all(a < b for a, b in pairwise(self.since("")))


class Found(NamedTuple):
    """A message that is retained."""

    topic: str
    segment: Segment
    row: int


class Page(NamedTuple):
    """Some of what is retained, by rising topics."""

    found: list[Found]
    #: The topic after which the next page begins; None: there is none.
    next: str | None


class Retained:
    """What a lane retains."""

    def __init__(
        self,
        backlog: Backlog,
        lifetimes: Lifetimes,
        remove: Callable[[Segment, int], None],
        sources: Sources,
    ) -> None:
        """Begin with nothing in the index, whatever the backlog has.

        Args:
            backlog: the messages.
            lifetimes: says which of them have expired.
            remove: takes a message away that was replaced, wherever it is.
            sources: for looking into messages.
        """
        self._backlog = backlog
        self._lifetimes = lifetimes
        self._remove = remove
        self._read_row = sources.read_row
        self._effort = sources.effort
        #: Topic -> position of its newest message, of those up to `indexed_upto`; it may be gone by now.
        self._newest: dict[str, int] = {}
        #: Exactly these topics.
        self._topics = SortedTopics()
        #: All messages up to this position are in the index, or were replaced.
        self.indexed_upto = 0
        #: Up to this position everything is on disk, or does not need to be; the home says so.
        self.stored_upto = 0
        #: What is replaced, as (position that must be on disk before, position that goes then), in order.
        self._replaced: deque[tuple[int, int]] = deque()
        #: The topic up to which those without a message were looked for.
        self._swept_upto = ""

    def __len__(self) -> int:
        """Give the number of topics in the index."""
        return len(self._newest)

    def __contains__(self, topic: str) -> bool:
        """Tell whether a topic is in the index; its message may be gone."""
        return topic in self._newest

    def is_complete(self, next_position: int) -> bool:
        """Tell whether all messages below a position are in the index."""
        return self.indexed_upto >= next_position - 1

    def is_behind(self, next_position: int) -> bool:
        """Tell whether `run` has something to do."""
        return (
            self.indexed_upto < next_position - 1
            or (bool(self._replaced) and self._replaced[0][0] <= self.stored_upto)
            or self._has_too_many
        )

    @property
    def _has_too_many(self) -> bool:
        return len(self._newest) > self._backlog.messages + GONE_MAX

    # --- messages come and go ---------------------------------------------------------------------------

    def came(self, first: int) -> None:
        """Take note that there are messages from a position on, perhaps below others."""
        self.indexed_upto = min(self.indexed_upto, first - 1)

    def run(self, next_position: int) -> None:
        """Do one step of what there is to do, as far as there is effort."""
        left = STEP_ROWS
        while left > 0 and self._effort.left > 0 and self.indexed_upto < next_position - 1:
            at = self._backlog.segments.next_from(self._backlog.segments.index(self.indexed_upto + 1))
            if at is None:
                self.indexed_upto = next_position - 1
            else:
                left -= self._index_some(at[1], left)
        self._remove_replaced()
        if self._has_too_many:
            self._sweep()

    def _index_some(self, segment: Segment, limit: int) -> int:
        """Put the next messages of a segment into the index; gives how many were looked at."""
        start = max(self.indexed_upto + 1 - segment.first, 0)
        i = start
        end = min(segment.count, start + limit)
        while i < end and self._effort.left > 0:
            if segment.state[i] != GONE:
                try:
                    row = self._read_row(segment, i)
                except errors.AngariumError:
                    # Nobody can have what its block does not give, and nothing is replaced by it.
                    self._backlog.statistics["unreadable"] += segment.live
                    i = segment.count
                    break
                self._put(row.topic, segment.first + i, is_end=not row.payload)
            i += 1
            self._effort.toil(TOPIC_STEPS)
        self.indexed_upto = segment.first + i - 1
        return i - start

    def _put(self, topic: str, position: int, *, is_end: bool) -> None:
        """Take a message into the index."""
        older = self._newest.get(topic, 0)
        if older >= position:
            if older > position:
                self._replaced.append((older, position))
            return
        if older:
            self._replaced.append((position, older))
        if not is_end:
            if not older:
                self._topics.add(topic)
            self._newest[topic] = position
            return
        self._replaced.append((position, position))
        if older:
            self._drop(topic)

    def _remove_replaced(self) -> None:
        for _ in range(STEP_ROWS):
            if not self._replaced or self._replaced[0][0] > self.stored_upto:
                return
            self._remove_at(self._replaced.popleft()[1])

    def _remove_at(self, position: int) -> None:
        found = self._at(position)
        if found is not None:
            self._remove(*found)

    def follow_losses(self) -> None:
        """Let go what was replaced by messages that are gone before they were on disk; the home is to write that.

        They never will be there, so nothing waits for them any more.
        """
        if not self._replaced:
            return
        if all(segment.last <= self.stored_upto for segment in self._backlog.changed):
            return
        waiting, self._replaced = self._replaced, deque()
        for needed, position in waiting:
            if self._at(needed) is None:
                self._remove_at(position)
            else:
                self._replaced.append((needed, position))

    def _sweep(self) -> None:
        """Look at the next topics, whether they lead to messages that are there."""
        gone: list[str] = []
        looked = 0
        for topic in self._topics.since(self._swept_upto):
            if looked >= STEP_ROWS:
                self._swept_upto = topic
                break
            looked += 1
            if self._find(topic) is None:
                gone.append(topic)
        else:
            self._swept_upto = ""
        self._effort.toil(looked * TOPIC_STEPS)
        for topic in gone:
            self._drop(topic)

    def _drop(self, topic: str) -> None:
        del self._newest[topic]
        self._topics.remove(topic)

    def clear(self, next_position: int) -> None:
        """Forget everything below a position; the backlog was purged."""
        self._newest.clear()
        self._topics.clear()
        self._replaced.clear()
        self.indexed_upto = next_position - 1

    # --- reading ----------------------------------------------------------------------------------------

    def page(self, wanted: Filter, after: str, upto: int, bytes_max: int, wall_ms: int) -> Page:
        """Give what a filter matches, by rising topics.

        Looking for it takes half of the effort at most once something is found, so that the rest pays for reading it.

        Args:
            wanted: the filter.
            after: topics up to this one were given; "" for none.
            upto: newer messages than the one at this position are left out.
            bytes_max: of the messages; the first one may have more.
            wall_ms: the time: what has expired is not given.
        """
        found: list[Found] = []
        gone: list[str] = []
        last, size = after, 0
        enough = self._effort.left // 2
        prefix = literal_prefix(wanted)
        # Mostly what has the prefix matches; what begins with a wildcard matches no topic that hides from it.
        is_plain = bool(prefix) and wanted.pattern == f"{prefix}>"
        is_cut = False
        for looked, topic in enumerate(self._candidates(wanted, prefix, after)):
            if looked >= PAGE_TOPICS or (found and self._effort.left < enough):
                is_cut = True
                break
            self._effort.toil(TOPIC_STEPS)
            if is_plain or matches(wanted.pattern, topic):
                at = self._find(topic)
                if at is None:
                    gone.append(topic)
                elif self._may_give(*at, upto, wall_ms):
                    size += at[0].sizes[at[1]]
                    if found and size > bytes_max:
                        is_cut = True
                        break
                    found.append(Found(topic, *at))
            last = topic
        for topic in gone:
            self._drop(topic)
        return Page(found, last if is_cut else None)

    def _candidates(self, wanted: Filter, prefix: str, after: str) -> Iterator[str]:
        """Give the topics after one that a filter may match, in rising order."""
        if not wanted.wildcard:
            if wanted.pattern in self._newest and wanted.pattern > after:
                yield wanted.pattern
            return
        for topic in self._topics.since(max(prefix, after)):
            if not topic.startswith(prefix):
                return
            if topic != after:
                yield topic

    def _find(self, topic: str) -> tuple[Segment, int] | None:
        """Give segment and row of the message of a topic, None if it is gone."""
        return self._at(self._newest[topic])

    def _at(self, position: int) -> tuple[Segment, int] | None:
        segment = self._backlog.segments.find(position)
        if segment is None or segment.state[position - segment.first] == GONE:
            return None
        return segment, position - segment.first

    def _may_give(self, segment: Segment, i: int, upto: int, wall_ms: int) -> bool:
        return (
            segment.first + i <= upto
            and segment.state[i] != MOVING
            and self._lifetimes.expired(segment, i, i + 1, wall_ms) is None
        )

    def validate(self, next_position: int) -> None:
        """Check what the comments on the attributes say."""
        self._topics.validate()
        assert list(self._topics.since("")) == sorted(self._newest)
        assert self.indexed_upto < next_position
        assert all(0 < position < next_position for position in self._newest.values())
        assert all(position <= needed < next_position for needed, position in self._replaced)


def literal_prefix(wanted: Filter) -> str:
    """Give what every topic begins with that a filter matches: `a/` for `a/*/c` and `a/>`, `a/b` for `a/b*`."""
    levels = []
    for number, level in enumerate(wanted.levels, 1):
        if level.endswith("*") or (level == ">" and number == len(wanted.levels)):
            levels.append(level[:-1])
            break
        levels.append(level)
    return "/".join(levels)
