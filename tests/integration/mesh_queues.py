"""Queues and guaranteed messages in a mesh of real nodes."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from angarium import Message, blocking, errors
from tests.waiting import wait_until

if TYPE_CHECKING:
    from angarium_server.testing import Node
    from tests.integration.mesh_nodes import Mesh


DEADLINE_S = 40.0


def add_queue(mesh: Mesh, here: str, name: str, subscription: str, *more: str) -> None:
    """Create a queue, and wait until the other node knows what it attracts."""
    there = "a" if here == "b" else "b"
    settings = [part for one in more for part in ("--set", one)]
    mesh[here].run("queue", "create", name, "--subscription", subscription, *settings)
    wait_until(lambda: subscription in queue(mesh[there], f"#link/{here}")["client_subscriptions"])


def queue(node: Node, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.run("queue", "show", name, "--json"))
    return found


def persistent(topic: str, payload: bytes, **options: Any) -> Message:
    return Message(topic, payload, mode="persistent", **options)


def drain(node: Node, name: str) -> list[bytes]:
    """Consume everything a queue holds."""
    found = []
    with (
        blocking.connect(node.url) as client,
        client.consume(name) as flow,
        contextlib.suppress(errors.TimeoutExpiredError),
    ):
        while True:
            message = flow.receive(1.0)
            found.append(message.payload)
            flow.accept(message)
    return found


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
