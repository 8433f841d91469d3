"""A gateway at a real node, spoken by hand: its clients subscribe, are told what they may, and end with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import zmq

from angarium import blocking, errors, wire
from angarium_server.testing import Node
from tests.integration.bridged import Operator, receive
from tests.integration.raw_client import row
from tests.integration.raw_gateway import RawGateway
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with Node(tmp_path_factory.mktemp("gateways") / "data", workers=2) as node, Operator(node) as made:
        made.make_vpns()
        made.make("acl", "default", "some", client_connect_default="allow", publish_topic_default="allow")
        made.make("username", "default", "alice", acl_profile="some")
        yield made


@pytest.fixture
def gateway(operator: Operator) -> Iterator[RawGateway]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, RawGateway(context, operator.node) as made:
        yield made
    wait_until(lambda: clients(operator) == [])


def clients(operator: Operator) -> list[str]:
    return sorted(one["name"] for one in operator.admin.call("clients.list", vpn="default"))


def test_clients_of_a_gateway_and_native_ones_hear_each_other(
    operator: Operator, gateway: RawGateway
) -> None:
    for number in (1, 2):
        operation, welcome, _ = gateway.attach(number, client_name=f"c{number}")
        assert (operation, welcome["rights"][:2]) == (wire.WELCOME, [True, []])
        assert gateway.ask(number, "both/>", f"own/{number}") == [None, None]
    assert gateway.ask(2, "#share/g/shared") == [None]
    assert clients(operator) == ["c1", "c2"]
    with blocking.connect(operator.node.url) as native:
        heard = native.subscribe("here")
        native.publish("both/1", b"")
        assert gateway.topics() == ["both/1"]
        native.publish("shared", b"")
        operation, head, _ = gateway.told(2)
        assert (operation, head[1]) == (wire.DELIVER, [[1, "#share/g/shared"]])
        gateway.publish_uncut([row(0, "here", b"1"), row(1, "own/2", b"2")])
        assert receive(heard, 1) == [b"1"]
        assert gateway.topics() == ["own/2"]


def test_a_gateway_hears_of_a_change_and_of_ends(operator: Operator, gateway: RawGateway) -> None:
    for number, username in ((5, "alice"), (6, "default"), (7, "alice")):
        gateway.attach(number, client_name=f"c{number}", username=username)
    operator.update("acl", "default", "some", publish_topic_exceptions=["secret/>"])
    rights, numbers = gateway.receive_only(wire.RIGHTS).header
    assert (rights[:2], numbers) == ([True, ["secret/>"]], [5, 7])
    operator.admin.call("clients.disconnect", vpn="default", name="c5")
    assert gateway.told(5).header[0] == errors.DISCONNECTED_BY_OPERATOR
    assert clients(operator) == ["c6", "c7"]


def test_a_newer_client_of_the_same_name_takes_over_at_another_process(
    operator: Operator, gateway: RawGateway
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, RawGateway(context, operator.node, 1) as other:
        gateway.attach(1, client_name="c")
        assert other.attach(1, client_name="c").operation == wire.WELCOME
        assert gateway.told(1).header[0] == errors.TAKEN_OVER


def test_clients_end_with_the_connection_of_their_gateway(operator: Operator, gateway: RawGateway) -> None:
    """And nothing is left of what they wanted."""
    for number in range(1, 301):
        gateway.attach(number, client_name=f"c{number}")
        assert gateway.ask(number, "t/>", f"t/{number}") == [None, None]
    assert len(clients(operator)) == 300
    gateway.close()
    wait_until(lambda: clients(operator) == [])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, RawGateway(context, operator.node) as again:
        assert again.attach(1, client_name="c1").operation == wire.WELCOME
        assert again.ask(1, "t/1") == [None]
        with blocking.connect(operator.node.url) as native:
            native.publish("t/2", b"")
            native.publish("t/1", b"")
        assert again.topics() == ["t/1"]
