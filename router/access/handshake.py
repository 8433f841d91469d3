"""From a connection's first frame to a session, or to the reason why there is none.

`login` judges; this module keeps what takes time or counts: connect rates, logins whose password is being
compared, names.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec import to_builtins
from msgspec.structs import replace

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium_server.access import network_of
from angarium_server.connections.tls import Peer
from router.access.certified import UNSAID, certified
from router.access.connect_rates import ConnectRates
from router.access.failed_logins import FailedLogins
from router.access.granted import GrantedSessions, Renewal
from router.access.issuers import Issuers, Named, TokenLogin, UnknownKeys
from router.access.joining import Joining
from router.access.login import HIDDEN
from router.access.password_checks import PasswordChecks, check_of
from router.access.token_checks import TokenChecks
from router.ground.effects import SendClient, VerifyPassword, VerifyToken
from router.ground.ground import TokenBucket
from router.links.gate import is_same
from router.sessions.hello import Hello, check_version, parse_hello
from router.sessions.kinds import BRIDGE, GATEWAY, LINK
from router.sessions.queues import EgressQueue
from router.sessions.session import Session, is_attached
from router.subscriptions.subscriptions import INBOX_PREFIX

if TYPE_CHECKING:
    from angarium_server.tokens.keys import Key
    from router.access.bridges import BridgeGate, LocalGate
    from router.access.granted import RenewWish
    from router.access.login import Authenticator, Ticket
    from router.asking.asks import Asks
    from router.asking.requests import Answer
    from router.gateways.wills import Wills
    from router.ground.ground import Ground
    from router.links.links import Links
    from router.sessions.directory import Vpn
    from router.sessions.kinds import SessionKind
    from router.sessions.session_table import SessionTable
    from router.subscriptions.rights import Rights

#: CLOSED answers a second to frames of sessions that are not there: enough to tell, too few to serve as an
#: amplifier.
STRAY_ANSWERS_PER_SECOND = 200.0
#: Handshakes fail as often as somebody tries: one event in this time is enough.
HANDSHAKE_EVENT_S = 60.0
#: Of the key of the digests of passwords that were right.
MEMORY_KEY_BYTES = 32
#: A login waits for so much of its connection's deadline to have its password compared: time is left to refuse it.
WAIT_SHARE: Final = 0.8

#: Costs as much as a hash that `angarium username create` makes; no password fits it.
DUMMY_HASH = "scrypt$16384$8$1$" + "00" * 16 + "$" + "00" * 32


class DummyLogin(NamedTuple):
    """A login that is refused already, but not told so before a password check took its time."""

    routing_id: bytes
    hello: Hello
    address: str
    why: AngariumError


#: Nobody guesses an inbox; the name that is made up for a client shall not collide.
INBOX_BITS, NAME_BITS = 96, 40


#: Credit that is never used up.
UNLIMITED: Final = 1 << 62


class CarrierGate(Protocol):
    """Judges sessions of a kind that is no client; what one says of itself is `Neighbour`, or of its own kind."""

    def judge(self, hello: Hello, now: float, /) -> tuple[Vpn, Any]:
        """Give the Message VPN of a session and what it says of itself, or raise an AngariumError."""

    def check_successor(self, session: Session, who: Any, now: float, /) -> None:
        """Raise an AngariumError if this one may not take the place of a session."""


class Gates(NamedTuple):
    """Who judges sessions of kinds that are no clients."""

    links: Links
    bridges: BridgeGate
    local: LocalGate


class Handshake:
    """Admits clients."""

    def __init__(
        self,
        ground: Ground,
        authenticator: Authenticator,
        sessions: SessionTable,
        rights: Rights,
        gates: Gates,
        asks: Asks,
        wills: Wills,
        now: float,
    ) -> None:
        config = self._config = ground.config
        self._local_secret = ground.identity.local_secret
        self._node, self._counters, self._outbox, self._random = (
            ground.node,
            ground.counters,
            ground.out,
            ground.secrets,
        )
        self._authenticator = authenticator
        self._sessions = sessions
        self._rights = rights
        self._wills = wills
        self._links, self._bridges = gates.links, gates.bridges
        #: Name of a kind that is no client -> who judges those that say they are one.
        self._gates: dict[str, CarrierGate] = {
            LINK.name: gates.links.gate,
            BRIDGE.name: gates.local,
            GATEWAY.name: gates.local,
        }
        #: Whose tokens are taken; nobody's as long as it is not set.
        self.issuers, self._wall_ms = Issuers(()), ground.wall_ms
        self._granted = GrantedSessions(sessions)
        self._unknown_keys = UnknownKeys(asks, self._keys_may_be_known)
        #: True once the node is going down: nobody logs in any more.
        self.closed = False
        #: Logins whose password or token is looked at or waits for it, which `_checks` and `_token_checks` order.
        self._tickets: dict[int, Ticket | DummyLogin | TokenLogin] = {}
        wait_max_s = config.login_timeout_ms / 1000 * WAIT_SHARE
        #: Number of a check -> other logins that it answers, because they came with the same password meanwhile.
        self._followers: dict[int, list[Ticket | DummyLogin]] = {}
        self._checks = PasswordChecks(
            config.password_checks_max,
            wait_max_s,
            config.password_memory_s,
            self._random.randbytes(MEMORY_KEY_BYTES),
        )
        self._token_checks = TokenChecks(wait_max_s)
        self._failed = FailedLogins(self._outbox)
        self._next_number = 1
        #: When operators were told of a handshake that failed.
        self._handshake_told_at = float("-inf")
        self._joining = Joining(asks, self._outbox, self.refuse, self._checks)
        self._stray = TokenBucket(STRAY_ANSWERS_PER_SECOND, STRAY_ANSWERS_PER_SECOND, now)
        self._connects = ConnectRates(config)

    @property
    def waiting(self) -> int:
        """Give how many logins wait for their password to be compared."""
        return len(self._tickets)

    def unauthenticated(self, routing_id: bytes, frames: list[bytes], now: float, peer: Peer) -> None:
        """Frames of nobody we know: HELLO, or the rest of a session that ended."""
        try:
            if frames[0:1] == [wire.JOIN] and len(frames) == 2:
                self._join(routing_id, frames[1], now, peer)
                return
            if len(frames) < 2 or frames[0] != wire.HELLO:
                raise error_for(
                    errors.SESSION_UNKNOWN, "send HELLO first" if frames[0:1] != [wire.BYE] else ""
                )
            self._hello(routing_id, parse_hello(frames[1]), now, peer)
        except AngariumError as error:
            if error.code != errors.SESSION_UNKNOWN or self._stray.take(now):
                self.refuse(routing_id, error)

    def _join(self, routing_id: bytes, wish: bytes, now: float, peer: Peer) -> None:
        """Have the controller judge who wishes to join the cluster, or to leave it."""
        if self.closed:
            raise error_for(errors.SHUTTING_DOWN)
        self._check_connect_rate(peer.address, now)
        self._joining.take(routing_id, wish, peer, now)

    def _hello(self, routing_id: bytes, hello: Hello, now: float, peer: Peer) -> None:
        kind = hello.kind
        if not kind.is_neighbour:
            check_version(hello)
        if self.closed:
            raise error_for(errors.SHUTTING_DOWN)
        if not self._is_shown(hello, kind, peer):
            self._check_connect_rate(peer.address, now)
            why = error_for(errors.UNAUTHORIZED, "it has not shown that it is a process of this node")
            self._deny(DummyLogin(routing_id, hello, peer.address, why), why, now)
            return
        behalf = hello.behalf
        if behalf is not None:
            peer = Peer(behalf.address, behalf.certificate)
            if behalf.password_may_be_token and self.issuers.has_made(hello.password or ""):
                username = "" if hello.username == UNSAID else hello.username
                hello = replace(hello, jwt=hello.password, password=None, username=username)
        self._check_attached(routing_id, hello)
        address = peer.address
        if not self._authenticator.has_token(
            hello
        ):  # after a restart of the router everybody comes back at once
            self._check_connect_rate(address, now)
        if not kind.is_client:
            self._carrier(kind, routing_id, hello, address, now)
        else:
            self._client(routing_id, hello, peer, now)

    def _check_attached(self, routing_id: bytes, hello: Hello) -> None:
        """Judge what only those may say who come in the session of a gateway, and what they may not."""
        if not is_attached(routing_id):
            return
        carrier = self._sessions.carrier_of(routing_id)
        if not hello.kind.is_client:  # a username that somebody of another protocol made up
            raise error_for(errors.UNAUTHORIZED)
        if hello.behalf is None or hello.bridge is not None:
            raise error_for(errors.MALFORMED_FRAME, "a gateway logs in clients, each on its behalf")
        if carrier is not None and hello.vpn != carrier.vpn.name:
            raise error_for(errors.OTHER_VPN, hello.vpn)

    def _client(self, routing_id: bytes, hello: Hello, peer: Peer, now: float) -> None:
        """Find out whether a client is who it says."""
        address = peer.address
        if any(ticket.routing_id == routing_id for ticket in self._tickets.values()):
            raise error_for(errors.ALREADY_LOGGED_IN)
        stored: str | None = None
        try:
            if hello.jwt is not None:
                self._begin_token(routing_id, hello, hello.jwt, address, now)
                return
            shown = certified(hello, peer.certificate, self._config.tls_username)
            if shown is not None:
                hello = shown
                ticket = self._authenticator.check_certified(
                    routing_id, hello, address, len(self._sessions), now
                )
            else:
                ticket, stored = self._authenticator.check(
                    routing_id, hello, address, len(self._sessions), now
                )
        except AngariumError as error:
            if error.code == errors.CROSS_ORIGIN:  # somebody may be using the browser of a user of this host
                self._failed.add(address, hello.vpn, hello.username, error, now)
            if error.code not in HIDDEN:
                raise
            # Its traceback would hold this login, which holds it: a cycle, and the process hardly ever collects those.
            dummy = DummyLogin(routing_id, hello, address, error.with_traceback(None))
            if hello.password is None or hello.jwt is not None:
                self._deny(dummy, error, now)
            else:
                # As long as for a wrong password, so that the time does not tell which usernames exist.
                self._verify(dummy, hello.password, DUMMY_HASH, now)
            return
        if stored is None:
            self._welcome(ticket, now)
        elif self._checks.is_known(stored, hello.password or "", now):
            self._authenticator.check_again(ticket, len(self._sessions))
            self._welcome(ticket, now)
        else:
            self._verify(ticket, hello.password or "", stored, now)

    def _is_shown(self, hello: Hello, kind: SessionKind, peer: Peer) -> bool:
        """Tell whether it is a process of this node, if it has to be or says so: those use a socket of this host."""
        if hello.behalf is None:
            return not kind.is_of_node
        return not peer.address and is_same(hello.behalf.secret, self._local_secret)

    def _begin_token(
        self,
        routing_id: bytes,
        hello: Hello | Named,
        token: str,
        address: str,
        now: float,
        renewal: Renewal | None = None,
        tried: tuple[Key, ...] = (),
    ) -> None:
        """Have a token verified, if it is of somebody whom we trust; keys that were `tried` have not signed it."""
        issuer, peeked = self.issuers.peek(token)
        keys = self.issuers.keys_for(issuer, peeked)
        login = TokenLogin(routing_id, hello, address, issuer, peeked.algorithm, keys, renewal, token)
        if keys and keys != tried:
            self._await_turn(login, (hello.vpn, peeked.username), token, "", now)
        elif not self._waits_for_keys(login, now):
            raise error_for(errors.UNAUTHORIZED, f"a token of a key of {issuer.name!r} that is not known")

    def _waits_for_keys(self, login: TokenLogin, now: float) -> bool:
        """Have a login wait for the keys of its issuer, which may be others; false if that is of no use now.

        Raises:
            RateLimitError: too many do (42901).
        """
        if not self._unknown_keys.may_wait(login.issuer, now):
            return False
        number = self._number()
        self._tickets[number] = login
        self._unknown_keys.wait(login.issuer, number)
        return True

    def _keys_may_be_known(self, number: int, now: float) -> None:
        """Go on with a token whose key was not known."""
        login = self._tickets.pop(number)
        assert isinstance(login, TokenLogin)
        try:
            self._begin_token(
                login.routing_id, login.hello, login.token, login.address, now, login.renewal, login.keys
            )
        except AngariumError as error:
            if login.renewal is not None:
                self._deny_renewal(login.renewal, error, now)
            elif error.code in HIDDEN:
                self._deny(login, error, now)
            else:
                self.refuse(login.routing_id, error)

    def _verify(self, ticket: Ticket | DummyLogin, password: str, stored: str, now: float) -> None:
        self._await_turn(ticket, (ticket.hello.vpn, ticket.hello.username), password, stored, now)

    def _await_turn(
        self,
        ticket: Ticket | DummyLogin | TokenLogin,
        owner: tuple[str, str],
        secret: str,
        stored: str,
        now: float,
    ) -> None:
        number = self._number()
        check = check_of(number, ticket.address, owner, secret, stored, now)
        if isinstance(ticket, TokenLogin):
            self._token_checks.add(check, has_failed=self._checks.has_failed(check.network, now))
            self._tickets[number] = ticket
            self._compare(now)
            return
        same = self._checks.same(check)
        if same is not None:
            self._followers.setdefault(same, []).append(ticket)
            return
        displaced = self._checks.add(check, now)
        self._tickets[number] = ticket
        if displaced is not None:
            self._send_away(displaced)
        self._compare(now)

    def _send_away(self, number: int) -> None:
        """Refuse a login that gets no place, or no turn, to have its password compared."""
        refused = error_for(errors.CONNECT_RATE_EXCEEDED, "too many logins at once")
        ticket = self._tickets.pop(number)
        if isinstance(ticket, TokenLogin) and ticket.renewal is not None:
            ticket.renewal.answer.refuse(refused)
            return
        for one in (ticket, *self._followers.pop(number, ())):
            self.refuse(one.routing_id, refused)

    def _compare(self, now: float) -> None:
        """Have the pool compare whatever is next."""
        while (check := self._token_checks.next(now) or self._checks.next(now)) is not None:
            self._counters.totals["password_checks"] += 1
            ticket = self._tickets[check.number]
            if isinstance(ticket, TokenLogin):
                effect = VerifyToken(check.number, check.password, ticket.algorithm, ticket.keys)
                self._outbox.effects.append(effect)
            else:
                self._outbox.effects.append(VerifyPassword(check.number, check.password, check.stored))

    def tick(self, now: float) -> float:
        """Go on with passwords whose time has come; gives when to call again."""
        if not self._tickets:
            return float("inf")
        for number in (*self._checks.late(now), *self._token_checks.late(now)):
            self._send_away(number)
        self._compare(now)
        return min(self._checks.wake(now), self._token_checks.wake())

    def _check_connect_rate(self, address: str, now: float) -> None:
        if not self._connects.allows(network_of(address), now):
            raise error_for(errors.CONNECT_RATE_EXCEEDED, address)

    def _welcome(self, ticket: Ticket, now: float) -> None:
        vpn, bridge = ticket.vpn, ticket.hello.bridge
        if bridge is not None:
            self._bridges.judge_far(ticket, bridge, now)
        carrier = self._carrier_of(ticket)
        secret = (
            f"{self._random.getrandbits(INBOX_BITS + NAME_BITS):034x}"  # one question to the system for both
        )
        client_name = ticket.client_name or f"{self._node}/{vpn.name}/{secret[:10]}"
        predecessor = self._sessions.find(vpn.name, client_name)
        if predecessor is not None:
            if not ticket.may_follow(predecessor):
                self.refuse(ticket.routing_id, error_for(errors.CLIENT_NAME_IN_USE, client_name))
                return
            self._sessions.replace(predecessor, now)
        session = self._session_of(ticket, client_name, now)
        session.inbox = f"{INBOX_PREFIX}{self._node}/{secret[10:]}"
        if carrier is not None:
            _attach(session, carrier)
        if ticket.username.is_guest:
            vpn.guests.setdefault(session.username, ticket.username)
        try:
            if not self._rights.grant(session, now):
                raise error_for(errors.CLIENT_CONNECT_DENIED, "a profile of the username is gone")
            self._wills.check(session, ticket.hello.behalf)
        except AngariumError as error:
            self._rights.revoke(session)
            if session.username not in vpn.username_clients:
                vpn.guests.pop(session.username, None)
            self.refuse(ticket.routing_id, error)
            return
        self._sessions.admit(session)
        session.burden = vpn.spent.pop(session.username, None)
        if carrier is not None and ticket.hello.behalf is not None:
            self._wills.attached(session, ticket.hello.behalf, now)
        self._authenticator.entered(session, len(self._sessions))
        self._granted.entered(session)
        body = self._welcome_body(ticket, session, now)
        self._outbox.send(session, [wire.WELCOME, wire.pack(body)])
        self._counters.totals["connects"] += 1
        self._outbox.event(
            "CLIENT_CONNECT",
            f"client {client_name} connected from {session.address or 'an unknown address'}"
            f" as {session.username}",
            scope="CLIENT",
            vpn=vpn.name,
            client=client_name,
            username=session.username,
        )

    def _carrier_of(self, ticket: Ticket) -> Session | None:
        """Give the session of the gateway that a client is to be attached to; None if it has a connection.

        Raises:
            AngariumError: 40326 the gateway has another one for the Message VPN that a token names, 41001 it is gone.
        """
        if not is_attached(ticket.routing_id):
            return None
        carrier = self._sessions.carrier_of(ticket.routing_id)
        if carrier is None:
            raise error_for(errors.SESSION_UNKNOWN)
        if carrier.vpn is not ticket.vpn:
            raise error_for(errors.OTHER_VPN, ticket.vpn.name)
        return carrier

    def _session_of(self, ticket: Ticket, client_name: str, now: float) -> Session:
        """Make the session of a client."""
        hello = ticket.hello
        number, username = self._number(), ticket.username.name
        session = Session(number, ticket.routing_id, ticket.vpn, username, client_name, now)
        session.grant = ticket.grant
        self._furnish(session, hello, ticket.address, now)
        session.local_priority = hello.local_priority
        session.network_priority = hello.network_priority
        session.no_local = hello.no_local
        session.resumed_inbox = ticket.resumed_inbox
        session.carried_for = hello.bridge
        session.rounds_max, session.bytes_max = self._config.ingress_rounds, self._config.ingress_bytes
        return session

    def _furnish(self, session: Session, hello: Hello, address: str, now: float) -> None:
        """Give a new session what clients and neighbours both have."""
        session.address = address
        session.sdk = hello.sdk
        session.hears_unroutable = hello.unroutable
        session.hears_leaving = hello.leaving
        session.keepalive_s = max(hello.keepalive_ms, self._config.keepalive_ms) / 1000
        session.granted_messages, session.granted_bytes = hello.credit
        rate = self._config.control_frames_per_second
        # What a gateway sends is counted for each of its clients.
        session.bucket = TokenBucket(rate, math.inf if session.kind.carries_clients else rate * 2, now)

    def _carrier(self, kind: SessionKind, routing_id: bytes, hello: Hello, address: str, now: float) -> None:
        """Admit who carries messages of others: it has no profile and no rights, and counts as no client."""
        gate = self._gates[kind.name]
        vpn, who = gate.judge(hello, now)
        predecessor = self._sessions.find(vpn.name, who.client_name)
        if predecessor is not None:
            gate.check_successor(predecessor, who, now)
            self._sessions.replace(predecessor, now)
        session = Session(self._number(), routing_id, vpn, kind.username, who.client_name, now, kind)
        self._furnish(session, hello, address, now)
        session.rounds_max, session.bytes_max = kind.rounds_max, kind.bytes_max
        session.egress = EgressQueue(((kind.queue_units, 0),) * 3)
        session.link, session.carried_for = (who, None) if kind.is_neighbour else (None, who)
        self._sessions.admit(session)
        body = self._welcome_header(session, b"", resumed=False)
        body["link"] = self._links.gate.describe_self(now)
        self._outbox.send(session, [wire.WELCOME, wire.pack(body)])
        if session.link is not None:
            self._links.opened(session, session.link)

    def _welcome_body(self, ticket: Ticket, session: Session, now: float) -> dict[str, Any]:
        """Give the WELCOME of a client."""
        token = self._authenticator.token(ticket, session)
        if session.rights is not None:
            named = self._named(session, token, resumed=ticket.resumed)
            rights, new = to_builtins(session.rights), self._wills.new_session(session)
            return {**named, "username": session.username, "rights": rights, "new_session": new}
        body = self._welcome_header(session, token, resumed=ticket.resumed)
        if session.carried_for is not None:
            body["link"] = self._links.gate.describe_self(now)
        if session.grant is not None:
            body["token_ms"] = self._ms_left(session, now)
        return body

    def _named(self, session: Session, token: bytes, *, resumed: bool) -> dict[str, Any]:
        """Give what is of one session alone: of the rest the gateway of an attached one has been told."""
        return {
            "session": f"{session.number}",
            "client_name": session.client_name,
            "token": token,
            "resumed": resumed,
            "inbox": session.inbox,
            "max_message_bytes": self._config.max_message_bytes,
        }

    def _welcome_header(self, session: Session, token: bytes, *, resumed: bool) -> dict[str, Any]:
        config = self._config
        return {
            **self._named(session, token, resumed=resumed),
            "vpn": session.vpn.name,
            "node": self._node,
            "epoch": self._rights.shards.epoch,
            "slots": self._rights.shards.table,
            "workers": len(self._rights.shards.shards),
            "rounds": session.rounds_max,
            "bytes": session.bytes_max,
            "keepalive_ms": int(session.keepalive_s * 1000),
            "max_batch_rows": config.max_batch_rows,
            "max_batch_bytes": config.max_batch_bytes,
            "guaranteed": True,
            "reports_unmatched": True,
            "takes_released": True,
            "producer_bytes": session.kind.producer_bytes or config.producer_window_bytes,
        }

    def _deny(self, ticket: Ticket | DummyLogin | TokenLogin, why: AngariumError, now: float) -> None:
        """Refuse a login without a word about what was wrong; operators hear it."""
        self._failed.add(ticket.address, ticket.hello.vpn, ticket.hello.username, why, now)
        self.refuse(ticket.routing_id, error_for(errors.UNAUTHORIZED))

    def refuse(self, routing_id: bytes, error: AngariumError) -> None:
        """Tell somebody without a session why there is none."""
        self._counters.errors[error.code] += 1
        self._outbox.effects.append(
            SendClient(routing_id, [wire.CLOSED, wire.pack([error.code, error.detail])], 0)
        )

    def token_verified(self, ticket_number: int, payload: bytes | None, now: float) -> None:
        """The pool looked at the signature of a token; its claims are those of `payload`, None if it is wrong."""
        login = self._tickets.pop(ticket_number)
        assert isinstance(login, TokenLogin)
        self._token_checks.done()
        if payload is None:
            self._checks.failed(network_of(login.address), now)
        self._compare(now)
        # Of a key without a name, or with that of the one before, nothing else tells that it is another one.
        with contextlib.suppress(errors.RateLimitError):
            if payload is None and self._waits_for_keys(login, now):
                return
        if login.renewal is not None:
            self._renewed(login, login.renewal, payload, now)
            return
        try:
            grant = self.issuers.grant(login, payload, self._wall_ms(now))
            ticket = self._authenticator.check_granted(login, grant, len(self._sessions), now)
            self._welcome(ticket, now)
        except AngariumError as error:
            if error.code in HIDDEN:
                self._deny(login, error, now)
            else:
                self.refuse(login.routing_id, error)

    def renew(self, session: Session, wish: RenewWish, answer: Answer, now: float) -> None:
        """A client that is here by a token brings the next one; until that is looked at the one before counts.

        Raises:
            AngariumError: it is here otherwise (40018), or asks too often (42901, 42902).
        """
        if session.grant is None:
            raise errors.invalid("this session has no token")
        if any(ticket.routing_id == session.routing_id for ticket in self._tickets.values()):
            raise error_for(errors.CONTROL_RATE_EXCEEDED, "another token is being looked at")
        self._check_connect_rate(session.address, now)
        named, renewal = Named(session.vpn.name, session.username), Renewal(session, answer)
        try:
            self._begin_token(session.routing_id, named, wish.jwt, session.address, now, renewal)
        except AngariumError as error:
            if error.code not in HIDDEN:
                raise
            self._deny_renewal(renewal, error, now)

    def _renewed(self, login: TokenLogin, renewal: Renewal, payload: bytes | None, now: float) -> None:
        session = renewal.session
        before = session.grant
        assert before is not None
        try:
            if login.issuer.name != before.issuer:
                raise error_for(errors.UNAUTHORIZED, f"a token of another issuer than {before.issuer!r}")
            grant = self.issuers.grant(login, payload, self._wall_ms(now))
            if grant.vpn != before.vpn:  # who says "default" would have joined the one that the token names
                raise error_for(errors.UNAUTHORIZED, f"a token for Message VPN {grant.vpn!r}")
        except AngariumError as error:
            self._deny_renewal(renewal, error, now)
            return
        account = session.vpn.account_of(session.username)
        session.grant = grant.for_guest(login.issuer) if account is None or account.is_guest else grant
        renewal.answer.give({"ms": self._ms_left(session, now)})
        if not session.closed and not self._rights.grant(session, now):
            self._sessions.close(
                session, error_for(errors.CLIENT_CONNECT_DENIED, "a profile of the token is not there"), now
            )

    def _deny_renewal(self, renewal: Renewal, why: AngariumError, now: float) -> None:
        session = renewal.session
        self._failed.add(session.address, session.vpn.name, session.username, why, now)
        renewal.answer.refuse(error_for(errors.UNAUTHORIZED))

    def _ms_left(self, session: Session, now: float) -> int:
        """Give for how long the token of a session is good."""
        assert session.grant is not None
        return max(0, session.grant.ends_ms - self._wall_ms(now))

    def password_verified(self, ticket_number: int, now: float, *, correct: bool) -> None:
        """The pool compared a password; what may have changed meanwhile is judged once more."""
        ticket = self._tickets.pop(ticket_number)
        assert not isinstance(ticket, TokenLogin)
        self._checks.done(ticket_number, now, correct=correct)
        self._compare(now)
        for one in (ticket, *self._followers.pop(ticket_number, ())):
            self._judge(one, now, correct=correct)

    def _judge(self, ticket: Ticket | DummyLogin, now: float, *, correct: bool) -> None:
        """Let somebody in whose password was compared, or not."""
        if isinstance(ticket, DummyLogin) or not correct:
            wrong = error_for(errors.UNAUTHORIZED, "wrong password")
            self._deny(ticket, ticket.why if isinstance(ticket, DummyLogin) else wrong, now)
            return
        try:
            self._authenticator.check_again(ticket, len(self._sessions))
            self._welcome(ticket, now)
        except AngariumError as error:
            self.refuse(ticket.routing_id, error)

    def handshake_failed(self, reason: str, now: float) -> None:
        """A connection was given up before anybody could say who is there; operators hear of it now and then."""
        self._counters.errors[errors.HANDSHAKE_FAILED] += 1
        if now - self._handshake_told_at >= HANDSHAKE_EVENT_S:
            self._handshake_told_at = now
            text = f"a connection to this node was given up in the handshake: {reason}"
            self._outbox.event(
                "SYSTEM_CLIENT_HANDSHAKE_FAILED", text, severity="warning", code=errors.HANDSHAKE_FAILED
            )

    def session_ended(self, session: Session, error: AngariumError | None, now: float) -> None:
        """If a client is gone it may resume for a while; operators are told."""
        if not session.is_client:
            return
        self._authenticator.left(session, len(self._sessions), now)
        clean = error is None
        self._outbox.event(
            "CLIENT_DISCONNECT",
            f"client {session.client_name} disconnected"
            + ("" if clean else f": error {error.code}: {error.text}"),  # type: ignore[union-attr]
            severity="info" if clean else "warning",
            scope="CLIENT",
            vpn=session.vpn.name,
            client=session.client_name,
            username=session.username,
            code=0 if error is None else error.code,
        )

    def sweep(self, now: float) -> None:
        """Forget addresses that were quiet for long, and clients that left; tell what is due of those that failed."""
        self._authenticator.sweep(now)
        self._failed.sweep(now)
        self._checks.sweep(now)
        self._granted.sweep(self._wall_ms(now), now)
        self._connects.sweep(now)

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number


def _attach(session: Session, carrier: Session) -> None:
    """Make a session one of a client of a gateway, which keeps both alive, and bounds what waits for it."""
    session.carrier = carrier
    session.keepalive_s = math.inf
    session.granted_messages = session.granted_bytes = UNLIMITED
