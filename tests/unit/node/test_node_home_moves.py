"""Every move is a publish: durable before it is asked for, asked for again, deleted at the source when acked."""

from __future__ import annotations

import pytest

from angarium import errors, wire
from node.home.home import HomeLimits
from node.home.lanes.moves import COUNTED_S, MOVE_ROWS, MOVES_MAX, RETRY_MAX_S, RETRY_S
from node.home.spool import layout
from storage.spool import Table
from tests.unit.node.driven_home import (
    DMQ,
    LANE,
    OTHER,
    ROUTER,
    THIRD,
    DrivenHome,
    row_of,
    rows_of,
    settings_of,
)
from tests.unit.node.moving_messages import DEAD, LANES, QUEUE, ack, again, begun, reject_all

ELIGIBLE = 1 | wire.FLAG_DMQ_ELIGIBLE
QUOTA = errors.SPOOL_OVER_QUOTA


def figures(driven: DrivenHome, lane_id: int = LANE) -> dict[str, int]:
    """Give the figures of what died that are not 0."""
    found = driven.ask("endpoint.stats", lane_id=lane_id)
    return {
        name: found[name]
        for name in found
        if name.endswith(("_discard", "_to_dmq", "_failures")) and found[name]
    }


def test_who_published_a_message_goes_with_it() -> None:
    ann, bob = 11, 22
    driven = begun()
    flow = driven.bind()
    driven.store(([LANE], rows_of(2)), publisher=ann)
    driven.store(([LANE], rows_of(1, 2)), publisher=0)
    driven.store(([LANE], rows_of(1, 3)), publisher=bob)
    driven.settle_down()
    driven.settle(flow, (1, 4), outcome=wire.OUTCOME_REJECTED)
    driven.settle_down(0.05)
    ((header, rows),) = driven.moves
    publishers = header[5]
    assert publishers == {0: ann, 1: ann, 3: bob}
    driven.store(([OTHER], rows), producer=(wire.INTERNAL_PRODUCER | LANE, 1), publisher=publishers)
    driven.settle_down()
    again(driven)
    flow = driven.bind(OTHER, no_local=ann)
    driven.settle_down()
    assert [row[5] for row in driven.delivered[flow].rows.values()] == [b"m2", b"m3"]


# -- three causes --------------------------------------------------------------------------------------------


def test_a_rejected_message_moves_to_the_dead_message_queue() -> None:
    driven = begun()
    reject_all(driven)
    ((header, rows),) = driven.moves
    origins = [["queue", "q", "rejected"]] * 3
    assert header == [LANE, 1, ["queue", "default", DEAD], 3, origins, {}, {}, 1]
    assert [(row[0], row[5]) for row in rows] == [(0, b"m0"), (1, b"m1"), (2, b"m2")]
    assert driven.totals[LANE][0] == 3, "it is deleted when the move is acknowledged"
    ack(driven)
    assert driven.totals[LANE][0] == 0
    assert driven.disk.count(Table.BLOCKS) == 0
    assert figures(driven) == {"rejected_to_dmq": 3}


@pytest.mark.requirement("R202")
def test_an_expired_message_moves_to_the_dead_message_queue_without_its_time_to_live() -> None:
    driven = begun()
    driven.store(([LANE], rows_of(2, meta=(1_000, 0, 7, "key"))))
    driven.settle_down(1.1)
    ((header, rows),) = driven.moves
    assert header[4] == [["queue", "q", "expired"]] * 2
    assert [row[3] for row in rows] == [[0, 0, 7, "key"]] * 2
    ack(driven)
    assert figures(driven) == {"ttl_expired_to_dmq": 2}


@pytest.mark.requirement("R199", "R204")
def test_what_a_neighbour_refused_lives_no_longer_in_the_queue_for_another_try() -> None:
    driven = begun(name="#link/b", dead_message_queue="#link/b/retry")
    reject_all(driven, 1, meta=(1_000, 0, 7, "key"))
    ((_, rows),) = driven.moves
    ttl_ms, delay_ms, priority, key = rows[0][wire.ROW_META]
    assert 0 < ttl_ms < 1_000
    assert (delay_ms, priority, key) == (0, 7, "key")


@pytest.mark.requirement("R204")
def test_what_a_neighbour_refused_is_delivered_no_sooner_by_another_try() -> None:
    driven = begun(name="#link/b", dead_message_queue="#link/b/retry")
    flow = driven.bind(in_order=True)
    driven.store(([LANE], rows_of(1, meta=(0, 60_000, 7, "key"))))
    driven.settle_down()
    driven.settle(flow, (1, 1), outcome=wire.OUTCOME_REJECTED)
    driven.settle_down(0.05)
    ((_, rows),) = driven.moves
    ttl_ms, delay_ms, priority, key = rows[0][wire.ROW_META]
    assert 50_000 < delay_ms < 60_000
    assert (ttl_ms, priority, key) == (0, 7, "key")


def test_what_dies_while_it_is_copied_moves_to_the_dead_message_queue_after_that() -> None:
    driven = begun()
    driven.store(([LANE], [row_of(i, b"%d" % i, meta=[500, 0, None, None]) for i in range(2)]))
    driven.settle_down()
    driven.ask("endpoint.move", lane_id=LANE, target=["queue", "default", "other"], copy=True)
    driven.settle_down()
    assert driven.moves[-1][0][2] == ["queue", "default", "other"]
    driven.settle_down(2.0)
    assert len(driven.moves) == 1, "one at a time"
    ack(driven)
    driven.settle_down(1.0)
    assert driven.moves[-1][0][2] == ["queue", "default", DEAD]
    assert [row[5] for row in driven.moves[-1][1]] == [b"0", b"1"]
    ack(driven)
    driven.settle_down(1.0)
    assert driven.totals[LANE][0] == 0


def test_a_message_that_failed_too_often_moves_to_the_dead_message_queue() -> None:
    driven = begun()
    flow = driven.bind()
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    for _ in range(2):
        assert driven.moves == []
        driven.settle(flow, (1, 1), outcome=wire.OUTCOME_FAILED)
        driven.settle_down()
    assert driven.moves[0][0][4] == [["queue", "q", "redeliveries"]]
    ack(driven)
    assert figures(driven) == {"max_redelivery_exceeded_to_dmq": 1}


@pytest.mark.requirement("R202")
def test_without_a_dead_message_queue_a_dead_message_is_deleted_and_counted() -> None:
    driven = begun(dead_message_queue="")
    reject_all(driven)
    assert driven.moves == []
    assert driven.totals[LANE][0] == 0
    assert figures(driven) == {"rejected_discard": 3}
    assert driven.home.stats()["rejected_discard"] == 3, "the worker counts them for all lanes"


def test_only_eligible_messages_move_if_the_endpoint_says_so() -> None:
    driven = begun(respect_dmq_eligible=True)
    flow = driven.bind()
    driven.store(([LANE], [row_of(0, b"no"), row_of(1, b"yes", flags=ELIGIBLE)]))
    driven.settle_down()
    driven.settle(flow, (1, 2), outcome=wire.OUTCOME_REJECTED)
    driven.settle_down()
    ((_, rows),) = driven.moves
    assert [row[5] for row in rows] == [b"yes"]
    ack(driven)
    assert figures(driven) == {"rejected_discard": 1, "rejected_to_dmq": 1}
    assert driven.home.stats()["rejected_discard"] == 1, "the worker counts them for all lanes"


def test_a_dead_message_queue_never_moves_to_itself() -> None:
    driven = begun()
    flow = driven.bind(DMQ)
    driven.store(([DMQ], rows_of(2)))
    driven.settle_down()
    driven.settle(flow, (1, 2), outcome=wire.OUTCOME_REJECTED)
    driven.settle_down(0.05)
    assert driven.moves == []
    assert driven.totals[DMQ][0] == 0


def test_if_the_dead_message_queue_does_not_exist_messages_are_deleted_and_counted() -> None:
    driven = begun()
    reject_all(driven, 2)
    ack(driven, -1, (1, errors.UNKNOWN_ENDPOINT), (2, errors.UNKNOWN_ENDPOINT))
    assert driven.totals[LANE][0] == 0
    assert figures(driven) == {"rejected_discard": 2}
    assert driven.home.stats()["rejected_discard"] == 2, "the worker counts them for all lanes"


def test_a_refused_move_is_tried_again_later_under_new_sequences() -> None:
    driven = begun()
    reject_all(driven, 3)
    ack(driven, -1, (2, QUOTA))
    assert driven.totals[LANE][0] == 1
    assert len(driven.moves) == 1
    driven.settle_down(RETRY_S - 0.2)
    assert len(driven.moves) == 1
    driven.settle_down(0.3)
    header, rows = driven.moves[1]
    assert (header[1], [row[5] for row in rows]) == (4, [b"m1"])
    ack(driven, -1, (4, QUOTA))
    driven.settle_down(RETRY_S + 0.1)
    assert len(driven.moves) == 2, "each refusal doubles the wait"
    driven.settle_down(RETRY_S)
    assert driven.moves[2][0][1] == 5
    ack(driven)
    assert driven.totals[LANE][0] == 0
    assert figures(driven) == {"rejected_to_dmq": 3, "rejected_to_dmq_failures": 2}


def test_the_wait_has_a_limit() -> None:
    driven = begun()
    reject_all(driven, 1)
    for _ in range(12):
        ack(driven, -1, (driven.moves[-1][0][1], QUOTA))
        driven.settle_down(RETRY_MAX_S + 0.1)
    assert len(driven.moves) == 13


# -- one at a time, durable ----------------------------------------------------------------------------------


def test_a_move_is_durable_before_it_is_sent_and_one_per_lane_is_out() -> None:
    driven = begun()
    flow = driven.bind()
    driven.store(([LANE], rows_of(MOVE_ROWS + 10)))
    driven.settle_down()
    driven.settle(flow, (1, MOVE_ROWS + 10), outcome=wire.OUTCOME_REJECTED)
    driven.tick()
    driven.tick()
    assert driven.moves == []
    assert driven.write()
    driven.tick()
    assert [header[3] for header, _ in driven.moves] == [MOVE_ROWS]
    assert driven.disk.get(Table.MOVES, layout.number_key(LANE)) is not None
    driven.settle_down(1.0)
    assert len(driven.moves) == 1
    ack(driven)
    assert [header[1] for header, _ in driven.moves] == [1, MOVE_ROWS + 1]
    ack(driven)
    assert driven.totals[LANE][0] == 0


def test_a_move_is_asked_for_again_after_a_kill_with_the_same_sequences() -> None:
    driven = begun()
    reject_all(driven)
    before = driven.moves
    again(driven)
    driven.settle_down()
    assert driven.moves == before
    ack(driven)
    assert driven.totals[LANE][0] == 0
    again(driven)
    assert driven.moves == []
    reject_all_again = driven.bind()
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    driven.settle(reject_all_again, (4, 4), outcome=wire.OUTCOME_REJECTED)
    driven.settle_down()
    assert driven.moves[0][0][1] == 4, "sequences go on rising"


def test_a_rejected_message_never_comes_back_after_a_kill() -> None:
    driven = begun()
    flow = driven.bind()
    driven.store(([LANE], rows_of(MOVE_ROWS + 5)))
    driven.settle_down()
    driven.settle(flow, (1, MOVE_ROWS + 5), outcome=wire.OUTCOME_REJECTED)
    driven.settle_down(0.1)
    again(driven)
    flow = driven.bind()
    driven.settle_down()
    assert flow not in driven.delivered
    ack(driven)
    ack(driven)
    assert [len(rows) for _, rows in driven.moves] == [MOVE_ROWS, 5]
    assert driven.totals[LANE][0] == 0


def test_a_move_is_asked_for_again_of_another_router() -> None:
    driven = begun()
    reject_all(driven)
    driven.start(ROUTER + 1, LANES)
    driven.settle_down()
    assert [header[:2] for header, _ in driven.moves] == [[LANE, 1], [LANE, 1]]


def test_another_router_is_asked_for_a_move_when_it_knows_what_is_here_and_not_before() -> None:
    driven = begun()
    flow = driven.bind()
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    driven.settle(flow, (1, 1), outcome=wire.OUTCOME_REJECTED)
    driven.tick()
    driven.tick()
    assert driven.begin_write()
    assert driven.out is not None
    number, changes = driven.out
    driven.out = None
    driven.disk.commit(changes)
    driven.home.written(number, driven.now, driven.wall_ms)  # the MOVE leaves with the next turn
    driven.start(ROUTER + 1)
    driven.tick()
    assert driven.moves == []
    driven.lanes(LANES, complete=True)
    driven.settle_down()
    assert [header[:2] for header, _ in driven.moves] == [[LANE, 1]]


def test_the_end_of_a_move_and_its_deletions_are_one_transaction() -> None:
    driven = begun()
    reject_all(driven)
    driven.moved(LANE, 1, 3)
    driven.tick()
    assert driven.write()
    driven.kill()
    driven.start(ROUTER, LANES)
    driven.settle_down()
    assert driven.moves == []
    assert driven.totals[LANE][0] == 0


def test_an_answer_that_nobody_waits_for_is_counted_and_dropped() -> None:
    driven = begun()
    reject_all(driven)
    driven.moved(LANE, 7, 9)
    driven.moved(THIRD, 1, 1)
    ack(driven)
    driven.moved(LANE, 1, 3)
    driven.settle_down()
    assert driven.home.stats()["moves_stale"] == 3
    assert driven.totals[LANE][0] == 0


def test_an_answer_to_a_part_is_no_end() -> None:
    driven = begun()
    reject_all(driven, 3)
    driven.moved(LANE, 1, 2, (2, QUOTA))
    driven.settle_down()
    assert driven.totals[LANE][0] == 3
    driven.moved(LANE, 1, 3)
    driven.settle_down(0.05)
    assert driven.totals[LANE][0] == 1


def test_a_move_whose_last_message_has_gone_meanwhile_ends() -> None:
    driven = begun()
    reject_all(driven)
    driven.ask("endpoint.delete_messages", lane_id=LANE, positions=[3])
    again(driven)
    driven.settle_down(0.05)
    assert [len(rows) for _, rows in driven.moves] == [2]
    ack(driven)
    assert driven.home.stats()["moves_under_way"] == 0
    assert driven.totals[LANE][0] == 0


def test_a_move_of_a_lane_that_was_deleted_meanwhile_leaves_nothing() -> None:
    driven = begun()
    reject_all(driven)
    driven.lanes({}, LANE)
    driven.moved(LANE, 1, 3)
    driven.settle_down(0.1)
    assert driven.disk.count(Table.MOVES) == 0
    assert driven.home.stats()["moves_under_way"] == 0


def test_messages_that_were_purged_meanwhile_are_not_moved() -> None:
    driven = begun()
    reject_all(driven)
    driven.ask("endpoint.purge", lane_id=LANE)
    again(driven)
    driven.settle_down()
    assert driven.moves == []
    assert driven.totals[LANE][0] == 0


def test_what_died_in_a_crash_while_it_was_moved_is_delivered_to_nobody_when_the_move_is_refused() -> None:
    lanes = {**LANES, LANE: {**QUEUE, "redelivery_enabled": False}}
    driven = DrivenHome()
    driven.start(ROUTER, lanes)
    driven.bind(messages=1)
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.ask("endpoint.move", lane_id=LANE, target=["queue", "default", "other"])
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, lanes)
    assert [row[5] for row in driven.moves[0][1]] == [b"m1", b"m2"]
    ack(driven, 0, (1, QUOTA), (2, QUOTA))
    flow = driven.bind()
    driven.settle_down(RETRY_S)
    assert [row[5] for row in driven.moves[1][1]] == [b"m0", b"m1", b"m2"]
    assert flow not in driven.delivered, "each may have been sent before, and is sent once only"
    ack(driven, 1)
    assert driven.totals[LANE][0] == 0


# -- what cannot be read -------------------------------------------------------------------------------------


def damage(driven: DrivenHome, number: int) -> tuple[bytes, bytes]:
    """Damage one of the blocks on disk; gives it as it was."""
    key, value = driven.disk.scan(Table.BLOCKS)[number]
    driven.disk.commit([(Table.BLOCKS, key, value[:-1] + b"?")])
    return key, value


@pytest.mark.parametrize("why", ["moved", "copied", "expired", "retired"])
def test_a_move_leaves_what_cannot_be_read_where_it_is(why: str) -> None:
    source = P1 if why == "retired" else LANE
    lanes = {**LANES, source: {**QUEUE, "partitions": 2 if why == "retired" else 0}}
    driven = DrivenHome(limits=HomeLimits(cache_bytes_max=1))
    driven.start(ROUTER, lanes)
    meta = (1_000, 0, None, None) if why == "expired" else None
    for first in (0, 2):
        driven.store(([source], rows_of(2, first, meta=meta)))
        driven.settle_down()
    key, value = damage(driven, 0)
    driven.kill()
    driven.start(ROUTER, lanes)
    job = None
    if why == "retired":
        driven.lanes({P1: {**QUEUE, "partitions": 1}})
    elif why != "expired":
        target = ["queue", "default", "other"]
        job = driven.ask("endpoint.move", lane_id=LANE, target=target, copy=why == "copied")["job"]
    driven.settle_down(1.1)
    ((_, rows),) = driven.moves
    assert [row[5] for row in rows] == [b"m2", b"m3"]
    moving = driven.home.lanes.get(source).moving  # type: ignore[union-attr]
    assert moving == (None if why == "copied" else (1, 2, 132)), "the figures have no more of the move"
    driven.moved(source, 1, 4)
    driven.settle_down(RETRY_S)
    assert len(driven.moves) == 1
    assert driven.totals[source][0] == (4 if why == "copied" else 2)
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_MESSAGES_UNREADABLE"]
    if job is not None:
        report = driven.ask("job", job=job)
        assert (report["state"], report["done"], report["refused"]) == ("done", 2, 2)
        assert report["error"][0] == errors.SPOOL_DAMAGED
    # The disk may be right after all the next time.
    driven.disk.commit([(Table.BLOCKS, key, value)])
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), P1: settings_of("q", partitions=2)})
    flow = driven.bind(source)
    driven.settle_down(1.1)
    found = [row[5] for row in driven.delivered[flow].rows.values()] if flow in driven.delivered else []
    found += [row[5] for _, rows in driven.moves for row in rows]
    assert found[:2] == [b"m0", b"m1"]


# -- partitions that are taken away --------------------------------------------------------------------------

P0, P1 = THIRD, THIRD | 1


def test_a_partition_that_is_taken_away_moves_its_messages_to_the_others() -> None:
    driven = DrivenHome()
    both = {P0 + k: settings_of("p", partitions=2) for k in range(2)}
    driven.start(ROUTER, both)
    flow, stored_ms = driven.bind(P1, messages=2), driven.wall_ms
    driven.store(([P1], rows_of(5, meta=(60_000, 0, None, "k"))), origins=[["queue", "old", "moved"]] * 5)
    driven.settle_down(1.0)
    driven.lanes({P0: settings_of("p", partitions=1), P1: settings_of("p", partitions=1)})
    driven.settle_down()
    ((header, rows),) = driven.moves
    origins = [["queue", "old", "moved"]] * 3
    assert header[:6] == [P1, 1, ["lane-home", P1 >> wire.LANE_BITS], 3, origins, {}]
    assert header[6] == {index: [0, stored_ms, stored_ms + 60_000, 0] for index in range(3)}
    assert [row[5] for row in rows] == [b"m2", b"m3", b"m4"]
    assert [row[3] for row in rows] == [[60_000, 0, None, "k"]] * 3
    ack(driven)
    driven.unbind(flow)
    driven.settle_down(2.0)
    header, rows = driven.moves[1]
    assert [row[5] for row in rows] == [b"m0", b"m1"]
    assert [past[0] for past in header[6].values()] == [1, 1], "what was delivered says so where it goes"
    ack(driven)
    assert driven.totals[P1][0] == 0


def test_what_a_move_names_is_on_disk_with_it() -> None:
    """Else the next process asks for it without these, and its answer deletes them when the router sent them again."""
    driven = DrivenHome(limits=HomeLimits(write_delay_ms=10_000))
    open_lane, closed = (
        settings_of("p", partitions=2),
        settings_of("p", partitions=1),
    )
    driven.start(ROUTER, {P1: open_lane})
    driven.store(([P1], rows_of(1)))
    driven.settle_down()
    promoted = driven.store(([P1], rows_of(2, 1)), relaxed=True, producer=None)
    driven.settle_down()
    assert driven.stored < driven.accepted == promoted
    driven.lanes({P1: closed})
    driven.settle_down()
    assert len(driven.moves[-1][1]) == 3
    driven.kill()
    driven.start(ROUTER, {P1: closed})
    if driven.stored < promoted:
        driven.store(([P1], rows_of(2, 1)), relaxed=True, producer=None, number=promoted)
        driven.settle_down()
    assert [row[5] for row in driven.moves[-1][1]] == [b"m0", b"m1", b"m2"]
    ack(driven)
    assert driven.totals[P1][0] == 0


def test_what_comes_from_another_partition_keeps_its_attempts_and_its_age() -> None:
    driven = DrivenHome()
    driven.start(ROUTER, {P0: settings_of("p", max_ttl_s=10)})
    then = driven.wall_ms - 9_000
    pasts = {
        0: [0, then + 8_000, 0, 0],
        1: [3, then, then + 60_000, 0],
        2: [1, then + 1, 0, driven.wall_ms + 300],
    }
    rows = rows_of(3, meta=(60_000, 20_000, None, "k"))
    driven.store(([P0], rows), producer=(wire.INTERNAL_PRODUCER | P1, 1), pasts=pasts)
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {P0: settings_of("p", max_ttl_s=10)})
    flow = driven.bind(P0)
    driven.settle_down()
    got = driven.delivered[flow]
    assert got.order == [1, 2], "one is not due yet"
    driven.settle_down(0.4)
    assert [got.counts[at] for at in (1, 2, 3)] == [0, 3, 1]
    assert [got.stored_ms[at] for at in (1, 2, 3)] == [past[1] for past in pasts.values()]
    driven.unbind(flow)
    driven.settle_down(1.1)
    assert driven.totals[P0][0] == 1, "the others have lived as long as they may"


def test_a_message_that_the_other_partitions_refuse_is_tried_again() -> None:
    driven = DrivenHome()
    driven.start(ROUTER, {P1: settings_of("p", partitions=1)})
    driven.store(([P1], rows_of(2)))
    driven.settle_down(1.1)
    ack(driven, -1, (1, QUOTA))
    driven.settle_down(RETRY_S + 0.1)
    assert [row[5] for row in driven.moves[1][1]] == [b"m0"]
    assert driven.moves[1][0][1] == 3
    ack(driven)
    assert driven.totals[P1][0] == 0


# -- beside others -------------------------------------------------------------------------------------------


@pytest.fixture
def crowd() -> DrivenHome:
    """A home with twice as many queues as may move, in each of which messages died at once."""
    lanes = {
        at << wire.LANE_BITS: settings_of(f"q{at}", dead_message_queue=DEAD)
        for at in range(10, 10 + 2 * MOVES_MAX)
    }
    driven = DrivenHome()
    driven.start(ROUTER, {**lanes, DMQ: LANES[DMQ]})
    for lane_id in lanes:
        driven.store(([lane_id], rows_of(2, meta=(1_000, 0, None, None))))
    driven.settle_down()
    driven.settle_down(1.1)
    return driven


def test_few_moves_are_under_way_at_a_time_so_that_clients_do_not_wait_behind_them(crowd: DrivenHome) -> None:
    assert len(crowd.moves) == MOVES_MAX
    for done in range(2 * MOVES_MAX):
        ack(crowd, done)
    assert len({header[0] for header, _ in crowd.moves}) == 2 * MOVES_MAX
    assert not any(crowd.totals[header[0]][0] for header, _ in crowd.moves)


def test_a_move_that_nobody_answers_holds_up_no_other(crowd: DrivenHome) -> None:
    crowd.settle_down(COUNTED_S)
    assert len({header[0] for header, _ in crowd.moves}) == 2 * MOVES_MAX
