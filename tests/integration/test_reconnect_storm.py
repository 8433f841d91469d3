"""The router dies under a crowd of clients: all are back at the pace of the work, without their passwords."""

from __future__ import annotations

import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

import pytest

from angarium import blocking, wire
from angarium.client.transport import zmtp
from angarium_server.connections.framing import FramingLimits
from angarium_server.connections.zmtp import ZmtpFraming
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.integration.raw_client import HANDSHAKE, hello_header

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.slow

LIMITS = FramingLimits(1 << 20, 1 << 20)
#: Many for one test; 5,000 do as well.
COUNT = 1_000
#: What a machine that others use may take for them; alone it is about a second.
BACK_S = 15.0
LIMIT_S = 20.0


class Member(NamedTuple):
    """A client of the crowd, and what it was told."""

    name: str
    token: bytes


class Crowd:
    """Many connections at once, each with one HELLO; a context manager that closes them."""

    def __init__(self, url: str, hellos: Iterable[dict[str, Any]]) -> None:
        """Connect all of them, without waiting for one."""
        place = urlsplit(url)
        self._place = place.hostname, place.port
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        #: What each was answered, as soon as it was.
        self.welcomes: list[dict[str, Any]] = []
        for hello in hellos:
            self._begin(zmtp.pack([wire.HELLO, wire.pack(hello)]))

    def _begin(self, hello: Iterable[bytes]) -> None:
        made = socket.create_connection(self._place, LIMIT_S)
        self._sockets.append(made)
        made.sendall(HANDSHAKE + b"".join(hello))
        self._selector.register(made, selectors.EVENT_READ, ZmtpFraming(LIMITS))

    def wait(self, limit_s: float) -> None:
        """Wait until all of them have logged in."""
        deadline = time.monotonic() + limit_s
        while len(self.welcomes) < len(self._sockets):
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{len(self.welcomes)} of {len(self._sockets)} are there after {limit_s:g} s"
            for key, _ in self._selector.select(left_s):
                self._read(key.fileobj, key.data)

    def _read(self, readable: Any, framing: ZmtpFraming) -> None:
        data = readable.recv(1 << 16)
        assert data, "a connection was closed"
        for operation, header in framing.received(data):
            assert operation == wire.WELCOME, wire.unpack(header)
            self.welcomes.append(wire.unpack(header))
            self._selector.unregister(readable)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._sockets:
            made.close()
        self._selector.close()


def hello(name: str, **more: Any) -> dict[str, Any]:
    return hello_header(client_name=name, username="fleet", keepalive_ms=3_600_000, **more)


def one_of_the_fleet(node: Node) -> blocking.Client:
    return blocking.connect(node.url, username="fleet", password="a right password", timeout_s=LIMIT_S)


def router_of(admin: Admin) -> dict[str, Any]:
    """Give the metrics of the router, which a busy machine may make wait."""
    deadline = time.monotonic() + LIMIT_S
    while not (metrics := admin.call("stats")["router"]):
        assert time.monotonic() < deadline, "the router does not answer"
    return dict(metrics)


@pytest.mark.long
@pytest.mark.requirement("R230")
def test_a_crowd_is_back_after_the_death_of_the_router_without_its_passwords(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node, Admin(node.data) as admin:
        password = {"password": "a right password"}
        admin.call("objects.create", kind="username", vpn="default", name="fleet", attributes=password)
        with one_of_the_fleet(node):  # from now on the password is known to be right
            pass
        names = [f"member-{number}" for number in range(COUNT)]
        with Crowd(node.url, (hello(name, password="a right password") for name in names)) as crowd:
            crowd.wait(BACK_S)
            members = [Member(one["client_name"], one["token"]) for one in crowd.welcomes]
            node.kill("router")
        with one_of_the_fleet(node) as late:
            assert late.connected, "the router is back"
        checks = router_of(admin)["password_checks"]
        assert checks >= 1, "it knows no password any more"
        began = time.monotonic()
        with Crowd(node.url, (hello(one.name, token=one.token) for one in members)) as crowd:
            crowd.wait(BACK_S)
            took_s = time.monotonic() - began
            assert all(one["resumed"] for one in crowd.welcomes)
            assert {one["client_name"] for one in crowd.welcomes} == set(names)
            metrics = router_of(admin)
        print(f"{COUNT} clients were back within {took_s:.2f} s; {metrics['unauthenticated_put_off']} waited")
        assert metrics["password_checks"] == checks, "nobody's password was looked at"
        assert metrics["errors"] == {}
