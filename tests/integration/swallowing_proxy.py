"""A proxy of HTTP that loses answers: what is asked is carried out behind it, and the connection ends without one."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from types import TracebackType

LIMIT_S: Final = 20.0


class SwallowingProxy:
    """In a thread of its own; use it as a context manager."""

    def __init__(self, target: str) -> None:
        self._target = target
        #: Paths of which an answer is to be lost, once for each time that they are in it.
        self.swallows: list[str] = []
        #: Paths of which a request is to be kept back in the same way.
        self.delays: list[str] = []
        #: Path and body of what was kept back.
        self.delayed: list[tuple[str, bytes]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(LIMIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession()
        application = web.Application()
        application.router.add_route("POST", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(application, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _end(self) -> None:
        await self._runner.cleanup()
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
