"""Slow clients: queues by class of service, discards, indications, the budget of the node; and eliding."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import wire
from cluster import objects
from router.delivery.egress import plain_delivery
from router.ground.config import RouterConfig
from tests.unit.router.wired_node import WiredNode, snapshot

COS2, COS3 = 1 << wire.COS_SHIFT, 2 << wire.COS_SHIFT
ELIDING = wire.FLAG_ELIDING


def _rows(**profile: Any) -> list[list[Any]]:
    return snapshot(
        ("profile", "default", "slow", profile), ("username", "default", "slow", {"client_profile": "slow"})
    )


def _grant(client: Any, messages: int) -> None:
    """Grant one more message at a time, so that every queued batch is sent as it is queued."""
    session = client.node.router.sessions.by_routing_id[client.routing_id]
    client.send(wire.CREDIT, [session.granted_messages + messages, 1 << 40])


def test_without_credit_nothing_is_sent_and_with_credit_everything_in_order(node: WiredNode) -> None:
    slow, publisher = node.client(credit=[0, 0]), node.client()
    slow.subscribe("a")
    for n in range(5):
        publisher.publish(("a", b"%d" % n))
    assert slow.rows() == []
    _grant(slow, 100)
    assert slow.payloads() == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.requirement("R8", "R45")
def test_overflow_drops_the_oldest_and_the_new_head_carries_the_indication(make_node: Any) -> None:
    node = make_node(1, _rows(queue_direct_1_max_depth=2, queue_direct_1_min_msg_burst=0))
    slow, healthy, publisher = node.client(username="slow", credit=[0, 0]), node.client(), node.client()
    slow.subscribe("a")
    healthy.subscribe("a")
    for n in range(20):
        publisher.publish(("a", b"%02d" % n + b"x" * 500))
    assert len(healthy.rows()) == 20
    _grant(slow, 100)
    heads = slow.node.clients[slow.routing_id].received
    first = next(wire.unpack(frames[1]) for frames in heads if frames[0] == wire.DELIVER)
    kept = [payload[:2] for payload in slow.payloads()]
    assert kept == [b"%02d" % n for n in range(20 - len(kept), 20)]
    assert 5 <= len(kept) <= 8
    assert first[0] & wire.DELIVER_DISCARD_INDICATION
    assert first[2] == 20 - len(kept)
    assert node.router.stats()["discards"] == {"transmit-congestion": 20 - len(kept)}


def test_an_overflow_inside_one_batch_drops_only_its_first_rows(make_node: Any) -> None:
    node = make_node(1, _rows(queue_direct_1_max_depth=2, queue_direct_1_min_msg_burst=0))
    slow, publisher = node.client(username="slow", credit=[0, 0]), node.client()
    slow.subscribe("a")
    publisher.publish(*[("a", b"%02d" % n + b"x" * 500) for n in range(20)])
    _grant(slow, 100)
    kept = [payload[:2] for payload in slow.payloads()]
    assert 5 <= len(kept) <= 8
    assert kept == [b"%02d" % n for n in range(20 - len(kept), 20)]


def test_the_minimum_burst_is_kept_whatever_its_size(make_node: Any) -> None:
    node = make_node(1, _rows(queue_direct_1_max_depth=2, queue_direct_1_min_msg_burst=4))
    slow, publisher = node.client(username="slow", credit=[0, 0]), node.client()
    slow.subscribe("a")
    for n in range(9):
        publisher.publish(("a", b"%d" % n + b"x" * 10_000))
    _grant(slow, 100)
    assert [payload[:1] for payload in slow.payloads()] == [b"5", b"6", b"7", b"8"]


def test_higher_classes_of_service_leave_first_and_none_starves(node: WiredNode) -> None:
    slow, publisher = node.client(credit=[0, 0]), node.client()
    slow.subscribe("a")
    for n in range(10):
        publisher.publish(("a", b"1-%d" % n), ("a", b"2-%d" % n, COS2), ("a", b"3-%d" % n, COS3))
    _grant(slow, 7)
    first = slow.payloads()
    assert [payload[:1] for payload in first] == [b"3"] * 4 + [b"2"] * 2 + [b"1"]
    _grant(slow, 100)
    rest = slow.payloads()
    for cos in (b"1", b"2", b"3"):
        order = [payload for payload in first + rest if payload[:1] == cos]
        assert order == [cos + b"-%d" % n for n in range(10)]


def test_over_the_budget_of_the_node_whoever_holds_most_loses(make_node: Any) -> None:
    node = make_node(1, egress_memory_bytes=1 << 20)
    hog, modest, publisher = node.client(credit=[0, 0]), node.client(credit=[0, 0]), node.client()
    hog.subscribe("big")
    modest.subscribe("small")
    publisher.publish(("small", b"s" * 1000))
    for _ in range(30):
        publisher.publish(("big", b"b" * 100_000))
    assert node.router.egress.queued_bytes <= 1 << 20
    _grant(modest, 10)
    assert len(modest.payloads()) == 1
    _grant(hog, 100)
    assert 5 <= len(hog.payloads()) <= 10


def test_over_the_budget_of_the_node_it_does_not_look_at_all_queues_for_each_message_that_is_lost(
    make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand clients that were behind with small messages held the router up until it was taken for hung."""
    node = make_node(1, egress_memory_bytes=4 << 20)
    clients = [node.client(credit=[0, 0]) for _ in range(50)]
    egress, sessions = node.router.egress, list(node.router.sessions.by_routing_id.values())
    looks: list[int] = []

    def held_bytes(session: Any) -> int:
        looks.append(session.egress.bytes)
        return looks[-1]

    monkeypatch.setattr("router.delivery.egress._held_bytes", held_bytes)
    batch = wire.pack([[0, "a", 0, None, None, b"x"]])
    while not egress.discarded:
        for session in sessions:
            egress.offer(session, plain_delivery(1, batch, wire.CLASS_COS1, None), node.now)
    assert len(looks) <= len(clients) + egress.discarded
    held = [session.egress.messages for session in sessions]
    assert max(held) - min(held) <= 2, "whoever holds most loses"


def test_a_client_that_is_behind_for_seconds_is_shown_as_slow(node: WiredNode) -> None:
    slow, publisher = node.client(credit=[0, 0], client_name="s"), node.client()
    slow.subscribe("a")
    publisher.publish("a")
    assert not node.router.operators.client("default", "s", node.now)["slow"]
    node.advance(4)
    shown = node.router.operators.client("default", "s", node.now)
    assert shown["slow"]
    assert shown["queued_messages"] == 1


# -- eliding -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R32", "R38", "R47", "R48", "R49", "R50", "R51")
def test_a_message_a_millisecond_with_200_ms_delay_gives_five_a_second_and_the_last_value(
    make_node: Any,
) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=200))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("price")
    seen = []
    for n in range(1000):
        publisher.publish(("price", b"%d" % n, ELIDING))
        node.advance(0.001)
        seen += [(n, payload) for payload in screen.payloads()]
    node.advance(0.3)
    seen += [(1000, payload) for payload in screen.payloads()]
    assert seen[0] == (0, b"0")
    assert 5 <= len(seen) <= 7
    assert seen[-1][1] == b"999"
    assert node.router.stats()["discards"]["message-elided"] == 1000 - len(seen)


@pytest.mark.requirement("R44")
def test_every_topic_of_a_wildcard_subscription_is_elided_separately(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=100))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p/*")
    for n in range(10):
        publisher.publish((f"p/{n % 2}", b"%d" % n, ELIDING))
    assert screen.payloads() == [b"0", b"1"]
    node.advance(0.11)
    assert screen.payloads() == [b"8", b"9"]


@pytest.mark.requirement("R34")
def test_messages_without_the_publishers_flag_are_not_elided(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=100))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p")
    publisher.publish(("p", b"0", ELIDING), ("p", b"1"), ("p", b"2", ELIDING), ("p", b"3"))
    assert screen.payloads() == [b"0", b"1", b"3"]
    node.advance(0.11)
    assert screen.payloads() == [b"2"]


@pytest.mark.requirement("R37")
def test_a_client_whose_profile_does_not_allow_eliding_gets_everything(node: WiredNode) -> None:
    client, publisher = node.client(), node.client()
    client.subscribe("p")
    publisher.publish(*[("p", b"", ELIDING)] * 5)
    assert len(client.rows()) == 5


@pytest.mark.requirement("R25")
def test_shared_deliveries_are_never_elided(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=1000))
    member, publisher = node.client(username="slow"), node.client()
    member.subscribe("#share/g/p")
    publisher.publish(*[("p", b"", ELIDING)] * 5)
    assert len(member.rows()) == 5


@pytest.mark.requirement("R52")
def test_delay_0_passes_everything_until_congestion_and_then_keeps_the_newest_of_each_topic(
    make_node: Any,
) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=0))
    screen, publisher = node.client(username="slow", credit=[3, 1 << 40]), node.client()
    screen.subscribe("p/*")
    for n in range(3):
        publisher.publish(("p/a", b"%d" % n, ELIDING))
    assert screen.payloads() == [b"0", b"1", b"2"]
    for n in range(10):
        publisher.publish(("p/a", b"a%d" % n, ELIDING), ("p/b", b"b%d" % n, ELIDING))
    assert screen.payloads() == []
    _grant(screen, 100)
    assert screen.payloads() == [b"a9", b"b9"]
    publisher.publish(("p/a", b"again", ELIDING))
    assert screen.payloads() == [b"again"]


@pytest.mark.requirement("R39", "R41", "R42")
def test_at_the_maximum_the_oldest_topic_makes_room_and_one_event_tells_it(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=1000, eliding_max_topics=2))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p/*")
    publisher.publish(("p/a", b"a0", ELIDING), ("p/a", b"a1", ELIDING), ("p/b", b"b0", ELIDING))
    assert screen.payloads() == [b"a0", b"b0"]
    publisher.publish(("p/c", b"c0", ELIDING), ("p/d", b"d0", ELIDING))
    assert screen.payloads() == [b"a1", b"c0", b"d0"]
    raised = [event for event in node.events if event["event"] == "CLIENT_MAX_ELIDING_TOPIC_COUNT"]
    assert len(raised) == 1


@pytest.mark.requirement("R43")
def test_topics_that_are_quiet_again_are_no_longer_tracked(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=100, eliding_max_topics=2))
    screen, publisher = node.client(username="slow", client_name="s"), node.client()
    screen.subscribe("p/*")
    for n in range(10):
        publisher.publish((f"p/{n}", b"first", ELIDING), (f"p/{n}", b"second", ELIDING))
        node.advance(0.25)
    assert screen.payloads() == [b"first", b"second"] * 10
    assert [event["event"] for event in node.events] == ["CLIENT_CONNECT"] * 2
    assert node.router.operators.client("default", "s", node.now)["eliding_topics"] == 0


@pytest.mark.requirement("R45", "R46")
def test_what_was_dropped_is_told_although_the_next_message_is_elided(make_node: Any) -> None:
    """The indication is of the queue, not of a message: that the one at its head is replaced does not lose it."""
    limits = {"queue_direct_1_max_depth": 2, "queue_direct_1_min_msg_burst": 0}
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=0, **limits))
    slow, publisher = node.client(username="slow", credit=[0, 0]), node.client()
    slow.subscribe("a", "p")
    for n in range(20):
        publisher.publish(("a", b"%02d" % n + b"x" * 500))
        publisher.publish(("p", b"%02d" % n, ELIDING))
    discards = node.router.stats()["discards"]
    assert discards["message-elided"] == 19
    _grant(slow, 100)
    heads = [wire.unpack(frames[1]) for frames in slow.received if frames[0] == wire.DELIVER]
    told = [head[2] for head in heads if head[0] & wire.DELIVER_DISCARD_INDICATION]
    assert told == [discards["transmit-congestion"]]
    assert [payload for payload in slow.payloads() if len(payload) == 2] == [b"19"]


@pytest.mark.requirement("R40")
def test_a_node_tracks_two_million_topics_unless_told_otherwise() -> None:
    assert RouterConfig().eliding_topics_max == 2_000_000


@pytest.mark.requirement("R40")
def test_the_node_wide_number_of_tracked_topics_is_bounded(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=1000), eliding_topics_max=3)
    screens = [node.client(username="slow") for _ in range(2)]
    publisher = node.client()
    for screen in screens:
        screen.subscribe("p/*")
    publisher.publish(*[(f"p/{n}", b"", ELIDING) for n in range(10)])
    assert node.router.eliding.tracked <= 3
    assert [len(screen.rows()) for screen in screens] == [10, 10]


def test_held_messages_of_a_client_that_leaves_are_dropped_and_counted(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=1000))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p")
    publisher.publish(("p", b"0", ELIDING), ("p", b"1", ELIDING))
    screen.send(wire.BYE, [])
    assert node.router.eliding.tracked == 0
    assert node.router.stats()["discards"] == {"client-not-connected": 1}
    node.advance(2)


def test_what_is_for_a_client_that_is_gone_is_counted_with_what_it_had(node: WiredNode) -> None:
    gone = node.client(no_local=True)
    gone.subscribe("a")
    session = node.router.sessions.by_routing_id[gone.routing_id]
    node.pause(0)
    gone.publish(("a", b"", wire.FLAG_DTO))
    node.router.unreachable(gone.routing_id, 0, node.now, blocked=False)
    node.unpause(0)
    node.settle()
    node.router.egress.offer(session, plain_delivery(2, b"", wire.CLASS_COS1, None), node.now)
    assert node.router.stats()["discards"] == {"client-not-connected": 2, "no-local": 1}


def test_a_client_that_grants_credit_without_reading_is_not_sent_more_than_the_limit(make_node: Any) -> None:
    node = make_node(1, egress_unread_bytes=1 << 16)
    liar, publisher = node.client(), node.client()
    liar.subscribe("a")
    for n in range(40):
        publisher.publish(("a", b"%02d" % n + b"x" * 10_000))
    assert len(liar.payloads()) == 7
    number = next(wire.unpack(frames[1])[0] for frames in liar.received if frames[0] == wire.PING)
    liar.send(wire.PONG, [number + 1])
    assert liar.payloads() == []
    liar.send(wire.PONG, [number])
    assert len(liar.payloads()) >= 1


def test_a_client_that_reads_and_answers_is_never_held_up(make_node: Any) -> None:
    node = make_node(1, egress_unread_bytes=1 << 16)
    reader, publisher = node.client(), node.client()
    reader.subscribe("a")
    seen = 0
    for _ in range(40):
        publisher.publish(("a", b"x" * 10_000))
        seen += len(reader.payloads())
        for frames in [f for f in reader.received if f[0] == wire.PING]:
            reader.received.remove(frames)
            reader.send(wire.PONG, wire.unpack(frames[1]))
    assert seen + len(reader.payloads()) == 40


def test_on_a_long_path_as_much_as_may_be_unread_is_on_its_way(make_node: Any) -> None:
    node = make_node(1, egress_unread_bytes=1 << 16)
    far, publisher = node.client(), node.client()
    far.subscribe("a")
    probes = []
    for _ in range(30):
        publisher.publish(("a", b"x" * 10_000))
        probes += [frames for frames in far.received if frames[0] == wire.PING and frames not in probes]
    assert len(far.payloads()) == 7, "no answer has come from so far away"
    assert len(probes) > 2, "a question is not held back by another one that is under way"
    # The answers come one path later, and each lets something leave at once.
    for frames in probes[:3]:
        far.send(wire.PONG, wire.unpack(frames[1]))
        assert far.payloads()


def test_an_answer_says_that_what_was_asked_before_is_read_too(make_node: Any) -> None:
    node = make_node(1, egress_unread_bytes=1 << 16)
    client, publisher = node.client(), node.client()
    client.subscribe("a")
    for _ in range(30):
        publisher.publish(("a", b"x" * 10_000))
    first = len(client.payloads())
    last = [wire.unpack(frames[1]) for frames in client.received if frames[0] == wire.PING][-1]
    client.send(wire.PONG, last)
    assert len(client.payloads()) == first


def test_the_indication_comes_with_the_next_message_although_the_whole_backlog_was_dropped(
    make_node: Any,
) -> None:
    node = make_node(1, egress_memory_bytes=1 << 20)
    hog, publisher = node.client(credit=[0, 0]), node.client()
    hog.subscribe("a")
    publisher.publish(("a", b"x" * 2_000_000))
    assert node.router.egress.queued_bytes == 0
    _grant(hog, 10)
    publisher.publish(("a", b"next"))
    assert hog.deliveries() == [(wire.DELIVER_DISCARD_INDICATION, [[1, None]], 1)]


def test_topics_that_age_out_leave_nothing_behind(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=60_000, eliding_max_topics=1))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p/*")
    for n in range(0, 8_000, 100):
        publisher.publish(*[(f"p/{n + m}", b"", ELIDING) for m in range(100)])
        assert node.router.eliding.due_times <= 1_100


def test_a_delay_that_an_operator_takes_away_lets_go_what_is_held(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=200))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p")
    publisher.publish(("p", b"0", ELIDING), ("p", b"1", ELIDING))
    attributes = objects.complete("profile", {"eliding": True, "eliding_delay_ms": 0})
    node.router.operators.put_object("profile", "default", "slow", attributes, node.now)
    node.advance(0.3)
    publisher.publish(("p", b"2", ELIDING))
    assert screen.payloads() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("delay_ms", [0, 200])
def test_a_shorter_delay_lets_go_what_is_held_for_longer(make_node: Any, delay_ms: int) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=60_000))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p", "quiet")
    publisher.publish(("p", b"0", ELIDING), ("p", b"1", ELIDING), ("quiet", b"2", ELIDING))
    attributes = objects.complete("profile", {"eliding": True, "eliding_delay_ms": delay_ms})
    node.router.operators.put_object("profile", "default", "slow", attributes, node.now)
    node.advance(0.3)
    assert screen.payloads() == [b"0", b"2", b"1"]
    publisher.publish(("quiet", b"3", ELIDING))
    assert screen.payloads() == [b"3"]
    node.advance(1.0)
    assert not node.router.eliding.tracked


def test_due_times_of_topics_that_aged_out_are_dropped_some_at_a_time(make_node: Any) -> None:
    profile = {"eliding": True, "eliding_delay_ms": 60_000, "eliding_max_topics": 5_000}
    node = make_node(1, _rows(**profile))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p/*")
    for n in range(0, 5_000, 100):
        publisher.publish(*[(f"p/{n + m}", b"old", ELIDING) for m in range(100)])
    attributes = objects.complete("profile", {**profile, "eliding_max_topics": 10})
    node.router.operators.put_object("profile", "default", "slow", attributes, node.now)
    assert node.router.eliding.due_times == 5_000
    publisher.publish(*[(f"p/{n}", b"new", ELIDING) for n in range(2)])
    assert 4_900 < node.router.eliding.due_times < 5_000
    node.advance(60.5)
    assert not node.router.eliding.due_times
    assert len(screen.payloads()) == 5_002


def test_eliding_that_is_switched_off_lets_go_what_is_held(make_node: Any) -> None:
    node = make_node(1, _rows(eliding=True, eliding_delay_ms=60_000))
    screen, publisher = node.client(username="slow"), node.client()
    screen.subscribe("p")
    publisher.publish(("p", b"0", ELIDING), ("p", b"1", ELIDING))
    node.router.operators.put_object("profile", "default", "slow", objects.complete("profile", {}), node.now)
    node.settle()
    assert screen.payloads() == [b"0", b"1"]
    assert node.router.eliding.tracked == 0
