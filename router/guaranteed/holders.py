"""Who holds messages of queues that clients share: sessions that are kept, while they are.

What a member of a group is in the middle of is its own (`node.endpoints.holdings`), until it is over or its session is.
The lane does not know when a session ends, and its home may be another one. So whoever joins has the lane asked who
holds something there: what sessions had that are gone is given back to the group, and so is that of each one that ends
from then on. Where nobody joins there is nobody to give it to. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from angarium import wire
from angarium_server.frames.homes import KeepNote, ListHolders
from router.guaranteed.endpoints import QUEUE
from router.sessions.session import session_queue

if TYPE_CHECKING:
    from angarium.errors import AngariumError
    from angarium_server.frames.homes import LeaseVerb
    from router.guaranteed.endpoints import Endpoint, Endpoints, LaneUsage
    from router.sessions.session import Session

#: Endpoint, lane, verb, who is told value or error and the time, and the time.
AskLane = Callable[
    ["Endpoint", "LaneUsage", "LeaseVerb", Callable[[Any, "AngariumError | None", float], None], float], None
]


def holder_of(endpoints: Endpoints, session: Session, share: Endpoint) -> str:
    """Give the name by which a client may hold messages of a queue; empty if its session is not kept."""
    if session.carrier is None or not share.name.startswith(wire.SHARED_QUEUE_PREFIX):
        return ""
    queue = endpoints.find(session.vpn.name, QUEUE, session_queue(session.client_name))
    # Another session of the client has another queue, with another number.
    return str(queue.id) if queue is not None and queue.durable else ""


class Holders:
    """Gives back what sessions hold that have ended; a listener of `Endpoints`."""

    def __init__(self, endpoints: Endpoints, ask_lane: AskLane) -> None:
        self._endpoints = endpoints
        self._ask_lane = ask_lane
        #: Number of the queue of a session -> the queues in which it may hold something.
        self._shares: dict[int, dict[Endpoint, None]] = {}
        #: What is to be given back: the queue, and who held it.
        self._over: list[tuple[Endpoint, str]] = []

    def joined(self, session: Session, share: Endpoint, now: float) -> None:
        """Take note of a member that may hold something, and look who else does."""
        if holder := holder_of(self._endpoints, session, share):
            self._shares.setdefault(int(holder), {})[share] = None

        def found(value: Any, error: AngariumError | None, _at: float) -> None:
            if error is None:  # else the next one who joins asks
                self._look(share, value)

        self._ask_lane(share, share.lanes[0], ListHolders(), found, now)

    def _look(self, share: Endpoint, holders: list[str]) -> None:
        for holder in holders:
            if int(holder) in self._endpoints.by_id:
                self._shares.setdefault(int(holder), {})[share] = None
            else:
                self._over.append((share, holder))

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """Give back what a session held that has ended; forget a queue that is gone."""
        self._over += [(share, str(endpoint.id)) for share in self._shares.pop(endpoint.id, ())]
        if endpoint.name.startswith(wire.SHARED_QUEUE_PREFIX):
            for shares in self._shares.values():
                shares.pop(endpoint, None)

    def tick(self, now: float) -> None:
        """Ask the homes for what is to be given back."""
        over, self._over = self._over, []
        for share, holder in over:
            if not share.is_gone:
                self._give_back(share, holder, now)

    def _give_back(self, share: Endpoint, holder: str, now: float) -> None:
        def given(_value: Any, error: AngariumError | None, _at: float) -> None:
            if error is not None:
                self._over.append((share, holder))

        self._ask_lane(share, share.lanes[0], KeepNote(b"", [], holder, []), given, now)

    def validate(self) -> None:
        """Check that only what is there is known."""
        assert all(number in self._endpoints.by_id for number in self._shares)
        assert not any(share.is_gone for shares in self._shares.values() for share in shares)
