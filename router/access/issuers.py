"""The issuers that are trusted, with their keys: which of them a token may be of, and what has to be verified.

A state machine; the arithmetic is in `verification`, in a thread, and what claims mean in `claims`.

A login whose token names a key that is not known waits while the controller asks the address of the issuer. One
question for an issuer is out at a time, and after its answer there is none for `refresh_min_s`, so unauthenticated
peers with made-up keys cost nobody anything: they are refused at once then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium_server.tokens.claims import Grant, grant_of, peek

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from angarium_server.tokens.claims import Peeked
    from angarium_server.tokens.config import TokenIssuer
    from angarium_server.tokens.keys import Key
    from router.access.granted import Renewal
    from router.asking.asks import Asks

#: Logins that wait for the keys of one issuer.
WAITING_MAX: Final = 500


class UnknownKeys:
    """Who waits for the keys of which issuer."""

    def __init__(self, asks: Asks, on_known: Callable[[int, float], None]) -> None:
        """Begin with nobody; `on_known` is called with the number of a login when its keys may be known."""
        self._asks = asks
        self._on_known = on_known
        #: Name of the issuer -> the logins that wait; each has a question with the controller.
        self._waiting: dict[str, list[int]] = {}
        #: Name of the issuer -> when its last question was answered.
        self._answered_at: dict[str, float] = {}

    def may_wait(self, issuer: TokenIssuer, now: float) -> bool:
        """Tell whether it is worth waiting for keys of an issuer.

        Raises:
            RateLimitError: too many do (42901).
        """
        if not issuer.jwks_url:
            return False
        if issuer.name in self._waiting:
            if len(self._waiting[issuer.name]) >= WAITING_MAX:
                raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many logins at once")
            return True
        return now - self._answered_at.get(issuer.name, float("-inf")) >= issuer.refresh_min_s

    def wait(self, issuer: TokenIssuer, number: int) -> None:
        """Have a login wait; who is the first asks for all."""
        if issuer.name in self._waiting:
            self._waiting[issuer.name].append(number)
            return
        self._waiting[issuer.name] = [number]
        self._asks.ask("issuer.refresh", {"name": issuer.name}, partial(self._answered, issuer.name))

    def _answered(self, name: str, _ok: bool, _value: Any, now: float) -> None:  # noqa: FBT001 - the form of every answer
        self._answered_at[name] = now
        for number in self._waiting.pop(name, ()):
            self._on_known(number, now)


#: Keys that are tried for a token that does not say which one it is of.
TRIED_MAX: Final = 5


class TokenLogin(NamedTuple):
    """A login whose token is to be verified."""

    routing_id: bytes
    hello: Any
    address: str
    issuer: TokenIssuer
    algorithm: str
    keys: tuple[Key, ...]
    #: Whose token this one is to follow; None for a new session.
    renewal: Renewal | None = None
    #: As it came.
    token: str = ""


class Named(NamedTuple):
    """What the session of a renewal has in place of a HELLO."""

    vpn: str
    username: str


class Issuers:
    """All issuers of a node."""

    def __init__(self, issuers: Sequence[TokenIssuer]) -> None:
        self._by_claim = {one.issuer: one for one in issuers}
        self._by_name = {one.name: one for one in issuers}
        self._username_claims = {one.issuer: one.username_claim for one in issuers}
        #: Name of the issuer -> its keys.
        self._keys: dict[str, list[Key]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def named(self, name: str) -> TokenIssuer:
        """Give an issuer."""
        return self._by_name[name]

    def put_keys(self, keys: Mapping[str, list[Key]]) -> None:
        """The keys of some issuers are these from now on."""
        for name, some in keys.items():
            if name in self._by_name:
                self._keys[name] = some

    def peek(self, token: str) -> tuple[TokenIssuer, Peeked]:
        """Give whose a token says it is.

        Raises:
            AngariumError: it is of nobody whom we trust, or signed in a way that is not allowed (40101).
        """
        if not self:
            raise error_for(errors.UNAUTHORIZED, "a token, and no issuer is configured")
        peeked = peek(token, self._username_claims)
        issuer = self._by_claim.get(peeked.issuer)
        if issuer is None:
            raise error_for(
                errors.UNAUTHORIZED, f"a token of issuer {peeked.issuer[:64]!r}, which is not configured"
            )
        if peeked.algorithm not in issuer.algorithms:
            raise error_for(
                errors.UNAUTHORIZED, f"a token signed with {peeked.algorithm[:16]!r}, which is not allowed"
            )
        return issuer, peeked

    def has_made(self, text: str) -> bool:
        """Tell whether a text is a token of one of them, by what it says itself."""
        try:
            self.peek(text)
        except AngariumError:
            return False
        return True

    def keys_for(self, issuer: TokenIssuer, peeked: Peeked) -> tuple[Key, ...]:
        """Give the keys that may have signed a token; none if the one that it names is not known."""
        fitting = [key for key in self._keys.get(issuer.name, ()) if key.fits(peeked.algorithm)]
        if peeked.key_id is not None:
            # A file in PEM has keys without names.
            fitting = [key for key in fitting if key.id in (peeked.key_id, None)]
        return tuple(fitting[:TRIED_MAX])

    def grant(self, login: TokenLogin, payload: bytes | None, wall_ms: int) -> Grant:
        """Give what a token grants whose signature was looked at.

        Raises:
            AngariumError: the signature is wrong, or the token does not count (40101, 40309).
        """
        if payload is None:
            raise error_for(errors.UNAUTHORIZED, f"a token that issuer {login.issuer.name!r} has not signed")
        return grant_of(payload, login.issuer, login.hello.vpn, login.hello.username, wall_ms)
