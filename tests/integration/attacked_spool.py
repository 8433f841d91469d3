"""Nodes whose guaranteed messaging is attacked: with healthy pairs beside it, or alone where nobody is spared."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from typing import TYPE_CHECKING, Any, Self

import zmq

from angarium import errors
from angarium_server.testing import Node, NodeFailedError
from cluster.admin.client import Admin
from tests.integration import steady_queue
from tests.integration.attacked_node import ANSWER_S, AttackedNode, Counted
from tests.integration.raw_guaranteed import RawGuaranteed
from tests.integration.steady_pair import SteadyPair
from tests.waiting import expect_value, wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What a machine that others use may make the pair wait for its queue.
QUEUE_PAUSE_MS = 4_000

_names = itertools.count(1)


def new_name(kind: str = "q") -> str:
    """Give a name that no other test uses."""
    return f"{kind}/{next(_names)}"


class Operated(Counted):
    """What an operator does with a node, and processes that stand still; needs `node`, `ask` and `status`."""

    node: Node

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the controller."""
        raise NotImplementedError

    def create(self, kind: str, name: str, vpn: str | None = "default", **attributes: Any) -> str:
        """Make an object, and give its name."""
        self.ask("objects.create", kind=kind, name=name, vpn=vpn, attributes=attributes)
        return name

    def queue(self, name: str = "", vpn: str = "default", **attributes: Any) -> str:
        """Make a queue that everybody may do everything with, unless told otherwise."""
        return self.create("queue", name or new_name(), vpn, **{"permission": "delete", **attributes})

    def user(self, **attributes: Any) -> str:
        """Make a username with a client profile of its own, which has no rights on endpoints but what they say."""
        name = new_name("u").replace("/", "-")
        self.create("profile", name, **attributes)
        return self.create("username", name, client_profile=name)

    def vpn(self, **attributes: Any) -> str:
        """Make a Message VPN with a username like that of the default one."""
        vpn = self.create("vpn", new_name("v").replace("/", "-"), None, **attributes)
        self.create("username", "default", vpn, guaranteed_endpoint_permission_override=True)
        return vpn

    def update(self, kind: str, name: str, vpn: str | None = "default", **attributes: Any) -> None:
        """Change an object."""
        self.ask("objects.update", kind=kind, name=name, vpn=vpn, attributes=attributes)

    def delete(self, kind: str, name: str, vpn: str | None = "default") -> None:
        """Delete an object."""
        self.ask("objects.delete", kind=kind, name=name, vpn=vpn)

    def endpoint(self, name: str, kind: str = "queue", vpn: str = "default") -> dict[str, Any]:
        """Give an endpoint with all its metrics, when the router answers, whose metrics are None else."""

        def ask() -> dict[str, Any]:
            found: dict[str, Any] = self.ask("endpoints.show", kind=kind, name=name, vpn=vpn)
            return found

        return wait_for(
            ask, lambda found: found["messages_spooled"] is not None, "an answer of the router", ANSWER_S
        )

    def counter(self, name: str, counter: str, vpn: str = "default") -> int:
        """Give what the router counted for a queue."""
        return int(self.endpoint(name, vpn=vpn)["counters"].get(counter, 0))

    def held(self, name: str, kind: str = "queue", vpn: str = "default") -> int:
        """Give the messages in an endpoint."""
        return int(self.endpoint(name, kind, vpn)["messages_spooled"])

    def expect_held(self, name: str, count: int, kind: str = "queue", vpn: str = "default") -> None:
        """Wait until an endpoint holds so many messages."""
        expect_value(lambda: self.held(name, kind, vpn), count, f"messages in {name}")

    def expect_counters(self, name: str, vpn: str = "default", **metrics: int) -> None:
        """Wait until metrics of a queue, or what the router counted for it, have these values."""

        def read() -> dict[str, Any]:
            found = self.endpoint(name, vpn=vpn)
            told = {**found, **found["counters"]}
            return {metric: told.get(metric, 0) for metric in metrics}

        expect_value(read, metrics, f"metrics of {name}")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Give the events of a name, oldest first."""
        return [event for event in self.ask("events", limit=10_000) if event["event"] == name]

    def expect_events(self, name: str, count: int) -> list[dict[str, Any]]:
        """Wait until there are so many events of a name, and give them, oldest first."""
        expect_value(lambda: len(self.events(name)), count, f"events {name}")
        return self.events(name)

    @contextlib.contextmanager
    def stopped(self, role: str, index: int = 0) -> Iterator[None]:
        """Let a process stand still: for less than the five seconds after which it is killed."""
        pid = self.node.process(role, index)["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


class AttackedSpool(Operated, AttackedNode):
    """A node with two pairs and raw clients that speak of guaranteed messages."""

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the controller."""
        return self._admin.call(operation, **arguments)

    def stranger(self, *, url: str = "", **options: Any) -> RawGuaranteed:
        """Give a connected socket that has not said HELLO."""
        return RawGuaranteed(self._context, url or self.url, **options)

    def client(self, **fields: Any) -> RawGuaranteed:
        """Give a raw client that is logged in."""
        return self.stranger().hello(**fields)

    def begin(self) -> None:
        """Begin to watch for harm."""
        super().begin()
        self.queue_pair.look()

    def expect_unharmed(self, pause_ms: float = QUEUE_PAUSE_MS) -> None:
        """Fail if anything but the attacker noticed the attack since `begin`."""
        super().expect_unharmed(pause_ms)
        noticed = self.queue_pair.look()
        assert (noticed.not_rising, noticed.reconnects) == (0, 0), noticed
        assert noticed.longest_pause_ms < pause_ms, noticed

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.queue_pair = SteadyPair(self.url, [], script=steady_queue.__file__)
        except BaseException:
            self.pair.__exit__()
            self.node.stop()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        with self.queue_pair:
            noticed = self.queue_pair.finish()
        super().__exit__(*details)
        assert (noticed.missing, noticed.reconnects) == (0, 0), noticed


class LoneSpool(Operated):
    """A node without pairs: for limits that everybody feels, and for ends of the node."""

    def __init__(self, folder: Path, config: str = "", workers: int = 2) -> None:
        """Describe it."""
        file = folder / "node.toml"
        file.write_text(config, encoding="utf-8")
        self.node = Node(folder / "data", workers=workers, config=file)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._clients: list[RawGuaranteed] = []

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the controller, by a connection for this alone: the node may be another one each time."""
        with Admin(self.node.data) as admin:
            return admin.call(operation, **arguments)

    def status(self) -> dict[str, Any]:
        """Give the status."""
        found: dict[str, Any] = self.ask("status")
        return found

    def client(self, **fields: Any) -> RawGuaranteed:
        """Give a raw client that is logged in; it is closed with the node at the latest."""
        client = RawGuaranteed(self._context, self.node.url)
        self._clients.append(client)
        return client.hello(**fields)

    def scale(self, workers: int) -> None:
        """Change the number of workers, as soon as the change before it is complete."""

        def was_taken() -> bool:
            try:
                self.node.run("worker", "scale", str(workers), "--wait")
            except NodeFailedError as error:
                if str(errors.OBJECT_IN_USE) not in str(error):
                    raise
                return False
            return True

        wait_until(was_taken, f"a change to {workers} workers")

    def kill_everything(self) -> None:
        """Kill every process of the node, all at once."""
        for row in self.node.status()["processes"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(row["pid"], signal.SIGKILL)
        self.node.kill_all()

    def __enter__(self) -> Self:
        self.node.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        self._context.destroy(linger=0)
        self.node.stop()
        assert "Traceback" not in self.node.output()
