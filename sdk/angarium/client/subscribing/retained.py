"""Reading what the node retains, page by page; and subscriptions that begin with it.

A subscription that begins with what is retained keeps back what comes live until it has read that
(`Mailbox.push_retained`). So what it gives of a topic is in order, and nothing comes twice: what came live is left out
here, and what is on its way is left out by the node. After a lost connection it reads again, because messages may have
been missed.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING, Final

from angarium import wire
from angarium.client.connection.operations import STARTING, Opener
from angarium.client.protocol import provisioning
from angarium.message import unpack_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from angarium import errors
    from angarium.client.connection.operations import Operations
    from angarium.client.subscribing.mailbox import Mailbox
    from angarium.message import Row

#: Subscriptions that read at the same time; the others wait for their turn.
READERS_MAX: Final = 16


async def read_pages(
    operations: Operations, filter_text: str, timeout_s: float, live: int = 0
) -> AsyncIterator[tuple[list[Row], int]]:
    """Give the rows of each page, by rising topics, and their bytes.

    `live` numbers a reading that a subscription goes on from; it has to be done on one connection.

    Raises:
        AngariumError: the node refuses, or does not answer in time.
    """
    after: str | None = ""
    upto = 0
    while after is not None:
        # What replaces a message meanwhile comes live to who has subscribed, and else in no other way.
        since = upto if live else 0
        ask = partial(operations.ask, provisioning.read_retained(filter_text, after, since, live))
        (upto, after), (batch,) = await (ask() if live else operations.insist(ask, timeout_s))
        rows = [(*row[:2], row[2] | wire.FLAG_RETAINED, *row[3:]) for row in unpack_rows(batch)]
        yield rows, len(batch)


class RetainedReaders:
    """Reads for the subscriptions of a client."""

    def __init__(
        self, operations: Operations, on_failed: Callable[[Mailbox, errors.AngariumError], None]
    ) -> None:
        """Read nothing yet; `on_failed` takes a subscription that does not get what is retained, and why."""
        self._operations = operations
        self._on_failed = on_failed
        self._turns = asyncio.Semaphore(READERS_MAX)
        self._numbers = itertools.count(1)
        #: Subscription -> what reads for it, until it ends.
        self._openers: dict[Mailbox, Opener] = {}

    def start(self, mailbox: Mailbox) -> None:
        """Read for a subscription that is in force; what was read for it on another connection is over."""
        self.stop(mailbox)
        attempt = partial(self._read, mailbox, set())
        opener = Opener(self._operations, attempt, STARTING.__contains__, partial(self._on_failed, mailbox))
        self._openers[mailbox] = opener
        opener.start()

    def has_begun(self, mailbox: Mailbox) -> bool:
        """Tell whether it reads for a subscription, or has: one that waited for a connection began with that."""
        return mailbox in self._openers

    def stop(self, mailbox: Mailbox) -> None:
        """Read no more for a subscription."""
        opener = self._openers.pop(mailbox, None)
        if opener is not None:
            opener.stop()

    async def _read(self, mailbox: Mailbox, given: set[str]) -> None:
        """Read until all is there; it is tried again from the beginning while a process is replaced."""
        async with self._turns:
            await self._read_all(mailbox, given)
        mailbox.let_go()
        mailbox.wake()

    async def _read_all(self, mailbox: Mailbox, given: set[str]) -> None:
        """Read for each filter; `given` has the topics that the subscription has got, which come once."""
        for text in dict.fromkeys(mailbox.texts):
            async for rows, size_bytes in read_pages(self._operations, text, 0, next(self._numbers)):
                new = [row for row in rows if row[1] not in given]
                given.update(row[1] for row in new)
                mailbox.push_retained(new, size_bytes)
                mailbox.wake()
