"""Connecting: what `angarium.connect` takes, and what awaiting it gives.

The arguments are checked at once, the connection is made when the result is awaited or entered. Nothing else
is here; `angarium.client.connection.connection` does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

from angarium.client.client import Client
from angarium.client.connection.connection import ClientOptions, EventCallback
from angarium.client.connection.tokens import Tokens
from angarium.client.protocol.session import DEFAULT_USERNAME, KEEPALIVE_MS, Hello
from angarium.client.transport.address import DEFAULT_URL
from angarium.client.transport.credentials import credentials_for
from angarium.errors import invalid

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Sequence
    from types import TracebackType

    from angarium.client.connection.tokens import TokenSource
    from angarium.client.transport.credentials import PathLike

CONNECT_TIMEOUT_S: Final = 10.0
#: Messages that the router may send ahead of the application: 20 ms of a million messages per second.
WINDOW_MESSAGES: Final = 20_000
#: Bytes that it may send ahead, which bounds what a slow application holds.
WINDOW_BYTES: Final = 16 * 1024 * 1024


class ConnectArguments(TypedDict, total=False):
    """The arguments of `connect` besides the address."""

    vpn: str
    username: str
    password: str | None
    token: TokenSource | None
    client_name: str
    ca_file: PathLike | None
    cert_file: PathLike | None
    key_file: PathLike | None
    ssl_context: ssl.SSLContext | None
    local_priority: int
    network_priority: int
    no_local: bool
    timeout_s: float
    retry_for_s: float | None
    reconnect: bool
    window_messages: int
    window_bytes: int
    keepalive_ms: int
    on_event: EventCallback | None


class Connecting:
    """A connect that has not begun: await it for the client, or enter it as an async context manager."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._client: Client | None = None

    @property
    def timeout_s(self) -> float:
        """How long calls of the client wait if they are not told otherwise."""
        return self._options.timeout_s

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _open(self) -> Client:
        client = Client(self._options)
        await client._connect()
        return client


def connect(
    url: str | Sequence[str] = DEFAULT_URL,
    *,
    vpn: str = "default",
    username: str = DEFAULT_USERNAME,
    password: str | None = None,
    token: TokenSource | None = None,
    client_name: str = "",
    ca_file: PathLike | None = None,
    cert_file: PathLike | None = None,
    key_file: PathLike | None = None,
    ssl_context: ssl.SSLContext | None = None,
    local_priority: int = 1,
    network_priority: int = 1,
    no_local: bool = False,
    timeout_s: float = CONNECT_TIMEOUT_S,
    retry_for_s: float | None = None,
    reconnect: bool = True,
    window_messages: int = WINDOW_MESSAGES,
    window_bytes: int = WINDOW_BYTES,
    keepalive_ms: int = KEEPALIVE_MS,
    on_event: EventCallback | None = None,
) -> Connecting:
    """Connect a client: await this for it, or enter this as an async context manager.

    Args:
        url: `tls://host:port` or `tcp://host:port`, or several, which are tried in turn.
        vpn: the Message VPN.
        username: who connects.
        password: the secret of the username, or None if it has none.
        token: a token (JWT) instead of both, or a function, `async` or not, that gives a fresh one for each connection.
        client_name: unique in the VPN; empty for one that the router makes.
        ca_file: the authorities that may sign the node's certificate (`tls://`); by default those of the system.
        cert_file: a certificate of this client with its chain, for a node that demands one.
        key_file: its private key, which nobody else may read; by default it is in `cert_file`.
        ssl_context: a context of your own instead of these files.
        local_priority: for deliver-to-one messages published at this node, 1 (highest) to 4.
        network_priority: for those published at other nodes.
        no_local: do not get what this client itself publishes.
        timeout_s: for connecting, and the default for all calls that wait for the router.
        retry_for_s: how long to try while nobody answers, at first and whenever the connection is lost; by default
            `timeout_s` at first, and for ever later.
        reconnect: whether a lost connection is made again; subscriptions, producers and flows come back with it.
        window_messages: messages that the router may send ahead of the application.
        window_bytes: bytes that it may send ahead.
        keepalive_ms: how often each side is heard; three silences are the end of the connection, and so are 30 s in
            which the loop stands still.
        on_event: called with each `ClientEvent`.

    Raises:
        InvalidRequestError: an argument is illegal (INVALID_ARGUMENT), at once.
        AngariumError: when awaited: the router refuses, or nobody answers (CONNECT_FAILED).
    """
    urls = (url,) if isinstance(url, str) else tuple(url)
    username, tokens = _login(username, password, token)
    who, priorities = (vpn, username, password, client_name), (local_priority, network_priority)
    hello = Hello(*who, *priorities, no_local, None, keepalive_ms)
    credentials = credentials_for(urls, ca_file, cert_file, key_file, ssl_context)
    tries, window = (timeout_s, retry_for_s, reconnect), (window_messages, window_bytes)
    return Connecting(ClientOptions(urls, hello, credentials, *tries, *window, on_event, tokens))


def _login(username: str, password: str | None, token: TokenSource | None) -> tuple[str, Tokens | None]:
    """Give the username of HELLO, and where tokens come from."""
    _check_password(password)
    if token is None:
        return username, None
    if password is not None:
        raise invalid("connect: token stands instead of password: give one of them")
    # The token says who connects; a name that is given as well has to be the same.
    return "" if username == DEFAULT_USERNAME else username, Tokens(token)


def _check_password(password: object) -> None:
    """Say to who has read a file as bytes what is wrong; of the node it would be a malformed frame."""
    if password is not None and not isinstance(password, str):
        raise invalid(f"connect: password is text, not {type(password).__name__}")
