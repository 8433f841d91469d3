"""Guaranteed rounds of known topics need no worker to match them; whatever is not plain goes to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium_server.frames.matching import LARGE_ROW_BYTES

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode


@pytest.fixture
def known(spooling: PublishNode) -> Any:
    """Give a publisher whose topic `a` the router knows."""
    spooling.queue("q", "a", "b")
    publisher = spooling.publisher()
    publisher.publish("a")
    assert publisher.acked() == (1, [])
    return publisher


def rounds(node: PublishNode) -> int:
    return int(node.router.stats()["fast_path_rounds"])


@pytest.mark.requirement("R162")
def test_a_known_topic_needs_no_worker(spooling: PublishNode, known: Any) -> None:
    before = rounds(spooling)
    known.publish(*["a"] * 100)
    assert known.acked() == (101, [])
    assert rounds(spooling) == before + 1
    assert spooling.sequences("q") == list(range(1, 102))


@pytest.mark.parametrize("size", [1, LARGE_ROW_BYTES, 20_000])
def test_known_topics_of_all_sizes_are_counted_as_they_are(
    spooling: PublishNode, known: Any, size: int
) -> None:
    before = rounds(spooling)
    known.publish(*[("a", bytes(size))] * 3)
    assert known.acked() == (4, [])
    assert rounds(spooling) == before + 1
    assert [row.size for row in spooling.stored("q")][1:] == [size + wire.SPOOL_OVERHEAD_BYTES] * 3
    spooling.check_limits()


def test_a_payload_that_is_none_is_refused_whatever_is_beside_it(spooling: PublishNode, known: Any) -> None:
    known.publish(("a", bytes(20_000)), ("a", "text"))
    assert known.client.closed_with() == errors.MALFORMED_FRAME


def test_a_sequence_may_have_gaps_and_does_not_go_back(spooling: PublishNode, known: Any) -> None:
    before = rounds(spooling)
    first = known.publish("a", "a", indices=[3, 7])
    assert known.acked() == (first + 7, [])
    assert spooling.sequences("q") == [1, first + 3, first + 7]
    known.publish("a", first=first + 7)
    assert rounds(spooling) == before + 2
    assert spooling.router.counters.errors == {errors.INVALID_SEQUENCE: 1}


def test_topics_that_lead_elsewhere_go_to_the_worker(spooling: PublishNode, known: Any) -> None:
    spooling.queue("other", "c")
    known.publish("c")
    assert known.acked() == (2, [])
    before = rounds(spooling)
    known.publish("a", "c")
    assert known.acked() == (4, [])
    assert rounds(spooling) == before
    assert (spooling.sequences("q"), spooling.sequences("other")) == ([1, 3], [2, 4])


def test_a_new_queue_is_seen_at_once(spooling: PublishNode, known: Any) -> None:
    spooling.queue("late", "a")
    known.publish("a")
    assert known.acked() == (2, [])
    assert spooling.sequences("late") == [2]


def test_a_queue_that_goes_is_not_remembered(spooling: PublishNode, known: Any) -> None:
    spooling.drop("q")
    known.publish("a")
    assert known.acked() == (2, [])
    assert spooling.router.counters.totals["discard.no-subscription-match"] == 1


def test_the_fast_path_can_be_switched_off(make_publish_node: Any) -> None:
    node = make_publish_node(1, fast_path_topics_max=0)
    node.queue("q", "a")
    publisher = node.publisher()
    for _ in range(3):
        publisher.publish("a")
    assert publisher.acked() == (3, [])
    assert rounds(node) == 0


@pytest.mark.parametrize("flags", [wire.FLAG_RETAIN, wire.FLAG_RETAIN | wire.FLAG_DMQ_ELIGIBLE])
def test_what_is_to_be_retained_goes_to_the_worker(spooling: PublishNode, known: Any, flags: int) -> None:
    before = rounds(spooling)
    known.publish("a", ("a", b"y", wire.MODE_PERSISTENT | flags))
    assert known.acked() == (3, [])
    assert rounds(spooling) == before


@pytest.mark.parametrize("flags", [wire.MODE_DIRECT, wire.FLAG_MODE, wire.MODE_PERSISTENT | wire.FLAG_COS])
def test_flags_that_a_worker_refuses_are_refused(spooling: PublishNode, known: Any, flags: int) -> None:
    known.publish("a", flags=flags)
    assert known.client.closed_with() == errors.MALFORMED_FRAME
