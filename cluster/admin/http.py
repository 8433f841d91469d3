"""The way of an operator to the management API of a node: one HTTP request for each call.

`cluster.admin.client` uses it as it uses a socket: frames go in and come out. Arguments and answers go as MessagePack,
in which bytes are bytes, so a command prints the same whichever way it takes.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from angarium import errors, wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.transport.credentials import PathLike

_PATH: Final = "/api/v1/operations/"
_TYPE: Final = "application/vnd.msgpack"
#: The least that a wait of the system may be: 0 would mean not to wait, which is another mode.
_LEAST_S: Final = 0.001
_UNKNOWN: Final = "the connection ended before the answer came, so whether it was done is not known"
_ADDRESS: Final = "--management is that of [management] listen in the configuration of the node"
#: What is worth reading of an answer that is none of ours.
_SHOWN: Final = 100


class HttpOperator(NamedTuple):
    """Who asks over HTTP, and how that is shown: name and password, a token, or nothing but a certificate."""

    name: str = ""
    password: str = ""
    #: Gives the token (JWT) to show, as it is then; None for none.
    token: Callable[[], str] | None = None

    def headers(self) -> dict[str, str]:
        """Give the headers that say who it is."""
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token()}"}
        if not self.name:
            return {}
        credentials = base64.b64encode(f"{self.name}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {credentials}"}


class _Refusal(msgspec.Struct):
    """What matters of a problem."""

    code: int
    detail: str = ""


def address_fault(url: str) -> str:
    """Say what is wrong with an address of a management API, nothing if it is one."""
    try:
        place = urlsplit(url)
        is_one = place.scheme in ("http", "https") and place.hostname and place.port is not None
    except ValueError:
        is_one = False
    if is_one and place.path in ("", "/") and not place.query and "@" not in place.netloc:
        return ""
    return f"{url!r} is no address of a management API: write http://HOST:PORT or https://HOST:PORT"


class HttpTransport:
    """Frames to one address and back: each that is sent is a request, and its answer is received."""

    def __init__(
        self,
        url: str,
        operator: HttpOperator,
        ca_file: PathLike | None = None,
        cert_file: PathLike | None = None,
        key_file: PathLike | None = None,
    ) -> None:
        """Nothing is connected yet.

        Raises:
            InvalidRequestError: it is no address, or a file holds no authority, no certificate or no key (40018).
        """
        if fault := address_fault(url):
            raise errors.invalid(fault)
        self._url = url
        place = urlsplit(url)
        assert place.hostname is not None
        if place.scheme == "https":
            context = _trusting(ca_file)
            if cert_file is not None:
                _show(context, cert_file, key_file)
            self._line: http.client.HTTPConnection = http.client.HTTPSConnection(
                place.hostname, place.port, context=context
            )
        else:
            self._line = http.client.HTTPConnection(place.hostname, place.port)
        self._operator = operator
        #: Number of the request that is under way.
        self._number = 0
        self._deadline = 0.0

    def connect(self, _deadline: float) -> bool:
        """Connect with the request: nothing is said before it."""
        return False

    def send(self, frame: bytes, deadline: float) -> None:
        """Send a request.

        Raises:
            ConnectionLostError: nobody answers there (60003), or not with this certificate (60006).
        """
        self._number, operation, arguments = wire.unpack(frame)
        self._deadline = deadline
        wait_s = max(1, round(deadline - time.monotonic()))
        headers = {
            **self._operator.headers(),
            "Content-Type": _TYPE,
            "Accept": _TYPE,
            "Prefer": f"wait={wait_s}",
        }
        request = ("POST", _PATH + quote(operation, safe=""), wire.pack(arguments), headers)
        self.drop()  # a server closes what is idle, and whether it did is known too late
        self._line.timeout = max(_LEAST_S, deadline - time.monotonic())
        try:
            self._line.request(*request)
        except ssl.SSLError as error:
            self.drop()
            detail = f"{self._url}: {error.reason or error}"
            advice = "is the certificate there signed by an authority of --ca-file, for this host?"
            raise errors.error_for(errors.TLS_FAILED, detail, advice) from None
        except (OSError, http.client.HTTPException) as error:
            self.drop()
            reason = getattr(error, "strerror", None) or str(error)
            detail = f"nobody answers at {self._url}: {reason}"
            raise errors.error_for(errors.CONNECT_FAILED, detail, f"does the node run? {_ADDRESS}") from None

    def receive(self, _wait_s: float) -> bytes | None:
        """Give the answer to what was sent last, None if there is none in time.

        Raises:
            ConnectionLostError: there will be none, or it is none of a management API (60003); it takes no certificate
                like ours (60006).
        """
        assert self._line.sock is not None
        self._line.sock.settimeout(max(_LEAST_S, self._deadline - time.monotonic()))
        try:
            answer = self._line.getresponse()
            body = answer.read()
        except TimeoutError:
            self.drop()
            return None
        except ssl.SSLError as error:  # TLS 1.3 refuses a certificate of ours when it is asked
            self.drop()
            detail = f"{self._url}: {error.reason or error}"
            advice = "does it want a certificate of yours? --cert-file and --key-file, signed by an authority it knows"
            raise errors.error_for(errors.TLS_FAILED, detail, advice) from None
        except (OSError, http.client.HTTPException):
            self.drop()
            advice = "look whether it was done, and try again"
            raise errors.error_for(errors.CONNECT_FAILED, f"{self._url}: {_UNKNOWN}", advice) from None
        return wire.pack([self._number, answer.status == 200, self._value(answer, body)])

    def _value(self, answer: http.client.HTTPResponse, body: bytes) -> Any:
        """Give what an answer says: the result, or code and detail of the refusal."""
        kind = answer.headers.get_content_type()
        if answer.status == 200 and kind == _TYPE:
            return wire.unpack(body)
        try:
            if kind != "application/problem+json":
                raise ValueError
            refusal = msgspec.json.decode(body, type=_Refusal)
        except ValueError:
            self.drop()
            detail = f"{self._url} is something else: it answers {answer.status} with {body[:_SHOWN]!r}"
            raise errors.error_for(errors.CONNECT_FAILED, detail, _ADDRESS) from None
        return [refusal.code, refusal.detail]

    def drop(self) -> None:
        """End the connection, if there is one; the next request makes another."""
        self._line.close()

    def close(self) -> None:
        """End the connection."""
        self.drop()


def _trusting(ca_file: PathLike | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise errors.invalid(f"--ca-file {ca_file}: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _show(context: ssl.SSLContext, cert_file: PathLike, key_file: PathLike | None) -> None:
    """Have a certificate shown that says who we are."""
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(str(cert_file), None if key_file is None else str(key_file), lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "they are no certificate and its key in PEM"
        files = f"--cert-file {cert_file}" + ("" if key_file is None else f", --key-file {key_file}")
        raise errors.invalid(f"{files}: {reason}") from None
