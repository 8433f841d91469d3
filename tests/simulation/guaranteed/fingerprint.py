"""What makes two runs of one seed the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.scenario import Outcome


def fingerprint(outcome: Outcome) -> str:
    """Give a short text that differs if anything in a history does."""
    lines = []
    for guaranteed in outcome.all_guaranteed:
        lines += [
            f"{one} {one.sends} {one.acked_at} {one.refused_at} {one.code}" for one in guaranteed.publications
        ]
        lines += [str(event) for event in guaranteed.home_events]
        for flow in guaranteed.flows:
            lines.append(
                f"{flow} {flow.bound_at} {flow.closed_at} {flow.code} {flow.deliveries} {flow.settles}"
            )
        for endpoint in guaranteed.endpoints.values():
            lines.append(f"{endpoint} {endpoint.changes} {endpoint.deleted_at} {endpoint.gone_at}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
