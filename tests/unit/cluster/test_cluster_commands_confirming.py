"""Questions before what destroys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cluster.commands import cli
from cluster.commands.connecting.connection import AdminOptions
from cluster.commands.terminal import confirming

if TYPE_CHECKING:
    import click

DESTROYING = (
    ("queue", "purge", "q"),
    ("queue", "delete", "q"),
    ("topic-endpoint", "purge", "t"),
    ("topic-endpoint", "rm", "t"),
    ("vpn", "delete", "v"),
    ("username", "delete", "u"),
    ("operator", "delete", "u"),
    ("profile", "delete", "p"),
    ("acl", "delete", "a"),
    ("template", "delete", "t"),
    ("link", "delete", "l"),
    ("bridge", "delete", "b"),
    ("webhook", "delete", "w"),
    ("message", "delete", "q", "1", "2"),
    ("client", "disconnect", "a", "b"),
    ("stage", "abort", "1"),
    ("sink", "forget", "s"),
    ("spool", "restore", __file__),
    ("spool", "aside", "delete", "3"),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every operation that a controller would be asked for."""
    noted: list[str] = []

    def call(_self: AdminOptions, operation: str, **_arguments: Any) -> Any:
        noted.append(operation)
        return {"messages_spooled": 5, "purged": 5, "deleted": 2}

    monkeypatch.setattr(AdminOptions, "call", call)
    monkeypatch.delenv("ANGARIUM_YES", raising=False)
    return noted


@pytest.mark.parametrize("arguments", DESTROYING, ids=" ".join)
def test_where_nobody_can_be_asked_nothing_is_destroyed(
    arguments: tuple[str, ...], calls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    assert calls == []
    told = capsys.readouterr().err
    assert told.startswith("error 40018: there is no terminal to ask whether to ")
    assert "--yes (or ANGARIUM_YES=1)" in told


def test_every_command_with_the_option_is_tried_above() -> None:
    def has_option(command: click.Command) -> bool:
        return any("--yes" in parameter.opts for parameter in command.params)

    found = {path.removeprefix("angarium ") for path, one in cli.command_tree().items() if has_option(one)}
    tried = {" ".join(one[: 3 if one[1] == "aside" else 2]).replace(" rm", " delete") for one in DESTROYING}
    assert found >= tried
    # `config apply` asks only about what its plan deletes.
    assert found - tried <= {"topic-endpoint delete", "config apply"}


@pytest.mark.parametrize("way", ["option", "short", "variable"])
def test_who_says_yes_before_is_not_asked(
    way: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "variable":
        monkeypatch.setenv("ANGARIUM_YES", "1")
    more = {"option": ["--yes"], "short": ["-y"], "variable": []}[way]
    assert cli.run(["queue", "purge", "q", *more]) == 0
    assert calls == ["endpoints.purge"]


@pytest.mark.parametrize(("answer", "status", "asked"), [("y", 0, True), ("n", 1, False), ("", 1, False)])
def test_on_a_terminal_it_says_what_is_lost_and_asks(
    answer: str,
    status: int,
    asked: bool,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(confirming, "asks", lambda *, yes: not yes)
    monkeypatch.setattr("cluster.commands.objects.objects.asks", lambda *, yes: not yes)
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        return answer

    monkeypatch.setattr("click.termui.visible_prompt_func", ask)
    assert cli.run(["queue", "purge", "orders"]) == status
    assert ("endpoints.purge" in calls) is asked
    assert [question.strip() for question in questions] == ["Delete 5 messages of queue orders? [y/N]:"]
    assert asked or capsys.readouterr().err == "nothing was changed\n"
