"""A server of aiohttp for tests, in a loop of asyncio in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Self

from aiohttp import web

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

LIMIT_S: Final = 20.0


class ServerThread(ABC):
    """A context manager, within which the server listens at a port of this host."""

    #: How long a request may still take when the server ends; and whether it ends when its client goes.
    shutdown_s = 0.0
    cancels = False

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    @abstractmethod
    def _application(self) -> web.Application:
        """Say who answers what; runs in the loop."""

    async def _start(self) -> None:
        self._runner = web.AppRunner(
            self._application(), shutdown_timeout=self.shutdown_s, handler_cancellation=self.cancels
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]

    async def _end(self) -> None:
        await self._runner.cleanup()

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
