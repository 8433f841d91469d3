"""What a host that was promoted by force lacks: neighbours have it, and must not take what comes next for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium_server.testing import Node
from tests.integration.bridged import Operator
from tests.integration.lease_server import LeaseServer
from tests.integration.manual_pair import acts_with, pair_of
from tests.ports import free_port
from tests.waiting import expect_value

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.requirement("R269")
@pytest.mark.timeout(300)
def test_neighbours_of_a_host_that_was_promoted_by_force_take_what_is_new_there(tmp_path: Path) -> None:
    """It has messages at the positions of those that only the lost host had."""
    ports = free_port(), free_port()
    addresses = [f"tcp://127.0.0.1:{port}" for port in ports]
    with LeaseServer() as server, Node(tmp_path / "near", workers=1) as near, Operator(near) as operator:
        store = f'store = "kubernetes"\nendpoints = ["{server.url}"]\nnamespace = "n"'
        with pair_of(tmp_path, store) as (alpha, beta):
            for host, port in zip((alpha, beta), ports, strict=True):
                host.listen_for_clients(port)
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the first primary")
            beta.up()
            alpha.wait(acts_with(["alpha", "beta"]), "the primary, with its standby")
            alpha.run("queue", "create", "q", "--set", "permission=consume", "--set", "subscriptions=orders")
            alpha.run("profile", "update", "default", "--set", "allow_bridge_connections=true")
            beta.kill()
            alpha.wait(acts_with(["alpha"]), "the primary alone")
            operator.make("queue", "default", "q", subscriptions=["orders"])
            operator.bridge("default", "b", remote_vpn="default", remote_queue="q", addresses=addresses)

            def taken() -> int:
                found = operator.admin.call("endpoints.show", kind="queue", vpn="default", name="q")
                return int(found["messages_spooled"])

            alpha.run("pub", "orders", "only alpha has it", "--mode", "persistent", "--count", "10")
            expect_value(taken, 10, "messages of alpha")
            alpha.kill()
            beta.up()
            beta.run("standby", "promote", "--force")
            beta.wait(acts_with(["beta"]), "the host that was promoted")
            beta.wait_ready()
            beta.run("pub", "orders", "new", "--mode", "persistent", "--count", "10")
            expect_value(taken, 20, "messages of both")
