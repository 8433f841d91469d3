"""Choice: shared subscriptions and deliver-to-one, as clients see them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from angarium import errors, wire
from tests.unit.router.wired_node import WiredNode, snapshot

DTO = wire.FLAG_DTO


def _counts(*clients: Any) -> list[int]:
    return [len(client.rows()) for client in clients]


@pytest.mark.requirement("R12", "R15", "R19", "R20", "R22")
@pytest.mark.parametrize("workers", [1, 3])
def test_each_message_goes_to_one_random_member_and_all_get_about_the_same(
    make_node: Any, workers: int
) -> None:
    node = make_node(workers)
    members = [node.client() for _ in range(4)]
    for member in members:
        member.subscribe("#share/g/orders/*")
    publisher = node.client()
    for start in range(0, 2000, 100):
        publisher.publish(*[(f"orders/{n % 5}", b"%d" % n) for n in range(start, start + 100)])
    received = [member.payloads() for member in members]
    assert sorted(int(p) for payloads in received for p in payloads) == list(range(2000))
    assert all(400 < len(payloads) < 600 for payloads in received)
    assert all(payloads == sorted(payloads, key=int) for payloads in received)


@pytest.mark.requirement("R21")
def test_groups_with_another_share_name_get_a_copy_each(node: WiredNode) -> None:
    one, two = node.client(), node.client()
    one.subscribe("#share/first/a/>")
    two.subscribe("#share/second/a/>")
    node.client().publish("a/b", "a/c")
    assert _counts(one, two) == [2, 2]


@pytest.mark.requirement("R18")
def test_noexport_in_front_joins_the_same_group(node: WiredNode) -> None:
    one, two = node.client(), node.client()
    assert one.subscribe("#noexport/#share/g/a") == [None]
    assert two.subscribe("#share/g/a") == [None]
    assert one.subscribe("#share/#noexport/g/a") == [
        None
    ]  # a share whose name is #noexport: legal, another group
    node.client().publish(*["a"] * 50)
    assert sum(_counts(one, two)) == 50


@pytest.mark.requirement("R16")
@pytest.mark.parametrize("text", ["#share/g*/a", "#share/>/a", "#share/*/a", "#share//a"])
def test_a_share_name_with_a_wildcard_is_refused(node: WiredNode, text: str) -> None:
    assert node.client().subscribe(text)[0][0] == errors.INVALID_SHARE_NAME


@pytest.mark.requirement("R14")
def test_the_profile_decides_over_creating_and_joining_a_shared_subscription(make_node: Any) -> None:
    rows = snapshot(
        ("profile", "default", "single", {"allow_shared_subscriptions": False}),
        ("username", "default", "single", {"client_profile": "single"}),
    )
    node = make_node(1, rows)
    single, allowed = node.client(username="single"), node.client()
    assert single.subscribe("#share/g/a")[0][0] == errors.SHARED_SUBSCRIPTION_DENIED
    assert allowed.subscribe("#share/g/a") == [None]
    assert single.subscribe("#share/g/a")[0][0] == errors.SHARED_SUBSCRIPTION_DENIED
    assert node.router.stats()["errors"][str(errors.SHARED_SUBSCRIPTION_DENIED)] == 2


@pytest.mark.requirement("R26")
def test_a_shared_delivery_names_its_filter_and_counts_as_class_of_service_1(node: WiredNode) -> None:
    member = node.client(credit=[0, 0])
    member.subscribe("#share/g/a")
    node.client().publish(("a", b"", 2 << wire.COS_SHIFT))
    session = next(iter(node.router.sessions))
    assert session.egress is not None
    assert [queue.messages for queue in session.egress.queues] == [1, 0, 0]
    member.send(wire.CREDIT, [10, 10_000])
    assert member.deliveries() == [(0, [[1, "#share/g/a"]], 0)]


def test_a_member_that_left_gets_nothing_more(node: WiredNode) -> None:
    one, two = node.client(), node.client()
    one.subscribe("#share/g/a")
    two.subscribe("#share/g/a")
    one.send(wire.BYE, [])
    node.client().publish(*["a"] * 20)
    assert _counts(two) == [20]


@pytest.mark.requirement("R68", "R73", "R71")
def test_deliver_to_one_takes_the_highest_priority_present(node: WiredNode) -> None:
    low, high = node.client(local_priority=3), node.client(local_priority=2)
    low.subscribe("a/>")
    high.subscribe("a/b")
    publisher = node.client()
    publisher.publish(*[("a/b", b"", DTO)] * 6)
    assert _counts(low, high) == [0, 6]
    high.send(wire.BYE, [])
    publisher.publish(*[("a/b", b"", DTO)] * 6)
    assert _counts(low) == [6]


@pytest.mark.requirement("R74")
def test_deliver_to_one_goes_round_inside_a_level(node: WiredNode) -> None:
    clients = [node.client() for _ in range(3)]
    for client in clients:
        client.subscribe("a")
    publisher = node.client()
    for _ in range(4):
        publisher.publish(*[("a", b"", DTO)] * 3)
    assert _counts(*clients) == [4, 4, 4]


@pytest.mark.requirement("R70")
def test_without_the_flag_priorities_have_no_effect(node: WiredNode) -> None:
    clients = [node.client(local_priority=p) for p in (1, 2, 4)]
    for client in clients:
        client.subscribe("a")
    node.client().publish("a")
    assert _counts(*clients) == [1, 1, 1]


@pytest.mark.requirement("R69")
def test_a_deliver_to_one_message_for_nobody_is_not_kept(node: WiredNode) -> None:
    publisher = node.client()
    publisher.publish(("a", b"", DTO))
    late = node.client()
    late.subscribe("a")
    assert _counts(late) == [0]
    assert node.router.stats()["discards"] == {"no-subscription-match": 1}


@pytest.mark.requirement("R80", "R81", "R83")
def test_deliver_always_gets_every_message_beside_the_chosen_one(node: WiredNode) -> None:
    monitor, worker, other = node.client(), node.client(), node.client()
    monitor.subscribe("a/>", deliver_always=True)
    worker.subscribe("a/b")
    other.subscribe("a/b")
    node.client().publish(*[("a/b", b"", DTO)] * 10)
    assert _counts(monitor, worker, other) == [10, 5, 5]


@pytest.mark.requirement("R84")
def test_a_subscription_to_everything_is_always_deliver_always(node: WiredNode) -> None:
    monitor, worker = node.client(), node.client()
    monitor.subscribe(">")
    worker.subscribe("a")
    node.client().publish(*[("a", b"", DTO)] * 4)
    assert _counts(monitor, worker) == [4, 4]
    assert next(node.router.operators.subscriptions(None, None))["dto_priority"] == "DA"


@pytest.mark.requirement("R85", "R86")
def test_both_kinds_on_one_string_coexist_and_give_one_copy(node: WiredNode) -> None:
    client = node.client()
    assert client.subscribe("a") == [None]
    assert client.subscribe("a", deliver_always=True) == [None]
    publisher = node.client()
    publisher.publish(("a", b"", DTO), "a")
    assert _counts(client) == [2]
    assert client.unsubscribe("a") == [None]
    publisher.publish(("a", b"", DTO))
    assert _counts(client) == [1]


@pytest.mark.requirement("R87")
def test_the_listing_shows_the_priority_of_each_subscription(node: WiredNode) -> None:
    client = node.client(local_priority=3, client_name="c")
    client.subscribe("a", "#noexport/b")
    client.subscribe("c", deliver_always=True)
    listed = list(node.router.operators.subscriptions(None, "c"))
    assert [(s["filter"], s["dto_priority"], s["noexport"]) for s in listed] == [
        ("a", "P3", False),
        ("#noexport/b", "P3", True),
        ("c", "DA", False),
    ]


def test_a_share_group_is_one_candidate_of_deliver_to_one(node: WiredNode) -> None:
    single, members = node.client(), [node.client() for _ in range(3)]
    single.subscribe("a")
    for member in members:
        member.subscribe("#share/g/a")
    node.client().publish(*[("a", b"", DTO)] * 40)
    assert _counts(single) == [20]
    assert sum(_counts(*members)) == 20


def test_a_chosen_member_that_has_the_message_already_gets_no_second_copy(node: WiredNode) -> None:
    client = node.client()
    client.subscribe("#share/g/a", "a")
    node.client().publish(*["a"] * 5)
    assert _counts(client) == [5]


def test_flagged_shared_and_plain_rows_of_one_batch_keep_their_order(make_node: Any) -> None:
    node = make_node(3)
    client = node.client()
    client.subscribe("t/>", "#share/g/s/*")
    rows = []
    for n in range(60):
        topic = f"s/{n % 4}" if n % 3 == 0 else f"t/{n % 5}"
        rows.append((topic, b"%d" % n, DTO if n % 7 == 0 else 0))
    node.client().publish(*rows)
    assert client.payloads() == [b"%d" % n for n in range(60)]


def test_many_sets_in_one_round_give_one_frame_for_each_session(make_node: Any) -> None:
    node = make_node(2)
    everything = node.client()
    everything.subscribe("t/>")
    singles = [node.client() for _ in range(20)]
    for n, single in enumerate(singles):
        single.subscribe(f"t/{n}")
    node.client().publish(*[(f"t/{n % 20}", b"%d" % n) for n in range(100)])
    assert [len(s.deliveries()) for s in singles] == [1] * 20
    assert len([f for f in everything.received if f[0] == wire.DELIVER]) == 1
    assert everything.payloads() == [b"%d" % n for n in range(100)]


def test_no_local_is_left_out_of_the_choice(node: WiredNode) -> None:
    own, other = node.client(no_local=True), node.client(local_priority=4)
    own.subscribe("a")
    other.subscribe("a")
    own.publish(*[("a", b"", DTO)] * 3)
    assert _counts(own, other) == [0, 3]
    assert Counter(row[1] for row in other.rows()) == Counter()


@pytest.mark.requirement("R27")
def test_a_no_local_publisher_that_is_chosen_gets_its_shared_copy_although_it_subscribed_plainly_too(
    node: WiredNode,
) -> None:
    client = node.client(no_local=True)
    client.subscribe("a", "#share/g/a")
    client.publish("a", "a")
    assert _counts(client) == [2]


@pytest.mark.requirement("R75")
def test_a_local_client_gets_the_message_whatever_its_priority(node: WiredNode) -> None:
    client = node.client(local_priority=4, network_priority=1)
    client.subscribe("a")
    node.client().publish(("a", b"", DTO))
    assert _counts(client) == [1]
