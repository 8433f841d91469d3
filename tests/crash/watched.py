"""The processes of a node, as its supervisor and controller tell, while either of them may be gone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from angarium.errors import AngariumError
from cluster.admin.client import Admin

if TYPE_CHECKING:
    from angarium_server.testing import Node

_LOOK_INTERVAL_S = 0.05
_PATIENCE_S = 20.0


def processes_of(node: Node, timeout_s: float = _PATIENCE_S) -> list[dict[str, Any]]:
    """Give the table of processes; while the controller is away it is waited for.

    Raises:
        AngariumError: it did not come back in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with Admin(node.data, timeout_s=1.0) as admin:
                found: list[dict[str, Any]] = admin.call("status")["processes"]
                return found
        except AngariumError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_INTERVAL_S)
