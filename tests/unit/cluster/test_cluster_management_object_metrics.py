"""The page `/metrics/objects`: what is asked for, and what is on it."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from angarium.errors import InvalidRequestError
from cluster.management.api.object_metrics import (
    FIELDS,
    KINDS,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    Wanted,
    page,
    question,
    wanted_by,
)

QUEUE = {
    "vpn": "default",
    "name": "orders",
    "messages_spooled": 3,
    "spool_usage_bytes": 300,
    "delivered_unacked": 1,
    "bind_count": 2,
    "oldest_stored_ms": 90_000,
    "max_spool_usage_mb": 5,
    "ingress_enabled": True,
    "egress_enabled": False,
    "counters": {"quota_discard": 4},
    "messages_in": 8,
    "bytes_in": 800,
    "messages_out": 5,
    "bytes_out": 500,
    "reader_group": "archive",
    "dead_message_queue": "dead",
}
TOLD_BY_ROUTER = """messages_spooled spool_usage_bytes delivered_unacked bind_count oldest_stored_ms
    messages_in bytes_in messages_out bytes_out"""
UNKNOWN: dict[str, Any] = dict.fromkeys(TOLD_BY_ROUTER.split())


LINK = {
    "name": "munich",
    "state": "degraded",
    "lag_ms": 2.5,
    "progress_percent": 50,
    "uptime_s": None,
    **{f"{what}_{way}": 1 for what in ("messages", "subscriptions") for way in ("in", "out")},
    **{f"{what}_messages": 2 for what in ("queued", "spooled", "retry", "dead")},
    "queued_bytes": 20,
    "spooled_bytes": 30,
}
GATEWAY = {
    "name": "mqtt.0",
    "role": "mqtt",
    "state": "ready",
    "restarts": 1,
    "connections": 3,
    "clients": 2,
    "messages_in": 5,
    "messages_out": 6,
    "discarded": 1,
    "queued_bytes": 9,
    "refused_messages": {"40301": 2},
    "refused": 1,
}
WEBHOOK = {
    "vpn": "default",
    "name": "w",
    "state": "standby",
    "attempts": 4,
    "accepted": 3,
    "failed": 1,
    "rejected": 0,
    "under_way": 1,
    "waiting": 2,
    "held_bytes": 7,
}
BRIDGE = {
    "vpn": "default",
    "name": "b",
    "state": "up",
    "lag_ms": 1,
    "uptime_s": 5,
    "attempts": 1,
    "messages": 2,
    "guaranteed_messages": 3,
    "under_way": 0,
    "queued_messages": None,
    "dropped": {"visited": 1},
    "discarded": 0,
    "refused": {},
}
SINK = {
    "vpn": "default",
    "username": "spark",
    "name": "s",
    "batch": 7,
    "last_used": "1970-01-01T00:01:30Z",
}
ROWS: dict[str, dict[str, Any]] = {
    "sink": SINK,
    "queue": QUEUE,
    "topic_endpoint": QUEUE,
    "link": LINK,
    "gateway": GATEWAY,
    "webhook": WEBHOOK,
    "bridge": BRIDGE,
}


def wanted(kind: str = "queue", name: str = "*", limit: int = 10) -> Wanted:
    return Wanted((kind,), None, name, limit)


def lines(*rows: dict[str, Any], limit: int = 10, kind: str = "queue", name: str = "*") -> list[str]:
    text = page([(kind, list(rows))], wanted(kind, name, limit), 100_500)
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_links_gateways_webhooks_and_bridges_are_there_by_their_names() -> None:
    link = lines(LINK, kind="link")
    assert link[:4] == [
        'angarium_object_link_up{name="munich"} 0',
        'angarium_object_link_state{name="munich",state="degraded"} 1',
        'angarium_object_link_lag_seconds{name="munich"} 0.0025',
        'angarium_object_link_progress_ratio{name="munich"} 0.5',
    ]
    gateway = lines(GATEWAY, kind="gateway")
    assert gateway[0] == 'angarium_object_gateway_up{name="mqtt.0"} 1'
    assert 'angarium_object_gateway_refused_messages_total{name="mqtt.0",code="40301"} 2' in gateway
    webhook = lines(WEBHOOK, kind="webhook")
    assert webhook[:2] == [
        'angarium_object_webhook_up{vpn="default",name="w"} 1',
        'angarium_object_webhook_state{vpn="default",name="w",state="standby"} 1',
    ]
    bridge = lines(BRIDGE, kind="bridge")
    assert 'angarium_object_bridge_dropped_total{vpn="default",name="b",reason="visited"} 1' in bridge
    assert not [line for line in bridge if "queued_messages" in line]


def test_a_sink_tells_its_batch_and_how_long_ago_that_was() -> None:
    labels = '{vpn="default",username="spark",name="s"}'
    assert lines(SINK, kind="sink")[:2] == [
        f"angarium_object_sink_batch{labels} 7",
        f"angarium_object_sink_last_commit_age_seconds{labels} 10.5",
    ]


def test_a_disabled_one_is_not_up() -> None:
    assert 'angarium_object_webhook_up{vpn="default",name="w"} 0' in lines(
        {**WEBHOOK, "state": "disabled"}, kind="webhook"
    )


def test_names_choose_also_what_the_controller_gives_whole() -> None:
    two = [GATEWAY, {**GATEWAY, "name": "http.0"}]
    found = lines(*two, kind="gateway", name="http.*")
    assert {line for line in found if "_up{" in line} == {'angarium_object_gateway_up{name="http.0"} 1'}
    assert found[-2:] == [
        'angarium_objects_shown{kind="gateway"} 1',
        'angarium_objects_left_out{kind="gateway"} 0',
    ]


def test_the_controller_is_asked_for_no_more_than_is_wanted() -> None:
    one = Wanted(KINDS, "a", "x*", 5)
    fields = {"kind": "queue", "vpn": "a", "name": "x*", "fields": FIELDS}
    assert question("queue", one) == ("endpoints.list", fields)
    fields["kind"] = "topic-endpoint"
    assert question("topic_endpoint", one) == ("endpoints.list", fields)
    assert question("webhook", one) == ("webhooks.list", {"vpn": "a", "name": "x*"})
    assert question("bridge", one) == ("bridges.list", {"vpn": "a", "name": "x*"})
    assert question("link", one) == ("links.list", {"name": "x*"})
    assert question("gateway", one) == ("gateways.list", {})


def test_a_queue_is_there_with_all_that_is_known_of_it() -> None:
    labels = '{vpn="default",name="orders"}'
    assert lines(QUEUE) == [
        f"angarium_queue_messages_spooled{labels} 3",
        f"angarium_queue_spool_usage_bytes{labels} 300",
        f"angarium_queue_quota_bytes{labels} 5000000",
        f"angarium_queue_delivered_unacked{labels} 1",
        f"angarium_queue_bound_flows{labels} 2",
        f"angarium_queue_oldest_message_age_seconds{labels} 10.5",
        f"angarium_queue_ingress_enabled{labels} 1",
        f"angarium_queue_egress_enabled{labels} 0",
        f"angarium_queue_messages_in_total{labels} 8",
        f"angarium_queue_bytes_in_total{labels} 800",
        f"angarium_queue_messages_out_total{labels} 5",
        f"angarium_queue_bytes_out_total{labels} 500",
        'angarium_queue_discards_total{vpn="default",name="orders",reason="quota_discard"} 4',
        'angarium_queue_leased{vpn="default",name="orders",reader_group="archive"} 1',
        'angarium_queue_dead_message_queue{vpn="default",name="orders",dead_message_queue="dead"} 1',
        'angarium_objects_shown{kind="queue"} 1',
        'angarium_objects_left_out{kind="queue"} 0',
    ]


def test_an_empty_queue_has_no_age_and_one_of_a_router_that_is_silent_no_figures() -> None:
    assert 'angarium_queue_oldest_message_age_seconds{vpn="default",name="orders"} 0' in lines(
        {**QUEUE, "oldest_stored_ms": 0}
    )
    silent = lines({**QUEUE, **UNKNOWN, "counters": {}, "reader_group": None})
    assert [line.partition("{")[0] for line in silent[:-2]] == [
        "angarium_queue_quota_bytes",
        "angarium_queue_ingress_enabled",
        "angarium_queue_egress_enabled",
        "angarium_queue_dead_message_queue",
    ]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here")
def test_the_linter_of_prometheus_finds_nothing() -> None:
    text = page([(kind, [ROWS[kind]]) for kind in KINDS], Wanted(KINDS, None, "*", 10), 100_500)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_clock_that_was_set_back_makes_no_age_below_zero() -> None:
    assert 'angarium_queue_oldest_message_age_seconds{vpn="default",name="orders"} 0.0' in lines(
        {**QUEUE, "oldest_stored_ms": 200_000}
    )


def test_the_first_by_name_are_shown_and_the_others_counted() -> None:
    found = lines(*({**QUEUE, "name": name} for name in "cab"), limit=2)
    assert [line for line in found if "bound_flows" in line] == [
        'angarium_queue_bound_flows{vpn="default",name="a"} 2',
        'angarium_queue_bound_flows{vpn="default",name="b"} 2',
    ]
    assert found[-2:] == [
        'angarium_objects_shown{kind="queue"} 2',
        'angarium_objects_left_out{kind="queue"} 1',
    ]


def test_names_are_escaped() -> None:
    assert 'angarium_queue_bound_flows{vpn="default",name="a\\"b\\\\"} 2' in lines({**QUEUE, "name": 'a"b\\'})


def test_a_scrape_says_what_it_wants() -> None:
    assert wanted_by({}) == Wanted(KINDS, None, "*", LIMIT_DEFAULT)
    query = {"kind": ["queue", "queue"], "vpn": ["a"], "name": ["x*"], "limit": ["5"]}
    assert wanted_by(query) == Wanted(("queue",), "a", "x*", 5, is_exact=True)
    of_vpn = ("queue", "topic_endpoint", "webhook", "bridge", "sink")
    assert wanted_by({"vpn": ["a"]}) == Wanted(of_vpn, "a", "*", LIMIT_DEFAULT)


@pytest.mark.parametrize(
    "query",
    [
        {"colour": ["red"]},
        {"kind": ["client"]},
        {"limit": ["0"]},
        {"limit": [str(LIMIT_MAX + 1)]},
        {"limit": ["ten"]},
        {"limit": ["9" * 5_000]},
    ],
)
def test_what_is_no_wish_is_refused(query: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        wanted_by(query)
    assert refused.value.code == 40018
