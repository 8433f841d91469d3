"""What came through a flow and was not handed out, and the calls of its callback.

`FlowReader` hands out rows one by one or in batches, and gives credit back as they go. `Callbacks` calls the
application with each message. `angarium.client.consuming.flow` owns all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from angarium import errors, tracing
from angarium.client.connection.faults import FAULTS, raise_if_cancelled
from angarium.client.protocol.flow_window import FlowWindow, spool_size
from angarium.client.protocol.messages import GuaranteedBatch, GuaranteedDelivery, GuaranteedMessage
from angarium.client.subscribing.callbacks import is_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from angarium.client.consuming.flow_options import FlowOptions
    from angarium.client.protocol.messages import Range

#: Takes what was handed out of a window: messages and bytes.
Release: TypeAlias = Callable[[FlowWindow, int, int], None]

#: Calls of callbacks before the loop gets its turn.
CALLBACKS_PER_STEP: Final = 1_000
#: Credit is given back so often per window.
RELEASES_PER_WINDOW: Final = 4

_logger = logging.getLogger(__name__)


class Unread(NamedTuple):
    """The end of a delivery, from a row on: nobody has seen it."""

    delivery: GuaranteedDelivery
    start: int

    @property
    def messages(self) -> int:
        """How many there are."""
        return len(self.delivery.rows) - self.start

    @property
    def size_bytes(self) -> int:
        """What they take of the credit."""
        return spool_size(self.delivery.rows[self.start :])

    @property
    def ranges(self) -> Iterator[Range]:
        """Their positions."""
        return self.delivery.ranges(self.start, len(self.delivery.rows))


class FlowReader:
    """Hands out the rows of one delivery after the other, and gives their credit back as they go."""

    def __init__(
        self, window_messages: int, source: Callable[[], GuaranteedDelivery | None], release: Release
    ) -> None:
        """Read nothing yet; `source` gives the oldest unread delivery or None, `release` takes what was handed out."""
        self._source = source
        self._release = release
        #: The delivery that is read; None if there is none.
        self._open: GuaranteedDelivery | None = None
        #: Its first row that was not handed out.
        self._at = 0
        #: Its first row whose credit was not given back; at most `_at`.
        self._released = 0
        #: Rows of earlier deliveries that were handed out.
        self._handed = 0
        self._release_step: Final = max(window_messages // RELEASES_PER_WINDOW, 1)

    @property
    def opened(self) -> GuaranteedDelivery | None:
        """The delivery that is read."""
        return self._open

    @property
    def left(self) -> int:
        """Rows of it that were not handed out; any thread may ask, also while another one takes it away."""
        delivery = self._open
        return 0 if delivery is None else len(delivery.rows) - self._at

    @property
    def handed(self) -> int:
        """Rows that were ever handed out."""
        return self._handed + self._at

    def advance(self) -> bool:
        """Have a row to hand out; give False if there is none."""
        while self._open is None or self._at >= len(self._open.rows):
            self.give_back()
            self._handed += self._at
            self._open = self._source()
            self._at = self._released = 0
            if self._open is None:
                return False
        return True

    def take(self) -> tuple[GuaranteedDelivery, int]:
        """Hand out the next row; the caller has seen that there is one."""
        delivery, at = self._open, self._at
        assert delivery is not None
        self._at = at + 1
        if self._at - self._released >= self._release_step:
            self.give_back()
        return delivery, at

    def take_batch(self, max_messages: int) -> GuaranteedBatch:
        """Hand out rows that came together; the caller has seen that there is one."""
        delivery, at = self._open, self._at
        assert delivery is not None
        self._at = min(at + max_messages, len(delivery.rows))
        self.give_back()
        return GuaranteedBatch(delivery, at, self._at)

    def give_back(self) -> None:
        """Give back the credit of what was handed out."""
        delivery, released = self._open, self._released
        if delivery is not None and released < self._at:
            self._released = self._at
            is_whole = not released and self._at == len(delivery.rows)
            size = delivery.size_bytes if is_whole else spool_size(delivery.rows[released : self._at])
            self._release(delivery.window, self._at - released, size)

    def take_out(self, leaves: Callable[[GuaranteedDelivery], bool]) -> list[Unread]:
        """Give the rest of the delivery that is read, with its credit, if that leaves."""
        delivery, at = self._open, self._at
        if delivery is None or not leaves(delivery):
            return []
        self.drop()
        return [Unread(delivery, at)] if at < len(delivery.rows) else []

    def drop(self) -> None:
        """Throw away the rest of the delivery that is read, with its credit."""
        self._open = None
        self._handed += self._at
        self._at = self._released = 0

    def validate(self) -> None:
        """Check the sentences above."""
        assert self._open is None or self._released <= self._at <= len(self._open.rows)


class FlowBuffer:
    """Deliveries that are not handed out, all of one bind; the flow's window bounds them."""

    def __init__(self, window_messages: int, release: Release) -> None:
        """Hold nothing; `release` takes what was handed out."""
        #: Unread, the oldest first.
        self._deliveries: deque[GuaranteedDelivery] = deque()
        self.reader: Final = FlowReader(window_messages, self.take_delivery, release)

    def __len__(self) -> int:
        """Count the messages that were not handed out."""
        return self.reader.left + sum(len(delivery.rows) for delivery in list(self._deliveries))

    def push(self, deliveries: Sequence[GuaranteedDelivery]) -> None:
        """Add what came."""
        self._deliveries.extend(deliveries)

    def take_delivery(self) -> GuaranteedDelivery | None:
        """Give the oldest delivery whole, to be released by the caller; safe from any thread."""
        try:
            return self._deliveries.popleft()
        except IndexError:
            return None

    def unread(self) -> list[tuple[int, int]]:
        """Give partition and position of the first message of each delivery that was not handed out."""
        opened, left = self.reader.opened, self.reader.left
        found = [] if opened is None or not left else [(opened.partition, opened.positions[-left])]
        return found + [(delivery.partition, delivery.positions[0]) for delivery in self._deliveries]

    def take_out(self, leaves: Callable[[GuaranteedDelivery], bool]) -> list[Unread]:
        """Give the deliveries that leave, with their credit; nobody may take one meanwhile, who would be too early."""
        kept: list[GuaranteedDelivery] = []
        found = self.reader.take_out(leaves)
        while (delivery := self.take_delivery()) is not None:
            if leaves(delivery):
                found.append(Unread(delivery, 0))
            else:
                kept.append(delivery)
        self._deliveries.extend(kept)
        return found

    def clear(self) -> int:
        """Throw everything away, with its credit; give how many messages that were."""
        self.reader.give_back()
        count = len(self)
        self._deliveries.clear()
        self.reader.drop()
        return count

    def validate(self, window: FlowWindow) -> None:
        """Check the sentences above."""
        assert all(delivery.window is window for delivery in self._deliveries)
        self.reader.validate()


class Callbacks:
    """Calls the application with each message: accepted when it returned, failed when it raised."""

    def __init__(
        self,
        options: FlowOptions,
        reader: FlowReader,
        ready: Callable[[], Awaitable[bool]],
        place: Callable[[], tracing.Place],
    ) -> None:
        """Call nobody yet; `ready` waits for a row, and gives False at the end."""
        self._place = place
        self._callback: Any = options.callback
        self._reader = reader
        self._ready = ready
        self._is_auto = options.is_auto
        self._loop = asyncio.get_running_loop()
        #: Whether `run` will be called in the next step of the loop.
        self._is_scheduled = False
        #: Calls that raised.
        self.errors = 0
        count = options.concurrency if is_async(options.callback) else 0
        #: Await an async callback, each for one message at a time; none for a plain one.
        self.tasks = [self._loop.create_task(self._run_async()) for _ in range(count)]

    def wake(self) -> None:
        """Call for what is there; an async callback is woken by `ready`."""
        if not self.tasks and not self._is_scheduled:
            self._run()

    def _run(self) -> None:
        """Call a plain callback, a bounded number of times per step of the loop."""
        budget = CALLBACKS_PER_STEP
        while budget and self._reader.advance():
            budget -= 1
            message = GuaranteedMessage(*self._reader.take())
            try:
                if tracing.active is None:
                    self._callback(message)
                else:
                    with tracing.active.process(message, self._place()):
                        self._callback(message)
            except FAULTS as fault:
                self._raised(message, fault)
            else:
                self._returned(message)
        self._is_scheduled = not budget
        if self._is_scheduled:
            self._loop.call_soon(self._run)

    async def _run_async(self) -> None:
        try:
            while await self._ready():
                message = GuaranteedMessage(*self._reader.take())
                try:
                    if tracing.active is None:
                        await self._callback(message)
                    else:
                        with tracing.active.process(message, self._place()):
                            await self._callback(message)
                except FAULTS as fault:
                    raise_if_cancelled(fault)
                    self._raised(message, fault)
                else:
                    self._returned(message)
        except errors.AngariumError as error:
            _logger.warning("the flow has ended: %s", error)

    def _returned(self, message: GuaranteedMessage) -> None:
        if self._is_auto and not message.settled:
            message.accept()

    def _raised(self, message: GuaranteedMessage, error: BaseException) -> None:
        """Let a message that its callback could not take come again."""
        self.errors += 1
        _logger.error("the callback raised for %r", message, exc_info=error)
        if self._is_auto and not message.settled:
            message.fail()
