"""Every outside store keeps the same promises: etcd, a Lease, the operator's file, and the simulated one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cluster.standby.pair.outside import (
    Answer,
    Holder,
    Read,
    Renew,
    Request,
    Resign,
    Seen,
    Standing,
    Swap,
    Take,
)
from cluster.standby.stores import clock
from cluster.standby.stores.store import NoAnswerError
from tests.integration.etcd_servers import Etcd, needs_etcd
from tests.integration.lease_server import LeaseServer
from tests.integration.outside_worlds import ANSWER_S, EtcdWorld, LeaseWorld, ManualWorld, SimulatedWorld

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from cluster.standby.stores.store import Store
    from tests.integration.outside_worlds import World

pytestmark = pytest.mark.requirement("R270")

A, B = Holder("a", "1"), Holder("b", "1")
FIRST = Standing(1, "a", frozenset("a"))
BOTH = Standing(1, "a", frozenset("ab"))
LIMIT_S = 90.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    needs_etcd()
    with Etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def lease_server() -> Iterator[LeaseServer]:
    with LeaseServer() as server:
        yield server


@pytest.fixture(params=["simulated", "etcd", "kubernetes", "double of kubernetes", "manual"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    match request.param:
        case "simulated":
            return SimulatedWorld(seed=17)
        case "etcd":
            return EtcdWorld(request.getfixturevalue("etcd"), tmp_path)
        case "kubernetes":
            return LeaseWorld(request.getfixturevalue("api_server"), tmp_path)
        case "double of kubernetes":
            return LeaseWorld(request.getfixturevalue("lease_server"), tmp_path)
    return ManualWorld(tmp_path)


class Hosts:
    """The stores of a test, by holder."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stores: dict[Holder, Store] = {}
        self._number = 0

    def store(self, holder: Holder) -> Store:
        if holder not in self._stores:
            self._stores[holder] = self._world.open(*holder)
        return self._stores[holder]

    async def ask(self, holder: Holder, request: Request, timeout_s: float = ANSWER_S) -> Answer:
        self._number += 1
        answer = await self.store(holder).ask(self._number, request, timeout_s)
        assert answer.number <= self._number
        return answer

    async def seen(self, holder: Holder) -> Seen:
        answer = await self.ask(holder, Read())
        assert answer.is_done
        return answer.seen

    async def take(self, holder: Holder, standing: Standing) -> Seen:
        """Take what nobody has."""
        answer = await self.ask(holder, Take(await self.seen(holder), standing))
        assert answer.is_done
        assert answer.seen == Seen(answer.seen.revision, standing, holder)
        return answer.seen

    async def close(self) -> None:
        for store in self._stores.values():
            await store.close()


@pytest.fixture
def hosts(world: World) -> Hosts:
    return Hosts(world)


def run(hosts: Hosts, test: Coroutine[None, None, None]) -> None:
    async def whole() -> None:
        try:
            await asyncio.wait_for(test, LIMIT_S)
        finally:
            await hosts.close()

    asyncio.run(whole())


def test_at_first_there_is_nothing_and_whoever_may_takes_it(hosts: Hosts) -> None:
    async def test() -> None:
        seen = await hosts.seen(A)
        assert seen == Seen(0, None, None)
        answer = await hosts.ask(A, Take(seen, FIRST))
        assert (answer.is_done, answer.seen.standing, answer.seen.holder) == (True, FIRST, A)
        assert answer.seen.revision > 0
        assert await hosts.seen(B) == answer.seen

    run(hosts, test())


def test_what_was_taken_is_not_taken_again_by_what_was_seen_before(hosts: Hosts) -> None:
    async def test() -> None:
        seen = await hosts.seen(B)
        first = await hosts.take(A, FIRST)
        answer = await hosts.ask(B, Take(seen, Standing(1, "b", frozenset("b"))))
        assert (answer.is_done, answer.seen) == (False, first)

    run(hosts, test())


def test_of_those_who_take_at_the_same_time_one_has_it(hosts: Hosts) -> None:
    async def test() -> None:
        holders = [Holder("a", str(number)) for number in range(4)]
        seen = await hosts.seen(A)
        wanted = [Standing(1, "a", frozenset(("a", str(number)))) for number in range(4)]
        asked = [
            hosts.ask(holder, Take(seen, standing)) for holder, standing in zip(holders, wanted, strict=True)
        ]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.is_done for answer in answers) == [False, False, False, True]
        winner = [answer.is_done for answer in answers].index(True)
        there = await hosts.seen(A)
        assert (there.standing, there.holder) == (wanted[winner], holders[winner])
        assert {answer.seen for answer in answers} == {there}

    run(hosts, test())


def test_the_holder_changes_the_standing_by_what_it_saw_and_nobody_else_does(hosts: Hosts) -> None:
    async def test() -> None:
        first = await hosts.take(A, FIRST)
        refused = await hosts.ask(B, Swap(first.revision, BOTH))
        assert (refused.is_done, refused.seen.standing) == (False, FIRST)
        answer = await hosts.ask(A, Swap(first.revision, BOTH))
        assert (answer.is_done, answer.seen.standing, answer.seen.holder) == (True, BOTH, A)
        assert answer.seen.revision > first.revision
        late = await hosts.ask(A, Swap(first.revision, FIRST))
        assert (late.is_done, late.seen) == (False, answer.seen)

    run(hosts, test())


def test_of_changes_of_one_revision_at_the_same_time_one_is_carried_out(hosts: Hosts, world: World) -> None:
    """A request that was given up may still be under way when the next one is sent."""

    async def test() -> None:
        first = await hosts.take(A, FIRST)
        stores = [world.open(*A) for _ in range(4)]
        try:
            wanted = [Standing(1, "a", frozenset(("a", str(number)))) for number in range(4)]
            asked = [
                store.ask(1, Swap(first.revision, standing), ANSWER_S)
                for store, standing in zip(stores, wanted, strict=True)
            ]
            done = [answer.is_done for answer in await asyncio.gather(*asked)]
            assert sorted(done) == [False, False, False, True]
            assert (await hosts.seen(A)).standing == wanted[done.index(True)]
        finally:
            for store in stores:
                await store.close()

    run(hosts, test())


def test_the_holder_renews_and_nobody_else_does(hosts: Hosts) -> None:
    async def test() -> None:
        nobody = await hosts.ask(B, Renew())
        assert (nobody.is_done, nobody.seen.standing) == (False, None)
        first = await hosts.take(A, FIRST)
        for holder in (A, A):
            renewed = await hosts.ask(holder, Renew())
            assert (renewed.is_done, renewed.seen) == (True, first)
        for other in (B, Holder("a", "2")):
            refused = await hosts.ask(other, Renew())
            assert (refused.is_done, refused.seen.holder) == (False, A)

    run(hosts, test())


def test_another_start_of_a_host_is_another_holder_and_takes_from_the_one_before(hosts: Hosts) -> None:
    async def test() -> None:
        await hosts.take(A, FIRST)
        again = Holder("a", "2")
        seen = await hosts.seen(again)
        assert seen.holder == A
        assert not (await hosts.ask(again, Take(seen._replace(holder=None), BOTH))).is_done
        assert (await hosts.ask(again, Take(seen, BOTH))).is_done
        for request in (Renew(), Swap(seen.revision, FIRST)):
            refused = await hosts.ask(A, request)
            assert (refused.is_done, refused.seen.standing, refused.seen.holder) == (False, BOTH, again)

    run(hosts, test())


def test_a_lease_that_is_over_is_neither_renewed_nor_used_and_somebody_else_takes_it(
    hosts: Hosts, world: World
) -> None:
    async def test() -> None:
        first = await hosts.take(A, FIRST)
        both = await hosts.ask(A, Swap(first.revision, BOTH))
        assert (await hosts.seen(B)).holder == A
        await world.end_lease(hosts.store(B), "b")
        seen = await hosts.seen(B)
        assert (seen.standing is None, seen.holder) == (False, None)
        for request in (Renew(), Swap(both.seen.revision, FIRST)):
            refused = await hosts.ask(A, request)
            assert not refused.is_done
            assert refused.seen.holder != A
        # What was seen before all that is no reason any more, although nobody has the lease now as then.
        late = await hosts.ask(B, Take(Seen(0, None, None), Standing(1, "b", frozenset("b"))))
        assert (late.is_done, late.seen) == (False, seen)
        taken = Standing(seen.standing.epoch + 1 if seen.standing else 0, "b", frozenset("b"))
        assert (await hosts.ask(B, Take(seen, taken))).is_done
        refused = await hosts.ask(A, Renew())
        assert (refused.is_done, refused.seen.standing, refused.seen.holder) == (False, taken, B)

    run(hosts, test())


def test_a_lease_that_is_given_back_is_taken_at_once(hosts: Hosts, world: World) -> None:
    async def test() -> None:
        await hosts.take(A, BOTH)
        assert not (await hosts.ask(B, Resign())).is_done, "it is not his"
        answer = await hosts.ask(A, Resign())
        if isinstance(world, ManualWorld):
            assert not answer.is_done, "only the operator names another one"
            return
        assert (answer.is_done, answer.seen.holder, answer.seen.standing) == (True, None, BOTH)
        assert not (await hosts.ask(A, Renew())).is_done
        seen = await hosts.seen(B)
        assert (await hosts.ask(B, Take(seen, Standing(2, "b", frozenset("b"))))).is_done

    run(hosts, test())


def test_a_lease_that_is_renewed_does_not_end(hosts: Hosts, world: World) -> None:
    async def test() -> None:
        await hosts.take(A, FIRST)
        for _ in range(4):
            sent = clock.now()
            await world.wait(0.3)
            is_done = (await hosts.ask(A, Renew())).is_done
            if not is_done and clock.now() - sent > world.late_s:
                return  # this machine was too slow for a lease, and the store says so
            assert is_done
            assert (await hosts.seen(B)).holder == A

    run(hosts, test())


def test_what_the_operator_gave_does_not_end_by_itself(tmp_path: Path) -> None:
    world = ManualWorld(tmp_path)
    hosts = Hosts(world)

    async def test() -> None:
        await hosts.take(A, FIRST)
        await world.wait(2.0)
        seen = await hosts.seen(B)
        assert seen.holder == A
        refused = await hosts.ask(B, Take(seen, Standing(2, "b", frozenset("b"))))
        assert (refused.is_done, refused.seen) == (False, seen)

    run(hosts, test())


def test_without_an_answer_nobody_knows_and_afterwards_it_goes_on(hosts: Hosts, world: World) -> None:
    async def test() -> None:
        first = await hosts.take(A, FIRST)
        with world.silence():
            for request in (Read(), Swap(first.revision, BOTH)):
                with pytest.raises(NoAnswerError, match=r"\w"):
                    await hosts.ask(A, request, 0.3)
        await asyncio.sleep(0.1)
        seen = await hosts.seen(A)
        # It may have been carried out, and is made void by another one, if it was not.
        assert seen.standing in (FIRST, BOTH)
        if seen.holder == A:
            assert (await hosts.ask(A, Swap(seen.revision, FIRST))).is_done
            assert (await hosts.seen(B)).standing == FIRST

    run(hosts, test())
