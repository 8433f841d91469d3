"""The contract between gateway and router: the carriers of gateways at a real router with real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from angarium import errors, wire
from angarium_server.connections.tls import Certificate
from angarium_server.frames.gateways import Will
from cluster import objects
from cluster.security import passwords
from gateway.attached import Login
from gateway.carrier import IDLE_S
from tests.unit.gateway.played_router import FakeGuest
from tests.unit.gateway.wired_gateways import NodeOfGateways, WiredGateway
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from gateway.session import AttachedWelcome

WILL = Will("gone", 0, None, None, b"x", 0)
STORED = passwords.hash_password("right")
ALLOWED = {
    "client_connect_default": "allow",
    "publish_topic_default": "allow",
    "subscribe_topic_default": "allow",
    "subscribe_share_name_default": "allow",
}
ACL = {**ALLOWED, "subscribe_topic_exceptions": ["secret/>"], "publish_topic_exceptions": ["secret/>"]}
ROWS = snapshot(
    ("vpn", "", "sales", {}),
    ("username", "sales", "default", {}),
    ("acl", "default", "few", ACL),
    ("username", "default", "default", {}),
    ("username", "default", "alice", {"password": STORED, "acl_profile": "few"}),
)
ALICE = {"username": "alice", "password": "right"}
ALWAYS = wire.SUBSCRIBE_DELIVER_ALWAYS


@pytest.fixture
def node() -> Any:
    made = NodeOfGateways(2, ROWS)
    yield made
    made.validate()


@pytest.fixture
def gateway(node: NodeOfGateways) -> WiredGateway:
    return WiredGateway(node)


def subscribe(gateway: WiredGateway, client: Any, *texts: str) -> None:
    client.subscribe([(text, ALWAYS) for text in texts])
    gateway.settle()


def publish(gateway: WiredGateway, client: Any, *topics: str) -> None:
    for topic in topics:
        assert client.refusal_of(topic, 1) == 0
        if not client.has_room():
            gateway.settle()
        assert client.has_room()
        client.publish(topic, 0, None, None, b"x")
    gateway.settle()


def put(gateway: WiredGateway, kind: str, name: str, **attributes: Any) -> None:
    gateway.node.router.operators.put_object(
        kind, "default", name, objects.complete(kind, attributes), gateway.node.now
    )
    gateway.settle()


# Attaching.


def test_clients_are_let_in_and_listed(gateway: WiredGateway) -> None:
    client, _ = gateway.open("c", **ALICE)
    nameless, _ = gateway.open()
    assert client.name == "c"
    assert nameless.name
    listed = {
        row["name"]: row["username"]
        for row in list(gateway.node.router.operators.clients(None, gateway.node.now))
    }
    assert listed == {"c": "alice", nameless.name: "default"}
    assert client.rights.queue_units > 0


@pytest.mark.parametrize(
    ("login", "code"),
    [
        ({**ALICE, "password": "wrong"}, errors.UNAUTHORIZED),
        ({"username": "nobody", "password": "x"}, errors.UNAUTHORIZED),
        ({"username": wire.GATEWAY_USERNAME}, errors.UNAUTHORIZED),
        ({"username": "a" * 200}, errors.MALFORMED_FRAME),
        ({"name": "#gateway/x"}, errors.INVALID_CLIENT_NAME),
        ({"vpn": "nowhere"}, errors.VPN_NOT_ALLOWED),
    ],
)
def test_who_is_refused_is_told_why_and_nobody_else(
    gateway: WiredGateway, login: dict[str, Any], code: int
) -> None:
    _, other = gateway.open("other")
    _, guest = gateway.attach(**login)
    assert guest.take() == [("refused", code)]
    assert other.take() == []


def test_the_certificate_that_a_client_showed_says_who_it_is() -> None:
    gateway = WiredGateway(NodeOfGateways(1, ROWS, tls_username="common-name"))
    gateway.open("c", certificate=Certificate("alice"))
    (row,) = gateway.node.router.operators.clients(None, gateway.node.now)
    assert row["username"] == "alice"


def test_a_newer_client_of_the_same_name_takes_over_also_from_another_process(gateway: WiredGateway) -> None:
    _, older = gateway.open("c")
    second = WiredGateway(gateway.node, index=1)
    _, newer = second.open("c")
    gateway.settle()
    assert older.take() == [("ended", errors.TAKEN_OVER)]
    assert newer.take() == []


def test_who_leaves_is_gone_and_so_is_who_leaves_before_he_is_in(gateway: WiredGateway) -> None:
    client, guest = gateway.open("c")
    client.leave()
    login = Login("default", None, "d", "127.0.0.1", None, "mqtt 5")
    early = gateway.carriers.attach("default", guest, login, gateway.node.now)
    early.leave()
    gateway.settle()
    assert guest.take() == []
    assert list(gateway.node.router.operators.clients(None, gateway.node.now)) == []


def test_who_is_let_in_hears_whether_a_session_of_his_is_there() -> None:
    kept = ("queue", "default", "#mqtt/kept", {"id": 1, "homes": [0], "owner": "default"})
    gateway = WiredGateway(NodeOfGateways(1, [*ROWS, *snapshot(kept)]))
    heard: dict[str, str] = {}

    class Listener(FakeGuest):
        def welcomed(self, welcome: AttachedWelcome, now: float) -> None:
            heard[welcome.client_name] = welcome.new_session

    for name in ("kept", "new/one"):
        login = Login("default", None, name, "127.0.0.1", None, "mqtt 5")
        gateway.carriers.attach("default", Listener(), login, gateway.node.now)
    gateway.settle()
    assert heard == {"kept": "", "new/one": "#mqtt/new%2Fone"}


# Asking.


def test_each_filter_has_its_answer(gateway: WiredGateway) -> None:
    client, guest = gateway.open("c", **ALICE)
    subscribe(gateway, client, "a/>", "secret/x", "#share/g/s", *(f"t/{number}" for number in range(40)))
    assert guest.take() == [("answered", [0, errors.SUBSCRIBE_DENIED, 0] + [0] * 40)]
    client.unsubscribe([("a/>", ALWAYS), ("never", ALWAYS)])
    gateway.settle()
    ((_, (gone, unknown)),) = guest.take()
    assert (gone, bool(unknown)) == (0, True)
    (row,) = gateway.node.router.operators.clients(None, gateway.node.now)
    assert row["subscriptions"] == 41


# Messages.


def test_what_a_client_publishes_arrives_at_native_clients(gateway: WiredGateway) -> None:
    native = gateway.node.client()
    native.subscribe("t/>")
    client, _ = gateway.open("c")
    publish(gateway, client, "t/1", "u", "t/2")
    assert native.topics() == ["t/1", "t/2"]


def test_what_native_clients_publish_comes_once_for_all_clients_of_the_process(gateway: WiredGateway) -> None:
    clients = [gateway.open(name)[0] for name in "abc"]
    for client in clients:
        subscribe(gateway, client, "t/>")
    gateway.node.client().publish("t/1", "u", "t/2")
    gateway.settle()
    assert gateway.topics() == ["t/1", "t/2"]
    clients[0].leave()
    clients[1].unsubscribe([("t/>", ALWAYS)])
    gateway.settle()
    publish(gateway, clients[1], "t/3")
    assert gateway.topics() == ["t/3"]
    clients[2].leave()
    gateway.settle()
    publish(gateway, clients[1], "t/4")
    assert gateway.topics() == []


def test_messages_of_a_share_and_of_an_inbox_come_to_one_client(gateway: WiredGateway) -> None:
    members = [gateway.open(name) for name in "ab"]
    for client, guest in members:
        subscribe(gateway, client, "#share/g/t")
        assert guest.take() == [("answered", [0])]
    native = gateway.node.client()
    for _ in range(10):
        native.publish("t")
    gateway.settle()
    told = [guest.take() for _, guest in members]
    assert sum(map(len, told)) == 10
    assert {what for one in told for what in map(str, one)} == {str(("delivered", ["t"], "#share/g/t"))}
    assert gateway.topics() == []


#: Chi-squared with 14 degrees of freedom is larger once in a thousand times, if all are equally likely.
CHI_SQUARED_14: Final = 36.1


@pytest.mark.requirement("R241")
def test_those_who_share_get_equally_much_however_many_are_in_their_gateway(
    node: NodeOfGateways, gateway: WiredGateway
) -> None:
    """Thirteen in one process and two in another; the seed is that of the node."""
    messages, gateways = 3_000, [gateway] * 13 + [WiredGateway(node, index=1)] * 2
    guests = []
    for number, one in enumerate(gateways):
        client, guest = one.open(f"c{number}")
        subscribe(one, client, "#share/g/t")
        guest.take()
        guests.append(guest)
    native = node.client()
    for at in range(messages):
        native.publish("t")
        if at % 50 == 49:
            for one in (gateways[0], gateways[-1]):
                one.settle()
    got = [sum(len(topics) for _, topics, _ in guest.take()) for guest in guests]
    assert sum(got) == messages
    expected = messages / len(guests)
    assert sum((one - expected) ** 2 / expected for one in got) < CHI_SQUARED_14, got


def test_rows_are_cut_by_the_table_of_the_node_also_when_that_changes(gateway: WiredGateway) -> None:
    node = gateway.node
    client, guest = gateway.open("c")
    topics = [f"t/{number}" for number in range(50)]
    subscribe(gateway, client, "t/>")
    publish(gateway, client, *topics)
    before = node.router.shards.epoch
    node.router.scaling.begin(1, node.now)
    gateway.settle()
    assert node.router.shards.epoch > before
    client.publish("t/last", 0, None, None, b"")
    carrier = gateway.carriers._by_vpn["default"]
    assert carrier.gathering.take().epoch == node.router.shards.epoch
    publish(gateway, client, *topics)
    assert gateway.topics() == topics * 2
    assert [told for told in guest.take() if told != ("may_go_on",)] == [("answered", [0])]


# Rights.


def test_rights_that_an_operator_changes_reach_those_whom_they_concern(gateway: WiredGateway) -> None:
    alice, _ = gateway.open("a", **ALICE)
    other, _ = gateway.open("o")
    before = other.rights
    assert alice.refusal_of("secret/x", 1) == errors.PUBLISH_DENIED
    put(gateway, "acl", "few", **ALLOWED, publish_topic_exceptions=["public"])
    assert [alice.refusal_of(topic, 1) for topic in ("secret/x", "public")] == [0, errors.PUBLISH_DENIED]
    assert other.rights is before


def test_an_operator_disconnects_a_client_and_disables_a_username(gateway: WiredGateway) -> None:
    _, alice = gateway.open("a", **ALICE)
    _, other = gateway.open("o")
    gateway.node.router.operators.disconnect("default", "o", gateway.node.now)
    gateway.settle()
    assert other.take() == [("ended", errors.DISCONNECTED_BY_OPERATOR)]
    put(gateway, "username", "alice", password=STORED, enabled=False)
    assert alice.take() == [("ended", errors.USERNAME_SHUTDOWN)]


def test_what_the_gateway_counts_is_shown(gateway: WiredGateway) -> None:
    client, _ = gateway.open("c")
    client.count("discard.transmit-congestion", 3)
    client.queued = (5, 600)
    gateway.settle()
    shown = gateway.node.router.operators.client("default", "c", gateway.node.now)
    assert (shown["queued_messages"], shown["queued_bytes"]) == (5, 600)
    assert shown["discards"] == {"discard.transmit-congestion": 3}


# Ends.


def test_a_lost_carrier_ends_its_clients_on_both_sides_and_they_may_come_again(gateway: WiredGateway) -> None:
    _, guest = gateway.open("c")
    gateway.lines[0].break_off()
    gateway.settle()
    assert guest.take() == [("ended", errors.NOT_CONNECTED)]
    _, again = gateway.attach("c")
    gateway.node.now += 1.0
    gateway.node.router.tick(gateway.node.now)
    gateway.settle()
    assert again.take() == [("welcomed", "c")]
    assert len(list(gateway.node.router.operators.clients(None, gateway.node.now))) == 1


def test_a_successor_of_the_process_takes_its_place(gateway: WiredGateway) -> None:
    _, guest = gateway.open("c")
    successor = WiredGateway(gateway.node, incarnation=2)
    successor.open("d")
    gateway.settle()
    assert [what for what, _ in guest.take()] == ["ended"]


def test_a_message_vpn_that_is_disabled_ends_the_carrier_there_alone(gateway: WiredGateway) -> None:
    _, default = gateway.open("c")
    _, sales = gateway.open("c", vpn="sales")
    node = gateway.node
    node.router.operators.put_object(
        "vpn", "", "sales", objects.complete("vpn", {"enabled": False}), node.now
    )
    gateway.settle()
    assert sales.take() == [("ended", errors.VPN_UNAVAILABLE)]
    assert default.take() == []
    _, late = gateway.attach("d", vpn="sales")
    node.now += 1.0
    gateway.settle()
    assert late.take() == [("refused", errors.VPN_UNAVAILABLE)]


def test_a_carrier_without_clients_leaves_in_order(gateway: WiredGateway) -> None:
    client, _ = gateway.open("c")
    publish(gateway, client, "t")
    client.leave()
    gateway.settle()
    end = gateway.node.now + IDLE_S + 3
    while gateway.node.now < end:
        gateway.node.now += 1.0
        gateway.node.router.tick(gateway.node.now)
        gateway.settle()
    assert gateway.carriers.is_gone
    (row,) = gateway.carriers.describe()
    assert (row["error"], row["lost"]) == ("", 0)
    assert not gateway.node.router.sessions.by_routing_id


def test_a_will_is_published_for_who_leaves_without_a_word(gateway: WiredGateway) -> None:
    watcher, _ = gateway.open("watcher")
    subscribe(gateway, watcher, "gone")
    for number, will_within_s in enumerate([0, None]):
        client, _ = gateway.open(f"dev{number}", will=WILL)
        client.leave(will_within_s=will_within_s)
        gateway.settle()
        gateway.node.router.tick(gateway.node.now)
        gateway.settle()
        assert gateway.topics() == ["gone"] * (will_within_s == 0)


def test_a_will_is_published_for_who_is_thrown_out(gateway: WiredGateway) -> None:
    watcher, _ = gateway.open("watcher")
    subscribe(gateway, watcher, "gone")
    client, guest = gateway.open("dev", will=WILL)
    client.subscribe([(f"{number}", ALWAYS) for number in range(10_001)])
    gateway.settle()
    assert guest.take() == [("ended", errors.CONTROL_RATE_EXCEEDED)]
    gateway.node.router.tick(gateway.node.now)
    gateway.settle()
    assert gateway.topics() == ["gone"]


def test_a_will_is_not_published_for_who_left_before_he_was_in(gateway: WiredGateway) -> None:
    watcher, _ = gateway.open("watcher")
    subscribe(gateway, watcher, "gone")
    login = Login("default", None, "dev", "127.0.0.1", None, "mqtt 5", WILL)
    client = gateway.carriers.attach("default", FakeGuest(), login, gateway.node.now)
    gateway.carriers.tick(gateway.node.now)
    client.leave(will_within_s=0)
    gateway.settle()
    gateway.node.router.tick(gateway.node.now)
    gateway.settle()
    assert gateway.node.router.sessions.find("default", "dev") is None
    assert gateway.topics() == []


# Clients that stay when their carrier is lost.


def staying(gateway: WiredGateway, name: str, **login: Any) -> tuple[Any, FakeGuest]:
    """A client that has its filter again."""
    client, guest = gateway.open(name, **login)
    subscribe(gateway, client, "t")
    guest.take()
    guest.when_away = lambda: client.subscribe_again([("t", ALWAYS)], lambda *_: None)
    return client, guest


def lose(gateway: WiredGateway) -> None:
    gateway.lines[-1].break_off()
    gateway.node.now += 3.0
    gateway.settle()


@pytest.mark.requirement("R230")
def test_who_stays_is_let_in_by_its_token_and_has_its_filters(gateway: WiredGateway) -> None:
    client, guest = staying(gateway, "c", **ALICE)
    checks = gateway.node.router.counters.totals["password_checks"]
    for _ in range(2):
        lose(gateway)
        assert guest.take() == [("away",), ("may_go_on",)]
        publish(gateway, client, "t")
        assert gateway.topics() == ["t"]
    assert gateway.node.router.counters.totals["password_checks"] == checks
    (row,) = gateway.node.router.operators.clients(None, gateway.node.now)
    assert (row["name"], row["username"], row["subscriptions"]) == ("c", "alice", 1)


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("login", [ALICE, {}])
def test_who_came_under_its_name_meanwhile_keeps_it(
    gateway: WiredGateway, login: dict[str, Any], *, stays: bool
) -> None:
    """At another gateway process; also if nobody needs a password, and if it has gone since."""
    other = WiredGateway(gateway.node, index=1)
    _, older = staying(gateway, "c", **login)
    gateway.lines[-1].break_off()
    newer, told = other.open("c", **login)
    if not stays:
        newer.leave()
    gateway.node.now += 3.0
    gateway.settle()
    other.settle()
    told_older = errors.NOT_CONNECTED if login else errors.TAKEN_OVER  # its token is not good any more
    assert older.take() == [("away",), ("ended", told_older)]
    assert told.take() == []
    assert len(list(gateway.node.router.operators.clients(None, gateway.node.now))) == stays


def test_whose_username_has_changed_meanwhile_logs_in_anew(gateway: WiredGateway) -> None:
    _, guest = staying(gateway, "c", **ALICE)
    gateway.lines[-1].break_off()
    put(gateway, "username", "alice", password=passwords.hash_password("other"), acl_profile="few")
    gateway.node.now += 3.0
    gateway.settle()
    assert guest.take() == [("away",), ("ended", errors.NOT_CONNECTED)]
