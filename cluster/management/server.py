"""The shell of the management process: aiohttp in a loop of asyncio, in which the process has its turns.

A request is looked at in this order, and is refused by the first that does not fit: who is meant (Host, Origin), who
asks (`logins`), what is asked for (`routes`), its body (`bodies`). Then the controller does it, and judges whether
this operator may.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from angarium import errors
from angarium.errors import AngariumError
from angarium_server.connections.addresses import host_and_port, is_tls
from angarium_server.connections.tls import TlsFiles, make_context
from angarium_server.http import bodies
from angarium_server.http.door import Connection, Door
from angarium_server.http.exposition import CONTENT_TYPE
from angarium_server.http.origins import Origins
from angarium_server.http.problems import RefusedError, refusal
from angarium_server.memory import in_use_bytes
from angarium_server.process import Process, load_config
from cluster.configuration.listening import url_of
from cluster.management.access.browsers import Browsers
from cluster.management.access.logins import Logins
from cluster.management.api import object_metrics, openapi, resources
from cluster.management.api.routes import ROOT, ROUTES, Found, Target, find, target_of
from cluster.management.config import ManagementRuntime
from cluster.management.controller import DEFAULT_TIMEOUT_S, Controller

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable

    from aiohttp.web import BaseRequest, StreamResponse

    from cluster.management.access.logins import Caller

ROLE: Final = "management"
#: The longest that a request may ask to be waited for (`Prefer: wait=SECONDS`).
WAIT_MAX_S: Final = 600.0
#: How long an answer may take to leave: who reads slower than that is not there.
SEND_S: Final = 60.0
#: What is being answered when the process stops may take so long to end.
STOP_S: Final = 3.0

#: With every answer: it is for the program that asked, is kept by nobody, and is no page of anybody.
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Server": "angarium",
    "X-Content-Type-Options": "nosniff",
}

#: What `GET /api/v1` answers: every path with its methods.
INDEX: Final = {
    "operations": "/api/v1/operations/{operation}",
    "openapi": "/api/v1/openapi.json",
    "resources": [
        {"method": route.method, "path": f"/api/v1{route.path}", "summary": route.summary} for route in ROUTES
    ],
}

_log = logging.getLogger(ROLE)


class ManagementServer:
    """The management process at work."""

    def __init__(self, process: Process, runtime: ManagementRuntime) -> None:
        """Connect to the controller and listen.

        Raises:
            InvalidRequestError: an address or a certificate cannot be used (40017).
        """
        self._process = process
        self._runtime = runtime
        self._settings = runtime.settings
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._turn: asyncio.Handle | None = None
        self._controller = Controller(process, self._touched)
        self._logins = Logins(self._controller.ask)
        self._browsers = Browsers(self._logins)
        self._origins = Origins(runtime.settings.listen, runtime.settings.hosts)
        self._http = web.Server(self._handle)
        self._door = Door(runtime.settings, self._http)
        self._counts: Counter[str] = Counter()
        #: Code -> requests that were refused with it.
        self._refused: Counter[int] = Counter()
        #: What encrypts; a reload changes it, for connections that come then.
        self._context: ssl.SSLContext | None = None
        for entry in runtime.settings.listen:
            self._listen(entry)
        process.on_request(self._request)
        process.ready({"urls": runtime.settings.listen})

    def _listen(self, entry: str) -> None:
        url = url_of(entry)
        place = host_and_port(url)
        assert place is not None, "the supervisor holds the port"
        context = self._encryption() if is_tls(url) else None
        try:
            self._door.listen(*place, context)
        except OSError as error:
            detail = f"management.listen: {entry}: {error.strerror or error}"
            advice = (
                "end what listens there, or listen elsewhere: --management, or management.listen in the file"
            )
            raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None

    def _encryption(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = make_context(self._runtime.tls)
        return self._context

    # -- the process -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the process is asked to stop."""
        self._loop.add_reader(self._process.descriptor, self._take_turn)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._begin_stopping)
        self._take_turn()
        try:
            await self._stopped.wait()
            self._door.stop_listening()
            await self._http.shutdown(STOP_S)
        finally:
            self._loop.remove_reader(self._process.descriptor)
            if self._turn is not None:
                self._turn.cancel()
            self._logins.close()

    def _take_turn(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        self._turn = self._loop.call_later(self._process.turn(), self._take_turn)
        if self._process.stopping:
            self._stopped.set()

    def _touched(self) -> None:
        """Have a turn soon: something was sent, and its answer may be there without a signal."""
        if self._turn is not None:
            self._turn.cancel()
        self._turn = self._loop.call_soon(self._take_turn)

    def _begin_stopping(self) -> None:
        self._process.stopping = True
        self._take_turn()

    def _request(self, operation: str, _arguments: Any) -> Any:
        """Answer the controller."""
        match operation:
            case "stats":
                return {
                    "connections": self._door.connections,
                    "connections_refused": self._door.refused,
                    "requests": self._counts["requests"],
                    "refused": {str(code): count for code, count in self._refused.items()},
                    "logins": self._logins.counts["logins"],
                    "logins_failed": self._logins.counts["logins_failed"],
                    "logins_put_off": self._logins.counts["logins_put_off"],
                    "sessions": len(self._browsers.sessions),
                    "waiting": self._controller.waiting,
                    "in_use_bytes": in_use_bytes(),
                }
            case "tls_reload":
                return self._reload_certificate()
        raise errors.error_for(errors.UNKNOWN_OPERATION, operation)

    def _reload_certificate(self) -> None:
        """Have who comes from now on see the certificate that is in the file now.

        Raises:
            InvalidRequestError: it cannot be used (40017); the one before stays.
        """
        if self._context is None:
            return
        files: TlsFiles = self._runtime.tls
        make_context(files)
        self._context.load_cert_chain(files.cert_file, files.key_file or None, password=lambda: b"")

    # -- requests --------------------------------------------------------------------------------------------

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        """Answer a request, whatever it is."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        self._counts["requests"] += 1
        with self._door.at_work(connection):
            try:
                response = await self._answered(request, connection)
            except AngariumError as error:
                response = self._refuse(error)
            except RefusedError as refused:
                response = self._refuse(refused.error, dict(refused.headers))
            except Exception:  # noqa: BLE001 - a fault of ours that one request provokes costs that request only
                _log.exception("a request led to a fault of the management process")
                response = self._refuse(errors.error_for(errors.INTERNAL))
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            await self._send(request, response, connection)
        return response

    def _refuse(self, error: AngariumError, headers: dict[str, str] | None = None) -> web.Response:
        self._refused[error.code] += 1
        return refusal(error, headers)

    async def _send(self, request: BaseRequest, response: StreamResponse, connection: Connection) -> None:
        """Send an answer while the request still counts as one at work."""
        try:
            async with asyncio.timeout(SEND_S):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            connection.drop()

    async def _answered(self, request: BaseRequest, connection: Connection) -> web.Response:
        self._origins.check(request, is_encrypted=connection.is_encrypted)
        target = target_of(request.raw_path)
        if target.path == (*ROOT, "login"):
            return await self._login(request, connection)
        caller = await self._caller(request, connection)
        if target.path[: len(ROOT)] == ROOT:
            match target.path[len(ROOT) :]:
                case () | ("",):
                    _allow(request, "GET", "HEAD")
                    return bodies.answer(request, INDEX)
                case ("openapi.json",):
                    _allow(request, "GET", "HEAD")
                    return web.Response(body=openapi.document(), content_type=bodies.JSON)
                case ("logout",):
                    _allow(request, "POST")
                    return self._browsers.log_out(request, connection)
                case ("operations", name):
                    _allow(request, "POST")
                    return await self._do(request, name, caller)
                case path:
                    if found := find(path):
                        return await self._resource(request, target, found, caller)
        if target.path == ("metrics", "objects"):
            _allow(request, "GET", "HEAD")
            return await self._object_metrics(target, caller)
        raise errors.error_for(errors.UNKNOWN_RESOURCE, _shown(target))

    async def _object_metrics(self, target: Target, caller: Caller) -> web.Response:
        wanted = object_metrics.wanted_by(target.query)
        asked = {"vpn": wanted.vpn, "name": wanted.name, "fields": object_metrics.FIELDS}
        found = [
            (kind, await self._controller.ask("endpoints.list", {**asked, "kind": kind}, caller))
            for kind in wanted.kinds
        ]
        text = object_metrics.page(found, wanted.limit, time.time_ns() // 1_000_000)
        return web.Response(text=text, headers={"Content-Type": CONTENT_TYPE})

    async def _login(self, request: BaseRequest, connection: Connection) -> web.Response:
        """Begin the session of a browser, or show it."""
        _allow(request, "GET", "HEAD", "POST")
        if request.method == "POST":
            return await self._browsers.log_in(request, await self._body(request), connection)
        return await self._browsers.show(request, connection)

    async def _caller(self, request: BaseRequest, connection: Connection) -> Caller:
        """Give who asks: name and password count before a session."""
        authorization = request.headers.get("Authorization")
        if authorization is None and (caller := await self._browsers.caller(request, connection)):
            return caller
        return await self._logins.caller(authorization, connection.address)

    async def _do(self, request: BaseRequest, operation: str, caller: Caller) -> web.Response:
        """Do any operation, by its name."""
        arguments = await self._body(request)
        answer = await self._controller.ask(operation, arguments, caller, wait_of(request))
        return bodies.answer(request, answer)

    async def _resource(
        self, request: BaseRequest, target: Target, found: Found, caller: Caller
    ) -> web.Response:
        """Do what the table says of a path and a method."""
        methods = [*found.routes, *(["HEAD"] if "GET" in found.routes else [])]
        _allow(request, *methods)
        route = found.routes["GET" if request.method == "HEAD" else request.method]
        body = await self._body(request)

        def ask(operation: str, arguments: dict[str, Any]) -> Awaitable[Any]:
            return self._controller.ask(operation, arguments, caller, wait_of(request))

        return await resources.answer(request, target, (found, route), body, ask)

    async def _body(self, request: BaseRequest) -> dict[str, Any]:
        timeout_s = self._settings.request_timeout_ms / 1_000
        return await bodies.read(request, self._settings.max_body_bytes, timeout_s)


def _allow(request: BaseRequest, *methods: str) -> None:
    """Refuse other methods.

    Raises:
        RefusedError: with those that are allowed (40501).
    """
    if request.method not in methods:
        detail = f"{request.method[:20]} of this resource"
        raise RefusedError(errors.error_for(errors.METHOD_NOT_ALLOWED, detail), {"Allow": ", ".join(methods)})


def _shown(target: Target) -> str:
    return repr("/" + "/".join(target.path)[:200])


def wait_of(request: BaseRequest) -> float:
    """Give how long the answer of the controller is waited for: as the header Prefer wishes (RFC 7240), in bounds."""
    for preference in request.headers.get("Prefer", "").split(","):
        name, _, value = preference.strip().partition("=")
        if name.lower() == "wait" and value.isascii() and value.isdigit():
            return min(max(1.0, float(value)), WAIT_MAX_S)
    return DEFAULT_TIMEOUT_S


async def _serve(process: Process) -> None:
    runtime = load_config(process.runtime_dir, ROLE, ManagementRuntime)
    await ManagementServer(process, runtime).run()


def main() -> None:
    """Run until the process is told to stop."""
    process = Process.from_command_line(ROLE)
    try:
        asyncio.run(_serve(process))
    except AngariumError as error:
        _log.error("cannot start: %s", error)
        raise SystemExit(1) from None
    finally:
        process.close()
