"""The parts of admission by themselves: what is remembered of a producer, spool files, events, rows."""

from __future__ import annotations

import random

import pytest

from angarium import wire
from angarium_server.frames.homes import LaneRecord
from router.admission.usage import SpoolFiles
from router.matching.rows import (
    Row,
    are_distinct,
    decode_rows,
    encode_rows,
    index_span,
    partition_hash,
    salt_of,
    spool_bytes,
)
from router.sessions.producer import Memory, Record, merge_records

FILE = wire.SPOOL_FILE_BYTES

ROWS = [
    [0, "a", 1, None, None, b"xx"],
    [3, "b", 1 | 2 << wire.COS_SHIFT, [0, 0, None, "key"], b"p", b"y"],
    [7, "c", 2 | 1 << wire.COS_SHIFT, [1, 2, 3, None], None, b""],
]

#: The first lanes of the endpoints 7 and 8.
SEVEN, EIGHT = 7 << wire.LANE_BITS, 8 << wire.LANE_BITS


def _records(*answers: tuple[int, list[tuple[int, int]], list[tuple[int, int]]]) -> dict[int, Record]:
    """Give what homes know that have one lane each."""
    return merge_records([[LaneRecord(*one)] for one in answers])


class TestMemory:
    def test_a_record_says_what_is_held_and_what_was_refused(self) -> None:
        memory = Memory(1, 255, _records((SEVEN, [(1, 10)], [(5, 50310)]), (EIGHT, [(1, 6)], [])))
        assert memory.highest == 10
        assert memory.is_known(10)
        assert not memory.is_known(11)
        assert [memory.is_held(sequence, 7, 99) for sequence in (1, 10, 11)] == [True, True, False]
        assert [memory.is_held(sequence, 8, 99) for sequence in (6, 7)] == [True, False]
        assert not memory.is_held(1, 9, 99), "a lane without a record has nothing"
        assert (memory.refusal(5), memory.refusal(6)) == (50310, 0)
        memory.validate()

    def test_a_row_is_held_by_the_lane_that_it_belonged_to_under_any_number_of_partitions(self) -> None:
        """Hash 7: lane 1 of 2, lane 1 of 3, lane 3 of 4. Hash 8: lane 0 of 2, lane 2 of 3, lane 0 of 4."""
        lanes = [
            LaneRecord(SEVEN, [(2, 7), (3, 12)], []),
            LaneRecord(SEVEN + 1, [(2, 9)], []),
            LaneRecord(SEVEN + 2, [(3, 11)], []),
            LaneRecord(SEVEN + 3, [(4, 10)], []),
        ]
        memory = Memory(1, 255, merge_records([lanes]))
        assert [memory.is_held(sequence, 7, 7) for sequence in (9, 10, 11)] == [True, True, False]
        assert [memory.is_held(sequence, 7, 8) for sequence in (7, 11, 12)] == [True, True, False]
        assert memory.may_be_held(12)
        memory.validate()

    def test_a_lane_that_moves_may_be_known_to_two_homes(self) -> None:
        records = _records((7, [(1, 10), (2, 3)], [(5, 1)]), (7, [(2, 12), (1, 4)], [(11, 2)]))
        assert records[7].lasts == {1: 10, 2: 12}
        assert records[7].refused == {5: 1, 11: 2}

    def test_refusals_above_everything_that_is_stored_are_known(self) -> None:
        assert Memory(1, 255, _records((7, [(1, 3)], [(9, 1)]))).highest == 9
        assert Memory(1, 255, {}, known=4).highest == 4
        assert Memory(1, 255).highest == 0

    def test_lanes_that_get_nothing_any_more_are_forgotten_while_messages_are_refused(self) -> None:
        """Temporary queues come and go, each with a lane of its own; of what a producer sends some is refused."""
        memory, sizes = Memory(1, 10), []
        for number in range(1, 20_001):
            memory.take(1, number, [(number, 50310)] if number % 10 == 0 else [])
            if number % 10_000 == 0:
                sizes.append(len(memory._told))
            told = memory.untold(number)
            assert [sequence for sequence, _ in told] == [
                n for n in range(number - 19, number + 1) if n > 0 and n % 10 == 0
            ]
            assert memory.untold(number) == []
        assert sizes[1] <= max(sizes[0], 200)

    def test_records_are_let_go_when_new_sequences_come(self) -> None:
        memory = Memory(1, 255, _records((SEVEN, [(1, 10)], [])))
        memory.take(5, 10, [])
        assert memory.is_held(10, 7, 0)
        memory.take(1, 11, [])
        assert not memory.is_held(10, 7, 0)
        memory.validate()

    def test_a_nack_is_told_to_each_lane_once(self) -> None:
        memory = Memory(1, 10)
        memory.take(5, 5, [(3, 50310)])
        assert memory.untold(7) == [(3, 50310)]
        memory.take(2, 7, [(6, 40007), (7, 40007)])
        assert memory.untold(7) == [(6, 40007), (7, 40007)]
        assert memory.untold(8) == [(3, 50310), (6, 40007), (7, 40007)]
        assert memory.untold(7) == []
        memory.validate()

    def test_nacks_are_remembered_as_long_as_their_publisher_may_not_have_heard(self) -> None:
        memory = Memory(1, 10)
        memory.take(1, 1, [(1, 50310)])
        for sequence in range(2, 21):
            memory.take(1, sequence, [])
            assert memory.has_nacks
        memory.take(1, 21, [])
        assert not memory.has_nacks
        assert memory.untold(7) == []
        memory.validate()

    def test_never_more_nacks_than_the_window(self) -> None:
        memory = Memory(1, 3)
        memory.take(3, 3, [(1, 1), (2, 1), (3, 1)])
        memory.take(2, 5, [(4, 1), (5, 1)])
        assert memory.untold(7) == [(3, 1), (4, 1), (5, 1)]
        memory.validate()


class TestSpoolFiles:
    @pytest.mark.requirement("R181")
    def test_a_file_takes_messages_until_it_has_so_many_bytes(self) -> None:
        files = SpoolFiles(10)
        chosen = [take(files, 0, size) for size in (FILE - 1, 5, FILE, FILE // 2, FILE // 2, 1)]
        assert chosen == [1, 1, 2, 3, 3, 4]
        assert len(files) == 4

    def test_homes_fill_files_of_their_own(self) -> None:
        files = SpoolFiles(10)
        assert [take(files, home, 5) for home in (0, 1, 0, 1)] == [1, 2, 1, 2]
        files.close(1)
        assert take(files, 1, 5) == 3

    @pytest.mark.requirement("R182")
    def test_new_messages_fit_if_there_is_an_open_file_or_another_number(self) -> None:
        files = SpoolFiles(2)
        take(files, 0, 5)
        assert files.fit([0, 1])
        assert not files.fit([0, 1, 2])
        take(files, 1, FILE)
        assert files.fit([0])
        assert not files.fit([1])
        files.leave(2)
        assert files.fit([1])

    def test_what_is_moved_goes_on_in_its_file_which_is_one_wherever_it_is_used(self) -> None:
        files = SpoolFiles(1)
        file = take(files, 0, FILE)
        assert files.fits(file)
        assert not files.fits(file + 1)
        files.join(file)
        files.leave(file)
        assert (len(files), file in files) == (1, True)
        files.leave(file)
        assert (len(files), file in files) == (0, False)
        assert files.fits(file), "as a new one"

    def test_an_open_file_that_nobody_uses_is_closed(self) -> None:
        files = SpoolFiles(1)
        files.leave(take(files, 0, 5))
        assert take(files, 0, 5) == 2

    def test_a_new_router_goes_on_filling(self) -> None:
        files = SpoolFiles(9)
        for file in (4, 7, 8):
            files.join(file)
        files.go_on(0, 7, FILE - 3)
        files.go_on(1, 7, 1)
        files.go_on(2, 8, FILE)
        files.go_on(3, 99, 5)
        assert [take(files, home, 2) for home in (0, 1, 2, 3)] == [7, 9, 10, 11]
        assert [take(files, 0, 5) for _ in range(2)] == [7, 12]

    def test_no_limit_is_exceeded_and_what_is_used_is_counted_once(self) -> None:
        for seed in range(30):
            rng = random.Random(seed)
            files = SpoolFiles(5)
            used: list[int] = []
            for _ in range(300):
                if used and rng.random() < 0.45:
                    files.leave(used.pop(rng.randrange(len(used))))
                elif used and rng.random() < 0.2:
                    file = rng.choice(used)
                    assert files.fits(file)
                    files.join(file)
                    used.append(file)
                elif files.fit(homes := rng.sample(range(4), 2)):
                    used += [take(files, home, rng.choice([1, FILE // 3, 2 * FILE])) for home in homes]
                files.validate()
                assert len(files) == len(set(used)) <= 5


def take(files: SpoolFiles, home: int, size: int) -> int:
    file = files.choose(home, size)
    files.join(file)
    return file


class TestRows:
    def test_rows_are_packed_as_they_were(self) -> None:
        packed = wire.pack(ROWS)
        assert encode_rows(decode_rows(packed)) == packed

    def test_what_they_cost(self) -> None:
        rows = decode_rows(wire.pack(ROWS))
        assert [row.message_bytes for row in rows] == [2, 2, 0]
        assert spool_bytes(rows) == 4 + 3 * wire.SPOOL_OVERHEAD_BYTES
        assert [row.is_low_priority for row in rows] == [True, False, True]

    def test_indices(self) -> None:
        one, two = wire.pack(ROWS), wire.pack([[5, "a", 1, None, None, b""]])
        assert index_span([one]) == (0, 7)
        assert index_span([two, one]) == (0, 7)
        assert are_distinct([one, two])
        assert not are_distinct([one, one])

    def test_a_partition_depends_on_the_key_or_on_producer_and_sequence(self) -> None:
        keyed = [Row(0, "a", 1, (0, 0, None, key), None, b"") for key in ("a", "b", "c", "d", "e")]
        assert [partition_hash(row, 1) % 8 for row in keyed] == [partition_hash(row, 99) % 8 for row in keyed]
        assert len({partition_hash(row, 0) % 8 for row in keyed}) > 1
        bare = Row(0, "a", 1, None, None, b"")
        spread = [partition_hash(bare, salt_of(5, sequence)) % 4 for sequence in range(1, 401)]
        assert spread == [partition_hash(bare, salt_of(5, sequence)) % 4 for sequence in range(1, 401)]
        assert all(60 < spread.count(partition) < 140 for partition in range(4))
        largest = salt_of(wire.INTERNAL_PRODUCER | (1 << 50), 1 << 62)
        assert 0 <= partition_hash(bare, largest) % 1000 < 1000
