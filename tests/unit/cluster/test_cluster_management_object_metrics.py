"""The page `/metrics/objects`: what is asked for, and what is on it."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from angarium.errors import InvalidRequestError
from cluster.management.api.object_metrics import KINDS, LIMIT_DEFAULT, LIMIT_MAX, Wanted, page, wanted_by

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
}
TOLD_BY_ROUTER = """messages_spooled spool_usage_bytes delivered_unacked bind_count oldest_stored_ms
    messages_in bytes_in messages_out bytes_out"""
UNKNOWN: dict[str, Any] = dict.fromkeys(TOLD_BY_ROUTER.split())


def lines(*rows: dict[str, Any], limit: int = 10) -> list[str]:
    text = page([("queue", list(rows))], limit, 100_500)
    return [line for line in text.splitlines() if not line.startswith("#")]


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
        'angarium_objects_shown{kind="queue"} 1',
        'angarium_objects_left_out{kind="queue"} 0',
    ]


def test_an_empty_queue_has_no_age_and_one_of_a_router_that_is_silent_no_figures() -> None:
    assert 'angarium_queue_oldest_message_age_seconds{vpn="default",name="orders"} 0' in lines(
        {**QUEUE, "oldest_stored_ms": 0}
    )
    silent = lines({**QUEUE, **UNKNOWN, "counters": {}})
    assert [line.partition("{")[0] for line in silent[:-2]] == [
        "angarium_queue_quota_bytes",
        "angarium_queue_ingress_enabled",
        "angarium_queue_egress_enabled",
    ]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here")
def test_the_linter_of_prometheus_finds_nothing() -> None:
    text = page([(kind, [QUEUE]) for kind in KINDS], 10, 100_500)
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
    assert wanted_by(query) == Wanted(("queue",), "a", "x*", 5)


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
