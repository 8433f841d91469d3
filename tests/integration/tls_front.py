"""Puts TLS in front of a listener that speaks without it, so that routers of tests can be reached by `tls://`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tests.integration.scripted_router import LIMIT_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator


class _Front:
    """Takes connections in a thread of its own, and copies what they say; an end of one side is the end of both."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._target = "127.0.0.1", port
        self._context = context
        self._port: Future[int] = Future()
        self._stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), daemon=True
        )
        self._thread.start()
        self.port = self._port.result(LIMIT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0, ssl=self._context)
        self._port.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        copies = [
            asyncio.ensure_future(_copy(reader, far_writer)),
            asyncio.ensure_future(_copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            for one in (writer, far_writer):
                one.close()
            await asyncio.gather(*copies, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def tls_front(port: int, context: ssl.SSLContext) -> Iterator[str]:
    """Give the `tls://` address of what listens on a port."""
    front = _Front(port, context)
    try:
        yield f"tls://127.0.0.1:{front.port}"
    finally:
        front.close()
