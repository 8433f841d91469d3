"""Who asks: name and password of each request (HTTP Basic), compared with the hash that the controller has.

To compare takes tens of milliseconds of a core, on purpose, so it is done in a thread, and a password that fits is
remembered for a minute: as a keyed hash of it together with the stored hash, under a key that nobody has beside this
process. The stored hash is asked for each time, so a password that was changed is refused at once.

Who guesses is put off, by address and by name. An attempt counts before it is compared, or many at once would be
free; one that fits is given back.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
import time
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium_server.access import network_of
from cluster.security import passwords
from router.ground.ground import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: How long a password that fitted is known, and how many are.
REMEMBERED_S: Final = 60.0
REMEMBERED_MAX: Final = 1_000
#: Attempts that fail: from one network, and with one name from anywhere. A name has more, or strangers could shut its
#: owner out by failing in its name.
ADDRESS_BURST: Final = 10
ADDRESS_PER_S: Final = 0.2
NAME_BURST: Final = 50
NAME_PER_S: Final = 1.0
#: Networks and names that are known; with more, the one that was quiet for longest is forgotten.
WATCHED_MAX: Final = 10_000
#: Comparisons at once, and those that may wait for one.
THREADS: Final = 2
COMPARED_MAX: Final = 32
#: Of a header with name and password; and of a name, more than any operator has.
CREDENTIALS_BYTES_MAX: Final = 2_048
NAME_MAX: Final = 256

_FAILED: Final = "name and password of an operator do not belong together"
_ADVICE: Final = "check both; 'angarium operator show NAME' on the node's host tells whether it is enabled"
_NEEDED: Final = "send name and password of an operator (HTTP Basic); 'angarium operator create' makes one"


class Caller(NamedTuple):
    """On whose behalf something is asked."""

    operator: str
    address: str


class Failures:
    """How often each of some keys may fail; time is a parameter."""

    def __init__(self, burst: float, per_s: float) -> None:
        """Nobody has failed."""
        self._burst, self._per_s = burst, per_s
        #: Those that failed lately, the last one at the end.
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, key: str, now: float) -> bool:
        """Count an attempt; false if there were too many."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= WATCHED_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = TokenBucket(self._per_s, self._burst, now)
        self._buckets.move_to_end(key)
        return bucket.take(now)

    def give_back(self, key: str) -> None:
        """Count one less: it did not fail."""
        if bucket := self._buckets.get(key):
            bucket.level = min(bucket.burst, bucket.level + 1.0)


class Remembered:
    """Passwords that fitted, for a while; time is a parameter."""

    def __init__(self) -> None:
        """None yet."""
        self._key = secrets.token_bytes(32)
        #: Keyed hash -> until when it counts, the oldest first.
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def _mark(self, stored: str, password: str) -> bytes:
        data = f"{stored}\0{password}".encode()
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()

    def has(self, stored: str, password: str, now: float) -> bool:
        """Tell whether a password fitted this stored hash lately."""
        return self._until.get(self._mark(stored, password), 0.0) > now

    def add(self, stored: str, password: str, now: float) -> None:
        """Know that it fits."""
        mark = self._mark(stored, password)
        self._until.pop(mark, None)
        if len(self._until) >= REMEMBERED_MAX:
            self._until.popitem(last=False)
        self._until[mark] = now + REMEMBERED_S


class Given(NamedTuple):
    """What somebody says of himself."""

    name: str
    password: str


def basic(header: str | None) -> Given:
    """Give what a header Authorization says.

    Raises:
        UnauthorizedError: there is none, or it is of another kind (40101).
    """
    scheme, _, value = (header or "").partition(" ")
    if scheme.lower() != "basic" or len(value) > CREDENTIALS_BYTES_MAX:
        raise errors.error_for(errors.UNAUTHORIZED, "", _NEEDED)
    try:
        name, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise errors.error_for(
            errors.UNAUTHORIZED, "the header Authorization cannot be read", _NEEDED
        ) from None
    if not (name and colon):
        raise errors.error_for(errors.UNAUTHORIZED, "", _NEEDED)
    if len(name) > NAME_MAX:
        raise errors.error_for(errors.UNAUTHORIZED, _FAILED, _ADVICE)
    return Given(name, password)


class Logins:
    """Tells who somebody is."""

    def __init__(self, ask: Callable[[str, Any], Awaitable[Any]]) -> None:
        """Ask the controller in this way."""
        self._ask = ask
        self._threads = ThreadPoolExecutor(THREADS, "password")
        self._comparing = 0
        self._remembered = Remembered()
        self._of_addresses = Failures(ADDRESS_BURST, ADDRESS_PER_S)
        self._of_names = Failures(NAME_BURST, NAME_PER_S)
        #: Name of a metric -> how often.
        self.counts: Counter[str] = Counter()

    async def caller(self, authorization: str | None, address: str) -> Caller:
        """Give the operator who asks from an address.

        Raises:
            UnauthorizedError: it is none (40101).
            RateLimitError: too many attempts have failed (42901).
        """
        given = basic(authorization)
        known = await self._ask("operators.credentials", {"name": given.name})
        stored, is_enabled = str(known["password"]), bool(known["enabled"])
        if not self._remembered.has(stored, given.password, time.monotonic()):
            await self._log_in(given, address, stored, is_enabled=is_enabled)
        elif not is_enabled:
            raise errors.error_for(errors.UNAUTHORIZED, _FAILED, _ADVICE)
        return Caller(given.name, address)

    async def log_in(self, given: Given, address: str) -> str:
        """Compare name and password, and give the hash that is stored.

        Raises:
            UnauthorizedError: they do not belong together (40101).
            RateLimitError: too many attempts have failed (42901).
        """
        known = await self._ask("operators.credentials", {"name": given.name})
        stored = str(known["password"])
        await self._log_in(given, address, stored, is_enabled=bool(known["enabled"]))
        return stored

    async def stands(self, name: str, stored: str) -> bool:
        """Tell whether a login of an operator still counts: enabled, and with the password of then."""
        known = await self._ask("operators.credentials", {"name": name})
        return bool(known["enabled"]) and str(known["password"]) == stored

    async def _log_in(self, given: Given, address: str, stored: str, *, is_enabled: bool) -> None:
        network, now = network_of(address), time.monotonic()
        if not (self._of_addresses.take(network, now) and self._of_names.take(given.name, now)):
            self.counts["logins_put_off"] += 1
            detail = "too many logins from this address, or with this name, have failed"
            raise errors.error_for(errors.CONNECT_RATE_EXCEEDED, detail, "wait a minute, and try again")
        fits = await self._fits(stored, given.password) and is_enabled
        self.counts["logins" if fits else "logins_failed"] += 1
        outcome: str | int = "done" if fits else errors.UNAUTHORIZED
        told = {"name": given.name, "address": address, "method": "password", "outcome": outcome}
        await self._ask("operators.logged_in", told)
        if not fits:
            raise errors.error_for(errors.UNAUTHORIZED, _FAILED, _ADVICE)
        self._of_addresses.give_back(network)
        self._of_names.give_back(given.name)
        self._remembered.add(stored, given.password, time.monotonic())

    async def _fits(self, stored: str, password: str) -> bool:
        if self._comparing >= COMPARED_MAX:
            detail = f"{COMPARED_MAX} passwords are being compared"
            raise errors.error_for(errors.CONNECT_RATE_EXCEEDED, detail, "try again in a second")
        self._comparing += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, passwords.fits, stored, password)
        finally:
            self._comparing -= 1

    def close(self) -> None:
        """Compare nothing any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
