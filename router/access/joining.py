"""Hosts that wish to join the cluster, or to leave it: the controller judges them, here is what bounds that.

Whoever comes is a stranger with one frame, which the router does not look into. A few wait for the controller at a
time; the others are refused at once and try again. The limits of strangers hold for the connection: how many, how many
of one network, how often, and for how long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.errors import error_for
from router.asking.asks import refusal
from router.ground.effects import SendClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.errors import AngariumError
    from router.asking.asks import Asks
    from router.ground.effects import Outbox

#: Wishes that are with the controller at a time: each may cost it a signature and two writes to disk.
WISHES_MAX: Final = 4
OPERATION: Final = "cluster.join"


class Joining:
    """Asks the controller."""

    def __init__(self, asks: Asks, outbox: Outbox, refuse: Callable[[bytes, AngariumError], None]) -> None:
        self._asks = asks
        self._outbox = outbox
        self._refuse = refuse
        #: Connections whose wish is with the controller; at most WISHES_MAX.
        self._waiting: set[bytes] = set()

    def take(self, routing_id: bytes, wish: bytes, address: str) -> None:
        """Somebody wishes something.

        Raises:
            AngariumError: too many do (42901), or this connection has a wish already (40016).
        """
        if routing_id in self._waiting:
            raise error_for(errors.ALREADY_LOGGED_IN)
        if len(self._waiting) >= WISHES_MAX:
            raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many hosts join at once")
        self._waiting.add(routing_id)

        def answered(ok: bool, value: Any, _now: float) -> None:  # noqa: FBT001 - the form of every answer
            self._waiting.discard(routing_id)
            if ok:
                self._outbox.effects.append(SendClient(routing_id, [wire.JOINED, value], 0))
            else:
                self._refuse(routing_id, refusal(value))

        self._asks.ask(OPERATION, {"wish": wish, "address": address}, answered)
