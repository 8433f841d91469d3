"""A pair of hosts loses its primary in some ways, and nothing that was acknowledged: scripts/failover in short."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.failover import compare, etcd
from tests.failover.cables import ways
from tests.failover.campaign import Round, is_even
from tests.failover.troubles import in_sync
from tests.share import is_long, short
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.failover.pair import Host
    from tests.failover.troubles import World

LEASE_S = 3
#: Of the load, which has the pair for a minute.
BETWEEN_S = short("0.4", long="0.1")
PATIENCE_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def primary_of(world: World) -> Host:
    found = world.primary()
    assert found is not None
    return found


def settle(world: World) -> None:
    wait_for(
        lambda: [host.status for host in world.hosts.values()],
        lambda _: in_sync(world),
        "being in sync",
        PATIENCE_S,
        lambda: "\n".join(host.output() for host in world.hosts.values()),
    )


def other_takes_over(world: World, before: Host) -> None:
    def is_another() -> bool:
        found = world.primary()
        return found is not None and found is not before

    wait_until(is_another, f"the other host taking over from {before.name}", PATIENCE_S)


def followed_by(world: World, host: Host) -> bool:
    primary = world.primary()
    return primary is not None and host.name in primary.status["in_sync"]


def cut_from_the_store(world: World) -> None:
    """Cut the primary off from the outside store alone: it cannot know who took over, and becomes its standby."""
    primary = primary_of(world)
    world.cables.cut(ways(primary.name, ("store",)))
    other_takes_over(world, primary)
    wait_until(lambda: followed_by(world, primary), "being the standby of the other host", PATIENCE_S)
    world.cables.heal()
    settle(world)


def hang(world: World) -> None:
    """Stop the primary, and have it go on when the other host has taken over."""
    primary = primary_of(world)
    primary.signal(signal.SIGSTOP)
    other_takes_over(world, primary)
    primary.signal(signal.SIGCONT)
    settle(world)


@pytest.mark.requirement("R264", "R265", "R266", "R268")
@pytest.mark.skipif(etcd.is_missing(), reason="there is no etcd here (etcd-server)")
def test_a_primary_that_is_killed_or_cut_off_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    """With --long it hangs as well, as that of tests/integration/test_standby_keeper.py does."""
    one = Round(tmp_path, LEASE_S, has_spaces=False, members=1, workers=1)
    with one.world() as world:
        settle(world)
        load = one.load("--between", BETWEEN_S)
        try:
            first = primary_of(world)
            first.kill()
            other_takes_over(world, first)
            first.start()
            settle(world)

            second = primary_of(world)
            # Its clients reach it still, and it has to refuse them.
            world.cables.cut(ways(second.name, ("pair", "store")))
            other_takes_over(world, second)
            world.cables.heal()
            settle(world)

            if is_long():
                hang(world)
                cut_from_the_store(world)

            quiet = load.ask("quiet", PATIENCE_S)
            assert not quiet["hangs"]
            wait_until(lambda: in_sync(world) and is_even(world), "the standby having all", PATIENCE_S)
            for host in world.hosts.values():
                host.kill()
            assert not compare.differences(*(host.data for host in world.hosts.values()))
            for host in world.hosts.values():
                host.start()
            verdict = load.ask("check", PATIENCE_S)
        finally:
            load.end()
    assert not verdict["failures"]
    assert not verdict["wrong"]
    assert verdict["acknowledged"] > 0, verdict
    assert len({epoch for epoch, _, _ in verdict["epochs"]}) >= short(3, long=5)
