"""Flows on partitioned queues: who has which partition, hand-offs, and the credit that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from router.flows.flow import more
from tests.unit.router.flow_rig import BIG, FakeClient, Rig

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint


@pytest.fixture
def parted(rig: Rig) -> Endpoint:
    return rig.controller.put(
        "q", owner="owner", access_type="non-exclusive", partition_count=4, homes=[0, 0, 0, 0]
    )


@pytest.mark.requirement("R101")
def test_partitions_are_shared_by_the_flows_after_the_delay(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    assert client.bind("q")["partitions"] == [0, 1, 2, 3]
    second = rig.client("second", "owner")
    bound = second.bind("q")
    assert (bound["partitions"], bound["active"]) == ([], False)
    rig.advance(4.9)
    assert second.taken(wire.INDICATION) == []
    rig.advance(0.2)
    told = [(event, detail) for _, event, _, detail in second.taken(wire.INDICATION)]
    assert told[-1] == (wire.FLOW_PARTITIONS, [2, 3])
    assert client.taken(wire.INDICATION)[-1][3] == [0, 1]
    assert len(rig.homes[0].bound) == 4


def test_a_partition_that_moves_is_settled_first_and_late_settles_are_refused(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    home = rig.homes[0]
    first = client.bind("q")["flow"]
    for partition in (2, 3):
        home.store(parted, partition=partition)
    second = rig.client("second", "owner")
    second.bind("q")
    rig.advance(5.1)
    assert home.arguments("unbind") == [[3000, []], [3000, []]]
    assert second.taken(wire.INDICATION) == []
    client.settle(first, wire.OUTCOME_ACCEPTED, (3, 1, 1))
    assert home.arguments("settle") == [[0, [[1, 1]]]]
    rig.advance(0)
    assert second.taken(wire.INDICATION)[-1][3] == [3]
    client.taken(wire.INDICATION)
    client.settle(first, wire.OUTCOME_ACCEPTED, (3, 2, 2))
    assert client.taken(wire.INDICATION) == [
        [first, wire.FLOW_SETTLE_REFUSED, errors.PARTITION_LOST, "partition 3"]
    ]
    client.settle(first, wire.OUTCOME_ACCEPTED, (2, 1, 1))
    rig.advance(0)
    assert second.taken(wire.INDICATION)[-1][3] == [2, 3]


def test_a_home_that_does_not_end_a_hand_off_is_not_waited_for(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    client.bind("q")
    second = rig.client("second", "owner")
    second.bind("q")
    rig.homes[0].holds = (wire.FLOW_EVENT,)
    rig.advance(5.1)
    rig.advance(3)
    assert second.taken(wire.INDICATION) == []
    rig.advance(3)
    assert second.taken(wire.INDICATION)[-1][3] == [2, 3]
    assert rig.homes[0].arguments("unbind")[-2:] == [[None, []], [None, []]]


def test_a_spare_flow_takes_over_at_once(rig: Rig) -> None:
    rig.controller.put("q", permission="consume", access_type="non-exclusive", partition_count=1)
    first, spare = rig.client("first"), rig.client("spare")
    first.bind("q")
    spare.bind("q")
    first.leave(wanted=False)
    rig.advance(0)
    assert spare.taken(wire.INDICATION)[-1][3] == [0]


def test_a_flow_is_told_once_of_all_that_changes_in_a_turn(rig: Rig) -> None:
    """It is told all of its partitions: with a thousand of them each time is dear."""
    rig.controller.put("q", permission="consume", access_type="non-exclusive", partition_count=8)
    clients = [rig.client(f"c{number}") for number in range(4)]
    for client in clients:
        client.bind("q")
    rig.advance(30)
    for client in clients:
        client.taken(wire.INDICATION)
    for client in clients[:3]:
        client.leave(wanted=False)
    rig.advance(0)
    told = [detail for _, event, _, detail in clients[3].taken(wire.INDICATION)]
    assert told == [list(range(8))]


def test_more_partitions_are_given_away_and_fewer_handed_off(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    rig.controller.put("q", partition_count=5, homes=[0] * 5)
    rig.advance(0)
    assert client.taken(wire.INDICATION)[-1][3] == [0, 1, 2, 3, 4]
    for partition in range(5):
        rig.homes[0].store(parted, partition=partition)
    rig.controller.put("q", partition_count=2)
    rig.advance(3.1)  # what the client has out is not waited for any longer
    assert client.taken(wire.INDICATION)[-1][3] == [0, 1]
    assert len(rig.homes[0].lanes) == 5, "their homes move what is in them"
    assert flow in client.session.flows


def test_a_queue_that_gets_partitions_or_loses_them_all_starts_its_consumers_anew(
    rig: Rig, client: FakeClient
) -> None:
    queue = rig.controller.put("q", owner="owner", access_type="non-exclusive")
    second = rig.client("second", "owner")
    client.bind("q")
    second.bind("q")
    rig.controller.put("q", partition_count=2, homes=[0, 0])
    rig.advance(0)
    assert client.taken(wire.INDICATION)[-1][3] == [0, 1]
    rig.advance(6)
    assert second.taken(wire.INDICATION)[-1][3] == [1]
    rig.controller.put("q", partition_count=0)
    assert [sorted(flow.ends) for flow in queue.flows.values()] == [[0], [0]]


def test_a_home_that_dies_in_a_hand_off_ends_it(make_rig: Any) -> None:
    rig = make_rig(2)
    parted = {"access_type": "non-exclusive", "partition_count": 2, "homes": [0, 1]}
    queue = rig.controller.put("q", owner="owner", **parted)
    client, second = rig.client("first", "owner"), rig.client("second", "owner")
    client.bind("q")
    second.bind("q")
    rig.homes[1].store(queue, partition=1)
    rig.advance(5.1)
    assert second.taken(wire.INDICATION) == []
    rig.kill_home(1)
    rig.advance(0.01)
    assert second.taken(wire.INDICATION)[-1][3] == [1]
    home = rig.start_home(1)
    assert home.verbs() == ["bind"]
    assert home.arguments("bind")[0][5]["resume"] is False


def test_a_partition_that_is_handed_off_while_its_home_is_down_keeps_its_settles(make_rig: Any) -> None:
    """Its next owner does not get what was settled."""
    rig = make_rig(2)
    rig.controller.put("q", owner="owner", access_type="non-exclusive", partition_count=2, homes=[0, 1])
    client, second = rig.client("first", "owner"), rig.client("second", "owner")
    flow = client.bind("q")["flow"]
    second.bind("q")
    rig.kill_home(1)
    client.settle(flow, wire.OUTCOME_ACCEPTED, (1, 1, 5))
    rig.advance(5.1)
    assert second.taken(wire.INDICATION)[-1][3] == [1]
    home = rig.start_home(1)
    assert home.verbs() == ["bind", "settle", "unbind", "bind"]
    assert home.arguments("settle") == [[0, [[1, 5]]]]
    assert home.arguments("bind")[1][5]["client"] == "second"
    assert home.arguments("bind")[1][5]["resume"] is False


def test_a_browser_sees_all_partitions_and_takes_none(rig: Rig, client: FakeClient, parted: Endpoint) -> None:
    client.bind("q")
    bound = client.bind("q", browse=True)
    assert bound["partitions"] == [0, 1, 2, 3]
    rig.advance(20)
    assert client.taken(wire.INDICATION) == []
    rig.controller.put("q", partition_count=5, homes=[0] * 5)
    assert len(rig.homes[0].bound) == 10


@pytest.mark.requirement("R144")
def test_selectors_work_on_partitions(rig: Rig, client: FakeClient, parted: Endpoint) -> None:
    client.bind("q", selector="a = 1")
    assert {arguments[2] for arguments in rig.homes[0].arguments("bind")} == {"a = 1"}


def test_the_credit_of_a_flow_is_shared_by_its_partitions(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    flow = client.bind("q", messages=100, bytes=100_000)["flow"]
    home = rig.homes[0]
    assert sum(messages for messages, _ in home.credit.values()) <= 100
    assert all(messages > 0 and size > 0 for messages, size in home.credit.values())
    busy = home.flow_at(parted, 2)
    got = 0
    while home.credit[busy][0] > 0 and got < 500:
        home.store(parted, 1, 100, partition=2)
        got += 1
    assert 50 <= got <= 110, "one busy partition may use most of the window"
    client.credit(flow, 100 + got, 200_000)
    assert home.credit[busy][0] > 0


def test_what_comes_too_early_is_held_until_the_client_has_credit(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    flow = client.bind("q", messages=1, bytes=100_000)["flow"]
    home = rig.homes[0]
    for partition in range(4):
        home.store(parted, 1, 100, partition=partition)
    assert client.messages() == 1
    assert next(rig.flows.describe(None, None, None))["held_messages"] == 3
    client.credit(flow, 3)
    assert client.messages() == 2
    client.credit(flow, 6)
    assert client.messages() == 1
    assert all(messages > 0 for messages, _ in home.credit.values()), "nobody starves"


def test_what_is_held_of_a_partition_that_was_handed_off_is_not_sent(
    rig: Rig, client: FakeClient, parted: Endpoint
) -> None:
    """Its next owner gets it; and the credit that it would have used is for the others."""
    flow = client.bind("q", messages=1, bytes=100_000)["flow"]
    home = rig.homes[0]
    for partition in (3, 2, 0):
        home.store(parted, 1, 100, partition=partition)
    assert client.messages() == 1
    rig.client("second", "owner").bind("q")
    rig.advance(8.1)
    assert client.taken(wire.INDICATION)[-1][3] == [0, 1]
    (described, _) = rig.flows.describe(None, None, None)
    assert described["held_messages"] == 1
    client.credit(flow, 3)
    assert [header[1][0][0] for header in client.taken(wire.MESSAGES)] == [0]
    assert home.credit[home.flow_at(parted, 0)][0] > 0
    rig.validate()


def test_a_bind_is_answered_with_the_partitions_whose_messages_come(make_rig: Any) -> None:
    """A partition that the flow had and lost before the answer is in neither."""
    rig = make_rig(2)
    endpoint = rig.controller.put(
        "q",
        owner="owner",
        access_type="non-exclusive",
        partition_count=2,
        homes=[0, 1],
        partition_rebalance_delay_s=0,
    )
    rig.homes[0].holds = (wire.FLOW_EVENT,)
    first, second = rig.client("first", "owner"), rig.client("second", "owner")
    number = first.ask("flow.bind", name="q", messages=100, bytes=BIG)
    rig.homes[1].store(endpoint, partition=1)
    second.ask("flow.bind", name="q", messages=100, bytes=BIG)
    rig.advance(3.1)
    rig.homes[0].report()
    rig.homes[0].store(endpoint, partition=0)
    code, bound = first.answer(number)
    assert (code, bound["partitions"]) == (0, [0])
    assert [header[1][0][0] for header in first.taken(wire.MESSAGES)] == [0]
    rig.validate()


@given(
    grants=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    choices=st.lists(st.integers(0, 3), min_size=1, max_size=200),
)
def test_a_client_is_never_sent_more_than_it_granted_and_no_partition_starves(
    grants: list[int], choices: list[int]
) -> None:
    rig = Rig()
    queue = rig.controller.put("q", owner="owner", access_type="non-exclusive", partition_count=4)
    client = rig.client("consumer", "owner")
    total, got = grants[0], 0
    flow = client.bind("q", messages=total, bytes=BIG)["flow"]
    home = rig.homes[0]
    for step, partition in enumerate(choices):
        home.store(queue, 1, 100, partition=partition)
        got += client.messages()
        assert got <= total
        (described,) = rig.flows.describe(None, None, None)
        assert described["held_messages"] <= total * 3 // 2 + 4
        if step % 7 == 6:
            total += grants[(step // 7) % len(grants)]
            client.credit(flow, total)
            got += client.messages()
    client.credit(flow, total + 1000)
    assert all(messages > 0 for messages, _ in home.credit.values())
    rig.validate()


@given(
    left=st.integers(1, 1000),
    own=st.integers(-50, 500),
    others=st.integers(0, 1500),
    ends=st.integers(1, 20),
)
def test_a_promise_is_half_of_what_is_free_or_a_share(left: int, own: int, others: int, ends: int) -> None:
    spoken_for = own + (others if ends > 1 else 0)
    given_now = more(left, spoken_for, own, ends)
    share = max(1, left // (2 * ends))
    assert given_now >= 0
    assert own + given_now >= 1, "who has used its share up gets something"
    assert spoken_for + given_now <= max(left, spoken_for, spoken_for - own + share)
