"""This broker: a node started by its own command, with its own data directory and a port that it chooses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tomllib
from typing import TYPE_CHECKING, Any, Final

from benchmarks.brokers.server import PEER_CLIENTS_INSTALL, ROOT, Broker, peer_packages, peer_python, tree_of
from cluster.admin.client import Admin
from cluster.commands.bench.process import DRAIN, STORE

if TYPE_CHECKING:
    from pathlib import Path

    import psutil

    from cluster.commands.bench.process import Task


def module_of(task: Task) -> str:
    """Give the module of our client that does a task."""
    return "cluster.commands.bench.client" if task.role in (STORE, DRAIN) else "benchmarks.clients.angarium"


#: Of MQTT, that clients of one username may have kept: a default node allows 1,000.
SESSIONS_MAX: Final = 10_000


class Angarium(Broker):
    """A node with some workers."""

    #: The role that has the connections of clients.
    struck = "router"

    def __init__(self, directory: Path, workers: int = 1, name: str = "", checkout: Path = ROOT) -> None:
        """Describe a node; nodes of one directory need names, and one may be of another checkout of this project."""
        self.name = name or f"angarium-{workers}"
        super().__init__(directory)
        self.workers = workers
        self._checkout = checkout
        self.sdk = (checkout / "sdk",)
        #: Role -> pids, as the ready file says.
        self._pids: dict[str, list[int]] = {}

    def missing(self) -> str:
        """Nothing is missing: this is ours."""
        return ""

    def version(self) -> str:
        """Give its version."""
        return f"angarium {self._project()['version']}"

    def client_python(self) -> str:
        """Give the interpreter of its clients."""
        return sys.executable

    def module_of(self, task: Task) -> str:
        """Give the module that does a task: there are direct and guaranteed runs."""
        return module_of(task)

    def start(self) -> None:
        """Start it and return when clients can connect."""
        ready_file = self.directory / "ready.json"
        ready_file.unlink(missing_ok=True)
        module, _, function = self._project()["scripts"]["angarium"].partition(":")
        code = f"from {module} import {function} as main; main()"
        command = [sys.executable, "-P", "-c", code, "up", "--data", str(self.directory / "data")]
        command += ["--ready-file", str(ready_file), "--listen", "tcp://127.0.0.1:0"]
        command += ["--workers", str(self.workers), "--log-level", "WARNING", *self.options()]
        path = os.pathsep.join(
            [str(self._checkout), *map(str, self.sdk), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.launch(command, {"PYTHONPATH": path})
        self.wait_until("starting", ready_file.exists)
        ready = json.loads(ready_file.read_text(encoding="utf-8"))
        self.url = ready["url"]
        self._pids = {}
        for row in ready["processes"]:
            self._pids.setdefault(row["role"], []).append(row["pid"])

    def _project(self) -> dict[str, Any]:
        """Give what the checkout says of itself."""
        text = (self._checkout / "pyproject.toml").read_text(encoding="utf-8")
        found: dict[str, Any] = tomllib.loads(text)["project"]
        return found

    def options(self) -> list[str]:
        """Give more options of `angarium up`."""
        return []

    def strike(self) -> None:
        """Kill what clients are connected to (SIGKILL); `roles` does not name the process that follows."""
        for process in self.roles()[self.struck]:
            process.send_signal(signal.SIGKILL)

    def roles(self) -> dict[str, list[psutil.Process]]:
        """Give its processes by role, as they were when it started.

        Raises:
            BrokerFailedError: one of them has ended by itself, so that its figures are lost.
        """
        found = {role: [one for pid in pids for one in tree_of(pid)[:1]] for role, pids in self._pids.items()}
        for role, pids in self._pids.items():
            if len(found[role]) < len(pids):
                raise self.failure(f"its {role} ended by itself")
        return found


class AngariumMqtt(Angarium):
    """A node whose clients are of MQTT: those that its peers are measured with."""

    #: Clients stay connected when the router dies.
    struck = "mqtt"
    install = PEER_CLIENTS_INSTALL

    def missing(self) -> str:
        """Give what is not installed, or nothing."""
        return "" if "gmqtt" in peer_packages("gmqtt") else "gmqtt"

    def client_python(self) -> str:
        """Give the interpreter of its clients."""
        return peer_python()

    def options(self) -> list[str]:
        """Give more options of `angarium up`."""
        return ["--mqtt", "tcp://127.0.0.1:0"]

    def start(self) -> None:
        """Start it, without the sessions of an earlier visit, and return when clients can connect.

        gmqtt comes back without a clean start, so each storm leaves as many as there are clients, until the queues that
        a Message VPN may have are used up.
        """
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        super().start()
        self._let_sessions_be_kept()
        ready = json.loads((self.directory / "ready.json").read_text(encoding="utf-8"))
        self.url = ready["mqtt"][0].replace("tcp://", "mqtt://")

    def _let_sessions_be_kept(self) -> None:
        """Let one username have as many as there are clients; its peers know no such limit."""
        limits = {"max_endpoint_count_per_username": SESSIONS_MAX}
        with Admin(self.directory / "data") as admin:
            admin.call("objects.update", kind="profile", vpn="default", name="default", attributes=limits)


class AngariumQueues(Angarium):
    """A node whose queues are measured."""

    durability = "synced commit"
