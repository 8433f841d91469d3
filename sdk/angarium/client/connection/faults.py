"""What comes out of functions of an application that a client calls."""

from __future__ import annotations

import asyncio
from typing import Final

#: It costs what the function was called for. The cancellation of what it waited for is not that of its caller.
FAULTS: Final = (Exception, asyncio.CancelledError)


def raise_if_cancelled(fault: BaseException) -> None:
    """Raise what came out of a function again if this task was cancelled."""
    task = asyncio.current_task()
    if isinstance(fault, asyncio.CancelledError) and task is not None and task.cancelling():
        raise fault
