"""One login by OpenID Connect (authorization code with PKCE), from when a browser is sent away to when it is back.

Nothing is kept here of a login that has begun: the browser keeps it, in a cookie that is signed, so that no number of
logins that others begin can push it out. It holds what the answer of the issuer is compared with: `state`, which the
browser brings back; `nonce`, which is in the token; and the verifier, with which the code is exchanged. An answer
counts once, and only in the browser that has asked.

    begin -> cookie, address of the issuer      ... the browser goes there, and comes back ...
    finish(cookie, what it brings) -> the code, and what has begun      check(claims, what has begun)

Pure; time is a parameter. https://openid.net/specs/openid-connect-core-1_0.html, https://www.rfc-editor.org/rfc/rfc7636
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from angarium import errors
from angarium.errors import error_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.configuration.management import OidcSection

#: Within this time somebody logs in at the issuer.
LOGIN_S: Final = 600.0
#: Answers that have come lately: with more, the first is forgotten, and the issuer refuses its code by itself.
SEEN_MAX: Final = 10_000
#: Of a code; of what an issuer says of a refusal, shown.
CODE_MAX: Final = 4_096
SHOWN_MAX: Final = 100

_AGAIN: Final = "begin again: /login/oidc"


class Begun(msgspec.Struct, frozen=True):
    """A login that has begun."""

    state: str
    nonce: str
    verifier: str
    #: Until when it counts, on the clock of this process.
    until: float


class Returned(NamedTuple):
    """A browser is back, with a code, and it is the one that went."""

    code: str
    begun: Begun


class SignOn:
    """Logins at one issuer."""

    def __init__(self, section: OidcSection, redirect_uri: str) -> None:
        self._section = section
        self._redirect_uri = redirect_uri
        self._key = secrets.token_bytes(32)
        #: Hash of `state` -> until when it could come again, the first one at the beginning.
        self._seen: OrderedDict[bytes, float] = OrderedDict()

    def begin(self, now: float) -> tuple[str, Begun]:
        """Begin a login, and give the cookie that holds it."""
        made = [secrets.token_urlsafe(32) for _ in range(3)]
        begun = Begun(made[0], made[1], made[2], now + LOGIN_S)
        data = msgspec.json.encode(begun)
        return f"{_text(data)}.{_text(self._signature(data))}", begun

    def address(self, endpoint: str, begun: Begun) -> str:
        """Give where the browser is sent."""
        challenge = hashlib.sha256(begun.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._section.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self._section.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": _text(challenge),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    def finish(self, cookie: str, query: Mapping[str, Sequence[str]], now: float) -> Returned:
        """Take what a browser brings back.

        Raises:
            UnauthorizedError: it has not asked for that, or not now, or the issuer has refused (40101).
            InvalidRequestError: it brings something else (40018).
        """
        found = {name: _single(name, query) for name in ("state", "code", "error", "iss") if name in query}
        begun = self._begun(cookie)
        if begun is None or not hmac.compare_digest(
            begun.state.encode(), found.get("state", "").encode("utf-8", "surrogateescape")
        ):
            raise _refused("this browser has not begun this login")
        if begun.until < now:
            raise _refused(f"this login has begun more than {LOGIN_S / 60:.0f} minutes ago")
        if not self._is_first(begun, now):
            raise _refused("this answer has come before")
        if found.get("iss", self._section.issuer) != self._section.issuer:
            raise _refused(f"the answer is of another issuer: {_shown(found['iss'])}")
        if "error" in found:
            raise _refused(f"the issuer has refused: {_shown(found['error'])}")
        if not 0 < len(found.get("code", "")) <= CODE_MAX:
            raise _refused("the answer has no code")
        return Returned(found["code"], begun)

    def check(self, claims: Mapping[str, Any], begun: Begun) -> None:
        """Look whether a token, that counts otherwise, is of this login.

        Raises:
            UnauthorizedError: it is not (40101).
        """
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(
            nonce.encode("utf-8", "surrogateescape"), begun.nonce.encode()
        ):
            raise _refused("the token is of another login (nonce)")
        audience = claims.get("aud")
        party = claims.get("azp")
        is_shared = isinstance(audience, list) and len(audience) > 1
        if (is_shared or party is not None) and party != self._section.client_id:
            raise _refused(f"the token is for another client (azp): {_shown(party)}")

    def _begun(self, cookie: str) -> Begun | None:
        data, _, signature = cookie.partition(".")
        try:
            decoded, signed = _bytes(data), _bytes(signature)
            if hmac.compare_digest(signed, self._signature(decoded)):
                return msgspec.json.decode(decoded, type=Begun)
        except ValueError:
            pass
        return None

    def _signature(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()

    def _is_first(self, begun: Begun, now: float) -> bool:
        """Note that an answer has come; false if it has come before."""
        while self._seen and (next(iter(self._seen.values())) < now or len(self._seen) >= SEEN_MAX):
            self._seen.popitem(last=False)
        key = hashlib.blake2b(begun.state.encode(), digest_size=16).digest()
        if key in self._seen:
            return False
        self._seen[key] = begun.until
        return True


def _single(name: str, query: Mapping[str, Sequence[str]]) -> str:
    if len(query[name]) != 1:
        raise errors.invalid(f"{name} is there {len(query[name])} times", _AGAIN)
    return query[name][0]


def _refused(reason: str) -> errors.AngariumError:
    return error_for(errors.UNAUTHORIZED, reason, _AGAIN)


def _shown(value: Any) -> str:
    return repr(value)[:SHOWN_MAX] if value is not None else "nothing"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
