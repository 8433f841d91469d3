"""What `angarium cluster status` draws of the view of a node."""

from __future__ import annotations

from typing import Any

from cluster.commands.node.cluster import headline, issue_lines, link_rows, node_rows, worth_showing
from cluster.commands.objects.links import link_row

Row = dict[str, Any]


def end(node: str, neighbour: str, state: str = "up", **changes: Any) -> Row:
    made = {
        "node": node,
        "neighbour": neighbour,
        "state": state,
        "stale": False,
        "heard_s": 3.0,
        "since_s": 3725.0,
        "opens": True,
        "encrypted": True,
        "lag_ms": 1.25,
        "queued_messages": 0,
        "queued_bytes": 0,
        "spooled_messages": 1200,
        "spooled_bytes": 2048,
        "retry_messages": 0,
        "dead_messages": 1,
        "subscriptions_in": 5,
        "subscriptions_out": 6,
        "progress_percent": 100,
        "code": 0,
        "error": "",
    }
    return {**made, **changes}


def node(name: str, state: str = "up", **changes: Any) -> Row:
    made = {
        "node": name,
        "state": state,
        "node_id": "i",
        "release": "1.0",
        "uptime_s": 90.0,
        "heard_s": 2.0,
        "vpns": 1,
        "links_up": 1,
        "links": 2,
        "through": [],
        "error": "",
    }
    return {**made, **changes}


def status(*links: Row, nodes: tuple[Row, ...] = (), issues: tuple[Row, ...] = ()) -> Row:
    return {
        "cluster": "trains",
        "node": "a",
        "nodes": list(nodes),
        "links": list(links),
        "issues": list(issues),
    }


ISSUE = {"kind": "link_missing", "nodes": ["a", "c"], "text": "a and c have no link", "advice": "make one"}


def test_the_first_line_says_whether_all_is_well() -> None:
    found = status(end("a", "b"), end("b", "a"), nodes=(node("a", "this"), node("b")))
    assert (
        headline(found)
        == "cluster trains, seen from node a: 2 of 2 nodes up, 1 of 1 link up, no topology issue"
    )


def test_a_link_is_up_if_both_ends_say_so_and_a_stale_one_says_nothing_good() -> None:
    links = (
        end("a", "b"),
        end("b", "a"),
        end("a", "c", "down"),
        end("c", "a"),
        end("b", "c", stale=True),
        end("c", "d", "synchronising"),
    )
    found = status(*links, nodes=(node("a", "this"), node("c", "stale")), issues=(ISSUE,))
    assert "1 of 2 nodes up, 1 of 4 links up, 1 topology issue" in headline(found)
    found = status(end("a", "b"), end("b", "a", "down", stale=True))
    assert "1 of 1 link up" in headline(found), "what was said before the link came up is past"


def test_nodes() -> None:
    rows = node_rows(
        [node("a", "this"), node("b"), node("c", "stale", uptime_s=None), node("d", "through", through=["b"])]
    )
    assert [row["state"] for row in rows] == ["this", "up", "stale !", "known through b !"]
    assert (rows[0]["heard"], rows[1]["heard"], rows[1]["up"], rows[2]["up"]) == ("", "2s ago", "1m30s", "")
    assert rows[1]["links up"] == "1 of 2"


def test_links() -> None:
    rows = link_rows(
        [
            end("a", "b"),
            end("a", "c", "synchronising", progress_percent=37),
            end("c", "a", stale=True),
            end("a", "d", "down"),
        ]
    )
    assert [row["state"] for row in rows] == ["up", "synchronising 37 % !", "up, said 3s ago !", "down !"]
    assert (rows[0]["since"], rows[0]["lag"], rows[0]["queued"], rows[0]["spooled"]) == (
        "1h02m",
        "1.2 ms",
        "0",
        "1,200 (2.0 KiB)",
    )


def test_the_list_of_links_has_the_same_metrics() -> None:
    link = {**end("", "", "disabled"), "name": "b", "messages_in": 7, "messages_out": 8, "since_s": None}
    row = link_row(link)
    assert (row["name"], row["state"], row["since"], row["messages_in"], row["dead"]) == (
        "b",
        "disabled",
        "",
        7,
        1,
    )


def test_each_issue_says_what_to_do() -> None:
    assert issue_lines([ISSUE]) == ["", "! a and c have no link", "  make one"]


def test_of_a_large_mesh_healthy_links_of_others_are_left_out() -> None:
    names = [f"n{number}" for number in range(12)] + ["a"]
    links = [end(one, two) for one in names for two in names if one != two]
    links[0]["state"] = "down"
    shown, hidden = worth_showing(status(*links))
    assert len(shown) == 2 * 12 + 1
    assert hidden == len(links) - len(shown)
    assert worth_showing(status(*links[:10])) == (links[:10], 0)
