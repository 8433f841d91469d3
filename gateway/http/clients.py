"""All clients of a process, by what their requests say of themselves: a login costs the node much, a request little.

A client serves requests with its credentials from one address for a minute; then the next request logs in anew, so that
a password that was changed is of no use for longer than that. It leaves when its last request is done, or when nobody
has asked for a while. If its username may have no other one beside it, it goes on: limits are judged behind the
password. So it does for the next token of the same login, one that says the same of who he is and what he may.
Passwords are kept as keyed hashes, under a key that nobody has beside this process.

Decides and keeps; time is a parameter.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from typing import TYPE_CHECKING, Final, Protocol

from angarium import errors
from gateway.http.client import ClientState, HttpClient
from gateway.http.queues import Reader, Receipts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.attached import Attached, Guest, Login
    from gateway.http.credentials import Credentials

#: A login is good for so long.
LOGIN_S: Final = 60.0
#: Who asks for nothing leaves after so long.
IDLE_S: Final = 20.0
#: Clients of the process; one more is refused until one leaves.
CLIENTS_MAX: Final = 10_000
#: How often `tick` looks who is idle, and which leases are over.
LOOK_S: Final = 0.25

_log = logging.getLogger("gateway.http.clients")


class Attach(Protocol):
    """Logs a client in at the node."""

    def __call__(self, guest: Guest, login: Login, vpn: str, now: float, /) -> Attached:
        """Give the client; what comes of it is told to the guest, later."""


class _Known:
    """A client, until when requests join it, and whether it follows one with the same credentials."""

    __slots__ = ("client", "follows", "until")

    def __init__(self, client: HttpClient, until: float, *, follows: bool = False) -> None:
        self.client = client
        self.until = until
        self.follows = follows


class Clients:
    """Those of a process."""

    def __init__(self, attach: Attach) -> None:
        self._attach = attach
        self._key = secrets.token_bytes(32)
        #: Those that requests join, by a hash of their credentials.
        self._known: dict[bytes, _Known] = {}
        #: The newest with a token, by a hash of what its next token says, too.
        self._renewed: dict[bytes, HttpClient] = {}
        #: By a hash of credentials: what reads queues, of all clients that had it.
        self._readings: dict[bytes, dict[str, Reader]] = {}
        #: All that are not over.
        self._all: dict[HttpClient, None] = {}
        #: Of them, those whose messages wait for room.
        self._waiting: dict[HttpClient, None] = {}
        self._look_at = 0.0
        self._is_stopping = False
        #: Leases of all of them.
        self.receipts: Final = Receipts()
        #: How many logins there were.
        self.logins = 0

    def __len__(self) -> int:
        """Count them."""
        return len(self._all)

    def find(self, credentials: Credentials, now: float) -> HttpClient:
        """Give the client that a request is of; it logs in if it is new.

        Raises:
            UnavailableError: there are too many (50302), or the process is about to end (50304).
        """
        if self._is_stopping:
            raise errors.error_for(errors.SHUTTING_DOWN)
        mark = self._mark(credentials)
        known = self._known.get(mark)
        if known is not None and now < known.until and known.client.is_joined:
            return known.client
        if len(self._all) >= CLIENTS_MAX:
            raise errors.error_for(errors.TOO_MANY_CLIENTS, f"{CLIENTS_MAX:,} clients of HTTP are here")
        client = HttpClient(self._waiting, self._readings.setdefault(mark, {}))
        if known is not None:
            client.before = self._end_before(known.client)
        if credentials.token is not None:
            self._renew(client, credentials)
        client.idle_since = now
        client.attached = self._attach(client, credentials.login(), credentials.vpn, now)
        self._known[mark] = _Known(client, now + LOGIN_S, follows=known is not None)
        self._all[client] = None
        self.logins += 1
        return client

    def _renew(self, client: HttpClient, credentials: Credentials) -> None:
        """Have a client follow that with the token before, which stays: anybody may send a token that says the same."""
        mark = self._mark(credentials.lasting)
        before = self._renewed.get(mark)
        if client.before is None and before is not None:
            client.before = before if before.is_serving else before.before
        self._renewed[mark] = client

    def _end_before(self, client: HttpClient) -> HttpClient | None:
        """Have a client followed by another one: at once, if nobody needs it. Gives the one that still serves."""
        if not client.is_serving:
            return client.before
        if client.is_idle:
            client.leave()
            del self._all[client]
            return None
        for reader in client.readers.values():
            reader.is_last = True
        return client

    def go_back(self, client: HttpClient, credentials: Credentials, now: float) -> HttpClient | None:
        """Have the one before serve on whose follower is one too many for its username; None if there is none."""
        before = client.before
        refusal = client.error
        if refusal is None or refusal.code != errors.TOO_MANY_CONNECTIONS:
            return None
        if before is None or not before.is_serving:
            return None
        for reader in before.readers.values():
            reader.is_last = False
        self._known[self._mark(credentials)] = _Known(before, now + LOGIN_S)
        return before

    def _mark(self, credentials: Credentials) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in credentials:
            data = b"" if part is None else part.encode(errors="surrogatepass")
            digest.update(b"-" if part is None else len(data).to_bytes(4, "big") + data)
        return digest.digest()

    def tick(self, now: float) -> None:
        """Publish what waited for room of all, and send those away that nobody needs."""
        for client in [*self._waiting]:
            self._have(client, client.go_on)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for client in self._all:
            self._have(client, client.tick, now)
        for client in [one for one in self._all if self._is_done(one, now)]:
            client.leave()
            del self._all[client]
        self._known = {
            mark: one
            for mark, one in self._known.items()
            if one.client in self._all or (one.follows and one.client.before in self._all)
        }
        self._renewed = {
            mark: one for mark, one in self._renewed.items() if one in self._all or one.before in self._all
        }
        self._readings = {
            mark: readers for mark, readers in self._readings.items() if readers or mark in self._known
        }

    def _have(self, client: HttpClient, act: Callable[..., None], *arguments: float) -> None:
        """Have a client do what is due; a fault of ours there costs that client only."""
        try:
            act(*arguments)
        except Exception:  # noqa: BLE001 - others are behind it
            _log.exception("what was due of a client led to a fault of the gateway")
            client.fail()

    def _is_done(self, client: HttpClient, now: float) -> bool:
        if client.state is ClientState.OVER:
            return True
        return client.is_idle and now - client.idle_since >= IDLE_S

    def stop(self) -> None:
        """Serve nothing new, and tell those who wait for messages and replies that none come; the others are served."""
        self._is_stopping = True
        for client in self._all:
            client.wait_no_more(errors.error_for(errors.SHUTTING_DOWN))
