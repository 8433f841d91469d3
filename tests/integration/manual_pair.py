"""Two hosts of a node whose outside store is an operator, with whom nothing fails over by itself, or another one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium_server import launch, testing
from tests.ports import free_port
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LEASE_S: Final = 2
LIMIT_S: Final = 90.0
#: What a section says of its outside store.
MANUAL: Final = 'store = "manual"'


class Host:
    """One host of the pair, by its commands."""

    def __init__(self, folder: Path, name: str, listen: int, peer: int, store: str = MANUAL) -> None:
        self.name = name
        self.data = folder / name
        self._config = folder / f"{name}.toml"
        self._log = folder / f"{name}.log"
        self._process: testing.Started | None = None
        self._store, self._peer = store, f"tcp://127.0.0.1:{peer}"
        self.configure(f"tcp://127.0.0.1:{listen}")

    def configure(self, listen: str, more: str = "[router]") -> None:
        """Write its configuration, before it is started."""
        self._config.write_text(f"""
[node]
name = "orders"
{more}
listen = ["tcp://127.0.0.1:0"]
[standby]
{self._store}
host = "{self.name}"
listen = "{listen}"
peer = "{self._peer}"
secret_file = "secret"
lease_seconds = {LEASE_S}
""")

    def listen_for_clients(self, port: int) -> None:
        """Have its node listen at a port, from its next start."""
        own = f"tcp://127.0.0.1:{port}"
        self._config.write_text(self._config.read_text().replace("tcp://127.0.0.1:0", own))

    @contextmanager
    def without_section(self) -> Iterator[None]:
        """Have it be no host of a pair when it is started meanwhile."""
        whole = self._config.read_text()
        self._config.write_text(whole.partition("[standby]")[0])
        yield
        self._config.write_text(whole)

    def up(self) -> None:
        self.start()
        self.wait(lambda status: bool(status["store"]), "up")

    @property
    def where(self) -> tuple[str, ...]:
        """Give the options that start it."""
        return ("--config", str(self._config), "--data", str(self.data), "--workers", "1")

    def start(self) -> None:
        """Start the host, which may say nothing of itself for want of room."""
        with self._log.open("ab") as log:
            command = launch.command("up", *self.where)
            self._process = testing._start_process(command, log, launch.environment())

    def kill(self) -> None:
        """Kill the host; all that it started dies with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)
            self._process = None
        (self.data / "standby-status.json").unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        """Send the host a signal."""
        os.kill(self.status()["pid"], number)

    def run(self, *arguments: str, is_done: bool = True) -> str:
        ran = testing._run_command(list(arguments), {**launch.environment(), "ANGARIUM_DATA": str(self.data)})
        assert (ran.returncode == 0) == is_done, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def status(self) -> dict[str, Any]:
        try:
            return dict(msgspec.json.decode((self.data / "standby-status.json").read_bytes()))
        except OSError:
            return {"store": "", "role": "", "in_sync": [], "acts": False}

    def wait(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        return wait_for(self.status, holds, f"{self.name}: {what}", LIMIT_S, more=self.log)

    def wait_ready(self) -> None:
        self.wait_log("is ready")

    def log(self) -> str:
        return self._log.read_text()

    def wait_log(self, said: str) -> None:
        wait_for(self.log, lambda text: said in text, f"{self.name}: {said}", LIMIT_S)


@contextmanager
def pair_of(folder: Path, store: str = MANUAL) -> Iterator[tuple[Host, Host]]:
    """Give both hosts; none is up yet."""
    (folder / "secret").touch(mode=0o600)
    (folder / "secret").write_text("a secret of two hosts")
    one, other = free_port(), free_port()
    alpha, beta = Host(folder, "alpha", one, other, store), Host(folder, "beta", other, one, store)
    try:
        yield alpha, beta
    finally:
        alpha.kill()
        beta.kill()


def acts_with(names: list[str]) -> Callable[[dict[str, Any]], bool]:
    """Say of a status that the host is the primary, and has these beside it."""
    return lambda status: bool(status["acts"]) and status["in_sync"] == names
