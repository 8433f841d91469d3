"""A pair of hosts on loopback, with one certificate for the addresses of both, whose primary can be killed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

import angarium
from angarium import blocking, errors
from angarium_server import launch, testing
from cluster.admin.client import Admin
from cluster.security.authority import create_certificate
from tests.integration.etcd_servers import Etcd
from tests.ports import free_port
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

LEASE_S: Final = 2
LIMIT_S: Final = 90.0
NAME: Final = "pair"
CLUSTER: Final = "both"
SECRET: Final = "a secret of both hosts and their neighbours"
PASSWORD: Final = "a word of the clients"
FAIL_OVERS_MAX: Final = 5
ADDRESSES: Final = {"alpha": "127.0.0.1", "beta": "127.0.0.2"}


class Host:
    """`angarium up` on one host, and what it says of itself."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.data = folder / name
        self.config = folder / f"{name}.toml"
        self._log = folder / f"{name}.log"
        self._process: testing.Started | None = None

    def up(self) -> None:
        command = launch.command("up", "--config", str(self.config), "--data", str(self.data))
        with self._log.open("ab") as log:
            self._process = testing._start_process(command, log, launch.environment())

    def kill(self) -> None:
        """Kill the host; all that it started dies with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)
            self._process = None
            (self.data / "standby-status.json").unlink(missing_ok=True)

    def run(self, *arguments: str) -> str:
        ran = testing._run_command([*arguments], {**launch.environment(), "ANGARIUM_DATA": str(self.data)})
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    @property
    def status(self) -> dict[str, Any]:
        try:
            return dict(msgspec.json.decode((self.data / "standby-status.json").read_bytes()))
        except OSError:
            return {"role": "", "in_sync": [], "acts": False}

    def answers(self) -> bool:
        """Tell whether commands are answered here: a primary starts its node once it is one."""
        try:
            with Admin(self.data) as admin:
                admin.call("status")
        except errors.AngariumError:
            return False
        return True

    def output(self) -> str:
        return self._log.read_text(errors="replace")[-6_000:] if self._log.exists() else ""


def _acts(status: dict[str, Any]) -> bool:
    return bool(status["role"] == "primary" and status["acts"])


class Pair:
    """Both hosts and their etcd; a context manager, which waits until both have everything."""

    def __init__(self, folder: Path) -> None:
        """Write the files."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ports = {"clients": free_port(), "shipping": free_port(), "mqtt": free_port()}
        self._etcd = Etcd(folder / "etcd")
        create_certificate(folder / "both", list(ADDRESSES.values()))
        self.ca_file = folder / "authority.pem"
        for name, text in (("secret", SECRET), ("password", PASSWORD)):
            (folder / name).touch(mode=0o600)
            (folder / name).write_text(f"{text}\n")
        self.hosts = {name: Host(folder, name) for name in ADDRESSES}
        self.configure("")
        self._stack = ExitStack()

    def configure(self, more: str) -> None:
        """Add to the configuration of both, where `ADDRESS` is that of the host."""
        for name, host in self.hosts.items():
            host.config.write_text(self._configuration(name) + more.replace("ADDRESS", ADDRESSES[name]))

    @property
    def urls(self) -> list[str]:
        """Give the addresses for clients, that of alpha first."""
        return [f"tls://{address}:{self.ports['clients']}" for address in ADDRESSES.values()]

    def mqtt_url(self, host: Host) -> str:
        return f"tcp://{ADDRESSES[host.name]}:{self.ports['mqtt']}"

    def _configuration(self, name: str) -> str:
        address = ADDRESSES[name]
        other = next(one for host, one in ADDRESSES.items() if host != name)
        shipping = self.ports["shipping"]
        return f"""
[node]
name = "{NAME}"
[cluster]
name = "{CLUSTER}"
secret_file = "secret"
ca_file = "authority.pem"
[router]
listen = ["tls://{address}:{self.ports["clients"]}"]
workers = 1
tls_cert_file = "both.pem"
tls_key_file = "both.key"
[health]
listen = []
[standby]
store = "etcd"
endpoints = {[member.url for member in self._etcd.members]!r}
host = "{name}"
listen = "tls://{address}:{shipping}"
peer = "tls://{other}:{shipping}"
secret_file = "secret"
lease_seconds = {LEASE_S}
[vpn.default.username.app]
password_file = "password"
""".replace("'", '"')

    def __enter__(self) -> Self:
        self._stack.enter_context(self._etcd)
        for host in self.hosts.values():
            self._stack.callback(host.kill)
        first, second = self.hosts.values()
        first.up()
        self.wait_primary(first)
        second.up()
        self.wait_in_sync()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)

    def wait_primary(self, host: Host) -> None:
        wait_for(
            lambda: host.status,
            lambda status: status["role"] == "primary" and status["acts"],
            f"{host.name} the primary",
            LIMIT_S,
            host.output,
        )
        self._wait_node(host)

    def _wait_node(self, host: Host) -> None:
        wait_for(host.answers, bool, f"an answer of the node on {host.name}", LIMIT_S, host.output)

    def wait_in_sync(self) -> None:
        wait_for(
            lambda: [host.status["in_sync"] for host in self.hosts.values()],
            lambda found: found == [sorted(ADDRESSES)] * 2,
            "both hosts have everything",
            LIMIT_S,
            lambda: "\n".join(host.output() for host in self.hosts.values()),
        )

    @property
    def primary(self) -> Host:
        """Give the host that says that it is the primary."""
        return next(host for host in self.hosts.values() if host.status["role"] == "primary")

    def fail_over(self) -> tuple[Host, Host]:
        """Kill the primary, and give it with the host that has taken over, whose node answers.

        On a busy machine the standby may have been let go just before, and nobody takes over: then it is tried again.
        """
        for _ in range(FAIL_OVERS_MAX):
            self.wait_in_sync()
            before = self.primary
            after = next(host for host in self.hosts.values() if host is not before)
            before.kill()
            found = wait_for(
                lambda: after.status,  # noqa: B023 - called before the next turn
                lambda status: _acts(status) or after.name not in status["in_sync"],  # noqa: B023 - the same
                f"{after.name} the primary",
                LIMIT_S,
                after.output,
            )
            if _acts(found):
                self._wait_node(after)
                return before, after
            before.up()
        raise AssertionError("the standby was let go each time before the primary was killed")

    def hand_over(self) -> None:
        """Have the primary hand over, and wait until the node of one answers."""
        self.wait_in_sync()
        before = self.primary
        epoch = before.status["epoch"]
        before.run("standby", "switch", "--wait-timeout", "80")
        wait_for(
            lambda: [host.status for host in self.hosts.values()],
            lambda found: any(_acts(status) and status["epoch"] > epoch for status in found),
            "a primary after the hand-over",
            LIMIT_S,
            before.output,
        )
        self._wait_node(self.primary)

    def client(self, **options: Any) -> blocking.Client:
        """Connect a client that has both addresses."""
        return blocking.connect(self.urls, **self._login, **options)

    def connect(self) -> Any:
        """Give such a client for asyncio, which connects when it is entered."""
        return angarium.connect(self.urls, **self._login)

    @property
    def _login(self) -> dict[str, Any]:
        return {
            "username": "app",
            "password": PASSWORD,
            "ca_file": str(self.ca_file),
            "timeout_s": LIMIT_S,
            "retry_for_s": LIMIT_S,
        }
