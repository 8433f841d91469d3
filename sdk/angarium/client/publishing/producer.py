"""Publishing guaranteed messages: a producer, its window, its receipts.

    producer = await client.producer("orders")
    receipt = await producer.send("orders/berlin/7", b"two pretzels")
    await receipt                                   # stored, or the error that refused it

The first message of a step of the loop leaves at once, what follows in the same step leaves together at its
end, and a full round leaves when it is full. A sender waits only for room in the window. When the connection is
lost the producer is opened again on the next one and what is not settled is sent again with the same
sequences, so each message is stored once.

A stage is a producer of messages that are stored, and belong to nobody until somebody commits them:

    stage = await client.stage()
    await stage.publish_many(messages)
    await stage.close()                                      # stored, or the error that refused one
    await client.commit_stages([stage.id], "sink-1", batch)  # perhaps another client, with the same username

Windows, receipts and reconnects are those of `Producer`. The rows are matched and judged when they are staged, so
whatever may refuse them does it before the commit.

`angarium.client.guaranteed_messaging` owns the producers of a client and tells them what happens.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Unpack

from angarium import errors, tracing, wire
from angarium.client.connection.opening import Closing
from angarium.client.connection.operations import Opener
from angarium.client.protocol.answers import PRODUCER_WINDOW_MAX, STAGE_WINDOW_MAX, ProducerOpened
from angarium.client.protocol.send_window import SendWindow, guaranteed_row
from angarium.client.publishing.receipts import Acknowledgement, PublishReport, Receipt, Refusals, Tally
from angarium.message import DeliveryMode, Message, MessageOptions, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from angarium.client.connection.connection import Connection
    from angarium.client.connection.operations import Operations
    from angarium.client.protocol.events import Acknowledged, Welcome
    from angarium.slots import Publishable

    AckCallback = Callable[[Acknowledgement], None]

#: Refusals to open again that pass: the families of "too slow", "too fast" and "not possible now".
_PASSING_FAMILIES: Final = (408, 429, 500, 503)

_logger = logging.getLogger(__name__)


def is_passing(code: int) -> bool:
    """Tell whether a producer that is refused with this code on a new connection may be taken later."""
    return code // 100 in _PASSING_FAMILIES


class Producer(Closing):
    """Publishes guaranteed messages under one name; `Client.producer` opens it.

    Use it from one place at a time if the order of messages matters: it is the order of the calls. It is an
    async context manager, which waits at its end until everything is settled.
    """

    #: Messages that may be unsettled, whatever is asked for.
    _window_max: int = PRODUCER_WINDOW_MAX

    def __init__(
        self,
        connection: Connection,
        operations: Operations,
        name: str,
        window: int,
        on_ack: AckCallback | None,
        on_over: Callable[[Producer], None],
    ) -> None:
        """Be ready to open; applications call `Client.producer`.

        Raises:
            InvalidRequestError: an argument is illegal (INVALID_ARGUMENT).
        """
        if type(window) is not int or not 1 <= window <= self._window_max:
            raise errors.invalid(f"window is {window!r}, from 1 to {self._window_max} is possible")
        if on_ack is not None and inspect.iscoroutinefunction(on_ack):
            raise errors.invalid("on_ack is a plain function")
        self._connection = connection
        self._operations = operations
        self._name = name
        #: Whether the node makes the name up: nobody can ask for it again, so the node need not keep it.
        self._is_nameless = not name
        self._asked_window: Final = window
        self._on_ack = on_ack
        #: Called once when the producer is over.
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._rows = SendWindow(window)
        self._refusals = Refusals()
        self._refusals.are_seen = on_ack is not None
        #: What sending raises; None while the producer is in use.
        self._error: errors.AngariumError | None = None
        #: Whether it was open once, so that it is opened again on each connection.
        self._was_open = False
        self._opener = Opener(operations, self._open, is_passing, self._give_up)
        #: Whether `_end_step` will run at the end of this step of the loop.
        self._is_step_scheduled = False
        #: Senders that wait for so many places in the window, the first first.
        self._senders: deque[tuple[int, asyncio.Future[None]]] = deque()
        #: Those who wait until a sequence is settled, or for the end.
        self._flushers: list[tuple[int, asyncio.Future[None]]] = []
        #: Messages that went to no endpoint.
        self._refused_messages = 0

    @property
    def name(self) -> str:
        """The name, the application's own or the one that the node made up."""
        return self._name

    @property
    def window(self) -> int:
        """Messages that may be unsettled at a time."""
        return self._rows.window

    @property
    def last_sequence(self) -> int:
        """The newest sequence: of the last message given here, or what the node knew when it was opened."""
        return self._rows.last_sequence

    @property
    def unacknowledged(self) -> int:
        """Messages that are not settled."""
        return self._rows.held_messages

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is unacknowledged is of this moment."""
        return {
            "acknowledged_messages": self._rows.stored_messages,
            "refused_messages": self._refused_messages,
            "unroutable_messages": self._rows.unroutable_messages,
            "unacknowledged_messages": self.unacknowledged,
        }

    @property
    def closed(self) -> bool:
        """Whether the producer is over."""
        return self._error is not None

    @property
    def error(self) -> errors.AngariumError | None:
        """Why the producer is over; None if it is not."""
        return self._error

    # Publishing.

    async def send(
        self,
        topic: str = "",
        payload: bytes | bytearray | memoryview = b"",
        *,
        sequence: int | None = None,
        queue: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        """Publish a message; give the receipt, which can be awaited and need not be.

        Waits only for room in the window.

        Args:
            topic: 1 to 250 bytes of UTF-8; none if `queue` is given.
            payload: up to the node's limit.
            sequence: the message's number, above that of the last message given here; one more than
                `last_sequence` by default. A number that the node knows is a message that was sent before: it
                keeps the verdict that it had.
            queue: the name of a queue to publish to, instead of a topic.
            **options: see `Message`; the mode is persistent by default.

        Raises:
            InvalidRequestError: an argument is illegal; nothing is sent.
            AngariumError: the producer is over, and why.
        """
        row = make_row(topic, payload, queue, options)
        if tracing.active is None or not tracing.active.is_on:
            return await self._send_row(row, sequence)
        return await self._send_traced(tracing.active, row, sequence)

    async def send_message(self, message: Message) -> Receipt:
        """Publish a message that was made before; as `send`.

        Raises:
            InvalidRequestError: it is a direct message (INVALID_ARGUMENT), or too large.
            AngariumError: the producer is over, and why.
        """
        if tracing.active is None:
            return await self._send_row(guaranteed_row(message))
        return await self._send_traced(tracing.active, guaranteed_row(message))

    async def _send_traced(self, tracer: tracing.Tracer, row: Row, sequence: int | None = None) -> Receipt:
        """Publish a row as `_send_row`; it is on its way until it is known what became of it."""
        sent = tracer.send(row, tracing.place_of(self._connection))
        try:
            receipt = await self._send_row(sent.row, sequence)
        except BaseException as error:
            sent.end(error)
            raise
        receipt.on_done(sent.end)
        return receipt

    async def _send_row(self, row: Row, sequence: int | None = None) -> Receipt:
        """Publish the row of a guaranteed message; as `send`."""
        if self._error is not None:
            raise self._error
        rows = self._rows
        if self._senders or not rows.room():
            await self._make_room(1)
        receipt = Receipt(self._refusals)
        receipt.sequence = rows.add(row, receipt, sequence)
        if not self._is_step_scheduled:
            self._begin_step()
        elif rows.has_full_round():
            self._pump()
        return receipt

    async def publish(
        self,
        topic: str = "",
        payload: bytes | bytearray | memoryview = b"",
        *,
        sequence: int | None = None,
        queue: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> int:
        """Publish a message, wait until it is stored, give its sequence; arguments as for `send`.

        Raises:
            InvalidRequestError: an argument is illegal.
            AngariumError: why the message was refused; or the producer is over, and why.
        """
        return await (await self.send(topic, payload, sequence=sequence, queue=queue, **options))

    async def publish_many(self, messages: Iterable[Publishable]) -> PublishReport:
        """Publish messages, or pairs of topic and payload (persistent), and wait until all are settled.

        The whole window is used all the time. Messages keep their order.

        Raises:
            InvalidRequestError: a message is illegal, or direct; those before it are published, and settled,
                the others are not.
            AngariumError: the producer is over, and why; the text says how many are acknowledged.
        """
        if tracing.active is None:
            return await self._publish_many(messages)
        persistent = DeliveryMode.PERSISTENT
        with tracing.sending_many(tracing.active, messages, self._connection, persistent) as traced:
            return await self._publish_many(traced)

    async def _publish_many(self, messages: Iterable[Publishable]) -> PublishReport:
        tally = self._tally()
        fault: Exception | None = None
        try:
            await self._feed(iter(messages), tally)
        except Exception as error:  # noqa: BLE001 - whatever it is, what was given before is waited for
            fault = error
        except BaseException:
            tally.forsake(self._refusals)
            raise
        return await self._conclude(tally, fault)

    def _tally(self) -> Tally:
        """Begin to count what becomes of messages."""
        return Tally(self._loop.create_future())

    async def _conclude(self, tally: Tally, fault: Exception | None) -> PublishReport:
        """Wait until all that was given is settled; give the report, or raise what kept the rest from being given."""
        try:
            await tally.wait()
            if self._error is not None and (tally.lost or fault is self._error):
                raise tally.failure(self._error)
            if fault is not None:
                raise fault
        except BaseException:
            tally.forsake(self._refusals)
            raise
        return tally.report()

    async def _feed(self, messages: Iterator[Publishable], tally: Tally) -> None:
        """Give all messages to the window, as there is room."""
        rows = self._rows
        while True:
            if self._error is not None:
                raise self._error
            if self._senders or rows.room() < rows.half:
                await self._make_room(rows.half)
            first = rows.last_sequence + 1
            try:
                count = rows.fill(messages, tally)
            finally:
                if taken := rows.last_sequence + 1 - first:
                    tally.give(first, taken)
                    self._pump()
            if not count:
                return

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was given so far is settled, or for so long.

        Raises:
            TimeoutExpiredError: not within the time (TIMEOUT); it goes on all the same.
            AngariumError: a message was refused that nobody waited for (the first one, with the number of all);
                or the producer is over, and why.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled()
        except errors.AngariumError:
            raise
        except TimeoutError:
            detail = f"{self.unacknowledged} messages are not settled after {timeout_s:g} s"
            raise errors.error_for(errors.TIMEOUT, detail) from None
        refused = self._refusals.take()
        if refused is not None:
            raise refused

    async def close(self, *, forget: bool = False, timeout_s: float | None = None) -> None:
        """Wait until everything is settled, and end the producer. Nothing happens the second time.

        Args:
            forget: let the node forget the name and its sequences; a name that the node made up is forgotten anyhow.
            timeout_s: how long to wait at most; what is not settled then fails with CLIENT_CLOSED.
        """
        if self._error is not None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled()
                if self._rows.handle and self._error is None:
                    handle, forget = self._rows.handle, forget or self._is_nameless
                    self._rows.lose()  # Nothing more is sent, and nobody else closes it.
                    await self._operations.finish(
                        lambda session: session.guaranteed.close_producer(handle, forget=forget)
                    )
        except (TimeoutError, errors.AngariumError) as error:
            _logger.warning("%s ends with %d messages unsettled: %s", self, self.unacknowledged, error)
        self._end(errors.error_for(errors.CLIENT_CLOSED, f"{self} is closed"))

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self._rows.handle else "not open"
        return f"<{type(self).__name__} {self._name!r}, {state}, {self.unacknowledged} unacknowledged>"

    # What the client calls.

    async def _open_first(self, timeout_s: float) -> None:
        """Open it for the first time.

        Raises:
            TimeoutExpiredError: the node did not answer in time (TIMEOUT).
            AngariumError: the node refuses.
        """
        await self._opener.open(timeout_s)
        self._was_open = True
        if not self._rows.handle:
            self._opener.start()

    def _connected(self, welcome: Welcome) -> None:
        """Take over what a new session allows, and open again on it."""
        self._set_table(welcome.epoch, welcome.slots)
        self._rows.set_limits(welcome.max_message_bytes, welcome.max_batch_bytes, welcome.producer_bytes)
        if self._was_open and self._error is None:
            self._opener.start()

    def _set_table(self, epoch: int, table: bytes) -> None:
        """Cut rounds by a new table."""
        self._rows.set_table(epoch, table)

    def _acknowledged(self, event: Acknowledged) -> None:
        """Act on what the node said of this producer's messages."""
        self._refused_messages += len(event.refused)
        if self._on_ack is not None:
            self._call_back(Acknowledgement(event.upto, event.refused, event.unroutable))
        if event.error is not None:
            self._give_up(event.error)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Send what can be sent, and wake who waits: something has changed."""
        self._pump()
        room = self._rows.room()
        while self._senders and (room >= self._possible(self._senders[0][0]) or self._error is not None):
            wanted, sender = self._senders.popleft()
            room -= wanted
            if not sender.done():
                sender.set_result(None)
        if self._flushers:
            self._wake_flushers()

    def _give_up(self, error: errors.AngariumError) -> None:
        """Let the producer be over: the node does not take it any more."""
        if self._error is None:
            _logger.warning("%s is over: %s", self, error)
            self._end(error)

    def _end(self, error: errors.AngariumError) -> None:
        """Let sending fail from now on; what is not settled has an unknown fate."""
        if self._error is None:
            self._error = error
            self._opener.stop()
            if self._rows.handle:
                self._let_go(self._rows.handle)
            self._rows.fail(error)
            self._on_over(self)
            self._go_on()

    # Opening, sending, waiting.

    async def _open(self) -> None:
        """Open on the session that there is.

        Raises:
            AngariumError: the node refuses, or somebody else used the name meanwhile (PRODUCER_FENCED).
        """
        resume = self._was_open
        try:
            opened = await self._ask_open(resume=resume)
        except errors.InvalidRequestError as error:
            if not (resume and error.code == errors.UNKNOWN_FLOW_NAME and not self._rows.held_messages):
                raise
            # Forgotten, but nothing depends on its memory: a new producer of that name is as good.
            opened = await self._ask_open(resume=False)
        self._name = opened.name
        if foreign := self._rows.foreign_sequence:
            detail = f"{self._name!r} has sent up to {foreign} meanwhile, this client has not"
            raise errors.error_for(errors.PRODUCER_FENCED, detail)
        self._go_on()

    async def _ask_open(self, *, resume: bool) -> ProducerOpened:
        arguments = {**self._arguments(), "resume": resume}
        opened: ProducerOpened = await self._operations.ask(
            lambda session: session.guaranteed.open_producer(self._rows, arguments), self._close_late
        )
        return opened

    def _arguments(self) -> dict[str, Any]:
        """Give what the node is told of this producer when it is opened."""
        return {"name": self._name, "window": self._asked_window}

    def _close_late(self, opened: Any) -> None:
        """Close what was opened for a caller that did not wait; the session must not keep it."""
        self._let_go(opened.producer)

    def _let_go(self, handle: int) -> None:
        """Close it at the node without waiting."""
        forget = self._is_nameless
        self._operations.tell(lambda session: session.guaranteed.close_producer(handle, forget=forget))

    def _pump(self) -> None:
        """Send what the window and the ingress credit allow."""
        session, rows = self._connection.session, self._rows
        has_sent = False
        while rows.handle and session is not None and session.can_publish():
            departure = rows.take()
            if departure is None:
                break
            session.publish_guaranteed(departure, rows.handle)
            has_sent = True
        if has_sent:
            self._connection.transmit()

    def _begin_step(self) -> None:
        """Send the first of this step at once, and what comes after it at the end of the step."""
        self._is_step_scheduled = True
        self._loop.call_soon(self._end_step)
        self._pump()

    def _end_step(self) -> None:
        self._is_step_scheduled = False
        self._pump()

    async def _make_room(self, messages: int) -> None:
        """Wait until there is room for so many more; who came first goes first.

        Raises:
            AngariumError: the producer is over, and why.
        """
        is_first = False
        while True:
            if self._error is not None:
                raise self._error
            if self._rows.room() >= self._possible(messages) and (is_first or not self._senders):
                return
            sender = self._loop.create_future()
            entry = (messages, sender)
            if is_first:
                self._senders.appendleft(entry)
            else:
                self._senders.append(entry)
            try:
                await sender
            except asyncio.CancelledError:
                if entry in self._senders:
                    self._senders.remove(entry)
                else:
                    self._go_on()
                raise
            is_first = True

    def _possible(self, messages: int) -> int:
        """Give for how much room to wait of what was asked for: the window may have become smaller since."""
        return min(messages, self._rows.half)

    async def _settled(self) -> None:
        """Wait until everything that was given before now is settled.

        Raises:
            AngariumError: the producer is over, and why.
        """
        newest = self._rows.last_sequence
        while self._is_open(newest):
            flusher = self._loop.create_future()
            entry = (newest, flusher)
            self._flushers.append(entry)
            try:
                await flusher
            finally:
                if entry in self._flushers:
                    self._flushers.remove(entry)
        if self._error is not None:
            raise self._error

    def _is_open(self, newest: int) -> bool:
        """Tell whether a message up to this sequence is not settled, and may be."""
        return self._error is None and 0 < self._rows.oldest_sequence() <= newest

    def _wake_flushers(self) -> None:
        waiting = []
        for newest, flusher in self._flushers:
            if self._is_open(newest):
                waiting.append((newest, flusher))
            elif not flusher.done():
                flusher.set_result(None)
        self._flushers = waiting

    def _call_back(self, acknowledgement: Acknowledgement) -> None:
        assert self._on_ack is not None
        try:
            self._on_ack(acknowledgement)
        except Exception:
            _logger.exception("on_ack of %s raised", self)

    def _validate(self) -> None:
        """Check the parts."""
        self._rows.validate()
        self._refusals.validate()


def make_row(topic: str, payload: Any, queue: str | None, options: MessageOptions) -> Row:
    """Make the row of a guaranteed message.

    Raises:
        InvalidRequestError: an argument is illegal; a topic and a queue are given, or neither; or the mode is
            direct (INVALID_ARGUMENT).
    """
    if queue is not None:
        topic = queue_topic(topic, queue)
    if not options and type(payload) is bytes:
        return 0, topic, wire.MODE_PERSISTENT, None, None, payload
    options.setdefault("mode", DeliveryMode.PERSISTENT)
    return guaranteed_row(Message(topic, payload, **options))


def queue_topic(topic: str, queue: str) -> str:
    """Give the topic by which a queue is published to.

    Raises:
        InvalidRequestError: there is another topic already (INVALID_ARGUMENT).
    """
    if topic:
        raise errors.invalid(f"topic {topic!r} and queue {queue!r}: a message goes to one of them")
    return wire.QUEUE_TOPIC_PREFIX + queue


class Stage(Producer):
    """Publishes what waits for a commit; `Client.stage` opens it."""

    _window_max = STAGE_WINDOW_MAX

    def __init__(
        self,
        connection: Connection,
        operations: Operations,
        window: int,
        on_over: Callable[[Producer], None],
    ) -> None:
        """Be ready to open; applications call `Client.stage`."""
        super().__init__(connection, operations, "", window, None, on_over)
        self._is_nameless = False

    @property
    def id(self) -> str:
        """What `commit_stages` and `abort_stages` name it by."""
        return self.name

    async def close(self, *, forget: bool = False, timeout_s: float | None = None) -> None:  # noqa: ARG002 - of a producer
        """Wait until everything is stored, and take nothing more. Nothing happens the second time.

        Args:
            forget: nothing; the node forgets a stage when it is settled.
            timeout_s: how long to wait at most; what is not stored then fails with CLIENT_CLOSED.

        Raises:
            TimeoutExpiredError: not everything was stored within the time (TIMEOUT).
            AngariumError: a message was refused that nobody waited for (the first one, with the number of all), or the
                stage is over, and why: do not commit it.
        """
        if self.error is not None:
            if self.error.code != errors.CLIENT_CLOSED:
                raise self.error
            return
        try:
            await self.flush(timeout_s)
        finally:
            await super().close(timeout_s=timeout_s)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "stage": True}
