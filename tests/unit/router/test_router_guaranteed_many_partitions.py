"""Flows on queues of very many partitions: what is done for them is done in steps, and others do not wait for it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from angarium_server.frames.homes import Credit, FlowFrame, Unbind
from cluster import objects
from router.flows import assignments
from router.flows.ends import PIECE, STEP_MAX
from router.flows.partitions import COMPARED_MAX, MOVED, Coordinator, Step
from router.ground.effects import SendWorker
from router.ground.ground import ORDERS_MAX, Outbox
from router.guaranteed.lanes import PUTS_MAX
from router.matching.shards import Shard

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint
    from tests.unit.router.flow_rig import FakeClient, Rig

PARTITIONS = 3 * STEP_MAX


@pytest.fixture
def parted(rig: Rig) -> Endpoint:
    many: dict[str, Any] = {
        "partition_count": PARTITIONS,
        "homes": [0] * PARTITIONS,
        "partition_rebalance_delay_s": 0,
    }
    return rig.controller.put("q", owner="owner", access_type="non-exclusive", **many)


def tick(rig: Rig) -> float:
    wake = rig.consumers.tick(rig.now)
    rig.settle()
    return wake


def test_a_bind_to_very_many_partitions_is_done_in_steps_and_answered_at_the_end(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    number = client.ask("flow.bind", name="q", messages=1_000_000, bytes=1 << 40)
    for step in range(3):
        assert len(rig.homes[0].bound) == step * STEP_MAX
        assert not client.has_answer(number)
        tick(rig)
    assert client.answer(number)[1]["partitions"] == list(range(PARTITIONS))
    assert all(credit[0] > 0 for credit in rig.homes[0].credit.values()), "each has some of the credit"


def _bound(rig: Rig, client: FakeClient) -> dict[str, Any]:
    number = client.ask("flow.bind", name="q")
    rig.advance(1)
    answer: dict[str, Any] = client.answer(number)[1]
    return answer


def test_who_leaves_very_many_partitions_takes_two_steps(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    first, second = (_bound(rig, client)["flow"] for _ in range(2))
    assert len(rig.homes[0].bound) == PARTITIONS
    rig.consumers.flows.unbind(client.session, first, rig.now)
    rig.settle()
    assert len(rig.homes[0].bound) == PARTITIONS // 2
    assert len(client.session.flows[second].ends) == PARTITIONS // 2
    rig.consumers.tick(rig.now)
    assert len(client.session.flows[second].ends) == PARTITIONS
    rig.advance(1)
    assert len(rig.homes[0].bound) == PARTITIONS


def test_consumers_that_leave_in_the_same_turn_get_nothing_of_each_other(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    other = rig.client("other", "owner")
    for _ in range(3):
        _bound(rig, other)
    _bound(rig, client)
    other.leave(wanted=True)
    rig.advance(1)
    (flow,) = parted.flows.values()
    assert flow.session is client.session
    assert flow.partitions == list(range(PARTITIONS))


def test_a_queue_gets_fewer_partitions_while_others_are_to_get_what_one_had_that_left(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    first, second = (_bound(rig, client)["flow"] for _ in range(2))
    rig.consumers.flows.unbind(client.session, first, rig.now)
    half = PARTITIONS // 2
    attributes: dict[str, Any] = {
        "partition_count": half,
        "homes": [0] * half,
        "access_type": "non-exclusive",
    }
    rig.controller.put("q", owner="owner", partition_rebalance_delay_s=0, **attributes)
    rig.advance(1)
    assert client.session.flows[second].partitions == list(range(half))


def test_who_comes_and_goes_without_end_keeps_no_hand_off_of_others_waiting(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    _bound(rig, client)
    _bound(rig, client)
    number = client.ask("flow.bind", name="q")
    rig.advance(0.001)
    leaving = rig.consumers.flows._assignments._leaving
    for _ in range(40):
        if not leaving and client.has_answer(number):
            break
        rig.consumers.flows._assignments._gone.setdefault(parted.id, set())
        tick(rig)
        rig.now += 0.001
    assert not leaving
    shares = [len(flow.ends) for flow in client.session.flows.values()]
    assert max(shares) - min(shares) <= 1


def test_no_more_are_bound_before_homes_have_answered(rig: Rig, client: FakeClient, parted: Endpoint) -> None:
    """What others send to these homes would wait behind a thousand binds."""
    told: list[list[bytes]] = []
    home = rig.homes[0]
    take, home.take = home.take, told.append  # type: ignore[method-assign, assignment]
    client.ask("flow.bind", name="q")
    assert tick(rig) > rig.now, "an answer wakes it"
    for _ in range(5):
        tick(rig)
    assert [len(wire.unpack(frames[1])[1]) for frames in told] == [STEP_MAX]
    home.take = take  # type: ignore[method-assign]
    take(told[0])
    rig.settle()
    rig.advance(0.01)
    assert len(home.bound) == PARTITIONS


def test_who_binds_to_few_does_not_wait_for_who_binds_to_many(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    rig.controller.put("small", owner="owner")
    number = client.ask("flow.bind", name="q")
    assert client.bind("small")["active"]
    assert not client.has_answer(number)


def test_those_who_bind_to_many_take_turns(rig: Rig, client: FakeClient, parted: Endpoint) -> None:
    other = rig.controller.put(
        "other",
        owner="owner",
        access_type="non-exclusive",
        partition_count=PARTITIONS,
        homes=[0] * PARTITIONS,
    )
    client.ask("flow.bind", name="q")
    client.ask("flow.bind", name="other")
    tick(rig)
    of_other = [one for one in rig.homes[0].bound.values() if one[0] >> wire.LANE_BITS == other.id]
    assert len(of_other) == STEP_MAX // 2 // PIECE * PIECE


def test_a_flow_that_goes_before_it_is_bound_everywhere_is_bound_no_further(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    client.ask("flow.bind", name="q")
    tick(rig)
    client.leave(wanted=True)
    assert tick(rig) > rig.now
    assert not rig.homes[0].bound
    assert len(rig.homes[0].arguments("bind")) == STEP_MAX


def test_a_home_that_dies_between_two_steps_is_bound_at_again_when_it_is_back(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    number = client.ask("flow.bind", name="q")
    tick(rig)
    rig.kill_home(0)
    tick(rig)
    home = rig.start_home(0)
    rig.advance(0.1)
    assert len(home.bound) == PARTITIONS
    assert client.answer(number)[0] == 0
    resumed = [options["resume"] for *_, options in home.arguments("bind")]
    assert sum(resumed) == STEP_MAX, "those that the home before had"


def test_a_bind_and_a_rebalancing_take_few_messages(rig: Rig, client: FakeClient, parted: Endpoint) -> None:
    sent: list[list[bytes]] = []
    take = rig.homes[0].take

    def note(frames: list[bytes]) -> None:
        sent.append(frames)
        take(frames)

    rig.homes[0].take = note  # type: ignore[method-assign]
    client.ask("flow.bind", name="q")
    rig.advance(0.01)
    assert len(sent) == PARTITIONS / STEP_MAX
    other = rig.client("second", "owner")
    number = other.ask("flow.bind", name="q")
    rig.advance(0.1)
    assert other.answer(number)[0] == 0
    half = PARTITIONS // 2
    assert len(rig.homes[0].arguments("unbind")) == half
    binds = len(rig.homes[0].arguments("bind")) - PARTITIONS
    assert binds == half


def test_partitions_that_are_handed_off_at_once_go_to_others_in_steps(
    rig: Rig, client: FakeClient, parted: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignments, "RELEASED_PER_TICK", 10)
    client.ask("flow.bind", name="q")
    rig.advance(0.1)
    rig.client("second", "owner").ask("flow.bind", name="q")
    counts = []
    for _ in range(20):
        counts.append(len(rig.homes[0].arguments("bind")) - PARTITIONS)
        tick(rig)
    assert counts[-1] == PARTITIONS // 2
    assert max(after - before for before, after in pairwise(counts)) == 10


def test_what_is_said_about_flows_shares_a_message_unless_something_else_is_between() -> None:
    out, shard = Outbox(), Shard(0)
    out.send_order(shard, 7, 1, Unbind(None))
    out.send_order(shard, 7, 2, Credit(1, 1))
    out.send_worker(shard, [wire.STORE, b""])
    out.send_order(shard, 7, 3, Unbind(5))
    out.send_worker(shard, [wire.MATCH, b"", b""])
    effects = out.take()
    out.send_order(shard, 7, 4, Unbind(None))
    effects += out.take()
    frames = [effect.frames for effect in effects if isinstance(effect, SendWorker)]
    assert [one[0] for one in frames] == [wire.FLOW, wire.STORE, wire.FLOW, wire.MATCH, wire.FLOW]
    said = [wire.unpack(one[1]) for one in frames if one[0] == wire.FLOW]
    assert said == [
        [7, [[1, ["unbind", None, []]], [2, ["credit", 1, 1]]]],
        [7, [[3, ["unbind", 5, []]]]],
        [7, [[4, ["unbind", None, []]]]],
    ]


def test_a_message_about_flows_is_not_longer_than_its_limit() -> None:
    out, shard = Outbox(), Shard(0)
    for flow in range(1, ORDERS_MAX + 2):
        out.send_order(shard, 7, flow, Unbind(None))
    frames = [effect.frames for effect in out.take() if isinstance(effect, SendWorker)]
    assert [one[0] for one in frames] == [FlowFrame.operation] * 2
    assert [len(wire.unpack(one[1])[1]) for one in frames] == [ORDERS_MAX, 1]
    assert ORDERS_MAX == STEP_MAX, "a step here is one of a home"


def test_many_shares_are_evened_out_in_steps() -> None:
    flows = 1_000
    coordinator = Coordinator(flows)
    for flow in range(flows):
        coordinator.bind(flow, 0.0, 0.0)
    moved: list[Any] = []
    steps = 0
    while moves := coordinator.tick(0.0):
        assert len(moves) <= -(-COMPARED_MAX // (flows + MOVED))
        moved += moves
        steps += 1
    assert steps > 1
    coordinator.validate()
    given = coordinator.released([(move.partition, move.epoch) for move in moved], 0.0, 0.0)
    assert [move.step for move in given] == [Step.GIVE] * (flows - 1)
    assert all(len(coordinator.owned(flow)) == 1 for flow in range(flows))


def test_the_shares_of_few_flows_are_evened_out_in_steps() -> None:
    coordinator = Coordinator(1_000)
    for flow in (1, 2):
        coordinator.bind(flow, 0.0, 0.0)
    steps = []
    while moves := coordinator.tick(0.0):
        steps.append(len(moves))
    assert sum(steps) == 500
    assert max(steps) == -(-COMPARED_MAX // (2 + MOVED))


def test_lanes_are_made_and_deleted_some_at_a_time(rig: Rig, parted: Endpoint) -> None:
    rig.controller.delete("q")
    puts = [len(puts) for _, _, puts, _ in rig.homes[0].lanes_frames if puts]
    deletes = [len(deletes) for *_, deletes in rig.homes[0].lanes_frames if deletes]
    assert puts == deletes == [PUTS_MAX] * (PARTITIONS // PUTS_MAX)
    assert not rig.homes[0].lanes


def test_a_queue_is_there_when_its_homes_have_all_of_its_lanes(rig: Rig) -> None:
    home = rig.homes[0]
    done: list[bool] = []
    home.holds = (wire.LANES_CONFIRM,)
    wish = {"id": 1, "partition_count": 2 * PUTS_MAX, "homes": [0] * 2 * PUTS_MAX}
    attributes = objects.complete("queue", {"access_type": "non-exclusive", **wish})
    rig.endpoints.put(rig.vpn, "queue", "q", attributes, lambda: done.append(True))
    rig.settle()
    first, second = (number for number, *_ in home.lanes_frames[-2:])
    rig.consumers.lanes.confirm(0, first)
    assert not done
    rig.consumers.lanes.confirm(0, second)
    assert done
