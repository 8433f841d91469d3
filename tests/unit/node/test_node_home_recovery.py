"""What a home knows after a restart, wherever the process before ended."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from node.home.home import Home, HomeLimits
from node.home.spool import layout
from node.home.spool.recovery import ROWS_PER_STEP
from node.home.spool.repacking import Repacking
from storage.spool import Table, nothing
from tests.share import short
from tests.simulation.simulated_disk import SimulatedDisk
from tests.unit.node.driven_home import (
    LANE,
    OTHER,
    PRODUCER,
    ROUTER,
    DrivenHome,
    row_of,
    rows_of,
    settings_of,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from node.home.spool.blocks import Block
    from storage.spool import Change

LANES = {LANE: settings_of("q"), OTHER: settings_of("other")}


def again(driven: DrivenHome, lanes: dict[int, Any] | None = None) -> None:
    driven.kill()
    driven.start(ROUTER, LANES if lanes is None else lanes)


def received(driven: DrivenHome, flow: int) -> list[bytes]:
    seen = driven.delivered.get(flow)
    return [] if seen is None else [seen.rows[position][5] for position in seen.order]


@pytest.mark.requirement("R96")
def test_messages_positions_and_ages_survive_a_kill() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(3)), ([LANE], rows_of(2, 3)))
    driven.settle_down(5.0)
    at = driven.wall_ms
    driven.store(([LANE], rows_of(2, 5)))
    driven.settle_down()
    again(driven)
    assert driven.totals[LANE][:2] == [7, 7 * 66]
    flow = driven.bind()
    driven.settle_down()
    seen = driven.delivered[flow]
    assert received(driven, flow) == [b"m%d" % i for i in range(7)]
    assert seen.order == list(range(1, 8))
    assert (seen.stored_ms[7], seen.stored_ms[1]) == (at, at - 5_000)


def test_no_body_is_read_at_the_start() -> None:
    driven = started()
    for first in range(0, 500, 5):
        driven.store(([LANE], rows_of(5, first)))
    driven.settle_down()
    driven.kill()
    assert driven.home.stats()["messages_spooled"] == 500
    assert driven.home.stats()["blocks_read"] == 0


def test_the_start_tells_its_progress_in_changing_words() -> None:
    driven = started()
    segments = 2 * ROWS_PER_STEP + 100
    for _ in range(segments):
        driven.store(([LANE], rows_of(1)))
        driven.tick()
        driven.write()
    driven.kill()
    assert len(driven.progress) == len(set(driven.progress)) >= 4
    assert any(f"of {segments:,} segments" in text for text in driven.progress)


def test_the_start_looks_at_some_blocks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two million it would have been taken for hung, each time it was started anew."""
    driven = started()
    for _ in range(2 * ROWS_PER_STEP + 100):
        driven.store(([LANE], rows_of(1)))
    driven.tick()
    driven.write()
    seen: list[Block | None] = []
    monkeypatch.setattr(Repacking, "note_found", lambda _self, block, _now: seen.append(block))
    home = Home(driven.disk, driven.incarnation + 1)
    for _ in home.recover(driven.now, driven.wall_ms):
        assert len(seen) <= ROWS_PER_STEP
        seen.clear()
    assert 0 < len(seen) < ROWS_PER_STEP, "what was left"


@pytest.mark.requirement("R190")
def test_what_may_have_been_sent_is_marked_after_a_kill() -> None:
    driven = started()
    flow = driven.bind(messages=2)
    driven.store(([LANE], rows_of(2)))
    driven.settle_down()
    driven.unbind(flow)
    driven.settle_down()
    driven.store(([LANE], rows_of(2, 2)))
    driven.settle_down()
    again(driven)
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].counts == {1: 1, 2: 1, 3: 0, 4: 0}


def test_after_an_orderly_stop_exactly_what_was_sent_is_marked() -> None:
    driven = started()
    flow = driven.bind(messages=2)
    driven.store(([LANE], rows_of(4)))
    driven.settle_down()
    driven.settle(flow, (1, 1))
    driven.restart()
    driven.start(ROUTER, LANES)
    assert driven.totals[LANE][0] == 3
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].counts == {2: 1, 3: 0, 4: 0}
    assert driven.disk.get(Table.META, layout.KEY_CLEAN) is None


def test_an_orderly_stop_writes_relaxed_messages_that_wait() -> None:
    driven = started()
    driven.store(([LANE], rows_of(4)), relaxed=True)
    driven.restart()
    driven.start(ROUTER, LANES)
    assert driven.totals[LANE][0] == 4
    assert driven.stored == 1


def test_a_resumed_flow_may_settle_what_it_had_before_the_kill() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(4)))
    driven.settle_down()
    again(driven)
    flow = driven.bind(flow=flow, messages=0, resume=True)
    driven.settle(flow, (1, 3))
    driven.settle_down(0.1)
    assert driven.totals[LANE][0] == 1
    assert [event for event in driven.events if event[1] == wire.FLOW_SETTLE_REFUSED] == []


def test_positions_are_never_given_twice() -> None:
    driven = started()
    flow = driven.bind()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.settle(flow, (1, 3))
    driven.settle_down(0.1)
    again(driven)
    flow = driven.bind()
    driven.store(([LANE], rows_of(2)))
    driven.settle_down()
    assert driven.delivered[flow].order == [4, 5]
    driven.ask("endpoint.purge", lane_id=LANE)
    again(driven)
    driven.store(([LANE], rows_of(1)))
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].order == [6]


def test_positions_of_expired_messages_are_never_given_twice() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3, meta=(1_000, 0, None, None))))
    driven.settle_down(2.0)
    assert driven.totals[LANE][0] == 0
    assert driven.disk.count(Table.SEGMENTS) == 0
    again(driven)
    driven.store(([LANE], rows_of(1)))
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].order == [4]


def test_positions_of_relaxed_messages_that_a_consumer_saw_are_never_given_twice() -> None:
    driven = started()
    flow = driven.bind()
    driven.settle_down()
    driven.store(([LANE], rows_of(3)), relaxed=True)
    driven.settle_down(0.01)
    assert driven.delivered[flow].order == [1, 2, 3]
    again(driven)
    assert driven.stored == 0
    driven.number = 0
    driven.store(([LANE], rows_of(3)), relaxed=True)
    flow = driven.bind(flow=flow, messages=0, resume=True)
    driven.settle(flow, (1, 2))
    driven.settle_down(0.1)
    # The same messages came again under the same positions, so what was settled meanwhile counts.
    assert driven.totals[LANE][0] == 1
    driven.credit(flow, 10)
    driven.settle_down()
    assert (driven.delivered[flow].order, driven.delivered[flow].rows[3][5]) == ([3], b"m2")


def test_a_purge_that_was_interrupted_stays_a_purge() -> None:
    driven = started()
    for first in range(0, 50, 5):
        driven.store(([LANE, OTHER], rows_of(5, first)))
        driven.settle_down()
    answer = driven.home.request("endpoint.purge", {"lane_id": LANE}, driven.now, driven.wall_ms)
    driven.tick()
    assert driven.write()
    assert answer.value == 50
    again(driven)
    assert (driven.totals[LANE][0], driven.totals[OTHER][0]) == (0, 50)
    driven.settle_down(0.1)
    assert driven.disk.count(Table.SEGMENTS) == 10


def test_a_deletion_that_was_interrupted_is_finished() -> None:
    driven = started()
    for first in range(0, 50, 5):
        driven.store(([LANE], rows_of(5, first)))
        driven.settle_down()
    keep = copy.deepcopy(driven.disk)
    driven.lanes({}, LANE)
    driven.settle_down(0.1)
    # As if the row of the lane had been deleted, and nothing behind it.
    keep.commit([(Table.LANES, layout.number_key(LANE), None)])
    driven.disk = keep
    driven.kill()
    driven.start(ROUTER, {OTHER: settings_of("other")})
    driven.settle_down(0.1)
    tables = (Table.BLOCKS, Table.SEGMENTS, Table.STATES, Table.RECORDS)
    assert [keep.count(table) for table in tables] == [0, 0, 0, 0]


def test_a_block_is_kept_while_another_lane_needs_it() -> None:
    driven = started()
    driven.store(([LANE, OTHER], rows_of(5)))
    driven.settle_down()
    driven.disk.commit([(Table.LANES, layout.number_key(LANE), None)])
    driven.kill()
    driven.start(ROUTER, {OTHER: settings_of("other")})
    driven.settle_down(0.1)
    flow = driven.bind(OTHER)
    driven.settle_down()
    assert received(driven, flow) == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert driven.disk.count(Table.SEGMENTS) == 1


def test_another_router_begins_at_one_and_finds_everything() -> None:
    driven = started()
    old = driven.bind()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.store(([LANE], rows_of(1, 3)))
    driven.start(ROUTER + 1, LANES)
    assert driven.stored == 0
    assert driven.totals[LANE][:2] == [4, 4 * 66], "what the old one sent last is there, and counted"
    flow = driven.bind()
    driven.store(([LANE], rows_of(1, 4)))
    driven.settle_down()
    assert driven.stored == 1
    assert received(driven, flow) == [b"m%d" % i for i in range(5)]
    assert [driven.delivered[flow].counts[position] for position in range(1, 6)] == [1, 1, 1, 0, 0]
    assert old not in driven.home.lanes.flows


def test_the_same_router_may_start_us_again_and_nothing_changes() -> None:
    driven = started()
    flow = driven.bind()
    driven.settle_down()
    driven.send(wire.START, ROUTER, 2, bytes(1024))
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    assert received(driven, flow) == [b"m0", b"m1", b"m2"]


def test_a_router_with_a_lower_number_is_taken_after_a_start() -> None:
    """A spool that was restored into a new node may have seen higher incarnations."""
    driven = started()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER - 5, LANES)
    driven.store(([LANE], rows_of(1)))
    driven.settle_down()
    assert driven.stored == 1
    assert driven.totals[LANE][0] == 4


def test_damage_of_the_index_is_found_at_the_start() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)))
    driven.settle_down()
    ((key, _),) = driven.disk.scan(Table.SEGMENTS)
    driven.disk.commit([(Table.SEGMENTS, key, b"\x90")])
    with pytest.raises(errors.UnavailableError) as caught:
        driven.kill()
    assert caught.value.code == errors.SPOOL_DAMAGED


def test_a_damaged_block_costs_its_messages_only_and_deletes_nothing() -> None:
    driven = started(HomeLimits(cache_bytes_max=1))
    for first in (0, 3, 6):
        driven.store(([LANE], rows_of(3, first)))
        driven.settle_down()
    (_, (key, value), _) = driven.disk.scan(Table.BLOCKS)
    driven.disk.commit([(Table.BLOCKS, key, value[:-1] + b"?")])
    again(driven)
    flow = driven.bind()
    driven.settle_down()
    assert received(driven, flow) == [b"m0", b"m1", b"m2", b"m6", b"m7", b"m8"]
    assert driven.home.stats()["messages_unreadable"] == 3
    assert driven.ask("endpoint.stats", lane_id=LANE)["messages_unreadable"] == 3
    assert [event["event"] for event in driven.told] == ["SYSTEM_AD_MESSAGES_UNREADABLE"]
    states = [row["state"] for row in driven.ask("endpoint.messages", lane_id=LANE)]
    assert states.count("damaged") == 3
    driven.settle(flow, (1, 9))
    driven.settle_down(0.1)
    assert driven.totals[LANE][0] == 3
    # The disk may be right after all the next time.
    driven.disk.commit([(Table.BLOCKS, key, value)])
    again(driven)
    flow = driven.bind()
    driven.settle_down()
    assert received(driven, flow) == [b"m3", b"m4", b"m5"]


# -- every prefix of commits ---------------------------------------------------------------------------------


class RecordingDisk(SimulatedDisk):
    """Keeps what was on disk after each commit."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[Table, dict[bytes, bytes]]] = []

    def commit(self, changes: Sequence[Change], handed_over: Callable[[], None] = nothing) -> None:
        super().commit(changes, handed_over)
        self.history.append({table: dict(rows) for table, rows in self._tables.items()})

    def at(self, number: int) -> SimulatedDisk:
        disk = SimulatedDisk()
        for table, rows in self.history[number].items():
            disk.commit([(table, key, value) for key, value in rows.items()])
        return disk


class Promise:
    """What was promised at the time of a commit: acknowledged messages, and those that a consumer settled."""

    def __init__(
        self, driven: DrivenHome, acked: dict[int, set[bytes]], settled: dict[int, set[bytes]]
    ) -> None:
        self.acked = {lane: set(payloads) for lane, payloads in acked.items()}
        self.settled = {lane: set(payloads) for lane, payloads in settled.items()}
        self.stored = driven.stored


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(short(4, long=12)))
def test_every_prefix_of_commits_keeps_what_was_promised(seed: int) -> None:
    rng = random.Random(seed)
    disk = RecordingDisk()
    driven = DrivenHome(disk)
    driven.start(ROUTER, LANES)
    flows = {lane: driven.bind(lane) for lane in (LANE, OTHER)}
    sent: dict[int, dict[int, set[bytes]]] = {}
    promises: dict[int, Promise] = {}
    settled: dict[int, set[bytes]] = {LANE: set(), OTHER: set()}
    serial = 0
    for _ in range(200):
        action = rng.random()
        if action < 0.45:
            rows = [row_of(i, b"%d-%d" % (serial, i)) for i in range(rng.randint(1, 6))]
            serial += 1
            cut = rng.randint(0, len(rows))
            groups = [([LANE, OTHER], rows[:cut]), ([rng.choice((LANE, OTHER))], rows[cut:])]
            kept = [(lanes, part) for lanes, part in groups if part]
            number = driven.store(*kept, relaxed=rng.random() < 0.3, producer=(PRODUCER, serial * 10))
            took: dict[int, set[bytes]] = {LANE: set(), OTHER: set()}
            for lanes, part in kept:
                for lane in lanes:
                    took[lane] |= {row[5] for row in part}
            sent[number] = took
        elif action < 0.75:
            lane, flow = rng.choice(list(flows.items()))
            seen = driven.delivered.get(flow)
            held = driven.home.lanes.get(lane)
            assert held is not None
            out = [p for p in (seen.order if seen else []) if seen and seen.rows[p][5] not in settled[lane]]
            if seen and out:
                chosen = rng.sample(out, rng.randint(1, len(out)))
                driven.settle(flow, *[(position, position) for position in chosen])
                settled[lane] |= {seen.rows[position][5] for position in chosen}
        elif action < 0.95:
            driven.write()
        driven.tick()
        driven.pass_time(rng.choice((0.0, 0.001, 0.03)))
        acked = {lane: set[bytes]() for lane in (LANE, OTHER)}
        for number in range(1, driven.stored + 1):
            for lane, payloads in sent[number].items():
                acked[lane] |= payloads
        promises[len(disk.history) - 1] = Promise(driven, acked, settled)
    assert len(promises) > 15
    for at, promise in promises.items():
        _check_prefix(disk.at(at), promise, sent)


def _check_prefix(disk: SimulatedDisk, promise: Promise, sent: dict[int, dict[int, set[bytes]]]) -> None:
    """Start on what was on disk; everything stored and not settled comes, nothing comes twice or from nowhere."""
    driven = DrivenHome(disk)
    driven.start(ROUTER, LANES)
    assert driven.stored >= promise.stored
    everything = {lane: {p for took in sent.values() for p in took[lane]} for lane in (LANE, OTHER)}
    for lane in (LANE, OTHER):
        flow = driven.bind(lane)
        driven.settle_down()
        got = received(driven, flow)
        assert len(got) == len(set(got)), "no message twice"
        assert set(got) <= everything[lane]
        assert promise.acked[lane] - promise.settled[lane] <= set(got), "nothing that was stored is lost"
        ranks = [tuple(map(int, payload.split(b"-"))) for payload in got]
        assert ranks == sorted(ranks), "in the order of the publisher"
        driven.settle(flow, *[(p, p) for p in driven.delivered[flow].order] if got else [])
    driven.settle_down(0.1)
    for table in (Table.BLOCKS, Table.SEGMENTS, Table.STATES):
        assert disk.count(table) == 0, f"{table.name} has something left"
