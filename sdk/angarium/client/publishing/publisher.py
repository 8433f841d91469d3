"""Publishing: gather messages into rounds, send them, wait for credit, wait for retirement.

The first message of a step of the loop leaves at once, what follows in the same step leaves together at its
end, and a full round leaves when it is full. So a lone message waits for nobody, and a loop that publishes as
fast as it can pays for one frame per hundreds of messages. A publisher waits only when the router owes it
credit or there is no connection, and what is gathered meanwhile is at most one round.

There is a connection for publishers when the subscriptions of the client are in force on it: what waited would
otherwise pass the client's own subscriptions. Each publisher waits for it in its own call, for a bounded time, and
together they hold a bounded number of messages and bytes.

`angarium.client.client` owns the one `Publisher` of a client and tells it what happens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Unpack

from angarium import errors, tracing, wire
from angarium.message import Message, MessageOptions, Row, row_size
from angarium.slots import Publishable, RowGatherer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from angarium.client.connection.connection import Connection
    from angarium.client.protocol.events import Welcome
    from angarium.client.publishing.receipts import Receipt


#: Direct messages that may wait for a connection at a time, and bytes of their payloads: a web server may have so many
#: requests under way, and nobody means to keep more than that in memory.
WAITING_MESSAGES_MAX: Final = 10_000
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024


class Publisher:
    """The publishing half of a client."""

    def __init__(
        self,
        connection: Connection,
        send_guaranteed: Callable[[Row], Awaitable[Receipt]],
        timeout_s: float,
    ) -> None:
        """Publish over a connection that may come and go; guaranteed messages go to `send_guaranteed`."""
        self._send_guaranteed = send_guaranteed
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._gatherer = RowGatherer()
        self._timeout_s = timeout_s
        #: Of messages that are gathered, by their places: take the number of the round that they leave in.
        self._reported: dict[int, Callable[[int | None], None]] = {}
        #: What publishing raises; None while the client is in use.
        self.refusal: errors.AngariumError | None = None
        #: Whether there is a connection on which the subscriptions of the client are in force.
        self._is_restored = False
        #: Whether publishing has to wait, or raises: not restored, or refused.
        self._is_held = True
        #: Messages that wait for a connection in their calls, at most WAITING_MESSAGES_MAX, and their bytes.
        self._waiting_messages = self._waiting_bytes = 0
        #: Whether `_end_step` will run at the end of this step of the loop.
        self._is_step_scheduled = False
        #: Those who wait for credit, retirement, a connection or the end; each of these wakes them all.
        self._waiters: dict[asyncio.Future[None], None] = {}
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
        if self._is_held:
            await self.connected(len(payload), self._timeout_s)
        if options or type(payload) is not bytes:
            row = Message(topic, payload, **options).row
            if not gatherer.has_room(row_size(row)):
                await self._make_room(row_size(row), self._timeout_s)
            gatherer.add_row(row)
        else:
            if not gatherer.has_room(len(payload)):
                await self._make_room(len(payload), self._timeout_s)
            gatherer.add(topic, payload)
        if not self._is_step_scheduled:
            self._begin_step()

    async def publish_reported(self, message: Message, on_sent: Callable[[int | None], None]) -> None:
        """Publish a direct message; it is reported if it matches nothing (`on_sent` takes the number of its round).

        It is for this connection: if that is lost before it leaves it does not leave (`on_sent` takes None).
        """
        if tracing.active is None:
            await self.publish_row(message.row, on_sent)
            return
        with tracing.sending(tracing.active, message.row, self._connection) as row:
            await self.publish_row(row, on_sent)

    async def publish_row(self, row: Row, on_sent: Callable[[int | None], None] | None = None) -> None:
        """Publish the row of a direct message; with `on_sent` it is reported as above."""
        size = row_size(row)
        session = self._connection.session
        if self._is_held:
            await self.connected(size, self._timeout_s)
        if not self._gatherer.has_room(size):
            await self._make_room(size, self._timeout_s)
        if on_sent is not None and session is not self._connection.session:
            on_sent(None)
            return
        self._gatherer.add_row(row)
        if on_sent is not None:
            self._reported[self._gatherer.rows - 1] = on_sent
        if not self._is_step_scheduled:
            self._begin_step()

    async def publish_many(
        self, messages: Iterable[Publishable], timeout_s: float | None
    ) -> errors.AngariumError | None:
        """See `Client.publish_many`; gives why a guaranteed one was refused, the first one."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        gatherer = self._gatherer
        iterator = iter(messages)
        receipts: deque[Receipt] = deque()
        refused: errors.AngariumError | None = None
        fault: Exception | None = None
        try:
            while True:
                if self._is_held:
                    await self.connected(0, limit_s)
                left = gatherer.fill(iterator)
                if left is None:
                    break
                if isinstance(left, Message) and left.row[2] & wire.FLAG_MODE:
                    receipts.append(await self._send_guaranteed(left.row))
                    while receipts and receipts[0].done:
                        refused = refused or receipts[0].error
                        receipts.popleft()
                    continue
                await self._make_room(_size_of(left), limit_s)
                gatherer.fill(iter((left,)))
        except errors.TimeoutExpiredError:
            raise  # Without a connection nobody knows what becomes of those before.
        except Exception as error:  # noqa: BLE001 - whatever it is, what was given before is waited for
            fault = error
        finally:
            if gatherer.rows and not self._is_step_scheduled:
                self._begin_step()
        if receipts or fault is not None:
            return await _settled(receipts, refused, fault)
        return refused

    async def flush(self, timeout_s: float) -> None:
        """See `Client.flush`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_all()
                await self._retire_all()
        except errors.AngariumError:
            raise
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
        self._is_held = True
        self.go_on()

    def opened(self, welcome: Welcome) -> None:
        """Take over what a new session allows."""
        self._gatherer.set_table(welcome.epoch, welcome.slots)
        self._gatherer.set_limits(welcome.max_message_bytes, welcome.max_batch_rows, welcome.max_batch_bytes)

    def restored(self) -> None:
        """Send from now on: the subscriptions are in force on the new connection."""
        self._is_restored = True
        self._is_held = self.refusal is not None
        self.go_on()

    def lost(self) -> None:
        """Hold what comes until the next connection."""
        self._is_restored = False
        self._is_held = True
        if self._reported:
            reported, self._reported = self._reported, {}
            self._gatherer.remove(set(reported))
            for on_sent in reported.values():
                on_sent(None)
        self.go_on()

    def forked(self, error: errors.AngariumError) -> None:
        """Let publishing fail from now on, in a process where nobody waits."""
        self.refusal = error
        self._is_held = True

    def give_up(self) -> int:
        """Throw away what is gathered, because nothing will be sent any more; give how many messages that was."""
        self._reported.clear()
        return self._gatherer.take().rows

    def set_table(self, epoch: int, table: bytes) -> None:
        """Cut rounds by a new table."""
        self._gatherer.set_table(epoch, table)

    def go_on(self) -> None:
        """Send what there is credit for, and wake who waits: something has changed."""
        if self._gatherer.rows and self._can_send():
            self._send_round()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _can_send(self) -> bool:
        session = self._connection.session
        return self._is_restored and session is not None and session.can_publish()

    def _send_round(self, *, flush: bool = False) -> None:
        session = self._connection.session
        assert session is not None
        batch = self._gatherer.take()
        number = session.publish(batch, flush=flush, reports=bool(self._reported))
        if self._reported:
            reported, self._reported = self._reported, {}
            for on_sent in reported.values():
                on_sent(number)
        self.messages += batch.rows
        self.bytes += batch.size_bytes
        self.rounds += 1
        self._connection.transmit()

    def _begin_step(self) -> None:
        """Send the first of this step at once, and what comes after it at the end of the step."""
        if self._can_send():
            self._send_round()
        self._is_step_scheduled = True
        self._loop.call_soon(self._end_step)

    def _end_step(self) -> None:
        self._is_step_scheduled = False
        if self._gatherer.rows and self._can_send():
            self._send_round()

    async def connected(self, size_bytes: int, limit_s: float) -> None:
        """Wait until there is a connection, with a message of so many bytes in hand.

        Raises:
            ConnectionLostError: there will be none; or too much waits already (TOO_MUCH_WAITS).
            TimeoutExpiredError: there was none in time (TIMEOUT).
        """
        if not self._is_held:
            return
        if self.refusal is not None:
            raise self.refusal
        messages, waiting_bytes = self._waiting_messages, self._waiting_bytes
        if messages >= WAITING_MESSAGES_MAX or (messages and waiting_bytes + size_bytes > WAITING_BYTES_MAX):
            detail = f"{messages} messages of {waiting_bytes} bytes wait already; this one was not sent"
            raise errors.error_for(errors.TOO_MUCH_WAITS, detail)
        self._waiting_messages += 1
        self._waiting_bytes += size_bytes
        try:
            async with asyncio.timeout(limit_s):
                while self._is_held:
                    if self.refusal is not None:
                        raise self.refusal
                    await self._wait()
        except errors.AngariumError:
            raise
        except TimeoutError:
            detail = f"there was no connection within {limit_s:g} s; the message was not sent"
            raise errors.error_for(errors.TIMEOUT, detail) from None
        finally:
            self._waiting_messages -= 1
            self._waiting_bytes -= size_bytes

    async def _make_room(self, size_bytes: int, limit_s: float) -> None:
        """Send a round, or wait until one can be sent, until a message fits."""
        while self._is_held or not self._gatherer.has_room(size_bytes):
            if self._is_held:
                await self.connected(size_bytes, limit_s)
            elif self._can_send():
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
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def validate(self) -> None:
        """Check the sentences above, and the parts."""
        assert self._is_held == (not self._is_restored or self.refusal is not None)
        assert 0 <= self._waiting_messages <= WAITING_MESSAGES_MAX
        assert self._waiting_bytes >= 0
        assert all(0 <= place < self._gatherer.rows for place in self._reported)
        self._gatherer.validate()


def _size_of(message: Publishable) -> int:
    return row_size(message.row) if isinstance(message, Message) else len(bytes(message[1]))


async def _settled(
    receipts: Iterable[Receipt], refused: errors.AngariumError | None, fault: Exception | None
) -> errors.AngariumError | None:
    """Wait until it is known what became of guaranteed messages; give why one was refused, or raise the fault."""
    for receipt in receipts:
        try:
            await receipt
        except errors.AngariumError as error:
            refused = refused or error
    if fault is None:
        return refused
    if refused is not None:
        fault.add_note(f"a message before it was refused: {refused}")
    raise fault
