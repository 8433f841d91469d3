"""A pair of hosts: their files, their processes, and what each says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from angarium_server import launch, testing
from cluster.admin.client import Admin
from cluster.data.node_file import process_runs
from cluster.security.authority import create_certificate
from tests.failover.cables import CABLES, HOSTS, OUTSIDE
from tests.failover.lines import lines_between
from tests.warm_start import WarmNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NODE: Final = "pair"
USERNAME: Final = "app"
PASSWORD: Final = "a password of the load"
PORT: Final = 55_555
SHIPPING_PORT: Final = 7_801
WORKERS: Final = 2
#: Members of etcd: for clients, and for each other.
ETCD_PORTS: Final = (2_379, 2_380, 2_479, 2_480, 2_579, 2_580)
STOP_S: Final = 60.0
#: Tells the processes of a host, by the data directory.
MARK: Final = "ANGARIUM_FAILOVER_HOST"
#: What a host is running as, by what stands in the command line of a process.
ROLES: Final = ("supervisor", "router", "worker", "controller")


def in_spaces(folder: Path, lease_s: int) -> dict[str, str]:
    """Write the files of two hosts in namespaces, encrypted all over; gives the address of each for clients."""
    addresses = {host: _address_of("clients", host, host) for host in HOSTS}
    for host in HOSTS:
        create_certificate(folder / host, [addresses[host], CABLES[0].address(host)])
    outside = [cable.address(OUTSIDE) for cable in CABLES if OUTSIDE in cable.ends]
    create_certificate(folder / "outside", [*outside, "127.0.0.1"])
    for host, other in zip(HOSTS, reversed(HOSTS), strict=True):
        store = _address_of("store", host, OUTSIDE)
        text = _configuration(
            host,
            lease_s,
            WORKERS,
            listen=f"tls://{addresses[host]}:{PORT}",
            shipping=f"tls://{CABLES[0].address(host)}:{SHIPPING_PORT}",
            peer=f"tls://{CABLES[0].address(other)}:{SHIPPING_PORT}",
            endpoints=[f"https://{store}:{port}" for port in ETCD_PORTS[::2]],
        )
        (folder / f"{host}.toml").write_text(text, encoding="utf-8")
    _write_secrets(folder)
    return {host: f"tls://{addresses[host]}:{PORT}" for host in HOSTS}


class Loopback:
    """Ports of a pair on loopback, and the lines between them."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Take ports: two of each host, and two of each member of etcd."""
        clients, shipping = (
            {host: f"127.0.0.1:{port}" for host, port in zip(HOSTS, some, strict=True)}
            for some in (ports[0:2], ports[2:4])
        )
        self._clients, self._shipping = clients, shipping
        self.etcd = ports[4:]
        self.stores = [f"http://127.0.0.1:{port}" for port in self.etcd[::2]]
        self.lines = lines_between(clients, shipping, [f"127.0.0.1:{port}" for port in self.etcd[::2]])

    def write(self, folder: Path, lease_s: int, workers: int = WORKERS) -> dict[str, str]:
        """Write the files of both hosts; gives the address of each for clients."""
        index_of = {(cable.name, end): index for index, cable in enumerate(CABLES) for end in cable.ends}
        for host in HOSTS:
            text = _configuration(
                host,
                lease_s,
                workers,
                listen=f"tcp://{self._clients[host]}",
                shipping=f"tcp://{self._shipping[host]}",
                peer=f"tcp://{self.lines.addresses(0, host)[0]}",
                endpoints=[f"http://{one}" for one in self.lines.addresses(index_of["store", host], host)],
            )
            (folder / f"{host}.toml").write_text(text, encoding="utf-8")
        _write_secrets(folder)
        doors = {host: self.lines.addresses(index_of["clients", host], OUTSIDE)[0] for host in HOSTS}
        return {host: f"tcp://{door}" for host, door in doors.items()}


def _address_of(purpose: str, host: str, end: str) -> str:
    return next(one.address(end) for one in CABLES if one.name == purpose and host in one.ends)


def _write_secrets(folder: Path) -> None:
    for name, text in (("secret", "a secret of both hosts"), ("app.password", PASSWORD)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o600)


def _configuration(
    host: str, lease_s: int, workers: int, *, listen: str, shipping: str, peer: str, endpoints: list[str]
) -> str:
    is_encrypted = listen.startswith("tls://")
    tls = f'tls_cert_file = "{host}.pem"\ntls_key_file = "{host}.key"\n' if is_encrypted else ""
    ca = 'ca_file = "authority.pem"\n' if is_encrypted else ""
    return (
        f'[node]\nname = "{NODE}"\n'
        f'[router]\nlisten = ["{listen}"]\nworkers = {workers}\n{tls}'
        f"{'[cluster]' if ca else ''}\n{ca}"
        f'[standby]\nstore = "etcd"\nhost = "{host}"\nlisten = "{shipping}"\npeer = "{peer}"\n'
        f'secret_file = "secret"\nendpoints = {json.dumps(endpoints)}\nlease_seconds = {lease_s}\n{ca}'
        f'[vpn.default.username.{USERNAME}]\npassword_file = "app.password"\n'
    )


class Host:
    """One host of the pair: `angarium up`, whatever it is running as."""

    def __init__(
        self,
        name: str,
        folder: Path,
        data: Path,
        command: Callable[[list[str]], list[str]],
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            name: `a` or `b`.
            folder: of its configuration file.
            data: its data directory.
            command: gives the command that runs another one on this host.
            environment: more of it for its processes.
        """
        self.name = name
        self.data = data
        self.log_file = folder / f"{name}.log"
        config = str(folder / f"{name}.toml")
        self._command = command(launch.command("up", "--config", config, "--data", str(data)))
        self._environment = {**launch.environment(), **(environment or {})}
        self._process: subprocess.Popen[bytes] | WarmNode | None = None
        #: How its processes ended without having been told to.
        self.deaths: list[int] = []

    # -- its own process ---------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Give the pid of the keeper; 0: it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.pid:
            return
        self.note_death()
        with self.log_file.open("ab") as log:
            log.write(f"--- {self.name} starts at {time.monotonic():.2f}\n".encode())
            started = testing._start_process(self._command, log, self._environment)
            assert isinstance(started, subprocess.Popen | WarmNode)
            self._process = started

    def note_death(self, *, is_meant: bool = False) -> None:
        """Take note of how it ended."""
        if self._process is not None and (status := self._process.poll()) is not None:
            if not is_meant:
                self.deaths.append(status)
            self._process = None

    def stop(self) -> int | None:
        """Stop it in order; gives the status, or None if it did not end in time."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            status = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return None
        self._process = None
        return status

    def ask_down(self) -> int:
        """Stop it as an operator does, with `angarium down`; gives the status of that."""
        command = launch.command("down", "--data", str(self.data))
        done = subprocess.run(
            command, env=self._environment, check=False, capture_output=True, timeout=2 * STOP_S
        )
        return done.returncode

    # -- all its processes -------------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """Give every process that runs on its data: pid -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    if self._is_ours(int(entry.name), words):
                        found[int(entry.name)] = " ".join(words)
        # In tests its processes are forks, which have the command line and the environment of what they came from.
        if keeper := self.pid:
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in psutil.Process(keeper).children(recursive=True):
                    found.setdefault(one.pid, "")
            found.setdefault(keeper, "")
        return found

    def _is_ours(self, pid: int, words: list[str]) -> bool:
        if str(self.data) in words:
            return True
        # Children of a supervisor are told their runtime directory only.
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return f"{MARK}={self.data}".encode() in environment.split(b"\0")

    def signal(self, number: signal.Signals, pids: Iterable[int] | None = None) -> None:
        """Send a signal to all its processes, or to some."""
        for pid in self.processes() if pids is None else pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill everything at once, as when the power is lost, and wait until nothing is left."""
        give_up_at = time.monotonic() + STOP_S
        found: set[int] = set()
        while True:
            found |= self.processes().keys()
            self.signal(signal.SIGKILL, found)
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.2)
            left = [pid for pid in found | self.processes().keys() if process_runs(pid)]
            if (self._process is None or self._process.poll() is not None) and not left:
                break
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"processes of {self.name} do not end: {left}")
            time.sleep(0.01)
        self._process = None

    def pids_of(self, role: str) -> list[int]:
        """Give the processes of a role; `keeper` is the one that was started here."""
        if role == "keeper":
            return [self.pid] if self.pid else []
        return [pid for pid, line in self.processes().items() if is_of(role, line) and pid != self.pid]

    # -- what it says ------------------------------------------------------------------------------------------

    @property
    def status(self) -> dict[str, Any]:
        """Give what it says of itself; empty: it does not run, or says nothing."""
        try:
            found: dict[str, Any] = json.loads((self.data / "standby-status.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if self.pid else {}

    @property
    def is_primary(self) -> bool:
        """Tell whether it says that it is the primary and may act."""
        status = self.status
        return status.get("role") == "primary" and bool(status.get("acts"))

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask its controller.

        Raises:
            AngariumError: it is not there.
        """
        with Admin(self.data, timeout_s=5.0) as admin:
            return admin.call(operation, **arguments)

    def output(self, characters: int = 4_000) -> str:
        """Give the end of what it printed."""
        return self.log_file.read_text(errors="replace")[-characters:] if self.log_file.exists() else ""


def is_of(role: str, line: str) -> bool:
    """Tell whether a command line is that of a role."""
    return {
        "supervisor": " up " in line,
        "router": "angarium_server.launch router " in line,
        "worker": "angarium_server.launch node " in line,
        "controller": "controller.server" in line,
    }[role]
