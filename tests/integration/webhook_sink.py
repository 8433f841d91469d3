"""A target of webhooks for tests: a server of aiohttp in a thread, that answers each path as it is told."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Self

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType

    #: Says how the n-th request of a path is answered (0: the first): a code, or seconds of silence.
    Script = Callable[[int, "Attempt"], "int | float | web.Response"]

LIMIT_S = 20.0
#: A server that hangs does so for longer than any timeout of a test.
HANG = 60.0


class Attempt(NamedTuple):
    """A request that came."""

    body: bytes
    headers: dict[str, str]
    code: int

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]


class Sink:
    """The server; what came is in `got`, by path."""

    def __init__(self, **scripts: Script) -> None:
        self.scripts = scripts
        self.got: defaultdict[str, list[Attempt]] = defaultdict(list)
        #: Requests of a path that are at work, now and at most.
        self.open: defaultdict[str, int] = defaultdict(int)
        self.most: defaultdict[str, int] = defaultdict(int)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start()).result(LIMIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._runner.cleanup()).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    def _run(self, coroutine: object) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)  # type: ignore[arg-type]

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/{path}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        self.open[path] += 1
        self.most[path] = max(self.most[path], self.open[path])
        try:
            came = Attempt(await request.read(), {k.lower(): v for k, v in request.headers.items()}, 0)
            told = self.scripts[path](len(self.got[path]), came)
            code = told.status if isinstance(told, web.Response) else told if isinstance(told, int) else 0
            self.got[path].append(came._replace(code=code))
            if isinstance(told, float):
                await asyncio.sleep(told)
            return told if isinstance(told, web.Response) else web.Response(status=code or 204)
        finally:
            self.open[path] -= 1

    def bodies(self, path: str) -> list[bytes]:
        return [one.body for one in self.got[path]]

    def accepted(self, path: str) -> set[bytes]:
        return {one.body for one in self.got[path] if 200 <= one.code < 300}
