"""The parts of the node commands that need no node."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import pytest

from angarium import errors
from cluster.commands import cli
from cluster.commands.node import configuring, node
from cluster.commands.terminal import following
from cluster.commands.terminal.following import show_following, since_of
from cluster.objects import complete
from cluster.security.authority import create_certificate

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


@pytest.mark.parametrize(
    "code",
    [errors.CONTROLLER_UNAVAILABLE, errors.TIMEOUT, errors.CONNECT_FAILED, errors.CONTROL_RATE_EXCEEDED],
)
def test_who_follows_goes_on_where_he_was_when_there_are_answers_again(
    code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "INTERVAL_S", 0.0)
    asked: list[Any] = []
    answers: list[Any] = [[{"id": 1}], code, code, [{"id": 2}], errors.UNAUTHORIZED]

    def find(position: Any) -> list[dict[str, Any]]:
        asked.append(position)
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise errors.error_for(answer)
        return list(answer)

    with pytest.raises(errors.UnauthorizedError):
        show_following(find, "id", lambda row: f"event {row['id']}", None, follow=True)
    told = capsys.readouterr()
    assert told.out == "event 1\nevent 2\n"
    assert asked == [None, 1, 1, 1, 2]
    assert told.err.count("no answer, asking again") == told.err.count("there are answers again") == 1


@pytest.mark.parametrize("follow", [True, False])
def test_who_never_had_an_answer_is_told_why(*, follow: bool) -> None:
    def find(_position: Any) -> list[dict[str, Any]]:
        raise errors.error_for(errors.CONNECT_FAILED)

    with pytest.raises(errors.ConnectionLostError):
        show_following(find, "id", str, None, follow=follow)


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


def test_a_certificate_that_ends_is_told_of_by_the_check_of_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = create_certificate(tmp_path / "node", days=0)
    path = tmp_path / "node.toml"
    path.write_text(f'[router]\ntls_cert_file = "{pair.cert_file}"\ntls_key_file = "{pair.key_file}"\n')
    assert cli.run(["config", "check", str(path), "--json"]) == 0
    told = capsys.readouterr()
    (warning,) = json.loads(told.out)["warnings"]
    assert warning.startswith(f"router.tls_cert_file: the certificate {pair.cert_file} ended on ")
    assert told.err == f"warning: {warning}\n"


def test_changes_of_a_configuration_are_told_in_short() -> None:
    made = {name: [None, value] for name, value in complete("queue", {"max_ttl_s": 5}).items()}
    created = {"action": "create", "kind": "queue", "changes": made}
    assert configuring._changes(created) == "max_ttl_s = 5"
    updated = {"action": "update", "kind": "queue", "changes": {"max_ttl_s": [5, 1000], "owner": ["", "ann"]}}
    assert configuring._changes(updated) == "max_ttl_s: 5 -> 1,000; owner:  -> ann"
    assert configuring._changes({"action": "unchanged", "kind": "queue", "changes": {}}) == ""
