"""The section `[management]` of the configuration: where `/api/v1` is, and what its clients may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from cluster.configuration import listening
from cluster.configuration.keys import about, within

if TYPE_CHECKING:
    from router.ground.config import RouterConfig


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


def faults_of(section: ManagementSection, router: RouterConfig) -> list[str]:
    """Give what is wrong with the section, as sentences."""
    return listening.faults_of("management", section, router)
