"""HELLO: who may connect, and under which name.

The checks run in one order, from cheap to dear: shape and version, Message VPN, username, address, limits,
and the password last, which a bounded pool compares off the loop (scrypt takes tens of milliseconds). What
says that a Message VPN or a username exists is judged before, and told to nobody (`HIDDEN`); limits and a
disabled Message VPN are judged behind the password, and told.

A client that was here within the resume time presents the token of its WELCOME instead; the token is a MAC
over (Message VPN, username and its state, client name, inbox), so a changed username voids it, and it says
nothing about any password. The inbox is that of one session: the token is good while that session is the
newest of its name, so an old one neither logs in nor ends a session that came later.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium_server.access import is_this_host
from angarium_server.memory.memory import give_up_room
from router.ground.alarms import NODE_CONNECTIONS, USERNAME_CONNECTIONS, VPN_CONNECTIONS, UsernameOf
from router.sessions.directory import guest, profiles_of

if TYPE_CHECKING:
    from angarium_server.tokens.claims import Grant
    from router.access.issuers import TokenLogin
    from router.ground.alarms import Alarms
    from router.ground.config import RouterConfig
    from router.sessions.directory import Directory, Username, Vpn
    from router.sessions.hello import Hello
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable

_MAC_BYTES = 16
#: Ways to log in. A session by a token (JWT) ends with that, so its resume token stands for nothing else.
_BY_NAME: Final = ""
_BY_GRANT: Final = "/grant"
#: Reasons that an unauthenticated peer does not hear, since they tell what exists: all are 40101 to it.
HIDDEN: Final = frozenset(
    (
        errors.UNAUTHORIZED,
        errors.USERNAME_SHUTDOWN,
        errors.CLIENT_CONNECT_DENIED,
        errors.VPN_NOT_ALLOWED,
    )
)


class Ticket(NamedTuple):
    """A login that passed every check but its password."""

    routing_id: bytes
    hello: Hello
    vpn: Vpn
    username: Username
    address: str
    #: The inbox of the session that it goes on with; empty for a new one.
    resumed_inbox: str
    #: What the token (JWT) grants that came; None for other logins.
    grant: Grant | None = None

    @property
    def profiles(self) -> tuple[str, str]:
        """Give the names of its client profile and its ACL profile."""
        return profiles_of(self.username, self.grant)

    @property
    def resumed(self) -> bool:
        """Tell whether a token stood for the password."""
        return bool(self.resumed_inbox)

    @property
    def client_name(self) -> str:
        """Give the name that it asks for; empty: one is made up for it."""
        bridge = self.hello.bridge
        return self.hello.client_name if bridge is None else bridge.client_name

    def may_follow(self, before: Session) -> bool:
        """Tell whether it may take the place of the session that has its name now."""
        bridge, behalf, carrier = self.hello.bridge, self.hello.behalf, before.carrier
        return before.username == self.username.name and (
            self.resumed
            or (bridge is not None and bridge.may_follow(before.carried_for))
            # Clients of other protocols take a name over; and nobody hears one whose gateway is gone.
            or (carrier is not None and (carrier.closed or (behalf is not None and behalf.takes_over)))
        )


class Authenticator:
    """Judges logins against the directory; remembers who left and may resume."""

    def __init__(
        self,
        directory: Directory,
        sessions: SessionTable,
        config: RouterConfig,
        token_key: bytes,
        alarms: Alarms,
        now: float,
    ) -> None:
        self._directory = directory
        self._sessions = sessions
        self._config = config
        self._key = token_key
        self._alarms = alarms
        self._resume_s = config.resume_ms / 1000
        self._started_at = now
        #: (VPN, client name) -> when the last session ended, and its inbox; only what may still resume.
        self._left: dict[tuple[str, str], tuple[float, str]] = {}

    def check(
        self, routing_id: bytes, hello: Hello, address: str, connected: int, now: float
    ) -> tuple[Ticket, str | None]:
        """Judge all but the password.

        Gives the ticket and the stored hash to compare, or None if that is not needed.

        Raises:
            AngariumError: why this client may not connect.
        """
        if hello.is_foreign_page and hello.password is None and not self.has_token(hello):
            raise error_for(
                errors.CROSS_ORIGIN,
                "a page of another site logs in with a password, a token or a certificate",
            )
        try:
            ticket = self._identify_unshown(routing_id, hello, address, now)
        except AngariumError:
            self._refuse_full(
                connected
            )  # as who gives a name that there is hears, whose password is not compared
            raise
        username = ticket.username
        is_named = hello.behalf is not None and not hello.behalf.needs_password
        if ticket.resumed or is_named or not username.password:
            self.check_again(ticket, connected)
            return ticket, None
        self._check_node(ticket, connected)
        if hello.password is None:
            raise error_for(errors.UNAUTHORIZED, "no password")
        return ticket, username.password

    def _identify_unshown(self, routing_id: bytes, hello: Hello, address: str, now: float) -> Ticket:
        """Find the username of one who has shown nothing but a password, if that."""
        ticket = self._identify(routing_id, hello, address, now)
        if ticket.username.password:
            return ticket
        if not is_this_host(address):
            raise error_for(errors.UNAUTHORIZED, "a username without password is for this host only")
        if hello.is_foreign_page:  # any password would do
            raise error_for(
                errors.UNAUTHORIZED, "a username without password is not for pages of other sites"
            )
        return ticket

    def check_certified(
        self, routing_id: bytes, hello: Hello, address: str, connected: int, now: float
    ) -> Ticket:
        """Judge a login whose username a certificate has shown: it needs no password.

        Raises:
            AngariumError: why this client may not connect.
        """
        ticket = self._identify(routing_id, hello, address, now)
        self.check_again(ticket, connected)
        return ticket

    def _identify(self, routing_id: bytes, hello: Hello, address: str, now: float) -> Ticket:
        """Find the username, and judge what does not depend on how it is shown."""
        vpn = self._directory.vpn_of(hello.vpn)
        username = vpn.usernames.get(hello.username)
        if username is None:
            raise error_for(errors.UNAUTHORIZED, "no such username")
        resumed_inbox = self._inbox_of_token(hello, vpn, username, _BY_NAME, now)
        if not username.enabled:
            raise error_for(errors.USERNAME_SHUTDOWN, hello.username)
        ticket = Ticket(routing_id, hello, vpn, username, address, resumed_inbox)
        self._check_address(ticket)
        return ticket

    def check_granted(self, login: TokenLogin, grant: Grant, connected: int, now: float) -> Ticket:
        """Judge a login whose token is good: it needs no password, and perhaps no username that an operator has made.

        Raises:
            AngariumError: why this client may not connect.
        """
        vpn = self._directory.vpn_of(grant.vpn)
        username = vpn.usernames.get(grant.username)
        if username is None and login.issuer.unknown_usernames:
            issuer = login.issuer
            username = guest(grant.username, issuer.client_profile, issuer.acl_profile)
            grant = grant.for_guest(issuer)  # another issuer may know somebody else of this name
        if username is None:
            raise error_for(errors.UNAUTHORIZED, f"no such username: {grant.username!r}")
        resumed_inbox = self._inbox_of_token(login.hello, vpn, username, _BY_GRANT, now)
        if not username.enabled:
            raise error_for(errors.USERNAME_SHUTDOWN, grant.username)
        ticket = Ticket(login.routing_id, login.hello, vpn, username, login.address, resumed_inbox, grant)
        self._check_address(ticket)
        if not vpn.enabled:
            raise error_for(errors.VPN_UNAVAILABLE, vpn.name)
        self._check_limits(ticket, connected)
        return ticket

    def check_again(self, ticket: Ticket, connected: int) -> None:
        """Judge what only those may know who have shown that they are who they say, and what may have changed.

        Raises:
            AngariumError: why this client may not connect any more.
        """
        vpn, username = ticket.vpn, ticket.username
        if self._directory.vpns.get(vpn.name) is not vpn or not vpn.enabled:
            raise error_for(errors.VPN_UNAVAILABLE, vpn.name)
        if vpn.usernames.get(username.name) is not username:
            raise error_for(errors.UNAUTHORIZED, "the username changed meanwhile")
        self._check_limits(ticket, connected)

    def _check_address(self, ticket: Ticket) -> None:
        client_profile, acl_profile = ticket.profiles
        acl = ticket.vpn.acls.get(acl_profile)
        if acl is None or client_profile not in ticket.vpn.profiles:
            who = "the username" if ticket.grant is None else "the token, or its username,"
            raise error_for(errors.CLIENT_CONNECT_DENIED, f"{who} names a profile that does not exist")
        if ticket.address and not acl.connect.allows(ticket.address):
            raise error_for(errors.CLIENT_CONNECT_DENIED, ticket.address)

    def _check_node(self, ticket: Ticket, connected: int) -> int:
        """Refuse one client too many; gives how many of those connected make room for this one."""
        # Who resumes before its loss was noticed takes the place of its own dead session.
        before = self._sessions.find(ticket.vpn.name, ticket.client_name)
        own = int(before is not None and ticket.may_follow(before))
        self._refuse_full(connected - own)
        return own

    def _refuse_full(self, connected: int) -> None:
        if connected >= self._config.max_connections:
            self._alarms.exceeded(NODE_CONNECTIONS, self._alarms.node)
            raise error_for(errors.TOO_MANY_CLIENTS, f"the node serves {self._config.max_connections}")

    def _check_limits(self, ticket: Ticket, connected: int) -> None:
        vpn, username = ticket.vpn, ticket.username
        own = self._check_node(ticket, connected)
        vpn_limit = int(vpn.attributes["max_connection_count"])
        if len(vpn.clients) - own >= vpn_limit:
            self._alarms.exceeded(VPN_CONNECTIONS, vpn)
            raise error_for(errors.TOO_MANY_CLIENTS, f"Message VPN {vpn.name} serves {vpn_limit}")
        profile = vpn.profiles[ticket.profiles[0]]
        limit = int(profile["max_connection_count_per_client_username"])
        if vpn.username_clients.get(username.name, 0) - own >= limit:
            self._alarms.exceeded(USERNAME_CONNECTIONS, UsernameOf(vpn, username.name), limit)
            raise error_for(errors.TOO_MANY_CONNECTIONS, f"{username.name} may connect {limit} times")

    def entered(self, session: Session, connected: int) -> None:
        """A session began; there are so many now."""
        self._look(session, connected)

    def _look(self, session: Session, connected: int) -> None:
        vpn, alarms = session.vpn, self._alarms
        alarms.look(NODE_CONNECTIONS, alarms.node, connected)
        alarms.look(VPN_CONNECTIONS, vpn, len(vpn.clients))
        profile = vpn.profiles.get(session.profile_name)
        limit = 0 if profile is None else int(profile["max_connection_count_per_client_username"])
        count = vpn.username_clients.get(session.username, 0)
        alarms.look(USERNAME_CONNECTIONS, UsernameOf(vpn, session.username), count, limit)

    def left(self, session: Session, connected: int, now: float) -> None:
        """A session ended: it may resume for a while; there are so many now."""
        self._look(session, connected)
        key = (session.vpn.name, session.client_name)
        self._left.pop(key, None)
        self._left[key] = now, session.inbox
        self.sweep(now)

    def sweep(self, now: float) -> None:
        """Forget who may not resume any more, so that nothing of a client stays when nobody else comes or goes."""
        while self._left:  # in the order of leaving, so the first ones are the oldest
            oldest = next(iter(self._left))
            fresh = now - self._left[oldest][0] <= self._resume_s
            if fresh and len(self._left) <= self._config.max_connections:
                break
            del self._left[oldest]
        give_up_room(self._left)

    def token(self, ticket: Ticket, session: Session) -> bytes:
        """Make the resume token of a session."""
        claims = [ticket.vpn.name, ticket.username.name, session.client_name]
        way = _BY_NAME if ticket.grant is None else _BY_GRANT
        body = wire.pack([*claims, self._fingerprint(ticket.username, way), session.inbox])
        return hmac.digest(self._key, body, "sha256")[:_MAC_BYTES] + body

    def has_token(self, hello: Hello) -> bool:
        """Tell whether a HELLO is of somebody who was here: he has a token of this node, still good or not."""
        return self._token_body(hello) is not None

    def _token_body(self, hello: Hello) -> bytes | None:
        """Give what the token of a HELLO says; None if this node has not made it."""
        token = hello.token
        if not token:
            return None
        mac, body = token[:_MAC_BYTES], token[_MAC_BYTES:]
        good = hmac.compare_digest(mac, hmac.digest(self._key, body, "sha256")[:_MAC_BYTES])
        return body if good else None

    def _inbox_of_token(self, hello: Hello, vpn: Vpn, username: Username, way: str, now: float) -> str:
        """Give the inbox of the session that a token is of; nothing if it is not good, or not any more."""
        body = self._token_body(hello)
        if body is None:
            return ""
        *claims, inbox = wire.unpack(body)
        if claims != [vpn.name, username.name, hello.client_name, self._fingerprint(username, way)]:
            return ""
        return str(inbox) if self._may_resume(vpn.name, hello.client_name, inbox, now) else ""

    def _may_resume(self, vpn: str, client_name: str, inbox: str, now: float) -> bool:
        session = self._sessions.find(vpn, client_name)
        if session is not None:  # its loss was not noticed yet
            # The WELCOME may have been lost: the token before it is good until something comes.
            is_silent = session.last_heard == session.connected_at
            return inbox == session.inbox or (is_silent and inbox == session.resumed_inbox)
        left_at, last_inbox = self._left.get((vpn, client_name), (self._started_at, inbox))
        # A new router knows nobody, and gives everybody that time from its own start.
        return inbox == last_inbox and now - left_at <= self._resume_s

    def _fingerprint(self, username: Username, way: str) -> str:
        """Tell one state of a username, and way to log in, from every other one.

        Over router restarts and without telling the password.
        """
        if not username.fingerprint:  # a change of the object makes another one
            state = wire.pack([username.name, username.password, username.enabled])
            username.fingerprint = hmac.new(self._key, state, hashlib.sha256).hexdigest()[:16]
        return username.fingerprint + way
