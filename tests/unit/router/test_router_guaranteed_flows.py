"""Flows: binding, credit, settling, homes that come and go, temporary endpoints, partitions."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.errors import InvalidRequestError
from router.flows.ends import PENDING_RANGES_MAX
from router.flows.flow import KEPT_RANGES_MAX, Flow
from router.flows.flows import BIND_TIMEOUT_S
from tests.garbage import uncollected
from tests.unit.router.flow_rig import BIG, FakeClient, Rig

if TYPE_CHECKING:
    from router.guaranteed.endpoints import Endpoint


@pytest.fixture
def queue(rig: Rig) -> Endpoint:
    return rig.controller.put("q", owner="owner")


# -- binding -------------------------------------------------------------------------------------------------


def test_a_bind_is_answered_when_the_home_has_answered(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    rig.client("first", "owner").bind("q")
    home = rig.homes[0]
    home.holds = (wire.FLOW_EVENT,)
    number = client.ask("flow.bind", name="q", messages=10, bytes=1000, selector="a = 1")
    assert not client.has_answer(number)
    (_, arguments) = home.arguments("bind")
    assert arguments[:5] == [queue.id << wire.LANE_BITS, False, "a = 1", 10, 1000]
    assert arguments[5] == {
        "no_local": 0,
        "max_unacked": None,
        "resume": False,
        "client": "consumer",
        "username": "owner",
        "active_indication": False,
        "in_order": False,
        "group": "",
        "first": 0,
        "end": -1,
        "holder": "",
    }
    home.report()
    code, value = client.answer(number)
    assert code == 0
    assert value == {
        "flow": 1,
        "name": "q",
        "endpoint_id": queue.id,
        "active": False,
        "partitions": [],
        "access_type": "exclusive",
        "max_unacked": 10_000,
    }


def test_no_local_of_a_flow_or_of_its_client_tells_the_home_whose_messages_are_not_for_it(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    rig.controller.put("other", owner="owner")
    client.bind("q", no_local=True)
    client.session.no_local = True
    client.bind("other")
    assert client.session.publisher
    assert [arguments[5]["no_local"] for arguments in rig.homes[0].arguments("bind")] == [
        client.session.publisher
    ] * 2


def test_what_a_home_sends_before_the_answer_comes_after_it(make_rig: Any) -> None:
    """The other home of the queue has not answered yet."""
    rig = make_rig(2)
    client = rig.client("consumer", "owner")
    parted = {"access_type": "non-exclusive", "partition_count": 2, "homes": [0, 1]}
    queue = rig.controller.put("q", owner="owner", **parted)
    rig.homes[1].holds = (wire.FLOW_EVENT,)
    client.ask("flow.bind", name="q", messages=10, bytes=BIG)
    rig.homes[0].store(queue, 3)
    assert rig.homes[0].credit[rig.homes[0].flow_at(queue)][0] < 5, "they were sent"
    assert not client.received
    rig.homes[1].report()
    assert [frames[0] for frames in client.received] == [wire.ANSWER, wire.MESSAGES]


@pytest.mark.requirement("R127")
def test_a_client_whose_profile_forbids_receiving_does_not_bind(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    rig.vpn.profiles["default"]["allow_guaranteed_receive"] = False
    assert client.refused("q") == errors.GUARANTEED_RECEIVE_DENIED


@pytest.mark.requirement("R128", "R129", "R135")
def test_the_layers_are_judged_from_the_profile_to_the_limits(rig: Rig, client: FakeClient) -> None:
    stranger = rig.client("stranger", "stranger")
    assert stranger.refused("q") == errors.UNKNOWN_ENDPOINT
    queue = rig.controller.put("q", owner="owner", egress_enabled=False)
    assert stranger.refused("q") == errors.PERMISSION_DENIED
    assert stranger.refused("q", temporary=True) == errors.INVALID_DURABILITY
    assert client.refused("q") == errors.ENDPOINT_SHUTDOWN
    rig.controller.put("q", egress_enabled=True, max_bind_count=1)
    client.bind("q")
    assert client.refused("q") == errors.MAX_BIND_COUNT_EXCEEDED
    assert queue.counters == {"bind_other_failures": 2, "bind_disabled": 1, "bind_max_count_exceeded": 1}


def test_a_client_and_a_message_vpn_have_a_limited_number_of_flows(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    rig.vpn.profiles["default"]["max_egress_flow_count"] = 2
    client.bind("q")
    client.bind("q")
    assert client.refused("q") == errors.TOO_MANY_FLOWS
    second = rig.client("second", "owner")
    rig.vpn.attributes = {**rig.vpn.attributes, "max_egress_flow_count": 3}
    second.bind("q")
    assert second.refused("q") == errors.TOO_MANY_FLOWS
    client.request("flow.unbind", flow=1)
    second.bind("q")
    assert rig.vpn.egress_flows == 3


def test_a_username_has_a_share_of_the_flows_of_its_message_vpn(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    rig.vpn.profiles["default"]["max_egress_flow_count_per_client_username"] = 2
    client.bind("q")
    second = rig.client("second", "owner")
    second.bind("q")
    assert [client.refused("q"), second.refused("q")] == [errors.TOO_MANY_FLOWS] * 2
    rig.controller.put("other", owner="other")
    rig.client("third", "other").bind("other")
    second.request("flow.unbind", flow=1)
    client.bind("q")
    told = [(event["event"], event.get("username")) for event in rig.events]
    assert told[:2] == [
        ("VPN_AD_CLIENT_USERNAME_EGRESS_FLOWS_HIGH", "owner"),
        ("VPN_AD_CLIENT_USERNAME_EGRESS_FLOWS_EXCEEDED", "owner"),
    ]


@pytest.mark.parametrize(
    "attributes",
    [{"access_type": "non-exclusive"}, {"max_redelivery_count": 3}, {"redelivery_enabled": False}],
)
def test_order_is_refused_where_it_cannot_be_kept(
    rig: Rig, client: FakeClient, queue: Endpoint, attributes: dict[str, Any]
) -> None:
    rig.controller.put("unfit", owner="owner", **attributes)
    assert client.refused("unfit", in_order=True) == errors.QUEUE_UNFIT
    client.bind("q", in_order=True)
    client.bind("q")
    told = [arguments[5]["in_order"] for arguments in rig.homes[0].arguments("bind")]
    assert told == [True, False]
    assert queue.flows


@pytest.mark.requirement("R141")
def test_a_selector_has_at_most_2000_bytes(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    client.bind("q", selector="a" * 2000)
    assert client.refused("q", selector="ä" * 1001) == errors.INVALID_SELECTOR


@pytest.mark.requirement("R140")
def test_a_home_that_refuses_a_bind_says_why(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    code, why = client.request("flow.bind", name="q", selector="a =")
    assert code == errors.INVALID_SELECTOR
    assert "position 3" in why
    assert queue.flows == {}
    assert queue.counters == {"bind_invalid_selector": 1}


def test_a_home_that_does_not_answer_is_not_waited_for_for_ever(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    rig.kill_home(0)
    number = client.ask("flow.bind", name="q")
    rig.advance(BIND_TIMEOUT_S - 0.1)
    assert not client.has_answer(number)
    rig.advance(0.2)
    assert client.answer(number)[0] == errors.HOME_NOT_READY
    assert len(rig.flows) == 0
    assert rig.start_home(0).flow_frames == []


def test_a_bind_waits_for_a_home_that_comes_in_time(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    rig.kill_home(0)
    number = client.ask("flow.bind", name="q")
    rig.start_home(0)
    assert client.answer(number)[0] == 0


@pytest.mark.requirement("R136")
def test_a_browser_may_read_and_never_settle(rig: Rig) -> None:
    queue = rig.controller.put("q", permission="read-only")
    reader = rig.client("reader", "reader")
    flow = reader.bind("q", browse=True)["flow"]
    assert rig.homes[0].arguments("bind")[0][1] is True
    rig.homes[0].store(queue, 2)
    assert reader.messages() == 2
    reader.settle(flow, wire.OUTCOME_ACCEPTED, (0, 1, 2))
    assert rig.homes[0].arguments("settle") == []
    ((told, event, code, _),) = reader.taken(wire.INDICATION)
    assert (told, event, code) == (flow, wire.FLOW_SETTLE_REFUSED, errors.PERMISSION_DENIED)


@pytest.mark.requirement("R150")
def test_a_browser_may_have_a_selector(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    client.bind("q", browse=True, selector="a = 1")
    assert rig.homes[0].arguments("bind")[0][1:3] == [True, "a = 1"]


def test_activity_is_told_to_those_who_asked(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    other = rig.client("other", "owner")
    for _ in range(2):
        other.bind("q")
    client.bind("q", active_indication=True)
    client.bind("q")
    asked, _ = [
        flow for flow, arguments in rig.homes[0].bound.items() if arguments[5]["client"] == "consumer"
    ]
    other.leave(wanted=True)
    rig.homes[0].event(asked, wire.FLOW_ACTIVE)  # said twice
    rig.client("reader", "owner").request("group.open", name="q", group="g", lease_ms=60_000)
    assert client.taken(wire.INDICATION) == [[1, wire.FLOW_ACTIVE, 0, None], [1, wire.FLOW_INACTIVE, 0, None]]


def test_changed_attributes_end_the_flows_that_may_not_be_any_more(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    guest = rig.client("guest", "guest")
    rig.controller.put("q", permission="consume")
    guest.bind("q")
    mine = client.bind("q")["flow"]
    rig.controller.put("q", permission="read-only")
    assert guest.taken(wire.INDICATION)[0][1:3] == [wire.FLOW_CLOSED, errors.PERMISSION_DENIED]
    assert client.taken(wire.INDICATION) == []
    rig.controller.put("q", egress_enabled=False)
    assert client.taken(wire.INDICATION)[0][:3] == [mine, wire.FLOW_CLOSED, errors.ENDPOINT_SHUTDOWN]
    assert rig.homes[0].bound == {}


def test_a_flow_in_order_ends_where_order_is_not_kept_any_more(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    """What another consumer had would come to a bridge behind higher positions, and be taken for transferred."""
    flow = client.bind("q", in_order=True)["flow"]
    client.bind("q")
    rig.controller.put("q", access_type="non-exclusive")
    assert [told[:3] for told in client.taken(wire.INDICATION)] == [
        [flow, wire.FLOW_CLOSED, errors.QUEUE_UNFIT]
    ]


@pytest.mark.requirement("R180")
def test_a_deleted_endpoint_takes_its_flows_along_before_its_lanes_go(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    rig.controller.delete("q")
    assert client.taken(wire.INDICATION)[0][:3] == [flow, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT]
    assert rig.homes[0].verbs() == ["bind", "unbind"]
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 1, 1))  # it crossed the news: no fault of the client
    client.credit(flow, 500)


# -- credit and messages -------------------------------------------------------------------------------------


@pytest.mark.requirement("R186", "R187")
def test_credit_is_passed_on_as_totals(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    flow = client.bind("q", messages=10, bytes=1000)["flow"]
    home = rig.homes[0]
    home.store(queue, 10, 90)
    assert client.messages() == 10
    client.credit(flow, 25, 2500)
    assert home.arguments("credit") == [[25, 2500]]
    assert home.credit[home.flow_at(queue)] == [15, 1600]


@pytest.mark.parametrize("credit", [[1, 9, 1000], [1, 10, 999], [1, -1, 0], [1, 10], ["x", 1, 1]])
def test_credit_that_falls_or_is_none_ends_the_session(
    rig: Rig, client: FakeClient, queue: Endpoint, credit: list[Any]
) -> None:
    client.bind("q", messages=10, bytes=1000)
    with pytest.raises(InvalidRequestError) as caught:
        rig.flows.ends.credit(client.session, wire.pack(credit))
    assert caught.value.code == errors.MALFORMED_FRAME


def test_a_flow_that_never_was_ends_the_session_and_one_that_is_over_does_not(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    assert client.request("flow.unbind", flow=flow) == (0, None)
    client.credit(flow, 500)
    for header in ([0, 1, 1], [flow + 1, 1, 1]):
        with pytest.raises(InvalidRequestError) as caught:
            rig.flows.ends.credit(client.session, wire.pack(header))
        assert caught.value.code == errors.UNKNOWN_FLOW
    assert client.request("flow.unbind", flow=7)[0] == errors.UNKNOWN_FLOW


def test_what_a_client_gives_back_with_a_flow_goes_to_the_homes_of_its_partitions(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    released = [[0, 3, 7], [5, 1, 1], [0, 9, 9]]
    assert client.request("flow.unbind", flow=flow, released=[[0, 0, 1]])[0] == errors.INVALID_ARGUMENT
    assert client.request("flow.unbind", flow=flow, released=released) == (0, None)
    assert rig.homes[0].arguments("unbind") == [[None, [[3, 7], [9, 9]]]]


def test_a_client_that_grants_without_end_gets_little_ahead_of_what_it_reads(make_rig: Any) -> None:
    unread_max = 1 << 20
    rig = make_rig(egress_unread_bytes=unread_max)
    queue = rig.controller.put("q")
    client = rig.client("greedy", guaranteed_endpoint_permission_override=True)
    client.bind("q", messages=BIG, bytes=BIG)
    home, flow = rig.homes[0], rig.homes[0].flow_at(queue)
    sent = 0
    while home.credit[flow][1] > 0 and sent < 100 * unread_max:
        home.store(queue, 1, 10_000)
        sent += 10_000
    assert sent <= 2 * unread_max
    assert not rig.egress.is_blocked(client.session), "slow is no fault"
    # It reads, and says so.
    while client.session.probes:
        assert rig.egress.was_read(client.session, client.session.probes[0][0])
    rig.flows.ends.session_reads(client.session)
    rig.settle()
    assert home.credit[flow][1] > 0


def test_a_few_large_messages_do_not_end_the_session_of_a_slow_client(make_rig: Any) -> None:
    unread_max = 1 << 20
    rig = make_rig(egress_unread_bytes=unread_max)
    queue = rig.controller.put("q", access_type="non-exclusive")
    client = rig.client("slow", guaranteed_endpoint_permission_override=True)
    for _ in range(4):
        client.bind("q", messages=BIG, bytes=BIG)
        rig.homes[0].store(queue, 1, 2 * unread_max)
    assert all(size <= 0 for _, size in rig.homes[0].credit.values()), "each got one"
    assert not rig.egress.is_blocked(client.session)
    for _ in range(3):
        rig.egress.answer(client.session, [wire.ANSWER, b"x" * unread_max])
    assert rig.egress.is_blocked(client.session), "answers that nobody reads do"
    assert len(queue.flows) == 4


def test_the_homes_hear_of_a_renewed_window_only_now_and_then(make_rig: Any) -> None:
    rig = make_rig()
    queue = rig.controller.put("q")
    client = rig.client("greedy", guaranteed_endpoint_permission_override=True)
    client.bind("q", messages=BIG, bytes=BIG)
    home = rig.homes[0]
    for _ in range(200):
        home.store(queue, 10, 10_000)
        while client.session.probes:
            rig.egress.was_read(client.session, client.session.probes[0][0])
    assert 2 <= len(home.arguments("credit")) <= 10


def test_messages_of_a_flow_that_was_unbound_meanwhile_are_dropped(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    home = rig.homes[0]
    home.holds = (wire.FLOW_MESSAGES,)
    home.store(queue, 3)
    client.request("flow.unbind", flow=flow)
    home.report()
    assert client.messages() == 0
    assert rig.counters.totals["flow_messages_late"] == 3


# -- settling ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R188", "R191")
def test_ranges_of_a_settle_go_to_the_home_as_they_are(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    flow = client.bind("q")["flow"]
    rig.homes[0].store(queue, 9)
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 5, 9), (0, 1, 1))
    client.settle(flow, wire.OUTCOME_FAILED, (0, 2, 3))
    assert rig.homes[0].arguments("settle") == [[0, [[5, 9], [1, 1]]], [2, [[2, 3]]]]
    assert next(rig.flows.describe(None, None, "q"))["settled_messages"] == 8


def test_a_client_that_claims_more_than_it_got_is_counted_no_higher(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    rig.homes[0].store(queue, 3)
    for _ in range(3):
        client.settle(flow, wire.OUTCOME_ACCEPTED, *[(0, 1, 1 << 62)] * 100)
    assert next(rig.flows.describe(None, None, "q"))["settled_messages"] == 3


@pytest.mark.parametrize(
    "settle", [[1, 4, [[0, 1, 1]]], [1, 0, [[0, 2, 1]]], [1, 0, [[0, 0, 1]]], [1, 0, [[-1, 1, 1]]], [1, 0]]
)
def test_a_settle_that_is_none_ends_the_session(
    rig: Rig, client: FakeClient, queue: Endpoint, settle: list[Any]
) -> None:
    client.bind("q")
    with pytest.raises(InvalidRequestError) as caught:
        rig.flows.ends.settle(client.session, wire.pack(settle))
    assert caught.value.code == errors.MALFORMED_FRAME


def test_a_settle_for_a_partition_that_is_not_there_is_refused(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    client.settle(flow, wire.OUTCOME_ACCEPTED, (3, 1, 1))
    assert client.taken(wire.INDICATION)[0][:3] == [flow, wire.FLOW_SETTLE_REFUSED, errors.NOT_DELIVERED]


def test_what_the_home_refuses_is_told_to_the_client(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    flow = client.bind("q")["flow"]
    home = rig.homes[0]
    home.event(home.flow_at(queue), wire.FLOW_SETTLE_REFUSED, errors.NOT_DELIVERED, "7")
    rig.settle()
    assert client.taken(wire.INDICATION) == [[flow, wire.FLOW_SETTLE_REFUSED, errors.NOT_DELIVERED, "7"]]


# -- homes that come and go ----------------------------------------------------------------------------------


@pytest.mark.requirement("R190")
def test_a_flow_goes_on_at_a_home_that_comes_back_with_the_credit_that_remains(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q", messages=10, bytes=10_000)["flow"]
    number = rig.homes[0].flow_at(queue)
    rig.homes[0].store(queue, 4, 100)
    rig.kill_home(0)
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 1, 2))
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 3, 3))
    client.settle(flow, wire.OUTCOME_REJECTED, (0, 4, 4))
    client.credit(flow, 15, 12_000)
    home = rig.start_home(0)
    assert home.verbs() == ["bind", "settle", "settle"]
    (arguments,) = home.arguments("bind")
    assert home.flow_at(queue) == number, "under the number that it had"
    assert arguments[3:5] == [11, 11_600]
    assert arguments[5]["resume"] is True
    assert home.arguments("settle") == [[0, [[1, 3]]], [3, [[4, 4]]]], "joined, and in order"
    home.store(queue, 11, 70)
    assert client.messages() == 15
    assert client.taken(wire.INDICATION) == []


def test_credit_that_was_overdrawn_is_nothing_after_a_restart(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q", messages=10, bytes=100)["flow"]
    rig.homes[0].store(queue, 1, 500)
    rig.kill_home(0)
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 1, 1))
    home = rig.start_home(0)
    assert home.arguments("bind")[0][3:5] == [0, 0]
    client.credit(flow, 10, 600)
    assert home.credit[home.flow_at(queue)] == [9, 100]


def test_settles_for_a_home_that_stays_away_are_kept_up_to_a_bound(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    rig.kill_home(0)
    for start in range(0, KEPT_RANGES_MAX + 10, 10):
        # Every other position, so that nothing can be joined.
        client.settle(
            flow, wire.OUTCOME_ACCEPTED, *[(0, 2 * n + 1, 2 * n + 1) for n in range(start, start + 10)]
        )
    assert rig.flows.ends.settles_lost == 10
    home = rig.start_home(0)
    ((_, ranges),) = home.arguments("settle")
    assert len(ranges) == KEPT_RANGES_MAX
    assert ranges[0] == [21, 21], "the oldest were given up"


def test_the_flows_of_a_client_share_the_bound_of_settles_for_homes_that_stay_away(
    rig: Rig, client: FakeClient
) -> None:
    flows = []
    for name in ("a", "b", "c"):
        rig.controller.put(name, owner="owner")
        flows.append(client.bind(name)["flow"])
    rig.kill_home(0)
    for flow in flows[:2]:
        _settle_apart(client, flow, KEPT_RANGES_MAX // 2 + 10)
    _settle_apart(client, flows[2], 5)
    assert client.session.kept_ranges == KEPT_RANGES_MAX
    assert rig.flows.ends.settles_lost == 20 + 5, "a flow displaces only what it said itself"
    home = rig.start_home(0)
    assert [len(ranges) for _, ranges in home.arguments("settle")] == [
        KEPT_RANGES_MAX // 2 + 10,
        KEPT_RANGES_MAX // 2 - 10,
    ]
    assert not client.session.kept_ranges


def test_what_clients_that_left_had_settled_at_a_home_that_stays_away_has_a_bound(rig: Rig) -> None:
    rig.controller.put("q", owner="owner")
    clients = [rig.client(f"c{number}", "owner") for number in range(3)]
    flows = [client.bind("q")["flow"] for client in clients]
    rig.kill_home(0)
    for client, flow in zip(clients, flows, strict=True):
        _settle_apart(client, flow, PENDING_RANGES_MAX // 2 - 1)
        client.leave(wanted=False)
    assert rig.flows.ends.settles_lost == PENDING_RANGES_MAX // 2 - 1, "the oldest ones"
    home = rig.start_home(0)
    assert sum(len(ranges) for _, ranges in home.arguments("settle")) == PENDING_RANGES_MAX - 2
    rig.flows.ends.validate()


def _settle_apart(client: FakeClient, flow: int, count: int) -> None:
    """Settle every other position, so that nothing can be joined."""
    for start in range(0, count, 1_000):
        some = range(start, min(start + 1_000, count))
        client.settle(flow, wire.OUTCOME_ACCEPTED, *[(0, 2 * n + 1, 2 * n + 1) for n in some])


def test_who_leaves_while_the_home_is_down_leaves_its_settles_behind(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    """They are said before anybody else is bound, and whatever the home answers concerns nobody."""
    flow = client.bind("q", messages=10, bytes=10_000)["flow"]
    rig.homes[0].store(queue, 4, 100)
    rig.kill_home(0)
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 1, 2))
    client.settle(flow, wire.OUTCOME_FAILED, (0, 3, 3))
    client.leave(wanted=False)
    other = rig.client("other", "owner")
    number = other.ask("flow.bind", name="q")
    home = rig.start_home(0)
    assert home.verbs() == ["bind", "settle", "settle", "unbind", "bind"]
    assert home.arguments("bind")[0][3:5] == [0, 0], "it gets nothing"
    assert home.arguments("bind")[0][5]["resume"] is True
    assert home.arguments("settle") == [[0, [[1, 2]]], [2, [[3, 3]]]]
    said = home.flow_frames[0][1]
    home.event(said, wire.FLOW_SETTLE_REFUSED, errors.NOT_DELIVERED)
    rig.settle()
    assert other.answer(number)[0] == 0
    assert other.taken(wire.INDICATION) == []
    rig.kill_home(0)
    assert rig.start_home(0).verbs() == ["bind"], "once"


def test_pending_settles_of_a_flow_that_had_nothing_or_of_a_queue_that_is_gone_are_not_sent(
    rig: Rig, client: FakeClient, queue: Endpoint
) -> None:
    flow = client.bind("q")["flow"]
    rig.kill_home(0)
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 1, 1))
    fresh = rig.client("fresh", "owner")
    fresh.ask("flow.bind", name="q")
    (late,) = fresh.session.flows
    fresh.settle(late, wire.OUTCOME_ACCEPTED, (0, 1, 1))
    fresh.leave(wanted=False)
    rig.endpoints.drop("default", "queue", "q")
    assert rig.start_home(0).verbs() == []


def test_a_lane_that_moves_takes_its_flows_along(make_rig: Any) -> None:
    rig = make_rig(2)
    queue = rig.controller.put("q", owner="owner", homes=[0])
    client = rig.client("consumer", "owner")
    flow = client.bind("q", messages=10, bytes=BIG)["flow"]
    rig.homes[0].store(queue, 4)
    rig.controller.put("q", homes=[1])
    assert rig.homes[0].bound == {}
    home = rig.homes[1]
    assert home.arguments("bind")[0][3] == 6
    assert home.arguments("bind")[0][5]["resume"] is True
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 1, 4))
    assert home.arguments("settle") == [[0, [[1, 4]]]]


def test_a_flow_is_bound_at_a_new_home_when_that_has_taken_the_lane_over(make_rig: Any) -> None:
    rig = make_rig(2)
    queue = rig.controller.put("q", owner="owner", homes=[0])
    client = rig.client("consumer", "owner")
    flow = client.bind("q")["flow"]
    home = rig.homes[1]
    home.holds = (wire.LANES_CONFIRM,)
    rig.controller.put("q", homes=[1])
    client.settle(flow, wire.OUTCOME_ACCEPTED, (0, 1, 4))
    assert home.flow_frames == []
    home.report()
    assert home.verbs() == ["bind", "settle"]
    assert queue.lanes[0].home == 1


def test_news_of_a_worker_that_had_the_flow_before_are_dropped(make_rig: Any) -> None:
    rig = make_rig(2)
    queue = rig.controller.put("q", owner="owner", homes=[0])
    client = rig.client("consumer", "owner")
    client.bind("q")
    number = rig.homes[0].flow_at(queue)
    rig.controller.put("q", homes=[1])
    rig.homes[0].event(number, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT)
    rig.settle()
    assert len(rig.flows) == 1
    assert client.taken(wire.INDICATION) == []


def test_the_end_of_a_session_unbinds_its_flows(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    client.bind("q")
    client.bind("q", browse=True)
    client.leave(wanted=False)
    assert rig.homes[0].bound == {}
    assert len(rig.flows) == 0
    assert rig.vpn.egress_flows == 0


# -- operators -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["refused", "unbound", "left"])
def test_nothing_is_left_of_a_flow_that_ends_before_its_home_has_answered(
    rig: Rig, client: FakeClient, queue: Endpoint, ends: str
) -> None:
    with uncollected():
        if ends == "refused":
            assert client.refused("q", selector="a =") == errors.INVALID_SELECTOR
        else:
            rig.homes[0].holds = (wire.FLOW_EVENT,)
            client.ask("flow.bind", name="q")
            assert count_of_flows() == 1
        if ends == "unbound":
            client.ask("flow.unbind", flow=1)
        elif ends == "left":
            client.leave(wanted=False)
        assert len(rig.flows) == 0
        assert count_of_flows() == 0


def count_of_flows() -> int:
    return sum(isinstance(one, Flow) for one in gc.get_objects())


def test_operators_see_flows_by_endpoint(rig: Rig, client: FakeClient, queue: Endpoint) -> None:
    rig.controller.put("other", owner="owner")
    client.bind("q", selector="a IS NULL")
    client.bind("other", browse=True)
    rig.homes[0].store(queue, 3)
    (row,) = rig.flows.describe("default", "queue", "q")
    assert (row["client"], row["selector"], row["sent_messages"], row["browse"]) == (
        "consumer",
        "a IS NULL",
        3,
        False,
    )
    assert len(list(rig.flows.describe(None, None, None))) == 2
    assert list(rig.flows.describe("elsewhere", None, None)) == []
