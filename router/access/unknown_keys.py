"""Logins whose token names a key that is not known: they wait while the controller asks the address of the issuer.

One question for an issuer is out at a time, and after its answer there is none for `refresh_min_s`, so unauthenticated
peers with made-up keys cost nobody anything: they are refused at once then. A state machine.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.errors import error_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.tokens.config import TokenIssuer
    from router.asking.asks import Asks

#: Logins that wait for the keys of one issuer.
WAITING_MAX: Final = 500


class UnknownKeys:
    """Who waits for the keys of which issuer."""

    def __init__(self, asks: Asks, on_known: Callable[[int, float], None]) -> None:
        """Begin with nobody; `on_known` is called with the number of a login when its keys may be known."""
        self._asks = asks
        self._on_known = on_known
        #: Name of the issuer -> the logins that wait; each has a question with the controller.
        self._waiting: dict[str, list[int]] = {}
        #: Name of the issuer -> when its last question was answered.
        self._answered_at: dict[str, float] = {}

    def may_wait(self, issuer: TokenIssuer, now: float) -> bool:
        """Tell whether it is worth waiting for keys of an issuer.

        Raises:
            RateLimitError: too many do (42901).
        """
        if not issuer.jwks_url:
            return False
        if issuer.name in self._waiting:
            if len(self._waiting[issuer.name]) >= WAITING_MAX:
                raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many logins at once")
            return True
        return now - self._answered_at.get(issuer.name, float("-inf")) >= issuer.refresh_min_s

    def wait(self, issuer: TokenIssuer, number: int) -> None:
        """Have a login wait; who is the first asks for all."""
        if issuer.name in self._waiting:
            self._waiting[issuer.name].append(number)
            return
        self._waiting[issuer.name] = [number]
        self._asks.ask("issuer.refresh", {"name": issuer.name}, partial(self._answered, issuer.name))

    def _answered(self, name: str, _ok: bool, _value: Any, now: float) -> None:  # noqa: FBT001 - the form of every answer
        self._answered_at[name] = now
        for number in self._waiting.pop(name, ()):
            self._on_known(number, now)
