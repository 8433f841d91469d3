"""A node with a standby: two hosts on loopback addresses of their own, and the etcd that knows which is the primary."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Final

from benchmarks.brokers.angarium import Angarium, module_of
from benchmarks.brokers.server import ROOT, Broker, free_port, listens, output_of, tree_of
from cluster.standby.pair.settings import read_status

if TYPE_CHECKING:
    from pathlib import Path

    import psutil

    from cluster.admin.answers import HostStatus
    from cluster.commands.bench.process import Task

ADDRESSES: Final = {"alpha": "127.0.0.1", "beta": "127.0.0.2"}
_SECRET: Final = "a secret of two hosts that live for a minute"
#: One for each message that a client of etcd sends, those of open streams included.
_REQUESTS: Final = re.compile(r"^grpc_server_msg_received_total\{.*\} (\S+)$", re.MULTILINE)
#: A million messages are brought within this time, or something hangs.
JOIN_TIMEOUT_S: Final = 600.0
_LOOK_INTERVAL_S: Final = 0.05


class Hosts(Broker):
    """Both hosts as one broker: its address is that of the first one, which is the primary."""

    durability = "synced commit on two hosts"
    install = "apt-get install etcd-server"

    def __init__(self, directory: Path, name: str) -> None:
        """Describe them."""
        self.name = name
        super().__init__(directory)
        self._etcd_port, self._shipping_port = free_port(), free_port()
        self._roles: dict[str, list[psutil.Process]] = {}

    def missing(self) -> str:
        """Give what is not installed, or nothing."""
        return "" if shutil.which("etcd") else "etcd"

    def version(self) -> str:
        """Give its version, and that of etcd."""
        etcd = output_of("etcd", "--version").partition("\n")[0]
        return f"{Angarium(self.directory).version()}, {etcd}"

    def client_python(self) -> str:
        """Give the interpreter of its clients."""
        return sys.executable

    def module_of(self, task: Task) -> str:
        """Give the module of the client that does a task."""
        return module_of(task)

    def start(self) -> None:
        """Start both, and return when both have everything."""
        self.start_alone()
        self.join()

    def start_alone(self) -> None:
        """Start etcd and the primary, and return when it acts without a standby."""
        self.directory.mkdir(parents=True, exist_ok=True)
        url, peers = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{free_port()}"
        command = ["etcd", "--name", "bench", "--data-dir", str(self.directory / "etcd")]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        self.launch([*command, "--initial-cluster", f"bench={peers}"])
        self.wait_until("starting etcd", lambda: listens(self._etcd_port))
        self._up("alpha")
        self.wait_until("starting the primary", (self.directory / "alpha.json").exists)
        self.wait_until("going on alone", lambda: _acts_alone(self._status()))
        ready = json.loads((self.directory / "alpha.json").read_text(encoding="utf-8"))
        self.url = ready["url"]
        self._roles = {}
        for row in ready["processes"]:
            self._roles.setdefault(row["role"], []).extend(tree_of(row["pid"])[:1])

    def join(self) -> float:
        """Start the standby, and give how many seconds later both have everything.

        Raises:
            BrokerFailedError: they have not within the time.
        """
        began = time.monotonic()
        self._up("beta")
        while not _is_complete(self._status()):
            if time.monotonic() > began + JOIN_TIMEOUT_S:
                raise self.failure(f"the standby has not joined within {JOIN_TIMEOUT_S:g} s")
            time.sleep(_LOOK_INTERVAL_S)
        took = time.monotonic() - began
        self._roles["standby"] = tree_of(self._processes[-1].pid)
        return took

    def roles(self) -> dict[str, list[psutil.Process]]:
        """Give its processes by role, as they were when the standby had everything; those of etcd are not counted."""
        return self._roles

    def requests_to_etcd(self) -> float:
        """Give how many requests etcd has had so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._etcd_port}/metrics", timeout=10) as answer:
            return sum(map(float, _REQUESTS.findall(answer.read().decode())))

    def _status(self) -> HostStatus | None:
        return read_status(self.directory / "alpha")

    def _up(self, host: str) -> None:
        config = self.directory / f"{host}.toml"
        config.write_text(self._configuration(host), encoding="utf-8")
        secret = self.directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text(f"{_SECRET}\n")
        command = [sys.executable, "-P", "-m", "angarium_server", "up", "--config", str(config)]
        command += ["--data", str(self.directory / host), "--workers", "1", "--log-level", "WARNING"]
        command += ["--ready-file", str(self.directory / f"{host}.json")]
        self.launch(command, {"PYTHONPATH": str(ROOT)})

    def _configuration(self, host: str) -> str:
        other = next(address for name, address in ADDRESSES.items() if name != host)
        return f"""
[node]
name = "bench"
[router]
listen = ["tcp://{ADDRESSES[host]}:0"]
[health]
listen = []
[standby]
store = "etcd"
endpoints = ["http://127.0.0.1:{self._etcd_port}"]
host = "{host}"
listen = "tcp://{ADDRESSES[host]}:{self._shipping_port}"
peer = "tcp://{other}:{self._shipping_port}"
secret_file = "secret"
"""


def _acts_alone(status: HostStatus | None) -> bool:
    return status is not None and status.role == "primary" and status.acts and not status.required


def _is_complete(status: HostStatus | None) -> bool:
    return (
        status is not None
        and status.role == "primary"
        and sorted(status.in_sync) == sorted(ADDRESSES)
        and all(store.caught_up for store in status.stores)
    )
