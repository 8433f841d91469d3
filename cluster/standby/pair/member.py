"""What one host makes of the outside store: whether it is the primary, until when, and who is in sync.

    candidate --the lease is over, and it is in the in-sync set--> primary --the lease is another's--> over

A primary may do nothing after `acts_until`, by its own clock: it is counted from when the last renewal was *sent*, and
is shorter than the lease by more than two clocks drift apart. It renews only while its disks answer, so a host that
cannot store anything makes room for one that can. Pure: what is to be asked and done goes into `outbox`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from angarium_server.frames.shipping import BY_POLICY
from cluster.standby.pair.outside import Holder, Read, Renew, Seen, Standing, Swap, Take

if TYPE_CHECKING:
    from cluster.standby.pair.outside import Answer, Request

LEASE_S: Final = 5.0
#: Of the lease: what its holder does not use, for clocks that run at different rates.
DRIFT: Final = 0.1
RENEW_S: Final = 1.0
READ_S: Final = 0.5
#: ... while the primary says nothing, whose lease may end at any moment.
READ_SOON_S: Final = 0.1
#: Then nobody knows whether a request was carried out.
ANSWER_S: Final = 1.0
#: A disk that has not answered for so long is not there.
DISK_S: Final = 2.0
#: A standby in the in-sync set that has not answered for so long is put out of it.
SILENT_S: Final = 2.0


class Ask(NamedTuple):
    """Ask the outside store."""

    number: int
    request: Request


class Begin(NamedTuple):
    """This host is the primary from now on."""

    epoch: int
    #: The order by which everything waits for a standby: another host is in the in-sync set, or `BY_POLICY`.
    required_by: int | None


class ActUntil(NamedTuple):
    """By the clock of this host."""

    time: float


class Require(NamedTuple):
    """Nothing counts any more without the standby: it is about to be in the in-sync set, or `BY_POLICY`."""

    order: int


class Release(NamedTuple):
    """No standby is in the in-sync set, and no request that is still under way can put one there."""


class End(NamedTuple):
    """Another host may be the primary: everything ends here, and starts again as a candidate."""


Effect: TypeAlias = Ask | Begin | ActUntil | Require | Release | End


class Role(enum.Enum):
    """Of a host."""

    CANDIDATE = "candidate"
    PRIMARY = "primary"
    OVER = "over"


class Member:
    """One host of a pair, since it was started."""

    def __init__(
        self,
        me: Holder,
        *,
        may_found: bool,
        may_be_alone: bool = True,
        known_epoch: int = 0,
        is_new: bool = False,
    ) -> None:
        """Be a candidate.

        Args:
            me: this host, and what tells this start of it from others.
            may_found: it begins as the primary if the outside store knows nothing.
            may_be_alone: a silent standby is put out of the in-sync set, and nothing waits for it; else all waits, also
                if this host begins alone, and only one that has not what it is taken for is put out, so that it can be
                brought that.
            known_epoch: the highest that this host has ever seen. A store that says less was restored from a backup,
                and knows nothing of who was let go since.
            is_new: it began with an empty disk, or with a damaged store: a standing that has it in the in-sync set may
                mean what it had before.
        """
        self._me = me
        self._may_found = may_found
        self._may_be_alone = may_be_alone
        self._known_epoch = known_epoch
        #: Until it was brought everything.
        self.is_new = is_new
        #: It has asked for the lease, and nobody else got it since: it may have it at any moment.
        self._may_begin = False
        self.role = Role.CANDIDATE
        #: An operator said that it takes over although it may lack what was acknowledged; also then not from a holder.
        #: Until the primary for whose loss that was said is heard again, or this host lacks nothing.
        self.is_forced = False
        #: Nothing was heard of a primary since then.
        self._is_forced_in_silence = False
        self.seen = Seen(0, None, None)
        #: What there was when this host asked for the lease; None: nothing.
        self.before: Standing | None = None
        #: That one, if this host had everything in it: true again as long as nothing was done since.
        self.restorable: Standing | None = None
        self._numbers = 0
        self._asked: tuple[int, Request, float] | None = None
        self._next_at = 0.0
        self._read_s = READ_S
        self._disk_at = float("-inf")
        #: Since when the standby says nothing; None: it answers, or there is none.
        self._silent_since: float | None = None
        #: It is there, and lacks more than it is brought while it is in the in-sync set.
        self._lacks_much = False
        self._orders = 0
        #: The order by which everything waits for a standby, which is in the in-sync set or may be there soon, or
        #: `BY_POLICY`.
        self.required_by: int | None = None
        #: The host that has all and is to be in the in-sync set.
        self._caught_up: str | None = None
        self.outbox: list[Effect] = []

    # -- what is told ----------------------------------------------------------------------------------------

    def disks_answered(self, at: float) -> None:
        """All disks of this host have written something since then."""
        self._disk_at = at

    def primary_is_silent(self, now: float) -> None:
        """The primary says nothing to this host, which has everything and is to notice when the lease ends."""
        self._is_forced_in_silence = self.is_forced
        standing = self.seen.standing
        if self._read_s == READ_S and standing is not None and self._me.host in standing.in_sync:
            self._read_s = READ_SOON_S
            self._next_at = min(self._next_at, now)

    def primary_has_left(self, now: float) -> None:
        """The primary has given its lease back."""
        self.primary_is_silent(now)
        if self.role is Role.CANDIDATE:
            self._next_at = min(self._next_at, now)

    def primary_speaks(self) -> None:
        """It is there."""
        self._read_s = READ_S
        if self._is_forced_in_silence:
            self.is_forced = self._is_forced_in_silence = False

    def standby_is_silent(self, now: float, *, lacks_much: bool = False) -> None:
        """The standby owes an answer, or what it has is not what it is taken for."""
        self._lacks_much = lacks_much
        if self._silent_since is None:
            self._silent_since = now

    def standby_is_not_asked(self) -> None:
        """A process of this host is away, which may be why the standby does not follow it."""
        self._silent_since = None

    def standby_follows(self) -> None:
        """It gets groups as they come, in every spool, and owes no answer."""
        self._silent_since = None
        if self.role is Role.PRIMARY and not self.required_by:
            self.outbox.append(Require(self._require()))

    def standby_has_all(self, host: str, order: int) -> None:
        """Everything waits for it in every spool since this order, and it has all that was ever acknowledged."""
        if order == self.required_by != BY_POLICY:
            self._caught_up = host

    def _require(self) -> int:
        self._orders += 1
        self.required_by = self._orders
        return self._orders

    def lacks_store(self) -> bool:
        """It turns out that this host has not what it was taken for; false: too late, it may be the primary by now."""
        if self._may_begin or self.role is not Role.CANDIDATE:
            return False
        self.is_new = True
        return True

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.role is Role.OVER:
            return
        if self._asked is not None:
            if now < self._asked[2] + ANSWER_S:
                return
            self._asked, self._next_at = None, now
        if self.role is Role.PRIMARY:
            self._tick_primary(now)
        elif now >= self._next_at:
            self._ask(Read(), now)

    def _tick_primary(self, now: float) -> None:
        if now - self._disk_at > DISK_S:
            return  # who cannot store anything makes room for somebody who can
        standing = self._changed(now)
        if standing is not None:
            self._ask(Swap(self.seen.revision, standing), now)
        elif now >= self._next_at:
            self._ask(Renew(), now)

    def _changed(self, now: float) -> Standing | None:
        """Give what the standing ought to be, if it is something else."""
        standing = self.seen.standing
        assert standing is not None, "a primary has one"
        if not self.required_by:
            return None
        alone = frozenset((self._me.host,))
        since = self._silent_since
        if since is not None:
            # Also if nobody else is there: a request to put it there may be under way, and fails after this one.
            may_put_out = self._may_be_alone or self._lacks_much
            return standing._replace(in_sync=alone) if now - since > SILENT_S and may_put_out else None
        if standing.in_sync == alone and self._caught_up is not None:
            return standing._replace(in_sync=alone | {self._caught_up})
        return None

    def _ask(self, request: Request, now: float) -> None:
        self._numbers += 1
        self._asked = (self._numbers, request, now)
        self._next_at = now + (RENEW_S if self.role is Role.PRIMARY else self._read_s)
        self.outbox.append(Ask(self._numbers, request))

    # -- answers ---------------------------------------------------------------------------------------------

    def answered(self, answer: Answer, now: float) -> None:
        """Take an answer of the outside store; one that comes too late says nothing."""
        if self._asked is None or self._asked[0] != answer.number or self.role is Role.OVER:
            return
        _, request, sent_at = self._asked
        self._asked = None
        if answer.seen.revision >= self.seen.revision:
            self.seen = answer.seen
        if self.role is Role.CANDIDATE:
            self._consider(request, answer, sent_at, now)
        elif self.seen.holder != self._me:
            self.role = Role.OVER
            self.outbox.append(End())
        else:
            self._hold(request, answer, sent_at)

    def _hold(self, request: Request, answer: Answer, sent_at: float) -> None:
        if isinstance(request, Renew) and answer.is_done:
            self.outbox.append(ActUntil(sent_at + LEASE_S * (1 - DRIFT)))
        if isinstance(request, Swap) and answer.is_done and len(request.standing.in_sync) == 1:
            self.required_by, self._caught_up = None if self._may_be_alone else BY_POLICY, None
            self.outbox.append(Release() if self._may_be_alone else Require(BY_POLICY))

    def _consider(self, request: Request, answer: Answer, sent_at: float, now: float) -> None:
        seen = answer.seen
        if seen.holder == self._me and seen.standing is not None:
            self._begin(request, seen.standing, sent_at)
            return
        if seen.standing is not None and self._has_all(seen.standing):
            self.is_forced = False
        if seen.holder is not None and seen.holder.host != self._me.host:
            self._may_begin = False
        if self._may_take(seen) and now - self._disk_at <= DISK_S:
            self.before, self._may_begin = seen.standing, True
            has_all = seen.standing is not None and self._has_all(seen.standing)
            self.restorable = seen.standing if has_all else None
            self._ask(Take(seen, self._next_standing(seen.standing)), now)

    def _begin(self, request: Request, standing: Standing, sent_at: float) -> None:
        """Be the primary; after an answer that was lost the lease is as old as nobody knows, and is renewed first."""
        self.role, self._next_at = Role.PRIMARY, 0.0
        if len(standing.in_sync) > 1:
            self._require()
        elif not self._may_be_alone:
            self.required_by = BY_POLICY
        self.outbox.append(Begin(standing.epoch, self.required_by))
        if isinstance(request, Take):
            self.outbox.append(ActUntil(sent_at + LEASE_S * (1 - DRIFT)))

    def _may_take(self, seen: Seen) -> bool:
        has_all = self._may_found if seen.standing is None else self._has_all(seen.standing)
        if not has_all and not self.is_forced:
            return False
        # What this host had before it was started again has ended: only one process at a time has its data.
        return seen.holder is None or seen.holder.host == self._me.host

    def _has_all(self, standing: Standing) -> bool:
        """Tell whether this host has everything that was acknowledged."""
        is_in_sync = self._me.host in standing.in_sync
        return is_in_sync and not self.is_behind(standing) and not self.has_lost(standing)

    def has_lost(self, standing: Standing) -> bool:
        """Tell whether this host has not what the outside store says, while another one has everything."""
        return self.is_new and self._me.host in standing.in_sync and len(standing.in_sync) > 1

    def is_behind(self, standing: Standing) -> bool:
        """Tell whether the outside store has forgotten an epoch that this host has seen."""
        return standing.epoch < self._known_epoch

    def _next_standing(self, standing: Standing | None) -> Standing:
        me = self._me.host
        if standing is None:
            return Standing(self._known_epoch + 1, me, frozenset((me,)))
        is_back = standing.primary == me and not self.is_behind(standing)
        epoch = max(standing.epoch, self._known_epoch) + 1
        return Standing(epoch, me, standing.in_sync if is_back else frozenset((me,)))
