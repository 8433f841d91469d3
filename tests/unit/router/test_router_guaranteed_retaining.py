"""The queue that retains, as the router knows it: what workers are told of it, who may use it, and what it admits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from router.guaranteed.endpoints import lane_settings
from tests.unit.router.limited_publishing import BODY
from tests.unit.router.publish_rig import request

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode

NAME = wire.RETAINED_QUEUE
KEPT = wire.MODE_PERSISTENT | wire.FLAG_RETAIN
NOTHING = b""


@pytest.fixture
def retaining(spooling: PublishNode) -> PublishNode:
    """Give a node whose queue holds exactly 100 messages of BODY."""
    spooling.queue(NAME, max_spool_usage_mb=1)
    return spooling


def topics_of(node: PublishNode) -> list[str]:
    return [row.topic for row in node.stored(NAME)]


class TestFilters:
    def test_workers_are_told_one_filter_of_a_kind_of_its_own(self, retaining: PublishNode) -> None:
        queue = retaining.endpoint(NAME)
        assert list(queue.filters) == [(wire.KIND_RETAINED, ">", ">")]
        assert queue.address == ""
        (told,) = queue.filters.values()
        assert (told.kind, told.shard) == (wire.KIND_RETAINED, None), "every worker holds it"

    def test_its_home_is_told_that_it_retains(self, retaining: PublishNode) -> None:
        retaining.queue("q", "a")
        assert lane_settings(retaining.endpoint(NAME)).retains
        assert not lane_settings(retaining.endpoint("q")).retains

    def test_a_queue_that_goes_takes_its_filter_along_and_another_one_may_come(
        self, retaining: PublishNode
    ) -> None:
        publisher = retaining.publisher()
        publisher.publish(("a", b"1", KEPT))
        retaining.drop(NAME)
        publisher.publish(("a", b"2", KEPT))
        retaining.queue(NAME)
        publisher.publish(("a", b"3", KEPT))
        assert retaining.payloads(NAME) == [b"3"]
        assert publisher.acked() == (3, [])

    @pytest.mark.parametrize("workers", [1, 2])
    def test_what_is_retained_goes_there_and_to_all_others(
        self, make_publish_node: Any, workers: int
    ) -> None:
        node = make_publish_node(workers)
        node.queue(NAME, home=workers - 1)
        node.queue("q", "a/>", "!a/2")
        subscriber, publisher = node.client(), node.publisher()
        subscriber.subscribe("a/*")
        for _ in range(3):  # what the fast path has learned of a topic makes no difference
            publisher.publish(("a/1", b"1", KEPT), "a/1", ("a/2", b"2", KEPT), ("b", b"3", KEPT))
            publisher.client.publish(("c", b"4", wire.FLAG_RETAIN), "c")
        assert node.payloads(NAME) == [b"1", b"2", b"3", b"4"], "the newest of each topic"
        assert node.payloads("q") == [b"1", b"x"] * 3
        assert subscriber.topics() == ["a/1", "a/1", "a/2"] * 3
        assert publisher.acked()[1] == []


class TestRights:
    def test_nobody_publishes_to_it_by_name(self, retaining: PublishNode) -> None:
        publisher = retaining.publisher()
        publisher.publish(wire.QUEUE_TOPIC_PREFIX + NAME, (wire.QUEUE_TOPIC_PREFIX + NAME, b"x", KEPT))
        assert publisher.acked() == (2, [[1, errors.UNKNOWN_ENDPOINT], [2, errors.UNKNOWN_ENDPOINT]])
        assert retaining.stored(NAME) == []

    @pytest.mark.parametrize("attributes", [{}, {"permission": "delete"}, {"owner": "default"}])
    def test_nobody_uses_it_as_a_queue_whatever_it_says(
        self, retaining: PublishNode, attributes: dict[str, Any]
    ) -> None:
        retaining.change(NAME, **attributes)
        client = retaining.client()
        for operation, arguments in (
            ("flow.bind", {}),
            ("flow.bind", {"browse": True}),
            ("group.open", {"group": "g", "lease_ms": 60_000}),
            ("endpoint.show", {}),
            ("endpoint.delete", {}),
            ("endpoint.subscribe", {"filters": ["a"]}),
        ):
            found = request(client, operation, name=NAME, **arguments)[0]
            assert found == errors.PERMISSION_DENIED, (operation, arguments)


class TestAdmission:
    def fill(self, node: PublishNode) -> Any:
        publisher = node.publisher()
        publisher.publish(*[(f"t/{number}", BODY, KEPT) for number in range(100)])
        assert publisher.acked() == (100, [])
        return publisher

    def test_at_the_quota_a_guaranteed_message_is_refused_and_a_removal_is_not(
        self, retaining: PublishNode
    ) -> None:
        publisher = self.fill(retaining)
        publisher.publish(
            ("u", b"x", KEPT), ("t/5", NOTHING, KEPT), ("t/6", b"x", KEPT), ("u", NOTHING, KEPT)
        )
        quota = errors.SPOOL_OVER_QUOTA
        assert publisher.acked() == (104, [[101, quota], [103, quota]])
        assert topics_of(retaining) == [f"t/{number}" for number in range(100) if number != 5]
        assert retaining.endpoint(NAME).counters == {"spool_usage_exceeded": 2}

    def test_at_the_quota_a_direct_message_is_not_retained_and_counted_and_a_removal_is(
        self, retaining: PublishNode
    ) -> None:
        self.fill(retaining)
        client, subscriber = retaining.client(), retaining.client()
        subscriber.subscribe("u")
        client.publish(("u", b"x", wire.FLAG_RETAIN), ("t/5", NOTHING, wire.FLAG_RETAIN))
        assert topics_of(retaining) == [f"t/{number}" for number in range(100) if number != 5]
        assert subscriber.payloads() == [b"x"]
        assert retaining.router.stats()["discards"] == {"message-promotion-congestion": 1}

    def test_a_removal_passes_the_quotas_of_its_message_vpn_and_of_the_node(
        self, retaining: PublishNode
    ) -> None:
        retaining.change(NAME, max_spool_usage_mb=10)
        retaining.change_vpn(max_spool_usage_mb=1)
        publisher = self.fill(retaining)
        publisher.publish(("t/5", NOTHING, KEPT), ("u", b"x", KEPT))
        assert publisher.acked() == (102, [[102, errors.SPOOL_OVER_QUOTA]])

    def test_a_removal_that_another_queue_refuses_goes_nowhere(self, retaining: PublishNode) -> None:
        """As every message: it is one message, and its publisher is told."""
        retaining.queue("q", "t/5", ingress_enabled=False)
        publisher = retaining.publisher()
        publisher.publish(("t/5", NOTHING, KEPT))
        assert [code for _, code in publisher.acked()[1]] == [errors.ENDPOINT_SHUTDOWN]
        assert topics_of(retaining) == []

    def test_only_the_queue_that_retains_makes_an_exception(self, retaining: PublishNode) -> None:
        retaining.queue("q", "a", max_spool_usage_mb=1)
        publisher = retaining.publisher()
        publisher.publish(*[("a", BODY)] * 100)
        publisher.publish(("a", NOTHING))
        assert publisher.acked() == (101, [[101, errors.SPOOL_OVER_QUOTA]])

    def test_a_quota_that_changes_counts_at_once(self, retaining: PublishNode) -> None:
        retaining.change(NAME, max_spool_usage_mb=2)
        publisher = self.fill(retaining)
        retaining.change(NAME, max_spool_usage_mb=1)
        publisher.publish(("u", BODY, KEPT))
        assert publisher.acked() == (101, [[101, errors.SPOOL_OVER_QUOTA]])
        retaining.change(NAME, max_spool_usage_mb=2)
        publisher.publish(("u", BODY, KEPT))
        assert publisher.acked() == (102, [])
