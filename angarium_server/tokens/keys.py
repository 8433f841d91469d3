"""Public keys of an issuer: from a document, JWKS or PEM, to what verifies a signature.

The controller reads documents, of files or addresses, and hands on what is in them in one form, so that a damaged
document never reaches the router. Only public keys are taken, of kinds and lengths that are sound; what else a JWKS
holds, keys for encryption for instance, is left out. https://datatracker.ietf.org/doc/html/rfc7517
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from angarium import errors
from angarium.errors import error_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

#: Of a document, and the keys in it.
DOCUMENT_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 50
RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 8_192
_SOUND: Final = (RSAPublicKey, EllipticCurvePublicKey, Ed25519PublicKey, Ed448PublicKey)
_KEY_TYPES: Final = ("RSA", "EC", "OKP")
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)

#: [id or None, PEM], as the controller tells the router.
KeyRow = list[Any]


class Key(NamedTuple):
    """One public key."""

    #: What tokens call it; None if it has no name.
    id: str | None
    public: PublicKey

    def fits(self, algorithm: str) -> bool:
        """Tell whether signatures of an algorithm can be of this key."""
        kind = RSAPublicKey if algorithm[0] in "RP" else EllipticCurvePublicKey
        if algorithm == "EdDSA":
            return isinstance(self.public, Ed25519PublicKey | Ed448PublicKey)
        return isinstance(self.public, kind)


def read_document(document: bytes) -> list[KeyRow]:
    """Give the keys of a document.

    Raises:
        InvalidRequestError: it is none, is too large, or has no key that can be used (40017).
    """
    if len(document) > DOCUMENT_BYTES_MAX:
        raise _fault(f"it has {len(document)} bytes, the limit is {DOCUMENT_BYTES_MAX}")
    keys = _pem_keys(document) if b"-----BEGIN" in document else _jwks_keys(document)
    if not keys:
        raise _fault("it holds no public key that can be used")
    if len(keys) > KEYS_MAX:
        raise _fault(f"it holds {len(keys)} keys, the limit is {KEYS_MAX}")
    return [
        [key_id, public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)]
        for key_id, public in keys
    ]


def load_rows(rows: Sequence[KeyRow]) -> list[Key]:
    """Give the keys that the controller told of."""
    return [Key(key_id, load_pem_public_key(pem)) for key_id, pem in rows]  # type: ignore[arg-type]


def _jwks_keys(document: bytes) -> list[Key]:
    try:
        found = msgspec.json.decode(document)
    except (ValueError, RecursionError):
        raise _fault("it is neither a JWKS nor PEM") from None
    rows = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise _fault("it is neither a JWKS nor PEM")
    keys = []
    for row in rows:
        if not isinstance(row, dict) or row.get("kty") not in _KEY_TYPES or row.get("use", "sig") != "sig":
            continue
        key_id = row.get("kid")
        try:
            public = PyJWK.from_dict(row, row.get("alg") or _algorithm_of(row)).key
        except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
            continue
        if _is_sound(public) and isinstance(key_id, str | None):
            keys.append(Key(key_id, public))
    return keys


def _algorithm_of(row: dict[str, Any]) -> str:
    """Give any algorithm of a kind of key: what tokens may use says the configuration."""
    if row["kty"] == "EC":
        return {"P-384": "ES384", "P-521": "ES512"}.get(str(row.get("crv")), "ES256")
    return "RS256" if row["kty"] == "RSA" else "EdDSA"


def _pem_keys(document: bytes) -> list[Key]:
    keys = []
    for block in _PEM.finditer(document):
        try:
            if block[1] == b"CERTIFICATE":
                public: Any = x509.load_pem_x509_certificate(block[0]).public_key()
            elif block[1].endswith(b"PUBLIC KEY"):
                public = load_pem_public_key(block[0])
            else:
                raise _fault(f"it holds a {block[1].decode().lower()}: only public keys belong into it")
        except (UnsupportedAlgorithm, ValueError) as error:
            raise _fault(f"a key in it cannot be read: {error}") from None
        if _is_sound(public):
            keys.append(Key(None, public))
    return keys


def _is_sound(key: Any) -> bool:
    if isinstance(key, RSAPublicKey):
        return RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX
    return isinstance(key, _SOUND)


def _fault(what: str) -> errors.AngariumError:
    return error_for(errors.INVALID_CONFIGURATION, what)
