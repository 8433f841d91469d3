"""The worker as a state machine: frames of the router in, frames for the router out.

A worker matches the topics that hash to it. It is told the filters (FILTERS) and the access rules for
publishing (RULES), gets batches (MATCH), and answers each with the same rows grouped by the set of filters
they go to (RESULT). It knows nothing of sessions; `docs/node-protocol.md` describes the frames.

The match path is the hottest loop of the node, so its shape follows the price list: work per batch is cheap,
work per distinct topic is affordable, work per row must happen in C (`node/batch.py`).

No I/O, no clock. `node.server` carries the frames. No frame, however broken, makes `Worker.handle` raise:
what a client may have written (the batch) costs that client, through a refusal with code 40001; anything else
that is broken is a fault of the node, counted and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.access import TopicRules
from angarium.topic import INBOX_PREFIX, SLOTS, check_topic, is_reserved_topic, slot_of
from node.batch import DETAIL_MAX, Batch, Result
from node.matching import Matching, TopicEntry, VpnMatching, describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.config import WorkerConfig

#: Verdicts of different access rules kept for one topic; more start anew, because asking again costs a
#: microsecond.
VERDICTS_PER_TOPIC_MAX: Final = 64
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
_Positive = Annotated[int, Meta(ge=1)]
_SlotTable = Annotated[bytes, Meta(min_length=SLOTS, max_length=SLOTS)]
_Kind = Annotated[int, Meta(ge=wire.KIND_PLAIN, le=wire.KIND_EXCEPTION)]

#: What a frame has after its operation, as the router packs it.
StartHeader: TypeAlias = tuple[_Positive, int, _SlotTable]
FiltersHeader: TypeAlias = tuple[int, int, list[tuple[_Positive, _Natural, str, _Kind]], list[int]]
RulesHeader: TypeAlias = tuple[int, _Positive, tuple[bool, list[str]] | None]
_Mode = Annotated[int, Meta(ge=wire.MATCH_DIRECT, le=wire.MATCH_AS_DIRECT | wire.MATCH_TRAILS)]
_Learn = Annotated[int, Meta(ge=wire.LEARN_NOTHING, le=wire.LEARN_FEW)]
MatchHeader: TypeAlias = tuple[int, int, _Natural, _Natural, _Learn, _Natural, _Mode]

#: Takes the header and all frames; gives frames for the router.
_Handler: TypeAlias = "Callable[[Any, list[bytes]], list[list[bytes]]]"

_decode_start = msgspec.msgpack.Decoder(StartHeader).decode
_decode_filters = msgspec.msgpack.Decoder(FiltersHeader).decode
_decode_rules = msgspec.msgpack.Decoder(RulesHeader).decode
_decode_match = msgspec.msgpack.Decoder(MatchHeader).decode
# Three times as fast as msgpack, and the same canonical bytes.
_encode = msgspec.msgpack.Encoder().encode


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
        router_incarnation, reference, vpn_id, rules_id, learn, count, mode = header
        if self._is_stale(router_incarnation):
            return []
        self._counts["batches"] += 1
        vpn = self._matching.vpn(vpn_id)
        try:
            batch = Batch(frames[2] if len(frames) == 3 else b"", count, mode)
            entries = self._look_up(batch, vpn, rules_id)
        except errors.InvalidRequestError as error:
            self._counts["malformed_batches"] += 1
            return [self._malformed_frames(reference, count, error.detail)]
        result = Result()
        self._refuse(result, batch)
        result.sort_in(batch, entries)
        if learn == wire.LEARN_ALL or (learn and len(entries) <= wire.FEW_TOPICS_MAX):
            result.teach(entries)
        self._count(result, count)
        self._matching.tidy()
        return [self._result_frames(reference, result)]

    def _look_up(self, batch: Batch, vpn: VpnMatching, rules_id: int) -> dict[str, TopicEntry]:
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

    def _refuse(self, result: Result, batch: Batch) -> None:
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
                result.refuse(code, row, guaranteed=batch.guaranteed)
            else:
                kept.append(row)
        if len(kept) < len(batch.rows):
            batch.keep(kept)

    def _malformed_frames(self, reference: int, count: int, detail: str) -> list[bytes]:
        refused = [(errors.MALFORMED_FRAME, count, detail[:DETAIL_MAX], ())]
        header = (self.incarnation, reference, (), (), (), (), 0, refused, (), ())
        return [wire.RESULT, _encode(header)]

    def _result_frames(self, reference: int, result: Result) -> list[bytes]:
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
            result.endpoints,
        )
        frames = [wire.RESULT, _encode(header)]
        body = result.body()
        if body:
            frames.append(_encode(body))
        return frames

    def _count(self, result: Result, rows: int) -> None:
        counts = self._counts
        counts["rows"] += rows
        counts["rows_unmatched"] += result.unmatched
        counts["whole_batches"] += bool(result.batches) and not result.body()
        for code, refused, *_ in result.refused.values():
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
