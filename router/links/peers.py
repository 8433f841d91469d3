"""What the controllers of neighbours tell each other, on its way: the newest report of each.

A report says who a node is and how its links do (`cluster.controller.mesh.reports`); to routers and link processes it
is bytes of limited size. The controller hands over its own, which goes to every neighbour once, and fetches those of
the others when it wants to. So a neighbour that tells without end costs a node nothing but the newest report. What a
neighbour said goes with its session: the controller remembers, and knows how old it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from angarium_server.frames.frame import decoder
from angarium_server.frames.links import PeersFrame

if TYPE_CHECKING:
    from router.delivery.egress import Egress
    from router.sessions.neighbour import Neighbour
    from router.sessions.session import Session

_decode_peers: Final = decoder(PeersFrame)


class Peers:
    """Reports of this node and of its neighbours."""

    def __init__(self, sessions: dict[Session, Neighbour], egress: Egress) -> None:
        """Begin with the sessions of neighbours, which others add and take away."""
        self._sessions = sessions
        self._egress = egress

    def take(self, session: Session, header: bytes, now: float) -> None:
        """Take PEERS of a neighbour.

        Raises:
            InvalidRequestError: it is malformed, or larger than the limit (40001).
        """
        peers = wire.decode_header(_decode_peers, header)
        self._sessions[session].report = (peers.report, now)

    def tell(self, report: bytes) -> None:
        """Tell every neighbour, on the first of its sessions that reads; who does not gets the next report."""
        frames = PeersFrame(report).frames()
        told: dict[str, None] = {}
        for session, neighbour in self._sessions.items():
            if neighbour.node not in told and self._egress.is_reading(session):
                told[neighbour.node] = None
                self._egress.answer(session, frames)

    def heard(self, now: float) -> list[dict[str, Any]]:
        """Give the newest report of each neighbour that has a session, with its age in seconds."""
        newest: dict[str, tuple[bytes, float]] = {}
        for neighbour in self._sessions.values():
            report = neighbour.report
            if report is not None and report[1] >= newest.get(neighbour.node, report)[1]:
                newest[neighbour.node] = report
        return [
            {"node": node, "report": report, "age_s": round(now - at, 3)}
            for node, (report, at) in newest.items()
        ]
