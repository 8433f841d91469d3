"""What the object commands send to the controller; no controller runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cluster.commands import cli
from cluster.commands.connecting.connection import AdminOptions
from cluster.commands.objects.objects import COLUMNS
from cluster.objects import KINDS, attributes_of
from cluster.security import passwords

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Note every call of the admin API, and answer it with what it was given."""
    noted: list[tuple[str, dict[str, Any]]] = []

    def call(_self: AdminOptions, operation: str, **arguments: Any) -> Any:
        noted.append((operation, arguments))
        return [arguments] if operation == "objects.list" else arguments

    monkeypatch.setattr(AdminOptions, "call", call)
    return noted


def test_every_kind_of_object_has_its_commands() -> None:
    commands = cli.command_tree()
    for kind in KINDS:
        for verb in ("list", "show", "create", "update", "delete", "attributes"):
            assert f"angarium {kind} {verb}" in commands


def test_a_list_shows_attributes_that_exist() -> None:
    for kind, columns in COLUMNS.items():
        known = {attribute.name for attribute in attributes_of(kind)} | {"name", "vpn", "password_set"}
        assert set(columns) <= known


def test_assignments_are_sent_as_they_are_written(calls: list[tuple[str, dict[str, Any]]]) -> None:
    arguments = ["--set", "eliding=true", "--set", "eliding_delay_ms=5", "--set", "x=a=b"]
    assert cli.run(["profile", "create", "p", "--vpn", "v", *arguments]) == 0
    (call,) = calls
    assert call == (
        "objects.create",
        {
            "kind": "profile",
            "vpn": "v",
            "name": "p",
            "attributes": {"eliding": "true", "eliding_delay_ms": "5", "x": "a=b"},
        },
    )


def test_an_attribute_that_is_set_more_than_once_is_a_list(calls: list[tuple[str, dict[str, Any]]]) -> None:
    arguments = ["--set", "publish_topic_exceptions=a,b/>", "--set", "publish_topic_exceptions=c"]
    assert cli.run(["acl", "update", "a", *arguments]) == 0
    assert calls[0][1]["attributes"] == {"publish_topic_exceptions": ["a,b/>", "c"]}


def test_a_password_comes_from_its_file(calls: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    assert cli.run(["username", "update", "bob", "--password-file", str(path)]) == 0
    assert calls[0][1]["attributes"] == {"password": "s3cret"}


def test_a_list_is_of_all_vpns_unless_one_is_named(calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert cli.run(["username", "list"]) == 0
    assert cli.run(["username", "list", "b*", "--vpn", "v"]) == 0
    assert cli.run(["vpn", "list"]) == 0
    assert [arguments["vpn"] for _, arguments in calls] == [None, "v", ""]
    assert [arguments["name"] for _, arguments in calls] == ["*", "b*", "*"]


def test_passwords_of_a_file_reach_the_node_as_hashes_and_as_those_that_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The controller does nothing else while it makes a hash, and a file may have hundreds."""
    stored = passwords.hash_password("as before")
    sent: list[dict[str, Any]] = []

    def call(_self: AdminOptions, operation: str, **arguments: Any) -> Any:
        if operation == "config.export":
            return [["username", "default", "anna", {"password": stored}]]
        sent.extend({"kind": row[0], "name": row[2], **row[3]} for row in arguments["objects"])
        return []

    monkeypatch.setattr(AdminOptions, "call", call)
    (tmp_path / "anna").write_text("as before\n")
    (tmp_path / "bob").write_text("another\n")
    file = tmp_path / "objects.toml"
    file.write_text(
        "[vpn.default.username.anna]\npassword_file = 'anna'\n[vpn.default.username.bob]\npassword_file = 'bob'\n"
        "[vpn.default.queue.q]\n[[operators]]\nname = 'anna'\npassword_file = 'anna'\n"
    )
    assert cli.run(["config", "apply", str(file)]) == 0
    given = {(row["kind"], row["name"]): row.get("password", "") for row in sent}
    assert given["username", "anna"] == stored
    assert given["operator", "anna"] != stored, "it is of somebody else"
    assert passwords.fits(given["operator", "anna"], "as before")
    assert passwords.fits(given["username", "bob"], "another")
    assert given["queue", "q"] == ""
