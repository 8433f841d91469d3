"""What is wrong with a mesh, found from what its nodes tell."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster.controller.mesh import reports
from cluster.controller.mesh.reports import LinkReport, NodeReport
from cluster.controller.mesh.topology import NODES_MAX, Heard, Issue, Refusal, find_issues

Known = dict[str, Heard]


def link(node: str, state: str = "up", **changes: Any) -> LinkReport:
    given = {"node": node, "node_id": f"id-{node}", "state": state, "for_s": 1.0, "opens": True}
    return LinkReport(**{**given, **changes})


def node(
    name: str, *links: str | LinkReport, vpns: tuple[str, ...] = ("default",), **changes: Any
) -> NodeReport:
    ends = [link(one) if isinstance(one, str) else one for one in links]
    given = {
        "version": reports.VERSION,
        "node": name,
        "node_id": f"id-{name}",
        "cluster": "c",
        "release": "1",
        "up_s": 9.0,
        "vpn_count": len(vpns),
        "vpn_digest": reports.digest(list(vpns)),
        "vpns": list(vpns),
        "link_count": len(ends),
        "links": ends,
    }
    return NodeReport(**{**given, **changes})


def known(*fresh: NodeReport, stale: tuple[NodeReport, ...] = ()) -> Known:
    return {
        **{report.node: Heard(report, is_fresh=True) for report in fresh},
        **{report.node: Heard(report, is_fresh=False) for report in stale},
    }


def found(own: str, told: Known, *refusals: Refusal) -> list[tuple[str, tuple[str, ...]]]:
    return [issue.key for issue in find_issues(own, told, refusals)]


def only(own: str, told: Known, *refusals: Refusal) -> Issue:
    (issue,) = find_issues(own, told, refusals)
    return issue


@pytest.mark.requirement("R220")
class TestFullMesh:
    def test_a_full_mesh_has_no_issue(self) -> None:
        told = known(node("a", "b", "c"), node("b", "a", "c"), node("c", "a", "b"))
        assert [found(own, told) for own in "abc"] == [[], [], []]

    def test_a_node_alone_has_none(self) -> None:
        assert found("a", known(node("a"))) == []

    def test_a_line_lacks_a_link_and_each_of_its_nodes_sees_that(self) -> None:
        a, b, c = node("a", "b"), node("b", "a", "c"), node("c", "b")
        for own, told in (("a", known(a, b)), ("b", known(a, b, c)), ("c", known(b, c))):
            issue = only(own, told)
            assert issue.key == ("link_missing", ("a", "c"))
            assert "angarium link create c" in issue.advice
            assert "on c: angarium link create a --set addresses=" in issue.advice, "the higher name opens it"

    def test_a_ring_of_four_lacks_both_of_its_diagonals(self) -> None:
        told = known(node("a", "b", "d"), node("b", "a", "c"), node("d", "c", "a"))
        assert found("a", told) == [("link_missing", ("a", "c")), ("link_missing", ("b", "d"))]

    def test_a_link_that_never_came_up_mentions_nobody(self) -> None:
        told = known(node("a", "b"), node("b", "a", link("tpyo", "down", node_id="")))
        assert found("a", told) == [("link_down", ("b", "tpyo"))]

    def test_a_node_that_died_is_a_link_down_for_each_of_the_others(self) -> None:
        gone = node("c", "a", "b")
        a, b = node("a", "b", link("c", "down")), node("b", "a", link("c", "down"))
        assert found("a", known(a, b, stale=(gone,))) == [
            ("link_down", ("a", "c")),
            ("link_down", ("b", "c")),
        ]
        assert found("a", known(a, b)) == [("link_down", ("a", "c")), ("link_down", ("b", "c"))]

    def test_nothing_is_said_of_two_nodes_that_are_not_heard(self) -> None:
        told = known(node("a", link("b", "down"), link("c", "down")), stale=(node("b", "a"), node("c", "a")))
        assert found("a", told) == [("link_down", ("a", "b")), ("link_down", ("a", "c"))]

    def test_a_stale_node_without_a_link_is_missing_one(self) -> None:
        told = known(node("a", "b"), node("b", "a", link("c", "down")), stale=(node("c", "b"),))
        assert ("link_missing", ("a", "c")) in found("a", told)


@pytest.mark.requirement("R220")
class TestOneLink:
    def test_on_one_side_only(self) -> None:
        told = known(node("a", "c", link("b", "down")), node("b", "c"), node("c", "a", "b"))
        issue = only("c", told)
        assert issue.key == ("link_one_sided", ("a", "b"))
        assert "on b: angarium link create a" in issue.advice

    def test_disabled_on_one_side(self) -> None:
        told = known(node("a", link("b", "disabled")), node("b", link("a", "down", code=40320, error="no")))
        issue = only("a", told)
        assert issue.key == ("link_disabled", ("a", "b"))
        assert issue.advice == "on a: angarium link update b --set enabled=true"

    def test_shut_at_an_end_says_how_to_end_that(self) -> None:
        issue = only("a", known(node("a", link("b", shut=True)), node("b", "a")))
        assert issue.key == ("link_shut", ("a", "b"))
        assert "'a' to 'b' takes no guaranteed messages" in issue.text
        assert issue.advice.endswith("on a: angarium queue update '#link/b' --set ingress_enabled=true")
        shut = known(node("a", link("b", "down", shut=True)), node("b", link("a", "down", shut=True)))
        assert found("a", shut) == [("link_down", ("a", "b")), ("link_shut", ("a", "b"))]
        both = next(issue for issue in find_issues("a", shut) if issue.kind == "link_shut")
        assert "on b: angarium queue update '#link/a' --set" in both.advice

    def test_down_says_who_has_to_reach_whom(self) -> None:
        issue = only(
            "b", known(node("b", link("a", "down", error="error 60003: nobody answers", code=60003)))
        )
        assert issue.key == ("link_down", ("a", "b"))
        assert "nobody answers" in issue.text
        assert "b opens the link" in issue.advice
        issue = only("a", known(node("a", link("b", "down", opens=False))))
        assert "b opens the link" in issue.advice
        assert "initiator that agrees" in issue.advice

    @pytest.mark.parametrize("state", ["up", "synchronising"])
    def test_up_and_nearly_up_are_fine(self, state: str) -> None:
        assert found("a", known(node("a", link("b", state)), node("b", "a"))) == []

    def test_of_two_ends_that_with_a_reason_is_told(self) -> None:
        told = known(
            node("a", link("b", "down"), "c"),
            node("b", link("a", "down", code=40103, error="the secret"), "c"),
            node("c", "a", "b"),
        )
        issue = only("c", told)
        assert issue.key == ("link_refused", ("a", "b"))
        assert "the secret" in issue.text
        assert issue.advice == errors.ERRORS[errors.LINK_UNAUTHORIZED].advice

    @pytest.mark.parametrize(
        ("code", "key"),
        [
            (errors.CLUSTER_MISMATCH, ("cluster_name_differs", ("a", "b"))),
            (errors.LINK_UNAUTHORIZED, ("link_refused", ("a", "b"))),
            (errors.LINK_TO_OWN_NODE, ("link_refused", ("a", "b"))),
            (errors.LINK_NOT_ALLOWED, ("link_one_sided", ("a", "b"))),
            (errors.LINK_INITIATOR_MISMATCH, ("link_refused", ("a", "b"))),
            (errors.LINK_WRONG_NODE, ("link_refused", ("a", "b"))),
            (errors.LINK_EXISTS, ("name_duplicate", ("a",))),
            (errors.UNSUPPORTED_VERSION, ("link_refused", ("a", "b"))),
            (errors.LINK_IMPORTS_EXCEEDED, ("link_refused", ("a", "b"))),
            (errors.KEEPALIVE_TIMEOUT, ("link_down", ("a", "b"))),
        ],
    )
    def test_what_a_refusal_means(self, code: int, key: tuple[str, tuple[str, ...]]) -> None:
        assert found("a", known(node("a", link("b", "down", code=code, error="why")))) == [key]

    def test_a_message_vpn_that_the_other_has_not(self) -> None:
        error = link("b", "degraded", code=errors.VPN_NOT_ALLOWED, error="x")
        told = known(node("a", error, vpns=("default", "x")), node("b", "a"))
        assert found("a", told) == [("vpns_differ", ())]
        told = known(node("a", link("b", "degraded", code=errors.LINK_IMPORTS_EXCEEDED, error="much")))
        assert found("a", told) == [("link_degraded", ("a", "b"))]

    def test_who_was_refused_without_a_link_here(self) -> None:
        issue = only("a", known(node("a")), Refusal("z", errors.LINK_NOT_ALLOWED, "no link 'z'"))
        assert issue.key == ("link_one_sided", ("a", "z"))


@pytest.mark.requirement("R220")
class TestAllNodes:
    def test_two_nodes_of_one_name(self) -> None:
        told = known(node("a", "b", "c"), node("b", "a", link("c", node_id="another")), node("c", "a", "b"))
        issue = only("a", told)
        assert issue.key == ("name_duplicate", ("c",))
        assert "another" in issue.text
        issue = only("b", known(node("b", "a")), Refusal("a", errors.LINK_EXISTS, "a second one"))
        assert issue.key == ("name_duplicate", ("a",))

    def test_another_node_of_our_own_name(self) -> None:
        told = known(node("a", "b"), node("b", link("a", node_id="another")))
        assert found("a", told) == [("name_duplicate", ("a",))]

    def test_an_id_of_a_link_that_is_down_says_nothing(self) -> None:
        told = known(node("a", "b"), node("b", link("a", "down", node_id="before")), stale=(node("c"),))
        assert ("name_duplicate", ("a",)) not in found("a", told)

    def test_different_message_vpns(self) -> None:
        told = known(node("a", "b", vpns=("default", "orders")), node("b", "a"))
        issue = only("a", told)
        assert issue.key == ("vpns_differ", ())
        assert "b has 1 and lacks orders" in issue.text

    def test_different_message_vpns_that_are_too_many_to_name(self) -> None:
        told = known(
            node("a", "b", vpn_count=99, vpn_digest="x"),
            node("b", "a", vpn_count=99, vpn_digest="y"),
        )
        assert found("a", told) == [("vpns_differ", ())]

    def test_different_releases(self) -> None:
        issue = only("a", known(node("a", "b"), node("b", "a", release="2")))
        assert issue.key == ("releases_differ", ())
        assert "1: a; 2: b" in issue.text

    def test_a_node_that_is_not_heard_may_have_been_upgraded(self) -> None:
        told = known(node("a", link("b", "down")), stale=(node("b", "a", release="2", vpns=("x",)),))
        assert found("a", told) == [("link_down", ("a", "b"))]


def test_issues_are_unique_and_in_a_fixed_order() -> None:
    told = known(node("a", "b"), node("b", "a", "c", "d"), node("c", "b"), node("d", "b"))
    keys = found("b", told)
    assert keys == sorted(set(keys))
    assert len(keys) == 3


def test_neighbours_that_make_up_nodes_cost_little() -> None:
    made_up = [[f"{liar}-{number}" for number in range(reports.LINKS_MAX)] for liar in range(3)]
    liars = [node(f"n{liar}", *names) for liar, names in enumerate(made_up)]
    assert len(find_issues("n0", known(*liars))) < len(liars) * NODES_MAX
