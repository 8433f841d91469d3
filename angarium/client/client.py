"""The client of an application: connect, publish, subscribe, consume, request, reply.

`Client` joins the parts and carries out what follows from the events of a connection. How it stays connected
is in `angarium.client.connection`, publishing in `angarium.client.publisher`, what it wants to receive in
`angarium.client.interest`, how messages find subscriptions in `angarium.client.subscription`, replies in
`angarium.client.requests`, producers and flows in `angarium.client.guaranteed.parties`, and the calls about them in
`angarium.client.guaranteed.calls`. It belongs to one asyncio loop; `angarium.blocking` has the same client for threads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from angarium import errors, wire
from angarium.client.connection import ClientEvent, Connection
from angarium.client.events import (
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
from angarium.client.guaranteed.calls import GuaranteedCalls
from angarium.client.guaranteed.parties import Parties
from angarium.client.interest import Answer, Interest, Wish
from angarium.client.publisher import Publisher
from angarium.client.requests import Requests, answer
from angarium.client.sending.producer import make_row, queue_topic
from angarium.client.session import EgressWindow
from angarium.client.subscription import Dispatcher, MessageCallback, Subscription
from angarium.message import DeliveryMode
from angarium.topic import parse_filter

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence
    from types import TracebackType

    from angarium.client.connection import ClientOptions
    from angarium.client.sending.receipts import Receipt
    from angarium.message import Message, MessageOptions
    from angarium.slots import Publishable

CLOSE_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 5.0

_logger = logging.getLogger(__name__)


class Client(GuaranteedCalls):
    """A connected client; made by `connect`, closed by `close` or as an async context manager."""

    def __init__(self, options: ClientOptions) -> None:
        """Be ready to connect; applications call `connect`."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._window = EgressWindow(options.window_messages, options.window_bytes)
        self._dispatcher = Dispatcher(self._release)
        self._connection = Connection(options, self._window, self._take, self._drained, self._fail)
        self._publisher = Publisher(self._connection, self._publish_later)
        self._parties = Parties(self._connection, self._emit, self.check_open)
        self._timeout_s = options.timeout_s
        self._interest = Interest(self._refused, self._restored)
        self._requests = Requests(
            lambda topic, payload, options: self.publish(topic, payload, **options),
            lambda text, callback: self.subscribe(text, callback=callback),
        )
        #: What the router said last when it opened a session; None before the first.
        self._welcome: Welcome | None = None
        #: Done when the session that said BYE is over.
        self._left: asyncio.Future[None] = self._loop.create_future()
        self._are_requests_scheduled = False
        self._is_closing = False
        self._is_reconnected = False
        self._received_messages = 0
        self._discarded_messages = 0
        self._refused_messages = 0
        self._reconnects = 0
        self._ended_callback_errors = 0

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
        errors_now = sum(one.callback_errors for one in dispatcher.subscriptions)
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
            "buffered_messages": self._window.held_messages,
            "buffered_bytes": self._window.held_bytes,
            "subscriptions": len(dispatcher.subscriptions),
            "callback_errors": self._ended_callback_errors + errors_now,
            "late_replies": self._requests.late_replies,
            "reconnects": self._reconnects,
            **self._parties.stats,
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

        A direct message waits only while there is no ingress credit or no connection; what the router refuses
        comes as a `notice` to `on_event`. With the mode persistent or non-persistent this waits until the message
        is stored; who publishes many opens a `producer`, which does not wait for each.

        Args:
            topic: 1 to 250 bytes of UTF-8, at most 128 levels; none if `queue` is given.
            payload: up to the router's limit.
            queue: the name of a queue to publish to, instead of a topic; the mode is persistent by default then.
            **options: see `Message`.

        Raises:
            InvalidRequestError: the topic, the payload or an option is illegal.
            AngariumError: why a guaranteed message was refused.
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        if queue is not None:
            topic = queue_topic(topic, queue)
            options.setdefault("mode", DeliveryMode.PERSISTENT)
        if options.get("mode", DeliveryMode.DIRECT) == DeliveryMode.DIRECT:
            return self._publisher.publish(topic, payload, **options)
        return self._publish_guaranteed(topic, payload, options)

    async def _publish_guaranteed(self, topic: str, payload: Any, options: MessageOptions) -> None:
        self.check_open()
        row = make_row(topic, payload, None, options)
        await (await (await self._parties.default_producer(self._timeout_s)).send_row(row))

    async def _publish_later(self, message: Message) -> Receipt:
        """Hand a guaranteed message of `publish_many` to the default producer."""
        return await (await self._parties.default_producer(self._timeout_s)).send_row(message.row)

    async def publish_many(self, messages: Iterable[Publishable]) -> None:
        """Publish messages, or pairs of topic and payload (direct), as fast as the router takes them.

        Direct messages keep their order, also with those that this client publishes before and after.
        Guaranteed ones keep theirs, and this waits until they are stored.

        Raises:
            InvalidRequestError: a message is illegal; those before it are published, the others are not.
            AngariumError: why a guaranteed message was refused, the first one.
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        await self._publisher.publish_many(messages)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was published so far has been matched and handed on by the router.

        Raises:
            TimeoutExpiredError: not within the time, by default the `timeout_s` of `connect` (TIMEOUT).
            ConnectionLostError: since the last flush messages were in flight when the connection was lost
                (NOT_CONNECTED).
        """
        await self._publisher.flush(self._options.timeout_s if timeout_s is None else timeout_s)

    # Subscribing.

    async def subscribe(
        self,
        filters: str | Sequence[str],
        *,
        deliver_always: bool = False,
        local_only: bool = False,
        callback: MessageCallback | None = None,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Subscribe to one filter or several; give the subscription when it is in force.

        A message that matches several filters of one subscription comes once, in the publisher's order over
        all of them. A message that matches several subscriptions goes to each.

        Args:
            filters: `a/b`, `a/*/c`, `a/>`, `#share/<group>/a/>`, `#noexport/...`.
            deliver_always: get deliver-to-one messages whatever others subscribe to.
            local_only: do not tell the router; get what comes to this client anyway, for example because a
                subscription manager subscribed for it.
            callback: called with each message instead of reading the subscription; awaited if it is `async
                def`.
            timeout_s: how long to wait for the router, by default the `timeout_s` of `connect`.

        Raises:
            InvalidRequestError: a filter is illegal, or shared and local (SHARED_LOCAL_DISPATCH).
            ForbiddenError: an ACL or the client profile denies it.
            TimeoutExpiredError: the router did not answer in time (TIMEOUT).
            ConnectionLostError: the client is closed, or the connection is lost for good.
        """
        parsed = tuple(map(parse_filter, [filters] if isinstance(filters, str) else filters))
        if not parsed:
            raise errors.error_for(errors.INVALID_ARGUMENT, "a subscription has one filter at least")
        if local_only and any(one.share is not None for one in parsed):
            raise errors.error_for(errors.SHARED_LOCAL_DISPATCH, ", ".join(one.text for one in parsed))
        self.check_open()
        subscription = Subscription(
            parsed, self._unsubscribe, deliver_always=deliver_always, local_only=local_only, callback=callback
        )
        self._dispatcher.add(subscription)
        answers = [self._interest.add(wish) for wish in _wishes(subscription)]
        self._schedule_requests()
        try:
            await self._settle(answers, timeout_s)
        except BaseException:
            self._forget(subscription)
            raise
        return subscription

    async def subscribe_for(
        self, client_name: str, filter_text: str, *, deliver_always: bool = False
    ) -> None:
        """Subscribe for another client, as a subscription manager; it ends when that client goes.

        Raises:
            ForbiddenError: this client is no manager, the other is not connected, or this client's ACL
                denies it.
            ConnectionLostError: there is no connection (NOT_CONNECTED).
        """
        await self._manage(wire.SUBSCRIBE, client_name, _wish(filter_text, deliver_always=deliver_always))

    async def unsubscribe_for(
        self, client_name: str, filter_text: str, *, deliver_always: bool = False
    ) -> None:
        """Take a subscription from another client, as a subscription manager.

        Raises:
            ForbiddenError: as for `subscribe_for`.
            NotFoundError: the other client does not have it.
            ConnectionLostError: there is no connection (NOT_CONNECTED).
        """
        await self._manage(wire.UNSUBSCRIBE, client_name, _wish(filter_text, deliver_always=deliver_always))

    async def _manage(self, operation: bytes, client_name: str, wish: Wish) -> None:
        self.check_open()
        answer = self._interest.ask_for(operation, wish, client_name)
        self._schedule_requests()
        await self._settle([answer], None)

    async def _unsubscribe(self, subscription: Subscription) -> None:
        await self._settle(self._forget(subscription), None)

    def _forget(self, subscription: Subscription) -> list[Answer]:
        """End a subscription here and ask the router to; give the answers that will come."""
        if subscription not in self._dispatcher.subscriptions:
            return []
        self._dispatcher.remove(subscription)
        self._ended_callback_errors += subscription.callback_errors
        answers = [self._interest.remove(wish) for wish in _wishes(subscription)]
        subscription.discard()
        self._schedule_requests()
        return answers

    async def _settle(self, answers: list[Answer], timeout_s: float | None) -> None:
        """Wait for answers of the router; raise the first that is an error."""
        limit_s = self._options.timeout_s if timeout_s is None else timeout_s
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
            TimeoutExpiredError: no reply within `timeout_s` seconds (TIMEOUT).
            InvalidRequestError: an argument is illegal; `reply_to` cannot be given.
            ConnectionLostError: the client is closed, or the connection is lost.
        """
        self.check_open()
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
        have buffered can still be read, and callbacks are called for it.
        """
        if self._is_closing:
            return
        self._is_closing = True
        deadline = self._loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._publisher.drain()
                await self._parties.drain()
                if self._connection.leave():
                    await self._left
        except (TimeoutError, errors.AngariumError):
            _logger.warning("%s closed without the router's consent: %s", self.name, self.stats)
        finally:
            self._publisher.refuse(errors.error_for(errors.CLIENT_CLOSED))
            self._end(errors.error_for(errors.CLIENT_CLOSED), None)
        tasks = [one.task for one in self._dispatcher.subscriptions if one.task is not None]
        tasks += self._parties.tasks()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(deadline - self._loop.time(), 0))
            for task in late:
                task.cancel()

    async def open(self) -> None:
        """Connect for the first time; `angarium.connect` calls it.

        Raises:
            AngariumError: the router refuses, or no address answers within the time (CONNECT_FAILED).
        """
        await self._connection.open()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def check_open(self) -> None:
        """Return if the client is in use.

        Raises:
            ConnectionLostError: it is closed, or its connection is lost for good.
        """
        if self._publisher.refusal is not None:
            raise self._publisher.refusal

    def _end(self, error: errors.AngariumError, reason: errors.AngariumError | None) -> None:
        """Let nothing more happen; subscriptions end with the reason."""
        self._connection.close()
        self._interest.close(error)
        self._requests.fail(error)
        self._parties.close(error, reason)
        for subscription in self._dispatcher.subscriptions:
            subscription.end(reason)

    def _fail(self, error: errors.AngariumError) -> None:
        """The connection is lost for good."""
        self._publisher.refuse(error)
        self._end(error, error)
        self._emit("failed", error.code, error.detail)

    # What the connection tells.

    def _take(self, event: Event) -> None:
        if type(event) is Delivered:
            self._deliver(event)
        elif type(event) is Retired:
            self._publisher.go_on()
            self._parties.go_on()
        elif type(event) in (Acknowledged, Arrived, Indicated, Replied):
            self._parties.take(event)
        elif type(event) is Answered:
            self._interest.answered(event.request, event.results)
            self._schedule_requests()
        elif type(event) is Noticed:
            self._refused_messages += event.messages
            self._emit("notice", event.code, event.detail, event.messages)
        elif type(event) is TableChanged:
            self._publisher.set_table(event.epoch, event.slots)
            self._parties.set_table(event.epoch, event.slots)
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
            self._emit("discard", messages=event.dropped)

    def _drained(self) -> None:
        for subscription in self._dispatcher.take_ready():
            subscription.wake()
        self._parties.wake()

    def _release(self, messages: int, size_bytes: int) -> None:
        """Let the router send again what the application has made room for."""
        self._window.release(messages, size_bytes)
        session = self._connection.session
        if session is not None and session.renew_credit():
            self._connection.transmit()

    def _open(self, welcome: Welcome) -> None:
        self._is_reconnected = self._welcome is not None
        self._welcome = welcome
        self._publisher.opened(welcome)
        old = self._requests.move(welcome.inbox)
        if old is not None:
            self._forget(old)
        if not self._is_reconnected:
            self._emit("connected")
        self._interest.go_online()
        self._schedule_requests()
        self._publisher.go_on()
        self._parties.connected(welcome)

    def _restored(self) -> None:
        if self._is_reconnected:
            self._reconnects += 1
            self._emit("reconnected")

    def _refused(self, wish: Wish, error: errors.AngariumError) -> None:
        """A subscription that was in force is refused on the new connection: it ends."""
        for subscription in list(self._dispatcher.subscriptions):
            wishes = _wishes(subscription)
            if wish in wishes:
                self._dispatcher.remove(subscription)
                self._ended_callback_errors += subscription.callback_errors
                for one in wishes:
                    self._interest.remove(one)
                subscription.end(error)
        self._emit("notice", error.code, f"{wish[0]}: {error.detail}")

    def _lose(self, event: Closed) -> None:
        self._interest.go_offline()
        self._parties.lost()
        if self._is_closing:
            if not self._left.done():
                self._left.set_result(None)
        else:
            error = event.error or errors.error_for(errors.NOT_CONNECTED, "the router has closed")
            self._emit("disconnected", error.code, error.detail)
        self._publisher.go_on()

    def _emit(self, kind: str, code: int = 0, detail: str = "", messages: int = 0) -> None:
        if self._options.on_event is None:
            return
        try:
            self._options.on_event(ClientEvent(kind, code, detail, messages, self.url))
        except Exception:
            _logger.exception("on_event raised for %s", kind)

    def validate(self) -> None:
        """Check the parts."""
        self._connection.validate()
        self._publisher.validate()
        self._interest.validate()
        self._dispatcher.validate()
        self._requests.validate()
        self._parties.validate()


def _wish(text: str, *, deliver_always: bool) -> Wish:
    return parse_filter(text).text, wire.SUBSCRIBE_DELIVER_ALWAYS if deliver_always else 0


def _wishes(subscription: Subscription) -> list[Wish]:
    """Give what the router is asked for a subscription, each once."""
    if subscription.local_only:
        return []
    flags = wire.SUBSCRIBE_DELIVER_ALWAYS if subscription.deliver_always else 0
    return list(dict.fromkeys((text, flags) for text in subscription.filters))
