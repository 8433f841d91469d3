"""Certificates for tests, made when they are needed; no key outlives a run.

Those of `cluster.security.authority` are what users have; here are some that nobody should have, such as one that has
ended.
"""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

#: What connections of tests go to.
LOCAL = "DNS:localhost, IP:127.0.0.1, IP:::1"
#: First and last second of certificates, unless a test wants others.
PAST, FUTURE = "20200101000000Z", "20980101000000Z"
_TIME = "%Y%m%d%H%M%SZ"


class Pair(NamedTuple):
    """A certificate and its private key."""

    cert: Path
    key: Path

    def server_context(self, *, clients_of: Path | None = None) -> ssl.SSLContext:
        """Give what a server needs; with the file of an authority it demands certificates of clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if clients_of is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients_of)
        return context


class Authority:
    """Signs certificates, all in one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._name = _name(f"authority {folder.name}")
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, self._name, self._key, PAST, FUTURE)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        self.cert, _ = self._write("ca", builder, self._key)

    def issue(
        self,
        name: str,
        names: str = LOCAL,
        *,
        since: str = PAST,
        until: str = FUTURE,
        has_subject: bool = True,
    ) -> Pair:
        """Make a certificate and a key for a host or a client; the name may be that of the files alone."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name) if has_subject else x509.Name([])
        builder = _builder(subject, self._name, key, since, until)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage("digital_signature"), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(_names(names)), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return self._write(name, builder.add_extension(issuer, critical=False), key)

    def client_context(self) -> ssl.SSLContext:
        """Give what a client needs that trusts this authority."""
        return ssl.create_default_context(cafile=self.cert)

    def _write(self, name: str, builder: x509.CertificateBuilder, key: Any) -> Pair:
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        pair.cert.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(pem))
        return pair


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _names(text: str) -> list[x509.GeneralName]:
    """Read `DNS:a.example, IP:10.0.0.1`."""
    made: list[x509.GeneralName] = []
    for one in text.split(", "):
        kind, _, value = one.partition(":")
        made.append(x509.DNSName(value) if kind == "DNS" else x509.IPAddress(ipaddress.ip_address(value)))
    return made


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, since: str, until: str
) -> x509.CertificateBuilder:
    first, last = (datetime.strptime(time, _TIME).replace(tzinfo=UTC) for time in (since, until))
    number = x509.random_serial_number()
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), number, first, last)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*allowed: str) -> x509.KeyUsage:
    usages = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{usage: usage in allowed for usage in usages})
