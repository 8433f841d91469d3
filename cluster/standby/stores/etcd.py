"""etcd as the outside store, by its JSON gateway.

**A renewal is a new lease, not a keepalive.** A keepalive goes to the leader alone and is in no log: a leader that was
replaced and does not know it yet may answer one that nobody else hears of, and one that was stopped for a moment takes
back leases that others have kept alive in the meantime. So each renewal grants a lease and moves the key of the holder
to it in a transaction. Both go through the log, an old lease has no key any more, and whoever takes it back takes back
nothing. That is two writes a second for a pair.

**Nothing is believed.** Each request is one transaction that compares the revisions it was decided upon; a lease only
lets another host try. A request that is repeated at the next member, because the first one did not answer, finds
that its comparison fails and its own name in the standing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from cluster.standby.pair.outside import Answer, Read, Renew, Resign, Swap, Take
from cluster.standby.stores.etcd_words import Found, Transactions, found_in
from cluster.standby.stores.http import Reply, read_secret, said
from cluster.standby.stores.store import NoAnswerError
from cluster.standby.stores.written import check_holder, new_change, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.standby.pair.outside import Holder, Request
    from cluster.standby.stores.http import Servers

_GRANT: Final = "/v3/lease/grant"
_TRANSACTION: Final = "/v3/kv/txn"
_AUTHENTICATE: Final = "/v3/auth/authenticate"
#: Of gRPC: the token is not valid, or not any more.
_UNAUTHENTICATED: Final = 16
#: Of etcd: a token from before the last change of users or roles, and one that was not sent.
_OLD_TOKEN: Final = ("revision of auth store is old", "user name is empty")
#: A renewal that finds another revision of its own key tries again with that one.
_RENEWALS_MAX: Final = 3


class Login:
    """A user of etcd with a password in a file; the token is kept until etcd does not know it any more."""

    def __init__(self, username: str = "", password_file: str = "") -> None:
        """Be nobody without a username."""
        self._username, self._password_file = username, password_file
        self._token = ""

    async def send(self, servers: Servers, path: str, body: Any, deadline: float) -> Reply:
        """POST as that user; with a new token if the old one is not valid any more.

        Raises:
            NoAnswerError: no answer, or no token.
        """
        for is_last in (False, True):
            if self._username and not self._token:
                await self._log_in(servers, deadline)
            headers = {"authorization": self._token} if self._token else {}
            reply = await servers.send("POST", path, body, deadline=deadline, headers=headers)
            if is_last or not self._username or not _is_unknown(reply):
                return reply
            self._token = ""
        raise AssertionError("the last reply was given")

    async def _log_in(self, servers: Servers, deadline: float) -> None:
        body = {"name": self._username, "password": read_secret(self._password_file)}
        reply = await servers.send("POST", _AUTHENTICATE, body, deadline=deadline)
        token = reply.body.get("token") if isinstance(reply.body, dict) else None
        if not isinstance(token, str) or not token:
            raise NoAnswerError(f"etcd does not let user {self._username} in: {reply.status} {said(reply)}")
        self._token = token


class EtcdStore:
    """The outside store of one holder in etcd."""

    def __init__(
        self, me: Holder, transactions: Transactions, servers: Servers, login: Login, lease_s: int
    ) -> None:
        """Ask nothing yet.

        Args:
            me: who asks.
            transactions: of the node id.
            servers: members of etcd; closed with the store.
            login: as whom.
            lease_s: until when nobody else may be the holder, from a renewal on.
        """
        check_holder(me)
        self._me = me
        self._transactions = transactions
        self._servers = servers
        self._login = login
        self._lease_s = lease_s
        #: Revision of the key of the holder, as it was seen last; 0: another host is the holder, or none.
        self._held = 0

    async def ask(self, number: int, request: Request, timeout_s: float) -> Answer:
        """Have a request carried out; see `Store`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        match request:
            case Read():
                found = await self._do(self._transactions.read(), deadline)
            case Take(seen, standing):
                lease = await self._grant(deadline)
                found = await self._change(
                    lambda change: self._transactions.take(self._me, seen, written(standing, change), lease),
                    deadline,
                )
            case Swap(revision, standing):
                found = await self._change(
                    lambda change: self._transactions.swap(self._me, revision, written(standing, change)),
                    deadline,
                )
            case Renew():
                found = await self._renew(deadline)
            case Resign():
                found = await self._do(self._transactions.resign(self._me), deadline)
        return Answer(number, found.is_done, found.seen)

    async def close(self) -> None:
        """End the connections."""
        await self._servers.close()

    async def _renew(self, deadline: float) -> Found:
        if not self._held:
            found = await self._do(self._transactions.read(), deadline)
            if not self._held:
                return found._replace(is_done=False)
        lease = await self._grant(deadline)
        for _ in range(_RENEWALS_MAX):
            found = await self._do(self._transactions.renew(self._me, self._held, lease), deadline)
            # It may have renewed before, without an answer: then the key is its own, with another revision.
            if found.is_done or not self._held:
                return found
        raise NoAnswerError("the lease was renewed elsewhere at the same time")

    async def _change(self, transaction: Callable[[str], Any], deadline: float) -> Found:
        """Change the standing; one of whose attempts was carried out without an answer knows its name."""
        change = new_change()
        found = await self._do(transaction(change), deadline)
        return found._replace(is_done=found.is_done or found.change == change)

    async def _grant(self, deadline: float) -> str:
        reply = await self._send(_GRANT, {"TTL": str(self._lease_s)}, deadline)
        lease, granted_s = reply.get("ID"), str(reply.get("TTL"))
        if not isinstance(lease, str) or not granted_s.isdecimal() or int(granted_s) < self._lease_s:
            raise NoAnswerError(f"etcd granted no lease of {self._lease_s} s, but {granted_s}")
        return lease

    async def _do(self, transaction: Any, deadline: float) -> Found:
        found = found_in(await self._send(_TRANSACTION, transaction, deadline))
        self._held = found.holder_revision if found.seen.holder == self._me else 0
        return found

    async def _send(self, path: str, body: Any, deadline: float) -> dict[str, Any]:
        reply = await self._login.send(self._servers, path, body, deadline)
        if reply.status != 200 or not isinstance(reply.body, dict):
            raise NoAnswerError(f"etcd refused: {reply.status} {said(reply)}")
        return reply.body


def _is_unknown(reply: Reply) -> bool:
    body = reply.body if isinstance(reply.body, dict) else {}
    is_old = any(text in said(reply) for text in _OLD_TOKEN)
    return reply.status == 401 or body.get("code") == _UNAUTHENTICATED or is_old
