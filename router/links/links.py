"""The links of this node as its router sees them: sessions that stand for neighbours, and the interest they exchange.

Router code is the same on both sides of a link: the session of a neighbour is a member of the filters that the
neighbour imports here (`imports`), and is told what this node exports (`exports`). Changes are gathered and sent once
per turn of the loop; a snapshot goes out in pieces, as fast as it is read. Every entry says all that is wanted of its
pattern, so changes and pieces of a snapshot may come in any order that the connection keeps.

What comes over a link is served here only: the dispatcher gives it to no neighbour. So there is no loop in any
topology, and no duplicate if every pair of nodes has one link.

What controllers of neighbours tell each other passes here, too. A report says who a node is and how its links do
(`cluster.controller.mesh.reports`); to routers and link processes it is bytes of limited size. The controller hands
over its own, which goes to every neighbour once, and fetches those of the others when it wants to. So a neighbour that
tells without end costs a node nothing but the newest report. What a neighbour said goes with its session: the
controller remembers, and knows how old it is.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.errors import AngariumError
from angarium_server.frames.frame import decoder
from angarium_server.frames.links import ExportsFrame, ImportedFrame, PeersFrame
from router.ground.ground import nothing
from router.guaranteed.endpoints import QUEUE
from router.links.exports import STEP_MAX, VpnExports
from router.links.gate import Gate
from router.links.imports import Imports, decode_imports
from router.links.stored import StoredInterest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.asking.asks import Asks
    from router.delivery.egress import Egress
    from router.ground.ground import Ground
    from router.guaranteed.endpoints import Endpoints
    from router.matching.shards import Shards
    from router.sessions.directory import Directory
    from router.sessions.interest import Filter
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


#: How often a neighbour hears that we are there.
ASSURE_S: Final = 1.0
#: What no neighbour may send.
_FAULTS: Final = (errors.MALFORMED_FRAME, errors.UNKNOWN_OPERATION, errors.LINK_IMPORTS_EXCEEDED)
#: What the queues of a link end in, and what their messages are counted as.
_QUEUES: Final = {"": "spooled", wire.LINK_RETRY_SUFFIX: "retry", wire.LINK_DMQ_SUFFIX: "dead"}


class Links:
    """Neighbours and the interest between them and this node."""

    def __init__(
        self,
        ground: Ground,
        directory: Directory,
        shards: Shards,
        egress: Egress,
        endpoints: Endpoints,
        asks: Asks,
        *,
        on_filter: Callable[[int, str], None],
        now: float,
    ) -> None:
        """Begin without neighbours; `on_filter` is called with (VPN number, pattern) when a filter comes or goes."""
        interest = self._interest = shards.interest
        outbox = self._outbox = ground.out
        self._egress = egress
        self._directory = directory
        self._endpoints = endpoints
        self._now = now
        self.gate = Gate(ground, directory)
        #: What endpoints of neighbours want.
        self.stored = StoredInterest(endpoints, asks, outbox)
        self.imports = Imports(interest, shards, ground.config.link_imports_max, on_filter)
        #: Called with (session, error, now) when an import is none (40001), or one too many (40031).
        self.on_fault: Callable[[Session, AngariumError, float], None] = nothing
        self.imports.on_fault = lambda session, error: self.on_fault(session, error, self._now)
        #: The sessions of neighbours, in the order of their login.
        self.sessions: dict[Session, Neighbour] = {}
        self.peers = Peers(self.sessions, egress)
        #: When neighbours are assured next.
        self._assure_at = now
        #: What a step of counting may cost.
        self.step_max = STEP_MAX
        #: VPN number -> what it exports; exactly those with a session.
        self._exports: dict[int, VpnExports] = {}

    # -- sessions --------------------------------------------------------------------------------------------

    def opened(self, session: Session, neighbour: Neighbour) -> None:
        """A neighbour logged in: it is told what we want of it, piece by piece, once that is counted."""
        self.sessions[session] = neighbour
        exports = self._exports.get(session.vpn.id)
        if exports is None:
            self._exports[session.vpn.id] = VpnExports(session.vpn.id, self._interest.filters)
            self._interest.on_member = self._member_changed
            session.vpn.has_neighbours = True
        elif not exports.is_counting:
            neighbour.untold = deque(exports.patterns())

    def session_ended(self, session: Session, error: AngariumError | None, _now: float) -> None:
        """If the session of a neighbour is over, what it wanted is taken back in the next turns of the loop."""
        if session.link is None:
            return
        neighbour = self.sessions.pop(session)
        self.stored.forget(session)
        self.imports.ended(session, neighbour)
        if not any(other.vpn is session.vpn for other in self.sessions):
            del self._exports[session.vpn.id]
            session.vpn.has_neighbours = False
            if not self._exports:
                self._interest.on_member = None
        self._tell_refusal(session, neighbour, error)
        error = error or neighbour.goodbye
        if neighbour.is_synchronised:
            why = "it said goodbye" if error is None else str(error)
            text = f"the link to node {neighbour.node!r} in Message VPN {session.vpn.name!r} is down: {why}"
            self._event("SYSTEM_LINK_DOWN", "warning", text, session, neighbour)

    def _tell_refusal(self, session: Session, neighbour: Neighbour, error: AngariumError | None) -> None:
        """Tell the operators why a link is refused that was let in: by us, or by the other side."""
        if error is not None and error.code in _FAULTS:
            self.gate.refused(neighbour.node, session.vpn.name, error, self._now)
            return
        why = neighbour.goodbye
        if (
            why is not None and why.code not in errors.PASSING and not neighbour.is_local
        ):  # ours tells by itself
            self.gate.was_refused(neighbour.node, session.vpn.name, why, self._now)

    def fault_of(self, session: Session) -> AngariumError | None:
        """Tell why a session may not go on after its link object changed."""
        neighbour = self.sessions[session]
        try:
            self.gate.check_object(neighbour.node, is_local=neighbour.is_local)
        except AngariumError as error:
            return error
        return None

    # -- imports ---------------------------------------------------------------------------------------------

    def take(self, session: Session, frames: list[bytes], now: float) -> None:
        """Take a frame that only neighbours send.

        Raises:
            InvalidRequestError: it is malformed (40001). What is wrong with one of the imports `on_fault` is told.
        """
        self._now = now
        if frames[0] == wire.PEERS:
            self.peers.take(session, frames[1], now)
        else:
            self.take_imports(session, frames[1])

    def take_imports(self, session: Session, header: bytes) -> None:
        """Take IMPORTS of a neighbour; IMPORTED follows when the workers have confirmed.

        Raises:
            InvalidRequestError: it is malformed (40001).
        """
        imports = wire.decode_header(decode_imports, header)
        request, kind, entries = imports.request, imports.kind, imports.entries
        neighbour = self.sessions[session]
        waiting = 2  # for the workers, and for the controller

        def done() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting or session.closed:
                return
            self._egress.answer(session, ImportedFrame(request).frames())
            if kind == wire.EXPORTS_COMPLETE and not neighbour.is_synchronised:
                self._synchronised(session, neighbour)

        def finished() -> None:
            self.stored.take(session, neighbour.node, kind, entries, done)

        self.imports.begin(session, neighbour, entries, finished, done)

    def _synchronised(self, session: Session, neighbour: Neighbour) -> None:
        neighbour.is_synchronised = True
        text = (
            f"the link to node {neighbour.node!r} in Message VPN {session.vpn.name!r} is up: "
            f"{len(neighbour.imports)} subscriptions of it"
        )
        self._event("SYSTEM_LINK_UP", "notice", text, session, neighbour)

    # -- exports ---------------------------------------------------------------------------------------------

    def _member_changed(self, a_filter: Filter[Any], member: Any, text: str, step: int) -> None:
        exports = self._exports.get(a_filter.vpn_id)
        if exports is not None:
            exports.change(a_filter, member, text, step)

    def tick(self, now: float) -> float:
        """Do what gathered in a turn of the loop; gives when to call again, infinite if nothing waits."""
        self._now = now
        if not self.sessions and not self.imports:
            return float("inf")
        if now >= self._assure_at:
            self._assure(now)
        self.imports.step()
        waits = self._count_more()
        for vpn_id, exports in self._exports.items():
            if exports.has_changes:
                self._tell_changes(vpn_id, exports.changes())
        for session, neighbour in self.sessions.items():
            if neighbour.untold is not None and not self._exports[session.vpn.id].is_counting:
                waits |= self._tell_more(session, neighbour)
        return now if waits or self.imports else min(self._assure_at, self.stored.tick(now))

    def _assure(self, now: float) -> None:
        """Tell neighbours of which something comes that we are there.

        On a slow path what they ask, to know that, waits behind all that they have sent.
        """
        self._assure_at = now + ASSURE_S
        for session, neighbour in self.sessions.items():
            if not neighbour.is_local and now - session.last_heard < ASSURE_S:
                self._egress.assure(session)

    def _count_more(self) -> bool:
        """Do the next step of counting where a first neighbour has come; true if there is another one."""
        left = self.step_max
        for vpn_id, exports in self._exports.items():
            if exports.is_counting and left > 0:
                left -= exports.go_on(left)
                if not exports.is_counting:
                    self._counted(vpn_id, exports)
        return any(exports.is_counting for exports in self._exports.values())

    def _counted(self, vpn_id: int, exports: VpnExports) -> None:
        for session, neighbour in self.sessions.items():
            if session.vpn.id == vpn_id:
                neighbour.untold = deque(exports.patterns())

    def _tell_changes(self, vpn_id: int, entries: list[tuple[str, int]]) -> None:
        for start in range(0, len(entries), wire.MAX_WISHES_PER_FRAME):
            part = entries[start : start + wire.MAX_WISHES_PER_FRAME]
            frames = ExportsFrame(wire.EXPORTS_CHANGES, part).frames()
            for session, neighbour in self.sessions.items():
                if session.vpn.id == vpn_id:
                    neighbour.exported += len(part)
                    self._egress.answer(session, frames)

    def _tell_more(self, session: Session, neighbour: Neighbour) -> bool:
        """Tell a neighbour the next piece of the snapshot; true if it wants the next one in the next turn."""
        assert neighbour.untold is not None
        if not self._egress.is_reading(session):
            return False
        exports = self._exports[session.vpn.id]
        patterns = [
            neighbour.untold.popleft() for _ in range(min(len(neighbour.untold), wire.MAX_WISHES_PER_FRAME))
        ]
        entries = [(pattern, wish) for pattern in patterns if (wish := exports.wish(pattern))]
        kind = wire.EXPORTS_SNAPSHOT if neighbour.untold else wire.EXPORTS_COMPLETE
        neighbour.exported += len(entries)
        self._egress.answer(session, ExportsFrame(kind, entries).frames())
        if kind == wire.EXPORTS_COMPLETE:
            neighbour.untold = None
        return neighbour.untold is not None

    # -- operators -------------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        """Give a row per session of a neighbour."""
        return [
            {
                "name": neighbour.node,
                "vpn": session.vpn.name,
                "address": session.address,
                **neighbour.describe(self._now),
                "messages_in": session.messages_in,
                "messages_out": session.sent_messages
                + sum(one.sent_messages for one in session.flows.values()),
                "bytes_out": session.sent_bytes + session.flow_out_bytes,
                "queued_messages": session.egress.messages if session.egress is not None else 0,
                "queued_bytes": session.egress.bytes if session.egress is not None else 0,
                "subscriptions_dropped": self.stored.dropped(session),
                "discards": {k: v for k, v in session.counters.items() if k.startswith("discard.")},
            }
            for session, neighbour in self.sessions.items()
        ]

    def overview(self, now: float) -> dict[str, Any]:
        """Give what the controller wants to know of neighbours: sessions, queues, reports, and who was refused."""
        self._now = now
        return {
            "links": self.describe(),
            "queues": {node: self._queues(node) for node in self._directory.links},
            "heard": self.peers.heard(now),
            "refusals": self.gate.recent(now),
        }

    def _queues(self, node: str) -> dict[str, int]:
        """Give what the queues of a link hold, in all Message VPNs."""
        totals = dict.fromkeys(("spooled_messages", "spooled_bytes", "retry_messages", "dead_messages"), 0)
        for vpn in self._directory.vpns:
            for suffix, figure in _QUEUES.items():
                found = self._endpoints.find(vpn, QUEUE, f"{wire.LINK_NAME_PREFIX}{node}{suffix}")
                if found is not None:
                    totals[f"{figure}_messages"] += found.messages
                    totals["spooled_bytes"] += found.bytes if not suffix else 0
        return totals

    def remote_subscriptions(self, vpn: str | None, limit: int) -> Iterator[dict[str, Any]]:
        """List what neighbours want, up to a limit, one by one while links come and go."""
        rows = (
            {"node": neighbour.node, "vpn": session.vpn.name, "filter": pattern, **_shown(wish)}
            for session, neighbour in list(self.sessions.items())
            if vpn in (None, session.vpn.name)
            for pattern, wish in list(neighbour.imports.items())
        )
        return islice(rows, limit)

    def _event(self, name: str, severity: str, text: str, session: Session, neighbour: Neighbour) -> None:
        self._outbox.event(name, text, severity=severity, link=neighbour.node, vpn=session.vpn.name)

    def validate(self) -> None:
        """Check what the comments promise."""
        assert {session.vpn.id for session in self.sessions} == set(self._exports)
        for session, neighbour in self.sessions.items():
            assert session.link is neighbour
            assert not session.closed
            assert all(neighbour.imports.values())
        for vpn_id, exports in self._exports.items():
            exports.validate(vpn_id, self._interest.filters)
        self.imports.validate()


def _shown(wish: int) -> dict[str, Any]:
    """Give a wish as operators see it."""
    priority = wish >> wire.WISH_DTO_SHIFT
    return {
        "deliver_always": bool(wish & wire.WISH_DELIVER_ALWAYS),
        "endpoint": bool(wish & wire.WISH_ENDPOINT),
        "dto_priority": f"P{priority}" if priority else None,
    }
