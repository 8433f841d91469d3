"""Producers for threads: the same names as `angarium.client.publishing.producer`, no `await`.

Every call runs in the client's thread and is waited for, so a thread that publishes many messages uses
`publish_many`, which crosses once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium.blocking.portal import Closing, Facade, Mirrored, opens, waits
from angarium.blocking.portions import portions
from angarium.client.publishing import producer as asynchronous
from angarium.client.publishing import receipts
from angarium.errors import AngariumError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium.slots import Publishable

#: Messages that cross to the client's thread together; or so many windows, if that is more: who crosses waits until
#: what crossed is settled, and meanwhile the window runs dry.
PORTION_MESSAGES: Final = 2_000
PORTION_WINDOWS: Final = 4


async def _result(receipt: receipts.Receipt) -> int:
    return await receipt


class Receipt(Facade):
    """What became of one message: `wait` for its sequence, or for the error that refused it."""

    __slots__ = ()

    sequence = Mirrored[int]()
    """The message's number among those of its producer."""
    done = Mirrored[bool]()
    """Whether it is known what became of it."""
    error = Mirrored[AngariumError | None]()
    """Why the message was refused, or what hides its fate; None if it is stored, or not known yet."""
    unroutable = Mirrored[bool]()
    """Whether it was acknowledged and no queue or topic endpoint took it: nobody can consume it."""

    def wait(self) -> int:
        """Wait until it is known what became of the message; give its sequence.

        Raises:
            AngariumError: why it was refused, or what hides its fate.
        """
        return self._portal.call(_result(self._inner))


class Producer(Facade, Closing):
    """Publishes guaranteed messages under one name; `Client.producer` opens it.

    It is a context manager, which waits at its end until everything is settled.
    """

    name = Mirrored[str]()
    """The name, the application's own or the one that the node made up."""
    window = Mirrored[int]()
    """Messages that may be unsettled at a time."""
    last_sequence = Mirrored[int]()
    """The newest sequence: of the last message given here, or what the node knew when it was opened."""
    stats = Mirrored[dict[str, int]]()
    """Counters since the start; what is unacknowledged is of this moment."""
    unacknowledged = Mirrored[int]()
    """Messages that are not settled."""
    closed = Mirrored[bool]()
    """Whether the producer is over."""

    send = opens(asynchronous.Producer.send, Receipt)
    """Publish a message; give the receipt. Waits only for room in the window."""
    publish = waits(asynchronous.Producer.publish)
    """Publish a message, wait until it is stored, give its sequence."""
    flush = waits(asynchronous.Producer.flush)
    """Wait until everything that was given so far is settled, or for so long."""
    close = waits(asynchronous.Producer.close)
    """Wait until everything is settled, and end the producer; with `forget` the node forgets its name."""

    def publish_many(self, messages: Iterable[Publishable]) -> receipts.PublishReport:
        """Publish messages, or pairs of topic and payload (persistent), and wait until all are settled.

        The messages are taken from the iterable in the calling thread. What it gave leaves when it gives the next one
        0.1 s later; if it raises, what it gave before is published, and settled.

        Raises:
            AngariumError: as for `angarium.client.publishing.producer.Producer.publish_many`.
        """
        inner: asynchronous.Producer = self._inner
        portion = max(PORTION_MESSAGES, PORTION_WINDOWS * inner.window)
        acknowledged = given = unroutable = 0
        refused: list[tuple[int, AngariumError]] = []
        for some in portions(iter(messages), portion):
            report = self._portal.call(inner.publish_many(some))
            acknowledged += report.acknowledged
            unroutable += report.unroutable
            refused += [(given + place, error) for place, error in report.refused]
            given += len(some)
        return receipts.PublishReport(acknowledged, refused, unroutable)


class Stage(Producer):
    """Publishes what waits for a commit; `Client.stage` opens it.

    It is a context manager, which waits at its end until everything is stored.
    """

    id = Mirrored[str]()
    """What `commit_stages` and `abort_stages` name it by."""
