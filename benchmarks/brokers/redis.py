"""Redis: redis-server on loopback; for pub/sub with nothing on disk, for streams with a synced log."""

from __future__ import annotations

import re
import shutil

from benchmarks.brokers.server import (
    PEER_CLIENTS_INSTALL,
    Broker,
    free_port,
    listens,
    output_of,
    peer_packages,
)

INSTALL = "apt-get update && apt-get install --no-install-recommends redis-server"


class Redis(Broker):
    """A redis-server."""

    name = "redis"
    client_module = "benchmarks.clients.redis"
    #: Unlimited output buffers, so that a slow subscriber shows as time and not as loss.
    options: tuple[str, ...] = ("--client-output-buffer-limit", "pubsub", "0", "0", "0")

    def missing(self) -> str:
        """Give what is not installed, or nothing."""
        if shutil.which("redis-server") is None:
            self.install = INSTALL
            return "redis-server"
        packages = peer_packages("redis", "hiredis")
        lacking = [name for name in ("redis", "hiredis") if name not in packages]
        self.install = PEER_CLIENTS_INSTALL
        return ", ".join(lacking)

    def version(self) -> str:
        """Give its version and that of its client."""
        found = re.search(r"v=(\S+)", output_of("redis-server", "--version"))
        packages = peer_packages("redis", "hiredis")
        server = found.group(1) if found else "?"
        return f"redis-server {server}, redis-py {packages.get('redis')}, hiredis {packages.get('hiredis')}"

    def start(self) -> None:
        """Start it and return when clients can connect."""
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}/0"
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        self.directory.mkdir(parents=True, exist_ok=True)
        self.launch([*command, *self.options])
        self.wait_until("starting", lambda: listens(port))


class RedisStreams(Redis):
    """A redis-server whose log is synced before each reply, once for all commands of a turn of its loop."""

    name = "redis-streams"
    client_module = "benchmarks.clients.redis_queue"
    durability = "appendfsync always"
    options = ("--appendonly", "yes", "--appendfsync", "always")
