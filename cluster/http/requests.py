"""What a request asks for, done: each with the client that it is of."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohttp import web

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.http import bodies
from angarium_server.http.origins import target_in
from angarium_server.http.problems import allow
from cluster.http.events import tell
from gateway.http.client import ClientState
from gateway.http.credentials import credentials_of
from gateway.http.messages import Options, headers_of, json_of
from gateway.http.queues import LEASED_MAX, OUTCOMES, Receiver
from gateway.http.targets import METHODS, Target, Verb, take_number, target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiohttp.web import BaseRequest

    from angarium.message import Row
    from cluster.http.events import Events
    from cluster.http.role import HttpRuntime
    from gateway.http.client import Done, HttpClient
    from gateway.http.clients import Clients
    from gateway.http.credentials import Credentials
    from gateway.http.queues import Owner, Reader, Taken

#: How long a message may wait for room, and for the node to store it; whether it is stored is not known then.
PUBLISH_S: Final = 30.0
#: How long a reply, or a message of a queue, is waited for, without a word and at most; and the queue is looked into.
REPLY_S: Final = 5.0
WAIT_MAX_S: Final = 60.0
NO_WAIT_S: Final = 0.25
#: How long messages are on lease.
LEASE_S: Final = 30.0
LEASE_MAX_S: Final = 3_600.0
#: Says of a guaranteed message that nobody wanted it.
UNROUTED: Final = {"Angarium-Unrouted": "true"}
#: What `GET /v1` answers.
INDEX: Final = {
    "resources": [
        {"method": "POST", "path": "/v1/topics/{topic}", "summary": "publish a message to a topic"},
        {"method": "POST", "path": "/v1/queues/{name}", "summary": "publish a message to a queue"},
        {
            "method": "POST",
            "path": "/v1/requests/{topic}",
            "summary": "publish a request, and give its reply",
        },
        {
            "method": "POST",
            "path": "/v1/queues/{name}/receive",
            "summary": "take messages of a queue on lease",
        },
        {"method": "POST", "path": "/v1/queues/{name}/settle", "summary": "be done with messages on lease"},
        {
            "method": "GET",
            "path": "/v1/events{?topic,queue}",
            "summary": "a stream of messages, as Server-Sent Events",
        },
    ]
}


class Requests:
    """The requests of a process."""

    def __init__(
        self, runtime: HttpRuntime, clients: Clients, events: Events, touched: Callable[[], None]
    ) -> None:
        """Do them by these clients; `touched` is called when there is something to send to the router."""
        self._events = events
        settings = runtime.settings
        self._bytes_max = min(settings.max_body_bytes, runtime.max_message_bytes)
        self._memory = settings.body_memory_bytes
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._clients = clients
        self._touched = touched
        #: Room that is taken by bodies on their way in.
        self.body_bytes = 0

    async def answer(self, request: BaseRequest, address: str) -> web.StreamResponse:
        """Do what a request asks for.

        Raises:
            AngariumError: why not.
            RefusedError: the same, with headers that belong to it.
        """
        target = target_of(target_in(request))
        allow(request, *METHODS[target.verb])
        if target.verb is Verb.INDEX:
            return bodies.answer(request, INDEX)
        if target.verb is Verb.EVENTS:
            _check_page(request)
        asked = _asked(target)
        last = target.query.pop("last_event_id", "") or request.headers.get("Last-Event-ID", "")
        options = Options(request.headers.items(), target.query)
        credentials = credentials_of(request.headers.get("Authorization"), options.vpn, address)
        client = await self._client_of(credentials)
        with _Using(client):
            if target.verb is Verb.EVENTS:
                return await self._stream(request, client, target, last)
            if target.verb is Verb.RECEIVE:
                if request.body_exists:
                    advice = "say max, wait, lease and ack behind the question mark"
                    raise errors.invalid("nothing is expected in the body", advice)
                return await self._receive(request, client.reader(target.name, self._clients.receipts), asked)
            with _Room(self, self._size_of(request)):
                if target.verb is Verb.SETTLE:
                    return await self._settle(request, client.owner(target.name))
                payload = await bodies.read_bytes(request, self._bytes_max, self._timeout_s)
                if target.verb is Verb.REQUEST:
                    return await self._ask(client, target, options, payload, asked.wait_s)
                row = options.row(target.name, payload, client.attached.name)
                return await self._publish(client, row, target, options)

    # -- clients ---------------------------------------------------------------------------------------------

    async def _client_of(self, credentials: Credentials) -> HttpClient:
        """Give the client of a request, when it is let in."""
        client = self._clients.find(credentials, time.monotonic())
        try:
            with _Using(client):
                await self._enter(client)
        except errors.AngariumError:
            before = self._clients.go_back(client, credentials, time.monotonic())
            if before is None:
                raise
            return before
        return client

    async def _enter(self, client: HttpClient) -> None:
        """Wait until it is let in."""
        if client.state is ClientState.GREETING:
            if client.is_full:
                raise error_for(errors.CONTROL_RATE_EXCEEDED, "too many requests wait to be let in")
            await self._done(client.enter, self._timeout_s + PUBLISH_S)
        if client.state is ClientState.OVER:
            raise client.error or error_for(errors.SESSION_UNKNOWN)

    def _size_of(self, request: BaseRequest) -> int:
        """Give the room that the body of a request takes.

        Raises:
            RateLimitError: there is none (42902).
        """
        size = self._bytes_max
        if request.content_length is not None:
            size = min(request.content_length, size)
        if self.body_bytes + size > self._memory:
            detail = f"bodies of {self._memory:,} bytes are on their way in"
            raise error_for(
                errors.CONTROL_RATE_EXCEEDED, detail, "try again, or raise http.body_memory_bytes"
            )
        return size

    async def _done(
        self, ask: Callable[[Done], None], timeout_s: float, give_up: Callable[[Done], None] | None = None
    ) -> None:
        """Ask for something, and wait until it is done; `give_up` is told when nobody waits any more.

        Raises:
            AngariumError: why it was not done; or it takes too long (40801).
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        told = partial(tell, done, None)
        ask(told)
        self._touched()
        detail = f"not done within {timeout_s:g} s; whether it was done later is not known"
        limit = loop.call_later(
            timeout_s, lambda: tell(done, None, error_for(errors.TIMEOUT, detail, "try again"))
        )
        try:
            await done
        except (errors.AngariumError, asyncio.CancelledError):
            if give_up is not None:
                give_up(told)
            raise
        finally:
            limit.cancel()

    # -- publishing ------------------------------------------------------------------------------------------

    async def _publish(
        self, client: HttpClient, row: Row, target: Target, options: Options
    ) -> web.StreamResponse:
        """Publish a message: 204 when it is stored, 202 when it is on its way."""
        if code := client.refusal_of(row):
            raise error_for(code, repr(row[1]))
        if client.is_full:
            raise error_for(errors.CONTROL_RATE_EXCEEDED, "too many messages of this client wait")
        headers: dict[str, str] = {}
        try:
            await self._done(lambda done: client.publish(row, done), PUBLISH_S, client.withdraw)
        except errors.AngariumError as error:
            if error.code != errors.NO_SUBSCRIPTION_MATCH or target.verb is Verb.SEND:
                raise error_for(error.code, error.detail or repr(row[1]), error.advice) from None
            headers = UNROUTED
        return web.Response(status=204 if options.is_guaranteed else 202, headers=headers)

    async def _stream(
        self, request: BaseRequest, client: HttpClient, target: Target, last: str
    ) -> web.StreamResponse:
        if target.name:
            return await self._events.of_queue(request, client, target.name, last)
        return await self._events.of_topics(request, client, target.topics)

    # -- requests and replies --------------------------------------------------------------------------------

    async def _ask(
        self, client: HttpClient, target: Target, options: Options, payload: bytes, wait_s: float
    ) -> web.StreamResponse:
        """Publish a request, and answer with its reply."""
        answer: asyncio.Future[Row] = asyncio.get_running_loop().create_future()

        def row_of(inbox: str, correlation_id: str) -> Row:
            told = {"mode": "direct", "reply_to": inbox, "correlation_id": correlation_id}
            return options.row(target.name, payload, client.attached.name, **told)

        give_up = client.request(row_of, partial(tell, answer))
        self._touched()
        try:
            async with asyncio.timeout(wait_s):
                row = await answer
        except TimeoutError:
            raise error_for(errors.TIMEOUT, f"no reply to {target.name!r} within {wait_s:g} s") from None
        finally:
            give_up()
        return web.Response(body=row[5], headers=headers_of(row))

    # -- queues ----------------------------------------------------------------------------------------------

    async def _receive(self, request: BaseRequest, reader: Reader, asked: Asked) -> web.StreamResponse:
        """Answer with messages of a queue, as soon as there are some, or with none."""
        if reader.is_full:
            raise error_for(errors.CONTROL_RATE_EXCEEDED, "too many requests wait for messages of this queue")
        came: asyncio.Future[Sequence[Taken]] = asyncio.get_running_loop().create_future()
        receiver = Receiver(asked.most, asked.lease_s, partial(tell, came))
        reader.receive(receiver, time.monotonic())
        self._touched()
        try:
            async with asyncio.timeout(asked.wait_s):
                taken = await asyncio.shield(came)
        except TimeoutError:
            taken = came.result() if came.done() else ()
        except asyncio.CancelledError:
            self._fail(came)
            raise
        finally:
            reader.give_up(receiver, time.monotonic())
        if asked.is_accepted:
            for one in taken:
                self._clients.receipts.settle(one.receipt, wire.OUTCOME_ACCEPTED, time.monotonic())
            self._touched()
        return bodies.answer(request, {"messages": [_told(one, asked) for one in taken]})

    def _fail(self, came: asyncio.Future[Sequence[Taken]]) -> None:
        """Give back what came for a request that is gone."""
        if came.done() and not came.cancelled() and came.exception() is None:
            for one in came.result():
                self._clients.receipts.settle(one.receipt, wire.OUTCOME_FAILED, time.monotonic())
            self._touched()

    async def _settle(self, request: BaseRequest, owner: Owner) -> web.StreamResponse:
        """Be done with messages; answers which receipts are of none."""
        said = await bodies.read(request, self._bytes_max, self._timeout_s)
        if not said or not all(
            name in OUTCOMES and isinstance(receipts, list) and all(isinstance(one, str) for one in receipts)
            for name, receipts in said.items()
        ):
            advice = 'send {"accepted": [RECEIPT, ...]}; failed and rejected are possible, too'
            raise errors.invalid("the body is no object of lists of receipts", advice)
        unknown: list[str] = []
        for name, receipts in said.items():
            unknown += self._clients.receipts.settle_all(receipts, owner, OUTCOMES[name], time.monotonic())
        self._touched()
        return bodies.answer(request, {"unknown": unknown})


class _Using:
    """Keeps a client there while a request is at work with it; with a generator that costs five times as much."""

    __slots__ = ("_client",)

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def __enter__(self) -> None:
        self._client.users += 1

    def __exit__(self, *_: object) -> None:
        self._client.users -= 1
        self._client.idle_since = time.monotonic()


class _Room:
    """Keeps room for the body of a request."""

    __slots__ = ("_requests", "_size")

    def __init__(self, requests: Requests, size: int) -> None:
        self._requests = requests
        self._size = size

    def __enter__(self) -> None:
        self._requests.body_bytes += self._size

    def __exit__(self, *_: object) -> None:
        self._requests.body_bytes -= self._size


class Asked(NamedTuple):
    """What the query of a request says of waiting and of messages."""

    wait_s: float
    most: int = 1
    lease_s: float = LEASE_S
    is_accepted: bool = False


def _asked(target: Target) -> Asked:
    """Take what is about these out of the query.

    Raises:
        InvalidRequestError: something cannot be (40018).
    """
    query = target.query
    if target.verb is Verb.REQUEST:
        return Asked(take_number(query, "timeout", REPLY_S, 0.001, WAIT_MAX_S))
    if target.verb is not Verb.RECEIVE:
        return Asked(0.0)
    acknowledge = query.pop("ack", "explicit")
    if acknowledge not in ("explicit", "auto"):
        raise errors.invalid(f"ack is {acknowledge[:50]!r}", "say explicit or auto")
    return Asked(
        wait_s=take_number(query, "wait", 0.0, 0.0, WAIT_MAX_S) or NO_WAIT_S,
        most=int(take_number(query, "max", 1, 1, LEASED_MAX, is_whole=True)),
        lease_s=take_number(query, "lease", LEASE_S, 1.0, LEASE_MAX_S),
        is_accepted=acknowledge == "auto",
    )


def _told(taken: Taken, asked: Asked) -> dict[str, Any]:
    """Give a message of a queue for the answer."""
    told = {} if asked.is_accepted else {"receipt": taken.receipt}
    return {**told, **json_of(taken.row), "delivery_count": taken.attempts + 1, "stored_ms": taken.stored_ms}


def _check_page(request: BaseRequest) -> None:
    """Refuse a stream to a page of another site: with an image it asks without Origin, and would take messages.

    Raises:
        ForbiddenError: the browser says that it is one (40328).
    """
    site = request.headers.get("Sec-Fetch-Site", "none").lower()
    if site not in ("none", "same-origin") and "Origin" not in request.headers:
        raise error_for(errors.CROSS_ORIGIN, f"Sec-Fetch-Site is {site[:50]!r}")
