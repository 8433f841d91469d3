"""What HTTP servers of a node have in common: listeners, encryption, and an answer to each request, whatever it is."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web

from angarium import errors
from angarium.errors import AngariumError
from angarium_server.connections.addresses import host_and_port, is_tls
from angarium_server.connections.tls import Peer, make_context
from angarium_server.http.door import Connection, Door, Limits
from angarium_server.http.origins import Origins
from angarium_server.http.problems import RefusedError, refusal
from angarium_server.http.proxies import FORWARDED_FOR, Proxies, public_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from aiohttp.web import BaseRequest, StreamResponse

    from angarium_server.connections.tls import TlsFiles

#: Headers that say who asks: of two of them a proxy in between may have judged the other one.
GIVEN_ONCE: Final = ("Authorization", "Angarium-Token")
#: With every answer, unless it has others: it is for the program that asked, is kept by nobody, and is nobody's page.
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Server": "angarium",
    "X-Content-Type-Options": "nosniff",
}
#: How long an answer may take to leave: who reads slower than that is not there.
SEND_S: Final = 60.0

_log = logging.getLogger("http")


class Settings(Limits, Protocol):
    """Where a server listens, and what its clients may cost; a section of the configuration has it."""

    @property
    def listen(self) -> Sequence[str]:
        """Give its addresses, http:// or https://."""

    @property
    def hosts(self) -> Sequence[str]:
        """Give more names by which clients may ask for them."""

    @property
    def public_url(self) -> str:
        """Give the address of browsers, if a proxy passes their requests on; empty: there is none."""

    @property
    def proxies(self) -> Sequence[str]:
        """Give the proxies that are believed when they say where a request comes from: addresses or networks."""


class Site:
    """One HTTP server of a process."""

    def __init__(
        self,
        part: str,
        settings: Settings,
        tls: TlsFiles,
        answer: Callable[[BaseRequest, Connection], Awaitable[StreamResponse]],
        *,
        ends_with_its_client: bool = False,
    ) -> None:
        """Listen nowhere yet.

        Args:
            part: the section of the configuration, and the option of the command, for what is said of a fault.
            settings: that section.
            tls: the files of https:// addresses.
            answer: answers a request; a refusal is raised.
            ends_with_its_client: a request whose client is gone is given up.
        """
        self._part = part
        self._tls = tls
        self._public = public_of(settings.public_url)
        self._proxies = Proxies(settings.proxies)
        #: Those that each answer has, unless it has others.
        self.headers: Final = {**HEADERS, **self._public.headers}
        self._answer = answer
        self._origins = Origins(settings.listen, settings.hosts, settings.public_url)
        self._http = web.Server(self._handle, handler_cancellation=ends_with_its_client)
        self.door = Door(settings, self._http, self.headers)
        #: What encrypts; a reload changes it, for connections that come then.
        self._context: ssl.SSLContext | None = None
        self.requests = 0
        #: Code -> requests that were refused with it.
        self._refused: Counter[int] = Counter()

    # -- listening -------------------------------------------------------------------------------------------

    def listen(self, entry: str, url: str) -> None:
        """Listen at an address: an entry of the configuration, and the same as tcp:// or tls://.

        Raises:
            InvalidRequestError: the address or the certificate cannot be used (40017).
        """
        place = host_and_port(url)
        assert place is not None, "the supervisor holds the port"
        if is_tls(url) and self._context is None:
            self._context = make_context(self._tls)
        try:
            self.door.listen(*place, self._encryption if is_tls(url) else None)
        except OSError as error:
            detail = f"{self._part}.listen: {entry}: {error.strerror or error}"
            advice = f"end what listens there, or listen elsewhere: --{self._part}, or {self._part}.listen in the file"
            raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None

    def reload_certificate(self) -> None:
        """Have who comes from now on see the certificate, and checked by the authorities, that are in the files now.

        Raises:
            InvalidRequestError: they cannot be used (40017); those before stay.
        """
        if self._context is not None:
            self._context = make_context(self._tls)

    def _encryption(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    async def shutdown(self, timeout_s: float) -> None:
        """End; what is being answered may take so long."""
        self.door.stop_listening()
        await self._http.shutdown(timeout_s)

    def counts(self) -> dict[str, object]:
        """Give what happened so far, by the names of metrics."""
        return {
            "connections": self.door.connections,
            "connections_refused": self.door.refused,
            "requests": self.requests,
            "refused": {str(code): count for code, count in sorted(self._refused.items())},
        }

    # -- requests --------------------------------------------------------------------------------------------

    def peer(self, request: BaseRequest, connection: Connection) -> Peer:
        """Give where a request comes from: a proxy says it of those that it passes on."""
        forwarded = request.headers.getall(FORWARDED_FOR, [])
        address = self._proxies.address_of(connection.address, forwarded)
        is_encrypted = connection.is_encrypted or self._public.is_encrypted
        return Peer(address, connection.certificate, is_encrypted)

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        """Answer a request, whatever it is."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        self.requests += 1
        self.door.begin_request(connection)
        try:
            response = await self._answered(request, connection)
            for name, value in self.headers.items():
                response.headers.setdefault(name, value)
            if "Transfer-Encoding" in request.headers:
                # The parser counts what its trailer says among the headers of the next request of the connection.
                response.force_close()
            await _send(request, response, connection)
        finally:
            self.door.end_request(connection)
        return response

    async def _answered(self, request: BaseRequest, connection: Connection) -> StreamResponse:
        """Give the answer, or a refusal."""
        try:
            self._origins.check(request, is_encrypted=connection.is_encrypted)
            _check_given_once(request)
            return await self._answer(request, connection)
        except AngariumError as error:
            return self._refuse(error)
        except RefusedError as refused:
            return self._refuse(refused.error, refused.headers)
        except Exception:  # noqa: BLE001 - a fault of ours that one request provokes costs that request only
            _log.exception("a request led to a fault of the process")
            return self._refuse(errors.error_for(errors.INTERNAL))

    def _refuse(self, error: AngariumError, headers: Mapping[str, str] | None = None) -> web.Response:
        self._refused[error.code] += 1
        return refusal(error, headers)


def _check_given_once(request: BaseRequest) -> None:
    """Refuse a request that says twice who asks.

    Raises:
        InvalidRequestError: it does (40018).
    """
    for name in GIVEN_ONCE:
        if len(given := request.headers.getall(name, ())) > 1:
            raise errors.invalid(f"it has {len(given)} headers {name}", "send one")


async def _send(request: BaseRequest, response: StreamResponse, connection: Connection) -> None:
    """Send an answer while the request still counts as one at work."""
    if _is_gone_at_once(response, connection):
        await response.prepare(request)
        await response.write_eof()
        return
    limit = asyncio.get_running_loop().call_later(SEND_S, connection.drop)
    try:
        await response.prepare(request)
        await response.write_eof()
    finally:
        limit.cancel()


def _is_gone_at_once(response: StreamResponse, connection: Connection) -> bool:
    """Tell whether it has no body, and nothing waits before it: then no time limit is needed, which costs as much."""
    if not isinstance(response, web.Response) or response.body:
        return False
    return connection.transport is not None and connection.transport.get_write_buffer_size() == 0
