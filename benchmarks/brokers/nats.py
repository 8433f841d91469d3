"""NATS: nats-server on loopback; without JetStream with room for slow subscribers, or with it and synced."""

from __future__ import annotations

import shutil

from benchmarks.brokers.server import (
    PEER_CLIENTS_INSTALL,
    Broker,
    listens,
    output_of,
    peer_directory,
    peer_packages,
)

#: By default the server disconnects a subscriber that is 64 MB or 10 s behind.
CONFIGURATION = """
listen: 127.0.0.1:{port}
max_pending: 8GB
write_deadline: "120s"
"""


#: Without `sync_interval: always` a stream is synced every two minutes, and a confirmation says little.
QUEUE_CONFIGURATION = """
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{directory}", sync_interval: always, max_file_store: 20GB }}
"""


class Nats(Broker):
    """A nats-server."""

    configuration = CONFIGURATION

    name = "nats"
    scheme = "nats"
    client_package = "nats-py"
    client_module = "benchmarks.clients.nats"
    install = PEER_CLIENTS_INSTALL

    def missing(self) -> str:
        """Give what is not installed, or nothing."""
        if self.client_package not in peer_packages(self.client_package):
            return self.client_package
        return "" if self._binary() else "nats-server"

    def version(self) -> str:
        """Give its version and that of its client."""
        server = output_of(self._binary(), "--version").replace("nats-server: v", "")
        client = self.client_package
        return f"nats-server {server}, {client} {peer_packages(client).get(client)}"

    def start(self) -> None:
        """Start it and return when clients can connect."""
        port = self.own_port()
        self.url = f"{self.scheme}://127.0.0.1:{port}"
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "nats.conf"
        configuration.write_text(self.configured(port), encoding="utf-8")
        self.launch([self._binary(), "-c", str(configuration)])
        self.wait_until("starting", lambda: listens(port))

    def configured(self, port: int) -> str:
        """Give its configuration."""
        return self.configuration.format(port=port, directory=self.directory / "store")

    def _binary(self) -> str:
        own = peer_directory() / "bin" / "nats-server"
        return str(own) if own.exists() else shutil.which("nats-server") or ""


class JetStream(Nats):
    """A nats-server with streams on disk that are synced before each confirmation."""

    name = "nats-jetstream"
    configuration = QUEUE_CONFIGURATION
    client_module = "benchmarks.clients.nats_queue"
    durability = "sync_interval: always"
