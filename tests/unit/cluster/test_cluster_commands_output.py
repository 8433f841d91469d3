"""Tables, JSON and figures as commands show them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster.commands import output
from cluster.visible import visible

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (1.25, "1.2"),
        ("a", "a"),
        ([1, "b"], "1, b"),
        ({"a": 1}, "a=1"),
    ],
)
def test_a_cell_shows_a_value_as_people_read_it(value: object, text: str) -> None:
    assert output.cell(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (1 << 50, "1024.0 TiB")],
)
def test_a_size_has_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0s"), (59, "59s"), (61, "1m01s"), (3725, "1h02m"), (90000, "1d01h")]
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_rows_are_one_json_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json_lines([{"a": 1}, {"b": "ä"}])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"a": 1}, {"b": "ä"}]


def test_output_that_nobody_watches_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.wants_json(False)
    assert output.wants_json(True)


def test_a_table_shows_topics_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table([{"topic": "[red]/a", "count": 1}], ("topic", "count"), empty="nothing")
    shown = capsys.readouterr().out
    assert "[red]/a" in shown
    assert "count" in shown


def test_an_empty_table_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table([], ("topic",), empty="no client is connected")
    assert capsys.readouterr().out == "no client is connected\n"


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("publishing", 10) as show:
        show(5)
    assert capsys.readouterr().err == ""


def test_a_ready_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    output.write_ready_file(str(path), {"url": "tcp://127.0.0.1:1"})
    assert json.loads(path.read_text()) == {"url": "tcp://127.0.0.1:1"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rss_bytes", 2048, "2.0 KiB"),
        ("uptime_s", 90.5, "1m30s"),
        ("pid", 12345, "12345"),
        ("count", 12345, "12,345"),
    ],
)
def test_a_number_is_shown_by_the_unit_in_its_name(name: str, value: float, text: str) -> None:
    assert output.cell(value, name) == text


def test_a_progress_bar_appears_only_when_the_work_takes_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    drawn: list[Any] = []
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    monkeypatch.setattr(output._Bar, "_appear", lambda _: (FakeBar(drawn), 0))
    bar = output._Bar("publishing", 10)
    bar(1)
    assert drawn == []
    now = output.PROGRESS_DELAY_S
    bar(2)
    bar(3)
    now += output.PROGRESS_INTERVAL_S
    bar(4)
    bar.close()
    assert drawn == [(2, 10), (4, 10), -1]


def test_a_progress_bar_may_learn_late_of_how_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = output.PROGRESS_DELAY_S
    drawn: list[Any] = []
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    monkeypatch.setattr(output._Bar, "_appear", lambda _: (FakeBar(drawn), 0))
    bar = output._Bar("verify", None)
    now += output.PROGRESS_DELAY_S
    bar(2, 8)
    now += output.PROGRESS_INTERVAL_S
    bar(3)
    assert drawn == [(2, 8), (3, 8)]


class FakeBar:
    """Notes what would be drawn; -1 stands for the end."""

    def __init__(self, drawn: list[Any]) -> None:
        self._drawn = drawn

    def update(self, _task: int, completed: int, total: int | None) -> None:
        self._drawn.append((completed, total))

    def stop(self) -> None:
        self._drawn.append(-1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a/ä\u20ac", "a/ä\u20ac"),
        ("a\x1b[31m\x07", "a\\x1b[31m\\x07"),
        ("a\r\nb\x7f\x9b", "a\\x0d\\x0ab\\x7f\\x9b"),
    ],
)
def test_what_clients_chose_cannot_steer_a_terminal(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert visible(text) == shown
    output.print_table([{"topic": text}], ("topic",), empty="nothing")
    assert not set(capsys.readouterr().out) & {"\x1b", "\x07", "\r", "\x7f", "\x9b"}


@pytest.mark.parametrize(
    ("wall_ms", "text"),
    [
        (None, ""),
        (0, ""),
        (1_700_000_000_000, "2023-11-14 22:13:20Z"),
        (1 << 53, "never"),
        (1 << 64, "never"),
    ],
)
def test_a_wall_time_is_read_as_such_whatever_it_is(wall_ms: int | None, text: str) -> None:
    assert output.moment(wall_ms) == text


def test_what_was_set_is_shown_as_it_was_set(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_exactly({"max_message_bytes": 10_000_000, "enabled": True})
    shown = capsys.readouterr().out
    assert "10,000,000" in shown
    assert "yes" in shown


def test_figures_that_say_nothing_are_left_out() -> None:
    figures = {"messages": 0, "usage_bytes": 5, "usage_mb": 0.1, "nacks": 0, "rate_mb": 2.0, "name": ""}
    assert output.telling(figures, always=("messages",)) == {"messages": 0, "usage_bytes": 5, "rate_mb": 2.0}


@pytest.mark.parametrize(("number", "text"), [(0, "0 messages"), (1, "1 message"), (1234, "1,234 messages")])
def test_one_thing_is_no_several(number: int, text: str) -> None:
    assert output.counted(number, "message") == text
