"""As much of HTTP as a probe needs, without a socket: one request in, one answer out, then the connection ends.

    GET /readyz?verbose HTTP/1.1        a request
    HEAD /healthz HTTP/1.0              a request; the answer has no body
    POST /readyz HTTP/1.1               refused with 405
    GET /readyz                         refused with 400: HTTP/0.9 is too old

A request has a head of 8 KiB at most and no body that anybody reads. Nothing is kept from one request to the next, so
there is nothing to smuggle. RFC 9112 says how a head looks; header fields are read over, for none changes the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

#: A head is a line and a few fields; what is longer comes from no probe.
HEAD_BYTES_MAX: Final = 8 << 10
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    path: str
    #: Names in the query; values are not looked at.
    query: frozenset[str] = frozenset()
    #: Whether the answer has a body.
    wants_body: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered."""

    status: HTTPStatus
    body: str
    content_type: str = _TEXT

    def encode(self, request: Request | None = None) -> bytes:
        """Give the bytes, without the body if the request wants none."""
        body = self.body.encode()
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        head = "\r\n".join([*lines, "", ""]).encode("ascii")
        return head if request is not None and not request.wants_body else head + body


class Incoming:
    """The head of a request as it comes in; `take` until it gives something."""

    __slots__ = ("_head",)

    def __init__(self) -> None:
        #: Never longer than HEAD_BYTES_MAX and one piece.
        self._head = b""

    def take(self, data: bytes) -> Request | Answer | None:
        """Add what came; gives the request, or the answer that refuses it, or None while more has to come."""
        self._head += data
        end = _HEAD_END.search(self._head)
        if (end.end() if end else len(self._head)) > HEAD_BYTES_MAX:
            return _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has {HEAD_BYTES_MAX} bytes")
        return None if end is None else _read_line(self._head[: end.start()].splitlines()[:1])


def _read_line(lines: list[bytes]) -> Request | Answer:
    found = _REQUEST_LINE.fullmatch(lines[0]) if lines else None
    if found is None:
        return _refusal(HTTPStatus.BAD_REQUEST, "the first line is 'GET /PATH HTTP/1.1'")
    method, target = found[1], found[2].decode("ascii")
    if method not in (b"GET", b"HEAD"):
        return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "there is only GET and HEAD")
    path, _, query = target.partition("?")
    names = frozenset(part.partition("=")[0] for part in query.split("&") if part)
    return Request(path, names, wants_body=method == b"GET")


def _refusal(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, f"{text}\n")
