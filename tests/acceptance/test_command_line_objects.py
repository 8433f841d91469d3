"""The `angarium` command as operators use it: objects, access, clients, configuration."""

from __future__ import annotations

import json
import signal
import tomllib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.acceptance.command_shell import Shell

pytestmark = pytest.mark.slow


# Objects and access.


def test_an_object_is_created_listed_shown_updated_and_deleted(shell: Shell) -> None:
    made = shell.run(
        "profile", "create", "slow", "--set", "eliding=true", "--set", "eliding_delay_ms=200", "--json"
    ).object
    assert (
        made.items() >= {"kind": "profile", "name": "slow", "eliding": True, "eliding_delay_ms": 200}.items()
    )
    assert "slow" in [row["name"] for row in shell.run("profile", "list", "--json").rows]
    assert [row["name"] for row in shell.run("profile", "list", "sl*", "--json").rows] == ["slow"]
    assert (
        shell.run("profile", "update", "slow", "--set", "eliding_delay_ms=50", "--json").object[
            "eliding_delay_ms"
        ]
        == 50
    )
    assert shell.run("profile", "show", "slow", "--json").object["eliding_delay_ms"] == 50
    assert shell.run("profile", "delete", "slow", "--json").object["deleted"] is True
    assert shell.run("profile", "show", "slow", status=1).err.startswith("error 40401: ")


def test_a_wrong_attribute_is_refused_with_a_hint(shell: Shell) -> None:
    ended = shell.run("profile", "create", "wrong", "--set", "eliding_dely_ms=1", status=1)
    assert ended.err.startswith("error 40015: ")
    assert "eliding_delay_ms" in ended.err


def test_the_attributes_of_a_kind_are_listed(shell: Shell) -> None:
    rows = shell.run("acl", "attributes", "--json").rows
    assert "publish_topic_exceptions" in [row["attribute"] for row in rows]


def test_a_username_needs_its_password(shell: Shell) -> None:
    (shell.folder / "right").write_text("s3cret\n")
    (shell.folder / "wrong").write_text("guess\n")
    made = shell.run("username", "create", "bob", "--password-file", "right", "--json").object
    assert made["password_set"] is True
    assert "s3cret" not in json.dumps(made)
    shell.run("pub", "a", "--user", "bob", "--password-file", "right")
    assert shell.run("pub", "a", "--user", "bob", "--password-file", "wrong", status=1).err.startswith(
        "error 40101: "
    )
    shell.run("username", "delete", "bob")


@pytest.mark.requirement("R57")
def test_a_publisher_and_a_subscriber_are_told_what_an_acl_denies(shell: Shell) -> None:
    allow = [
        "client_connect_default=allow",
        "publish_topic_exceptions=ok/>",
        "subscribe_topic_exceptions=ok/>",
    ]
    shell.run("acl", "create", "narrow", *(part for one in allow for part in ("--set", one)))
    shell.run("username", "create", "carol", "--set", "acl_profile=narrow")
    shell.run("pub", "ok/1", "--user", "carol")
    refused = shell.run("pub", "not/ok", "x", "--count", "3", "--user", "carol", "--json", status=1)
    assert refused.object["nacked"] == 3
    assert refused.err.startswith("error 40302: ")
    assert shell.run("sub", "not/ok", "--user", "carol", status=1).err.startswith("error 40303: ")
    shell.run("username", "delete", "carol")
    shell.run("acl", "delete", "narrow")


@pytest.mark.requirement("R87")
def test_subscriptions_are_listed_with_their_priority(shell: Shell) -> None:
    subscriber = shell.subscribe("listed/a", "--priority", "3", "--client-name", "lister")
    always = shell.subscribe("listed/a", "--da", "--client-name", "always")
    rows = shell.run("subscription", "list", "--client", "lister", "--json").rows
    assert {(row["filter"], row["dto_priority"]) for row in rows if row["filter"] == "listed/a"} == {
        ("listed/a", "P3")
    }
    rows = shell.run("subscription", "list", "--json").rows
    found = {(row["client"], row["dto_priority"]) for row in rows if row["filter"] == "listed/a"}
    assert found == {("lister", "P3"), ("always", "DA")}
    for process in (subscriber, always):
        process.send_signal(signal.SIGINT)
        shell.finish(process)


@pytest.mark.requirement("R58", "R59")
def test_a_subscription_manager_adds_and_removes_for_another_client(shell: Shell) -> None:
    shell.run("username", "create", "manager", "--set", "subscription_manager=true")
    target = shell.subscribe("own/topic", "--client-name", "target")
    add = ("subscription", "add", "managed/topic", "--client", "target")
    assert shell.run(*add, status=1).err.startswith("error 40306: ")
    shell.run(*add, "--user", "manager")
    filters = [
        row["filter"] for row in shell.run("subscription", "list", "--client", "target", "--json").rows
    ]
    assert "managed/topic" in filters
    shell.run("subscription", "remove", "managed/topic", "--client", "target", "--user", "manager")
    filters = [
        row["filter"] for row in shell.run("subscription", "list", "--client", "target", "--json").rows
    ]
    assert "managed/topic" not in filters
    target.send_signal(signal.SIGINT)
    shell.finish(target)
    shell.run("username", "delete", "manager")


def test_clients_are_listed_shown_and_disconnected(shell: Shell) -> None:
    subscriber = shell.subscribe("x", "--client-name", "visible")
    (row,) = [row for row in shell.run("client", "list", "--json").rows if row["name"] == "visible"]
    expected = {
        "name",
        "address",
        "vpn",
        "username",
        "profile",
        "uptime_s",
        "subscriptions",
        "slow",
        "discards",
    }
    assert row.keys() >= expected
    assert shell.run("client", "show", "visible", "--json").object["username"] == "default"
    shell.run("client", "disconnect", "visible")
    assert "50306" in shell.finish(subscriber, status=1).err
    assert shell.run("client", "show", "visible", status=1).err.startswith("error 4")


# Configuration.


def test_the_defaults_are_a_configuration_file_that_is_good(shell: Shell) -> None:
    shown = shell.run("config", "show", "--defaults").out
    assert tomllib.loads(shown.decode())
    (shell.folder / "node.toml").write_bytes(shown)
    assert shell.run("config", "check", "node.toml", "--json").object["good"] is True


def test_every_fault_of_a_configuration_file_is_named(shell: Shell) -> None:
    (shell.folder / "bad.toml").write_text('[router]\nlisten = ["tcp://0.0.0.0:1"]\nworkerz = 1\n[nod]\n')
    faults = shell.run("config", "check", "bad.toml", status=1).err
    assert all(line.startswith("error 40017: bad.toml: ") for line in faults.splitlines())
    assert "workerz" in faults
    assert "nod:" in faults
    assert shell.run("config", "check", "missing.toml", status=2).err.startswith("error 40018: ")


def test_the_configuration_of_the_running_node_is_shown(shell: Shell) -> None:
    shown = shell.run("config", "show").out
    assert "router" in tomllib.loads(shown.decode())
    (shell.folder / "shown.toml").write_bytes(shown)
    assert shell.run("config", "check", "shown.toml", "--json").object["good"] is True
    assert shell.run("config", "show", "--json").object["router"]["workers"] >= 1


def test_objects_are_exported_and_applied_again(shell: Shell) -> None:
    shell.run("vpn", "create", "exported", "--set", "max_connection_count=7")
    exported = shell.run("config", "export").out
    (shell.folder / "objects.toml").write_bytes(exported)
    shell.run("vpn", "update", "exported", "--set", "max_connection_count=8")
    planned = shell.run("config", "apply", "objects.toml", "--dry-run", "--json").rows
    (change,) = [row for row in planned if row["name"] == "exported" and row["kind"] == "vpn"]
    assert change["action"] == "update"
    assert shell.run("vpn", "show", "exported", "--json").object["max_connection_count"] == 8
    shell.run("config", "apply", "objects.toml")
    assert shell.run("vpn", "show", "exported", "--json").object["max_connection_count"] == 7
    shell.run("vpn", "delete", "exported")


@pytest.mark.requirement("R260")
def test_a_plan_says_what_a_file_would_change_and_pruning_asks(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shell.folder / "plan.toml"
    file.write_bytes(shell.run("config", "export").out)
    assert shell.run("config", "plan", "plan.toml", "--prune", "--json").rows == []
    shell.run("queue", "create", "forgotten")
    assert shell.run("config", "plan", "plan.toml").out.decode().startswith("the node is as plan.toml says")
    (planned,) = shell.run("config", "plan", "plan.toml", "--prune", "--json", status=2).rows
    assert (planned["action"], planned["name"]) == ("delete", "forgotten")
    monkeypatch.setitem(shell.environment, "ANGARIUM_YES", "")
    refused = shell.run("config", "apply", "plan.toml", "--prune", status=2)
    assert "delete queue forgotten" in refused.err
    assert shell.run("queue", "show", "forgotten", "--json").object["name"] == "forgotten"
    shell.run("config", "apply", "plan.toml", "--prune", "--yes")
    assert shell.run("queue", "show", "forgotten", status=1).err.startswith("error 40401: ")
    file.write_text('[vpn.default.queue.one]\n[vpn.nowhere.username.two]\nacl_profile = "gone"\n')
    assert shell.run("config", "plan", "plan.toml", status=1).err.startswith("error 40401: ")
    shell.run("config", "apply", "plan.toml", status=1)
    assert shell.run("queue", "show", "one", status=1).err.startswith("error 40401: ")


def test_keys_are_made_once_and_never_overwritten(shell: Shell) -> None:
    made = shell.run(
        "keys", "create", "some", "--host", "node.example", "--host", "10.0.0.7", "--json"
    ).object
    assert (made["cert_file"], made["key_file"]) == ("some.pem", "some.key")
    for file in ("some.key", "authority.key"):
        assert (shell.folder / file).stat().st_mode & 0o077 == 0
    assert shell.run("keys", "create", "some", status=1).err.startswith("error 40901: ")
    found = shell.run("keys", "show", "some.pem", "--json").object
    assert found["subject"] == "CN=some"
    assert {"some", "localhost", "node.example", "10.0.0.7", "127.0.0.1"} <= set(found["names"])
    assert found["names"] == made["names"]
    assert found["issuer"] == shell.run("keys", "show", "authority.pem", "--json").object["subject"]
    assert found["days_left"] == 364
    refused = shell.run("keys", "show", "some.key", status=1)
    assert "name the certificate" in refused.err
    assert "PRIVATE" not in refused.err
    assert shell.run("keys", "create", "app", "--client", "--host", "x", status=2).err.startswith(
        "error 40018: "
    )


def test_the_certificates_of_a_cluster_are_made_in_one_go(shell: Shell) -> None:
    first = shell.run(
        "keys", "cluster", "mesh", "berlin=10.0.0.11", "munich", "--host", "trains.example", "--json"
    )
    assert [row["node"] for row in first.rows] == ["berlin", "munich"]
    assert ["10.0.0.11" in row["names"] for row in first.rows] == [True, False]
    assert all("trains.example" in row["names"] for row in first.rows)
    more = shell.run("keys", "cluster", "mesh", "berlin", "hamburg", "--json").rows
    assert more[0] == first.rows[0], "one more node changes nothing of the others"
    assert {file.name for file in (shell.folder / "mesh").iterdir()} == {
        *("cluster.secret", "authority.pem", "authority.key", "berlin.pem", "berlin.key", "munich.pem"),
        *("munich.key", "hamburg.pem", "hamburg.key"),
    }
