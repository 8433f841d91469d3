"""The way into the thread of a client that is no other one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class FakePortal:
    """Does what crosses to the thread of the client at once."""

    def post(self, work: Callable[..., None], *arguments: Any) -> None:
        work(*arguments)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def check_process(self) -> None:
        """There is one process."""
