"""Who asks: name and password of each request (HTTP Basic), compared with the hash that the controller has.

To compare takes tens of milliseconds of a core, on purpose, so it is done in a thread, and a password that fits is
remembered for a minute, together with the stored hash and the network that it came from. The stored hash is asked for
each time, so a password that was changed is refused at once.

Who guesses is put off: see `attempts`. How many passwords are compared at once is bounded as well; one more is
refused, which is no failure of whoever sent it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors
from angarium_server.access import network_of
from cluster.management.access.attempts import Attempts
from cluster.management.access.outcomes import Login, Operator
from cluster.management.access.remembered import Remembered
from cluster.security import passwords

if TYPE_CHECKING:
    from cluster.management.access.outcomes import Ask, Outcomes

#: Comparisons at once; those that may wait for one; and more of them for names from where they have logged in before.
THREADS: Final = 2
STRANGERS_MAX: Final = 24
FOR_KNOWN: Final = 8
#: Of a header with name and password; and of a name, more than any operator has.
CREDENTIALS_BYTES_MAX: Final = 2_048
NAME_MAX: Final = 256

_FAILED: Final = "name and password of an operator do not belong together"
_ADVICE: Final = "check both; 'angarium operator show NAME' on the node's host tells whether it is enabled"
_NEEDED: Final = "send name and password of an operator (HTTP Basic); 'angarium operator create' makes one"


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

    def __init__(self, ask: Ask, outcomes: Outcomes) -> None:
        self._ask = ask
        self._threads = ThreadPoolExecutor(THREADS, "password")
        self._comparing = 0
        self._remembered = Remembered()
        self._attempts = Attempts()
        self._outcomes = outcomes

    async def caller(self, authorization: str | None, address: str) -> Operator:
        """Give the operator who asks from an address.

        Raises:
            UnauthorizedError: it is none (40101).
            RateLimitError: too many attempts have failed (42901).
        """
        given = basic(authorization)
        known = await self._ask("operators.credentials", {"name": given.name})
        stored, is_enabled = str(known["password"]), bool(known["enabled"])
        shown = (stored, given.password, network_of(address))
        operator = Operator.of(known) if is_enabled else None
        if not self._remembered.has(*shown, now=time.monotonic()):
            await self._log_in(given, address, stored, is_enabled=is_enabled)
            # To compare takes a while, in which he may have lost the rights that he had.
            operator = await self.find(given.name, stored)
        if operator is None:
            raise errors.error_for(errors.UNAUTHORIZED, _FAILED, _ADVICE)
        return operator

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

    async def find(self, name: str, stored: str) -> Operator | None:
        """Give the operator whose login still counts: he is enabled, and has the password of then."""
        known = await self._ask("operators.credentials", {"name": name})
        return Operator.of(known) if known["enabled"] and known["password"] == stored else None

    async def _log_in(self, given: Given, address: str, stored: str, *, is_enabled: bool) -> None:
        network = network_of(address)
        taken = self._attempts.take(network, given.name, time.monotonic())
        if taken is None:
            self._outcomes.counts["logins_put_off"] += 1
            detail = "too many logins from this address, or with this name, have failed"
            raise errors.error_for(errors.CONNECT_RATE_EXCEEDED, detail, "wait a minute, and try again")
        try:
            at_once_max = STRANGERS_MAX + FOR_KNOWN * self._attempts.knows(network, given.name)
            fits = await self._fits(stored, given.password, at_once_max) and is_enabled
        except errors.RateLimitError:
            self._attempts.give_back(taken)
            self._outcomes.counts["logins_put_off"] += 1
            raise
        login = Login("password", address, given.name)
        if not fits:
            await self._outcomes.refused(login)
            raise errors.error_for(errors.UNAUTHORIZED, _FAILED, _ADVICE)
        await self._outcomes.good(login)
        self._attempts.fitted(network, given.name, taken)
        self._remembered.add(stored, given.password, network, now=time.monotonic())

    async def _fits(self, stored: str, password: str, at_once_max: int) -> bool:
        if self._comparing >= at_once_max:
            detail = f"{self._comparing} passwords are being compared"
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
