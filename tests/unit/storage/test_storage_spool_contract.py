"""The contract of a spool, held by LMDB and by the disk of the simulation alike."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.spool import KEY_ENVIRONMENT, LmdbSpool, SpoolFullError, Table, open_spool
from tests.simulation.simulated_disk import SimulatedDisk
from tests.unit.storage.filled_spool import key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage.spool import Change, Spool

MAP_BYTES = 64 << 20
BLOCK_BYTES = 40_000


@pytest.fixture(params=["lmdb", "simulated"])
def spool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spool]:
    made: Spool = (
        open_spool(tmp_path_factory.mktemp("node") / "spool", MAP_BYTES)
        if request.param == "lmdb"
        else SimulatedDisk()
    )
    yield made
    validate(made)
    made.close()


@pytest.fixture(params=["lmdb", "simulated"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spool]:
    """A spool with room for about 2 MB of messages."""
    made: Spool
    if request.param == "lmdb":
        made = open_spool(tmp_path_factory.mktemp("node") / "spool", 3 << 20)
    else:
        made = SimulatedDisk()
        made.capacity_bytes = 2 << 20
    yield made
    validate(made)
    made.close()


def validate(spool: Spool) -> None:
    if isinstance(spool, SimulatedDisk):
        spool.validate()


def rows_of(spool: Spool, table: Table) -> list[tuple[bytes, bytes]]:
    """What was committed: LMDB's own row apart."""
    return [row for row in spool.scan(table) if row[0] != KEY_ENVIRONMENT]


@pytest.mark.requirement("R212")
def test_what_is_committed_is_there(spool: Spool) -> None:
    spool.commit([(Table.BLOCKS, key(1), b"one"), (Table.LANES, key(1), b"lane")])
    assert spool.get(Table.BLOCKS, key(1)) == b"one"
    assert spool.get(Table.LANES, key(1)) == b"lane"
    assert spool.get(Table.BLOCKS, key(2)) is None


def test_tables_do_not_share_keys(spool: Spool) -> None:
    spool.commit([(table, key(1), table.name.encode()) for table in Table])
    assert [spool.get(table, key(1)) for table in Table] == [table.name.encode() for table in Table]
    spool.commit([(Table.STATES, key(1), None)])
    assert [table for table in Table if spool.get(table, key(1)) is None] == [Table.STATES]


def test_a_value_may_be_empty_and_is_not_missing(spool: Spool) -> None:
    spool.commit([(table, key(1), b"") for table in Table])
    for table in Table:
        assert spool.get(table, key(1)) == b""
        assert (key(1), b"") in spool.scan(table)


def test_a_large_value_comes_back_as_it_was(spool: Spool) -> None:
    value = random.Random(3).randbytes(3_000_000)
    spool.commit([(Table.BLOCKS, key(1), value), (Table.SEGMENTS, key(1), value)])
    assert spool.get(Table.BLOCKS, key(1)) == value
    assert spool.get(Table.SEGMENTS, key(1)) == value


def test_changes_of_a_commit_happen_in_their_order(spool: Spool) -> None:
    spool.commit([(Table.MOVES, b"a", b"1"), (Table.MOVES, b"a", None), (Table.MOVES, b"b", b"2")])
    spool.commit([(Table.MOVES, b"b", b"3"), (Table.MOVES, b"b", b"4"), (Table.MOVES, b"missing", None)])
    assert spool.scan(Table.MOVES) == [(b"b", b"4")]
    assert spool.count(Table.MOVES) == 1


def test_a_commit_of_nothing_is_fine(spool: Spool) -> None:
    spool.commit([])
    spool.commit([(Table.BLOCKS, key(1), None)])
    assert spool.count(Table.BLOCKS) == 0


def test_a_scan_is_in_key_order_from_start_up_to_end(spool: Spool) -> None:
    numbers = [5, 1, 300, 2, 256, 9]
    spool.commit([(Table.SEGMENTS, key(number), b"%d" % number) for number in numbers])
    assert [value for _, value in spool.scan(Table.SEGMENTS)] == [b"1", b"2", b"5", b"9", b"256", b"300"]
    assert [value for _, value in spool.scan(Table.SEGMENTS, key(2), key(256))] == [b"2", b"5", b"9"]
    assert [value for _, value in spool.scan(Table.SEGMENTS, key(6), limit=2)] == [b"9", b"256"]
    assert [value for _, value in spool.scan(Table.SEGMENTS, key(9), limit=1)] == [b"9"]
    assert spool.scan(Table.SEGMENTS, limit=0) == []
    assert spool.scan(Table.SEGMENTS, key(301)) == []
    assert spool.scan(Table.STATES) == []


def test_appended_and_rewritten_keys_are_both_right(spool: Spool) -> None:
    for number in (1, 2, 3, 7):
        spool.commit([(Table.BLOCKS, key(number), b"a")])
    spool.commit([(Table.BLOCKS, key(5), b"b"), (Table.BLOCKS, key(8), b"c"), (Table.BLOCKS, key(2), None)])
    spool.commit([(Table.BLOCKS, key(8), None), (Table.BLOCKS, key(6), b"d"), (Table.BLOCKS, key(8), b"e")])
    expected = {1: b"a", 3: b"a", 5: b"b", 6: b"d", 7: b"a", 8: b"e"}
    assert dict(spool.scan(Table.BLOCKS)) == {key(number): value for number, value in expected.items()}


def test_the_size_grows_and_shrinks(spool: Spool) -> None:
    empty = spool.size_bytes()
    spool.commit([(Table.BLOCKS, key(number), bytes(5_000)) for number in range(100)])
    assert spool.size_bytes() - empty >= 500_000
    spool.commit([(Table.BLOCKS, key(number), None) for number in range(100)])
    assert spool.size_bytes() - empty < 100_000


def test_a_full_spool_changes_nothing_forgets_and_takes_more(small: Spool) -> None:
    """Messages that are deleted make room again, whatever filled it."""
    for _ in range(3):
        stored = fill(small)
        assert stored * BLOCK_BYTES > 1_000_000
        assert small.get(Table.LANES, b"with the one too many") is None
        assert small.count(Table.BLOCKS) == stored
        for number in range(1, stored + 1):
            small.commit([(Table.BLOCKS, key(number), None), (Table.SEGMENTS, key(number), None)])
        assert small.count(Table.BLOCKS) == small.count(Table.SEGMENTS) == 0


def fill(spool: Spool) -> int:
    """Store blocks until the spool is full; gives how many it took."""
    number = 0
    while True:
        changes: list[Change] = [
            (Table.BLOCKS, key(number + 1), bytes(BLOCK_BYTES)),
            (Table.SEGMENTS, key(number + 1), bytes(300)),
        ]
        try:
            spool.commit(changes)
        except SpoolFullError:
            with pytest.raises(SpoolFullError):
                spool.commit([(Table.LANES, b"with the one too many", b""), *changes])
            return number
        number += 1


def test_small_rows_still_have_room_in_a_full_spool(small: Spool) -> None:
    """What was settled and tried has to be stored even then."""
    stored = fill(small)
    for number in range(1, stored + 1):
        small.commit([(Table.STATES, key(number), bytes(20)), (Table.LANES, key(1), key(number))])
    assert small.count(Table.STATES) == stored


_keys = st.binary(min_size=1, max_size=2)
_changes = st.lists(
    st.tuples(st.sampled_from(Table), _keys, st.one_of(st.none(), st.binary(max_size=4))), max_size=20
)


@pytest.mark.slow
@given(st.lists(_changes, max_size=6), st.tuples(_keys, st.one_of(st.none(), _keys), st.integers(0, 5)))
def test_both_do_what_dictionaries_do(
    tmp_path_factory: pytest.TempPathFactory,
    commits: list[list[Change]],
    part: tuple[bytes, bytes | None, int],
) -> None:
    directory = tmp_path_factory.mktemp("node") / "spool"

    def open_again(old: Spool) -> Spool:
        old.close()
        return open_spool(directory, MAP_BYTES)

    reopened: list[tuple[Spool, Callable[[Spool], Spool]]] = [
        (open_spool(directory, MAP_BYTES), open_again),
        (SimulatedDisk(), lambda disk: disk),
    ]
    for made, reopen in reopened:
        spool, model = made, Dictionaries()
        for changes in commits:
            spool.commit(changes)
            model.commit(changes)
            model.compare(spool, part)
        spool = reopen(spool)
        model.compare(spool, part)
        validate(spool)
        spool.close()


class Dictionaries:
    """Seven dictionaries."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}

    def commit(self, changes: list[Change]) -> None:
        for table, name, value in changes:
            if value is None:
                self._tables[table].pop(name, None)
            else:
                self._tables[table][name] = value

    def compare(self, spool: Spool, part: tuple[bytes, bytes | None, int]) -> None:
        start, end, limit = part
        for table, rows in self._tables.items():
            expected = sorted(rows.items())
            assert rows_of(spool, table) == expected
            own = isinstance(spool, LmdbSpool) and table is Table.META
            assert spool.count(table) == len(rows) + own
            if not own:
                inside = [row for row in expected if row[0] >= start and (end is None or row[0] < end)]
                assert spool.scan(table, start, end, limit) == inside[:limit]
            for name, value in expected:
                assert spool.get(table, name) == value
