"""How long work ends at a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from cluster.commands.terminal.interrupt import until_signal

if TYPE_CHECKING:
    from pathlib import Path


def test_work_that_is_done_came_to_its_end() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    assert asyncio.run(until_signal(work()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_work_which_may_tidy_up(number: signal.Signals) -> None:
    tidied = False

    async def work() -> None:
        nonlocal tidied
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(30)
        finally:
            tidied = True

    assert not asyncio.run(until_signal(work()))
    assert tidied


def test_what_the_work_raises_is_raised() -> None:
    async def work() -> None:
        raise ValueError("our fault")

    with pytest.raises(ValueError, match="our fault"):
        asyncio.run(until_signal(work()))


def test_a_cancellation_from_elsewhere_is_not_taken_for_a_signal() -> None:
    async def scene() -> None:
        task = asyncio.ensure_future(until_signal(asyncio.sleep(30)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())


def test_the_handlers_of_the_process_are_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def scene() -> None:
        await until_signal(asyncio.sleep(0))

    asyncio.run(scene())
    assert signal.getsignal(signal.SIGINT) is before


def test_work_ends_when_nobody_reads_its_output_any_more() -> None:
    reading, writing = os.pipe()

    async def scene() -> None:
        work = asyncio.ensure_future(until_signal(asyncio.sleep(30), output=writing))
        os.write(writing, b"what waits to be read ends nothing")
        await asyncio.sleep(0.01)
        assert not work.done()
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            await asyncio.wait_for(work, 10)

    asyncio.run(scene())
    os.close(writing)


def test_an_output_that_is_read_and_written_is_not_watched(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    both = os.open(tmp_path / "fifo", os.O_RDWR)
    os.write(both, b"readable at once")
    assert asyncio.run(until_signal(asyncio.sleep(0.01), output=both))
    os.close(both)
    with (tmp_path / "file").open("wb") as file:
        assert asyncio.run(until_signal(asyncio.sleep(0), output=file.fileno()))
