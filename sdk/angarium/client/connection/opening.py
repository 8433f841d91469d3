"""What `subscribe`, `consume` and their like give: await it for the thing, or enter it as a context manager.

`flow = await client.consume("orders")` gives a flow that the application closes;
`async with client.consume("orders") as flow:` closes it at the end of the block. What is opened is `Closing`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType


class _Closable(Protocol):
    async def close(self) -> None:
        """End it."""


_T_co = TypeVar("_T_co", bound=_Closable, covariant=True)


class Closing:
    """An async context manager that closes itself at its end."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: _Closable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Opening(Coroutine[Any, Any, _T_co]):
    """A call that opens something. It is a coroutine, so `asyncio.create_task` and its like take it as well."""

    __slots__ = ("_coroutine", "_opened")

    def __init__(self, coroutine: Coroutine[Any, Any, _T_co]) -> None:
        """Wrap the call; as with any coroutine nothing happens before it is awaited."""
        self._coroutine = coroutine
        self._opened: _T_co | None = None

    def __await__(self) -> Generator[Any, Any, _T_co]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> _T_co:
        opened = self._opened = await self._coroutine
        return opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.close()

    def send(self, value: Any, /) -> Any:
        """Go on, as `Coroutine.send`."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise inside, as `Coroutine.throw`."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Give up a call that was not awaited, as `Coroutine.close`."""
        self._coroutine.close()
