"""What operators ask of a home: listings, purges, moves, copies, redrives, checks, backups."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import Message, errors, wire
from node.home.lanes.jobs import ENDED_MAX, STEP_ROWS
from node.home.operations import EXAMINED_MAX, PUBLISHED_MAX
from node.home.spool import layout
from storage.spool import Table
from tests.unit.node.adopting_home import LANES, new_home
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
    started,
)

TARGET = ["queue", "default", "target"]
QUOTA = errors.SPOOL_OVER_QUOTA


class Targets:
    """The router's part of moves: acknowledges each, but for targets that refuse."""

    def __init__(self, driven: DrivenHome) -> None:
        self.driven = driven
        self.seen = 0
        self.refusing: dict[str, int] = {}
        #: What arrived: target -> (payload, reason of the origin).
        self.arrived: dict[str, list[tuple[bytes, str]]] = {}

    def answer(self) -> bool:
        """Answer the moves that came since the last call."""
        fresh = self.driven.moves[self.seen :]
        self.seen = len(self.driven.moves)
        for (lane_id, first, target, count, origins, *_), rows in fresh:
            code = self.refusing.get(target[2], 0)
            refused = [(first + row[0], code) for row in rows] if code else []
            if not code:
                arrived = self.arrived.setdefault(target[2], [])
                arrived += [(row[5], origin[2]) for row, origin in zip(rows, origins, strict=True)]
            self.driven.moved(lane_id, first, first + rows[-1][0], *refused)
            assert count == len(rows) <= STEP_ROWS
        self.driven.settle_down()
        return bool(fresh)

    def run(self, job: int) -> dict[str, Any]:
        """Answer until a job has ended."""
        for _ in range(10_000):
            report: dict[str, Any] = self.driven.ask("job", job=job)
            if report["state"] != "running":
                self.driven.settle_down(0.05)
                return report
            self.answer()
            self.driven.settle_down()
        raise AssertionError(f"job {job} runs for ever")


def filled(count: int = 600, **row: Any) -> tuple[DrivenHome, Targets]:
    driven = started()
    for first in range(0, count, 100):
        driven.store(([LANE], rows_of(min(100, count - first), first, **row)))
        driven.settle_down()
    return driven, Targets(driven)


def refused_with(code: int) -> Any:
    return pytest.raises(errors.AngariumError, match=str(code))


# -- move, copy, redrive -------------------------------------------------------------------------------------


def test_a_move_takes_everything_that_is_there() -> None:
    driven, targets = filled()
    job = driven.ask("endpoint.move", lane_id=LANE, target=TARGET)["job"]
    driven.store(([LANE], rows_of(5, 600)))
    report = targets.run(job)
    assert report == {
        "job": job,
        "vpn": "default",
        "kind": "move",
        "state": "done",
        "done": 600,
        "total": 600,
        "refused": 0,
        "kept": 0,
        "error": None,
    }
    assert targets.arrived["target"] == [(b"m%d" % i, "moved") for i in range(600)]
    assert driven.totals[LANE][0] == 5, "what came after the beginning stays"


def test_a_copy_leaves_everything_where_it_is() -> None:
    driven, targets = filled(300)
    flow = driven.bind(messages=10)
    driven.settle_down()
    report = targets.run(driven.ask("endpoint.move", lane_id=LANE, target=TARGET, copy=True)["job"])
    assert (report["state"], report["done"]) == ("done", 300)
    assert targets.arrived["target"] == [(b"m%d" % i, "copied") for i in range(300)]
    assert driven.totals[LANE][0] == 300
    driven.credit(flow, 300)
    driven.settle_down()
    assert len(driven.delivered[flow].order) == 300


def test_a_limit_and_a_selector_are_kept() -> None:
    driven, targets = filled(0)
    driven.store(([LANE], [row_of(i, b"%d" % i, meta=(0, 0, i % 5, None)) for i in range(100)]))
    driven.settle_down()
    where = {"lane_id": LANE, "target": TARGET, "selector": "JMSPriority = 3"}
    report = targets.run(driven.ask("endpoint.move", **where, limit=7)["job"])
    assert (report["done"], report["total"]) == (7, 7)
    assert [payload for payload, _ in targets.arrived["target"]] == [b"%d" % i for i in range(3, 38, 5)]
    report = targets.run(driven.ask("endpoint.move", **where)["job"])
    assert report["done"] == 13
    assert driven.totals[LANE][0] == 80


def test_chosen_messages_are_moved_and_no_others() -> None:
    driven, targets = filled(0)
    driven.store(([LANE], [row_of(i, b"%d" % i, meta=(0, 0, i % 5, None)) for i in range(3_000)]))
    driven.settle_down()
    where = {"lane_id": LANE, "target": TARGET}
    job = driven.ask("endpoint.move", **where, positions=[2_500, 4, 2, 9_999, 4, 1_700])["job"]
    driven.settle_down()
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    report = targets.run(job)
    assert (report["state"], report["done"], report["total"]) == ("done", 4, 5)
    assert [payload for payload, _ in targets.arrived["target"]] == [b"1", b"3", b"1699", b"2499"]
    assert driven.totals[LANE][0] == 2_996
    # One that is gone is none; and of those that are chosen a selector chooses.
    assert targets.run(driven.ask("endpoint.move", **where, positions=[4])["job"])["done"] == 0
    given = {"positions": list(range(1, 11)), "selector": "JMSPriority = 2", "limit": 1}
    assert targets.run(driven.ask("endpoint.move", **where, **given)["job"])["done"] == 1
    assert targets.arrived["target"][-1][0] == b"2"


def test_a_move_ends_when_its_target_refuses_and_keeps_the_messages() -> None:
    driven, targets = filled()
    targets.refusing["target"] = QUOTA
    report = targets.run(driven.ask("endpoint.move", lane_id=LANE, target=TARGET)["job"])
    assert (report["state"], report["done"], report["refused"]) == ("failed", 0, STEP_ROWS)
    assert report["error"][0] == QUOTA
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].order == list(range(1, 601))


def test_unacknowledged_messages_stay_with_their_consumer() -> None:
    driven, targets = filled(20)
    flow = driven.bind(messages=5)
    driven.settle_down()
    report = targets.run(driven.ask("endpoint.move", lane_id=LANE, target=TARGET)["job"])
    assert report["done"] == 15
    driven.settle(flow, (1, 5))
    driven.settle_down(0.1)
    assert driven.totals[LANE][0] == 0


def test_a_redrive_sends_each_message_back_to_where_it_came_from() -> None:
    driven = started()
    targets = Targets(driven)
    origins = [["queue", "one", "rejected"], ["queue", "two", "expired"], None]
    for first in range(0, 300, 3):
        driven.store(([LANE], rows_of(3, first)), origins=origins)
        driven.settle_down()
    report = targets.run(driven.ask("endpoint.redrive", lane_id=LANE)["job"])
    assert (report["state"], report["done"], report["refused"], report["kept"]) == ("done", 200, 0, 100)
    assert report["error"] is None
    assert targets.arrived["one"] == [(b"m%d" % i, "redriven") for i in range(0, 300, 3)]
    assert targets.arrived["two"] == [(b"m%d" % i, "redriven") for i in range(1, 300, 3)]
    assert driven.totals[LANE][0] == 100


def test_a_redrive_leaves_copies_and_what_was_redriven_where_they_are() -> None:
    """The original of a copy never left; what was redriven is back already, and would go to the dead ones again."""
    driven = started()
    targets = Targets(driven)
    reasons = ("copied", "rejected", "redriven", "moved")
    driven.store(([LANE], rows_of(4)), origins=[["queue", "one", reason] for reason in reasons])
    driven.settle_down()
    report = targets.run(driven.ask("endpoint.redrive", lane_id=LANE)["job"])
    assert (report["state"], report["done"], report["refused"], report["kept"]) == ("done", 2, 0, 2)
    assert report["error"] is None, "what is meant to stay is no failure"
    assert targets.arrived["one"] == [(b"m1", "redriven"), (b"m3", "redriven")]
    assert driven.totals[LANE][0] == 2


def test_a_redrive_goes_on_with_other_origins_when_one_refuses() -> None:
    driven = started()
    targets = Targets(driven)
    targets.refusing["two"] = QUOTA
    origins = [["queue", "one", "rejected"], ["queue", "two", "expired"]]
    for first in range(0, 600, 2):
        driven.store(([LANE], rows_of(2, first)), origins=origins)
        driven.settle_down()
    report = targets.run(driven.ask("endpoint.redrive", lane_id=LANE)["job"])
    assert (report["state"], report["done"], report["refused"]) == ("done", 300, 300)
    assert report["error"][0] == QUOTA
    assert driven.totals[LANE][0] == 300


def test_a_job_goes_on_after_a_kill_where_it_was() -> None:
    driven, targets = filled()
    job = driven.ask("endpoint.move", lane_id=LANE, target=TARGET, limit=500)["job"]
    driven.settle_down()
    targets.answer()
    assert driven.ask("job", job=job)["done"] == STEP_ROWS
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    targets.seen = 0
    report = targets.run(job)
    assert (report["state"], report["done"], report["total"]) == ("done", 500, 500)
    assert targets.arrived["target"] == [(b"m%d" % i, "moved") for i in range(500)]
    assert driven.totals[LANE][0] == 100


def test_a_job_goes_on_that_a_node_left_which_did_not_count_what_stays() -> None:
    driven, targets = filled()
    job = driven.ask("endpoint.move", lane_id=LANE, target=TARGET, limit=500)["job"]
    driven.settle_down()
    targets.answer()
    key = layout.number_key(LANE)
    stored = driven.disk.get(Table.MOVES, key)
    assert stored is not None
    moves = wire.unpack(stored)
    *row, _kept, total = moves[-1]
    driven.disk.commit([(Table.MOVES, key, wire.pack([*moves[:-1], [*row, total]]))])
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    targets.seen = 0
    report = targets.run(job)
    assert (report["state"], report["done"], report["total"], report["kept"]) == ("done", 500, 500, 0)


def test_a_copy_that_was_interrupted_copies_nothing_twice() -> None:
    driven, targets = filled()
    job = driven.ask("endpoint.move", lane_id=LANE, target=TARGET, copy=True)["job"]
    driven.settle_down()
    targets.answer()
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    targets.seen = 0
    assert targets.run(job)["done"] == 600
    assert targets.arrived["target"] == [(b"m%d" % i, "copied") for i in range(600)]


def test_dead_messages_and_a_job_take_turns() -> None:
    driven = DrivenHome()
    driven.start(ROUTER, {LANE: settings_of("q", dead_message_queue="dead")})
    targets = Targets(driven)
    flow = driven.bind(messages=1_000)
    for first in range(0, 2_000, 100):
        driven.store(([LANE], rows_of(100, first)))
        driven.settle_down()
    driven.settle(flow, (1, 1_000), outcome=wire.OUTCOME_REJECTED)
    driven.settle_down()
    targets.run(driven.ask("endpoint.move", lane_id=LANE, target=TARGET)["job"])
    order = [header[2][2] for header, _ in driven.moves]
    assert order[:6] == ["dead", "target"] * 3 or order[1:7] == ["target", "dead"] * 3


def test_one_job_at_a_time_works_on_a_lane() -> None:
    driven, targets = filled(10)
    first = driven.ask("endpoint.move", lane_id=LANE, target=TARGET)["job"]
    for check in (False, True):
        with refused_with(errors.OBJECT_IN_USE):
            driven.ask("endpoint.redrive", lane_id=LANE, check=check)
    targets.run(first)
    assert driven.ask("endpoint.redrive", lane_id=LANE, check=True) is None, "it may begin, and has not"
    targets.run(driven.ask("endpoint.redrive", lane_id=LANE)["job"])


def test_a_job_of_a_deleted_endpoint_fails() -> None:
    driven, _ = filled(10)
    job = driven.ask("endpoint.move", lane_id=LANE, target=TARGET)["job"]
    driven.settle_down()
    driven.lanes({}, LANE)
    driven.settle_down(0.1)
    assert driven.ask("job", job=job)["state"] == "failed"
    assert driven.ask("job", job=job)["error"][0] == errors.UNKNOWN_ENDPOINT


def test_old_jobs_are_forgotten() -> None:
    driven, targets = filled(1)
    jobs = [driven.ask("endpoint.redrive", lane_id=LANE)["job"]]
    targets.run(jobs[0])
    for _ in range(ENDED_MAX + 1):
        jobs.append(driven.ask("endpoint.redrive", lane_id=LANE)["job"])
        targets.run(jobs[-1])
    assert jobs == sorted(set(jobs))
    with refused_with(errors.OBJECT_NOT_FOUND):
        driven.ask("job", job=jobs[0])


@pytest.mark.parametrize(
    ("operation", "arguments", "code"),
    [
        ("endpoint.move", {"lane_id": THIRD, "target": TARGET}, errors.OBJECT_NOT_FOUND),
        ("endpoint.move", {"lane_id": LANE, "target": ["queue", "default", "q"]}, errors.INVALID_ARGUMENT),
        ("endpoint.move", {"lane_id": LANE, "target": TARGET, "limit": 0}, errors.INVALID_ARGUMENT),
        ("endpoint.move", {"lane_id": LANE, "target": TARGET, "selector": "a ="}, errors.INVALID_SELECTOR),
        ("endpoint.messages", {"lane_id": LANE, "limit": 100_000}, errors.INVALID_ARGUMENT),
        ("endpoint.messages", {"lane_id": LANE, "selector": "("}, errors.INVALID_SELECTOR),
        ("endpoint.message", {"lane_id": LANE, "position": 9}, errors.OBJECT_NOT_FOUND),
        ("endpoint.purge", {"lane_id": DMQ}, errors.OBJECT_NOT_FOUND),
        ("endpoint.stats", {}, errors.INVALID_ARGUMENT),
        ("job", {"job": 3}, errors.OBJECT_NOT_FOUND),
        ("spool.backup", {"directory": ""}, errors.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_code(operation: str, arguments: Any, code: int) -> None:
    driven = started()
    with refused_with(code):
        driven.ask(operation, **arguments)


# -- messages ------------------------------------------------------------------------------------------------


def test_messages_are_listed_in_pages() -> None:
    driven, _ = filled(250)
    pages = []
    after = 0
    while page := driven.ask("endpoint.messages", lane_id=LANE, after=after, limit=100):
        pages.append([row["position"] for row in page])
        after = page[-1]["position"]
    assert [len(page) for page in pages] == [100, 100, 50]
    assert [position for page in pages for position in page] == list(range(1, 251))


def test_a_listed_message_says_everything_but_its_body() -> None:
    driven = started()
    origins = [["queue", "old", "moved"]]
    driven.store(([LANE], [row_of(0, b"body", meta=(5_000, 0, 7, None), topic="t/1")]), origins=origins)
    at = driven.wall_ms
    driven.settle_down()
    expected = {
        "position": 1,
        "topic": "t/1",
        "size_bytes": 68,
        "stored_ms": at,
        "expires_ms": at + 5_000,
        "priority": 7,
        "redeliveries": 0,
        "state": "ready",
        "origin": ["queue", "old", "moved"],
    }
    assert driven.ask("endpoint.messages", lane_id=LANE) == [expected]
    shown = driven.ask("endpoint.message", lane_id=LANE, position=1)
    assert shown == {**expected, "flags": 1, "properties": None, "payload": b"body"}


def test_the_publishers_of_the_newest_messages_are_counted() -> None:
    driven = started()
    assert driven.ask("endpoint.publishers", lane_id=LANE) == []
    driven.store(([LANE], rows_of(10)), publisher=7)
    driven.store(([LANE], rows_of(PUBLISHED_MAX - 3)), publisher=8)
    sent = Message("t", b"", mode="persistent", sender_id="of a gateway").row
    driven.store(([LANE], [[0, "t", 1, None, sent[4], b"x"]]), publisher=9)
    driven.settle_down()
    found = [tuple(one) for one in driven.ask("endpoint.publishers", lane_id=LANE)]
    assert found == [(7, "", 2), (8, "", PUBLISHED_MAX - 3), (9, "of a gateway", 1)]


def test_a_selector_looks_on_until_the_page_is_full_or_the_lane_ends() -> None:
    driven = started()
    count = EXAMINED_MAX * 2 + 100
    for first in range(0, count, 1_000):
        rows = [
            row_of(i, b"", meta=(0, 0, 9 if i == count - 1 else 1, None))
            for i in range(first, min(first + 1_000, count))
        ]
        driven.store(([LANE], rows))
        driven.settle_down()
    answer = driven.home.request(
        "endpoint.messages", {"lane_id": LANE, "selector": "JMSPriority = 9"}, driven.now, driven.wall_ms
    )
    assert not answer.is_known, "it looks at so many messages in steps"
    driven.settle_down(0.1)
    assert [row["position"] for row in answer.value] == [count]
    assert driven.home.operations.take_answers() == [answer]
    assert driven.ask("endpoint.messages", lane_id=LANE, selector="JMSPriority = 8") == []


def test_a_purge_is_answered_when_it_is_durable() -> None:
    driven, _ = filled(30)
    flow = driven.bind(messages=10)
    driven.settle_down()
    answer = driven.home.request("endpoint.purge", {"lane_id": LANE}, driven.now, driven.wall_ms)
    driven.tick()
    assert driven.begin_write()
    assert not answer.is_known
    driven.end_write()
    assert answer.value == 30
    driven.settle_down(0.1)
    assert driven.totals[LANE] == [0, 0, 0, 0]
    assert driven.disk.count(Table.BLOCKS) == 0
    driven.settle(flow, (1, 10))
    driven.settle_down()
    assert driven.events[-1][:3] == [flow, wire.FLOW_SETTLE_REFUSED, errors.NOT_DELIVERED]


def test_a_purge_does_not_touch_what_is_acknowledged_later() -> None:
    driven, _ = filled(30)
    driven.store(([LANE], rows_of(3, 30)))
    driven.tick()
    assert driven.begin_write()
    driven.store(([LANE], rows_of(3, 33)))
    answer = driven.home.request("endpoint.purge", {"lane_id": LANE}, driven.now, driven.wall_ms)
    driven.end_write()
    driven.settle_down(0.1)
    assert answer.value == 30
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].order == list(range(31, 37))


def test_single_messages_are_deleted_wherever_they_are() -> None:
    driven, _ = filled(30)
    flow = driven.bind(messages=10)
    driven.settle_down()
    assert driven.ask("endpoint.delete_messages", lane_id=LANE, positions=[1, 5, 15, 15, 99]) == 3
    driven.kill()
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    assert driven.totals[LANE][0] == 27
    flow = driven.bind()
    driven.settle_down()
    assert driven.delivered[flow].order == [p for p in range(1, 31) if p not in (1, 5, 15)]


def test_figures_of_a_lane_have_the_names_that_operators_know() -> None:
    driven, _ = filled(30)
    flow = driven.bind(messages=10)
    driven.settle_down()
    driven.settle(flow, (1, 4))
    driven.settle(flow, (5, 6), outcome=wire.OUTCOME_FAILED)
    driven.settle_down(0.05)
    found = driven.ask("endpoint.stats", lane_id=LANE)
    sizes = [64 + len(b"m%d" % i) for i in range(30)]
    expected = {
        "messages_spooled": 26,
        "bytes_spooled": sum(sizes[4:]),
        "high_water_mark_messages": 30,
        "high_water_mark_bytes": sum(sizes),
        "total_messages_spooled": 30,
        "total_bytes_spooled": sum(sizes),
        "confirmed_delivered": 4,
        "request_for_redelivery": 2,
        "oldest_position": 5,
        "newest_position": 30,
        "consumer_flows": 1,
    }
    assert {name: found[name] for name in expected} == expected
    assert found.pop("reader_group") == ""
    assert all(isinstance(value, int) for value in found.values())


# -- the spool -----------------------------------------------------------------------------------------------


def test_a_check_finds_damaged_blocks() -> None:
    driven, targets = filled(500)
    report = targets.run(driven.ask("spool.verify")["job"])
    assert (report["state"], report["done"], report["total"]) == ("done", 5, 5)
    blocks = driven.disk.scan(Table.BLOCKS)
    driven.disk.commit(
        [(Table.BLOCKS, blocks[1][0], blocks[1][1][:-3] + b"???"), (Table.BLOCKS, blocks[3][0], None)]
    )
    report = targets.run(driven.ask("spool.verify")["job"])
    assert (report["state"], report["refused"], report["done"]) == ("failed", 2, 5)
    assert report["error"][0] == errors.SPOOL_DAMAGED
    assert "block 4 is missing" in report["error"][1]


def test_a_backup_is_made_when_everything_before_it_is_on_disk() -> None:
    driven = started()
    driven.store(([LANE], rows_of(3)), relaxed=True)
    job = driven.ask("spool.backup", directory="/somewhere")["job"]
    driven.tick()
    assert driven.home.operations.take_backups() == []
    driven.settle_down()
    (backup,) = driven.home.operations.take_backups()
    assert backup.directory == "/somewhere"
    assert driven.disk.count(Table.BLOCKS) == 1
    assert driven.ask("job", job=job)["state"] == "running"
    backup.end()
    assert driven.ask("job", job=job)["state"] == "done"
    assert driven.home.operations.take_backups() == []


@pytest.mark.requirement("R97")
def test_a_backup_is_made_when_all_lanes_are_here() -> None:
    """The spool of a worker that left is in none, and neither would its messages be."""
    old, _ = filled(30)
    driven, _ = new_home(old.disk)

    def expect_refused() -> None:
        with refused_with(errors.HOME_NOT_READY):
            driven.ask("spool.backup", directory="/somewhere")

    driven.start(ROUTER + 1)
    expect_refused()  # it does not know yet which lanes it has
    driven.lanes(LANES, complete=True)
    expect_refused()
    driven.settle_down(1.0)
    assert driven.totals[LANE][0] == 30
    assert driven.ask("spool.backup", directory="/somewhere")["job"]


def test_the_figures_of_the_spool_are_shown() -> None:
    driven, _ = filled(30)
    shown = driven.ask("spool.show")
    assert (shown["messages_spooled"], shown["lanes"], shown["blocks"]) == (30, 2, 1)
