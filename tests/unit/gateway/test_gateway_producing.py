"""The producer of a carrier against a node that the test plays: who is answered what, when, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, slots, wire
from angarium.client.protocol.events import Welcome
from angarium.errors import error_for
from gateway.producing import OPEN_PAUSE_S, OPEN_WAIT_S, Producing
from gateway.session import Acknowledged, ProducerOpened, ProducerRefused

WELCOME = Welcome(
    session="1",
    client_name="g",
    vpn="default",
    node="n",
    token=b"",
    resumed=False,
    epoch=3,
    slots=slots.slot_table(2),
    workers=2,
    rounds=100,
    round_bytes=1 << 20,
    keepalive_ms=1_000,
    max_message_bytes=1 << 20,
    max_batch_rows=10_000,
    max_batch_bytes=16 << 20,
    inbox="",
    producer_bytes=1_000_000,
)
#: As many messages as a round has at most: the least that a window may be.
ROUND = slots.ROUND_ROWS_MAX
LATER = errors.CONTROLLER_UNAVAILABLE
NEVER = errors.GUARANTEED_SEND_DENIED


def waiting() -> Producing[str]:
    made: Producing[str] = Producing()
    made.limit(WELCOME)
    return made


def opened(last_sequence: int = 0, window: int = ROUND) -> Producing[str]:
    made = waiting()
    made.hear(ProducerOpened(1, last_sequence, window), 0.0)
    return made


def add(producing: Producing[str], *names: int, publisher: str = "c", payload: bytes = b"x") -> None:
    for name in names:
        producing.add(publisher, name, (0, f"t/{name}", wire.MODE_PERSISTENT, None, None, payload))
    producing.validate()


def leave(producing: Producing[str]) -> list[tuple[int, list[str]]]:
    """Take the rounds that may leave: first sequence, topics."""
    found = []
    while producing.can_send():
        first, made = producing.take()
        rows = sorted(row for batch in made.batches for row in wire.unpack(batch))
        assert [row[0] for row in rows] == list(range(len(rows)))
        found.append((first, [row[1] for row in rows]))
        producing.validate()
    return found


def acked(
    producing: Producing[str], upto: int, nacks: Any = (), unroutable: Any = ()
) -> dict[str, list[tuple[int, int]]]:
    producing.hear(Acknowledged(1, upto, list(nacks), 0, list(unroutable)), 0.0)
    producing.validate()
    return settled(producing)


def settled(producing: Producing[str]) -> dict[str, list[tuple[int, int]]]:
    found = {who: one.answers for who, one in producing.settled().items()}
    assert not producing.has_settled()
    producing.validate()
    return found


def test_it_is_opened_for_the_first_message() -> None:
    producing = waiting()
    assert producing.open_at() == float("inf")
    add(producing, 1)
    assert producing.open_at() == 0.0
    producing.is_opening = True
    assert producing.open_at() == float("inf")
    assert leave(producing) == []
    producing.hear(ProducerOpened(4, 0, ROUND), 0.0)
    assert producing.handle == 4
    assert leave(producing) == [(1, ["t/1"])]


def test_it_goes_on_where_the_one_before_it_stopped() -> None:
    producing = opened(last_sequence=700)
    add(producing, 1, 2)
    assert leave(producing) == [(701, ["t/1", "t/2"])]
    add(producing, 3)
    assert leave(producing) == [(703, ["t/3"])]
    assert acked(producing, 702) == {"c": [(1, 0), (2, 0)]}


def test_each_client_is_told_of_its_own_messages_in_their_order() -> None:
    producing = opened()
    add(producing, 7, publisher="a")
    add(producing, 7, publisher="b")
    add(producing, 3, publisher="a")
    leave(producing)
    assert acked(producing, 2) == {"a": [(7, 0)], "b": [(7, 0)]}
    assert acked(producing, 2) == {}
    assert acked(producing, 3) == {"a": [(3, 0)]}


def test_what_the_node_refuses_and_what_nobody_wants_is_told_with_the_others() -> None:
    producing = opened(last_sequence=10)
    add(producing, 1, 2, 3, 4, 5)
    leave(producing)
    told = acked(producing, 15, [(12, errors.SPOOL_OVER_QUOTA, "")], [(14, 2)])
    nobody = errors.NO_SUBSCRIPTION_MATCH
    assert told == {"c": [(1, 0), (2, errors.SPOOL_OVER_QUOTA), (3, 0), (4, nobody), (5, nobody)]}


def test_a_refusal_may_come_before_what_it_is_behind_is_stored() -> None:
    producing = opened()
    add(producing, 1, 2)
    leave(producing)
    assert acked(producing, 0, [(2, errors.DISK_FULL, "")]) == {}
    assert acked(producing, 2) == {"c": [(1, 0), (2, errors.DISK_FULL)]}


def test_what_is_refused_here_is_told_behind_what_came_before_it() -> None:
    producing = opened()
    producing.refuse("c", 1, errors.PUBLISH_DENIED)
    assert settled(producing) == {"c": [(1, errors.PUBLISH_DENIED)]}
    add(producing, 2)
    producing.refuse("c", 3, errors.PUBLISH_DENIED)
    add(producing, 4)
    leave(producing)
    assert settled(producing) == {}
    assert acked(producing, 1, [(1, errors.DISK_FULL, "")]) == {
        "c": [(2, errors.DISK_FULL), (3, errors.PUBLISH_DENIED)]
    }
    assert acked(producing, 2) == {"c": [(4, 0)]}


def test_no_more_messages_are_under_way_than_the_node_grants() -> None:
    producing = opened(window=ROUND)
    add(producing, *range(1, ROUND + 1))
    assert sum(len(topics) for _, topics in leave(producing)) == ROUND
    add(producing, 1)
    assert leave(producing) == []
    acked(producing, 1)
    assert leave(producing) == [(ROUND + 1, ["t/1"])]


def test_a_window_in_which_no_round_fits_is_none() -> None:
    with pytest.raises(errors.InvalidRequestError, match="40001"):
        opened(window=ROUND - 1)


def test_another_session_with_the_producer_ends_this_one() -> None:
    with pytest.raises(errors.AngariumError, match="40903"):
        opened().hear(Acknowledged(1, 0, [], errors.PRODUCER_FENCED, []), 0.0)


def test_nor_more_bytes_but_for_one_round() -> None:
    producing = opened()
    for name in range(1, 5):
        add(producing, name, payload=b"x" * 400_000)
    assert [first for first, _ in leave(producing)] == [1, 2, 3]
    acked(producing, 1)
    assert [first for first, _ in leave(producing)] == [4]


def test_what_was_taken_is_bounded_and_told() -> None:
    producing = waiting()
    count = 0
    while producing.has_room():
        count += 1
        producing.add("c", count, (0, "t", wire.MODE_PERSISTENT, None, None, b"x" * 1_000))
    assert 3_000 < count < 5_000
    assert producing.unacknowledged == count == len(producing.rows)


def test_the_bytes_of_a_client_are_told_back() -> None:
    producing = opened()
    add(producing, 1, 2, payload=b"x" * 100)
    producing.refuse("c", 3, errors.PUBLISH_DENIED)
    leave(producing)
    producing.hear(Acknowledged(1, 2, [], 0, []), 0.0)
    assert producing.settled()["c"].size_bytes == 200


def test_while_it_cannot_be_opened_it_is_tried_again_and_then_all_are_refused() -> None:
    producing = waiting()
    add(producing, 1)
    now = 100.0
    while not (told := settled(producing)):
        producing.is_opening = True
        producing.hear(ProducerRefused(error_for(LATER)), now)
        assert producing.open_at() in (now + OPEN_PAUSE_S, float("inf"))
        now += OPEN_PAUSE_S
    assert told == {"c": [(1, LATER)]}
    assert now - 100.0 == pytest.approx(OPEN_WAIT_S, abs=OPEN_PAUSE_S)
    add(producing, 2)
    producing.hear(ProducerOpened(1, 40, ROUND), now)
    assert leave(producing) == [(41, ["t/2"])]
    assert acked(producing, 41) == {"c": [(2, 0)]}


def test_a_refusal_for_good_is_told_at_once() -> None:
    producing = waiting()
    producing.refuse("a", 1, errors.PUBLISH_DENIED)
    assert settled(producing) == {"a": [(1, errors.PUBLISH_DENIED)]}
    add(producing, 2)
    producing.refuse("a", 3, errors.PUBLISH_DENIED)
    producing.hear(ProducerRefused(error_for(NEVER)), 1.0)
    assert settled(producing) == {"c": [(2, NEVER)], "a": [(3, errors.PUBLISH_DENIED)]}
    assert producing.unacknowledged == 0


@pytest.mark.parametrize(
    ("upto", "nacks", "unroutable"),
    [
        (0, [], []),
        (13, [], []),
        (11, [(13, NEVER, "")], []),
        (12, [(11, NEVER, "")], []),
        (12, [], [(12, 2)]),
        (12, [], [(11, 1)]),
    ],
)
def test_a_node_that_speaks_of_what_is_not_under_way_is_not_believed(
    upto: int, nacks: Any, unroutable: Any
) -> None:
    producing = opened(last_sequence=10)
    add(producing, 1, 2)
    leave(producing)
    acked(producing, 11)
    with pytest.raises(errors.InvalidRequestError, match="40001"):
        acked(producing, upto, nacks, unroutable)


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.sampled_from([1, 2, 900])),
        st.tuples(st.just("refuse"), st.integers(0, 2), st.integers(1, 2)),
        st.tuples(st.just("ack"), st.just(0), st.sampled_from([1, 2, 700, 2_000])),
    ),
    max_size=30,
)


@given(_steps, st.sets(st.integers(1, 5)))
def test_everything_is_answered_once_in_order_with_what_became_of_it(
    steps: list[tuple[str, int, int]], refused: set[int]
) -> None:
    """The node refuses some sequences; names count up for each client, so their order can be seen."""
    producing = opened(last_sequence=5)
    expected: dict[str, list[tuple[int, int]]] = {}
    told: dict[str, list[tuple[int, int]]] = {}
    added = sent = upto = 5
    for what, publisher, count in [*steps, *[("ack", 0, ROUND)] * 20]:
        who = f"c{publisher}"
        own = expected.setdefault(who, [])
        answers: dict[str, list[tuple[int, int]]] = {}
        if what == "ack":
            first, upto = upto, min(upto + count, sent)
            answers = acked(
                producing,
                upto,
                [(one, NEVER, "") for one in range(first + 1, upto + 1) if one % 6 in refused],
            )
        for _ in range(count if what == "refuse" else 0):
            producing.refuse(who, len(own), errors.PUBLISH_DENIED)
            own.append((len(own), errors.PUBLISH_DENIED))
        if what == "add":
            names = range(len(own), len(own) + count)
            add(producing, *names, publisher=who)
            own += [(name, NEVER if (added + at) % 6 in refused else 0) for at, name in enumerate(names, 1)]
            added += count
        for first, topics in leave(producing):
            assert first == sent + 1
            sent += len(topics)
        assert sent - upto <= ROUND
        for one, some in (answers or settled(producing)).items():
            told.setdefault(one, []).extend(some)
    assert sent == upto == added
    assert told == {who: some for who, some in expected.items() if some}
