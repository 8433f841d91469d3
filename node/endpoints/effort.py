"""What a home may spend on looking into messages, and on whose account.

Delivering costs little for each message; asking a selector may cost a thousand times as much, and who writes the
selector writes the messages, too. So what looks into messages counts *steps* of about a nanosecond. A piece of work
ends when its steps are spent, after whichever message that was, and goes on in a later turn of the loop. And each
client username has an account that fills as time goes by: while it is empty, the flows and topic endpoints of the
user wait, and nobody else does.

Steps are counted rather than timed, so the same events give the same effects. No clock: `now` is given.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final, NamedTuple

#: Of one piece of work: what a client may feel, besides the message that is looked at last.
STEPS_PER_TURN: Final = 1_000_000
#: Default of `selector_ms_per_s`: one user has half of a worker at most.
RATE_DEFAULT_MS: Final = 500
STEPS_PER_MS: Final = 1_000_000
#: Seconds that an account can save up, and for which one that was empty fills before it is used again.
_SAVED_S: Final = 1.0
_REST_S: Final = 0.02
#: With so many accounts each new one has two others looked at, which are forgotten if they are full again: the rest is
#: of users that spend.
_ACCOUNTS_KEPT: Final = 1_000
_LOOKED_AT: Final = 2
#: An account that is empty time and again is told so often.
_TOLD_INTERVAL_S: Final = 60.0
#: Nobody else counts; as good as without a limit.
_UNLIMITED: Final = 1 << 62


class Payer(NamedTuple):
    """Whose messages, or whose selector, are looked at."""

    vpn: str
    #: Client username; for an endpoint without an owner its name.
    username: str


class _Account:
    """What a user may spend: never more than what is saved up in `_SAVED_S`; less than nothing by one message."""

    __slots__ = ("at", "left", "told_at")

    def __init__(self, left: int, at: float) -> None:
        self.left = left
        #: When it was filled last.
        self.at = at
        #: When operators were told that it is empty.
        self.told_at = -_TOLD_INTERVAL_S


class Effort:
    """The steps that are left in this turn, and the accounts."""

    __slots__ = (
        "_account",
        "_accounts",
        "_begun_with",
        "_kept",
        "_rate",
        "_spent",
        "is_charged",
        "left",
        "now",
        "toiled",
        "told",
        "waits",
    )

    def __init__(self, rate_ms: int = 0) -> None:
        """Make it without a limit for the turn, until `renew` is called; a rate of 0 is as much as there is."""
        #: What may be spent: who looks into a message takes its steps off, and stops when nothing is left. It is below
        #: nothing if the last message cost more.
        self.left = _UNLIMITED
        #: The time of the turn.
        self.now = 0.0
        #: How often somebody had to wait for an account.
        self.waits = 0
        #: Whose account is empty, as far as operators were not told.
        self.told: list[Payer] = []
        #: Steps that an account gains in a second.
        self._rate = rate_ms * STEPS_PER_MS
        #: Those first that were not looked at for longest.
        self._accounts: OrderedDict[Payer, _Account] = OrderedDict()
        #: Who pays now; None: nobody.
        self._account: _Account | None = None
        #: Whether somebody does: then `end` must be called.
        self.is_charged = False
        #: What was left when this began, and what of the turn its account does not pay for.
        self._begun_with = self.left
        self._kept = 0
        #: What was spent before; and what of all that no selector took.
        self._spent = self.toiled = 0

    @property
    def spent(self) -> int:
        """All steps since it was made."""
        return self._spent + self._begun_with - self.left

    def toil(self, steps: int) -> None:
        """Take off what no selector took."""
        self.left -= steps
        self.toiled += steps

    def renew(self) -> None:
        """Begin a turn of the loop, in which nobody pays as long as nothing is said."""
        self.end()
        self.left = self._begun_with = STEPS_PER_TURN

    def charge(self, payer: Payer, steps: int) -> None:
        """Count what somebody had done at once."""
        self.end()
        self.left -= steps
        if self._rate:
            self._filled(payer).left -= steps

    def begin(self, payer: Payer) -> float | None:
        """Let a user pay from now on; gives None, or the time at which the account is not empty any more."""
        self.end()
        if not self._rate:
            return None
        account = self._filled(payer)
        if account.left > 0:
            self._account, self.is_charged = account, True
            self._kept = max(self.left - account.left, 0)
            self.left -= self._kept
            self._begun_with = self.left
            return None
        self.waits += 1
        if self.now >= account.told_at + _TOLD_INTERVAL_S:
            account.told_at = self.now
            self.told.append(payer)
        return self.now + _REST_S - account.left / self._rate

    def end(self) -> None:
        """Let nobody pay any more."""
        used = self._begun_with - self.left
        self._spent += used
        if self._account is not None:
            self._account.left -= used
            self._account, self.is_charged = None, False
            self.left += self._kept
        self._begun_with = self.left

    def _filled(self, payer: Payer) -> _Account:
        most = round(self._rate * _SAVED_S)
        account = self._accounts.get(payer)
        if account is None:
            if len(self._accounts) >= _ACCOUNTS_KEPT:
                self._forget_full(most)
            account = self._accounts[payer] = _Account(most, self.now)
        account.left = min(most, account.left + round((self.now - account.at) * self._rate))
        account.at = self.now
        return account

    def _forget_full(self, most: int) -> None:
        for payer in list(islice(self._accounts, _LOOKED_AT)):
            one = self._accounts[payer]
            if one.left + (self.now - one.at) * self._rate >= most and one is not self._account:
                del self._accounts[payer]
            else:
                self._accounts.move_to_end(payer)
