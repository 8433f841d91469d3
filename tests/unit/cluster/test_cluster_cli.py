"""The command line itself: exit codes, errors, what is loaded when. No node runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from cluster import cli
from cluster.commands.group import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command find a node by chance."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANGARIUM_DATA", raising=False)
    monkeypatch.delenv("ANGARIUM_URL", raising=False)


def test_help_names_every_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    shown = capsys.readouterr().out
    for entries in cli.SECTIONS.values():
        for name, entry in entries.items():
            assert name in shown
            assert entry.summary in shown


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 0
    assert "Messages:" in capsys.readouterr().out


def test_every_command_and_option_has_help() -> None:
    missing = []
    for path, command in cli.command_tree().items():
        if not command.help:
            missing.append(path)
        missing += [
            f"{path} {option.opts[0]}"
            for option in command.params
            if isinstance(option, click.Option) and not option.help
        ]
    assert missing == []


def test_every_view_of_the_command_line_has_json() -> None:
    without = [
        path
        for path, command in cli.command_tree().items()
        if not isinstance(command, click.Group)
        and not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert without == []


def test_secrets_are_never_options() -> None:
    for path, command in cli.command_tree().items():
        for parameter in command.params:
            for name in parameter.opts:
                assert "password" not in name or name == "--password-file", path
                assert "secret" not in name, path


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["subb", "x"], "no such command 'subb'. Did you mean 'sub'?"),
        (["client", "lst"], "no such command 'lst'. Did you mean 'list'?"),
        (["sub", "a", "--conut", "3"], "--count"),
        (["sub"], "FILTER"),
        (["sub", "a", "--raw", "--json"], "--raw and --json exclude each other"),
        (["pub", "a", "x", "--lines", "-"], "--lines exclude each other"),
        (["pub", "a/{line%0}"], "at least 1"),
        (["pub", "a", "--property", "x"], "write KEY=VALUE"),
        (["pub", "a", "--cos", "4"], "1<=x<=3"),
        (["pub", "a", "--lines", "missing.csv"], "missing.csv"),
        (["username", "create", "bob", "--set", "password=x"], "--password-file"),
        (["vpn", "create", "v", "--set", "enabled"], "ATTRIBUTE=VALUE"),
        (["reply", "a", "--exec", "no-such-program-here"], "no-such-program-here"),
    ],
)
def test_misuse_ends_with_2_and_one_line_that_says_what_to_do(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("error 40018: ")
    assert text in told
    assert "--help' shows" in told
    assert told.count("\n") == 1


def test_a_command_without_a_node_fails_with_1_and_says_how_to_start_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["status"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error 50308: ")
    assert "angarium up" in told


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_arguments: object) -> None:
        raise KeyError("our fault")

    monkeypatch.setattr(cli.cli, "main", broken)
    with pytest.raises(KeyError):
        cli.run(["status"])


def test_an_interrupt_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli, "main", interrupted)
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err == "interrupted\n"


def test_a_file_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unusable(**_arguments: object) -> None:
        raise PermissionError(13, "Permission denied", "/nowhere/file")

    monkeypatch.setattr(cli.cli, "main", unusable)
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err.startswith("error 40018: /nowhere/file: Permission denied")


def test_what_is_quite_unlike_every_command_gets_no_guess() -> None:
    assert did_you_mean("xyzzy", ["pub", "sub"]) == ""
    assert did_you_mean("pbu", ["pub", "sub"]) == " Did you mean 'pub'?"


def test_a_command_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        name = "elsewhere"
        dist = None

        @staticmethod
        def load() -> click.Command:
            return click.Command("elsewhere", help="From elsewhere.")

    monkeypatch.setattr(
        cli.metadata, "entry_points", lambda group: [Plugin] if group == cli.ENTRY_POINT_GROUP else []
    )
    context = click.Context(cli.cli)
    assert "elsewhere" in cli.cli.list_commands(context)
    command = cli.cli.get_command(context, "elsewhere")
    assert command is not None
    assert command.help == "From elsewhere."
