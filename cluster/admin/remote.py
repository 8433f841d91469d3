"""The way of an operator to the admin API of another host: synchronous, over TLS, made again when it was lost.

`cluster.admin.client` uses it, and says hello over each connection that is new. What is said is that of the SDK,
without a socket there: `angarium.client.transport.tls`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.client.transport.address import parse
from angarium.client.transport.credentials import Credentials
from angarium.client.transport.tls import NOT_TLS, Tls
from angarium.client.transport.zmtp import ZmtpError, pack

if TYPE_CHECKING:
    from angarium.client.transport.credentials import PathLike

#: A controller that was restarted listens again within this time.
RESTART_S: Final = 5.0
_RETRY_S: Final = 0.1
#: One that dies closes connections that it has taken; so many are begun, and so long after each other.
HANDSHAKES_MAX: Final = 3
_AGAIN_S: Final = 0.3
#: The least that a wait of the system may be: 0 would mean not to wait, which is another mode.
_LEAST_S: Final = 0.001

_UNKNOWN: Final = "the connection ended before the answer came, so whether it was done is not known"
_RESTARTED: Final = "the controller may have been restarted: look whether it was done, and try again"
_ADDRESS: Final = "--admin-url is that of [admin] listen in the configuration of the node"


class RemoteTransport:
    """Frames to one address and back."""

    def __init__(
        self, url: str, credentials: Credentials, server_name: str = "", advice: str = _ADDRESS
    ) -> None:
        """Nothing is connected yet.

        Args:
            url: `tls://` address.
            credentials: whom to trust, and who we are.
            server_name: the name that the certificate there must have; empty: the host of the address.
            advice: what to do if nobody answers there.

        Raises:
            InvalidRequestError: it is no address (40018).
        """
        self._url = url
        self._place = parse(url)
        self._credentials = credentials
        self._server_name = server_name or self._place[0]
        self._advice = advice
        #: None while nothing is connected; both or none.
        self._socket: socket.socket | None = None
        self._tls: Tls | None = None
        #: Messages that came and were not received.
        self._messages: deque[list[bytes]] = deque()

    @classmethod
    def of_operator(
        cls, url: str, ca_file: PathLike | None, cert_file: PathLike | None, key_file: PathLike | None
    ) -> RemoteTransport:
        """Give the way of an operator, after reading the files.

        Raises:
            InvalidRequestError: it is no address, a file cannot be used, or there is no certificate (40018).
        """
        if cert_file is None:
            detail = f"{url} needs a certificate that says who you are"
            advice = "name it with --cert-file, and its key with --key-file"
            raise errors.invalid(detail, advice)
        return cls(url, Credentials(ca_file, cert_file, key_file))

    def connect(self, deadline: float) -> bool:
        """Connect if nothing is connected, or no longer; tell whether that was needed.

        Raises:
            ConnectionLostError: nobody answers there, or the handshake failed (60003, 60006).
            TimeoutExpiredError: it takes too long (40801).
        """
        if self._socket is not None and not self._has_ended():
            return False
        for tries_left in reversed(range(HANDSHAKES_MAX)):
            self.drop()
            self._socket = self._connected(deadline)
            try:
                self._shake_hands(deadline)
                break
            except errors.ConnectionLostError as error:
                if error.code != errors.CONNECT_FAILED or not tries_left:
                    raise
            time.sleep(_AGAIN_S)
        return True

    def _shake_hands(self, deadline: float) -> None:
        self._tls = Tls(self._credentials.context(), self._server_name)
        self._write([self._tls.start()], deadline)
        while not self._tls.is_open:
            if time.monotonic() >= deadline:
                self.drop()
                detail = f"{self._url} takes the connection and does not answer"
                raise errors.error_for(errors.TIMEOUT, detail, self._advice)
            self._read(deadline - time.monotonic())

    def certificate(self) -> bytes:
        """Give what the other side showed (DER), as long as we are connected."""
        assert self._tls is not None
        return self._tls.peer_certificate()

    def local_host(self) -> str:
        """Give the address of this host by which we are connected."""
        assert self._socket is not None
        return str(self._socket.getsockname()[0])

    def send(self, frame: bytes, deadline: float) -> None:
        """Send a message of one frame.

        Raises:
            TimeoutExpiredError: the other side does not take it (40801).
        """
        self.send_message([frame], deadline)

    def send_message(self, frames: list[bytes], deadline: float) -> None:
        """Send a message.

        Raises:
            TimeoutExpiredError: the other side does not take it (40801).
        """
        assert self._tls is not None
        self._write(self._tls.seal(pack(frames)), deadline)

    def receive(self, wait_s: float) -> bytes | None:
        """Give the last frame of the next message, None if there is none within so many seconds.

        Raises:
            ConnectionLostError: there will be none (60003).
        """
        message = self.receive_message(wait_s)
        return None if message is None else message[-1]

    def receive_message(self, wait_s: float) -> list[bytes] | None:
        """Give the next message, None if there is none within so many seconds.

        Raises:
            ConnectionLostError: there will be none (60003).
        """
        if not self._messages:
            self._read(wait_s)
        return self._messages.popleft() if self._messages else None

    def drop(self) -> None:
        """End the connection, if there is one; `connect` makes another."""
        connection, self._socket, self._tls = self._socket, None, None
        self._messages.clear()
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """End the connection with a goodbye."""
        if self._socket is not None and self._tls is not None:
            with contextlib.suppress(OSError):
                self._socket.settimeout(_LEAST_S)
                self._socket.sendall(self._tls.farewell())
        self.drop()

    def _connected(self, deadline: float) -> socket.socket:
        """Give a socket that is connected; while a controller is restarted nobody listens."""
        restarted = min(deadline, time.monotonic() + RESTART_S)
        while True:
            try:
                made = socket.create_connection(self._place, max(_LEAST_S, deadline - time.monotonic()))  # type: ignore[arg-type]
            except ConnectionRefusedError as error:
                if time.monotonic() >= restarted:
                    raise self._nobody(error) from None
                time.sleep(_RETRY_S)
            except OSError as error:
                raise self._nobody(error) from None
            else:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made

    def _nobody(self, error: OSError) -> errors.AngariumError:
        detail = f"nobody answers at {self._url}: {error.strerror or error}"
        return errors.error_for(errors.CONNECT_FAILED, detail, f"does the node run? {self._advice}")

    def _has_ended(self) -> bool:
        """Tell whether the other side has gone since the last answer."""
        assert self._socket is not None
        if not select.select([self._socket], [], [], 0)[0]:
            return False
        try:
            self._read(_LEAST_S)
        except errors.AngariumError:
            return True
        return False

    def _write(self, pieces: list[bytes], deadline: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(max(_LEAST_S, deadline - time.monotonic()))
        try:
            self._socket.sendall(b"".join(pieces))
        except TimeoutError:
            self.drop()
            raise errors.error_for(errors.TIMEOUT, f"{self._url} does not take the request") from None
        except OSError:
            pass  # what it said before it closed says why

    def _read(self, wait_s: float) -> None:
        """Take in what comes within so many seconds."""
        assert self._socket is not None
        assert self._tls is not None
        self._socket.settimeout(max(_LEAST_S, wait_s))
        try:
            count = self._socket.recv_into(self._tls.room())
        except TimeoutError:
            return
        except OSError:
            count = 0
        if not count:
            raise self._ended(self._tls.at_end())
        messages: list[list[bytes]] = []
        try:
            self._tls.received(count, messages)
        except ZmtpError as error:
            if not messages:
                raise self._ended(str(error)) from None
        except errors.AngariumError as error:
            self.drop()
            advice = self._advice if error.detail == NOT_TLS else error.advice
            raise errors.error_for(error.code, f"{self._url}: {error.detail}", advice) from None
        self._messages.extend(messages)
        if replies := self._tls.take_replies():
            self._write([replies], time.monotonic() + wait_s)

    def _ended(self, reason: str) -> errors.AngariumError:
        was_open = self._tls is not None and self._tls.is_open
        self.drop()
        if was_open:
            return errors.error_for(errors.CONNECT_FAILED, f"{self._url}: {_UNKNOWN}", _RESTARTED)
        return errors.error_for(errors.CONNECT_FAILED, f"{self._url}: {reason}", self._advice)
