"""What operators ask a home through the controller: messages, purges, moves, metrics, checks, backups.

A change is answered when it is durable: such an operation gives an `Answer`, and the shell passes it on when it is
known. What would look at many messages does it in steps.

No I/O of its own, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from angarium import errors
from angarium.message import HEADER_KEYS, unpack_properties
from node.backlog.segment import GONE
from node.home.lanes.jobs import KIND_COPY, KIND_MOVE, KIND_REDRIVE, BackupJob, CheckJob, Job, MoveJob
from node.home.spool.writing import Task
from node.selectors import compile_selector

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.backlog.segment import Segment
    from node.home.parts import HomeParts
    from node.home.spool.held_lanes import HeldLane
    from node.matching.batch import Row
    from node.selectors import Selector

#: Messages in one page of a listing.
PAGE_MAX: Final = 1_000
#: Messages that a listing looks at in one step, and what it costs to describe one, in steps of `Effort`.
EXAMINED_MAX: Final = 2_000
DESCRIBE_STEPS: Final = 5_000
#: Of a lane: messages whose publishers are counted, the newest ones, and positions that are looked at for them.
PUBLISHED_MAX: Final = 100
PUBLISHED_LOOKED: Final = 2_000
#: Bytes of messages of a lane that is kept aside in one answer; one message may exceed it.
READ_BYTES: Final = 1 << 20
#: Positions in one request to delete messages.
POSITIONS_MAX: Final = 10_000
#: Listings that look for messages at the same time.
LISTINGS_MAX: Final = 50

#: Figure -> what the lane calls it.
_OF_THE_LANE: Final = {
    "messages_spooled": "messages",
    "bytes_spooled": "bytes",
    "delivered_unacked": "unacked",
    "messages_ready": "ready",
    "messages_delayed": "held",
    "messages_moving": "moving",
    "oldest_stored_ms": "oldest_stored_ms",
    "total_messages_spooled": "spooled",
    "total_bytes_spooled": "spooled_bytes",
    "messages_delivered": "delivered",
    "messages_redelivered": "redelivered",
    "messages_browsed": "browsed",
    "confirmed_delivered": "accepted",
    "request_for_redelivery": "failed",
    "rejected": "rejected",
    "settles_refused": "settles_refused",
    "selector_examined": "selector_examined",
    "selector_match": "selector_matched",
    "selector_discard": "selector_discarded",
    "last_value_replaced": "replaced",
    "total_deleted_messages": "deleted",
    "purged_messages": "purged",
    "segments": "segments",
    "consumer_flows": "consumers",
    "browser_flows": "browsers",
}
#: Figure -> what the lane calls it; a message that could not be moved is counted by the home.
_DISCARDS: Final = {
    "ttl_expired_discard": "expired_discarded",
    "max_redelivery_exceeded_discard": "redeliveries_discarded",
    "rejected_discard": "rejected_discarded",
}
#: What the home counts of every lane.
_OF_THE_HOME: Final = (
    "ttl_expired_to_dmq",
    "ttl_expired_to_dmq_failures",
    "max_redelivery_exceeded_to_dmq",
    "max_redelivery_exceeded_to_dmq_failures",
    "rejected_to_dmq",
    "rejected_to_dmq_failures",
    "messages_unreadable",
)

_Natural = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1)]


class _Lane(msgspec.Struct):
    lane_id: int


class _Page(_Lane):
    after: _Natural = 0
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    selector: str | None = None


class _Message(_Lane):
    position: _Positive


class _Positions(_Lane):
    positions: Annotated[list[_Positive], Meta(max_length=POSITIONS_MAX)]


class _Reading(_Lane):
    after: _Natural = 0


class _Redrive(_Lane):
    selector: str | None = None
    limit: _Positive | None = None
    positions: Annotated[list[_Positive], Meta(min_length=1, max_length=POSITIONS_MAX)] | None = None
    #: Only tell whether it may begin.
    check: bool = False


class _Move(_Redrive, kw_only=True):
    target: tuple[str, str, str]
    copy: bool = False


class _JobNumber(msgspec.Struct):
    job: int


class _Backup(msgspec.Struct):
    directory: Annotated[str, Meta(min_length=1)]


class _Copy(_Lane):
    source: _Natural
    bytes_per_s: _Positive


class _Nothing(msgspec.Struct):
    pass


class Answer:
    """An answer that is known later."""

    __slots__ = ("error", "is_known", "value")

    def __init__(self) -> None:
        self.is_known = False
        self.value: Any = None
        #: Why there is no value.
        self.error: errors.AngariumError | None = None

    def give(self, value: Any) -> None:
        """Make it known."""
        self.value, self.is_known = value, True

    def refuse(self, error: errors.AngariumError) -> None:
        """Make it known that there is none."""
        self.error, self.is_known = error, True


class AnswerDurable(NamedTuple):
    """What an operator asked for is durable."""

    answer: Answer
    value: Any


class _Listing:
    """A page of messages that is being put together."""

    def __init__(self, page: _Page, held: HeldLane, selects: Selector | None) -> None:
        self.page = page
        self.held = held
        self.selects = selects
        #: Everything up to this position was looked at.
        self.upto = page.after
        self.rows: list[dict[str, Any]] = []
        self.answer = Answer()


class Operations:
    """The operations of a home that operators may ask for."""

    def __init__(self, parts: HomeParts, metrics: Callable[[], dict[str, Any]]) -> None:
        """Make them; `metrics` gives what `spool.show` shows."""
        self._parts = parts
        self._metrics = metrics
        self._operations: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
            "endpoint.messages": (_Page, self._list_messages),
            "endpoint.message": (_Message, self._show_message),
            "endpoint.publishers": (_Lane, self._count_publishers),
            "endpoint.purge": (_Lane, self._purge),
            "endpoint.release": (_Lane, self._release),
            "endpoint.delete_messages": (_Positions, self._delete_messages),
            "endpoint.move": (_Move, self._move),
            "endpoint.redrive": (_Redrive, self._redrive),
            "endpoint.stats": (_Lane, self._show_stats),
            "lane.copy": (_Copy, self._copy_lane),
            "lane.copy_end": (_Lane, self._end_copy),
            "job": (_JobNumber, self._show_job),
            "spool.show": (_Nothing, self._show_spool),
            "spool.aside": (_Nothing, self._show_aside),
            "spool.aside.read": (_Reading, self._read_aside),
            "spool.aside.delete": (_Lane, self._delete_aside),
            "spool.verify": (_Nothing, self._verify),
            "spool.backup": (_Backup, self._backup),
        }
        #: Answers that the shell has not got, the oldest first; known ones are taken from anywhere.
        self._answers: list[Answer] = []
        self._listings: list[_Listing] = []
        self._checks: list[CheckJob] = []
        self._backups: list[BackupJob] = []
        self._now = 0.0
        self._wall_ms = 0

    def __contains__(self, operation: str) -> bool:
        """Tell whether this is an operation of a home."""
        return operation in self._operations

    def request(self, operation: str, arguments: Any, now: float, wall_ms: int) -> Any:
        """Give the answer, or an `Answer` that is known later.

        Raises:
            InvalidRequestError: the arguments do not fit (40018), or a selector is invalid (40601).
            NotFoundError: there is no such lane, message or job here (40401).
            ConflictError: too much is going on (40902).
        """
        self._now, self._wall_ms = now, wall_ms
        kind, handler = self._operations[operation]
        try:
            request = msgspec.convert(arguments or {}, kind)
        except msgspec.ValidationError as error:
            raise errors.invalid(str(error)) from None
        answer = handler(request)
        if isinstance(answer, Answer):
            self._answers.append(answer)
        return answer

    def take_answers(self) -> list[Answer]:
        """Give the answers that are known now."""
        known = [answer for answer in self._answers if answer.is_known]
        self._answers = [answer for answer in self._answers if not answer.is_known]
        return known

    # -- steps -----------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Do one step of everything that takes a while."""
        for listing in self._listings[:1]:
            self._look_further(listing)
            # In turn, so that a long one does not keep the others waiting.
            self._listings.remove(listing)
            if not listing.answer.is_known:
                self._listings.append(listing)
        for check in self._checks[:1]:
            check.step(self._parts.spool, self._parts.blocks)
            if check.is_over:
                self._checks.remove(check)

    @property
    def is_busy(self) -> bool:
        """Whether another step is to be done at once."""
        return bool(self._listings or self._checks)

    def take_backups(self) -> list[BackupJob]:
        """Give the backups that can be made now: what came before them is on disk."""
        ready = [one for one in self._backups if self._parts.pending.is_stored_upto(one.serial)]
        self._backups = [one for one in self._backups if one not in ready]
        return ready

    # -- messages --------------------------------------------------------------------------------------------

    def _lane(self, lane_id: int) -> HeldLane:
        held = self._parts.lanes.get(lane_id)
        if held is None:
            raise errors.error_for(errors.OBJECT_NOT_FOUND, f"lane {lane_id} is not here")
        if held.is_parting:
            raise errors.error_for(errors.HOME_NOT_READY, "another worker takes the queue over")
        return held

    def _whole_lane(self, lane_id: int) -> HeldLane:
        """Give a lane that is here with all it has: what is still to come would come behind the answer."""
        held = self._lane(lane_id)
        if held.importing:
            raise errors.error_for(errors.HOME_NOT_READY, "the queue is being taken over from another worker")
        return held

    def _copy_lane(self, request: _Copy) -> dict[str, Any]:
        return self._parts.early.want(request.lane_id, str(request.source), request.bytes_per_s, self._now)

    def _end_copy(self, request: _Lane) -> None:
        self._parts.early.give_up(request.lane_id, self._now)

    def _list_messages(self, page: _Page) -> Any:
        held = self._lane(page.lane_id)
        selects = compile_selector(page.selector) if page.selector else None
        listing = _Listing(page, held, selects)
        self._look_further(listing)
        if listing.answer.is_known:
            return listing.answer.value
        if len(self._listings) >= LISTINGS_MAX:
            raise errors.error_for(errors.OBJECT_IN_USE, f"{LISTINGS_MAX} listings are being made")
        self._listings.append(listing)
        return listing.answer

    def _look_further(self, listing: _Listing) -> None:
        """Look at some more messages; make the answer known when the page is full or the lane ends."""
        held, limit, effort = listing.held, listing.page.limit, self._parts.operators_effort
        examined = 0
        for segment in held.lane.segments_from(listing.upto + 1) if not held.is_gone else ():
            for i in range(max(listing.upto + 1 - segment.first, 0), segment.count):
                if len(listing.rows) >= limit:
                    listing.answer.give(listing.rows)
                    return
                if examined >= EXAMINED_MAX or effort.left <= 0:
                    return
                examined += 1
                listing.upto = segment.first + i
                if segment.state[i] != GONE:
                    self._list_one(listing, segment, i)
        listing.answer.give(listing.rows)

    def _list_one(self, listing: _Listing, segment: Segment, i: int) -> None:
        row, selects = self._row(segment, i), listing.selects
        if selects is not None:
            if row is None:
                return
            is_selected = selects.matches(row)
            self._parts.operators_effort.left -= selects.steps
            if not is_selected:
                return
        self._parts.operators_effort.left -= DESCRIBE_STEPS
        listing.rows.append(self._describe(listing.held, segment, i, row))

    def _row(self, segment: Segment, i: int) -> Row | None:
        """Give a row, None if its block cannot be read."""
        try:
            return self._parts.blocks.row(segment, i, self._parts.operators_effort)
        except errors.UnavailableError:
            return None

    def _describe(self, held: HeldLane, segment: Segment, i: int, row: Row | None) -> dict[str, Any]:
        origin = None if segment.origins is None else segment.origins[i]
        return {
            "position": segment.first + i,
            "topic": None if row is None else row.topic,
            "size_bytes": segment.sizes[i],
            "stored_ms": segment.stored_at_ms(i),
            "expires_ms": held.lane.expires_at_ms(segment, i) or None,
            "priority": segment.priority(i),
            "redeliveries": 0 if segment.tries is None else segment.tries[i],
            "state": held.lane.state_of(segment, i) if row is not None else "damaged",
            "origin": None if origin is None else list(origin),
        }

    def _show_message(self, request: _Message) -> dict[str, Any]:
        held = self._lane(request.lane_id)
        found = held.lane.find(request.position)
        if found is None:
            raise errors.error_for(
                errors.OBJECT_NOT_FOUND, f"there is no message at position {request.position}"
            )
        row = self._row(*found)
        if row is None:
            detail = f"the block of the message at position {request.position} cannot be read"
            raise errors.error_for(errors.SPOOL_DAMAGED, detail)
        return {**self._describe(held, *found, row), **_body(row)}

    # -- lanes that are kept aside ---------------------------------------------------------------------------

    def _aside(self, lane_id: int) -> HeldLane:
        held = self._parts.changes.aside.get(lane_id)
        if held is None:
            raise errors.error_for(errors.OBJECT_NOT_FOUND, f"lane {lane_id} is not kept aside here")
        return held

    def _count_publishers(self, request: _Lane) -> list[tuple[int, str, int]]:
        """Count, of the newest messages, those of each publisher: its number, the sender that it names, how many."""
        lane = self._lane(request.lane_id).lane
        newest: deque[tuple[Segment, int]] = deque(maxlen=PUBLISHED_MAX)
        for segment in lane.segments_from(max(1, lane.next_position - PUBLISHED_LOOKED)):
            newest.extend((segment, i) for i in range(segment.count) if segment.state[i] != GONE)
        found: Counter[tuple[int, str]] = Counter()
        for segment, i in newest:
            if self._parts.operators_effort.left <= 0:
                break
            self._parts.operators_effort.left -= DESCRIBE_STEPS
            row = self._row(segment, i)
            sender = "" if row is None else _sender_of(row)
            found[segment.publisher(i), sender] += 1
        return [(number, sender, count) for (number, sender), count in found.items()]

    def _show_aside(self, _request: _Nothing) -> list[dict[str, Any]]:
        return self._parts.changes.aside.describe()

    def _read_aside(self, request: _Reading) -> dict[str, Any]:
        """Give the next messages with their bodies, as many as one answer may have, and whether that is all."""
        held = self._aside(request.lane_id)
        rows: list[dict[str, Any]] = []
        size, upto = 0, request.after
        for segment in held.lane.segments_from(request.after + 1):
            for i in range(max(request.after + 1 - segment.first, 0), segment.count):
                if size >= READ_BYTES or len(rows) >= PAGE_MAX:
                    return {"rows": rows, "upto": upto, "end": False}
                upto = segment.first + i
                if segment.state[i] != GONE:
                    row = self._row(segment, i)
                    size += segment.sizes[i]
                    rows.append({**self._describe(held, segment, i, row), **_body(row)})
        return {"rows": rows, "upto": upto, "end": True}

    def _delete_aside(self, request: _Lane) -> Answer:
        self._aside(request.lane_id)
        messages = self._parts.changes.delete_aside(request.lane_id, self._now, self._wall_ms)
        return self._when_durable(messages, with_everything=False)

    # -- changes ---------------------------------------------------------------------------------------------

    def _purge(self, request: _Lane) -> Answer:
        messages = self._parts.changes.purge(self._lane(request.lane_id), self._now)
        return self._when_durable(messages, with_everything=False)

    def _release(self, request: _Lane) -> Answer:
        held = self._whole_lane(request.lane_id)
        return self._when_durable(self._parts.leases.release(held, self._now, self._wall_ms))

    def _delete_messages(self, request: _Positions) -> Answer:
        held = self._whole_lane(request.lane_id)
        before = held.lane.messages
        for position in request.positions:
            found = held.lane.find(position)
            if found is not None:
                held.lane.gone(*found)
        self._parts.moves.count(held)
        self._parts.lanes.touched[held] = None
        self._parts.serving.collect(held)
        return self._when_durable(before - held.lane.messages)

    def _when_durable(self, value: Any, *, with_everything: bool = True) -> Answer:
        """Answer when the rows of lanes are on disk as they are, and if asked for, what lanes got and lost so far."""
        answer = Answer()
        self._parts.writing.add(Task(AnswerDurable(answer, value), with_everything=with_everything))
        return answer

    def durable(self, event: AnswerDurable) -> None:
        """Make an answer known."""
        event.answer.give(event.value)

    # -- jobs ------------------------------------------------------------------------------------------------

    def _move(self, request: _Move) -> dict[str, int] | None:
        kind = KIND_COPY if request.copy else KIND_MOVE
        return self._begin_move(self._whole_lane(request.lane_id), kind, request.target, request)

    def _redrive(self, request: _Redrive) -> dict[str, int] | None:
        return self._begin_move(self._whole_lane(request.lane_id), KIND_REDRIVE, None, request)

    def _begin_move(
        self, held: HeldLane, kind: str, target: tuple[str, str, str] | None, request: _Redrive
    ) -> dict[str, int] | None:
        settings = held.lane.settings
        if target == (settings.kind, settings.vpn, settings.name):
            raise errors.invalid(f"{settings.name!r} is source and target")
        mover = self._parts.moves.mover(held)
        if mover.job is not None:
            detail = f"job {mover.job.id} still works on the messages of {settings.name!r}"
            raise errors.error_for(errors.OBJECT_IN_USE, detail)
        job = MoveJob(self._parts.jobs.next_id(), kind, held, target, request.limit)
        job.select(request.selector)
        if request.positions is not None:
            job.pick(request.positions)
        if request.check:
            return None
        mover.job = job
        self._parts.jobs.add(job)
        return {"job": job.id}

    def _show_job(self, request: _JobNumber) -> dict[str, Any]:
        return self._parts.jobs.get(request.job).report()

    def _verify(self, _request: _Nothing) -> dict[str, int]:
        parts = self._parts
        check = CheckJob(parts.jobs.next_id(), [block.id for block in parts.blocks.in_order()])
        self._checks.append(check)
        return self._add(check)

    def _backup(self, request: _Backup) -> dict[str, int]:
        parts = self._parts
        if not parts.moves.is_open or parts.adoptions.has_work:
            # What is still in the spool of a worker that has left is in no copy.
            raise errors.error_for(errors.HOME_NOT_READY, "it does not have all of its queues yet")
        backup = BackupJob(parts.jobs.next_id(), request.directory, parts.pending.serial)
        parts.pending.flush()
        self._backups.append(backup)
        return self._add(backup)

    def _add(self, job: Job) -> dict[str, int]:
        self._parts.jobs.add(job)
        return {"job": job.id}

    # -- metrics ---------------------------------------------------------------------------------------------

    def _show_stats(self, request: _Lane) -> dict[str, Any]:
        return lane_metrics(self._lane(request.lane_id))

    def _show_spool(self, _request: _Nothing) -> dict[str, Any]:
        return self._metrics()


def _sender_of(row: Row) -> str:
    """Give the sender that a message names; gateways name their clients there."""
    sender = unpack_properties(row.properties).get(HEADER_KEYS["sender_id"])
    return sender if isinstance(sender, str) else ""


def _body(row: Row | None) -> dict[str, Any]:
    """Give what a message says itself; nothing of one that cannot be read."""
    return {} if row is None else {"flags": row.flags, "properties": row.properties, "payload": row.payload}


def lane_metrics(held: HeldLane) -> dict[str, Any]:
    """Give the metrics of a lane: numbers, and the reader group that has leased it.

    What begins with `total_` or names an event counts since the worker started; the rest is how things are now.
    `docs/metrics.md` explains each.
    """
    stats = held.lane.stats()
    counts = held.counts
    oldest = next(iter(held.lane.segments), None)
    metrics = {metric: stats[name] for metric, name in _OF_THE_LANE.items()}
    metrics.update((metric, stats[name] + counts.get(metric, 0)) for metric, name in _DISCARDS.items())
    metrics.update((metric, counts.get(metric, 0)) for metric in _OF_THE_HOME)
    lease = held.lane.lease
    return {
        **metrics,
        "reader_group": "" if lease is None else lease.group,
        "leased_messages": 0 if lease is None else lease.out.count,
        "lease_lost_messages": 0 if lease is None else lease.lost,
        "longest_lease_s": 0 if lease is None else round(lease.lease_s),
        "oldest_lease_ms": 0 if lease is None else lease.epoch,
        "messages_staged": held.staged[0],
        "bytes_staged": held.staged[1],
        "high_water_mark_messages": held.peak_messages,
        "high_water_mark_bytes": held.peak_bytes,
        "oldest_position": 0 if oldest is None else oldest.oldest_position,
        "newest_position": held.accepted,
    }
