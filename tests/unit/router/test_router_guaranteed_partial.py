"""What is sent again, that some endpoints hold and others do not: never refused, completed as soon as there is room."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from tests.unit.router.publish_rig import Publisher, PublishNode

BODY = bytes(10_000 - wire.SPOOL_OVERHEAD_BYTES)


def rows(count: int, topic: str = "a") -> list[tuple[str, bytes]]:
    return [(topic, BODY)] * count


class TestPartial:
    """A message that some of its endpoints hold and others do not."""

    def half_stored(self, node: PublishNode) -> Publisher:
        """Publish 1..3 to both queues; the home of `far` loses 2 and 3 together with the router."""
        node.queue("near", "a", home=0)
        node.queue("far", "a", "f", home=1, max_spool_usage_mb=1)
        publisher: Publisher = node.publisher()
        publisher.publish(("a", b"1"))
        node.homes[1].commits = False
        publisher.publish(("a", b"2"), ("a", b"3"))
        node.restart_router()
        assert (node.sequences("near"), node.sequences("far")) == ([1, 2, 3], [1])
        for home in node.homes.values():
            home.commits = True
        return publisher

    def test_the_others_get_what_they_miss(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        publisher = self.half_stored(node).reopen()
        publisher.publish(("a", b"1"), ("a", b"2"), ("a", b"3"), ("a", b"4"), first=1)
        assert publisher.acked() == (4, [])
        assert (node.sequences("near"), node.sequences("far")) == ([1, 2, 3, 4], [1, 2, 3, 4])

    def test_it_is_never_refused_but_waits_for_room(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        publisher = self.half_stored(node)
        filler = node.publisher("filler")
        filler.publish(*rows(99, "f"))
        node.change("far", ingress_enabled=False)
        again = publisher.reopen()
        again.publish(("a", b"2"), ("a", b"3"), first=2)
        again.publish(("a", BODY))
        assert again.told() == [], "neither acknowledged nor refused"
        assert node.router.stats()["spool"]["rounds_waiting"] == 2
        node.change("far", ingress_enabled=True)
        node.advance(1.0)
        assert again.acked() == (4, [[4, errors.SPOOL_OVER_QUOTA]]), "what nobody has is judged as ever"
        assert [row.sequence for row in node.stored("far") if row.producer == 1] == [1, 2, 3]
        assert node.sequences("near") == [1, 2, 3]
        assert filler.acked() == (99, [])

    def test_consumption_makes_room(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        publisher = self.half_stored(node)
        filler = node.publisher("filler")
        filler.publish(*rows(99, "f"), ("f", bytes(10_000 - 2 * wire.SPOOL_OVERHEAD_BYTES - 1)))
        assert filler.acked() == (100, [])
        again = publisher.reopen()
        again.publish(("a", b"2"), ("a", b"3"), first=2)
        assert again.told() == []
        node.consume("far", 1)
        assert again.acked() == (2, []), "room for one of them only"
        node.consume("far", 1)
        assert again.acked() == (3, [])

    def test_a_round_that_is_larger_than_the_queue_goes_in_pieces(self, make_publish_node: Any) -> None:
        """Two messages of which the queue holds one at a time: together they would wait for ever."""
        node = make_publish_node(2)
        publisher = self.half_stored(node)
        subscriber = node.client()
        subscriber.subscribe("a")
        node.consume("far", 1)
        again = publisher.reopen()
        half = bytes(600_000)
        again.publish(("a", half), ("a", half), ("none", b""), first=2)
        assert again.acked() == (2, [])
        assert node.sequences("far") == [2]
        node.consume("far", 1)
        assert again.acked() == (4, [])
        assert node.sequences("far") == [3]
        assert node.router.stats()["spool"]["rounds_waiting"] == 0
        assert subscriber.payloads() == [half, half], "this router does not know of copies before it"

    @pytest.mark.parametrize(
        "limit",
        [{"max_message_bytes": 0}, {"reject_low_priority": True, "reject_low_priority_limit": 0}],
        ids=["too large", "no low priority"],
    )
    def test_who_can_never_take_it_does_without(self, make_publish_node: Any, limit: dict[str, Any]) -> None:
        node = make_publish_node(2)
        publisher = self.half_stored(node)
        node.change("far", **limit)
        again = publisher.reopen()
        again.publish(("a", b"2"), ("a", b"3"), first=2)
        assert again.acked() == (3, [])
        assert node.sequences("far") == [1]
        assert sum(node.endpoint("far").counters.values()) == 2, "and it is counted"

    def test_what_a_queue_holds_that_matches_no_more_is_not_refused_either(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(2)
        publisher = self.half_stored(node)
        node.change("near", subscriptions=[])
        node.change("far", ingress_enabled=False)
        again = publisher.reopen()
        again.publish(("a", b"2"), ("a", b"3"), first=2)
        assert again.told() == [], "they are in `near`, so a nack would be wrong"
        node.change("far", ingress_enabled=True)
        node.advance(1.0)
        assert again.acked() == (3, [])
        assert (node.sequences("near"), node.sequences("far")) == ([1, 2, 3], [1, 2, 3])

    def test_what_was_stored_in_a_queue_that_is_gone_is_acknowledged(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("near", "a", home=0)
        node.queue("gone", home=1)
        publisher = node.publisher()
        publisher.publish("#P2P/QUE/gone", "a")
        node.drop("gone")
        again = publisher.reopen()
        again.publish("#P2P/QUE/gone", "a", "#P2P/QUE/gone", first=1)
        assert again.acked() == (3, [[3, errors.UNKNOWN_ENDPOINT]])

    def test_while_it_waits_ingress_goes_on(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        publisher = self.half_stored(node)
        node.change("far", ingress_enabled=False)
        again = publisher.reopen()
        again.publish(("a", b"2"), first=2)
        other = Publisher(node, again.client, "other")
        subscriber = node.client()
        subscriber.subscribe("d")
        again.client.publish(("d", b"direct"))
        assert subscriber.payloads() == [b"direct"]
        other.publish("near")
        node.change("near", subscriptions=["near"])
        assert other.acked() == (1, [])
        session = next(s for s in node.router.sessions if s.producers)
        assert not session.open_rounds

    def test_who_leaves_while_it_waits_may_come_back(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        publisher = self.half_stored(node)
        node.change("far", ingress_enabled=False)
        again = publisher.reopen()
        again.publish(("a", b"2"), first=2)
        again.publish(("a", b"3"))
        again.client.send(wire.BYE, [])
        node.change("far", ingress_enabled=True)
        node.advance(1.0)
        assert node.sequences("far") == [1]
        third = publisher.reopen()
        third.publish(("a", b"2"), ("a", b"3"), first=2)
        assert third.acked() == (3, [])
        assert node.sequences("far") == [1, 2, 3]

    def test_who_leaves_with_a_round_at_the_workers_leaves_no_hole(self, make_publish_node: Any) -> None:
        """A later round must not be taken when one before it was not: it would vouch for it."""
        node = make_publish_node(2)
        publisher = self.half_stored(node)
        node.change("far", ingress_enabled=False)
        again = publisher.reopen()
        again.publish(("a", b"2"), first=2)
        node.pause(0)
        node.pause(1)
        again.publish("f", first=3)
        node.router.sessions.close(
            next(s for s in node.router.sessions if s.producers), errors.error_for(errors.INTERNAL), node.now
        )
        node.change("far", ingress_enabled=True)
        node.unpause(0)
        node.unpause(1)
        assert node.sequences("far") == [1]

    def test_a_message_that_one_refused_before_stays_refused_although_another_would_hold_it(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(2)
        node.queue("near", "a", "b", home=0)
        node.queue("far", "a", home=1, ingress_enabled=False)
        publisher = node.publisher()
        publisher.publish("a", "b")
        node.change("far", ingress_enabled=True)
        again = publisher.reopen()
        again.publish("a", "b", first=1)
        assert again.acked() == (2, [[1, errors.ENDPOINT_SHUTDOWN]])
        assert (node.sequences("near"), node.sequences("far")) == ([2], [])
