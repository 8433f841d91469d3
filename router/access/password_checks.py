"""Passwords that wait to be compared: which one is next, and which need not be compared at all.

A comparison takes tens of milliseconds of a thread on purpose, so whoever guesses can use it up. Five rules keep logins
of others going:

- A password that was right of late is known by a digest with a key that only this process has, and costs nothing; one
  that waits or is compared, for the same username and network, is compared once for all who sent it.
- Who failed of late, by network (an IPv4 address, or 64 bits of an IPv6 one) and by username, is behind who did not:

      level 0    neither the network nor the username failed     four comparisons in seven, and all that others leave
      level 1    one of them did                                 two in seven
      level 2    both did                                        one in seven

- From the fourth failure on a network waits before its next comparison, twice as long each time: a second at most, and
  ten where the username failed as often. A username alone never waits, or anybody could keep its owner out.
- Level 2 has half of the places to wait in, levels 1 and 2 three quarters; where there is no place, a login displaces
  one of a higher level, of a network that has more of them waiting, or of a Message VPN or username that has more than
  its share of the places (half, and a tenth) if its own have not.
- Who has waited for `wait_max_s` is told so, before the deadline of the connection ends it without a word.

A state machine without a clock: who waits for a reason of time is found by `next` and `late` at `wake` or later.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Final, NamedTuple

from angarium import errors
from angarium.errors import error_for
from angarium_server.access import network_of

#: Comparisons at a time, and threads of the shell: scrypt keeps a core busy for tens of milliseconds, so one leaves the
#: others to messages.
AT_ONCE: Final = 1
#: Of one network: at 50 ms each it delays others by a second at most.
PER_NETWORK_MAX: Final = 16
#: How long a failure counts after the last one.
FAILURE_MEMORY_S: Final = 600.0
#: Networks, and usernames, whose failures are remembered; the oldest are forgotten.
FAILURES_MAX: Final = 10_000
#: Passwords that are known to be right; the oldest are forgotten.
KNOWN_MAX: Final = 10_000
#: Failures that everybody has free: people mistype.
FREE_FAILURES: Final = 3
FIRST_DELAY_S: Final = 0.2
NETWORK_DELAY_MAX_S: Final = 1.0
DELAY_MAX_S: Final = 10.0
#: What levels from this one on have of all places.
PLACES: Final = (1.0, 0.75, 0.5)
#: What one Message VPN, and one username, has of all places before it gives way to others.
VPN_SHARE: Final = 0.5
USERNAME_SHARE: Final = 0.1
#: Whose turn it is; with nobody there, the lowest level that has somebody.
TURNS: Final = (0, 1, 0, 2, 0, 1, 0)

#: (Message VPN, username), as they were given.
Owner = tuple[str, str]


class Check(NamedTuple):
    """A password to be compared; or, in `token_checks`, a token to be verified, without a hash."""

    number: int
    network: str
    owner: Owner
    password: str
    stored: str
    #: When it came.
    since: float


class _Failures:
    """Who failed of late, and how often."""

    def __init__(self) -> None:
        #: Key -> (failures, when the last one was), the oldest first; at most FAILURES_MAX.
        self._of: dict[object, tuple[int, float]] = {}

    def add(self, key: object, now: float) -> None:
        count, _ = self.get(key, now)
        self._of.pop(key, None)
        self._of[key] = count + 1, now
        if len(self._of) > FAILURES_MAX:
            del self._of[next(iter(self._of))]

    def get(self, key: object, now: float) -> tuple[int, float]:
        count, at = self._of.get(key, (0, now))
        return (count, at) if now - at <= FAILURE_MEMORY_S else (0, now)

    def sweep(self, now: float) -> None:
        for key in [key for key, (_, at) in self._of.items() if now - at > FAILURE_MEMORY_S]:
            del self._of[key]


class PasswordChecks:
    """All logins whose password is compared, or waits for it."""

    def __init__(self, waiting_max: int, wait_max_s: float, memory_s: float, key: bytes) -> None:
        """Begin with nobody known; `key` is secret and lives no longer than this process."""
        self._waiting_max = waiting_max
        self._wait_max_s = wait_max_s
        self._memory_s = memory_s
        self._key = key
        #: Digest -> until when that password is known to be right, the oldest first.
        self._known: dict[bytes, float] = {}
        self._networks, self._owners = _Failures(), _Failures()
        #: In the order in which they came; at most `waiting_max`.
        self._waiting: dict[int, Check] = {}
        #: At most AT_ONCE.
        self._under_way: dict[int, Check] = {}
        self._turn = 0

    def is_known(self, stored: str, password: str, now: float) -> bool:
        """Tell whether this password was right for this stored hash of late."""
        return self._known.get(self._digest(stored, password), 0.0) > now

    def same(self, check: Check) -> int | None:
        """Give the number of an equal check that waits or is under way: what it says answers this one too."""
        for one in (*self._waiting.values(), *self._under_way.values()):
            if one[1:5] == check[1:5]:  # network, owner, password and hash
                return one.number
        return None

    def add(self, check: Check, now: float) -> int | None:
        """Have a password compared; gives the number of one that loses its place for this one.

        Raises:
            RateLimitError: there is no place (42901).
        """
        everybody = [*self._waiting.values(), *self._under_way.values()]
        if sum(one.network == check.network for one in everybody) >= PER_NETWORK_MAX:
            raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many logins at once from one address")
        own = self._level(check, now)
        levels = {one.number: self._level(one, now) for one in self._waiting.values()}
        displaced = None
        places = PLACES[own] * self._waiting_max
        if len(levels) >= self._waiting_max or sum(level >= own for level in levels.values()) >= places:
            levels[check.number] = own
            displaced = self._worst(levels, check)
            if displaced is None:
                raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many logins at once")
            del self._waiting[displaced]
        self._waiting[check.number] = check
        return displaced

    def _worst(self, levels: dict[int, int], newest: Check) -> int | None:
        """Give the number of the one that has to give way to the newest, the last of several; None if nobody has to."""
        everybody = [*self._waiting.values(), newest]
        networks = Counter(one.network for one in everybody)
        usernames = Counter(one.owner for one in everybody)
        vpns = Counter(one.owner[0] for one in everybody)

        def rank(one: Check) -> tuple[int, int, bool, bool]:
            of_vpn, of_username = vpns[one.owner[0]], usernames[one.owner]
            return (
                levels[one.number],
                networks[one.network],
                of_vpn > self._waiting_max * VPN_SHARE,
                of_username > self._waiting_max * USERNAME_SHARE,
            )

        ranks = {one.number: rank(one) for one in self._waiting.values()}
        worst = max(ranks.values())
        if worst <= rank(newest):
            return None
        return next(number for number in reversed(ranks) if ranks[number] == worst)

    def next(self, now: float) -> Check | None:
        """Give what is to be compared now, if anything."""
        if len(self._under_way) >= AT_ONCE:
            return None
        first: dict[int, Check] = {}
        for check in self._waiting.values():
            if self._ready_at(check, now) <= now:
                first.setdefault(self._level(check, now), check)
        if not first:
            return None
        self._turn = (self._turn + 1) % len(TURNS)
        check = first.get(TURNS[self._turn]) or first[min(first)]
        self._under_way[check.number] = self._waiting.pop(check.number)
        return check

    def late(self, now: float) -> list[int]:
        """Give the numbers of those that have waited too long; they wait no more."""
        late = [number for number, one in self._waiting.items() if one.since + self._wait_max_s <= now]
        for number in late:
            del self._waiting[number]
        return late

    def done(self, number: int, now: float, *, correct: bool) -> None:
        """A password was compared."""
        check = self._under_way.pop(number)
        if not correct:
            self._networks.add(check.network, now)
            self._owners.add(check.owner, now)
        elif self._memory_s:
            digest = self._digest(check.stored, check.password)
            self._known.pop(digest, None)
            self._known[digest] = now + self._memory_s
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]

    def failed(self, network: str, now: float) -> None:
        """Something else than a password, of a network, was wrong: a token, of a client or to join the cluster."""
        self._networks.add(network, now)

    def has_failed(self, network: str, now: float) -> bool:
        """Tell whether something of a network was wrong of late."""
        return self._networks.get(network, now)[0] > 0

    def wait_s(self, network: str, now: float) -> float:
        """Give how long a network has to wait before its next try."""
        failures, at = self._networks.get(network, now)
        return max(0.0, at + _delay(failures, NETWORK_DELAY_MAX_S) - now)

    def wake(self, now: float) -> float:
        """Give when there is something to compare again, or somebody late, if nothing comes or is done before."""
        waiting = self._waiting.values()
        late = min((one.since + self._wait_max_s for one in waiting), default=float("inf"))
        if len(self._under_way) >= AT_ONCE:
            return late
        return min(late, *(self._ready_at(one, now) for one in waiting)) if waiting else late

    def sweep(self, now: float) -> None:
        """Forget what is old."""
        self._networks.sweep(now)
        self._owners.sweep(now)
        for digest in [digest for digest, until in self._known.items() if until <= now]:
            del self._known[digest]

    def _level(self, check: Check, now: float) -> int:
        return (self._networks.get(check.network, now)[0] > 0) + (self._owners.get(check.owner, now)[0] > 0)

    def _ready_at(self, check: Check, now: float) -> float:
        failures, at = self._networks.get(check.network, now)
        of_owner = self._owners.get(check.owner, now)[0]
        return at + max(_delay(failures, NETWORK_DELAY_MAX_S), _delay(min(failures, of_owner), DELAY_MAX_S))

    def _digest(self, stored: str, password: str) -> bytes:
        text = f"{stored}\0{password}".encode(errors="surrogatepass")
        return blake2b(text, key=self._key, digest_size=32).digest()

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert len(self._under_way) <= AT_ONCE
        assert len(self._waiting) <= self._waiting_max
        assert len(self._known) <= KNOWN_MAX


def check_of(number: int, address: str, owner: Owner, password: str, stored: str, now: float) -> Check:
    """Make what is compared for a login from an address."""
    return Check(number, network_of(address), owner, password, stored, now)


def _delay(failures: int, delay_max_s: float) -> float:
    """Give how long a network waits after so many failures: 0, 0, 0, 0.2, 0.4, 0.8, ..."""
    beyond = min(failures - FREE_FAILURES, 20)
    return min(FIRST_DELAY_S * 2.0 ** (beyond - 1), delay_max_s) if beyond > 0 else 0.0
