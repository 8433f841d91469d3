"""Two hosts keep what was acknowledged, and never act both, whatever happens to them and to the outside store.

`ANGARIUM_STANDBY_SEEDS=1000 scripts/test tests/simulation/standby` runs more seeds; many are run by
`scripts/simulate --world standby`.
"""

from __future__ import annotations

import functools
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from cluster.standby.pair import member
from cluster.standby.pair.member import ActUntil, Member, Release
from cluster.standby.pair.outside import Take
from storage.groups import GroupLog
from storage.shipping.shipping import Shipping
from tests.share import short, some
from tests.simulation import simulate
from tests.simulation.standby.scenario import PRODUCERS, Scenario
from tests.simulation.standby.simulated_host import HOMES, SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.standby.pair.outside import Seen
    from tests.simulation.standby.simulated_home import SimulatedHome

SEEDS_VARIABLE = "ANGARIUM_STANDBY_SEEDS"
SEEDS_DEFAULT = short(5, long=10)
SEEDS_PER_TEST = short(5, long=10)
#: In the last one a primary that is one no more tells the next one of more workers.
GROWING_SEEDS = [*some((f"growing/{number}" for number in range(12)), of=4), "s77/35580"]
#: How long a fault is looked for if a change made it show elsewhere.
SEEDS_OF_FAULTS = 2_000


@functools.cache
def played_once(number: int) -> Scenario:
    scenario = Scenario(f"standby/{number}")
    scenario.note(f"seed {number}")
    scenario.play()
    return scenario


@pytest.mark.slow
@pytest.mark.requirement("R268")
@pytest.mark.parametrize("seed", GROWING_SEEDS)
def test_a_pair_keeps_its_promises_when_a_store_comes(seed: str) -> None:
    scenario = Scenario(seed, grows=True)
    assert scenario.play() == [], "\n".join(scenario.events)
    assert [host.stores for host in scenario.hosts] == [HOMES, HOMES]


def in_sync_without_the_new_store() -> bool:
    """Tell whether a standby is let in that follows but the store that came last, which went on without it."""
    scenario = Scenario("a new store", grows=True)
    scenario.trouble_every_s, scenario.moment_rate = math.inf, 0.0
    loop, (primary, standby) = scenario.loop, scenario.hosts
    primary.start()
    loop.after(3.0, standby.start)
    for producer in range(PRODUCERS):
        loop.after(1.0, functools.partial(scenario._produce, producer))
    begun = loop.now
    loop.after(10.0, primary.grow)
    loop.run_until(begun + 15.0)
    assert len(scenario._in_sync()) == 2
    assert [host.stores for host in scenario.hosts] == [HOMES, HOMES]
    scenario.cuts.pairs |= {("a", "b"), ("b", "a")}
    acknowledged = len(scenario.acknowledged)
    loop.run_until(begun + 20.0)
    assert len(scenario._in_sync()) == 1
    assert len(scenario.acknowledged) > acknowledged
    standby.homes[1].paused_until = begun + 35.0
    scenario.cuts.pairs.clear()
    loop.run_until(begun + 30.0)
    found = len(scenario._in_sync()) == 2
    loop.run_until(begun + 150.0)
    assert len(scenario._in_sync()) == 2
    return found


@pytest.mark.requirement("R268")
def test_a_standby_that_lacks_the_store_that_came_last_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_sync_without_the_new_store()
    monkeypatch.setattr(SimulatedHost, "judged_homes", lambda host: host.homes[:1])
    assert in_sync_without_the_new_store(), "what is judged once, when the primary begins, is not enough"


@pytest.mark.slow
@pytest.mark.requirement("R264", "R266", "R267", "R268")
def test_a_pair_keeps_its_promises(first_seed: int) -> None:
    """By the rules of the scenario."""
    played = [played_once(number) for number in range(first_seed, first_seed + SEEDS_PER_TEST)]
    assert ["\n".join(one.events) for one in played if one.violations] == []


@pytest.mark.slow
def test_a_pair_keeps_its_promises_on_disks_that_are_full_or_looked_at_while_they_write(
    first_seed: int,
) -> None:
    """A group that found no room here may be at the standby, which confirms it, and the next one has its number.

    One that is on disk while it is looked what the standby lacks is to be in all of that, or in nothing.
    """
    played = [
        Scenario(f"full/{number}", fills=True) for number in range(first_seed, first_seed + SEEDS_PER_TEST)
    ]
    assert ["\n".join(one.events) for one in played if one.play()] == []


@pytest.mark.slow
@pytest.mark.requirement("R268")
def test_a_pair_in_which_nothing_counts_without_the_standby_is_whole_again_after_all_trouble(
    first_seed: int,
) -> None:
    """Also if the disks of the standby are replaced: it lacks what it is taken for, and is brought it in parts."""
    played = [
        Scenario(f"strict/{number}", is_strict=True)
        for number in range(first_seed, first_seed + SEEDS_PER_TEST)
    ]
    assert ["\n".join(one.events) for one in played if one.play()] == []
    assert all(one.replaced for one in played)


def test_a_run_has_what_the_rules_are_about() -> None:
    """A standby takes over, is put out of the in-sync set, and comes back; messages go on."""
    played = [played_once(number) for number in range(SEEDS_DEFAULT)]
    standings = [one for scenario in played for one in scenario.store.standings]
    assert {one.primary for one in standings} == {"a", "b"}
    assert {len(one.in_sync) for one in standings} == {1, 2}
    assert max(one.epoch for one in standings) > 3
    assert sum(len(scenario.confirmed) for scenario in played) > 500
    assert any(count > 1 for scenario in played for count in scenario.received.values())


@pytest.mark.requirement("R268")
def test_the_script_plays_pairs_and_tells_what_led_to_a_broken_rule(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--world", "standby", "--seeds", "1", "--first", "3", "--processes", "1"]
    assert simulate.main(arguments) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert min(summary[what] for what in ("steps", "messages", "deliveries", "faults")) > 0, summary
    monkeypatch.setattr(
        Scenario, "_check_gone", lambda scenario, message: scenario._wrong("commit", f"{message}")
    )
    assert simulate.main(arguments) == 1
    err = capsys.readouterr().err
    assert "seed 0/3\n" in err
    assert "!! commit: " in err
    assert "again: scripts/simulate --seeds 1 --seed 0 --first 3 --world standby" in err


# -- faults of their own -----------------------------------------------------------------------------------------


def count_what_is_on_this_disk(patch: pytest.MonkeyPatch) -> None:
    def count(shipping: Shipping) -> None:
        shipping.committed = max(shipping.committed, shipping._written)

    patch.setattr(Shipping, "_count", count)


def believe_an_earlier_run(patch: pytest.MonkeyPatch) -> None:
    """What is on this disk when a run begins is taken to be on the other one too."""
    begin = Shipping.__init__

    def begins(shipping: Shipping, *arguments: Any, **named: Any) -> None:
        begin(shipping, *arguments, **named)
        shipping.committed = shipping._written

    patch.setattr(Shipping, "__init__", begins)


def act_from_the_answer_on(patch: pytest.MonkeyPatch) -> None:
    """The time of a lease is counted from when its answer came, and no clock drifts."""
    carry_out = SimulatedHost._act_until

    def later(host: SimulatedHost, _time: float) -> None:
        carry_out(host, host.clock() + member.LEASE_S)

    patch.setattr(SimulatedHost, "_act_until", later)


def go_on_before_the_store_says_so(patch: pytest.MonkeyPatch) -> None:
    """A silent standby is not waited for from when it is asked to be put out of the in-sync set."""
    changed = Member._changed

    def release(self: Member, now: float) -> Any:
        standing = changed(self, now)
        if standing is not None and len(standing.in_sync) == 1:
            self.outbox.append(Release())
        return standing

    patch.setattr(Member, "_changed", release)


def let_in_who_lacks_some(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shipping, "caught_up", property(lambda shipping: shipping.required_by))


def take_without_being_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "_may_take", lambda _, seen: seen.standing is not None and seen.holder is None)


def take_from_a_holder(patch: pytest.MonkeyPatch) -> None:
    def may_take(self: Member, seen: Seen) -> bool:
        if seen.standing is None:
            return self._may_found
        return self._me.host in seen.standing.in_sync and seen.standing.primary != self._me.host

    patch.setattr(Member, "_may_take", may_take)


def call_all_runs_the_same(patch: pytest.MonkeyPatch) -> None:
    group = GroupLog.group
    patch.setattr(GroupLog, "group", lambda log, run, changes: group(log, run[0], changes))


def forget_what_the_standby_touched(patch: pytest.MonkeyPatch) -> None:
    parted = GroupLog.parted
    patch.setattr(GroupLog, "parted", lambda log, base, _: parted(log, base, ()))


def look_at_the_disk_only(patch: pytest.MonkeyPatch) -> None:
    """A standby that connects again is brought back to what is on this disk, though it has more, which counts."""
    meet = Shipping._meet

    def meets(shipping: Shipping, past: Any) -> None:
        ahead, shipping.log.ahead = shipping.log.ahead, shipping.log.past
        meet(shipping, past)
        shipping.log.ahead = ahead

    patch.setattr(Shipping, "_meet", meets)


def believe_what_was_seen(patch: pytest.MonkeyPatch) -> None:
    """A home that is started again needs no standby, though one is about to be let in."""
    begin = SimulatedHost._begin

    def begins(host: SimulatedHost, home: SimulatedHome) -> None:
        assert host.member is not None
        standing, order = host.member.seen.standing, host.member.required_by
        if standing is not None and len(standing.in_sync) == 1:
            host.member.required_by = None
        begin(host, home)
        host.member.required_by = order

    patch.setattr(SimulatedHost, "_begin", begins)


def act_at_once_after_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    begin = Member._begin

    def begins(self: Member, request: Any, standing: Any, sent_at: float) -> None:
        begin(self, request, standing, sent_at)
        if not isinstance(request, Take):
            self.outbox.append(ActUntil(sent_at + member.LEASE_S))

    patch.setattr(Member, "_begin", begins)


def believe_what_was_confirmed_of_a_group_that_found_no_room(patch: pytest.MonkeyPatch) -> None:
    not_written = Shipping.not_written

    def keeps(shipping: Shipping, run: str) -> None:
        confirmed = shipping.confirmed
        not_written(shipping, run)
        shipping.confirmed = confirmed

    patch.setattr(Shipping, "not_written", keeps)


def look_at_a_disk_that_is_being_written(patch: pytest.MonkeyPatch) -> None:
    """Where the disk is, is looked up behind the keys."""

    def lacking(shipping: Shipping, common: int, touched: Any) -> Any:
        log = shipping.log
        if touched is None or (common >= log.past.newest and not touched):
            return log.past, None, None
        parted = log.parted(common, touched)
        patched = None if parted is None else log.patch(common, parted)
        return log.past, parted, patched

    patch.setattr(Shipping, "_lacking", lacking)


#: Each with a run in which it shows, which saves time.
FAULTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    count_what_is_on_this_disk: 0,
    believe_an_earlier_run: 7,
    act_from_the_answer_on: 1,
    go_on_before_the_store_says_so: 0,
    let_in_who_lacks_some: 70,
    take_without_being_in_sync: 0,
    take_from_a_holder: 0,
    call_all_runs_the_same: 21,
    forget_what_the_standby_touched: 7,
    look_at_the_disk_only: 1516,
    believe_what_was_seen: 70,
    act_at_once_after_a_lost_answer: 713,
}


FAULTS_OF_DISKS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    believe_what_was_confirmed_of_a_group_that_found_no_room: 3,
    look_at_a_disk_that_is_being_written: 2,
}


@pytest.mark.parametrize("plant", some(FAULTS, of=3), ids=lambda fault: fault.__name__)
def test_a_fault_that_is_planted_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(_is_broken(number) for number in (FAULTS[plant], *range(SEEDS_OF_FAULTS)))


@pytest.mark.parametrize("plant", some(FAULTS_OF_DISKS, of=2), ids=lambda fault: fault.__name__)
def test_a_fault_of_disks_that_is_planted_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    numbers = (FAULTS_OF_DISKS[plant], *range(SEEDS_OF_FAULTS))
    assert any(Scenario(f"full/{number}", fills=True).play() for number in numbers)


def _is_broken(number: int) -> bool:
    try:
        return bool(Scenario(f"fault/{number}").play())
    except AssertionError:
        return True
