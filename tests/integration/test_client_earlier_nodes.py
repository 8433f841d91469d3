"""A client of this version and a node of 0.1.0, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import angarium
from angarium import wire
from tests.integration.scripted_router import run
from tests.integration.stream_peer import GREETING, READY, Conversation, StreamPeer, frame
from tests.welcome import welcome

if TYPE_CHECKING:
    from pathlib import Path

#: A node of 0.1.0 looks at what has come when it is asked who this may be; long enough for all that came at once.
LOOK_S = 0.2


def accept_as_0_1_0(peer: StreamPeer) -> Conversation | None:
    """Take a connection, and close it if anything comes before the greeting was answered."""
    taken = peer.accept()
    taken.take(64 + len(READY))
    taken.socket.settimeout(LOOK_S)
    with contextlib.suppress(TimeoutError):
        taken.socket.recv(1, socket.MSG_PEEK)
        taken.close()
        return None
    taken.give(GREETING + READY)
    return taken


def serve_one(peer: StreamPeer) -> int:
    """Take connections until one is a session, and let that end; give how many there were."""
    attempts = 1
    while (taken := accept_as_0_1_0(peer)) is None:
        attempts += 1
    taken.socket.settimeout(5)
    assert taken.take_message()[0] == wire.HELLO
    answer = welcome(1, token=b"t", keepalive_ms=60_000, inbox="#P2P/INB/x")
    taken.give(frame(wire.WELCOME, more=True) + frame(wire.pack(answer)))
    while taken.take_message()[0] != wire.BYE:
        pass
    taken.give(frame(wire.CLOSED, more=True) + frame(wire.pack([0, "bye"])))
    return attempts


def test_a_node_that_closes_on_an_early_hello_gets_the_next_one_behind_its_greeting(tmp_path: Path) -> None:
    async def test() -> None:
        for kind in ("tcp", "ipc"):
            with contextlib.closing(StreamPeer(kind, tmp_path)) as peer:
                serving = asyncio.create_task(asyncio.to_thread(serve_one, peer))
                async with angarium.connect(peer.url, timeout_s=5):
                    pass
                assert await serving == 2

    run(test())
