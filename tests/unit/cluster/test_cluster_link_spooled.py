"""Carrying the queue of a link: sequences are positions, acknowledged is settled, refused goes aside."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from cluster.relay.frames import read_messages
from cluster.relay.session import Settled
from cluster.relay.spooled import GATHER_S, Forwarder, aged
from tests.unit.cluster.played_relay import make_session, sent
from tests.unit.cluster.spooled_requests import NOW_MS, answer, requests

QUEUE = "#link/b"


class Bench:
    """A forwarder between two sessions, and what it says to their routers."""

    def __init__(self, offset_ms: int = 0, **limits: int) -> None:
        self.source = make_session(node="a", link={"node": "a", "node_id": "id-a"})
        self.target = make_session(node="b", **limits)
        self.forwarder = Forwarder(self.source, self.target, QUEUE, offset_ms)
        self.forwarder.open()
        (bind,) = requests(self.source)
        assert bind[1:] == [
            "flow.bind",
            {"name": QUEUE, "messages": 65_536, "bytes": 32 << 20, "in_order": True},
        ]
        answer(self.source, bind[0], {"flow": 5, "endpoint_id": 9})
        (opening,) = requests(self.target)
        assert opening[1:] == ["producer.open", {"name": "#link/id-a/9"}]
        answer(self.target, opening[0], {"producer": 3})

    def deliver(
        self,
        *positions: int,
        meta: Any = None,
        stored: Any = NOW_MS,
        origins: Any = None,
        now_ms: int = NOW_MS,
        size: int = 1,
    ) -> None:
        rows = [[0, f"t/{position}", wire.MODE_PERSISTENT, meta, None, bytes(size)] for position in positions]
        runs = [[position, 1] for position in positions]
        frames = [
            wire.MESSAGES,
            wire.pack([5, [[0, len(rows), runs, None, stored, origins]]]),
            wire.pack(rows),
        ]
        flow, parts = read_messages(frames)
        assert flow == self.forwarder.flow
        self.forwarder.messages(parts, frames[2:], now_ms)

    def published(self) -> list[tuple[int, list[Any]]]:
        """Take the rounds: the sequence of index 0, and the rows."""
        found = []
        for frames in sent(self.target):
            if frames[0] == wire.PUBLISH:
                head = wire.unpack(frames[1])
                assert head[4] == 3
                found.append((head[5], [row for batch in frames[2:] for row in wire.unpack(batch)]))
        return found

    def sequences(self) -> list[int]:
        return sorted(first + row[0] for first, rows in self.published() for row in rows)

    def acked(self, upto: int, *nacks: tuple[int, int]) -> None:
        body = [3, upto, [[position, code, ""] for position, code in nacks], 0, []]
        (event,) = self.target.receive([wire.ACKED, wire.pack(body)], 0.0)
        assert isinstance(event, Settled)
        self.forwarder.acked(event.upto, event.nacks)

    def settled(self) -> list[list[Any]]:
        """Take what the queue was told: [outcome, ranges]."""
        return [wire.unpack(frames[1])[1:] for frames in sent(self.source) if frames[0] == wire.SETTLE]


def test_the_sequence_of_a_message_is_its_position() -> None:
    bench = Bench()
    bench.deliver(7, 8, 12)
    ((first, rows),) = bench.published()
    assert first == 7
    assert [(row[0], row[1]) for row in rows] == [(0, "t/7"), (1, "t/8"), (5, "t/12")]


def test_what_is_acknowledged_is_settled_and_nothing_else() -> None:
    bench = Bench()
    bench.deliver(1, 2, 3, 7, 8)
    bench.acked(3)
    assert bench.settled() == [[wire.OUTCOME_ACCEPTED, [[0, 1, 3]]]]
    bench.acked(8)
    assert bench.settled() == [[wire.OUTCOME_ACCEPTED, [[0, 7, 8]]]]
    assert bench.forwarder.acknowledged == 5


@pytest.mark.parametrize("early", [True, False])
def test_what_is_refused_is_rejected_and_the_rest_goes_on(early: bool) -> None:
    bench = Bench()
    bench.deliver(1, 2, 3, 4)
    if early:
        bench.acked(0, (2, errors.SPOOL_OVER_QUOTA), (4, errors.SPOOL_OVER_QUOTA))
        assert bench.settled() == [[wire.OUTCOME_REJECTED, [[0, 2, 2], [0, 4, 4]]]]
        bench.acked(4)
        assert bench.settled() == [[wire.OUTCOME_ACCEPTED, [[0, 1, 1], [0, 3, 3]]]]
    else:
        bench.acked(4, (2, errors.SPOOL_OVER_QUOTA), (4, errors.SPOOL_OVER_QUOTA))
        assert bench.settled() == [
            [wire.OUTCOME_REJECTED, [[0, 2, 2], [0, 4, 4]]],
            [wire.OUTCOME_ACCEPTED, [[0, 1, 1], [0, 3, 3]]],
        ]
    assert bench.forwarder.refused == {errors.SPOOL_OVER_QUOTA: 2}


def test_what_comes_again_while_it_is_under_way_is_sent_once() -> None:
    bench = Bench()
    bench.deliver(1, 2, 3)
    bench.deliver(1, 2, 3, 4)
    assert bench.sequences() == [1, 2, 3, 4]


def test_what_comes_again_and_was_settled_is_settled_again() -> None:
    """A home died with what it had been told and had not written down; other homes have nothing to do with it."""
    bench = Bench()
    bench.deliver(1, 2, 3, 4, 5, 6, origins=[None] * 5 + [["queue", QUEUE, "expired"]])
    bench.acked(3, (2, errors.SPOOL_OVER_QUOTA), (5, errors.SPOOL_OVER_QUOTA))
    bench.sequences()
    bench.settled()
    bench.deliver(1, 2, 3, 4, 5, 6, 7, origins=[None] * 5 + [["queue", QUEUE, "expired"], None])
    assert bench.settled() == [
        [wire.OUTCOME_ACCEPTED, [[0, 1, 1], [0, 3, 3]]],
        [wire.OUTCOME_REJECTED, [[0, 2, 2], [0, 5, 6]]],
    ]
    assert bench.sequences() == [7]


def test_what_comes_again_and_is_not_known_ends_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.relay.spooled.FATES_MAX", 1)
    bench = Bench()
    bench.deliver(11, 12, 13, 14)
    bench.acked(14, (12, errors.SPOOL_OVER_QUOTA), (13, errors.SPOOL_OVER_QUOTA))
    bench.deliver(13, 14)
    for position in (10, 11, 12):
        with pytest.raises(errors.AngariumError, match="came again"):
            bench.deliver(position)


def test_what_expired_is_not_tried_again() -> None:
    bench = Bench()
    bench.deliver(1, 2, origins=[["queue", QUEUE, "expired"], ["queue", QUEUE, "rejected"]])
    assert bench.sequences() == [2]
    assert bench.settled() == [[wire.OUTCOME_REJECTED, [[0, 1, 1]]]]


@pytest.mark.requirement("R204")
def test_eight_seconds_to_live_after_two_are_six() -> None:
    assert aged((8_000, 500, 4, "k"), 2_000) == (6_000, 0, 4, "k")
    assert aged((8_000, 0, None, None), 9_000) == (1, 0, None, None)
    assert aged((8_000, 0, None, None), -5) == (8_000, 0, None, None)
    assert aged((0, 500, None, None), 2_000) == (0, 0, None, None)
    assert aged((0, 3_000, None, None), 2_000) == (0, 1_000, None, None)


def test_ages_are_counted_by_the_clock_of_the_router_that_stored_them() -> None:
    bench = Bench(offset_ms=100_000)
    bench.deliver(1, meta=[8_000, 0, None, None], stored=NOW_MS + 98_000)
    ((_, rows),) = bench.published()
    assert rows[0][wire.ROW_META] == [6_000, 0, None, None]


@pytest.mark.requirement("R204")
def test_time_goes_on_for_what_waits_for_the_window_of_the_neighbour() -> None:
    bench = Bench(producer_bytes=1_000)
    bench.forwarder.tick(10.0)
    bench.deliver(1, size=1_000)
    bench.deliver(2, meta=[8_000, 3_000, None, None], stored=NOW_MS - 1_000)
    bench.published()
    bench.forwarder.tick(11.5)
    bench.acked(1)
    ((_, rows),) = bench.published()
    assert rows[0][wire.ROW_META] == [5_500, 500, None, None]


def test_a_window_bounds_what_is_under_way() -> None:
    bench = Bench(producer_bytes=10_000)
    for position in range(1, 31):
        bench.deliver(position, size=1_000)
    assert len(bench.sequences()) == 10
    bench.acked(10)
    assert bench.sequences() == list(range(11, 31))


def test_a_message_that_fits_into_no_batch_is_rejected() -> None:
    bench = Bench(max_batch_bytes=2_000)
    bench.deliver(1, size=3_000)
    bench.deliver(2, size=10)
    assert bench.sequences() == [2]
    assert bench.settled() == [[wire.OUTCOME_REJECTED, [[0, 1, 1]]]]


def test_credit_is_renewed_as_messages_leave() -> None:
    bench = Bench()
    for start in range(1, 10_001, 1_000):
        bench.deliver(*range(start, start + 1_000))
    grants = [wire.unpack(frames[1]) for frames in sent(bench.source) if frames[0] == wire.FLOW_CREDIT]
    assert grants
    assert grants[-1][1] > 65_536


def test_bytes_that_left_are_granted_again_although_something_waits() -> None:
    bench = Bench(producer_bytes=10 << 20, max_batch_bytes=2 << 20, bytes=32 << 20)
    for position in range(1, 13):
        bench.deliver(position, size=1 << 20)
    grants = [wire.unpack(frames[1]) for frames in sent(bench.source) if frames[0] == wire.FLOW_CREDIT]
    assert bench.forwarder.describe()["waiting"] > 0
    assert 40 << 20 <= grants[-1][2] <= 42 << 20


def test_what_comes_one_by_one_leaves_at_once() -> None:
    bench = Bench()
    for position in range(1, 20):
        bench.forwarder.tick(10.0 + position / 10_000)
        bench.deliver(position)
        assert bench.sequences() == [position]


def test_under_load_messages_gather_for_a_moment() -> None:
    bench = Bench()
    bench.forwarder.tick(10.0)
    bench.deliver(*range(1, 101))
    assert len(bench.published()) == 1
    for start in (101, 201):
        bench.deliver(*range(start, start + 100))
    assert bench.published() == []
    assert bench.forwarder.tick(10.001) == pytest.approx(10.0 + GATHER_S)
    assert bench.published() == []
    bench.forwarder.tick(10.0 + GATHER_S)
    ((first, rows),) = bench.published()
    assert (first, len(rows)) == (101, 200)
    # As soon as it is worth a round, it leaves.
    for start in range(301, 1_001, 100):
        bench.deliver(*range(start, start + 100))
    ((first, rows),) = bench.published()
    assert (first, len(rows)) == (301, 600)
    bench.forwarder.tick(11.0)
    ((first, rows),) = bench.published()
    assert (first, len(rows)) == (901, 100)


def test_a_flow_that_is_refused_is_asked_for_again() -> None:
    source, target = make_session(node="a", link={"node": "a", "node_id": "id-a"}), make_session(node="b")
    forwarder = Forwarder(source, target, QUEUE, 0)
    forwarder.open()
    (bind,) = requests(source)
    source.receive([wire.ANSWER, wire.pack([bind[0], errors.HOME_NOT_READY, "soon"])], 0.0)
    forwarder.open_again()
    (again,) = requests(source)
    assert again[1] == "flow.bind"
    forwarder.open_again()
    assert requests(source) == []
