"""How commands that run for long end in order: the first SIGINT or SIGTERM cancels the work.

The command then flushes what it has and sums up. A second signal acts as usual and ends the process. A command whose
output goes into a pipe ends when nobody reads that any more, though it may have nothing to write for hours.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator


async def until_signal(work: Coroutine[Any, Any, None], *, output: int | None = None) -> bool:
    """Do some work until it is done or a signal comes; tell whether it came to its end.

    Raises:
        BrokenPipeError: the reader of the descriptor `output`, if it is a pipe, has gone.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    signals = (signal.SIGINT, signal.SIGTERM)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, interrupt)
    try:
        with _broken_by_reader(output, task):
            await task
    except asyncio.CancelledError:
        if not interrupted:
            raise
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
    return not interrupted


@contextlib.contextmanager
def _broken_by_reader(output: int | None, task: asyncio.Task[None]) -> Iterator[None]:
    """Cancel a task when the reader of a pipe goes, and raise BrokenPipeError then."""
    if output is None or not _is_writing_end(output):
        yield
        return
    loop = asyncio.get_running_loop()
    is_broken = False

    def broken() -> None:
        nonlocal is_broken
        is_broken = True
        loop.remove_reader(output)
        task.cancel()

    # The writing end of a pipe is never readable; it is reported when the other end has been closed.
    loop.add_reader(output, broken)
    try:
        yield
    except asyncio.CancelledError:
        if is_broken:
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_reader(output)


def _is_writing_end(descriptor: int) -> bool:
    access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    return access == os.O_WRONLY and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
