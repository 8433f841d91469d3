"""What encrypts the connections of links and bridges: whom they trust, and what they show of themselves.

The files are looked at for every new connection, so that certificates are renewed without a word to the process;
connections that are there stay as they are.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from angarium.client.transport.address import is_encrypted, parse
from angarium.client.transport.tls import Tls
from angarium.errors import TLS_FAILED, AngariumError, error_for

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What can be done about a certificate that is not trusted.
ADVICE: Final = (
    "compare ca_file and server_name here with the authority and the names of the certificate there, "
    "and tls_client_certificates there with the certificate of this node"
)


class LinkFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files in PEM that the links and bridges of a node use; an empty path stands for none."""

    #: Authorities that are trusted; without it those of the system.
    ca_file: str = ""
    #: What this node shows if it is asked who it is, and the key of that, which may be in the same file.
    cert_file: str = ""
    key_file: str = ""


class Trust(NamedTuple):
    """Whom a connection is for, if it is encrypted."""

    #: The name that the certificate must have; empty: the host of the address.
    server_name: str = ""
    #: Authorities as PEM text instead of those of the node.
    ca_pem: str = ""


class Encryption:
    """The context of TLS that the files of a node make now."""

    def __init__(self, files: LinkFiles) -> None:
        self._files = files
        #: What the context below was made of, and when the files were written; None before the first.
        self._made_of: tuple[str, Sequence[int]] | None = None
        self._context: ssl.SSLContext | None = None

    def for_address(self, url: str, trust: Trust) -> Tls | None:
        """Give what encrypts a connection to an address; None if nothing does.

        Raises:
            AngariumError: what is needed for it cannot be read (TLS_FAILED), or it is no address.
        """
        if not is_encrypted(url):
            return None
        name = trust.server_name or parse(url)[0]
        context = self._current(trust.ca_pem)
        try:
            return Tls(context, name)
        except ValueError as error:
            raise error_for(
                TLS_FAILED, f"no certificate can be for {name!r} ({error})", "set server_name"
            ) from None

    def _current(self, ca_pem: str) -> ssl.SSLContext:
        """Give the context of the files as they are; it is made again when one of them was written."""
        made_of = ca_pem, self._times()
        if self._context is None or made_of != self._made_of:
            self._context = _make(self._files, ca_pem)
            self._made_of = made_of
        return self._context

    def _times(self) -> Sequence[int]:
        times = []
        for path in filter(None, (self._files.ca_file, self._files.cert_file, self._files.key_file)):
            try:
                found = os.stat(path)
            except OSError:  # who reads it says so
                times += [0, 0]
            else:
                times += [found.st_mtime_ns, found.st_ino]
        return times


def _make(files: LinkFiles, ca_pem: str) -> ssl.SSLContext:
    where = "ca_pem" if ca_pem else files.ca_file
    try:
        if ca_pem:
            context = ssl.create_default_context(cadata=ca_pem)
        else:
            context = ssl.create_default_context(cafile=files.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if files.cert_file:
            where = f"{files.cert_file}, {files.key_file}" if files.key_file else files.cert_file
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(files.cert_file, files.key_file or None, password=lambda: b"")
    except (OSError, ValueError) as error:  # the former: those of TLS too
        raise _unusable(where, error) from None
    return context


def _unusable(where: str, error: Exception) -> AngariumError:
    return error_for(TLS_FAILED, f"{where}: {_reason(error)}", "see to the file; it is read again soon")


def _reason(error: Exception) -> str:
    """Say what is wrong, in words of OpenSSL or of the system where they have any."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).lower().replace("_", " ")
