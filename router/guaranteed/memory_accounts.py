"""What clients make the node keep in memory, in bytes: charged to the client, its username and its Message VPN.

A charge is what a thing costs in all processes together (`angarium_server.costs`), however many share parts of it, so
it is the same when it is given back. Each of the three has a limit; what would exceed one is refused. What an endpoint
takes outlives the client that made it, so it is charged to username and Message VPN only.

Counts of things have limits of their own. These here are for what counts cannot bound: things that cost a hundred times
as much as others of their kind.
"""

from __future__ import annotations

from sys import maxsize
from typing import TYPE_CHECKING

from angarium import errors
from angarium.errors import error_for
from router.ground.alarms import CLIENT_MEMORY, USERNAME_MEMORY, VPN_MEMORY, UsernameOf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.ground.alarms import Alarms
    from router.guaranteed.endpoints import Endpoint
    from router.sessions.directory import Vpn
    from router.sessions.session import Session


class _Use:
    """What a username has been charged."""

    __slots__ = ("bytes", "limit")

    def __init__(self) -> None:
        self.bytes = 0
        #: The newest that is known; 0 is none.
        self.limit = 0


class MemoryAccounts:
    """Charges, and gives back."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        #: What all Message VPNs have been charged.
        self.bytes = 0
        #: What was given back since the process started.
        self.freed_bytes = 0
        #: VPN number -> what it was charged; no zeros.
        self._vpns: dict[int, int] = {}
        #: (VPN number, username) -> the same.
        self._usernames: dict[tuple[int, str], _Use] = {}

    def charge(self, session: Session, size: int) -> None:
        """Charge a client for something that it wants the node to keep. Links and bridges are operators' own.

        Raises:
            UnavailableError: it, its username or its Message VPN may not have so much (50325).
        """
        if not size or not session.is_client:
            return
        self.refuse(session, size)
        session.memory_bytes += size
        self._of_username(session.vpn, session.username).limit = session.permissions.username_memory_max
        self._add(session.vpn, session.username, size)

    def room(self, session: Session) -> int:
        """Give how much a client can be charged before one of its limits refuses it."""
        if not session.is_client:
            return maxsize
        permissions, vpn = session.permissions, session.vpn
        use = self._usernames.get((vpn.id, session.username))
        return min(
            permissions.memory_max - session.memory_bytes,
            permissions.username_memory_max - (use.bytes if use is not None else 0),
            _limit_of(vpn) - self.used_by(vpn),
        )

    def refund(self, session: Session, size: int) -> None:
        """A client gave something up. At its end `ended` gives back all."""
        if not size or session.closed or not session.is_client:
            return
        session.memory_bytes -= size
        self._add(session.vpn, session.username, -size)
        self._alarms.client_has(CLIENT_MEMORY, session, session.memory_bytes, session.permissions.memory_max)

    def session_ended(self, session: Session, _error: object, _now: float) -> None:
        """A session is over: everything that it was charged for goes."""
        size, session.memory_bytes = session.memory_bytes, 0
        if size:
            self._add(session.vpn, session.username, -size)

    def refuse(self, session: Session, size: int) -> None:
        """Refuse a client what exceeds one of its limits, and tell of it.

        Raises:
            UnavailableError: it, its username or its Message VPN may not have so much (50325).
        """
        limit = session.permissions.memory_max
        if session.memory_bytes + size > limit:
            self._alarms.client_is_full(CLIENT_MEMORY, session, limit)
            detail = f"client profile {session.profile_name} allows {limit} bytes"
            raise error_for(errors.MEMORY_EXCEEDED, detail)
        limit = session.permissions.username_memory_max
        use = self._usernames.get((session.vpn.id, session.username))
        if size + (use.bytes if use is not None else 0) > limit:
            self._alarms.exceeded(USERNAME_MEMORY, UsernameOf(session.vpn, session.username), limit)
            raise error_for(errors.MEMORY_EXCEEDED, f"username {session.username} may take {limit} bytes")
        limit = _limit_of(session.vpn)
        if size + self.used_by(session.vpn) > limit:
            self._alarms.exceeded(VPN_MEMORY, session.vpn)
            raise error_for(errors.MEMORY_EXCEEDED, f"Message VPN {session.vpn.name} may take {limit} bytes")

    def keep(self, vpn: Vpn, username: str, size: int) -> None:
        """Charge a username (empty: nobody's) and its Message VPN for what outlives clients; negative: give it back."""
        self._add(vpn, username, size)

    def used_by(self, vpn: Vpn) -> int:
        """Give what a Message VPN was charged."""
        return self._vpns.get(vpn.id, 0)

    def _add(self, vpn: Vpn, username: str, size: int) -> None:
        self.bytes += size
        self.freed_bytes -= min(size, 0)
        used = self._vpns[vpn.id] = self.used_by(vpn) + size
        self._alarms.look(VPN_MEMORY, vpn, used)
        if not used:
            del self._vpns[vpn.id]
        if not username:
            return
        use = self._of_username(vpn, username)
        use.bytes += size
        self._alarms.look(USERNAME_MEMORY, UsernameOf(vpn, username), use.bytes, use.limit)
        if not use.bytes:
            del self._usernames[vpn.id, username]

    def _of_username(self, vpn: Vpn, username: str) -> _Use:
        found = self._usernames.get((vpn.id, username))
        if found is None:
            found = self._usernames[vpn.id, username] = _Use()
        return found

    def validate(self, sessions: Iterable[Session], endpoints: Iterable[Endpoint], more: int = 0) -> None:
        """Check the sums, given who is charged, and how much for what is neither."""
        charged = more + sum(one.memory_bytes for one in sessions)
        charged += sum(one.memory_bytes for one in endpoints if not one.link)
        assert self.bytes == sum(self._vpns.values()) == charged
        assert min((*self._vpns.values(), *(use.bytes for use in self._usernames.values())), default=0) >= 0


def _limit_of(vpn: Vpn) -> int:
    return int(vpn.attributes["max_memory_bytes"])
