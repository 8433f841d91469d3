"""A home whose disk has no room for anything new: publishers are refused, nothing is written for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode

FULL = errors.DISK_FULL


def fill(node: PublishNode, index: int = 0, *, is_full: bool = True) -> None:
    """Let a home say whether its disk is full."""
    tell_room(node, index, 0 if is_full else 1 << 40)


def tell_room(node: PublishNode, index: int, room_bytes: int) -> None:
    """Let a home say how much may be on its way to it, with everything stored that it got."""
    node.homes[index].tell_space(room_bytes)


@pytest.mark.requirement("R281")
def test_publishers_are_refused_while_it_is_full_and_nothing_is_written_for_that(
    spooling: PublishNode,
) -> None:
    spooling.queue("q", "a", reject_to_sender="never")
    publisher = spooling.publisher()
    publisher.publish("a")
    fill(spooling)
    before = len(spooling.homes[0].stores)
    publisher.publish("a", "a")
    assert publisher.acked() == (3, [[2, FULL], [3, FULL]])
    assert len(spooling.homes[0].stores) == before
    assert spooling.router.stats()["discards"] == {"disk-full": 2}
    assert spooling.endpoint("q").counters == {"disk_full_discard": 2}
    assert spooling.router.stats()["spool"]["homes_full"] == [0]
    fill(spooling, is_full=False)
    publisher.publish("a")
    assert publisher.acked() == (4, [])
    assert spooling.sequences("q") == [1, 4]


@pytest.mark.requirement("R281", "R177")
def test_what_the_producer_stores_next_takes_the_refusal_along(make_publish_node: Any) -> None:
    """The nack was lost, and a later message stored elsewhere: a resend is refused again, with room and without."""
    node = make_publish_node(2)
    node.queue("near", "a", "b", home=0)
    node.queue("far", "a", home=1)
    publisher = node.publisher()
    fill(node, 1)
    publisher.publish("a")
    publisher.publish("b")
    assert publisher.acked() == (2, [[1, FULL]])
    fill(node, 1, is_full=False)
    node.restart_router()
    again = publisher.reopen()
    assert again.last == 2
    again.publish("a", "b", "a", first=1)
    assert again.acked() == (3, [[1, FULL]])
    assert (node.sequences("near"), node.sequences("far")) == ([2, 3], [3])


@pytest.mark.requirement("R281")
def test_a_refusal_behind_which_nothing_was_stored_is_judged_anew(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    publisher = spooling.publisher()
    publisher.publish("a")
    fill(spooling)
    publisher.publish("a", "a")
    spooling.restart_router()
    fill(spooling, is_full=False)
    again = publisher.reopen()
    assert again.last == 1
    again.publish("a", "a", first=2)
    assert again.acked() == (3, [])
    assert spooling.sequences("q") == [1, 2, 3]


@pytest.mark.requirement("R281")
def test_what_others_hold_already_waits_for_room_and_is_not_refused(make_publish_node: Any) -> None:
    node = make_publish_node(2)
    node.queue("near", "a", home=0)
    node.queue("far", "a", home=1)
    publisher = node.publisher()
    node.homes[1].commits = False
    publisher.publish("a")
    node.restart_router()
    assert (node.sequences("near"), node.sequences("far")) == ([1], [])
    node.homes[1].commits = True
    fill(node, 1)
    again = publisher.reopen()
    again.publish("a", first=1)
    assert again.told() == []
    fill(node, 1, is_full=False)
    node.advance(1.0)
    assert again.acked() == (1, [])
    assert (node.sequences("near"), node.sequences("far")) == ([1], [1])


def test_copies_of_direct_messages_are_dropped_and_counted(make_publish_node: Any) -> None:
    node = make_publish_node(2)
    node.queue("near", "a", home=0)
    node.queue("far", "a", home=1)
    fill(node, 1)
    node.client().publish("a")
    assert (len(node.stored("near")), len(node.stored("far"))) == (1, 0)
    assert node.endpoint("far").counters == {"disk_full_discard": 1}


class TestRoomForWhatIsUnderWay:
    """A home tells for how much its disk has room for certain: what is given to it cannot be refused any more."""

    BODY = bytes(1_000)

    @pytest.mark.requirement("R281")
    def test_what_exceeds_it_waits_and_is_refused_when_the_disk_turns_out_to_be_full(
        self, spooling: PublishNode
    ) -> None:
        spooling.queue("q", "a")
        publisher, other = spooling.publisher(), spooling.publisher("other")
        tell_room(spooling, 0, 5_000)
        spooling.hold()
        for _ in range(3):
            publisher.publish(("a", self.BODY), ("a", self.BODY))
        other.publish("a", ("a", self.BODY))
        assert [len(store[4]) for store in spooling.homes[0].stores] == [1, 1]
        assert spooling.router.stats()["spool"]["rounds_waiting"] == 2
        spooling.homes[0].commits = True
        tell_room(spooling, 0, 0)
        assert publisher.acked() == (6, [[5, FULL], [6, FULL]])
        assert other.acked() == (2, [[1, FULL], [2, FULL]])

    def test_it_goes_on_in_order_with_what_is_told_next(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        tell_room(spooling, 0, 2_500)
        spooling.hold()
        for _ in range(4):
            publisher.publish(("a", self.BODY))
        assert len(spooling.homes[0].stores) == 2
        spooling.commit()
        assert publisher.acked() == (4, [])
        assert spooling.sequences("q") == [1, 2, 3, 4]

    def test_what_is_alone_goes_however_large(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        tell_room(spooling, 0, 10)
        publisher.publish(("a", self.BODY))
        assert publisher.acked() == (1, [])

    def test_a_home_without_room_holds_up_nobody_else(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("near", "a", home=0)
        node.queue("far", "b", home=1)
        publisher, other = node.publisher(), node.publisher("other")
        tell_room(node, 0, 10)
        tell_room(node, 1, 10)
        node.hold()
        for _ in range(2):
            publisher.publish("a")
            other.publish("b")
        node.homes[1].commits = True
        node.homes[1].commit()
        assert publisher.told() == []
        assert other.acked() == (2, [])

    @pytest.mark.requirement("R281")
    def test_rows_before_one_that_waits_for_a_quota_wait_for_a_disk(self, make_publish_node: Any) -> None:
        """They are acknowledged with the row behind them, so they must not be left out."""
        node = make_publish_node(2)
        node.queue("near", "a", home=0)
        node.queue("full", "a", home=1, max_spool_usage_mb=1)
        node.queue("far", "b", "c", home=1)
        publisher = node.publisher()
        node.homes[1].commits = False
        publisher.publish("b", "a")
        node.restart_router()
        node.homes[1].commits = True
        assert (node.sequences("near"), node.sequences("far")) == ([2], [])
        other, again = node.publisher("other"), publisher.reopen()
        other.publish(("#P2P/QUE/full", bytes(999_900)))
        tell_room(node, 1, 10)
        node.homes[1].commits = False
        other.publish("c")
        again.publish("b", "a", first=1)
        assert again.told() == []
        node.commit()
        node.advance(1.0)
        assert again.acked() == (1, [])
        node.consume("full", 1)
        node.advance(1.0)
        assert again.acked() == (2, [])
        assert [row.topic for row in node.stored("far")] == ["c", "b"]

    def test_a_home_that_is_down_is_given_what_it_gets_later(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        tell_room(spooling, 0, 1_500)
        spooling.hold()
        for _ in range(3):
            publisher.publish(("a", self.BODY))
        spooling.restart_worker(0)
        spooling.commit()
        assert publisher.acked() == (3, [])
        assert spooling.sequences("q") == [1, 2, 3]
