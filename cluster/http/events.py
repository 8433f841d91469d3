"""Streams of events, as requests ask for them: of topics, and of a queue."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.http import outlet as outlets
from gateway.http.client import ClientState
from gateway.http.queues import Receiver
from gateway.http.streams import Stream, event_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aiohttp import web
    from aiohttp.web import BaseRequest

    from angarium.errors import AngariumError
    from gateway.http.client import Done, HttpClient
    from gateway.http.clients import Clients
    from gateway.http.queues import Owner, Reader, Taken
    from gateway.http.streams import Streams

#: How long filters may take to be in force.
SUBSCRIBE_S: Final = 10.0
#: A stream of a queue ends after so many messages, or so long after its first one: who comes again has read them.
QUEUE_MESSAGES_MAX: Final = 500
QUEUE_S: Final = 60.0
#: So long after its end what was sent is kept for who comes again; and so many streams are remembered.
RESUME_S: Final = 30.0
JOURNALS_MAX: Final = 10_000
#: Messages that a stream asks for at once.
ASKED: Final = 100
#: Digits of the number of an event.
DIGITS_MAX: Final = 15


class Journal:
    """What a stream of a queue has sent, in its order, and nobody has said that he has.

    One that goes on where another has ended has the name of that, and counts on: who hears nothing of it before its
    connection breaks comes again with the id of an event before, and misses nothing.
    """

    def __init__(self, owner: Owner, stream: Stream, name: str = "", read: int = 0) -> None:
        self.name: Final = name or secrets.token_urlsafe(9)
        self.owner: Final = owner
        self.stream: Final = stream
        #: How many events of this name were read before, and those behind them.
        self.read: Final = read
        self.sent: list[Taken] = []


class Events:
    """Those of a process."""

    def __init__(
        self, clients: Clients, streams: Streams, headers: Mapping[str, str], touched: Callable[[], None]
    ) -> None:
        self._headers = headers
        self._clients = clients
        self._streams = streams
        self._touched = touched
        #: By name, the oldest first.
        self._journals: dict[str, Journal] = {}

    # -- topics ----------------------------------------------------------------------------------------------

    async def of_topics(
        self, request: BaseRequest, client: HttpClient, filters: Sequence[str]
    ) -> web.StreamResponse:
        """Send what some filters match, until one side goes."""
        try:
            await self._in_force(partial(client.subscribe, filters))
            response, stream, over = await self._begin(request, client, filters)
            try:
                await over
            finally:
                self._end(client, stream)
        finally:
            client.unsubscribe(filters)
            self._touched()
        response.force_close()
        return response

    async def _in_force(self, subscribe: Callable[[Done], None]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        subscribe(partial(tell, done, None))
        self._touched()
        try:
            async with asyncio.timeout(SUBSCRIBE_S):
                await done
        except TimeoutError:
            raise error_for(errors.TIMEOUT, "the filters are not in force") from None

    async def _begin(
        self, request: BaseRequest, client: HttpClient, filters: Sequence[str] = ()
    ) -> tuple[web.StreamResponse, Stream, asyncio.Future[AngariumError]]:
        """Send the head of an answer; gives its stream, and what is done when that is over."""
        response, outlet = await outlets.begin(request, self._headers)
        over: asyncio.Future[AngariumError] = asyncio.get_running_loop().create_future()
        stream = Stream(client.attached.vpn, filters, outlet, lambda error: tell(over, error, None))
        self._streams.add(stream, time.monotonic())
        client.streams[stream] = None
        if client.state is ClientState.OVER:  # since it was let in; nobody else would end it
            stream.end(client.error or error_for(errors.SESSION_UNKNOWN))
        return response, stream, over

    def _end(self, client: HttpClient, stream: Stream) -> None:
        client.streams.pop(stream, None)
        self._streams.remove(stream)

    # -- queues ----------------------------------------------------------------------------------------------

    async def of_queue(
        self, request: BaseRequest, client: HttpClient, queue: str, last: str
    ) -> web.StreamResponse:
        """Send messages of a queue, after those that were sent behind a last event; what came before it is accepted."""
        owner = client.owner(queue)
        response, stream, over = await self._begin(request, client)
        reader = client.reader(queue, self._clients.receipts)
        journal, unread = self._resume(last, owner, stream)
        try:
            self._put(journal, unread)
            async with asyncio.timeout(None) as limit:
                while not over.done() and len(journal.sent) < QUEUE_MESSAGES_MAX:
                    if journal.sent and limit.when() is None:
                        limit.reschedule(asyncio.get_running_loop().time() + QUEUE_S)
                    most = min(ASKED, QUEUE_MESSAGES_MAX - len(journal.sent))
                    await self._go_on(journal, reader, most, over)
        except TimeoutError:
            pass
        except errors.AngariumError as error:
            stream.end(error)
        finally:
            self._end(client, stream)
            self._keep(journal)
        response.force_close()
        return response

    async def _go_on(
        self, journal: Journal, reader: Reader, most: int, over: asyncio.Future[AngariumError]
    ) -> None:
        """Wait for messages and send them, or for the end of the stream."""
        if reader.is_full:
            raise error_for(errors.CONTROL_RATE_EXCEEDED, "too many requests wait for messages of this queue")
        came: asyncio.Future[Sequence[Taken]] = asyncio.get_running_loop().create_future()
        receiver = Receiver(most, inf, partial(tell, came))
        reader.receive(receiver, time.monotonic())
        self._touched()
        try:
            await asyncio.wait((came, over), return_when=asyncio.FIRST_COMPLETED)
        finally:  # its time may be over, or its client gone, in the moment in which they come
            reader.give_up(receiver, time.monotonic())
            taken = came.result() if came.done() and came.exception() is None else ()
            if over.done():
                self._fail(taken)
            else:
                self._put(journal, taken)
        if came.done() and not over.done():
            came.result()

    def _fail(self, taken: Sequence[Taken]) -> None:
        for one in taken:
            self._clients.receipts.settle(one.receipt, wire.OUTCOME_FAILED, time.monotonic())

    def _put(self, journal: Journal, taken: Sequence[Taken]) -> None:
        now = time.monotonic()
        for one in taken:
            journal.sent.append(one)
            if not self._clients.receipts.extend(one.receipt, inf):
                continue  # it is the queue's again, and keeps its number
            name = f"{journal.name}.{journal.read + len(journal.sent)}"
            more: dict[str, Any] = {"delivery_count": one.attempts + 1, "stored_ms": one.stored_ms}
            journal.stream.put(event_of(one.row, name, **more), now)

    def _journals_add(self, journal: Journal) -> Journal:
        if len(self._journals) >= JOURNALS_MAX:
            del self._journals[next(iter(self._journals))]
        self._journals[journal.name] = journal
        return journal

    def _keep(self, journal: Journal) -> None:
        """Keep what was sent for who comes again; then it fails."""
        until = time.monotonic() + RESUME_S
        for one in journal.sent:
            self._clients.receipts.extend(one.receipt, until)
        asyncio.get_running_loop().call_later(RESUME_S, self._forget, journal)
        self._touched()

    def _forget(self, journal: Journal) -> None:
        if self._journals.get(journal.name) is journal:
            del self._journals[journal.name]

    def _resume(self, last: str, owner: Owner, stream: Stream) -> tuple[Journal, list[Taken]]:
        """Accept what an event stands for; gives the journal of a stream, and what it sends first: all behind that.

        A new one, and nothing, if that event is not known.
        """
        name, _, number = last.rpartition(".")
        before = self._journals.get(name)
        is_number = number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX
        if before is None or before.owner != owner or not is_number:
            return self._journals_add(Journal(owner, stream)), []
        del self._journals[name]
        before.stream.end(error_for(errors.TAKEN_OVER, "its client has come again"))
        count = min(max(0, int(number) - before.read), len(before.sent))
        read, unread = before.sent[:count], before.sent[count:]
        before.sent = []
        now = time.monotonic()
        for one in read:
            self._clients.receipts.settle(one.receipt, wire.OUTCOME_ACCEPTED, now)
        return self._journals_add(Journal(owner, stream, name, before.read + count)), unread


def tell(future: asyncio.Future[Any], value: Any, error: AngariumError | None) -> None:
    """Have a future done; nobody may wait for it any more."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
