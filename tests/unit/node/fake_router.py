"""The router of one worker in tests; it holds the worker to the rules about sets and batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from angarium import errors, wire
from angarium.topic import SLOTS
from node.config import WorkerConfig
from node.matching.worker import Worker

ROUTER = 3
INCARNATION = 8
VPN = 1
PLAIN, ALWAYS, SHARED = wire.KIND_PLAIN, wire.KIND_DELIVER_ALWAYS, wire.KIND_SHARED

Row = list[Any]


@dataclass
class Answer:
    """A RESULT taken apart; every set is given as its filters."""

    whole: bool
    plain: dict[tuple[int, ...], list[Row]] = field(default_factory=dict)
    choice: dict[tuple[tuple[int, ...], tuple[int, ...], bool], list[Row]] = field(default_factory=dict)
    heads: list[list[Any]] = field(default_factory=list)
    unmatched: int = 0
    #: Topic -> rows that matched nothing, as the round asked.
    reported: dict[str, int] = field(default_factory=dict, compare=False)
    endpoints: dict[tuple[int, ...], list[Row]] = field(default_factory=dict)
    endpoint_heads: list[list[Any]] = field(default_factory=list)
    refused: dict[int, tuple[int, str]] = field(default_factory=dict)
    refused_indices: dict[int, list[int]] = field(default_factory=dict)
    learned: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    retired: list[int] = field(default_factory=list)


class Router:
    """What a router does with one worker; it holds the worker to the rules about sets."""

    def __init__(self, config: WorkerConfig | None = None, *, slots: bytes = bytes(SLOTS)) -> None:
        self.worker = Worker(0, INCARNATION, config or WorkerConfig())
        self.sets: dict[int, tuple[int, ...]] = {0: ()}
        self.set_ids_seen: set[int] = set()
        self.sequence = 0
        self.reference = 0
        self.start(slots=slots)

    def send(self, operation: bytes, *body: Any, batch: bytes | None = None) -> list[list[bytes]]:
        frames = [operation, wire.pack(list(body))]
        answers = self.worker.handle(frames if batch is None else [*frames, batch], 0.0)
        answers += self.worker.work()
        while self.worker.has_work:
            self.worker.validate()
            answers += self.worker.work()
        return answers

    def start(self, incarnation: int = ROUTER, slots: bytes = bytes(SLOTS)) -> None:
        self.incarnation = incarnation
        self.sets = {0: ()}
        assert self.send(wire.START, incarnation, 1, slots) == []

    def filters(self, *added: tuple[int, str, int], removed: tuple[int, ...] = (), vpn: int = VPN) -> None:
        self.sequence += 1
        entries = [[number, vpn, pattern, kind] for number, pattern, kind in added]
        answer = self.send(wire.FILTERS, self.incarnation, self.sequence, entries, list(removed))
        assert answer == [[wire.CONFIRM, wire.pack([INCARNATION, self.sequence])]]

    def rules(self, rules_id: int, default_allow: bool, exceptions: list[str]) -> None:
        assert self.send(wire.RULES, self.incarnation, rules_id, [default_allow, exceptions]) == []

    def drop_rules(self, rules_id: int) -> None:
        assert self.send(wire.RULES, self.incarnation, rules_id, None) == []

    def match(
        self,
        rows: list[Row],
        *,
        rules: int = 0,
        learn: int = wire.LEARN_NOTHING,
        guaranteed: bool = False,
        flags: int = 0,
        vpn: int = VPN,
        batch: bytes | None = None,
    ) -> Answer:
        batch = wire.pack(rows) if batch is None else batch
        self.reference += 1
        head = [self.incarnation, self.reference, vpn, rules, learn, len(rows), int(guaranteed) | flags, 1]
        answers = [one for one in self.send(wire.MATCH, *head, batch=batch) if one[0] != wire.WORK]
        assert len(answers) == 1
        return self.read(answers[0], batch)

    def begin(
        self, rows: list[Row], *, publisher: int = 1, vpn: int = VPN, rules: int = 0
    ) -> tuple[int, bytes, list[list[bytes]]]:
        """Send a batch without giving the worker more steps; gives reference, batch and what it says at once."""
        batch = wire.pack(rows)
        self.reference += 1
        head = [self.incarnation, self.reference, vpn, rules, wire.LEARN_NOTHING, len(rows), 0, publisher]
        return self.reference, batch, self.worker.handle([wire.MATCH, wire.pack(head), batch], 0.0)

    def define(self, defs: list[Any]) -> None:
        """Take definitions of sets."""
        for set_id, filter_ids in defs:
            assert set_id not in self.set_ids_seen, "a number is defined once"
            self.set_ids_seen.add(set_id)
            self.sets[set_id] = tuple(filter_ids)

    def read(self, frames: list[bytes], batch: bytes, reference: int | None = None) -> Answer:
        assert frames[0] == wire.RESULT
        incarnation, answered, defs, retired, *verdict = wire.unpack(frames[1])
        plain, choice, unmatched, refused, learned, endpoints = verdict
        assert (incarnation, answered) == (INCARNATION, reference or self.reference)
        self.define(defs)
        whole = len(frames) == 2 and bool(plain or endpoints)
        answer = Answer(whole=whole, unmatched=unmatched, retired=retired)
        named = len(plain) + len(choice) + len(endpoints)
        batches = [batch] * named if whole else wire.unpack(frames[2]) if len(frames) == 3 else []
        batches = [part or batch for part in batches]
        assert len(batches) == named
        for (set_id, rows, size, classes), part in zip(plain, batches, strict=False):
            opened = wire.unpack(part)
            answer.plain[self.sets[set_id]] = opened
            _check_head(opened, part, rows, size, classes)
        for (set_id, plain_id, dto, rows, size, classes), part in zip(
            choice, batches[len(plain) : len(plain) + len(choice)], strict=True
        ):
            opened = [wire.unpack(row) for row in wire.unpack(part)]
            answer.choice[self.sets[set_id], self.sets[plain_id], dto] = opened
            _check_head(opened, part, rows, size, classes)
        for head, part in zip(endpoints, batches[len(plain) + len(choice) :], strict=True):
            opened = wire.unpack(part)
            answer.endpoints[self.sets[head[0]]] = opened
            _check_endpoint_head(opened, part, *head[1:])
        answer.heads = [*plain, *choice]
        answer.endpoint_heads = endpoints
        answer.reported = {
            text: count for code, count, text, _ in refused if code == errors.NO_SUBSCRIPTION_MATCH
        }
        answer.refused = {code: (count, text) for code, count, text, _ in refused}
        answer.refused_indices = {code: indices for code, _, _, indices in refused}
        answer.learned = {topic: tuple(self.sets[one] for one in sets) for topic, *sets in learned}
        used = (
            {head[0] for head in answer.heads}
            | {head[1] for head in choice}
            | {one for row in learned for one in row[1:]}
            | {head[0] for head in endpoints}
        )
        for set_id in retired:
            assert set_id not in used, "a result does not retire what it uses"
            del self.sets[set_id]
        return answer


def _check_head(opened: list[Row], part: bytes, rows: int, size: int, classes: int) -> None:
    assert part.startswith(wire.array_head(rows))
    assert (len(opened), len(part)) == (rows, size)
    assert [row[0] for row in opened] == sorted(row[0] for row in opened)
    expected = 0
    for row in opened:
        expected |= 1 << (row[2] >> wire.COS_SHIFT & 3)
        expected |= wire.CLASS_ELIDING if row[2] & wire.FLAG_ELIDING else 0
        expected |= wire.CLASS_DTO if row[2] & wire.FLAG_DTO else 0
        expected |= wire.CLASS_RETAIN if row[2] & wire.FLAG_RETAIN else 0
    assert classes == expected


def _check_endpoint_head(
    opened: list[Row], part: bytes, rows: int, spool_bytes: int, largest: int, low: int
) -> None:
    assert part.startswith(wire.array_head(rows))
    assert [row[0] for row in opened] == sorted(row[0] for row in opened)
    sizes = [len(row[5]) + len(row[4] or b"") for row in opened]
    assert (rows, spool_bytes, largest) == (len(opened), sum(sizes) + 64 * len(sizes), max(sizes))
    assert low == sum((row[2] >> wire.COS_SHIFT & 3) < 2 for row in opened)


def row_of(
    index: int, topic: str, flags: int = 0, payload: bytes = b"x", meta: Any = None, properties: Any = None
) -> Row:
    return [index, topic, flags, meta, properties, payload]


def rows_of(*topics: str, flags: int = 0) -> list[Row]:
    return [row_of(index, topic, flags) for index, topic in enumerate(topics)]
