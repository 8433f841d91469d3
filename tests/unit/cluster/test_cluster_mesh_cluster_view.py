"""What a node knows of its cluster, how it tells that, and when it is out of date."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from cluster.controller.health.metrics import CLUSTER
from cluster.controller.mesh import reports
from cluster.controller.mesh.alarm import EARLIER_GRACE_S, HOLD_S, Alarm
from cluster.controller.mesh.cluster_view import STALE_AFTER_S, ClusterView, Identity
from cluster.controller.mesh.topology import Issue
from tests.unit.declared_metrics import differences

Row = dict[str, Any]


def row(name: str, state: str = "up", **changes: Any) -> Row:
    made = {
        "name": name,
        "state": state,
        "node_id": f"id-{name}" if state == "up" else "",
        "code": 0,
        "error": "",
        "uptime_s": 3.0 if state == "up" else None,
        "opens": True,
        "lag_ms": 1.5,
        "encrypted": True,
        "queued_messages": 1,
        "queued_bytes": 10,
        "spooled_messages": 2,
        "spooled_bytes": 20,
        "retry_messages": 3,
        "dead_messages": 4,
        "subscriptions_in": 5,
        "subscriptions_out": 6,
        "progress_percent": 100,
        "shut": False,
    }
    return {**made, **changes}


class Node:
    """A view, and what goes into it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.view = ClusterView(Identity(name, f"id-{name}", "trains", "1.0"))
        self.now = 100.0
        self.vpns = ["default"]

    def update(self, *links: Row, heard: list[Row] | None = None, refusals: list[Row] | None = None) -> None:
        self.view.update(list(links), heard or [], refusals or [], self.vpns, 50.0, self.now)

    def told(self, age_s: float = 0.5) -> Row:
        report = reports.encode(self.view.report(self.now))
        return {"node": self.name, "report": report, "age_s": age_s}

    def nodes(self) -> dict[str, Row]:
        return {one["node"]: one for one in self.view.describe(self.now)["nodes"]}


@pytest.fixture
def a() -> Node:
    return Node("a")


@pytest.fixture
def b() -> Node:
    made = Node("b")
    made.update(row("a"), row("c"))
    return made


@pytest.mark.requirement("R220")
class TestClusterView:
    def test_a_neighbour_is_shown_as_it_tells_of_itself(self, a: Node, b: Node) -> None:
        a.update(row("b", lag_ms=None), heard=[b.told()])
        shown = a.nodes()["b"]
        assert (shown["state"], shown["release"], shown["node_id"]) == ("up", "1.0", "id-b")
        assert (shown["uptime_s"], shown["heard_s"], shown["links"], shown["links_up"]) == (50.5, 0.5, 2, 2)

    def test_who_is_only_mentioned_is_known_through_others(self, a: Node, b: Node) -> None:
        a.update(row("b"), heard=[b.told()])
        shown = a.nodes()["c"]
        assert (shown["state"], shown["through"], shown["node_id"]) == ("through", ["b"], "id-c")

    def test_every_link_is_shown_as_its_two_ends_report_it(self, a: Node, b: Node) -> None:
        a.update(row("b", lag_ms=None, spooled_messages=77), heard=[b.told()])
        ends = a.view.describe(a.now)["links"]
        assert [(end["node"], end["neighbour"]) for end in ends] == [("a", "b"), ("b", "a"), ("b", "c")]
        assert [end["spooled_messages"] for end in ends] == [77, 2, 2]
        assert ends[0]["lag_ms"] == 1.5, "only the other end has measured it"
        assert a.view.of_link("b", None, a.now)["lag_ms"] == 1.5

    def test_who_is_not_heard_any_more_stays_as_it_was_and_is_stale(self, a: Node, b: Node) -> None:
        a.update(row("b"), heard=[b.told()])
        a.now += 7.0
        a.update(row("b", "down"))
        shown = a.nodes()["b"]
        assert (shown["state"], shown["heard_s"], shown["uptime_s"]) == ("stale", 7.5, None)
        assert [end["stale"] for end in a.view.describe(a.now)["links"]] == [False, True, True]
        a.update(row("b"), heard=[b.told()])
        assert a.nodes()["b"]["state"] == "up"

    def test_a_report_that_is_old_is_stale_even_if_the_link_is_up(self, a: Node, b: Node) -> None:
        a.update(row("b"), heard=[b.told(age_s=STALE_AFTER_S + 1)])
        assert a.nodes()["b"]["state"] == "stale"

    def test_a_neighbour_without_a_link_is_forgotten(self, a: Node, b: Node) -> None:
        a.update(row("b"), heard=[b.told()])
        a.update()
        assert list(a.nodes()) == ["a"]
        assert a.view.issues == []

    def test_the_age_of_a_state_counts_from_its_change(self, a: Node) -> None:
        a.update(row("b", uptime_s=30.0))
        a.now += 5.0
        a.update(row("b", uptime_s=35.0))
        assert a.view.of_link("b", 1.0, a.now)["since_s"] == 35.0
        a.update(row("b", "down"))
        a.now += 2.0
        a.update(row("b", "down"))
        assert a.view.of_link("b", 1.0, a.now)["since_s"] == 2.0

    def test_the_id_of_a_neighbour_is_remembered_while_its_link_is_down(self, a: Node) -> None:
        a.update(row("b"))
        a.update(row("b", "down"))
        assert a.view.report(a.now).links[0].node_id == "id-b"

    def test_a_report_that_cannot_be_read_is_shown_with_its_reason(self, a: Node) -> None:
        a.update(row("b"), heard=[{"node": "b", "report": b"\x91\x02", "age_s": 0.0}])
        assert str(errors.UNSUPPORTED_VERSION) in a.nodes()["b"]["error"]

    def test_the_issues_of_a_link_are_shown_with_it(self, a: Node) -> None:
        a.update(row("b", "down", code=errors.LINK_UNAUTHORIZED, error="the secret"))
        (issue,) = a.view.issues
        assert issue.key == ("link_refused", ("a", "b"))
        assert a.view.of_link("b", None, a.now)["issues"] == [issue.text]

    def test_who_was_refused_is_told_once_and_with_the_link_if_there_is_one(self, a: Node) -> None:
        refusals = [{"node": node, "code": errors.LINK_NOT_ALLOWED, "error": "no link"} for node in "bz"]
        a.update(row("b", "down", code=errors.LINK_NOT_ALLOWED, error="no link"), refusals=refusals)
        assert [one.key for one in a.view.issues] == [
            ("link_one_sided", ("a", "b")),
            ("link_one_sided", ("a", "z")),
        ]

    def test_metrics(self, a: Node, b: Node) -> None:
        a.update(row("b", lag_ms=None), heard=[b.told()])
        found = a.view.metrics(a.now)
        answered = {name: value for name, value in found.items() if name != "links"}
        assert differences(CLUSTER, {**answered, **found["links"]["b"]}) == []
        assert (found["topology_issues"], found["nodes"], found["nodes_up"]) == (1, 3, 2)
        assert (found["links"]["b"]["up"], found["links"]["b"]["dead_messages"]) == (True, 4)

    def test_a_second_node_of_a_name_is_an_issue_while_the_first_is_up(self, a: Node) -> None:
        refusal = {"node": "b", "vpn": "default", "code": errors.LINK_EXISTS, "error": "a second one"}
        a.update(row("b"), refusals=[refusal])
        assert [issue.key for issue in a.view.issues] == [("name_duplicate", ("b",))]


class TestReports:
    def test_a_report_is_read_as_it_was_written(self, b: Node) -> None:
        report = b.view.report(b.now)
        assert reports.decode(reports.encode(report), "b") == report

    def test_fields_of_a_later_version_are_left_alone(self, b: Node) -> None:
        later = [*wire.unpack(b.told()["report"]), "more"]
        assert reports.decode(wire.pack(later), "b").node == "b"

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"", errors.MALFORMED_FRAME),
            (b"\x90", errors.UNSUPPORTED_VERSION),
            (b"\xc0", errors.MALFORMED_FRAME),
            (b"\x91\x01", errors.MALFORMED_FRAME),
            (b"\x91\xa1x", errors.MALFORMED_FRAME),
            (b"\x92\x07\x00", errors.UNSUPPORTED_VERSION),
        ],
    )
    def test_what_is_no_report_is_refused(self, data: bytes, code: int) -> None:
        with pytest.raises(errors.InvalidRequestError) as raised:
            reports.decode(data, "b")
        assert raised.value.code == code

    def test_a_version_of_any_length_is_read(self) -> None:
        node = Node("b")
        node.view = ClusterView(Identity("b", "id-b", "trains", "1.0+" + "x" * 100))
        assert reports.decode(node.told()["report"], "b").release.startswith("1.0+x")

    def test_nobody_reports_for_another_node(self, b: Node) -> None:
        with pytest.raises(errors.InvalidRequestError):
            reports.decode(b.told()["report"], "c")

    def test_it_is_small_in_a_mesh_of_fifty_and_bounded_in_any(self) -> None:
        node = Node("n")
        node.update(*[row(f"node-{number}") for number in range(49)])
        assert len(node.told()["report"]) < 5_000
        links = [row(f"{number}" * 16, "down", error="e" * 500) for number in range(1_000, 2_000)]
        node.update(*links, row("ok"))
        packed = node.told()["report"]
        assert len(packed) <= wire.MAX_REPORT_BYTES
        report = reports.decode(packed, "n")
        assert report.link_count == 1_001
        assert {link.state for link in report.links} == {"down"}

    def test_figures_and_times_are_no_news(self, b: Node) -> None:
        before = reports.essence(b.view.report(b.now))
        b.now += 1.0
        b.update(row("a", spooled_messages=99, uptime_s=4.0), row("c"))
        assert reports.essence(b.view.report(b.now)) == before
        b.update(row("a", "down"), row("c"))
        assert reports.essence(b.view.report(b.now)) != before


class TestAlarm:
    ISSUE = Issue("link_down", ("a", "b"), "it is down", "look")

    @pytest.mark.requirement("R220")
    def test_an_issue_is_raised_once_and_cleared_once(self) -> None:
        alarm = Alarm()
        assert alarm.look([self.ISSUE], 0.0) == ([], [])
        assert alarm.look([self.ISSUE], HOLD_S) == ([self.ISSUE], [])
        newer = self.ISSUE._replace(text="it is still down")
        assert alarm.look([newer], 50.0) == ([], [])
        assert alarm.look([], 60.0) == ([], [])
        assert alarm.look([], 60.0 + HOLD_S) == ([], [newer])
        assert alarm.look([], 99.0) == ([], [])
        alarm.validate()

    def test_what_was_told_before_a_start_is_not_told_again(self) -> None:
        alarm = Alarm([self.ISSUE])
        assert alarm.look([], 0.0) == ([], []), "not all are heard yet"
        for second in range(8, 90):
            assert alarm.look([self.ISSUE], float(second)) == ([], [])
        alarm.look([], 90.0)
        assert alarm.look([], 90.0 + HOLD_S) == ([], [self.ISSUE])

    def test_what_was_told_before_a_start_and_is_over_is_cleared_after_a_while(self) -> None:
        alarm = Alarm([self.ISSUE])
        assert alarm.look([], 0.0) == ([], [])
        assert alarm.look([], 9.0) == ([], [])
        assert alarm.look([], EARLIER_GRACE_S + HOLD_S) == ([], [self.ISSUE])
        alarm.validate()

    def test_what_does_not_last_is_not_told(self) -> None:
        alarm = Alarm()
        for second in range(0, 100, 2):
            assert alarm.look([self.ISSUE], float(second)) == ([], [])
            assert alarm.look([], second + 1.0) == ([], [])
        alarm.look([self.ISSUE], 200.0)
        alarm.look([self.ISSUE], 200.0 + HOLD_S)
        for second in range(300, 400, 2):
            assert alarm.look([], float(second)) == ([], [])
            assert alarm.look([self.ISSUE], second + 1.0) == ([], [])
