"""Addresses of the HTTP servers of a node, as sections of the configuration have them, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import msgspec

from angarium import errors
from angarium_server.configuration import about
from angarium_server.connections.addresses import address_fault, host_and_port, is_loopback, is_tls
from angarium_server.connections.tls import TlsFiles, make_context
from angarium_server.http.origins import origin_of
from angarium_server.http.proxies import Proxies
from cluster.configuration.encryption import exposed_key_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.ground.config import RouterConfig

#: Each with the one that is below it.
SCHEMES: Final = {"http": "tcp", "https": "tls"}
_ADVICE: Final = (
    "others can reach this address, so it must encrypt: 'angarium keys create node --host HOST' makes a certificate,"
    " and 'angarium up --{name} {url} --cert-file node.pem --key-file node.key' uses it; or listen on 127.0.0.1"
)
_NO_CERTIFICATE: Final = (
    "it needs a certificate: {name}.tls_cert_file, or that of the router; 'angarium keys create node --host HOST' "
    "makes one"
)


class ListeningSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the section of an HTTP server says of its addresses, and of names and proxies."""

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
    public_url: Annotated[
        str,
        about(
            "Address by which browsers come, if a proxy passes them on and ends TLS: https://HOST or https://HOST:PORT."
        ),
    ] = ""
    proxies: Annotated[
        list[str],
        about(
            "Addresses or networks of proxies that say in X-Forwarded-For where a request comes from; others are not"
            " believed."
        ),
    ] = []


def url_of(entry: str) -> str:
    """Give the address of an entry of `listen` as processes bind it: tcp:// or tls://."""
    scheme, separator, place = entry.partition("://")
    return f"{SCHEMES.get(scheme, scheme)}{separator}{place}"


def with_port(entry: str, url: str) -> str:
    """Give an entry of `listen` with the port of a URL."""
    return f"{entry.rpartition(':')[0]}:{url.rpartition(':')[2]}"


def files_of(section: ListeningSection, router: RouterConfig) -> TlsFiles:
    """Give the files that encrypt `https://` addresses."""
    if section.tls_cert_file:
        return TlsFiles(section.tls_cert_file, section.tls_key_file)
    return TlsFiles(router.tls_cert_file, router.tls_key_file)


def is_public(section: ListeningSection) -> bool:
    """Tell whether a proxy brings clients of other hosts to a section."""
    if not (section.listen and section.public_url):
        return False
    place = urlsplit(section.public_url)
    return not is_loopback(f"tcp://{place.netloc if place.port else f'{place.netloc}:80'}")


def faults_of(name: str, section: ListeningSection, router: RouterConfig) -> list[str]:
    """Give what is wrong with the section of this name, as sentences."""
    faults = [
        f"{name}.listen: {fault}"
        for entry in section.listen
        if (fault := _entry_fault(name, entry, section, router))
    ]
    faults += double_faults(name, section.listen, url_of)
    faults += _front_faults(name, section)
    files = files_of(section, router)
    if faults or not (section.tls_cert_file and section.listen):
        return faults
    try:
        make_context(files)
    except errors.AngariumError as error:
        return [f"{name}.tls_cert_file: {error.detail}"]
    return exposed_key_faults(f"{name}.tls_key_file", files.key_file or files.cert_file)


def double_faults(name: str, listen: list[str], url_of: Callable[[str], str]) -> list[str]:
    """Give the entries of `listen` whose address another one has before."""
    places = [host_and_port(url_of(entry)) for entry in listen]
    return [
        f"{name}.listen: {entry}: another entry has this address"
        for at, entry in enumerate(listen)
        if entry in listen[:at] or (places[at] and places[at] in places[:at])
    ]


def _entry_fault(name: str, entry: str, section: ListeningSection, router: RouterConfig) -> str:
    url = url_of(entry)
    if entry.partition("://")[0] not in SCHEMES or address_fault(url) or url.endswith("*"):
        return f"{entry!r} is no address: write http://HOST:PORT or https://HOST:PORT, without a path"
    if is_tls(url):
        return "" if files_of(section, router).cert_file else f"{entry}: {_NO_CERTIFICATE.format(name=name)}"
    if is_loopback(url):
        return ""
    return f"{entry}: {_ADVICE.format(name=name, url=entry.replace('http:', 'https:', 1))}"


def _front_faults(name: str, section: ListeningSection) -> list[str]:
    """Give what is wrong with what the section says of proxies."""
    faults = []
    if section.public_url and (fault := _public_fault(section.public_url)):
        faults.append(f"{name}.public_url: {section.public_url!r}: {fault}")
    for one in section.proxies:
        try:
            Proxies([one])
        except ValueError as error:
            faults.append(f"{name}.proxies: {error}")
    return faults


def _public_fault(url: str) -> str:
    try:
        origin = origin_of(url)
    except ValueError as error:
        return str(error)
    scheme, _, place = origin.partition("://")
    port = "" if urlsplit(origin).port else ":80"
    if scheme == "http" and not is_loopback(f"tcp://{place}{port}"):
        return "passwords would go there in the clear: write https://"
    return ""
