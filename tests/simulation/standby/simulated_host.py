"""One host of the pair: a member, some homes, a clock of its own rate, and all that can happen to a host.

A node that grows begins with one home, whose disk says when there are to be more, as the config store of a node does;
how many a host has is in a file of its own, which is written before another home begins.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cluster.standby.pair.member import ActUntil, Ask, Begin, End, Member, Release, Require, Role
from cluster.standby.pair.outside import Holder, Read, Renew
from tests.simulation.standby.simulated_home import SimulatedHome

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from cluster.standby.pair.outside import Answer
    from tests.simulation.simulated_network import Loop
    from tests.simulation.standby.outside_store import OutsideStore
    from tests.simulation.standby.wire import Cuts

HOMES: Final = 2
TICK_S: Final = 0.1
#: How often a primary finds that the file with the number of homes is not as the standby has it.
LOOKS: Final = 0.2


class SimulatedHost:
    """Its disks outlive it."""

    def __init__(self, name: str, loop: Loop, rng: random.Random, store: OutsideStore, cuts: Cuts) -> None:
        """Be down."""
        self.name = name
        self.loop = loop
        self.rng = rng
        self.store = store
        self.cuts = cuts
        self.rate = 1.0
        self.write_max_s = 0.0
        self.grows = False
        #: Nothing counts without a standby that was in the in-sync set.
        self.is_strict = False
        #: Its disks were replaced, and not all of them were brought anything.
        self.is_new = False
        self.paused_until = 0.0
        self.incarnation = 0
        self.runs = 0
        self.member: Member | None = None
        self.acts_until = float("-inf")
        #: Called when something is about to change: a good moment for trouble.
        self.on_moment: Callable[[SimulatedHost], None] = lambda _: None
        self.other: SimulatedHost = self
        self.homes = [SimulatedHome(self, index) for index in range(HOMES)]
        #: How many there are, on disk; and how many the standby was told of, and has written down.
        self.stores = HOMES
        self._told = self._synced = 0

    def clock(self) -> float:
        """Give the time here."""
        return self.loop.now * self.rate

    @property
    def me(self) -> Holder:
        """Give what tells this start from others."""
        return Holder(self.name, str(self.incarnation))

    @property
    def is_standby(self) -> bool:
        """Tell whether another host is the primary, as far as this one knows."""
        member = self.member
        if member is None or member.role is not Role.CANDIDATE or member.seen.standing is None:
            return False
        return member.seen.standing.primary != self.name

    @property
    def promised(self) -> int:
        """Give the epoch that was seen last: none before it is followed."""
        standing = self.member.seen.standing if self.member is not None else None
        return standing.epoch if standing is not None else 0

    @property
    def epoch(self) -> int:
        """Give that of this primary."""
        return self.promised

    # -- starting and ending ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Be a candidate, with what is on the disks."""
        if self.member is not None:
            return
        self.incarnation += 1
        self.member = Member(
            self.me, may_found=self.name == "a", may_be_alone=not self.is_strict, is_new=self.is_new
        )
        for home in self.homes:
            home.start()
        self._tick(self.member)

    def die(self) -> None:
        """Lose everything but what is on the disks."""
        self.member = None
        for home in self.homes:
            if home.is_up:
                home.die()

    def lose_disks(self) -> None:
        """Die, and have empty disks from then on."""
        self.die()
        self.is_new = True
        for home in self.homes:
            home.lose_disk()

    def restart_home(self, home: SimulatedHome) -> None:
        """Have a home again that died."""
        if self.member is None or home.is_up:
            return
        home.start()
        if self.member.role is Role.PRIMARY and home.index < self.stores:
            self._begin(home)
            home.acts_until = self.acts_until

    def grow(self, is_noted: Callable[[], None] = lambda: None) -> None:
        """Be asked for more homes: who is the primary, and has that on both disks, begins them and says so."""

        def noted() -> None:
            self._grow()
            is_noted()

        self.homes[0].do(lambda: self.homes[0].note_growth(noted))

    def _grow(self) -> None:
        if self.member is None or self.member.role is not Role.PRIMARY or self.stores == HOMES:
            return
        self.on_moment(self)
        self.stores = HOMES
        for home in self.homes[1:]:
            if home.is_up:
                self._begin(home)
                home.acts_until = self.acts_until

    # -- the member ------------------------------------------------------------------------------------------

    def _tick(self, member: Member) -> None:
        if member is not self.member:
            return
        if self.loop.now >= self.paused_until:
            now = self.clock()
            member.disks_answered(min(home.disk_ok_at for home in self.homes[: self.stores]))
            if member.role is Role.PRIMARY and self.homes[0].has_noted_growth:
                self._grow()
            self._judge_standby(member, now)
            if self.is_new and all(home.was_brought() for home in self.judged_homes()):
                self.is_new = member.is_new = False
            member.tick(now)
            self._carry_out(member)
            for home in self.homes:
                home.do(home.tick)
        self.loop.after(TICK_S, lambda: self._tick(member))

    def _judge_standby(self, member: Member, now: float) -> None:
        if member.role is not Role.PRIMARY:
            return
        homes = self.judged_homes()
        if not self._files_are_even() or not all(home.is_up and home.follows() for home in homes):
            shippings = [home.shipping for home in homes if home.shipping is not None]
            member.standby_is_silent(now, lacks_much=any(one.lacks_much for one in shippings))
            return
        member.standby_follows()
        self._carry_out(member)
        orders = {home.shipping.caught_up for home in homes if home.shipping is not None}
        if len(orders) == 1 and (order := orders.pop()) is not None:
            member.standby_has_all(self.other.name, order)

    def judged_homes(self) -> list[SimulatedHome]:
        """Give the homes without which no standby has everything: as many as the file says now."""
        return self.homes[: self.stores]

    def _files_are_even(self) -> bool:
        """Have the standby write down what has changed in the file, as soon as one notices; tells whether it has."""
        if self.grows and self.rng.random() < LOOKS:
            self._told = self.stores
        if self._told != self._synced and self._is_followed():
            self.other.stores, self._synced = max(self.other.stores, self._told), self._told
        return self._told == self._synced

    def _is_followed(self) -> bool:
        """Tell whether the other host writes down what this one sends: not one that is down, or has a newer primary."""
        other = self.other
        hears = not self.cuts.is_cut(self.name, other.name) and self.loop.now >= other.paused_until
        return hears and other.is_standby and other.promised <= self.epoch

    def _carry_out(self, member: Member) -> None:
        while member.outbox:
            effect = member.outbox.pop(0)
            if not isinstance(effect, Ask) or not isinstance(effect.request, Read | Renew):
                self.on_moment(self)
            match effect:
                case Ask(number, request):
                    self.store.ask(self.me, number, request, lambda answer: self._answered(member, answer))
                case Begin():
                    self.acts_until = float("-inf")
                    self._told = self._synced = 0
                    for home in self.homes[: self.stores]:
                        self._begin(home)
                case ActUntil(time):
                    self._act_until(time)
                case Require(order):
                    for home in self.homes:
                        home.do(partial(home.require, order))
                case Release():
                    for home in self.homes:
                        home.do(home.release)
                case End():
                    self.die()
                    self.loop.after(0.3, self.start)

    def _begin(self, home: SimulatedHome) -> None:
        assert self.member is not None
        home.begin(self.new_run(), self.member.required_by)

    def new_run(self) -> str:
        """Give a name that no run has."""
        self.runs += 1
        return f"{self.name}.{self.runs}"

    def _act_until(self, time: float) -> None:
        self.acts_until = time
        for home in self.homes:
            home.acts_until = time

    def _answered(self, member: Member, answer: Answer) -> None:
        if member is not self.member:
            return
        if self.loop.now < self.paused_until:
            self.loop.at(self.paused_until, lambda: self._answered(member, answer))
            return
        member.answered(answer, self.clock())
        self._carry_out(member)
