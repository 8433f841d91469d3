"""The router with real worker state machines: what clients see of direct messaging."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import pytest

from angarium import errors, wire
from angarium.topic import slot_of
from router import closing
from router.sessions.session import Session
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot


@pytest.mark.requirement("R1", "R2")
def test_a_direct_message_reaches_a_subscriber_of_a_fresh_node(
    node: WiredNode,
) -> None:
    publisher, subscriber = node.client(), node.client()
    assert subscriber.subscribe("a/b") == [None]
    publisher.publish(("a/b", b"hello"))
    assert [(row[1], row[5]) for row in subscriber.rows()] == [("a/b", b"hello")]


@pytest.mark.requirement("R3")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_subscriber_gets_messages_of_all_topics_in_the_order_of_their_publisher(
    make_node: Any, workers: int
) -> None:
    node = make_node(workers)
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("t/>")
    for start in range(0, 300, 30):
        publisher.publish(*[(f"t/{n % 13}", b"%d" % n) for n in range(start, start + 30)])
    assert subscriber.payloads() == [b"%d" % n for n in range(300)]


@pytest.mark.requirement("R3")
@pytest.mark.parametrize("workers", [1, 2])
def test_direct_messages_make_nothing_due_whether_a_worker_is_asked_or_not(
    make_node: Any, workers: int
) -> None:
    """The router looks after all that waits for time when something may have become due, not in every turn."""
    node = make_node(workers)
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("t/>")
    assert node.router.next_tick() <= node.now, "who subscribes may have made something due"
    node.router.tick(node.now)
    matched = []
    for _ in range(2):
        publisher.publish("t/1", "t/2")
        matched.append(node.router.fast_path.rounds)
        assert node.router.next_tick() > node.now
    assert matched == [0, int(workers == 1)], "some topics by a worker, some by the router itself"
    assert len(subscriber.rows()) == 4
    publisher.send(wire.PING, [1])
    assert node.router.next_tick() > node.now
    assert publisher.take() == (wire.PONG, [1])
    publisher.subscribe("u/>")
    publisher.publish("t/3")
    assert node.router.next_tick() <= node.now, "messages do not make up for what came before them"


@pytest.mark.requirement("R3")
def test_a_batch_leaves_as_it_came_for_who_gets_all_of_it_by_many_filters(node: WiredNode) -> None:
    """Else its rows are joined from as many batches, and sorted by the client."""
    publisher, all_of_it, some = node.client(), node.client(), node.client()
    topics = [f"t/{n}" for n in range(20)]
    all_of_it.subscribe(*topics)
    some.subscribe(*topics[::2])
    publisher.publish(*topics)
    publisher.publish(*topics, "unknown")
    heads = [(flags, [rows for rows, _ in parts]) for flags, parts, _ in all_of_it.deliveries()]
    assert heads == [(0, [20]), (wire.DELIVER_UNSORTED, [20])], "what nobody wants is in no batch"
    assert some.topics() == topics[::2] * 2
    publisher.publish(*topics, "unknown")
    assert all_of_it.topics() == topics


@pytest.mark.requirement("R3")
def test_a_round_waits_for_the_one_before_it_although_its_own_worker_answered(make_node: Any) -> None:
    node = make_node(2)
    table = node.router.shards.table

    slow = next(f"t/{n}" for n in range(99) if table[slot_of(f"t/{n}")] == 0)
    quick = next(f"t/{n}" for n in range(99) if table[slot_of(f"t/{n}")] == 1)
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("t/>")
    node.pause(0)
    publisher.publish((slow, b"1"))
    publisher.publish((quick, b"2"))
    assert subscriber.payloads() == []
    node.unpause(0)
    assert subscriber.payloads() == [b"1", b"2"]


@pytest.mark.requirement("R11")
def test_one_more_subscriber_on_a_known_filter_tells_the_workers_nothing(node: WiredNode) -> None:
    first = node.client()
    first.subscribe("a/*")
    before = node.router.shards.shards[0].sequence
    others = [node.client() for _ in range(5)]
    for client in others:
        client.subscribe("a/*")
    assert node.router.shards.shards[0].sequence == before
    first.publish(("a/x", b"1"))
    assert all(client.payloads() == [b"1"] for client in (first, *others))


@pytest.mark.requirement("R54", "R55", "R56", "R6")
def test_subscriptions_go_with_the_session_and_nothing_is_kept(node: WiredNode) -> None:
    publisher, subscriber = node.client(), node.client(client_name="one")
    subscriber.subscribe("a", "b/>")
    subscriber.send(wire.BYE, [])
    assert subscriber.closed_with() == 0
    assert len(node.router.interest) == 0
    publisher.publish(("a", b"missed"))
    again = node.client(client_name="one")
    assert list(node.router.operators.subscriptions(None, "one")) == []
    assert again.rows() == []


@pytest.mark.requirement("R53")
def test_after_unsubscribing_nothing_more_comes(node: WiredNode) -> None:
    client = node.client()
    client.subscribe("a", "b")
    assert client.unsubscribe("a") == [None]
    client.publish(("a", b"1"), ("b", b"2"))
    assert client.payloads() == [b"2"]
    assert client.unsubscribe("a")[0][0] == errors.SUBSCRIPTION_NOT_FOUND


def test_what_is_to_be_retained_takes_the_way_over_the_worker(node: WiredNode) -> None:
    client = node.client()
    client.subscribe("x")
    rounds = []
    for flags in (0, 0, wire.FLAG_RETAIN, 0):
        client.publish(("x", b"", flags))
        rounds.append(node.router.stats()["fast_path_rounds"])
    assert [after - before for before, after in pairwise(rounds)] == [1, 0, 1]
    assert [row[wire.ROW_FLAGS] for row in client.rows()] == [0, 0, wire.FLAG_RETAIN, 0]


def test_a_client_with_overlapping_subscriptions_gets_one_copy(node: WiredNode) -> None:
    client = node.client()
    client.subscribe("a/b", "a/*", "a/>", ">")
    client.publish(("a/b", b"1"), ("a/c", b"2"), ("x", b"3"))
    assert client.payloads() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_publisher_is_told_what_matches_nothing_if_it_asks(make_node: Any, workers: int) -> None:
    node = make_node(workers)
    subscriber, publisher = node.client(), node.client()
    subscriber.subscribe("a")
    for number in range(1, 4):  # the second time the router knows the topics itself
        publisher.publish("a", "b", "b", reports=True)
        assert publisher.notices() == [[errors.NO_SUBSCRIPTION_MATCH, "b", 2, number]]
        assert subscriber.topics() == ["a"]
    publisher.publish("b")
    assert publisher.notices() == []
    assert node.router.counters.totals["discard.no-subscription-match"] == 7
    subscriber.subscribe("b")
    publisher.publish("b", reports=True)
    assert publisher.notices() == []
    assert subscriber.topics() == ["b"]


@pytest.mark.requirement("R53")
def test_message_vpns_do_not_see_each_other(make_node: Any) -> None:
    node = make_node(2, snapshot(("vpn", "", "other", {}), ("username", "other", "default", {})))
    here, there = node.client(), node.client(vpn="other")
    here.subscribe(">")
    there.subscribe(">")
    here.publish(("a", b"here"))
    there.publish(("a", b"there"))
    assert here.payloads() == [b"here"]
    assert there.payloads() == [b"there"]


@pytest.mark.requirement("R226")
def test_lone_retired_rounds_are_told_together_with_the_answer_to_a_heartbeat(node: WiredNode) -> None:
    publisher = node.client()
    for _ in range(3):
        publisher.publish("a")
    node.advance(1.0)
    assert not publisher.received
    publisher.send(wire.PING, [1])
    publisher.send(wire.PING, [2])
    assert [frames[0] for frames in publisher.received] == [wire.RETIRED, wire.PONG, wire.PONG]
    assert publisher.retired() == 3


def test_what_has_retired_is_told_before_the_node_ends_a_session(node: WiredNode) -> None:
    publisher = node.client(client_name="p")
    publisher.publish("a")
    node.router.operators.disconnect("default", "p", node.now)
    node.settle()
    assert [frames[0] for frames in publisher.received] == [wire.RETIRED, wire.CLOSED]


def test_an_empty_round_asks_to_be_told_when_all_before_it_has_retired(node: WiredNode) -> None:
    publisher = node.client()
    node.pause(0)
    publisher.publish("a")
    publisher.send(wire.PUBLISH, [2, 0, True, []])
    assert publisher.retired() == 0
    node.unpause(0)
    assert publisher.retired() == 2


def test_pre_partitioned_batches_go_straight_to_their_workers(make_node: Any) -> None:

    node = make_node(4)
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("t/>")
    parts: dict[int, list[Any]] = {}
    for n in range(40):
        owner = node.router.shards.table[slot_of(f"t/{n}")]
        parts.setdefault(owner, []).append([n, f"t/{n}", 0, None, None, b"%d" % n])
    publisher.send(
        wire.PUBLISH,
        [1, 1, True, [[w, len(rows)] for w, rows in parts.items()]],
        *[wire.pack(r) for r in parts.values()],
    )
    assert subscriber.payloads() == [b"%d" % n for n in range(40)]
    assert publisher.retired() == 1


def test_a_part_for_the_wrong_worker_ends_the_session_that_sent_it(make_node: Any) -> None:

    node = make_node(2)
    publisher = node.client()
    owner = node.router.shards.table[slot_of("a")]
    publisher.send(wire.PUBLISH, [1, 1, False, [[1 - owner, 1]]], wire.pack([[0, "a", 0, None, None, b""]]))
    assert publisher.closed_with() == errors.MALFORMED_FRAME


def test_overdrawing_ingress_credit_ends_the_session_and_no_other(make_node: Any) -> None:
    node = make_node(1, ingress_rounds=2)
    greedy, other = node.client(), node.client()
    other.subscribe("a")
    node.pause(0)
    for _ in range(3):
        greedy.publish("a")
    assert greedy.closed_with() == errors.INGRESS_CREDIT_EXCEEDED
    node.unpause(0)
    other.publish(("a", b"fine"))
    assert other.payloads()[-1] == b"fine"


def test_retirement_renews_ingress_credit(make_node: Any) -> None:
    node = make_node(1, ingress_rounds=2)
    publisher = node.client()
    for number in range(1, 20):
        publisher.publish("a")
        assert publisher.retired() == number


@pytest.mark.requirement("R9")
def test_a_lost_worker_costs_what_was_out_at_it_and_is_counted(make_node: Any) -> None:
    node = make_node(1)
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("a")
    node.pause(0)
    publisher.publish(("a", b"1"), ("a", b"2"))
    node.kill_worker(0)
    assert publisher.notices() == [[errors.SHARD_UNAVAILABLE, "direct messages were lost", 2, 0]]
    publisher.publish(("a", b"3"))
    assert subscriber.payloads() == []
    node.start_worker(0)
    assert subscriber.payloads() == [b"3"]
    assert node.router.stats()["discards"] == {"shard-unavailable": 2}


def test_after_the_grace_time_rows_for_a_dead_worker_are_lost_at_once(make_node: Any) -> None:
    node = make_node(1, shard_grace_ms=250)
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("a")
    node.kill_worker(0)
    publisher.publish(("a", b"1"), flush=True)
    assert publisher.retired() == 0
    node.advance(0.3)
    assert publisher.retired() == 1
    publisher.publish(("a", b"2"), flush=True)
    assert publisher.retired() == 2
    node.start_worker(0)
    publisher.publish(("a", b"3"))
    assert subscriber.payloads() == [b"3"]


def test_subscriptions_made_while_a_worker_is_down_are_confirmed_by_its_successor(make_node: Any) -> None:
    node = make_node(2)
    client = node.client()
    node.kill_worker(0)
    node.kill_worker(1)
    client.send(wire.SUBSCRIBE, [1, [[">", 0], ["a", 0]], None])
    assert not client.received
    node.start_worker(0)
    node.start_worker(1)
    client.request = 1
    assert client.suback() == [None, None]


@pytest.mark.requirement("R210")
def test_the_number_of_workers_changes_under_load_without_loss_or_disorder(make_node: Any) -> None:
    node = make_node(1)
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("t/>", "t/3")
    number = 0

    def publish() -> None:
        nonlocal number
        publisher.publish(*[(f"t/{n % 7}", b"%d" % n) for n in range(number, number + 10)])
        number += 10

    publish()
    node.pause(0)
    publish()
    node.router.scaling.begin(3, node.now)
    publish()
    node.unpause(0)
    node.start_worker(1)
    publish()
    node.start_worker(2)
    publish()
    assert subscriber.payloads() == [b"%d" % n for n in range(number)]
    operation, header = publisher.take()
    assert (operation, header[0]) == (wire.TABLE, 2)
    node.router.scaling.begin(2, node.now)
    node.settle()
    publish()
    assert len(subscriber.payloads()) == 10


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"?", b"\x90"], errors.UNKNOWN_OPERATION),
        ([b"S"], errors.MALFORMED_FRAME),
        ([b"S", b"\xc1"], errors.MALFORMED_FRAME),
        ([b"S", b"\x93\x01\x02\x03"], errors.MALFORMED_FRAME),
        ([b"P", wire.pack([1, 0, False, [[0, 0]]]), b"\x90"], errors.MALFORMED_FRAME),
        ([b"C", b"\x92\x00\x00"], errors.MALFORMED_FRAME),
        ([b"H", b"\x80"], errors.ALREADY_LOGGED_IN),
        ([b"P", wire.pack([2, 0, False, [[0, 1]]]), b"\x90"], errors.MALFORMED_FRAME),
        ([b"P", wire.pack([1, 0, False, [[0, 1]]]), b"\xff"], errors.MALFORMED_FRAME),
        ([b"P", wire.pack([1, 0, False, [[0, 2]]]), b"\x90"], errors.MALFORMED_FRAME),
    ],
)
def test_a_malformed_frame_costs_its_sender_the_session(
    node: WiredNode, frames: list[bytes], code: int
) -> None:
    bad, good = node.client(), node.client()
    good.subscribe("a")
    node.router.client_frames(bad.routing_id, frames, node.now)
    node.settle()
    assert bad.closed_with() == code
    good.publish(("a", b"1"))
    assert good.payloads() == [b"1"]
    assert node.router.stats()["errors"][str(code)] == 1


def test_frames_of_nobody_are_answered_with_a_bounded_rate(node: WiredNode) -> None:
    stranger = node.connection()
    for _ in range(1000):
        stranger.send(wire.PING, [1])
    assert stranger.closed_with() == errors.SESSION_UNKNOWN
    assert len(stranger.received) <= 200


def test_what_is_no_message_ends_a_session_with_a_code(node: WiredNode) -> None:
    client, stranger = node.client(), node.connection()
    for one in (client, stranger):
        node.router.fail(one.routing_id, errors.error_for(errors.MALFORMED_FRAME), node.now)
        node.settle()
        assert one.closed_with() == errors.MALFORMED_FRAME


@pytest.mark.requirement("R7")
def test_messages_for_a_client_that_is_gone_are_counted(node: WiredNode) -> None:
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("a")
    del node.clients[subscriber.routing_id]
    publisher.publish("a", "a", "a")
    assert node.router.stats()["discards"] == {"client-not-connected": 3}
    assert node.router.stats()["sessions"] == 1


def test_a_client_that_left_is_not_kept_until_its_keepalives_would_be_over(node: WiredNode) -> None:
    client = node.client(keepalive_ms=3_600_000)
    numbers = {session.number for session in node.router.sessions}
    node.router.tick(node.now)
    client.send(wire.BYE, [])
    for _ in range(25):
        node.now += 0.5
        node.router.tick(node.now)
        node.settle()
    gc.collect()
    assert numbers
    assert not [one for one in gc.get_objects() if isinstance(one, Session) and one.number in numbers]


def test_a_silent_client_is_ended_after_three_keepalive_intervals(node: WiredNode) -> None:
    client = node.client(keepalive_ms=1000)
    node.now += 2.9
    node.router.tick(node.now)
    assert client.closed_with() is None
    node.now += 1.2
    node.router.tick(node.now)
    node.settle()
    assert client.closed_with() == errors.KEEPALIVE_TIMEOUT


def test_a_client_whose_message_is_on_its_way_is_not_silent_and_hears_that_the_node_is_there(
    node: WiredNode,
) -> None:
    client = node.client(keepalive_ms=1000)
    for _ in range(8):
        node.now += 1
        node.router.closing.hears(client.routing_id, node.now)
        node.router.tick(node.now)
        node.settle()
    assert client.closed_with() is None
    assert [frames[1] for frames in client.received if frames[0] == wire.PING] == [wire.pack([0])] * 8
    node.router.closing.hears(b"nobody", node.now)


def test_a_client_that_says_much_and_whose_pings_are_late_hears_that_the_node_is_there(
    node: WiredNode,
) -> None:
    late, in_time, silent = (node.client(keepalive_ms=1000) for _ in range(3))
    for second in range(12):
        node.now += 1
        late.publish("nobody/wants/this")
        in_time.send(wire.PING, [second])
        node.router.tick(node.now)
        node.settle()
    assert late.closed_with() is None
    told = [
        [frames for frames in client.received if frames[0] == wire.PING] for client in (late, in_time, silent)
    ]
    assert 5 <= len(told[0]) <= 8
    assert told[1:] == [[], []]
    assert silent.closed_with() == errors.KEEPALIVE_TIMEOUT


def test_silent_clients_are_looked_for_some_at_a_time(
    node: WiredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "SESSIONS_PER_TURN", 2)
    clients = [node.client(keepalive_ms=1000) for _ in range(5)]
    node.now += 1
    node.router.tick(node.now)
    node.now += 3
    began, ended = node.now, [0]
    while ended[-1] < len(clients):
        wake = node.router.tick(node.now)
        node.settle()
        ended.append(sum(client.closed_with() is not None for client in clients))
        node.now = max(node.now + 0.001, wake)
    assert max(after - before for before, after in pairwise(ended)) == 2
    assert node.now < began + 2 * closing.ROUND_S


def test_ping_is_answered_with_its_number(node: WiredNode) -> None:
    client = node.client()
    client.send(wire.PING, [42])
    assert client.take() == (wire.PONG, [42])


def test_a_node_that_goes_down_lets_accepted_rounds_retire_first(node: WiredNode) -> None:
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("a")
    node.pause(0)
    publisher.publish(("a", b"last"))
    assert not node.router.drain(node.now)
    late = node.connection()
    late.send(wire.HELLO, {"version": 1})
    assert late.closed_with() == errors.SHUTTING_DOWN
    node.unpause(0)
    assert node.router.drain(node.now)
    node.settle()
    assert publisher.closed_with() == errors.SHUTTING_DOWN


def test_sessions_take_turns_at_a_full_worker(make_node: Any) -> None:
    node = make_node(1, worker_window=1)
    busy, quiet, reader = node.client(), node.client(), node.client()
    reader.subscribe("a")
    node.pause(0)
    for n in range(10):
        busy.publish(("a", b"busy%d" % n))
    quiet.publish(("a", b"quiet"))
    node.unpause(0)
    payloads = reader.payloads()
    assert len(payloads) == 11
    assert payloads.index(b"quiet") <= 2


def test_who_waited_for_one_worker_overdraws_another_but_not_beyond_twice_its_window(make_node: Any) -> None:
    """A batch for two busy workers gets its turn at one of them; it must not wait for both at once for ever."""
    node = make_node(2, worker_window=1)
    reader = node.client()
    reader.subscribe("t/*")
    here, there = (
        next(topic for topic in map("t/{}".format, range(99)) if owner(node, topic) == one) for one in (0, 1)
    )
    node.pause(0)
    node.pause(1)
    fills = [node.client(), node.client()]
    fills[0].publish((here, b"fills 0"))
    fills[1].publish((there, b"fills 1"))
    for client, name in zip(fills, (b"first", b"second"), strict=True):
        client.publish((here, name), (there, name))
    assert len(node.paused[1]) == 1
    node.unpause(0)
    assert len(node.paused[1]) == 2
    assert reader.payloads() == [b"fills 0"]
    node.unpause(1)
    assert sorted(reader.payloads()) == sorted([b"fills 1", b"first", b"first", b"second", b"second"])


@pytest.mark.requirement("R278")
def test_who_publishes_one_batch_does_not_wait_for_the_batches_of_one_who_publishes_many(
    make_node: Any,
) -> None:
    node = make_node(1, worker_window=2)
    busy, *quiet = [node.client() for _ in range(4)]
    node.pause(0)
    for n in range(5):
        busy.publish(("a", b"busy%d" % n))
    assert len(node.paused[0]) == 2
    for one in quiet:
        one.publish(("a", b"quiet"))
    assert len(node.paused[0]) == 4, "not beyond twice the window"


def owner(node: WiredNode, topic: str) -> int:
    return int(node.router.shards.table[slot_of(topic)])


@pytest.mark.requirement("R58", "R59", "R64", "R65", "R66")
def test_a_subscription_manager_acts_for_another_client(make_node: Any) -> None:
    node = make_node(1, snapshot(("username", "default", "boss", {"subscription_manager": True})))
    manager = node.client(username="boss", client_name="boss")
    target: FakeClient = node.client(client_name="target")
    assert manager.subscribe("a/>", client="target") == [None]
    target.publish(("a/b", b"1"))
    assert target.payloads() == [b"1"]
    assert manager.payloads() == []
    listed = list(node.router.operators.subscriptions(None, "target"))
    assert listed[0]["origin"] == "manager boss"
    manager.send(wire.BYE, [])
    target.publish(("a/b", b"2"))
    assert target.payloads() == [b"2"]
    assert target.subscribe("b", client="target")[0][0] == errors.SUBSCRIPTION_MANAGER_DENIED
    target.send(wire.BYE, [])
    assert list(node.router.operators.subscriptions(None, None)) == []


@pytest.mark.requirement("R61", "R62")
def test_a_manager_is_bound_by_its_own_acl_and_not_by_the_targets(make_node: Any) -> None:
    rows = snapshot(
        (
            "acl",
            "default",
            "strict",
            {"client_connect_default": "allow", "subscribe_topic_exceptions": ["ok/>"]},
        ),
        ("acl", "default", "none", {"client_connect_default": "allow"}),
        ("username", "default", "boss", {"subscription_manager": True, "acl_profile": "strict"}),
        ("username", "default", "ward", {"acl_profile": "none"}),
    )
    node = make_node(1, rows)
    manager = node.client(username="boss")
    target = node.client(username="ward", client_name="ward")
    assert manager.subscribe("ok/1", client="ward") == [None]
    assert manager.subscribe("other", client="ward")[0][0] == errors.SUBSCRIBE_DENIED
    assert target.subscribe("ok/2")[0][0] == errors.SUBSCRIBE_DENIED
    assert manager.unsubscribe("other", client="ward")[0][0] == errors.SUBSCRIBE_DENIED
    assert manager.unsubscribe("ok/1", client="ward") == [None]
    assert manager.subscribe("ok/1", client="nobody")[0][0] == errors.UNKNOWN_CLIENT_NAME


@pytest.mark.requirement("R27")
def test_no_local_keeps_own_messages_out_of_plain_but_not_of_shared_subscriptions(node: WiredNode) -> None:
    client = node.client(no_local=True)
    other = node.client()
    client.subscribe("a", "#share/g/b")
    client.publish(("a", b"own"), ("b", b"shared"))
    other.publish(("a", b"foreign"))
    assert client.payloads() == [b"shared", b"foreign"]
    assert node.router.stats()["discards"]["no-local"] == 1


def test_credit_counts_a_batch_as_its_client_sent_it_however_it_is_cut(make_node: Any) -> None:
    node = make_node(4, ingress_bytes=4096)
    publisher = node.client()
    rows = [[n, f"t/{n}", 0, None, None, b"x" * 60] for n in range(50)]
    for worker in range(4):
        node.pause(worker)
    publisher.publish_raw(rows)
    session = next(iter(node.router.sessions))
    assert session.unretired_bytes == len(wire.pack(rows))
    for worker in range(4):
        node.unpause(worker)
    assert session.unretired_bytes == 0


def test_a_worker_that_was_let_go_and_is_wanted_again_before_it_ended_is_used_again(make_node: Any) -> None:
    node = make_node(2)
    publisher, subscriber = node.client(), node.client()
    subscriber.subscribe("t/>")
    node.router.scaling.begin(1, node.now)
    node.settle()
    node.router.scaling.begin(2, node.now)
    node.settle()
    publisher.publish(*[(f"t/{n}", b"%d" % n) for n in range(20)])
    assert subscriber.payloads() == [b"%d" % n for n in range(20)]


def test_a_subscription_that_a_leaving_worker_never_confirmed_is_confirmed_by_the_others(
    make_node: Any,
) -> None:
    node = make_node(2)
    client = node.client()
    node.pause(1)
    client.send(wire.SUBSCRIBE, [1, [["a/*", 0]], None])
    client.send(wire.SUBSCRIBE, [2, [["b/*", 0]], None])
    assert not client.received
    node.router.scaling.begin(1, node.now)
    node.settle()
    answers = [wire.unpack(frames[1]) for frames in client.received if frames[0] == wire.SUBACK]
    assert answers == [[1, [None]], [2, [None]]]
