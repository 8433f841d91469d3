"""Two nodes of this broker with one link between them: messages enter the near one and leave the far one.

The far node opens the link, so its link process is beside the clients that receive. The link may lead through a
proxy that delays it; only the address of the near node changes with that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.brokers.angarium import Angarium, module_of
from benchmarks.brokers.server import ROOT, Broker, BrokerFailedError, tree_of
from cluster.admin.client import Admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import psutil

    from cluster.commands.bench.process import Task

NEAR: Final = "bench-a"
FAR: Final = "bench-b"
_SECRET: Final = "a secret of two nodes that live for a minute"
#: A hundred thousand subscriptions are told within this time, or something hangs.
SETTLE_TIMEOUT_S: Final = 60.0
_LOOK_INTERVAL_S: Final = 0.01
#: What an endpoint of the far node wants is stored and in force within this time, of which nobody tells.
_STORED_S: Final = 0.3


class Member(Angarium):
    """One of the nodes."""

    def __init__(self, directory: Path, name: str, workers: int, checkout: Path) -> None:
        """Describe it."""
        super().__init__(directory, workers, name, checkout)

    def options(self) -> list[str]:
        """Name its configuration, which is written here."""
        self.directory.mkdir(parents=True, exist_ok=True)
        secret = self.directory / "cluster.secret"
        secret.write_text(_SECRET + "\n", encoding="utf-8")
        secret.chmod(0o600)
        config = self.directory / "node.toml"
        config.write_text(
            f'[node]\nname = "{self.name}"\n[cluster]\nname = "bench"\nsecret_file = "{secret}"\n',
            encoding="utf-8",
        )
        return ["--config", str(config)]

    def call(self, operation: str, **arguments: Any) -> Any:
        """Have its controller do something."""
        with Admin(self.directory / "data") as admin:
            return admin.call(operation, **arguments)


class Pair(Broker):
    """Both nodes and their link, as one broker: its address is that of the near node."""

    def __init__(self, directory: Path, workers: int = 1, checkout: Path = ROOT) -> None:
        """Describe them; they may be of another checkout of this project."""
        self.name = f"pair-{workers}"
        super().__init__(directory)
        self.near = Member(self.directory, NEAR, workers, checkout)
        self.far = Member(self.directory, FAR, workers, checkout)
        self.sdk = self.near.sdk
        self._roles: dict[str, list[psutil.Process]] = {}

    def missing(self) -> str:
        """Nothing is missing: this is ours."""
        return ""

    def version(self) -> str:
        """Give its version."""
        return self.near.version()

    def client_python(self) -> str:
        """Give the interpreter of its clients."""
        return self.near.client_python()

    def module_of(self, task: Task) -> str:
        """Give the module of the client that does a task."""
        return module_of(task)

    def start(self) -> None:
        """Start both, and join them."""
        self.near.start()
        self.join()

    def join(self) -> None:
        """Start the far node, and join it with the near one, which runs."""
        self.far.start()
        self.url = self.near.url
        for node, other in ((self.near, FAR), (self.far, NEAR)):
            node.call("objects.create", kind="link", vpn=None, name=other, attributes={})
        self.lead(self.near.url)
        self._roles = self._look_for_roles()

    def stop(self) -> None:
        """End both."""
        self.far.stop()
        self.near.stop()

    def lead(self, url: str) -> None:
        """Let the link lead to an address of the near node, and wait until it is up."""
        self.change(addresses=[url])
        self.await_link(lambda link: link["state"] == "up" and link["addresses"] == [url])

    def change(self, **attributes: Any) -> None:
        """Change the link where it is opened."""
        self.far.call("objects.update", kind="link", vpn=None, name=NEAR, attributes=attributes)

    def await_link(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until something holds for the link as the far node sees it.

        Raises:
            BrokerFailedError: it does not come true.
        """
        self._await("the link", lambda: self.far.call("links.show", name=NEAR), condition)

    def await_near(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Do the same as the near node sees it."""
        self._await("the link", lambda: self.near.call("links.show", name=FAR), condition)

    def await_interest(self, text: str) -> None:
        """Wait until the near node knows that the far one wants a filter."""

        def is_wanted(rows: list[dict[str, Any]]) -> bool:
            return any(row["filter"] == text for row in rows)

        self._await(
            f"the interest in {text}", lambda: self.near.call("subscriptions.remote", vpn=None), is_wanted
        )

    def settle(self, prefix: str) -> None:
        """Wait until messages of a run cross the link; that of an endpoint goes through the controller first."""
        self.await_interest(f"{prefix}/>")
        time.sleep(_STORED_S)

    def _await(self, what: str, look: Callable[[], Any], condition: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not condition(found := look()):
            if time.monotonic() >= deadline:
                raise BrokerFailedError(f"{self.name}: {what} is {str(found)[:1_000]}")
            time.sleep(_LOOK_INTERVAL_S)

    def roles(self) -> dict[str, list[psutil.Process]]:
        """Give all processes by role and node, as they were when the link was up."""
        return self._roles

    def _look_for_roles(self) -> dict[str, list[psutil.Process]]:
        found: dict[str, list[psutil.Process]] = {}
        for node in (self.near, self.far):
            for row in node.call("status")["processes"]:
                found.setdefault(f"{row['role']} of {node.name}", []).extend(tree_of(row["pid"])[:1])
        return found
