"""The proxy that makes a path longer and cuts it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.mesh.delay_proxy import DelayProxy, address_of
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    Test = Callable[..., Coroutine[Any, Any, None]]

ROOT = Path(__file__).resolve().parents[2]
#: How long something that has to come is waited for.
DEADLINE_S = 20.0
#: How long something that may not come is looked for.
SILENCE_S = 0.2
MIB = 1 << 20


def in_loop(test: Test) -> Callable[..., None]:
    """Run a test in a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Target:
    """A server that keeps what it gets, and its connections."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ended: list[int] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.writers)
        self.got.append(b"")
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(MIB):
                self.got[number] += chunk
        self.ended.append(number)


@contextlib.asynccontextmanager
async def path(delay_ms: float = 0.0) -> AsyncIterator[tuple[Target, DelayProxy]]:
    target = Target()
    server = await asyncio.start_server(target.take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        async with DelayProxy(f"{host}:{port}", delay_ms) as proxy:
            yield target, proxy
    finally:
        for writer in target.writers:
            writer.close()
        server.close()


async def dial(proxy: DelayProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address_of(proxy.url))


@in_loop
async def test_bytes_come_intact_and_in_order_both_ways_and_so_does_the_end() -> None:
    sent = [os.urandom(700_000) for _ in range(12)]
    async with path(1.0) as (target, proxy):
        reader, writer = await dial(proxy)
        for chunk in sent:
            writer.write(chunk)
        writer.write_eof()
        await until(lambda: target.ended)
        assert target.got == [b"".join(sent)]
        for chunk in sent:
            target.writers[0].write(chunk)
        target.writers[0].write_eof()
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b"".join(sent)
        await until(lambda: proxy.connections == 0)
        writer.close()


@in_loop
async def test_each_direction_takes_the_delay() -> None:
    async with path(150.0) as (target, proxy):
        reader, writer = await dial(proxy)
        started = time.monotonic()
        writer.write(b"there")
        await until(lambda: target.got == [b"there"])
        assert time.monotonic() - started >= 0.15
        target.writers[0].write(b"back")
        assert await asyncio.wait_for(reader.readexactly(4), DEADLINE_S) == b"back"
        assert time.monotonic() - started >= 0.3
        writer.close()


@pytest.mark.slow
@in_loop
async def test_a_long_path_carries_many_pieces_at_a_time() -> None:
    """One after the other, these pieces would take half a minute."""
    async with path(300.0) as (target, proxy):
        _, writer = await dial(proxy)
        started = time.monotonic()
        for _ in range(100):
            writer.write(bytes(1_000))
            await asyncio.sleep(0.002)
        await until(lambda: target.got == [bytes(100_000)])
        assert time.monotonic() - started < 15.0
        writer.close()


@in_loop
async def test_a_full_cut_closes_connections_and_refuses_new_ones_until_it_is_healed() -> None:
    async with path() as (target, proxy):
        reader, writer = await dial(proxy)
        writer.write(b"before")
        await until(lambda: target.got == [b"before"])
        proxy.cut()
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        await until(lambda: target.ended == [0])
        refused, second = await dial(proxy)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(refused.read(), DEADLINE_S) == b""
        assert len(target.writers) == 1
        proxy.heal()
        _, third = await dial(proxy)
        third.write(b"after")
        await until(lambda: target.got == [b"before", b"after"])
        for one in (writer, second, third):
            one.close()


@pytest.mark.parametrize(("direction", "open_one"), [("up", "down"), ("down", "up")])
@in_loop
async def test_a_one_way_cut_holds_one_direction_and_keeps_the_connection(
    direction: str, open_one: str
) -> None:
    async with path() as (target, proxy):
        reader, writer = await dial(proxy)
        writer.write(b"0")
        await until(lambda: target.got == [b"0"])
        assert proxy.obey(f"cut --one-way {direction}") == f"cut --one-way {direction}"
        assert not proxy.is_held(open_one)
        writer.write(b"up")
        target.writers[0].write(b"down")
        if direction == "up":
            assert await asyncio.wait_for(reader.readexactly(4), DEADLINE_S) == b"down"
            await asyncio.sleep(SILENCE_S)
            assert target.got == [b"0"]
        else:
            await until(lambda: target.got == [b"0up"])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), SILENCE_S)
        assert not target.ended
        proxy.heal()
        await until(lambda: target.got == [b"0up"])
        if direction == "down":
            assert await asyncio.wait_for(reader.readexactly(4), DEADLINE_S) == b"down"
        writer.close()


@in_loop
async def test_the_end_of_a_connection_is_not_told_through_a_direction_that_is_cut() -> None:
    async with path() as (target, proxy):
        _, writer = await dial(proxy)
        writer.write(b"0")
        await until(lambda: target.got == [b"0"])
        proxy.cut_silently("up")
        writer.close()
        target.writers[0].write(bytes(MIB))
        await asyncio.sleep(SILENCE_S)
        assert not target.ended
        proxy.heal()
        await until(lambda: target.ended == [0])


@in_loop
async def test_a_silent_cut_holds_both_directions_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mesh.delay_proxy.LINE_BYTES_MAX", MIB)
    sent = os.urandom(16 * MIB)
    async with path() as (target, proxy):
        _, writer = await dial(proxy)
        proxy.obey("cut --silent")
        writer.write(sent)
        await asyncio.sleep(SILENCE_S)
        assert target.got in ([], [b""])
        assert writer.transport.get_write_buffer_size() > 0, "the proxy has read it all"
        proxy.heal()
        await until(lambda: target.got == [sent])
        writer.close()


def test_bad_commands_and_addresses_are_told_what_is_possible() -> None:
    proxy = DelayProxy("127.0.0.1:1")
    for command in ("", "cut off", "cut --one-way", "cut --one-way left", "delay", "delay -1"):
        with pytest.raises(ValueError, match="what is: cut"):
            proxy.obey(command)
    for address in ("", "host", ":1", "host:", "host:x", "host:70000"):
        with pytest.raises(ValueError, match="no address"):
            address_of(address)
    assert proxy.obey("delay 250") == "delay 250"
    assert proxy.delay_s == 0.25


@pytest.mark.slow
def test_the_program_passes_on_and_obeys() -> None:
    program = [sys.executable, "-m", "tests.mesh.delay_proxy", "127.0.0.1:0", "127.0.0.1:9", "--json"]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            found = json.loads(process.stdout.readline())
            assert found["verdict"] == "listening"
            assert address_of(found["listen"])[1] > 0
            process.stdin.write("cut --one-way up\n")
            process.stdin.flush()
            assert process.stdout.readline() == "cut --one-way up\n"
        finally:
            process.terminate()
        assert process.wait(DEADLINE_S) == 0
