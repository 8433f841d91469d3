"""Bodies of requests: one that is waited for is called for, and one whose client goes before its end is no fault."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiohttp import HttpVersion, HttpVersion10, HttpVersion11

from angarium import errors
from angarium_server.http import bodies


class Content:
    """A body that has not come, and will not."""

    def is_eof(self) -> bool:
        return False

    async def iter_any(self) -> Any:
        yield b"{"
        raise ConnectionResetError("Connection lost")


class Transport:
    """A connection that notes what is said."""

    def __init__(self) -> None:
        self.said = b""

    def write(self, data: bytes) -> None:
        self.said += data


class Request:
    """A request that waits for a word before its body comes."""

    content_length = 100
    content = Content()

    def __init__(self, version: HttpVersion = HttpVersion11, expect: str = "100-continue") -> None:
        self.version = version
        self.headers = {"Expect": expect}
        self.transport = Transport()


def test_who_goes_within_a_body_is_no_fault_of_the_process() -> None:
    with pytest.raises(errors.AngariumError) as refused:
        asyncio.run(bodies.read_bytes(cast("Any", Request()), 1_000, 10.0))
    assert refused.value.code == errors.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("version", "expect", "limit", "said"),
    [
        (HttpVersion11, "100-Continue", 1_000, b"HTTP/1.1 100 Continue\r\n\r\n"),
        (HttpVersion11, "", 1_000, b""),
        (HttpVersion11, "100-continue", 99, b""),
        (HttpVersion10, "100-continue", 1_000, b""),
    ],
)
def test_a_body_that_waits_for_a_word_is_called_for_if_its_client_knows_it_and_it_is_wanted(
    version: HttpVersion, expect: str, limit: int, said: bytes
) -> None:
    """RFC 9110, section 10.1.1: one of HTTP/1.0 would take it for the answer."""
    request = Request(version, expect)
    with pytest.raises(errors.AngariumError):
        asyncio.run(bodies.read_bytes(cast("Any", request), limit, 10.0))
    assert request.transport.said == said
