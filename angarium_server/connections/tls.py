"""Encryption of the listening side: the context that files of an operator make, or the reason why they make none.

TLS 1.2 at least; the suites are those of OpenSSL. A reload makes a new context, for connections that come then: files
that are damaged change nothing.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Whether clients have to show a certificate that an authority of ours has signed.
VERIFY_MODES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Certificate(NamedTuple):
    """Who a peer is, says an authority of ours: the names in his certificate by their kinds, in their order."""

    #: Empty if it has none, or several.
    common_name: str = ""
    dns: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()


class Peer(NamedTuple):
    """Where a connection comes from, and what it has shown of itself."""

    #: IP address; empty for a socket of this host.
    address: str = ""
    #: None if no certificate was shown, or none that an authority of ours has signed.
    certificate: Certificate | None = None
    #: Whether what is said here goes through TLS.
    is_encrypted: bool = False


#: Somebody of this host.
LOCAL = Peer()


class TlsFiles(NamedTuple):
    """By what a listener proves who it is, and clients who they are; all PEM."""

    #: The certificate, and those between it and its authority.
    cert_file: str
    #: Its private key; empty if it is in the same file.
    key_file: str = ""
    #: Authorities that may sign certificates of clients.
    ca_file: str = ""
    client_certificates: str = "none"


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Give what encrypts connections.

    Raises:
        InvalidRequestError: a file is missing, damaged, or does not fit the others (40017); the text holds no key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_COMPRESSION
    for path in filter(None, (files.cert_file, files.key_file, files.ca_file)):
        if not os.access(path, os.R_OK):
            raise _fault(f"{path} is not there, or cannot be read by this user")
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.cert_file, files.key_file or None, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise _fault(f"{files.cert_file} and {files.key_file or 'its key'}: {_reason(error)}") from None
    context.verify_mode = VERIFY_MODES[files.client_certificates]
    if files.ca_file:
        try:
            context.load_verify_locations(files.ca_file)
        except (ssl.SSLError, OSError) as error:
            raise _fault(f"{files.ca_file}: {_reason(error)}") from None
    elif context.verify_mode is not ssl.CERT_NONE:
        raise _fault("certificates of clients can be checked with a file of authorities only")
    return context


def common_name_of(certificate: Mapping[str, Any]) -> str:
    """Give the common name of a certificate as `ssl` describes it; empty if it has none, or several."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""


def certificate_of(encrypted: ssl.SSLSocket) -> Certificate | None:
    """Give the certificate of a peer after the handshake; None if he showed none, or none that was checked.

    Raises:
        ValueError: its names cannot be read.
    """
    return certificate_in(encrypted.getpeercert())


def certificate_in(found: Any) -> Certificate | None:
    """Give a certificate as `ssl` describes it; None for none.

    Raises:
        ValueError: its names cannot be read.
    """
    if not found:
        return None
    others = found.get("subjectAltName", ())
    return Certificate(
        common_name_of(found),
        _values(others, "DNS"),
        _values(others, "email"),
        _values(others, "URI"),
    )


def _values(pairs: Iterable[tuple[str, str]], kind: str) -> tuple[str, ...]:
    return tuple(value for name, value in pairs if name == kind)


def _reason(error: Exception) -> str:
    """Say what is wrong, in the words of OpenSSL where it has any."""
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    return str(reason).lower().replace("_", " ") if reason else "it holds no certificate, or no key, in PEM"


def _fault(text: str) -> errors.AngariumError:
    return errors.error_for(errors.INVALID_CONFIGURATION, text)
