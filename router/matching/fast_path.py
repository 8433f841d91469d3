"""The fast path: batches whose topics the router knows already need no worker to match them.

Four hops cost a lone message about twice the time of two. So the router remembers, per Message VPN and
topic, the set of filters that a worker found and under which publish rules the topic was allowed. Every
change of a subscription passes the router, and `forget` drops what it touches before the workers even hear
of it. An answer that was under way meanwhile is not learned: it carries the stamp of its departure. Rounds
retire in order on either path.

Batches of links take it at any size too: the rows were opened and judged by a worker where they were published, so what
is left is where their topics lead, and that spares every message that crosses a link a second decoding. They try less
and less often while it fails.

Small direct batches of clients take it; large ones, and rows that need a choice, take the slow path, which has the
higher throughput under load. A batch of a gateway may be larger, because it holds lone messages of many clients; these
go to different places, so the rows are sorted by where they go. Guaranteed batches take it at any size: a producer
waits for its window, so each hop less is rate, and the home of the endpoints opens the batch anyhow.
"""

from __future__ import annotations

from functools import reduce
from itertools import islice
from operator import itemgetter, lt, or_
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import wire
from angarium.message import pack_rows
from angarium.topic_cache import AGE_INTERVAL_S, TopicCache
from angarium_server.costs import CACHED_TOPIC_BYTES
from angarium_server.frames.matching import LARGE_ROW_BYTES
from router.matching.known_topic import Entry, Head, LargeRow, Row
from router.sessions.round import EndpointResult, PlainResult, Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.frames.matching import Learned
    from router.ground.config import RouterConfig
    from router.matching.shards import Shard
    from router.sessions.directory import Vpn
    from router.sessions.interest import FilterSet
    from router.sessions.round import Part
    from router.sessions.session import Session

#: Above this a batch is worth the way to the workers.
ROWS_MAX: Final = 4
BYTES_MAX: Final = 8_192
#: The same of the rounds of gateways, in which lone messages of many clients are: each hop less is worth more to them,
#: and a worker, which answers with a batch for each place that some go to, takes more for such a round than the router.
GATHERED_ROWS_MAX: Final = 256
GATHERED_BYTES_MAX: Final = 262_144
#: One step of the search for what is wrong looks at so many topics at least, and at such a part of those that are left.
_SWEPT_PER_STEP: Final = 100
_SWEPT_PART: Final = 64
#: Nodes that are visited at most to test what is known of the topics of one part: about 2 ms.
_TESTED_MAX: Final = 5_000
#: Publish rules remembered for one topic; more start over.
RULES_PER_TOPIC_MAX: Final = 64
#: How small batches begin, by their rows.
_BATCH_HEADS: Final = [wire.array_head(rows) for rows in range(ROWS_MAX + 1)]
#: Class of service 3; what is below has low priority for endpoints (R176).
_HIGH_PRIORITY: Final = 2 << wire.COS_SHIFT

#: A row without meta. What looks different in any way is for the worker to judge.
_decode = msgspec.msgpack.Decoder(list[tuple[int, str, int, None, bytes | None, bytes]]).decode
_decode_heads = msgspec.msgpack.Decoder(list[Head]).decode
_decode_guaranteed = msgspec.msgpack.Decoder(list[Row]).decode
_decode_large = msgspec.msgpack.Decoder(list[LargeRow]).decode


class FastPath:
    """The router's own knowledge of matches; `fast_path_topics_max` 0 switches it off."""

    def __init__(self, config: RouterConfig) -> None:
        self._topics_max = config.fast_path_topics_max
        self._cache_bytes_max = config.fast_path_bytes
        self._message_bytes_max = config.max_message_bytes
        #: A larger batch might hold a message that is too large, which the worker would refuse.
        self._bytes_max = min(BYTES_MAX, config.max_message_bytes)
        self._gathered_bytes_max = min(GATHERED_BYTES_MAX, config.max_message_bytes)
        #: VPN number -> its topics.
        self._caches: dict[int, TopicCache[Entry]] = {}
        #: Counts the changes of filters; an answer older than the newest change is not learned.
        self.stamp = 0
        self.rounds = 0
        #: When topics are asked next whether they are idle.
        self._age_at = 0.0

    def forget(self, vpn_id: int, pattern: str) -> None:
        """A filter came or went."""
        self.stamp += 1
        cache = self._caches.get(vpn_id)
        if cache is not None:
            cache.changed(pattern)

    def forget_vpn(self, vpn: Vpn) -> None:
        """A Message VPN was deleted."""
        self._caches.pop(vpn.id, None)

    def learn(self, a_round: Round[Session], shard: Shard, learned: Sequence[Learned]) -> None:
        """Remember what a worker found out about the topics of a round."""
        if a_round.stamp != self.stamp or not self._topics_max or a_round.resent:
            return  # what was sent again is matched without publish rules
        vpn_id = a_round.session.vpn.id
        cache = self._caches.get(vpn_id)
        if cache is None:
            cache = self._caches[vpn_id] = self._new_cache()
        for one in learned:
            if one.shared:
                continue
            entry = cache.get(one.topic)
            if entry is None:
                entry = Entry(
                    shard.sets[one.plain] if one.plain else None,
                    shard.sets[one.endpoints] if one.endpoints else None,
                )
                for a_set in entry.sets():
                    a_set.topics += 1
                    cache.bytes += a_set.bytes if a_set.topics == 1 else 0
                cache.put(one.topic, entry)
            elif len(entry.rules) >= RULES_PER_TOPIC_MAX:
                entry.rules.clear()
            entry.rules[a_round.rules_id] = None

    def _new_cache(self) -> TopicCache[Entry]:
        def drop(entry: Entry) -> None:
            for a_set in entry.sets():
                a_set.topics -= 1
                cache.bytes -= 0 if a_set.topics else a_set.bytes

        cache: TopicCache[Entry] = TopicCache(
            drop, self._topics_max, self._cache_bytes_max, CACHED_TOPIC_BYTES
        )
        return cache

    def sweep(self, now: float) -> None:
        """Do one step of dropping topics that a change made wrong, or that nobody publishes to."""
        ages = now >= self._age_at
        if ages:
            self._age_at = now + AGE_INTERVAL_S
        for cache in self._caches.values():
            if ages:
                cache.age()
            cache.sweep(max(_SWEPT_PER_STEP, len(cache) // _SWEPT_PART))

    @property
    def cache_bytes(self) -> int:
        """Give what the caches cost."""
        return sum(cache.bytes for cache in self._caches.values())

    def answer(self, a_round: Round[Session]) -> int | None:
        """Answer a round from what is known.

        Gives the number of unmatched rows, or None if it must take the slow path.
        """
        if a_round.session.is_neighbour:
            return self._answer_link(a_round)
        if a_round.rows > ROWS_MAX or a_round.bytes > self._bytes_max or len(a_round.parts) != 1:
            return self._answer_gateway(a_round) if a_round.session.kind.carries_clients else None
        cache = self._caches.get(a_round.session.vpn.id)
        if cache is None:
            return None
        batch = a_round.parts[0].batch
        try:
            rows = _decode(batch)
        except (ValueError, RecursionError):
            return None
        if len(rows) != a_round.rows or not batch.startswith(_BATCH_HEADS[len(rows)]):
            return None
        return self._match(a_round, rows, batch, cache)

    def _answer_gateway(self, a_round: Round[Session]) -> int | None:
        """Answer a round of a gateway that has more rows than a lone client's, or several parts."""
        if (
            not self._topics_max
            or a_round.rows > GATHERED_ROWS_MAX
            or a_round.bytes > self._gathered_bytes_max
        ):
            return None
        a_round.learn = wire.LEARN_ALL  # if a worker matches it
        cache = self._caches.get(a_round.session.vpn.id)
        if cache is None:
            return None
        rows: list[Any] = []
        for part in a_round.parts:
            try:
                some = _decode(part.batch)
            except (ValueError, RecursionError):
                return None
            if len(some) != part.rows or not part.batch.startswith(wire.array_head(part.rows)):
                return None
            rows += some
        if len(a_round.parts) == 1:
            return self._match(a_round, rows, a_round.parts[0].batch, cache)
        rows.sort(key=itemgetter(wire.ROW_INDEX))
        return self._match(a_round, rows, pack_rows(rows), cache)

    def _answer_link(self, a_round: Round[Session]) -> int | None:
        """Answer a round that came over a link, of any size: its rows were judged where they were published."""
        trials = a_round.session.link.fast_path  # type: ignore[union-attr]
        cache = self._caches.get(a_round.session.vpn.id)
        if not self._topics_max or not trials.is_due():
            return None
        found: list[PlainResult[Session]] = []
        unmatched = 0
        for part in a_round.parts:
            result = None if cache is None else self._where(cache, part, a_round)
            if result is None:
                a_round.learn = wire.LEARN_ALL
                trials.failed()
                return None
            if result.set is None:
                unmatched += part.rows
            else:
                found.append(result)
        trials.failures = 0
        self.rounds += 1
        a_round.plain.extend(found)
        return unmatched

    def _where(
        self, cache: TopicCache[Entry], part: Part, a_round: Round[Session]
    ) -> PlainResult[Any] | None:
        """Give where all rows of a part of a link's round go; None if that is not known, or not one place."""
        if len(part.batch) > self._message_bytes_max or not part.batch.startswith(wire.array_head(part.rows)):
            return None
        inside = a_round.inside
        if inside is None:
            return self._look_at(cache, part, a_round.rules_id)
        entry = self._common_entry(cache, dict.fromkeys(inside.topics), a_round.rules_id)
        if entry is None or entry.endpoints is not None:
            return None
        return PlainResult(entry.plain, part.rows, inside.classes, part.batch)  # type: ignore[arg-type]

    def _look_at(self, cache: TopicCache[Entry], part: Part, rules_id: int) -> PlainResult[Any] | None:
        """Open a part of which the neighbour does not say what is inside."""
        try:
            rows = _decode_heads(part.batch)
        except (ValueError, RecursionError):
            return None
        topics = dict.fromkeys([row.topic for row in rows])
        if len(topics) > wire.FEW_TOPICS_MAX or len(rows) != part.rows:
            return None
        entry = self._common_entry(cache, topics, rules_id)
        classes = _classes_of(dict.fromkeys([row.flags for row in rows]))
        indices = [row.index for row in rows]
        if (
            entry is None
            or entry.endpoints is not None
            or not classes
            or not all(map(lt, indices, islice(indices, 1, None)))
        ):
            return None
        return PlainResult(entry.plain, part.rows, classes, part.batch)  # type: ignore[arg-type]

    def _match(
        self, a_round: Round[Session], rows: list[Any], batch: bytes, cache: TopicCache[Entry]
    ) -> int | None:
        entries, number, rules_id = cache.entries, cache.number, a_round.rules_id
        first = rows[0][wire.ROW_TOPIC]
        entry: Entry | None = None
        is_mixed = False
        classes = 0
        last = -1
        for index, topic, flags, _, _, _ in rows:
            if entry is None or topic != first:
                known = entries.get(topic)
                if known is not None and known.valid_at != number:
                    known = cache.get(topic)
                if known is None or known.endpoints is not None or rules_id not in known.rules:
                    return None
                if entry is not None and known.plain is not entry.plain:
                    is_mixed = True
                entry = known
            its_classes = _DIRECT_CLASSES.get(flags)
            if its_classes is None or index <= last:
                return None
            last = index
            classes |= its_classes
        assert entry is not None
        if is_mixed:
            return self._sort(a_round, rows, batch, classes, cache)
        if entry.plain is None and a_round.mode & wire.MATCH_REPORT:
            return None
        self.rounds += 1
        if entry.plain is None:
            return len(rows)
        a_round.plain.append(PlainResult(entry.plain, len(rows), classes, batch))
        return 0

    def _sort(
        self, a_round: Round[Session], rows: list[Any], batch: bytes, classes: int, cache: TopicCache[Entry]
    ) -> int | None:
        """Sort rows of known topics, which have these classes, by where they go."""
        by_set: dict[FilterSet[Session] | None, list[Any]] = {}
        for row in rows:
            a_set = cache.entries[row[wire.ROW_TOPIC]].plain
            by_set.setdefault(a_set, []).append(row)
        unmatched = by_set.pop(None, [])
        if unmatched and a_round.mode & wire.MATCH_REPORT:
            return None
        self.rounds += 1
        is_one_class = not classes & (classes - 1)
        for a_set, some in by_set.items():
            its_classes = classes if is_one_class else _classes_in(some)
            a_round.plain.append(PlainResult(a_set, len(some), its_classes, b"", unpacked=some))  # type: ignore[arg-type]
        if unmatched:
            a_round.plain = [result.packed() for result in a_round.plain]
        else:
            a_round.whole = batch
        return len(unmatched)

    def answer_guaranteed(self, a_round: Round[Session]) -> bool:
        """Answer a guaranteed round from what is known; False if it must take the slow path.

        Each of its parts goes as a whole to one set of endpoints, and perhaps to one set of subscribers.
        """
        cache = self._caches.get(a_round.session.vpn.id)
        if cache is None or a_round.resent:
            return False
        plain: list[PlainResult[Session]] = []
        endpoints: list[EndpointResult] = []
        span: tuple[int, int] | None = None
        for part in a_round.parts:
            span = self._judge_part(cache, part.batch, part.rows, a_round.rules_id, plain, endpoints)
            if span is None:
                return False
        if len(a_round.parts) == 1:
            a_round.span = span
        a_round.plain.extend(plain)
        a_round.endpoints = endpoints
        self.rounds += 1
        return True

    def _judge_part(
        self,
        cache: TopicCache[Entry],
        batch: bytes,
        count: int,
        rules_id: int,
        plain: list[PlainResult[Session]],
        endpoints: list[EndpointResult],
    ) -> tuple[int, int] | None:
        """Judge one part as its worker would, and add where it goes; None if that is not known or not one place.

        Gives its first and last index.
        """
        try:
            decode: Any = _decode_large if len(batch) >= LARGE_ROW_BYTES * count else _decode_guaranteed
            rows: list[Row] = decode(batch)
        except (ValueError, RecursionError):
            return None
        entry = self._common_entry(cache, dict.fromkeys([row.topic for row in rows]), rules_id)
        classes = _guaranteed_classes(dict.fromkeys([row.flags for row in rows]))
        indices = [row.index for row in rows]
        sizes = [len(row.payload) + len(row.properties or b"") for row in rows]
        if (
            entry is None
            or entry.endpoints is None
            or not classes
            or len(rows) != count
            or not all(map(lt, indices, islice(indices, 1, None)))
            or max(sizes) > self._message_bytes_max
            or not batch.startswith(wire.array_head(count))
        ):
            return None
        if entry.plain is not None:
            plain.append(PlainResult(entry.plain, count, classes, batch))
        low = sum([row.flags & wire.FLAG_COS < _HIGH_PRIORITY for row in rows])
        size = sum(sizes) + wire.SPOOL_OVERHEAD_BYTES * count
        endpoints.append(EndpointResult(entry.endpoints, count, size, max(sizes), low, batch))
        return indices[0], indices[-1]

    @staticmethod
    def _common_entry(cache: TopicCache[Entry], topics: dict[str, None], rules_id: int) -> Entry | None:
        """Give what is known of some topics if all lead to the same sets under these rules.

        None too if it would take long to find out which of them are still right.
        """
        common: Entry | None = None
        tested_max = cache.log.tested + _TESTED_MAX
        for topic in topics:
            known = cache.entries.get(topic)
            if known is not None and known.valid_at != cache.number:
                known = cache.get(topic)
            if known is None or rules_id not in known.rules or cache.log.tested > tested_max:
                return None
            if common is not None and (
                known.plain is not common.plain or known.endpoints is not common.endpoints
            ):
                return None
            common = known
        return common

    def validate(self) -> None:
        """Check the caches."""
        for cache in self._caches.values():
            cache.validate()


def _classes_in(rows: list[Any]) -> int:
    return reduce(or_, [_DIRECT_CLASSES[row[wire.ROW_FLAGS]] for row in rows])


def _guaranteed_classes(flags: dict[int, None]) -> int:
    """Give the classes of rows with these flags; 0 if one is no guaranteed message that all get."""
    return 0 if any(one & wire.FLAG_MODE == wire.MODE_DIRECT for one in flags) else _classes_of(flags)


def _classes_of(flags: dict[int, None]) -> int:
    """Give the classes of rows with these flags; 0 if one is illegal, or needs a choice."""
    classes = 0
    for one in flags:
        cos = (one & wire.FLAG_COS) >> wire.COS_SHIFT
        if one & wire.FLAG_MODE == wire.FLAG_MODE or one & wire.FLAG_DTO or cos == 3:
            return 0
        classes |= 1 << cos | (wire.CLASS_ELIDING if one & wire.FLAG_ELIDING else 0)
    return classes


#: Flags of a direct row -> its classes. Other rows are left to the workers: deliver-to-one, guaranteed, illegal ones.
_DIRECT_CLASSES: Final = {
    flags: classes
    for flags in range(256)
    if flags & wire.FLAG_MODE == wire.MODE_DIRECT and (classes := _classes_of({flags: None}))
}
