"""The filters of an endpoint are put in place and taken away in steps; exceptions first, and last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from angarium import errors, wire
from cluster import objects
from router.guaranteed.endpoint_filters import PIECE, STEP_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.guaranteed.endpoints import Endpoint
    from tests.unit.router.flow_rig import Rig

pytestmark = pytest.mark.requirement("R278")

STEP = 40
MANY = [f"devices/{number}/*" for number in range(100)]


@pytest.fixture
def small_steps(rig: Rig) -> Iterator[Rig]:
    rig.endpoints.filters.step_max = STEP
    rig.endpoints.filters.step()
    yield rig
    rig.endpoints.validate()


class Made:
    """An endpoint that the controller pushed, and whether that is in force."""

    def __init__(self, rig: Rig, **attributes: Any) -> None:
        self.rig = rig
        self.attributes = {
            **objects.complete("queue", {}),
            "id": 77,
            "generation": 1,
            "created_by": "operator",
        }
        self.attributes |= {"durable": True, "homes": [0], "client_subscriptions": []}
        self.in_force = 0
        self.endpoint = self.put(**attributes)

    def put(self, **attributes: Any) -> Endpoint:
        self.attributes = {**self.attributes, **attributes}
        made = self.rig.endpoints.put(self.rig.vpn, "queue", "big", self.attributes, self._done)
        self.rig.settle()
        return made

    def _done(self) -> None:
        self.in_force += 1

    def step(self) -> int:
        """Let a turn of the loop pass; gives how many filters there are then."""
        wake = self.rig.consumers.tick(self.rig.now)
        self.rig.settle()
        assert (wake > self.rig.now) is not bool(self.rig.endpoints.filters)
        return len(self.endpoint.filters)

    def steps(self) -> int:
        """Let turns pass until all is done; gives how many that took."""
        for number in range(100):
            if not self.rig.endpoints.filters:
                return number
            self.step()
        raise AssertionError("it does not end")


def test_a_step_is_small_enough_for_everybody() -> None:
    assert STEP_MAX < wire.MAX_FILTERS_PER_REQUEST, "the largest request takes several"


def test_many_subscriptions_come_and_go_in_steps_and_count_when_all_are_in_force(small_steps: Rig) -> None:
    made = Made(small_steps, subscriptions=MANY)
    assert len(made.endpoint.filters) == STEP
    assert [made.step(), made.in_force, made.step(), made.in_force] == [2 * STEP, 0, 101, 1]
    made.put(subscriptions=[])
    assert [len(made.endpoint.filters), made.in_force] == [101, 1], "the step had nothing left"
    assert made.steps() == 3
    assert [list(made.endpoint.filters), made.in_force] == [
        [(wire.KIND_ENDPOINT, "#P2P/QUE/big", "#P2P/QUE/big")],
        2,
    ]


def test_a_small_change_does_not_wait_for_a_large_one(small_steps: Rig) -> None:
    Made(small_steps, subscriptions=MANY)
    small = small_steps.controller.put("small", subscriptions=[f"a/{number}" for number in range(PIECE - 1)])
    assert len(small.filters) == PIECE
    assert small_steps.endpoints.filters


def test_exceptions_come_before_what_they_narrow_down_and_go_after_it(small_steps: Rig) -> None:
    made = Made(small_steps, subscriptions=[*MANY, "!devices/1/not"])
    assert (wire.KIND_EXCEPTION, "devices/1/not", "devices/1/not") in made.endpoint.filters
    made.steps()
    made.put(subscriptions=[])
    while len(made.endpoint.filters) > 2:
        assert (wire.KIND_EXCEPTION, "devices/1/not", "devices/1/not") in made.endpoint.filters
        made.step()
    assert len(made.endpoint.filters) == 1


def test_a_change_of_one_that_is_not_done_is_done_with_it(small_steps: Rig) -> None:
    made = Made(small_steps, subscriptions=MANY)
    made.put(subscriptions=["other", *MANY[:5]])
    made.steps()
    assert [name[1] for name in made.endpoint.filters] == [*["#P2P/QUE/big"], *MANY[:5], "other"]
    assert made.in_force == 2


class Unread(dict[str, Any]):
    """A table that may be asked for one thing, and not be gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all of it is looked at")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_a_small_change_looks_at_nothing_but_what_changes(small_steps: Rig) -> None:
    """A queue may have a hundred thousand subscriptions, and each look at all of them took 50 ms."""
    made = Made(small_steps, subscriptions=MANY, client_subscriptions=["c", "d"])
    made.steps()
    endpoint: Any = made.endpoint
    endpoint.parsed, endpoint.filters = Unread(endpoint.parsed), Unread(endpoint.filters)
    for name in ("subscriptions", "client_subscriptions"):
        endpoint.attributes[name] = Unread(endpoint.attributes[name])
    edits = {"subscriptions": [["d"], [MANY[3]]], "client_subscriptions": [["e", "!devices/1/x"], ["c", "d"]]}
    small_steps.endpoints.edit(endpoint, edits, made._done)
    small_steps.settle()
    assert made.in_force == 2
    assert not small_steps.endpoints.filters, "few are done at once"
    for name in ("parsed", "filters"):
        setattr(endpoint, name, dict(dict.items(getattr(endpoint, name))))
    texts = [name[1] for name in endpoint.filters]
    assert texts == ["#P2P/QUE/big", *MANY[:3], *MANY[4:], "d", "devices/1/x", "e"]


def test_edits_of_a_change_that_is_not_done_are_done_with_it(small_steps: Rig) -> None:
    made = Made(small_steps, subscriptions=MANY)
    done: list[None] = []
    gone, late = MANY[0], MANY[-1]
    edits = {"subscriptions": [["!x", "new"], [gone, late]]}
    small_steps.endpoints.edit(made.endpoint, edits, lambda: done.append(None))
    small_steps.endpoints.edit(made.endpoint, {"subscriptions": [[gone], ["new"]]}, lambda: done.append(None))
    assert [made.in_force, len(done)] == [0, 0]
    made.step()
    assert (wire.KIND_EXCEPTION, "x", "x") in made.endpoint.filters, "it came before what it narrows down"
    made.steps()
    assert [made.in_force, len(done)] == [1, 2]
    texts = [name[1] for name in made.endpoint.filters]
    assert sorted(texts) == sorted(["#P2P/QUE/big", *MANY[:-1], "x"])


def test_an_endpoint_that_is_gone_takes_nothing_although_its_filters_are_still_there(
    small_steps: Rig,
) -> None:
    made = Made(small_steps, subscriptions=MANY)
    made.steps()
    interest: Any = small_steps.interest
    number = next(number for number, one in interest.filters.items() if one.pattern == MANY[-1])
    a_set = interest.use_set([number])
    assert small_steps.endpoints.resolve(a_set) == (made.endpoint,)
    small_steps.endpoints.drop("default", "queue", "big")
    assert number in interest.filters
    assert small_steps.endpoints.resolve(a_set) == ()
    assert made.steps() > 1
    assert len(interest) == 0
    assert made.endpoint.memory_bytes == 0


@pytest.mark.requirement("R279")
def test_a_filter_beyond_ascii_that_goes_takes_back_what_was_charged_for_it(small_steps: Rig) -> None:
    made = Made(small_steps, subscriptions=[])
    before = made.endpoint.memory_bytes
    text = "Straße/Größe/>"
    made.put(subscriptions=[text])
    assert made.endpoint.memory_bytes > before
    for name in made.endpoint.filters:
        msgspec.msgpack.encode(
            name
        )  # as a frame for the worker: the interpreter keeps what that took beside the text
    made.put(subscriptions=[])
    assert made.endpoint.memory_bytes == before


def test_many_filters_of_a_client_are_judged_in_steps(small_steps: Rig) -> None:
    client = small_steps.client("consumer", "owner")
    small_steps.controller.put("q", owner="owner")
    code, verdicts = client.request("endpoint.subscribe", name="q", filters=[*MANY, "", "x"])
    assert (code, len(verdicts)) == (0, 102)
    assert verdicts[100][0] == errors.INVALID_FILTER
