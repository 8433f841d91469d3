"""A process in a loop of asyncio gives memory back while nothing happens, and has turns after one with a fault."""

from __future__ import annotations

import asyncio
import math
import os
from typing import TYPE_CHECKING, cast

import pytest

from angarium_server.http import turns
from angarium_server.memory import free_pools, memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.process import Process

pytestmark = pytest.mark.requirement("R279")

#: In use at the first look, and from then on.
FULL, EMPTY = 100 << 20, 10 << 20


class QuietProcess:
    """One in which nothing is due for a long time."""

    stopping = False

    def __init__(self) -> None:
        self.descriptor, self._other = os.pipe()

    def turn(self) -> float:
        return 1_000.0

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._other)


@pytest.fixture
def process() -> Iterator[QuietProcess]:
    made = QuietProcess()
    yield made
    made.close()


def test_what_clients_took_is_given_back_while_nothing_happens(
    process: QuietProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([FULL])
    monkeypatch.setattr(turns, "MEMORY_S", 0.001)
    monkeypatch.setattr(turns, "in_use_bytes", lambda: next(looks, EMPTY))
    monkeypatch.setattr(memory, "GIVE_BACK_DELAY_S", 0.0)
    monkeypatch.setattr(free_pools, "_KNOWN_TO", (3, 11))
    monkeypatch.setattr(memory, "_pools", free_pools.FreePools())

    async def run() -> None:
        given_back = asyncio.Event()
        monkeypatch.setattr(memory, "give_back", given_back.set)
        made = turns.Turns(cast("Process", process), lambda _now: math.inf)
        made.begin()
        try:
            async with asyncio.timeout(60):
                await given_back.wait()
        finally:
            made.end()

    asyncio.run(run())


def test_after_a_turn_with_a_fault_there_is_another_one(
    process: QuietProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AFTER_FAULT_S", 0.001)

    async def run() -> None:
        told, goes_on = [], asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

        def tick(_now: float) -> float:
            if not told:
                raise ValueError("a fault")
            goes_on.set()
            return math.inf

        made = turns.Turns(cast("Process", process), tick)
        made.soon()
        async with asyncio.timeout(60):
            await goes_on.wait()
        assert made._next is not None
        made._next.cancel()
        assert [str(one) for one in told] == ["a fault"]

    asyncio.run(run())
