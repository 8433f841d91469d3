"""Requests with JSON to one of several servers that all know the same: the first that answers in time.

The time that is left is shared among those that were not tried yet, so one that hangs does not use it up. A request may
arrive at several of them, and after it was given up: what is sent must be harmless when it is carried out twice.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import msgspec

from angarium_server.http.failures import failure_of
from cluster.standby.stores.store import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A standing has some hundred bytes; more than this is not from such a server.
BODY_BYTES_MAX: Final = 1 << 20
#: Of a file with a password or a token.
SECRET_FILE_BYTES_MAX: Final = 16_384
#: Too many requests: another server may have time.
_BUSY: Final = 429


class Reply(NamedTuple):
    """What a server said."""

    status: int
    body: Any


class Trust:
    """Whom to trust and who one is, by files that are read again when they were replaced."""

    def __init__(self, ca_file: str = "", cert_file: str = "", key_file: str = "") -> None:
        """Read nothing yet; an empty `ca_file` is that of the system, an empty `key_file` is `cert_file`."""
        self._ca_file, self._cert_file, self._key_file = ca_file, cert_file, key_file
        self._made_of: tuple[tuple[int, int], ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Give what a connection needs.

        Raises:
            NoAnswerError: a file cannot be used.
        """
        files = [path for path in (self._ca_file, self._cert_file, self._key_file) if path]
        try:
            made_of = tuple((found.st_mtime_ns, found.st_ino) for found in map(os.stat, files))
            if self._context is None or made_of != self._made_of:
                context = ssl.create_default_context(cafile=self._ca_file or None)
                if self._cert_file:
                    context.load_cert_chain(self._cert_file, self._key_file or None)
                self._context, self._made_of = context, made_of
        except (OSError, ValueError) as error:
            raise NoAnswerError(f"a file for TLS ({', '.join(files)}) cannot be used: {error}") from None
        return self._context


class Servers:
    """Servers of one service. Made within a running loop."""

    def __init__(self, urls: Sequence[str], trust: Trust) -> None:
        """Connect to nothing yet; the urls are http:// or https://HOST:PORT, without a path."""
        self._urls = [url.rstrip("/") for url in urls]
        self._trust = trust
        #: Index of the one that answered last.
        self._first = 0
        #: Requests that were sent, those that got no answer included.
        self.sent = 0
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request to one after the other until one answers.

        Args:
            method: of HTTP.
            path: beginning with a slash.
            body: sent as JSON.
            deadline: by the clock of the loop.
            headers: more of them.

        Raises:
            NoAnswerError: none answered in time, or each said that it cannot.
        """
        data = None if body is None else msgspec.json.encode(body)
        given = {"content-type": "application/json", **(headers or {})}
        failures: dict[str, None] = {}
        number = len(self._urls)
        waiting = [(self._first + tried) % number for tried in range(number)]
        again = set(waiting)
        while waiting and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            index = waiting.pop(0)
            try:
                url = f"{self._urls[index]}{path}"
                reply = await self._once(method, url, data, given, left_s / (len(waiting) + 1))
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                if isinstance(error, aiohttp.ServerDisconnectedError) and index in again:
                    again.remove(index)  # it had closed a connection that was kept for it
                    waiting.insert(0, index)
                # Our own words for an answer that is none say more.
                failure = str(error) if type(error) is ValueError else failure_of(error)
                failures[f"{self._urls[index]}: {failure}"] = None
                continue
            if reply.status < 500 and reply.status != _BUSY:
                self._first = index
                return reply
            failures[f"{self._urls[index]}: {reply.status} {said(reply)}"] = None
        raise NoAnswerError("; ".join(failures) or "there was no time left to ask")

    async def close(self) -> None:
        """End the connections."""
        await self._session.close()

    async def _once(
        self, method: str, url: str, data: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        self.sent += 1
        async with self._session.request(
            method,
            url,
            data=data,
            headers=headers,
            allow_redirects=False,
            ssl=self._trust.context() if url.startswith("https:") else True,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            text = await _read(response.content)
            try:
                return Reply(response.status, msgspec.json.decode(text) if text else None)
            except msgspec.DecodeError:
                if response.ok:
                    raise ValueError("its answer is no JSON") from None
                return Reply(response.status, {"message": text.decode(errors="replace")})


def said(reply: Reply) -> str:
    """Give the sentence of a server that refused, or nothing."""
    body = reply.body if isinstance(reply.body, dict) else {}
    return str(body.get("message") or body.get("error") or "")


def read_secret(path: str) -> str:
    """Give the first line of a file with a password or a token.

    Raises:
        NoAnswerError: it cannot be read, or has none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            line = file.read(SECRET_FILE_BYTES_MAX).partition("\n")[0].rstrip("\r")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise NoAnswerError(f"{path}: {reason}") from None
    if not line or not line.isprintable():
        raise NoAnswerError(f"{path}: its first line is empty or no text")
    return line


async def _read(content: aiohttp.StreamReader) -> bytes:
    text = bytearray()
    while piece := await content.readany():
        text += piece
        if len(text) > BODY_BYTES_MAX:
            raise ValueError("its answer is too long")
    return bytes(text)
