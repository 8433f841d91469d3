"""Guaranteed messages of attached clients at a real router with real workers and homes: stored, then acknowledged."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from tests.unit.gateway.wired_gateways import NodeOfGateways, WiredGateway
from tests.unit.router.publish_rig import PublishNode
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from tests.unit.gateway.played_router import FakeGuest

NOBODY = errors.NO_SUBSCRIPTION_MATCH


class StoringNode(NodeOfGateways, PublishNode):
    """A node of gateways that stores."""


@pytest.fixture
def node() -> Any:
    made = StoringNode(2, snapshot(("username", "default", "default", {})))
    yield made
    made.validate()


@pytest.fixture
def gateway(node: StoringNode) -> WiredGateway:
    return WiredGateway(node)


def store(gateway: WiredGateway, client: Any, *messages: tuple[int, str], payload: bytes = b"") -> None:
    for name, topic in messages:
        assert client.guaranteed_refusal_of(topic, 1) == 0
        assert client.has_room_guaranteed()
        client.publish_guaranteed(topic, wire.MODE_PERSISTENT, None, None, payload or b"%d" % name, name)
    gateway.settle()


def answers(guest: FakeGuest) -> list[tuple[int, int]]:
    return [one for _, some in guest.take() for one in some]


def test_what_clients_publish_is_acknowledged_when_it_is_on_disk(
    gateway: WiredGateway, node: StoringNode
) -> None:
    node.queue("q", "t/>")
    clients = [gateway.open(name) for name in "ab"]
    store(gateway, clients[0][0], (1, "t/0"))
    assert clients[0][1].take() == [("acknowledged", [(1, 0)])]
    node.hold()
    store(gateway, clients[0][0], (2, "t/1"), (3, "t/2"))
    store(gateway, clients[1][0], (1, "t/3"))
    assert [guest.take() for _, guest in clients] == [[], []]
    node.commit()
    gateway.settle()
    told = [answers(guest) for _, guest in clients]
    assert told == [[(2, 0), (3, 0)], [(1, 0)]]
    assert node.payloads("q") == [b"1", b"2", b"3", b"1"]


def test_a_full_queue_refuses_what_does_not_fit_and_takes_the_rest(
    gateway: WiredGateway, node: StoringNode
) -> None:
    node.queue("small", "s", max_spool_usage_mb=1)
    node.queue("large", "l")
    client, guest = gateway.open("c")
    store(gateway, client, (1, "s"), (2, "l"), (3, "s"), (4, "l"), payload=b"x" * 600_000)
    told = answers(guest)
    assert told == [(1, 0), (2, 0), (3, errors.SPOOL_OVER_QUOTA), (4, 0)]


def test_who_is_told_that_nobody_wanted_it_had_no_direct_subscriber_either(
    gateway: WiredGateway, node: StoringNode
) -> None:
    node.queue("q", "stored")
    node.client().subscribe("direct", "#share/g/shared")
    client, guest = gateway.open("c")
    store(gateway, client, (1, "direct"), (2, "nobody"), (3, "stored"), (4, "nobody"), (5, "shared"))
    store(gateway, client, (6, "direct"))
    store(gateway, client, (7, "nobody"), (8, "nobody"))
    store(gateway, client, (9, "stored"))
    told = dict(answers(guest))
    assert told == {1: 0, 2: NOBODY, 3: 0, 4: NOBODY, 5: 0, 6: 0, 7: NOBODY, 8: NOBODY, 9: 0}


def test_native_producers_are_told_of_endpoints_as_ever(node: StoringNode) -> None:
    node.client().subscribe("direct")
    publisher = node.publisher()
    publisher.publish("direct", "direct")
    ((*_, nowhere),) = publisher.told()
    assert nowhere == [[1, 2]]


def test_a_message_to_a_queue_that_is_not_there_is_refused(gateway: WiredGateway) -> None:
    client, guest = gateway.open("c")
    store(gateway, client, (1, wire.QUEUE_TOPIC_PREFIX + "nowhere"))
    assert guest.take() == [("acknowledged", [(1, errors.UNKNOWN_ENDPOINT)])]


def test_the_profile_of_its_clients_does_not_refuse_what_nobody_wants(
    gateway: WiredGateway, node: StoringNode
) -> None:
    node.change_profile(reject_no_subscription_match=True)
    client, guest = gateway.open("c")
    store(gateway, client, (1, "nobody"))
    assert guest.take() == [("acknowledged", [(1, NOBODY)])]


def test_the_death_of_a_home_costs_time_only(gateway: WiredGateway, node: StoringNode) -> None:
    node.queue("q", "t")
    client, guest = gateway.open("c")
    store(gateway, client, (1, "t"))
    node.hold()
    store(gateway, client, (2, "t"), (3, "t"))
    index = node.home_of("q").index
    node.restart_worker(index)
    node.commit()
    gateway.settle()
    assert answers(guest) == [(1, 0), (2, 0), (3, 0)]
    assert node.payloads("q") == [b"1", b"2", b"3"]


def test_the_next_carrier_goes_on_above_what_is_stored(gateway: WiredGateway, node: StoringNode) -> None:
    node.queue("q", "t")
    client, guest = gateway.open("c")
    store(gateway, client, (1, "t"), (2, "t"))
    guest.take()
    node.hold()
    store(gateway, client, (3, "t"))
    gateway.lines[-1].break_off()
    gateway.settle()
    assert guest.take() == [("ended", errors.NOT_CONNECTED)]
    successor = WiredGateway(node, incarnation=2)
    again, told = successor.open("c")
    store(successor, again, (3, "t"), (4, "t"))
    node.commit()
    successor.settle()
    assert answers(told) == [(3, 0), (4, 0)]
    assert node.payloads("q") == [b"1", b"2", b"3", b"3", b"4"]
    assert len(set(node.sequences("q"))) == 5


def test_operators_see_the_producer(gateway: WiredGateway, node: StoringNode) -> None:
    client, _ = gateway.open("c")
    store(gateway, client, (1, "t"), (2, "t"))
    (row,) = node.router.publishing.producers.describe("default")
    assert (row["username"], row["name"]) == (wire.GATEWAY_USERNAME, "#mqtt/n1/0")
    assert (row["window"], row["acks"], row["unacked_messages"]) == (wire.LINK_WINDOW, 2, 0)


class Sender:
    """A client that sends again what was not acknowledged, whenever it comes back."""

    def __init__(self, gateway: WiredGateway, name: str) -> None:
        self._gateway, self._name = gateway, name
        self._unacknowledged: deque[int] = deque()
        self._last = 0
        self.acknowledged: set[bytes] = set()
        self._client, self._guest = gateway.open(name)

    def send(self) -> None:
        self._last += 1
        self._unacknowledged.append(self._last)
        self._publish(self._last)

    def _publish(self, number: int) -> None:
        self._client.publish_guaranteed(
            f"t/{number % 3}", wire.MODE_PERSISTENT, None, None, self._payload(number), number
        )

    def _payload(self, number: int) -> bytes:
        return f"{self._name} {number}".encode()

    def listen(self) -> None:
        for what, told in self._guest.take():
            if what != "acknowledged":
                self._come_back()
                continue
            for name, code in told:
                assert (name, code) == (self._unacknowledged.popleft(), 0)
                self.acknowledged.add(self._payload(name))

    def _come_back(self) -> None:
        node = self._gateway.node
        self._client, self._guest = self._gateway.attach(self._name)
        node.now += 3.0  # the pause before the next try
        node.router.tick(node.now)
        self._gateway.settle()
        assert self._guest.take() == [("welcomed", self._name)]
        for number in self._unacknowledged:
            self._publish(number)

    def finish(self, stored: list[bytes]) -> None:
        assert not self._unacknowledged
        assert self.acknowledged == {self._payload(number) for number in range(1, self._last + 1)}
        own = [one for one in dict.fromkeys(stored) if one.startswith(self._name.encode())]
        assert own == [self._payload(number) for number in range(1, self._last + 1)]


_steps = st.lists(
    st.sampled_from(["a", "a", "b", "b", "hold", "commit", "worker 0", "worker 1", "carrier", "router"]),
    max_size=25,
)


@given(_steps)
def test_what_was_acknowledged_is_stored_once_at_least_in_order_whatever_ends(steps: list[str]) -> None:
    node = StoringNode(2, snapshot(("username", "default", "default", {})))
    node.queue("first", "t/>")
    node.queue("second", "t/>", home=1)
    gateway = WiredGateway(node)
    senders = {name: Sender(gateway, name) for name in "ab"}
    for step in [*steps, "commit", "settle", "settle"]:
        what, _, index = step.partition(" ")
        if what in senders:
            senders[what].send()
        elif what == "hold":
            node.hold()
        elif what == "commit":
            node.commit()
        elif what == "worker":
            node.restart_worker(int(index))
        elif what == "router":
            node.restart_router()
        if what in ("carrier", "router") and not gateway.lines[-1].closed:
            gateway.lines[-1].break_off()
        gateway.settle()
        for sender in senders.values():
            sender.listen()
        gateway.settle()
    for sender in senders.values():
        sender.listen()
        for queue in ("first", "second"):
            sender.finish(node.payloads(queue))
    node.validate()
