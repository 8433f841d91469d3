"""Shares of the node's tables: who has its share gets no more, and nobody loses a place to another."""

from __future__ import annotations

import pytest

from angarium import errors
from cluster.catalog import stages as registry
from cluster.catalog.producers import Producers
from cluster.catalog.shares import Percents, Shares
from cluster.catalog.stages import Stages
from storage.config_store import Producer
from tests.unit.cluster.controller_world import World, answers

pytestmark = pytest.mark.requirement("R280")

ALICE, ALINE, BOB = ("one", "alice"), ("one", "aline"), ("two", "bob")
PERCENTS = Percents(vpn=60, username=40)
NOW = 1_000_000


def code_of(shares: Shares, owner: tuple[str, str]) -> int:
    refusal = shares.refusal(owner)
    return 0 if refusal is None else refusal.code


def test_a_username_and_its_message_vpn_have_shares_and_the_table_has_its_end() -> None:
    shares = Shares("places", 10, PERCENTS)
    shares.count(ALICE, 4)
    assert [code_of(shares, who) for who in (ALICE, ALINE, BOB)] == [errors.SHARE_EXCEEDED, 0, 0]
    shares.count(ALINE, 2)
    assert [code_of(shares, who) for who in (ALICE, ALINE, BOB)] == [errors.SHARE_EXCEEDED] * 2 + [0]
    shares.count(BOB, 3)
    shares.count(("three", "carol"), 1)
    assert code_of(shares, BOB) == errors.TOO_MANY_FLOWS
    shares.count(ALICE, -1)
    assert [code_of(shares, who) for who in (ALICE, ALINE, BOB)] == [0, 0, 0]
    shares.validate()


def test_a_share_says_who_has_what_and_which_option_says_so() -> None:
    shares = Shares("producers", 10, PERCENTS, "close some")
    shares.count(ALICE, 4)
    assert "'one/alice' has 4 of the 10 producers" in str(shares.refusal(ALICE))
    assert "spool.username_share_percent; close some" in str(shares.refusal(ALICE))


def test_a_share_is_one_place_at_least() -> None:
    assert Shares("places", 3, Percents(1, 1)).refusal(ALICE) is None


class Names:
    """A registry of producers that takes everything at once."""

    def __init__(self, limit: int = 10) -> None:
        self.registry = Producers([], 1, limit, 7, PERCENTS)

    def open(
        self, owner: tuple[str, str], name: str, *, in_use: tuple[int, ...] = (), today: int = 100
    ) -> int:
        number, entries = self.registry.open((*owner, name), resume=False, today=today, in_use=in_use)
        self.registry.take(entries)
        self.registry.validate()
        return number

    def of(self, owner: tuple[str, str]) -> list[str]:
        return [row["name"] for row in self.registry.find(owner[0], "*") if row["username"] == owner[1]]


def test_who_has_its_share_of_names_gives_up_its_own_and_nobody_elses() -> None:
    names = Names()
    names.open(BOB, "exactly-once", today=1)
    for number in range(20):
        names.open(ALICE, f"{number:02}")
    assert names.of(ALICE) == ["16", "17", "18", "19"]
    assert names.of(BOB) == ["exactly-once"], "the oldest of all is still there"


def test_names_in_use_do_not_give_way() -> None:
    names = Names()
    used = tuple(names.open(ALICE, f"{number}") for number in range(4))
    with pytest.raises(errors.UnavailableError) as caught:
        names.open(ALICE, "more", in_use=used)
    assert caught.value.code == errors.SHARE_EXCEEDED
    names.open(ALICE, "more", in_use=used[1:])
    assert names.of(ALICE) == ["1", "2", "3", "more"]


def test_a_full_node_takes_no_name_of_another_away_and_links_go_on() -> None:
    names = Names(limit=4)
    for owner in (ALICE, ALINE, BOB, ("three", "carol")):
        names.open(owner, "p")
    with pytest.raises(errors.UnavailableError) as caught:
        names.open(("four", "dave"), "p")
    assert caught.value.code == errors.TOO_MANY_FLOWS
    names.open(("one", "#link"), "to-the-neighbour")
    assert names.of(ALICE) == names.of(BOB) == ["p"]
    names.registry.take([Producer("one", "#link", "to-the-neighbour", None, 0)])
    names.registry.validate()


class Registry:
    """Stages and sinks that are taken at once."""

    def __init__(self) -> None:
        self.stages = Stages([], [], Producers([], 1, 100, 7), 3_600, PERCENTS)

    def open(self, owner: tuple[str, str], name: str) -> None:
        _, entries = self.stages.open(owner, name, resume=False, now_s=NOW)
        self.stages._producers.take(entries)
        self.stages.take(entries)
        self.stages.validate()

    def commit(self, owner: tuple[str, str], *names: str, sink: str | None = None) -> None:
        batch = None if sink is None else 1
        decision = self.stages.commit(owner, sink, batch, names, NOW)
        self.stages.take(decision.entries)
        self.stages.take(self.stages.settled(decision.release, decision.drop, NOW))
        self.stages.validate()


def test_empty_sinks_of_one_username_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SINKS_MAX", 10)
    known = Registry()
    for number in range(4):
        known.commit(ALICE, sink=f"{number}")
    with pytest.raises(errors.UnavailableError, match="sink forget") as caught:
        known.commit(ALICE, sink="more")
    assert caught.value.code == errors.SHARE_EXCEEDED
    known.commit(BOB, sink="of-bob")
    assert [row["name"] for row in known.stages.find_sinks("one", "*")] == ["0", "1", "2", "3"]
    known.stages.take(known.stages.forget_sink(*ALICE, "0"))
    known.commit(ALICE, sink="more")


def test_open_stages_of_one_username_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "OPEN_MAX", 10)
    known = Registry()
    for number in range(4):
        known.open(ALICE, f"{number}")
    with pytest.raises(errors.UnavailableError) as caught:
        known.open(ALICE, "more")
    assert caught.value.code == errors.SHARE_EXCEEDED
    known.open(BOB, "of-bob")
    known.commit(ALICE, "0")
    known.open(ALICE, "more")


def test_what_is_remembered_of_commits_displaces_only_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RELEASED_MAX", 5)
    known = Registry()
    known.open(BOB, "of-bob")
    known.commit(BOB, "of-bob")
    for number in range(4):
        known.open(ALICE, f"{number}")
        known.commit(ALICE, f"{number}")
    known.commit(BOB, "of-bob")
    known.commit(ALICE, "2", "3")
    with pytest.raises(errors.NotFoundError):
        known.commit(ALICE, "1")


def test_operators_hear_of_a_share_that_is_used_up_now_and_then() -> None:
    world = World(percents=PERCENTS)
    world.hello("router")
    for number in range(45):
        world.question("producer.open", vpn="one", username="alice", name=f"{number}", in_use=None)
    seen = answers(world.question("producer.open", vpn="one", username="alice", name="x", in_use=None))
    assert [(ok, value[0]) for ok, value in seen] == [(False, errors.SHARE_EXCEEDED)]
    (event,) = [one for one in world.ring.find(None, 100) if one["event"] == "SYSTEM_AD_SHARE_EXCEEDED"]
    assert "'one/alice' has 40 of the 100 producers of the node" in event["text"]
    world.time = "2031-05-04T10:10:00.000Z"
    world.question("producer.open", vpn="one", username="alice", name="x", in_use=None)
    events = [one for one in world.ring.find(None, 100) if one["event"] == "SYSTEM_AD_SHARE_EXCEEDED"]
    assert len(events) == 2
