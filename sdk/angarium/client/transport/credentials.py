"""What a client shows and whom it trusts on `tls://` addresses: files, or a context of the application.

The files are read when `connect` is called, so that a fault is told at once, and again before a connection if they have
changed since, so that a client outlives the certificates that it began with. `angarium.client.connection.connection`
uses it.
"""

from __future__ import annotations

import logging
import os
import ssl
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

from angarium.client.transport.address import is_encrypted, parse
from angarium.client.transport.tls import Tls
from angarium.errors import AngariumError, invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

PathLike: TypeAlias = "str | os.PathLike[str]"

#: What others must not be able to do with a private key; its group may read it if root owns it, as orchestrators do it.
_OTHERS_MODE: Final = 0o077
_OTHERS_MODE_OF_ROOT: Final = 0o037
_logger = logging.getLogger("angarium.client")


class Credentials:
    """What the connections of one client have in common."""

    def __init__(
        self,
        ca_file: PathLike | None = None,
        cert_file: PathLike | None = None,
        key_file: PathLike | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Read the files; warn of a private key that others may read.

        Args:
            ca_file: certificates of the authorities that are trusted; None for those of the system.
            cert_file: a certificate of ours with its chain, or None.
            key_file: its private key, or None if it is in the same file.
            ssl_context: used as it is, instead of all of these.

        Raises:
            InvalidArgumentError: they cannot be read or do not fit together (INVALID_ARGUMENT).
        """
        self._ca_file, self._cert_file, self._key_file = ca_file, cert_file, key_file
        self._files = [file for file in (ca_file, cert_file, key_file) if file is not None]
        if ssl_context is not None and self._files:
            raise _wrong("ssl_context", "ca_file, cert_file and key_file are for those who bring no context")
        if key_file is not None and cert_file is None:
            raise _wrong("key_file", "it is the key of cert_file, which is missing")
        self._given = ssl_context
        #: When the files were written that the context holds.
        self._written = self._times()
        self._context = ssl_context or self._load()
        if warning := exposed(key_file or cert_file):
            _logger.warning("%s", warning)

    def context(self) -> ssl.SSLContext:
        """Give what the next connection uses; files that cannot be used now count as they were before."""
        if self._given is None and (times := self._times()) != self._written:
            try:
                self._context = self._load()
                self._written = times
            except AngariumError as error:
                _logger.warning("the files before the last change are used: %s", error)
        return self._context

    def _times(self) -> Sequence[int]:
        times = []
        for file in self._files:
            try:
                times.append(os.stat(file).st_mtime_ns)
            except (OSError, ValueError):  # who reads it says so
                times.append(0)
        return times

    def _load(self) -> ssl.SSLContext:
        context = _authorities(self._ca_file)
        if self._cert_file is not None:
            _load_pair(context, self._cert_file, self._key_file)
        return context


def credentials_for(
    urls: Sequence[str],
    ca_file: PathLike | None,
    cert_file: PathLike | None,
    key_file: PathLike | None,
    ssl_context: ssl.SSLContext | None,
) -> Credentials | None:
    """Give what clients of some addresses need, None if none of them is one of TLS.

    Raises:
        InvalidArgumentError: something is given and of no use, or cannot be used (INVALID_ARGUMENT).
    """
    encrypted = [url for url in urls if is_encrypted(url)]
    if encrypted:
        credentials = Credentials(ca_file, cert_file, key_file, ssl_context)
        for url in encrypted:
            _check(credentials, url)
        return credentials
    given = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file, "ssl_context": ssl_context}
    for name, value in given.items():
        if value is not None:
            raise _wrong(name, "no address is one of TLS: write tls://HOST:PORT")
    return None


def _check(credentials: Credentials, url: str) -> None:
    """See whether a connection could begin."""
    try:
        Tls(credentials.context(), parse(url)[0])
    except ssl.SSLError as error:
        raise _wrong("ssl_context", f"it is none for clients ({error})") from None
    except ValueError as error:
        raise _wrong("url", f"{url}: there cannot be a host of this name ({error})") from None


def exposed(path: PathLike | None) -> str:
    """Give a sentence if somebody else may read a private key; empty if not, or if it is not there."""
    if path is None or sys.platform == "win32":
        return ""
    try:
        found, user = os.stat(path), os.geteuid()
    except (OSError, ValueError):
        return ""
    forbidden = _OTHERS_MODE_OF_ROOT if found.st_uid == 0 and user != 0 else _OTHERS_MODE
    if not found.st_mode & forbidden:
        return ""
    name, mode = os.fspath(path), found.st_mode & 0o777
    return f"{name} has mode {mode:04o}, so others may use the private key in it: 'chmod 600 {name}'"


def _authorities(ca_file: PathLike | None) -> ssl.SSLContext:
    """Give a context that checks authority and host name."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (ssl.SSLError, ValueError) as error:
        raise _wrong("ca_file", f"{ca_file} holds no certificate of an authority in PEM ({error})") from None
    except OSError as error:
        raise _wrong("ca_file", f"{ca_file}: {error.strerror}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load_pair(context: ssl.SSLContext, cert_file: PathLike, key_file: PathLike | None) -> None:
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        files = f"{cert_file}, {key_file}" if key_file is not None else f"{cert_file}"
        why = "no certificate and its private key in PEM, without a passphrase"
        raise _wrong("cert_file, key_file", f"{files}: {why} ({error})") from None
    except OSError as error:
        path = _unreadable(cert_file, key_file)
        raise _wrong("cert_file, key_file", f"{path}: {error.strerror}") from None


def _unreadable(cert_file: PathLike, key_file: PathLike | None) -> PathLike:
    """Say which of two files the system refuses; the library does not."""
    return cert_file if key_file is None or not os.access(cert_file, os.R_OK) else key_file


def _no_passphrase() -> str:
    """Answer for the terminal, where the library would ask."""
    raise ValueError("the private key has a passphrase")


def _wrong(argument: str, what: str) -> AngariumError:
    return invalid(f"connect: {argument}: {what}")
