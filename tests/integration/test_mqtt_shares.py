"""Shared subscriptions with QoS 1 and 2 at a real node: who shares takes from one queue, each message one member."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from gateway.mqtt.codec import ReasonCode
from gateway.mqtt.codec.acknowledge import PubAck, PubRec, PubRel
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw
from tests.integration.mqtt_node import PASSWORD, mqtt_node, orders_url, publish, two_gateways
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = pytest.mark.requirement("R241")

KEPT: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=300)}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with mqtt_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def url(node: Node) -> str:
    return str(node.ready["mqtt"][0])


def queue(node: Node, share: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.run("queue", "show", f"#mqtt/$share/{share}", "--json"))
    return found


def expect_messages(node: Node, share: str, count: int) -> None:
    wait_for(
        lambda: queue(node, share)["messages_spooled"],
        lambda seen: seen == count,
        f"{share} holds {count} messages",
    )


def expect_all(members: list[Paho], count: int) -> None:
    wait_for(
        lambda: sum(one.messages.qsize() for one in members),
        lambda seen: seen == count,
        f"{count} messages have come",
    )


@pytest.mark.parametrize("version", [pytest.param(V3, marks=pytest.mark.long), V5])
def test_each_message_comes_to_one_member_and_is_deleted_when_that_has_acknowledged(
    node: Node, version: int
) -> None:
    """Clients of paho."""
    topic, payloads = f"work{version}", [str(one) for one in range(300)]
    members = [Paho(url(node), f"{topic}/{at}", version=version) for at in range(3)]
    for one in members:
        one.connect()
        one.client.subscribe(f"$share/crew/{topic}/#", 1)
        assert [str(each) for each in one.answers.get(timeout=LIMIT_S)] == ["Granted QoS 1"]
    publish(node, f"{topic}/a", *payloads)
    expect_all(members, len(payloads))
    found = [[message.payload.decode() for message in one.messages.queue] for one in members]
    assert sorted([one for each in found for one in each], key=int) == payloads
    assert all(len(one) > len(payloads) // 10 for one in found), [len(one) for one in found]
    assert all(one == sorted(one, key=int) for one in found), "each has its part in order"
    expect_messages(node, f"crew/{topic}/#", 0)
    for one in members:
        one.__exit__()


def test_with_qos_2_each_message_comes_once_though_members_leave_and_come_back(node: Node) -> None:
    """Clients of paho, which pass a message on when it is released; who leaves has nothing under way."""
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Paho(url(node), f"twice/{at}")) for at in range(3)]
        for one in members:
            assert [str(each) for each in one.subscribe("$share/crew/twice", options=2)] == ["Granted QoS 2"]
        putter = stack.enter_context(Paho(url(node), "twice/putter"))
        for at, one in enumerate(members[:]):
            for number in range(100):
                putter.client.publish("twice", b"%d" % (100 * at + number), qos=2)
            expect_all(members, 100 * (at + 1))
            expect_messages(node, "crew/twice", 0)
            one.__exit__()
            back = stack.enter_context(Paho(url(node), f"twice/{at}"))
            back.subscribe("$share/crew/twice", options=2)
            members.append(back)
        found = [message for one in members for message in one.messages.queue]
        assert {one.qos for one in found} == {2}
        assert sorted(int(one.payload) for one in found) == list(range(300))


def test_what_is_not_completed_when_the_connection_ends_comes_to_another_member(node: Node) -> None:
    with Raw(url(node)) as stays, Paho(url(node), "released/putter") as putter:
        with Raw(url(node)) as goes:
            goes.connect("goes")
            goes.say(Subscribe(9, (Subscription("$share/crew/released", 2),)))
            assert goes.next() == SubAck(9, (2,))
            putter.client.publish("released", b"x", qos=2)
            (message,) = goes.come(1)
            goes.say(PubRec(message.packet_id))
            assert goes.next() == PubRel(message.packet_id)
            stays.connect("stays")
            assert stays.subscribe("$share/crew/released", qos=1) == (1,)
        (again,) = stays.come(1)
        assert (again.payload, again.qos) == (b"x", 1)
        stays.say(PubAck(again.packet_id))
        expect_messages(node, "crew/released", 0)


def test_a_member_that_goes_gives_back_what_it_has_not_acknowledged(node: Node) -> None:
    with Raw(url(node)) as stays, Raw(url(node)) as goes:
        for raw, name in ((stays, "stays"), (goes, "goes")):
            raw.connect(name)
            assert raw.subscribe("$share/crew/back/#", qos=1) == (1,)
        publish(node, "back/a", *map(str, range(20)))
        wait_for(
            lambda: queue(node, "crew/back/#")["delivered_unacked"],
            lambda seen: seen == 20,
            "all are on their way",
        )
        goes.socket.close()
        found = stays.come(20)
        assert {one.payload for one in found} == {b"%d" % one for one in range(20)}
        again = [one for one in found if one.dup]
        assert len(again) in range(1, 20)
        assert len({one.packet_id for one in found}) == 20
        stays.say(*[PubAck(one.packet_id) for one in found])
        expect_messages(node, "crew/back/#", 0)


def test_a_member_with_all_that_it_takes_is_passed_over(node: Node) -> None:
    with Raw(url(node)) as slow, Raw(url(node)) as quick:
        slow.connect("slow", properties=Properties(receive_maximum=1))
        quick.connect("quick")
        for raw in (slow, quick):
            assert raw.subscribe("$share/crew/full", qos=1) == (1,)
        publish(node, "full", *map(str, range(10)))
        (held,) = slow.come(1)
        found = quick.come(9)
        assert sorted([held.payload, *[one.payload for one in found]]) == [b"%d" % one for one in range(10)]
        slow.say(PubAck(held.packet_id))
        quick.say(*[PubAck(one.packet_id) for one in found])
        expect_messages(node, "crew/full", 0)


def test_messages_wait_for_members_that_are_all_away(node: Node) -> None:
    for name in ("away1", "away2"):
        with Raw(url(node)) as raw:
            raw.connect(name, **KEPT)
            assert raw.subscribe("$share/crew/away/+", qos=1) == (1,)
    publish(node, "away/a", *map(str, range(50)))
    assert queue(node, "crew/away/+")["max_idle_s"] == 300
    found = []
    with Raw(url(node)) as one, Raw(url(node)) as other:
        assert one.connect("away1", **KEPT).session_present
        for message in one.come(50):
            found.append(message.payload.decode())
            one.say(PubAck(message.packet_id))
        expect_messages(node, "crew/away/+", 0)
        assert other.connect("away2", **KEPT).session_present
        one.say(Unsubscribe(3, ("$share/crew/away/+",)))
        assert one.next() == UnsubAck(3, (0,))
        publish(node, "away/a", "last")
        (last,) = other.come(1)
        assert last.payload == b"last"
    assert found == [str(one) for one in range(50)]


def test_the_rights_of_the_member_count(node: Node) -> None:
    alice = {"username": "alice", "password": PASSWORD.encode()}
    with Raw(orders_url(node)) as raw:
        assert not raw.connect("a", **alice).code
        codes = raw.subscribe("$share/crew/secret/#", "$share/crew/#", "$share/crew/plant/#", qos=1)
        assert codes == (ReasonCode.NOT_AUTHORIZED, ReasonCode.NOT_AUTHORIZED, 1)
    with Raw(url(node)) as raw:
        raw.connect("b")
        assert (
            raw.subscribe("$share/crew/a/>", "$share/crew/b*", qos=1)
            == (ReasonCode.TOPIC_FILTER_INVALID,) * 2
        )


@pytest.mark.long  # simulation/shared_once kills them
@pytest.mark.slow
@pytest.mark.parametrize("qos", [pytest.param(1, marks=pytest.mark.long), 2])
def test_those_who_share_get_all_that_was_stored_whoever_dies(tmp_path: Path, qos: int) -> None:
    """Members are clients of paho in two processes that come back by themselves; some messages may come twice."""
    fifth = 100
    victims = (("mqtt", 0), ("worker", 0), ("mqtt", 1), ("router", 0))
    kills = {fifth * at: victim for at, victim in enumerate(victims, 1)}
    with two_gateways(tmp_path) as node, contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(Paho(node.mqtt_url, f"m{at}", version=V3, keeps=at % 2 == 0))
            for at in range(4)
        ]
        for one in members:
            one.client.reconnect_delay_set(1, 1)
            one.client.on_connect = lambda client, *_: client.subscribe("$share/crew/kills/#", qos)
            one.subscribe("$share/crew/kills/#", options=qos)
        putter = stack.enter_context(Paho(node.mqtt_url, "putter", version=V3, keeps=True))
        putter.client.reconnect_delay_set(1, 1)
        for number in range(5 * fifth):
            putter.client.publish("kills/a", b"%d" % number, qos=qos)
            if number in kills:
                node.kill(*kills[number])
            time.sleep(0.01)  # so that the kills meet messages of all stages
        waited_for = set(range(5 * fifth))

        def came() -> set[int]:
            for one in members:
                while not one.messages.empty():
                    waited_for.discard(int(one.messages.get().payload))
            return waited_for

        wait_for(came, lambda left: not left, "all have come")
        expect_messages(node, "crew/kills/#", 0)
