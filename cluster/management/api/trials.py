"""Publishing and subscribing by hand: an operator tries what a client would do, as a client.

The process connects to the router as any client, with the username that the operator gives, and its password if it has
one. So the rights are those of the username, and a message takes the path of all messages. Whether the operator may try
at all is judged by the controller, which writes it down: this process is on the host of the node, where usernames
without a password may log in.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

import angarium
from angarium import DeliveryMode, errors
from angarium_server.http import sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from angarium import Client, ClientEvent, Message

    Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]

#: Clients of trials at once; one more is refused.
TRIALS_MAX: Final = 20
#: How long the router may take for anything.
TIMEOUT_S: Final = 8.0
#: A stream of messages ends after so long.
HEARD_S: Final = 600.0
#: Messages that wait for a browser; with more the oldest are dropped, and counted. Of a payload so much is shown.
WAITING_MAX: Final = 500
PAYLOAD_SHOWN: Final = 16_384
#: Messages of one piece of a stream.
PIECE: Final = 100
#: A quiet stream looks so often whether it is to end.
LOOK_S: Final = 2.0
#: How clients of trials are called, with a number behind it.
NAME: Final = "console/"

_Name = Annotated[str, Meta(max_length=250)]


class As(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Under which client username."""

    username: _Name = "default"
    password: Annotated[str, Meta(max_length=1_000)] = ""


class PublishTrial(As, kw_only=True):
    """A message to a topic or a queue, one of both."""

    topic: _Name = ""
    queue: _Name = ""
    payload: str = ""
    #: What the text of the payload is.
    encoding: Literal["text", "base64"] = "text"
    guaranteed: bool = True
    ttl_ms: Annotated[int, Meta(ge=0, le=2**53)] = 0
    properties: dict[str, str] = {}


class SubscribeTrial(As, kw_only=True):
    """Topics to listen to."""

    filters: Annotated[list[_Name], Meta(min_length=1, max_length=10)]


class Trials:
    """Those of the process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open = 0
        self._made = 0

    async def publish(self, vpn: str, body: dict[str, Any], ask: Ask) -> None:
        """Publish one message.

        Raises:
            AngariumError: the operator may not, the username may not, or the router refuses the message.
        """
        wanted = _converted(body, PublishTrial)
        if bool(wanted.topic) == bool(wanted.queue):
            raise errors.invalid("name a topic or a queue")
        payload = _payload(wanted)
        target = wanted.topic or f"queue {wanted.queue}"
        told = {"vpn": vpn, "username": wanted.username, "does": "publish", "target": target}
        with self._trying():
            await ask("clients.try", told)
            refused: list[errors.AngariumError] = []
            async with self._client(vpn, wanted, _refusals(refused)) as client:
                mode = DeliveryMode.PERSISTENT if wanted.guaranteed else DeliveryMode.DIRECT
                options: dict[str, Any] = {"mode": mode, "ttl_ms": wanted.ttl_ms}
                if wanted.properties:
                    options["properties"] = wanted.properties
                async with asyncio.timeout(TIMEOUT_S):
                    await client.publish(wanted.topic, payload, queue=wanted.queue or None, **options)
                    await client.flush()
        if refused:
            raise refused[0]

    @contextlib.asynccontextmanager
    async def heard(self, vpn: str, body: dict[str, Any], ask: Ask) -> AsyncIterator[Heard]:
        """Subscribe, and give what comes meanwhile.

        Raises:
            AngariumError: the operator may not, the username may not, or a filter is refused.
        """
        wanted = _converted(body, SubscribeTrial)
        told = {
            "vpn": vpn,
            "username": wanted.username,
            "does": "subscribe",
            "target": ", ".join(wanted.filters),
        }
        with self._trying():
            await ask("clients.try", told)
            async with self._client(vpn, wanted, lambda _: None) as client:
                source = Heard(client)
                await client.subscribe(wanted.filters, source.take)
                yield source

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        if self._open >= TRIALS_MAX:
            detail = f"{TRIALS_MAX} clients of operators are connected"
            raise errors.error_for(errors.CONTROL_RATE_EXCEEDED, detail, "end a subscription of the console")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    @contextlib.asynccontextmanager
    async def _client(
        self, vpn: str, who: As, on_event: Callable[[ClientEvent], None]
    ) -> AsyncIterator[Client]:
        """Connect, and close in the end.

        Raises:
            AngariumError: the router refuses it. One that is not let in is no operator who is not: it is 40018.
        """
        self._made += 1
        connecting = angarium.connect(
            self._url,
            vpn=vpn,
            username=who.username,
            password=who.password or None,
            client_name=f"{NAME}{self._made}",
            timeout_s=TIMEOUT_S,
            reconnect=False,
            on_event=on_event,
        )
        try:
            client = await connecting
        except errors.UnauthorizedError as error:
            detail = f"the node does not let the client username {who.username!r} in: {error.text}"
            raise errors.invalid(detail, "check Message VPN, username and password of the client") from None
        try:
            yield client
        finally:
            await client.close()


class Heard:
    """Messages that came, as a source of a stream of events."""

    wait_s = LOOK_S

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: deque[Message] = deque()
        self._dropped = 0
        self._ends_at = asyncio.get_running_loop().time() + HEARD_S
        self.changed: asyncio.Future[None] | None = None
        self.is_over = False

    def take(self, message: Message) -> None:
        """Take a message."""
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(message)
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(None)

    async def next(self) -> bytes:
        """Give the messages that came since, as events, and before them how many were dropped."""
        self.is_over = self._client.closed or asyncio.get_running_loop().time() >= self._ends_at
        dropped, self._dropped = self._dropped, 0
        data = sse.event_of({"dropped": dropped}, kind="dropped") if dropped else b""
        for _ in range(min(PIECE, len(self._waiting))):
            data += sse.event_of(shown(self._waiting.popleft()))
        self.changed = asyncio.get_running_loop().create_future()
        if self._waiting:
            self.changed.set_result(None)
        return data

    def beat(self) -> bytes:
        """Say nothing."""
        return sse.COMMENT


def shown(message: Message) -> dict[str, Any]:
    """Give a message as an event says it: its payload in base64, so that nothing is lost of it."""
    payload = bytes(message.payload)
    properties = message.properties or {}
    return {
        "topic": message.topic,
        "payload": base64.b64encode(payload[:PAYLOAD_SHOWN]).decode(),
        "size_bytes": len(payload),
        "guaranteed": message.mode != DeliveryMode.DIRECT,
        "properties": {name: str(value)[:1_000] for name, value in properties.items()},
    }


def _payload(wanted: PublishTrial) -> bytes:
    if wanted.encoding == "text":
        return wanted.payload.encode()
    try:
        return base64.b64decode(wanted.payload, validate=True)
    except (binascii.Error, ValueError):
        raise errors.invalid("the payload is no base64") from None


def _refusals(refused: list[errors.AngariumError]) -> Callable[[ClientEvent], None]:
    """Give what notes why a direct message was refused."""

    def note(event: ClientEvent) -> None:
        if event.code:
            refused.append(errors.error_for(event.code, event.detail))

    return note


def _converted(body: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise errors.invalid(str(error)) from None
