"""Callbacks of applications: which are awaited, and how many at once."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Callable

#: Calls of one callback at the same time: each is a task or a thread that waits for messages.
CONCURRENCY_MAX: Final = 1_000


def is_async(callback: object) -> bool:
    """Tell whether what a callback gives is to be awaited."""
    if inspect.isfunction(callback):  # most are
        return inspect.iscoroutinefunction(callback)
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
        getattr(callback, "__call__", None)  # noqa: B004 - asks what kind of callable it is, not whether it is one
    )


def check_range(concurrency: int, callback: object) -> None:
    """Check how many calls may run at once.

    Raises:
        InvalidRequestError: it is out of range, or there is no callback (INVALID_ARGUMENT).
    """
    if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise errors.invalid(f"concurrency is {concurrency!r}, from 1 to {CONCURRENCY_MAX} is possible")
    if concurrency > 1 and callback is None:
        raise errors.invalid("concurrency is for callbacks; give one")


def check_threads(callback: Callable[..., Any] | None, concurrency: int) -> None:
    """Check a callback that threads call, and how many of them.

    Raises:
        InvalidRequestError: as for `check_range`; or it is an `async def`, which no thread awaits: its message would
            count as processed.
    """
    check_range(concurrency, callback)
    if callback is not None and is_async(callback):
        detail = (
            "the callback is an 'async def', which angarium.blocking does not await: use angarium.connect"
        )
        raise errors.invalid(detail)


def check_concurrency(callback: Callable[..., Any] | None, concurrency: int) -> None:
    """Check it for a callback that the event loop calls.

    Raises:
        InvalidRequestError: as for `check_range`; or the callback is no `async def`, of which several could run.
    """
    check_range(concurrency, callback)
    if concurrency > 1 and not is_async(callback):
        detail = f"concurrency is {concurrency}, but the callback is no 'async def': its calls cannot overlap"
        raise errors.invalid(detail)
