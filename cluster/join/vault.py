"""The files that the controller needs to admit a node: certificate, authority and tokens. It decides nothing.

`cluster/controller/operations/joining.py` says what is to be done, as the effect `UseVault`, and goes on with the
outcome.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from angarium import errors
from cluster.data.data_dir import JOIN_TOKENS_FILE, write_durably
from cluster.join.tokens import Token

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig

#: An address of a network that is nowhere (RFC 5737): the way to it shows by which address others reach this host.
_SOMEWHERE: Final = ("192.0.2.1", 9)


class SignOrder(NamedTuple):
    """Sign the request of a node that will be reached at these hosts."""

    request: str
    node: str
    hosts: tuple[str, ...]
    #: Directory of the authority; empty: that of cluster.ca_file.
    authority: str


class VaultWork(NamedTuple):
    """What is to be done, in this order: sign, then keep the tokens. None: nothing of it."""

    sign: SignOrder | None = None
    tokens: list[Token] | None = None


class Vaulted(NamedTuple):
    """What came of it."""

    #: SHA-256 of the certificate that this node shows, and the name by which others check it; empty: its own.
    fingerprint: bytes
    server_name: str
    #: By which address others reach this host, if nothing else is said.
    host: str
    #: Authorities of the cluster (PEM), and what was signed.
    authority: str
    certificate: str


class Vault:
    """The files of one node."""

    def __init__(self, config: NodeConfig, data_dir: Path, node: str) -> None:
        self._cert_file = config.router.tls_cert_file
        self._ca_file = config.cluster.ca_file
        self._tokens_file = data_dir / JOIN_TOKENS_FILE
        self._node = node

    def tokens(self) -> list[Token]:
        """Give the tokens that were kept.

        Raises:
            InvalidRequestError: they cannot be read (40017).
        """
        if not self._tokens_file.exists():
            return []
        try:
            return msgspec.json.decode(self._tokens_file.read_bytes(), type=list[Token])
        except (OSError, msgspec.MsgspecError) as error:
            detail = f"{self._tokens_file}: {error}"
            advice = "remove it: the join tokens are of no use any more, and new ones can be made"
            raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None

    def work(self, work: VaultWork) -> Vaulted:
        """Do what is to be done; what fails leaves the tokens as they were.

        Raises:
            AngariumError: there is no certificate, no authority that signs, or no room.
        """
        from cluster.security.certificates import (
            names_of,
            read_certificates,
        )  # nodes that never join do without the library

        if not self._cert_file:
            raise errors.error_for(errors.INVALID_CONFIGURATION, NO_TLS)
        from cryptography.hazmat.primitives import hashes

        shown = read_certificates(Path(self._cert_file))[0]
        names = names_of(shown)
        vaulted = Vaulted(
            shown.fingerprint(hashes.SHA256()),
            "" if self._node in names or not names else names[0],
            _own_host(),
            Path(self._ca_file).read_text(encoding="ascii") if self._ca_file else "",
            "" if work.sign is None else self._sign(work.sign),
        )
        if work.tokens is not None:
            self._keep(work.tokens)
        return vaulted

    def _sign(self, order: SignOrder) -> str:
        from cluster.security.authority import AUTHORITY, sign_request
        from cluster.security.certificates import read_certificates

        folder = Path(order.authority) if order.authority else Path(self._ca_file).parent
        if not self._ca_file or not (folder / f"{AUTHORITY}.key").exists():
            where = f"{folder}" if self._ca_file else "cluster.ca_file, which is not set"
            raise self._cannot_sign(f"there is no {AUTHORITY}.key in {where}")
        signs = read_certificates(folder / f"{AUTHORITY}.pem")[0]
        if signs not in read_certificates(Path(self._ca_file)):
            raise self._cannot_sign(f"the authority in {folder} is not in cluster.ca_file")
        return sign_request(order.request, order.node, order.hosts, folder)

    def _cannot_sign(self, why: str) -> errors.AngariumError:
        advice = (
            "name another --authority with the token, or a certificate of the joining host there: --cert-file"
        )
        detail = f"node {self._node!r} cannot sign a certificate: {why}; {advice}"
        return errors.error_for(errors.JOIN_REFUSED, detail)

    def _keep(self, tokens: list[Token]) -> None:
        try:
            write_durably(self._tokens_file, msgspec.json.encode(tokens))
        except OSError as error:
            raise errors.error_for(errors.DISK_FULL, f"{self._tokens_file}: {error.strerror}") from None


#: How a node gets an address to which others can come.
NO_TLS: Final = (
    "this node has no tls:// address; make a certificate and start the node with it: "
    "'angarium keys create NODE --host HOST', then "
    "'angarium up --listen tls://HOST:55555 --cert-file NODE.pem --key-file NODE.key'"
)


def _own_host() -> str:
    """Give the address of this host on its way to others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(_SOMEWHERE)
            return str(trial.getsockname()[0])
        except OSError:
            return ""
