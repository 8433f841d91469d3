"""The loop of every command that receives: up to a number of messages, or until none come.

It owns no connection and prints nothing; `angarium sub` and `angarium reply` give it a subscription, `angarium
consume` a flow.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.commands.output import write_ready_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from angarium.client.client import Client

#: A batch of a subscription or of a flow; both can be cut.
_Batch = TypeVar("_Batch", bound="Sequence[Any]")


async def receive(
    batches: AsyncIterator[_Batch],
    *,
    count: int | None,
    idle_timeout_s: float | None,
    on_idle: Callable[[], Awaitable[None]],
) -> AsyncIterator[_Batch]:
    """Give batches, together at most `count` messages, until none comes for `idle_timeout_s`.

    The time without messages counts from now and from each message. `on_idle` is awaited whenever nothing is
    there.
    """
    left = count
    while left is None or left > 0:
        coming = asyncio.ensure_future(anext(batches))
        try:
            await asyncio.sleep(0)
            if not coming.done():
                await on_idle()
            await asyncio.wait((coming,), timeout=idle_timeout_s)
            if not coming.done():
                return
            batch = coming.result()
        except StopAsyncIteration:
            return
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait((coming,))
        if left is not None:
            batch = batch[:left]  # type: ignore[assignment] # a batch that is cut is a batch
            left -= len(batch)
        yield batch


def withdraw(ready_file: str | None) -> None:
    """Remove a ready file that an earlier run left, before it can be taken for ours."""
    if ready_file is not None:
        Path(ready_file).unlink(missing_ok=True)


def announce(client: Client, filters: Sequence[str], ready_file: str | None) -> None:
    """Write the ready file of a command that receives, if one is asked for: its subscriptions hold."""
    if ready_file is not None:
        ready = {"client_name": client.name, "url": client.url, "pid": os.getpid(), "filters": list(filters)}
        write_ready_file(ready_file, ready)
