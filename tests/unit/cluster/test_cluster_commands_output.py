"""Tables, JSON and metrics as commands show them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from angarium_server.visible import visible
from cluster.commands.terminal import output

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_are_one_json_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json_lines([{"a": 1}, {"b": "ä"}])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"a": 1}, {"b": "ä"}]


FOUND = [{"name": "a", "count": 1, "more": 2}, {"name": "b", "count": 2, "more": 3}]


@pytest.mark.parametrize(
    ("arguments", "variable", "shown"),
    [
        ([], None, "NAME  COUNT\na         1\nb         2\n"),
        (["-o", "wide"], None, "NAME  COUNT  MORE\na         1     2\nb         2     3\n"),
        (["-o", "name"], None, "a\nb\n"),
        (["--json"], None, '{"name":"a","count":1,"more":2}\n{"name":"b","count":2,"more":3}\n'),
        (["-o", "json"], None, '{"name":"a","count":1,"more":2}\n{"name":"b","count":2,"more":3}\n'),
        ([], "name", "a\nb\n"),
        (["-o", "table"], "json", "NAME  COUNT\na         1\nb         2\n"),
    ],
)
def test_a_list_is_a_table_unless_another_form_is_asked_for(
    arguments: list[str], variable: str | None, shown: str
) -> None:
    @click.command()
    @output.list_option
    def command(out: output.Output) -> None:
        out.rows(FOUND, ("name", "count"), wide=("more",), empty="nothing")

    done = CliRunner().invoke(command, arguments, env={"ANGARIUM_OUTPUT": variable})
    assert (done.exit_code, done.output) == (0, shown)


def test_a_command_without_names_takes_the_variable_for_a_table_and_refuses_the_option() -> None:
    @click.command()
    @output.output_option
    def command(out: output.Output) -> None:
        out.done("done", {"done": True})

    runner = CliRunner()
    assert runner.invoke(command, [], env={"ANGARIUM_OUTPUT": "name"}).output == "done\n"
    assert runner.invoke(command, [], env={"ANGARIUM_OUTPUT": "json"}).output == '{"done":true}\n'
    assert runner.invoke(command, [], env={"ANGARIUM_OUTPUT": "yaml"}).exit_code == 2
    refused = runner.invoke(command, ["-o", "name"])
    assert refused.exit_code == 2
    assert "none of table, json" in refused.output


def test_a_table_shows_topics_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table([{"topic": "[red]/a", "count": 1}], ("topic", "count"), empty="nothing")
    shown = capsys.readouterr().out
    assert "[red]/a" in shown
    assert "COUNT" in shown


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


def test_a_progress_bar_appears_only_when_the_work_takes_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    drawn: list[Any] = []
    monkeypatch.setattr(time, "monotonic", lambda: now)
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
    monkeypatch.setattr(time, "monotonic", lambda: now)
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


def test_what_was_set_is_shown_as_it_was_set(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_exactly({"max_message_bytes": 10_000_000, "enabled": True})
    shown = capsys.readouterr().out
    assert "10,000,000" in shown
    assert "yes" in shown


def test_figures_that_say_nothing_are_left_out() -> None:
    metrics = {"messages": 0, "usage_bytes": 5, "usage_mb": 0.1, "nacks": 0, "rate_mb": 2.0, "name": ""}
    assert output.telling(metrics, always=("messages",)) == {"messages": 0, "usage_bytes": 5, "rate_mb": 2.0}
