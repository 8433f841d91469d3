"""The shell of the gateway process of HTTP: aiohttp in a loop of asyncio, in which the process has its turns.

A request is looked at in this order, and is refused by the first that does not fit: who is meant (Host, Origin), what
is asked for, what its headers say, who asks, its body. `cluster.http.requests` does what is asked for.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.trace_context import CONTEXTS
from angarium_server.connections.outgoing import to_router
from angarium_server.http.site import Site
from angarium_server.http.turns import Turns
from angarium_server.memory.memory import in_use_bytes
from angarium_server.process import Process, at_work, load_config
from cluster.configuration.listening import url_of
from cluster.http.events import Events
from cluster.http.requests import Requests
from cluster.http.role import HttpRuntime
from gateway.http.clients import Clients
from gateway.http.streams import Streams
from gateway.session import Identity
from gateway.vpn_carriers import VpnCarriers

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from angarium.message import Row
    from angarium_server.http.door import Connection
    from gateway.attached import Attached, Guest, Login

ROLE: Final = "http"
#: What is being answered when the process stops may take so long to end, and then the session with the router.
STOP_S: Final = 3.0
LEAVE_S: Final = 2.0
#: How often streams are looked at.
LOOK_S: Final = 0.5


class HttpServer:
    """The process at work."""

    def __init__(self, process: Process, runtime: HttpRuntime) -> None:
        """Listen where we are told.

        Raises:
            InvalidRequestError: an address or a certificate cannot be used (40017).
        """
        self._turns = Turns(process, self._tick)
        self._carriers = VpnCarriers(
            Identity(runtime.local_secret, ROLE, process.index, process.incarnation),
            to_router(process, process.runtime_dir),
            self._deliver,
            random.Random(),  # noqa: S311 - pauses are no secret
        )
        self._clients = Clients(self._attach)
        self._streams = Streams(runtime.settings.egress_memory_bytes)
        self._look_at = 0.0
        self._site = Site(ROLE, runtime.settings, runtime.tls, self._answer, ends_with_its_client=True)
        events = Events(self._clients, self._streams, self._site.headers, self._turns.soon)
        self._requests = Requests(runtime, self._clients, events, self._turns.soon)
        for entry in runtime.settings.listen:
            self._site.listen(entry, url_of(entry))
        process.on_request(self._request)
        process.ready({"urls": runtime.settings.listen})

    # -- the router ------------------------------------------------------------------------------------------

    def _attach(self, guest: Guest, login: Login, vpn: str, now: float) -> Attached:
        self._turns.soon()
        return self._carriers.attach(vpn, guest, login, now)

    def _deliver(self, vpn: str, rows: list[Row], now: float) -> bool:
        return self._streams.deliver(vpn, rows, now)

    # -- the process -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the process is asked to stop."""
        self._turns.begin()
        try:
            await self._turns.stopping()
            self._site.door.stop_listening()
            self._streams.end_all(errors.error_for(errors.SHUTTING_DOWN))
            self._clients.stop()
            await self._site.shutdown(STOP_S)
            # The router is told what clients brought before.
            self._carriers.stop()
            await self._turns.until(lambda: self._carriers.is_gone, LEAVE_S)
        finally:
            self._turns.end()

    def _tick(self, now: float) -> float:
        self._clients.tick(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._streams.tick(now)
        for vpn in self._streams.begin_turn(now):
            self._carriers.passed_on(vpn)
        wake = self._carriers.tick(now)
        return now if self._streams.is_behind else wake

    async def _answer(self, request: BaseRequest, connection: Connection) -> StreamResponse:
        return await self._requests.answer(request, self._site.peer(request, connection).address)

    def _request(self, operation: str, _arguments: Any) -> Any:
        """Answer the controller."""
        match operation:
            case "stats":
                return self._stats()
            case "tls_reload":
                return self._site.reload_certificate()
        raise errors.error_for(errors.UNKNOWN_OPERATION, operation)

    def _stats(self) -> dict[str, Any]:
        return {
            **self._site.counts(),
            **self._carriers.counts(),
            "logins": self._clients.logins,
            "streams": len(self._streams),
            "streams_slow": self._streams.slow,
            "messages_out": self._streams.sent,
            "leases": len(self._clients.receipts),
            "malformed_contexts": CONTEXTS.dropped,
            "body_bytes": self._requests.body_bytes,
            "in_use_bytes": in_use_bytes(),
        }


async def _serve(process: Process) -> None:
    await HttpServer(process, load_config(process.runtime_dir, ROLE, HttpRuntime)).run()


def main() -> None:
    """Run until the process is told to stop."""
    with at_work(ROLE) as process:
        asyncio.run(_serve(process))
