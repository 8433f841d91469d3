"""The section `[standby]` of the configuration: where the outside store is, and who the two hosts are to each other."""

from __future__ import annotations

import os
import re
import ssl
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from angarium_server.configuration import about, within
from angarium_server.connections.addresses import is_loopback
from cluster.security.keys import forbidden_mode

#: What names of objects of Kubernetes are made of.
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
#: In etcd a prefix is a path.
_PATH: Final = re.compile(r"[-\w.]+(/[-\w.]+)*")
#: Keys that one kind of store uses, and the others do not.
_USED_BY: Final = {
    "endpoints": ("etcd", "kubernetes"),
    "username": ("etcd",),
    "password_file": ("etcd",),
    "ca_file": ("etcd", "kubernetes"),
    "cert_file": ("etcd", "kubernetes"),
    "key_file": ("etcd", "kubernetes"),
    "token_file": ("kubernetes",),
    "namespace": ("kubernetes",),
}


class StandbySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second host that has everything which was acknowledged; this section is the same on both, but for `host`."""

    store: Annotated[
        Literal["", "etcd", "kubernetes", "manual"],
        about("What decides which host is the primary; manual: the operator. Empty: there is no standby."),
    ] = ""
    host: Annotated[
        str, Meta(max_length=64, description="Name of this host in the pair; empty: its host name.")
    ] = ""
    listen: Annotated[
        str,
        about(
            "Where this host listens for the primary while it is the standby: tls://HOST:PORT, encrypted as"
            " router.tls_cert_file says, or tcp:// of this host."
        ),
    ] = ""
    peer: Annotated[str, about("Where the other host listens: tls://HOST:PORT, or tcp:// of this host.")] = ""
    peer_name: Annotated[
        str, about("Name that the certificate of the other host must have; empty: the host of the address.")
    ] = ""
    secret_file: Annotated[
        str, about("File whose first line is a secret that both hosts have, of 16 characters or more.")
    ] = ""
    endpoints: Annotated[
        list[str],
        about(
            "Addresses of the members of etcd, or of the API server: https://HOST:PORT, or http:// of this host. Empty,"
            " for kubernetes: what a pod is told."
        ),
    ] = []
    prefix: Annotated[
        str,
        Meta(
            max_length=64,
            description="Beginning of the keys in etcd, and of the name of the Lease; the id of the node follows.",
        ),
    ] = "angarium"
    lease_seconds: Annotated[
        int,
        within(
            2,
            60,
            "Time without a renewal after which the standby may take over. Every wait of a pair is as much"
            " longer.",
        ),
    ] = 3
    required: Annotated[
        bool,
        about(
            "Whether nothing is acknowledged that only one host has, so that both are needed; false: the primary goes"
            " on alone while the other one is away."
        ),
    ] = False
    ca_file: Annotated[
        str,
        about(
            "Authorities of the endpoints (PEM); empty: those of the system, or what a pod has of its cluster."
        ),
    ] = ""
    cert_file: Annotated[str, about("Certificate of this client (PEM); empty: none.")] = ""
    key_file: Annotated[str, about("Private key of that certificate; empty: it is in the same file.")] = ""
    username: Annotated[str, about("User of etcd; empty: none.")] = ""
    password_file: Annotated[str, about("File whose first line is its password.")] = ""
    token_file: Annotated[str, about("File with the token of a service account; empty: that of the pod.")] = (
        ""
    )
    namespace: Annotated[
        str, Meta(max_length=63, description="Where the Lease is; empty: the namespace of the pod.")
    ] = ""


def faults_of(section: StandbySection, node: str) -> list[str]:
    """Give what is wrong with the section for a node of this name, as sentences."""
    faults = [
        f"standby.{key}: store = {section.store!r} does not use it: leave it out"
        for key, stores in _USED_BY.items()
        if getattr(section, key) and section.store not in stores
    ]
    if section.store:
        faults += _pair_faults(section)
    if section.store in ("etcd", "kubernetes"):
        faults += _endpoint_faults(section) + _name_faults(section, node) + _file_faults(section)
    return faults


def _pair_faults(section: StandbySection) -> list[str]:
    """Say what is wrong with the way between the two hosts."""
    faults = []
    for key in ("listen", "peer"):
        url = getattr(section, key)
        if not url.startswith(("tls://", "tcp://")):
            faults.append(f"standby.{key} = {url!r}: write tls://HOST:PORT")
        elif url.startswith("tcp://") and not is_loopback(url):
            faults.append(
                f"standby.{key} = {url!r}: others can read and change what goes there: write tls://"
            )
    return faults


def _endpoint_faults(section: StandbySection) -> list[str]:
    if section.store == "etcd" and not section.endpoints:
        return ["standby.endpoints: name the members of etcd, https://HOST:PORT"]
    return [f"standby.endpoints: {fault}" for url in section.endpoints if (fault := _endpoint_fault(url))]


def _endpoint_fault(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.username or parts.password:
        return "a password does not belong into this file: write standby.username and password_file"
    rest = (parts.path.rstrip("/"), parts.query, parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or any(rest):
        return f"{url!r} is no address: write https://HOST:PORT"
    if parts.scheme == "http" and not is_loopback(f"tcp://{parts.netloc}"):
        return f"{url}: others can read and change what goes there: write https://"
    return ""


def _name_faults(section: StandbySection, node: str) -> list[str]:
    faults = []
    if section.store == "kubernetes":
        if node and not _NAME.fullmatch(node):
            text = "the Lease is named after it, and has lower case letters, digits, - and . only"
            faults.append(f"node.name = {node!r}: {text}")
        if not _NAME.fullmatch(section.prefix):
            text = "as a beginning of the name of a Lease it has lower case letters, digits, - and . only"
            faults.append(f"standby.prefix = {section.prefix!r}: {text}")
        if section.namespace and not _NAME.fullmatch(section.namespace):
            faults.append(f"standby.namespace = {section.namespace!r}: it is no name of a namespace")
    elif not _PATH.fullmatch(section.prefix):
        faults.append(f"standby.prefix = {section.prefix!r}: write NAME or NAME/NAME")
    return faults


def _file_faults(section: StandbySection) -> list[str]:
    faults = []
    if bool(section.username) != bool(section.password_file):
        faults.append("standby.username and password_file go together: write both, or none")
    if section.key_file and not section.cert_file:
        faults.append("standby.key_file: it belongs to a cert_file: write both, or none")
    files = [path for path in (section.ca_file, section.cert_file, section.key_file) if path]
    try:
        # Without the authorities of the system, which take longer to read than all the rest.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if section.ca_file:
            context.load_verify_locations(section.ca_file)
        if section.cert_file:
            context.load_cert_chain(section.cert_file, section.key_file or None)
            faults += _exposed_faults(section.key_file or section.cert_file)
    except (OSError, ValueError) as error:
        # An SSLError is an OSError, and its text names no file.
        reason = getattr(error, "strerror", None) or str(error)
        faults.append(f"standby.ca_file, cert_file or key_file ({', '.join(files)}) cannot be used: {reason}")
    return faults


def _exposed_faults(path: str) -> list[str]:
    found = os.stat(path)
    if not found.st_mode & forbidden_mode(found.st_uid, os.geteuid()):
        return []
    mode = found.st_mode & 0o777
    return [
        f"standby.key_file: {path} has mode {mode:04o}, so others may read the secret key: 'chmod 600 {path}'"
    ]
