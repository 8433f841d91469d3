"""What a configuration must have so that nobody on the way reads what clients and operators say.

Beyond loopback every address encrypts: it is `tls://`, with a certificate. Called when a configuration is read; the
files are read once more by the processes that use them.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium_server.connections.addresses import address_fault, is_loopback, is_tls
from angarium_server.connections.tls import make_context
from cluster.security import keys
from router.ground.config import tls_files

if TYPE_CHECKING:
    from router.ground.config import RouterConfig

_ADVICE: Final = (
    "others can reach this address, so it must encrypt. 'angarium keys create node --host HOST' makes a certificate, "
    "and 'angarium up {option} {url} --cert-file node.pem --key-file node.key' uses it; or listen on 127.0.0.1"
)
_NO_CERTIFICATE: Final = (
    "it needs a certificate: 'angarium keys create node --host HOST' makes one for --cert-file and --key-file, or "
    "router.tls_cert_file and tls_key_file"
)


def listen_faults(router: RouterConfig) -> list[str]:
    """Give what is wrong with the addresses for clients, and with the files that encrypt them."""
    faults = [
        fault
        for url in router.listen
        for fault in client_address_faults("router.listen", "--listen", url, router)
    ]
    if not router.listen:
        faults.append("router.listen: name at least one address, tcp://127.0.0.1:0 for instance")
    return faults + _tls_faults(router)


def client_address_faults(key: str, option: str, url: str, router: RouterConfig) -> list[str]:
    """Give what is wrong with an address for clients, named by a key and by an option of `angarium up`."""
    if fault := address_fault(url):
        return [f"{key}: {fault}"]
    if is_tls(url):
        return [] if router.tls_cert_file else [f"{key}: {url}: {_NO_CERTIFICATE}"]
    if is_loopback(url):
        return []
    advice = _ADVICE.format(option=option, url=url.replace("tcp://", "tls://", 1))
    return [f"{key}: {url}: {advice}"]


def ca_file_faults(key: str, path: str) -> list[str]:
    """Give what is wrong with a file of authorities."""
    if not path:
        return []
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return [f"{key}: {path} holds no certificate in PEM"]
    except (OSError, ValueError) as error:
        return [f"{key}: {path}: {getattr(error, 'strerror', None) or error}"]
    return []


def _tls_faults(router: RouterConfig) -> list[str]:
    if router.tls_username and router.tls_client_certificates == "none":
        text = (
            'clients are asked for no certificate: write tls_client_certificates = "optional" or "required"'
        )
        return [f"router.tls_username: {text}"]
    if not router.tls_cert_file:
        return []
    try:
        make_context(tls_files(router))
    except errors.AngariumError as error:
        return [f"router.tls_cert_file: {error.detail}"]
    return exposed_key_faults("router.tls_key_file", router.tls_key_file or router.tls_cert_file)


def exposed_key_faults(key: str, path: str) -> list[str]:
    """Give a fault if others may read the file of a private key, which is there."""
    found = os.stat(path)
    if found.st_mode & keys.forbidden_mode(found.st_uid, os.geteuid()):
        mode = found.st_mode & 0o777
        return [f"{key}: {path} has mode {mode:04o}, so others may read the secret key: 'chmod 600 {path}'"]
    return []
