"""Deliveries to clients of MQTT: who gets which copy of a message, and as which bytes."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import wire
from angarium.topic import matches
from gateway import fanout
from gateway.egress import Egress
from gateway.mqtt import delivering
from gateway.mqtt.codec.kinds import V3, V5, Sender
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscription
from gateway.mqtt.delivering import Delivering, MqttSubscription
from gateway.mqtt.messages import publish_properties, row_of
from gateway.mqtt.topics import filters_of, mqtt_topic_of
from tests.unit.gateway.clients_of_tests import FakeClient, FakeOutlet
from tests.unit.gateway.streams import begun

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.message import Row


class Bench:
    """Deliveries of a Message VPN to clients that take everything."""

    def __init__(self) -> None:
        self.outlet = FakeOutlet()
        self.delivering = Delivering(Egress(self.outlet, 1 << 30))

    def subscribe(
        self, client: FakeClient, text: str, *, identifier: int | None = None, **options: bool
    ) -> MqttSubscription:
        subscription = MqttSubscription(client, Subscription(text, **options), identifier)
        self.delivering.add(subscription)
        return subscription

    def deliver(self, *rows: Row) -> None:
        self.delivering.deliver(rows, 0.0)
        self.delivering.validate()
        self.outlet.leave_all()

    def got(self, client: FakeClient) -> list[Publish]:
        """Give what a client got since the last time."""
        parser = begun(Sender.SERVER, client.version)
        data = self.outlet.sent.get(client.connection_id, b"")
        found = parser.feed(data)
        assert parser.fault is None
        assert parser.waiting_bytes == 0
        self.outlet.sent[client.connection_id] = b""
        self.outlet._left[client.connection_id] = 0
        return [one for one in found if isinstance(one, Publish)]


def row(topic: str = "a/b", payload: bytes = b"p", sender: str = "native", *, retain: bool = False) -> Row:
    flags, meta, properties = row_of(Publish("t", retain=retain), sender)
    return 0, topic, flags, meta, properties, payload


@pytest.mark.parametrize("version", [V3, V5])
def test_who_subscribed_gets_what_matches_in_its_order(version: int) -> None:
    bench, client, other = Bench(), FakeClient(1, version=version), FakeClient(2, version=version)
    bench.subscribe(client, "a/#")
    subscription = bench.subscribe(other, "b/+")
    bench.deliver(row("a", b"1"), row("b/c", b"2"), row("a/b/c", b"3"), row("c", b"4"))
    assert bench.got(client) == [Publish("a", b"1"), Publish("a/b/c", b"3")]
    assert bench.got(other) == [Publish("b/c", b"2")]
    bench.delivering.remove(subscription)
    bench.deliver(row("b/c", b"5"), row("a", b"6"))
    assert bench.got(client) == [Publish("a", b"6")]
    assert bench.got(other) == []


def test_who_was_never_added_cannot_be_removed() -> None:
    bench, client = Bench(), FakeClient()
    bench.subscribe(client, "a/#")
    with pytest.raises(KeyError):
        bench.delivering.remove(MqttSubscription(client, Subscription("a/#")))


@pytest.mark.requirement("R245")
def test_subscriptions_that_overlap_give_one_copy_with_all_identifiers() -> None:
    bench, five, three = Bench(), FakeClient(1), FakeClient(2, version=V3)
    for client in (five, three):
        bench.subscribe(client, "a/#", identifier=7 if client is five else None)
        bench.subscribe(client, "a/b", identifier=200 if client is five else None)
        bench.subscribe(client, "+/b")
    bench.deliver(row())
    (packet,) = bench.got(five)
    assert sorted(packet.properties.subscription_identifiers) == [7, 200]
    assert bench.got(three) == [Publish("a/b", b"p")]


def test_one_identifier_of_several_subscriptions_is_told_once() -> None:
    bench, client = Bench(), FakeClient()
    bench.subscribe(client, "a/#", identifier=7)
    bench.subscribe(client, "+/b", identifier=7)
    bench.deliver(row())
    (packet,) = bench.got(client)
    assert packet.properties.subscription_identifiers == (7,)


def test_what_a_client_sends_does_not_come_back_where_it_asks_for_that() -> None:
    bench, client, other = Bench(), FakeClient(1), FakeClient(2)
    bench.subscribe(client, "a/#", no_local=True, identifier=1)
    bench.subscribe(other, "a/#")
    bench.deliver(row(sender="c1"), row(sender="c2"), row(sender=""))
    assert len(bench.got(client)) == 2
    assert len(bench.got(other)) == 3
    bench.subscribe(client, "a/b", identifier=2)
    bench.deliver(row(sender="c1"), row(sender="c2"))
    own, others = bench.got(client)
    assert own.properties.subscription_identifiers == (2,)
    assert sorted(others.properties.subscription_identifiers) == [1, 2]


def test_the_flag_retain_is_told_where_that_is_asked_for() -> None:
    bench, plain, keeping = Bench(), FakeClient(1), FakeClient(2)
    bench.subscribe(plain, "a/#")
    bench.subscribe(keeping, "a/#", retain_as_published=True)
    bench.deliver(row(retain=True), row(retain=False))
    assert [packet.retain for packet in bench.got(plain)] == [False, False]
    assert [packet.retain for packet in bench.got(keeping)] == [True, False]


@pytest.mark.requirement("R244")
def test_properties_are_told_to_those_who_know_them() -> None:
    bench, five, three = Bench(), FakeClient(1), FakeClient(2, version=V3)
    given = Properties(content_type="text/plain", user_properties=(("a", "b"),), message_expiry_interval=9)
    flags, meta, packed = row_of(Publish("t", properties=given), "c9")
    for client in (five, three):
        bench.subscribe(client, "#")
    bench.deliver((0, "a/b", flags, meta, packed, b"p"))
    assert bench.got(five) == [Publish("a/b", b"p", properties=given)]
    assert bench.got(three) == [Publish("a/b", b"p")]


def test_who_takes_small_packets_only_goes_without_a_large_one() -> None:
    bench, small, larger, large = Bench(), FakeClient(1), FakeClient(2), FakeClient(3)
    small.packet_bytes_max, larger.packet_bytes_max = 20, 21
    for client in (small, larger, large):
        bench.subscribe(client, "a/#")
    fits = 20 - len(b"\x30\x00\x00\x03a/b\x00")
    bench.deliver(row(payload=b"x" * fits), row(payload=b"x" * (fits + 1)))
    assert [packet.payload for packet in bench.got(small)] == [b"x" * fits]
    assert len(bench.got(larger)) == len(bench.got(large)) == 2
    assert small.counts == {"discard.packet-too-large": 1}
    assert larger.counts == large.counts == {}


@pytest.mark.requirement("R242")
def test_topics_that_mqtt_cannot_say_are_counted_and_those_of_the_node_are_not_there() -> None:
    bench, client = Bench(), FakeClient()
    bench.subscribe(client, "#")
    bench.subscribe(client, "$P2P/#")
    bench.deliver(row("a+b"), row("a/#"), row("#LOG/x"), row("$SYS/x"), row("#P2P/QUE/q"))
    assert bench.got(client) == [Publish("$P2P/QUE/q", b"p")]
    assert client.counts == {"discard.topic-not-mqtt": 2}


def test_what_comes_for_one_client_alone_goes_to_it_with_all_identifiers() -> None:
    bench, client, other = Bench(), FakeClient(1), FakeClient(2)
    bench.subscribe(other, "#")
    shared = [
        MqttSubscription(client, Subscription(f"$share/g/a/{end}"), number)
        for number, end in ((1, "#"), (2, "+"))
    ]
    bench.delivering.deliver_to(shared, [row(sender="c1"), row("a+"), row("#LOG/x")], 0.0)
    bench.delivering.validate()
    assert bench.got(client) == [Publish("a/b", b"p", properties=Properties(subscription_identifiers=(1, 2)))]
    assert bench.got(other) == []
    assert client.counts == {"discard.topic-not-mqtt": 1}


def test_a_turn_has_a_limit_and_the_next_ones_go_on_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "TURN_COPIES", 10)
    monkeypatch.setattr(delivering, "TURN_ROWS", 2)
    bench, clients = Bench(), [FakeClient(number) for number in range(1, 4)]
    for client in clients:
        bench.subscribe(client, "a/#")
    numbered = [row(payload=bytes([number])) for number in range(10)]
    seen: list[list[int]] = []

    def payloads() -> list[int]:
        found = [[packet.payload[0] for packet in bench.got(client)] for client in clients]
        assert found[0] == found[1] == found[2]
        return found[0]

    bench.deliver(*numbered[:3], row("b"))
    assert not bench.delivering.waiting
    bench.deliver(*numbered[3:5])
    assert bench.delivering.waiting
    bench.deliver(*numbered[5:])
    seen.append(payloads())
    while bench.delivering.begin_turn(0.0):
        seen.append(payloads())
    seen.append(payloads())
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert not bench.delivering.waiting


def test_a_turn_of_few_rows_for_very_many_is_worth_its_system_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "TURN_COPIES", 10)
    bench, clients = Bench(), [FakeClient(number) for number in range(1, 31)]
    for client in clients:
        bench.subscribe(client, "a/#")
    bench.deliver(*[row() for _ in range(delivering.TURN_ROWS + 5)])
    assert {len(bench.got(client)) for client in clients} == {delivering.TURN_ROWS}
    assert not bench.delivering.begin_turn(0.0)
    assert {len(bench.got(client)) for client in clients} == {5}


def test_a_topic_that_very_many_filters_match_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "TURN_NODES", 300)
    bench, dear, other = Bench(), FakeClient(1), FakeClient(2)
    for number in range(2_048):
        bench.subscribe(dear, "/".join("a" if number >> bit & 1 else "+" for bit in range(11)))
    bench.subscribe(other, "b")
    bench.deliver(row("b", b"1"), row("/".join("a" * 11), b"2"), row("b", b"3"))
    assert [packet.payload for packet in bench.got(other)] == [b"1"]
    turns = 1
    while bench.delivering.begin_turn(0.0):
        turns += 1
        assert bench.got(other) == [], "order is kept"
    assert 4_095 // (300 + 256) <= turns <= 4_095 // 256
    assert [packet.payload for packet in bench.got(dear)] == [b"2"]
    assert [packet.payload for packet in bench.got(other)] == [b"3"]


def test_what_comes_for_one_client_alone_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "TURN_COPIES", 1)
    monkeypatch.setattr(delivering, "TURN_ROWS", 1)
    bench, client = Bench(), FakeClient()
    subscription = bench.subscribe(client, "a/#")
    bench.deliver(row(payload=b"1"), row(payload=b"2"))
    bench.delivering.deliver_to([subscription], [row(payload=b"3"), row(payload=b"4")], 0.0)
    assert [packet.payload for packet in bench.got(client)] == [b"1", b"3", b"4"]
    bench.delivering.begin_turn(0.0)
    assert [packet.payload for packet in bench.got(client)] == [b"2"]


def test_all_who_get_the_same_share_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, clients = Bench(), [FakeClient(number) for number in range(1, 9)]
    sent: list[bytes] = []
    monkeypatch.setattr(
        bench.delivering._egress, "put", lambda receiver, messages, now: sent.extend(messages)
    )
    for client in clients:
        bench.subscribe(client, "a/#")
    bench.deliver(row())
    assert len(sent) == 8
    assert len({id(data) for data in sent}) == 1


FILTERS = ("#", "a/#", "a/+", "+/b", "a", "$x/#", "$P2P/#", "b")
TOPICS = ("a", "a/b", "b", "b/b", "$x/b", "#P2P/q", "#x", "a+", "c")


class Wish(NamedTuple):
    """A subscription of one of three clients."""

    who: int
    text: str
    no_local: bool
    keeps_retain: bool
    identifier: int | None


wishes = st.builds(
    Wish,
    st.integers(1, 3),
    st.sampled_from(FILTERS),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(1, 300),
)
rows = st.builds(
    lambda topic, sender, retain, payload: row(topic, payload, sender, retain=retain),
    st.sampled_from(TOPICS),
    st.sampled_from(["c1", "c2", "c3", "native"]),
    st.booleans(),
    st.binary(max_size=3),
)


def expected(client: FakeClient, wishes: list[Wish], one: Row, sender: str) -> Publish | None:
    """Give the copy of a row that a client gets, by brute force."""
    matching = [
        wish
        for wish in wishes
        if client.name == f"c{wish.who}"
        and any(matches(pattern, one[1]) for pattern in filters_of(wish.text))
        and not (wish.no_local and client.version == V5 and sender == client.name)
    ]
    topic = mqtt_topic_of(one[1])
    if not matching or topic is None:
        return None
    if client.version == V3:
        return Publish(topic, one[5])
    retain = bool(one[2] & wire.FLAG_RETAIN) and any(wish.keeps_retain for wish in matching)
    numbers = dict.fromkeys(wish.identifier for wish in matching if wish.identifier)
    assert publish_properties(one) == NONE
    return Publish(
        topic, one[5], retain=retain, properties=Properties(subscription_identifiers=tuple(numbers))
    )


def in_any_order(packet: Publish) -> tuple[str, bytes, bool, list[int]]:
    return packet.topic, packet.payload, packet.retain, sorted(packet.properties.subscription_identifiers)


@pytest.mark.slow
@given(
    wishes=st.lists(wishes, max_size=8, unique_by=lambda wish: (wish.who, wish.text)),
    rows=st.lists(rows, max_size=6),
    left=st.sets(st.integers(0, 7)),
)
def test_each_client_gets_what_it_gets_by_brute_force(
    wishes: list[Wish], rows: list[Row], left: set[int]
) -> None:
    bench = Bench()
    clients = [FakeClient(1), FakeClient(2), FakeClient(3, version=V3)]
    there = []
    for wish in wishes:
        client = clients[wish.who - 1]
        is_five = client.version == V5
        there.append(
            bench.subscribe(
                client,
                wish.text,
                identifier=wish.identifier if is_five else None,
                no_local=is_five and wish.no_local,
                retain_as_published=is_five and wish.keeps_retain,
            )
        )
    for remaining in (wishes, [wish for number, wish in enumerate(wishes) if number not in left]):
        bench.deliver(*rows)
        for client in clients:
            copies = [expected(client, remaining, one, sender_in(one)) for one in rows]
            wanted = [in_any_order(copy) for copy in copies if copy is not None]
            assert [in_any_order(packet) for packet in bench.got(client)] == wanted
        for number in sorted(left) if remaining is wishes else ():
            if number < len(there):
                bench.delivering.remove(there[number])


def sender_in(one: Row) -> str:
    packed = one[4]
    assert packed is not None
    return packed[3:].decode()


def no_identifier(number: int) -> int | None:
    return None


def own_identifier(number: int) -> int | None:
    return number + 1


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 200])
@pytest.mark.parametrize("identifier", [no_identifier, own_identifier])
@pytest.mark.parametrize("no_local", [False, True])
def test_plans_take_what_they_are_charged_for(
    clients: int, identifier: Callable[[int], int | None], no_local: bool
) -> None:
    bench, topics = Bench(), [f"a/{number:06}" for number in range(1_000 // clients + 10)]
    for number in range(clients):
        bench.subscribe(FakeClient(number), "a/#", identifier=identifier(number), no_local=no_local)
        bench.subscribe(FakeClient(number), "a/+", identifier=identifier(number))
    find, cache = bench.delivering._fan_out.find, bench.delivering._fan_out._cache
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for topic in topics:
            find(topic)
        taken = tracemalloc.get_traced_memory()[0] - before + sum(topic.__sizeof__() for topic in topics)
    finally:
        tracemalloc.stop()
    assert taken / 1.7 < cache.bytes < taken * 1.7, cache.bytes / taken


def test_a_client_that_is_gone_is_forgotten_some_subscriptions_a_turn() -> None:
    bench, gone, other = Bench(), FakeClient(1), FakeClient(2)
    count = 2 * delivering.TURN_REMOVALS + 1
    left = {f"a/{number}": bench.subscribe(gone, f"a/{number}") for number in range(count)}
    # The last of these is not fanned out, so nothing is to be removed for it.
    text = "$share/some/a/+"
    left[text] = MqttSubscription(gone, Subscription(text), None)
    bench.subscribe(other, "a/+")
    bench.delivering.forget(left)
    sizes = []
    while bench.delivering.begin_turn(0.0):
        sizes.append(len(bench.delivering._fan_out))
        bench.deliver(row("a/0"))
        assert len(bench.got(other)) == 1
    assert sizes == [count + 2 - delivering.TURN_REMOVALS, 3]
    assert not left
    assert len(bench.delivering._fan_out) == 1
