"""The signature of a token: arithmetic of some tenths of a millisecond, done in the pool that compares passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jwt import PyJWS
from jwt.exceptions import PyJWTError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.tokens.keys import Key


def signed_payload(token: str, algorithm: str, keys: Sequence[Key]) -> bytes | None:
    """Give the claims of a token as one of some keys has signed them; None if none has.

    The algorithm is the one that the configuration allows, and each key is of its kind, so what the token says of both
    cannot lead to another check than that.
    """
    service = PyJWS(algorithms=[algorithm])
    for key in keys:
        try:
            payload: bytes = service.decode(token, key.public, algorithms=[algorithm])
        except (PyJWTError, ValueError, TypeError):
            continue
        return payload
    return None
