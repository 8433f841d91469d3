"""Lanes that no object claims are kept aside: nothing of them is deleted, and they come back whole."""

from __future__ import annotations

import pytest

from angarium import errors, wire
from node.home.spool import layout
from storage.spool import Table
from tests.unit.node.driven_home import (
    LANE,
    OTHER,
    PRODUCER,
    ROUTER,
    DrivenHome,
    rows_of,
    settings_of,
    started,
)

TABLES = (Table.LANES, Table.SEGMENTS, Table.BLOCKS, Table.RECORDS)


def content(driven: DrivenHome) -> dict[Table, list[tuple[bytes, bytes]]]:
    return {table: driven.disk.scan(table) for table in TABLES}


def aside(driven: DrivenHome) -> list[int]:
    return [row["lane_id"] for row in driven.ask("spool.aside")]


@pytest.fixture
def orphaned() -> DrivenHome:
    """A home with messages in two lanes, which was told of one of them after a restart."""
    driven = started()
    driven.store(([LANE], rows_of(5)))
    driven.store(([OTHER], rows_of(2, 5)))
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {OTHER: settings_of("other")})
    driven.settle_down(60.0)
    return driven


@pytest.mark.requirement("R282")
def test_a_lane_that_nobody_claims_stays_on_disk_and_is_told(orphaned: DrivenHome) -> None:
    assert set(orphaned.totals) == {OTHER}
    (row,) = orphaned.ask("spool.aside")
    assert (row["lane_id"], row["name"], row["messages"], row["partition"]) == (LANE, "q", 5, 0)
    assert [event["event"] for event in orphaned.told] == ["SYSTEM_AD_LANES_KEPT_ASIDE"]
    assert "5 messages, most of queue 'q'" in orphaned.told[0]["text"]
    assert orphaned.home.stats()["lanes_kept_aside"] == 1
    assert orphaned.disk.get(Table.LANES, layout.number_key(LANE)) is not None
    assert orphaned.disk.count(Table.SEGMENTS) == 2


@pytest.mark.requirement("R282")
@pytest.mark.parametrize("restarts", [False, True])
def test_a_lane_that_is_claimed_again_has_all_that_it_had(orphaned: DrivenHome, restarts: bool) -> None:
    if restarts:
        orphaned.restart()
        orphaned.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    else:
        orphaned.lanes({LANE: settings_of("q")})
        orphaned.settle_down()
    assert aside(orphaned) == []
    assert orphaned.totals[LANE][0] == 5
    flow = orphaned.bind()
    orphaned.settle_down()
    assert orphaned.delivered[flow].order == [1, 2, 3, 4, 5]
    reference = orphaned.gather()
    orphaned.settle_down()
    assert orphaned.records[reference][LANE] == (5, {})
    orphaned.store(([LANE], rows_of(1)), producer=(PRODUCER, 10))
    orphaned.settle_down()
    assert orphaned.delivered[flow].order[-1] == 6
    orphaned.settle(flow, (1, 6))
    orphaned.settle_down(1.0)
    assert orphaned.totals[LANE][0] == 0


@pytest.mark.requirement("R282")
def test_a_deletion_that_was_decided_is_completed_also_of_what_is_kept_aside(orphaned: DrivenHome) -> None:
    orphaned.start(ROUTER + 1, {OTHER: settings_of("other")}, deleted=(LANE,))
    orphaned.settle_down(1.0)
    assert aside(orphaned) == []
    assert orphaned.disk.get(Table.LANES, layout.number_key(LANE)) is None
    assert orphaned.disk.count(Table.SEGMENTS) == 1
    assert all(layout.key_numbers(key)[0] == OTHER for key, _ in orphaned.disk.scan(Table.RECORDS))


def test_all_partitions_of_a_deleted_endpoint_are_deleted() -> None:
    driven = started()
    driven.lanes({LANE + 3: settings_of("q", partitions=4)})
    driven.store(([LANE + 3], rows_of(2)))
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {OTHER: settings_of("other")}, deleted=(LANE,))
    driven.settle_down(1.0)
    assert aside(driven) == []
    assert driven.disk.count(Table.SEGMENTS) == 0


@pytest.mark.requirement("R282")
def test_nothing_expires_and_nothing_is_repacked_while_it_is_kept_aside() -> None:
    driven = started()
    driven.lanes({LANE: settings_of("q", max_ttl_s=1)})
    for first in range(0, 200, 2):
        driven.store(([LANE], rows_of(2, first)))
        driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {OTHER: settings_of("other")})
    driven.settle_down()
    before = content(driven)
    driven.settle_down(30.0)
    assert content(driven) == before
    assert driven.ask("spool.aside")[0]["messages"] == 200


def test_a_stage_of_a_lane_that_is_kept_aside_waits_for_it() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), producer=(50, 1), stage=50)
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {OTHER: settings_of("other")})
    driven.decide(drop=(50,))
    driven.settle_down(1.0)
    assert driven.disk.count(Table.STAGED) == 1
    driven.lanes({LANE: settings_of("q")})
    driven.settle_down()
    assert driven.totals[LANE][0] == 3
    flow = driven.bind()
    driven.decide(release=(50,))
    driven.settle_down(1.0)
    assert driven.delivered[flow].order == [1, 2, 3]


def test_an_older_generation_empties_nothing() -> None:
    driven = started()
    driven.lanes({LANE: settings_of("q")}, generation=3)
    driven.store(([LANE], rows_of(4)))
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    assert driven.totals[LANE][0] == 4
    driven.lanes({LANE: settings_of("q")}, generation=2)
    driven.settle_down(1.0)
    assert driven.totals[LANE][0] == 0


@pytest.mark.requirement("R282")
def test_what_is_kept_aside_is_read_in_pieces_with_its_bodies(
    orphaned: DrivenHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.home.operations.READ_BYTES", 2 * (wire.SPOOL_OVERHEAD_BYTES + 2))
    rows, upto, is_end, answers = [], 0, False, 0
    while not is_end:
        found = orphaned.ask("spool.aside.read", lane_id=LANE, after=upto)
        rows += found["rows"]
        upto, is_end, answers = found["upto"], found["end"], answers + 1
    assert [row["payload"] for row in rows] == [b"m%d" % i for i in range(5)]
    assert [row["position"] for row in rows] == [1, 2, 3, 4, 5]
    assert answers == 3


@pytest.mark.requirement("R282")
def test_only_an_operator_deletes_what_is_kept_aside(orphaned: DrivenHome) -> None:
    assert orphaned.ask("spool.aside.delete", lane_id=LANE) == 5
    assert aside(orphaned) == []
    orphaned.settle_down(1.0)
    assert orphaned.disk.count(Table.SEGMENTS) == 1
    with pytest.raises(errors.NotFoundError):
        orphaned.ask("spool.aside.delete", lane_id=LANE)
    with pytest.raises(errors.NotFoundError):
        orphaned.ask("spool.aside.read", lane_id=OTHER)


def test_other_operations_do_not_reach_what_is_kept_aside(orphaned: DrivenHome) -> None:
    with pytest.raises(errors.NotFoundError):
        orphaned.ask("endpoint.purge", lane_id=LANE)
