"""Certificates for tests, made when they are needed by the command `openssl`; no key outlives a run."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_CONFIGURATION = """
[req]
distinguished_name = name
x509_extensions = authority
[name]
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[ca]
default_ca = signing
[signing]
database = index.txt
new_certs_dir = .
default_md = sha256
policy = any
unique_subject = no
rand_serial = yes
[any]
commonName = supplied
"""
_EXTENSIONS = """
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
#: What connections of tests go to.
LOCAL = "DNS:localhost, IP:127.0.0.1, IP:::1"
#: First and last second of certificates, unless a test wants others.
PAST, FUTURE = "20200101000000Z", "20980101000000Z"


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
        if shutil.which("openssl") is None:
            pytest.skip("certificates need the command openssl")
        self._folder = folder
        folder.mkdir(parents=True)
        folder.joinpath("openssl.cnf").write_text(_CONFIGURATION)
        folder.joinpath("index.txt").touch()
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        self._openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", str(self._key), "-out", str(self.cert), "-days", "9999",
            "-subj", f"/CN=authority {folder.name}", "-config", "openssl.cnf",
        )  # fmt: skip

    def issue(self, name: str, names: str = LOCAL, *, since: str = PAST, until: str = FUTURE) -> Pair:
        """Make a certificate and a key for a host or a client."""
        cert, key, request = (self._folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        self._openssl(
            "req", "-new", *_NEW_KEY, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}",
            "-config", "openssl.cnf",
        )  # fmt: skip
        extensions = self._folder / f"{name}.cnf"
        extensions.write_text(_EXTENSIONS.format(names=names))
        self._openssl(
            "ca", "-batch", "-notext", "-config", "openssl.cnf", "-cert", str(self.cert),
            "-keyfile", str(self._key), "-in", str(request), "-out", str(cert), "-extfile", str(extensions),
            "-startdate", since, "-enddate", until,
        )  # fmt: skip
        return Pair(cert, key)

    def client_context(self) -> ssl.SSLContext:
        """Give what a client needs that trusts this authority."""
        return ssl.create_default_context(cafile=self.cert)

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=self._folder, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
