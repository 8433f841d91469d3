"""The registry of stages and sinks: a batch is decided once, a stage once, and all of it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from cluster.catalog import stages as registry
from cluster.catalog.producers import COUNTER, Producers
from cluster.catalog.stages import Stages
from cluster.controller.controller import AGE_INTERVAL_S
from cluster.controller.switchboard.effects import Request
from storage.config_store import ConfigStore, Counter, Sink
from tests.unit.cluster.controller_world import World, answers, requests

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.catalog.stages import Decision
    from storage.config_store import Entry

pytestmark = pytest.mark.requirement("R221")

ME = ("default", "me")
NOW = 1_000_000


class Registry:
    """The registry, with a store that takes everything at once."""

    def __init__(self) -> None:
        self.producers = Producers([], 1, 100, 7)
        self.stages = Stages([], [], self.producers, 3_600)

    def take(self, entries: list[Entry]) -> None:
        self.producers.take(entries)
        self.stages.take(entries)
        self.stages.validate()

    def open(self, *names: str, owner: tuple[str, str] = ME, now_s: int = NOW) -> list[int]:
        numbers = []
        for name in names:
            number, entries = self.stages.open(owner, name, resume=False, now_s=now_s)
            self.take(entries)
            numbers.append(number)
        return numbers

    def commit(
        self, *names: str, sink: str | None = None, batch: int | None = None, owner: tuple[str, str] = ME
    ) -> Decision:
        decision = self.stages.commit(owner, sink, batch, list(names), NOW)
        self.take(decision.entries)
        return decision

    def settle(self, decision: Decision) -> None:
        self.take(self.stages.settled(decision.release, decision.drop, NOW))

    def states(self) -> dict[str, str]:
        return {row["id"]: row["state"] for row in self.stages.find(None)}


def test_a_stage_has_a_number_that_no_producer_has() -> None:
    known = Registry()
    assert known.open("a") == [1]
    number, entries = known.producers.open((*ME, "p"), resume=False, today=1)
    known.take(entries)
    assert (number, known.open("b")) == (2, [3])
    assert Counter(COUNTER, 5) in known.stages.open(ME, "c", resume=False, now_s=NOW)[1]
    assert known.stages.open(ME, "a", resume=True, now_s=NOW) == (1, [])


def test_of_all_commits_of_one_batch_the_first_publishes_and_the_others_drop_theirs() -> None:
    known = Registry()
    one, two, three = known.open("a", "b", "c")
    first = known.commit("b", "a", sink="s", batch=4)
    assert (first.is_new, first.release, first.drop) == (True, [two, one], ())
    again = known.commit("b", "a", sink="s", batch=4)
    assert (again.is_new, again.release, again.drop) == (False, [one, two], [])
    other = known.commit("c", sink="s", batch=3)
    assert (other.is_new, other.release, other.drop) == (False, [one, two], [three])
    assert known.states() == {"a": "committed", "b": "committed", "c": "aborted"}
    known.settle(first)
    known.settle(other)
    assert len(known.stages) == 0
    assert known.commit("a", "b", sink="s", batch=4).release == []
    assert known.commit(sink="s", batch=5).is_new


def test_a_sink_belongs_to_its_username_and_message_vpn() -> None:
    known = Registry()
    for owner in (ME, ("default", "you"), ("other", "me")):
        assert known.commit(sink="s", batch=1, owner=owner).is_new
    assert known.commit(sink="t", batch=1).is_new
    assert [row["batch"] for row in known.stages.find_sinks(None, "s")] == [1, 1, 1]
    assert known.commit(sink="s[1]", batch=1).is_new
    assert [row["name"] for row in known.stages.find_sinks(None, "s[1]")] == ["s[1]"]
    known.take(known.stages.forget_sink(*ME, "s"))
    assert known.commit(sink="s", batch=0).is_new
    with pytest.raises(errors.NotFoundError):
        known.stages.forget_sink(*ME, "nobody")


def test_a_commit_without_a_sink_may_come_again_while_it_is_remembered() -> None:
    known = Registry()
    known.open("a", "b")
    first = known.commit("a")
    assert (first.is_new, known.commit("a").is_new, known.commit("a").release) == (True, False, [1])
    known.settle(first)
    assert known.commit("a") == registry.Decision([], False, [])
    assert known.commit("a", "b").release == [2]
    known.take(known.stages.age(NOW + 3_601, ()))
    with pytest.raises(errors.NotFoundError):
        known.commit("a")


@pytest.mark.parametrize("sink", [None, "s"])
def test_a_commit_of_a_stage_that_is_not_there_changes_nothing(sink: str | None) -> None:
    known = Registry()
    known.open("a", "b")
    known.open("foreign", owner=("default", "you"))
    known.take(known.stages.abort(ME, ["b"], NOW).entries)
    for bad in ("b", "foreign", "never"):
        with pytest.raises(errors.NotFoundError) as caught:
            known.commit("a", bad, sink=sink, batch=None if sink is None else 1)
        assert caught.value.code == errors.UNKNOWN_STAGE
        assert bad in caught.value.detail
    assert known.states() == {"a": "open", "b": "aborted", "foreign": "open"}
    assert known.stages.sinks == 0


def test_what_is_committed_cannot_be_aborted_nor_committed_elsewhere() -> None:
    known = Registry()
    known.open("a", "b")
    known.commit("a", sink="s", batch=1)
    assert known.stages.abort(ME, ["a", "never"], NOW).entries == []
    for sink, batch in ((None, None), ("s", 2), ("t", 1)):
        with pytest.raises(errors.NotFoundError):
            known.commit("a", sink=sink, batch=batch)
    known.settle(known.commit("b"))
    with pytest.raises(errors.NotFoundError):
        known.commit("b", sink="s", batch=2)


@pytest.mark.parametrize(
    ("sink", "batch"),
    [("s", None), (None, 1), ("", 1), ("s", -1), ("s", 1 << 62), ("x" * 161, 1), ("a\nb", 1)],
)
def test_a_sink_or_a_batch_that_cannot_be_is_refused(sink: str | None, batch: int | None) -> None:
    with pytest.raises(errors.InvalidRequestError):
        Registry().commit(sink=sink, batch=batch)


def test_stages_that_nobody_commits_age() -> None:
    known = Registry()
    old, used, young = known.open("old", "used") + known.open("young", now_s=NOW + 3_000)
    entries = known.stages.age(NOW + 3_601, {used})
    known.take(entries)
    assert known.states() == {"old": "aborted", "used": "open", "young": "open"}
    assert known.stages.decided == {"open": [used, young], "release": [], "drop": [old], "newest": 3}
    known.take(known.stages.settled([], [old], NOW))
    known.take(known.stages.age(NOW + 9_000, ()))
    assert known.states() == {"used": "aborted", "young": "aborted"}


def test_there_is_a_limit_to_stages_sinks_and_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "OPEN_MAX", 2)
    monkeypatch.setattr(registry, "SINKS_MAX", 1)
    monkeypatch.setattr(registry, "RELEASED_MAX", 2)
    known = Registry()
    known.open("a", "b")
    with pytest.raises(errors.UnavailableError) as caught:
        known.open("c")
    assert caught.value.code == errors.TOO_MANY_FLOWS
    known.settle(known.commit("a", sink="s", batch=1))
    with pytest.raises(errors.UnavailableError):
        known.commit("b", sink="t", batch=1)
    for name in ("c", "d", "e"):
        known.settle(known.commit("b" if name == "c" else name, "b"))
        known.open(*({"c": "d", "d": "e"}.get(name) or "f"))
    assert len(known.stages) == 3
    with pytest.raises(errors.NotFoundError):
        known.commit("b")


def test_what_homes_have_is_released_dropped_or_left() -> None:
    known = Registry()
    known.open("open", "committed", "aborted", "released")
    known.commit("committed", sink="s", batch=1)
    known.take(known.stages.abort(ME, ["aborted"], NOW).entries)
    known.settle(known.commit("released"))
    found = known.stages.held([1, 2, 3, 4, 99])
    assert (found.release, found.drop) == ([2, 4], [3, 99])


def test_stages_and_sinks_are_there_after_a_restart(tmp_path: Path) -> None:
    store = ConfigStore(tmp_path / "config")
    known = Registry()
    for name in ("a", "b"):
        _, entries = known.stages.open(ME, name, resume=False, now_s=NOW)
        store.commit(entries)
        known.take(entries)
    store.commit(known.commit("a", sink="s", batch=1).entries)
    store.close()
    store = ConfigStore(tmp_path / "config")
    producers = Producers(store.load_producers(), store.load_counters()[COUNTER], 100, 7)
    again = Stages(store.load_stages(), store.load_sinks(), producers, 3_600)
    again.validate()
    assert again.find(None) == known.stages.find(None)
    assert again.find_sinks(None, "*") == known.stages.find_sinks(None, "*")
    store.commit([*again.settled([1], [], NOW), *again.forget_sink(*ME, "s")])
    assert [stage.name for stage in store.load_stages()] == ["b"]
    assert store.load_sinks() == []
    store.close()


def open_stage(world: World, name: str) -> int:
    seen = world.question("stage.open", vpn="default", username="default", name=name)
    ((ok, answer),) = answers(seen)
    assert ok
    number: int = answer["id"]
    return number


def decide(world: World, operation: str, **arguments: Any) -> tuple[bool, Any]:
    ((ok, value),) = answers(world.question(operation, vpn="default", username="default", **arguments))
    return ok, value


def test_the_router_is_told_what_is_not_settled_when_it_comes() -> None:
    world = World()
    world.hello("router")
    one, two, three = (open_stage(world, name) for name in "abc")
    assert decide(world, "stage.commit", stages=["a"], sink="s", batch=0) == (
        True,
        {"committed": True, "release": [one], "drop": []},
    )
    assert decide(world, "stage.abort", stages=["b"]) == (
        True,
        {"committed": True, "release": [], "drop": [two]},
    )
    told = requests(world.hello("router", incarnation=8))
    expected = {"open": [three], "release": [one], "drop": [two], "newest": three}
    assert told[0] == ("stages", expected)
    assert told[1][0] == "config_snapshot"
    world.question("stage.settled", release=[one], drop=[two])
    told = requests(world.hello("router", incarnation=9))
    assert told[0] == ("stages", {**expected, "release": [], "drop": []})


def test_a_controller_that_starts_knows_the_sinks_also_when_no_stage_is_left() -> None:
    world = World()
    stages = Stages([], [Sink("default", "default", "s", 3, NOW)], world.producers, 3_600)
    world.controller = world.start(stages)
    world.hello("router")
    found = {"committed": False, "release": [], "drop": []}
    assert decide(world, "stage.commit", stages=["gone"], sink="s", batch=3) == (True, found)


def test_the_controller_lets_stages_age_that_no_client_has_open() -> None:
    world = World()
    world.answer(world.hello("router"), None)
    one, two = open_stage(world, "a"), open_stage(world, "b")
    world.wait(0.0)
    world.time = "2031-05-06T10:00:00.000Z"
    asked = [
        effect
        for effect in world.wait(AGE_INTERVAL_S + 1)
        if isinstance(effect, Request) and effect.operation == "producers"
    ]
    seen = world.answer(asked, [{"id": two}])  # type: ignore[arg-type]
    (told,) = [arguments for operation, arguments in requests(seen) if operation == "stages"]
    assert (told["drop"], told["open"]) == ([one], [two])
    (event,) = [one for one in world.ring.find(None, 100) if one["event"] == "SYSTEM_AD_STAGE_AGED"]
    assert event["text"] == "1 stages that nobody committed are dropped, 'a' first"


def test_a_username_that_goes_takes_its_stages_and_sinks_along() -> None:
    world = World()
    world.hello("router")
    world.call("objects.create", kind="username", name="me", attributes={})
    for name, username in (("a", "me"), ("b", "default")):
        world.question("stage.open", vpn="default", username=username, name=name)
    world.question("stage.commit", vpn="default", username="me", stages=[], sink="s", batch=1)
    seen = world.call("objects.delete", kind="username", name="me")
    (told,) = [arguments for operation, arguments in requests(seen) if operation == "stages"]
    assert told["drop"] == [1]
    assert told["open"] == [2]


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("stage.commit", {"stages": "a"}),
        ("stage.commit", {"stages": [1]}),
        ("stage.commit", {"stages": [], "sink": "s", "batch": "1"}),
        ("stage.abort", {}),
        ("stage.settled", {"release": None}),
        ("stage.held", {"stages": {}}),
    ],
)
def test_nonsense_is_refused(operation: str, arguments: dict[str, Any]) -> None:
    world = World()
    world.hello("router")
    ((ok, value),) = answers(world.question(operation, vpn="default", username="default", **arguments))
    assert (ok, value[0]) == (False, errors.INVALID_ARGUMENT)
