"""What clients make the node keep in memory, in bytes: charged to the client, its username and its Message VPN.

A charge is what a thing costs in all processes together (`angarium_server.costs`), however many share parts of it, so
it is the same when it is given back. Each of the three has a limit; what would exceed one is refused. What an endpoint
takes outlives the client that made it, so it is charged to username and Message VPN only.

Counts of things have limits of their own. These here are for what counts cannot bound: things that cost a hundred times
as much as others of their kind.
"""

from __future__ import annotations

from sys import maxsize
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.errors import error_for
from router.sessions.alarm import DEFAULT_PERCENTS, Alarm, client_has_room, client_is_full

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.ground.effects import Outbox
    from router.guaranteed.endpoints import Endpoint
    from router.sessions.directory import Vpn
    from router.sessions.session import Session

VPN_MEMORY: Final = "VPN_MEMORY_HIGH"
USERNAME_MEMORY: Final = "VPN_CLIENT_USERNAME_MEMORY_HIGH"
CLIENT_MEMORY: Final = "CLIENT_MAX_MEMORY_EXCEEDED"


class _Use:
    """What a Message VPN, or a username in it, has been charged."""

    __slots__ = ("alarm", "bytes", "limit")

    def __init__(self, alarm: Alarm) -> None:
        self.bytes = 0
        #: The newest that is known; 0 is none.
        self.limit = 0
        self.alarm = alarm


class MemoryAccounts:
    """Charges, and gives back."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        #: What all Message VPNs have been charged.
        self.bytes = 0
        #: What was given back since the process started.
        self.freed_bytes = 0
        #: VPN number -> what it was charged; those with anything, and those that were refused.
        self._vpns: dict[int, _Use] = {}
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
        if session.closed or not session.is_client:
            return
        session.memory_bytes -= size
        self._add(session.vpn, session.username, -size)
        client_has_room(session, CLIENT_MEMORY, session.memory_bytes, session.permissions.memory_max)

    def ended(self, session: Session) -> None:
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
            client_is_full(session, CLIENT_MEMORY, "bytes of memory", limit, self._outbox)
            detail = f"client profile {session.profile_name} allows {limit} bytes"
            raise error_for(errors.MEMORY_EXCEEDED, detail)
        limit = session.permissions.username_memory_max
        use = self._usernames.get((session.vpn.id, session.username))
        if size + (use.bytes if use is not None else 0) > limit:
            self._of_username(session.vpn, session.username).alarm.exceeded(limit, self._outbox)
            raise error_for(errors.MEMORY_EXCEEDED, f"username {session.username} may take {limit} bytes")
        limit = _limit_of(session.vpn)
        if size + self.used_by(session.vpn) > limit:
            self._of_vpn(session.vpn).alarm.exceeded(limit, self._outbox)
            raise error_for(errors.MEMORY_EXCEEDED, f"Message VPN {session.vpn.name} may take {limit} bytes")

    def keep(self, vpn: Vpn, username: str, size: int) -> None:
        """Charge a username (empty: nobody's) and its Message VPN for what outlives clients; negative: give it back."""
        self._add(vpn, username, size)

    def used_by(self, vpn: Vpn) -> int:
        """Give what a Message VPN was charged."""
        use = self._vpns.get(vpn.id)
        return use.bytes if use is not None else 0

    def _add(self, vpn: Vpn, username: str, size: int) -> None:
        self.bytes += size
        self.freed_bytes -= min(size, 0)
        use = self._of_vpn(vpn)
        use.bytes += size
        use.alarm.update(use.bytes, _limit_of(vpn), DEFAULT_PERCENTS, self._outbox)
        if not use.bytes:
            del self._vpns[vpn.id]
        if not username:
            return
        use = self._of_username(vpn, username)
        use.bytes += size
        use.alarm.update(use.bytes, use.limit, DEFAULT_PERCENTS, self._outbox)
        if not use.bytes:
            del self._usernames[vpn.id, username]

    def _of_vpn(self, vpn: Vpn) -> _Use:
        found = self._vpns.get(vpn.id)
        if found is None:
            alarm = Alarm(
                VPN_MEMORY, f"Message VPN {vpn.name} takes bytes of memory", scope="VPN", vpn=vpn.name
            )
            found = self._vpns[vpn.id] = _Use(alarm)
        return found

    def _of_username(self, vpn: Vpn, username: str) -> _Use:
        found = self._usernames.get((vpn.id, username))
        if found is None:
            fields = {"scope": "VPN", "vpn": vpn.name, "username": username}
            alarm = Alarm(USERNAME_MEMORY, f"username {username} takes bytes of memory", **fields)
            found = self._usernames[vpn.id, username] = _Use(alarm)
        return found

    def validate(self, sessions: Iterable[Session], endpoints: Iterable[Endpoint]) -> None:
        """Check the sums, given who is charged."""
        charged = sum(one.memory_bytes for one in sessions) + sum(
            one.memory_bytes for one in endpoints if not one.link
        )
        assert self.bytes == sum(use.bytes for use in self._vpns.values()) == charged
        assert all(use.bytes >= 0 for use in (*self._vpns.values(), *self._usernames.values()))


def _limit_of(vpn: Vpn) -> int:
    return int(vpn.attributes["max_memory_bytes"])
