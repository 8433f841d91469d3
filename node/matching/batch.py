"""Batches of rows: opened and checked in a worker, and sorted by where their rows go.

One typed decode checks every field of every row. What is left is work per batch and per distinct topic, so
that most batches never cost a Python step for each row; if all rows go to one place, the batch that came is
the answer ("whole") and nothing is packed.
"""

from __future__ import annotations

from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.trail import Route
from angarium_server.frames.frame import encode
from angarium_server.frames.matching import (
    LARGE_ROW_BYTES,
    ChoiceHead,
    EndpointHead,
    Learned,
    PlainHead,
    RefusedRows,
)
from node.matching.matching import EMPTY_SET, FilterSet, TopicEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Characters of a refused topic, or of what is wrong with a batch, that are reported.
DETAIL_MAX: Final = 250
#: Topics of one batch that are reported because they match nothing; requests to others run into their timeouts.
REPORTED_MAX: Final = 1_000
#: Stands in a body for the batch that came.
WHOLE: Final = b""

#: Gives the set of endpoints that take a row that is to be retained, of those that would take it otherwise.
Retaining: TypeAlias = "Callable[[FilterSet], FilterSet]"
#: The endpoints that take rows -> the rows for exactly these, by rising index.
Groups: TypeAlias = "dict[FilterSet, list[Row]]"

_Natural = Annotated[int, Meta(ge=0)]
_Byte = Annotated[int, Meta(ge=0, le=255)]
_Flags = Annotated[int, Meta(ge=0, le=wire.FLAGS_MAX)]

#: Time to live and delay in ms, priority, partition key or trail.
RowMeta: TypeAlias = tuple[_Natural, _Natural, _Byte | None, Route]


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, eq=False):
    """One message of a batch. Its types are the check: the decoder refuses everything else."""

    index: _Natural
    topic: str
    flags: _Flags
    meta: RowMeta | None
    properties: bytes | None
    payload: bytes


class ClientRow(Row, array_like=True, forbid_unknown_fields=True, gc=False, eq=False):
    """One message as clients may publish it: they cannot say where it has been."""

    meta: tuple[_Natural, _Natural, _Byte | None, str | None] | None


class LargeRow(Row, array_like=True, forbid_unknown_fields=True, gc=False, eq=False):
    """The same, with the payload left where it came: nothing is copied of it."""

    payload: memoryview  # type: ignore[assignment]


class LargeClientRow(ClientRow, array_like=True, forbid_unknown_fields=True, gc=False, eq=False):
    """The same, as clients may publish it."""

    payload: memoryview  # type: ignore[assignment]


def _decoder_of(row: type[Row]) -> Callable[[bytes], list[Row]]:
    decoder: Any = msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]
    return decoder.decode  # type: ignore[no-any-return]


#: Whether rows may say where they have been, and whether they are large -> what opens a batch of such.
_DECODERS: Final = {
    (True, False): _decoder_of(Row),
    (True, True): _decoder_of(LargeRow),
    (False, False): _decoder_of(ClientRow),
    (False, True): _decoder_of(LargeClientRow),
}


def _classes_of(flags: int) -> int:
    """Give the classes of a row with these flags, 0 if the flags are illegal."""
    cos = (flags & wire.FLAG_COS) >> wire.COS_SHIFT
    if flags & wire.FLAG_MODE == wire.FLAG_MODE or cos == 3:
        return 0
    more = wire.CLASS_ELIDING if flags & wire.FLAG_ELIDING else 0
    more |= wire.CLASS_DTO if flags & wire.FLAG_DTO else 0
    more |= wire.CLASS_RETAIN if flags & wire.FLAG_RETAIN else 0
    return (wire.CLASS_COS1, wire.CLASS_COS2, wire.CLASS_COS3)[cos] | more


_CLASSES: Final = tuple(_classes_of(flags) for flags in range(wire.FLAGS_MAX + 1))
_FLAGS: Final = frozenset([flags for flags, classes in enumerate(_CLASSES) if classes])
_DIRECT_FLAGS: Final = frozenset([flags for flags in _FLAGS if flags & wire.FLAG_MODE == wire.MODE_DIRECT])
#: What the messages of a batch are -> the flags that they may have.
_LEGAL: Final = {
    wire.MATCH_DIRECT: _DIRECT_FLAGS,
    wire.MATCH_GUARANTEED: _FLAGS - _DIRECT_FLAGS,
    wire.MATCH_AS_DIRECT: _FLAGS,
}
#: Flags -> 1 if a message with them has low priority for queues: class of service 1 or 2 (R176).
_LOW_PRIORITY: Final = tuple(
    int((flags & wire.FLAG_COS) >> wire.COS_SHIFT < 2) for flags in range(wire.FLAGS_MAX + 1)
)


class Batch:
    """The rows of one MATCH, checked."""

    __slots__ = (
        "classes",
        "guaranteed",
        "intact",
        "packed",
        "refused_topics",
        "reports",
        "rows",
        "topics",
        "with_dto",
    )

    def __init__(self, packed: bytes, count: int, mode: int) -> None:
        """Open a batch whose messages are what `mode` (`wire.MATCH_...`) says.

        Raises:
            InvalidRequestError: it is no batch of so many such rows (40001).
        """
        announced = wire.array_length(packed)
        if announced != count:
            raise _malformed(f"the batch announces {announced} rows, its header says {count}")
        decode = _DECODERS[bool(mode & wire.MATCH_TRAILS), len(packed) >= LARGE_ROW_BYTES * count]
        #: Whether rows that match nothing are reported by their topics.
        self.reports = bool(mode & wire.MATCH_REPORT)
        mode &= ~(wire.MATCH_TRAILS | wire.MATCH_REPORT)
        try:
            rows = decode(packed)
        except (ValueError, RecursionError) as error:
            raise _malformed(f"no batch of rows: {error}") from None
        if len(rows) != count:
            raise _malformed(f"the batch has {len(rows)} rows, its header says {count}")
        indexes = [row.index for row in rows]
        if not all(map(lt, indexes, islice(indexes, 1, None))):
            raise _malformed("the indices of the rows do not rise")
        flags = dict.fromkeys([row.flags for row in rows])
        _check_flags(flags, mode)
        #: As it came.
        self.packed = packed
        self.guaranteed = mode == wire.MATCH_GUARANTEED
        #: What is left to match, by rising index.
        self.rows = rows
        #: Each topic of the batch as it came, once.
        self.topics = dict.fromkeys([row.topic for row in rows])
        #: The classes of all rows as they came.
        self.classes = 0
        for one in flags:
            self.classes |= _CLASSES[one]
        self.with_dto = bool(self.classes & wire.CLASS_DTO)
        #: Whether `packed` is exactly the canonical batch of `rows`, as far as others join batches unopened.
        self.intact = packed.startswith(wire.array_head(count))
        #: Topic -> code of the refusal.
        self.refused_topics: dict[str, int] = {}

    def keep(self, rows: list[Row]) -> None:
        """Leave out the other rows."""
        self.rows = rows
        self.intact = False


def _check_flags(flags: dict[int, None], mode: int) -> None:
    if flags.keys() <= _LEGAL.get(mode, _DIRECT_FLAGS):
        return
    if not all(_CLASSES[one] for one in flags):
        raise _malformed(f"a row has illegal flags, of {list(flags)}")
    raise _malformed("direct and guaranteed messages share no round, and PUBLISH says which it has")


def _malformed(detail: str) -> errors.AngariumError:
    return errors.error_for(errors.MALFORMED_FRAME, detail)


def _classes_of_all(batch: Batch) -> int:
    """Give the classes that each row of a batch has; 0 if they differ."""
    classes = batch.classes  # of each row its class of service is one of them
    return 0 if classes & (classes - 1) else classes


def _classes_in(rows: list[Row]) -> int:
    if len(rows) == 1:
        return _CLASSES[rows[0].flags]
    classes = 0
    for row in rows:
        classes |= _CLASSES[row.flags]
    return classes


class Sorting(msgspec.Struct, eq=False, gc=False):
    """What a RESULT says about one batch, while it is put together. A struct, because one is made for every batch."""

    plain: list[PlainHead] = []
    choice: list[ChoiceHead] = []
    endpoints: list[EndpointHead] = []
    #: The batches of `plain`, `choice` and `endpoints` in this order; WHOLE for the one that came.
    batches: list[bytes] = []
    #: Direct rows that go nowhere; guaranteed ones are in `refused`.
    unmatched: int = 0
    #: By their codes.
    refused: dict[int, RefusedRows] = {}
    #: Topic -> the same of direct rows that match nothing, in a round that asks for it; at most REPORTED_MAX.
    reported: dict[str, RefusedRows] = {}
    learned: list[Learned] = []
    #: Every set that is named above, by its number.
    used: dict[int, FilterSet] = {}

    def refuse(self, code: int, row: Row, *, guaranteed: bool) -> None:
        """Count a refused row; of a guaranteed one also say which it is."""
        entry = self.refused.get(code)
        if entry is None:
            entry = self.refused[code] = RefusedRows(code, 0, row.topic[:DETAIL_MAX], [])
        entry.rows += 1
        if guaranteed:
            entry.indices.append(row.index)

    def use(self, one: FilterSet) -> int:
        """Take note that a set is named, and give its number."""
        self.used[one.id] = one
        return one.id

    def sort_in(
        self, batch: Batch, entries: dict[str, TopicEntry], retaining: Retaining | None = None
    ) -> None:
        """Give every row of a batch its places: the batch as it is if that will do, else in groups by set.

        Rows with FLAG_RETAIN are retained if there is a queue for them, which `retaining` says.
        """
        plain = None if batch.with_dto else _common_plain_set(entries)
        retained = {} if retaining is None else _retained(batch, entries, retaining)
        if plain is None or (plain is not EMPTY_SET and not batch.intact):
            self._group(batch, entries)
        elif plain is not EMPTY_SET:
            self.plain.append(PlainHead(self.use(plain), len(batch.rows), len(batch.packed), batch.classes))
            self.batches.append(WHOLE)
        if retained or _has_endpoints(entries):
            self._spool(batch, entries, retained)
        if plain is None or plain is EMPTY_SET:
            self._count_unmatched(batch, entries, retained)

    def _group(self, batch: Batch, entries: dict[str, TopicEntry]) -> None:
        plain_groups: dict[FilterSet, list[Row]] = {}
        choice_groups: dict[tuple[FilterSet, FilterSet, bool], list[Row]] = {}
        with_dto = batch.with_dto
        for row in batch.rows:
            entry = entries[row.topic]
            plain, choice, is_dto = entry.plain, entry.choice, False
            if with_dto and row.flags & wire.FLAG_DTO:
                plain, choice, is_dto = entry.always, entry.dto_choice, True
            if plain is not EMPTY_SET:
                group = plain_groups.get(plain)
                if group is None:
                    plain_groups[plain] = [row]
                else:
                    group.append(row)
            if choice is not EMPTY_SET:
                choice_groups.setdefault((choice, plain, is_dto), []).append(row)
        heads, use, add, classes = self.plain, self.use, self._add_batch, _classes_of_all(batch)
        for plain, rows in plain_groups.items():
            heads.append(
                PlainHead(use(plain), len(rows), len(add(batch, rows)), classes or _classes_in(rows))
            )
        for (choice, plain, is_dto), rows in choice_groups.items():
            packed = encode([encode(row) for row in rows])
            self.batches.append(packed)
            ids = (self.use(choice), self.use(plain))
            self.choice.append(ChoiceHead(*ids, is_dto, len(rows), len(packed), classes or _classes_in(rows)))

    def _spool(self, batch: Batch, entries: dict[str, TopicEntry], retained: Groups) -> None:
        """Group the rows that endpoints take; those that are retained have their groups."""
        groups = retained.copy()
        for row in [row for row in batch.rows if not _is_retained(row)] if retained else batch.rows:
            endpoints = entries[row.topic].endpoints
            if endpoints is not EMPTY_SET:
                group = groups.get(endpoints)
                if group is None:
                    groups[endpoints] = [row]
                else:
                    group.append(row)
        for endpoints, rows in groups.items():
            self._add_batch(batch, rows)
            sizes = [len(row.payload) + len(row.properties or b"") for row in rows]
            spool_bytes = sum(sizes) + wire.SPOOL_OVERHEAD_BYTES * len(rows)
            low = sum([_LOW_PRIORITY[row.flags] for row in rows])
            self.endpoints.append(EndpointHead(self.use(endpoints), len(rows), spool_bytes, max(sizes), low))

    def _add_batch(self, batch: Batch, rows: list[Row]) -> bytes:
        """Add the batch of some rows to the body; gives it packed."""
        whole = batch.intact and len(rows) == len(batch.rows)
        packed = batch.packed if whole else encode(rows)
        self.batches.append(WHOLE if whole else packed)
        return packed

    def _count_unmatched(self, batch: Batch, entries: dict[str, TopicEntry], retained: Groups) -> None:
        """Find the rows that go nowhere; a guaranteed one is told to the router by its index (R162)."""
        if not batch.with_dto and _all_go_to_all(entries):
            return
        unmatched = [row for row in batch.rows if _goes_nowhere(entries[row.topic], row)]
        if retained:
            unmatched = [row for row in unmatched if not _is_retained(row)]
        if not batch.guaranteed:
            self.unmatched = len(unmatched)
            if batch.reports:
                self._report(unmatched)
            return
        for row in unmatched:
            for_queue = row.topic.startswith(wire.QUEUE_TOPIC_PREFIX)
            code = errors.UNKNOWN_ENDPOINT if for_queue else errors.NO_SUBSCRIPTION_MATCH
            self.refuse(code, row, guaranteed=True)

    def _report(self, unmatched: list[Row]) -> None:
        """Say to which topics nobody subscribed: whoever asked there need not wait for an answer."""
        for row in unmatched:
            entry = self.reported.get(row.topic)
            if entry is None:
                if len(self.reported) >= REPORTED_MAX:
                    continue
                entry = self.reported[row.topic] = RefusedRows(errors.NO_SUBSCRIPTION_MATCH, 0, row.topic, [])
            entry.rows += 1
            self.unmatched -= 1

    def body(self) -> Sequence[bytes]:
        """Give the batches to send, nothing if every one of them is the batch that came."""
        return self.batches if any(self.batches) else ()

    def teach(self, entries: dict[str, TopicEntry]) -> None:
        """Tell the router all that is known about the topics that were not refused."""
        for topic, entry in entries.items():
            plain, choice, always, dto_choice, endpoints = map(self.use, entry.sets())
            self.learned.append(Learned(topic, plain, choice, always, dto_choice, endpoints))


def _goes_nowhere(entry: TopicEntry, row: Row) -> bool:
    is_dto = row.flags & wire.FLAG_DTO != 0
    plain, choice = (entry.always, entry.dto_choice) if is_dto else (entry.plain, entry.choice)
    return plain is EMPTY_SET and choice is EMPTY_SET and entry.endpoints is EMPTY_SET


def _is_retained(row: Row) -> bool:
    """Tell whether a row is kept by the queue that retains, if there is one: addresses have nothing to retain."""
    return row.flags & wire.FLAG_RETAIN != 0 and not row.topic.startswith("#")


def _retained(batch: Batch, entries: dict[str, TopicEntry], retaining: Retaining) -> Groups:
    groups: Groups = {}
    for row in batch.rows:
        if _is_retained(row):
            groups.setdefault(retaining(entries[row.topic].endpoints), []).append(row)
    return groups


def _all_go_to_all(entries: dict[str, TopicEntry]) -> bool:
    """Tell whether each topic leads to subscribers that all get its messages without DTO."""
    for entry in entries.values():  # noqa: SIM110 - a generator costs more
        if entry.plain is EMPTY_SET:
            return False
    return True


def _has_endpoints(entries: dict[str, TopicEntry]) -> bool:
    """Tell whether endpoints take rows."""
    for entry in entries.values():  # noqa: SIM110 - a generator costs a small batch more than its topics
        if entry.endpoints is not EMPTY_SET:
            return True
    return False


def _common_plain_set(entries: dict[str, TopicEntry]) -> FilterSet | None:
    """Give the one set to which all topics lead, if it is one and no topic needs a choice."""
    common: FilterSet | None = None
    for entry in entries.values():
        if entry.choice is not EMPTY_SET or (common is not None and entry.plain is not common):
            return None
        common = entry.plain
    return common
