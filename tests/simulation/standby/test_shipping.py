"""Numbered groups over both spools, LMDB's and that of the simulation, and what a standby lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium_server.frames.shipping import BY_POLICY
from storage.groups import KEYS_OF, Begun, Brought, GroupLog, Past, forget_groups
from storage.shipping.line import found
from storage.shipping.receiving import Finish, Fresh, Part, Receiving, Write
from storage.shipping.shipping import Bring, Here, Shipping, Synced, TellTouched, TellTouchedBy
from storage.spool import Table, open_spool
from tests.simulation.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from storage.spool import Change, Spool

MAP_BYTES = 64 << 20


@pytest.fixture(params=["lmdb", "simulated"])
def make_spool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Spool]]:
    made: list[Spool] = []

    def make() -> Spool:
        is_lmdb = request.param == "lmdb"
        made.append(
            open_spool(tmp_path_factory.mktemp("x") / "spool", MAP_BYTES) if is_lmdb else SimulatedDisk()
        )
        return made[-1]

    yield make
    for spool in made:
        spool.close()


def write(log: GroupLog, spool: Spool, run: str, key: bytes, value: bytes | None) -> int:
    group = log.group(run, [(Table.BLOCKS, key, value)])
    spool.commit(group.changes)
    return group.number


def hand_on(shipping: Shipping, receiving: Receiving) -> None:
    message = shipping.outbox.pop()
    assert not isinstance(message, Bring)
    receiving.take(message)


def test_groups_have_rising_numbers_and_a_spool_knows_where_it_is(make_spool: Callable[[], Spool]) -> None:
    spool = make_spool()
    log = GroupLog(spool)
    assert [write(log, spool, "a", b"k%d" % number, b"v") for number in range(3)] == [1, 2, 3]
    assert write(log, spool, "b", b"k0", None) == 4
    assert GroupLog(spool).past == log.past == Past((Begun("a", 1), Begun("b", 4)), 4, 1)


def test_a_spool_that_parted_becomes_the_same_by_a_patch(make_spool: Callable[[], Spool]) -> None:
    ours, theirs = make_spool(), make_spool()
    our_log, their_log = GroupLog(ours), GroupLog(theirs)
    for log, spool in ((our_log, ours), (their_log, theirs)):
        write(log, spool, "a", b"both", b"1")
    write(their_log, theirs, "a", b"theirs", b"2")
    write(their_log, theirs, "a", b"both", b"3")
    write(our_log, ours, "b", b"ours", b"4")
    common = our_log.past.common(their_log.past)
    assert common == their_log.past.common(our_log.past) == 1
    parted = our_log.parted(common, their_log.touched_since(common) or ())
    assert parted is not None
    patch = our_log.patch(common, parted)
    assert patch is not None
    theirs.commit(their_log.patched(patch))
    assert theirs.scan(Table.BLOCKS) == ours.scan(Table.BLOCKS) == [(b"both", b"1"), (b"ours", b"4")]
    assert their_log.past == GroupLog(theirs).past == our_log.past


def test_keys_are_kept_of_so_many_groups_only(make_spool: Callable[[], Spool]) -> None:
    spool = make_spool()
    log = GroupLog(spool, kept_max=3)
    for number in range(10):
        write(log, spool, "a", b"k%d" % number, b"v")
    assert log.touched_since(6) is None
    assert log.touched_since(7) == tuple((Table.BLOCKS, b"k%d" % number) for number in (7, 8, 9))
    assert len(spool.scan(Table.META, KEYS_OF, KEYS_OF + b"\xff")) == 3


def test_who_left_a_run_early_has_less_of_it() -> None:
    long = Past((Begun("a", 1), Begun("b", 10)), 20)
    short = Past((Begun("a", 1), Begun("c", 5)), 9)
    assert long.common(short) == short.common(long) == 4
    assert long.common(Past()) == 0
    assert long.common(long) == 20
    assert long.common(Past((Begun("b", 3),), 5)) == 0, (
        "a run of the same name that began elsewhere is another one"
    )


# -- a primary and a standby --------------------------------------------------------------------------------------


def test_a_group_counts_when_both_have_it() -> None:
    disk = SimulatedDisk()
    shipping = Shipping(GroupLog(disk), "a", 1)
    shipping.take(Here(Past()))
    group = shipping.group([(Table.BLOCKS, b"k", b"v")])
    assert shipping.outbox == [group]
    disk.commit(group.changes)
    shipping.written(1)
    assert shipping.committed == 0
    shipping.take(Synced(1))
    assert shipping.committed == 1
    assert shipping.caught_up == 1


def test_what_the_standby_has_of_a_group_that_found_no_room_here_is_not_what_comes_next() -> None:
    """The next group has its number, and would count although the standby has the other one."""
    disk, there = SimulatedDisk(), SimulatedDisk()
    shipping, receiving = Shipping(GroupLog(disk), "a", 1), Receiving(GroupLog(there))
    shipping.take(Here(Past()))
    receiving.take(shipping.group([(Table.BLOCKS, b"large", b"v")]))
    shipping.outbox.clear()
    job = receiving.next_job()
    assert isinstance(job, Write)
    there.commit(job.changes)
    shipping.take(Synced(1))
    shipping.not_written("b")
    shipping.disconnected()
    disk.commit(shipping.group([(Table.BLOCKS, b"small", b"v")]).changes)
    shipping.written(1)
    assert shipping.committed == 0
    receiving = Receiving(GroupLog(there))
    shipping.take(Here(GroupLog(there).past))
    for _ in range(2):
        hand_on(shipping, receiving)
        for message in receiving.outbox[1:]:
            shipping.take(message)
        del receiving.outbox[1:]
    assert shipping.committed == 0
    job = receiving.next_job()
    assert isinstance(job, Write)
    there.commit(job.changes)
    receiving.written(job)
    shipping.take(receiving.outbox.pop())
    assert shipping.committed == 1
    assert there.scan(Table.BLOCKS) == disk.scan(Table.BLOCKS) == [(b"small", b"v")]


def test_without_a_standby_in_the_in_sync_set_the_own_disk_is_enough() -> None:
    disk = SimulatedDisk()
    shipping = Shipping(GroupLog(disk), "a", 1)
    disk.commit(shipping.group([(Table.BLOCKS, b"k", b"v")]).changes)
    shipping.written(1)
    assert shipping.committed == 0
    shipping.release()
    assert shipping.committed == 1
    assert shipping.caught_up is None


def test_a_copy_is_made_only_outside_of_the_in_sync_set() -> None:
    disk = SimulatedDisk()
    log = GroupLog(disk, kept_max=2)
    for number in range(5):
        write(log, disk, "a", b"k%d" % number, b"v")
    shipping = Shipping(log, "b", 1)
    shipping.take(Here(Past()))
    assert shipping.outbox == []
    assert not shipping.is_following
    shipping.release()
    assert shipping.outbox == [Bring(Brought(None, log.past, ()), None)]
    assert not shipping.is_following


def test_a_standby_that_has_more_names_it_and_is_brought_back() -> None:
    disk, other = SimulatedDisk(), SimulatedDisk()
    log, there = GroupLog(disk), GroupLog(other)
    write(there, other, "a", b"k", b"v")
    shipping = Shipping(log, "b", 1)
    receiving = Receiving(there)
    shipping.take(receiving.outbox.pop())
    assert shipping.outbox == [TellTouched(0)]
    hand_on(shipping, receiving)
    assert receiving.outbox == [TellTouchedBy(0, ((Table.BLOCKS, b"k"),))]
    shipping.take(receiving.outbox.pop())
    hand_on(shipping, receiving)
    job = receiving.next_job()
    assert isinstance(job, Write)
    other.commit(job.changes)
    assert other.scan(Table.BLOCKS) == []
    assert there.past == log.past == Past()


def test_groups_that_wait_are_written_together() -> None:
    log = GroupLog(SimulatedDisk())
    receiving = Receiving(GroupLog(SimulatedDisk()))
    groups = [log.group("a", [(Table.BLOCKS, b"k%d" % number, b"v")]) for number in range(2)]
    for group in groups:
        receiving.take(group)
    assert receiving.next_job() == Write(2, [*groups[0].changes, *groups[1].changes])


class Written(SimulatedDisk):
    """One on which a group that was begun is there while somebody reads: the writer is another thread."""

    reads_before = 0

    def begin(self, changes: Sequence[Change], reads_before: int = 0) -> None:
        self.reads_before = reads_before
        super().begin(changes)

    def get(self, table: Table, key: bytes) -> bytes | None:
        found = super().get(table, key)
        if self._begun is not None:
            self.reads_before -= 1
            if self.reads_before == 0:
                self.finish()
        return found


@pytest.mark.parametrize("patch_bytes_max", [100, 1_000])
@pytest.mark.parametrize("reads_before", range(1, 8))
def test_a_group_that_is_written_while_it_is_looked_what_the_standby_lacks_is_not_forgotten(
    reads_before: int, patch_bytes_max: int
) -> None:
    """It would be told that it is where that group is, and would never get its keys."""
    disk, there = Written(), SimulatedDisk()
    log = GroupLog(disk, patch_bytes_max=patch_bytes_max)
    receiving = Receiving(GroupLog(there))
    group = log.group("a", [(Table.BLOCKS, b"both", b"v")])
    disk.commit(group.changes)
    there.commit(group.changes)
    for number in range(4):
        write(log, disk, "a", b"k%d" % number, b"v" * 50)
    shipping, receiving = Shipping(log, "b", None), Receiving(GroupLog(there))
    group = shipping.group([(Table.BLOCKS, b"meanwhile", b"v")])
    disk.begin(group.changes, reads_before)
    shipping.take(receiving.outbox.pop())
    if disk._begun is not None:
        disk.finish()
    shipping.written(group.number)
    while shipping.outbox:
        message = shipping.outbox.pop(0)
        if isinstance(message, Bring):
            for part in log.parts(message.parted):
                receiving.take(Part(part))
        receiving.take(message.brought if isinstance(message, Bring) else message)
        while receiving.jobs:
            job = receiving.jobs.pop(0)
            assert not isinstance(job, Fresh)
            there.commit(job.changes)
            receiving.written(job)
            if isinstance(job, Write) and job.number == group.number:
                assert there.get(Table.BLOCKS, b"meanwhile"), "it says that it has the group"
        while receiving.outbox:
            shipping.take(receiving.outbox.pop(0))
    assert there.scan(Table.BLOCKS) == disk.scan(Table.BLOCKS)
    assert shipping.caught_up is None
    assert shipping.confirmed == group.number


@pytest.mark.parametrize("kept_max", [1, 100])
def test_who_lacks_much_gets_it_in_parts_while_the_primary_goes_on(
    make_spool: Callable[[], Spool], kept_max: int
) -> None:
    ours, theirs = make_spool(), make_spool()
    log, there = GroupLog(ours, kept_max, patch_bytes_max=100), GroupLog(theirs)
    for number in range(20):
        write(log, ours, "a", b"k%02d" % number, b"v" * 50)
    shipping, receiving = Shipping(log, "b", None), Receiving(there)
    shipping.take(receiving.outbox.pop())
    bring = shipping.outbox.pop()
    assert isinstance(bring, Bring)
    is_copy = kept_max == 1
    assert (bring.parted is None) == (bring.brought.base is None) == is_copy
    if is_copy:
        receiving.take(Fresh())
        assert receiving.next_job() == Fresh()
    for count, part in enumerate(log.parts(bring.parted)):
        receiving.take(Part(part))
        if not count:  # what is there changes while it is sent
            write(log, ours, "b", b"k00", None)
            write(log, ours, "b", b"k99", b"new")
    shipping.written(log.past.newest)
    receiving.take(bring.brought)
    finish = receiving.jobs.pop()
    assert isinstance(finish, Finish)
    theirs.commit([change for job in receiving.jobs if isinstance(job, Write) for change in job.changes])
    theirs.commit(finish.changes)
    receiving.jobs.clear()
    receiving.written(finish)
    shipping.take(receiving.outbox.pop())
    assert shipping.is_following == (not is_copy), (
        "the keys of two groups are not kept, so it is brought again"
    )
    if not is_copy:
        hand_on(shipping, receiving)
        job = receiving.next_job()
        assert isinstance(job, Write)
        theirs.commit(job.changes)
        assert theirs.scan(Table.BLOCKS) == ours.scan(Table.BLOCKS)
        assert there.past == log.past


@pytest.mark.requirement("R268")
def test_a_store_that_was_just_made_comes_as_a_patch_although_all_waits_for_the_standby(
    make_spool: Callable[[], Spool],
) -> None:
    ours, theirs = make_spool(), make_spool()
    ours.commit([(Table.META, b"data", b"id")])
    first = GroupLog(ours).found("a")
    assert first is not None
    ours.commit(first.changes)
    receiving = Receiving(GroupLog(theirs))
    shipping = Shipping(GroupLog(ours), "a", required_by=3)
    assert not shipping.committed
    shipping.take(receiving.outbox.pop())
    hand_on(shipping, receiving)
    job = receiving.next_job()
    assert isinstance(job, Write)
    theirs.commit(job.changes)
    receiving.written(job)
    shipping.take(receiving.outbox.pop())
    assert (shipping.is_following, shipping.committed, shipping.caught_up) == (True, 1, 3)
    assert theirs.get(Table.META, b"data") == b"id"


@pytest.mark.requirement("R268")
def test_who_needs_a_copy_gets_it_once_it_is_not_in_the_in_sync_set_also_if_all_waits_for_it(
    make_spool: Callable[[], Spool],
) -> None:
    ours = make_spool()
    ours.commit([(Table.BLOCKS, b"of-earlier", b"1")])
    first = GroupLog(ours).found("a")
    assert first is not None
    ours.commit(first.changes)
    shipping = Shipping(GroupLog(ours), "a", required_by=3)
    shipping.take(Here(Past()))
    assert (shipping.outbox, shipping.lacks_much) == ([], True)
    shipping.require(BY_POLICY)
    assert shipping.outbox == [Bring(Brought(None, shipping.log.past, ()), None)]
    assert (shipping.lacks_much, shipping.committed) == (False, 0)


@pytest.mark.requirement("R268")
def test_who_has_something_that_is_of_no_group_gets_a_copy(make_spool: Callable[[], Spool]) -> None:
    ours, theirs = make_spool(), make_spool()
    first = GroupLog(ours).found("a")
    assert first is not None
    ours.commit(first.changes)
    theirs.commit([(Table.BLOCKS, b"of-earlier", b"1")])
    assert GroupLog(theirs).past == Past(oldest=2)
    shipping = Shipping(GroupLog(ours), "a", None)
    shipping.take(Here(GroupLog(theirs).past))
    assert shipping.outbox == [Bring(Brought(None, shipping.log.past, ()), None)]


def test_who_writes_without_a_standby_is_like_nobody_any_more(make_spool: Callable[[], Spool]) -> None:
    """Both had the same groups, and what was written then is of none."""
    ours, theirs = make_spool(), make_spool()
    for spool in (ours, theirs):
        for number in range(3):
            write(GroupLog(spool), spool, "a", b"k%d" % number, b"v")
    forget_groups(ours)
    ours.commit([(Table.BLOCKS, b"meanwhile", b"v")])
    assert GroupLog(ours).past.is_unknown
    assert ours.scan(Table.META, KEYS_OF, KEYS_OF + b"\xff") == []
    log = found(GroupLog(ours), ours.commit)
    shipping = Shipping(log, "b", required_by=None)
    shipping.take(Here(GroupLog(theirs).past))
    assert shipping.outbox.pop() == TellTouched(0)
    shipping.take(TellTouchedBy(0, GroupLog(theirs).touched_since(0)))
    assert isinstance(bring := shipping.outbox.pop(), Bring)
    assert bring.parted is None, "a copy"


def test_of_a_store_that_has_something_before_its_first_group_nobody_knows_the_keys(
    make_spool: Callable[[], Spool],
) -> None:
    spool = make_spool()
    spool.commit([(Table.BLOCKS, b"of-earlier", b"1")])
    first = GroupLog(spool).found("a")
    assert first is not None
    spool.commit(first.changes)
    assert GroupLog(spool).touched_since(0) is None
    assert GroupLog(spool).found("b") is None
