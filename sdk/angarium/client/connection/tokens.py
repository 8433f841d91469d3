"""Tokens (JWT) of the application: one that it gave, or one that it is asked for whenever a fresh one is needed.

What a token says is no business of the client: it is shown to the node, and never logged.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from angarium.client.connection.faults import FAULTS, raise_if_cancelled
from angarium.client.protocol import answers
from angarium.errors import CONNECT_FAILED, AngariumError, error_for, invalid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from angarium.client.protocol.answers import TokenRenewed
    from angarium.client.protocol.session import ClientSession

#: A token, or what gives one; a function that is no coroutine is called in a thread, so it may wait for a server.
TokenSource: TypeAlias = "str | Callable[[], str | Awaitable[str]]"

#: After which part of its time a token is followed by another, and after which part of the rest it is tried again.
RENEWED_AT: Final = 0.75
RETRIED_AT: Final = 0.25
#: The least time between two attempts.
_PAUSE_S: Final = 1.0
#: How long the node may take to look at one.
ANSWER_S: Final = 20.0
#: As the node takes them.
TOKEN_CHARACTERS_MAX: Final = 16 * 1024
_logger = logging.getLogger("angarium.client")


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
        except FAULTS as error:
            raise_if_cancelled(error)
            kind = type(error).__name__
            raise error_for(
                CONNECT_FAILED, f"the function that gives tokens failed: {kind}: {error}"
            ) from error
        return _check(found)


async def keep_renewed(
    tokens: Tokens, session: ClientSession, token_ms: int, transmit: Callable[[], None]
) -> None:
    """Bring the node fresh tokens as long as a session is open; end when it is not, or when its token has ended.

    Args:
        tokens: where they come from.
        session: that is here by one.
        token_ms: how long that is good from now on.
        transmit: sends what the session has to say.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + token_ms / 1000
    wait_for_part = RENEWED_AT
    while (left_s := ends_at - loop.time()) > 0:
        await asyncio.sleep(max(left_s * wait_for_part, _PAUSE_S))
        wait_for_part = RETRIED_AT
        try:
            async with asyncio.timeout(max(_PAUSE_S, ends_at - loop.time())):
                token = await tokens.fresh()
        except (AngariumError, TimeoutError) as error:
            _logger.warning("no fresh token, so this one stays as long as it is good: %s", error)
            continue
        if not session.is_open:
            return
        if not session.can_ask():
            continue
        answered: asyncio.Future[TokenRenewed | None] = loop.create_future()
        done = functools.partial(_set, answered)
        session.guaranteed.ask("token.renew", {"jwt": token}, answers.decode_renewed, done)
        transmit()
        await asyncio.wait((answered,), timeout=ANSWER_S)
        renewed = answered.result() if answered.done() else None
        if renewed is not None:
            ends_at = loop.time() + renewed.ms / 1000
            wait_for_part = RENEWED_AT
        else:
            _logger.warning(
                "the node does not take the fresh token, so the one before stays; its events say why"
            )


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _check(token: object) -> str:
    if not isinstance(token, str) or not token.isascii() or not token.strip():
        raise invalid("connect: token: it is no text of a token (JWT)")
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise invalid(f"connect: token: it has {len(token)} characters, the limit is {TOKEN_CHARACTERS_MAX}")
    return token.strip()
