"""POSTs of webhooks, by aiohttp: one attempt, its deadline, and an address that is judged when it is connected to.

Nothing of an answer is kept but its code and `Retry-After`: a body may be endless, and may hold what is secret.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import aiohttp

from gateway.http.webhooks.addresses import may_reach
from gateway.http.webhooks.attempts import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from ipaddress import IPv4Network, IPv6Network


class Poster:
    """The connections of one webhook: a target that hangs holds up no other. Made within a running loop."""

    def __init__(
        self, url: str, *, window: int, timeout_s: float, allowed: Sequence[IPv4Network | IPv6Network] = ()
    ) -> None:
        self._url = url
        self._allowed = allowed
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=window, socket_factory=self._socket_of),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """One attempt; no answer within the deadline, or none at all, has no code.

        A connection with a body that has not all come is closed by aiohttp, and used again otherwise.
        """
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return Answer(response.status, response.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return Answer(None)

    async def close(self) -> None:
        """End the connections; what is under way has no answer."""
        await self._session.close()

    def _socket_of(self, address: tuple[Any, ...]) -> socket.socket:
        """The socket for an address that a name was resolved to, or that stood in the URL: no way leads around it."""
        family, kind, protocol, _, target = address
        if not may_reach(target[0], self._allowed):
            raise PermissionError("a webhook may not reach this address")
        return socket.socket(family, kind, protocol)
