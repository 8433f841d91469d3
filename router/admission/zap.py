"""ZAP: who may finish the handshake. Address and rate are decided here.

Before a client costs the router anything.

Who a client is, HELLO says; CURVE keeps what it says from others and proves the node to the client. Any
client key is accepted. (https://rfc.zeromq.org/spec/27/)
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from angarium import errors
from angarium.errors import error_for
from angarium_server.access import network_of
from router.session import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.config import RouterConfig

_log = logging.getLogger("router")
#: Characters of a CURVE key in Z85.
KEY_LENGTH = 40
#: Handshakes may come a little faster than logins, so that most refusals can be told with a code by the
#: login.
HANDSHAKE_FACTOR = 2
#: Addresses whose rate is remembered.
ADDRESSES_MAX = 100_000


class HandshakeRates:
    """How many connections each network may open."""

    def __init__(self, config: RouterConfig, on_refused: Callable[[], None]) -> None:
        self._config = config
        self._on_refused = on_refused
        #: Network -> its rate.
        self._rates: dict[str, TokenBucket] = {}

    def allows(self, network: str, now: float) -> bool:
        """Tell whether one more may come, and count it."""
        bucket = self._rates.get(network)
        if bucket is None:
            if len(self._rates) >= ADDRESSES_MAX:
                self._rates.clear()
            rate = self._config.connects_per_second * HANDSHAKE_FACTOR
            bucket = self._rates[network] = TokenBucket(
                rate, self._config.connect_burst * HANDSHAKE_FACTOR, now
            )
        if bucket.take(now):
            return True
        self._on_refused()
        return False


class ZapHandler:
    """Answers the library's questions about peers."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], config: RouterConfig, rates: HandshakeRates
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")
        self._config = config
        self._rates = rates

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket demand CURVE if the node has keys.

        Raises:
            InvalidRequestError: the key file cannot be read (40017).
        """
        if not self._config.curve_secret_key_file:
            return
        secret = read_secret_key(Path(self._config.curve_secret_key_file))
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)

    def serve(self) -> None:
        """Answer every waiting question."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            delimiter = frames.index(b"")
            version, request, _, address, *_ = frames[delimiter + 1 :]
            network = network_of(address.decode("ascii", "replace"))
            allowed = self._rates.allows(network, time.monotonic())
            status = (b"200", b"OK") if allowed else (b"400", b"too many connects")
            self.socket.send_multipart(
                [*frames[: delimiter + 1], version, request, *status, b"", b""], zmq.NOBLOCK
            )


def read_secret_key(path: Path) -> bytes:
    """Read the secret key (Z85) of a key file made by `angarium keys curve`.

    Raises:
        InvalidRequestError: it cannot be read (40017); the text never holds the key.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise error_for(errors.INVALID_CONFIGURATION, f"{path}: {error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if len(keys) != 1 or len(keys[0]) != KEY_LENGTH:
        raise error_for(
            errors.INVALID_CONFIGURATION, f"{path} holds no key; make one with 'angarium keys curve'"
        )
    return keys[0].encode()
