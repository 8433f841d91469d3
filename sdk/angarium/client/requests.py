"""Request and reply: ids out, replies back.

A request names the inbox of this client as the place for the reply, and the reply finds the request that
waits for it by the correlation id: the application's own, or one made here. All replies come to one topic,
because a topic per request would fill every cache on the way with entries that nobody uses again.

`angarium.client.client` owns the one `Requests` of a client.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, TypeAlias

from angarium import errors
from angarium.message import DeliveryMode, Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from angarium.client.publishing.publisher import Publisher
    from angarium.client.subscribing.subscription import Subscription
    from angarium.message import MessageOptions

#: What became of a request; None if its connection was lost before it left.
_Reply: TypeAlias = "asyncio.Future[Message | errors.AngariumError | None]"


def answer(request: Message, options: MessageOptions) -> str:
    """Complete the options of a reply, and give the topic that it goes to.

    Raises:
        InvalidRequestError: the message asks for no reply (INVALID_ARGUMENT).
    """
    if request.reply_to is None:
        raise errors.invalid("the message has no reply_to")
    if request.correlation_id is not None:
        options.setdefault("correlation_id", request.correlation_id)
    options["is_reply"] = True
    return request.reply_to


class Requests:
    """Requests that wait for their replies."""

    def __init__(
        self,
        publisher: Publisher,
        publish: Callable[..., Awaitable[None]],
        subscribe: Callable[[str, Callable[[Message], None]], Awaitable[Subscription]],
        stall: Callable[[], str],
    ) -> None:
        """Use what the client offers; the inbox is subscribed to with the first request.

        Direct requests go to `publisher`, others to `publish`. `stall` says which subscription keeps replies from
        coming, or nothing.
        """
        self._publisher = publisher
        self._publish_any = publish
        self._subscribe = subscribe
        self._stall = stall
        #: The topic to which replies come; each connection has another.
        self._inbox = ""
        #: The subscription to it; None before the first request on a connection.
        self._replies: Subscription | None = None
        self._opening = asyncio.Lock()
        #: By correlation id. Each has one caller that waits for it.
        self._waiting: dict[str, _Reply] = {}
        #: Those of direct requests that have not left.
        self._unsent: set[_Reply] = set()
        #: Those that left and have no reply, by the number of their round and their topic.
        self._sent: dict[tuple[int, str], list[_Reply]] = {}
        #: Makes ids that an earlier client of the same name did not use.
        self._nonce: Final = secrets.token_hex(4)
        self._last = 0
        #: Replies for which nobody waits, or not any more.
        self.late_replies = 0
        #: Requests to topics that nobody subscribed to.
        self.without_responder = 0

    async def request(self, topic: str, payload: bytes, timeout_s: float, options: MessageOptions) -> Message:
        """See `Client.request`."""
        if options.get("reply_to") is not None:
            raise errors.invalid("a request chooses reply_to itself")
        if "timeout" in options:  # The name in asyncio, and no option of a message.
            raise errors.unexpected("request", "timeout", ["timeout_s"], {})
        deadline = asyncio.get_running_loop().time() + timeout_s
        # Before anything else: the next connection has another inbox.
        await self._publisher.connected(len(payload), timeout_s)
        try:
            async with asyncio.timeout_at(deadline):
                result = None
                while result is None:
                    # What has not left does not fail with a connection; it takes the inbox of the next.
                    await self._publisher.connected(len(payload), timeout_s)
                    options["reply_to"] = await self._open_inbox()
                    result = await self._ask(topic, payload, options)
        except errors.AngariumError:
            raise
        except TimeoutError:
            reason = self._stall()
            detail = f"no reply to {topic!r} within {timeout_s} s" + (f"; {reason}" if reason else "")
            raise errors.error_for(errors.TIMEOUT, detail) from None
        if isinstance(result, errors.AngariumError):
            raise result
        return result

    async def _ask(
        self, topic: str, payload: bytes, options: MessageOptions
    ) -> Message | errors.AngariumError | None:
        """Publish a request, and wait for what becomes of it; give None if its connection was lost before it left."""
        correlation_id = options.get("correlation_id")
        if correlation_id is None:
            self._last += 1
            correlation_id = options["correlation_id"] = f"{self._nonce}-{self._last}"
        if correlation_id in self._waiting:
            raise errors.invalid(f"a request with the correlation id {correlation_id!r} waits already")
        reply: _Reply = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        sent: list[tuple[int, str]] = []

        def on_sent(number: int | None) -> None:
            self._unsent.discard(reply)
            if self._waiting.get(correlation_id) is not reply:
                return  # It may have timed out while there was no credit.
            if number is not None:
                sent.append((number, topic))
                self._sent.setdefault(sent[0], []).append(reply)
            elif not reply.done():
                reply.set_result(None)

        try:
            await self._publish(topic, payload, options, reply, on_sent)
            return await reply
        finally:
            del self._waiting[correlation_id]
            self._unsent.discard(reply)
            if sent:
                self._answered(sent[0], reply)

    async def _publish(
        self,
        topic: str,
        payload: bytes,
        options: MessageOptions,
        reply: _Reply,
        on_sent: Callable[[int | None], None],
    ) -> None:
        """Publish a request, a direct one so that it is reported if nobody subscribed to its topic."""
        if options.get("mode", DeliveryMode.DIRECT) == DeliveryMode.DIRECT:
            self._unsent.add(reply)
            await self._publisher.publish_reported(Message(topic, payload, **options), on_sent)
            return
        try:
            await self._publish_any(topic, payload, **options)
        except errors.UnavailableError as error:
            if error.code != errors.NO_SUBSCRIPTION_MATCH:
                raise
            raise errors.error_for(errors.NO_RESPONDERS, f"{topic!r}") from None

    def _answered(self, key: tuple[int, str], reply: _Reply) -> None:
        """Take note that a request does not wait any more."""
        others = self._sent[key]
        others.remove(reply)
        if not others:
            del self._sent[key]

    def unmatched(self, number: int, topic: str) -> None:
        """Nobody subscribed to a topic of a round that had requests; there may have been other messages in it."""
        for reply in self._sent.get((number, topic), ()):
            if not reply.done():
                self.without_responder += 1
                reply.set_result(errors.error_for(errors.NO_RESPONDERS, f"{topic!r}"))

    def move(self, inbox: str) -> Subscription | None:
        """Take over the inbox of a new connection; give the subscription that is of no use any more."""
        old, self._replies = self._replies, None
        if self._inbox:
            lost = errors.error_for(errors.NOT_CONNECTED, "the inbox is another since the reconnect")
            for reply in self._waiting.values():
                if not reply.done() and reply not in self._unsent:
                    reply.set_result(lost)
        self._inbox = inbox
        return old

    def fail(self, error: errors.AngariumError) -> None:
        """Let everybody who waits have an error."""
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_result(error)

    async def _open_inbox(self) -> str:
        """Subscribe to the inbox of the connection unless it is done; give its topic."""
        async with self._opening:
            while self._replies is None:
                inbox = self._inbox
                try:
                    replies = await self._subscribe(inbox, self._on_reply)
                except errors.AngariumError:
                    if inbox == self._inbox:
                        raise
                    continue  # A reconnect came between, and the old inbox belongs to nobody.
                if inbox == self._inbox:
                    self._replies = replies
                else:
                    await replies.close()
            return self._inbox

    def _on_reply(self, message: Message) -> None:
        correlation_id = message.correlation_id
        reply = None if correlation_id is None else self._waiting.get(correlation_id)
        if reply is None or reply.done():
            self.late_replies += 1
        else:
            reply.set_result(message)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._replies is None or self._inbox
        assert all(self._sent.values())
        assert self._unsent <= set(self._waiting.values())
