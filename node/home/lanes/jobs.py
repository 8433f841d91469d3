"""What operators ask for and what takes a while: moves, copies, redrives, a check of all blocks, a backup.

A job works in bounded steps beside the messages of clients, and tells how far it is. A job that moves
messages is stored beside the move that is under way, so it goes on after a restart where it was. One such job
at a time works on a lane.

No I/O, no clock; `node.home.operations` begins jobs, `node.home.lanes.moves` and `node.home.home` drive them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from node.backlog.segment import GONE, MOVING
from node.home.spool import layout
from node.selectors import compile_selector
from storage.spool import Table

if TYPE_CHECKING:
    from node.backlog.segment import Segment
    from node.endpoints.effort import Effort
    from node.home.spool.blocks import Blocks
    from node.home.spool.held_lanes import HeldLane
    from node.selectors import Selector
    from storage.spool import Spool

#: Jobs that are remembered after their end; the oldest is forgotten first.
ENDED_MAX: Final = 100
#: Jobs that run at the same time.
RUNNING_MAX: Final = 100
#: Messages that a job looks at in one step, and what it costs to look at one from outside, in steps of `Effort`.
LOOKED_AT_MAX: Final = 1_000
LOOK_STEPS: Final = 500
#: Rows and spool bytes of one step.
STEP_ROWS: Final = 255
STEP_BYTES: Final = 1 << 20
#: Bytes of blocks that a check reads in one step.
CHECKED_BYTES: Final = 4 << 20
#: A job's number is the incarnation of its worker shifted by so many bits, plus a count.
JOB_BITS: Final = 20

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"

KIND_MOVE: Final = "move"
KIND_COPY: Final = "copy"
KIND_REDRIVE: Final = "redrive"
#: Kind -> what the origin of a row says.
_REASONS: Final = {KIND_MOVE: "moved", KIND_COPY: "copied", KIND_REDRIVE: "redriven"}
#: What is not sent back: the original of a copy is where it was, and what was redriven is where it belongs.
_STAYING: Final = frozenset({_REASONS[KIND_COPY], _REASONS[KIND_REDRIVE]})

Target = tuple[str, str, str]


class Job:
    """How far something is."""

    __slots__ = ("done", "error", "id", "kept", "kind", "refused", "state", "total", "vpn")

    def __init__(self, job_id: int, kind: str, total: int, vpn: str = "") -> None:
        self.id = job_id
        #: Of what it is about; empty: it is about the whole spool.
        self.vpn = vpn
        self.kind = kind
        #: `RUNNING`, `DONE` or `FAILED`; the last two are final.
        self.state = RUNNING
        #: What is done, of how many; for moves messages, for checks blocks. The total is what it looked like at first.
        self.done = 0
        self.total = total
        #: Messages that a target refused, or blocks that are damaged.
        self.refused = 0
        #: Messages that stay because they came from no other endpoint; only a redrive asks for that.
        self.kept = 0
        #: Code and text of the last refusal, or of what ended it; None: nothing went wrong.
        self.error: tuple[int, str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it does nothing any more."""
        return self.state != RUNNING

    def end(self) -> None:
        """End it in order."""
        self.state = DONE

    def fail(self, code: int, detail: str) -> None:
        """End it, because it cannot go on."""
        self.state = FAILED
        self.error = (code, detail)

    def report(self) -> dict[str, Any]:
        """Give what operators see."""
        return {
            "job": self.id,
            "vpn": self.vpn,
            "kind": self.kind,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "refused": self.refused,
            "kept": self.kept,
            "error": None if self.error is None else list(self.error),
        }


class MoveJob(Job):
    """Messages of one lane on their way to other endpoints."""

    __slots__ = ("cursor", "held", "limit", "positions", "refusing", "selector", "selects", "target", "upto")

    def __init__(
        self, job_id: int, kind: str, held: HeldLane, target: Target | None, limit: int | None
    ) -> None:
        messages = held.lane.messages
        total = messages if limit is None else min(limit, messages)
        super().__init__(job_id, kind, total, held.lane.settings.vpn)
        self.held = held
        #: Where to; None: each message back to where it came from.
        self.target = target
        self.limit = limit
        self.selector: str | None = None
        self.selects: Selector | None = None
        #: Those that were chosen one by one, in order; None: all.
        self.positions: list[int] | None = None
        #: Messages below it are done, or stay.
        self.cursor = 1
        #: Messages above it came later; they stay.
        self.upto = held.accepted
        #: Targets that refused a message, with the code; they are not asked again.
        self.refusing: dict[Target, int] = {}

    def select(self, selector: str | None) -> None:
        """Take only what a selector selects.

        Raises:
            InvalidRequestError: it is invalid (40601).
        """
        self.selector = selector or None
        self.selects = compile_selector(selector) if selector else None

    def pick(self, positions: list[int]) -> None:
        """Take only the messages at these positions, as far as they are there."""
        self.positions = sorted(set(positions))
        self.total = min(self.total, len(self.positions))
        self.upto = min(self.upto, self.positions[-1])

    def next_chosen(self, position: int) -> int:
        """Give the first position from this one on whose message is chosen; one above `upto` if there is none."""
        if self.positions is None:
            return position
        at = bisect_left(self.positions, position)
        return self.positions[at] if at < len(self.positions) else self.upto + 1

    def pack(self) -> list[Any]:
        """Give what is stored of it."""
        numbers = [self.limit, self.cursor, self.upto, self.done, self.refused, self.kept, self.total]
        chosen = [] if self.positions is None else [self.positions]
        return [self.id, self.kind, self.target, self.selector, *numbers, *chosen]

    @property
    def left(self) -> int:
        """How many messages it may still take."""
        return STEP_ROWS if self.limit is None else self.limit - self.done


class MoveJobs:
    """The steps of jobs that move messages, and the list of all jobs."""

    def __init__(self, blocks: Blocks, incarnation: int, effort: Effort) -> None:
        self._blocks = blocks
        self._effort = effort
        self._next_id = (incarnation << JOB_BITS) + 1
        #: Number -> job, the oldest first; running ones and at most `ENDED_MAX` others.
        self._jobs: dict[int, Job] = {}

    def next_id(self) -> int:
        """Give a number for a job.

        Raises:
            ConflictError: too many run (40902).
        """
        running = sum(not job.is_over for job in self._jobs.values())
        if running >= RUNNING_MAX:
            raise errors.error_for(errors.OBJECT_IN_USE, f"{running} jobs run already")
        self._next_id += 1
        return self._next_id - 1

    def add(self, job: Job) -> None:
        """Remember a job."""
        self._jobs[job.id] = job
        ended = [job_id for job_id, one in self._jobs.items() if one.is_over]
        for job_id in ended[: max(len(ended) - ENDED_MAX, 0)]:
            del self._jobs[job_id]

    def get(self, job_id: int) -> Job:
        """Give a job by its number.

        Raises:
            NotFoundError: it ended long ago, or never was (40401).
        """
        job = self._jobs.get(job_id)
        if job is None:
            raise errors.error_for(errors.OBJECT_NOT_FOUND, f"job {job_id}")
        return job

    def load(self, held: HeldLane, row: list[Any]) -> MoveJob:
        """Go on with a job that an earlier process began; one that counted no `kept` has a number less."""
        positions = row[-1] if isinstance(row[-1], list) else None
        row = row if positions is None else row[:-1]
        job_id, kind, target, selector, limit, cursor, upto, done, refused, *kept, total = row
        job = MoveJob(job_id, kind, held, None if target is None else tuple(target), limit)
        job.select(selector)
        job.positions = positions
        job.cursor, job.upto = cursor, upto
        job.done, job.refused, job.kept, job.total = done, refused, sum(kept), total
        self.add(job)
        return job

    # -- steps -----------------------------------------------------------------------------------------------

    def choose(self, job: MoveJob) -> tuple[Target, list[int], list[str]] | None:
        """Take the next messages of a job: where to, which, and what their origin will say.

        None if there are none now: it is over, or it has to look further in the next step.
        """
        if job.is_over:
            return None
        job.cursor = job.next_chosen(job.cursor)
        if job.left <= 0 or job.cursor > job.upto:
            job.end()
            return None
        step = _Step(job)
        held = job.held
        for segment in held.lane.segments_from(job.cursor):
            for i in range(max(job.cursor - segment.first, 0), segment.count):
                if segment.first + i > job.upto or not (step.may_go_on() and self._effort.left > 0):
                    break
                self._look_at(job, step, segment, i)
            else:
                continue
            break
        else:
            step.is_at_end = True
        job.cursor = step.cursor()
        # What lies ahead is looked at again.
        job.refused += sum(position < job.cursor for position in step.refused)
        job.kept += sum(position < job.cursor for position in step.kept)
        if step.target is None:
            if job.cursor > job.upto:
                job.end()
            return None
        return step.target, step.positions, [_REASONS[job.kind]] * len(step.positions)

    def _look_at(self, job: MoveJob, step: _Step, segment: Segment, i: int) -> None:
        """Take one message if it is for this step."""
        step.looked_at += 1
        self._effort.left -= LOOK_STEPS
        position = step.newest = segment.first + i
        if segment.state[i] in (GONE, MOVING) or not self._is_selected(job, segment, i):
            return
        target = job.target or _origin_target(job, segment, i)
        if target is None:
            step.kept.append(position)
        elif target in job.refusing:
            step.refused.append(position)
        elif step.target is not None and target != step.target:
            step.leave(position)
        elif job.kind == KIND_COPY or job.held.lane.take(segment, i):
            step.take(position, segment.sizes[i], target)

    def _is_selected(self, job: MoveJob, segment: Segment, i: int) -> bool:
        position = segment.first + i
        if job.next_chosen(position) != position:
            return False
        if job.selects is None:
            return True
        try:
            row = self._blocks.row(segment, i, self._effort)
        except errors.UnavailableError:
            return False
        is_selected = job.selects.matches(row)
        self._effort.left -= job.selects.steps
        return is_selected

    def answered(self, job: MoveJob, intent: Any) -> None:
        """Take note of what became of a step of a job."""
        if intent.kind != job.kind or job.is_over:
            return
        for index, position in enumerate(intent.positions):
            code = intent.refused.get(intent.first + index, 0)
            if code == errors.SPOOL_DAMAGED:
                job.refused += 1
                job.error = (code, f"the message at position {position} cannot be read, and stays")
            elif code:
                # What lies ahead is counted when the job comes by.
                job.refused += position < job.cursor
                job.refusing[intent.target] = code
                job.error = (code, f"{intent.target[0]} {intent.target[2]!r} refused a message")
            else:
                job.done += 1
        if job.target in job.refusing:
            assert job.error is not None
            job.fail(*job.error)

    def stats(self) -> dict[str, int]:
        """Give how many jobs there are."""
        return {"jobs_running": sum(not job.is_over for job in self._jobs.values())}


class _Step:
    """What one step of a job takes."""

    def __init__(self, job: MoveJob) -> None:
        self._rows_max = min(job.left, STEP_ROWS)
        self._upto = job.upto
        self.looked_at = 0
        #: The last position that was looked at.
        self.newest = job.cursor - 1
        #: Whether there was nothing behind it.
        self.is_at_end = False
        #: The first position that belongs to another step; 0: none.
        self._left = 0
        self._size = 0
        self.target: Target | None = None
        self.positions: list[int] = []
        #: Messages whose targets refuse them, and those that came from nowhere else.
        self.refused: list[int] = []
        self.kept: list[int] = []

    def may_go_on(self) -> bool:
        return (
            self.looked_at < LOOKED_AT_MAX
            and len(self.positions) < self._rows_max
            and self._size < STEP_BYTES
        )

    def leave(self, position: int) -> None:
        self._left = self._left or position

    def take(self, position: int, size: int, target: Target) -> None:
        self.target = target
        self.positions.append(position)
        self._size += size

    def cursor(self) -> int:
        """Give where the next step begins."""
        if self._left:
            return self._left
        return self._upto + 1 if self.is_at_end else self.newest + 1


class CheckJob(Job):
    """A check of every block of a home against its checksum (`spool verify`)."""

    __slots__ = ("_left",)

    def __init__(self, job_id: int, blocks: list[int]) -> None:
        super().__init__(job_id, "verify", len(blocks))
        #: Blocks to be checked, the last first.
        self._left = blocks[::-1]

    def step(self, spool: Spool, blocks: Blocks) -> None:
        """Check some more blocks."""
        size = 0
        while self._left and size < CHECKED_BYTES:
            block_id = self._left.pop()
            self.done += 1
            block = blocks.get(block_id)
            if block is None or not blocks.is_on_disk(block):
                continue
            value = spool.get(Table.BLOCKS, layout.number_key(block_id))
            size += 0 if value is None else len(value)
            try:
                layout.open_block(value, block.rows, f"block {block_id}")
            except errors.UnavailableError as error:
                self.refused += 1
                self.error = (error.code, error.detail)
        if not self._left:
            if self.error is None:
                self.end()
            else:
                self.fail(self.error[0], f"{self.refused} blocks are damaged; the last one: {self.error[1]}")


class BackupJob(Job):
    """A copy of the spool into a directory; the shell makes it beside the loop."""

    __slots__ = ("directory", "serial")

    def __init__(self, job_id: int, directory: str, serial: int) -> None:
        super().__init__(job_id, "backup", 1)
        self.directory = directory
        #: The STOREs up to this serial are to be in the copy.
        self.serial = serial


def _origin_target(job: MoveJob, segment: Segment, i: int) -> Target | None:
    """Give where a message is to be sent back to; None if it belongs here."""
    origin = None if segment.origins is None else segment.origins[i]
    if origin is None or origin[2] in _STAYING:
        return None
    return origin[0], job.held.lane.settings.vpn, origin[1]
