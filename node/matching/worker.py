"""The worker as a state machine: frames of the router in, frames for the router out.

A worker matches the topics that hash to it. It is told the filters (FILTERS) and the access rules for
publishing (RULES), gets batches (MATCH), and answers each with the same rows grouped by the set of filters
they go to (RESULT). It knows nothing of sessions; `docs/node-protocol.md` describes the frames.

The match path is the hottest loop of the node, so its shape follows the price list: work per batch is cheap,
work per distinct topic is affordable, work per row must happen in C (`batch.py`). A batch whose topics cost more than
what is left of a step is paused (`lookup.py`), and goes on in `Worker.work`.

No I/O, no clock. `node.server` carries the frames. No frame, however broken, makes `Worker.handle` raise:
what a client may have written (the batch) costs that client, through a refusal with code 40001; anything else
that is broken is a fault of the node, counted and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.topic import SLOTS, check_topic, is_reserved_topic, slot_of
from angarium.topic_cache import AGE_INTERVAL_S
from angarium_server.access import TopicRules, may_publish
from angarium_server.black_box import MATCH, BlackBox
from angarium_server.frames.frame import encode, takes
from angarium_server.frames.matching import (
    Bundle,
    Confirm,
    Fault,
    Filters,
    Match,
    Ready,
    RefusedRows,
    Result,
    Retire,
    Rules,
    Sets,
    Start,
    Work,
)
from node.matching.batch import DETAIL_MAX, Batch, Sorting
from node.matching.lookup import FREE_NODES_PER_TOPIC, NO_RULES, Lookup, Turns
from node.matching.matching import IDLE_BYTES_MAX, FilterSet, Matching, TopicEntry, VpnMatching, describe

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from angarium.topic_cache import TopicCache
    from node.matching.batch import Retaining
    from node.matching.config import MatchingConfig

#: Verdicts of different access rules kept for one topic; more start over, because asking again costs a
#: microsecond.
VERDICTS_PER_TOPIC_MAX: Final = 64
#: How often what is left behind is looked for, and how long one step of forgetting it waits for the next.
TIDY_INTERVAL_S: Final = 1.0
TIDY_STEP_S: Final = 0.025

#: Nodes that take as long as a level of a filter that comes, and as one that goes.
NODES_PER_LEVEL: Final = 3
NODES_PER_REMOVAL: Final = 10

#: Filters of sets that are defined in one frame: the router takes 0.1 us for each.
SET_FILTERS_MAX: Final = 5_000

_COUNTERS: Final = (
    "starts",
    "stale_frames",
    "batches",
    "whole_batches",
    "malformed_batches",
    "rows",
    "rows_unmatched",
    "paused_batches",
)


class Worker:
    """One shard: filters, rules and the matching of batches.

    Use: after `connected()` send `ready_frames()` again and again until `started`; hand every frame to
    `handle` and send what it gives; after a few of them, and while it `has_work`, do the same with `work`.
    """

    def __init__(
        self, index: int, incarnation: int, config: MatchingConfig, box: BlackBox | None = None
    ) -> None:
        self.index = index
        #: Higher than that of every earlier worker of this index.
        self.incarnation = incarnation
        self._config = config
        #: Where it notes whose batch it works at.
        self._box = box or BlackBox()
        #: The router whose frames are taken; frames of others are stale. 0 before the first START.
        self.router_incarnation = 0
        #: Whether the router at the other end has started this worker.
        self.started = False
        #: The version of the slot table.
        self.epoch = 0
        #: Slot -> index of the worker that owns it.
        self._slots = bytes(SLOTS)
        #: Those that another worker owns; a worker that is alone asks for no hash.
        self._foreign_slots: frozenset[int] = frozenset()
        #: Everything below is what START clears.
        self._matching = Matching(config)
        #: Batches whose topics are not all looked up.
        self._paused = Turns()
        #: Nodes that may still be visited before `work` is called next; and half of those of a turn, which are for what
        #: comes, as the others are for what is paused.
        self._left = self._half_nodes = max(config.matching_step_nodes // 2, 1)
        #: Rules number -> (version, rules). A version is never reused, so cached verdicts cannot survive a
        #: change.
        self._rules: dict[int, tuple[int, TopicRules]] = {}
        self._rules_version = 0
        #: When `tidy` has to be called next.
        self._tidy_at = 0.0
        #: When topics are asked next whether they are idle.
        self._age_at = 0.0
        #: What is known of topics, at the last `tidy`.
        self.cached_bytes = 0
        #: When the newest frame came. Matching itself does not depend on the time.
        self.last_frame_at = 0.0
        #: What the router found wrong with what this worker sent; the process has to end then.
        self.found_faulty = ""
        #: Frames that no router of ours sends.
        self.faults = 0
        #: What happened since the process started; see `stats`.
        self._counts = dict.fromkeys(_COUNTERS, 0)
        #: Code -> refused rows.
        self._refused: dict[int, int] = {}
        #: Operation -> what checks the header, and what acts on header and frames and gives frames for the router.
        self._handlers = dict(
            [
                takes(Start, self._start),
                takes(Filters, self._change_filters),
                takes(Rules, self._change_rules),
                takes(Match, self._match),
                takes(Bundle, self._take_bundle),
                takes(Fault, self._end),
            ]
        )

    def connected(self) -> None:
        """Take note of a new connection: perhaps there is another router, so wait for its START.

        What the old one sent is still answered until then; it does no harm, and a mere reconnect loses
        nothing.
        """
        self.started = False

    def ready_frames(self) -> list[bytes]:
        """Give the frames that announce this worker to the router."""
        return Ready(self.index, self.incarnation).frames()

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

    def share(self, waiting: int) -> None:
        """Leave the frame that comes its part of the nodes, if so many wait: no dear batch is waited for in a line."""
        self._left = self._half_nodes // waiting

    @property
    def next_tidy(self) -> float:
        """Give when `tidy` is due: that takes as long as going on with paused batches, so a turn has one of both."""
        return self._tidy_at

    def tidy(self, now: float) -> list[list[bytes]]:
        """Do one step of forgetting what nobody needs; gives frames for the router. `next_tidy` is when to come again.

        While there is traffic RESULTs tell what is retired; what its clients left behind when they went would stay.
        """
        if now < self._tidy_at:
            return []
        if now >= self._age_at:
            self._age_at = now + AGE_INTERVAL_S
            self._matching.age()
        more = self._matching.sweep()
        retired = self._retire(()) if self.started else []
        self.cached_bytes = self._matching.cache_bytes
        self._tidy_at = now + (TIDY_STEP_S if more or retired else TIDY_INTERVAL_S)
        if retired and self._matching.sets.idle_bytes > IDLE_BYTES_MAX:
            self._tidy_at = now
        return [Retire(self.incarnation, retired).frames()] if retired else []

    @property
    def freed_bytes(self) -> int:
        """Give what the filters took that were removed since the router started this worker."""
        return self._matching.filters_freed_bytes

    def _is_stale(self, router_incarnation: int) -> bool:
        """Tell whether a frame is of another router than the one that started us."""
        stale = router_incarnation != self.router_incarnation or not self.router_incarnation
        self._counts["stale_frames"] += stale
        return stale

    def _start(self, start: Start, _frames: list[bytes]) -> list[list[bytes]]:
        if start.router < self.router_incarnation:
            self._counts["stale_frames"] += 1
            return []
        self.started = True
        self.router_incarnation = start.router
        self.epoch = start.epoch
        self._slots = slots = start.slots
        self._foreign_slots = frozenset([slot for slot in range(SLOTS) if slots[slot] != self.index])
        self._matching = Matching(self._config, self._matching.sets.next_id)
        self._rules = {}
        self._paused = Turns()
        self._counts["starts"] += 1
        return []

    def _end(self, fault: Fault, _frames: list[bytes]) -> list[list[bytes]]:
        if not self._is_stale(fault.router):
            self.found_faulty = fault.text
        return []

    def _change_filters(self, change: Filters, _frames: list[bytes]) -> list[list[bytes]]:
        if self._is_stale(change.router):
            return []
        matching = self._matching
        for one in change.added:
            matching.add(one.id, one.vpn, one.pattern, one.kind)
            self._left -= NODES_PER_LEVEL * (1 + one.pattern.count("/"))
        for filter_id in change.removed:
            matching.remove(filter_id)
        self._left -= NODES_PER_REMOVAL * len(change.removed)
        matching.tidy()
        return [Confirm(self.incarnation, change.sequence).frames()]

    def _change_rules(self, change: Rules, _frames: list[bytes]) -> list[list[bytes]]:
        if self._is_stale(change.router):
            return []
        if change.rules is None:
            self._rules.pop(change.rules_id, None)
        else:
            rules = TopicRules(change.rules.exceptions, default_allow=change.rules.default_allow)
            self._rules_version += 1
            self._rules[change.rules_id] = (self._rules_version, rules)
        return []

    def _take_bundle(self, bundle: Bundle, _frames: list[bytes]) -> list[list[bytes]]:
        """Take messages that came in one, and answer them in one."""
        answers = [answer for one in bundle.messages for answer in self.handle(one, self.last_frame_at)]
        return [Bundle(answers).frames()] if len(answers) > 1 else answers

    def _match(self, task: Match, frames: list[bytes]) -> list[list[bytes]]:
        if self._is_stale(task.router):
            return []
        self._counts["batches"] += 1
        self._box.begin(MATCH, task.publisher, task.router)
        answers: list[list[bytes]] = []
        try:
            batch = Batch(frames[2] if len(frames) == 3 else b"", task.rows, task.mode)
        except errors.InvalidRequestError as error:
            answers.append(self._malformed_frames(task, error.detail))
        else:
            made = self._matching.sets.filters_made
            lookup = Lookup(task, batch, self._rules.get(task.rules_id), made)
            if not self._go_on(lookup, answers):
                self._counts["paused_batches"] += 1
                self._paused.push(lookup)
        self._box.end()
        return answers

    @property
    def has_work(self) -> bool:
        """Tell whether a batch is paused."""
        return bool(self._paused)

    def work(self) -> list[list[bytes]]:
        """End a turn: go on with paused batches, and begin the next; gives what to send to the router, in order."""
        answers: list[list[bytes]] = []
        if not self._paused:
            self._left = self._half_nodes
            return answers
        self._left = max(self._left, 0) + self._half_nodes  # with what nobody needed
        while self._paused and self._left > 0:
            lookup = self._paused.next()
            self._box.begin(MATCH, lookup.task.publisher, self.router_incarnation)
            if self._go_on(lookup, answers):
                lookup.let_go(self._matching.sets)
                self._paused.remove(lookup)
        self._box.end()
        self._left = self._half_nodes
        return answers

    def _go_on(self, lookup: Lookup, answers: list[list[bytes]]) -> bool:
        """Look topics up as far as the step allows; true if it is over. Adds what to send: its cost, the answer."""
        task = lookup.task
        fault = ""
        try:
            ended = self._look_up(lookup, self._matching.vpn(task.vpn))
        except errors.InvalidRequestError as error:
            ended, fault = True, error.detail
            lookup.drop_search()
        if lookup.work > lookup.told and (ended or not lookup.told):
            answers.append(Work(self.incarnation, lookup.task.reference, lookup.untold()).frames())
        if not ended:
            answers += self._sets_of(lookup)
        elif fault:
            answers.append(self._malformed_frames(task, fault))
        else:
            self._left -= task.rows
            answers.append(self._answer(lookup))
        return ended

    def _answer(self, lookup: Lookup) -> list[bytes]:
        task, batch, entries = lookup.task, lookup.batch, lookup.entries
        result = Sorting()
        self._refuse(result, batch)
        result.sort_in(
            batch, entries, self._retaining(task.vpn) if batch.classes & wire.CLASS_RETAIN else None
        )
        if task.learn == wire.LEARN_ALL or (task.learn and len(entries) <= wire.FEW_TOPICS_MAX):
            result.teach(entries)
        body = result.body()
        self._count(result, task.rows, is_whole=bool(result.batches) and not body)
        self._matching.tidy()
        return self._result_frames(task.reference, result, body)

    def _retaining(self, vpn_id: int) -> Retaining | None:
        """Give what adds the queue that retains to the endpoints of a row; None if the Message VPN has none."""
        vpn = self._matching.vpn(vpn_id)
        return vpn.retaining if vpn.retains else None

    def _look_up(self, lookup: Lookup, vpn: VpnMatching) -> bool:
        """Look up the topics of a batch that are left; false if it has to stop before the last.

        Those that are refused are noted in the batch.

        Raises:
            InvalidRequestError: a topic belongs to another worker (40001).
        """
        cache = vpn.cache
        search = lookup.search
        if search is not None and (search.vpn is not vpn or cache.get(search.topic) is not None):
            lookup.drop_search()
        batch, entries = lookup.batch, lookup.entries
        rules, is_ruled = lookup.rules, lookup.task.rules_id != NO_RULES
        cached, number = cache.entries.get, cache.number
        for topic in lookup.remaining() if entries or batch.refused_topics else batch.topics:
            entry = cached(topic)
            if entry is None or entry.valid_at != number:
                if self._left <= 0:
                    return False
                if lookup.search is not None:
                    entry = self._resume(lookup, vpn, topic)
                elif entry is None or not self._is_right(lookup, cache, topic, entry):
                    entry = self._find(lookup, vpn, topic)
                if entry is None:
                    if topic in batch.refused_topics:
                        continue
                    return False
            if is_ruled and not _may_publish(entry, topic, rules):
                batch.refused_topics[topic] = errors.PUBLISH_DENIED
                continue
            entries[topic] = entry
        return True

    def _find(self, lookup: Lookup, vpn: VpnMatching, topic: str) -> TopicEntry | None:
        """Find out where a topic leads that is not cached; None if that is refused, or not done yet.

        Raises:
            InvalidRequestError: it belongs to another worker (40001).
        """
        code = self._form_fault(topic)
        if not code and lookup.work and lookup.work > self._config.max_matching_work:
            code = errors.MATCHING_WORK_EXCEEDED
        if code:
            lookup.batch.refused_topics[topic] = code
            return None
        before = vpn.work
        found = vpn.match(topic, self._left)
        spent = vpn.work - before
        entry = None
        if type(found) is TopicEntry:
            entry = found
            if spent <= FREE_NODES_PER_TOPIC and not lookup.topic_work:  # nearly always
                self._left -= spent
                return entry
        else:
            lookup.search = found  # type: ignore[assignment]
        self._charge(lookup, topic, spent, ends=entry is not None)
        return entry

    def _resume(self, lookup: Lookup, vpn: VpnMatching, topic: str) -> TopicEntry | None:
        """Go on with the search for a topic; None if it is not done yet, or dearer than a batch may be."""
        assert lookup.search is not None
        before = vpn.work
        entry = vpn.resume(lookup.search, self._left)
        if entry is not None:
            lookup.search = None
        self._charge(lookup, topic, vpn.work - before, ends=entry is not None)
        return entry

    def _is_right(self, lookup: Lookup, cache: TopicCache[TopicEntry], topic: str, entry: TopicEntry) -> bool:
        """Tell whether what is cached about a topic is right after changes of filters; it is dropped if not."""
        log = cache.log
        before = log.tested
        is_right = cache.is_right(topic, entry)
        spent = log.tested - before
        if is_right and spent <= FREE_NODES_PER_TOPIC and not lookup.topic_work:  # nearly always
            self._left -= spent
            return True
        if not is_right:
            cache.drop(topic)
        self._charge(lookup, topic, spent, ends=is_right)
        return is_right

    def _charge(self, lookup: Lookup, topic: str, spent: int, *, ends: bool) -> None:
        """Count what the topic has cost at which a batch stands; give up the search for it if that is too much."""
        self._left -= spent
        lookup.count(spent, ends=ends)
        if lookup.search is not None and lookup.work > self._config.max_matching_work:
            lookup.drop_search()
            lookup.batch.refused_topics[topic] = errors.MATCHING_WORK_EXCEEDED

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
        if self._foreign_slots and (slot := slot_of(topic)) in self._foreign_slots:
            detail = f"topic {topic!r} (slot {slot}) belongs to worker {self._slots[slot]}, not {self.index}"
            raise errors.InvalidRequestError(errors.MALFORMED_FRAME, detail)
        return 0

    def _refuse(self, result: Sorting, batch: Batch) -> None:
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

    def _retire(self, used: Container[int]) -> list[int]:
        """Forget sets that no topic leads to, but those in `used` and of paused batches; gives their numbers.

        Batches hold theirs now only: hardly one is paused while there is a set to forget.
        """
        sets = self._matching.sets
        if not sets.idle_bytes:
            return []
        for lookup in self._paused:
            lookup.hold(sets)
        return sets.retire(used)

    def _sets_of(self, lookup: Lookup) -> list[list[bytes]]:
        """Define the sets of a paused batch if its answer would define too much in one step."""
        sets = self._matching.sets
        if sets.filters_made - lookup.made_before <= SET_FILTERS_MAX:
            return []
        lookup.hold(sets)
        return (
            self._sets_frames(lookup.take_undefined()) if lookup.undefined_filters > SET_FILTERS_MAX else []
        )

    def _sets_frames(self, sets: list[FilterSet]) -> list[list[bytes]]:
        """Define sets for the router before they are named; it takes each frame in a step."""
        frames: list[list[bytes]] = []
        some: list[FilterSet] = []
        size = 0
        for one in sets:
            some.append(one)
            size += len(one.values)
            if size > SET_FILTERS_MAX or one is sets[-1]:
                frames.append(Sets(self.incarnation, describe(some)).frames())
                some, size = [], 0
        return frames

    def _malformed_frames(self, task: Match, detail: str) -> list[bytes]:
        self._counts["malformed_batches"] += 1
        refused = [RefusedRows(errors.MALFORMED_FRAME, task.rows, detail[:DETAIL_MAX], [])]
        return Result(self.incarnation, task.reference, (), (), (), (), 0, refused, (), ()).frames()

    def _result_frames(self, reference: int, result: Sorting, body: Sequence[bytes]) -> list[bytes]:
        answer = Result(
            self.incarnation,
            reference,
            describe(result.used.values()),
            self._retire(result.used),
            result.plain,
            result.choice,
            result.unmatched,
            [*result.refused.values(), *result.reported.values()],
            result.learned,
            result.endpoints,
        )
        return [wire.RESULT, encode(answer), encode(body)] if body else [wire.RESULT, encode(answer)]

    def _count(self, result: Sorting, rows: int, *, is_whole: bool) -> None:
        counts = self._counts
        counts["rows"] += rows
        counts["rows_unmatched"] += result.unmatched
        counts["whole_batches"] += is_whole
        for one in result.refused.values():
            self._refused[one.code] = self._refused.get(one.code, 0) + one.rows

    def stats(self) -> dict[str, Any]:
        """Give the counters and sizes; `refused` has the rows by error code."""
        return {
            "index": self.index,
            "incarnation": self.incarnation,
            "router_incarnation": self.router_incarnation,
            "epoch": self.epoch,
            "last_frame_at_s": self.last_frame_at,
            **self.metrics(),
        }

    def metrics(self) -> dict[str, Any]:
        """Give what is worth a look each second, and costs little."""
        return {
            "faults": self.faults,
            "rules": len(self._rules),
            "batches_waiting": len(self._paused),
            **self._counts,
            **self._matching.stats(),
            "refused": {str(code): rows for code, rows in sorted(self._refused.items())},
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert len(self._slots) == SLOTS
        assert all(0 < version <= self._rules_version for version, _ in self._rules.values())
        assert self._counts["whole_batches"] + self._counts["malformed_batches"] <= self._counts["batches"]
        self._matching.validate([one for lookup in self._paused for one in lookup.held])


def _may_publish(entry: TopicEntry, topic: str, known: tuple[int, TopicRules] | None) -> bool:
    """Ask the access rules, or what they said before. Rules that nobody told us allow nothing."""
    if known is None:
        return may_publish(None, topic)
    version, rules = known
    verdicts = entry.verdicts
    verdict = None if verdicts is None else verdicts.get(version)
    if verdict is None:
        verdict = may_publish(rules, topic)
        if verdicts is None or len(verdicts) >= VERDICTS_PER_TOPIC_MAX:
            verdicts = entry.verdicts = {}
        verdicts[version] = verdict
    return verdict
