"""The worker as a state machine: frames of the router in, frames for the router out.

A worker matches the topics that hash to it. It is told the filters (FILTERS) and the access rules for
publishing (RULES), gets batches (MATCH), and answers each with the same rows grouped by the set of filters
they go to (RESULT). It knows nothing of sessions; `docs/node-protocol.md` describes the frames.

The match path is the hottest loop of the node, so its shape follows the price list: work per batch is cheap,
work per distinct topic is affordable, work per row must happen in C. One typed decode checks every field of
every row; most batches then need a few passes in list comprehensions, and if all rows go to one plain set,
the batch that came is the answer ("whole") and nothing is packed.

No I/O, no clock. `node.server` carries the frames. No frame, however broken, makes `Worker.handle` raise:
what a client may have written (the batch) costs that client, through a refusal with code 40001; anything else
that is broken is a fault of the node, counted and dropped.
"""

from __future__ import annotations

from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.access import TopicRules
from angarium.topic import INBOX_PREFIX, SLOTS, check_topic, is_reserved_topic, slot_of
from node.matching import EMPTY_SET, FilterSet, Matching, TopicEntry, VpnMatching, describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.config import WorkerConfig

#: Verdicts of different access rules kept for one topic; more start anew, because asking again costs a
#: microsecond.
VERDICTS_PER_TOPIC_MAX: Final = 64
#: Characters of a refused topic, or of what is wrong with a batch, that are reported.
DETAIL_MAX: Final = 250
#: Rules number that allows everything and is never sent.
NO_RULES: Final = 0

_COUNTERS: Final = (
    "starts",
    "stale_frames",
    "batches",
    "whole_batches",
    "malformed_batches",
    "rows",
    "rows_unmatched",
)

_Natural = Annotated[int, Meta(ge=0)]
_Byte = Annotated[int, Meta(ge=0, le=255)]
_Positive = Annotated[int, Meta(ge=1)]
_SlotTable = Annotated[bytes, Meta(min_length=SLOTS, max_length=SLOTS)]
_Kind = Annotated[int, Meta(ge=wire.KIND_PLAIN, le=wire.KIND_SHARED)]

#: Time to live and delay in ms, priority, partition key.
RowMeta: TypeAlias = tuple[_Natural, _Natural, _Byte | None, str | None]


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, eq=False):
    """One message of a batch. Its types are the check: the decoder refuses everything else."""

    index: _Natural
    topic: str
    flags: _Byte
    meta: RowMeta | None
    properties: bytes | None
    payload: bytes


#: What a frame has after its operation, as the router packs it.
StartHeader: TypeAlias = tuple[_Positive, int, _SlotTable]
FiltersHeader: TypeAlias = tuple[int, int, list[tuple[_Positive, _Natural, str, _Kind]], list[int]]
RulesHeader: TypeAlias = tuple[int, _Positive, tuple[bool, list[str]] | None]
MatchHeader: TypeAlias = tuple[int, int, _Natural, _Natural, bool, _Natural]

#: Takes the header and all frames; gives frames for the router.
_Handler: TypeAlias = "Callable[[Any, list[bytes]], list[list[bytes]]]"

_decode_start = msgspec.msgpack.Decoder(StartHeader).decode
_decode_filters = msgspec.msgpack.Decoder(FiltersHeader).decode
_decode_rules = msgspec.msgpack.Decoder(RulesHeader).decode
_decode_match = msgspec.msgpack.Decoder(MatchHeader).decode
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode
# Three times as fast as msgpack, and the same canonical bytes.
_encode = msgspec.msgpack.Encoder().encode


def _classes_of(flags: int) -> int:
    """Give the classes of a row with these flags, 0 if the flags are illegal."""
    cos = (flags & wire.FLAG_COS) >> wire.COS_SHIFT
    if flags & wire.FLAG_MODE == wire.FLAG_MODE or cos == 3:
        return 0
    eliding = wire.CLASS_ELIDING if flags & wire.FLAG_ELIDING else 0
    return (wire.CLASS_COS1, wire.CLASS_COS2, wire.CLASS_COS3)[cos] | eliding


_CLASSES: Final = tuple(_classes_of(flags) for flags in range(256))


class _Batch:
    """The rows of one MATCH, checked."""

    __slots__ = ("classes", "intact", "packed", "refused_topics", "rows", "topics", "with_dto")

    def __init__(self, packed: bytes, count: int) -> None:
        """Open a batch.

        Raises:
            InvalidRequestError: it is no batch of so many rows (40001).
        """
        announced = wire.array_length(packed)
        if announced != count:
            raise _malformed(f"the batch announces {announced} rows, its header says {count}")
        try:
            rows = _decode_rows(packed)
        except (ValueError, RecursionError) as error:
            raise _malformed(f"no batch of rows: {error}") from None
        if len(rows) != count:
            raise _malformed(f"the batch has {len(rows)} rows, its header says {count}")
        indexes = [row.index for row in rows]
        if not all(map(lt, indexes, islice(indexes, 1, None))):
            raise _malformed("the indices of the rows do not rise")
        flags = dict.fromkeys([row.flags for row in rows])
        if not all(_CLASSES[one] for one in flags):
            raise _malformed(f"a row has illegal flags, of {list(flags)}")
        #: As it came.
        self.packed = packed
        #: What is left to match, by rising index.
        self.rows = rows
        #: Each topic of the batch as it came, once.
        self.topics = dict.fromkeys([row.topic for row in rows])
        #: The classes of all rows as they came.
        self.classes = 0
        for one in flags:
            self.classes |= _CLASSES[one]
        self.with_dto = any(one & wire.FLAG_DTO for one in flags)
        #: Whether `packed` is exactly the canonical batch of `rows`, as far as others join batches unopened.
        self.intact = packed.startswith(wire.array_head(count))
        #: Topic -> code of the refusal.
        self.refused_topics: dict[str, int] = {}

    def keep(self, rows: list[Row]) -> None:
        """Leave out the other rows."""
        self.rows = rows
        self.intact = False


def _malformed(detail: str) -> errors.AngariumError:
    return errors.error_for(errors.MALFORMED_FRAME, detail)


def _classes_in(rows: list[Row]) -> int:
    classes = 0
    for row in rows:
        classes |= _CLASSES[row.flags]
    return classes


class _Result:
    """What a RESULT says about one batch, while it is put together."""

    __slots__ = ("batches", "choice", "learned", "plain", "refused", "unmatched", "used")

    def __init__(self) -> None:
        #: Heads of the plain batches: [set, rows, bytes, classes].
        self.plain: list[tuple[int, int, int, int]] = []
        #: Heads of the batches that need a choice: [choice set, plain set, DTO, rows, bytes, classes].
        self.choice: list[tuple[int, int, bool, int, int, int]] = []
        #: The batches of `plain` and then of `choice`; empty also if the answer is the batch that came.
        self.batches: list[bytes] = []
        #: Rows that go nowhere.
        self.unmatched = 0
        #: Code -> [code, rows, first topic or detail].
        self.refused: dict[int, list[Any]] = {}
        #: [topic, plain set, shared set, deliver-always set, set of DTO candidates].
        self.learned: list[tuple[str, int, int, int, int]] = []
        #: Every set that is named above, by its number.
        self.used: dict[int, FilterSet] = {}

    def refuse(self, code: int, topic: str) -> None:
        """Count a refused row."""
        entry = self.refused.get(code)
        if entry is None:
            self.refused[code] = [code, 1, topic[:DETAIL_MAX]]
        else:
            entry[1] += 1

    def use(self, one: FilterSet) -> int:
        """Take note that a set is named, and give its number."""
        self.used[one.id] = one
        return one.id

    def sort_in(self, batch: _Batch, entries: dict[str, TopicEntry]) -> None:
        """Give every row of a batch its place: the batch as it is if that will do, else in groups by set."""
        plain = None if batch.with_dto else _common_plain_set(entries)
        if plain is EMPTY_SET:
            self.unmatched = len(batch.rows)
        elif plain is not None and batch.intact:
            self.plain.append((self.use(plain), len(batch.rows), len(batch.packed), batch.classes))
        else:
            self._group(batch, entries)

    def _group(self, batch: _Batch, entries: dict[str, TopicEntry]) -> None:
        plain_groups: dict[FilterSet, list[Row]] = {}
        choice_groups: dict[tuple[FilterSet, FilterSet, bool], list[Row]] = {}
        for row in batch.rows:
            entry = entries[row.topic]
            is_dto = row.flags & wire.FLAG_DTO != 0
            plain, choice = (entry.always, entry.dto_choice) if is_dto else (entry.plain, entry.choice)
            if plain is not EMPTY_SET:
                group = plain_groups.get(plain)
                if group is None:
                    plain_groups[plain] = [row]
                else:
                    group.append(row)
            if choice is not EMPTY_SET:
                choice_groups.setdefault((choice, plain, is_dto), []).append(row)
            elif plain is EMPTY_SET:
                self.unmatched += 1
        if batch.intact and not choice_groups and len(plain_groups) == 1 and not self.unmatched:
            (plain,) = plain_groups
            self.plain.append((self.use(plain), len(batch.rows), len(batch.packed), batch.classes))
            return
        for plain, rows in plain_groups.items():
            packed = self._add_batch(_encode(rows))
            self.plain.append((self.use(plain), len(rows), len(packed), _classes_in(rows)))
        for (choice, plain, is_dto), rows in choice_groups.items():
            packed = self._add_batch(_encode([_encode(row) for row in rows]))
            ids = (self.use(choice), self.use(plain), is_dto)
            self.choice.append((*ids, len(rows), len(packed), _classes_in(rows)))

    def _add_batch(self, packed: bytes) -> bytes:
        self.batches.append(packed)
        return packed

    def teach(self, entries: dict[str, TopicEntry]) -> None:
        """Tell the router all that is known about the topics that were not refused."""
        for topic, entry in entries.items():
            sets = (entry.plain, entry.choice, entry.always, entry.dto_choice)
            plain, choice, always, dto_choice = map(self.use, sets)
            self.learned.append((topic, plain, choice, always, dto_choice))


def _common_plain_set(entries: dict[str, TopicEntry]) -> FilterSet | None:
    """Give the one set to which all topics lead, if it is one and no topic needs a choice."""
    common: FilterSet | None = None
    for entry in entries.values():
        if entry.choice is not EMPTY_SET or (common is not None and entry.plain is not common):
            return None
        common = entry.plain
    return common


class Worker:
    """One shard: filters, rules and the matching of batches.

    Use: after `connected()` send `ready_frames()` again and again until `started`; hand every frame to
    `handle` and send what it gives.
    """

    def __init__(self, index: int, incarnation: int, config: WorkerConfig) -> None:
        self.index = index
        #: Higher than that of every earlier worker of this index.
        self.incarnation = incarnation
        self._config = config
        #: The router whose frames are taken; frames of others are stale. 0 before the first START.
        self.router_incarnation = 0
        #: Whether the router at the other end has started this worker.
        self.started = False
        #: The version of the slot table.
        self.epoch = 0
        #: Slot -> index of the worker that owns it.
        self._slots = bytes(SLOTS)
        #: Everything below is what START clears.
        self._matching = Matching(config.topic_cache_max)
        #: Rules number -> (version, rules). A version is never reused, so cached verdicts cannot survive a
        #: change.
        self._rules: dict[int, tuple[int, TopicRules]] = {}
        self._rules_version = 0
        #: When the newest frame came. Matching itself does not depend on the time.
        self.last_frame_at = 0.0
        #: Frames that no router of ours sends.
        self.faults = 0
        #: What happened since the process started; see `stats`.
        self._counts = dict.fromkeys(_COUNTERS, 0)
        #: Code -> refused rows.
        self._refused: dict[int, int] = {}
        #: Operation -> what checks the header, and what acts on header and frames.
        self._handlers: dict[bytes, tuple[Callable[[bytes], Any], _Handler]] = {
            wire.START: (_decode_start, self._start),
            wire.FILTERS: (_decode_filters, self._change_filters),
            wire.RULES: (_decode_rules, self._change_rules),
            wire.MATCH: (_decode_match, self._match),
        }

    def connected(self) -> None:
        """Take note of a new connection: perhaps there is another router, so wait for its START.

        What the old one sent is still answered until then; it does no harm, and a mere reconnect loses
        nothing.
        """
        self.started = False

    def ready_frames(self) -> list[bytes]:
        """Give the frames that announce this worker to the router."""
        return [wire.READY, _encode((self.index, self.incarnation))]

    def handle(self, frames: list[bytes], now: float) -> list[list[bytes]]:
        """Take what the router sent; give what to send back, in order."""
        self.last_frame_at = now
        known = self._handlers.get(frames[0]) if len(frames) > 1 else None
        if known is None:
            self.faults += 1
            return []
        decode, handler = known
        try:
            header = decode(frames[1])
        except (ValueError, RecursionError):
            self.faults += 1
            return []
        return handler(header, frames)

    def _is_stale(self, router_incarnation: int) -> bool:
        """Tell whether a frame is of another router than the one that started us."""
        stale = router_incarnation != self.router_incarnation or not self.router_incarnation
        self._counts["stale_frames"] += stale
        return stale

    def _start(self, header: StartHeader, _frames: list[bytes]) -> list[list[bytes]]:
        router_incarnation, epoch, slots = header
        if router_incarnation < self.router_incarnation:
            self._counts["stale_frames"] += 1
            return []
        self.started = True
        self.router_incarnation = router_incarnation
        self.epoch = epoch
        self._slots = slots
        self._matching = Matching(self._config.topic_cache_max, self._matching.sets.next_id)
        self._rules = {}
        self._counts["starts"] += 1
        return []

    def _change_filters(self, header: FiltersHeader, _frames: list[bytes]) -> list[list[bytes]]:
        router_incarnation, sequence, added, removed = header
        if self._is_stale(router_incarnation):
            return []
        matching = self._matching
        for filter_id, vpn_id, pattern, kind in added:
            matching.add(filter_id, vpn_id, pattern, kind)
        for filter_id in removed:
            matching.remove(filter_id)
        matching.tidy()
        return [[wire.CONFIRM, _encode((self.incarnation, sequence))]]

    def _change_rules(self, header: RulesHeader, _frames: list[bytes]) -> list[list[bytes]]:
        router_incarnation, rules_id, rules = header
        if self._is_stale(router_incarnation):
            return []
        if rules is None:
            self._rules.pop(rules_id, None)
        else:
            default_allow, exceptions = rules
            self._rules_version += 1
            self._rules[rules_id] = (self._rules_version, TopicRules(exceptions, default_allow=default_allow))
        return []

    def _match(self, header: MatchHeader, frames: list[bytes]) -> list[list[bytes]]:
        router_incarnation, reference, vpn_id, rules_id, learn, count = header
        if self._is_stale(router_incarnation):
            return []
        self._counts["batches"] += 1
        vpn = self._matching.vpn(vpn_id)
        try:
            batch = _Batch(frames[2] if len(frames) == 3 else b"", count)
            entries = self._look_up(batch, vpn, rules_id)
        except errors.InvalidRequestError as error:
            self._counts["malformed_batches"] += 1
            return [self._malformed_frames(reference, count, error.detail)]
        result = _Result()
        self._refuse(result, batch)
        result.sort_in(batch, entries)
        if learn:
            result.teach(entries)
        self._count(result, count)
        self._matching.tidy()
        return [self._result_frames(reference, result)]

    def _look_up(self, batch: _Batch, vpn: VpnMatching, rules_id: int) -> dict[str, TopicEntry]:
        """Give what is known about the topics of a batch; those that are refused are noted in the batch.

        Raises:
            InvalidRequestError: a topic belongs to another worker (40001).
        """
        cached = vpn.cache.entries.get
        number = vpn.cache.number
        entries: dict[str, TopicEntry] = {}
        for topic in batch.topics:
            entry = cached(topic)
            if entry is None or entry.valid_at != number:
                entry = vpn.cache.get(topic)
                if entry is None:
                    code = self._form_fault(topic)
                    if code:
                        batch.refused_topics[topic] = code
                        continue
                    entry = vpn.match(topic)
            if rules_id != NO_RULES and not self._may_publish(entry, topic, rules_id):
                batch.refused_topics[topic] = errors.PUBLISH_DENIED
                continue
            entries[topic] = entry
        return entries

    def _form_fault(self, topic: str) -> int:
        """Give the code of what is wrong with a topic that is not cached, 0 for nothing.

        Raises:
            InvalidRequestError: it belongs to another worker (40001).
        """
        try:
            check_topic(topic)
        except errors.InvalidRequestError as error:
            return error.code
        if is_reserved_topic(topic):
            return errors.RESERVED_TOPIC
        slot = slot_of(topic)
        if self._slots[slot] != self.index:
            detail = f"topic {topic!r} (slot {slot}) belongs to worker {self._slots[slot]}, not {self.index}"
            raise errors.InvalidRequestError(errors.MALFORMED_FRAME, detail)
        return 0

    def _may_publish(self, entry: TopicEntry, topic: str, rules_id: int) -> bool:
        """Ask the access rules, or what they said before. Rules that nobody told us allow nothing."""
        known = self._rules.get(rules_id)
        if known is None:
            return topic.startswith(INBOX_PREFIX)
        version, rules = known
        verdicts = entry.verdicts
        verdict = None if verdicts is None else verdicts.get(version)
        if verdict is None:
            verdict = topic.startswith(INBOX_PREFIX) or rules.allows_publish(topic)
            if verdicts is None or len(verdicts) >= VERDICTS_PER_TOPIC_MAX:
                verdicts = entry.verdicts = {}
            verdicts[version] = verdict
        return verdict

    def _refuse(self, result: _Result, batch: _Batch) -> None:
        """Take the rows out of a batch that are refused, and say so in the result."""
        limit = self._config.max_message_bytes
        if not batch.refused_topics and len(batch.packed) <= limit:
            return
        kept = []
        for row in batch.rows:
            code = batch.refused_topics.get(row.topic, 0)
            if not code and len(row.payload) + len(row.properties or b"") > limit:
                code = errors.MESSAGE_TOO_LARGE
            if code:
                result.refuse(code, row.topic)
            else:
                kept.append(row)
        if len(kept) < len(batch.rows):
            batch.keep(kept)

    def _malformed_frames(self, reference: int, count: int, detail: str) -> list[bytes]:
        refused = [(errors.MALFORMED_FRAME, count, detail[:DETAIL_MAX])]
        header = (self.incarnation, reference, (), (), (), (), 0, refused, ())
        return [wire.RESULT, _encode(header)]

    def _result_frames(self, reference: int, result: _Result) -> list[bytes]:
        header = (
            self.incarnation,
            reference,
            describe(result.used.values()),
            self._matching.sets.retire(result.used),
            result.plain,
            result.choice,
            result.unmatched,
            list(result.refused.values()),
            result.learned,
        )
        frames = [wire.RESULT, _encode(header)]
        if result.batches:
            frames.append(_encode(result.batches))
        return frames

    def _count(self, result: _Result, rows: int) -> None:
        counts = self._counts
        counts["rows"] += rows
        counts["rows_unmatched"] += result.unmatched
        counts["whole_batches"] += bool(result.plain) and not result.batches
        for code, refused, _ in result.refused.values():
            self._refused[code] = self._refused.get(code, 0) + refused

    def stats(self) -> dict[str, Any]:
        """Give the counters and sizes; `refused` has the rows by error code."""
        return {
            "index": self.index,
            "incarnation": self.incarnation,
            "router_incarnation": self.router_incarnation,
            "epoch": self.epoch,
            "faults": self.faults,
            "last_frame_at_s": self.last_frame_at,
            "rules": len(self._rules),
            **self._counts,
            **self._matching.stats(),
            "refused": {str(code): rows for code, rows in sorted(self._refused.items())},
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert len(self._slots) == SLOTS
        assert all(0 < version <= self._rules_version for version, _ in self._rules.values())
        assert self._counts["whole_batches"] + self._counts["malformed_batches"] <= self._counts["batches"]
        self._matching.validate()
