"""What becomes of guaranteed messages, as the application sees it.

A `Receipt` is one message's, a `Tally` is that of a whole `publish_many`. Both are cheap: nothing is made for
the event loop unless somebody waits. A refusal that nobody looked at is kept in `Refusals`, so that `flush` can
tell: a message must not vanish because a receipt was thrown away.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium.client.protocol.answers import STAGE_WINDOW_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

#: Refusals that are kept until somebody looks; of more only the number is known.
UNSEEN_MAX: Final = 1_000
#: Refusals may come before the acknowledgement of older messages, but not by more than a window.
SETTLED_AHEAD_MAX: Final = STAGE_WINDOW_MAX


class PublishReport(NamedTuple):
    """What became of the messages of one `publish_many`."""

    #: Messages that are stored, or that no endpoint wanted.
    acknowledged: int
    #: Messages that went to no endpoint: the place in what was given, from 0, and why.
    refused: list[tuple[int, errors.AngariumError]]
    #: Acknowledged messages that no queue or topic endpoint took: nobody can consume them.
    unroutable: int = 0


class Acknowledgement(NamedTuple):
    """What `on_ack` gets: how far a producer's messages are settled."""

    #: Every message with this sequence or a lower one is settled.
    upto: int
    #: Sequences that were refused, each told once. All others up to `upto` are stored.
    refused: list[tuple[int, errors.AngariumError]]
    #: Sequences up to `upto` that no queue or topic endpoint took: nobody can consume them.
    unroutable: list[range]


class Refusals:
    """Refusals that the application has not seen."""

    def __init__(self) -> None:
        #: Sequence -> why; at most UNSEEN_MAX.
        self._known: dict[int, errors.AngariumError] = {}
        #: How many there are, also those that are not kept.
        self.count = 0
        #: Whether the application sees them as they come; then none are kept.
        self.are_seen = False

    def add(self, sequence: int, error: errors.AngariumError) -> None:
        """Keep a refusal."""
        if self.are_seen:
            return
        self.count += 1
        if len(self._known) < UNSEEN_MAX:
            self._known[sequence] = error

    def see(self, sequence: int) -> None:
        """Forget one that is being looked at."""
        if self._known.pop(sequence, None) is not None:
            self.count -= 1

    def take(self) -> errors.AngariumError | None:
        """Give the first one, with the number of all, and forget them."""
        known, self._known = self._known, {}
        count, self.count = self.count, 0
        if not count:
            return None
        sequence, error = next(iter(known.items()), (0, errors.error_for(errors.INTERNAL)))
        detail = f"sequence {sequence}: {error.detail}" if error.detail else f"sequence {sequence}"
        more = f"; {count} messages were refused" if count > 1 else ""
        return errors.error_for(error.code, detail + more)

    def validate(self) -> None:
        """Check the sentences above."""
        assert len(self._known) <= min(self.count, UNSEEN_MAX)


class Receipt:
    """What became of one message: await it for its sequence, or for the error that refused it."""

    __slots__ = ("_error", "_on_done", "_refusals", "_waiters", "done", "sequence", "unroutable")

    def __init__(self, refusals: Refusals) -> None:
        """Know nothing yet; only `Producer.send` makes receipts."""
        #: The message's number among those of its producer.
        self.sequence = 0
        #: Whether it is known what became of it.
        self.done = False
        #: Whether it was acknowledged and no queue or topic endpoint took it: nobody can consume it.
        self.unroutable = False
        self._refusals = refusals
        self._error: errors.AngariumError | None = None
        #: None unless somebody waits.
        self._waiters: list[asyncio.Future[None]] | None = None
        #: Is told once what became of it; None for nobody.
        self._on_done: Callable[[errors.AngariumError | None], None] | None = None

    def on_done(self, tell: Callable[[errors.AngariumError | None], None]) -> None:
        """Tell what went wrong, or None, as soon as it is known; that is no look at a refusal."""
        if self.done:
            tell(self._error)
        else:
            self._on_done = tell

    @property
    def error(self) -> errors.AngariumError | None:
        """Why the message was refused, or what hides its fate; None if it is stored, or not known yet."""
        if self._error is not None:
            self._refusals.see(self.sequence)
        return self._error

    def __await__(self) -> Generator[Any, None, int]:
        if not self.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            try:
                yield from waiter
            except BaseException:
                self._forsake(waiter)
                raise
        if (error := self.error) is not None:
            raise error
        return self.sequence

    def _forsake(self, waiter: asyncio.Future[None]) -> None:
        """Take note that somebody does not wait any more, perhaps in the moment in which the message was refused."""
        if self._waiters is not None:
            self._waiters.remove(waiter)
            self._waiters = self._waiters or None
        elif self._error is not None:
            self._refusals.add(self.sequence, self._error)

    def settle(self, messages: int) -> None:  # noqa: ARG002 - a receipt is of one message; the claim's signature
        """It is stored."""
        self._finish(None)

    def miss(self, messages: int) -> None:  # noqa: ARG002 - as above
        """It is acknowledged next, and no endpoint took it."""
        self.unroutable = True

    def refuse(self, sequence: int, error: errors.AngariumError) -> None:
        """It went to no endpoint."""
        if self._waiters is None:
            self._refusals.add(sequence, error)
        self._finish(error)

    def fail(self, messages: int, error: errors.AngariumError) -> None:  # noqa: ARG002 - as above
        """What became of it is unknown."""
        self._finish(error)

    def _finish(self, error: errors.AngariumError | None) -> None:
        self._error = error
        self.done = True
        if self._on_done is not None:
            self._on_done(error)
        waiters, self._waiters = self._waiters, None
        if waiters is not None:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def __repr__(self) -> str:
        stored = "unroutable" if self.unroutable else "stored"
        state = "pending" if not self.done else stored if self._error is None else repr(self._error)
        return f"<Receipt of sequence {self.sequence}, {state}>"


class Tally:
    """What became of the messages of one `publish_many`."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        """Count nothing; `done` is set when all messages are given and none is open."""
        self._done = done
        self._is_complete = False
        #: Messages that were given and whose fate is open.
        self.open = 0
        #: Messages whose fate nobody will know.
        self.lost = 0
        self._acknowledged = 0
        self._unroutable = 0
        #: Place, sequence and why.
        self._refused: list[tuple[int, int, errors.AngariumError]] = []
        #: Where refusals are told if nobody gets the report.
        self._refusals: Refusals | None = None
        #: First sequence, first place and number of messages that were given together; neighbours are joined,
        #: and what is settled for long is forgotten.
        self._spans: list[list[int]] = []
        self._given = 0

    def give(self, first: int, messages: int) -> None:
        """Take note that messages were given, in the order of their places."""
        last = self._spans[-1] if self._spans else None
        if last is not None and last[0] + last[2] == first:
            last[2] += messages
        else:
            closed = self._given - self.open
            while (
                len(self._spans) > 1 and self._spans[0][1] + self._spans[0][2] + SETTLED_AHEAD_MAX <= closed
            ):
                del self._spans[0]
            self._spans.append([first, self._given, messages])
        self._given += messages
        self.open += messages

    def settle(self, messages: int) -> None:
        """So many more are stored."""
        self._acknowledged += messages
        self._close(messages)

    def miss(self, messages: int) -> None:
        """So many of those that are settled next were taken by no endpoint."""
        self._unroutable += messages

    def refuse(self, sequence: int, error: errors.AngariumError) -> None:
        """One of them went to no endpoint."""
        place = next(
            place + sequence - first
            for first, place, messages in self._spans
            if first <= sequence < first + messages
        )
        self._refused.append((place, sequence, error))
        if self._refusals is not None:
            self._refusals.add(sequence, error)
        self._close(1)

    def fail(self, messages: int, error: errors.AngariumError) -> None:  # noqa: ARG002 - as for a receipt
        """What became of so many is unknown."""
        self.lost += messages
        self._close(messages)

    def _close(self, messages: int) -> None:
        self.open -= messages
        if not self.open and self._is_complete and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        """Wait until none is open; nothing is given any more."""
        self._is_complete = True
        if self.open:
            await self._done

    def report(self) -> PublishReport:
        """Give what is known."""
        refused = [(place, error) for place, _, error in sorted(self._refused, key=lambda one: one[0])]
        return PublishReport(self._acknowledged, refused, self._unroutable)

    def forsake(self, refusals: Refusals) -> None:
        """Nobody gets the report: what was refused, or will be, is told otherwise."""
        self._refusals = refusals
        for _, sequence, error in self._refused:
            refusals.add(sequence, error)

    def failure(self, error: errors.AngariumError) -> errors.AngariumError:
        """Give an error that says besides its own text how far it went."""
        detail = f"{self._acknowledged} of {self._given} messages are acknowledged"
        return errors.error_for(error.code, f"{detail}; {error.detail}" if error.detail else detail)

    def validate(self) -> None:
        """Check the sentences above."""
        assert self.open >= 0
        assert self._given >= sum(messages for _, _, messages in self._spans) >= self.open
