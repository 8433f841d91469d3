"""What requests bring and answers take with them: JSON for everybody, MessagePack for who wants values as they are.

JSON has no bytes, so payloads are base64 there. Both are read with the same limits, and nothing else is: no form, which
a page of another site could send, and nothing compressed, of which a little is a lot.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import HttpVersion11, web

from angarium import errors, wire

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

JSON: Final = "application/json"
MSGPACK: Final = "application/vnd.msgpack"
#: Lists and maps within each other: more than any argument has, and far from what breaks who reads them.
NESTED_MAX: Final = 24


async def read(request: BaseRequest, bytes_max: int, timeout_s: float) -> dict[str, Any]:
    """Give the map that a request brings; an empty one if it brings nothing.

    Raises:
        InvalidRequestError: it is too large (41301), of another type (41501), or no such map (40018).
        TimeoutExpiredError: it does not arrive (40801).
    """
    data = await read_bytes(request, bytes_max, timeout_s)
    return _decoded(data, request) if data else {}


async def read_bytes(request: BaseRequest, bytes_max: int, timeout_s: float) -> bytes:
    """Give the body as it is.

    Raises:
        InvalidRequestError: it is too large (41301), compressed on its way (41501), or ends too early (40018).
        TimeoutExpiredError: it does not arrive (40801).
    """
    length = request.content_length
    if length is None:
        _check_coding(request)
    elif length > bytes_max:
        raise _too_large(bytes_max)
    content = request.content
    if content.is_eof() and content.exception() is None:
        # It came with its head, as small ones do: nothing is waited for.
        data = content.read_nowait()
        if len(data) > bytes_max:
            raise _too_large(bytes_max)
        return data
    _call_for(request)
    try:
        async with asyncio.timeout(timeout_s):
            return await _gathered(request, bytes_max)
    except TimeoutError:
        detail = f"the request has not arrived within {timeout_s:g} s"
        raise errors.error_for(errors.TIMEOUT, detail, "send it whole") from None


def _check_coding(request: BaseRequest) -> None:
    """Refuse what would have to be unpacked: `aiohttp` undoes the chunks alone (RFC 9112, section 6.1)."""
    coding = request.headers.get("Transfer-Encoding", "chunked")
    if coding.strip().lower() != "chunked":
        detail = f"its transfer coding is {coding[:50]!r}"
        raise errors.error_for(errors.UNSUPPORTED_MEDIA_TYPE, detail, "send it as it is, or chunked")


def _call_for(request: BaseRequest) -> None:
    """Have a body sent whose client waits for a word; one of HTTP/1.0 does not know it (RFC 9110, section 10.1.1)."""
    is_waiting = request.headers.get("Expect", "").lower() == "100-continue"
    if is_waiting and request.version >= HttpVersion11 and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def _gathered(request: BaseRequest, bytes_max: int) -> bytes:
    data = bytearray()
    try:
        async for piece in request.content.iter_any():
            data += piece
            if len(data) > bytes_max:
                raise _too_large(bytes_max)
    except (web.PayloadAccessError, ConnectionError) as error:  # or its client is gone
        raise errors.invalid(f"the body ends too early: {error}") from None
    return bytes(data)


def _too_large(bytes_max: int) -> errors.AngariumError:
    return errors.error_for(errors.CONTENT_TOO_LARGE, f"it has more than {bytes_max:,} bytes")


def _decoded(data: bytes, request: BaseRequest) -> dict[str, Any]:
    if "Content-Encoding" in request.headers:
        raise errors.error_for(errors.UNSUPPORTED_MEDIA_TYPE, "it is compressed", "send it as it is")
    # Without the header aiohttp says that it is an octet stream.
    kind = request.content_type
    if kind not in (JSON, MSGPACK):
        raise errors.error_for(errors.UNSUPPORTED_MEDIA_TYPE, f"it is {kind[:100]!r}")
    try:
        value = wire.unpack(data) if kind == MSGPACK else msgspec.json.decode(data)
    except (msgspec.DecodeError, errors.InvalidRequestError, RecursionError, UnicodeDecodeError) as error:
        raise errors.invalid(f"the body is no {kind}: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise errors.invalid("the body is no object with the arguments by their names")
    if is_deep(value):
        raise errors.invalid(f"the body has more than {NESTED_MAX} lists and objects within each other")
    return value


def is_deep(value: Any) -> bool:
    """Tell whether lists and maps are within each other too often."""
    level = [value]
    for _ in range(NESTED_MAX):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one
        level = [one for one in inner if isinstance(one, (dict, list, tuple))]
        if not level:
            return False
    return True


def wants_msgpack(request: BaseRequest) -> bool:
    """Tell whether an answer is to be in MessagePack, whose bytes are bytes."""
    return MSGPACK in request.headers.get("Accept", "")


def answer(request: BaseRequest, value: Any, status: int = 200, **headers: str) -> web.Response:
    """Give an answer with a value."""
    if wants_msgpack(request):
        return web.Response(body=wire.pack(value), status=status, content_type=MSGPACK, headers=headers)
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type=JSON, headers=headers)
