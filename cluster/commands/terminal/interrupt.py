"""How commands that run for long end in order: the first SIGINT or SIGTERM cancels the work.

The command then flushes what it has and sums up. A second signal acts as usual and ends the process.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Do some work until it is done or a signal comes; tell whether it came to its end."""
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
        await task
    except asyncio.CancelledError:
        if not interrupted:
            raise
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
    return not interrupted
