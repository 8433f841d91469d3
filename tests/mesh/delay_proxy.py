"""A TCP proxy that makes a path longer, and cuts it: the program behind scripts/delay-proxy, and a class for tests.

Each direction of a connection is a delay line: bytes are read as they come and leave after the delay, so a long path
carries as much as a short one, unless it is made narrow. A line holds a limited number of bytes; at the limit nothing
more is read.

A path is cut in three ways. A *full* cut closes the connections and refuses new ones. A *silent* one holds all bytes
back, as a network does that lost its way: nobody is told. A *one-way* cut does so in one direction only. What was held
leaves, in order, when the path is healed. While a direction is held nothing passes in it, also not the news that a
connection was closed.

    up:    from who connected to the target
    down:  from the target to who connected
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import struct
import sys
import threading
from collections import deque
from typing import Final

#: At 100 ms this is 640 MB/s.
LINE_BYTES_MAX: Final = 64 << 20
#: A test runs some links; whoever runs more means something else.
CONNECTIONS_MAX: Final = 1_000
UP: Final = "up"
DOWN: Final = "down"
_CHUNK_BYTES: Final = 256 << 10
#: Written at once, so that a narrow path is a steady one.
_PIECE_BYTES: Final = 8 << 10
#: Closing with this option resets the connection.
_RESET: Final = struct.pack("ii", 1, 0)


class Line:
    """One direction of one connection: bytes on their way, and when they were read."""

    def __init__(self, proxy: DelayProxy, direction: str, source: socket.socket, sink: socket.socket) -> None:
        self._proxy = proxy
        self._direction = direction
        self._source = source
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        #: (when it was read, what), oldest first; nothing in it is the end.
        self._chunks: deque[tuple[float, bytes]] = deque()
        #: Bytes in it; at most LINE_BYTES_MAX and one chunk.
        self._held = 0
        self._changed = asyncio.Event()

    async def carry(self) -> None:
        """Carry everything up to the end of the source."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._write())

    async def _read(self) -> None:
        chunk = b"-"
        while chunk:
            while self._held >= LINE_BYTES_MAX:
                await self._change()
            try:
                chunk = await self._loop.sock_recv(self._source, _CHUNK_BYTES)
            except OSError:  # who broke off says no more than who has ended
                chunk = b""
            self._held += len(chunk)
            self._chunks.append((self._loop.time(), chunk))
            self._changed.set()

    async def _write(self) -> None:
        is_broken = False
        while True:
            while not self._chunks:
                await self._change()
            read_at, chunk = self._chunks[0]
            await self._wait_until(read_at)
            # A sink that is gone is told to the source by the other direction, if that is open.
            if not is_broken:
                try:
                    await self._put(chunk)
                except OSError:
                    is_broken = True
            self._chunks.popleft()
            self._held -= len(chunk)
            self._changed.set()
            if not chunk:
                return

    async def _wait_until(self, read_at: float) -> None:
        """Wait for the delay, as it is now, and until the direction is open."""
        while True:
            left_s = read_at + self._proxy.delay_s - self._loop.time()
            if left_s > 0:
                await asyncio.sleep(left_s)
            elif self._proxy.is_held(self._direction):
                await self._proxy.changed()
            else:
                return

    async def _put(self, chunk: bytes) -> None:
        if not chunk:
            self._sink.shutdown(socket.SHUT_WR)
        for start in range(0, len(chunk), _PIECE_BYTES):
            piece = chunk[start : start + _PIECE_BYTES]
            await self._loop.sock_sendall(self._sink, piece)
            await asyncio.sleep(len(piece) / self._proxy.bytes_per_s)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class DelayProxy:
    """Listens, and passes every connection on to the target; an async context manager.

    It belongs to the loop in which it was started.
    """

    def __init__(self, target: str, delay_ms: float = 0.0, listen: str = "127.0.0.1:0") -> None:
        """Describe it; `start` or the context starts it. Addresses are `host:port`, with or without `tcp://` or `tls://`."""
        self._target = address_of(target)
        self._listen = address_of(listen)
        self.delay_s = delay_ms / 1000
        #: How much each direction of a connection carries.
        self.bytes_per_s = float("inf")
        self._held: frozenset[str] = frozenset()
        self._is_cut = False
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be bound.
        """
        self._listener = socket.create_server(self._listen)
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    @property
    def url(self) -> str:
        """Give the address at which it listens."""
        assert self._listener is not None, "not started"
        host, port = self._listener.getsockname()[:2]
        return f"tcp://{host}:{port}"

    @property
    def connections(self) -> int:
        """Count the connections that pass."""
        return len(self._connections)

    def is_held(self, direction: str) -> bool:
        """Tell whether bytes of a direction are held back."""
        return direction in self._held

    async def changed(self) -> None:
        """Wait until something was held, or healed."""
        await self._news.wait()

    # What can be done to the path.

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        self._is_cut = True
        self._drop_all()

    def cut_silently(self, *directions: str) -> None:
        """Hold what comes in these directions, in both by default; connections stay open."""
        self._held |= frozenset(directions or (UP, DOWN))
        self._tell()

    def heal(self) -> None:
        """Let everything pass again; what was held leaves first."""
        self._is_cut = False
        self._held = frozenset()
        self._tell()

    def retarget(self, target: str) -> None:
        """Pass new connections on to another address."""
        self._target = address_of(target)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _drop_all(self) -> None:
        for task in self._connections:
            task.cancel()

    # Connections.

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            if self._is_cut or len(self._connections) >= CONNECTIONS_MAX:
                _reset(client)
                continue
            task = asyncio.create_task(self._pass_on(client))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _pass_on(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        target = socket.socket(socket.AF_INET)
        try:
            for one in (client, target):
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):  # who connected sees it by the end of its connection
                await loop.sock_connect(target, self._target)
                async with asyncio.TaskGroup() as group:
                    group.create_task(Line(self, UP, client, target).carry())
                    group.create_task(Line(self, DOWN, target, client).carry())
        except asyncio.CancelledError:
            for one in (client, target):
                _reset(one)
            raise
        finally:
            client.close()
            target.close()

    async def close(self) -> None:
        """Close everything."""
        tasks = [*self._connections, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def __aenter__(self) -> DelayProxy:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # From the command line.

    def obey(self, command: str) -> str:
        """Do what a line says, and tell what was done.

        Raises:
            ValueError: it says nothing that is known; the text has what is.
        """
        words = command.split()
        if words == ["cut"]:
            self.cut()
        elif words == ["cut", "--silent"]:
            self.cut_silently()
        elif words[:2] == ["cut", "--one-way"] and words[2:] in ([UP], [DOWN]):
            self.cut_silently(words[2])
        elif words == ["heal"]:
            self.heal()
        elif len(words) == 2 and words[0] == "delay" and words[1].isdigit():
            self.delay_s = int(words[1]) / 1000
        else:
            known = "cut, cut --silent, cut --one-way up|down, heal, delay MS"
            raise ValueError(f"{command.strip()!r} is not known; what is: {known}")
        return " ".join(words)


def _reset(one: socket.socket) -> None:
    """Close a connection at once, without what has not left."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    one.close()


def address_of(text: str) -> tuple[str, int]:
    """Give host and port of `host:port`, with or without `tcp://` or `tls://`.

    Raises:
        ValueError: it is neither.
    """
    host, colon, port = text.removeprefix("tcp://").removeprefix("tls://").rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{text!r} is no address: host:port or tcp://host:port, port 0 for a free one")
    return host, int(port)


async def serve(proxy: DelayProxy, cut_after_s: float | None, *, as_json: bool) -> None:
    """Pass on until a signal comes, and do what the lines of standard input say."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    async with proxy:
        if cut_after_s is not None:
            loop.call_later(cut_after_s, proxy.cut)
        found = {"listen": proxy.url, "delay_ms": proxy.delay_s * 1000, "verdict": "listening"}
        text = (
            f"{proxy.url} passes on with {proxy.delay_s * 1000:g} ms each way; lines: cut, heal, ..., Ctrl-C"
        )
        print(json.dumps(found) if as_json else text, flush=True)
        threading.Thread(target=_read_commands, args=(proxy, loop), daemon=True).start()
        await over.wait()


def _read_commands(proxy: DelayProxy, loop: asyncio.AbstractEventLoop) -> None:
    """Give lines of standard input, whatever that is, to the loop; its end ends nothing."""
    for line in sys.stdin:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_obey, proxy, line)


def _obey(proxy: DelayProxy, line: str) -> None:
    try:
        print(proxy.obey(line), flush=True)
    except ValueError as error:
        print(error, file=sys.stderr, flush=True)


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(
        prog="scripts/delay-proxy",
        description="A TCP proxy that delays each direction, and cuts the path on request.",
        epilog="Lines on standard input: cut, cut --silent, cut --one-way up|down, heal, delay MS.",
    )
    parser.add_argument("listen", help="host:port; port 0 for a free one")
    parser.add_argument("target", help="host:port, or the tcp:// address of a node")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each direction [%(default)s]")
    parser.add_argument("--cut-after", type=float, metavar="S", help="cut the path after so many seconds")
    parser.add_argument("--json", action="store_true", help="say where it listens as one line of JSON")
    options = parser.parse_args()
    if options.delay_ms < 0:
        parser.error("--delay-ms is 0 or more")
    try:
        proxy = DelayProxy(options.target, options.delay_ms, options.listen)
    except ValueError as error:
        parser.error(str(error))
    try:
        asyncio.run(serve(proxy, options.cut_after, as_json=options.json))
    except OSError as error:
        print(f"{options.listen}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
