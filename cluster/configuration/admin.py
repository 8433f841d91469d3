"""The `[admin]` section of the configuration: where operators of other hosts come in, and who of them may.

An operator is whoever shows a certificate that an authority of `tls_client_ca_file` has signed and whose common name is
among `operators`, or is that of an operator object. Both are needed: an authority signs certificates of clients too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from angarium import errors
from angarium_server.configuration import about
from angarium_server.connections.addresses import address_fault, is_tls
from angarium_server.connections.tls import TlsFiles, make_context
from cluster.configuration.encryption import exposed_key_faults

if TYPE_CHECKING:
    from router.ground.config import RouterConfig

_ADVICE = (
    "the admin API can change everything: admin.tls_client_ca_file has to sign the certificates of operators"
)


class AdminSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The admin API for operators on other hosts; on the node's host it is reached through the data directory."""

    listen: Annotated[list[str], about("Addresses for operators on other hosts: tls://HOST:PORT.")] = []
    tls_cert_file: Annotated[
        str, about("Certificate of these addresses (PEM); empty: router.tls_cert_file and its key.")
    ] = ""
    tls_key_file: Annotated[str, about("Private key of that certificate; empty: it is in the same file.")] = (
        ""
    )
    tls_client_ca_file: Annotated[
        str, about("Authorities that sign the certificates of operators (PEM).")
    ] = ""
    operators: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]],
        about(
            "Common names of certificates that administer the node; operators with certificate_name come in too."
        ),
    ] = []


def admin_files(admin: AdminSection, router: RouterConfig) -> TlsFiles:
    """Give the files that encrypt the addresses for operators."""
    cert, key = admin.tls_cert_file, admin.tls_key_file
    if not cert:
        cert, key = router.tls_cert_file, router.tls_key_file
    return TlsFiles(cert, key, admin.tls_client_ca_file, "required")


def faults_of(admin: AdminSection, router: RouterConfig) -> list[str]:
    """Give what is wrong with the section."""
    faults = []
    for url in admin.listen:
        if fault := address_fault(url):
            faults.append(f"admin.listen: {fault}")
        elif not is_tls(url):
            faults.append(
                f"admin.listen: {url}: write tls://HOST:PORT; on its own host a node is found without"
            )
    if not admin.listen:
        return faults
    if not admin.tls_client_ca_file:
        faults.append(f"admin.listen: {_ADVICE}")
    files = admin_files(admin, router)
    if not files.cert_file:
        faults.append("admin.listen: it needs a certificate: admin.tls_cert_file, or router.tls_cert_file")
    if faults:
        return faults
    try:
        make_context(files)
    except errors.AngariumError as error:
        return [f"admin.tls_cert_file: {error.detail}"]
    return exposed_key_faults("admin.tls_key_file", files.key_file or files.cert_file)
