"""A thousand streams of events of one topic: each gets all messages, in their order."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import angarium
from angarium_server.connections.descriptors import raise_descriptors
from angarium_server.testing import Node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

STREAMS = 1_000
#: Messages per second, and for how long.
RATE = 100
SECONDS = float(os.environ.get("ANGARIUM_STREAMS_S", "10"))
#: A machine that others use takes longer to read it all.
LIMIT_S = 120.0


class Reader(asyncio.Protocol):
    """A client that hashes what it reads: for streams of one topic that is the same for all."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._head: bytes | None = b""
        self.hash = hashlib.blake2b()
        self._lines = 0
        #: What one of them has read, for a look at it.
        self.kept: list[bytes] | None = None
        self.begun, self.ended = asyncio.Event(), False

    @property
    def events(self) -> int:
        """Count them: each is its line and an empty one."""
        return self._lines // 2

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            head, separator, data = (self._head + data).partition(b"retry: 500\n\n")
            self._head = None if separator else head + data
            if not separator:
                return
            assert b" 200 " in head.splitlines()[0], head
            self.begun.set()
        self.hash.update(data)
        self._lines += data.count(b"\n")
        if self.kept is not None:
            self.kept.append(data)

    def connection_lost(self, _error: BaseException | None) -> None:
        self.ended = True
        self.begun.set()


def _given(reader: Reader) -> Reader:
    return reader


async def read_all(node: Node) -> list[Reader]:
    """Open the streams, publish, and read until all is there."""
    place = urlsplit(node.http_url)
    # With HTTP/1.0 nothing of chunks is between the events, so all streams are the same bytes.
    request = f"GET /v1/events?topic=ticks/%3E HTTP/1.0\r\nHost: {place.netloc}\r\n\r\n".encode()
    loop, readers = asyncio.get_running_loop(), []
    for number in range(STREAMS):
        reader = Reader(request)
        reader.kept = None if number else []
        await loop.create_connection(partial(_given, reader), place.hostname or "", place.port or 0)
        await reader.begun.wait()
        readers.append(reader)
    count = round(RATE * SECONDS)
    async with angarium.connect(node.url) as client:
        began = time.monotonic()
        for number in range(count):
            await asyncio.sleep(began + number / RATE - time.monotonic())
            await client.publish(f"ticks/{number % 7}", b"%d" % number)
    deadline = time.monotonic() + LIMIT_S
    while any(one.events < count and not one.ended for one in readers) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    for one in readers:
        one.transport.abort()
    return readers


@pytest.mark.long
@pytest.mark.requirement("R253")
@pytest.mark.timeout(LIMIT_S + SECONDS + 60)
def test_a_thousand_streams_of_one_topic_are_complete(tmp_path: Path) -> None:
    assert raise_descriptors(STREAMS + 500) >= STREAMS + 500
    config = tmp_path / "node.toml"
    config.write_text(f"[http]\nmax_connections_per_address = {STREAMS + 100}\n")
    with Node(tmp_path / "data", workers=1, http="http://127.0.0.1:0", config=config) as node:
        readers = asyncio.run(read_all(node))
    kept = b"".join(readers[0].kept or ())
    told = [int(number) for number in re.findall(rb'"payload":"(\d+)"', kept)]
    assert told == list(range(round(RATE * SECONDS)))
    # A stream that was quiet for a while has comments, which are no events; none was here.
    short = [one.events for one in readers if one.hash.digest() != readers[0].hash.digest()]
    assert short == []
