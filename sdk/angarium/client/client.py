"""The client of an application: connect, publish, subscribe, consume, request, reply.

`Client` joins the parts and carries out what follows from the events of a connection. How it stays connected is in
`angarium.client.connection.connection`, publishing in `angarium.client.publishing.publisher`, what it wants to receive
in `angarium.client.subscribing.interest`, how messages find subscriptions in
`angarium.client.subscribing.subscription`, replies in `angarium.client.requests`, producers and flows in
`angarium.client.producers_and_flows`, and the calls about them in `angarium.client.guaranteed_messaging`. It belongs to
one asyncio loop; `angarium.blocking` has the same client for threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final, Unpack

from angarium import errors, tracing, wire
from angarium.client import forking
from angarium.client.connection.connection import Connection
from angarium.client.connection.opening import Closing, Opening
from angarium.client.guaranteed_messaging import GuaranteedMessaging
from angarium.client.producers_and_flows import ProducersAndFlows
from angarium.client.protocol.events import (
    Acknowledged,
    Answered,
    Arrived,
    Closed,
    Delivered,
    Event,
    Indicated,
    Noticed,
    Opened,
    Replied,
    Retired,
    TableChanged,
    Welcome,
)
from angarium.client.protocol.provisioning import filters_of
from angarium.client.protocol.session import EgressWindow
from angarium.client.publishing.producer import make_row, queue_topic
from angarium.client.publishing.publisher import Publisher
from angarium.client.reports import Reports
from angarium.client.requests import Requests, answer
from angarium.client.subscribing.dispatch import Dispatcher, StallWatch
from angarium.client.subscribing.interest import Answer, Interest, Wish, make_wish
from angarium.client.subscribing.mailbox import BUFFER_BYTES, BUFFER_MESSAGES, Mailbox, OnFull, Terms
from angarium.client.subscribing.retained import RetainedReaders, read_pages
from angarium.client.subscribing.subscription import MessageCallback, Subscription
from angarium.message import Delivery, DeliveryMode, Message, MessageBatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

    from angarium.client.connection.connection import ClientOptions
    from angarium.client.publishing.receipts import Receipt
    from angarium.message import MessageOptions, Row
    from angarium.slots import Publishable

CLOSE_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 5.0

_logger = logging.getLogger(__name__)


class Client(GuaranteedMessaging, Closing):
    """A connected client; made by `connect`, closed by `close` or as an async context manager."""

    def __init__(self, options: ClientOptions) -> None:
        """Be ready to connect; applications call `connect`."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._window = EgressWindow(options.window_messages, options.window_bytes)
        self._dispatcher = Dispatcher(self._release)
        self._connection = Connection(options, self._window, self._take, self._drained, self._fail)
        self._publisher = Publisher(self._connection, self._send, options.timeout_s)
        self._reports = Reports(self._connection, options.on_event)
        self._guaranteed = ProducersAndFlows(self._connection, self._reports.emit, self._check_open)
        self._retained = RetainedReaders(self._guaranteed.operations, self._unread)
        self._timeout_s = options.timeout_s
        self._interest = Interest(self._refused, self._restored)
        self._requests = Requests(self._publisher, self.publish, self.subscribe, lambda: self._stall.detail)
        self._stall = StallWatch(
            self._window, self._dispatcher.subscriptions, lambda detail: self._reports.warn("stalled", detail)
        )
        #: What the router said last when it opened a session; None before the first.
        self._welcome: Welcome | None = None
        #: Done when the session that said BYE is over.
        self._left: asyncio.Future[None] = self._loop.create_future()
        self._are_requests_scheduled = False
        self._is_closing = False
        #: Set when nothing more happens, whatever the reason.
        self._ended = asyncio.Event()
        self._received_messages = 0
        self._discarded_messages = 0
        self._refused_messages = 0
        #: Of subscriptions that are over.
        self._ended_callback_errors = 0
        self._ended_dropped = 0
        self._thread = threading.get_ident()
        forking.watch(self, Client._forked)

    # What everybody may look at.

    @property
    def name(self) -> str:
        """The client's name at the router, its own or the one that the router made."""
        return "" if self._welcome is None else self._welcome.client_name

    @property
    def inbox(self) -> str:
        """The topic to which replies to this client go; another one after each reconnect."""
        return "" if self._welcome is None else self._welcome.inbox

    @property
    def node(self) -> str:
        """The name of the node that it is connected to."""
        return "" if self._welcome is None else self._welcome.node

    @property
    def max_message_bytes(self) -> int:
        """What payload and properties of a message may have together."""
        return 0 if self._welcome is None else self._welcome.max_message_bytes

    @property
    def url(self) -> str:
        """The address in use, or the one that is tried."""
        return self._connection.url

    @property
    def connected(self) -> bool:
        """Whether a session is open now."""
        return self._connection.session is not None

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or lost for good; it does not come back."""
        return self._publisher.refusal is not None

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the start; what is buffered, gathered or subscribed to is of this moment."""
        publisher, dispatcher = self._publisher, self._dispatcher
        mailboxes = list(dispatcher.subscriptions)
        return {
            "published_messages": publisher.messages,
            "published_bytes": publisher.bytes,
            "published_rounds": publisher.rounds,
            "gathered_messages": publisher.gathered,
            "lost_messages": self._connection.lost_messages,
            "refused_messages": self._refused_messages,
            "received_messages": self._received_messages,
            "discarded_messages": self._discarded_messages,
            "unclaimed_messages": dispatcher.unclaimed_messages,
            "overrun_messages": self._ended_dropped + sum(one.dropped for one in mailboxes),
            "buffered_messages": sum(one.messages for one in mailboxes),
            "buffered_bytes": sum(one.size_bytes for one in mailboxes),
            "subscriptions": len(mailboxes),
            "callback_errors": self._ended_callback_errors + sum(one.callback_errors for one in mailboxes),
            "late_replies": self._requests.late_replies,
            "requests_without_responder": self._requests.without_responder,
            "reconnects": self._reports.reconnects,
            **self._guaranteed.stats,
        }

    # Publishing.

    def publish(
        self,
        topic: str = "",
        payload: bytes | bytearray | memoryview = b"",
        *,
        queue: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Coroutine[Any, Any, None]:
        """Publish a message: it has left, or leaves with others in the next step of the loop.

        A direct message waits only while there is no ingress credit or no connection: for a connection with the
        subscriptions of this client in force again up to the `timeout_s` of `connect`, at most 10,000 messages or
        16 MiB of them. What the router refuses comes as a `notice` to `on_event`. With the mode persistent or
        non-persistent this waits until the message is stored; a `producer` does not wait for each.

        Args:
            topic: 1 to 250 bytes of UTF-8, at most 128 levels; none if `queue` is given.
            payload: up to the router's limit.
            queue: the name of a queue to publish to, instead of a topic; the mode is persistent by default then.
            **options: see `Message`.

        Raises:
            InvalidRequestError: the topic, the payload or an option is illegal.
            AngariumError: why a guaranteed message was refused.
            TimeoutExpiredError: there was no connection in time (TIMEOUT); a direct message was not sent.
            ConnectionLostError: the client is closed, or the connection is lost for good; or too much waits for it
                already, and this was not sent (TOO_MUCH_WAITS).
        """
        if queue is not None:
            topic = queue_topic(topic, queue)
            options.setdefault("mode", DeliveryMode.PERSISTENT)
        if tracing.active is not None and tracing.active.is_on:
            return self._publish_traced(tracing.active, topic, payload, options)
        if options.get("mode", DeliveryMode.DIRECT) == DeliveryMode.DIRECT:
            return self._publisher.publish(topic, payload, **options)
        return self._publish_guaranteed(topic, payload, options)

    async def _publish_traced(
        self, tracer: tracing.Tracer, topic: str, payload: Any, options: MessageOptions
    ) -> None:
        with tracing.sending(tracer, Message(topic, payload, **options).row, self._connection) as row:
            if not row[2] & wire.FLAG_MODE:
                await self._publisher.publish_row(row)
            else:
                self._check_open()
                await (await self._send(row))

    async def _publish_guaranteed(self, topic: str, payload: Any, options: MessageOptions) -> None:
        self._check_open()
        await (await self._send(make_row(topic, payload, None, options)))

    async def _send(self, row: Row) -> Receipt:
        return await (await self._guaranteed.default_producer(self._timeout_s))._send_row(row)

    async def publish_many(self, messages: Iterable[Publishable], *, timeout_s: float | None = None) -> None:
        """Publish messages, or pairs of topic and payload (direct), as fast as the router takes them.

        Direct messages keep their order, also with those that this client publishes before and after.
        Guaranteed ones keep theirs, and this waits until they are stored. Without a connection nothing is taken from
        the iterable, and this waits for one up to `timeout_s`, by default that of `connect`.

        Raises:
            InvalidRequestError: a message is illegal; those before it are published, and stored, the others are not.
            AngariumError: why a guaranteed message was refused, the first one.
            TimeoutExpiredError: there was no connection in time (TIMEOUT); those before are published.
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        if tracing.active is None:
            if refused := await self._publisher.publish_many(messages, timeout_s):
                raise refused
            return
        with tracing.sending_many(tracing.active, messages, self._connection, DeliveryMode.DIRECT) as traced:
            if refused := await self._publisher.publish_many(traced, timeout_s):
                raise refused

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was published so far has been matched and handed on by the router.

        Raises:
            TimeoutExpiredError: not within the time, by default the `timeout_s` of `connect` (TIMEOUT).
            ConnectionLostError: since the last flush messages were in flight when the connection was lost
                (NOT_CONNECTED).
        """
        self._check_open()
        await self._publisher.flush(self._within(timeout_s))

    # Subscribing.

    def subscribe(
        self,
        filters: str | Sequence[str],
        callback: MessageCallback | None = None,
        *,
        concurrency: int = 1,
        deliver_always: bool = False,
        local_only: bool = False,
        on_full: OnFull = "drop",
        buffer_messages: int = BUFFER_MESSAGES,
        buffer_bytes: int = BUFFER_BYTES,
        retained: bool = False,
        timeout_s: float | None = None,
    ) -> Opening[Subscription]:
        """Subscribe to one filter or several: `async with client.subscribe("a/>") as subscription`, or await it.

        It is in force when this is awaited or entered. A message that matches several filters of one subscription
        comes once, in the publisher's order over all of them. A message that matches several subscriptions goes to
        each.

        Args:
            filters: `a/b`, `a/*/c`, `a/>`, `#share/<group>/a/>`, `#noexport/...`.
            callback: called with each message instead of reading the subscription; awaited if it is `async
                def`.
            concurrency: calls of an `async def` callback that may run at once, 1 by default: one slow message does
                not delay the next ones. They begin in the order of the messages.
            deliver_always: get deliver-to-one messages whatever others subscribe to.
            local_only: do not tell the router; get what comes to this client anyway, for example because a
                subscription manager subscribed for it.
            on_full: what happens when the application reads too slowly. `drop`: the oldest messages that wait are
                dropped and counted, other subscriptions notice nothing. `stall`: nothing is dropped here, but when
                `window_messages` or `window_bytes` of `connect` wait the node stops sending to this client, for all
                its subscriptions and replies: it queues by class of service, elides, and drops what does not fit.
                Only so a slow screen gets the newest value of each topic (`angarium docs guarantees`).
            buffer_messages: messages that may wait, with `drop`.
            buffer_bytes: bytes that may wait, with `drop`.
            retained: first get what the node retains of these filters, then go on with what comes live; each message
                once. After a lost connection what is retained comes again.
            timeout_s: how long to wait for the router, by default the `timeout_s` of `connect`.

        Raises:
            InvalidRequestError: a filter is illegal, or shared and local (SHARED_LOCAL_DISPATCH), or another argument
                is illegal (INVALID_ARGUMENT).
            ForbiddenError: an ACL or the client profile denies it.
            TimeoutExpiredError: the router did not answer in time (TIMEOUT).
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        terms = Terms(deliver_always, local_only, on_full, buffer_messages, buffer_bytes, retained)
        return Opening(self._subscribe(filters, terms, callback, concurrency, timeout_s))

    async def _subscribe(
        self,
        filters: str | Sequence[str],
        terms: Terms,
        callback: MessageCallback | None,
        concurrency: int,
        timeout_s: float | None,
    ) -> Subscription:
        mailbox = self._make_mailbox(filters, terms)
        subscription = Subscription(mailbox, self._close_mailbox, callback, concurrency)
        await self._open_mailbox(mailbox, timeout_s)
        return subscription

    def _make_mailbox(self, filters: str | Sequence[str], terms: Terms) -> Mailbox:
        """Check the arguments of a subscription."""
        parsed = terms.check(filters_of(filters))
        self._check_open()
        mailbox = Mailbox(parsed, terms, self._reports.slow)
        mailbox.connection = self._connection
        return mailbox

    async def _open_mailbox(self, mailbox: Mailbox, timeout_s: float | None) -> None:
        """Subscribe for a mailbox; its reader is ready."""
        self._dispatcher.add(mailbox)
        answers = [self._interest.add(wish) for wish in mailbox.wishes]
        self._schedule_requests()
        try:
            await self._settle(answers, timeout_s)
        except BaseException:
            self._forget(mailbox)
            raise
        if mailbox.terms.retained and not self._retained.has_begun(mailbox):
            self._retained.start(mailbox)

    async def retained(self, filter_text: str, *, timeout_s: float | None = None) -> AsyncIterator[Message]:
        """Give what the node retains of a filter, by rising topics: the newest message of each topic.

        Raises:
            InvalidRequestError: the filter is illegal, or shared (INVALID_FILTER).
            ForbiddenError: an ACL denies it.
            AngariumError: the node refuses, is not there, or does not answer in time.
        """
        async for batch in self.retained_batches(filter_text, timeout_s=timeout_s):
            for message in batch:
                yield message

    async def retained_batches(
        self, filter_text: str, *, timeout_s: float | None = None
    ) -> AsyncIterator[MessageBatch]:
        """Give the same in batches, which is faster to read.

        Raises:
            AngariumError: as for `retained`.
        """
        self._check_open()
        async for rows, size in read_pages(self._guaranteed.operations, filter_text, self._within(timeout_s)):
            yield MessageBatch(rows, Delivery(rows, None, size))

    async def subscribe_for(
        self, client_name: str, filter_text: str, *, deliver_always: bool = False
    ) -> None:
        """Subscribe for another client, as a subscription manager; it ends when that client goes.

        Raises:
            ForbiddenError: this client is no manager, the other is not connected, or this client's ACL
                denies it.
            ConnectionLostError: there is no connection (NOT_CONNECTED).
        """
        await self._manage(wire.SUBSCRIBE, client_name, make_wish(filter_text, deliver_always=deliver_always))

    async def unsubscribe_for(
        self, client_name: str, filter_text: str, *, deliver_always: bool = False
    ) -> None:
        """Take a subscription from another client, as a subscription manager.

        Raises:
            ForbiddenError: as for `subscribe_for`.
            NotFoundError: the other client does not have it.
            ConnectionLostError: there is no connection (NOT_CONNECTED).
        """
        await self._manage(
            wire.UNSUBSCRIBE, client_name, make_wish(filter_text, deliver_always=deliver_always)
        )

    async def _manage(self, operation: bytes, client_name: str, wish: Wish) -> None:
        self._check_open()
        answer = self._interest.ask_for(operation, wish, client_name)
        self._schedule_requests()
        await self._settle([answer], None)

    async def _close_mailbox(self, mailbox: Mailbox) -> None:
        await self._settle(self._forget(mailbox), None)

    def _forget(self, mailbox: Mailbox) -> list[Answer]:
        """End a subscription here and ask the router to; give the answers that will come."""
        if mailbox not in self._dispatcher.subscriptions:
            mailbox.discard()
            return []
        self._remove(mailbox)
        answers = [self._interest.remove(wish) for wish in mailbox.wishes]
        mailbox.discard()
        self._schedule_requests()
        return answers

    def _remove(self, mailbox: Mailbox) -> None:
        """Let nothing more come to a subscription; what it counted stays in the figures."""
        self._dispatcher.remove(mailbox)
        self._retained.stop(mailbox)
        self._ended_callback_errors += mailbox.callback_errors
        self._ended_dropped += mailbox.dropped

    async def _settle(self, answers: list[Answer], timeout_s: float | None) -> None:
        """Wait for answers of the router; raise the first that is an error."""
        limit_s = self._within(timeout_s)
        pending = (await asyncio.wait(answers, timeout=limit_s))[1] if answers else ()
        if pending:
            raise errors.error_for(errors.TIMEOUT, f"the router did not answer within {limit_s} s")
        for settled in answers:
            error = settled.result()
            if error is not None:
                raise error

    def _schedule_requests(self) -> None:
        """Send requests at the end of this step, so that subscriptions made together go together."""
        if not self._are_requests_scheduled:
            self._are_requests_scheduled = True
            self._loop.call_soon(self._send_requests)

    def _send_requests(self) -> None:
        self._are_requests_scheduled = False
        if self._connection.session is not None:
            self._interest.send(self._connection.session)
            self._connection.transmit()

    # Request and reply.

    async def request(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **options: Unpack[MessageOptions],
    ) -> Message:
        """Publish a request and give the reply. A correlation id of your own comes back in it.

        Raises:
            NoRespondersError: nobody subscribed to the topic, neither a client nor a queue (NO_RESPONDERS); at once. A
                guaranteed request (`mode`) learns it only if the client profile says `reject_no_subscription_match`.
            TimeoutExpiredError: no reply within `timeout_s` seconds (TIMEOUT).
            InvalidRequestError: an argument is illegal; `reply_to` cannot be given.
            ConnectionLostError: the client is closed, or the connection is lost.
        """
        self._check_open()
        return await self._requests.request(topic, payload, timeout_s, options)

    async def reply(self, message: Message, payload: bytes = b"", **options: Unpack[MessageOptions]) -> None:
        """Publish the reply to a request, with its correlation id; as `publish` otherwise.

        Raises:
            InvalidRequestError: the message is no request: it has no `reply_to` (INVALID_ARGUMENT).
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        await self.publish(answer(message, options), payload, **options)

    # The end.

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is gathered, wait for acknowledgements, say BYE, take what comes before the end, let go.

        Producers and flows end; what a flow had not settled is delivered again. Subscriptions end; what they
        have buffered can still be read, and callbacks are called for it. Who calls it again waits for the first call.
        """
        if self._is_closing:
            # Not for callbacks: this may be one.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._ended.wait()
            return
        self._is_closing = True
        deadline = self._loop.time() + timeout_s
        is_answered, lost_before = True, self._connection.lost_messages
        try:
            async with asyncio.timeout_at(deadline):
                await self._publisher.drain()
                await self._guaranteed.drain()
                if self._connection.leave():
                    await self._left
        except (TimeoutError, errors.AngariumError):
            is_answered = False
        finally:
            self._end_closed(lost_before, is_answered=is_answered)
        while self._loop.time() < deadline and any(one.is_calling for one in self._dispatcher.subscriptions):
            await asyncio.sleep(0)  # Each step of the loop calls for some messages.
        tasks = {task for mailbox in self._dispatcher.subscriptions for task in mailbox.tasks}
        tasks.update(self._guaranteed.tasks())
        # A callback that closes the client need not wait for itself.
        if tasks := tasks - {asyncio.current_task()}:
            _, late = await asyncio.wait(tasks, timeout=max(deadline - self._loop.time(), 0))
            for task in late:
                task.cancel()

    def _end_closed(self, lost_before: int, *, is_answered: bool) -> None:
        """End because of `close`; says what may be lost if the node has not answered BYE in time."""
        unacknowledged = self.stats["unacknowledged_messages"]
        closed = errors.error_for(errors.CLIENT_CLOSED)
        self._publisher.refuse(closed)
        self._end(closed, None)
        lost = self._connection.lost_messages - lost_before
        if is_answered:
            return
        if not lost and not unacknowledged:
            _logger.warning("%r closed before the node answered, which has all that was published", self.name)
            return
        text = "%r closed before the node had it all: %d direct messages may be lost, %d guaranteed have no answer"
        _logger.warning(text, self.name, lost, unacknowledged)

    async def _connect(self) -> None:
        """Connect for the first time; `angarium.connect` calls it.

        Raises:
            AngariumError: the router refuses, or no address answers within the time (CONNECT_FAILED).
        """
        await self._connection.open()

    def __repr__(self) -> str:
        state = "connected" if self.connected else "closed" if self.closed else "not connected"
        return f"<Client {self.name!r} of Message VPN {self._options.hello.vpn!r} at {self.url}, {state}>"

    def _check_open(self) -> None:
        """Return if the client is in use.

        Raises:
            ConnectionLostError: it is closed, or its connection is lost for good.
        """
        if self._publisher.refusal is not None:
            raise self._publisher.refusal

    def _end(self, error: errors.AngariumError, reason: errors.AngariumError | None) -> None:
        """Let nothing more happen; subscriptions end with the reason."""
        self._connection.close()
        self._stall.stop()
        self._connection.lost_messages += self._publisher.give_up()
        self._interest.close(error)
        self._requests.fail(error)
        self._guaranteed.close(error, reason)
        for mailbox in self._dispatcher.subscriptions:
            self._retained.stop(mailbox)
            mailbox.let_go()
            mailbox.end(reason)
        self._ended.set()

    def _fail(self, error: errors.AngariumError) -> None:
        """The connection is lost for good."""
        self._publisher.refuse(error)
        self._end(error, error)
        self._reports.failed(error)

    def _forked(self) -> None:
        """Belong to the parent process from now on: see `angarium.client.forking`."""
        self._is_closing = True
        error = errors.error_for(errors.FORKED, f"{self} was connected by process {os.getppid()}")
        self._publisher.forked(error)
        self._connection.abandon()
        if self._thread == threading.get_ident():
            self._end(error, error)

    # What the connection tells.

    def _take(self, event: Event) -> None:
        if type(event) is Delivered:
            self._deliver(event)
        elif type(event) is Retired:
            self._publisher.go_on()
            self._guaranteed.go_on()
        elif type(event) in (Acknowledged, Arrived, Indicated, Replied):
            self._guaranteed.take(event)
        elif type(event) is Answered:
            self._interest.answered(event.request, event.results)
            self._schedule_requests()
        elif type(event) is Noticed and event.code == errors.NO_SUBSCRIPTION_MATCH:
            self._requests.unmatched(event.round, event.detail)
        elif type(event) is Noticed:
            self._refused_messages += event.messages
            self._reports.emit("notice", event.code, event.detail, event.messages)
        elif type(event) is TableChanged:
            assert self._welcome is not None
            self._welcome = self._welcome.with_table(event)
            self._publisher.set_table(event.epoch, event.slots)
            self._guaranteed.set_table(self._welcome)
        elif type(event) is Opened:
            self._open(event.welcome)
        else:
            assert type(event) is Closed, f"an event that nobody knows: {event!r}"
            self._lose(event)

    def _deliver(self, event: Delivered) -> None:
        for delivery in event.deliveries:
            self._received_messages += len(delivery.rows)
            self._dispatcher.dispatch(delivery)
        if event.dropped:
            self._discarded_messages += event.dropped
            self._reports.emit("discard", messages=event.dropped)

    def _drained(self) -> None:
        if self._dispatcher.awake:
            for mailbox in self._dispatcher.take_ready():
                mailbox.wake()
            self._stall.look()
        if self._guaranteed.awake:
            self._guaranteed.wake()

    def _release(self, messages: int, size_bytes: int) -> None:
        """Let the router send again what the application has made room for."""
        self._window.release(messages, size_bytes)
        session = self._connection.session
        if session is not None and session.renew_credit():
            self._connection.transmit()

    def _open(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._publisher.opened(welcome)
        old = self._requests.move(welcome.inbox)
        if old is not None:
            self._forget(old._mailbox)
        self._reports.connected(welcome)
        self._interest.go_online()
        self._schedule_requests()

    def _restored(self) -> None:
        """All subscriptions are in force: what waited may leave now, and meets them."""
        assert self._welcome is not None
        self._publisher.restored()
        self._guaranteed.connected(self._welcome)
        self._reports.restored(self._welcome)
        for mailbox in self._dispatcher.subscriptions:
            if mailbox.terms.retained:
                self._retained.start(mailbox)

    def _refused(self, wish: Wish, error: errors.AngariumError) -> None:
        """A subscription that was in force is refused on the new connection: it ends."""
        for mailbox in list(self._dispatcher.subscriptions):
            if wish in mailbox.wishes:
                self._give_up(mailbox, error)
        self._reports.emit("notice", error.code, f"{wish[0]}: {error.detail}")

    def _unread(self, mailbox: Mailbox, error: errors.AngariumError) -> None:
        """What is retained is not given to a subscription that begins with it: it ends."""
        self._give_up(mailbox, error)
        self._reports.emit("notice", error.code, f"{mailbox}: {error.detail}")

    def _give_up(self, mailbox: Mailbox, error: errors.AngariumError) -> None:
        """Let nothing more come to a subscription; what it has can still be read."""
        self._remove(mailbox)
        for wish in mailbox.wishes:
            self._interest.remove(wish)
        self._schedule_requests()
        mailbox.let_go()
        mailbox.end(error)

    def _lose(self, event: Closed) -> None:
        self._interest.go_offline()
        self._guaranteed.lost()
        for mailbox in self._dispatcher.subscriptions:
            if mailbox.terms.retained:
                mailbox.hold()
        if self._is_closing:
            # Before BYE the next connection comes, and what waits to be settled with it.
            if self._connection.is_leaving and not self._left.done():
                self._left.set_result(None)
        else:
            error = event.error or errors.error_for(errors.NOT_CONNECTED, "the router has closed")
            self._reports.lost(error)
        self._publisher.lost()

    def _validate(self) -> None:
        """Check the parts."""
        self._connection.validate()
        self._publisher.validate()
        self._interest.validate()
        self._dispatcher.validate()
        self._requests.validate()
        self._guaranteed.validate()
