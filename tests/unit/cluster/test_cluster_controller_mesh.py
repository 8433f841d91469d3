"""The controller and the mesh: what it asks, what it tells its neighbours, and what operators hear."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.controller.mesh import reports
from cluster.controller.mesh.alarm import HOLD_S
from cluster.controller.mesh.cluster_view import ClusterView, Identity
from cluster.controller.switchboard import effects as c
from tests.unit.cluster.controller_world import World, replies

Row = dict[str, Any]


class Mesh(World):
    """A node a whose router and link process answer."""

    def __init__(self, events: list[Row] | None = None) -> None:
        super().__init__(node="a", events=events)
        #: What the router says; None while it does not answer.
        self.overview: Row | None = {"links": [], "queues": {}, "heard": [], "refusals": []}
        #: Reports that the neighbours were told.
        self.told: list[bytes] = []
        self.respond(self.hello("router"))
        self.let(0.1)

    def let(self, seconds: float) -> list[c.Effect]:
        """Let time pass in steps of a tenth of a second, with processes that answer."""
        seen: list[c.Effect] = []
        for _ in range(round(seconds * 10)):
            seen += self.respond(self.wait(0.1))
        return seen

    def respond(self, effects: list[c.Effect]) -> list[c.Effect]:
        seen = list(effects)
        for effect in effects:
            if isinstance(effect, c.Request) and self.overview is not None:
                if effect.operation == "tell_peers":
                    self.told.append(effect.arguments["report"])
                answers: Row = {"peers": self.overview, "stats": {}}
                answer = answers.get(effect.operation)
                seen += self.respond(self.do(self.controller.answered(effect.number, answer)))
        return seen

    def create(self, name: str) -> None:
        self.respond(self.call("objects.create", kind="link", name=name, attributes={}))

    def join(self, name: str, *others: str) -> None:
        """The link to a neighbour is up, which has links with others that are up too."""
        assert self.overview is not None
        self.overview["links"].append(session(name))
        view = ClusterView(Identity(name, f"id-{name}", "", ""))
        view.update([link(other) for other in ("a", *others)], [], [], ["default"], 9.0, 0.0)
        report = reports.encode(view.report(0.0))
        self.overview["heard"].append({"node": name, "report": report, "age_s": 0.1})

    def status(self) -> Row:
        (found,) = replies(self.respond(self.call("cluster.status")))
        assert isinstance(found, dict)
        return found

    def issues(self, name: str = "SYSTEM_CLUSTER_TOPOLOGY_ISSUE") -> list[tuple[str, list[str]]]:
        return [(one["issue"], one["nodes"]) for one in self.ring.find(0, 1_000) if one["event"] == name]


def session(name: str) -> Row:
    return {
        "name": name,
        "vpn": "default",
        "synchronised": True,
        "uptime_s": 1.0,
        "subscriptions_in": 5,
        "untold": 0,
        "subscriptions_out": 6,
        "subscriptions_dropped": 0,
        "messages_in": 1,
        "messages_out": 2,
        "queued_messages": 0,
        "queued_bytes": 0,
        "node_id": f"id-{name}",
        "encrypted": False,
    }


def link(name: str) -> Row:
    metrics = (
        "queued_messages",
        "queued_bytes",
        "spooled_messages",
        "spooled_bytes",
        "retry_messages",
        "dead_messages",
        "subscriptions_in",
        "subscriptions_out",
    )
    return {
        "name": name,
        "state": "up",
        "node_id": f"id-{name}",
        "code": 0,
        "error": "",
        "uptime_s": 1.0,
        "opens": True,
        "lag_ms": None,
        "encrypted": None,
        "progress_percent": 100,
        "shut": False,
        **dict.fromkeys(metrics, 0),
    }


@pytest.fixture
def mesh() -> Mesh:
    return Mesh()


def operations(seen: list[c.Effect]) -> list[str]:
    return [effect.operation for effect in seen if isinstance(effect, c.Request)]


def test_a_queue_of_a_link_that_was_left_shut_is_an_issue_and_neighbours_hear_of_it(mesh: Mesh) -> None:
    mesh.create("b")
    mesh.join("b")

    def switch(takes: bool) -> None:
        given = {
            "kind": "queue",
            "vpn": "default",
            "name": "#link/b",
            "attributes": {"ingress_enabled": takes},
        }
        mesh.respond(mesh.call("objects.update", **given))
        mesh.let(4.5)

    switch(takes=False)
    assert [issue["kind"] for issue in mesh.status()["issues"]] == ["link_shut"]
    assert mesh.issues() == [("link_shut", ["a", "b"])]
    assert reports.decode(mesh.told[-1], "a").links[0].shut
    switch(takes=True)
    assert mesh.status()["issues"] == []
    assert not reports.decode(mesh.told[-1], "a").links[0].shut


def test_a_node_without_links_asks_nobody(mesh: Mesh) -> None:
    assert not {"peers", "tell_peers"} & set(operations(mesh.let(3.0)))
    found = mesh.status()
    assert [(row["node"], row["state"]) for row in found["nodes"]] == [("a", "this")]
    assert (found["links"], found["issues"]) == ([], [])


@pytest.mark.requirement("R220")
def test_neighbours_are_told_at_once_what_changed_and_otherwise_now_and_then(mesh: Mesh) -> None:
    mesh.create("b")
    mesh.join("b")
    mesh.let(1.5)
    assert [reports.decode(one, "a").links[0].state for one in mesh.told][-1] == "up"
    mesh.told.clear()
    mesh.let(10.5)
    assert 1 <= len(mesh.told) <= 3
    mesh.told.clear()
    assert mesh.overview is not None
    mesh.overview["links"].clear()
    mesh.let(1.2)
    assert [reports.decode(one, "a").links[0].state for one in mesh.told] == ["down"]


@pytest.mark.requirement("R220")
def test_an_issue_is_an_event_once_and_another_when_it_is_over(mesh: Mesh) -> None:
    mesh.create("b")
    mesh.join("b", "c")
    mesh.let(HOLD_S + 2)
    assert mesh.issues() == [("link_missing", ["a", "c"])]
    (issue,) = mesh.status()["issues"]
    assert (issue["kind"], issue["nodes"]) == ("link_missing", ["a", "c"])
    seen = mesh.call("status")
    (status,) = replies(mesh.respond(seen))
    assert status["topology_issues"] == 1
    mesh.let(20.0)
    assert len(mesh.issues()) == 1
    mesh.create("c")
    mesh.join("c", "b")
    mesh.let(HOLD_S + 2)
    assert mesh.issues("SYSTEM_CLUSTER_TOPOLOGY_ISSUE_CLEAR") == [("link_missing", ["a", "c"])]
    assert mesh.status()["issues"] == []
    assert len(mesh.issues()) == 1


def test_the_issues_of_a_link_are_shown_with_it(mesh: Mesh) -> None:
    mesh.create("b")
    mesh.let(2.0)
    (shown,) = replies(mesh.respond(mesh.call("links.show", name="b")))
    assert shown["state"] == "down"
    assert "is down" in shown["issues"][0]
    assert shown["since_s"] >= 1.0


@pytest.mark.requirement("R220")
def test_a_router_that_is_being_replaced_is_no_issue(mesh: Mesh) -> None:
    mesh.create("b")
    mesh.join("b")
    mesh.let(3.0)
    before, mesh.overview = mesh.overview, None
    mesh.let(8.0)
    mesh.overview = before
    mesh.let(3.0)
    assert mesh.issues() == []


@pytest.mark.requirement("R220")
def test_the_last_issue_is_cleared_when_the_link_is_deleted(mesh: Mesh) -> None:
    mesh.create("b")
    mesh.let(HOLD_S + 2)
    assert mesh.issues() == [("link_down", ["a", "b"])]
    mesh.respond(mesh.call("objects.delete", kind="link", name="b"))
    mesh.let(HOLD_S + 3)
    assert mesh.issues("SYSTEM_CLUSTER_TOPOLOGY_ISSUE_CLEAR") == [("link_down", ["a", "b"])]


@pytest.mark.requirement("R220")
def test_a_controller_that_is_replaced_tells_nothing_twice(mesh: Mesh) -> None:
    mesh.create("b")
    mesh.let(HOLD_S + 2)
    assert mesh.issues() == [("link_down", ["a", "b"])]
    successor = Mesh(mesh.ring.find(0, 1_000))
    successor.create("b")
    successor.let(HOLD_S + 2)
    assert len(successor.issues()) == 1
    successor.join("b")
    successor.let(HOLD_S + 2)
    assert successor.issues("SYSTEM_CLUSTER_TOPOLOGY_ISSUE_CLEAR") == [("link_down", ["a", "b"])]
