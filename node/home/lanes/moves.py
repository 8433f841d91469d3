"""Moves: dead messages go to the dead message queue, others where an operator wants them.

Every move is a publish: the home asks the router to publish rows as the internal producer
of their lane, through the same admission as everybody, and deletes them when they are acknowledged. What is
under way is on disk before it is asked for, and is asked for again with the same sequences after a restart;
the records of the internal producer make that exactly once. One MOVE per lane is under way.

A step of a lane, from `Mover.intent`:

    none -> chosen (being written) -> asked (MOVE sent) -> answered (being written) -> none

Rows that were refused are kept. Dead ones are tried again, later and under new sequences, because a refused
sequence keeps its verdict; a dead message whose queue does not exist is deleted.

The row of a lane in MOVES: [format, next sequence, intent or nil, job or nil]; the intent is
[first sequence, kind, target, positions, reasons].

No I/O, no clock; `node.home.home` uses this.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from angarium import errors, wire
from angarium_server.frames.frame import encode
from angarium_server.frames.homes import MoveFrame
from node.home.lanes.jobs import KIND_COPY
from node.home.spool import layout
from node.home.spool.writing import Task
from storage.spool import Table

if TYPE_CHECKING:
    from node.backlog.segment import Segment
    from node.home.lanes.jobs import MoveJob, MoveJobs
    from node.home.lanes.outbox import Outbox
    from node.home.spool.blocks import Blocks
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.writing import Writing
    from storage.spool import Change

#: Rows of one MOVE: the router takes 2 ms for them, in which no message of a client passes.
MOVE_ROWS: Final = 100
#: Spool bytes of one MOVE; a larger row goes alone.
MOVE_BYTES: Final = 1 << 20
#: MOVEs of a home that are under way: more would make the messages of clients wait behind them. One whose target does
#: not answer is not counted for longer than this time, so that it holds up no other.
MOVES_MAX: Final = 2
COUNTED_S: Final = 0.5
#: Dead messages that a lane has here at a time; the others wait in the lane.
DEAD_HERE_MAX: Final = 1_000
#: What was refused is tried again after this time, doubled each time.
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
#: A retiring partition looks again for messages that consumers gave back.
RETIRING_LOOK_S: Final = 1.0

KIND_DEAD: Final = "dead"
#: To the other partitions of the endpoint, because this one was taken away.
KIND_RETIRE: Final = "retire"
#: The target of `KIND_RETIRE` begins with it.
LANE_HOME: Final = "lane-home"

#: Why a message is dead -> what the counters of docs/metrics.md call it.
_REJECTED: Final = "rejected"
_CAUSES: Final = {"expired": "ttl_expired", "redeliveries": "max_redelivery_exceeded", _REJECTED: "rejected"}
_FORMAT: Final = 1

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class Intent:
    """Rows that are on their way to somewhere else."""

    __slots__ = (
        "first",
        "is_answered",
        "is_durable",
        "kind",
        "positions",
        "reasons",
        "refused",
        "sent_upto",
        "target",
    )

    def __init__(
        self, first: int, kind: str, target: tuple[Any, ...], positions: list[int], reasons: list[str]
    ) -> None:
        #: Sequence of the first position; the others follow in order.
        self.first = first
        self.kind = kind
        #: Kind, Message VPN and name of an endpoint, or `LANE_HOME` and an endpoint id.
        self.target = target
        self.positions = positions
        #: What the origin of each row will say.
        self.reasons = reasons
        #: Sequence -> code, as far as the router answered; also of what cannot be read, which it is not asked for.
        self.refused: dict[int, int] = {}
        #: The last sequence that was sent: the last messages may have gone before, by an operator for instance.
        self.sent_upto = self.last
        self.is_durable = False
        #: Whether the answer is being written.
        self.is_answered = False

    @property
    def last(self) -> int:
        """The last sequence."""
        return self.first + len(self.positions) - 1

    def is_unreadable(self, index: int) -> bool:
        """Tell whether the block of a row cannot be read: it stays where it is, and in nobody's way."""
        return self.refused.get(self.first + index) == errors.SPOOL_DAMAGED


class Mover:
    """The moves of one lane."""

    __slots__ = ("dead", "held", "intent", "is_job_turn", "job", "next_sequence", "retry_at", "retry_s")

    def __init__(self, held: HeldLane) -> None:
        self.held = held
        #: No MOVE had this sequence or a higher one.
        self.next_sequence = 1
        #: What is under way; None: nothing.
        self.intent: Intent | None = None
        #: Dead messages that wait, as (position, why), oldest first.
        self.dead: deque[tuple[int, str]] = deque()
        #: What an operator asked for.
        self.job: MoveJob | None = None
        #: Whether the job comes before what moves by itself.
        self.is_job_turn = False
        #: Nothing that moves by itself is begun before; the delay grows with each refusal.
        self.retry_at = 0.0
        self.retry_s = RETRY_S

    def row(self, *, intent: Intent | None) -> bytes:
        """Pack the row of MOVES with the intent that is under way from now on."""
        packed_intent = None
        if intent is not None:
            packed_intent = [intent.first, intent.kind, intent.target, intent.positions, intent.reasons]
        packed: bytes = _pack([_FORMAT, self.next_sequence, packed_intent, self.job and self.job.pack()])
        return packed

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert len(self.dead) <= DEAD_HERE_MAX + MOVE_ROWS
        if self.intent is not None:
            # One that was begun by an earlier version, and is on disk, may have more than MOVE_ROWS.
            assert 1 <= len(self.intent.positions) <= wire.PRODUCER_WINDOW_MAX
            assert len(self.intent.reasons) == len(self.intent.positions)
            assert self.intent.last < self.next_sequence


class MoveChosen(NamedTuple):
    """The choice of rows is durable: the router may be asked for the move."""

    mover: Mover
    intent: Intent


class MoveEnded(NamedTuple):
    """What became of the rows is durable: the lane may begin its next move."""

    mover: Mover
    intent: Intent


class Moves:
    """The moves of all lanes of a home."""

    def __init__(
        self,
        lanes: HeldLanes,
        blocks: Blocks,
        writing: Writing,
        jobs: MoveJobs,
        outbox: Outbox,
    ) -> None:
        """Make the moves of a home without lanes; `jobs` are what operators asked for."""
        self._lanes = lanes
        self._blocks = blocks
        self._writing = writing
        self._jobs = jobs
        self._outbox = outbox
        self._movers: dict[int, Mover] = {}
        #: Lanes that may have something to begin.
        self.busy: dict[int, None] = {}
        #: Lanes whose MOVE is under way and counted, with when it was begun; the oldest first.
        self._counted: dict[int, float] = {}
        #: Whether there is a router that knows where messages go.
        self.is_open = False
        self._now = 0.0
        self._wall_ms = 0
        self._counts = dict.fromkeys(("moves_sent", "rows_moved", "rows_refused", "moves_stale"), 0)
        #: Reason -> dead messages that were deleted, since no dead message queue was to take them, or there was none.
        self.discards: Counter[str] = Counter()

    # -- what is to be moved ---------------------------------------------------------------------------------

    def load(self, lane_id: int, value: bytes) -> None:
        """Take up what was under way when the process before ended.

        Raises:
            UnavailableError: the row is damaged (50322).
        """
        held = self._lanes.get(lane_id)
        assert held is not None
        version, next_sequence, intent, job = layout.unpack(value, 4, f"the moves of lane {lane_id}")
        if version != _FORMAT:
            raise layout.damaged(f"moves of format {version}, this program reads {_FORMAT}")
        mover = self.mover(held)
        mover.next_sequence = next_sequence
        if intent is not None:
            first, kind, target, positions, reasons = intent
            mover.intent = Intent(first, kind, tuple(target), positions, reasons)
            mover.intent.is_durable = True
            if kind not in (KIND_DEAD, KIND_COPY):
                for position in positions:
                    found = held.lane.find(position)
                    if found is not None:
                        held.lane.take(*found)
        if job is not None:
            mover.job = self._jobs.load(held, job)
        self.count(held)
        if mover.intent is not None and self.is_open:
            self._send(mover, mover.intent)

    def mover(self, held: HeldLane) -> Mover:
        """Give the mover of a lane, made when it is first needed; it will be looked at."""
        mover = self._movers.get(held.lane_id)
        if mover is None:
            mover = self._movers[held.lane_id] = Mover(held)
        self.busy[held.lane_id] = None
        return mover

    def take_dead(self, held: HeldLane) -> None:
        """Take up what died in a lane, as far as there is room."""
        if held.is_parting:
            return
        if held.is_retiring and held.lane.messages:
            self.mover(held)
        mover = self._movers.get(held.lane_id)
        room = DEAD_HERE_MAX - (0 if mover is None else len(mover.dead))
        if room <= 0:
            return
        dead = [(segment.first + i, reason) for segment, i, reason in held.lane.take_dead(room)]
        if not dead:
            return
        mover = self.mover(held)
        if mover.intent is not None and mover.intent.kind == KIND_DEAD:
            # After a restart the lane tells those again that are under way. What is copied dies like any other.
            under_way = frozenset(mover.intent.positions)
            dead = [one for one in dead if one[0] not in under_way]
        mover.dead.extend(dead)

    def look_at(self, held: HeldLane) -> None:
        """Look at a lane whose settings changed: its partition may have been taken away."""
        held.is_retiring = held.partition >= max(held.lane.settings.partitions, 1)
        if held.is_retiring:
            self.mover(held)

    def drop(self, held: HeldLane) -> None:
        """Forget a lane that is deleted."""
        self._let_go(held, errors.UNKNOWN_ENDPOINT, "the endpoint was deleted")

    def part(self, held: HeldLane) -> None:
        """Leave what is under way in a lane to the worker that takes it over."""
        self._let_go(held, errors.HOME_NOT_READY, "another worker takes the queue over, and goes on with it")

    def _let_go(self, held: HeldLane, code: int, why: str) -> None:
        mover = self._movers.pop(held.lane_id, None)
        self.busy.pop(held.lane_id, None)
        self._counted.pop(held.lane_id, None)
        if mover is not None and mover.job is not None:
            mover.job.fail(code, why)

    # -- steps -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask the router again for everything that is under way: it is new, or we are."""
        self.is_open = True
        for mover in self._movers.values():
            if mover.intent is not None and mover.intent.is_durable and not mover.intent.is_answered:
                mover.intent.refused = {}
                self._send(mover, mover.intent)

    def work(self, now: float, wall_ms: int) -> None:
        """Begin what can begin."""
        self._now, self._wall_ms = now, wall_ms
        if not self.is_open:
            return
        while (oldest := next(iter(self._counted.items()), None)) and oldest[1] + COUNTED_S <= now:
            del self._counted[oldest[0]]
        for lane_id in list(self.busy):
            if len(self._counted) >= MOVES_MAX:
                break
            mover = self._movers[lane_id]
            if mover.intent is not None:
                del self.busy[lane_id]
            elif mover.job is not None or mover.retry_at <= now:
                # Behind the others from now on: the next turn has effort for them first.
                self.busy[lane_id] = self.busy.pop(lane_id)
                self._begin(mover)

    def next_due(self) -> float | None:
        """Give when something can begin; None if nothing waits."""
        if not self.is_open:
            return None
        if len(self._counted) >= MOVES_MAX:
            return next(iter(self._counted.values())) + COUNTED_S
        movers = [self._movers[lane_id] for lane_id in self.busy]
        return min((0.0 if mover.job is not None else mover.retry_at for mover in movers), default=None)

    def _begin(self, mover: Mover) -> None:
        """Choose rows for the next MOVE, and have the choice written; or find that there is nothing to do."""
        held = mover.held
        self.take_dead(held)
        # An operator and what moves by itself take turns.
        intent = self._job_intent(mover) if mover.is_job_turn else None
        if intent is None and mover.retry_at <= self._now:
            intent = self._dead_intent(mover) or self._retiring_intent(mover)
        if intent is None and not mover.is_job_turn:
            intent = self._job_intent(mover)
        mover.is_job_turn = not mover.is_job_turn
        if intent is not None:
            mover.intent = intent
            mover.next_sequence = intent.last + 1
            self._counted[held.lane_id] = self._now
            self._writing.collect(held, self._now)
            self._write(mover, mover.row(intent=intent), MoveChosen(mover, intent))
        elif not (mover.dead or mover.job or (held.is_retiring and held.lane.messages)):
            del self.busy[held.lane_id]

    def _job_intent(self, mover: Mover) -> Intent | None:
        """Give the next step of a job, None if it has none now; end it if it is over."""
        if mover.job is None:
            return None
        chosen = self._jobs.choose(mover.job)
        if chosen is not None:
            return Intent(mover.next_sequence, mover.job.kind, *chosen)
        if mover.job.is_over:
            mover.job = None
            self._write(mover, mover.row(intent=None))
        return None

    def _retiring_intent(self, mover: Mover) -> Intent | None:
        """Give the next step of a partition that was taken away."""
        if not mover.held.is_retiring:
            return None
        positions = retiring_positions(mover.held)
        if not positions:
            mover.retry_at = self._now + RETIRING_LOOK_S
            return None
        target = (LANE_HOME, mover.held.lane_id >> wire.LANE_BITS)
        return Intent(mover.next_sequence, KIND_RETIRE, target, positions, [""] * len(positions))

    def _dead_intent(self, mover: Mover) -> Intent | None:
        """Choose dead rows; those that were removed meanwhile are forgotten."""
        lane = mover.held.lane
        positions: list[int] = []
        reasons: list[str] = []
        size = 0
        while mover.dead and len(positions) < MOVE_ROWS and size < MOVE_BYTES:
            position, reason = mover.dead.popleft()
            found = lane.find(position)
            if found is not None:
                positions.append(position)
                reasons.append(reason)
                size += found[0].sizes[found[1]]
        if not positions:
            return None
        target = ("queue", lane.settings.vpn, lane.settings.dead_message_queue)
        return Intent(mover.next_sequence, KIND_DEAD, target, positions, reasons)

    def _write(self, mover: Mover, row: bytes, event: MoveChosen | MoveEnded | None = None) -> None:
        change: Change = (Table.MOVES, layout.number_key(mover.held.lane_id), row)
        self._writing.add(Task(event, [change], with_everything=True))

    def chosen(self, event: MoveChosen) -> None:
        """Ask for a move that is durable now."""
        mover, intent = event
        intent.is_durable = True
        if mover.intent is intent and self.is_open and self._movers.get(mover.held.lane_id) is mover:
            self._send(mover, intent)

    def _send(self, mover: Mover, intent: Intent) -> None:
        """Put a MOVE together; rows that are not there any more are left out."""
        held = mover.held
        settings = held.lane.settings
        rows: list[tuple[Any, ...]] = []
        origins: list[tuple[str, str, str] | None] = []
        publishers: dict[int, int] = {}
        pasts: dict[int, tuple[int, int, int, int]] = {}
        file: int | None = None
        for index, (position, reason) in enumerate(zip(intent.positions, intent.reasons, strict=True)):
            found = held.lane.find(position)
            if not found:
                continue
            row = self._row(held, *found, index, intent.kind, reason)
            if row is None:
                intent.refused[intent.first + index] = errors.SPOOL_DAMAGED
                continue
            rows.append(row)
            # All rows go on in the spool file of the oldest; what is copied is new, and gets another one.
            if file is None and intent.kind != KIND_COPY:
                file = found[0].file
            publisher = found[0].publisher(found[1])
            if publisher:
                publishers[index] = publisher
            if intent.kind == KIND_RETIRE:
                origins.append(_origin_of(*found))
                pasts[index] = _past_of(*found)
            else:
                origins.append((settings.kind, settings.name, reason))
        self._tell_unreadable(held, list(intent.refused.values()).count(errors.SPOOL_DAMAGED))
        self.count(held)
        if not rows:
            self._answer(mover, intent)
            return
        self._counts["moves_sent"] += 1
        intent.sent_upto = intent.first + rows[-1][wire.ROW_INDEX]
        move = MoveFrame(
            self._outbox.incarnation,
            held.lane_id,
            intent.first,
            intent.target,
            len(rows),
            origins,
            publishers,
            pasts,
            file,
        )
        self._outbox.move(move, encode(rows))

    def _tell_unreadable(self, held: HeldLane, rows: int) -> None:
        if rows:
            settings = held.lane.settings
            held.count("messages_unreadable", rows)
            text = f"{rows} messages of {settings.kind} {settings.name!r} cannot be moved: their blocks are damaged"
            self._outbox.event("error", "SYSTEM_AD_MESSAGES_UNREADABLE", text)

    def count(self, held: HeldLane) -> None:
        """Count what of a move is in the figures of its lane; messages of it may have gone otherwise."""
        mover = self._movers.get(held.lane_id)
        intent = None if mover is None else mover.intent
        if intent is None or intent.kind == KIND_COPY or not intent.is_durable or intent.is_answered:
            return
        leaving = [at for index, at in enumerate(intent.positions) if not intent.is_unreadable(index)]
        sizes = [one[0].sizes[one[1]] for one in map(held.lane.find, leaving) if one is not None]
        held.moving = intent.first, len(sizes), sum(sizes)

    def _row(
        self, held: HeldLane, segment: Segment, i: int, index: int, kind: str, reason: str
    ) -> tuple[Any, ...] | None:
        """Give a row with its index in the MOVE; None if its block cannot be read."""
        block = self._blocks.get(segment.block)
        assert block is not None
        try:
            row = self._blocks.rows(block)[segment.row_in_block(i)]
        except errors.UnavailableError:
            return None
        meta = row.meta
        if meta is not None and kind != KIND_RETIRE:
            times = _times_left(segment, i, self._wall_ms)
            if kind == KIND_DEAD and not _is_tried_again(held, reason):
                times = (0, 0)
            meta = (*times, meta[2], meta[3])
        return index, row.topic, row.flags, meta, row.properties, row.payload

    # -- answers ---------------------------------------------------------------------------------------------

    def moved(self, lane_id: int, first: int, upto: int, refused: list[tuple[int, int]]) -> None:
        """Take the answer of the router to a MOVE."""
        mover = self._movers.get(lane_id)
        intent = None if mover is None else mover.intent
        if (
            mover is None
            or intent is None
            or intent.first != first
            or not intent.is_durable
            or intent.is_answered
        ):
            self._counts["moves_stale"] += 1
            return
        intent.refused.update(refused)
        if upto >= intent.sent_upto:
            self._answer(mover, intent)

    def _answer(self, mover: Mover, intent: Intent) -> None:
        """Delete what was acknowledged, keep what was refused, and have both written at once."""
        intent.is_answered = True
        refused_dead: list[tuple[int, str]] = []
        for index, (position, reason) in enumerate(zip(intent.positions, intent.reasons, strict=True)):
            code = intent.refused.get(intent.first + index, 0)
            if intent.is_unreadable(index):
                continue  # it is tried again after a restart, like one that cannot be delivered
            if intent.kind == KIND_DEAD:
                if not self._end_dead(mover.held, position, reason, code):
                    refused_dead.append((position, reason))
            else:
                self._end_other(mover, intent, position, code)
        mover.dead.extendleft(reversed(refused_dead))
        is_retried = bool(refused_dead) or (intent.kind == KIND_RETIRE and bool(intent.refused))
        mover.retry_at = self._now + mover.retry_s if is_retried else 0.0
        mover.retry_s = min(mover.retry_s * 2, RETRY_MAX_S) if is_retried else RETRY_S
        if mover.job is not None:
            self._jobs.answered(mover.job, intent)
        self._writing.collect(mover.held, self._now)
        self._lanes.touched[mover.held] = None
        self._write(mover, mover.row(intent=None), MoveEnded(mover, intent))

    def _end_dead(self, held: HeldLane, position: int, reason: str, code: int) -> bool:
        """End the move of a dead message; False if it stays and is tried again."""
        cause = _CAUSES[reason]
        found = held.lane.find(position)
        if code and code != errors.UNKNOWN_ENDPOINT:
            held.count(f"{cause}_to_dmq_failures")
            self._counts["rows_refused"] += 1
            return found is None
        held.count(f"{cause}_discard" if code else f"{cause}_to_dmq")
        self.discards[reason] += bool(code)
        self._counts["rows_moved"] += not code
        if found is not None:
            held.lane.gone(*found)
        return True

    def _end_other(self, mover: Mover, intent: Intent, position: int, code: int) -> None:
        self._counts["rows_refused" if code else "rows_moved"] += 1
        found = mover.held.lane.find(position)
        if found is None or intent.kind == KIND_COPY:
            return
        if code and _is_dead(*found):
            return  # it may have been sent before a crash, and is sent once only: its move is the next
        if code:
            mover.held.lane.kept(*found, self._now, self._wall_ms)
        else:
            mover.held.lane.gone(*found)

    def ended(self, event: MoveEnded) -> None:
        """Take note that the end of a move is durable; the next one may begin."""
        mover, intent = event
        if mover.intent is intent:
            mover.intent = None
            mover.held.moving = None
            self._counted.pop(mover.held.lane_id, None)
            if self._movers.get(mover.held.lane_id) is mover:
                self.busy[mover.held.lane_id] = None
                self._lanes.changed[mover.held] = None
                # Before the next MOVE of the lane: the router counts this one by it.
                self._lanes.is_urgent = True

    def stats(self) -> dict[str, int]:
        """Give counters, and how many lanes have something under way."""
        under_way = sum(mover.intent is not None for mover in self._movers.values())
        discards = {f"{cause}_discard": self.discards[reason] for reason, cause in _CAUSES.items()}
        return {**self._counts, **discards, "moves_under_way": under_way}

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        for lane_id, mover in self._movers.items():
            assert self._lanes.get(lane_id) is mover.held
            mover.validate()
        assert all(lane_id in self._movers for lane_id in self.busy)
        assert len(self._counted) <= MOVES_MAX
        assert all(self._movers[lane_id].intent is not None for lane_id in self._counted)


def retiring_positions(held: HeldLane) -> list[int]:
    """Take the oldest messages of a partition that was taken away, to publish them to the others."""
    positions: list[int] = []
    size = 0
    for segment in held.lane.segments:
        for i in range(segment.count):
            if len(positions) >= MOVE_ROWS or size >= MOVE_BYTES:
                return positions
            if held.lane.take(segment, i):
                positions.append(segment.first + i)
                size += segment.sizes[i]
    return positions


def _origin_of(segment: Segment, i: int) -> tuple[str, str, str] | None:
    return None if segment.origins is None else segment.origins[i]


def _past_of(segment: Segment, i: int) -> tuple[int, int, int, int]:
    """Give what goes along with a message inside its endpoint, as `give_past` takes it."""
    tries = segment.tries[i] if segment.tries is not None else 0
    expires = segment.expires[i] if segment.expires is not None else 0
    due = segment.due[i] if segment.due is not None else 0
    return tries, segment.stored_at_ms(i), expires, due


def _is_dead(segment: Segment, i: int) -> bool:
    """Tell whether a message waits for its move to the dead message queue."""
    return segment.dead is not None and segment.dead[i] > 0


def _is_tried_again(held: HeldLane, reason: str) -> bool:
    """Tell whether a message is not dead yet: a neighbour refused it, and it waits for another try (R199)."""
    target = held.lane.settings.dead_message_queue
    return (
        reason == _REJECTED
        and target.startswith(wire.LINK_NAME_PREFIX)
        and target.endswith(wire.LINK_RETRY_SUFFIX)
    )


def _times_left(segment: Segment, i: int, wall_ms: int) -> tuple[int, int]:
    """Give what is left of the time to live and of the delay of a message; they go on where it goes."""
    expires = segment.expires[i] if segment.expires is not None else 0
    due = segment.due[i] if segment.due is not None else 0
    return (max(expires - wall_ms, 1) if expires else 0), max(due - wall_ms, 0)
