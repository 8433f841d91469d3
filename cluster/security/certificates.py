"""What certificates say: whose they are, who signed them, and when they end.

Called by the command line and by the supervisor, which import this module when there is a certificate to look at.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Operators are told when a certificate ends within this time.
WARNING: Final = timedelta(days=14)


def read_certificates(file: Path) -> list[x509.Certificate]:
    """Give the certificates of a file, one at least.

    Raises:
        InvalidRequestError: it cannot be read, or holds none (40017).
    """
    try:
        content = file.read_bytes()
    except (OSError, ValueError) as error:  # a path may hold a NUL
        raise _fault(file, getattr(error, "strerror", None) or str(error)) from None
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        pass
    if b"PRIVATE KEY-----" in content:
        raise _fault(file, "it holds a private key: name the certificate, as a rule the same with .pem")
    raise _fault(file, "it holds no certificate in PEM: 'angarium keys create' makes one")


def describe(cert: x509.Certificate, now: datetime) -> dict[str, Any]:
    """Give what an operator wants to know of a certificate."""
    return {
        "subject": cert.subject.rfc4514_string(),
        "names": names_of(cert),
        "issuer": cert.issuer.rfc4514_string(),
        "not_before": cert.not_valid_before_utc.isoformat(),
        "not_after": cert.not_valid_after_utc.isoformat(),
        "days_left": (cert.not_valid_after_utc - now) // timedelta(days=1),
        "fingerprint": cert.fingerprint(hashes.SHA256()).hex(":"),
    }


def ending(files: Mapping[str, str], now: datetime) -> list[str]:
    """Give a sentence for each certificate that has ended or soon will, or cannot be read.

    Args:
        files: what names them, with the file of each.
        now: aware of its time zone.
    """
    return [sentence for key, file in files.items() if (sentence := _sentence(key, Path(file), now))]


def names_of(cert: x509.Certificate) -> list[str]:
    """Give the hosts for which a certificate is good, beside its subject."""
    with contextlib.suppress(x509.ExtensionNotFound):
        found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in found]
    return []


def _sentence(key: str, file: Path, now: datetime) -> str:
    try:
        end = min(cert.not_valid_after_utc for cert in read_certificates(file))
    except errors.AngariumError as error:
        return f"{key}: {error.detail}"
    day = f"{end.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if end <= now:
        return f"{key}: the certificate {file} ended on {day}: clients refuse it"
    return f"{key}: the certificate {file} ends on {day}" if end - now < WARNING else ""


def _fault(file: Path, what: str) -> errors.AngariumError:
    return errors.error_for(errors.INVALID_CONFIGURATION, f"certificate {file}: {what}")
