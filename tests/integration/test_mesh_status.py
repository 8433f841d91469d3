"""`angarium cluster status` and topology issues, with real nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster.admin.client import Admin
from tests.integration.mesh_nodes import Mesh
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
pytestmark = pytest.mark.slow
ISSUE = "SYSTEM_CLUSTER_TOPOLOGY_ISSUE"


def ask(mesh: Mesh, name: str, operation: str, **arguments: Any) -> Any:
    """Ask the controller itself: a command takes half a second to start."""
    with Admin(mesh[name].data) as admin:
        return admin.call(operation, **arguments)


def view(mesh: Mesh, name: str) -> Row:
    found: Row = ask(mesh, name, "cluster.status")
    return found


def wait_for_issues(mesh: Mesh, name: str, *expected: tuple[str, list[str]]) -> None:
    wait_for(
        lambda: view(mesh, name),
        lambda seen: [(issue["kind"], issue["nodes"]) for issue in seen["issues"]] == list(expected),
    )


def wait_for_event(mesh: Mesh, here: str, event: str, kind: str, nodes: list[str]) -> None:
    wait_for(
        lambda: ask(mesh, here, "events"),
        lambda seen: (
            [(one["issue"], one["nodes"]) for one in seen if one["event"] == event].count((kind, nodes)) == 1
        ),
    )


@pytest.mark.long
@pytest.mark.requirement("R220")
def test_a_line_lacks_a_link_and_a_node_that_died_is_stale(tmp_path: Path) -> None:
    """What is missing is seen from every node, told once, and over once the link is there; then a node is killed."""
    with Mesh(tmp_path, 3) as mesh:
        mesh.join("ab", "bc")
        missing = ("link_missing", ["a", "c"])
        for name in "abc":
            wait_for_issues(mesh, name, missing)
            wait_for_event(mesh, name, ISSUE, *missing)
        wait_for(
            lambda: json.loads(mesh["a"].run("cluster", "status", "--json"))["nodes"],
            lambda seen: (
                [(row["node"], row["state"], row["through"]) for row in seen]
                == [("a", "this", []), ("b", "up", []), ("c", "through", ["b"])]
            ),
        )
        mesh["a"].wait_for("one issue", lambda status: status["topology_issues"] == 1)

        mesh.join("ac")
        for name in "abc":
            wait_for_issues(mesh, name)
            wait_for_event(mesh, name, f"{ISSUE}_CLEAR", *missing)
        seen = wait_for(
            lambda: view(mesh, "a"),
            lambda seen: len(seen["links"]) == 6 and all(row["lag_ms"] for row in seen["links"]),
        )
        assert {(row["node"], row["neighbour"], row["state"]) for row in seen["links"]} == {
            (one, two, "up") for one in "abc" for two in "abc" if one != two
        }
        assert mesh.link("a", "b")["lag_ms"] > 0, "measured by the other end"

        mesh["c"].kill_all()
        down = [("link_down", ["a", "c"]), ("link_down", ["b", "c"])]
        for name in "ab":
            wait_for_issues(mesh, name, *down)
            for issue in down:
                wait_for_event(mesh, name, ISSUE, *issue)
        (row,) = [row for row in view(mesh, "a")["nodes"] if row["node"] == "c"]
        assert (row["state"], row["heard_s"] > 0) == ("stale", True)
        assert "is down" in mesh.link("a", "c")["issues"][0]
        mesh["c"].start()
        for name in "abc":
            wait_for_issues(mesh, name)
