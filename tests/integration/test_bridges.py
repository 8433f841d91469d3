"""Static bridges between Message VPNs of one real node: direct messages, loops, refusals."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from angarium import blocking, errors
from angarium_server.testing import Node
from tests.integration.bridged import Operator, receive
from tests.integration.mesh_messages import receive_all
from tests.waiting import expect_value, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """One node with three Message VPNs; tests use topics and bridges of their own."""
    with Node(tmp_path_factory.mktemp("bridges") / "data", workers=2) as node, Operator(node) as made:
        made.make_vpns("sales", "stock")
        yield made


def publish(client: blocking.Client, topic: str, count: int, start: int = 0) -> list[bytes]:
    numbers = [b"%d" % number for number in range(start, start + count)]
    client.publish_many([(f"{topic}/{int(number) % 7}", number) for number in numbers])
    client.flush()
    return numbers


def test_direct_messages_come_over_once_and_in_order(operator: Operator) -> None:
    name = operator.node.ready["node"]
    row = operator.bridge("default", "from-sales", remote_vpn="sales", remote_subscriptions=["sold/>"])
    assert row["remote_node"] == name
    with (
        blocking.connect(operator.node.url) as here,
        blocking.connect(operator.node.url, vpn="sales") as there,
    ):
        subscription, there_too = here.subscribe(">"), there.subscribe("back/>")
        sent = publish(there, "sold", 3_000)
        publish(there, "unsold", 5)
        assert receive(subscription, 3_000) == sent
        publish(here, "back", 1)
        assert receive_all(there_too) == [], "a bridge has one direction"
    row = operator.wait_for("default", "from-sales", lambda row: row["messages"] >= 3_000)
    assert row["dropped"] == {"visited": 0, "max_hops": 0}


@pytest.mark.requirement("R248")
def test_what_is_to_be_retained_is_retained_behind_a_bridge_too(operator: Operator) -> None:
    operator.bridge("default", "retains", remote_vpn="sales", remote_subscriptions=["state/>"])
    with (
        blocking.connect(operator.node.url) as here,
        blocking.connect(operator.node.url, vpn="sales") as there,
    ):
        for payload in (b"1", b"2"):
            there.publish("state/a", payload, retain=True)
            there.publish("state/b", payload)
        there.flush()
        wait_until(lambda: [one.payload for one in here.retained(">")] == [b"2"])
        there.publish("state/a", b"", retain=True)
        there.flush()
        wait_until(lambda: not list(here.retained(">")))


def test_opposite_bridges_whose_subscriptions_overlap_make_no_loop(operator: Operator) -> None:
    pair = ["default", "sales"]
    for number, vpn in enumerate(pair):
        operator.bridge(vpn, "both", remote_vpn=pair[1 - number], remote_subscriptions=["both/>"])
    with ExitStack() as stack:
        clients = [stack.enter_context(blocking.connect(operator.node.url, vpn=vpn)) for vpn in pair]
        subscriptions = [client.subscribe("both/>") for client in clients]
        sent = publish(clients[0], "both/a", 50)
        more = publish(clients[1], "both/b", 50, start=100)
        for subscription in subscriptions:
            got = receive(subscription, 100)
            assert sorted(got, key=int) == sent + more
            assert [one for one in got if one in sent] == sent
    for vpn in pair:  # each came back once, and no further
        operator.wait_for(vpn, "both", lambda row: row["dropped"]["visited"] == 50)


def test_a_message_goes_round_a_triangle_once(operator: Operator) -> None:
    ring = ["default", "sales", "stock"]
    for number, vpn in enumerate(ring):
        operator.bridge(vpn, "ring", remote_vpn=ring[number - 1], remote_subscriptions=["ring/>"])
    with ExitStack() as stack:
        clients = [stack.enter_context(blocking.connect(operator.node.url, vpn=vpn)) for vpn in ring]
        subscriptions = [client.subscribe("ring/>") for client in clients]
        sent = publish(clients[0], "ring", 20)
        for subscription in subscriptions:
            assert receive(subscription, 20) == sent
    operator.wait_for("default", "ring", lambda row: row["dropped"] == {"visited": 20, "max_hops": 0})
    expect_value(lambda: [operator.show(vpn, "ring")["messages"] for vpn in ring], [0, 20, 20], "messages")


def test_a_message_crosses_no_more_bridges_than_allowed(operator: Operator) -> None:
    chain = ["default", "sales", "stock"]
    for number in (1, 2):
        operator.bridge(
            chain[number], "hops", remote_vpn=chain[number - 1], remote_subscriptions=["hops/>"], max_hops=1
        )
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(blocking.connect(operator.node.url, vpn=vpn)) for vpn in chain
        )
        near, far = second.subscribe("hops/>"), third.subscribe("hops/>")
        sent = publish(first, "hops", 10)
        assert receive(near, 10) == sent
        operator.wait_for("stock", "hops", lambda row: row["dropped"] == {"visited": 0, "max_hops": 10})
        operator.change("stock", "hops", max_hops=2)
        sent = publish(first, "hops", 10)
        assert receive(far, 10) == sent, "an update takes effect on a bridge that is up"


def test_deliver_to_one_counts_the_bridge_with_its_priority(operator: Operator) -> None:
    """A client of the remote Message VPN comes first, unless the bridge is outside of the choice."""
    told = {"remote_vpn": "sales", "remote_subscriptions": ["one/>"]}
    operator.bridge("default", "one", **told, remote_deliver_to_one_priority="p4")
    with (
        blocking.connect(operator.node.url) as here,
        blocking.connect(operator.node.url, vpn="sales") as there,
    ):
        mine, theirs = here.subscribe("one/>"), there.subscribe("one/>")
        for _ in range(10):
            there.publish("one/x", b"", dto=True)
        assert (len(receive(theirs, 10)), len(receive_all(mine))) == (10, 0)
        operator.change("default", "one", remote_deliver_to_one_priority="da")
        for _ in range(10):
            there.publish("one/x", b"", dto=True)
        assert (len(receive(theirs, 10)), len(receive(mine, 10))) == (10, 10)


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"remote_vpn": "nowhere"}, errors.UNAUTHORIZED),
        ({"remote_vpn": "default"}, errors.BRIDGE_TO_ITSELF),
        ({"remote_username": "nobody"}, errors.UNAUTHORIZED),
        ({"remote_vpn": "closed"}, errors.BRIDGE_NOT_ALLOWED),
        ({"addresses": ["tcp://127.0.0.1:9"]}, errors.CONNECT_FAILED),
        ({"remote_password_file": "/nowhere"}, errors.INVALID_CONFIGURATION),
    ],
)
def test_a_bridge_that_cannot_come_up_says_why(
    operator: Operator, attributes: dict[str, Any], code: int
) -> None:
    name = f"wrong-{next(iter(attributes))}-{code}"
    if attributes.get("remote_vpn") == "closed":
        operator.make("vpn", "", "closed")
        operator.make("username", "closed", "default")
    operator.make(
        "bridge",
        "default",
        name,
        **{"remote_vpn": "sales", **attributes},
        remote_subscriptions=["a"],
    )
    try:
        row = operator.wait_for("default", name, lambda row: row.get("attempts", 0) > 1)
        assert row["state"] == "down"
        assert str(code) in row["error"]
        told = [one for one in operator.events("VPN_BRIDGE_REFUSED") if one.get("bridge") == name]
        passes_by_itself = code == errors.CONNECT_FAILED
        assert [event["code"] for event in told] == ([] if passes_by_itself else [code])
    finally:
        operator.delete("bridge", "default", name)


@pytest.mark.parametrize(
    "attributes",
    [
        {"remote_subscriptions": []},
        {"remote_vpn": ""},
        {"remote_subscriptions": ["#share//x"]},
        {"remote_subscriptions": ["!a"]},
        {"remote_deliver_always_subscriptions": ["a"]},
        {"max_hops": 0},
        {"max_hops": 256},
        {"remote_deliver_to_one_priority": "p5"},
        {"addresses": ["tcp://10.0.0.1:55555"]},
        {"remote_password_file": "relative"},
    ],
)
def test_a_bridge_that_makes_no_sense_is_not_made(operator: Operator, attributes: dict[str, Any]) -> None:
    sensible = {"remote_vpn": "sales", "remote_subscriptions": ["a"]}
    with pytest.raises(errors.InvalidRequestError) as raised:
        operator.make("bridge", "default", "senseless", **{**sensible, **attributes})
    assert raised.value.code == errors.INVALID_ATTRIBUTE


def test_a_bridge_is_switched_off_and_on_and_deleted_with_its_process(operator: Operator) -> None:
    """As an operator does it, with the command."""
    node = operator.node
    settings = ["--set", "remote_vpn=sales", "--set", "remote_subscriptions=life/>,death"]
    node.run("bridge", "create", "life", "--vpn", "stock", *settings)
    number = operator.wait_up("stock", "life")["number"]
    (row,) = map(json.loads, node.run("bridge", "list", "li*", "--json").splitlines())
    assert (row["vpn"], row["name"], row["state"]) == ("stock", "life", "up")
    assert row["remote_subscriptions"] == ["life/>", "death"]
    node.run("bridge", "update", "life", "--vpn", "stock", "--set", "enabled=false")
    operator.wait_for(
        "stock", "life", lambda row: row["state"] == "disabled" and number not in operator.processes()
    )
    operator.update("bridge", "stock", "life", enabled=True)
    operator.wait_up("stock", "life")
    node.kill("bridge", number)
    operator.wait_for("stock", "life", lambda row: row["state"] == "up" and row["attempts"] < 2)
    node.run("bridge", "delete", "life", "--vpn", "stock")
    wait_until(
        lambda: number not in operator.processes() and _is_told_down(operator, "life"),
        "the end of its process",
    )


def _is_told_down(operator: Operator, name: str) -> bool:
    return any(event["bridge"] == name for event in operator.events("VPN_BRIDGE_DOWN"))
