"""Pages of lists, and the table of resources."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from angarium import errors
from cluster.admin.operations import OPERATIONS
from cluster.management.api import resources
from cluster.management.api.pages import Filter, Page, Wanted, page_of, value_of, wanted_of
from cluster.management.api.routes import ROUTES, Shape, arguments_of, find, jobs_path

ROWS: list[dict[str, Any]] = [
    {"vpn": "default", "name": "a", "depth": 5, "open": True, "counters": {"refused": 1}, "tags": []},
    {"vpn": "default", "name": "b", "depth": 50, "open": False, "counters": {}, "tags": ["x"]},
    {"vpn": "other", "name": "a", "depth": None, "open": True, "counters": {"refused": 3}, "tags": []},
    {"vpn": "other", "name": "orders/eu", "depth": 7, "open": False, "counters": {}, "tags": []},
]


def names(page: Page) -> list[str]:
    return [f"{row['vpn']}:{row['name']}" for row in page.rows]


def code_of(call: Any) -> int:
    with pytest.raises(errors.AngariumError) as refused:
        call()
    return refused.value.code


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["default:a", "default:b", "other:a", "other:orders/eu"]),
        ({"sort": ["depth"]}, ["default:a", "other:orders/eu", "default:b", "other:a"]),
        ({"sort": ["-depth"]}, ["default:b", "other:orders/eu", "default:a", "other:a"]),
        ({"sort": ["-name"]}, ["other:orders/eu", "default:b", "default:a", "other:a"]),
        ({"sort": ["counters.refused"]}, ["default:a", "other:a", "default:b", "other:orders/eu"]),
        ({"name": ["ord*"]}, ["other:orders/eu"]),
        ({"filter": ["depth>5"]}, ["default:b", "other:orders/eu"]),
        ({"filter": ["depth>=5", "open=true"]}, ["default:a"]),
        ({"filter": ["depth!=5"]}, ["default:b", "other:a", "other:orders/eu"]),
        ({"filter": ["vpn=o*"]}, ["other:a", "other:orders/eu"]),
        ({"filter": ["name=a=b"]}, []),
        ({"filter": ['tags=["x"]']}, ["default:b"]),
        ({"filter": ["name=[ab]"]}, []),
        ({"filter": ["nothing<1"]}, []),
        ({"filter": ["depth<x"]}, []),
    ],
)
def test_rows_are_chosen_and_ordered(query: dict[str, list[str]], expected: list[str]) -> None:
    page = page_of(ROWS, wanted_of(query))
    assert names(page) == expected
    assert (page.total, page.cursor) == (len(expected), "")


def test_a_page_of_endpoints_asks_for_the_rest_of_its_own_rows_alone() -> None:
    """One that was deleted in between is not on it."""
    asked: list[dict[str, Any]] = []
    whole = [{"vpn": "v", "name": f"q{n}", "messages_spooled": n, "owner": "me"} for n in range(9)]

    async def ask(_operation: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append(arguments)
        these = arguments.get("these")
        chosen = [one for one in whole if not these or (one["vpn"], one["name"]) in these]
        fields = {"vpn", "name", *arguments["fields"]}
        found = [{name: one[name] for name in fields if name in one} for one in chosen]
        whole[:] = [one for one in whole if one["name"] != "q7"]
        return found

    query = {"sort": ["-messages_spooled"], "limit": ["3"], "fields": ["name,owner,none"]}
    page = asyncio.run(resources.page_of("endpoints.list", {"vpn": None}, wanted_of(query), ask))
    assert page.rows == [{"name": f"q{n}", "owner": "me", "none": None} for n in (8, 6)]
    assert (page.total, page.cursor != "") == (9, True)
    assert asked == [
        {"vpn": None, "fields": ["messages_spooled", "name", "vpn"]},
        {
            "vpn": None,
            "fields": ["name", "none", "owner", "vpn"],
            "these": [("v", "q8"), ("v", "q7"), ("v", "q6")],
        },
    ]


@pytest.mark.parametrize("sort", ["", "depth", "-depth", "name", "-name", "nothing"])
def test_pages_together_are_the_list(sort: str) -> None:
    rng = random.Random(7)
    rows = [{"vpn": "v", "name": f"q{n}", "depth": rng.choice([None, 0, 1, 2.5, "x"])} for n in range(97)]
    whole = names(page_of(rows, wanted_of({"sort": [sort], "limit": ["1000"]})))
    seen: list[str] = []
    cursor = ""
    for _ in range(20):
        query = {"sort": [sort], "limit": ["10"], **({"after": [cursor]} if cursor else {})}
        page = page_of(rng.sample(rows, len(rows)), wanted_of(query))
        assert page.total == 97
        seen += names(page)
        if not (cursor := page.cursor):
            break
    assert seen == whole
    assert len(set(seen)) == 97


def test_a_row_that_goes_moves_no_other_page() -> None:
    rows = [{"vpn": "v", "name": name} for name in "abcdef"]
    first = page_of(rows, Wanted(limit=3))
    later = page_of([row for row in rows if row["name"] not in "ac"], Wanted(limit=3, after=first.cursor))
    assert [row["name"] for row in later.rows] == ["d", "e", "f"]


def test_rows_without_a_name_have_an_order_too() -> None:
    rows = [{"client": "a", "filter": text} for text in ("x", "y", "z")]
    first = page_of(rows, Wanted(limit=2))
    assert page_of(rows, Wanted(limit=2, after=first.cursor)).rows == [rows[2]]


def paged(lists: list[list[dict[str, Any]]], query: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Read a list page by page, which is another one for each page."""
    seen: list[dict[str, Any]] = []
    cursor = ""
    for rows in lists:
        page = page_of(rows, wanted_of({**query, **({"after": [cursor]} if cursor else {})}))
        seen += page.rows
        cursor = page.cursor
    assert cursor == ""
    return seen


@pytest.mark.parametrize("sort", ["open", "-open"])
def test_pages_in_the_order_of_what_is_true_or_false_lead_to_the_next(sort: str) -> None:
    seen = paged([ROWS] * 4, {"sort": [sort], "limit": ["1"]})
    assert [row["open"] for row in seen] == sorted((row["open"] for row in ROWS), reverse=sort == "-open")


def test_pages_have_what_several_usernames_call_the_same() -> None:
    rows = [{"vpn": "v", "username": name, "name": "sync", "batch": 1} for name in ("a", "b", "c")]
    assert paged([rows] * 3, {"limit": ["1"]}) == rows


@pytest.mark.parametrize("sort", ["exceptions", "-exceptions"])
def test_what_leads_to_the_next_page_is_short_however_long_the_values_of_its_order_are(sort: str) -> None:
    """Clients and proxies take a line of 8 KiB."""
    same = [f"orders/{number}/>" for number in range(10_000)]
    rows = [
        {"vpn": "v", "name": f"profile-{number}", "exceptions": [*same, str(number)]} for number in range(9)
    ]
    assert len(page_of(rows, wanted_of({"limit": ["2"], "sort": [sort]})).cursor) < 4_000
    found = paged([rows] * 5, {"limit": ["2"], "sort": [sort]})
    assert sorted(row["name"] for row in found) == [row["name"] for row in rows]


def test_figures_that_change_meanwhile_move_no_row_to_another_page() -> None:
    def flows(sent: int) -> list[dict[str, Any]]:
        return [{"flow": 1, "client": name, "vpn": "v", "sent_messages": sent} for name in ("a", "b", "c")]

    seen = paged([flows(sent) for sent in (10, 20, 3)], {"limit": ["1"]})
    assert [row["client"] for row in seen] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "query", [{"name": ["a[1]*"]}, {"filter": ["name=a[1]*"]}, {"filter": ["name!=a1*"]}]
)
def test_brackets_stand_for_themselves(query: dict[str, list[str]]) -> None:
    rows = [{"vpn": "v", "name": name} for name in ("a1", "a[1]", "a[1]/b")]
    assert names(page_of(rows, wanted_of(query))) == ["v:a[1]", "v:a[1]/b"]


def test_the_columns_of_a_page_are_known() -> None:
    query = {"fields": ["depth,open.x"], "sort": ["-counters.refused"], "filter": ["tags=true"]}
    assert wanted_of(query).deciding == ["counters", "name", "tags", "vpn"]
    assert wanted_of(query).shown == ["depth", "name", "open", "vpn"]


def test_columns_are_chosen() -> None:
    page = page_of(ROWS, wanted_of({"fields": ["name,counters.refused"], "limit": ["1"]}))
    assert page.rows == [{"name": "a", "counters.refused": 1}]
    assert value_of({"a": 1}, "a.b") is None


@pytest.mark.parametrize(
    "query",
    [
        {"limit": ["0"]},
        {"limit": ["1001"]},
        {"limit": ["-1"]},
        {"limit": ["1" * 5_000]},
        {"filter": ["a=b"] * 21},
        {"limit": ["1", "2"]},
        {"limit": ["\u0661"]},
        {"filter": ["depth"]},
        {"filter": [""]},
        {"after": ["!"]},
        {"after": ["bnVsbA"]},
        {"after": ["WyJ4IixmYWxzZSwwLDEsIiJd"]},  # of another column
        {"after": ["WyIiLGZhbHNlLDAsIngiLCIiXQ"]},  # a text among the numbers
        {"after": ["WyIiLGZhbHNlLDksIngiLCIiXQ"]},
    ],
)
def test_what_cannot_be_wanted_is_refused(query: dict[str, list[str]]) -> None:
    assert code_of(lambda: page_of(ROWS, wanted_of(query))) == errors.INVALID_ARGUMENT


def test_a_filter_is_taken_apart_at_its_first_sign() -> None:
    assert wanted_of({"filter": ["a.b<=x=y"]}).filters == (Filter("a.b", "<=", "x=y"),)


def test_every_route_leads_to_an_operation_that_there_is_and_no_two_are_the_same() -> None:
    assert {route.operation for route in ROUTES} <= set(OPERATIONS)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        found = find([piece if piece[0] != "{" else "1-1" for piece in route.path[1:].split("/")])
        assert found is not None
        assert found.routes[route.method] == route


def route(method: str, path: str) -> Any:
    found = find(path.split("/"))
    assert found is not None
    return found.routes[method], found.values


def test_arguments_come_from_path_query_and_body() -> None:
    found, values = route("POST", "vpns/v/queues/q/copy")
    asked = arguments_of(found, values, {}, {"target": "t"})
    assert asked == {"vpn": "v", "name": "q", "kind": "queue", "target": "t"}
    found, values = route("POST", "vpns/v/queues")
    made = arguments_of(found, values, {}, {"name": "q", "max_bind_count": 1})
    assert made == {"vpn": "v", "kind": "queue", "name": "q", "attributes": {"max_bind_count": 1}}
    found, values = route("GET", "vpns/v/queues/q/messages/7")
    shown = arguments_of(found, values, {"partition": ["2"]}, {})
    assert (shown["position"], shown["partition"]) == (7, 2)
    found, values = route("GET", "jobs/0-12,1-3")
    assert arguments_of(found, values, {}, {}) == {"jobs": [[0, 12], [1, 3]]}
    assert jobs_path([[0, 12], [1, 3]]) == "/api/v1/jobs/0-12,1-3"
    found, values = route("GET", "events")
    assert arguments_of(found, values, {"since": ["12"]}, {}) == {"since": 12}
    assert arguments_of(found, values, {"since": ["2031-01-01"]}, {}) == {"since": "2031-01-01"}
    found, values = route("GET", "vpns")
    assert (arguments_of(found, values, {"limit": ["5"]}, {}), found.shape) == (
        {"kind": "vpn", "vpn": None},
        Shape.ROWS,
    )


@pytest.mark.parametrize(
    ("method", "path", "query", "body"),
    [
        ("POST", "vpns/v/queues", {}, {}),
        ("POST", "vpns/v/queues", {}, {"name": 1}),
        ("POST", "vpns/v/queues/q/copy", {}, {"target": "t", "vpn": "other"}),
        ("POST", "vpns/v/queues/q/purge", {}, {"name": "other"}),
        ("GET", "vpns/v/queues/q/messages/x", {}, {}),
        ("GET", "vpns/v/queues/q/messages", {"limit": ["x"]}, {}),
        ("GET", "vpns/v/queues/q", {"limit": ["1"]}, {}),
        ("GET", "vpns/v/queues/q/messages/1_0", {}, {}),
        ("GET", "vpns/v/queues/q/messages", {"limit": [" 1"]}, {}),
        ("GET", "events", {"since": ["1" * 5_000]}, {}),
        ("GET", "jobs/x", {}, {}),
        ("GET", "jobs/1-x", {}, {}),
        ("GET", "jobs/1-2,", {}, {}),
    ],
)
def test_what_does_not_fit_a_route_is_refused(
    method: str, path: str, query: dict[str, list[str]], body: dict[str, Any]
) -> None:
    found, values = route(method, path)
    assert code_of(lambda: arguments_of(found, values, query, body)) == errors.INVALID_ARGUMENT


def test_a_path_without_a_name_is_none() -> None:
    assert find(["vpns", "", "queues"]) is None
    assert find(["vpns"]) is not None
    assert find(["vpns", "v", "queues", "q", "x"]) is None
