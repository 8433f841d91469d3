"""A Lease of Kubernetes as the outside store, by the API server.

Each request reads the Lease and, if it may be carried out, writes it back with the `resourceVersion` that was read. If
somebody was faster the API server refuses with 409, and it is read and judged again. The account of the pod needs
`get`, `create` and `update` for Leases in its namespace. Its token is read anew for each request, because it is
replaced within the hour.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cluster.standby.pair.outside import Answer
from cluster.standby.stores import clock
from cluster.standby.stores.http import read_secret, said
from cluster.standby.stores.lease_words import API_VERSION, Watch, changed, is_possible
from cluster.standby.stores.store import NoAnswerError
from cluster.standby.stores.written import check_holder, new_change

if TYPE_CHECKING:
    from cluster.standby.pair.outside import Holder, Request
    from cluster.standby.stores.http import Reply, Servers
    from cluster.standby.stores.lease_words import LeaseObject

#: As often somebody else may be faster, within one request.
_ROUNDS_MAX: Final = 10


class LeaseStore:
    """The outside store of one holder in a Lease."""

    def __init__(
        self, me: Holder, name: str, namespace: str, servers: Servers, token_file: str, lease_s: int
    ) -> None:
        """Ask nothing yet.

        Args:
            me: who asks.
            name: of the Lease.
            namespace: in which it is.
            servers: API servers; closed with the store.
            token_file: with the token of a service account; empty: none.
            lease_s: until when nobody else may be the holder, from a renewal on.
        """
        check_holder(me)
        self._me = me
        self._name = name
        self._all = f"/apis/{API_VERSION}/namespaces/{namespace}/leases"
        self._servers = servers
        self._token_file = token_file
        self._lease_s = lease_s
        self._watch = Watch(lease_s)

    async def ask(self, number: int, request: Request, timeout_s: float) -> Answer:
        """Have a request carried out; see `Store`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        change = new_change()
        for _ in range(_ROUNDS_MAX):
            there = await self._read(deadline)
            found = self._watch.look(there, clock.now())
            if found.change == change:  # an attempt without an answer was carried out
                return Answer(number, is_done=True, seen=found.seen)
            if not is_possible(request, found.seen, self._me):
                return Answer(number, is_done=False, seen=found.seen)
            wanted = changed(there, self._name, request, change, self._me, self._lease_s)
            if wanted is None:
                return Answer(number, is_done=True, seen=found.seen)
            written = await self._write(wanted, deadline, is_new=there is None)
            if written is not None:
                return Answer(number, is_done=True, seen=self._watch.look(written, clock.now()).seen)
        raise NoAnswerError(f"somebody else changed the Lease {_ROUNDS_MAX} times in between")

    async def close(self) -> None:
        """End the connections."""
        await self._servers.close()

    async def _read(self, deadline: float) -> LeaseObject | None:
        """Give the Lease as it is now: a GET without a version is answered by a majority, not from a cache."""
        reply = await self._send("GET", f"{self._all}/{self._name}", None, deadline)
        return None if reply.status == 404 and _is_status(reply) else _lease_of(reply)

    async def _write(self, wanted: LeaseObject, deadline: float, *, is_new: bool) -> LeaseObject | None:
        """Give the Lease that was written; None: somebody was faster."""
        if is_new:
            reply = await self._send("POST", self._all, wanted, deadline)
        else:
            reply = await self._send("PUT", f"{self._all}/{self._name}", wanted, deadline)
        is_late = reply.status == 409 or (reply.status == 404 and not is_new)
        return None if is_late and _is_status(reply) else _lease_of(reply)

    async def _send(self, method: str, path: str, body: LeaseObject | None, deadline: float) -> Reply:
        token = read_secret(self._token_file) if self._token_file else ""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await self._servers.send(method, path, body, deadline=deadline, headers=headers)


def _is_status(reply: Reply) -> bool:
    """Tell whether an API server refused, and not something on the way to it."""
    return isinstance(reply.body, dict) and reply.body.get("kind") == "Status"


def _lease_of(reply: Reply) -> LeaseObject:
    body = reply.body
    if reply.status in (200, 201) and isinstance(body, dict) and body.get("kind") == "Lease":
        version = (body.get("metadata") or {}).get("resourceVersion")
        if isinstance(version, str) and version:
            return body
    raise NoAnswerError(f"the API server refused: {reply.status} {said(reply)}")
