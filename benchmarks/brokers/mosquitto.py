"""Mosquitto: a broker of MQTT on loopback, with nothing on disk."""

from __future__ import annotations

import shutil
from typing import Final

from benchmarks.brokers.server import PEER_CLIENTS_INSTALL, Broker, listens, output_of, peer_packages

INSTALL: Final = "apt-get update && apt-get install --no-install-recommends mosquitto"
#: Without the last lines a slow subscriber would lose messages, and small ones wait for others in the socket.
CONFIGURATION: Final = """
listener {port} 127.0.0.1
allow_anonymous true
persistence false
log_dest stderr
log_type error
set_tcp_nodelay true
persistence_location {directory}/
user root
max_queued_messages 0
"""


class Mosquitto(Broker):
    """A mosquitto."""

    name = "mosquitto"
    configuration = CONFIGURATION

    def missing(self) -> str:
        """Give what is not installed, or nothing."""
        if not self._binary():
            self.install = INSTALL
            return "mosquitto"
        self.install = PEER_CLIENTS_INSTALL
        return "" if "gmqtt" in peer_packages("gmqtt") else "gmqtt"

    def version(self) -> str:
        """Give its version and that of its client."""
        server = output_of("dpkg-query", "-W", "-f", "${Version}", "mosquitto") or "?"
        return f"mosquitto {server}, gmqtt {peer_packages('gmqtt').get('gmqtt')}"

    def start(self) -> None:
        """Start it and return when clients can connect."""
        port = self.own_port()
        self.url = f"mqtt://127.0.0.1:{port}"
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "mosquitto.conf"
        configuration.write_text(
            self.configuration.format(port=port, directory=self.directory), encoding="utf-8"
        )
        self.launch([self._binary(), "-c", str(configuration)])
        self.wait_until("starting", lambda: listens(port))

    def _binary(self) -> str:
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin") or ""
