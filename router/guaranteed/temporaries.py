"""The life of temporary endpoints: they end with their consumer, or a minute after they lost it.

R102 to R107: a temporary endpoint goes when its client unbinds or disconnects cleanly; after an
unexpected disconnect it is kept for 60 s, in which the resumed session can bind again, and takes messages meanwhile.
A router that starts knows no sessions, so every temporary endpoint has that time from then. The controller deletes;
it is asked again until it has. Time is a parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from router.asking.asks import Asks
    from router.guaranteed.endpoints import Endpoint

#: How long one without consumer is kept.
KEPT_S: Final = 60.0
#: Between two questions to a controller that did not delete it.
AGAIN_S: Final = 5.0


class Temporaries:
    """Temporary endpoints without consumer."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        #: Endpoint -> when it is deleted.
        self._unbound: dict[Endpoint, float] = {}
        #: No later than the earliest of those; infinite if there are none.
        self._wake = float("inf")

    def __len__(self) -> int:
        return len(self._unbound)

    def made(self, endpoint: Endpoint, now: float) -> None:
        """An endpoint came; one that is temporary is bound soon, or not at all."""
        if not endpoint.durable:
            self._keep_until(endpoint, now + KEPT_S)

    def bound(self, endpoint: Endpoint) -> None:
        """Its consumer is there."""
        self._unbound.pop(endpoint, None)

    def unbound(self, endpoint: Endpoint, now: float, *, wanted: bool) -> None:
        """Its consumer is gone, because it wanted to or not."""
        if endpoint.durable or endpoint.is_gone or endpoint.flows:
            return
        if wanted:
            self._delete(endpoint, now)
        else:
            self._keep_until(endpoint, now + KEPT_S)

    def gone(self, endpoint: Endpoint) -> None:
        """It was deleted."""
        self._unbound.pop(endpoint, None)

    def tick(self, now: float) -> float:
        """Have deleted whose time is over; gives when to call again, infinite if none is left."""
        if now >= self._wake:
            for endpoint in [one for one, at in self._unbound.items() if at <= now]:
                self._delete(endpoint, now)
            self._wake = min(self._unbound.values(), default=float("inf"))
        return self._wake

    def _keep_until(self, endpoint: Endpoint, at: float) -> None:
        self._unbound[endpoint] = at
        self._wake = min(self._wake, at)

    def _delete(self, endpoint: Endpoint, now: float) -> None:
        self._keep_until(endpoint, now + AGAIN_S)  # until it is gone
        arguments = {
            "vpn": endpoint.vpn.name,
            "kind": endpoint.kind,
            "name": endpoint.name,
            "id": endpoint.id,
        }
        self._asks.ask("endpoint.delete", arguments, _nothing)

    def validate(self) -> None:
        """Check that none of these is in use."""
        for endpoint, at in self._unbound.items():
            assert not endpoint.durable
            assert not endpoint.is_gone
            assert not endpoint.flows
            assert at >= self._wake


def _nothing(_ok: bool, _value: Any, _now: float) -> None:  # noqa: FBT001 - the form of an answer
    """The deletion itself tells that it is done; without it the question comes again."""
