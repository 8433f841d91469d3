"""Endpoints that end without a consumer: temporary ones, and durable queues with `max_idle_s`.

R102 to R107: a temporary endpoint goes when its client unbinds or disconnects cleanly; after an
unexpected disconnect it is kept for 60 s, in which the resumed session can bind again, and takes messages meanwhile.
A router that starts knows no sessions, so every temporary endpoint has that time from then.

A session that its client has ended goes then, however many others end at once: if the controller had no time for that
it is asked again. Until then nobody goes on with it.

A queue with `max_idle_s` goes when it had no flow for so long, since the last one, the start of the router, or a
change of that time. The controller deletes; it is asked again until it has. Time is a parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.ground.ground import nothing

if TYPE_CHECKING:
    from router.asking.asks import Asks
    from router.guaranteed.endpoints import Endpoint
    from router.sessions.directory import Attributes

#: How long a temporary one without consumer is kept.
KEPT_S: Final = 60.0
#: Between two questions to a controller that did not delete it.
AGAIN_S: Final = 5.0
#: Between two looks at all of them: there may be a hundred thousand.
LOOK_S: Final = 1.0


class Temporaries:
    """Endpoints without consumer that do not stay."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        #: Endpoint -> when it is deleted.
        self._unbound: dict[Endpoint, float] = {}
        #: Those that their clients have ended.
        self._ended: set[Endpoint] = set()
        #: When to look at them, within LOOK_S of the earliest of those; infinite if there are none.
        self._wake = float("inf")

    def __len__(self) -> int:
        return len(self._unbound)

    def made(self, endpoint: Endpoint, now: float) -> None:
        """An endpoint came; its consumer is there soon, or not at all."""
        self._keep(endpoint, now)

    def changed(self, endpoint: Endpoint, before: Attributes, now: float) -> None:
        """An endpoint has other attributes."""
        is_other = before.get("max_idle_s") != endpoint.attributes.get("max_idle_s")
        if endpoint.durable and is_other and endpoint not in self._ended:
            self._unbound.pop(endpoint, None)
            self._keep(endpoint, now)

    def ended(self, endpoint: Endpoint, now: float) -> None:
        """A session was ended by its client, which is about to leave; the controller is asked to delete it."""
        self._ended.add(endpoint)
        self._keep(endpoint, now)

    def is_ended(self, endpoint: Endpoint) -> bool:
        """Tell whether it is a session that its client has ended, and only waits to be deleted."""
        return endpoint in self._ended

    def bound(self, endpoint: Endpoint) -> None:
        """Its consumer is there."""
        self._unbound.pop(endpoint, None)

    def unbound(self, endpoint: Endpoint, now: float, *, wanted: bool) -> None:
        """Its consumer is gone, because it wanted to or not."""
        if endpoint.is_gone:
            return
        if wanted and not endpoint.durable and not endpoint.flows:
            self._delete(endpoint, now)
        else:
            self._keep(endpoint, now)

    def gone(self, endpoint: Endpoint) -> None:
        """It was deleted."""
        self._unbound.pop(endpoint, None)
        self._ended.discard(endpoint)

    def tick(self, now: float) -> float:
        """Have deleted whose time is over; gives when to call again, infinite if none is left."""
        if now >= self._wake:
            for endpoint in [one for one, at in self._unbound.items() if at <= now]:
                self._delete(endpoint, now)
            self._wake = max(min(self._unbound.values(), default=float("inf")), now + LOOK_S)
        return self._wake

    def _keep(self, endpoint: Endpoint, now: float) -> None:
        """Begin the time of one without consumer, if it has one."""
        kept_s = KEPT_S if not endpoint.durable else float(endpoint.attributes.get("max_idle_s") or 0)
        if endpoint in self._ended:
            kept_s = min(kept_s, AGAIN_S)
        if kept_s and not endpoint.flows:
            self._keep_until(endpoint, now + kept_s)

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
        is_idle = endpoint.durable and endpoint not in self._ended
        operation = "endpoint.expire" if is_idle else "endpoint.delete"
        # The deletion itself tells that it is done; without it the question comes again.
        self._asks.ask(operation, arguments, nothing)

    def validate(self) -> None:
        """Check that none of these is in use."""
        for endpoint, at in self._unbound.items():
            assert not endpoint.durable or endpoint.attributes["max_idle_s"]
            assert not endpoint.is_gone
            assert not endpoint.flows
            assert at + LOOK_S >= self._wake
