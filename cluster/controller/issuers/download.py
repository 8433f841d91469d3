"""One request to the address of an issuer: bounded in time and size, in a thread of its own.

Nothing is followed to another address, no proxy is asked, and what does not come as a whole is no answer.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from angarium import errors
from angarium_server.tokens.keys import DOCUMENT_BYTES_MAX, read_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.tokens.config import TokenIssuer
    from angarium_server.tokens.keys import KeyRow

_CHUNK_BYTES: Final = 16_384


class Download:
    """A request under way."""

    def __init__(
        self, issuer: TokenIssuer, on_done: Callable[[str, list[KeyRow] | None, bytes, str], None]
    ) -> None:
        """Begin it; `on_done` is called in its thread: name, keys or None, the document, what was wrong."""
        self._issuer = issuer
        self._on_done = on_done
        self._deadline = time.monotonic() + issuer.timeout_s
        self._connection: http.client.HTTPConnection | None = None
        # A thread that hangs must not keep the process from ending.
        threading.Thread(target=self._run, name=f"issuer {issuer.name}", daemon=True).start()
        self._timer = threading.Timer(issuer.timeout_s, self._abort)
        self._timer.daemon = True
        self._timer.start()

    def _run(self) -> None:
        keys: list[KeyRow] | None = None
        document, fault = b"", ""
        try:
            document = self._fetch()
            keys = read_document(document)
        except errors.AngariumError as error:
            fault = error.detail
        except (OSError, http.client.HTTPException, ValueError) as error:
            is_late = time.monotonic() >= self._deadline
            why = (
                f"no answer within {self._issuer.timeout_s} s"
                if is_late
                else f"{error or type(error).__name__}"
            )
            fault = why
        finally:
            self._timer_stop()
            self._on_done(self._issuer.name, keys, document, fault[:300])

    def _timer_stop(self) -> None:
        timer = getattr(self, "_timer", None)
        if timer is not None:
            timer.cancel()

    def _fetch(self) -> bytes:
        url = urlsplit(self._issuer.jwks_url)
        host, port, seconds = url.hostname or "", url.port, float(self._issuer.timeout_s)
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=self._issuer.ca_file or None)
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=seconds, context=context
            )
        else:
            made = http.client.HTTPConnection(host, port, timeout=seconds)
        self._connection = made
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            made.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
            answer = made.getresponse()
            if answer.status != http.client.OK:
                raise ValueError(f"it answers {answer.status}")
            return self._read(answer)
        finally:
            made.close()

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        pieces, size = [], 0
        while piece := answer.read1(_CHUNK_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > DOCUMENT_BYTES_MAX:
                raise ValueError(f"its answer has more than {DOCUMENT_BYTES_MAX} bytes")
            if time.monotonic() >= self._deadline:
                raise TimeoutError
        if answer.length:
            raise ValueError("its answer was cut off")
        return b"".join(pieces)

    def _abort(self) -> None:
        """End a connection whose other side sends a byte now and then."""
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
