"""What a replay does, batch by batch: fixed before the first message is sent, so that a killed one goes on exactly.

The messages of a replay are copied in order into files of their own (`rows/`), and the plan says which files, or which
part of one, each batch sends. Nothing of it changes any more, whatever happens to the archive meanwhile. How far it is,
says the newest file `done-N`.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium.pipeline.dataset.files import Files

PLAN: Final = "plan.json"
ROWS: Final = "rows"
_DONE: Final = "done-"
#: Which task of Spark's wrote a file, and which of its files it is: part-00003-UUID-c000.snappy.parquet.
_NUMBERS: Final = re.compile(r"^part-(?P<task>\d+)-.*-c(?P<file>\d+)\.")
#: Files that one batch stages at the same time, each by a task of its own.
BATCH_FILES: Final = 4
MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a file, in order: those of one slice of time, or all."""

    file: str
    #: Number of the slice of time; 0 where time does not matter.
    slice: int
    rows: int
    #: When the first of its messages was stored, in microseconds since 1970.
    at: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent and released in one step."""

    files: tuple[str, ...]
    slice: int
    rows: int
    at: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All batches of a replay."""

    #: Names the replay to the node, which knows the batches that it has.
    sink: str
    #: Microseconds of a slice of time; None if time does not matter.
    slice_us: int | None
    batches: tuple[Batch, ...]

    @property
    def messages(self) -> int:
        """Give how many messages there are."""
        return sum(batch.rows for batch in self.batches)

    def done_before(self, number: int) -> int:
        """Give how many messages the batches before one have."""
        return sum(batch.rows for batch in self.batches[:number])


def ordered(parts: Iterable[Part]) -> list[Part]:
    """Sort parts as their messages are sorted.

    The names of files alone would not do: Spark writes their numbers with so many digits at least.
    """

    def place(part: Part) -> tuple[int, int, int]:
        found = _NUMBERS.search(part.file)
        assert found is not None, f"a file of Spark's is not called {part.file}"
        return int(found["task"]), int(found["file"]), part.slice

    return sorted(parts, key=place)


def batches_of(parts: Iterable[Part], *, paced: bool) -> tuple[Batch, ...]:
    """Make batches of parts that are in order.

    Where time matters each part is a batch, so that each slice leaves when it is due; else some files are sent at once.
    """
    parts = list(parts)
    size = 1 if paced else BATCH_FILES
    groups = [parts[at : at + size] for at in range(0, len(parts), size)]
    return tuple(
        Batch(
            files=tuple(part.file for part in group),
            slice=group[0].slice,
            rows=sum(part.rows for part in group),
            at=group[0].at,
        )
        for group in groups
    )


def wait_s(batch: Batch, first: Batch, elapsed_s: float, speed: float) -> float:
    """Give how long to wait before a batch leaves, when the first one left some time ago.

    Args:
        batch: that is to leave.
        first: of this run.
        elapsed_s: since the first one left.
        speed: how much faster than it was: 1 as it was, 2 in half the time.
    """
    return max(0.0, (batch.at - first.at) / MICROSECONDS / speed - elapsed_s)


def save(files: Files, folder: str, plan: Plan) -> None:
    """Keep a plan; from now on it counts, so its rows must last as long: Spark does not wait until they are on disk."""
    names = dict.fromkeys(name for batch in plan.batches for name in batch.files)
    files.sync(f"{folder}/{ROWS}/{name}" for name in names)
    files.create(f"{folder}/{PLAN}", json.dumps(asdict(plan)))


def load(files: Files, folder: str) -> Plan | None:
    """Give the plan of a folder, None if none was finished."""
    if not files.exists(f"{folder}/{PLAN}"):
        return None
    values = json.loads(files.read(f"{folder}/{PLAN}"))
    batches = tuple(Batch(**{**one, "files": tuple(one["files"])}) for one in values["batches"])
    return Plan(values["sink"], values["slice_us"], batches)


def discard(files: Files, folder: str) -> None:
    """Remove a replay, its plan first: who is killed in between must not leave a plan that knows of nothing done."""
    files.remove(f"{folder}/{PLAN}")
    files.remove(folder)


def next_batch(files: Files, folder: str) -> int:
    """Give the number of the first batch that is not known to be done."""
    names = (entry.name for entry in files.entries(folder))
    done = [int(name.removeprefix(_DONE)) for name in names if name.startswith(_DONE)]
    return max(done, default=-1) + 1


def mark_done(files: Files, folder: str, number: int) -> None:
    """Note that a batch is done, and with it all before."""
    files.create(f"{folder}/{_DONE}{number:010d}", "")
    if number:
        files.remove(f"{folder}/{_DONE}{number - 1:010d}")
