"""The command line itself: exit codes, errors, what is loaded when. No node runs here."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import TYPE_CHECKING

import click
import pytest

import angarium
import angarium_server
from angarium import wire
from angarium_server.launch import is_compiled
from cluster.commands import cli
from cluster.commands.terminal import words
from cluster.commands.terminal.group import did_you_mean
from tests.unit.cluster import surroundings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command find a node by chance."""
    surroundings.empty(tmp_path, monkeypatch)


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
    """What prints text for people or a shell only has none."""
    without = [
        path
        for path, command in cli.command_tree().items()
        if not isinstance(command, click.Group)
        and path not in ("angarium help", "angarium completion")
        and not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert without == []


def test_secrets_are_never_options() -> None:
    for path, command in cli.command_tree().items():
        for parameter in command.params:
            for name in parameter.opts:
                assert "password" not in name or name.endswith("password-file"), path
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
        (["pub", "a", "--file", "-", "--lines", "-"], "--file and --lines exclude each other"),
        (["request", "a", "x", "--file", "-"], "--file exclude each other"),
        (["pub", "a/{line%0}"], "at least 1"),
        (["pub", "a", "--property", "x"], "write KEY=VALUE"),
        (["pub", "a", "--cos", "4"], "1<=x<=3"),
        (["pub", "a", "--lines", "missing.csv"], "missing.csv"),
        (["username", "create", "bob", "--set", "password=x"], "--password-file"),
        (["vpn", "create", "v", "--set", "enabled"], "ATTRIBUTE=VALUE"),
        (["reply", "a", "--exec", "no-such-program-here"], "no-such-program-here"),
        (["--data", "x", "status"], "Did you mean 'angarium status ... --data x'?"),
        (["profile", "update", "default", "eliding=true"], "Did you mean '--set eliding=true'?"),
        (["queue", "create", "q", "r", "owner=a", "x=1"], "Did you mean '--set owner=a'?"),
        (
            ["--url", "tcp://x:1", "--user", "bob", "sub", ">"],
            "'angarium sub ... --url tcp://x:1 --user bob'",
        ),
        (["--nonsense"], "--nonsense"),
        (
            ["queue", "list", "--url", "tcp://x:1"],
            "Operator commands use --data, or --admin-url for a remote node",
        ),
        (["sub", "a", "--admin-url", "tcp://x:1"], "Client commands use --url"),
        (["sub", "a", "--url", "localhost:1"], "write tcp://localhost:1"),
        (["status", "--admin-url", "node-1"], "write tcp://node-1:55555"),
        (["help", "quueue"], "Did you mean 'queue'?"),
        (["completion", "tcsh"], "tcsh"),
        (["context", "add", "a b", "--url", "tcp://x:1"], "is no name of a context"),
        (["context", "add", "a"], "at least one option"),
        (["context", "add", "a", "--password-file", "missing"], "missing"),
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


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["help", "queue", "list"]) == 0
    shown = capsys.readouterr().out
    assert cli.run(["queue", "list", "--help"]) == 0
    assert capsys.readouterr().out == shown
    assert shown.startswith("Usage: angarium queue list ")
    assert cli.run(["help"]) == 0
    assert "Messages:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["list", "ls"])
def test_every_option_has_a_variable_that_the_command_line_overrides(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANGARIUM_QUEUE_LIST_DATA", str(tmp_path / "named"))
    assert cli.run(["queue", name]) == 1
    assert "named" in capsys.readouterr().err
    assert cli.run(["queue", name, "--data", str(tmp_path / "other")]) == 1
    told = capsys.readouterr().err
    assert "other" in told
    assert "named" not in told
    monkeypatch.setenv("ANGARIUM_QUEUE_LIST_OUTPUT", "picture")
    assert cli.run(["queue", name]) == 2
    assert "picture" in capsys.readouterr().err


def test_variables_of_others_are_no_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANGARIUM_VERSION", "1.2")
    assert cli.run(["help"]) == 0
    assert "Usage: angarium" in capsys.readouterr().out


def test_version_names_everything_that_can_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["server"], found["sdk"]) == (angarium_server.__version__, angarium.__version__)
    assert (found["client_protocol"], found["python"]) == (wire.PROTOCOL_VERSION, platform.python_version())
    assert found["compiled"] is is_compiled()
    assert {"config_store_format", "spool_format", "data_directory_format"} <= found.keys()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_what_completes_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["completion", shell]) == 0
    assert f"_ANGARIUM_COMPLETE={shell}_complete" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["queue", "declare", "orders"], "Did you mean 'create'?"),
        (["queue", "remove", "orders"], "Did you mean 'delete'?"),
        (["queue", "edit", "orders"], "Did you mean 'update'?"),
        (["queue", "browse", "orders"], "Did you mean 'messages'?"),
        (["worker", "set", "2"], "Did you mean 'scale'?"),
        (["client", "kick", "anna"], "Did you mean 'disconnect'?"),
        (["context", "delete", "prod"], "Did you mean 'remove'?"),
        (["stop"], "Did you mean 'down'?"),
        (["restart"], "Did you mean 'down' or 'up'?"),
        (["backup"], "Did you mean 'spool backup'?"),
        (["list_queues"], "Did you mean 'queue list'?"),
        (["add_user", "anna"], "Did you mean 'username create'?"),
        (["describe", "queue", "orders"], "Did you mean 'queue show'?"),
        (["connections"], "Did you mean 'client list'?"),
        (["queue", "bind", "orders"], "Did you mean 'update'?"),
        (["client", "close", "anna"], "Did you mean 'disconnect'?"),
        (["queues"], "Did you mean 'queue' or 'request'?"),
        (["queue", "subscriptions", "orders"], "Did you mean 'update'?"),
        (["standby", "failover"], "Did you mean 'switch'?"),
        (["permissions"], "Did you mean 'acl'?"),
        (["topics"], "Did you mean 'sub' or 'queue list'?"),
        (["list"], "Did you mean 'queue list' or 'client list'?"),
        (["init"], "Did you mean 'up'?"),
        (["browse", "orders"], "Did you mean 'queue messages' or 'consume'?"),
        (["passwd", "anna"], "Did you mean 'username update'?"),
        (
            ["pub", "a", "b", "--persistent"],
            "'--persistent'. Did you mean '--mode persistent'? 'angarium pub",
        ),
        (["pub", "a", "b", "--qos", "1"], "Did you mean '--mode persistent'?"),
        (
            ["queue", "create", "orders", "--partitions", "4"],
            "'--partitions'. Did you mean '--set partition_count=N'?",
        ),
        (["queue", "create", "orders", "--exclusive"], "Did you mean '--set access_type=exclusive'?"),
        (["sub", "a", "-u", "anna"], "Did you mean '--user'?"),
        (["queue", "create", "orders", "--url", "x"], "Operator commands use --data"),
    ],
)
def test_words_of_other_tools_lead_to_the_commands_that_do_it(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    assert text in capsys.readouterr().err


def test_each_word_leads_to_commands_that_exist() -> None:
    tree = cli.command_tree()
    last = {path.split()[-1] for path in tree}
    for word, commands in words.OF_ANGARIUM.items():
        assert f"angarium {word}" not in tree
        assert [path for path in commands if f"angarium {path}" not in tree] == []
    for word, commands in words.OF_COMMANDS.items():
        assert set(commands) <= last, word
    options = {name for command in tree.values() for one in command.params for name in one.opts}
    for meant in words.OF_OPTIONS.values():
        assert meant.split()[0] in options


def test_a_group_without_a_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["worker"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Usage: angarium worker")
    assert shown.rstrip().endswith("clients stay connected.")


def test_choices_of_an_argument_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["completion"]) == 2
    assert "Choose from: bash, zsh, fish." in capsys.readouterr().err


def test_a_command_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        name = "elsewhere"
        dist = None

        @staticmethod
        def load() -> click.Command:
            return click.Command("elsewhere", help="From elsewhere.")

    monkeypatch.setattr(
        metadata, "entry_points", lambda group: [Plugin] if group == cli.ENTRY_POINT_GROUP else []
    )
    context = click.Context(cli.cli)
    assert "elsewhere" in cli.cli.list_commands(context)
    command = cli.cli.get_command(context, "elsewhere")
    assert command is not None
    assert command.help == "From elsewhere."
