"""An issuer of tokens (JWT) for tests: keys of several kinds, and tokens that are right or wrong in one thing."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER = "https://login.example/realm"
AUDIENCE = "angarium"


@functools.cache
def private_key(kind: str, number: int = 0) -> Any:
    """Give a private key that is the same whenever it is asked for in one run; a new one for each number."""
    del number
    if kind[0] in "RP":
        return rsa.generate_private_key(65537, 2048)
    if kind == "weak":
        return rsa.generate_private_key(65537, 1024)
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[kind]
    return ec.generate_private_key(curve)


class TokenMaker:
    """Signs with one key."""

    def __init__(self, kind: str = "ES256", number: int = 0, key_id: str | None = "") -> None:
        self.kind = kind
        self.key = private_key(kind, number)
        self.key_id = f"{kind}-{number}" if key_id == "" else key_id

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Give good claims, changed; what is None is left out."""
        now = int(time.time())
        made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600, **changed}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, *, header: dict[str, Any] | None = None, **changed: Any) -> str:
        head = {**({} if self.key_id is None else {"kid": self.key_id}), **(header or {})}
        return jwt.encode(self.claims(**changed), self.key, algorithm=self.kind, headers=head)

    @property
    def pem(self) -> bytes:
        found: bytes = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return found

    @property
    def jwk(self) -> dict[str, Any]:
        algorithm = jwt.get_algorithm_by_name(self.kind)
        row = algorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {
            **row,
            "use": "sig",
            "alg": self.kind,
            **({} if self.key_id is None else {"kid": self.key_id}),
        }


def jwks(*makers: TokenMaker) -> bytes:
    return json.dumps({"keys": [maker.jwk for maker in makers]}).encode()


def handmade(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """Give a token that no library would make."""
    parts = [_part(json.dumps(part).encode()) for part in (header, claims)]
    return ".".join([*parts, _part(signature)])


def signed_with_public_key(maker: TokenMaker, claims: dict[str, Any]) -> str:
    """Give a token of which an HMAC with the public key is the signature: the best known of all attacks."""
    head = {"alg": "HS256", "kid": maker.key_id}
    text = ".".join(_part(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{_part(hmac.new(maker.pem, text.encode(), hashlib.sha256).digest())}"


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
