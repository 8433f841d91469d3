"""A node under attack, with a healthy pair beside it, and what must be true of both after each attack."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import zmq

from angarium import errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.integration.raw_client import RawClient
from tests.integration.steady_pair import ROOT, SteadyPair
from tests.waiting import expect_value, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What a machine that others use may make a healthy client wait.
PAUSE_MS = 2_500
#: Of the 80 messages a second that the pair publishes.
RATE_MIN = 10
#: What a router may keep after any attack, above what it had before: caches, and what the allocator holds.
RSS_GROWTH_MAX = 96 << 20
#: What a busy machine may make an operator wait for the router.
ANSWER_S = 20.0


class Counted:
    """What a node counts; needs `status`."""

    def status(self) -> dict[str, Any]:
        """Give the status."""
        raise NotImplementedError

    def told(self) -> dict[str, Any]:
        """Give a status with the metrics of the router, which are zeros where it did not answer at once."""
        return wait_for(self.status, lambda status: status["spool"], "an answer of the router", ANSWER_S)

    def errors(self, code: int) -> int:
        """Give how often clients were told a code."""
        return int(self.told()["errors"].get(str(code), 0))

    def expect_errors(self, code: int, count: int) -> None:
        """Wait until clients were told a code so often."""
        expect_value(lambda: self.errors(code), count, f"answers {code}")

    def discards(self, reason: str) -> int:
        """Give how many messages were discarded for a reason."""
        return int(self.told()["discards"].get(reason, 0))

    def expect_discards(self, reason: str, count: int) -> None:
        """Wait until so many messages were discarded for a reason."""
        expect_value(lambda: self.discards(reason), count, f"messages discarded for {reason}")

    def expect_spool(self, **metrics: int) -> None:
        """Wait until the spool of the node has these metrics."""

        def read() -> dict[str, Any]:
            told = self.told()["spool"]
            return {name: told.get(name) for name in metrics}

        expect_value(read, metrics, "metrics of the spool")


class AttackedNode(Counted):
    """A node, a pair, and a ZeroMQ context for attackers; a context manager that owns all of it."""

    def __init__(self, folder: Path, config: str = "") -> None:
        """Describe it."""
        file = folder / "node.toml"
        file.write_text(config, encoding="utf-8")
        self.node = Node(folder / "data", workers=2, config=file)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._looked_at = 0.0

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.node.url

    def stranger(self, *, url: str = "", **options: Any) -> RawClient:
        """Give a connected socket that has not said HELLO."""
        return RawClient(self._context, url or self.url, **options)

    def client(self, **fields: Any) -> RawClient:
        """Give a raw client that is logged in."""
        return self.stranger().hello(**fields)

    def status(self) -> dict[str, Any]:
        """Give the status, by a connection that stays."""
        found: dict[str, Any] = self._admin.call("status")
        return found

    def operator(self, operation: str, **arguments: Any) -> Any:
        """Do what an operator may."""
        return self._admin.call(operation, **arguments)

    def wait_for(self, what: str, condition: Any, timeout_s: float = 20.0) -> None:
        """Look at the status until a condition holds for it."""
        wait_for(self.status, condition, what, timeout_s)

    def wait_for_client(self, name: str, what: str, timeout_s: float = 20.0) -> None:
        """Wait until a client of this name is connected."""
        wait_for(
            lambda: {row["name"] for row in self._admin.call("clients.list")},
            lambda names: name in names,
            f"{what}: {name} being connected",
            timeout_s,
        )

    def create_user(self, name: str, password: str) -> None:
        """Make a username that needs a password; `default` stays without one."""
        self._admin.call("objects.update", kind="username", name="default", attributes={"enabled": True})
        self._admin.call("objects.create", kind="username", name=name, attributes={"password": password})

    def allow(self, kind: str, vpn: str | None, **attributes: int) -> None:
        """Change limits of an object of the name `default`."""
        self._admin.call("objects.update", kind=kind, name="default", vpn=vpn, attributes=attributes)

    @contextlib.contextmanager
    def python(self, script: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program that gets the address; it has printed a line when this gives it."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        started = subprocess.Popen(
            [sys.executable, "-c", script, self.url],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"ready\n"
            yield started
        finally:
            started.kill()
            started.communicate()

    def rss(self, role: str = "router") -> int:
        """Give the resident bytes of all processes of a role."""
        return sum(_rss(row["pid"]) for row in self.node.ready["processes"] if row["role"] == role)

    def begin(self) -> None:
        """Begin to watch for harm."""
        self._looked_at = time.monotonic()
        self.pair.look()

    def expect_unharmed(self, pause_ms: float = PAUSE_MS) -> None:
        """Fail if anything but the attacker noticed the attack since `begin`."""
        seconds = time.monotonic() - self._looked_at
        noticed = self.pair.look()
        status = self.status()
        pids = [(row["role"], row["index"], row["pid"], row["state"]) for row in status["processes"]]
        ready = [(row["role"], row["index"], row["pid"], "ready") for row in self.node.ready["processes"]]
        assert pids == ready, self.node.output()
        assert (noticed.not_rising, noticed.reconnects) == (0, 0), noticed
        assert noticed.longest_pause_ms < pause_ms, noticed
        # In less time than a pause may last the rate says nothing.
        assert seconds < pause_ms / 1_000 or noticed.received > RATE_MIN * seconds, noticed
        assert str(errors.INTERNAL) not in status["errors"], self.node.output()

    def __enter__(self) -> Self:
        self.node.start()
        try:
            self._admin = Admin(self.node.data)
            self.pair = SteadyPair(self.url, [f"steady/{number}" for number in range(16)])
        except BaseException:
            self.node.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self.pair:
            noticed = self.pair.finish()
        self._admin.close()
        self._context.destroy(linger=0)
        self.node.stop()
        assert (noticed.missing, noticed.reconnects) == (0, 0), noticed
        assert "Traceback" not in self.node.output()


def _rss(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
