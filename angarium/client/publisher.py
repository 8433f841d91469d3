"""Publishing: gather messages into rounds, send them, wait for credit, wait for retirement.

The first message of a step of the loop leaves at once, what follows in the same step leaves together at its
end, and a full round leaves when it is full. So a lone message waits for nobody, and a loop that publishes as
fast as it can pays for one frame per hundreds of messages. A publisher waits only when the router owes it
credit or there is no connection, and what is gathered meanwhile is at most one round.

`angarium.client.client` owns the one `Publisher` of a client and tells it what happens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Unpack

from angarium import errors, wire
from angarium.message import Message, MessageOptions
from angarium.slots import Publishable, RowGatherer, row_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from angarium.client.connection import Connection
    from angarium.client.events import Welcome
    from angarium.client.sending.receipts import Receipt


class Publisher:
    """The publishing half of a client."""

    def __init__(
        self, connection: Connection, send_guaranteed: Callable[[Message], Awaitable[Receipt]]
    ) -> None:
        """Publish over a connection that may come and go; guaranteed messages go another way."""
        self._send_guaranteed = send_guaranteed
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._gatherer = RowGatherer()
        #: What publishing raises; None while the client is in use.
        self.refusal: errors.AngariumError | None = None
        #: Whether `_end_step` will run at the end of this step of the loop.
        self._is_step_scheduled = False
        #: Those who wait for credit, retirement, a connection or the end; each of these wakes them all.
        self._waiters: list[asyncio.Future[None]] = []
        #: Lost messages that a `flush` has told of.
        self._lost_told = 0
        #: Sent since the start.
        self.messages = 0
        self.bytes = 0
        self.rounds = 0

    @property
    def gathered(self) -> int:
        """Messages that wait to leave."""
        return self._gatherer.rows

    async def publish(
        self, topic: str, payload: bytes | bytearray | memoryview = b"", **options: Unpack[MessageOptions]
    ) -> None:
        """See `Client.publish`."""
        gatherer = self._gatherer
        if self.refusal is not None:
            raise self.refusal
        if options or type(payload) is not bytes:
            row = Message(topic, payload, **options).row
            if not gatherer.has_room(row_size(row)):
                await self._make_room(row_size(row))
            gatherer.add_row(row)
        else:
            if not gatherer.has_room(len(payload)):
                await self._make_room(len(payload))
            gatherer.add(topic, payload)
        if not self._is_step_scheduled:
            self._begin_step()

    async def publish_many(self, messages: Iterable[Publishable]) -> None:
        """See `Client.publish_many`."""
        gatherer = self._gatherer
        iterator = iter(messages)
        receipts: deque[Receipt] = deque()
        refused: errors.AngariumError | None = None
        try:
            while True:
                if self.refusal is not None:
                    raise self.refusal
                left = gatherer.fill(iterator)
                if left is None:
                    break
                if isinstance(left, Message) and left.row[2] & wire.FLAG_MODE:
                    receipts.append(await self._send_guaranteed(left))
                    while receipts and receipts[0].done:
                        refused = refused or receipts[0].error
                        receipts.popleft()
                    continue
                await self._make_room(_size_of(left))
                gatherer.fill(iter((left,)))
        finally:
            if gatherer.rows and not self._is_step_scheduled:
                self._begin_step()
        for receipt in receipts:
            try:
                await receipt
            except errors.AngariumError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    async def flush(self, timeout_s: float) -> None:
        """See `Client.flush`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_all()
                await self._retire_all()
        except TimeoutError:
            raise errors.error_for(errors.TIMEOUT, f"not everything retired within {timeout_s} s") from None
        lost = self._connection.lost_messages - self._lost_told
        self._lost_told += lost
        if lost:
            detail = f"{lost} messages were in flight when the connection was lost"
            raise errors.error_for(errors.NOT_CONNECTED, detail)

    async def drain(self) -> None:
        """Refuse what is new, and send what is gathered.

        Raises:
            ConnectionLostError: the connection is lost with messages unsent.
        """
        self.refuse(errors.error_for(errors.CLIENT_CLOSED))
        await self._send_all()

    def refuse(self, error: errors.AngariumError) -> None:
        """Let publishing fail from now on, also for those who wait."""
        self.refusal = error
        self.go_on()

    def opened(self, welcome: Welcome) -> None:
        """Take over what a new session allows."""
        self._gatherer.set_table(welcome.epoch, welcome.slots)
        self._gatherer.set_limits(welcome.max_message_bytes, welcome.max_batch_rows, welcome.max_batch_bytes)

    def set_table(self, epoch: int, table: bytes) -> None:
        """Cut rounds by a new table."""
        self._gatherer.set_table(epoch, table)

    def go_on(self) -> None:
        """Send what there is credit for, and wake who waits: something has changed."""
        if self._gatherer.rows and self._can_send():
            self._send_round()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _can_send(self) -> bool:
        session = self._connection.session
        return session is not None and session.can_publish()

    def _send_round(self, *, flush: bool = False) -> None:
        session = self._connection.session
        assert session is not None
        batch = self._gatherer.take()
        session.publish(batch, flush=flush)
        self.messages += batch.rows
        self.bytes += batch.size_bytes
        self.rounds += 1
        self._connection.transmit()

    def _begin_step(self) -> None:
        """Send the first of this step at once, and what comes after it at the end of the step."""
        self._is_step_scheduled = True
        self._loop.call_soon(self._end_step)
        if self._can_send():
            self._send_round()

    def _end_step(self) -> None:
        self._is_step_scheduled = False
        if self._gatherer.rows and self._can_send():
            self._send_round()

    async def _make_room(self, size_bytes: int) -> None:
        """Send a round, or wait until one can be sent, until a message fits."""
        while not self._gatherer.has_room(size_bytes):
            if self.refusal is not None:
                raise self.refusal
            if self._can_send():
                self._send_round()
            else:
                await self._wait()

    async def _send_all(self) -> None:
        while self._gatherer.rows:
            if self._can_send():
                self._send_round(flush=True)
            elif self.refusal is not None and self._connection.session is None:
                raise self.refusal
            else:
                await self._wait()

    async def _retire_all(self) -> None:
        """Wait until the newest round has retired, or its connection is lost."""
        session = self._connection.session
        if session is not None:
            session.ask_retired()
            self._connection.transmit()
        newest = 0 if session is None else session.last_round
        while session is not None and session is self._connection.session and not session.is_retired(newest):
            await self._wait()

    async def _wait(self) -> None:
        """Wait until something has changed."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def validate(self) -> None:
        """Check the parts."""
        self._gatherer.validate()


def _size_of(message: Publishable) -> int:
    return row_size(message.row) if isinstance(message, Message) else len(bytes(message[1]))
