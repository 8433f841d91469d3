"""Kept sessions at a real node, by a gateway spoken by hand: what comes while their client is away, and their end."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from angarium import blocking, errors, wire
from angarium_server.testing import Node, NodeFailedError
from tests.integration.bridged import Operator
from tests.integration.raw_gateway import RawGateway
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

NAME = "#mqtt/dev%2F1"
SUBSCRIBED = {"plant/#": [["plant", "plant/>"], 1, 0], "other": [[], 0, 7]}


class Client:
    """One attached client."""

    def __init__(self, gateway: RawGateway, name: str = "dev/1") -> None:
        self.gateway, self.number, self.requests = gateway, 1, 0
        assert gateway.attach(1, client_name=name).operation == wire.WELCOME

    def request(self, operation: str, **arguments: Any) -> Any:
        """Ask for something, and give (code, value)."""
        self.requests += 1
        self.gateway.say(self.number, wire.REQUEST, [self.requests, operation, arguments])
        answered, (number, code, value), _ = self.gateway.told(self.number)
        assert (answered, number) == (wire.ANSWER, self.requests)
        return code, value

    def done(self, operation: str, **arguments: Any) -> Any:
        """Ask for something that is granted, and give the answer."""
        code, value = self.request(operation, **arguments)
        assert code == 0, value
        return value

    def open(self, expiry_s: int = 600, *, clean: bool = False) -> Any:
        return self.done("session.open", clean=clean, expiry_s=expiry_s, version=5)

    def receive(self, count: int) -> list[tuple[bytes, int, bool]]:
        """Bind, and give (payload, position, delivered before) of so many messages."""
        self.done("flow.bind", name=NAME, messages=1_000, bytes=1 << 20)
        found: list[tuple[bytes, int, bool]] = []
        while len(found) < count:
            operation, (_, parts), batches = self.gateway.told(self.number)
            assert operation == wire.MESSAGES
            for (_, _, runs, counts, *_), batch in zip(parts, batches, strict=True):
                rows = wire.unpack(batch)
                positions = [first + at for first, length in runs for at in range(length)]
                before = counts or [0] * len(rows)
                found += [
                    (row[wire.ROW_PAYLOAD], position, bool(times))
                    for row, position, times in zip(rows, positions, before, strict=True)
                ]
        return found

    def accept(self, first: int, last: int) -> None:
        self.gateway.say(self.number, wire.SETTLE, [1, 0, [[0, first, last]]])


@contextmanager
def attached(node: Node, name: str = "dev/1") -> Iterator[Client]:
    """Give a client of a gateway; both leave at the end."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, RawGateway(context, node) as gateway:
        client = Client(gateway, name)
        yield client
        gateway.say(1, wire.BYE, [])
        assert gateway.told(1).operation == wire.CLOSED


def publish(node: Node, numbers: range) -> None:
    with blocking.connect(node.url) as native:
        for number in numbers:
            native.publish("plant/1", b"%d" % number, mode="persistent")
        native.flush()


def names(operator: Operator) -> list[str]:
    return [
        one["name"]
        for one in operator.admin.call("objects.list", kind="queue", vpn="default", name="#mqtt/*")
    ]


def show(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.run("queue", "show", NAME, "--json"))
    return found


def scale(node: Node, workers: int) -> None:
    """Change the number of workers as soon as the change before is complete."""

    def is_done() -> bool:
        try:
            node.run("worker", "scale", str(workers))
        except NodeFailedError as error:
            if "40902" not in str(error):
                raise
            return False
        return True

    wait_until(is_done)


def test_what_comes_while_a_client_is_away_waits_for_it_in_order(tmp_path: Path) -> None:
    """Across fewer and more workers, the death of the router, and a restart."""
    with Node(tmp_path / "data", workers=2) as node:
        with attached(node) as client:
            assert client.open() == {"name": NAME, "present": False, "temporary": False, "filters": {}}
            assert client.done("session.change", put=SUBSCRIBED) == [None, None]
            publish(node, range(5))
            assert [(payload, before) for payload, _, before in client.receive(5)] == [
                (b"%d" % number, False) for number in range(5)
            ]
            client.accept(1, 2)
            assert client.done("session.note") == b""
            client.done("session.keep", note=b"in the middle")
        publish(node, range(5, 10))
        for workers in (1, 3):
            scale(node, workers)
        publish(node, range(10, 12))
        node.kill("router")
        publish(node, range(12, 15))
        node.restart()
        publish(node, range(15, 20))
        with attached(node) as client:
            assert client.open() == {"name": NAME, "present": True, "temporary": False, "filters": SUBSCRIBED}
            assert client.done("session.note") == b"in the middle"
            assert client.receive(18) == [(b"%d" % number, number + 1, number < 5) for number in range(2, 20)]
            client.accept(3, 20)
            assert client.done("session.change", drop=["plant/#"]) == []
            publish(node, range(1))
            wait_until(lambda: show(node)["messages_spooled"] == 0)
            shown = show(node)
            assert shown["client_subscriptions"] == []
            assert shown["session"] == {"client": "dev/1", "version": 5, "filters": {"other": [[], 0, 7]}}
            client.done("flow.unbind", flow=1)
            assert client.done("session.close") is None
            assert client.open(expiry_s=0) == {
                "name": NAME,
                "present": False,
                "temporary": True,
                "filters": {},
            }


def test_a_session_ends_by_its_time_by_its_client_and_by_operators(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node, Operator(node) as operator:
        with attached(node) as client:
            client.open(expiry_s=1)
            client.receive(0)
            client.done("session.change", put=SUBSCRIBED)
            assert names(operator) == [NAME]
        wait_until(lambda: names(operator) == [])
        with attached(node) as client:
            assert client.open(expiry_s=0)["temporary"]
            client.done("session.change", put=SUBSCRIBED, temporary=True)
            client.done("flow.bind", name=NAME, temporary=True)
            assert names(operator) == [NAME]
        wait_until(lambda: names(operator) == [])
        with attached(node) as client:
            client.open()
            client.receive(0)
            operator.update("queue", "default", NAME, max_spool_usage_mb=1)
            with pytest.raises(errors.ConflictError):
                operator.update("queue", "default", NAME, owner="")
            operator.delete("queue", "default", NAME)
            operation, (_, event, code, _), _ = client.gateway.told(1)
            assert (operation, event, code) == (wire.INDICATION, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT)
            assert client.request("session.change", drop=["x"])[0] == errors.UNKNOWN_ENDPOINT


def test_a_native_client_does_not_come_to_a_session(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node, attached(node) as client:
        client.open()
        client.done("session.change", put=SUBSCRIBED)
        with blocking.connect(node.url) as native, pytest.raises(errors.ForbiddenError):
            native.consume(NAME)
