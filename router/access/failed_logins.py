"""Logins that were refused, for the operators: per address, what is new at once and the others once a minute.

A client hears 40101 whatever was wrong. Here is what it was: the events have the codes, the usernames that were tried
and the address, and nothing that was given as a password. New is the first refusal, and a reason that was not told in
the last minute: who mends one thing after the other sees each. Whoever guesses costs one event a minute, however often,
and who has ever other reasons a few.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from angarium.errors import AngariumError
    from router.ground.ground import Outbox

#: The refusals of an address in this time are one event.
EVENT_INTERVAL_S: Final = 60.0
#: Addresses that are told apart; those beyond are one together.
ADDRESSES_MAX: Final = 1_000
#: Usernames and reasons that an event names.
NAMES_MAX: Final = 5
#: Characters of a username that are shown: whoever is refused has chosen it.
NAME_CHARACTERS: Final = 64
#: What stands for the addresses beyond the limit, and for one that is not known.
OTHERS: Final = "other addresses"
UNKNOWN: Final = "an unknown address"


class _Failures:
    """What an address failed with since the last event."""

    __slots__ = ("count", "due", "names", "reasons", "told")

    def __init__(self, due: float, told: frozenset[str] = frozenset()) -> None:
        #: When the next event is due.
        self.due = due
        #: Reasons that events told since the last one that was due, which are few.
        self.told = told
        self.count = 0
        #: (Message VPN, username) in the order of the first attempt; at most NAMES_MAX.
        self.names: dict[tuple[str, str], None] = {}
        #: Reason -> how often; at most NAMES_MAX.
        self.reasons: Counter[str] = Counter()


class FailedLogins:
    """Collects refusals and tells of them."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        #: Address -> its refusals; each was told of within the last interval.
        self._of: dict[str, _Failures] = {}

    def add(self, address: str, vpn: str, username: str, error: AngariumError, now: float) -> None:
        """A login was refused; operators hear of it now, or with others at the end of the minute."""
        key = address or UNKNOWN
        failures = self._of.get(key)
        if failures is None:
            if len(self._of) >= ADDRESSES_MAX:
                key = OTHERS
                failures = self._of.get(key)
            if failures is None:
                failures = self._of[key] = _Failures(now)
        failures.count += 1
        name = vpn[:NAME_CHARACTERS], username[:NAME_CHARACTERS]
        if len(failures.names) < NAMES_MAX:
            failures.names[name] = None
        reason = f"{error}"
        if reason in failures.reasons or len(failures.reasons) < NAMES_MAX:
            failures.reasons[reason] += 1
        is_new = reason not in failures.told and len(failures.told) < NAMES_MAX
        if is_new or now >= failures.due:
            self._tell(key, failures, now)

    def sweep(self, now: float) -> None:
        """Tell what is due, and forget who was refused no more."""
        for address, failures in list(self._of.items()):
            if now < failures.due:
                continue
            if failures.count:
                self._tell(address, failures, now)
            else:
                del self._of[address]

    def _tell(self, address: str, failures: _Failures, now: float) -> None:
        names = ", ".join(f"{name!r} (Message VPN {vpn!r})" for vpn, name in failures.names)
        reasons = ", ".join(f"{count} x {reason}" for reason, count in failures.reasons.items())
        what = "a login" if failures.count == 1 else f"{failures.count} logins"
        self._outbox.event(
            "SYSTEM_CLIENT_LOGIN_REFUSED",
            f"{what} from {address} failed: as {names}; {reasons}",
            severity="warning",
            address=address,
            count=failures.count,
            usernames=[name for _, name in failures.names],
        )
        told = failures.told if now < failures.due else frozenset()
        self._of[address] = _Failures(now + EVENT_INTERVAL_S, told | frozenset(failures.reasons))
