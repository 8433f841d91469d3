"""`angarium pipeline report` without Spark: what it refuses, and how it shows figures."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.commands.cli import run
from cluster.commands.pipeline.report_view import summary, view

pytestmark = pytest.mark.requirement("R221")

ROW: dict[str, Any] = {
    "messages": 1200,
    "bytes": 4096,
    "timed": 1200,
    "negative": 2,
    "untimed": 0,
    "late": 3,
    "expired": 4,
    "redeliveries": 5,
    "rejected": 6,
    "moved": 7,
    "size_p50_bytes": 3,
    "size_max_bytes": 9,
    "latency_p50_ms": 10,
    "latency_p90_ms": 20,
    "latency_p99_ms": 30,
    "latency_max_ms": 40,
    "first": 1_772_366_400_000,
    "last": 1_772_366_460_000,
    "span_s": 60.0,
}


def figures(topic: str = "a/b") -> dict[str, Any]:
    return {
        "totals": ROW,
        "topics": {"count": 12, "rows": [ROW | {"topic": topic, "peak_messages_per_s": 33.0}], "rest": ROW},
        "clients": {"count": 1, "rows": [ROW | {"client": None, "peak_messages_per_s": 33.0}], "rest": None},
        "causes": [],
        "sequences": {
            "totals": {
                "publishers": 1,
                "numbered": 9,
                "missing": 2,
                "gaps": 1,
                "duplicates": 1,
                "out_of_order": 0,
                "restarts": 0,
            },
            "rows": [{"client": "p", "topic": None, "numbered": 9, "missing": 2}],
            "gaps": [{"client": "p", "topic": None, "missing": 2, "first": 4, "last": 5}],
        },
    }


def drawn(found: dict[str, Any]) -> str:
    return "\n".join(view(found, 200))


def test_the_summary_says_what_was_lost() -> None:
    text = "\n".join(summary(figures()))
    assert "1,200 messages, 4.0 KiB, 20.0 a second" in text
    assert "median 10 ms, 90 % 20 ms, 99 % 30 ms, at most 40 ms; 3 late, 2 with a clock that is ahead" in text
    assert "4 expired, 11 dead for other reasons, 7 moved" in text
    assert "2 missing in 1 gap, 1 duplicate, 0 out of order, 0 restarts of 1 publisher" in text


def test_tables_name_the_rest_and_who_has_no_name() -> None:
    text = drawn(figures())
    assert "(the other 11)" in text
    assert "(no sender id)" in text


def test_a_topic_does_not_steer_the_terminal() -> None:
    text = drawn(figures("x\x1b[31m[bold]y\x07"))
    assert "x\\x1b[31m[bold]y\\x07" in text
    assert "\x07" not in text


def test_a_long_topic_is_whole_at_80_columns() -> None:
    topic = "orders/berlin/mitte/linden/16/returns/2026"
    lines = view(figures(topic), 80)
    assert any(line.startswith(topic) for line in lines)
    assert max(map(len, lines[len(summary(figures())) :])) <= 80


def test_nothing_is_told_as_such() -> None:
    assert "There is no message." in drawn({"totals": {"messages": 0}, "window_s": 1})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name an ARCHIVE"),
        (["here", "--queue", "q"], "one of the three"),
        (["--topic", "a/>"], "--topic is for --follow"),
        (["here", "--follow"], "--follow is for --queue and --topic"),
        (["--queue", "q", "--follow"], "say --consume"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "report", *arguments]) == 2
    assert text in capsys.readouterr().err
