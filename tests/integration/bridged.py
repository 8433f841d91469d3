"""Bridges between Message VPNs of real nodes, for tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from cluster.admin.client import Admin
from tests.integration.mesh_messages import receive_all
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from angarium_server.testing import Node

DEADLINE_S = 20.0
Row = dict[str, Any]


class Operator:
    """Makes and watches the bridges of a node; a context manager."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.admin = Admin(node.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.admin.close()

    def make_vpns(self, *names: str) -> None:
        """Make Message VPNs with a username default, and let bridges use it; that of `default` too.

        It stays without a password when others get one.
        """
        self.update("username", "default", "default", enabled=True)
        for name in names:
            self.make("vpn", "", name)
            self.make("username", name, "default", guaranteed_endpoint_permission_override=True)
        for name in ("default", *names):
            self.update("profile", name, "default", allow_bridge_connections=True)

    def make(self, kind: str, vpn: str, name: str, **attributes: Any) -> Row:
        """Create an object."""
        found: Row = self.admin.call("objects.create", kind=kind, vpn=vpn, name=name, attributes=attributes)
        return found

    def update(self, kind: str, vpn: str, name: str, **attributes: Any) -> None:
        """Change an object."""
        self.admin.call("objects.update", kind=kind, vpn=vpn, name=name, attributes=attributes)

    def delete(self, kind: str, vpn: str, name: str) -> None:
        """Delete an object."""
        self.admin.call("objects.delete", kind=kind, vpn=vpn, name=name)

    def bridge(self, vpn: str, name: str, **attributes: Any) -> Row:
        """Create a bridge, and wait until it is up."""
        self.make("bridge", vpn, name, **attributes)
        return self.wait_up(vpn, name)

    def show(self, vpn: str, name: str) -> Row:
        """Give what `bridge show` says."""
        found: Row = self.admin.call("bridges.show", vpn=vpn, name=name)
        return found

    def wait_for(self, vpn: str, name: str, condition: Callable[[Row], Any]) -> Row:
        """Look at a bridge until a condition holds for it."""
        return wait_for(lambda: self.show(vpn, name), condition, f"bridge {name}", more=self.node.output)

    def wait_up(self, vpn: str, name: str) -> Row:
        """Wait until a bridge is up."""
        return self.wait_for(vpn, name, lambda row: row["state"] == "up")

    def wait_error(self, vpn: str, name: str, code: int) -> Row:
        """Wait until a bridge says that it is not up because of this."""
        return self.wait_for(vpn, name, lambda row: str(code) in row["error"])

    def change(self, vpn: str, name: str, **attributes: Any) -> Row:
        """Change a bridge that is up, and wait until it is up with that."""
        began = time.monotonic()
        self.update("bridge", vpn, name, **attributes)
        return self.wait_for(vpn, name, lambda row: row["state"] == "up" and _is_since(row, began))

    def switch_off(self, vpn: str, name: str) -> None:
        """Disable a bridge, and wait until its process is gone."""
        number = self.show(vpn, name)["number"]
        self.update("bridge", vpn, name, enabled=False)
        self.wait_for(vpn, name, lambda row: row["state"] == "disabled" and number not in self.processes())

    def events(self, name: str) -> list[Row]:
        """Give the events of the node that have a name."""
        return [event for event in self.admin.call("events", limit=1_000) if event["event"] == name]

    def processes(self) -> list[int]:
        """Give the numbers of the bridge processes that there are."""
        rows = self.admin.call("status")["processes"]
        return [row["index"] for row in rows if row["role"] == "bridge"]


def _is_since(row: Row, began: float) -> bool:
    return bool(row["uptime_s"] <= time.monotonic() - began)


def receive(subscription: Any, count: int) -> list[bytes]:
    """Take so many messages, and see that no more come."""
    found = [subscription.receive(DEADLINE_S).payload for _ in range(count)]
    return found + receive_all(subscription, 0.2)
