"""Producers for threads: the same names as `angarium.client.publishing.producer`, no `await`.

Every call runs in the client's thread and is waited for, so a thread that publishes many messages uses
`publish_many`, which crosses once. `angarium.blocking` makes these producers.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, Unpack

from angarium.client.publishing.receipts import PublishReport

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from types import TracebackType

    from angarium.client.publishing import producer as asynchronous
    from angarium.client.publishing import receipts
    from angarium.client.publishing import stage as asynchronous_stage
    from angarium.errors import AngariumError
    from angarium.message import MessageOptions
    from angarium.slots import Publishable

_T = TypeVar("_T")

#: Messages that cross to the client's thread together; or so many windows, if that is more: who crosses waits until
#: what crossed is settled, and meanwhile the window runs dry.
PORTION_MESSAGES: Final = 2_000
PORTION_WINDOWS: Final = 4


class Owner(Protocol):
    """What a producer needs of its client."""

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the client's thread and wait for it."""


class Receipt:
    """What became of one message: `wait` for its sequence, or for the error that refused it."""

    __slots__ = ("_client", "_inner")

    def __init__(self, client: Owner, inner: receipts.Receipt) -> None:
        """Belong to a client; only `Producer.send` makes receipts."""
        self._client = client
        self._inner = inner

    @property
    def sequence(self) -> int:
        """The message's number among those of its producer."""
        return self._inner.sequence

    @property
    def done(self) -> bool:
        """Whether it is known what became of it."""
        return self._inner.done

    @property
    def error(self) -> AngariumError | None:
        """Why the message was refused, or what hides its fate; None if it is stored, or not known yet."""
        return self._inner.error

    @property
    def unroutable(self) -> bool:
        """Whether it was acknowledged and no queue or topic endpoint took it: nobody can consume it."""
        return self._inner.unroutable

    def wait(self) -> int:
        """Wait until it is known what became of the message; give its sequence.

        Raises:
            AngariumError: why it was refused, or what hides its fate.
        """
        return self._client._call(_result(self._inner))

    def __repr__(self) -> str:
        return repr(self._inner)


class Producer:
    """Publishes guaranteed messages under one name; `Client.producer` opens it.

    It is a context manager, which waits at its end until everything is settled.
    """

    def __init__(self, client: Owner, inner: asynchronous.Producer) -> None:
        """Belong to a client; only `Client.producer` makes producers."""
        self._client = client
        self._inner = inner

    @property
    def name(self) -> str:
        """The name, the application's own or the one that the node made up."""
        return self._inner.name

    @property
    def window(self) -> int:
        """Messages that may be unsettled at a time."""
        return self._inner.window

    @property
    def last_sequence(self) -> int:
        """The newest sequence: of the last message given here, or what the node knew when it was opened."""
        return self._inner.last_sequence

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is unacknowledged is of this moment."""
        return self._inner.stats

    @property
    def unacknowledged(self) -> int:
        """Messages that are not settled."""
        return self._inner.unacknowledged

    @property
    def closed(self) -> bool:
        """Whether the producer is over."""
        return self._inner.closed

    def send(
        self,
        topic: str = "",
        payload: bytes | bytearray | memoryview = b"",
        *,
        sequence: int | None = None,
        queue: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        """Publish a message; give the receipt. Waits only for room in the window.

        Raises:
            AngariumError: as for `angarium.client.publishing.producer.Producer.send`.
        """
        inner = self._client._call(
            self._inner.send(topic, payload, sequence=sequence, queue=queue, **options)
        )
        return Receipt(self._client, inner)

    def publish(
        self,
        topic: str = "",
        payload: bytes | bytearray | memoryview = b"",
        *,
        sequence: int | None = None,
        queue: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> int:
        """Publish a message, wait until it is stored, give its sequence.

        Raises:
            AngariumError: as for `angarium.client.publishing.producer.Producer.publish`.
        """
        return self._client._call(
            self._inner.publish(topic, payload, sequence=sequence, queue=queue, **options)
        )

    def publish_many(self, messages: Iterable[Publishable]) -> PublishReport:
        """Publish messages, or pairs of topic and payload (persistent), and wait until all are settled.

        The messages are taken from the iterable in the calling thread.

        Raises:
            AngariumError: as for `angarium.client.publishing.producer.Producer.publish_many`.
        """
        iterator = iter(messages)
        portion = max(PORTION_MESSAGES, PORTION_WINDOWS * self._inner.window)
        acknowledged = given = unroutable = 0
        refused: list[tuple[int, AngariumError]] = []
        while some := list(islice(iterator, portion)):
            report = self._client._call(self._inner.publish_many(some))
            acknowledged += report.acknowledged
            unroutable += report.unroutable
            refused += [(given + place, error) for place, error in report.refused]
            given += len(some)
        return PublishReport(acknowledged, refused, unroutable)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was given so far is settled, or for so long.

        Raises:
            AngariumError: as for `angarium.client.publishing.producer.Producer.flush`.
        """
        self._client._call(self._inner.flush(timeout_s))

    def close(self, *, forget: bool = False, timeout_s: float | None = None) -> None:
        """Wait until everything is settled, and end the producer; with `forget` the node forgets its name."""
        self._client._call(self._inner.close(forget=forget, timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)


class Stage(Producer):
    """Publishes what waits for a commit; `Client.stage` opens it.

    It is a context manager, which waits at its end until everything is stored.
    """

    _inner: asynchronous_stage.Stage

    @property
    def id(self) -> str:
        """What `commit_stages` and `abort_stages` name it by."""
        return self._inner.id


async def _result(receipt: receipts.Receipt) -> int:
    return await receipt
