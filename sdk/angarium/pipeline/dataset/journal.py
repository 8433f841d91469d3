"""Changes of an archive that consist of many files and happen whole or not at all, whenever the job is killed.

A change is written aside first, where no reader looks. Then its list of renames and removals becomes a file of the
journal, in one step. This is the commit: if the job is killed after it, the next run completes the change. Every step
is idempotent. Files that were written aside and not committed are garbage.

    staged aside --> decided: _angarium/journal/NAME.json --> renamed, removed --> staging removed: done

A name is decided once. The batches of a stream have the names of their numbers, so a batch that Spark runs again finds
its own decision and changes nothing, whatever it would write this time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.pipeline.dataset.layout import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium.pipeline.dataset.files import Files

JOURNAL: Final = f"{PRIVATE}/journal"
STAGING: Final = f"{PRIVATE}/staging"
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an archive."""

    #: Decided once; sorts by age among the changes of one job.
    name: str
    #: The directory aside that all of it is written to; it is gone when the change is done.
    staging: str
    #: From below `staging` to where it belongs. Renamed before anything is removed.
    moves: tuple[tuple[str, str], ...]
    #: Files that the moved ones replace.
    removals: tuple[str, ...]
    #: How many messages the moved files hold.
    messages: int


def decide(files: Files, change: Change) -> bool:
    """Decide a change; tell whether this very one is: False if its name was decided before.

    What it moves must be durable before; this sees to it.
    """
    files.sync(source for source, _ in change.moves)
    return files.create(_place(change.name), json.dumps(asdict(change)))


def decided(files: Files, name: str) -> Change | None:
    """Give the change that was decided under a name, or None."""
    return _load(files, _place(name)) if files.exists(_place(name)) else None


def finish(files: Files, change: Change) -> None:
    """Do what is left of a change that was decided; somebody else may be doing the same.

    Raises:
        UnavailableError: a file that replaces others is nowhere (SPARK_FAILED). Nothing is removed.
    """
    if is_done(files, change):
        return
    for source, target in change.moves:
        _move(files, source, target)
        # What a batch has moved may have been compacted since; what replaces others must be there.
        if change.removals and not files.exists(target):
            raise errors.error_for(errors.SPARK_FAILED, f"{files.url(target)} is missing")
    files.sync(target for _, target in change.moves if files.exists(target))
    for path in change.removals:
        files.remove(path)
    files.remove(change.staging)


def _move(files: Files, source: str, target: str) -> None:
    if not files.exists(source):
        return
    try:
        files.move(source, target)
    except (OSError, errors.AngariumError):
        if files.exists(source):
            raise


def is_done(files: Files, change: Change) -> bool:
    """Tell whether nothing of a decided change is left to do."""
    return not files.exists(change.staging)


def changes(files: Files, prefix: str = "") -> list[Change]:
    """Give the decided changes whose names begin so, by name."""
    names = (entry.name for entry in files.entries(JOURNAL))
    wanted = (name for name in names if name.startswith(prefix) and name.endswith(_SUFFIX))
    found = (_known(files, f"{JOURNAL}/{name}") for name in wanted)
    return [change for change in found if change is not None]


def recover(files: Files) -> list[Change]:
    """Finish every decided change; give those that were not finished."""
    found = [change for change in changes(files) if not is_done(files, change)]
    for change in found:
        finish(files, change)
    return found


def forget(files: Files, names: Iterable[str]) -> None:
    """Remove finished changes from the journal."""
    for name in names:
        files.remove(_place(name))


def sweep(files: Files, prefix: str, *, is_alone: bool = True) -> None:
    """Remove what was staged by changes whose names begin so and was never decided.

    Where another run may be at work, what it may still decide stays: that is behind the newest name that is decided.
    """
    known = changes(files, prefix)
    kept = {change.staging for change in known}
    newest = max((change.name for change in known), default="")
    for entry in files.entries(STAGING):
        is_over = is_alone or entry.name.rpartition("-")[0] <= newest
        if entry.name.startswith(prefix) and entry.path not in kept and is_over:
            files.remove(entry.path)


def visible(paths: Iterable[str], unfinished: Iterable[Change], staged: set[str]) -> list[str]:
    """Give the files that hold each message once, while some changes are decided and not finished.

    Args:
        paths: Parquet files that readers find in the archive.
        unfinished: decided changes that are not done.
        staged: which sources of their moves are still where they were staged.
    """
    found = set(paths)
    for change in unfinished:
        found -= set(change.removals)
        found |= {source for source, _ in change.moves if source in staged}
    return sorted(found)


def _place(name: str) -> str:
    return f"{JOURNAL}/{name}{_SUFFIX}"


def _known(files: Files, path: str) -> Change | None:
    """Give a change that is in the journal; None if its job has forgotten it since, so that it is finished."""
    try:
        return _load(files, path)
    except Exception:
        if files.exists(path):
            raise
        return None


def _load(files: Files, path: str) -> Change:
    values = json.loads(files.read(path))
    values["moves"] = tuple((source, target) for source, target in values["moves"])
    values["removals"] = tuple(values["removals"])
    return Change(**values)
