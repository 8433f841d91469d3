"""Where the client tells a tracer of what it publishes, hands out and settles; by default there is none.

`angarium.opentelemetry` sets `active`. Each call of an application looks at it once, and those that hand out many
messages once for all that came together, so nothing is slower as long as it is None.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from angarium.message import Message, Mode, Row
    from angarium.slots import Publishable


class Peer(Protocol):
    """What a client is connected through."""

    #: The client's name.
    client_name: str
    #: The address of its node.
    url: str


class Place(NamedTuple):
    """Where a client publishes or consumes."""

    #: The queue or topic endpoint, or the filter of a subscription; empty: it is the topic of the message alone.
    name: str
    is_endpoint: bool
    #: As of `Peer`.
    client: str
    url: str


class Sent(NamedTuple):
    """A message on its way."""

    #: To be published instead of what was given.
    row: Row
    #: To be called once, with what went wrong, or None.
    end: Callable[[BaseException | None], None]


class SentMany(NamedTuple):
    """Messages on their way."""

    messages: Iterator[Publishable]
    end: Callable[[BaseException | None], None]


class Tracer(Protocol):
    """Is told of messages; it raises nothing."""

    @property
    def is_on(self) -> bool:
        """Whether anything becomes of what it is told: who has more to do for it asks before."""

    def send(self, row: Row, place: Place, /) -> Sent:
        """Take note that a message is published."""

    def send_many(self, messages: Iterable[Publishable], place: Place, mode: Mode, /) -> SentMany:
        """Take note that messages are published; those that say no mode have this one."""

    def receive(self, messages: Sequence[Message], place: Place, started_ns: int = 0, /) -> None:
        """Take note that messages are handed out; `started_ns` is when they were asked for, in ns since 1970."""

    def process(self, message: Message, place: Place, /) -> AbstractContextManager[None]:
        """Take note that a callback is called; it runs within this."""

    def settle(self, rows: Sequence[Row], partition: int, outcome: int, place: Place, /) -> None:
        """Take note of the outcome of messages."""


#: Is told of messages, if there is one.
active: Tracer | None = None


def place_of(connection: Peer | None, name: str = "", *, is_endpoint: bool = False) -> Place:
    """Give where something happens."""
    if connection is None:
        return Place(name, is_endpoint, "", "")
    return Place(name, is_endpoint, connection.client_name, connection.url)


@contextmanager
def sending(tracer: Tracer, row: Row, connection: Peer) -> Iterator[Row]:
    """Have the block publish the message that this gives."""
    sent = tracer.send(row, place_of(connection))
    try:
        yield sent.row
    except BaseException as error:
        sent.end(error)
        raise
    sent.end(None)


@contextmanager
def sending_many(
    tracer: Tracer, messages: Iterable[Publishable], connection: Peer, mode: Mode
) -> Iterator[Iterator[Publishable]]:
    """Have the block publish the messages that this gives."""
    sent = tracer.send_many(messages, place_of(connection), mode)
    try:
        yield sent.messages
    except BaseException as error:
        sent.end(error)
        raise
    sent.end(None)
