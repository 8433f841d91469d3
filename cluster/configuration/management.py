"""The section `[management]` of the configuration: where `/api/v1` is, and what its clients may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from angarium import errors
from angarium_server.connections.addresses import address_fault, host_and_port, is_loopback, is_tls
from angarium_server.connections.tls import TlsFiles, make_context
from cluster.configuration.encryption import exposed_key_faults
from cluster.configuration.keys import about, within

if TYPE_CHECKING:
    from router.ground.config import RouterConfig

#: Each with the one that is below it.
SCHEMES: Final = {"http": "tcp", "https": "tls"}
_ADVICE: Final = (
    "others can reach this address, so it must encrypt: 'angarium keys create node --host HOST' makes a certificate,"
    " and 'angarium up --management {url} --cert-file node.pem --key-file node.key' uses it; or listen on 127.0.0.1"
)
_NO_CERTIFICATE: Final = (
    "it needs a certificate: management.tls_cert_file, or that of the router; 'angarium keys create node --host HOST' "
    "makes one"
)


class ManagementSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The management API over HTTP: where operators come in, and what they may cost."""

    listen: Annotated[
        list[str],
        about(
            "Addresses: http://HOST:PORT of this host alone, or https:// (port 0: chosen once and kept). Empty: none,"
            " and no process."
        ),
    ] = []
    tls_cert_file: Annotated[
        str, about("Certificate of https:// addresses (PEM); empty: router.tls_cert_file and its key.")
    ] = ""
    tls_key_file: Annotated[str, about("Private key of that certificate; empty: it is in the same file.")] = (
        ""
    )
    hosts: Annotated[
        list[str],
        about(
            "Names by which clients may ask for http:// addresses, beside localhost and the address itself: those of a"
            " proxy, for instance."
        ),
    ] = []
    max_body_bytes: Annotated[int, within(1024, 64 << 20, "Largest body of a request.")] = 8 << 20
    max_connections: Annotated[
        int, within(1, 100_000, "Open connections; one more closes the one that is idle for longest.")
    ] = 500
    max_connections_per_address: Annotated[
        int, within(1, 100_000, "The same from one address (IPv6: a /64); one more is closed at once.")
    ] = 200
    request_timeout_ms: Annotated[
        int, within(100, 600_000, "Time for a TLS handshake, and for a whole request to arrive.")
    ] = 10_000


def url_of(entry: str) -> str:
    """Give the address of an entry of `listen` as processes bind it: tcp:// or tls://."""
    scheme, separator, place = entry.partition("://")
    return f"{SCHEMES.get(scheme, scheme)}{separator}{place}"


def with_port(entry: str, url: str) -> str:
    """Give an entry of `listen` with the port of a URL."""
    return f"{entry.rpartition(':')[0]}:{url.rpartition(':')[2]}"


def management_files(section: ManagementSection, router: RouterConfig) -> TlsFiles:
    """Give the files that encrypt `https://` addresses."""
    if section.tls_cert_file:
        return TlsFiles(section.tls_cert_file, section.tls_key_file)
    return TlsFiles(router.tls_cert_file, router.tls_key_file)


def faults_of(section: ManagementSection, router: RouterConfig) -> list[str]:
    """Give what is wrong with the section, as sentences."""
    faults = [
        f"management.listen: {fault}"
        for entry in section.listen
        if (fault := _entry_fault(entry, section, router))
    ]
    places = [host_and_port(url_of(entry)) for entry in section.listen]
    faults += [
        f"management.listen: {entry}: another entry has this address"
        for at, entry in enumerate(section.listen)
        if entry in section.listen[:at] or (places[at] and places[at] in places[:at])
    ]
    files = management_files(section, router)
    if faults or not (section.tls_cert_file and section.listen):
        return faults
    try:
        make_context(files)
    except errors.AngariumError as error:
        return [f"management.tls_cert_file: {error.detail}"]
    return exposed_key_faults("management.tls_key_file", files.key_file or files.cert_file)


def _entry_fault(entry: str, section: ManagementSection, router: RouterConfig) -> str:
    url = url_of(entry)
    if entry.partition("://")[0] not in SCHEMES or address_fault(url) or url.endswith("*"):
        return f"{entry!r} is no address: write http://HOST:PORT or https://HOST:PORT, without a path"
    if is_tls(url):
        return "" if management_files(section, router).cert_file else f"{entry}: {_NO_CERTIFICATE}"
    if is_loopback(url):
        return ""
    return f"{entry}: {_ADVICE.format(url=entry.replace('http:', 'https:', 1))}"
