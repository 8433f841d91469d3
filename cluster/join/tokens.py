"""Join tokens: what is written in one, and which there are. Pure: the caller has the clock, the dice and the disk.

    angarium1.Xk3v...       ANGARIUM, the version, then in base64 without padding:
        id                  6 bytes, by which the node finds the token
        secret              16 random bytes; the node keeps their SHA-256, which is enough: nobody guesses 128 bits
        fingerprint         SHA-256 of the certificate that the node shows: whom the joining side trusts with the secret
        check               CRC-32 of what is before, so that a token that was copied in part says so

A token admits so many nodes, until it ends. Each node that was admitted is noted with the key that it showed, *before*
it gets its answer: so it may ask again after a lost answer, with the same name and key, and nobody else is admitted for
it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX: Final = "angarium1."
ID_BYTES: Final = 6
SECRET_BYTES: Final = 16
_FINGERPRINT_BYTES: Final = 32
_CHECK_BYTES: Final = 4
_TEXT_BYTES: Final = ID_BYTES + SECRET_BYTES + _FINGERPRINT_BYTES + _CHECK_BYTES
#: Tokens that have not ended; more would mean that a script makes them and nobody uses them.
TOKENS_MAX: Final = 1_000


class Written(NamedTuple):
    """What stands in a token."""

    id: bytes
    secret: bytes
    fingerprint: bytes

    def text(self) -> str:
        """Give it as it is pasted."""
        content = self.id + self.secret + self.fingerprint
        content += zlib.crc32(content).to_bytes(_CHECK_BYTES)
        return PREFIX + base64.urlsafe_b64encode(content).decode().rstrip("=")


def read(text: str) -> Written:
    """Read a token.

    Raises:
        InvalidRequestError: it is none, or a part of one (40018). The text is not repeated: it may hold the secret.
    """
    if not text.startswith(PREFIX):
        raise _unreadable(f"it does not begin with {PREFIX}")
    encoded = text.removeprefix(PREFIX)
    try:
        content = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _unreadable("it has characters that no token has") from None
    body, check = content[:-_CHECK_BYTES], content[-_CHECK_BYTES:]
    if len(content) != _TEXT_BYTES or zlib.crc32(body).to_bytes(_CHECK_BYTES) != check:
        raise _unreadable("it is not whole")
    end = ID_BYTES + SECRET_BYTES
    return Written(body[:ID_BYTES], body[ID_BYTES:end], body[end:])


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What a node keeps of a token."""

    id: str
    #: SHA-256 of the secret.
    digest: bytes
    created_s: int
    expires_s: int
    uses_max: int
    #: Directory of the authority that signs; empty: that of cluster.ca_file.
    authority: str = ""
    #: Node -> digest of the key that it showed; at most `uses_max`.
    used: dict[str, str] = {}


class Tokens:
    """The tokens of a node. What changes them gives what is to be kept; `take` puts that into force."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens = {token.id: token for token in tokens}
        #: How often somebody was refused since the start.
        self.refused_total = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def create(self, written: Written, now_s: int, expires_s: int, uses: int, authority: str) -> list[Token]:
        """Give the tokens with one more.

        Raises:
            ConflictError: there are too many (40902).
        """
        current = self._current(now_s)
        if len(current) >= TOKENS_MAX:
            detail = f"{TOKENS_MAX} join tokens have not ended"
            raise errors.error_for(
                errors.OBJECT_IN_USE, detail, "delete some: angarium cluster token delete ID"
            )
        token = Token(
            id=written.id.hex(),
            digest=_digest(written.secret),
            created_s=now_s,
            expires_s=now_s + expires_s,
            uses_max=uses,
            authority=authority,
        )
        return [*current, token]

    def find(self, token_id: bytes, secret: bytes, now_s: int) -> Token:
        """Give the token that somebody shows.

        Raises:
            UnauthorizedError: it may not (40106). Who does not have the secret hears the same whether there is such a
                token or not.
        """
        token = self._tokens.get(token_id.hex())
        if token is None or not hmac.compare_digest(token.digest, _digest(secret)):
            self.refused_total += 1
            raise _refused("there is no such join token")
        if token.expires_s <= now_s:
            self.refused_total += 1
            raise _refused(f"the join token has ended, {now_s - token.expires_s} s ago")
        return token

    def use(self, token: Token, node: str, key: str, now_s: int) -> list[Token]:
        """Give the tokens with a use by a node noted, if there is one left, or this node with this key has it.

        Raises:
            UnauthorizedError: others have used it up (40106).
        """
        is_known = token.used.get(node) == key
        if not is_known and (node in token.used or len(token.used) >= token.uses_max):
            self.refused_total += 1
            raise _refused(f"the join token was used by {', '.join(map(repr, token.used))}")
        used = msgspec.structs.replace(token, used={**token.used, node: key})
        return [used if one.id == token.id else one for one in self._current(now_s)]

    def remove(self, token_id: str, now_s: int) -> list[Token]:
        """Give the tokens without one.

        Raises:
            NotFoundError: there is none of this id (40401).
        """
        current = self._current(now_s)
        if not any(one.id == token_id for one in current):
            detail = f"join token {token_id!r}; 'angarium cluster token list' shows those that there are"
            raise errors.error_for(errors.OBJECT_NOT_FOUND, detail)
        return [one for one in current if one.id != token_id]

    def take(self, tokens: list[Token]) -> None:
        """These are kept now."""
        self._tokens = {token.id: token for token in tokens}

    def rows(self, now_s: int) -> list[dict[str, Any]]:
        """Describe those that have not ended, without what would admit anybody."""
        return [
            {
                "id": one.id,
                "expires_in_s": one.expires_s - now_s,
                "uses": len(one.used),
                "uses_max": one.uses_max,
                "nodes": list(one.used),
            }
            for one in self._current(now_s)
        ]

    def _current(self, now_s: int) -> list[Token]:
        return [one for one in self._tokens.values() if one.expires_s > now_s]


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _unreadable(what: str) -> errors.AngariumError:
    advice = "copy the whole line that 'angarium cluster token' printed"
    return errors.invalid(f"the join token cannot be read: {what}", advice)


def _refused(what: str) -> errors.AngariumError:
    return errors.error_for(errors.JOIN_REFUSED, what)
