"""What a task of a Spark write publishes with: one client, connected when there is a first row.

A *delivery* is how rows are given to the node:

    direct           direct messages: to connected subscribers, at most once
    at-least-once    guaranteed messages, out as they are written; a task that runs again publishes again
    exactly-once     guaranteed messages in a stage, which belong to nobody until the driver commits it

Each takes the rows of one record batch after the other and raises for the first that the node refuses, naming it.
`finish` returns when all rows are where they must be. Nothing is kept between tasks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from angarium import errors
from angarium.message import Message
from angarium.spark.connecting import blaming, open_client
from angarium.spark.rows import check_sizes, row_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from angarium import blocking
    from angarium.blocking.producer import Stage
    from angarium.client.connection.connection import ClientEvent
    from angarium.client.publishing.receipts import PublishReport
    from angarium.message import Row
    from angarium.spark.options import Settings
    from angarium.spark.rows import Place

DIRECT: Final = "direct"
AT_LEAST_ONCE: Final = "at-least-once"
#: How long a task that failed waits for what it has under way; Spark waits for the task meanwhile.
ABANDON_TIMEOUT_S: Final = 2.0


class Publisher(Protocol):
    """What a producer and a stage have in common."""

    def publish_many(self, messages: Iterable[Message]) -> PublishReport:
        """Publish messages and wait until all are settled."""

    def close(self, *, timeout_s: float | None = None) -> None:
        """Wait until everything is settled, and end."""


class Delivery(Protocol):
    """How rows are given to the node."""

    def send(self, rows: Sequence[Row], place: Place) -> None:
        """Publish the rows of a record batch."""

    def finish(self, place: Place) -> None:
        """Wait until all rows are where they must be."""


class _RowMessage(Message):
    """A row as a message that was made before."""

    __slots__ = ()

    def __init__(self, row: Row) -> None:
        self._row = row
        self._fields = None


class DirectDelivery:
    """Publishes direct messages."""

    def __init__(self, client: blocking.Client, notices: list[ClientEvent]) -> None:
        """Publish with a client; `notices` gets what the node refuses."""
        self._client = client
        self._notices = notices

    def send(self, rows: Sequence[Row], place: Place) -> None:
        """Publish the rows of a record batch.

        Raises:
            AngariumError: a row is refused, or the connection is lost for good.
        """
        check_sizes(rows, self._client.max_message_bytes, place)
        self._client.publish_many(map(_RowMessage, rows))
        self._raise_notice(place)

    def finish(self, place: Place) -> None:
        """Wait until the node has matched everything.

        Raises:
            AngariumError: a row was refused, or messages were in flight when the connection was lost.
        """
        self._client.flush()
        self._raise_notice(place)

    def _raise_notice(self, place: Place) -> None:
        if self._notices:
            notice = self._notices[0]
            refused = sum(one.messages for one in self._notices)
            detail = f"{refused} rows of task {place.task}: {notice.detail}"
            raise errors.error_for(notice.code, detail)


class GuaranteedDelivery:
    """Publishes guaranteed messages, with a producer or into a stage."""

    def __init__(self, publisher: Publisher, message_bytes_max: int) -> None:
        self._publisher = publisher
        self._message_bytes_max = message_bytes_max

    def send(self, rows: Sequence[Row], place: Place) -> None:
        """Publish the rows of a record batch, and wait until they are settled.

        Raises:
            AngariumError: why the first row was refused, naming it; or what ended the publisher.
        """
        check_sizes(rows, self._message_bytes_max, place)
        refused = self._publisher.publish_many(map(_RowMessage, rows)).refused
        if refused:
            raise _refusal(refused, rows, place)

    def finish(self, place: Place) -> None:  # noqa: ARG002 - what was sent is settled; the signature of deliveries
        """End the publisher."""
        self._publisher.close()


class Opened(NamedTuple):
    """A delivery, and the client that is closed after it."""

    delivery: Delivery
    client: blocking.Client
    #: What rows are in until the driver commits it; None if they are out as soon as they are sent.
    stage: Stage | None = None

    def abandon(self) -> None:
        """Drop the stage of a task that failed; if that is not possible now, it ages out."""
        if self.stage is not None:
            with contextlib.suppress(errors.AngariumError):
                self.stage.close(timeout_s=ABANDON_TIMEOUT_S)
            with contextlib.suppress(errors.AngariumError):
                self.client.abort_stages([self.stage.id])


def open_delivery(settings: Settings) -> Opened:
    """Connect, and open the delivery that the options name.

    Raises:
        AngariumError: the node refuses, or nobody answers.
    """
    notices: list[ClientEvent] = []
    client = open_client(settings, lambda event: notices.append(event) if event.kind == "notice" else None)
    try:
        if settings["delivery"] == DIRECT:
            return Opened(DirectDelivery(client, notices), client)
        with blaming(settings):
            if settings["delivery"] == AT_LEAST_ONCE:
                return Opened(GuaranteedDelivery(client.producer(), client.max_message_bytes), client)
            stage = client.stage()
            return Opened(GuaranteedDelivery(stage, client.max_message_bytes), client, stage)
    except BaseException:
        client.close()
        raise


def _refusal(
    refused: list[tuple[int, errors.AngariumError]], rows: Sequence[Row], place: Place
) -> errors.AngariumError:
    """Give the error of the first row that was refused, with how many were."""
    at, error = refused[0]
    more = f"; {len(refused)} rows of the batch were refused" if len(refused) > 1 else ""
    detail = f"{row_name(place, at, rows[at][1])}: {error.detail or error.text}{more}"
    return errors.error_for(error.code, detail)
