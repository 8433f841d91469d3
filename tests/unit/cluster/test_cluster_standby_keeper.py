"""The keeper of a member: what it asks and tells, how it counts leases, and what ends it; and the probe of a disk."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from cluster.standby.pair.member import DRIFT, ActUntil, Begin, End, Member, Require
from cluster.standby.pair.outside import Answer, Holder, Read, Renew, Request, Seen, Standing, Swap, Take
from cluster.standby.stores import clock, disk
from cluster.standby.stores.keeper import Keeper
from cluster.standby.stores.store import NoAnswerError
from tests.waiting import until, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from cluster.standby.stores.keeper import Told

A, B = Holder("a", "1"), Holder("b", "1")
ALONE = Standing(1, "a", frozenset("a"))
#: Shorter than that of a member, so that tests need not wait.
LEASE_S = 0.5


class KeptStore:
    """A store in memory: what was asked, and faults."""

    def __init__(self) -> None:
        self.seen = Seen(0, None, None)
        self.asked: list[Request] = []
        self.fault: Exception | None = None
        self.timeouts: set[float] = set()

    async def ask(self, number: int, request: Request, timeout_s: float) -> Answer:
        self.asked.append(request)
        self.timeouts.add(round(timeout_s, 6))
        if self.fault is not None:
            raise self.fault
        match request:
            case Take(_, standing) | Swap(_, standing):
                self.seen = Seen(self.seen.revision + 1, standing, A)
            case Renew() if self.seen.holder != A:
                return Answer(number, is_done=False, seen=self.seen)
        return Answer(number, is_done=True, seen=self.seen)

    async def close(self) -> None:
        pass


def waiting_for(goes_on: threading.Event) -> Callable[[bytes], None]:
    """Give a disk that hangs until it is let go on."""

    def write(content: bytes) -> None:
        goes_on.wait(20)

    return write


class Kept:
    """A keeper with its store and what it told."""

    def __init__(self) -> None:
        self.store = KeptStore()
        self.told: list[Told] = []
        self.probe = disk.Probe(lambda _: None, interval_s=0.01)
        member = Member(A, may_found=True)
        self.keeper = Keeper(member, self.store, self.probe, self.told.append, LEASE_S)

    def run(self, test: Callable[[asyncio.Task[None]], Coroutine[None, None, None]]) -> None:
        async def whole() -> None:
            keeping = asyncio.create_task(self.keeper.run())
            try:
                await test(keeping)
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

        with self.probe:
            asyncio.run(whole())


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_it_acts_for_a_lease_of_its_own_length_from_when_it_asked(kept: Kept) -> None:
    async def test(keeping: asyncio.Task[None]) -> None:
        began = clock.now()
        await until(lambda: len(kept.told) > 3, "renewals")
        assert kept.told[0] == Begin(1, None)
        times = [told.time for told in kept.told if isinstance(told, ActUntil)]
        assert times == sorted(times)
        assert began < times[0] - LEASE_S * (1 - DRIFT) < clock.now()
        assert kept.keeper.acts_until == times[-1]
        await until(lambda: kept.keeper.may_act, "acting")
        assert kept.store.asked[:2] == [Read(), Take(Seen(0, None, None), ALONE)]
        assert set(kept.store.asked[2:]) == {Renew()}
        # A fifth of the lease.
        assert kept.store.timeouts == {0.1}

    kept.run(test)
    assert not kept.keeper.may_act


def test_it_ends_when_another_host_is_the_holder(kept: Kept) -> None:
    async def test(keeping: asyncio.Task[None]) -> None:
        await until(lambda: kept.keeper.may_act, "acting")
        kept.store.seen = Seen(9, Standing(2, "b", frozenset("b")), B)
        await asyncio.wait_for(keeping, 20)
        assert kept.told[-1] == End()
        assert not kept.keeper.may_act

    kept.run(test)


@pytest.mark.parametrize("steps", range(5))
def test_it_ends_when_it_is_cancelled_just_after_something_was_due(kept: Kept, steps: int) -> None:
    async def test(keeping: asyncio.Task[None]) -> None:
        await until(lambda: kept.keeper.may_act, "acting")
        kept.keeper.standby_follows()
        for _ in range(steps):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait([keeping], timeout=LEASE_S)
        assert keeping.cancelled()

    kept.run(test)


def test_without_answers_it_acts_no_longer_and_is_told_nothing_new(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(keeping: asyncio.Task[None]) -> None:
        await until(lambda: kept.keeper.may_act, "acting")
        kept.store.fault = NoAnswerError("no connection")
        await until(lambda: kept.keeper.counts["unanswered"] > 2, "requests without an answer")
        told = len(kept.told)
        await until(lambda: not kept.keeper.may_act, "the end of the lease")
        assert (len(kept.told), kept.keeper.failure) == (told, "no connection")
        kept.store.fault = None
        await until(lambda: kept.keeper.may_act, "acting again")
        assert kept.keeper.failure == ""

    kept.run(test)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["the outside store does not answer: no connection"]


def test_a_fault_of_ours_ends_it_and_its_acting(kept: Kept) -> None:
    async def test(keeping: asyncio.Task[None]) -> None:
        await until(lambda: kept.keeper.may_act, "acting")
        kept.store.fault = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(keeping, 20)
        assert not kept.keeper.may_act

    kept.run(test)


def test_what_it_is_told_of_the_standby_goes_to_the_member(kept: Kept) -> None:
    async def test(keeping: asyncio.Task[None]) -> None:
        await until(lambda: kept.keeper.may_act, "acting")
        kept.keeper.standby_follows()
        await until(lambda: Require(1) in kept.told, "the order to wait")
        kept.keeper.standby_has_all("b", 1)
        await until(
            lambda: len(kept.store.seen.standing.in_sync if kept.store.seen.standing else ()) == 2, "it is in"
        )
        kept.keeper.standby_is_silent()
        await until(lambda: kept.store.seen.standing == ALONE, "it is let go")

    kept.run(test)


def test_a_disk_that_hangs_ends_the_renewals_and_holds_up_nothing() -> None:
    kept, goes_on = Kept(), threading.Event()
    goes_on.set()
    kept.probe = disk.Probe(waiting_for(goes_on), interval_s=0.01)
    kept.keeper = Keeper(Member(A, may_found=True), kept.store, kept.probe, kept.told.append, LEASE_S)

    async def test(keeping: asyncio.Task[None]) -> None:
        await until(lambda: kept.keeper.may_act, "acting")
        goes_on.clear()
        await until(lambda: not kept.keeper.may_act, "the end of the lease")
        asked = len(kept.store.asked)
        await asyncio.sleep(LEASE_S / 2)
        assert len(kept.store.asked) == asked
        goes_on.set()
        await until(lambda: kept.keeper.may_act, "acting again")

    kept.run(test)


def test_the_probe_writes_one_small_file_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "standby.probe"
    with disk.Probe(disk.file_in(tmp_path), interval_s=0.001) as probe:
        first = wait_for(lambda: probe.answered_at, lambda at: at > 0, "a write")
        wait_for(lambda: probe.answered_at, lambda at: at > first, "another write")
        assert len(path.read_bytes()) == 64
    assert [each.name for each in tmp_path.iterdir()] == ["standby.probe"]
    assert probe.answered_at <= clock.now()


def test_a_disk_that_refuses_does_not_answer_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with disk.Probe(disk.file_in(tmp_path / "none"), interval_s=0.001) as probe:
        wait_for(lambda: probe.failures, lambda failures: failures > 3, "failures")
        assert probe.answered_at < 0
    assert [record.message for record in caplog.records] == [
        "disk probe: a write failed: No such file or directory"
    ]


def test_a_write_that_hangs_keeps_nobody_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "END_S", 0.01)
    goes_on = threading.Event()
    with disk.Probe(waiting_for(goes_on)) as probe:
        assert probe.answered_at < 0
    goes_on.set()
