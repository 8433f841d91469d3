"""The parts of the node commands that need no node."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
import pytest

from cluster.commands import cli
from cluster.commands.node import configuring, node
from cluster.commands.terminal.following import since_of
from cluster.objects import complete

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86400)])
def test_since_takes_how_long_ago(text: str, seconds: int) -> None:
    found = since_of(text)
    assert isinstance(found, str)
    ago = datetime.now(UTC) - datetime.fromisoformat(found)
    assert abs(ago - timedelta(seconds=seconds)) < timedelta(seconds=5)


@pytest.mark.parametrize("text", ["1x", "", "10 m", "yesterday", "9999999999d", "2030-13-01"])
def test_since_says_all_that_it_takes(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"30s, 10m, 2h, 1d.*2031-05-04T10:11:12Z.*a number") as told:
        since_of(text)
    assert repr(text) in told.value.message


def test_since_takes_an_id_and_a_time_as_they_are() -> None:
    assert since_of("42") == 42
    assert since_of("2030-01-01T00:00:00Z") == "2030-01-01T00:00:00Z"


def test_an_event_is_one_line() -> None:
    event = {
        "id": 1,
        "time": "t",
        "severity": "info",
        "scope": "client",
        "event": "CLIENT_CONNECT",
        "text": "hello",
        "client": "c",
    }
    assert node._event_line(event) == "t info    CLIENT_CONNECT: hello"


def test_a_good_configuration_and_a_bad_one_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.toml"
    path.write_text('[node]\nname = "n"\n')
    assert cli.run(["config", "check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["good"] is True
    path.write_text("[node]\nnaem = 'n'\n")
    assert cli.run(["config", "check", str(path), "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["good"] is False
    assert told.err.startswith("error 40017: ")
    assert "name" in told.err


def test_changes_of_a_configuration_are_told_in_short() -> None:
    made = {name: [None, value] for name, value in complete("queue", {"max_ttl_s": 5}).items()}
    created = {"action": "create", "kind": "queue", "changes": made}
    assert configuring._changes(created) == "max_ttl_s = 5"
    updated = {"action": "update", "kind": "queue", "changes": {"max_ttl_s": [5, 1000], "owner": ["", "ann"]}}
    assert configuring._changes(updated) == "max_ttl_s: 5 -> 1,000; owner:  -> ann"
    assert configuring._changes({"action": "unchanged", "kind": "queue", "changes": {}}) == ""
