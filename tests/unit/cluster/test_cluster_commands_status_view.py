"""What `angarium status` draws of the answer of a controller."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from cluster.commands.status_view import draw_status

STATUS: dict[str, Any] = {
    "node": "berlin-1",
    "url": "tcp://127.0.0.1:55555",
    "uptime_s": 3725.0,
    "processes": [
        {
            "role": "router",
            "index": 0,
            "pid": 12345,
            "state": "ready",
            "restarts": 0,
            "rss_bytes": 2048,
            "cpu_percent": 1.5,
            "uptime_s": 90,
        },
        {
            "role": "worker",
            "index": 0,
            "pid": 12346,
            "state": "hung",
            "restarts": 2,
            "rss_bytes": None,
            "cpu_percent": None,
        },
    ],
    "sessions": 1234,
    "subscriptions": 5,
    "rates": {
        "messages_in_per_s": 1000.0,
        "bytes_in_per_s": 2048.0,
        "messages_out_per_s": 2.0,
        "bytes_out_per_s": 3.0,
    },
    "discards": {"transmit-congestion": 7},
    "errors": {},
    "spool": {
        "messages": 4_000,
        "usage_bytes": 1536,
        "quota_bytes": 10_000_000_000,
        "disk_bytes": 8192,
        "files": 3,
        "files_max": 50_000,
        "delivered_unacked": 7,
        "delivered_unacked_max": 1_000_000,
        "endpoints": 2,
        "producers": 1,
        "stores_under_way": 12_345,
    },
    "links": [],
}


def drawn(status: dict[str, Any], width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(draw_status(status))
    return out.getvalue()


def test_one_screen_shows_processes_sessions_rates_and_discards() -> None:
    shown = drawn(STATUS)
    for text in (
        "berlin-1",
        "1h02m",
        "1,234",
        "12345",
        "2.0 KiB",
        "1m30s",
        "1,000.0",
        "transmit-congestion",
        "4,000",
        "9.3 GiB",
        "50,000",
        "7",
    ):
        assert text in shown, text
    assert len(shown.splitlines()) <= 24
    assert "12,345" not in shown, "the rest of the spool is in 'angarium spool show'"


def test_a_process_that_is_not_well_stands_out() -> None:
    assert "hung !" in drawn(STATUS)
    assert "ready !" not in drawn(STATUS)


def test_a_process_that_does_not_work_says_how_far_it_is_or_why() -> None:
    router, worker = STATUS["processes"]
    worker = {**worker, "state": "restarting", "progress": "cannot work: error 50322: [the file] is gone"}
    shown = drawn({**STATUS, "processes": [{**router, "progress": "of no interest"}, worker]})
    assert "worker.0: cannot work: error 50322: [the file] is gone" in shown
    assert "of no interest" not in shown


def test_a_node_that_has_just_started_is_drawn_as_well() -> None:
    assert "berlin-1" in drawn({**STATUS, "rates": {}, "discards": {}})


def test_links_are_drawn_when_there_are_some() -> None:
    assert "hamburg" in drawn({**STATUS, "links": [{"name": "hamburg", "state": "up"}]})


def test_topology_issues_stand_in_the_first_line_if_there_are_some() -> None:
    assert "topology" not in drawn({**STATUS, "topology_issues": 0})
    assert "3 !" in drawn({**STATUS, "topology_issues": 3})
