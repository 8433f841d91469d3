"""What a token says, judged without its signature being looked at: its shape, its times, and whom its claims name.

A token of somebody who has not logged in may hold anything, so everything is bounded and checked. Times are those of
the wall clock, given as a parameter. The texts of the errors are for operators; the client hears none of them.

    {"iss": "https://login.example", "aud": "angarium", "sub": "alice", "exp": 1924988400}        names alice
    {"iss": ..., "aud": ["other"], ...}, {... without exp}, {"sub": 7, ...}, {"sub": "#bridge"}   are refused
"""

from __future__ import annotations

import base64
import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors
from angarium.errors import AngariumError, error_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from angarium_server.tokens.config import TokenIssuer

#: Of a whole token; nothing of a longer one is looked at.
TOKEN_BYTES_MAX: Final = 16 * 1024
#: Of what a token says in events.
_SHOWN: Final = 64
_PARTS: Final = 3
#: As `angarium username create` takes them, and none that begins like the names of the node itself.
_USERNAME: Final = re.compile(r"[^#*?\s\x00-\x1f\x7f\ud800-\udfff][^*?\s\x00-\x1f\x7f\ud800-\udfff]{0,188}")
_ALL: Final = "*"


class Peeked(NamedTuple):
    """What a token says before anybody has looked whether it is true."""

    algorithm: str
    #: Which key has signed it; None if it does not say.
    key_id: str | None
    issuer: str
    #: Whom it names; empty if that is not clear.
    username: str


class Grant(NamedTuple):
    """What a token that is good gives to who has it."""

    #: Name of the issuer.
    issuer: str
    vpn: str
    username: str
    #: Empty for those of the username.
    client_profile: str
    acl_profile: str
    #: Wall time in ms at which it ends, with the skew of clocks.
    ends_ms: int

    def for_guest(self, issuer: TokenIssuer) -> Grant:
        """Give this for a username that no operator has made: it has the profiles of its own issuer."""
        return self._replace(
            client_profile=self.client_profile or issuer.client_profile,
            acl_profile=self.acl_profile or issuer.acl_profile,
        )


def peek(token: str, username_claim_of: Mapping[str, str]) -> Peeked:
    """Read a token without believing it.

    Args:
        token: as it came.
        username_claim_of: issuer -> the claim that has the username.

    Raises:
        AngariumError: it is none, or too large (40101).
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise _refused(f"a token of {len(token)} characters, the limit is {TOKEN_BYTES_MAX}")
    parts = token.split(".")
    if len(parts) != _PARTS:
        raise _refused("it is no token (JWT): it has not three parts")
    head, claims = _decoded(parts[0], "header"), _decoded(parts[1], "claims")
    algorithm, key_id, issuer = head.get("alg"), head.get("kid"), claims.get("iss")
    if not isinstance(algorithm, str) or not isinstance(issuer, str):
        raise _refused("it names no algorithm, or no issuer")
    if key_id is not None and not isinstance(key_id, str):
        raise _refused("its kid is no text")
    if "crit" in head:
        raise _refused("it demands extensions (crit)")
    name = _find(claims, username_claim_of.get(issuer, ""))
    return Peeked(algorithm, key_id, issuer, name[:_SHOWN] if isinstance(name, str) else "")


def grant_of(payload: bytes, issuer: TokenIssuer, asked_vpn: str, asked_username: str, wall_ms: int) -> Grant:
    """Give what a token grants whose signature is good.

    Args:
        payload: its claims, as they were signed.
        issuer: who has signed it.
        asked_vpn: the Message VPN of HELLO.
        asked_username: the username of HELLO; empty for whoever the token names.
        wall_ms: the time.

    Raises:
        AngariumError: it does not count here or now, or names nobody (40101, 40309).
    """
    claims, ends_ms = judged_claims(payload, issuer, wall_ms)
    username = _find(claims, issuer.username_claim)
    if not isinstance(username, str) or not _USERNAME.fullmatch(username):
        raise _refused(f"its claim {issuer.username_claim!r} names no username: {_shown(username)}")
    if asked_username not in ("", username):
        raise _refused(f"it names {_shown(username)}")
    vpn = _vpn_of(claims, issuer, asked_vpn)
    client_profile = _profile_of(claims, issuer.client_profile_claim)
    acl_profile = _profile_of(claims, issuer.acl_profile_claim)
    return Grant(issuer.name, vpn, username, client_profile, acl_profile, ends_ms)


def judged_claims(payload: bytes, issuer: TokenIssuer, wall_ms: int) -> tuple[dict[str, Any], int]:
    """Give the claims of a token whose signature is good, and the wall time in ms at which it ends.

    Raises:
        AngariumError: it is of somebody else, for somebody else, or does not count now (40101).
    """
    claims = _parsed(payload, "claims")
    if claims.get("iss") != issuer.issuer:
        raise _refused(f"it is of issuer {_shown(claims.get('iss'))}")
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, list) or not any(one in issuer.audience for one in named):
        raise _refused(f"it is for audience {_shown(audience)}")
    return claims, _check_times(claims, issuer, wall_ms)


def text_claim(claims: dict[str, Any], claim: str) -> str:
    """Give a claim that is a text: `a.b` is b in a, unless there is one of that whole name.

    Raises:
        AngariumError: it is not there, or no text (40101).
    """
    found = _find(claims, claim)
    if not isinstance(found, str) or not found:
        raise _refused(f"its claim {claim!r} names nobody: {_shown(found)}")
    return found


def _check_times(claims: dict[str, Any], issuer: TokenIssuer, wall_ms: int) -> int:
    """Give when it ends, in ms."""
    skew_ms = issuer.clock_skew_s * 1000
    ends = _time_of(claims, "exp")
    if ends is None:
        raise _refused("it has no end (exp)")
    if ends + skew_ms <= wall_ms:
        raise _refused(f"it has ended {(wall_ms - ends) // 1000} s ago")
    for name in ("nbf", "iat"):
        begins = _time_of(claims, name)
        if begins is not None and begins - skew_ms > wall_ms:
            raise _refused(f"it is of the future: {name} is {(begins - wall_ms) // 1000} s ahead")
    return ends + skew_ms


def _time_of(claims: dict[str, Any], name: str) -> int | None:
    """Give a time in ms, None if there is none."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _refused(f"its {name} is no time: {_shown(value)}")
    if abs(value) > 1 << 43:
        raise _refused(f"its {name} is no time in seconds: {_shown(value)}")
    return int(value * 1000)


def _vpn_of(claims: dict[str, Any], issuer: TokenIssuer, asked: str) -> str:
    if issuer.vpn_claim:
        found = _find(claims, issuer.vpn_claim)
        named = [found] if isinstance(found, str) else found
        if not isinstance(named, list) or not named or not all(isinstance(one, str) for one in named):
            raise _refused(f"its claim {issuer.vpn_claim!r} names no Message VPN: {_shown(found)}")
        if asked in ("", _DEFAULT) and len(named) == 1:
            asked = str(named[0])  # who chooses none joins the one that there is
        if asked not in named:
            raise _refused(f"it is for Message VPN {_shown(found)}")
    asked = asked or _DEFAULT
    if asked not in issuer.vpns and _ALL not in issuer.vpns:
        raise error_for(
            errors.VPN_NOT_ALLOWED, f"tokens of issuer {issuer.name!r} are not for {asked[:_SHOWN]!r}"
        )
    return asked


_DEFAULT: Final = "default"


def _profile_of(claims: dict[str, Any], claim: str) -> str:
    found = _find(claims, claim)
    if found is None:
        return ""
    if not isinstance(found, str) or not found:
        raise _refused(f"its claim {claim!r} names no profile: {_shown(found)}")
    return found


def _find(claims: dict[str, Any], claim: str) -> Any:
    """Give a claim, None if it is not there; `a.b` is b in a, unless there is one of that whole name."""
    if not claim or claim in claims:
        return claims.get(claim) if claim else None
    found: Any = claims
    for name in claim.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _decoded(part: str, what: str) -> dict[str, Any]:
    try:
        data = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise _refused(f"it is no token (JWT): its {what} is not in base64url") from None
    return _parsed(data, what)


def _parsed(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (ValueError, RecursionError):  # among them: text that is not in UTF-8
        raise _refused(f"it is no token (JWT): its {what} is no JSON") from None
    if not isinstance(found, dict):
        raise _refused(f"it is no token (JWT): its {what} is no object")
    return found


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN] if value is not None else "nothing"


def _refused(reason: str) -> AngariumError:
    return error_for(errors.UNAUTHORIZED, reason)
