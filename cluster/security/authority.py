"""A small authority of one's own, and the certificates that it signs: all that TLS needs, made without another program.

    authority.pem   whom to trust: for every client and neighbour, not secret
    authority.key   signs certificates; no node needs it. Mode 0600
    NODE.pem        what a node, an application or an operator shows
    NODE.key        its private key. Mode 0600

The authority is made when its files are not there. Its path length is zero, so nothing that it signs can sign others.
A private key is never printed, nor written over. Called by the command line, which imports this module when it is
needed: the library for certificates takes longer to load than most commands take.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, get_args

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from angarium import errors
from cluster.security.certificates import names_of, read_certificates
from cluster.security.keys import CLUSTER_SECRET, create_secret, forbidden_mode, write_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: How long an authority, and what it signs, is good.
AUTHORITY_DAYS: Final = 3_650
DAYS: Final = 365
#: Certificates are good from a while ago on, for hosts whose clocks are behind.
_CLOCKS_BEHIND: Final = timedelta(hours=1)
#: Name of the files of an authority.
AUTHORITY: Final = "authority"
#: Longest name in a certificate (RFC 5280, ub-common-name).
_NAME_MAX: Final = 64
_DNS_NAME: Final = re.compile(
    # OpenSSL takes a wildcard for none before one label alone, such as *.example.
    r"(?=.{1,253}\Z)(\*\.(?=[^.]+\.))?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
    re.IGNORECASE,
)
_SIGNING: Final = ("key_cert_sign", "crl_sign")
_KEY_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)

_Key = CertificateIssuerPrivateKeyTypes


class Issued(NamedTuple):
    """A certificate and where it is."""

    cert_file: Path
    key_file: Path
    authority_file: Path
    #: The hosts for which it is good.
    names: list[str]
    not_after: datetime


class _Authority(NamedTuple):
    file: Path
    cert: x509.Certificate
    key: _Key


def create_certificate(
    path: str | os.PathLike[str],
    hosts: Iterable[str] = (),
    authority: str | os.PathLike[str] | None = None,
    days: int = DAYS,
) -> Issued:
    """Write `path.pem` and `path.key`, by which a node shows who it is, to clients and to other nodes.

    Args:
        path: its last part is the name in the certificate.
        hosts: names and IP addresses by which others know the host, beside the ones that it knows itself.
        authority: directory of the authority, which is made there if there is none; None: that of `path`.
        days: how long it is good, but never longer than the authority.

    Raises:
        ConflictError: one of the files is there already; keys are never written over (40901).
        InvalidRequestError: an argument is wrong, or the place cannot be written (40018); the authority is damaged,
            incomplete or none (40017).
    """
    place = Path(path)
    names = [host for host in (place.name, socket.gethostname()) if _DNS_NAME.fullmatch(host)]
    asked = [*names[:1], "localhost", *names[1:], *hosts, "127.0.0.1", "::1"]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _create(place, _alternative_names(asked), usages, authority, days)


def create_client_certificate(
    path: str | os.PathLike[str], authority: str | os.PathLike[str] | None = None, days: int = DAYS
) -> Issued:
    """Write the same for an application or an operator: nobody takes its holder for a node.

    Raises:
        AngariumError: see `create_certificate`.
    """
    place = Path(path)
    names = _alternative_names([place.name] if _DNS_NAME.fullmatch(place.name) else [])
    return _create(place, names, [ExtendedKeyUsageOID.CLIENT_AUTH], authority, days)


def create_request(key_file: Path, name: str) -> str:
    """Give a certificate signing request (PEM) for a private key, which is made if there is none yet.

    Raises:
        AngariumError: the key cannot be written (40018), or what is there is none (40017).
    """
    if not key_file.exists():
        write_new(key_file, _private_text(ec.generate_private_key(ec.SECP256R1())), 0o600)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    key = _read_key(key_file)
    signed = request.sign(key, _digest(key))
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def is_host_name(text: str) -> bool:
    """Tell whether a certificate can be for a host of this name."""
    return _DNS_NAME.fullmatch(text) is not None


def key_of_request(pem: str) -> str:
    """Give the SHA-256 of the public key of a request whose sender has the private one.

    Raises:
        InvalidRequestError: it is none, or the sender has not (40018).
    """
    return hashlib.sha256(_public_bytes(_request_key(pem))).hexdigest()


def sign_request(
    pem: str, name: str, hosts: Iterable[str], authority: str | os.PathLike[str], days: int = DAYS
) -> str:
    """Give the certificate (PEM) of a node that asks for one; its name and hosts are those that we say.

    Raises:
        InvalidRequestError: it is no request, or a name cannot be in one (40018); there is no authority that could
            sign (40017).
    """
    folder = Path(authority)
    if not (folder / f"{AUTHORITY}.key").exists():
        raise _fault(
            folder / f"{AUTHORITY}.pem", f"its key {folder / AUTHORITY}.key is not here, so nothing is signed"
        )
    names = [host for host in (name,) if _DNS_NAME.fullmatch(host)]
    asked = _alternative_names([*names, "localhost", *hosts, "127.0.0.1", "::1"])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    cert = _sign(name, asked, usages, _authority_of(folder), _request_key(pem), days)
    return cert.public_bytes(serialization.Encoding.PEM).decode()


def _request_key(pem: str) -> Any:
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        if request.is_signature_valid:
            return request.public_key()
    except (ValueError, UnsupportedAlgorithm):
        pass
    raise errors.invalid("what came is no certificate signing request")


def create_cluster(
    directory: str | os.PathLike[str], nodes: Mapping[str, Sequence[str]], days: int = DAYS
) -> dict[str, Issued]:
    """Write the secret of a cluster, an authority, and a certificate for each node, and give these by node.

    What is there stays, so that the same call with one more node adds that.

    Args:
        directory: made if it does not exist.
        nodes: the hosts of each node by its name.
        days: how long new certificates are good.

    Raises:
        AngariumError: see `create_certificate`.
    """
    place = Path(directory)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.invalid(f"{place}: {error.strerror}") from None
    if not (place / CLUSTER_SECRET).exists():
        create_secret(place / CLUSTER_SECRET)
    return {
        node: _there(place, node) or create_certificate(place / node, hosts, days=days)
        for node, hosts in nodes.items()
    }


def _there(place: Path, node: str) -> Issued | None:
    """Give the certificate that a node has already."""
    cert_file, key_file = _files(place / node)
    if not (cert_file.exists() and key_file.exists()):
        return None
    cert = read_certificates(cert_file)[0]
    return Issued(cert_file, key_file, _files(place / AUTHORITY)[0], names_of(cert), cert.not_valid_after_utc)


def _create(
    place: Path,
    names: list[x509.GeneralName],
    usages: list[x509.ObjectIdentifier],
    authority: str | os.PathLike[str] | None,
    days: int,
) -> Issued:
    _check_name(place)
    cert_file, key_file = _files(place)
    _refuse_existing(cert_file, key_file)
    issuer = _authority_of(place.parent if authority is None else Path(authority))
    key = ec.generate_private_key(ec.SECP256R1())
    cert = _sign(place.name, names, usages, issuer, key.public_key(), days)
    _write(cert_file, key_file, cert, key)
    return Issued(cert_file, key_file, issuer.file, names_of(cert), cert.not_valid_after_utc)


def _sign(
    name: str,
    names: list[x509.GeneralName],
    usages: list[x509.ObjectIdentifier],
    issuer: _Authority,
    key: Any,
    days: int,
) -> x509.Certificate:
    """Give a certificate of a host or a user for a public key."""
    now = datetime.now(UTC)
    until = min(now + timedelta(days=days), issuer.cert.not_valid_after_utc)
    builder = _builder(name, issuer.cert.subject, key, now, until).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer.key, _digest(issuer.key))


def _authority_of(folder: Path) -> _Authority:
    """Give the authority of a directory, after making it if there is none."""
    cert_file, key_file = _files(folder / AUTHORITY)
    if not cert_file.exists() and not key_file.exists():
        _create_authority(cert_file, key_file)
    if not key_file.exists():
        what = f"its key {key_file} is not here: make certificates where that is, or name its directory: --authority"
        raise _fault(cert_file, what)
    if not cert_file.exists():
        raise _fault(
            key_file, f"its certificate {cert_file} is missing: put it back, or remove the key as well"
        )
    cert, key = read_certificates(cert_file)[0], _read_key(key_file)
    if _public_bytes(cert.public_key()) != _public_bytes(key.public_key()):
        raise _fault(
            cert_file, f"{key_file} is not its key: put the right one back, or name another --authority"
        )
    try:
        may_sign = cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        may_sign = False
    if not may_sign:
        raise _fault(
            cert_file, "it is the certificate of a host, which cannot sign others: name another --authority"
        )
    if cert.not_valid_after_utc <= datetime.now(UTC):
        ended = f"{cert.not_valid_after_utc:%Y-%m-%d}"
        raise _fault(
            cert_file, f"it ended on {ended}: make a new one in another directory, and have it trusted"
        )
    return _Authority(cert_file, cert, key)


def _create_authority(cert_file: Path, key_file: Path) -> None:
    now = datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"Angarium authority {secrets.token_hex(4)}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(name, subject, key.public_key(), now, now + timedelta(days=AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(*_SIGNING), critical=True)
    _write(cert_file, key_file, builder.sign(key, hashes.SHA256()), key)


def _builder(
    name: str, issuer: x509.Name, key: Any, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    """Give what every certificate of ours has."""
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_BEHIND)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _KEY_USAGES})


def _alternative_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Give hosts as certificates name them, each once."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host.strip("[]"))))
        except ValueError:
            if not _DNS_NAME.fullmatch(host):
                detail = f"{host!r} is neither the name of a host nor an IP address"
                advice = "write it without tls:// and port, and a name with other letters as xn--..."
                raise errors.invalid(detail, advice) from None
            names.append(x509.DNSName(host))
    return names


def _check_name(place: Path) -> None:
    name = place.name
    if place.suffix in (".pem", ".key"):
        detail, advice = (
            f"{place} is the name of one file",
            f"write {place.with_suffix('')}: .pem and .key are added",
        )
    elif name == AUTHORITY:
        detail, advice = f"{place} is the name of the authority's files", "choose another name"
    elif not name or len(name) > _NAME_MAX or not name.isprintable():
        detail, advice = f"{name!r} cannot be the name in a certificate", f"write 1 to {_NAME_MAX} characters"
    else:
        return
    raise errors.invalid(detail, advice)


def _files(place: Path) -> tuple[Path, Path]:
    """Give where certificate and key are."""
    return place.with_name(f"{place.name}.pem"), place.with_name(f"{place.name}.key")


def _refuse_existing(*files: Path) -> None:
    for file in files:
        if file.exists():
            detail = f"{file}; a key is never written over"
            raise errors.error_for(errors.OBJECT_EXISTS, detail, "choose another path, or remove it")


def _write(cert_file: Path, key_file: Path, cert: x509.Certificate, key: _Key) -> None:
    """Write both files, the key first: a certificate whose key is nowhere is never there."""
    write_new(key_file, _private_text(key), 0o600)
    try:
        write_new(cert_file, cert.public_bytes(serialization.Encoding.PEM).decode(), 0o644)
    except BaseException:
        key_file.unlink(missing_ok=True)
        raise


def _private_text(key: _Key) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _read_key(file: Path) -> _Key:
    try:
        found, content = file.stat(), file.read_bytes()
    except OSError as error:
        raise _fault(file, f"{error.strerror}") from None
    if found.st_mode & forbidden_mode(found.st_uid, os.geteuid()):
        mode = found.st_mode & 0o777
        raise _fault(file, f"it has mode {mode:04o}, so others may read it: 'chmod 600 {file}'")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (TypeError, ValueError):
        raise _fault(
            file, "it holds no private key in PEM without a password: put a copy of it back"
        ) from None
    if not isinstance(key, get_args(_Key)):
        raise _fault(file, "its key cannot sign certificates: name another --authority")
    return cast("_Key", key)


def _digest(key: _Key) -> hashes.SHA256 | None:
    """Give what is signed of a certificate; some keys have that settled."""
    return None if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey) else hashes.SHA256()


def _public_bytes(key: Any) -> bytes:
    return bytes(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _fault(file: Path, what: str) -> errors.AngariumError:
    return errors.error_for(errors.INVALID_CONFIGURATION, f"authority {file}: {what}")
