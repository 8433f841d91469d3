"""What is asked of the issuer: how it is reached, its keys, and a token for a code. By aiohttp, within bounds.

Nothing is followed to another address, no proxy is asked, and an answer has a limit in time and size. What the issuer
said of itself counts for an hour; a failure for some seconds, so that whoever begins logins does not have it asked
without end.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import aiohttp
import msgspec

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium_server.tokens.config import address_fault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from angarium_server.tokens.keys import KeyRow
    from cluster.configuration.management import OidcSection

#: Of an answer.
BYTES_MAX: Final = 256 * 1_024
#: How long counts what the issuer says of itself, and a failure; and how often it is asked for keys that are not known.
KNOWN_S: Final = 3_600.0
FAILED_S: Final = 5.0
UNKNOWN_KEY_S: Final = 30.0
#: Requests to the issuer at once; more wait, and too many are refused.
AT_ONCE_MAX: Final = 8
WAITING_MAX: Final = 32
WELL_KNOWN: Final = "/.well-known/openid-configuration"
_SECRET_BYTES_MAX: Final = 16_384
_ADVICE: Final = "try again later, or log in with a password; 'angarium events' on the node's host says more"


class Metadata(msgspec.Struct, frozen=True):
    """What an issuer says of itself (OpenID Connect Discovery)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Provider:
    """The issuer, as far as it is needed. Made and used within one loop."""

    def __init__(self, section: OidcSection) -> None:
        self._section = section
        self._session: aiohttp.ClientSession | None = None
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)
        self._waiting = 0
        self._lock = asyncio.Lock()
        #: What it said last, and until when that counts, on the clock of this process.
        self._metadata: tuple[Metadata, float] | None = None
        self._failure: tuple[str, float] | None = None
        self._keys: Sequence[KeyRow] | None = None
        self._keys_came = 0.0

    async def metadata(self) -> Metadata:
        """Give what the issuer says of itself.

        Raises:
            UnavailableError: it does not answer, or not as it should (50332).
        """
        async with self._lock:
            now = time.monotonic()
            if self._metadata is not None and self._metadata[1] > now:
                return self._metadata[0]
            if self._failure is not None and self._failure[1] > now:
                raise error_for(errors.ISSUER_UNAVAILABLE, self._failure[0], _ADVICE)
            try:
                found = await self._discovered()
            except AngariumError as error:
                self._failure = (error.detail, time.monotonic() + FAILED_S)
                raise
            self._metadata = (found, time.monotonic() + KNOWN_S)
            return found

    async def keys(self, *, is_unknown: bool) -> Sequence[KeyRow]:
        """Give its public keys, as they were lately; or now, if a token names one that is not known.

        Raises:
            UnavailableError: it does not give them (50332).
        """
        from angarium_server.tokens.keys import read_document

        metadata = await self.metadata()
        async with self._lock:
            age_s = time.monotonic() - self._keys_came
            if self._keys is not None and age_s < (UNKNOWN_KEY_S if is_unknown else KNOWN_S):
                return self._keys
            try:
                self._keys = read_document(await self._get(metadata.jwks_uri))
            except errors.InvalidRequestError as error:
                raise self._unavailable(f"its keys: {error.detail}") from None
            self._keys_came = time.monotonic()
            return self._keys

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> str:
        """Give the token (id_token) that a code stands for.

        Raises:
            UnauthorizedError: the issuer does not take the code (40101).
            UnavailableError: it does not answer, or not as it should (50332).
        """
        metadata = await self.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = self._authenticated(metadata, form)
        status, body = await self._asked("POST", metadata.token_endpoint, headers, form)
        answer = _object(body)
        token = None if answer is None else answer.get("id_token")
        if status == 200 and isinstance(token, str):
            return token
        told = answer.get("error") if answer else None
        if status in (400, 401) and isinstance(told, str):
            raise error_for(errors.UNAUTHORIZED, f"the issuer does not take the code: {told[:100]!r}")
        raise self._unavailable(f"it answers {status}, and gives no token for a code")

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()

    def _authenticated(self, metadata: Metadata, form: dict[str, str]) -> dict[str, str]:
        """Say which client asks, in the form or in a header, which is given."""
        client, file = self._section.client_id, self._section.client_secret_file
        if not file:
            form["client_id"] = client
            return {}
        secret = _secret_of(file)
        methods = metadata.token_endpoint_auth_methods_supported
        if "client_secret_basic" not in methods and "client_secret_post" in methods:
            form |= {"client_id": client, "client_secret": secret}
            return {}
        shown = f"{quote(client, safe='')}:{quote(secret, safe='')}"
        return {"Authorization": f"Basic {base64.b64encode(shown.encode()).decode()}"}

    async def _discovered(self) -> Metadata:
        address = self._section.issuer.rstrip("/") + WELL_KNOWN
        try:
            found = msgspec.json.decode(await self._get(address), type=Metadata)
        except msgspec.DecodeError as error:
            raise self._unavailable(f"{address}: {error}") from None
        if found.issuer != self._section.issuer:
            raise self._unavailable(f"it says that it is {found.issuer[:200]!r}: write that as oidc.issuer")
        for endpoint in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            if fault := address_fault(endpoint):
                raise self._unavailable(f"{endpoint[:200]!r}: {fault}")
        return found

    async def _get(self, url: str) -> bytes:
        status, body = await self._asked("GET", url, {}, None)
        if status != 200:
            raise self._unavailable(f"{url} answers {status}")
        return body

    async def _asked(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        if self._waiting >= WAITING_MAX:
            detail = f"{WAITING_MAX} logins wait for the issuer"
            raise error_for(errors.CONNECT_RATE_EXCEEDED, detail, "try again in a minute")
        self._waiting += 1
        try:
            async with self._gate, asyncio.timeout(self._section.timeout_s):
                return await self._sent(method, url, headers, form)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            late = f"no answer within {self._section.timeout_s} s"
            why = late if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise self._unavailable(f"{url}: {why[:200]}") from None
        finally:
            self._waiting -= 1

    async def _sent(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=AT_ONCE_MAX, ssl=_trust(self._section.ca_file)),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        told = {"Accept": "application/json", "User-Agent": "angarium", **headers}
        async with self._session.request(
            method, url, headers=told, data=form, allow_redirects=False
        ) as response:
            body = b""
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > BYTES_MAX:
                    raise ValueError(f"its answer has more than {BYTES_MAX} bytes")
            return response.status, body

    def _unavailable(self, why: str) -> AngariumError:
        return error_for(errors.ISSUER_UNAVAILABLE, f"issuer {self._section.issuer}: {why}", _ADVICE)


def _trust(ca_file: str) -> ssl.SSLContext:
    """Give whom to trust: these authorities, or those of the host."""
    context = ssl.create_default_context(cafile=ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _secret_of(path: str) -> str:
    """Give the first line of a file; it is read each time, so that a new secret counts at once.

    Raises:
        InvalidRequestError: it cannot be read, or is empty (40017).
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            secret = file.readline(_SECRET_BYTES_MAX).strip()
    except (OSError, ValueError):
        secret = ""
    if not secret:
        detail = "oidc.client_secret_file: it cannot be read, or its first line is empty"
        raise error_for(errors.INVALID_CONFIGURATION, detail)
    return secret


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
