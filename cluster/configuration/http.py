"""The section `[http]` of the configuration: where clients of HTTP come in, and what they may cost."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated

import msgspec

from angarium_server.configuration import about, within
from cluster.configuration import listening

if TYPE_CHECKING:
    from router.ground.config import RouterConfig


class HttpSection(listening.ListeningSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages over HTTP: where its clients come in, and what they may cost; sizes in bytes, times in milliseconds."""

    max_body_bytes: Annotated[
        int,
        within(
            1024, 64 << 20, "Largest message that a client may send; never above router.max_message_bytes."
        ),
    ] = 1 << 20
    body_memory_bytes: Annotated[
        int,
        within(
            1 << 20, 1 << 40, "Bytes of all bodies that are on their way in; with more, requests are refused."
        ),
    ] = 256 << 20
    egress_memory_bytes: Annotated[
        int,
        within(
            1 << 20, 1 << 40, "Bytes queued for all streams of events; above it the longest queues are ended."
        ),
    ] = 256 << 20
    max_connections: Annotated[
        int, within(1, 100_000, "Open connections; one more closes the one that is idle for longest.")
    ] = 2_000
    max_connections_per_address: Annotated[
        int, within(1, 100_000, "The same from one address (IPv6: a /64); one more is closed at once.")
    ] = 500
    request_timeout_ms: Annotated[
        int, within(100, 600_000, "Time for a TLS handshake, and for a whole request to arrive.")
    ] = 10_000
    webhook_memory_bytes: Annotated[
        int,
        within(
            1 << 20,
            1 << 36,
            "Bytes of messages that all webhooks together may have taken and not settled; each has a share, 4 MiB at"
            " most.",
        ),
    ] = 64 << 20
    webhook_networks: Annotated[
        list[str],
        about(
            "Networks that webhooks may reach beside public addresses, as 10.0.0.0/8: without them none reaches this"
            " host, or its neighbours."
        ),
    ] = msgspec.field(default_factory=list)


def faults_of(section: HttpSection, router: RouterConfig) -> list[str]:
    """Give what is wrong with the section, as sentences."""
    return listening.faults_of("http", section, router) + [
        f"http.webhook_networks: {text!r} is no network: write 10.0.0.0/8 or 2001:db8::/32"
        for text in section.webhook_networks
        if not _is_network(text)
    ]


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
