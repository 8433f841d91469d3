"""Keeps a member of a pair going: asks the outside store for it, tells it the time and the disk, gives its effects on.

One for each start of a host: when the member's time is over, `run` returns, and whoever wants to go on begins with
another incarnation. It does not decide anything, and does not know what a primary does. Within its loop nothing blocks:
disks are written in threads, stores are asked in tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from cluster.standby.pair.member import (
    ANSWER_S,
    LEASE_S,
    ActUntil,
    Ask,
    Begin,
    End,
    Release,
    Require,
    Role,
)
from cluster.standby.pair.outside import Resign, Swap
from cluster.standby.stores import clock
from cluster.standby.stores.store import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.standby.pair.member import Member
    from cluster.standby.stores.disk import Probe
    from cluster.standby.stores.store import Store

logger = logging.getLogger(__name__)

#: Of the shortest time that a member counts.
TICK_S: Final = 0.1

#: What the owner is told.
Told: TypeAlias = Begin | ActUntil | Require | Release | End


class Keeper:
    """Of one member, in one loop."""

    def __init__(
        self,
        member: Member,
        store: Store,
        probe: Probe,
        tell: Callable[[Told], None],
        lease_s: float = LEASE_S,
    ) -> None:
        """Do nothing yet.

        Args:
            member: a new one.
            store: of the same holder; the owner closes it.
            probe: of the disk of this host, running.
            tell: gets each effect but `Ask`, in the loop; times are by `clock`.
            lease_s: of the store. All times of a member are as much longer or shorter.
        """
        self._member = member
        self._store = store
        self._probe = probe
        self._tell = tell
        #: A member counts leases of LEASE_S; for another one its clock runs at another rate.
        self._rate = LEASE_S / lease_s
        #: Until when this host may do what only a primary does. Whoever does it looks at the clock before, each time.
        self.acts_until = float("-inf")
        #: Requests by name; "answered", "unanswered".
        self.counts: Counter[str] = Counter()
        #: Why there was no answer to the last request; empty: there was one.
        self.failure = ""
        self._asking: set[asyncio.Task[None]] = set()
        #: A fault of ours in one of them: it ends the keeper, and with it the lease.
        self._fault: BaseException | None = None
        self._is_due = asyncio.Event()

    @property
    def may_act(self) -> bool:
        """Tell whether this host may do now what only a primary does."""
        return clock.now() < self.acts_until

    async def run(self) -> None:
        """Keep going until another host may be the primary, or until it is cancelled."""
        try:
            while self._member.role is not Role.OVER:
                self._turn()
                self._is_due.clear()
                # `asyncio.wait_for` may lose that it was cancelled: the lease would be kept, and nothing runs here.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S / self._rate):
                        await self._is_due.wait()
                if self._fault is not None:
                    raise self._fault
        finally:
            self.acts_until = float("-inf")
            for task in self._asking:
                task.cancel()
            await asyncio.gather(*self._asking, return_exceptions=True)

    async def resign(self) -> None:
        """Give the lease back, when nothing acts here any more and `run` has ended: the other host need not wait."""
        if self._member.seen.holder is None:
            return
        with contextlib.suppress(NoAnswerError):
            await self._store.ask(0, Resign(), ANSWER_S / self._rate)

    async def give_back(self) -> None:
        """Resign as if this host had never been the primary: nothing was done here, and who had all has it still."""
        standing, before = self._member.seen.standing, self._member.restorable
        if standing is not None and before is not None:
            restored = standing._replace(in_sync=before.in_sync)
            with contextlib.suppress(NoAnswerError):
                swap = Swap(self._member.seen.revision, restored)
                await self._store.ask(0, swap, ANSWER_S / self._rate)
        await self.resign()

    # -- what the owner knows of the other host; see `Member` -----------------------------------------------------

    def primary_is_silent(self) -> None:
        """The primary says nothing to this host."""
        self._member.primary_is_silent(self._now())

    def primary_has_left(self) -> None:
        """The primary has given its lease back."""
        self._member.primary_has_left(self._now())
        self._is_due.set()

    def primary_speaks(self) -> None:
        """It is there."""
        self._member.primary_speaks()

    def standby_is_silent(self, *, lacks_much: bool = False) -> None:
        """The standby owes an answer, or what it has is not what it is taken for."""
        self._member.standby_is_silent(self._now(), lacks_much=lacks_much)

    def standby_is_not_asked(self) -> None:
        """A process of this host is away, which may be why the standby does not follow it."""
        self._member.standby_is_not_asked()

    def standby_follows(self) -> None:
        """It gets groups as they come, in every spool, and owes no answer."""
        self._member.standby_follows()
        self._is_due.set()

    def standby_has_all(self, host: str, order: int) -> None:
        """Everything waits for it in every spool since this order, and it has all that was ever acknowledged."""
        self._member.standby_has_all(host, order)
        self._is_due.set()

    # -- turns ---------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return clock.now() * self._rate

    def _turn(self) -> None:
        self._member.disks_answered(self._probe.answered_at * self._rate)
        self._member.tick(self._now())
        self._carry_out()

    def _carry_out(self) -> None:
        while self._member.outbox:
            effect = self._member.outbox.pop(0)
            match effect:
                case Ask():
                    task = asyncio.get_running_loop().create_task(self._ask(effect))
                    self._asking.add(task)
                    task.add_done_callback(self._ended)
                case ActUntil(time):
                    self.acts_until = time / self._rate
                    self._tell(ActUntil(self.acts_until))
                case End():
                    self.acts_until = float("-inf")
                    self._tell(effect)
                case Begin() | Require() | Release():
                    self._tell(effect)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault
            self._is_due.set()

    async def _ask(self, ask: Ask) -> None:
        """Have a request carried out; without an answer the member finds out by itself."""
        self.counts[type(ask.request).__name__.lower()] += 1
        try:
            answer = await self._store.ask(ask.number, ask.request, ANSWER_S / self._rate)
        except NoAnswerError as error:
            self.counts["unanswered"] += 1
            if not self.failure:
                logger.warning("the outside store does not answer: %s", error.reason)
            self.failure = error.reason
            return
        self.counts["answered"] += 1
        if self.failure:
            logger.info("the outside store answers again")
        self.failure = ""
        self._member.answered(answer, self._now())
        self._carry_out()
        self._is_due.set()
