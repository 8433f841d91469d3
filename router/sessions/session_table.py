"""The table of connected clients: by routing id, and by name within a Message VPN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium.errors import AngariumError
    from router.sessions.session import Session


class SessionTable:
    """Every session, in the order of login; keeps the counts of clients of its Message VPN.

    How one ends is not decided here: `router.closing` sets these three.
    """

    #: Tells a session why it ends, and ends it.
    close: Callable[[Session, AngariumError, float], None]
    #: Ends a session whose client resumed on another connection.
    replace: Callable[[Session, float], None]
    #: Ends a session that said BYE, if nothing keeps it any more.
    go_on_with_bye: Callable[[Session, float], None]

    def __init__(self) -> None:
        #: Routing id -> session; the same sessions as in `_by_name`.
        self.by_routing_id: dict[bytes, Session] = {}
        #: (VPN name, client name) -> session.
        self._by_name: dict[tuple[str, str], Session] = {}
        #: How many of them are no clients.
        self._others = 0
        #: Those that came since `router.closing` has taken them; some may have ended.
        self.came: list[Session] = []

    def __len__(self) -> int:
        """Count the clients, without links and bridges."""
        return len(self.by_routing_id) - self._others

    def __iter__(self) -> Iterator[Session]:
        return iter(self.by_routing_id.values())

    def find(self, vpn: str, name: str) -> Session | None:
        """Give the connected client of that name."""
        return self._by_name.get((vpn, name))

    def find_client(self, vpn: str, name: str) -> Session | None:
        """Find a client; links, gateways, and bridges of this node are none."""
        found = self.find(vpn, name)
        return found if found is not None and found.is_client else None

    def carrier_of(self, routing_id: bytes) -> Session | None:
        """Give the session of the gateway that a client with this routing id is attached to, if it is there."""
        return self.by_routing_id.get(routing_id[: -wire.ATTACHED_NUMBER_BYTES])

    def admit(self, session: Session) -> None:
        """A client logged in."""
        vpn = session.vpn
        self.by_routing_id[session.routing_id] = session
        self._by_name[(vpn.name, session.client_name)] = session
        self.came.append(session)
        if not session.is_client:
            self._others += 1
            return
        vpn.clients[session.client_name] = session.number
        vpn.username_clients[session.username] = vpn.username_clients.get(session.username, 0) + 1

    def remove(self, session: Session) -> None:
        """A session is over."""
        vpn = session.vpn
        del self.by_routing_id[session.routing_id]
        del self._by_name[(vpn.name, session.client_name)]
        if not session.is_client:
            self._others -= 1
            return
        del vpn.clients[session.client_name]
        vpn.username_clients[session.username] -= 1
        if not vpn.username_clients[session.username]:
            del vpn.username_clients[session.username]
            vpn.guests.pop(session.username, None)

    def validate(self) -> None:
        """Check that both tables hold the same sessions, and each session itself."""
        assert list(self.by_routing_id.values()) == list(self._by_name.values())
        assert self._others == sum(not session.is_client for session in self)
        for session in self:
            assert not session.closed
            session.validate()
