"""Producer records: a resend keeps its verdict, whatever died in between."""

from __future__ import annotations

import random

import pytest

from angarium import errors, wire
from node.home.spool.records import COUNTS_MAX, REFUSED_MAX, Record, Records
from node.matching.batch import Row
from storage.spool import Table
from tests.unit.node.driven_home import (
    LANE,
    OTHER,
    PRODUCER,
    ROUTER,
    THIRD,
    DrivenHome,
    rows_of,
    settings_of,
    started,
)

QUOTA = errors.SPOOL_OVER_QUOTA


def gathered(driven: DrivenHome, producer: int = PRODUCER) -> dict[int, tuple[int, dict[int, int]]]:
    reference = driven.gather(producer)
    driven.settle_down()
    return driven.records[reference]


def again(driven: DrivenHome) -> None:
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})


@pytest.mark.requirement("R163")
def test_the_last_sequence_of_each_lane_survives_a_kill() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), producer=(PRODUCER, 1))
    driven.store(([LANE, OTHER], rows_of(2)), producer=(PRODUCER, 4))
    driven.store(([LANE], rows_of(3)), producer=(PRODUCER, 6))
    driven.settle_down()
    again(driven)
    assert gathered(driven) == {LANE: (8, {}), OTHER: (5, {})}
    assert gathered(driven, PRODUCER + 1) == {}


def test_a_lane_knows_only_the_rows_that_it_got() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), ([OTHER], rows_of(2, 3)), producer=(PRODUCER, 100))
    driven.settle_down()
    assert gathered(driven) == {LANE: (102, {}), OTHER: (104, {})}


def test_a_refused_message_keeps_its_verdict_when_the_nack_is_lost() -> None:
    """5 was nacked and the nack is lost; 6 to 10 are stored; the producer comes back with 5 to 10."""
    driven = started()
    driven.store(([LANE], rows_of(4)), producer=(PRODUCER, 1))
    driven.store(producer=(PRODUCER, 5), refused=[(LANE, [(5, QUOTA)])])
    driven.store(([LANE], rows_of(5)), producer=(PRODUCER, 6))
    driven.settle_down()
    again(driven)
    assert gathered(driven) == {LANE: (10, {5: QUOTA})}


def test_a_refusal_above_everything_stored_is_kept_and_goes_when_the_message_is_stored_after_all() -> None:
    driven = started()
    driven.store(producer=(PRODUCER, 1), refused=[(LANE, [(1, QUOTA), (2, QUOTA)])])
    driven.settle_down()
    again(driven)
    assert gathered(driven) == {LANE: (0, {1: QUOTA, 2: QUOTA})}
    driven.number = 1
    driven.store(([LANE], rows_of(1)), producer=(PRODUCER, 2))
    assert gathered(driven) == {LANE: (2, {1: QUOTA})}


def test_records_are_told_after_everything_before_is_stored() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), relaxed=True)
    reference = driven.gather()
    driven.tick()
    assert reference not in driven.records
    assert driven.write(), "a relaxed message that somebody waits for is written at once"
    driven.tick()
    assert driven.records[reference] == {LANE: (3, {})}


def test_a_forgotten_producer_is_gone_for_good() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(3)))
    driven.settle_down()
    reference = driven.gather(forget=True)
    driven.tick()
    assert reference not in driven.records, "it is told when it is durable"
    driven.settle_down()
    assert set(driven.records[reference]) == {LANE, OTHER}
    again(driven)
    assert gathered(driven) == {}
    assert driven.disk.count(Table.RECORDS) == 0


def test_records_go_with_their_lane() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(3)))
    driven.settle_down()
    driven.lanes({}, LANE)
    driven.settle_down(0.1)
    assert gathered(driven) == {OTHER: (3, {})}
    assert driven.disk.count(Table.RECORDS) == 1


def test_records_of_a_lane_that_is_gone_are_cleared_after_a_kill_too() -> None:
    driven = started()
    for producer in range(1, 40):
        driven.store(([LANE, OTHER], rows_of(1)), producer=(producer, 1))
    driven.settle_down()
    driven.lanes({}, LANE)
    driven.tick()
    assert driven.write()
    driven.kill()
    driven.start(ROUTER, {OTHER: settings_of("other")})
    driven.settle_down(0.1)
    assert driven.disk.count(Table.RECORDS) == 39


def test_verdicts_for_lanes_that_are_not_here_leave_nothing() -> None:
    driven = started()
    driven.store(producer=(PRODUCER, 1), refused=[(THIRD, [(1, QUOTA)])])
    driven.settle_down()
    assert gathered(driven) == {}


# -- one record ----------------------------------------------------------------------------------------------


def _row(index: int) -> Row:
    return Row(index, "t", wire.MODE_PERSISTENT, None, None, b"")


def test_a_refusal_is_forgotten_when_the_window_has_passed_it() -> None:
    record = Record()
    record.refuse([(1, QUOTA)])
    record.store(1, 2, [_row(i) for i in range(REFUSED_MAX - 1)], None)
    assert [one[0] for one in record.refused] == [1]
    record.store(1, 2 + REFUSED_MAX, [_row(0)], None)
    assert record.refused == []


def test_a_gap_in_the_sequences_forgets_nothing() -> None:
    """Applications choose sequences: 1,000 may be refused, and 2,000 the next one that is stored."""
    record = Record()
    record.refuse([(1_000, QUOTA)])
    record.store(1, 2_000, [_row(0), _row(1_000_000)], None)
    assert record.last == 1_002_000
    assert [one[0] for one in record.refused] == [1_000]


def test_a_record_knows_the_last_sequence_of_each_number_of_partitions() -> None:
    record = Record()
    for sequence, count in ((1, 2), (2, 2), (5, 3), (6, 1), (9, 3)):
        record.store(count, sequence, [_row(0)], None)
        record.validate()
    assert dict(record.lasts) == {2: 2, 1: 6, 3: 9}
    assert Record.unpack(record.pack(), PRODUCER).lasts == record.lasts
    older = Record()
    older.store(2, 1, [_row(2)], None)
    older.store(4, 4, [_row(0)], None)
    record.precede(older)
    record.validate()
    assert dict(record.lasts) == {2: 3, 1: 6, 3: 9, 4: 4}
    assert record.count == 3


def test_of_many_numbers_of_partitions_the_one_that_was_left_longest_ago_is_forgotten() -> None:
    record = Record()
    for count in range(1, COUNTS_MAX + 3):
        record.store(count, 10 * count, [_row(0)], None)
        record.validate()
    assert [count for count, _ in record.lasts] == list(range(3, COUNTS_MAX + 3))
    fresh = Record()
    fresh.store(1, 1_000, [_row(0)], None)
    fresh.precede(record)
    fresh.validate()
    assert [count for count, _ in fresh.lasts] == [*range(4, COUNTS_MAX + 3), 1]


def test_records_of_partitions_survive_a_kill_and_come_with_their_numbers() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), producer=(PRODUCER, 1), counts=[[LANE, 5]])
    driven.store(([LANE, OTHER], rows_of(2)), producer=(PRODUCER, 4), counts=[[LANE, 2]])
    driven.settle_down()
    again(driven)
    reference = driven.gather(PRODUCER)
    driven.settle_down()
    assert driven.lasts[reference] == {LANE: {5: 3, 2: 5}, OTHER: {1: 5}}


def test_records_against_a_list_of_everything_that_happened() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        records = Records()
        verdicts: dict[int, int] = {}
        order: list[int] = []
        sequence = 0
        for _ in range(300):
            sequence += rng.randint(1, 5)
            if rng.random() < 0.3:
                records.refuse(LANE, PRODUCER, [(sequence, QUOTA)])
                verdicts[sequence] = QUOTA
            else:
                records.store(LANE, PRODUCER, 1, sequence, [_row(0)], None)
                verdicts[sequence] = 0
            order.append(sequence)
            records.validate()
        (known,) = records.gather(PRODUCER)
        lasts, refused = known.lasts, known.refused
        assert lasts == [(1, max(sequence for sequence, code in verdicts.items() if not code))]
        told = dict(refused)
        for sequence in order[-REFUSED_MAX:]:
            assert told.get(sequence, 0) == verdicts[sequence], f"seed {seed}"
        assert all(verdicts[sequence] for sequence in told)
        changes = records.take_changes()
        copy = Records()
        for _, key, value in changes:
            assert value is not None
            copy.load(key, value)
        assert copy.gather(PRODUCER) == records.gather(PRODUCER)
