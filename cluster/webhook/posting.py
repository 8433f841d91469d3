"""POSTs of webhooks, by aiohttp: one attempt, its deadline, and an address that is judged when it is connected to.

Nothing of an answer is kept but its code and `Retry-After`: a body may be endless, and may hold what is secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from angarium_server.http.failures import failure_of
from gateway.http.messages import headers_of
from gateway.http.webhooks.addresses import is_allowed, may_reach
from gateway.http.webhooks.attempts import Answer
from gateway.http.webhooks.signing import secrets_of, signed_headers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Network, IPv6Network

    from cluster.webhook.role import WebhookConfig
    from gateway.http.webhooks.webhook import Held

#: Of a file with a secret.
SECRET_FILE_BYTES_MAX: Final = 16_384
#: The body of an answer is thrown away: so much of it, and within such a time; more ends the connection.
BODY_BYTES_MAX: Final = 65_536
BODY_S: Final = 0.5


class _ForbiddenAddressError(OSError):
    """A webhook may not reach this address; the text says why."""


class _UnusableFileError(Exception):
    """A file with a secret cannot be used; the text says which attribute has it."""


class Poster:
    """The connections of one webhook: a target that hangs holds up no other. Made within a running loop."""

    def __init__(self, config: WebhookConfig, allowed: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        self._config = config
        self._allowed = allowed
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=config.window,
                socket_factory=self._socket_of,
                ssl=ssl.create_default_context(cadata=config.ca_pem) if config.ca_pem else True,
            ),
            timeout=aiohttp.ClientTimeout(total=config.timeout_ms / 1_000),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def post(self, held: Held) -> Answer:
        """Make one attempt; no answer within the deadline, or none at all, has no code.

        A connection is used again when a short body has come, and closed by aiohttp otherwise.
        """
        try:
            headers, body = self._headers(held), held.row[5]
            async with self._session.post(
                self._config.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                answer = Answer(response.status, response.headers.get("Retry-After", ""))
                await _drain(response.content)
                return answer
        except _UnusableFileError as error:
            return Answer(None, failure=str(error))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if isinstance(refused := getattr(error, "os_error", None), _ForbiddenAddressError):
                return Answer(None, failure=f"{refused}: http.webhook_networks allows others")
            return Answer(None, failure=failure_of(error))

    async def close(self) -> None:
        """End the connections; what is under way has no answer."""
        await self._session.close()

    def _headers(self, held: Held) -> dict[str, str]:
        """Give the headers of an attempt: of the message, as configured, and those that show who sends it."""
        config = self._config
        told = {name.lower(): value for name, value in headers_of(held.row).items()} | {
            "user-agent": "angarium"
        }
        for text in config.headers:
            name, _, value = text.partition(":")
            told[name.lower()] = value.strip()
        if config.authorization_file:
            lines = _read("authorization_file", config.authorization_file).splitlines()
            if not lines or not lines[0].strip() or not lines[0].isprintable():
                raise _UnusableFileError("authorization_file: its first line is no value of a header")
            told["authorization"] = lines[0].strip()
        secrets: list[bytes] = []
        if config.secret_file:
            try:
                secrets = secrets_of(_read("secret_file", config.secret_file))
            except ValueError:
                raise _UnusableFileError("secret_file: it holds no secret") from None
        return told | signed_headers(secrets, held.message_id, time.time(), held.row[5])

    def _socket_of(self, address: tuple[Any, ...]) -> socket.socket:
        """The socket for an address that a name was resolved to, or that stood in the URL: no way leads around it."""
        family, kind, protocol, _, target = address
        if not may_reach(target[0], self._allowed):
            raise _ForbiddenAddressError("its address is not public")
        if not is_allowed(target[0], self._allowed) and _is_own(family, target):
            raise _ForbiddenAddressError("its address is that of the node's host")
        return socket.socket(family, kind, protocol)


def _is_own(family: int, target: tuple[Any, ...]) -> bool:
    """Whether an address is one of this host: then what is sent there would come from the same one. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(target)
        return bool(probe.getsockname()[0] == target[0])
    return False


async def _drain(content: aiohttp.StreamReader) -> None:
    """Let the rest of an answer come, if it is short: a new connection, with TLS, costs more than the wait."""
    left = BODY_BYTES_MAX
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with asyncio.timeout(BODY_S):
            while left > 0 and (piece := await content.readany()):
                left -= len(piece)


def _read(attribute: str, path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            return file.read(SECRET_FILE_BYTES_MAX)
    except (OSError, ValueError):
        raise _UnusableFileError(f"{attribute}: it cannot be read") from None
