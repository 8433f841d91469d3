"""The shell of the management process: aiohttp in a loop of asyncio, in which the process has its turns.

A request is looked at in this order, and is refused by the first that does not fit: who is meant (Host, Origin), who
asks (`logins`), what is asked for (`routes`), its body (`bodies`). Then the controller does it, and judges whether
this operator may.
"""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from angarium import errors
from angarium_server.http import bodies
from angarium_server.http.exposition import CONTENT_TYPE
from angarium_server.http.origins import target_in
from angarium_server.http.problems import allow
from angarium_server.http.site import Site
from angarium_server.http.turns import Turns
from angarium_server.memory.memory import in_use_bytes
from angarium_server.process import Process, at_work, load_config
from cluster.configuration.listening import url_of
from cluster.management.access.outcomes import Caller
from cluster.management.access.ways import Offer, OidcOffer, Ways
from cluster.management.api import declared, object_metrics, openapi, resources
from cluster.management.api.recent import Recent, Shared, oldest_s_of
from cluster.management.api.routes import (
    ROOT,
    ROUTES,
    Found,
    Route,
    Target,
    arguments_of,
    find,
    target_of,
)
from cluster.management.api.trials import Trials
from cluster.management.console import files
from cluster.management.controller import DEFAULT_TIMEOUT_S, Controller
from cluster.management.openid.pages import CALLBACK, PATH, Pages
from cluster.management.role import ManagementRuntime
from cluster.management.streams.sources import OVER, Events, Jobs, Watch
from cluster.management.streams.streams import Standing, Streams, wants_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiohttp.web import BaseRequest

    from angarium_server.connections.tls import Peer
    from angarium_server.http.door import Connection
    from cluster.management.access.outcomes import Operator
    from cluster.management.api.resources import Ask

ROLE: Final = "management"
#: The longest that a request may ask to be waited for (`Prefer: wait=SECONDS`).
WAIT_MAX_S: Final = 600.0
#: What is being answered when the process stops may take so long to end.
STOP_S: Final = 3.0

#: What `GET /api/v1` answers: every path with its methods.
INDEX: Final = {
    "operations": "/api/v1/operations/{operation}",
    "openapi": "/api/v1/openapi.json",
    "resources": [
        {"method": route.method, "path": f"/api/v1{route.path}", "summary": route.summary} for route in ROUTES
    ],
}


class ManagementServer:
    """The management process at work."""

    def __init__(self, process: Process, runtime: ManagementRuntime) -> None:
        """Connect to the controller and listen.

        Raises:
            InvalidRequestError: an address or a certificate cannot be used (40017).
        """
        self._runtime = runtime
        self._settings = runtime.settings
        self._turns = Turns(process, lambda _: math.inf)
        self._controller = Controller(process, self._turns.soon)
        self._ways = Ways(self._controller.ask, runtime.issuers)
        self._openid = self._pages(runtime)
        self._site = Site(ROLE, runtime.settings, runtime.tls, self._answered)
        self._streams = Streams(runtime.settings, self._site.headers)
        self._watch = Watch(self._controller.ask)
        self._recent = Recent()
        for entry in runtime.settings.listen:
            self._site.listen(entry, url_of(entry))
        self._trials = Trials(f"ipc://{process.runtime_dir}/links")
        process.on_request(self._request)
        process.ready({"urls": runtime.settings.listen})

    def _pages(self, runtime: ManagementRuntime) -> Pages | None:
        """Give the logins by OpenID Connect, if there are any."""
        if not runtime.oidc.issuer:
            return None
        ways, public_url = self._ways, runtime.settings.public_url
        return Pages(runtime.oidc, public_url, ways.outcomes, ways.subjects, ways.browsers)

    # -- the process -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the process is asked to stop."""
        self._turns.begin()
        try:
            await self._turns.stopping()
            self._streams.end_all(errors.error_for(errors.SHUTTING_DOWN))
            await self._site.shutdown(STOP_S)
        finally:
            self._turns.end()
            self._ways.close()
            if self._openid is not None:
                await self._openid.close()

    def _request(self, operation: str, _arguments: Any) -> Any:
        """Answer the controller."""
        match operation:
            case "stats":
                return {
                    **self._site.counts(),
                    **self._ways.counts(),
                    "streams": len(self._streams),
                    "streams_slow": self._streams.slow,
                    "waiting": self._controller.waiting,
                    "in_use_bytes": in_use_bytes(),
                }
            case "tls_reload":
                return self._site.reload_certificate()
        raise errors.error_for(errors.UNKNOWN_OPERATION, operation)

    # -- requests --------------------------------------------------------------------------------------------

    async def _answered(self, request: BaseRequest, connection: Connection) -> web.StreamResponse:
        peer = self._site.peer(request, connection)
        target = target_of(target_in(request))
        if file := files.find(target.path):
            allow(request, "GET", "HEAD")
            return files.answer(request, file)
        if target.path == (*ROOT, "login"):
            return await self._login(request, peer)
        if target.path == (*ROOT, "login", "certificate"):
            allow(request, "POST")
            return await self._ways.browsers.log_in_by_certificate(request, peer)
        if target.path == (*ROOT, "login", "ways"):
            allow(request, "GET", "HEAD")
            return bodies.answer(request, offered(self._runtime))
        if self._openid is not None and target.path in (PATH, CALLBACK):
            allow(request, "GET")
            return await self._openid.answer(request, target.path, target.query, peer)
        operator = await self._ways.caller(request, peer)
        caller = Caller(operator.name, peer.address)
        if target.path[: len(ROOT)] == ROOT:
            match target.path[len(ROOT) :]:
                case () | ("",):
                    allow(request, "GET", "HEAD")
                    return bodies.answer(request, INDEX)
                case ("openapi.json",):
                    allow(request, "GET", "HEAD")
                    return web.Response(body=openapi.document(), content_type=bodies.JSON)
                case ("logout",):
                    allow(request, "POST")
                    self._streams.end_session(request)
                    return self._ways.browsers.log_out(request, peer)
                case ("config", "parse"):
                    allow(request, "POST")
                    # A large text takes tenths of a second, for which nobody else waits.
                    objects = await asyncio.to_thread(declared.objects_of, await self._body(request))
                    return bodies.answer(request, objects)
                case ("vpns", vpn, "try", "publish" | "subscribe" as does):
                    allow(request, "POST")
                    return await self._try(request, connection, caller, vpn, does)
                case ("operations", name):
                    allow(request, "POST")
                    return await self._do(request, name, caller)
                case path:
                    if found := find(path):
                        return await self._resource(request, connection, target, found, caller, operator)
        if target.path == ("metrics", "objects"):
            allow(request, "GET", "HEAD")
            return await self._object_metrics(target, caller)
        raise errors.error_for(errors.UNKNOWN_RESOURCE, _shown(target))

    async def _object_metrics(self, target: Target, caller: Caller) -> web.Response:
        wanted = object_metrics.wanted_by(target.query)
        found = []
        for kind in wanted.kinds:
            try:
                rows = await self._controller.ask(*object_metrics.question(kind, wanted), caller)
            except errors.ForbiddenError:
                if wanted.is_exact:
                    raise
                continue
            found.append((kind, rows))
        text = object_metrics.page(found, wanted, time.time_ns() // 1_000_000)
        return web.Response(text=text, headers={"Content-Type": CONTENT_TYPE})

    async def _login(self, request: BaseRequest, peer: Peer) -> web.Response:
        """Begin the session of a browser, or show it."""
        allow(request, "GET", "HEAD", "POST")
        if request.method == "POST":
            return await self._ways.browsers.log_in(request, await self._body(request), peer)
        return await self._ways.browsers.show(request, peer)

    async def _do(self, request: BaseRequest, operation: str, caller: Caller) -> web.Response:
        """Do any operation, by its name."""
        answer = await self._asking(caller, wait_of(request))(operation, await self._body(request))
        return bodies.answer(request, answer)

    def _asking(self, caller: Caller, wait_s: float = DEFAULT_TIMEOUT_S) -> Ask:
        """Give how an operator asks the controller."""

        async def ask(operation: str, arguments: dict[str, Any]) -> Any:
            return await self._controller.ask(operation, arguments, caller, wait_s)

        return self._recent.noting(ask)

    async def _resource(
        self,
        request: BaseRequest,
        connection: Connection,
        target: Target,
        found: Found,
        caller: Caller,
        operator: Operator,
    ) -> web.StreamResponse:
        """Do what the table says of a path and a method."""
        methods = [*found.routes, *(["HEAD"] if "GET" in found.routes else [])]
        allow(request, *methods)
        route = found.routes["GET" if request.method == "HEAD" else request.method]
        body = await self._body(request)
        ask = self._asking(caller, wait_of(request))
        if route.streams and wants_stream(request):
            arguments = arguments_of(route, found.values, target.query, body)
            return await self._stream(request, connection, caller, route, arguments)
        oldest_s = oldest_s_of(request.headers.get("Cache-Control", ""))
        # While a body was waited for, the operator may have lost the rights that he came in with.
        if not (oldest_s and route.is_shared) or request.body_exists:
            new = partial(resources.page_of, ask=ask)
            return await resources.answer(request, target, (found, route), body, ask, new)

        def asking(rights: tuple[str, str]) -> Ask:
            return self._asking(caller._replace(rights=rights), wait_of(request))

        shared = Shared(self._recent, asking, operator, oldest_s)
        made = await resources.answer(request, target, (found, route), body, shared.value, shared.page)
        made.headers["Age"] = str(int(shared.age_s))
        return made

    async def _try(
        self, request: BaseRequest, connection: Connection, caller: Caller, vpn: str, does: str
    ) -> web.StreamResponse:
        """Publish or subscribe as a client, on behalf of an operator."""
        body = await self._body(request)
        ask = self._asking(caller)
        if does == "publish":
            await self._trials.publish(vpn, body, ask)
            return web.Response(status=204)
        standing = self._standing(request, connection, caller)
        async with self._trials.heard(vpn, body, ask) as source:
            return await self._streams.serve(request, connection, caller, source, standing)

    async def _stream(
        self,
        request: BaseRequest,
        connection: Connection,
        caller: Caller,
        route: Route,
        arguments: dict[str, Any],
    ) -> web.StreamResponse:
        """Answer with a stream of events."""
        ask = self._asking(caller)
        last = request.headers.get("Last-Event-ID", "")
        standing = self._standing(request, connection, caller)
        if route.operation == "jobs.show":
            if last == OVER:
                return web.Response(status=204)
            return await self._streams.serve(request, connection, caller, Jobs(ask, arguments), standing)
        with self._watch.watching():
            source = Events(ask, self._watch, arguments, last)
            return await self._streams.serve(request, connection, caller, source, standing)

    def _standing(self, request: BaseRequest, connection: Connection, caller: Caller) -> Standing:
        """Give what tells whether the login of a request counts still."""

        def login_counts() -> Awaitable[None]:
            return self._ways.check(request, self._site.peer(request, connection), caller.operator)

        return Standing(self._controller.ask, caller.operator, login_counts)

    async def _body(self, request: BaseRequest) -> dict[str, Any]:
        timeout_s = self._settings.request_timeout_ms / 1_000
        return await bodies.read(request, self._settings.max_body_bytes, timeout_s)


def offered(runtime: ManagementRuntime) -> dict[str, Any]:
    """Give which ways to log in there are."""
    oidc = OidcOffer("/" + "/".join(PATH), runtime.oidc.label) if runtime.oidc.issuer else None
    certificate = runtime.settings.tls_client_certificates
    offer = Offer(password=True, token=bool(runtime.issuers), certificate=certificate, oidc=oidc)
    found: dict[str, Any] = msgspec.to_builtins(offer)
    return found


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
    await ManagementServer(process, load_config(process.runtime_dir, ROLE, ManagementRuntime)).run()


def main() -> None:
    """Run until the process is told to stop."""
    with at_work(ROLE) as process:
        asyncio.run(_serve(process))
