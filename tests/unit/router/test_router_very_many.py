"""A round that very many sessions get leaves for some of them at a time, whatever else becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from tests.unit.router.publish_rig import Publisher, PublishNode
from tests.unit.router.wired_gateway import IDENTITY, FakeGateway
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.requirement("R278")

#: So long takes it to send something to 62 sessions in two steps: more are very many.
STEP_US = 310
AT_ONCE = 62
MANY = 100


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


@pytest.mark.requirement("R118")
def test_what_is_retained_all_get_in_one_step(node: PublishNode) -> None:
    """Of two messages on one topic the one is kept that all get last, whoever published them."""
    node.change_vpn(max_retained_mb=1)
    node.queue(wire.RETAINED_QUEUE)
    listeners, publisher = listen(node, "a"), node.publisher()
    publisher.publish(("a", b"x", wire.MODE_PERSISTENT | wire.FLAG_RETAIN))
    assert [client.payloads() for client in listeners] == [[b"x"]] * MANY
