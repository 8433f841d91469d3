"""A node with a gateway of MQTT for tests, and how operators see its clients."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from angarium import blocking
from angarium.errors import TimeoutExpiredError
from angarium_server.testing import Node
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Row

PASSWORD: Final = "of alice, for tests"
#: Small enough to be exceeded at once.
PACKET_BYTES_MAX: Final = 65_536
KEEPALIVE_MAX_S: Final = 300
#: Others than the defaults.
RECEIVE_MAX: Final = 100
TOPIC_ALIAS_MAX: Final = 40
#: What a queue has is taken within this time.
DRAINED_S: Final = 60.0

_CONFIG: Final = f"""
[mqtt]
listen = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0/orders"]
max_packet_bytes = {PACKET_BYTES_MAX}
keepalive_max_s = {KEEPALIVE_MAX_S}
receive_max = {RECEIVE_MAX}
topic_alias_max = {TOPIC_ALIAS_MAX}

# Who has no password is let in although somebody has one.
[vpn.default.username.default]
enabled = true

[vpn.orders.acl.most]
client_connect_default = "allow"
publish_topic_default = "allow"
publish_topic_exceptions = ["secret/>"]
subscribe_topic_default = "allow"
subscribe_topic_exceptions = ["secret/>"]

[vpn.orders.username.alice]
password_file = "alice.password"
acl_profile = "most"
"""


@contextmanager
def mqtt_node(folder: Path, http: str | None = None) -> Iterator[Node]:
    """Run a node; the Message VPN `orders` has a username alice with a password. `http` is for clients of HTTP."""
    (folder / "alice.password").write_text(PASSWORD)
    (folder / "alice.password").chmod(0o600)
    file = folder / "node.toml"
    file.write_text(_CONFIG)
    with Node(folder / "data", workers=2, config=file, http=http) as node:
        yield node


@contextmanager
def two_gateways(folder: Path) -> Iterator[Node]:
    """Run a node with two gateway processes."""
    file = folder / "node.toml"
    file.write_text("[mqtt]\nlisten = ['tcp://127.0.0.1:0', 'tcp://127.0.0.1:0/orders']\nprocesses = 2\n")
    with Node(folder / "data", workers=1, config=file) as node:
        yield node


def metric(node: Node, name: str) -> dict[str, float]:
    """Give a metric of each gateway process, by its index."""
    kept = json.loads((node.data / "node.json").read_text(encoding="utf-8"))
    with urllib.request.urlopen(f"{kept['health']}/metrics", timeout=5) as page:
        text = page.read().decode()
    found = re.findall(rf'^angarium_mqtt_{name}{{index="(\d+)"}} (\S+)$', text, flags=re.MULTILINE)
    return {index: float(value) for index, value in found}


def publish(node: Node, topic: str, *payloads: str) -> None:
    """Publish guaranteed messages with the SDK."""
    with blocking.connect(node.url) as client:
        for one in payloads:
            client.publish(topic, one.encode(), mode="persistent")
        client.flush()


def orders_url(node: Node) -> str:
    """Give the address for clients of MQTT in the Message VPN `orders`."""
    return str(node.ready["mqtt"][1])


def clients(node: Node, vpn: str = "default") -> dict[str, Row]:
    """Give the connected clients as operators see them, by name."""
    lines = node.run("client", "list", "--json", "--vpn", vpn).splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def counted(node: Node, name: str, counter: str, vpn: str = "default") -> int:
    """Give how many messages of a client were discarded for a reason; its gateway tells that every two seconds."""
    found: dict[str, Any] = json.loads(node.run("client", "show", name, "--json", "--vpn", vpn))
    return int(found["discards"].get(f"discard.{counter}", 0))


def expect_clients(node: Node, *names: str, vpn: str = "default") -> None:
    """Wait until these are connected and nobody else."""
    wait_for(lambda: set(clients(node, vpn)), lambda seen: seen == set(names), f"{names} are connected")


def drained(node: Node, queue: str) -> list[str]:
    """Take all that a queue has: a machine that is busy gives the first message late."""
    found: list[str] = []
    deadline = time.monotonic() + DRAINED_S
    with blocking.connect(node.url, retry_for_s=DRAINED_S) as client, client.consume(queue) as flow:
        while True:
            try:
                found.append(bytes(flow.receive(0.5).payload).decode())
            except TimeoutExpiredError:
                left = json.loads(node.run("queue", "show", queue, "--json"))["messages_spooled"]
                if left == 0 or time.monotonic() > deadline:
                    return found


def events(node: Node) -> list[dict[str, Any]]:
    """Give what operators were told."""
    return [json.loads(line) for line in node.run("events", "--json").splitlines()]
