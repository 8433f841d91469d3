"""Waiting in tests: look at short intervals until something is so, and fail with what was seen last.

Nothing is slept for that could be looked at. What serves its own loop meanwhile, as a test that turns a poller by hand,
waits by itself.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Longer than anything here takes on a machine that others use as well.
TIMEOUT_S: Final = 40.0
#: Between two looks, at first and at last: most things are so soon.
_LOOK_INTERVAL_S, _LOOK_INTERVAL_MAX_S = 0.002, 0.05
#: A look that runs a command costs as much as what it looks at: it is followed by so many times what it took, at most.
_REST, _REST_MAX_S = 2, 0.2


def wait_for(
    read: Callable[[], T],
    condition: Callable[[T], object],
    what: str = "it",
    timeout_s: float = TIMEOUT_S,
    more: Callable[[], str] = str,
) -> T:
    """Read something until a condition holds for it, and give what was read.

    Args:
        read: gives it as it is now.
        condition: what has to hold for it.
        what: what is waited for, for the text of a failure.
        timeout_s: when to give up.
        more: gives what else is of interest then, as the output of a node.

    Raises:
        AssertionError: it did not hold in time; the text has what was read last.
    """
    deadline, interval_s = time.monotonic() + timeout_s, _LOOK_INTERVAL_S
    began = time.monotonic()
    while not condition(seen := read()):
        ended = time.monotonic()
        assert ended < deadline, f"{what} did not happen within {timeout_s:g} s: {seen!r}\n{more()}".rstrip()
        time.sleep(max(interval_s, min(_REST * (ended - began), _REST_MAX_S)))
        interval_s = min(interval_s * 1.5, _LOOK_INTERVAL_MAX_S)
        began = time.monotonic()
    return seen


def wait_until(condition: Callable[[], Any], what: str = "it", timeout_s: float = TIMEOUT_S) -> Any:
    """Look until a condition holds, and give what it gave.

    Raises:
        AssertionError: it did not in time; the text has what it gave last.
    """
    return wait_for(condition, bool, what, timeout_s)


def expect_value(read: Callable[[], object], value: object, what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Look until something is what it should be: what is counted behind an action is often seen a little later.

    Raises:
        AssertionError: it was not in time; the text has what it was last.
    """
    wait_for(read, lambda seen: seen == value, f"{what}: {value!r}", timeout_s)


async def until(condition: Callable[[], object], what: str = "it", timeout_s: float = TIMEOUT_S) -> None:
    """Look until a condition holds, while the loop runs.

    Raises:
        AssertionError: it did not in time; the text has what it gave last.
    """
    deadline = time.monotonic() + timeout_s
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s: {seen!r}"
        await asyncio.sleep(_LOOK_INTERVAL_S)
