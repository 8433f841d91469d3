"""Two nodes on two hosts, as far as one machine can have them.

Network namespaces are joined by a cable that can be pulled; they need root. Without root the nodes have two addresses
of the loopback network and one port, as two hosts have. Links are encrypted and both nodes have certificates with
their names, as in a real cluster. Clients come over ipc, through the file system and not through the network.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from angarium import Message, blocking
from angarium_server.testing import Node
from cluster.admin.client import Admin
from cluster.security.authority import create_cluster
from tests.waiting import expect_value, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 40.0
ADDRESSES = {"a": "10.213.77.1", "b": "10.213.77.2"}
LOOPBACK = {"a": "127.0.0.2", "b": "127.0.0.3"}
PORT = 55_555
PASSWORD = "a password of the application"
pytestmark = pytest.mark.slow


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10)


class Hosts:
    """Two namespaces, each with one end of a cable."""

    def __init__(self) -> None:
        mark = secrets.token_hex(3)
        self.spaces = {name: f"angarium-{mark}-{name}" for name in ADDRESSES}
        self.ends = {name: f"ang{mark}{name}" for name in ADDRESSES}

    def build(self) -> None:
        for space in self.spaces.values():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        one, other = self.spaces
        ip(
            *("link", "add", self.ends[one], "netns", self.spaces[one], "type", "veth"),
            *("peer", "name", self.ends[other], "netns", self.spaces[other]),
        )
        for name, address in ADDRESSES.items():
            ip("-n", self.spaces[name], "address", "add", f"{address}/24", "dev", self.ends[name])
            ip("-n", self.spaces[name], "link", "set", self.ends[name], "up")

    def plug(self, state: str) -> None:
        """Pull the cable (`down`), or put it in again (`up`)."""
        ip("-n", self.spaces["a"], "link", "set", self.ends["a"], state)

    def remove(self) -> None:
        """Remove what there is; the cable goes with its ends."""
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True, timeout=10)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("there is no 'ip' command here (iproute2)")
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    made = Hosts()
    try:
        try:
            made.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()


class NodeElsewhere(Node):
    """A node with an address of its own, in a namespace if one is named; clients of this host reach it over ipc."""

    def __init__(self, folder: Path, name: str, space: str = "") -> None:
        super().__init__(folder / name, workers=1, listen=None, config=folder / f"{name}.toml")
        if space:
            self._command = ["ip", "netns", "exec", space, *self._command]

    def connect(self) -> blocking.Client:
        """Connect a client; a node that others can reach demands a password of everybody."""
        return blocking.connect(self.url, username="app", password=PASSWORD, timeout_s=DEADLINE_S)

    def ask(self, operation: str, **arguments: Any) -> Any:
        with Admin(self.data) as admin:
            return admin.call(operation, **arguments)

    def link_state(self) -> str:
        (row,) = self.ask("links.list")
        return f"{row['state']} {row['error']}".strip()

    def spooled(self, queue: str) -> int:
        found: int = self.ask("endpoints.show", name=queue)["messages_spooled"]
        return found

    def events(self) -> list[str]:
        return [event["event"] for event in self.ask("events")]


def configuration(folder: Path, name: str, addresses: dict[str, str], port: int) -> str:
    """Give the file of a node: all have the same links, for a node leaves out the one to itself."""
    links = "".join(
        f'[[links]]\nnode = "{other}"\naddresses = ["tls://{address}:{port}"]\n'
        for other, address in addresses.items()
    )
    return (
        f'[node]\nname = "{name}"\n[cluster]\nname = "test"\nsecret_file = "cluster.secret"\n'
        'ca_file = "authority.pem"\n'
        f'[router]\nlisten = ["ipc://{folder}/{name}.sock", "tls://{addresses[name]}:{port}"]\n'
        f'tls_cert_file = "{name}.pem"\ntls_key_file = "{name}.key"\n{links}'
        '[vpn.default.username.app]\npassword_file = "app.password"\n'
    )


@contextlib.contextmanager
def nodes_at(
    addresses: dict[str, str], port: int, spaces: dict[str, str]
) -> Iterator[dict[str, NodeElsewhere]]:
    """Run a node at each address, with the keys and the files of one cluster."""
    folder = Path(tempfile.mkdtemp(prefix="angarium-hosts-"))  # short, for a socket is in it
    try:
        create_cluster(folder, {name: [] for name in addresses})
        (folder / "app.password").write_text(PASSWORD, encoding="utf-8")
        for name in addresses:
            text = configuration(folder, name, addresses, port)
            (folder / f"{name}.toml").write_text(text, encoding="utf-8")
        with (
            NodeElsewhere(folder, "a", spaces.get("a", "")) as a,
            NodeElsewhere(folder, "b", spaces.get("b", "")) as b,
        ):
            yield {"a": a, "b": b}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """Give a port that is free at both addresses, or skip where this system has only one of them."""
    for _ in range(100):
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.socket()) for _ in LOOPBACK]
            try:
                held[0].bind((LOOPBACK["a"], 0))
                port: int = held[0].getsockname()[1]
                held[1].bind((LOOPBACK["b"], port))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    pytest.skip(f"there is no second loopback address here: {error}")
                continue
            return port
    raise AssertionError("no port is free at both addresses")


@pytest.fixture(scope="module")
def nodes(hosts: Hosts) -> Iterator[dict[str, NodeElsewhere]]:
    with nodes_at(ADDRESSES, PORT, hosts.spaces) as nodes:
        yield nodes


def numbers(first: int, count: int) -> list[Message]:
    return [Message("orders/x", b"%d" % number, mode="persistent") for number in range(first, first + count)]


@pytest.mark.requirement("R218")
def test_nodes_of_two_addresses_are_one_cluster_and_a_dead_host_loses_nothing() -> None:
    with nodes_at(LOOPBACK, free_port(), {}) as nodes:
        a, b = nodes["a"], nodes["b"]
        for node in (a, b):
            expect_value(node.link_state, "up", "the link being up")
        shown = [row["addresses"][0].split("//")[1].split(":")[0] for row in a.ask("links.list")]
        assert shown == [LOOPBACK["b"]]
        attributes = {"subscriptions": ["orders/>"], "permission": "consume"}
        b.ask("objects.create", kind="queue", name="orders", vpn="default", attributes=attributes)
        interest = lambda: a.ask("endpoints.show", name="#link/b")["client_subscriptions"]  # noqa: E731 - one place
        expect_value(interest, ["orders/>"], "interest")
        with a.connect() as here:
            here.publish_many(numbers(0, 50))
            expect_value(lambda: b.spooled("orders"), 50, "crossing")
            expect_value(
                lambda: a.spooled("#link/b"), 0, "settling"
            )  # else they wait for the other host as well
            b.kill_all()
            wait_until(lambda: a.link_state().startswith("down"), "noticing")
            here.publish_many(numbers(50, 50))
            assert a.spooled("#link/b") == 50, "they wait for the other host"
            b.start()
            expect_value(lambda: b.spooled("orders"), 100, "crossing")
        with b.connect() as there, there.consume("orders") as flow:
            got = [flow.receive(10.0).payload for _ in range(100)]
        assert got == [message.payload for message in numbers(0, 100)]


def is_down(node: NodeElsewhere) -> bool:
    return node.link_state().startswith("down")


@pytest.mark.long
@pytest.mark.requirement("R218")
def test_a_pulled_cable_loses_and_doubles_nothing(hosts: Hosts, nodes: dict[str, NodeElsewhere]) -> None:
    a, b = nodes["a"], nodes["b"]
    for node in (a, b):
        expect_value(node.link_state, "up", "the link being up")
    attributes = {"subscriptions": ["orders/>"], "permission": "consume"}
    b.ask("objects.create", kind="queue", name="orders", vpn="default", attributes=attributes)
    interest = lambda: a.ask("endpoints.show", name="#link/b")["client_subscriptions"]  # noqa: E731 - one place
    expect_value(interest, ["orders/>"], "interest")
    with a.connect() as here, b.connect() as there:
        watcher = there.subscribe("direct/>")
        wait_until(lambda: "direct/>" in {row["filter"] for row in a.ask("subscriptions.remote")}, "interest")
        here.publish("direct/1", b"over the cable")
        assert watcher.receive(10.0).payload == b"over the cable"
        here.publish_many(numbers(0, 100))
        expect_value(lambda: b.spooled("orders"), 100, "crossing")
        expect_value(lambda: a.spooled("#link/b"), 0, "settling")

        hosts.plug("down")
        here.publish_many(numbers(100, 100))  # acknowledged: they wait for the link
        for node in (a, b):
            wait_until(partial(is_down, node), "noticing")
            assert "SYSTEM_LINK_DOWN" in node.events()
        here.publish_many(numbers(200, 100))
        assert a.spooled("#link/b") == 200
        assert b.spooled("orders") == 100

        hosts.plug("up")
        expect_value(lambda: b.spooled("orders"), 300, "crossing")
        expect_value(lambda: a.spooled("#link/b"), 0, "settling")
        for node in (a, b):
            expect_value(node.link_state, "up", "the link being up again")
        with there.consume("orders") as flow:
            got = []
            for _ in range(300):
                message = flow.receive(10.0)
                got.append(message.payload)
                flow.accept(message)
        assert got == [message.payload for message in numbers(0, 300)]
