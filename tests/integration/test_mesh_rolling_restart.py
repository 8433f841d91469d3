"""A rolling restart of a mesh under load, as docs/operations.md describes it: no guaranteed message is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from angarium import Message, blocking, errors
from cluster.admin.client import Admin
from tests.integration.mesh_nodes import Mesh
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from pathlib import Path

#: Clients go on trying for longer than a node is away.
CLIENT_TIMEOUT_S = 60.0
DEADLINE_S = 40.0
ROUND = 10
PAUSE_S = 0.02
pytestmark = [pytest.mark.slow, pytest.mark.long]


class Publisher(threading.Thread):
    """Publishes numbers at one node until told to stop, and counts those that are acknowledged."""

    def __init__(self, node: str, url: str) -> None:
        super().__init__(daemon=True)
        self.node, self.url = node, url
        self.enough = threading.Event()
        self.acknowledged = 0

    def run(self) -> None:
        with blocking.connect(self.url, timeout_s=CLIENT_TIMEOUT_S) as client:
            producer = client.producer(f"rolling-{self.node}")
            while not self.enough.is_set():
                rows = [self._message(self.acknowledged + number) for number in range(ROUND)]
                producer.publish_many(rows)  # returns when all are acknowledged, whatever restarts meanwhile
                self.acknowledged += ROUND
                time.sleep(PAUSE_S)

    def _message(self, number: int) -> Message:
        return Message(f"load/{self.node}", f"{self.node} {number}".encode(), mode="persistent")


class Consumer(threading.Thread):
    """Consumes a queue until told to stop, and then until there is nothing more."""

    def __init__(self, queue: str, url: str) -> None:
        super().__init__(daemon=True)
        self.queue, self.url = queue, url
        self.enough = threading.Event()
        self.first_time: list[str] = []
        self.again: list[str] = []

    def run(self) -> None:
        with (
            blocking.connect(self.url, timeout_s=CLIENT_TIMEOUT_S) as client,
            client.consume(self.queue) as flow,
        ):
            while True:
                with contextlib.suppress(errors.TimeoutExpiredError):
                    message = flow.receive(0.5)
                    (self.again if message.redelivered else self.first_time).append(message.payload.decode())
                    flow.accept(message)
                    continue
                if self.enough.is_set():
                    return


def ask(mesh: Mesh, here: str, operation: str, **arguments: Any) -> Any:
    """Have an admin operation done; a command would take much longer to start than to do it."""
    with Admin(mesh[here].data) as admin:
        return admin.call(operation, **arguments)


def neighbours(mesh: Mesh, here: str) -> list[str]:
    return [name for name in mesh.names if name != here]


def join(mesh: Mesh) -> None:
    for here in mesh.names:
        for there in neighbours(mesh, here):
            attributes = {"addresses": [mesh[there].url]}
            ask(mesh, here, "objects.create", kind="link", name=there, vpn="", attributes=attributes)
    wait_until(lambda: all(is_joined(mesh, name) for name in mesh.names), "all links being up")


def is_joined(mesh: Mesh, here: str) -> bool:
    """Tell whether all links of a node are up: what an operator waits for before the next node."""
    return all(row["state"] == "up" for row in ask(mesh, here, "links.list"))


def add_queues(mesh: Mesh) -> None:
    """Give each node a queue that is consumed all the time and one that is looked at in the end, for everything."""
    for here in mesh.names:
        for name in ("live", "kept"):
            ask(
                mesh,
                here,
                "objects.create",
                kind="queue",
                name=name,
                attributes={"subscriptions": ["load/>"]},
            )
    wait_until(
        lambda: all("load/>" in row["client_subscriptions"] for row in link_queues(mesh)),
        "interest of queues",
    )


def holds(mesh: Mesh, queue: str) -> list[int]:
    """Give how many messages the queue of each node holds."""
    return [ask(mesh, here, "endpoints.show", name=queue)["messages_spooled"] for here in mesh.names]


def link_queues(mesh: Mesh) -> list[dict[str, Any]]:
    """Give what waits for a neighbour, of all nodes."""
    names = [(here, f"#link/{there}") for here in mesh.names for there in neighbours(mesh, here)]
    return [ask(mesh, here, "endpoints.show", name=name) for here, name in names]


def are_beyond(publishers: list[Publisher], counts: list[int]) -> bool:
    """Tell whether each has more acknowledgements than it had."""
    return all(one.acknowledged > count for one, count in zip(publishers, counts, strict=True))


def test_a_rolling_restart_under_load_loses_no_guaranteed_message(tmp_path: Path) -> None:
    with Mesh(tmp_path, 3) as mesh:
        join(mesh)
        add_queues(mesh)
        publishers = [Publisher(name, mesh[name].url) for name in mesh.names]
        consumers = [Consumer("live", mesh[name].url) for name in mesh.names]
        for thread in (*publishers, *consumers):
            thread.start()
        for name in mesh.names:
            before = [publisher.acknowledged for publisher in publishers]
            mesh[name].restart()  # SIGTERM, exit 0, start
            wait_until(lambda: all(is_joined(mesh, name) for name in mesh.names), "all links being up again")
            wait_until(partial(are_beyond, publishers, before), "every publisher going on")
        finish(publishers)
        expected = {f"{one.node} {number}" for one in publishers for number in range(one.acknowledged)}
        assert len(expected) > 100, "there was no load"
        wait_until(
            lambda: not any(row["messages_spooled"] for row in link_queues(mesh)),
            "queues of links being empty",
        )
        keepers = [Consumer("kept", mesh[name].url) for name in mesh.names]
        for keeper in keepers:
            keeper.start()
        for queue in ("live", "kept"):
            wait_for(
                partial(holds, mesh, queue), lambda held: not any(held), f"all of {queue} being consumed"
            )
        finish([*keepers, *consumers])
        for keeper in keepers:
            check_order(keeper.first_time)
            assert len(keeper.first_time) == len(expected), "each once"
            assert set(keeper.first_time) == expected
            assert keeper.again == []
        for consumer in consumers:
            assert len(set(consumer.first_time)) == len(consumer.first_time), "what comes again says so"
            got = {*consumer.first_time, *consumer.again}
            assert sorted(expected - got) == [], "accepted and never given to the application"
            assert got <= expected


def finish(threads: list[Any]) -> None:
    for thread in threads:
        thread.enough.set()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"{thread} does not end"


def check_order(payloads: list[str]) -> None:
    """Each publisher's messages are in the order in which it sent them."""
    for publisher in {payload.split()[0] for payload in payloads}:
        numbers = [int(payload.split()[1]) for payload in payloads if payload.split()[0] == publisher]
        assert numbers == list(range(len(numbers))), f"of {publisher}"
