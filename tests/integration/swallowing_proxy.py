"""A proxy of HTTP that loses answers: what is asked is carried out behind it, and the connection ends without one."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from tests.integration.server_thread import ServerThread


class SwallowingProxy(ServerThread):
    """In a thread of its own; use it as a context manager."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = target
        #: Paths of which an answer is to be lost, once for each time that they are in it.
        self.swallows: list[str] = []
        #: Paths of which a request is to be kept back in the same way.
        self.delays: list[str] = []
        #: Path and body of what was kept back.
        self.delayed: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return self.address

    def _application(self) -> web.Application:
        self._session = aiohttp.ClientSession()
        application = web.Application()
        application.router.add_route("POST", "/{path:.*}", self._forward)
        return application

    async def _end(self) -> None:
        await super()._end()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.Response:
        given = await request.read()
        assert request.transport is not None
        if request.path in self.delays:
            self.delays.remove(request.path)
            self.delayed.append((request.path, given))
            request.transport.abort()
            return web.Response()
        async with self._session.post(f"{self._target}{request.path}", data=given) as answer:
            body = await answer.read()
        if request.path in self.swallows:
            self.swallows.remove(request.path)
            request.transport.abort()
        return web.Response(body=body, status=answer.status, content_type="application/json")
