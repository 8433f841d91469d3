"""The loop of every command that receives: up to a number of messages, or until none come.

It owns no connection and prints nothing; `angarium sub` and `angarium reply` give it a subscription, `angarium
consume` a flow.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from angarium import errors
from angarium_server.visible import visible
from cluster.commands.terminal.hints import quiet_option
from cluster.commands.terminal.options import ABOVE_0, AT_LEAST_1, options
from cluster.commands.terminal.output import write_ready_file
from cluster.commands.terminal.table import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from angarium.client.client import Client

#: A ready file is there for so long at least: scripts look ten times a second or so.
READY_SEEN_S: Final = 1.0
#: A batch of a subscription or of a flow; both can be cut.
_Batch = TypeVar("_Batch", bound="Sequence[Any]")


def receiving_options(noun: str, *, ready_when: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--count`, `--idle-timeout`, `--ready-file` and `-q` to a command that waits for what `noun` says."""
    return options(
        click.option("-n", "--count", type=AT_LEAST_1, help=f"End after N {noun}s."),
        click.option(
            "--idle-timeout",
            type=ABOVE_0,
            help=f"End after so many seconds without a {noun}, counted from ready and from each {noun}.",
        ),
        click.option(
            "--ready-file",
            type=click.Path(dir_okay=False),
            help=f"File to write when {ready_when}; it goes at the end.",
        ),
        quiet_option,
    )


@dataclasses.dataclass(slots=True)
class Received:
    """What came, and why it ended."""

    messages: int = 0
    #: By the node, on the way here.
    discarded: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    def conclude(self, verb: str, wanted: int | None, *, quiet: bool) -> None:
        """Say on stderr what came, if somebody looks.

        Raises:
            click.Abort: a signal ended it before as many had come as were wanted.
            AngariumError: fewer came than were wanted (TIMEOUT).
        """
        if (self.interrupted or sys.stderr.isatty()) and not quiet:
            click.echo(f"{verb} {counted(self.messages, 'message')} in {self.seconds:.3f} s", err=True)
        if wanted is not None and self.messages < wanted:
            if self.interrupted:
                raise click.Abort
            raise errors.error_for(errors.TIMEOUT, f"{self.messages} of {wanted} messages came")


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


@contextlib.contextmanager
def ready_file(path: str | None) -> Iterator[None]:
    """Have a ready file, if one is asked for, stand for this run alone: none of an earlier run, and none after it.

    A script that runs twice must not take the file of the first run for that of the second, so it goes at the end. A
    command that ends before a script can look leaves it for a moment.
    """
    if path is None:
        yield
        return
    file = Path(path)
    file.unlink(missing_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            time.sleep(max(0.0, min(READY_SEEN_S, file.stat().st_mtime + READY_SEEN_S - time.time())))
            file.unlink()


def announce(
    client: Client, filters: Sequence[str], ready_file: str | None, doing: str, *, quiet: bool
) -> None:
    """Say that the subscriptions of a command hold: in its ready file if it has one, and on stderr.

    `doing` is what it does now: "subscribed to orders/>".
    """
    if not quiet:
        click.echo(f"{visible(doing)} at {client.url}, Ctrl-C ends", err=True)
    if ready_file is not None:
        ready = {"client_name": client.name, "url": client.url, "pid": os.getpid(), "filters": list(filters)}
        write_ready_file(ready_file, ready)
