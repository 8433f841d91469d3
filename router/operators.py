"""What operators see of the sessions, and what their changes mean for them.

The controller forwards requests here. Sessions under an object that changes get their rights again, or end if they may
not be here any more: some in each step, since ten thousand would hold messages up for 40 ms. The change is answered
when the last one has been reviewed. What an object that is deleted means is in force at once: nothing refers to one
that is not there.
"""

from __future__ import annotations

import fnmatch
import math
from collections import deque
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.errors import AngariumError, error_for
from router.ground.ground import nothing
from router.guaranteed.endpoints import KINDS as ENDPOINT_KINDS
from router.guaranteed.endpoints import NO_TRAFFIC
from router.subscriptions.subscriptions import describe_subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from router.access.bridges import BridgeGate
    from router.guaranteed.endpoints import Endpoint, Endpoints, LaneUsage
    from router.guaranteed.lanes import Lanes
    from router.links.links import Links
    from router.sessions.directory import Directory, Vpn
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable
    from router.subscriptions.rights import Rights

#: Sessions that are reviewed in one step: 1 to 2 ms.
REVIEWS_PER_STEP: Final = 400


def describe_endpoints(
    endpoints: Iterable[Endpoint], now: float, columns: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """Give what `angarium queue list` and `show` say of endpoints, or these columns of that."""
    plain = [(name, read) for name, read in _COLUMNS.items() if not columns or name in columns]
    moving = [name for name in TRAFFIC if not columns or name in columns]
    for endpoint in endpoints:
        if endpoint.is_gone:  # since the list was begun
            continue
        row = {name: read(endpoint) for name, read in plain}
        if moving:
            traffic = _traffic(endpoint, now)
            row |= {name: traffic[name] for name in moving}
        yield row


def _traffic(endpoint: Endpoint, now: float) -> dict[str, float]:
    """Give what came and went of all lanes together, since the router began and each second."""
    lanes = [lane.traffic for lane in endpoint.all_lanes() if lane.traffic.counts != NO_TRAFFIC]
    if not lanes:
        return _STILL  # most of many queues
    counts = map(sum, zip(NO_TRAFFIC, *(lane.counts for lane in lanes), strict=True))
    rates = (
        round(sum(each), 1) for each in zip(NO_TRAFFIC, *(lane.rates(now) for lane in lanes), strict=True)
    )
    return dict(zip(TRAFFIC, (*counts, *rates), strict=True))


def _seen_lanes(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Give what operators are told of the lanes of an endpoint: of all but those that are empty and closed."""
    return [
        _describe_lane(lane)
        for lane in endpoint.all_lanes()
        if lane.partition < len(endpoint.lanes)
        or lane.held_messages
        or not (lane.is_reported and lane.is_complete)
    ]


def _describe_lane(lane: LaneUsage) -> dict[str, Any]:
    return {
        "lane_id": lane.lane_id,
        "partition": lane.partition,
        "home": lane.home,
        "messages": lane.held_messages,
        "bytes": lane.held_bytes,
        "unacked": lane.unacked,
        "oldest_stored_ms": lane.oldest_stored_ms,
        "reader_group": lane.reader_group,
    }


def _oldest_stored_ms(endpoint: Endpoint) -> int:
    """Give when the oldest message of an endpoint was spooled; 0: it is empty."""
    return min((lane.oldest_stored_ms for lane in endpoint.all_lanes() if lane.oldest_stored_ms), default=0)


#: What came into an endpoint and left it for good, since the router began and in the last seconds.
TRAFFIC: Final = tuple(
    f"{what}_{way}{unit}"
    for unit in ("", "_per_s")
    for way in ("in", "out")
    for what in ("messages", "bytes")
)
_STILL: Final[dict[str, float]] = dict.fromkeys(TRAFFIC, 0)
#: Columns that are attributes of an endpoint.
_PLAIN: Final = ("id", "kind", "name", "durable", "created_by", "client", "messages", "bytes", "unacked")
#: What operators are told of an endpoint beside its traffic; sizes in bytes, times in wall ms.
_COLUMNS: Final[dict[str, Callable[[Endpoint], Any]]] = {
    **{name: attrgetter(name) for name in (*_PLAIN, "reader_group")},
    "oldest_stored_ms": _oldest_stored_ms,
    "vpn": attrgetter("vpn.name"),
    "bind_count": lambda one: len(one.flows),
    "reader_username": lambda one: one.reader[0] if one.reader_group else "",
    "reader_client": lambda one: one.reader[1] if one.reader_group else "",
    "lanes": _seen_lanes,
    "counters": lambda one: dict(one.counters),
}


class Operators:
    """Requests of operators about objects, clients and subscriptions."""

    def __init__(
        self,
        directory: Directory,
        sessions: SessionTable,
        rights: Rights,
        forget_vpn: Callable[[Vpn], None],
        endpoints: Endpoints,
        lanes: Lanes,
        links: Links,
        bridges: BridgeGate,
    ) -> None:
        self._links = links
        self._bridges = bridges
        self._directory = directory
        self._sessions = sessions
        self._rights = rights
        self._forget_vpn = forget_vpn
        self._endpoints = endpoints
        self._lanes = lanes
        #: Sessions that are to be reviewed, those first that are due first; some may have ended.
        self._unreviewed: dict[Session, None] = {}
        self._reviewed_total = 0
        #: What is called when so many have been reviewed in all; totals that never fall.
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def configure(self, rows: list[list[Any]], now: float) -> None:
        """Take a whole snapshot of [kind, vpn, name, attributes]; what is not in it is gone.

        What an endpoint holds is deleted only if its deletion was told before.
        """
        directory = self._directory
        wanted = {(kind, "" if kind == "vpn" else vpn, name) for kind, vpn, name, _ in rows}
        for key in self._endpoints.keys():  # noqa: SIM118 - it is no map
            if key not in wanted:
                self._endpoints.lose(*key)
        gone = [key for key in directory.object_keys() if key not in wanted]
        for key in gone:
            self._drop(*key)
        for kind, vpn, name, attributes in sorted(rows, key=_vpns_first):
            self._put(kind, vpn, name, attributes, now)
        # Who may log in may publish, and every queue is to have what it wants by then.
        self._endpoints.filters.finish()
        directory.complete = True
        self._lanes.open()
        (self._review_at_once if gone else self._review)(list(self._sessions), now)

    def put_object(
        self,
        kind: str,
        vpn: str,
        name: str,
        attributes: dict[str, Any],
        now: float,
        done: Callable[[], None] = nothing,
    ) -> None:
        """An object was created or changed; `done` is called when that is in force."""
        if kind in ENDPOINT_KINDS:
            self._put(kind, vpn, name, attributes, now, done)
            return
        self._review(self._under(kind, self._put(kind, vpn, name, attributes, now)), now, done)

    def edit_object(
        self,
        kind: str,
        vpn: str,
        name: str,
        edits: dict[str, list[list[str]]],
        done: Callable[[], None] = nothing,
    ) -> None:
        """Lists of an endpoint changed: {attribute: [added, removed]}; `done` is called when that is in force.

        Raises:
            NotFoundError: there is no such endpoint (40404).
        """
        endpoint = self._endpoints.find(vpn, kind, name)
        if endpoint is None:
            raise error_for(errors.UNKNOWN_ENDPOINT, f"{kind} {name!r}")
        self._endpoints.edit(endpoint, edits, done)

    def drop_object(
        self, kind: str, vpn: str, name: str, now: float, done: Callable[[], None] = nothing
    ) -> None:
        """An object was deleted; `done` is called when nothing of it is left."""
        if kind in ENDPOINT_KINDS:
            self._endpoints.drop(vpn, kind, name, done)
            return
        self._review_at_once(self._under(kind, self._drop(kind, vpn, name)), now)
        done()

    def _put(
        self,
        kind: str,
        vpn_name: str,
        name: str,
        attributes: dict[str, Any],
        now: float,
        done: Callable[[], None] = nothing,
    ) -> Vpn | None:
        if kind not in ENDPOINT_KINDS:
            vpn = self._directory.put(kind, vpn_name, name, attributes)
            if kind == "vpn" and vpn is not None:
                self._endpoints.vpn_changed(vpn)
            return vpn
        vpn = self._directory.vpns.get(vpn_name)
        if vpn is None:
            done()
        else:
            self._endpoints.put(vpn, kind, name, attributes, done, now=now)
        return vpn

    def _drop(self, kind: str, vpn_name: str, name: str) -> Vpn | None:
        if kind in ENDPOINT_KINDS:
            self._endpoints.drop(vpn_name, kind, name)
            return None
        if kind == "vpn" and name in self._directory.vpns:
            self._endpoints.drop_vpn(self._directory.vpns[name])
        vpn = self._directory.drop(kind, vpn_name, name)
        if kind == "vpn" and vpn is not None:
            self._forget_vpn(vpn)
        return vpn

    def _under(self, kind: str, vpn: Vpn | None) -> list[Session]:
        """Give the sessions that an object of a Message VPN, or of none, may be about."""
        if kind == "link":
            return [one for one in self._sessions if one.link or one.carried_for]
        return [one for one in self._sessions if one.vpn is vpn]

    def _review(self, sessions: list[Session], now: float, done: Callable[[], None] = nothing) -> None:
        """Review sessions in this step and the next ones; those that wait for it already keep their places."""
        self._unreviewed.update(dict.fromkeys(sessions))
        self._waiting.append((self._reviewed_total + len(self._unreviewed), done))
        self.tick(now)

    def tick(self, now: float) -> float:
        """Review some of the sessions that wait for it; gives when to come again."""
        if not self._waiting:
            return math.inf
        some = [*islice(self._unreviewed, REVIEWS_PER_STEP)]
        for session in some:
            del self._unreviewed[session]
        self._reviewed_total += len(some)
        self._review_at_once([session for session in some if not session.closed], now)
        while self._waiting and self._waiting[0][0] <= self._reviewed_total:
            self._waiting.popleft()[1]()
        return now if self._waiting else math.inf

    def _review_at_once(self, sessions: list[Session], now: float) -> None:
        for session in sessions:
            fault = self._fault_of(session, now)
            if fault is not None:
                self._sessions.close(session, fault, now)
        self._rights.tell_gateways()

    def _fault_of(self, session: Session, now: float) -> AngariumError | None:
        """Judge a session by the objects that there are now, and give it the rights that they say."""
        vpn = session.vpn
        username = vpn.account_of(session.username)
        if self._directory.vpns.get(vpn.name) is not vpn or not vpn.enabled:
            return error_for(errors.VPN_UNAVAILABLE, vpn.name)
        if not session.is_client:
            return self._links.fault_of(session) if session.link is not None else None
        if username is None or not username.enabled:
            return error_for(errors.USERNAME_SHUTDOWN, session.username)
        if not self._rights.grant(session, now):
            return error_for(errors.CLIENT_CONNECT_DENIED, "a profile of the username is gone")
        return self._bridges.fault_of(session)

    def clients(self, vpn: str | None, now: float) -> Iterator[dict[str, Any]]:
        """List connected clients; like each list here that may be long, one by one, while they come and go."""
        for session in list(self._sessions):
            if session.is_client and not session.closed and vpn in (None, session.vpn.name):
                yield session.describe(now)

    def publishers(self, vpn: str, numbers: list[int]) -> list[tuple[int, str]]:
        """Name the clients of a Message VPN that are connected and have one of these numbers (`publisher_number`)."""
        wanted = frozenset(numbers)
        return [
            (session.publisher, session.client_name)
            for session in self._sessions
            if session.publisher in wanted and session.vpn.name == vpn
        ]

    def blamed(
        self,
        asked: dict[str, int],
        incarnation: int,
        now: float,
        put_aside: Callable[[Session, float], None] | None,
    ) -> dict[str, str] | None:
        """Give whose a session is that a worker died of (`cluster.controller.blames`), and put it aside if told how.

        None: it is gone, of another incarnation, or none of a client. What links and bridges carry is others' work.
        """
        if asked["router"] != incarnation:
            return None
        found = [one for one in self._sessions if one.number == asked["session"] and one.is_client]
        if not found:
            return None
        (session,) = found
        if put_aside is not None:
            put_aside(session, now)
        return {"vpn": session.vpn.name, "username": session.username, "client": session.client_name}

    def client(self, vpn: str, name: str, now: float) -> dict[str, Any]:
        """Describe one client with its subscriptions.

        Raises:
            NotFoundError: there is no such client (40405).
        """
        session = self._find(vpn, name)
        texts = [describe_subscription(session, one) for one in session.subscriptions.values()]
        return {**session.describe(now), "subscription_list": texts}

    def subscriptions(self, vpn: str | None, client: str | None) -> Iterator[dict[str, Any]]:
        """List subscriptions (R87)."""
        for session in list(self._sessions):
            is_meant = vpn in (None, session.vpn.name) and client in (None, session.client_name)
            if is_meant and not session.closed:
                for subscription in list(session.subscriptions.values()):
                    yield describe_subscription(session, subscription)

    def endpoints(
        self,
        vpn: str | None,
        kind: str | None,
        name: str | None,
        now: float,
        columns: Collection[str] = (),
        these: Iterable[tuple[str, str]] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """List the metrics of endpoints whose names match (with * and ?), all or these columns.

        With `these`, Message VPNs and names, it is about those of the kind alone.
        """
        if these is not None:
            chosen = (self._endpoints.find(its_vpn, kind or "", its_name) for its_vpn, its_name in these)
            return describe_endpoints(filter(None, chosen), now, columns)
        pattern = (name or "*").replace("[", "[[]")
        fitting = (
            endpoint
            for endpoint in list(self._endpoints)
            if vpn in (None, endpoint.vpn.name)
            and kind in (None, endpoint.kind)
            and (pattern == "*" or fnmatch.fnmatchcase(endpoint.name, pattern))
        )
        return describe_endpoints(fitting, now, columns)

    def lane_loads(
        self, endpoint_ids: Iterable[int], now: float
    ) -> Iterator[tuple[int, int, int, float, float]]:
        """Give of the lanes of some endpoints: id, messages, bytes, and each second messages and bytes in and out.

        Lanes of which there is nothing to say are left out.
        """
        for endpoint in filter(None, map(self._endpoints.by_id.get, endpoint_ids)):
            for lane in list(endpoint.all_lanes()):
                messages_in, bytes_in, messages_out, bytes_out = lane.traffic.rates(now)
                messages, size = messages_in + messages_out, bytes_in + bytes_out
                if lane.held_messages or messages:
                    yield lane.lane_id, lane.held_messages, lane.held_bytes, messages, size

    def disconnect(self, vpn: str, name: str, now: float) -> None:
        """End a session.

        Raises:
            NotFoundError: there is no such client (40405).
        """
        self._sessions.close(self._find(vpn, name), error_for(errors.DISCONNECTED_BY_OPERATOR), now)

    def _find(self, vpn: str, name: str) -> Session:
        session = self._sessions.find(vpn, name)
        if session is None:
            raise error_for(errors.UNKNOWN_CLIENT_NAME, name)
        return session


def _vpns_first(row: list[Any]) -> bool:
    return bool(row[0] != "vpn")
