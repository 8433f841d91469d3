"""Stories that other brokers lost messages in, told step by step.

Each is played with several seeds, which differ in the delays of the network and in what a dying disk keeps.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from node.home.home import Home, HomeLimits
from node.home.lanes import importing, others
from node.home.lanes.others import Others
from node.home.spool import layout
from node.home.spool.held_lanes import PROVISIONAL
from router.admission.spooling import Rearranging
from router.sessions.producer import Memory
from storage.spool import Table
from tests.share import short, some
from tests.simulation.guaranteed.stage import Stage, names
from tests.simulation.simulated_worker import SimulatedWorker

if TYPE_CHECKING:
    from tests.simulation.guaranteed.records import Publication

SEEDS = [f"story {number}" for number in range(short(1, long=6))]
FIFTY = ["t/1"] * 50


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.requirement("R163")
def test_an_acknowledged_tail_survives_a_kill(seed: str) -> None:
    stage = Stage(seed, write_max_s=0.05, orders={"subscriptions": ["t/>"]})
    producer = stage.producer()
    sent: list[Publication] = []
    while not any(one.is_acked for one in sent):
        sent += stage.publish(producer, *["t/1"] * 5)
        stage.wait(0.003)
    acknowledged = [one for one in sent if one.is_acked]
    stage.kill_worker()
    stage.wait(0.001)
    assert set(names(acknowledged)) <= set(stage.on_disk("orders"))
    assert stage.finish() == []
    assert all(one.is_acked for one in sent)
    assert stage.stored("orders")[: len(sent)] == names(sent)


def test_positions_are_not_given_again_after_a_kill(seed: str) -> None:
    """A consumer has messages from memory; their numbers died with the process, and must not mean others."""
    stage = Stage(
        seed,
        orders={"subscriptions": ["t/>"], "durability": "relaxed"},
        limits=HomeLimits(write_delay_ms=10_000),
    )
    producer, flow = stage.producer(), stage.flow("orders")
    stage.publish(producer, *FIFTY)
    stage.wait(0.1)
    seen = {held.position for held in flow.held}
    assert len(seen) == 50
    assert stage.on_disk("orders") == []
    stage.kill_worker()
    stage.wait(2.0)
    later = stage.publish(producer, *FIFTY)
    stage.wait(0.5)
    positions = {held.position for held in flow.held}
    assert all(one.is_acked for one in later)
    assert len(positions - seen) >= 50
    assert stage.finish() == []


@pytest.mark.requirement("R190")
def test_a_consumer_position_never_jumps(seed: str) -> None:
    """Half is accepted, the home dies before that is written everywhere, and the rest comes in order."""
    stage = Stage(seed, orders={"subscriptions": ["t/>"]})
    producer, flow = stage.producer(), stage.flow("orders", window=20)
    sent = stage.publish(producer, *FIFTY)
    stage.wait(0.2)
    flow.settle_some(5)
    stage.wait(0.002)
    stage.kill_worker()
    stage.wait(1.0)
    held = [one.position for one in flow.held]
    fresh = held[15:]  # The first fifteen were there before.
    assert fresh == sorted(fresh)
    assert stage.finish() == []
    assert all(one.is_acked for one in sent)


@pytest.mark.parametrize("is_first_bound", [True, False])
def test_a_joining_consumer_does_not_break_the_order_of_a_key(seed: str, is_first_bound: bool) -> None:
    stage = Stage(
        seed,
        workers=2,
        orders={
            "subscriptions": ["t/>"],
            "access_type": "non-exclusive",
            "partition_count": 3,
            "partition_rebalance_delay_s": 0,
            "partition_rebalance_max_handoff_s": 1,
        },
    )
    producer = stage.producer()
    first = stage.flow("orders", window=10) if is_first_bound else None
    for key in "abcdef":
        stage.publish(producer, *["t/1"] * 8, partition_key=key)
    stage.wait()
    if first is not None:
        first.settle_some(3)
    second = stage.flow("orders", number=1, window=10)
    for _ in range(40):
        for flow in (first, second):
            if flow is not None:
                flow.settle_some(2)
        for key in "abc":
            stage.publish(producer, "t/1", partition_key=key)
        stage.wait(0.05)
    assert second.partitions
    assert stage.finish() == []


PARTED = {
    "subscriptions": ["t/>"],
    "access_type": "non-exclusive",
    "partition_count": 3,
    "partition_rebalance_delay_s": 0,
    "partition_rebalance_max_handoff_s": 1,
}


def closed_partitions(seed: str, home_class: type[Home] = Home) -> Stage:
    """Messages were delivered and given back, and others not, when most partitions of their queue are closed."""
    stage = Stage(seed, workers=2, home_class=home_class, orders=PARTED)
    producer, flow = stage.producer(), stage.flow("orders", window=30)
    for key in "abcdefgh":
        stage.publish(producer, *["t/1"] * 10, partition_key=key)
    stage.wait()
    assert len(flow.held) >= 30
    flow.is_wanted = False
    flow.unbind()
    stage.wait()
    stage.define("orders", partition_count=1)
    stage.wait(3.0)
    return stage


def test_what_moves_from_closed_partitions_says_that_it_was_delivered(seed: str) -> None:
    stage = closed_partitions(seed)
    assert stage.finish() == []
    assert stage.scenario.guaranteed.drained


class ForgetsThePast(Home):
    """Moves messages from closed partitions as if they were new."""

    def take_frames(self) -> list[list[bytes]]:
        frames = super().take_frames()
        for frame in frames:
            if frame[0] == wire.MOVE:
                *head, _, file = wire.unpack(frame[1])
                frame[1] = wire.pack([*head, {}, file])
        return frames


def test_what_moves_from_closed_partitions_as_if_it_were_new_is_found_out() -> None:
    stage = closed_partitions(SEEDS[0], ForgetsThePast)
    assert "unmarked" in {violation.rule for violation in stage.finish()}


@pytest.mark.parametrize("count", some((0, 1, 2, 5), of=3))
@pytest.mark.parametrize("is_lost", [True, False])
def test_messages_on_their_way_when_the_partitions_change_are_stored_once(
    seed: str, count: int, is_lost: bool
) -> None:
    """The router dies with them, and perhaps a home, before they are acknowledged; they are sent again."""
    stage = Stage(seed, workers=2, orders=PARTED)
    producer = stage.producer()
    for key in "abcdefgh":
        stage.publish(producer, "t/1", partition_key=key)
    stage.wait()
    stage.slow_disk(1.0)
    for key in "abcdefgh":
        stage.publish(producer, *["t/1"] * 3, partition_key=key)
    stage.wait(0.02)
    stage.define("orders", partition_count=count)
    for key in "abcdefgh":
        stage.publish(producer, "t/1", partition_key=key)
    stage.wait(0.05)
    if is_lost:
        stage.kill_worker()
    stage.kill_router()
    stage.wait(3.0)
    assert stage.finish() == []


def worker_that_leaves(
    seed: str, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool, kills_router: bool
) -> Stage:
    """A worker dies on its way out with messages that it was to store, and later ones go to the next home."""
    stage = Stage(seed, workers=2, orders={"subscriptions": ["t/>"]})
    assert stage.homes("orders") == [1]
    disk, producer = stage.scenario.node.disks[1].disk, stage.producer()
    crash = disk.crash
    monkeypatch.setattr(disk, "crash", lambda _: crash(Dice(0.1 if is_lost else 0.9)))
    stage.slow_disk(1.0, index=1)
    stage.publish(producer, *["t/1"] * 3)
    stage.wait(0.01)
    stage.scale(1)
    stage.wait(0.05)
    stage.publish(producer, *["t/1"] * 3)
    stage.wait(0.02)
    assert stage.homes("orders") == [0]
    stage.kill_worker(1)
    if kills_router:
        stage.kill_router()
    stage.wait(5.0)
    return stage


@pytest.mark.requirement("R163", "R190")
@pytest.mark.parametrize("kills_router", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_what_a_worker_that_leaves_did_not_store_is_not_taken_for_stored(
    seed: str, monkeypatch: pytest.MonkeyPatch, is_lost: bool, kills_router: bool
) -> None:
    stage = worker_that_leaves(seed, monkeypatch, is_lost=is_lost, kills_router=kills_router)
    sent = stage.scenario.guaranteed.publications
    assert all(one.is_acked for one in sent)
    assert stage.on_disk("orders") == names(sent)
    assert stage.finish() == []


@pytest.mark.parametrize(("is_lost", "rule"), [(True, "lost"), (False, "order")])
def test_a_router_that_gives_the_next_home_what_overtakes_the_last_one_is_found_out(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool, rule: str
) -> None:
    monkeypatch.setattr(Rearranging, "concerns", lambda *_: False)
    stage = worker_that_leaves(SEEDS[0], monkeypatch, is_lost=is_lost, kills_router=False)
    assert rule in {violation.rule for violation in stage.finish()}


@pytest.mark.requirement("R163", "R190")
def test_a_worker_leaves_when_the_lane_that_it_got_last_is_on_its_disk(
    seed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, its next home would find nothing of it there, and begin it anew beside what is stored then."""
    stage = Stage(seed, workers=2, orders={"subscriptions": ["t/>"]}, other={"subscriptions": ["u/>"]})
    disk, producer = stage.scenario.node.disks[1].disk, stage.producer()
    crash = disk.crash
    monkeypatch.setattr(disk, "crash", lambda _: crash(Dice(0.9)))  # what it is writing is kept
    stage.slow_disk(1.0, index=1)
    stage.scenario.node.define("queue", "default", "new", permission="delete", subscriptions=["n/>"])
    stage.wait(0.05)
    sent = stage.publish(producer, "n/1", "n/2")
    stage.wait(0.02)
    stage.scale(1)
    stage.wait(0.05)
    stage.kill_router()
    stage.kill_worker(1)
    stage.wait(5.0)
    assert stage.homes("new") == [1]
    stage.scale(1)
    stage.wait(5.0)
    assert stage.homes("new") == [0]
    assert all(one.is_acked for one in sent)
    assert stage.on_disk("new") == names(sent)
    assert stage.finish() == []


@pytest.mark.requirement("R163", "R190")
def test_a_worker_that_died_while_it_took_queues_over_finishes_that_before_it_leaves(seed: str) -> None:
    """Its next home would find it to be the last that had them, with what it had got so far."""
    queues: dict[str, Any] = {
        name: {"subscriptions": ["t/>"]} for name in ("one", "two", "three", "four", "five")
    }
    stage = Stage(seed, workers=3, **queues)
    node = stage.scenario.node
    producer = stage.producer()
    sent = stage.publish(producer, *FIFTY)
    stage.wait()
    stage.scale(2)
    key = layout.number_key(stage.endpoint("five").id << wire.LANE_BITS)

    def takes_over() -> bool:
        row = node.disks[1].disk.get(Table.LANES, key)
        return row is not None and layout.unpack_lane(row).importing > 0

    stage.until(takes_over)
    stage.kill_worker(1)

    def ask() -> bool:
        stage.scale(1)
        return 1 in node.supervisor.workers or node.supervisor.target == 1

    stage.until(ask)
    stage.kill_worker(1)
    stage.wait(5.0)
    stage.scale(1)
    stage.wait(5.0)
    for name in queues:
        assert stage.homes(name) == [0]
        assert stage.on_disk(name) == names(sent)
    assert all(one.is_acked for one in sent)
    assert stage.finish() == []


def mark_of(stage: Stage, worker: int) -> int:
    """Give the highest mark of an import on the disk of a worker, 0 for none."""
    place = stage.scenario.node.disks.get(worker)
    rows = [] if place is None else place.disk.scan(Table.LANES)
    return max([0, *(layout.unpack_lane(value).importing for key, value in rows if len(key) == 8)])


def scale_down(stage: Stage, to: int) -> None:
    """Ask for fewer workers until that is not refused."""

    def ask() -> bool:
        stage.scale(to)
        stage.wait(0.1)
        return stage.scenario.node.supervisor.target == to

    stage.until(ask)


def scale_and_give_up(stage: Stage, to: int, *, is_placed: bool) -> list[Publication]:
    """The worker that gets a partition dies for good in the middle of that."""
    node, heir = stage.scenario.node, to - 1
    producer = stage.producer(f"p{to}")
    stage.slow_disk(20.0, index=heir)
    with pytest.MonkeyPatch.context() as slowly:
        slowly.setattr(Others, "sources", lambda *_: [])  # nobody begins to read
        scale_down(stage, to)
        stage.until(lambda: mark_of(stage, heir) > PROVISIONAL)
        sent = stage.publish(producer, *["t/1"] * 24)
        stage.until(lambda: all(one.is_acked for one in sent) and to not in node.supervisor.workers)
        if not is_placed:
            stage.give_up_worker(heir)
    if is_placed:
        stage.until(lambda: 0 < mark_of(stage, heir) < PROVISIONAL)
        stage.give_up_worker(heir)
    return sent


def workers_given_up(seed: str, workers: int, *, is_placed: bool) -> tuple[Stage, list[Publication]]:
    """One worker after the other leaves, and its heir dies for good before it has all; the first one is left."""
    attributes = {"partition_count": 3 * workers, "access_type": "non-exclusive", "subscriptions": ["t/>"]}
    stage = Stage(seed, workers=workers, orders=attributes)
    sent = stage.publish(stage.producer(), *FIFTY)
    stage.wait()
    for to in range(workers - 1, 1, -1):
        sent += scale_and_give_up(stage, to, is_placed=is_placed)
    scale_down(stage, 1)
    return stage, sent


@pytest.mark.requirement("R163", "R190")
@pytest.mark.parametrize(
    ("workers", "is_placed", "kills_heir"),
    [(3, False, False), (3, True, True), (4, False, True), (4, True, False)],
)
def test_what_a_worker_that_is_given_up_was_taking_over_goes_to_its_next_home(
    seed: str, workers: int, is_placed: bool, kills_heir: bool
) -> None:
    """All of it: what had come to that worker, and what is still where it was taking it from, however far back."""
    stage, sent = workers_given_up(seed, workers, is_placed=is_placed)
    stage.slow_disk(3.0, index=0)
    for _ in range(3 * kills_heir):
        stage.until(lambda: mark_of(stage, 0) > 0)
        stage.wait(0.5)
        stage.kill_worker(0)
        stage.scale(2)  # refused
    stage.wait(20.0)
    assert stage.scenario.node.supervisor.target == 1
    assert set(stage.homes("orders")) == {0}
    assert sorted(stage.on_disk("orders")) == sorted(names(sent))
    assert list(stage.scenario.node.disks) == [0], "the others are gone"
    assert all(one.is_acked for one in sent)
    assert stage.finish() == []


def test_a_home_that_takes_over_only_what_the_last_one_has_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trail = others._trail
    monkeypatch.setattr(others, "_trail", lambda rows, below: trail(rows, below)[:1])
    stage, _ = workers_given_up(SEEDS[0], 3, is_placed=True)
    stage.wait(10.0)
    assert "left" in {violation.rule for violation in stage.finish()}


def test_a_home_that_puts_what_came_last_nowhere_behind_the_rest_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importing.Part, "shift", property(lambda _: 0, lambda *_: None), raising=False)
    stage, _ = workers_given_up(SEEDS[0], 3, is_placed=False)
    stage.wait(10.0)
    assert {violation.rule for violation in stage.finish()} & {"gap", "order"}


@pytest.mark.requirement("R190")
def test_a_worker_is_not_wanted_back_while_a_home_reads_in_its_spool_what_it_takes_over(seed: str) -> None:
    """It would have its old spool open, and the lanes that are to come from there would come nowhere."""
    stage = Stage(seed, workers=2, orders={"subscriptions": ["t/>"]})
    assert stage.homes("orders") == [1]
    sent = stage.publish(stage.producer(), *FIFTY)
    stage.wait()
    stage.slow_disk(4.0, index=0)
    stage.scale(1)
    stage.wait(1.5)
    node = stage.scenario.node
    assert list(node.supervisor.workers) == [0]
    assert node.homes[0].home.stats()["lanes_importing"] == 1
    stage.kill_worker(0)
    answers: list[bool] = []
    for _ in range(1_000):
        stage.wait(0.001)
        if node.supervisor.workers.get(0) is not None:
            if node.homes[0].is_ready:
                break
            arguments = {"workers": 2}
            node.controller.admin("workers.scale", arguments, lambda ok, _: answers.append(ok))
    stage.wait(5.0)
    assert answers
    assert not any(answers)
    assert node.homes[0].home.stats()["lanes_importing"] == 0
    assert stage.on_disk("orders") == names(sent)
    assert stage.finish() == []


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_purge_whose_sync_fails_is_not_remembered(
    seed: str, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(seed, orders={"subscriptions": ["t/>"]})
    sent = stage.publish(stage.producer(), *FIFTY)
    stage.wait()
    disk = stage.scenario.node.disks[0].disk
    crash = disk.crash
    monkeypatch.setattr(disk, "crash", lambda rng: crash(Dice(0.1 if is_lost else 0.9)))
    stage.fail_sync()
    wish = stage.purge("orders")
    stage.wait(2.0)
    assert not wish.is_done
    assert stage.on_disk("orders") == (names(sent) if is_lost else [])
    assert stage.finish() == []


@pytest.mark.requirement("R190")
def test_a_disk_that_fails_again_and_again_costs_no_publisher_its_session(
    seed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One frame is alone at each worker whose sync fails: a worker too busy to match it."""
    late: list[tuple[SimulatedWorker, list[bytes]]] = []
    handle = SimulatedWorker._handle

    def handle_later(worker: SimulatedWorker, frames: list[bytes]) -> None:
        if frames[0] == wire.MATCH:
            late.append((worker, frames))
        else:
            handle(worker, frames)

    stage = Stage(seed, orders={"subscriptions": ["t/>"]})
    producer, router = stage.producer(), stage.scenario.node.router
    session, disk = stage.publisher.connection, stage.scenario.node.disks[0].disk
    assert router is not None
    crash = disk.crash
    monkeypatch.setattr(disk, "crash", lambda _: crash(Dice(0.1)))  # what was not synced is lost
    stage.slow_disk(30.0)  # the write is under way when the next message comes
    sent = stage.publish(producer, "t/1")
    stage.wait(0.02)
    with monkeypatch.context() as busy:
        busy.setattr(SimulatedWorker, "_handle", handle_later)
        sent += stage.publish(producer, "t/2")
        for deaths in range(1, 5):
            stage.fail_sync()
            until = stage.now + 20.0
            while len(late) <= deaths and stage.now < until:
                stage.wait(0.01)
            dead = [worker.is_dead for worker, _ in late]
            assert dead == [True] * deaths + [False], "alone at each that died, and at the one that works"
        stage.kill_worker()  # it is alone there once more, and that counts
    stage.wait(5.0)
    assert all(one.is_acked for one in sent)
    assert stage.publisher.connection is session
    assert router.counters.errors == {}
    assert stage.finish() == []


class Dice(random.Random):
    """Always throws the same."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self._number = number

    def random(self) -> float:
        return self._number


def test_what_was_purged_does_not_come_back_after_delete_and_create(seed: str) -> None:
    stage = Stage(seed, orders={"subscriptions": ["t/>"]}, other={"subscriptions": ["t/2"]})
    producer = stage.producer()
    stage.publish(producer, *FIFTY)
    stage.wait()
    wish = stage.purge("orders")
    stage.wait()
    assert wish.is_done
    stage.publish(producer, *FIFTY)
    stage.wait()
    before = stage.endpoint("orders").id
    stage.delete("orders")
    stage.define("orders", permission="delete", subscriptions=["t/>"])
    assert stage.endpoint("orders").id > before
    stage.kill_worker()
    stage.wait(1.0)
    flow = stage.flow("orders")
    later = stage.publish(producer, "t/1")
    stage.wait()
    record = flow.record
    assert record is not None
    assert [one.what for one in record.deliveries] == names(later)
    assert stage.finish() == []


def lost_refusal(seed: str) -> tuple[Stage, list[Any]]:
    """Number 5 is refused and 6 to 10 are stored, the publisher hears of neither and sends 5 to 10 again.

    In between the reason for the refusal has gone.
    """
    stage = Stage(seed, orders={"subscriptions": ["t/>"], "max_message_bytes": 100})
    producer = stage.producer()
    stage.publish(producer, *["t/1"] * 4)
    stage.wait()
    assert stage.publisher.connection is not None
    stage.publisher.connection.down.stall()
    sent = stage.publish(producer, "t/1", padding=200)
    sent += stage.publish(producer, *["t/1"] * 5)
    stage.wait(0.1)
    stage.cut(stage.publisher)
    stage.define("orders", max_message_bytes=1_000)
    stage.wait(2.0)
    return stage, sent


def test_a_refusal_that_was_lost_is_told_again(seed: str) -> None:
    stage, sent = lost_refusal(seed)
    assert [one.code for one in sent] == [errors.MESSAGE_TOO_LARGE, 0, 0, 0, 0, 0]
    assert all(one.is_acked for one in sent[1:])
    assert stage.finish() == []


def test_a_router_that_forgets_the_refusal_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "refusal", lambda self, sequence: 0)
    stage, sent = lost_refusal(SEEDS[0])
    assert sent[0].is_acked
    assert {violation.rule for violation in stage.finish()} & {"order", "lost"}


def test_what_was_stored_is_not_stored_again_when_the_home_died_before_it_said_so(seed: str) -> None:
    """The commit is on disk, the word of it is not on its way yet."""
    stage = Stage(seed, orders={"subscriptions": ["t/>"]})
    producer = stage.producer()
    for _ in range(10):
        stage.slow_disk(0.5)
        sent = stage.publish(producer, *["t/1"] * 3)
        stage.wait(0.05)
        stage.kill_worker()
        stage.wait(4.0)
        assert all(one.is_acked for one in sent)
    assert stage.stored("orders") == names(stage.scenario.guaranteed.publications)
    assert stage.finish() == []


class SaysThatNothingIsStored(Home):
    """Knows after a start nothing of what it stored for the router."""

    def take_frames(self) -> list[list[bytes]]:
        frames = super().take_frames()
        for frame in frames:
            if frame[0] == wire.HOME:
                incarnation, router, number, _, *more = wire.unpack(frame[1])
                self.pending.received = 0
                frame[1] = wire.pack([incarnation, router, number, 0, *more])
        return frames


def test_a_home_that_stores_again_what_is_sent_again_is_found_out() -> None:
    found: set[str] = set()
    for seed in SEEDS:
        stage = Stage(seed, home_class=SaysThatNothingIsStored, orders={"subscriptions": ["t/>"]})
        producer = stage.producer()
        stage.slow_disk(0.5)
        stage.publish(producer, *["t/1"] * 3)
        stage.wait(0.05)
        stage.kill_worker()
        stage.wait(1.0)
        found |= {violation.rule for violation in stage.finish()}
    assert "duplicate" in found


def test_a_journal_makes_a_publisher_that_crashes_exact(seed: str) -> None:
    stage = Stage(seed, write_max_s=0.05, orders={"subscriptions": ["t/>"]})
    producer = stage.producer(window=20, has_journal=True)
    for _ in range(5):
        stage.publish(producer, *["t/1"] * 10)
        stage.wait(0.01)
        stage.scenario.history.fault(stage.now, "publisher", "crashes")
        stage.publisher.crash(is_noticed=True)
        stage.wait(1.5)
    sent = stage.scenario.guaranteed.publications
    assert all(one.is_acked for one in sent)
    assert stage.stored("orders") == names(sent)
    assert stage.finish() == []


def test_an_older_session_of_a_producer_is_fenced(seed: str) -> None:
    stage = Stage(seed, orders={"subscriptions": ["t/>"]})
    producer = stage.producer("shared")
    stage.publish(producer, *FIFTY[:10])
    stage.wait()
    other = stage.consumers[0].add_producer("shared", 255, has_journal=False)
    stage.wait(0.04)
    assert other.rows.last_sequence == 10
    made = stage.consumers[0].publish_guaranteed(other, [("t/1", {})] * 5)
    stage.wait(0.1)
    producer.retire()
    stage.wait()
    assert all(one.is_acked for one in made) or other.rows.held_messages == 0
    assert stage.finish() == []


def test_what_is_under_way_when_a_disk_takes_nothing_waits_and_what_is_new_is_refused(seed: str) -> None:
    """What was admitted and cannot be stored waits: no acknowledgement, never a refusal."""
    stage = Stage(seed, orders={"subscriptions": ["t/>"]})
    producer, other = stage.producer(), stage.producer("other")
    stage.scenario.node.disks[0].fill(2.0, takes_nothing=True)
    sent = stage.publish(producer, *FIFTY)
    stage.wait(0.5)
    refused = stage.publish(other, *FIFTY)
    stage.wait(0.5)
    assert not any(one.is_acked or one.code for one in sent)
    assert [one.code for one in refused] == [errors.DISK_FULL] * 50
    stage.wait(4.0)
    assert all(one.is_acked for one in sent)
    more = stage.publish(other, *FIFTY)
    stage.wait()
    assert all(one.is_acked for one in more)
    assert stage.stored("orders") == names([*sent, *more])
    assert stage.finish() == []


@pytest.mark.requirement("R281")
def test_a_disk_with_room_only_for_what_is_under_way_refuses_what_is_new(seed: str) -> None:
    stage = Stage(seed, orders={"subscriptions": ["t/>"]})
    producer = stage.producer()
    stage.scenario.node.disks[0].fill(2.0, takes_nothing=False)
    sent = stage.publish(producer, *FIFTY)
    stage.wait(0.2)
    refused = stage.publish(producer, *FIFTY)
    stage.wait(0.2)
    assert all(one.is_acked for one in sent)
    assert [one.code for one in refused] == [errors.DISK_FULL] * 50
    stage.wait(4.0)
    more = stage.publish(producer, *FIFTY)
    stage.wait()
    assert all(one.is_acked for one in more)
    assert stage.stored("orders") == names([*sent, *more])
    assert stage.finish() == []


@pytest.mark.requirement("R180")
def test_a_queue_that_is_deleted_while_messages_are_under_way_leaves_nothing_behind(seed: str) -> None:
    stage = Stage(seed, write_max_s=0.05, orders={"subscriptions": ["t/>"]}, other={"subscriptions": ["t/>"]})
    producer = stage.producer()
    for _ in range(4):
        stage.publish(producer, *["t/1"] * 10)
        stage.wait(0.004)
        stage.scenario.node.remove("queue", "default", "orders")
        stage.publish(producer, *["t/1"] * 10)
        stage.wait(0.02)
        stage.define("orders", permission="delete", subscriptions=["t/>"])
    stage.wait()
    assert all(one.is_acked for one in stage.scenario.guaranteed.publications)
    assert stage.finish() == []
