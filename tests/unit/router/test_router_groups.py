"""Reader groups at the router: rights, lanes that are asked in the right order, homes that come and go, ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium_server.frames.homes import LeasedFrame
from router.flows.groups import share_out
from router.flows.lane_questions import ANSWER_TIMEOUT_S
from tests.unit.router.flow_rig import BIG, FakeClient, FakeHome, Rig

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint

pytestmark = pytest.mark.requirement("R221")

HOUR_MS = 3_600_000
FIGURES = {"oldest": 1, "next": 1, "epoch": 9, "continued": False}


@pytest.fixture
def client(rig: Rig) -> FakeClient:
    return rig.client("reader", "owner")


@pytest.fixture
def queue(rig: Rig) -> Endpoint:
    return rig.controller.put("q", owner="owner")


def open_group(client: FakeClient, name: str = "q", group: str = "g") -> int:
    return client.ask("group.open", name=name, group=group, lease_ms=HOUR_MS)


def questions(home: FakeHome) -> list[tuple[int, str, list[Any]]]:
    """Take what a home was asked: partition, verb, arguments."""
    asked, home.questions = home.questions, []
    home.asked += asked
    return [(lane & 1023, verb, arguments) for _, lane, verb, arguments in asked]


def answer(home: FakeHome, value: Any, code: int = 0, *, at: int = -1) -> None:
    """Answer one of the questions that were taken."""
    reference = home.asked[at][0]
    frame = LeasedFrame(home.incarnation, reference, code, value)
    home.rig.consumers.questions.answered(frame, home.shard, [], home.rig.now)
    home.rig.settle()


def test_a_group_asks_the_only_lane_of_a_queue(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    number = open_group(client)
    home = rig.homes[0]
    assert questions(home) == [(0, "open", ["g", HOUR_MS])]
    assert not client.has_answer(number)
    answer(home, FIGURES)
    assert client.answer(number) == (
        0,
        {"name": "q", "endpoint_id": queue.id, "lease_ms": HOUR_MS, "lanes": [[0, FIGURES]]},
    )
    number = client.ask("group.plan", name="q", group="g", lanes=[[0, 9, 1, 0]], messages=5, bytes=None)
    assert questions(home) == [(0, "plan", ["g", 9, 1, 0, 5, 1 << 62])]
    answer(home, [1, 6, 5, 500])
    assert client.answer(number) == (0, [[0, [1, 6, 5, 500]]])


@pytest.mark.requirement("R280")
def test_a_queue_says_how_long_a_lease_may_last_and_who_used_it_last(rig: Rig, client: FakeClient) -> None:
    short = rig.controller.put("q", owner="owner", max_lease_s=60)
    number = open_group(client)
    home = rig.homes[0]
    assert questions(home) == [(0, "open", ["g", 60_000])]
    assert short.reader == ("", "")
    answer(home, FIGURES)
    assert client.answer(number)[1]["lease_ms"] == 60_000
    assert short.reader == ("owner", "reader")
    other = rig.client("other", "owner")
    for verb, value, code in (("release", False, 0), ("positions", "it has not", errors.LEASE_LOST)):
        other.ask(f"group.{verb}", name="q", group="h", lanes=[[0, 1]])
        questions(home)
        answer(home, value, code)
    assert short.reader == ("owner", "reader"), "who does not have the lease does not count"
    assert short.describe()["reader_client"] == "", "nobody has leased it, as far as its home told"


def test_the_first_partition_decides_who_of_two_groups_gets_a_queue(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    number = open_group(client, "p")
    home = rig.homes[0]
    assert questions(home) == [(0, "open", ["g", HOUR_MS])]
    answer(home, "reader group 'other' has it", errors.ENDPOINT_LEASED)
    assert client.answer(number) == (errors.ENDPOINT_LEASED, "reader group 'other' has it")
    assert questions(home) == []


def test_only_its_home_says_whether_a_partition_that_was_taken_away_has_something_for_the_group(
    rig: Rig, client: FakeClient
) -> None:
    """A router that has just started has no figures of it: all of them may hold what the group has planned."""
    rig.controller.put("p", owner="owner", partition_count=4, access_type="non-exclusive")
    rig.controller.put("p", partition_count=1)
    number = open_group(client, "p")
    home = rig.homes[0]
    questions(home)
    answer(home, FIGURES)
    assert [asked[:2] for asked in questions(home)] == [(1, "open"), (2, "open"), (3, "open")]
    answer(home, None, at=-3)
    answer(home, {**FIGURES, "continued": True}, at=-2)
    assert not client.has_answer(number)
    answer(home, None)
    assert client.answer(number)[1]["lanes"] == [[0, FIGURES], [2, {**FIGURES, "continued": True}]]


def test_nothing_is_released_of_partitions_that_had_nothing_for_the_group(
    rig: Rig, client: FakeClient
) -> None:
    rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    rig.controller.put("p", partition_count=1)
    number = open_group(client, "p")
    home = rig.homes[0]
    questions(home)
    answer(home, FIGURES)
    questions(home)
    answer(home, None, at=-2)
    answer(home, "taken", errors.ENDPOINT_LEASED)
    assert client.answer(number)[0] == errors.ENDPOINT_LEASED
    assert questions(home) == [(0, "release", ["g", 9])]


@pytest.mark.parametrize("continued", [True, False])
def test_what_was_leased_in_vain_is_released_and_what_was_leased_before_is_not(
    rig: Rig, client: FakeClient, continued: bool
) -> None:
    rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    number = open_group(client, "p")
    home = rig.homes[0]
    questions(home)
    answer(home, {**FIGURES, "continued": continued})
    assert [asked[:2] for asked in questions(home)] == [(1, "open"), (2, "open")]
    answer(home, {**FIGURES, "epoch": 11}, at=-2)
    answer(home, "taken", errors.ENDPOINT_LEASED)
    assert client.answer(number)[0] == errors.ENDPOINT_LEASED
    first = [] if continued else [(0, "release", ["g", 9])]
    assert questions(home) == [*first, (1, "release", ["g", 11])]


def test_limits_are_shared_out_by_what_partitions_have(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    lanes = [[partition, 9, 1, 0] for partition in range(3)]
    number = client.ask("group.plan", name="p", group="g", lanes=lanes, messages=10, bytes=None)
    home = rig.homes[0]
    assert questions(home) == [(partition, "count", ["g", 9, 1]) for partition in range(3)]
    for at, has in ((-3, [0, 0]), (-2, [2, 200]), (-1, [100, 10_000])):
        answer(home, has, at=at)
    assert questions(home) == [(1, "plan", ["g", 9, 1, 0, 2, 200]), (2, "plan", ["g", 9, 1, 0, 8, 10_000])]
    answer(home, [1, 3, 2, 200], at=-2)
    answer(home, [1, 9, 8, 800])
    assert client.answer(number) == (0, [[0, [1, 1, 0, 0]], [1, [1, 3, 2, 200]], [2, [1, 9, 8, 800]]])


@pytest.mark.parametrize(
    ("limit", "wants", "shares"),
    [
        (10, [1, 100, 100], [1, 5, 4]),
        (10, [0, 0], [0, 0]),
        (2, [5, 5, 5], [1, 1, 0]),
        (100, [3, 4], [3, 4]),
        (7, [7], [7]),
    ],
)
def test_who_wants_little_gets_it_and_the_others_share_the_rest(
    limit: int, wants: list[int], shares: list[int]
) -> None:
    found = share_out(limit, wants)
    assert sorted(found) == sorted(shares)
    assert sum(found) == min(limit, sum(wants))
    assert all(share <= want for share, want in zip(found, wants, strict=True))


# --- homes that come and go -------------------------------------------------------------------------------------


def test_a_question_goes_to_the_next_incarnation_of_a_home(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    number = open_group(client)
    assert len(questions(rig.homes[0])) == 1
    rig.kill_home(0)
    home = rig.start_home(0)
    assert questions(home) == [(0, "open", ["g", HOUR_MS])]
    answer(home, FIGURES)
    assert client.answer(number)[0] == 0


def test_a_question_waits_for_a_home_and_not_for_ever(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    rig.kill_home(0)
    number = open_group(client)
    rig.advance(ANSWER_TIMEOUT_S - 0.1)
    assert not client.has_answer(number)
    rig.advance(0.2)
    assert client.answer(number)[0] == errors.HOME_NOT_READY
    assert questions(rig.start_home(0)) == []


def test_a_question_follows_a_lane_to_its_new_home(make_rig: Any) -> None:
    rig = make_rig(homes=2)
    client = rig.client("reader", "owner")
    rig.controller.put("q", owner="owner")
    number = open_group(client)
    assert len(questions(rig.homes[0])) == 1
    rig.controller.put("q", homes=[1])
    assert questions(rig.homes[1]) == [(0, "open", ["g", HOUR_MS])]
    answer(rig.homes[0], FIGURES)
    assert not client.has_answer(number), "the old home has no say any more"
    answer(rig.homes[1], FIGURES)
    assert client.answer(number)[0] == 0


def test_a_late_answer_and_one_of_an_endpoint_that_is_gone_do_no_harm(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    number = open_group(client)
    home = rig.homes[0]
    questions(home)
    rig.controller.delete("q")
    assert client.answer(number)[0] == errors.UNKNOWN_ENDPOINT
    answer(home, FIGURES)


# --- ranges -----------------------------------------------------------------------------------------------------


def test_a_range_is_bound_at_its_partition_and_ends_with_code_0(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    wanted = {"group": "g", "partition": 1, "first": 1, "end": 9}
    flow = client.bind("p", browse=True, range=wanted)["flow"]
    home = rig.homes[0]
    ((arguments, number),) = [(home.bound[number], number) for number in home.bound]
    assert arguments[0] & 1023 == 1
    assert {name: arguments[5][name] for name in ("group", "first", "end")} == {
        "group": "g",
        "first": 1,
        "end": 9,
    }
    home.send(number, 3, partition=1)
    home.event(number, wire.FLOW_CLOSED)
    rig.settle()
    assert client.messages() == 3
    assert client.taken(wire.INDICATION) == [[flow, wire.FLOW_CLOSED, 0, None]]
    assert client.session.flows == {}


def test_a_range_goes_on_where_it_was_when_its_home_comes_back(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    client.bind("q", browse=True, range={"group": "g", "partition": 0, "first": 1, "end": 90})
    home = rig.homes[0]
    home.send(home.flow_at(queue), 7)
    rig.kill_home(0)
    home = rig.start_home(0)
    (arguments,) = home.arguments("bind")
    assert (arguments[5]["first"], arguments[5]["end"]) == (8, 90)


@pytest.mark.parametrize(
    ("wanted", "more"),
    [
        ({"group": "g", "partition": 0, "first": 5, "end": 4}, {}),
        ({"group": "g", "partition": 3, "first": 1, "end": 4}, {}),
        ({"group": "x\n", "partition": 0, "first": 1, "end": 4}, {}),
        ({"group": "g", "partition": 0, "first": 1, "end": 4}, {"selector": "a = 1"}),
        ({"group": "g", "partition": 0, "first": 1, "end": 4}, {"browse": False}),
        ({"group": "g", "partition": 0, "first": -1, "end": 4}, {}),
        ({"group": "g", "partition": 0, "first": 1}, {}),
    ],
)
def test_nonsense_in_a_range_is_refused(
    client: FakeClient, queue: Endpoint, wanted: dict[str, Any], more: dict[str, Any]
) -> None:
    assert client.refused("q", **{"browse": True, "range": wanted, **more}) == errors.INVALID_ARGUMENT


# --- rights -----------------------------------------------------------------------------------------------------


def test_the_permission_to_consume_is_needed_for_everything(rig: Rig, queue: Endpoint) -> None:
    rig.controller.put("q", permission="read-only")
    other = rig.client("other", "stranger")
    calls = [
        other.request("group.open", name="q", group="g", lease_ms=HOUR_MS),
        other.request("group.positions", name="q", group="g", lanes=[[0, 1]]),
        other.request("group.plan", name="q", group="g", lanes=[[0, 1, 1, 0]]),
        other.request("group.acknowledge", name="q", group="g", lanes=[[0, 1, 1]]),
        other.request("group.release", name="q", group="g", lanes=[[0, 1]]),
    ]
    assert [code for code, _ in calls] == [errors.PERMISSION_DENIED] * 5
    wanted = {"group": "g", "partition": 0, "first": 1, "end": 4}
    assert other.refused("q", browse=True, range=wanted) == errors.PERMISSION_DENIED
    other.bind("q", browse=True)
    assert questions(rig.homes[0]) == []


def test_a_range_is_closed_when_the_permission_is_taken_away(rig: Rig, queue: Endpoint) -> None:
    rig.controller.put("q", permission="consume")
    other = rig.client("other", "stranger")
    wanted = {"group": "g", "partition": 0, "first": 1, "end": 4}
    other.bind("q", browse=True, range=wanted, messages=BIG, bytes=BIG)
    rig.controller.put("q", permission="read-only")
    assert [found[2] for found in other.taken(wire.INDICATION)] == [errors.PERMISSION_DENIED]


def test_queues_that_are_not_there_or_temporary_are_not_leased(rig: Rig, client: FakeClient) -> None:
    client.bind("t", temporary=True)
    found = [client.answer(open_group(client, name))[0] for name in ("none", "t")]
    assert found == [errors.UNKNOWN_ENDPOINT, errors.INVALID_DURABILITY]


@pytest.mark.parametrize("group", ["", "x" * 201, "é" * 101, "a\tb", "a\x00b", "‮abc"])
def test_names_that_cannot_be_printed_or_are_too_long_are_refused(
    client: FakeClient, queue: Endpoint, group: str
) -> None:
    assert client.answer(open_group(client, "q", group))[0] == errors.INVALID_ARGUMENT
