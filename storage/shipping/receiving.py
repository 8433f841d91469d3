"""The standby's side of one spool: it writes what the primary sends, in order, and says what is on its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from storage.groups import Brought, Group, GroupLog, Patch
from storage.shipping.shipping import (
    FromStandby,
    Here,
    Synced,
    TellTouched,
    TellTouchedBy,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.spool import Change


class Part(NamedTuple):
    """Some rows of those that bring this spool to where the primary is."""

    changes: Sequence[Change]


class Fresh(NamedTuple):
    """Parts follow that are everything the primary has: they go into a spool that is made anew."""


class Write(NamedTuple):
    """Changes that are to be on disk next."""

    #: Of the newest group among them; 0: they are parts.
    number: int
    changes: Sequence[Change]


class Finish(NamedTuple):
    """All parts are there: the spool is where it was to be brought, once these are written too."""

    changes: Sequence[Change]


Job: TypeAlias = Fresh | Write | Finish
FromPrimary: TypeAlias = "Group | Patch | TellTouched | Fresh | Part | Brought"


class Receiving:
    """Groups of one primary, over one connection."""

    def __init__(self, log: GroupLog) -> None:
        """Begin with what is on disk; nothing of an earlier connection may be under way."""
        #: Of the spool that is written; another one, once that was made anew.
        self.log = log
        #: What is to be written, the first one first.
        self.jobs: list[Job] = []
        self.outbox: list[FromStandby] = [Here(log.past)]

    def take(self, message: FromPrimary) -> None:
        """Take what the primary says."""
        match message:
            case Group(number, _, changes):
                self.jobs.append(Write(number, changes))
            case Patch():
                self.jobs.append(Write(message.past.newest, self.log.patched(message)))
            case TellTouched(since):
                self.outbox.append(TellTouchedBy(since, self.log.touched_since(since)))
            case Fresh():
                self.jobs.append(message)
            case Part(changes):
                self.jobs.append(Write(0, changes))
            case Brought():
                self.jobs.append(Finish(self.log.brought(message)))

    def next_job(self) -> Job:
        """Give what is to be written next: all groups that wait, at once, so that nobody falls behind who is slow."""
        job = self.jobs.pop(0)
        if not isinstance(job, Write):
            return job
        number, changes = job.number, list(job.changes)
        while self.jobs and isinstance(following := self.jobs[0], Write):
            number = following.number
            changes += following.changes
            del self.jobs[0]
        return Write(number, changes)

    def written(self, job: Job) -> None:
        """It is on disk, and all that came before it."""
        match job:
            case Write(number) if number:
                self.outbox.append(Synced(number))
            case Finish():
                self.outbox.append(Here(self.log.past))
