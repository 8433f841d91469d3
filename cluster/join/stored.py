"""What a node keeps of the cluster that it joined, and how that counts at every start: beneath its configuration file.

DATA/joining/       while it tries: its private key, so that it asks again with the same one
DATA/cluster/       once it was admitted; the directory gets this name when all of it is on disk
    joined.json     the name of the cluster, how the node is called, where it listens, through whom it came
    cluster.secret  the secret of the cluster
    authority.pem   the authorities of the cluster
    node.pem, .key  its certificate, unless it brought one
    links.json      links that the controller makes at the next start, and then removes this file
DATA/left-TIME/     what is left of one that it left

DATA/cluster.secret the secret of a node that has none configured: it is a cluster of one, that others may join
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from cluster.configuration.config import NodeConfig
from cluster.data.data_dir import JOINED_FOLDER, JOINING_FOLDER, SECRET_FILE, write_durably
from cluster.join.frames import Neighbour
from storage.sync import sync_path

if TYPE_CHECKING:
    from cluster.join.frames import Admission

JOINED_FILE: Final = "joined.json"
_LINKS: Final = "links.json"
_SECRET: Final = "cluster.secret"  # noqa: S105 - the name of a file
_AUTHORITY: Final = "authority.pem"
_CERTIFICATE: Final = "node.pem"
KEY: Final = "node.key"
_SECRET_BYTES: Final = 32
_DEFAULT: Final = NodeConfig()


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """How a node came into a cluster."""

    cluster: str
    node: str
    listen: list[str]
    #: How others reach it, and the name that its certificate has there; empty: its own.
    addresses: list[str]
    server_name: str = ""
    #: The node through which it came, and the SHA-256 of the certificate of that.
    through: str
    fingerprint: str


def read(data_dir: Path) -> Joined | None:
    """Give how a node came into its cluster; None if it did not join one.

    Raises:
        InvalidRequestError: it cannot be read (40017).
    """
    file = data_dir / JOINED_FOLDER / JOINED_FILE
    if not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Joined)
    except (OSError, msgspec.MsgspecError) as error:
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"{file}: {error}") from None


def secret_of(data_dir: Path) -> str:
    """Give the secret of the cluster that a node joined."""
    return (data_dir / JOINED_FOLDER / _SECRET).read_text(encoding="ascii").strip()


def authority_of(data_dir: Path) -> Path | None:
    """Give the file of the authorities of the cluster that a node joined; None: those of the system."""
    file = data_dir / JOINED_FOLDER / _AUTHORITY
    return file if file.exists() else None


def certificate_of(data_dir: Path) -> tuple[Path, Path] | None:
    """Give the certificate that a node got from its cluster, and its key; None if it brought one."""
    folder = data_dir / JOINED_FOLDER
    return (folder / _CERTIFICATE, folder / KEY) if (folder / _CERTIFICATE).exists() else None


def begin(data_dir: Path) -> Path:
    """Give the directory of a node that tries to join.

    Raises:
        InvalidRequestError: it cannot be made (40017).
    """
    folder = data_dir / JOINING_FOLDER
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise errors.error_for(errors.INVALID_CONFIGURATION, f"{folder}: {error.strerror}") from None
    return folder


def keep(data_dir: Path, joined: Joined, admission: Admission, links: list[Neighbour]) -> None:
    """Keep all that an admission gave, or nothing.

    Raises:
        UnavailableError: there is no room (50329).
    """
    folder = data_dir / JOINING_FOLDER
    content = {
        _SECRET: f"{admission.secret}\n".encode(),
        _AUTHORITY: admission.authority.encode(),
        _CERTIFICATE: admission.certificate.encode(),
        _LINKS: msgspec.json.encode(links),
        JOINED_FILE: msgspec.json.format(msgspec.json.encode(joined), indent=2),
    }
    try:
        for name, text in content.items():
            if text:
                write_durably(folder / name, text)
        folder.rename(data_dir / JOINED_FOLDER)
        sync_path(data_dir)
    except OSError as error:
        detail = f"{folder}: {error.strerror}; nothing is joined, and the same command can be repeated"
        raise errors.error_for(errors.DISK_FULL, detail) from None


def neighbours(data_dir: Path) -> list[Neighbour]:
    """Give the nodes to which links were not made yet: none once the node was started."""
    file = data_dir / JOINED_FOLDER / _LINKS
    return msgspec.json.decode(file.read_bytes(), type=list[Neighbour]) if file.exists() else []


def new_links(data_dir: Path) -> list[list[Any]]:
    """Give the links that were not made yet, as declared objects."""
    return [
        ["link", "", one.node, {"addresses": one.addresses, "server_name": one.server_name}]
        for one in neighbours(data_dir)
    ]


def links_made(data_dir: Path) -> None:
    """They are in the config store."""
    (data_dir / JOINED_FOLDER / _LINKS).unlink(missing_ok=True)


def put_away(data_dir: Path) -> Path:
    """Take what a node keeps of its cluster out of force, and give where it is."""
    left = data_dir / f"left-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    (data_dir / JOINED_FOLDER).rename(left)
    sync_path(data_dir)
    return left


def with_joined(config: NodeConfig, data_dir: Path) -> NodeConfig:
    """Give a configuration with what the node got when it joined, wherever the file says nothing."""
    joined = read(data_dir)
    if joined is None:
        return config
    folder = data_dir.absolute() / JOINED_FOLDER
    cluster, router, node = config.cluster, config.router, config.node
    authority, certificate = authority_of(data_dir.absolute()), certificate_of(data_dir.absolute())
    if cluster.name == _DEFAULT.cluster.name:
        cluster = msgspec.structs.replace(cluster, name=joined.cluster)
    if not cluster.secret_file:
        cluster = msgspec.structs.replace(cluster, secret_file=str(folder / _SECRET))
    if not cluster.ca_file and authority:
        cluster = msgspec.structs.replace(cluster, ca_file=str(authority))
    if router.listen == _DEFAULT.router.listen:
        router = msgspec.structs.replace(router, listen=joined.listen)
    if not router.tls_cert_file and certificate:
        cert, key = map(str, certificate)
        router = msgspec.structs.replace(router, tls_cert_file=cert, tls_key_file=key)
    if not node.name:
        node = msgspec.structs.replace(node, name=joined.node)
    return msgspec.structs.replace(config, cluster=cluster, router=router, node=node)


def with_authority(config: NodeConfig) -> NodeConfig:
    """Give a configuration that trusts the authority that lies beside the certificate of the node, if it names none."""
    if config.cluster.ca_file or not config.router.tls_cert_file:
        return config
    beside = Path(config.router.tls_cert_file).absolute().parent / _AUTHORITY
    if not beside.exists():
        return config
    cluster = msgspec.structs.replace(config.cluster, ca_file=str(beside))
    return msgspec.structs.replace(config, cluster=cluster)


def with_secret(config: NodeConfig, data_dir: Path) -> NodeConfig:
    """Give a configuration with a secret; one that has none gets that of the data directory, which is made once.

    Raises:
        UnavailableError: there is no room (50329).
    """
    if config.cluster.secret_file:
        return config
    file = data_dir / SECRET_FILE
    if not file.exists():
        try:
            write_durably(file, f"{secrets.token_hex(_SECRET_BYTES)}\n".encode())
        except OSError as error:
            detail = f"{file}: {error.strerror or os.strerror(error.errno or 0)}"
            raise errors.error_for(errors.DISK_FULL, detail) from None
    cluster = msgspec.structs.replace(config.cluster, secret_file=str(file))
    return msgspec.structs.replace(config, cluster=cluster)
