"""A real etcd of one or three members, which can be killed one by one, stopped, and started again."""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence
    from pathlib import Path

READY_S: Final = 60.0


class Member:
    """One member."""

    def __init__(self, name: str, port: int, peer_port: int, data: Path) -> None:
        """Start nothing yet."""
        self.name, self.port, self.peer_port, self.data = name, port, peer_port, data
        self.process: subprocess.Popen[bytes] | None = None


class Etcd:
    """A cluster in one namespace."""

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        command: Callable[[list[str]], list[str]] = lambda command: command,
        certificate: Path | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            folder: for its data.
            ports: two for each member: for clients, and for the other members.
            command: gives the command that runs another one where etcd is to be.
            certificate: of its addresses, without suffix; None: it listens on loopback, without TLS.
        """
        self._command = command
        self._certificate = certificate
        self.log = folder / "etcd.log"
        pairs = zip(ports[::2], ports[1::2], strict=True)
        self.members = [
            Member(f"m{index}", port, peer_port, folder / f"etcd-{index}")
            for index, (port, peer_port) in enumerate(pairs)
        ]

    def start(self) -> None:
        """Start the members that do not run."""
        cluster = ",".join(f"{one.name}=http://127.0.0.1:{one.peer_port}" for one in self.members)
        for one in self.members:
            if one.process is None:
                with self.log.open("ab") as log:
                    one.process = subprocess.Popen(
                        self._command(self._arguments(one, cluster)),
                        stdout=log,
                        stderr=log,
                        stdin=subprocess.DEVNULL,
                    )

    def _arguments(self, one: Member, cluster: str) -> list[str]:
        peer = f"http://127.0.0.1:{one.peer_port}"
        options = {
            "name": one.name,
            "data-dir": str(one.data),
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": cluster,
            # Others use this machine too.
            "heartbeat-interval": "200",
            "election-timeout": "2000",
            "log-level": "warn",
            **self._doors(one.port),
        }
        return ["etcd", *(f"--{name}={value}" for name, value in options.items())]

    def _doors(self, port: int) -> dict[str, str]:
        if self._certificate is None:
            url = f"http://127.0.0.1:{port}"
            return {"listen-client-urls": url, "advertise-client-urls": url}
        return {
            "listen-client-urls": f"https://0.0.0.0:{port}",
            "advertise-client-urls": f"https://127.0.0.1:{port}",
            "cert-file": f"{self._certificate}.pem",
            "key-file": f"{self._certificate}.key",
        }

    def running(self) -> list[Member]:
        """Give the members that run."""
        return [one for one in self.members if one.process is not None]

    def kill(self, one: Member) -> None:
        """Kill a member."""
        if one.process is not None:
            one.process.kill()
            one.process.wait()
            one.process = None

    def signal(self, one: Member, number: signal.Signals) -> None:
        """Send a signal to a member."""
        if one.process is not None:
            one.process.send_signal(number)

    def leader(self, ask: Callable[[Member], dict[str, Any]]) -> Member | None:
        """Give the leader, as the members tell."""
        for one in self.running():
            with contextlib.suppress(Exception):
                said = ask(one)
                if said["leader"] == said["header"]["member_id"]:
                    return one
        return None

    def stop(self) -> None:
        """Kill all."""
        for one in self.members:
            self.kill(one)


def status_of(port: int, host: str = "127.0.0.1", ca_file: Path | None = None) -> dict[str, Any]:
    """Ask a member of this namespace who leads."""
    scheme = "http" if ca_file is None else "https"
    context = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
    request = urllib.request.Request(f"{scheme}://{host}:{port}/v3/maintenance/status", b"{}")
    with urllib.request.urlopen(request, timeout=1.0, context=context) as response:
        found: dict[str, Any] = json.load(response)
        return found


def is_missing() -> bool:
    """Tell whether there is no etcd here."""
    return shutil.which("etcd") is None


def wait_ready(ask: Callable[[], dict[str, Any]]) -> None:
    """Wait until there is a leader.

    Raises:
        TimeoutError: there is none in time.
    """
    give_up_at = time.monotonic() + READY_S
    while time.monotonic() < give_up_at:
        with contextlib.suppress(OSError, ValueError):
            if int(ask().get("leader", 0)):
                return
        time.sleep(0.1)
    raise TimeoutError("etcd has no leader")
