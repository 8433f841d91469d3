"""The standby's side of one spool: it writes what the primary sends, in order, and says what is on its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from storage.shipping.groups import Group, GroupLog, Patch
from storage.shipping.shipping import (
    Copy,
    FromStandby,
    Here,
    Synced,
    TellTouched,
    TellTouchedBy,
    ToStandby,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.spool import Change


class Write(NamedTuple):
    """Changes that are to be on disk next."""

    number: int
    changes: Sequence[Change]


class Replace(NamedTuple):
    """The whole spool is to be what the primary has."""

    copy: Copy


Job: TypeAlias = Write | Replace


class Receiving:
    """Groups of one primary, over one connection."""

    def __init__(self, log: GroupLog) -> None:
        """Begin with what is on disk; nothing of an earlier connection may be under way."""
        self._log = log
        #: What is to be written, the first one first.
        self.jobs: list[Job] = []
        self.outbox: list[FromStandby] = [Here(log.past)]

    def take(self, message: ToStandby) -> None:
        """Take what the primary says."""
        match message:
            case Group(number, _, changes):
                self.jobs.append(Write(number, changes))
            case Patch():
                self.jobs.append(Write(message.past.newest, self._log.patched(message)))
            case Copy():
                self.jobs.append(Replace(message))
            case TellTouched(since):
                self.outbox.append(TellTouchedBy(since, self._log.touched_since(since)))

    def next_job(self) -> Job:
        """Give what is to be written next: all groups that wait, at once, so that nobody falls behind who is slow."""
        job = self.jobs.pop(0)
        if isinstance(job, Replace):
            return job
        number, changes = job.number, list(job.changes)
        while self.jobs and isinstance(following := self.jobs[0], Write):
            number = following.number
            changes += following.changes
            del self.jobs[0]
        return Write(number, changes)

    def written(self, number: int) -> None:
        """Everything up to a group is on disk."""
        self.outbox.append(Synced(number))
