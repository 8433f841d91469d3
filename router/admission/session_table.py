"""The table of connected clients: by routing id, and by name within a Message VPN."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.session import Session


class SessionTable:
    """Every logged-in client, in the order of login; keeps the counts of its Message VPN."""

    def __init__(self) -> None:
        #: Routing id -> session; the same sessions as in `_by_name`.
        self.by_routing_id: dict[bytes, Session] = {}
        #: (VPN name, client name) -> session.
        self._by_name: dict[tuple[str, str], Session] = {}

    def __len__(self) -> int:
        return len(self.by_routing_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self.by_routing_id.values())

    def find(self, vpn: str, name: str) -> Session | None:
        """Give the connected client of that name."""
        return self._by_name.get((vpn, name))

    def admit(self, session: Session) -> None:
        """A client logged in."""
        vpn = session.vpn
        self.by_routing_id[session.routing_id] = session
        self._by_name[(vpn.name, session.client_name)] = session
        vpn.clients[session.client_name] = session.number
        vpn.username_clients[session.username] = vpn.username_clients.get(session.username, 0) + 1

    def remove(self, session: Session) -> None:
        """A session is over."""
        vpn = session.vpn
        del self.by_routing_id[session.routing_id]
        del self._by_name[(vpn.name, session.client_name)]
        del vpn.clients[session.client_name]
        vpn.username_clients[session.username] -= 1
        if not vpn.username_clients[session.username]:
            del vpn.username_clients[session.username]

    def validate(self) -> None:
        """Check that both tables hold the same sessions, and each session itself."""
        assert list(self.by_routing_id.values()) == list(self._by_name.values())
        for session in self:
            assert not session.closed
            session.validate()
