"""What a worker says of messages that endpoints take: which rows, how much of the spool, what nobody takes."""

from __future__ import annotations

import pytest

from angarium import errors, wire
from tests.unit.node.fake_router import PLAIN, SHARED, Router, row_of, rows_of

ENDPOINT, EXCEPTION = wire.KIND_ENDPOINT, wire.KIND_EXCEPTION
PERSISTENT = wire.MODE_PERSISTENT
HIGH = 2 << wire.COS_SHIFT


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.mark.requirement("R162", "R116")
def test_a_batch_for_an_endpoint_and_subscribers_is_answered_whole(router: Router) -> None:
    router.filters((1, "a/>", PLAIN), (2, "a/b", ENDPOINT))
    answer = router.match(rows_of("a/b", "a/b", flags=PERSISTENT), guaranteed=True)
    assert answer.whole
    assert list(answer.plain) == [(1,)]
    assert list(answer.endpoints) == [(2,)]


@pytest.mark.requirement("R155", "R113")
def test_rows_are_grouped_by_the_endpoints_that_take_them(router: Router) -> None:
    router.filters((1, "a/*", ENDPOINT), (2, "a/b", ENDPOINT), (3, "x", PLAIN))
    answer = router.match(rows_of("a/b", "a/c", "x", "a/b", flags=PERSISTENT), guaranteed=True)
    assert {key: [row[0] for row in rows] for key, rows in answer.endpoints.items()} == {
        (1, 2): [0, 3],
        (1,): [1],
    }
    assert [row[0] for row in answer.plain[3,]] == [2]
    assert answer.refused == {}


def test_the_head_tells_spool_bytes_the_largest_message_and_low_priority(router: Router) -> None:
    router.filters((1, "a", ENDPOINT))
    rows = [
        row_of(0, "a", PERSISTENT, b"x" * 10),
        row_of(1, "a", PERSISTENT | HIGH, b"y" * 7, properties=b"\x80"),
        row_of(2, "a", wire.MODE_NON_PERSISTENT | 1 << wire.COS_SHIFT, b""),
    ]
    answer = router.match(rows, guaranteed=True)
    assert [head[1:] for head in answer.endpoint_heads] == [[3, 18 + 3 * 64, 10, 2]]


@pytest.mark.requirement("R122", "R124")
def test_an_exception_that_matches_is_named_beside_the_filter(router: Router) -> None:
    router.filters((1, "animals/f*", ENDPOINT), (2, "animals/fox", EXCEPTION))
    answer = router.match(rows_of("animals/fox", "animals/frog", flags=PERSISTENT), guaranteed=True)
    assert sorted(answer.endpoints) == [(1,), (1, 2)]


def test_an_exception_alone_is_no_endpoint(router: Router) -> None:
    router.filters((1, "a", EXCEPTION), (2, "b", PLAIN))
    answer = router.match(rows_of("a"))
    assert answer.endpoints == {}
    assert answer.unmatched == 1


@pytest.mark.requirement("R151")
def test_direct_rows_reach_endpoints_too(router: Router) -> None:
    router.filters((1, "a", ENDPOINT))
    answer = router.match(rows_of("a", "b"))
    assert [row[0] for row in answer.endpoints[1,]] == [0]
    assert answer.unmatched == 1


def test_guaranteed_rows_that_match_nothing_are_told_by_their_index(router: Router) -> None:
    router.filters((1, "a", ENDPOINT), (2, "#P2P/QUE/q", ENDPOINT))
    rows = rows_of("b", "a", "#P2P/QUE/q", "#P2P/QUE/gone", "c", flags=PERSISTENT)
    answer = router.match(rows, guaranteed=True)
    assert answer.unmatched == 0
    assert answer.refused_indices == {errors.NO_SUBSCRIPTION_MATCH: [0, 4], errors.UNKNOWN_ENDPOINT: [3]}


@pytest.mark.requirement("R157")
def test_a_direct_subscriber_alone_is_a_match(router: Router) -> None:
    router.filters((1, "a", PLAIN), (2, "b", SHARED))
    answer = router.match(rows_of("a", "b", flags=PERSISTENT), guaranteed=True)
    assert answer.refused == {}
    assert answer.endpoints == {}


def test_denied_guaranteed_rows_are_told_by_their_index(router: Router) -> None:
    router.filters((1, ">", ENDPOINT))
    router.rules(5, False, ["a"])
    answer = router.match(rows_of("a", "b", "a", "c", flags=PERSISTENT), guaranteed=True, rules=5)
    assert answer.refused_indices == {errors.PUBLISH_DENIED: [1, 3]}
    assert [row[0] for row in answer.endpoints[1,]] == [0, 2]


@pytest.mark.parametrize("guaranteed", [False, True])
def test_direct_and_guaranteed_rows_share_no_batch(router: Router, guaranteed: bool) -> None:
    rows = [row_of(0, "a"), row_of(1, "a", PERSISTENT)]
    answer = router.match(rows, guaranteed=guaranteed)
    assert list(answer.refused) == [errors.MALFORMED_FRAME]


def test_what_is_taught_of_a_topic_names_its_endpoints(router: Router) -> None:
    router.filters((1, "a", ENDPOINT), (2, "b", PLAIN), (3, "a", PLAIN))
    answer = router.match(rows_of("a", "b"), learn=wire.LEARN_ALL)
    assert answer.learned == {"a": ((3,), (), (), (3,), (1,)), "b": ((2,), (), (), (2,), ())}


def test_a_filter_that_goes_takes_the_endpoint_away(router: Router) -> None:
    router.filters((1, "a", ENDPOINT))
    assert list(router.match(rows_of("a")).endpoints) == [(1,)]
    router.filters(removed=(1,))
    assert router.match(rows_of("a")).endpoints == {}
    router.worker.validate()
