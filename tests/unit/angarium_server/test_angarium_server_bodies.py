"""Bodies of requests: one whose client goes before its end is refused, and is no fault of the process."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from angarium import errors
from angarium_server.http import bodies


class Content:
    """A body that has not come, and will not."""

    def is_eof(self) -> bool:
        return False

    async def iter_any(self) -> Any:
        yield b"{"
        raise ConnectionResetError("Connection lost")


class Request:
    content_length = 100
    content = Content()


def test_who_goes_within_a_body_is_no_fault_of_the_process() -> None:
    with pytest.raises(errors.AngariumError) as refused:
        asyncio.run(bodies.read_bytes(cast("Any", Request()), 1_000, 10.0))
    assert refused.value.code == errors.INVALID_ARGUMENT
