"""The section `[health]` of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec

from angarium_server.configuration import about, within
from angarium_server.connections.addresses import address_fault


class HealthSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP endpoint for probes and scrapers: read-only, without authentication."""

    listen: Annotated[
        list[str],
        about("Addresses: tcp://HOST:PORT; port 0: chosen at each start, see node.json. Empty: none."),
    ] = msgspec.field(default_factory=lambda: ["tcp://127.0.0.1:0"])
    drain_ms: Annotated[
        int,
        within(
            0, 600_000, "Time in which the node keeps serving but is not ready, before a graceful shutdown."
        ),
    ] = 0


def faults_of(section: HealthSection) -> list[str]:
    """Give what is wrong with the section, as sentences."""
    faults = []
    for url in section.listen:
        fault = address_fault(url) or ("" if url.startswith("tcp://") else f"{url!r}: write tcp://HOST:PORT")
        faults += [f"health.listen: {fault}"] if fault else []
    return faults
