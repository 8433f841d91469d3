"""Refusals that operators are told of, each once in a while: who is refused tries again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from angarium.errors import AngariumError
    from router.ground.ground import Outbox

#: A refusal that comes again, because a process tries again, is one event in this time.
REFUSAL_EVENT_S: Final = 60.0
#: Refusals that are remembered for that; more are forgotten together.
REFUSALS_MAX: Final = 1_000


class Refusals:
    """Tells operators who was refused, unless they know."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        #: (event, who, Message VPN, code) -> when the operators were told of it.
        self._told: dict[tuple[str, str, str, int], float] = {}

    def tell(self, event: str, who: str, vpn: str, error: AngariumError, now: float, **fields: Any) -> None:
        """Tell that somebody was refused in a Message VPN; `who` begins the sentence."""
        key = (event, who, vpn, error.code)
        if now - self._told.get(key, float("-inf")) < REFUSAL_EVENT_S:
            return
        if len(self._told) >= REFUSALS_MAX:
            self._told.clear()
        self._told[key] = now
        text = f"{who} was refused: {error}"
        self._outbox.event(event, text, severity="error", vpn=vpn, code=error.code, **fields)
