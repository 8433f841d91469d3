"""A round that very many sessions get leaves for some of them at a time, whatever else becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from tests.unit.router.publish_rig import Publisher, PublishNode, ask
from tests.unit.router.wired_gateway import IDENTITY, FakeGateway
from tests.unit.router.wired_mesh import CLUSTER, SECRET, identity_of, link_object
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.requirement("R278")

#: So long takes it to send something to 62 sessions in two steps: more are very many.
STEP_US = 310
AT_ONCE = 62
MANY = 100
KEPT = wire.MODE_PERSISTENT | wire.FLAG_RETAIN


@pytest.fixture
def node(make_publish_node: Any) -> PublishNode:
    made: PublishNode = make_publish_node(delivery_step_us=STEP_US)
    return made


def listen(node: WiredNode, *filters: str, count: int = MANY) -> list[FakeClient]:
    listeners = [node.client() for _ in range(count)]
    for client in listeners:
        client.subscribe(*filters)
    return listeners


def steps(node: WiredNode, listeners: list[FakeClient]) -> Iterator[list[list[bytes]]]:
    """Go on until everything has left; gives what listeners got in each step."""
    while node.router.rounds.turns:
        node.validate()
        node.router.tick(node.now)
        node.settle()
        yield [client.payloads() for client in listeners]


def finish(node: WiredNode, listeners: list[FakeClient]) -> list[list[bytes]]:
    """Go on until everything has left; gives what each listener got, and sees to the length of all steps."""
    found: list[list[bytes]] = [[] for _ in listeners]
    for step in ([client.payloads() for client in listeners], *steps(node, listeners)):
        assert sum(map(bool, step)) <= AT_ONCE
        for got, more in zip(found, step, strict=True):
            got += more
    return found


@pytest.mark.requirement("R116", "R156", "R163")
def test_a_guaranteed_message_leaves_for_some_at_a_time(node: PublishNode) -> None:
    node.queue("q", "all")
    listeners, publisher, other = listen(node, "all"), node.publisher(), node.client()
    other.subscribe("quick")
    publisher.publish(("all", b"1"), ("all", b"2"))
    assert node.payloads("q") == [b"1", b"2"], "queues get it at once"
    other.publish("quick")
    assert other.topics() == ["quick"], "others have their turn"
    got = [[len(one) for one in step] for step in steps(node, listeners)]
    assert got == [[2] * AT_ONCE + [0] * 38, [0] * AT_ONCE + [2] * 38]
    assert publisher.acked() == (2, [])
    assert node.router.stats()["rounds_cut"] == 1


def test_what_one_publishes_behind_it_comes_behind_it(node: PublishNode) -> None:
    node.queue("q", "a")
    listeners, publisher = listen(node, "*"), node.publisher()
    for number in range(3):
        publisher.publish(("a", b"%d" % number))
        publisher.client.publish(("b", b"direct %d" % number), ("a", b"promoted %d" % number))
    assert (
        finish(node, listeners)
        == [[b"%s%d" % (what, number) for number in range(3) for what in (b"", b"direct ", b"promoted ")]]
        * MANY
    )
    assert node.payloads("q") == [b"0", b"promoted 0", b"1", b"promoted 1", b"2", b"promoted 2"]


def test_it_has_retired_when_the_last_one_has_it_and_is_acknowledged_when_it_is_stored(
    node: PublishNode,
) -> None:
    node.queue("q", "a")
    node.hold()
    listeners, publisher = listen(node, "a"), node.publisher()
    publisher.publish("a")
    for _ in steps(node, listeners):
        publisher.client.send(wire.PING, [1])
        assert publisher.client.retired() == (not node.router.rounds.turns)
        assert publisher.told() == []
    node.commit()
    assert publisher.acked() == (1, [])


def test_a_client_that_says_bye_goes_when_the_last_one_has_it(node: PublishNode) -> None:
    node.queue("q", "a")
    listeners, publisher = listen(node, "a"), node.publisher()
    publisher.publish("a")
    publisher.client.send(wire.BYE, [])
    for _ in steps(node, listeners):
        is_there = publisher.client.routing_id in node.router.sessions.by_routing_id
        assert is_there == bool(node.router.rounds.turns)
    assert publisher.client.closed_with() == 0


def test_what_is_sent_again_waits_until_all_have_what_was_sent_before(node: PublishNode) -> None:
    """They get each message once, and in their order, although its client has another connection."""
    node.queue("q", "a")
    node.hold()
    listeners, publisher = listen(node, "a"), node.publisher()
    publisher.publish(("a", b"1"), ("a", b"2"))
    node.router.unreachable(publisher.client.routing_id, 0, node.now, blocked=False)
    node.commit()
    again = Publisher(node, node.client(), "p", resume=True)
    again.publish(("a", b"2"), ("a", b"3"), first=2)
    assert not any(client.payloads() for client in listeners)
    assert finish(node, listeners) == [[b"1", b"2", b"3"]] * MANY
    assert node.payloads("q") == [b"1", b"2", b"3"]
    assert again.acked() == (3, [])


def test_rounds_that_waited_leave_one_after_the_other(node: PublishNode) -> None:
    """They may go on at the same moment: what their homes were given before is on disk."""
    node.queue("q", "a", partition_count=2)
    listeners, publisher = listen(node, "a", "b"), node.publisher()
    node.hold()
    publisher.publish(("a", b"0"))
    assert finish(node, listeners) == [[b"0"]] * MANY
    node.change("q", partition_count=3, homes=[0, 0, 0])
    for number in range(1, 4):
        publisher.publish(("a", b"%d" % number))
    assert finish(node, listeners) == [[]] * MANY
    assert node.router.stats()["spool"]["rounds_waiting"] == 3
    node.commit()
    publisher.client.publish(("b", b"4"))
    assert finish(node, listeners) == [[b"1", b"2", b"3", b"4"]] * MANY
    assert node.router.stats()["spool"]["rounds_waiting"] == 0
    assert publisher.acked() == (4, [])


def test_what_is_refused_nobody_gets(node: PublishNode) -> None:
    node.queue("q", "a")
    node.queue("shut", "b", ingress_enabled=False, reject_to_sender="always")
    listeners, publisher = listen(node, "*"), node.publisher()
    publisher.publish(("a", b"1"), ("b", b"2"), ("c", b"3"))
    assert finish(node, listeners) == [[b"1", b"3"]] * MANY


def test_who_leaves_or_comes_meanwhile_gets_nothing(node: PublishNode) -> None:
    node.queue("q", "a")
    listeners, publisher, late = listen(node, "a", "*"), node.publisher(), node.client()
    publisher.publish("a")
    listeners[97].unsubscribe("a")
    listeners[98].unsubscribe("a", "*")
    node.router.unreachable(listeners[99].routing_id, 0, node.now, blocked=False)
    late.subscribe("a")
    got = finish(node, [*listeners, late])
    assert [len(one) for one in got] == [1] * 98 + [0, 0, 0]


@pytest.mark.requirement("R12", "R68", "R86")
def test_those_who_are_chosen_get_all_in_its_order(node: PublishNode) -> None:
    listeners, publisher = listen(node, "all", "one/*"), node.publisher()
    for client in listeners[90:]:
        client.subscribe("#share/g/few")
    node.queue("q", "all")
    rows = [
        ("all", b"0"),
        ("one/a", b"1", wire.MODE_PERSISTENT | wire.FLAG_DTO),
        ("few", b"2"),
        ("all", b"3"),
    ]
    for _ in range(3):
        publisher.publish(*rows)
    got = finish(node, listeners)
    assert [[one for one in some if one in b"03"] for some in got] == [[b"0", b"3"] * 3] * MANY
    assert sum(some.count(b"1") for some in got) == 3
    assert [sum(some.count(b"2") for some in part) for part in (got[:90], got[90:])] == [0, 3]
    for some in got:
        rounds = b"".join(some).split(b"3")
        assert all(list(one) == sorted(one) for one in rounds), "by index, whatever a row came by"


@pytest.mark.requirement("R12", "R86")
def test_who_is_chosen_for_what_it_gets_anyway_has_it_first(node: PublishNode) -> None:
    """Nobody else of its group gets the message, so it must not be able to leave before its own copy does."""
    listeners, publisher = listen(node, "all"), node.publisher()
    listeners[99].subscribe("#share/g/all")
    publisher.publish("all")
    first = next(steps(node, listeners))
    assert [len(one) for one in first] == [0] * 99 + [1]
    listeners[99].unsubscribe("all")
    assert [len(one) for one in finish(node, listeners)] == [1] * 99 + [0]


@pytest.mark.requirement("R12")
def test_rows_for_very_many_groups_and_sessions_leave_in_pieces_for_some_at_a_time(node: PublishNode) -> None:
    members, listeners = [node.client() for _ in range(2)], listen(node, "dear")
    for client in members:
        client.subscribe(*[f"#share/g{number}/dear" for number in range(20)])
    node.client().publish(*[("dear", b"%d" % number) for number in range(20)])
    assert finish(node, listeners) == [[b"%d" % number for number in range(20)]] * MANY
    assert sum(len(client.payloads()) for client in members) == 20 * 20


def test_what_a_gateway_publishes_leaves_for_some_at_a_time() -> None:
    rows = snapshot(("username", "default", "default", {}))
    node = PublishNode(1, rows, identity=IDENTITY, delivery_step_us=STEP_US)
    node.queue("q", "a")
    gateway, listeners = FakeGateway(node), listen(node, "a")
    gateway.attach().subscribe("a")
    header = [1, 0, False, [[0, 2]], [1]]
    packed = [[index, "a", 0, None, None, b"%d" % index] for index in range(2)]
    gateway.received.clear()
    gateway.send(wire.PUBLISH, header, wire.pack(packed))
    assert finish(node, listeners) == [[b"0", b"1"]] * MANY
    assert gateway.payloads() == [b"1"], "its clients have the other one"
    assert node.payloads("q") == [b"0", b"1"]
    node.validate()


@pytest.fixture
def retaining(node: PublishNode) -> PublishNode:
    node.queue(wire.RETAINED_QUEUE, max_spool_usage_mb=10)
    return node


def kept(node: PublishNode, topic: str = "a") -> bytes:
    """Give what is retained of a topic."""
    return [row.payload for row in node.stored(wire.RETAINED_QUEUE) if row.topic == topic][-1]


def answered(client: FakeClient, number: int) -> dict[str, bytes] | None:
    """Give what a client has read, if it was answered."""
    for frames in client.received:
        if frames[0] == wire.ANSWER and (answer := wire.unpack(frames[1]))[0] == number:
            assert answer[1] == 0, answer
            rows = wire.unpack(frames[2])
            return {row[wire.ROW_TOPIC]: row[wire.ROW_PAYLOAD] for row in rows}
    return None


@pytest.mark.requirement("R248")
class TestRetained:
    """Of two messages on one topic the one is kept that all get last, whoever published them."""

    @pytest.mark.slow
    def test_no_step_is_longer_for_ten_thousand(self, make_publish_node: Any) -> None:
        node = make_publish_node(max_connections=10_001)
        node.queue(wire.RETAINED_QUEUE, max_spool_usage_mb=10)
        node.change_profile(max_connection_count_per_client_username=10_001)
        publisher, egress = node.publisher(), node.router.egress
        listen(node, "a", count=10_000)

        def steps_of(flags: int) -> list[int]:
            before = egress.sent_messages
            publisher.publish(("a", b"x", flags))
            sent = [egress.sent_messages - before]
            while node.router.rounds.turns:
                before = egress.sent_messages
                node.router.tick(node.now)
                node.settle()
                sent.append(egress.sent_messages - before)
            return sent

        assert steps_of(KEPT) == steps_of(wire.MODE_PERSISTENT) == [0] + [600] * 16 + [400]

    @pytest.mark.parametrize("flags", [wire.FLAG_RETAIN, KEPT])
    def test_all_get_last_the_one_of_two_publishers_that_is_kept(
        self, retaining: PublishNode, flags: int
    ) -> None:
        """The second begins with those whom the first has not reached yet."""
        first, second = retaining.publisher("first"), retaining.publisher("second")
        listeners = listen(retaining, "a")
        for client in listeners[50:]:
            client.subscribe("b")
        publish(first, ("a", b"1", flags))
        publish(second, ("b", b"of b", 0), ("a", b"2", flags))
        publish(first, ("a", b"3", KEPT))
        publish(second, ("a", b"4", wire.FLAG_RETAIN))
        got = finish(retaining, listeners)
        assert got[:50] == [[b"1", b"2", b"3", b"4"]] * 50
        assert got[50:] == [[b"1", b"of b", b"2", b"3", b"4"]] * 50
        assert kept(retaining) == b"4"

    def test_one_for_few_waits_behind_those_for_many(self, retaining: PublishNode) -> None:
        listeners = listen(retaining, "a")
        retaining.client().publish(("a", b"1", wire.FLAG_RETAIN))
        for client in listeners[: MANY - 10]:
            client.unsubscribe("a")
        last = listeners[-10:]
        retaining.client().publish(("a", b"2", wire.FLAG_RETAIN))
        assert not any(client.payloads() for client in last)
        assert finish(retaining, last) == [[b"1", b"2"]] * 10
        assert kept(retaining) == b"2"
        assert not retaining.router.dispatcher.crowds.lines
        retaining.client().publish(("a", b"3", wire.FLAG_RETAIN))
        assert [client.payloads() for client in last] == [[b"3"]] * 10, "at once again"

    def test_one_that_nobody_is_left_for_holds_up_none(self, retaining: PublishNode) -> None:
        """Who was subscribed when its set was used last is gone when its worker answers."""
        listen(retaining, "c/d")
        listeners, publisher = listen(retaining, "a", "*"), retaining.client()
        publisher.publish(("a", b"1", wire.FLAG_RETAIN))
        assert finish(retaining, listeners) == [[b"1"]] * MANY
        retaining.pause(0)
        publisher.publish(("a", b"2", wire.FLAG_RETAIN))
        for client in listeners:
            retaining.router.unreachable(client.routing_id, 0, retaining.now, blocked=False)
        while retaining.router.subscriptions.is_busy:
            retaining.router.subscriptions.tick(retaining.now)
        retaining.unpause(0)
        assert retaining.router.dispatcher.crowds.lines
        assert finish(retaining, listeners) == [[]] * MANY
        assert not retaining.router.dispatcher.crowds.lines
        assert kept(retaining) == b"2"

    def test_what_is_not_retained_waits_for_none_of_it(self, retaining: PublishNode) -> None:
        listeners, other = listen(retaining, "a"), retaining.client()
        other.subscribe("b")
        retaining.client().publish(("a", b"1", wire.FLAG_RETAIN))
        retaining.client().publish(("b", b"2", 0))
        assert other.payloads() == [b"2"]
        assert finish(retaining, listeners) == [[b"1"]] * MANY

    def test_nor_does_another_message_vpn(self, make_publish_node: Any) -> None:
        rows = snapshot(("vpn", "", "other", {}), ("username", "other", "default", {}))
        node: PublishNode = make_publish_node(1, rows, delivery_step_us=STEP_US)
        node.queue(wire.RETAINED_QUEUE, max_spool_usage_mb=10)
        node.queue(wire.RETAINED_QUEUE, max_spool_usage_mb=10, vpn="other")
        listeners, other = listen(node, "a"), node.client(vpn="other")
        other.subscribe("a")
        node.client().publish(("a", b"1", wire.FLAG_RETAIN))
        node.client(vpn="other").publish(("a", b"2", wire.FLAG_RETAIN))
        assert other.payloads() == [b"2"]
        assert finish(node, listeners) == [[b"1"]] * MANY

    def test_no_turn_is_lost_with_waiting(self, retaining: PublishNode) -> None:
        listeners = listen(retaining, "a")
        for number in range(10):
            retaining.client().publish(("a", b"%d" % number, wire.FLAG_RETAIN))
        sent = [sum(map(bool, step)) for step in steps(retaining, listeners)]
        assert [some for some in sent if some] == [AT_ONCE, MANY - AT_ONCE] * 10
        assert len(sent) <= 30, "and one more for each publisher, who hears that all have it"

    def test_publishers_hear_of_it_when_the_last_one_has_it(self, retaining: PublishNode) -> None:
        listeners, publishers = listen(retaining, "a"), [retaining.client() for _ in range(3)]
        for client in publishers:
            client.publish(("a", b"x", wire.FLAG_RETAIN), flush=True)
        for _ in steps(retaining, []):
            got = min(len([one for one in client.received if one[0] == wire.DELIVER]) for client in listeners)
            assert all(client.retired() <= (place < got) for place, client in enumerate(publishers))
        assert [client.retired() for client in publishers] == [1, 1, 1]

    def test_who_leaves_meanwhile_gets_nothing_and_who_published_may(self, retaining: PublishNode) -> None:
        listeners, publishers = listen(retaining, "a"), [retaining.client() for _ in range(3)]
        for number, client in enumerate(publishers):
            client.publish(("a", b"%d" % number, wire.FLAG_RETAIN))
        retaining.router.unreachable(publishers[0].routing_id, 0, retaining.now, blocked=False)
        publishers[1].send(wire.BYE, [])
        next(steps(retaining, []))
        retaining.router.unreachable(listeners[99].routing_id, 0, retaining.now, blocked=False)
        listeners[98].unsubscribe("a")
        assert publishers[1].closed_with() is None
        assert finish(retaining, listeners[:98]) == [[b"0", b"1", b"2"]] * 98
        assert not listeners[98].payloads()
        assert publishers[1].closed_with() == 0
        assert kept(retaining) == b"2"

    def test_who_reads_meanwhile_gets_no_older_one_behind_a_newer_one(self, retaining: PublishNode) -> None:
        """It has a subscription to the topic, and begins another one with what is retained: each comes once."""
        listeners, publishers = listen(retaining, "a"), [retaining.client() for _ in range(3)]
        reader = listeners[-1]
        for number in (0, 1):
            publishers[number].publish(("a", b"%d" % number, wire.FLAG_RETAIN))
        next(steps(retaining, []))
        reader.subscribe("*")
        number = ask(reader, "retained.read", filter="*", live=1)
        publishers[2].publish(("a", b"2", wire.FLAG_RETAIN), ("b", b"of b", wire.FLAG_RETAIN))
        for _ in range(20):
            retaining.now += 0.01
            retaining.router.tick(retaining.now)
            retaining.settle()
            if (found := answered(reader, number)) is not None:
                break
        assert reader.payloads() == [b"0", b"1"]
        assert found == {}, "what has yet to come would be the newer one in it"
        for _ in steps(retaining, []):
            pass
        assert reader.payloads() == [b"2", b"of b"]

    def test_who_subscribes_meanwhile_reads_the_one_that_is_kept(self, retaining: PublishNode) -> None:
        listeners, publisher = listen(retaining, "a"), retaining.client()
        publisher.publish(("a", b"1", wire.FLAG_RETAIN))
        next(steps(retaining, []))
        late = retaining.client()
        late.subscribe("a")
        number = ask(late, "retained.read", filter="a", live=1)
        retaining.client().publish(("a", b"2", wire.FLAG_RETAIN))
        retaining.advance(0.1)
        assert (answered(late, number), late.payloads()) == ({"a": b"2"}, [b"2"]), (
            "it leaves out what came before"
        )
        assert [client.payloads() for client in listeners] == [[b"1", b"2"]] * MANY

    def test_who_gets_nothing_of_its_own_reads_it(self, retaining: PublishNode) -> None:
        listen(retaining, "a")
        own = retaining.client(no_local=True)
        own.subscribe("a")
        retaining.client().publish(("a", b"1", wire.FLAG_RETAIN))
        number = ask(own, "retained.read", filter="a", live=1)
        own.publish(("a", b"2", wire.FLAG_RETAIN))
        for _ in range(20):
            retaining.now += 0.01
            retaining.router.tick(retaining.now)
            retaining.settle()
        assert (answered(own, number), own.payloads()) == ({"a": b"2"}, [b"1"])

    def test_what_a_neighbour_brought_that_is_gone_comes_before_what_it_brings_then(self) -> None:
        rows = snapshot(link_object("x"))
        node = PublishNode(1, rows, name="n", identity=identity_of("n"), delivery_step_us=STEP_US)
        node.queue(wire.RETAINED_QUEUE, max_spool_usage_mb=10)
        listeners = listen(node, "a")
        for number in range(2):
            neighbour = node.connection("10.0.0.1")
            link = {"node": "x", "node_id": "id-x", "cluster": CLUSTER, "incarnation": 1}
            neighbour.hello(username=wire.LINK_USERNAME, password=SECRET, link=link)
            neighbour.publish(("a", b"%d" % (2 * number), 0 if number else wire.FLAG_RETAIN))
            node.router.unreachable(neighbour.routing_id, 0, node.now, blocked=False)
        assert finish(node, listeners) == [[b"0", b"2"]] * MANY
        assert kept(node) == b"0"


def publish(publisher: Publisher, *rows: tuple[str, bytes, int]) -> None:
    """Publish a round, a guaranteed one if its last message is."""
    if rows[-1][2] & wire.FLAG_MODE:
        publisher.publish(
            *[(topic, payload, flags or wire.MODE_PERSISTENT) for topic, payload, flags in rows]
        )
    else:
        publisher.client.publish(*rows)
