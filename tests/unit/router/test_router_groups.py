"""Reader groups at the router: rights, lanes that are asked in the right order, homes that come and go, ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from router.flows.groups import share_out
from router.flows.lane_questions import ANSWER_TIMEOUT_S, PIECE, STEP_MAX
from router.ground.effects import SendWorker
from router.ground.ground import TokenBucket
from router.operators import describe_endpoints
from tests.unit.router.flow_rig import INCARNATION, PARTITION_MASK, FakeClient, FlowHome, Rig

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint

pytestmark = pytest.mark.requirement("R221")

HOUR_MS = 3_600_000


@pytest.fixture
def client(rig: Rig) -> FakeClient:
    return rig.client("reader", "owner")


@pytest.fixture
def queue(rig: Rig) -> Endpoint:
    return rig.controller.put("q", owner="owner")


def open_group(client: FakeClient, name: str = "q", group: str = "g") -> int:
    return client.ask("group.open", name=name, group=group, lease_ms=HOUR_MS)


def epoch_of(value: dict[str, Any], partition: int = 0) -> int:
    """Give the epoch of a lane that was opened."""
    (figures,) = [one for number, one in value["lanes"] if number == partition]
    epoch = figures["epoch"]
    assert isinstance(epoch, int)
    return epoch


def questions(home: FlowHome) -> list[tuple[int, str, list[Any]]]:
    """Take what a home was asked: partition, verb, arguments."""
    asked, home.questions = home.questions, []
    return asked


def lease(rig: Rig, endpoint: Endpoint, group: str, partition: int) -> None:
    """Let a group have one lane."""
    lane_id = endpoint.id << wire.LANE_BITS | partition
    home = rig.homes[0]
    home.take([wire.LEASE, wire.pack([INCARNATION, 1 << 40, lane_id, ["open", group, HOUR_MS]])])
    rig.settle()
    assert questions(home)


def test_a_group_asks_the_only_lane_of_a_queue(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    home = rig.homes[0]
    home.store(queue, 7)
    home.holds = (wire.LEASED,)
    number = open_group(client)
    assert questions(home) == [(0, "open", ["g", HOUR_MS])]
    assert not client.has_answer(number)
    home.report()
    code, value = client.answer(number)
    epoch = epoch_of(value)
    assert value.pop("lanes")[0][1].items() >= {"oldest": 1, "next": 8, "continued": False}.items()
    assert (code, value) == (
        0,
        {"name": "q", "endpoint_id": queue.id, "node_id": "", "lease_ms": HOUR_MS},
    )
    plan = client.request("group.plan", name="q", group="g", lanes=[[0, epoch, 1, 0]], messages=5, bytes=None)
    assert questions(home) == [(0, "plan", ["g", epoch, 1, 0, 5, 1 << 62])]
    assert plan == (0, [[0, [1, 6, 5, 500]]])


@pytest.mark.requirement("R280")
def test_a_queue_says_how_long_a_lease_may_last_and_who_used_it_last(rig: Rig, client: FakeClient) -> None:
    short = rig.controller.put("q", owner="owner", max_lease_s=60)
    home = rig.homes[0]
    home.holds = (wire.LEASED,)
    number = open_group(client)
    assert questions(home) == [(0, "open", ["g", 60_000])]
    assert short.reader == ("", "")
    home.report()
    assert client.answer(number)[1]["lease_ms"] == 60_000
    assert short.reader == ("owner", "reader")
    other = rig.client("other", "owner")
    assert other.request("group.release", name="q", group="h", lanes=[[0, 1]])[0] == 0
    assert other.request("group.positions", name="q", group="h", lanes=[[0, 1]])[0] == errors.LEASE_LOST
    assert short.reader == ("owner", "reader"), "who does not have the lease does not count"
    assert next(describe_endpoints([short], rig.now))["reader_client"] == "reader"


def test_the_first_partition_decides_who_of_two_groups_gets_a_queue(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    assert client.answer(open_group(client, "p", "other"))[0] == 0
    questions(rig.homes[0])
    answer = client.answer(open_group(client, "p"))
    assert answer == (errors.ENDPOINT_LEASED, "reader group 'other' has it")
    assert questions(rig.homes[0]) == [(0, "open", ["g", HOUR_MS])]


def test_only_its_home_says_whether_a_partition_that_was_taken_away_has_something_for_the_group(
    rig: Rig, client: FakeClient
) -> None:
    """A router that has just started has no figures of it: all of them may hold what the group has planned."""
    queue = rig.controller.put("p", owner="owner", partition_count=4, access_type="non-exclusive")
    home = rig.homes[0]
    home.store(queue, partition=2)
    lease(rig, queue, "g", 2)
    planned = client.request("group.plan", name="p", group="g", lanes=[[2, 0, 1, 0]], messages=5)
    assert planned == (0, [[2, [1, 2, 1, 100]]])
    rig.controller.put("p", partition_count=1)
    questions(home)
    code, value = client.answer(open_group(client, "p"))
    assert [asked[:2] for asked in questions(home)] == [(partition, "open") for partition in range(4)]
    assert code == 0
    assert [(number, figures["continued"]) for number, figures in value["lanes"]] == [(0, False), (2, True)]


def test_nothing_is_released_of_partitions_that_had_nothing_for_the_group(
    rig: Rig, client: FakeClient
) -> None:
    queue = rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    rig.homes[0].store(queue, partition=2)
    lease(rig, queue, "other", 2)
    rig.controller.put("p", partition_count=1)
    assert client.answer(open_group(client, "p"))[0] == errors.ENDPOINT_LEASED
    asked = questions(rig.homes[0])
    assert [one[:2] for one in asked] == [(0, "open"), (1, "open"), (2, "open"), (0, "release")]


@pytest.mark.parametrize("continued", [True, False])
def test_what_was_leased_in_vain_is_released_and_what_was_leased_before_is_not(
    rig: Rig, client: FakeClient, continued: bool
) -> None:
    queue = rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    lease(rig, queue, "other", 2)
    if continued:
        lease(rig, queue, "g", 0)
    assert client.answer(open_group(client, "p"))[0] == errors.ENDPOINT_LEASED
    opened = [(partition, "open") for partition in range(3)]
    asked = [one[:2] for one in questions(rig.homes[0])]
    assert asked == [*opened, *([] if continued else [(0, "release")]), (1, "release")]


def test_limits_are_shared_out_by_what_partitions_have(rig: Rig, client: FakeClient) -> None:
    queue = rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    home = rig.homes[0]
    home.store(queue, 2, partition=1)
    home.store(queue, 100, partition=2)
    opened = client.answer(open_group(client, "p"))[1]
    epochs = [epoch_of(opened, partition) for partition in range(3)]
    lanes = [[partition, epochs[partition], 1, 0] for partition in range(3)]
    questions(home)
    answer = client.request("group.plan", name="p", group="g", lanes=lanes, messages=10, bytes=None)
    first, second = epochs[1:]
    assert questions(home) == [
        *[(partition, "count", ["g", epochs[partition], 1]) for partition in range(3)],
        (1, "plan", ["g", first, 1, 0, 2, 200]),
        (2, "plan", ["g", second, 1, 0, 8, 10_000]),
    ]
    assert answer == (0, [[0, [1, 1, 0, 0]], [1, [1, 3, 2, 200]], [2, [1, 9, 8, 800]]])


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
    rig.homes[0].holds = (wire.LEASED,)
    number = open_group(client)
    rig.kill_home(0)
    assert not client.has_answer(number)
    home = rig.start_home(0)
    assert questions(home) == [(0, "open", ["g", HOUR_MS])]
    assert client.answer(number)[0] == 0


def test_a_question_waits_for_a_home_and_not_for_ever(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    rig.kill_home(0)
    number = open_group(client)
    rig.advance(ANSWER_TIMEOUT_S - 0.1)
    assert not client.has_answer(number)
    rig.advance(0.2)
    assert client.answer(number)[0] == errors.HOME_NOT_READY
    assert questions(rig.start_home(0)) == []


def sent(rig: Rig) -> list[int]:
    """Carry no effects but take them; gives the endpoints of which homes were asked something."""
    effects = [one for one in rig.out.take() if isinstance(one, SendWorker)]
    asked = [wire.unpack(one.frames[1])[2] for one in effects if one.frames[0] == wire.LEASE]
    return [lane_id >> wire.LANE_BITS for lane_id in asked]


def test_questions_to_many_partitions_leave_in_steps_and_endpoints_take_turns(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    many = rig.controller.put("p", owner="owner", partition_count=200, access_type="non-exclusive")
    rig.consumers.tick(rig.now)
    wish = {"name": "p", "group": "g", "lanes": [[partition, 1] for partition in range(200)]}
    rig.requests.handle(client.session, wire.pack([1, "group.positions", wish]), rig.now)
    other = {"name": "q", "group": "g", "lanes": [[0, 1]]}
    rig.requests.handle(client.session, wire.pack([2, "group.positions", other]), rig.now)
    assert sent(rig) == [many.id] * STEP_MAX
    assert rig.consumers.tick(rig.now) == rig.now
    assert sent(rig) == [many.id] * PIECE + [queue.id] + [many.id] * (STEP_MAX - PIECE - 1)
    while rig.consumers.tick(rig.now) == rig.now:
        assert len(sent(rig)) <= STEP_MAX
    rig.consumers.validate()


def test_a_home_that_is_back_is_asked_in_steps(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("p", owner="owner", partition_count=200, access_type="non-exclusive")
    opened = client.answer(open_group(client, "p"))[1]
    rig.kill_home(0)
    lanes = [[partition, epoch_of(opened, partition)] for partition in range(200)]
    number = client.ask("group.positions", name="p", group="g", lanes=lanes)
    rig.start_home(0)
    assert len(client.answer(number)[1]) == 200


def test_partitions_count_towards_the_rate_of_a_client(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("p", owner="owner", partition_count=200, access_type="non-exclusive")
    client.session.bucket = TokenBucket(10, 20, rig.now)
    assert client.answer(open_group(client, "p"))[0] == 0
    assert client.answer(open_group(client, "p"))[0] == errors.CONTROL_RATE_EXCEEDED
    rig.now += 2.0
    assert client.answer(open_group(client, "p"))[0] == 0


def test_a_question_follows_a_lane_to_its_new_home(make_rig: Any) -> None:
    rig = make_rig(homes=2)
    client = rig.client("reader", "owner")
    rig.controller.put("q", owner="owner")
    for home in rig.homes.values():
        home.holds = (wire.LEASED,)
    number = open_group(client)
    assert len(questions(rig.homes[0])) == 1
    rig.controller.put("q", homes=[1])
    assert questions(rig.homes[1]) == [(0, "open", ["g", HOUR_MS])]
    rig.homes[0].report()
    assert not client.has_answer(number), "the old home has no say any more"
    rig.lets_adopt = True
    rig.homes[0].part(next(iter(rig.homes[0].lanes)))
    rig.homes[1].report()
    rig.advance(1.0)
    assert client.answer(number)[0] == 0


def test_a_late_answer_and_one_of_an_endpoint_that_is_gone_do_no_harm(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    rig.homes[0].holds = (wire.LEASED,)
    number = open_group(client)
    rig.controller.delete("q")
    assert client.answer(number)[0] == errors.UNKNOWN_ENDPOINT
    rig.homes[0].report()
    assert not client.received


# --- ranges -----------------------------------------------------------------------------------------------------


def plan(client: FakeClient, name: str, partition: int = 0) -> None:
    """Open the reader group, and plan all that a partition has."""
    epoch = epoch_of(client.answer(open_group(client, name))[1], partition)
    code, _ = client.request("group.plan", name=name, group="g", lanes=[[partition, epoch, 1, 0]])
    assert code == 0


def test_a_range_is_bound_at_its_partition_and_ends_with_code_0(rig: Rig, client: FakeClient) -> None:
    queue = rig.controller.put("p", owner="owner", partition_count=3, access_type="non-exclusive")
    home = rig.homes[0]
    home.store(queue, 8, partition=1)
    plan(client, "p", 1)
    wanted = {"group": "g", "partition": 1, "first": 1, "end": 9}
    flow = client.bind("p", browse=True, range=wanted)["flow"]
    (arguments,) = home.arguments("bind")
    assert arguments[0] & PARTITION_MASK == 1
    assert {name: arguments[5][name] for name in ("group", "first", "end")} == {
        "group": "g",
        "first": 1,
        "end": 9,
    }
    rig.advance(0.1)
    assert client.messages() == 8
    assert client.taken(wire.INDICATION) == [[flow, wire.FLOW_CLOSED, 0, None]]
    assert client.session.flows == {}


def test_a_range_goes_on_where_it_was_when_its_home_comes_back(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    rig.homes[0].store(queue, 89)
    plan(client, "q")
    client.bind("q", browse=True, range={"group": "g", "partition": 0, "first": 1, "end": 90}, messages=7)
    assert client.messages() == 7
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
    rig.homes[0].store(queue, 3)
    plan(other, "q")
    wanted = {"group": "g", "partition": 0, "first": 1, "end": 4}
    other.bind("q", browse=True, range=wanted, messages=1)
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
