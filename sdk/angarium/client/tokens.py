"""Tokens (JWT) of the application: one that it gave, or one that it is asked for whenever a fresh one is needed.

What a token says is no business of the client: it is shown to the node, and never logged.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Final, TypeAlias

from angarium.errors import CONNECT_FAILED, INVALID_ARGUMENT, AngariumError, error_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: A token, or what gives one; a function that is no coroutine is called in a thread, so it may wait for a server.
TokenSource: TypeAlias = "str | Callable[[], str | Awaitable[str]]"

#: As the node takes them.
TOKEN_CHARACTERS_MAX: Final = 16 * 1024


class Tokens:
    """Where the tokens of one client come from."""

    def __init__(self, source: TokenSource) -> None:
        """Take a token, or a function.

        Raises:
            InvalidRequestError: it is neither, or the token cannot be one (INVALID_ARGUMENT).
        """
        self._source = source if callable(source) else _check(source)

    @property
    def is_renewable(self) -> bool:
        """Whether there may be another one than the first."""
        return callable(self._source)

    async def fresh(self) -> str:
        """Give a token for now.

        Raises:
            AngariumError: the application gives none: its function failed (CONNECT_FAILED), or gave something else
                (INVALID_ARGUMENT).
        """
        source = self._source
        if not callable(source):
            return source
        try:
            is_waiting = inspect.iscoroutinefunction(source)
            given = source() if is_waiting else await asyncio.to_thread(source)
            found = await given if inspect.isawaitable(given) else given
        except Exception as error:
            kind = type(error).__name__
            raise error_for(
                CONNECT_FAILED, f"the function that gives tokens failed: {kind}: {error}"
            ) from error
        return _check(found)


def _check(token: object) -> str:
    if not isinstance(token, str) or not token.isascii() or not token.strip():
        raise _wrong("it is no text of a token (JWT)")
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise _wrong(f"it has {len(token)} characters, the limit is {TOKEN_CHARACTERS_MAX}")
    return token.strip()


def _wrong(what: str) -> AngariumError:
    return error_for(INVALID_ARGUMENT, f"connect: token: {what}")
