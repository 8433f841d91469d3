"""The section `[health]` of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.addresses import address_fault


class HealthSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP endpoint for probes: it tells how the node does, has no keys, and changes nothing."""

    listen: Annotated[
        list[str],
        Meta(
            description="Addresses: tcp://HOST:PORT; port 0: chosen at each start, node.json tells it. Empty: none."
        ),
    ] = msgspec.field(default_factory=lambda: ["tcp://127.0.0.1:0"])
    drain_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600_000,
            description="So long the node says that it is not ready before it stops, for balancers to notice.",
        ),
    ] = 0


def faults_of(section: HealthSection) -> list[str]:
    """Give what is wrong with the section, as sentences."""
    faults = []
    for url in section.listen:
        fault = address_fault(url) or ("" if url.startswith("tcp://") else f"{url!r}: write tcp://HOST:PORT")
        faults += [f"health.listen: {fault}"] if fault else []
    return faults
