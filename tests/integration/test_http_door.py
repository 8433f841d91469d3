"""The listeners of HTTP: what they do when the system has nothing left for those who come."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from aiohttp import web

from angarium_server.http.door import Door

if TYPE_CHECKING:
    import pytest

    from angarium_server.http.door import Limits

#: Longer than anything here takes on a machine that others use as well.
LONG_S = 10.0


def test_a_process_without_descriptors_does_not_ask_for_ever_and_takes_who_came_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def full(_listener: socket.socket) -> None:
        asked.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    async def never(_request: web.BaseRequest) -> web.Response:
        raise AssertionError("nothing is asked for")

    async def run() -> None:
        limits = SimpleNamespace(
            max_connections=10, max_connections_per_address=10, request_timeout_ms=60_000
        )
        door = Door(cast("Limits", limits), web.Server(never), {})
        door.listen("127.0.0.1", 0, None)
        with monkeypatch.context() as patch, socket.socket() as peer:
            patch.setattr(socket.socket, "accept", full)
            peer.connect(door._listeners[0].getsockname())
            await asyncio.sleep(0.1)
            assert len(asked) == 1
            patch.undo()
            async with asyncio.timeout(LONG_S):
                while not door.connections:
                    await asyncio.sleep(0.01)
        door.stop_listening()

    asyncio.run(run())
