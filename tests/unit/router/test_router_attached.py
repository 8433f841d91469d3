"""Clients that are attached to gateways: what they receive, what their gateway is told, and how they end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from cluster import objects
from router.gateways.attached import ORPHANS_PER_STEP
from tests.unit.router.wired_gateway import IDENTITY, NEAR, FakeAttached, FakeGateway
from tests.unit.router.wired_node import WiredNode, snapshot

#: Filters of a request, which takes more than a step.
FEW = wire.MAX_FILTERS_PER_REQUEST
ROWS = snapshot(
    ("vpn", "", "sales", {}),
    ("acl", "default", "some", {"client_connect_default": "allow", "publish_topic_default": "allow"}),
    ("profile", "default", "other", {}),
    ("username", "default", "default", {}),
    ("username", "default", "alice", {"acl_profile": "some"}),
    ("username", "default", "bob", {"acl_profile": "some"}),
    ("username", "default", "manager", {"subscription_manager": True}),
)


def made_node() -> WiredNode:
    return WiredNode(2, ROWS, identity=IDENTITY)


def made_gateway(node: WiredNode, **fields: Any) -> FakeGateway:
    gateway = FakeGateway(node, **fields)
    assert gateway.welcome
    return gateway


@pytest.fixture
def node() -> Any:
    made = made_node()
    yield made
    made.validate()


@pytest.fixture
def gateway(node: WiredNode) -> FakeGateway:
    return made_gateway(node)


def put(node: WiredNode, kind: str, name: str, **attributes: Any) -> None:
    node.router.operators.put_object(kind, "default", name, objects.complete(kind, attributes), node.now)
    node.settle()


def members(node: WiredNode) -> dict[str, list[str]]:
    """Give pattern -> names of those who are members of its filter."""
    filters = node.router.interest.filters.values()
    return {one.pattern: [session.client_name for session in one.members] for one in filters}


# -- receiving -----------------------------------------------------------------------------------------------


def test_the_gateway_gets_once_what_several_clients_want(node: WiredNode, gateway: FakeGateway) -> None:
    clients = [gateway.attach() for _ in range(3)]
    for client in clients:
        assert client.subscribe("t/>", "t/*", deliver_always=True) == [None, None]
    node.client().publish("t/1")
    assert gateway.topics() == ["t/1"]
    assert [client.topics() for client in clients] == [[], [], []]
    assert members(node) == {"t/>": ["#gateway/mqtt/0"], "t/*": ["#gateway/mqtt/0"]}


def test_it_gets_nothing_more_when_the_last_one_wants_nothing(node: WiredNode, gateway: FakeGateway) -> None:
    first, second = gateway.attach(), gateway.attach()
    for client in (first, second):
        client.subscribe("t", deliver_always=True)
    publisher = node.client()
    assert first.unsubscribe("t", deliver_always=True) == [None]
    publisher.publish("t")
    second.bye()
    assert second.closed_with() == 0
    node.router.subscriptions.tick(node.now)
    publisher.publish("t")
    assert gateway.topics() == ["t"]
    assert members(node) == {}


def test_nothing_is_elided_for_it(node: WiredNode, gateway: FakeGateway) -> None:
    put(node, "profile", "default", eliding=True, eliding_delay_ms=1_000)
    client = gateway.attach()
    client.subscribe("#share/g/t")
    publisher = node.client()
    for _ in range(3):
        publisher.publish("t")
    assert client.topics() == ["t"] * 3


def test_two_gateways_both_get_it(node: WiredNode, gateway: FakeGateway) -> None:
    other = made_gateway(node, index=1)
    for one in (gateway, other):
        one.attach().subscribe("t", deliver_always=True)
    node.client().publish("t")
    assert (gateway.topics(), other.topics()) == (["t"], ["t"])


def test_a_native_client_that_is_chosen_is_chosen_still(node: WiredNode, gateway: FakeGateway) -> None:
    """Clients of a gateway take nothing from those of which one gets each message."""
    native = node.client()
    native.subscribe("t")
    gateway.attach().subscribe("t", deliver_always=True)
    node.client().publish("t")
    assert (native.topics(), gateway.topics()) == (["t"], ["t"])


def test_an_inbox_is_that_of_one_client(node: WiredNode, gateway: FakeGateway) -> None:
    client = gateway.client()
    client.attach()
    inbox = client.take()[1]["inbox"]
    assert client.subscribe(inbox, deliver_always=True) == [None]
    assert gateway.attach().subscribe(inbox, deliver_always=True)[0][0] == errors.RESERVED_TOPIC
    node.client().publish(inbox)
    assert (client.topics(), gateway.topics()) == ([inbox], [])


def test_a_shared_subscription_is_that_of_each_client_and_plain_copies_come_besides(
    node: WiredNode, gateway: FakeGateway
) -> None:
    one = gateway.attach()
    one.subscribe("#share/g/t", deliver_always=True)
    one.subscribe("t", deliver_always=True)
    node.client().publish("t")
    assert gateway.topics() == ["t"]
    (head,) = one.deliveries()
    assert head[1] == [[1, "#share/g/t"]]


def test_each_member_of_a_share_is_equally_likely(node: WiredNode, gateway: FakeGateway) -> None:
    other = made_gateway(node, index=1)
    everybody = [gateway.attach(), gateway.attach(), gateway.attach(), other.attach(), node.client()]
    for client in everybody:
        client.subscribe("#share/g/t")
    publisher = node.client()
    for _ in range(20):
        publisher.publish(*["t"] * 100)
    taken = [len(client.rows()) for client in everybody]
    assert sum(taken) == 2_000
    assert (
        sum((one - 400) ** 2 / 400 for one in taken) < 18.5
    )  # chi-squared: p = 0.001 with 4 degrees of freedom


def test_who_manages_subscriptions_of_others_leaves_these_alone(
    node: WiredNode, gateway: FakeGateway
) -> None:
    gateway.attach(client_name="c")
    manager = node.client(username="manager")
    assert manager.subscribe("t", client="c")[0][0] == errors.SUBSCRIPTION_MANAGER_DENIED


FILTERS = ["a", "#noexport/a", "a/>", ">", "#share/g/a"]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["add", "remove"]), st.integers(0, 5), st.sampled_from(FILTERS), st.booleans()
        ),
        st.tuples(st.sampled_from(["leave", "attach"]), st.integers(0, 5)),
        st.tuples(st.just("die"), st.integers(0, 1)),
    ),
    max_size=30,
)


class World:
    """Two gateways with three clients each."""

    def __init__(self) -> None:
        self.node = made_node()
        self.gateways = [made_gateway(self.node, index=index) for index in range(2)]
        self.clients: dict[int, FakeAttached] = {}
        self.held: dict[int, set[tuple[str, bool]]] = {}
        for index in range(6):
            self.attach(index)

    def attach(self, index: int) -> None:
        self.clients[index] = self.gateways[index % 2].attach(client_name=f"c{index}")
        self.held[index] = set()

    def add(self, index: int, text: str, always: bool) -> None:
        assert self.clients[index].subscribe(text, deliver_always=always) == [None]
        self.held[index].add((text, always))

    def remove(self, index: int, text: str, always: bool) -> None:
        (answer,) = self.clients[index].unsubscribe(text, deliver_always=always)
        assert (answer is None) == ((text, always) in self.held[index])
        self.held[index].discard((text, always))

    def leave(self, index: int) -> None:
        self.clients[index].bye()
        self.attach(index)

    def die(self, index: int) -> None:
        self.gateways[index].die()
        self.gateways[index] = made_gateway(self.node, index=index, incarnation=2)
        for client in range(index, 6, 2):
            self.attach(client)

    def check(self) -> None:
        self.node.validate()
        self.node.router.attached.tick(self.node.now)
        self.node.router.subscriptions.tick(self.node.now)
        self.node.settle()
        plain = {
            index: [one for one in held if not one[0].startswith("#share")]
            for index, held in self.held.items()
        }
        for number, gateway in enumerate(self.gateways):
            session = self.node.router.sessions.by_routing_id[gateway.routing_id]
            wanted = Counter(one for index in range(number, 6, 2) for one in plain[index])
            assert session.wanted == wanted
            texts = [
                text
                for one in self.node.router.interest.filters.values()
                for text in one.members.get(session, ())
            ]
            assert sorted(texts) == sorted(text for text, _ in wanted)


@given(STEPS)
def test_a_gateway_is_a_member_once_of_what_its_clients_want(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    for step, *arguments in steps:
        getattr(world, step)(*arguments)
        world.check()


# -- one request at a time -----------------------------------------------------------------------------------


def ask(client: FakeAttached, request: int) -> None:
    client.say(wire.SUBSCRIBE, [request, [[f"t/{request}/{index}", 1] for index in range(FEW)], None])


def test_who_asks_while_a_request_is_under_way_is_ended_alone(node: WiredNode, gateway: FakeGateway) -> None:
    hasty, other = gateway.attach(), gateway.attach()
    ask(hasty, 1)
    ask(hasty, 2)
    assert hasty.closed_with() == errors.INGRESS_CREDIT_EXCEEDED
    node.advance(0.1)
    assert other.subscribe("t", deliver_always=True) == [None]
    assert gateway.closed_with() is None


def test_he_may_say_other_things_meanwhile(node: WiredNode, gateway: FakeGateway) -> None:
    client, leaving = gateway.attach(), gateway.attach()
    for one in (client, leaving):
        ask(one, 1)
    client.say(wire.PING, [7])
    assert client.take() == (wire.PONG, [7])
    leaving.say(wire.BYE, [])
    assert leaving.closed_with() == 0
    node.advance(0.1)
    assert client.take()[0] == wire.SUBACK
    assert len(node.router.interest) == FEW


# -- rights --------------------------------------------------------------------------------------------------


def test_a_gateway_is_told_once_what_its_clients_may_from_now_on(
    node: WiredNode, gateway: FakeGateway
) -> None:
    other = made_gateway(node, index=1)
    alices = [
        gateway.attach(username="alice"),
        other.attach(username="alice"),
        gateway.attach(username="alice"),
    ]
    bob = gateway.attach(username="bob")
    gateway.attach()
    put(node, "acl", "some", publish_topic_default="disallow", publish_topic_exceptions=["a/>"])
    ((rights, numbers),) = gateway.rights()
    assert (rights[:2], numbers) == ([False, ["a/>"]], [alices[0].number, alices[2].number, bob.number])
    ((_, numbers),) = other.rights()
    assert numbers == [alices[1].number]


def test_it_is_not_told_what_it_need_not_know(node: WiredNode, gateway: FakeGateway) -> None:
    gateway.attach()
    node.client()
    put(node, "profile", "default", max_memory_bytes=1 << 30)
    put(node, "profile", "other", queue_direct_1_max_depth=7)
    put(node, "acl", "some", publish_topic_default="disallow")
    assert gateway.rights() == []
    put(node, "profile", "default", queue_direct_1_max_depth=7)
    ((rights, _),) = gateway.rights()
    assert rights[2] == 7


def test_each_distinct_set_of_rights_is_a_frame(node: WiredNode, gateway: FakeGateway) -> None:
    clients = [gateway.attach(username=name) for name in ("alice", "bob", "alice")]
    put(
        node, "acl", "some", publish_topic_default="disallow", publish_topic_exceptions=["$client-username/>"]
    )
    told = {tuple(rights[1]): numbers for rights, numbers in gateway.rights()}
    numbers = [one.number for one in clients]
    assert told == {("alice/>",): [numbers[0], numbers[2]], ("bob/>",): [numbers[1]]}


def test_who_ends_by_the_change_has_no_rights_to_tell(node: WiredNode, gateway: FakeGateway) -> None:
    client = gateway.attach(username="alice")
    put(node, "username", "alice", enabled=False)
    assert client.closed_with() == errors.USERNAME_SHUTDOWN
    assert gateway.rights() == []


# -- what is counted -----------------------------------------------------------------------------------------


def shown(node: WiredNode, name: str) -> dict[str, Any]:
    return node.router.operators.client("default", name, node.now)


def test_what_a_gateway_counted_is_shown(node: WiredNode, gateway: FakeGateway) -> None:
    client, other = gateway.attach(client_name="c"), gateway.attach(client_name="d")
    gateway.count([client.number, {"messages_in": 3, "discard.transmit-congestion": 2}, 5, 600])
    gateway.count(
        [client.number, {"messages_in": 4, "discard.topic-not-mqtt": 1}, 6, 700], [99, {"x": 1}, 0, 0]
    )
    told = shown(node, "c")
    assert (told["queued_messages"], told["queued_bytes"]) == (6, 700)
    assert told["counters"]["messages_in"] == 4
    assert told["discards"] == {"discard.transmit-congestion": 2, "discard.topic-not-mqtt": 1}
    assert shown(node, "d")["discards"] == {}
    assert other.closed_with() is None


def test_what_was_lost_is_in_the_totals_once(node: WiredNode, gateway: FakeGateway) -> None:
    for name in ("c", "d"):
        client = gateway.attach(client_name=name)
        for total in (1, 3):
            gateway.count(
                [client.number, {"discard.transmit-congestion": total, "discard.topic-not-mqtt": total}, 0, 0]
            )
    expected = {"transmit-congestion": 6, "topic-not-mqtt": 6}
    assert node.router.stats()["discards"] == expected
    client.bye()
    assert node.router.stats()["discards"] == expected


@pytest.mark.parametrize("clients", [[[0, {}, 0, 0]], [[1, {"x": -1}, 0, 0]], [[1, {}, 0, 0]] * 501, [[1]]])
def test_a_count_of_another_shape_ends_the_gateway(gateway: FakeGateway, clients: list[list[Any]]) -> None:
    gateway.count(*clients)
    assert gateway.closed_with() == errors.MALFORMED_FRAME


# -- ends ----------------------------------------------------------------------------------------------------


def test_operators_see_and_end_an_attached_client(node: WiredNode, gateway: FakeGateway) -> None:
    client = gateway.attach(client_name="c")
    client.subscribe("t", "#share/g/t", deliver_always=True)
    listed = list(node.router.operators.subscriptions(None, "c"))
    assert [(row["filter"], row["dto_priority"]) for row in listed] == [("t", "DA"), ("#share/g/t", "P1")]
    assert len(shown(node, "c")["subscription_list"]) == 2
    node.router.operators.disconnect("default", "c", node.now)
    node.settle()
    assert client.closed_with() == errors.DISCONNECTED_BY_OPERATOR
    assert gateway.closed_with() is None


def test_a_disabled_message_vpn_ends_all_of_it(node: WiredNode, gateway: FakeGateway) -> None:
    gateway.attach()
    node.router.operators.put_object(
        "vpn", "", "default", objects.complete("vpn", {"enabled": False}), node.now
    )
    node.settle()
    assert gateway.closed_with() == errors.VPN_UNAVAILABLE
    node.router.attached.tick(node.now)
    assert len(node.router.sessions) == 0


def test_a_client_is_kept_alive_by_its_gateway(node: WiredNode, gateway: FakeGateway) -> None:
    client = gateway.attach()
    for _ in range(100):
        gateway.send(wire.PING, [1])
        node.now += 1
        node.router.tick(node.now)
    node.settle()
    assert client.closed_with() is None
    node.now += 100
    node.router.tick(node.now)
    assert gateway.routing_id not in node.router.sessions.by_routing_id
    node.router.tick(node.now)
    assert len(node.router.sessions) == 0


def test_clients_of_a_gateway_that_died_end_some_in_each_step(node: WiredNode, gateway: FakeGateway) -> None:
    count = 2 * ORPHANS_PER_STEP + 1
    for index in range(count):
        gateway.attach(client_name=f"c{index}").subscribe("t", f"t/{index}", deliver_always=True)
    staying = made_gateway(node, index=1).attach(client_name="stays")
    gateway.die()
    left = [len(node.router.sessions)]
    while left[-1] > 1:
        node.validate()
        assert node.router.tick(node.now) <= node.now or len(node.router.sessions) == 1
        node.settle()
        left.append(len(node.router.sessions))
    assert left == [count + 1, count + 1 - ORPHANS_PER_STEP, count + 1 - 2 * ORPHANS_PER_STEP, 1]
    assert staying.closed_with() is None
    node.advance(1)
    assert members(node) == {}
    ended = [event for event in node.events if event["event"] == "CLIENT_DISCONNECT"]
    assert len(ended) == count


@pytest.mark.parametrize("takes_over", [True, False])
def test_who_comes_back_meanwhile_takes_the_place_of_his_own(
    node: WiredNode, gateway: FakeGateway, takes_over: bool
) -> None:
    for index in range(2 * ORPHANS_PER_STEP):
        gateway.attach(client_name=f"c{index}")
    gateway.die()
    new = made_gateway(node, incarnation=2)
    name = f"c{2 * ORPHANS_PER_STEP - 1}"
    client = new.attach(client_name=name, behalf={"takes_over": takes_over})
    assert client.subscribe("t", deliver_always=True) == [None]
    node.advance(1)
    assert [row["name"] for row in list(node.router.operators.clients(None, node.now))] == [name]
    assert shown(node, name)["subscriptions"] == 1


def test_who_has_no_connection_any_more_costs_no_message_of_others(
    node: WiredNode, gateway: FakeGateway
) -> None:
    """An orphan may still be chosen; what it is given is lost, and counted."""
    gateway.attach().subscribe("#share/g/t")
    publisher = node.client()
    gateway.die()
    publisher.publish("t")
    assert node.router.stats()["discards"] == {"client-not-connected": 1}
    node.advance(1)
    publisher.publish("t")
    assert node.router.stats()["discards"]["no-subscription-match"] == 1


def test_a_gateway_that_leaves_takes_its_clients_along(node: WiredNode, gateway: FakeGateway) -> None:
    gateway.attach()
    gateway.send(wire.BYE, [])
    assert gateway.closed_with() == 0
    node.advance(1)
    assert len(node.router.sessions) == 0


def test_a_node_that_goes_down_ends_gateways_and_clients(node: WiredNode, gateway: FakeGateway) -> None:
    client = gateway.attach()
    for _ in range(3):
        done = node.router.drain(node.now)
        node.settle()
    assert done
    assert (gateway.closed_with(), client.closed_with()) == (errors.SHUTTING_DOWN, errors.SHUTTING_DOWN)
    node.router.attached.tick(node.now)


def test_the_address_of_each_client_is_its_own(node: WiredNode, gateway: FakeGateway) -> None:
    gateway.attach(client_name="c")
    assert shown(node, "c")["address"] == "127.0.0.1" != NEAR
