"""Operators hear of flows and endpoints that near a limit, of consumers that are refused, and when that is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors
from router.sessions.directory import Username

if TYPE_CHECKING:
    from tests.unit.router.flow_rig import FakeClient, Rig


def test_operators_are_told_when_flows_near_a_limit_and_when_they_are_far_from_it_again(
    rig: Rig, client: FakeClient
) -> None:
    rig.controller.put("q", owner="owner", max_bind_count=5)
    flows = [client.bind("q")["flow"] for _ in range(4)]
    assert rig.events == [], "four of five are 80 percent, not more"
    flows.append(client.bind("q")["flow"])
    ((event, vpn),) = [(one["event"], one["vpn"]) for one in rig.events]
    assert (event, vpn) == ("VPN_AD_BIND_COUNT_HIGH", "default")
    for flow in flows[:2]:
        client.request("flow.unbind", flow=flow)
    assert len(rig.events) == 1
    client.request("flow.unbind", flow=flows[2])
    assert [one["event"] for one in rig.events[1:]] == ["VPN_AD_BIND_COUNT_HIGH_CLEAR"]


def test_operators_are_told_once_that_consumers_are_refused(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("q", owner="owner", max_bind_count=1)
    flow = client.bind("q")["flow"]
    for _ in range(3):
        assert client.refused("q") == errors.MAX_BIND_COUNT_EXCEEDED
    (event,) = rig.events
    assert (event["event"], event["endpoint"]) == ("VPN_AD_BIND_COUNT_EXCEEDED", "q")
    client.request("flow.unbind", flow=flow)
    client.bind("q")
    assert client.refused("q") == errors.MAX_BIND_COUNT_EXCEEDED
    assert [one["event"] for one in rig.events] == ["VPN_AD_BIND_COUNT_EXCEEDED"] * 2


def test_operators_are_told_of_flows_that_a_message_vpn_or_a_client_may_not_have(
    rig: Rig, client: FakeClient
) -> None:
    rig.controller.put("q", owner="owner", access_type="non-exclusive")
    rig.vpn.attributes = {**rig.vpn.attributes, "max_egress_flow_count": 1}
    client.bind("q")
    assert [client.refused("q"), client.refused("q")] == [errors.TOO_MANY_FLOWS] * 2
    rig.vpn.attributes = {**rig.vpn.attributes, "max_egress_flow_count": 100}
    profile = rig.vpn.profiles[client.session.profile_name]
    rig.vpn.profiles[client.session.profile_name] = {**profile, "max_egress_flow_count": 1}
    assert [client.refused("q"), client.refused("q")] == [errors.TOO_MANY_FLOWS] * 2
    assert [one["event"] for one in rig.events] == [
        "VPN_AD_EGRESS_FLOWS_EXCEEDED",
        "CLIENT_AD_MAX_EGRESS_FLOWS_EXCEEDED",
    ]


def test_operators_are_told_of_endpoints_that_clients_may_not_create(rig: Rig, client: FakeClient) -> None:
    code = errors.TOO_MANY_ENDPOINTS
    attributes = rig.vpn.attributes
    rig.controller.put("q", owner="owner")
    rig.vpn.attributes = {**attributes, "max_endpoint_count": 1}
    rig.controller.endpoints_max = 1
    assert client.refused("t", temporary=True) == code
    assert client.request("endpoint.create", name="d")[0] == code
    rig.vpn.attributes = attributes
    assert client.request("endpoint.create", name="d")[0] == code
    told = [(one["event"], one.get("username")) for one in rig.events]
    assert told == [
        ("VPN_AD_ENDPOINTS_EXCEEDED", None),
        ("VPN_AD_CLIENT_USERNAME_ENDPOINTS_EXCEEDED", client.session.username),
    ]


def test_endpoints_that_clients_of_a_username_created_are_watched(rig: Rig, client: FakeClient) -> None:
    profile = rig.vpn.profiles[client.session.profile_name]
    limits = {**profile, "max_endpoint_count_per_username": 2}
    rig.vpn.profiles[client.session.profile_name] = limits
    rig.vpn.usernames[client.session.username] = Username(
        client.session.username, {"client_profile": client.session.profile_name}, 1
    )
    for name in ("a", "b"):
        client.request("endpoint.create", name=name)
    assert [one["event"] for one in rig.events] == ["VPN_AD_CLIENT_USERNAME_ENDPOINTS_HIGH"]
    client.request("endpoint.delete", name="a")
    client.request("endpoint.delete", name="b")
    assert [one["event"] for one in rig.events[1:]] == ["VPN_AD_CLIENT_USERNAME_ENDPOINTS_HIGH_CLEAR"]


def test_a_limit_of_one_raises_no_event(rig: Rig, client: FakeClient) -> None:
    rig.controller.put("t", kind="topic-endpoint", owner="owner")
    client.bind("t", kind="topic-endpoint", topic="a")
    assert rig.events == []


def test_flows_and_endpoints_of_a_message_vpn_are_watched(rig: Rig, client: FakeClient) -> None:
    rig.vpn.attributes = {**rig.vpn.attributes, "max_endpoint_count": 2, "max_egress_flow_count": 2}
    rig.controller.put("a", owner="owner")
    rig.controller.put("b", owner="owner")
    client.bind("a")
    client.bind("b")
    assert [one["event"] for one in rig.events] == ["VPN_AD_ENDPOINTS_HIGH", "VPN_AD_EGRESS_FLOWS_HIGH"]
    rig.controller.delete("a")
    assert [one["event"] for one in rig.events[2:]] == [
        "VPN_AD_EGRESS_FLOWS_HIGH_CLEAR",
        "VPN_AD_ENDPOINTS_HIGH_CLEAR",
    ]
