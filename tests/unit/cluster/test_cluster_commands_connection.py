"""Where commands look for a node, and what they take from files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import pytest

from angarium.errors import AngariumError
from cluster.commands import connection

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing of the surroundings be found by chance."""
    monkeypatch.chdir(tmp_path)
    for name in ("ANGARIUM_DATA", "ANGARIUM_URL"):
        monkeypatch.delenv(name, raising=False)


def start_node(folder: Path, url: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.json").write_text(json.dumps({"node": "n", "node_id": "1", "workers": 1, "url": url}))


@click.command()
@connection.client_options
def show(*, connect: connection.ConnectOptions) -> connection.ConnectOptions:
    return connect


def options(*arguments: str) -> connection.ConnectOptions:
    found = show.main(args=list(arguments), standalone_mode=False)
    assert isinstance(found, connection.ConnectOptions)
    return found


def test_without_anything_the_usual_port_of_this_host_is_meant() -> None:
    assert options().url == "tcp://127.0.0.1:55555"


def test_the_node_of_the_usual_data_directory_is_found(tmp_path: Path) -> None:
    start_node(tmp_path / "angarium-data", "tcp://127.0.0.1:1")
    assert options().url == "tcp://127.0.0.1:1"


def test_a_data_directory_goes_before_the_usual_one_and_an_address_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_node(tmp_path / "angarium-data", "tcp://127.0.0.1:1")
    start_node(tmp_path / "other", "tcp://127.0.0.1:2")
    start_node(tmp_path / "third", "tcp://127.0.0.1:3")
    monkeypatch.setenv("ANGARIUM_DATA", str(tmp_path / "other"))
    assert options().url == "tcp://127.0.0.1:2"
    assert options("--data", "third").url == "tcp://127.0.0.1:3"
    monkeypatch.setenv("ANGARIUM_URL", "tcp://127.0.0.1:4")
    assert options("--data", "third").url == "tcp://127.0.0.1:4"
    assert options("--url", "tcp://127.0.0.1:5").url == "tcp://127.0.0.1:5"


def test_a_data_directory_that_was_named_must_hold_a_node(tmp_path: Path) -> None:
    with pytest.raises(AngariumError, match="50308"):
        options("--data", "missing")
    start_node(tmp_path / "unready", "")
    with pytest.raises(AngariumError, match="never ready"):
        options("--data", "unready")


def test_a_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret word\nsecond line\n")
    assert options("--password-file", str(path)).password == "s3cret word"
    assert options().password is None
    path.write_text("")
    with pytest.raises(AngariumError, match="empty"):
        options("--password-file", str(path))


def test_the_options_are_the_arguments_of_connect() -> None:
    found = options("--vpn", "v", "--user", "u", "--client-name", "c", "--timeout", "2.5").arguments()
    assert found == {
        "url": "tcp://127.0.0.1:55555",
        "vpn": "v",
        "username": "u",
        "password": None,
        "server_key": None,
        "timeout_s": 2.5,
        "client_name": "c",
    }
