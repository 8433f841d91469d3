"""What a request asks for, done: each with the client that it is of."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web

from angarium import errors
from angarium.errors import error_for
from angarium_server.http import bodies
from angarium_server.http.problems import RefusedError
from gateway.http.client import Stage
from gateway.http.credentials import credentials_of
from gateway.http.messages import Options
from gateway.http.targets import METHODS, Target, Verb, target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohttp.web import BaseRequest

    from angarium.errors import AngariumError
    from angarium.message import Row
    from cluster.http.config import HttpRuntime
    from gateway.http.client import Done, HttpClient
    from gateway.http.clients import Clients
    from gateway.http.credentials import Credentials

#: How long a message may wait for room, and for the node to store it; whether it is stored is not known then.
PUBLISH_S: Final = 30.0
#: Says of a guaranteed message that nobody wanted it.
UNROUTED: Final = {"Angarium-Unrouted": "true"}

#: What `GET /v1` answers.
INDEX: Final = {
    "resources": [
        {"method": "POST", "path": "/v1/topics/{topic}", "summary": "publish a message to a topic"},
        {"method": "POST", "path": "/v1/queues/{name}", "summary": "publish a message to a queue"},
    ]
}


class Requests:
    """The requests of a process."""

    def __init__(self, runtime: HttpRuntime, clients: Clients, touched: Callable[[], None]) -> None:
        """Do them by these clients; `touched` is called when there is something to send to the router."""
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
        target = target_of(request.raw_path)
        _allow(request, *METHODS[target.verb])
        if target.verb is Verb.INDEX:
            return bodies.answer(request, INDEX)
        options = Options(request.headers.items(), target.query)
        credentials = credentials_of(request.headers.get("Authorization"), options.vpn, address)
        with self._client(credentials) as client:
            await self._enter(client)
            with self._room(request):
                _go_on(request)
                payload = await bodies.read_bytes(request, self._bytes_max, self._timeout_s)
                row = options.row(target.topic, payload, client.attached.name)
                return await self._publish(client, row, target, options)

    # -- clients ---------------------------------------------------------------------------------------------

    @contextmanager
    def _client(self, credentials: Credentials) -> Iterator[HttpClient]:
        client = self._clients.find(credentials, time.monotonic())
        client.users += 1
        try:
            yield client
        finally:
            client.users -= 1
            client.idle_since = time.monotonic()

    async def _enter(self, client: HttpClient) -> None:
        """Wait until it is let in."""
        if client.stage is Stage.GREETING:
            if client.is_full:
                raise error_for(errors.CONTROL_RATE_EXCEEDED, "too many requests wait to be let in")
            await self._done(client.enter, self._timeout_s + PUBLISH_S)
        if client.stage is Stage.OVER:
            raise client.error or error_for(errors.SESSION_UNKNOWN)

    @contextmanager
    def _room(self, request: BaseRequest) -> Iterator[None]:
        """Keep room for the body of a request.

        Raises:
            RateLimitError: there is none (42902).
        """
        size = (
            self._bytes_max
            if request.content_length is None
            else min(request.content_length, self._bytes_max)
        )
        if self.body_bytes + size > self._memory:
            detail = f"bodies of {self._memory:,} bytes are on their way in"
            raise error_for(
                errors.CONTROL_RATE_EXCEEDED, detail, "try again, or raise http.body_memory_bytes"
            )
        self.body_bytes += size
        try:
            yield
        finally:
            self.body_bytes -= size

    async def _done(self, ask: Callable[[Done], None], timeout_s: float) -> None:
        """Ask for something, and wait until it is done.

        Raises:
            AngariumError: why it was not done; or it takes too long (40801).
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: AngariumError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        ask(tell)
        self._touched()
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError:
            detail = f"not done within {timeout_s:g} s; whether it was done later is not known"
            raise error_for(errors.TIMEOUT, detail, "try again") from None

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
            await self._done(lambda done: client.publish(row, done), PUBLISH_S)
        except errors.AngariumError as error:
            if error.code != errors.NO_SUBSCRIPTION_MATCH or target.verb is Verb.SEND:
                raise error_for(error.code, error.detail or repr(row[1]), error.advice) from None
            headers = UNROUTED
        return web.Response(status=204 if options.is_guaranteed else 202, headers=headers)


def _go_on(request: BaseRequest) -> None:
    """Have a body sent whose client waits for a word (RFC 9110, section 10.1.1)."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _allow(request: BaseRequest, *methods: str) -> None:
    """Refuse other methods.

    Raises:
        RefusedError: with those that are allowed (40501).
    """
    if request.method not in methods:
        detail = f"{request.method[:20]} of this resource"
        raise RefusedError(error_for(errors.METHOD_NOT_ALLOWED, detail), {"Allow": ", ".join(methods)})
