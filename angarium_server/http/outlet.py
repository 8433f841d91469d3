"""The connection of a stream of events, behind the head of its answer."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from aiohttp import HttpVersion11, web

from angarium_server.http.sse import CONTENT_TYPE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from aiohttp.web import BaseRequest

#: Clients that lost the connection come again after so long.
RETRY: Final = b"retry: 500\n\n"


class Outlet:
    """Events are written to it without a wait, and bounded by who writes."""

    def __init__(self, transport: asyncio.WriteTransport, *, is_chunked: bool) -> None:
        self._transport = transport
        self._is_chunked = is_chunked

    @property
    def is_gone(self) -> bool:
        """Tell whether there is nobody any more."""
        return self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Have bytes leave soon."""
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def unsent(self) -> int:
        """Count the bytes that have not left."""
        return self._transport.get_write_buffer_size()

    def drop(self) -> None:
        """End the connection at once: what has not left is lost."""
        self._transport.abort()

    def bound_kernel(self, size: int) -> None:
        """Have the kernel take so many bytes of it at most, that nobody has read."""
        taken = self._transport.get_extra_info("socket")
        if taken is not None:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


async def begin(request: BaseRequest, headers: Mapping[str, str]) -> tuple[web.StreamResponse, Outlet]:
    """Send the head of an answer that is a stream of events.

    Raises:
        ConnectionResetError: its client is gone.
    """
    response = web.StreamResponse(headers={**headers, "Content-Type": CONTENT_TYPE})
    is_chunked = request.version >= HttpVersion11
    if is_chunked:
        response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(RETRY)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError
    return response, Outlet(transport, is_chunked=is_chunked)
