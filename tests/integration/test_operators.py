"""Operators of a running node: the fourth field of a request at its doors, and the command."""

from __future__ import annotations

import json
import os
import pwd
import signal
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from angarium import errors, wire
from angarium_server.testing import Node
from cluster.admin.client import Admin
from cluster.commands import cli
from cluster.data.node_file import read_node_file
from cluster.security import passwords
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("operators") / "data", workers=1) as running:
        yield running


def exchange(node: Node, *request: Any) -> Any:
    """Give the answer to a request that comes by the local door; None: there is none."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(read_node_file(node.data).admin)
        socket.send(wire.pack(list(request)))
        # A request that is answered follows, so that the silence about the first one is known for sure.
        socket.send(wire.pack([99, "operators.me", {}]))
        assert socket.poll(10_000)
        number, *answer = wire.unpack(socket.recv())
        return None if number == 99 else answer


@pytest.mark.requirement("R257")
def test_an_operator_is_made_by_the_command_and_asks_through_the_local_door(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    made = ["operator", "create", "anna", "--set", "role=operator", "--password-file", str(file)]
    assert cli.run([*made, "--data", str(node.data)]) == 0
    assert "secret" not in capsys.readouterr().out
    with Admin(node.data) as admin:
        assert passwords.fits(admin.call("operators.credentials", name="anna")["password"], "secret")
    caller = {"operator": "anna", "address": "127.0.0.1"}
    me = {"name": "anna", "role": "operator", "vpn": ""}
    assert exchange(node, 1, "operators.me", {}, caller) == [True, me]
    ok, (code, _) = exchange(node, 1, "operators.me", {}, {**caller, "operator": "nobody"})
    assert (ok, code) == (False, errors.UNAUTHORIZED)


@pytest.mark.parametrize(
    "caller",
    ["anna", {"operator": "anna"}, {"operator": "a", "address": "b", "role": "administrator"}, [], 7],
)
def test_a_caller_that_is_none_is_not_answered(node: Node, caller: Any) -> None:
    assert exchange(node, 1, "operators.me", {}, caller) is None


def audit(node: Node, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert cli.run(["audit", "--json", *options, "--data", str(node.data)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.requirement("R259")
def test_what_was_done_is_in_the_audit_log_after_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    caller = {"operator": "ben", "address": "10.0.0.7"}
    with Node(tmp_path / "data", workers=1) as node:
        with Admin(node.data) as admin:
            admin.call(
                "objects.create", kind="operator", name="ben", attributes={"password": "s3cr3t-s3cr3t"}
            )
            ok, (code, _) = exchange(node, 1, "objects.create", {"kind": "queue", "name": "q"}, caller)
            assert (ok, code) == (False, errors.OPERATOR_DENIED)
            admin.call("objects.create", kind="queue", name="q", attributes={})
            admin.call(
                "operators.logged_in", name="ben", address="10.0.0.7", method="password", outcome="done"
            )
        before = audit(node, capsys)
        (file,) = (node.data / "audit").glob("audit.jsonl")
        assert [json.loads(line) for line in file.read_bytes().splitlines()] == before
        for row in node.status()["processes"]:
            if row["role"] == "controller":
                os.kill(row["pid"], signal.SIGKILL)
        wait_until(lambda: node.status()["processes"][0]["state"] == "ready", "the controller is back")
        assert audit(node, capsys) == before
    with Node(tmp_path / "data", workers=1) as node:
        found = audit(node, capsys)
        assert found[: len(before)] == before
        told = [(one["who"], one["operation"], one["outcome"]) for one in found]
        assert told == [
            (user, "objects.create", "done"),
            ("ben", "objects.create", errors.OPERATOR_DENIED),
            (user, "objects.create", "done"),
            ("ben", "login", "done"),
            (user, "down", "done"),
        ]
        assert audit(node, capsys, "--who", "ben", "--since", str(found[1]["number"])) == [found[3]]
        assert cli.run(["audit", "--data", str(node.data)]) == 0
        assert "ben (management 10.0.0.7) objects.create" in capsys.readouterr().out
    for path in (tmp_path / "data" / "audit").iterdir():
        assert b"s3cr3t" not in path.read_bytes()
