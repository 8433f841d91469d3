"""Who sends a request: what its headers say, as a login at the node.

Authorization: Basic ...      name and password of a client username
Authorization: Bearer ...     a token (JWT) of an issuer that the node trusts
none                          the username default, which needs no password on the host of a new node
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

import msgspec

from angarium import errors, wire
from gateway.attached import Login

DEFAULT_USERNAME: Final = "default"
USERNAME_BYTES_MAX: Final = 189
#: Of a header with a token.
CREDENTIALS_BYTES_MAX: Final = 8_000
#: What only one token says: the next one of the same login has all else in common with it.
_OF_ONE_TOKEN: Final = ("exp", "iat", "nbf", "jti")
#: Usernames of the processes of a node.
_PROCESSES: Final = (wire.LINK_USERNAME, wire.BRIDGE_USERNAME, wire.GATEWAY_USERNAME)
#: What `angarium client list` shows as the software of clients of HTTP.
SOFTWARE: Final = "http"
_ADVICE: Final = "send username and password (HTTP Basic) or a token (Bearer) of a client of the Message VPN"


class Credentials(NamedTuple):
    """Who somebody says that he is, and from where."""

    vpn: str
    #: Empty for whom the token names.
    username: str
    #: None without one.
    password: str | None
    address: str
    token: str | None = None

    @property
    def lasting(self) -> Credentials:
        """Give what stays when a token is renewed: with the claims that say who he is and what he may, unverified."""
        return self if self.token is None else self._replace(token=_lasting_claims(self.token))

    def login(self) -> Login:
        """Give how this client logs in; the node gives it a name."""
        return Login(
            username=self.username,
            password=self.password,
            client_name="",
            address=self.address,
            certificate=None,
            sdk=SOFTWARE,
            takes_over=False,
            jwt=self.token,
        )


def _lasting_claims(token: str) -> str:
    """Give the claims of a token without those of it alone; itself if it cannot be read."""
    payload = token.partition(".")[2].partition(".")[0]
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=dict)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return token
    kept = {name: value for name, value in claims.items() if name not in _OF_ONE_TOKEN}
    return msgspec.json.encode(kept, order="sorted").decode()


def credentials_of(authorization: str | None, vpn: str, address: str) -> Credentials:
    """Give who sends a request with this header.

    Raises:
        UnauthorizedError: the header is of another kind, or cannot be read (40101).
    """
    if authorization is None:
        return Credentials(vpn, DEFAULT_USERNAME, None, address)
    scheme, _, value = authorization.partition(" ")
    value = value.strip()
    # Both kinds are ASCII; other bytes are no text that could be sent on.
    if len(value) > CREDENTIALS_BYTES_MAX or not value or not value.isascii():
        raise _unreadable()
    match scheme.lower():
        case "bearer":
            return Credentials(vpn, "", None, address, value)
        case "basic":
            return Credentials(vpn, *_basic(value), address)
    raise errors.error_for(errors.UNAUTHORIZED, f"{scheme[:50]!r} is not known", _ADVICE)


def _basic(value: str) -> tuple[str, str]:
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise _unreadable() from None
    if not colon or not name or name in _PROCESSES or len(name.encode()) > USERNAME_BYTES_MAX:
        raise _unreadable()
    return name, password


def _unreadable() -> errors.AngariumError:
    return errors.error_for(errors.UNAUTHORIZED, "the header Authorization cannot be read", _ADVICE)
