"""Reports of controllers on their way: from the one, over both routers and the link process, to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from tests.unit.router.wired_mesh import WiredMesh, link_hello, make_node

if TYPE_CHECKING:
    from tests.unit.router.wired_node import FakeClient, WiredNode


def heard(node: WiredNode) -> dict[str, bytes]:
    return {row["node"]: row["report"] for row in node.router.links.overview(node.now)["heard"]}


def neighbour(node: WiredNode, name: str) -> FakeClient:
    client = node.connection("10.0.0.1")
    client.send(wire.HELLO, link_hello(name))
    assert client.take()[0] == wire.WELCOME
    return client


@pytest.mark.requirement("R220")
def test_a_report_reaches_every_neighbour_and_nobody_else() -> None:
    mesh = WiredMesh("a", "b", "c", pairs=[("b", "a"), ("c", "b")])
    for name in "abc":
        mesh[name].router.links.peers.tell(name.encode())
    mesh.run()
    assert heard(mesh["a"]) == {"b": b"b"}
    assert heard(mesh["b"]) == {"a": b"a", "c": b"c"}
    assert heard(mesh["c"]) == {"b": b"b"}


def test_the_newest_counts_and_its_age() -> None:
    mesh = WiredMesh("a", "b")
    for report in (b"1", b"2"):
        mesh["b"].router.links.peers.tell(report)
        mesh.run()
    mesh["a"].now += 3.0
    (row,) = mesh["a"].router.links.overview(mesh["a"].now)["heard"]
    assert (row["report"], row["age_s"] >= 3.0) == (b"2", True)


def test_it_goes_with_the_session() -> None:
    mesh = WiredMesh("a", "b")
    mesh["b"].router.links.peers.tell(b"report")
    mesh.run()
    mesh.links["b", "a"].channel.leave(mesh["a"].now)
    mesh.run()
    assert heard(mesh["a"]) == {}


def test_a_neighbour_is_told_once_however_many_message_vpns_there_are() -> None:
    node = make_node("n", ["x"])
    node.router.operators.put_object(
        "vpn", "", "other", node.router.directory.vpns["default"].attributes, node.now
    )
    first, second = neighbour(node, "x"), node.connection("10.0.0.1")
    second.send(wire.HELLO, link_hello("x", vpn="other"))
    node.router.links.peers.tell(b"report")
    node.settle()
    told = [frames for client in (first, second) for frames in client.received if frames[0] == wire.PEERS]
    assert [wire.unpack(frames[1]) for frames in told] == [[b"report"]]


@pytest.mark.parametrize(
    "header", [[], [1], ["text"], [b"a", b"b"], [bytes(wire.MAX_REPORT_BYTES + 1)], {"a": 1}]
)
def test_what_is_no_report_ends_the_session(header: Any) -> None:
    client = neighbour(make_node("n", ["x"]), "x")
    client.send(wire.PEERS, header)
    assert client.closed_with() == errors.MALFORMED_FRAME


def test_a_client_does_not_report() -> None:
    client = make_node("n", ["x"]).client()
    client.send(wire.PEERS, [b"report"])
    assert client.closed_with() == errors.UNKNOWN_OPERATION


class TestRefusals:
    def test_who_was_refused_lately_is_told_until_it_is_over(self) -> None:
        node = make_node("n", ["x"])
        node.connection("10.0.0.1").send(wire.HELLO, link_hello("x", password="guessed"))
        (row,) = node.router.links.overview(node.now)["refusals"]
        assert (row["node"], row["vpn"], row["code"]) == ("x", "default", errors.LINK_UNAUTHORIZED)
        neighbour(node, "x")
        assert node.router.links.overview(node.now)["refusals"] == []

    def test_it_is_forgotten_with_time(self) -> None:
        node = make_node("n", ["x"])
        node.connection("10.0.0.1").send(wire.HELLO, link_hello("z"))
        (row,) = node.router.links.overview(node.now)["refusals"]
        assert row["code"] == errors.LINK_NOT_ALLOWED
        node.now += 60.0
        assert node.router.links.overview(node.now)["refusals"] == []

    def test_strangers_that_make_up_names_are_one_event_and_in_no_view(self) -> None:
        node = make_node("n", ["x"])
        for number in range(50):
            stranger = node.connection(f"10.0.0.{number}")
            stranger.send(wire.HELLO, link_hello(f"made-up-{number}", cluster="other", vpn=f"vpn-{number}"))
            assert stranger.closed_with() == errors.CLUSTER_MISMATCH
        assert len([event for event in node.events if event["event"] == "SYSTEM_LINK_REFUSED"]) == 1
        assert node.router.links.overview(node.now)["refusals"] == []
