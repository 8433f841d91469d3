"""`scripts/delay-proxy` in front of a node: a path of any length on one machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.brokers.server import ROOT, Broker, free_port, listens

if TYPE_CHECKING:
    from pathlib import Path


class Proxy(Broker):
    """A proxy with a delay."""

    def __init__(self, directory: Path, delay_ms: int) -> None:
        """Describe one that delays each way by so much."""
        self.name = f"proxy-{delay_ms}"
        super().__init__(directory)
        self._delay_ms = delay_ms

    def start_before(self, url: str) -> None:
        """Start it in front of an address, and return when it accepts connections."""
        port = free_port()
        command = [sys.executable, "-m", "tests.mesh.delay_proxy", f"127.0.0.1:{port}", url]
        self.launch([*command, "--delay-ms", str(self._delay_ms)], {"PYTHONPATH": str(ROOT)})
        self.wait_until("starting", lambda: listens(port))
        self.url = f"tcp://127.0.0.1:{port}"
