"""The primary's side of one spool: groups go to the standby while they are written here, and count when both have them.

What depends on a group being durable waits for `committed`: an acknowledgement, a delivery, a question to another
process. So whatever anybody has seen of this node is on both disks, whichever of them is asked tomorrow.

Each side may have written groups that the other one did not, because a process died in between. None of them was
acknowledged, so the standby is brought to where the primary is, whoever has more. Pure: what is to be said to the
standby goes into `outbox`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from angarium_server.frames.shipping import BY_POLICY
from storage.groups import Brought, Group, GroupLog, Past, Patch, Touched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.spool import Change


class Here(NamedTuple):
    """A standby says where it is, whenever it has connected."""

    past: Past


class TellTouched(NamedTuple):
    """The standby is to name the keys that it touched after a group."""

    since: int


class TellTouchedBy(NamedTuple):
    """The answer; None: it does not know any more."""

    since: int
    touched: tuple[Touched, ...] | None


class Bring(NamedTuple):
    """More than a patch may be: it goes in parts, while this spool goes on, and `Brought` ends it.

    The standby says then where it is, as if it had just connected.
    """

    brought: Brought
    #: What the parts have; None: everything, for a spool that is made anew.
    parted: tuple[Touched, ...] | None


class Synced(NamedTuple):
    """The standby has everything up to this group on disk."""

    number: int


FromStandby: TypeAlias = Here | TellTouchedBy | Synced
ToStandby: TypeAlias = TellTouched | Patch | Bring | Group


class Shipping:
    """Groups of one run."""

    def __init__(self, log: GroupLog, run: str, required_by: int | None) -> None:
        """Begin a run.

        Args:
            log: the groups of the spool.
            run: a name that nobody else uses.
            required_by: the order by which nothing counts without the standby, which is in the in-sync set or may be
                there soon; None: there is none.
        """
        self.log = log
        self._run = run
        self._written = log.past.newest
        #: Everything up to it is on both disks, or a standby was not needed for it.
        self.committed = self._written if required_by is None else 0
        #: An earlier run may have acknowledged it without the standby, when that was not in the in-sync set.
        self._before = self._written
        #: What the standby is known to have.
        self.confirmed = 0
        self.required_by = required_by
        #: It gets groups as they come.
        self.is_following = False
        #: Those that may not be on this disk yet.
        self._under_way: deque[Group] = deque()
        #: Where the standby parted from this spool, if it has to be brought in parts, which it cannot be yet.
        self._parted: tuple[int, tuple[Touched, ...] | None] | None = None
        self.outbox: list[ToStandby] = []

    # -- this spool ------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Tell whether the standby has not confirmed all that it was sent."""
        return self.is_following and self.confirmed < self.log.ahead.newest

    def group(self, changes: Sequence[Change]) -> Group:
        """Give the next group, to be written here; it is on its way to the standby."""
        group = self.log.group(self._run, changes)
        self._under_way.append(group)
        if self.is_following:
            self.outbox.append(group)
        return group

    def not_written(self, run: str) -> None:
        """The newest group is not on this disk, for want of room, and nothing is under way: another run begins.

        The standby may have it: it is to be disconnected, and is brought back when it says so. What it has confirmed of
        that group says nothing of the next one, which gets its number.
        """
        self._under_way.clear()
        self.log.forget_ahead()
        self.confirmed = min(self.confirmed, self.log.ahead.newest)
        self._run = run

    def written(self, number: int) -> None:
        """Everything up to a group is on this disk."""
        self._written = number
        while self._under_way and self._under_way[0].number <= number:
            self._under_way.popleft()
        self._count()

    # -- the in-sync set -------------------------------------------------------------------------------------

    @property
    def caught_up(self) -> int | None:
        """Give the order since which nothing counts without the standby, if it has all that was ever acknowledged.

        An order, because one that was taken back may have been obeyed, and one that has come since not yet.
        """
        has_all = self.is_following and self.confirmed >= max(self.committed, self._before)
        return self.required_by if has_all else None

    def require(self, order: int) -> None:
        """Nothing counts from here on without the standby, which may be about to be in the in-sync set."""
        self.required_by = order
        if order == BY_POLICY:
            self._bring_what_waited()

    def release(self) -> None:
        """The standby is not in the in-sync set."""
        self.required_by = None
        self._count()
        self._bring_what_waited()

    def _bring_what_waited(self) -> None:
        if self._parted is not None:
            self._bring(*self._parted)

    def _count(self) -> None:
        newest = self._written
        if self.required_by is not None:
            newest = min(newest, self.confirmed)
        self.committed = max(self.committed, newest)

    # -- the standby -----------------------------------------------------------------------------------------

    @property
    def lacks_much(self) -> bool:
        """Tell whether the standby has to be brought in parts, and is not, because it may be in the in-sync set."""
        return self._parted is not None

    def disconnected(self) -> None:
        """The standby is not to be reached; what it had it has."""
        self.is_following, self._parted = False, None
        self.outbox.clear()

    def take(self, message: FromStandby) -> None:
        """Take what the standby says."""
        match message:
            case Here(past):
                self._meet(past)
            case TellTouchedBy(since, touched):
                self._bring(since, touched)
            case Synced(number):
                self.confirmed = max(self.confirmed, number)
                self._count()

    def _meet(self, past: Past) -> None:
        # Groups under way count: a standby that has one is not to lose it, for it may count as soon as it is here too.
        ours = self.log.ahead
        common = ours.common(past)
        if past.is_unknown:
            self._bring(common, None)
        elif past.newest > common:
            self.outbox.append(TellTouched(common))
        else:
            self._bring(common, ())

    def _bring(self, common: int, touched: tuple[Touched, ...] | None) -> None:
        """Bring the standby to where this disk is, and have it follow from there."""
        past, parted, patch = self._lacking(common, touched)
        if patch is not None:
            self.outbox.append(patch)
        elif common < past.newest or touched != ():
            self._bring_in_parts(common, touched, past, parted)
            return
        newest = max(common, past.newest)
        self.outbox.extend(group for group in self._under_way if group.number > newest)
        self.confirmed = max(self.confirmed, common)
        self.is_following, self._parted = True, None
        self._count()

    def _lacking(
        self, common: int, touched: tuple[Touched, ...] | None
    ) -> tuple[Past, tuple[Touched, ...] | None, Patch | None]:
        """Give where this disk is, the keys in which the standby differs, and a patch; None: unknown, or too much.

        A group that gets on disk meanwhile would be in the one and not in the other. There is one at most: the next is
        not begun before the caller goes on.
        """
        while True:
            past = self.log.past
            parted = patch = None
            if touched is not None and (common < past.newest or touched):
                parted = self.log.parted(common, touched)
                patch = None if parted is None else self.log.patch(common, parted)
            if self.log.past == past:
                return past, parted, patch

    def _bring_in_parts(
        self,
        common: int,
        touched: tuple[Touched, ...] | None,
        past: Past,
        parted: tuple[Touched, ...] | None,
    ) -> None:
        """Have it made like this spool step by step, unless it is in the in-sync set: in between it is like nothing."""
        if self.required_by not in (None, BY_POLICY):
            self._parted = common, touched
            return
        self.is_following, self._parted = False, None
        self.confirmed = min(self.confirmed, common)
        base = None if parted is None else common
        self.outbox.append(Bring(Brought(base, past, parted or ()), parted))
