"""A target of webhooks for tests: a server of aiohttp in a thread, that answers each path as it is told."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from tests.integration.server_thread import ServerThread

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Says how the n-th request of a path is answered (0: the first): a code, or seconds of silence.
    Script = Callable[[int, "Attempt"], "int | float | web.Response"]

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


class Sink(ServerThread):
    """The server; what came is in `got`, by path."""

    shutdown_s = 0.1
    cancels = True

    def __init__(self, **scripts: Script) -> None:
        super().__init__()
        self.scripts = scripts
        self.got: defaultdict[str, list[Attempt]] = defaultdict(list)
        #: Requests of a path that are at work, now and at most.
        self.open: defaultdict[str, int] = defaultdict(int)
        self.most: defaultdict[str, int] = defaultdict(int)

    def _application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/{path}", self._answer)
        return app

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"

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
