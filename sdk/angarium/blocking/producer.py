"""Producers for threads: the same names as `angarium.client.publishing.producer`, no `await`.

Every call runs in the client's thread and is waited for, so a thread that publishes many messages uses
`publish_many`, which crosses once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import tracing
from angarium.blocking.portal import Closing, Facade, Mirrored, opens, waits
from angarium.blocking.portions import portions
from angarium.client.publishing import producer as asynchronous
from angarium.client.publishing import receipts
from angarium.errors import AngariumError
from angarium.message import DeliveryMode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium.slots import Publishable

#: Messages that cross to the client's thread together.
PORTION_MESSAGES: Final = 2_000


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
        if tracing.active is None:
            return self._publish_many(messages)
        connection, persistent = self._inner._connection, DeliveryMode.PERSISTENT
        with tracing.sending_many(tracing.active, messages, connection, persistent) as traced:
            return self._publish_many(traced)

    def _publish_many(self, messages: Iterable[Publishable]) -> receipts.PublishReport:
        inner: asynchronous.Producer = self._inner
        tally = inner._tally()
        fault: Exception | None = None
        try:
            for portion in portions(iter(messages), PORTION_MESSAGES):
                self._portal.call(inner._feed(iter(portion), tally))
        except Exception as error:  # noqa: BLE001 - whatever it is, what was given before is waited for
            fault = error
        except BaseException:
            self._portal.post(tally.forsake, inner._refusals)
            raise
        return self._portal.call(inner._conclude(tally, fault))


class Stage(Producer):
    """Publishes what waits for a commit; `Client.stage` opens it.

    It is a context manager, which waits at its end until everything is stored.
    """

    id = Mirrored[str]()
    """What `commit_stages` and `abort_stages` name it by."""
