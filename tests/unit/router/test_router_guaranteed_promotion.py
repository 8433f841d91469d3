"""Direct messages for queues: promoted copies, which are never acknowledged, never waited for, and count when lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from router.ground.config import SpoolLimits
from router.sessions.session import publisher_number

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode

BODY = bytes(10_000 - wire.SPOOL_OVERHEAD_BYTES)


@pytest.mark.requirement("R151", "R153", "R159", "R116")
def test_a_direct_message_is_spooled_where_it_matches_and_nobody_acknowledges_it(
    spooling: PublishNode,
) -> None:
    spooling.queue("q", "a/>")
    subscriber = spooling.client()
    subscriber.subscribe("a/*", "b")
    publisher = spooling.client()
    publisher.publish(("a/1", b"1"), ("b", b"2"), ("a/2", b"3"))
    assert spooling.payloads("q") == [b"1", b"3"]
    assert [row.producer for row in spooling.stored("q")] == [None, None]
    assert subscriber.payloads() == [b"1", b"2", b"3"]
    assert not any(frames[0] in (wire.ACKED, wire.NOTICE) for frames in publisher.received)
    figures = spooling.router.stats()["spool"]
    assert figures["ingress_messages_promoted"] == 2
    assert figures["ingress_messages"] == 0


@pytest.mark.requirement("R151")
def test_promoted_copies_go_the_relaxed_way_without_a_producer(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    spooling.client().publish("a", "a")
    (store,) = spooling.homes[0].stores
    assert (store[2], store[3]) == (True, None)


def test_a_home_is_told_which_client_published(spooling: PublishNode) -> None:
    """For no_local: a producer, and the same client without one, are one publisher; another client is another."""
    spooling.queue("q", "a")
    publisher = spooling.publisher(client_name="one")
    publisher.publish(("a", b"1"))
    publisher.client.publish("a")
    spooling.client(client_name="two").publish("a")
    first, second, third = (store[7] for store in spooling.homes[0].stores)
    assert first == second == publisher_number("one")
    assert third == publisher_number("two")
    assert 0 < first != third


def test_a_small_direct_round_to_a_queue_is_never_taken_for_known(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    publisher = spooling.client()
    for _ in range(5):
        publisher.publish("a")
    assert len(spooling.stored("q")) == 5
    assert spooling.router.stats()["fast_path_rounds"] == 0


@pytest.mark.requirement("R3")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_promoted_copies_keep_the_order(make_publish_node: Any, workers: int) -> None:
    node = make_publish_node(workers)
    node.queue("q", "t/>", home=workers - 1)
    node.queue("some", "t/*/x")
    publisher = node.client()
    for start in range(0, 120, 30):
        rows = [(f"t/{n % 11}" + ("/x" if n % 2 else ""), b"%d" % n) for n in range(start, start + 30)]
        publisher.publish(*rows)
    assert node.payloads("q") == [b"%d" % n for n in range(120)]
    assert node.payloads("some") == [b"%d" % n for n in range(1, 120, 2)]


def test_rows_without_a_key_spread_over_partitions(spooling: PublishNode) -> None:
    spooling.queue("q", "a", partition_count=4, access_type="non-exclusive")
    publisher = spooling.client()
    for _ in range(20):
        publisher.publish("a", "a")
    assert all(spooling.stored("q", partition) for partition in range(4))
    assert len(spooling.stored("q")) == 40


class TestCongestion:
    """What endpoints cannot take is lost to them alone, and counted."""

    def discards(self, node: PublishNode) -> dict[str, int]:
        found = node.router.stats()["discards"]
        assert isinstance(found, dict)
        return found

    @pytest.mark.parametrize(
        ("attributes", "counter"),
        [
            ({"max_spool_usage_mb": 1}, "spool_usage_exceeded"),
            ({"max_message_bytes": len(BODY) - 1}, "max_message_size_exceeded"),
            ({"ingress_enabled": False}, "spool_shutdown_discard"),
            (
                {"reject_low_priority": True, "reject_low_priority_limit": 100},
                "low_priority_msg_congestion_discard",
            ),
        ],
    )
    @pytest.mark.requirement("R153", "R178")
    def test_an_endpoint_that_cannot_take_it(
        self, spooling: PublishNode, attributes: dict[str, Any], counter: str
    ) -> None:
        spooling.queue("q", "a", **attributes)
        spooling.queue("other", "a")
        subscriber = spooling.client()
        subscriber.subscribe("a")
        publisher = spooling.client(client_name="pub")
        publisher.publish(*[("a", BODY)] * 60)
        publisher.publish(*[("a", BODY)] * 60)
        kept = len(spooling.stored("q"))
        assert kept == (100 if "size" not in counter and "shutdown" not in counter else 0)
        assert len(spooling.stored("other")) == 120, "the others get theirs"
        assert len(subscriber.rows()) == 120
        assert self.discards(spooling) == {"message-promotion-congestion": 120 - kept}
        assert spooling.endpoint("q").counters == {counter: 120 - kept}
        assert publisher.notices() == []
        described = spooling.router.operators.client("default", "pub", spooling.now)
        assert described["discards"] == {"discard.message-promotion-congestion": 120 - kept}

    def test_the_quota_of_the_node_is_shared_with_guaranteed_messages(self, make_publish_node: Any) -> None:
        node = make_publish_node(spool=SpoolLimits(max_usage_mb=1))
        node.queue("q", "a")
        node.queue("r", "a", "b")
        publisher = node.publisher()
        publisher.publish(*[("b", BODY)] * 90)
        direct = node.client()
        direct.publish(*[("a", BODY)] * 8)
        assert (len(node.stored("q")), len(node.stored("r"))) == (5, 95)
        assert self.discards(node) == {"message-promotion-congestion": 6}

    def test_the_number_of_spool_files(self, make_publish_node: Any) -> None:
        node = make_publish_node(spool=SpoolLimits(max_files=1))
        node.queue("q", "a")
        publisher = node.client()
        for _ in range(9):
            publisher.publish(*[("a", BODY)] * 100)
        assert len(node.stored("q")) == 800
        assert self.discards(node) == {"message-promotion-congestion": 100}

    def test_what_may_wait_for_one_home_is_limited(self, make_publish_node: Any) -> None:
        node = make_publish_node(2, promoted_bytes_max=50_000)
        node.queue("near", "a", home=0)
        node.queue("far", "a", home=1)
        node.homes[1].commits = False
        publisher = node.client()
        publisher.publish(*[("a", BODY)] * 3)
        publisher.publish(*[("a", BODY)] * 3)
        assert self.discards(node) == {"message-promotion-congestion": 1}
        assert len(node.stored("near")) == 6
        node.commit()
        assert len(node.stored("far")) == 5
        publisher.publish(*[("a", BODY)] * 5)
        assert len(node.stored("far")) == 10
        publisher.publish(*[("a", BODY)] * 6)
        assert len(node.stored("far")) == 15, "of a round that is larger what fits"

    def test_a_home_that_is_down_gets_them_when_it_is_back(self, make_publish_node: Any) -> None:
        node = make_publish_node(2, promoted_bytes_max=30_000)
        node.queue("far", home=1)
        topic = next(t for t in "abcdefgh" if node.router.shards.table[_slot(t)] == 0)
        node.change("far", subscriptions=[topic])
        publisher = node.client()
        node.kill_worker(1)
        publisher.publish(*[(topic, BODY)] * 2)
        publisher.publish(*[(topic, BODY)] * 2)
        node.start_worker(1)
        assert len(node.stored("far")) == 3
        assert self.discards(node) == {"message-promotion-congestion": 1}

    def test_before_the_homes_have_reported_nothing_is_promoted_and_nobody_waits(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node()
        node.queue("q", "a")
        node.queue("r", "a")
        node.silent.add(0)
        node.restart_router()
        subscriber, publisher = node.client(), node.client()
        subscriber.subscribe("a")
        publisher.publish(("a", b"1"), ("a", b"2"))
        assert subscriber.payloads() == [b"1", b"2"]
        assert self.discards(node) == {"message-promotion-congestion": 4}
        node.homes[0].report()
        publisher.publish(("a", b"3"))
        assert node.payloads("q") == node.payloads("r") == [b"3"]


def test_an_exception_counts_as_no_match(spooling: PublishNode) -> None:
    spooling.queue("q", "a/*", "!a/x")
    publisher = spooling.client()
    publisher.publish("a/x", "a/y", "a/x")
    assert [row.topic for row in spooling.stored("q")] == ["a/y"]
    assert spooling.router.stats()["discards"] == {"no-subscription-match": 2}


def test_an_index_that_comes_twice_in_two_parts_costs_the_session(make_publish_node: Any) -> None:
    """Direct subscribers do not mind, but a home puts rows in order by it."""
    node = make_publish_node(2)
    node.queue("q", "t/>")
    table = node.router.shards.table
    topics = [next(f"t/{n}" for n in range(99) if table[_slot(f"t/{n}")] == worker) for worker in (0, 1)]
    client = node.client()
    parts = [wire.pack([[0, topic, 0, None, None, b""]]) for topic in topics]
    client.send(wire.PUBLISH, [1, node.router.shards.epoch, False, [[0, 1], [1, 1]]], *parts)
    assert client.closed_with() == errors.MALFORMED_FRAME
    assert node.stored("q") == []


def _slot(topic: str) -> int:
    from angarium.topic import slot_of

    return slot_of(topic)
