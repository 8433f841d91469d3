"""What `angarium status` shows of the answer of a controller."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.commands.node.status_view import status_lines

#: What a terminal has, without the line of the prompt.
LINES = 23
COLUMNS = 80


def process(role: str, index: int = 0, state: str = "ready", **changes: Any) -> dict[str, Any]:
    made = {
        "role": role,
        "index": index,
        "incarnation": 1048576,
        "pid": 12345 + index,
        "state": state,
        "restarts": 0,
        "progress": "",
        "rss_bytes": 37_433_344,
        "cpu_percent": 1.5,
        "uptime_s": 517.3,
    }
    return {**made, **changes}


def status(workers: int = 4, **changes: Any) -> dict[str, Any]:
    """Give the status of a node that is used, as its controller answers it."""
    made = {
        "node": "berlin-1",
        "url": "tcp://127.0.0.1:55555",
        "uptime_s": 517.0,
        "processes": [
            process("supervisor"),
            process("controller"),
            process("router"),
            *(process("worker", index) for index in range(workers)),
        ],
        "workers": workers,
        "sessions": 1234,
        "subscriptions": 56,
        "rates": {
            "messages_in_per_s": 20_000.0,
            "bytes_in_per_s": 2_500_000.0,
            "messages_out_per_s": 41_000.0,
            "bytes_out_per_s": 5_000_000.0,
            "connects_per_s": 0.5,
        },
        "totals": {"messages_in": 5},
        "discards": {"transmit-congestion": 7, "no-subscription-match": 56, "queue-full": 3},
        "spool": {
            "messages": 4_000_000,
            "usage_bytes": 1_536_000_000,
            "quota_bytes": 10_000_000_000,
            "disk_bytes": 1_836_000_000,
            "files": 317,
            "files_max": 50_000,
            "delivered_unacked": 255,
            "delivered_unacked_max": 1_000_000,
            "endpoints": 12,
            "producers": 3,
            "stores_under_way": 12_345,
        },
        "links": [
            {"name": "hamburg", "vpn": "default", "synchronised": True},
            {"name": "munich", "vpn": "default", "synchronised": False},
        ],
        "topology_issues": 2,
        "errors": {"40301": 3},
    }
    return {**made, **changes}


def assert_fits(lines: list[str]) -> None:
    assert len(lines) <= LINES, "\n".join(lines)
    assert max(map(len, lines)) <= COLUMNS, "\n".join(lines)


@pytest.mark.parametrize("workers", [1, 2, 4, 6, 64])
def test_the_status_fits_one_screen(workers: int) -> None:
    lines = status_lines(status(workers), COLUMNS)
    assert_fits(lines)
    shown = "\n".join(lines)
    for text in (
        "node berlin-1 at tcp://127.0.0.1:55555, up 8m37s",
        "1,234 clients, 56 subscriptions",
        "35.7 MiB",
        "in 20,000/s (2.4 MiB/s), out 41,000/s (4.8 MiB/s), 0.5/s new clients",
        "4,000,000 messages, 1.4 GiB of 9.3 GiB",
        "1.7 GiB, 317 of 50,000 files",
        "12 endpoints, 3 producers, 255 of 1,000,000 unacknowledged",
        "no-subscription-match 56, transmit-congestion 7, queue-full 3",
        "errors    40301 3",
        "1 of 2 up, not munich !",
        "2 issues !: angarium cluster status",
    ):
        assert text in shown, shown
    assert "12,345" not in shown, "the rest of the spool is in 'angarium spool show'"


def test_an_ordinary_node_hides_nothing() -> None:
    shown = "\n".join(status_lines(status(4), COLUMNS))
    assert all(f"worker.{index} " in shown for index in range(4))
    assert "more" not in shown


def test_what_does_not_fit_is_counted_with_the_command_that_shows_it() -> None:
    sick = process("worker", 40, "hung", progress="does not answer for 20 s")
    many = status(64, discards={f"a-reason-with-a-long-name-{n}": n for n in range(9)})
    many["processes"][43] = sick
    lines = status_lines(many, COLUMNS)
    assert_fits(lines)
    shown = "\n".join(lines)
    assert "and 59 more, 59 of them ready: angarium status -o wide" in shown
    assert "worker.40" in shown
    assert "hung !" in shown
    assert "worker.40: does not answer for 20 s" in shown
    assert "a-reason-with-a-long-name-8 8 and 8 more: angarium status -o wide" in shown


def test_a_wide_status_is_whole() -> None:
    many = status(64, discards={f"a-reason-with-a-long-name-{n}": n for n in range(9)})
    shown = "\n".join(status_lines(many, COLUMNS, is_whole=True))
    assert "more" not in shown
    assert all(f"worker.{index} " in shown for index in range(64))
    assert all(f"a-reason-with-a-long-name-{n} {n}" in shown for n in range(9))


def test_a_wide_status_says_if_the_node_is_compiled() -> None:
    assert "build     compiled" in status_lines(status(1, compiled=True), COLUMNS, is_whole=True)
    assert "compiled" not in "\n".join(status_lines(status(1, compiled=False), COLUMNS, is_whole=True))


def test_a_node_in_trouble_still_fits() -> None:
    long = "cannot work: error 50322: [the file] is gone, " + "and this is said at length " * 20
    processes = [process("worker", index, "restarting", progress=long, rss_bytes=None) for index in range(64)]
    links = [{"name": f"neighbour-{n}", "vpn": "default", "synchronised": False} for n in range(40)]
    lines = status_lines(status(processes=processes, links=links), COLUMNS)
    assert_fits(lines)
    shown = "\n".join(lines)
    assert "worker.0: cannot work: error 50322: [the file] is gone" in shown
    assert "62 more say why: angarium status -o wide" in shown
    assert "0 of 40 up, not neighbour-0 !" in shown
    assert "and 39 more: angarium link list" in shown


def test_a_process_that_works_says_no_more() -> None:
    shown = "\n".join(status_lines(status(processes=[process("router", progress="of no interest")]), COLUMNS))
    assert "of no interest" not in shown
    assert "ready !" not in shown


def test_a_node_that_has_just_started_is_shown_as_well() -> None:
    lines = status_lines(
        status(rates={}, discards={}, errors={}, spool={}, links=[], topology_issues=0), COLUMNS
    )
    assert "discards  none" in lines
    assert "errors    none" in lines
    assert "messages  no rates yet" in lines
    assert not any(line.startswith(("topology", "links", "spool")) for line in lines)


def test_a_long_name_of_a_node_is_whole() -> None:
    name = "a-node-with-a-name-that-is-so-long-that-a-line-of-80-columns-does-not-hold-it-all"
    lines = status_lines(status(node=name), COLUMNS)
    assert name in lines[0]
    assert lines[1] == "1,234 clients, 56 subscriptions"


def test_it_says_where_clients_of_mqtt_connect() -> None:
    found = status()
    found = {**found, "processes": [*found["processes"], process("mqtt")], "mqtt": ["tcp://127.0.0.1:1883"]}
    lines = status_lines(found, COLUMNS)
    assert "mqtt      tcp://127.0.0.1:1883" in lines
    assert any(line.startswith("mqtt.0 ") for line in lines)
    assert_fits(lines)
