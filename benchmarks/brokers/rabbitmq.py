"""RabbitMQ: a node of its own with an epmd of its own, on loopback, with no plugins but those that are named.

The scripts below `/usr/lib/rabbitmq` are started, not those in `/usr/sbin`, which only switch to the user
of the Debian service; nothing of that service is read or written.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from benchmarks.brokers.server import (
    PEER_CLIENTS_INSTALL,
    Broker,
    free_port,
    listens,
    output_of,
    peer_packages,
)

INSTALL: Final = "apt-get update && apt-get install --no-install-recommends rabbitmq-server"
SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
NODE: Final = "bench@localhost"


class RabbitMq(Broker):
    """A RabbitMQ node."""

    name = "rabbitmq"
    address = "amqp://guest:guest@127.0.0.1:{port}/%2F?heartbeat=0"
    configuration = "listeners.tcp.local = 127.0.0.1:{port}\n"
    plugins = "[].\n"
    client_package = "pika"
    client_module = "benchmarks.clients.rabbitmq"

    def missing(self) -> str:
        """Give what is not installed, or nothing."""
        if not SERVER.exists() or shutil.which("epmd") is None:
            self.install = INSTALL
            return "rabbitmq-server"
        self.install = PEER_CLIENTS_INSTALL
        return "" if self.client_package in peer_packages(self.client_package) else self.client_package

    def version(self) -> str:
        """Give its version and that of its client."""
        server = output_of("dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server") or "?"
        client = self.client_package
        return f"rabbitmq-server {server}, {client} {peer_packages(client).get(client)}"

    def start(self) -> None:
        """Start it and return when clients can connect."""
        epmd_port, port, inner_port = free_port(), self.own_port(), free_port()
        self.url = self.address.format(port=port)
        directory = self.directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "rabbitmq.conf").write_text(self.configuration.format(port=port))
        (directory / "plugins").write_text(self.plugins)
        self.launch([shutil.which("epmd") or "epmd", "-address", "127.0.0.1", "-port", str(epmd_port)])
        self.wait_until("starting epmd", lambda: listens(epmd_port))
        environment = {
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_DIST_PORT": str(inner_port),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        self.launch([str(SERVER)], environment)
        self.wait_until("starting", lambda: listens(port))


class RabbitMqQuorum(RabbitMq):
    """A RabbitMQ node of which quorum queues are used: a confirmation comes after the log was synced."""

    name = "rabbitmq-quorum"
    client_module = "benchmarks.clients.rabbitmq_queue"
    durability = "quorum queue, fdatasync of the log"
