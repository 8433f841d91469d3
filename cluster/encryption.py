"""What a configuration must have so that nobody on the way reads what clients and operators say.

Beyond loopback every address encrypts: `tls://` with a certificate, or `tcp://` with CURVE keys. Called when a
configuration is read; the files are read once more by the processes that use them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium_server.connections.tls import make_context
from cluster import keys
from cluster.addresses import address_fault, is_loopback, is_tls
from router.config import tls_files

if TYPE_CHECKING:
    from router.config import RouterConfig

_ADVICE: Final = (
    "others can reach this address, so it must encrypt: write tls:// and name a certificate (--cert-file and "
    "--cert-key-file); or run 'angarium keys create node.key', set router.curve_secret_key_file = \"node.key\", and "
    "give clients node.key.pub and a username and password; or listen on 127.0.0.1"
)
_NO_CERTIFICATE: Final = "it needs a certificate: --cert-file and --cert-key-file, or router.tls_cert_file"


def listen_faults(router: RouterConfig) -> list[str]:
    """Give what is wrong with the addresses for clients, and with the files that encrypt them."""
    faults = []
    for url in router.listen:
        if fault := address_fault(url):
            faults.append(f"router.listen: {fault}")
        elif is_tls(url):
            if not router.tls_cert_file:
                faults.append(f"router.listen: {url}: {_NO_CERTIFICATE}")
        elif not is_loopback(url) and not router.curve_secret_key_file:
            faults.append(f"router.listen: {url}: {_ADVICE}")
    if not router.listen:
        faults.append("router.listen: name at least one address, tcp://127.0.0.1:0 for instance")
    return (
        faults
        + key_file_faults("router.curve_secret_key_file", router.curve_secret_key_file)
        + _tls_faults(router)
    )


def key_file_faults(key: str, path: str) -> list[str]:
    """Give what is wrong with the file of a CURVE key."""
    if not path:
        return []
    try:
        keys.read_secret(path)
    except errors.AngariumError as error:
        return [f"{key}: {error.detail}"]
    return []


def _tls_faults(router: RouterConfig) -> list[str]:
    if not router.tls_cert_file:
        return []
    try:
        make_context(tls_files(router))
    except errors.AngariumError as error:
        return [f"router.tls_cert_file: {error.detail}"]
    path = router.tls_key_file or router.tls_cert_file
    found = os.stat(path)
    if found.st_mode & keys.forbidden_mode(found.st_uid, os.geteuid()):
        mode = found.st_mode & 0o777
        return [
            f"router.tls_key_file: {path} has mode {mode:04o}, so others may read the secret key: 'chmod 600 {path}'"
        ]
    return []
