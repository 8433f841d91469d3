"""Refusals over HTTP: problem details (RFC 9457), with our code, its text, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.web import BaseRequest

    from angarium.errors import AngariumError

CONTENT_TYPE: Final = "application/problem+json"
#: Of codes without an HTTP status: those of clients of the SDK.
BAD_GATEWAY: Final = 502
#: By status, when to come again, in seconds: after a refusal that passes.
RETRY_AFTER_S: Final = {429: 5, 503: 1}
CHALLENGE: Final = 'Basic realm="angarium", charset="UTF-8"'


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong; `type` leads to the page that has all codes."""

    type: str
    title: str
    status: int
    detail: str
    #: Five digits; a code never changes its meaning.
    code: int
    #: What to do next.
    advice: str


class RefusedError(Exception):
    """A refusal with headers that belong to it, such as Allow."""

    def __init__(self, error: AngariumError, headers: Mapping[str, str]) -> None:
        super().__init__(str(error))
        self.error = error
        self.headers = headers


def allow(request: BaseRequest, *methods: str) -> None:
    """Refuse other methods.

    Raises:
        RefusedError: with those that are allowed (40501).
    """
    if request.method not in methods:
        detail = f"{request.method[:20]} of this resource"
        raise RefusedError(errors.error_for(errors.METHOD_NOT_ALLOWED, detail), {"Allow": ", ".join(methods)})


def status_of(code: int) -> int:
    """Give the HTTP status of a code: its family, where that is one."""
    family = code // 100
    return family if 400 <= family < 600 else BAD_GATEWAY


def problem_of(error: AngariumError) -> Problem:
    """Give what is said of an error."""
    return Problem(
        type=f"{errors.DOCUMENTATION}errors/",
        title=error.text,
        status=status_of(error.code),
        detail=error.detail,
        code=error.code,
        advice=error.advice,
    )


def refusal(error: AngariumError, headers: Mapping[str, str] | None = None) -> web.Response:
    """Give the answer that refuses."""
    told = dict(headers or {})
    status = status_of(error.code)
    if status in RETRY_AFTER_S:
        told["Retry-After"] = str(RETRY_AFTER_S[status])
    if status == 401:
        told.setdefault("WWW-Authenticate", CHALLENGE)
    body = msgspec.json.encode(problem_of(error))
    return web.Response(body=body, status=status, content_type=CONTENT_TYPE, headers=told)
