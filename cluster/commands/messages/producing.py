"""How `angarium pub` publishes guaranteed messages: a producer, acknowledgements, and patience.

One producer sends everything in the order of the lines; line k has the sequence that the node knew last, plus
k + 1. Acknowledged lines are written to a file as they are acknowledged. A node that goes away is waited for, as
long as something is acknowledged now and then: what is on its way is sent again with the same sequences, so
every line is stored once. Where messages come from, and the command itself, is in `messages`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from angarium_server.visible import visible
from cluster.commands.messages.notices import Notices
from cluster.commands.messages.sink import write_all
from cluster.commands.terminal.interrupt import until_signal
from cluster.commands.terminal.output import progress
from cluster.commands.terminal.table import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from angarium import Acknowledgement, Producer
    from angarium.errors import AngariumError
    from angarium.slots import Publishable
    from cluster.commands.connecting.connection import ConnectOptions
    from cluster.commands.terminal.output import Progress

#: How often it is looked whether something was acknowledged; patience is counted in seconds.
LOOK_INTERVAL_S: Final = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Production:
    """How guaranteed messages are published."""

    #: Name of the producer; empty for one that the node makes up.
    producer: str
    #: How long to go on while nothing is acknowledged; None for the timeout of the command.
    retry_for_s: float | None
    #: Gets one line number per acknowledged line; None for no file.
    acked_file: str | None


class Acknowledgements:
    """What the node said of the lines; an `on_ack` of a producer."""

    def __init__(self, path: str | None) -> None:
        """Write acknowledged line numbers to a file, if one is named.

        Raises:
            OSError: it cannot be written.
        """
        self._descriptor = (
            None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        )
        #: The sequence before that of line 0.
        self._base = 0
        #: Everything up to this sequence was counted.
        self._upto = 0
        #: Refused sequences above it.
        self._refused: set[int] = set()
        self.acknowledged = 0
        #: Those of them that no queue or topic endpoint took.
        self.unroutable = 0
        self.nacked = 0
        #: Why the first ones were refused.
        self._refusal: AngariumError | None = None
        #: When the node said something last.
        self.heard_at = time.monotonic()

    def begin(self, last_sequence: int) -> None:
        """Count lines from the sequence after this one."""
        self._base = self._upto = last_sequence

    def __call__(self, acknowledgement: Acknowledgement) -> None:
        """Take an acknowledgement."""
        self.heard_at = time.monotonic()
        for sequence, error in acknowledgement.refused:
            self._refused.add(sequence)
            self.nacked += 1
            self._refusal = self._refusal or error
        settled = range(self._upto + 1, acknowledgement.upto + 1)
        stored = [sequence - self._base - 1 for sequence in settled if sequence not in self._refused]
        self._refused = {sequence for sequence in self._refused if sequence > acknowledgement.upto}
        self._upto = max(self._upto, acknowledgement.upto)
        self.acknowledged += len(stored)
        self.unroutable += sum(map(len, acknowledgement.unroutable))
        if self._descriptor is not None and stored:
            write_all(self._descriptor, b"".join(b"%d\n" % line for line in stored))

    def refusal(self) -> AngariumError | None:
        """Give the error of the first refusal with the number of all, or None."""
        if self._refusal is None:
            return None
        detail = f"{self._refusal.detail}; {counted(self.nacked, 'message')} refused".removeprefix("; ")
        return errors.error_for(self._refusal.code, detail)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)


@dataclasses.dataclass(slots=True)
class Produced:
    """What became of it."""

    published: int = 0
    acknowledged: int = 0
    #: Acknowledged messages that no queue or topic endpoint took.
    unroutable: int = 0
    nacked: int = 0
    seconds: float = 0.0


async def produce(
    connect: ConnectOptions,
    production: Production,
    next_batch: Callable[[int], Awaitable[list[Publishable]]],
    total: int | None,
) -> tuple[Produced, Exception | None]:
    """Publish everything; give the figures, and what went wrong if something did.

    Args:
        connect: how to reach the node.
        production: how to publish.
        next_batch: gives the next messages, none at the end; it is told how many were published.
        total: how many there will be, if that is known.
    """
    acks = Acknowledgements(production.acked_file)
    produced = Produced()
    started = time.monotonic()
    failure: Exception | None = None
    try:
        async with await connect.connect(on_event=Notices(), retry_for_s=production.retry_for_s) as client:
            limit_s = production.retry_for_s or connect.timeout_s
            producer = await client.producer(production.producer, on_ack=acks, timeout_s=limit_s)
            acks.begin(producer.last_sequence)
            started = time.monotonic()
            with progress("publishing", total) as show:
                work = _send_all(producer, next_batch, produced)
                if not await until_signal(_with_patience(work, producer, acks, limit_s, show)):
                    failure = click.Abort()
                    await _settle(producer, connect.timeout_s)
    except errors.AngariumError as error:
        failure = error
    finally:
        acks.close()
    produced.seconds = round(time.monotonic() - started, 6)
    produced.acknowledged, produced.nacked = acks.acknowledged, acks.nacked
    produced.unroutable = acks.unroutable
    return produced, failure or acks.refusal()


async def _send_all(
    producer: Producer,
    next_batch: Callable[[int], Awaitable[list[Publishable]]],
    produced: Produced,
) -> None:
    while messages := await next_batch(produced.published):
        for message in messages:
            if isinstance(message, tuple):
                await producer.send(*message)
            else:
                await producer.send_message(message)
            produced.published += 1
    await producer.flush()


async def _with_patience(
    work: Any, producer: Producer, acks: Acknowledgements, limit_s: float, show: Progress
) -> None:
    """Do the work as long as the node acknowledges something now and then.

    Raises:
        TimeoutExpiredError: messages wait, and nothing was acknowledged for so long (TIMEOUT).
    """
    task = asyncio.ensure_future(work)
    waiting_since = time.monotonic()
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=LOOK_INTERVAL_S)
            show(acks.acknowledged)
            now = time.monotonic()
            if not producer.unacknowledged:
                waiting_since = now
            if now - max(waiting_since, acks.heard_at) > limit_s:
                detail = (
                    f"{producer.unacknowledged} messages wait, and nothing was acknowledged for {limit_s:g} s"
                )
                raise errors.error_for(errors.TIMEOUT, detail)
        task.result()
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _settle(producer: Producer, timeout_s: float) -> None:
    """Wait a while for what was sent before an interruption."""
    try:
        await producer.flush(timeout_s)
    except errors.AngariumError as error:
        click.echo(visible(str(error)), err=True)
