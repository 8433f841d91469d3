"""Resources of the management API: objects of every kind, pages of lists, ETags, what each role may."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from angarium import blocking, errors
from angarium_server.http.exposition import CONTENT_TYPE
from cluster.admin.client import Admin
from cluster.management.api.routes import ROUTES
from cluster.objects import KINDS
from tests.integration.http_api import OBJECTS, PASSWORD, Api, managed_node
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with managed_node(tmp_path_factory.mktemp("management")) as running:
        yield running


@pytest.mark.requirement("R261")
def test_prometheus_gets_figures_of_single_queues(node: Node, api: Api) -> None:
    with blocking.connect(node.url) as client:
        client.create_queue("figures/1", subscriptions=["figures/>"])
        with client.producer() as producer:
            for _ in range(3):
                producer.publish("figures/a", b"x")
    page = api.send("GET", "/metrics/objects?kind=queue&name=figures*")
    assert page.headers["Content-Type"] == CONTENT_TYPE
    lines = page.body.decode().splitlines()
    assert 'angarium_queue_messages_spooled{vpn="default",name="figures/1"} 3' in lines
    assert lines[-3:] == [
        "# HELP angarium_objects_left_out Objects on this page; those that its limit left out",
        "# TYPE angarium_objects_left_out gauge",
        'angarium_objects_left_out{kind="queue"} 0',
    ]
    assert api.send("POST", "/metrics/objects").code == errors.METHOD_NOT_ALLOWED
    assert api.send("GET", "/metrics/objects?colour=red").code == errors.INVALID_ARGUMENT


@pytest.mark.requirement("R261")
def test_an_operator_of_a_message_vpn_gets_figures_of_what_is_in_it_alone(node: Node, api: Api) -> None:
    made = {"name": "scraper", "role": "viewer", "vpn": "default", "password": PASSWORD}
    assert api.send("POST", "/api/v1/operators", made).status == 201
    for base, name, attributes, _ in (OBJECTS["link"], OBJECTS["webhook"], OBJECTS["bridge"]):
        given = {"enabled": False, **attributes}
        assert api.send("POST", f"/api/v1{base}", {"name": name, **given}).status == 201

    def kinds(operator: Api, query: str = "") -> set[str]:
        page = operator.send("GET", f"/metrics/objects{query}").body.decode()
        return set(re.findall(r'^angarium_objects_shown\{kind="(\w+)"\} [1-9]', page, re.MULTILINE))

    scraper = Api(node.management_url, "scraper")
    in_vpn = {"queue", "webhook", "bridge"}
    assert kinds(api) == in_vpn | {"link"}
    assert kinds(scraper) == kinds(api, "?vpn=default") == in_vpn
    assert kinds(api, "?kind=link&kind=bridge") == {"link", "bridge"}
    assert scraper.send("GET", "/metrics/objects?kind=link").code == errors.OPERATOR_DENIED
    scraper.close()
    for base, name, *_ in (OBJECTS["link"], OBJECTS["webhook"], OBJECTS["bridge"]):
        assert api.send("DELETE", f"/api/v1{base}/{name}").status == 204
    assert api.send("DELETE", "/api/v1/operators/scraper").status == 204


def test_every_kind_of_object_has_an_example() -> None:
    assert sorted(OBJECTS) == sorted(KINDS)


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_is_made_shown_changed_and_deleted(api: Api, kind: str) -> None:
    base, name, attributes, change = OBJECTS[kind]
    made = api.send("POST", f"/api/v1{base}", {"name": name, **attributes})
    assert made.status == 201, made.body
    place = made.headers["Location"]
    assert place == f"/api/v1{base}/{quote(name, safe='')}"
    assert api.send("POST", f"/api/v1{base}", {"name": name, **attributes}).code == errors.OBJECT_EXISTS
    shown = api.send("GET", place)
    assert (shown.status, shown.value["name"], shown.headers["ETag"]) == (200, name, made.headers["ETag"])
    assert name in [row["name"] for row in api.get(base).value]
    changed = api.send("PATCH", place, change)
    assert changed.status == 200, changed.body
    assert change.items() <= changed.value.items()
    assert changed.headers["ETag"] != shown.headers["ETag"]
    gone = api.send("DELETE", place)
    assert (gone.status, gone.body) == (204, b"")
    assert api.send("GET", place).code == errors.OBJECT_NOT_FOUND


def test_a_change_of_what_somebody_else_has_changed_is_refused(api: Api) -> None:
    place = api.send("POST", "/api/v1/vpns/default/queues", {"name": "shared"}).headers["Location"]
    seen = api.send("GET", place).headers["ETag"]
    assert api.send("GET", place, If_None_Match=seen).status == 304
    mine = api.send("PATCH", place, {"max_bind_count": 2}, If_Match=seen)
    assert mine.status == 200
    for late in (
        api.send("PATCH", place, {"max_bind_count": 3}, If_Match=seen),
        api.send("DELETE", place, If_Match=seen),
    ):
        assert (late.status, late.code) == (412, errors.CHANGED_MEANWHILE)
    assert api.send("GET", place).value["max_bind_count"] == 2
    for text in ("x", '""', '"'):
        assert api.send("DELETE", place, If_Match=text).status in (400, 412)
    assert api.send("POST", f"{place}/purge", If_Match=seen).code == errors.INVALID_ARGUMENT
    assert api.send("DELETE", place, If_Match=mine.headers["ETag"]).status == 204


def test_messages_are_seen_copied_and_deleted(node: Node, api: Api) -> None:
    queues = "/api/v1/vpns/default/queues"
    for name in ("from", "to"):
        api.send("POST", queues, {"name": name})
    for payload in ("one", "two", "three"):
        node.run("pub", "--queue", "from", payload)
    messages = api.send("GET", f"{queues}/from/messages?limit=2").value["messages"]
    assert len(messages) == 2
    position = messages[0]["position"]
    assert api.send("GET", f"{queues}/from/messages/{position}").value["payload"] == "b25l"
    begun = api.send("POST", f"{queues}/from/copy", {"target": "to"})
    assert begun.status == 202
    job = wait_for(
        lambda: api.send("GET", begun.headers["Location"]).value,
        lambda job: job["state"] == "done",
        "the job",
    )
    assert job["done"] == 3
    assert api.send("POST", f"{queues}/from/messages/delete", {"positions": [position]}).value == {
        "deleted": 1
    }
    assert api.send("POST", f"{queues}/to/purge").value == {"purged": 3}
    wait_for(
        lambda: api.send("GET", f"{queues}/from/status").value["messages_spooled"],
        lambda n: n == 2,
        "messages",
    )


@pytest.mark.requirement("R263")
def test_a_list_is_paged_sorted_and_filtered(node: Node, api: Api) -> None:
    api.send("POST", "/api/v1/vpns", {"name": "many"})
    base = "/api/v1/vpns/many/queues"
    for number in range(25):
        assert api.send("POST", base, {"name": f"q{number:02}", "max_spool_usage_mb": number}).status == 201
    path, seen = f"{base}?name=q*&sort=-max_spool_usage_mb&limit=10&fields=name", []
    while path:
        page = api.send("GET", path)
        assert (page.status, page.headers["Total-Count"]) == (200, "25")
        seen += [row["name"] for row in page.value]
        path = (page.headers["Link"] or "").partition("<")[2].partition(">")[0]
    assert seen == [f"q{number:02}" for number in reversed(range(25))]
    some = api.send("GET", f"{base}?filter=max_spool_usage_mb%3C3&name=q*")
    assert [row["name"] for row in some.value] == ["q00", "q01", "q02"]
    everywhere = api.get("/queues?filter=vpn=many&name=q*&limit=1")
    assert everywhere.headers["Total-Count"] == "25"
    for bad in ("limit=0", "sort=name&sort=vpn", "after=x", "nothing=1", "filter=x"):
        assert api.send("GET", f"{base}?{bad}").code == errors.INVALID_ARGUMENT


@pytest.mark.requirement("R257", "R262")
def test_a_list_of_a_moment_ago_is_for_who_may_see_it_and_over_after_a_change(node: Node, api: Api) -> None:
    """How long it is kept depends on how long it took, so it is tried ten times."""
    for vpn in ("moment", "other"):
        assert api.send("POST", "/api/v1/vpns", {"name": vpn}).status == 201
        operator = {"name": f"of-{vpn}", "role": "viewer", "vpn": vpn, "password": PASSWORD}
        assert api.send("POST", "/api/v1/operators", operator).status == 201
        objects: list[Any] = [["queue", vpn, f"ago/{vpn}/{number}", {}] for number in range(50)]
        assert api.do("config.apply", objects=objects).status == 200
    lookers = {name: Api(node.management_url, name) for name in ("viewer", "of-moment", "of-other")}
    path = "/queues?fields=name&limit=200&sort=name&name=ago/*"

    def seen(name: str) -> list[str]:
        found = lookers[name].get(path, Cache_Control="max-age=30")
        assert 0 <= int(found.headers["Age"]) <= 30
        return [row["name"] for row in found.value]

    assert "Age" not in lookers["viewer"].get(path).headers
    for number in range(10):
        name = f"ago/moment/new/{number}"
        before = {one: seen(one) for one in lookers}
        assert len(before["viewer"]) == 100 + number
        assert before["of-moment"] == [one for one in before["viewer"] if one.startswith("ago/moment/")]
        assert before["of-other"] == [f"ago/other/{one}" for one in sorted(map(str, range(50)))]
        assert api.send("POST", "/api/v1/vpns/moment/queues", {"name": name}).status == 201
        assert name in seen("viewer")
        assert name in seen("of-moment")
    for looker in lookers.values():
        looker.close()
    for vpn in ("moment", "other"):
        assert api.send("DELETE", f"/api/v1/operators/of-{vpn}").status == 204
        assert api.send("DELETE", f"/api/v1/vpns/{vpn}").status == 204


@pytest.mark.requirement("R257", "R262")
def test_what_all_look_at_is_shared_and_who_has_lost_a_right_gets_none_of_it(node: Node, api: Api) -> None:
    """The command on the node's host takes it away, of which the management process hears with the next login alone."""
    shared = {"Cache_Control": "max-age=30"}
    with Admin(node.data) as admin, closing(Api(node.management_url, "looks-on")) as looker:

        def change(**attributes: Any) -> None:
            admin.call("objects.update", kind="operator", name="looks-on", attributes=attributes)

        given = {"role": "viewer", "password": PASSWORD}
        admin.call("objects.create", kind="operator", name="looks-on", attributes=given)
        for path in ("/status", "/health", "/cluster", "/standby"):
            assert "Age" not in looker.get(path).headers
            assert int(api.get(path, **shared).headers["Age"]) <= 30
            assert int(looker.get(path, **shared).headers["Age"]) <= 30
        assert looker.send("GET", "/api/v1/status", {"a": 1}, **shared).code == errors.INVALID_ARGUMENT
        change(vpn="default")
        assert looker.get("/status", **shared).code == errors.OPERATOR_DENIED
        assert looker.get("/health", **shared).status == 200
        change(vpn="")
        assert looker.get("/status", **shared).status == 200
        change(enabled=False)
        assert looker.get("/status", **shared).code == errors.UNAUTHORIZED
        admin.call("objects.delete", kind="operator", name="looks-on")


@pytest.mark.requirement("R257")
def test_who_has_a_message_vpn_that_was_made_again_sees_nothing_of_the_old_one(node: Node) -> None:
    with Admin(node.data) as admin, closing(Api(node.management_url, "of-again")) as looker:
        for queue in ("before", "after"):
            admin.call("objects.create", kind="vpn", name="again", attributes={})
            admin.call("objects.create", kind="queue", vpn="again", name=queue, attributes={})
            given = {"role": "viewer", "vpn": "again", "password": PASSWORD}
            admin.call("objects.create", kind="operator", name="of-again", attributes=given)
            found = looker.get("/queues?fields=name", Cache_Control="max-age=30")
            assert [row["name"] for row in found.value if not row["name"].startswith("#")] == [queue]
            admin.call("objects.delete", kind="operator", name="of-again")
            admin.call("objects.delete", kind="vpn", name="again")


@pytest.mark.requirement("R263")
def test_links_bridges_and_webhooks_are_listed_with_how_they_do(node: Node, api: Api) -> None:
    for kind in ("link", "bridge", "webhook"):
        base, _, attributes, _ = OBJECTS[kind]
        for name in ("paged/a", "paged/b"):
            given = {"name": name.replace("/", "-"), **attributes, "enabled": name.endswith("a")}
            assert api.send("POST", f"/api/v1{base}", given).status == 201
        for place in {base, f"/{kind}s"}:
            rows = api.get(f"{place}?name=paged*&sort=-name&limit=1&fields=name,state").value
            assert rows == [{"name": "paged-b", "state": "disabled"}], kind
            down = api.get(f"{place}?name=paged*&filter=state!=disabled")
            assert ([row["name"] for row in down.value], down.headers["Total-Count"]) == (["paged-a"], "1")
        for name in ("paged-a", "paged-b"):
            assert api.send("DELETE", f"/api/v1{base}/{name}").status == 204


@pytest.mark.requirement("R259", "R263")
def test_the_audit_log_is_paged_sorted_and_filtered(node: Node, api: Api) -> None:
    viewer = Api(node.management_url, "viewer")
    assert viewer.get("/audit").code == errors.OPERATOR_DENIED
    viewer.close()
    for name in ("seen/1", "seen/2"):
        assert api.send("POST", "/api/v1/vpns/default/queues", {"name": name}).status == 201
    path, numbers = "/api/v1/audit?sort=-number&limit=2&filter=operation=objects.create&who=admin", []
    for _ in range(2):
        page = api.send("GET", path)
        numbers += [row["number"] for row in page.value]
        path = (page.headers["Link"] or "").partition("<")[2].partition(">")[0]
    newest = api.get(f"/audit?since={numbers[0] - 1}&limit=1").value
    assert newest[0]["asked"]["name"] == "seen/2"
    assert len(set(numbers)) == 4
    assert numbers == sorted(numbers, reverse=True)
    refused = api.get("/audit?filter=outcome!=done&filter=who=viewer&sort=-number&limit=1").value
    assert [(row["operation"], row["outcome"]) for row in refused] == [("audit", errors.OPERATOR_DENIED)]


@pytest.mark.requirement("R263")
def test_queues_are_sorted_by_what_comes_in_and_what_leaves_them(node: Node, api: Api) -> None:
    """Figures of a queue that nobody reads, of one that is read, and of one in which nothing happens."""
    with blocking.connect(node.url) as client:
        for name in ("rate/kept", "rate/read", "rate/still"):
            client.create_queue(name, subscriptions=[f"{name}/x"])
        with client.producer() as producer, client.consume("rate/read", ack="manual") as flow:
            for _ in range(20):
                producer.publish("rate/kept/x", b"x")
            for _ in range(10):
                producer.publish("rate/read/x", b"x")
            for _ in range(10):
                flow.accept(flow.receive(timeout_s=10))
            base = "/api/v1/vpns/default/queues?name=rate*&fields=name,messages_in,messages_out"
            totals = [["rate/kept", 20, 0], ["rate/read", 10, 10], ["rate/still", 0, 0]]
            wait_for(
                lambda: [list(row.values()) for row in api.send("GET", base).value],
                lambda seen: seen == totals,
            )
            for column, first in (("messages_in", "rate/kept"), ("bytes_out", "rate/read")):
                rows = api.send("GET", f"{base},{column}_per_s&sort=-{column}_per_s").value
                assert rows[0]["name"] == first
                assert rows[0][f"{column}_per_s"] > 0 == rows[-1][f"{column}_per_s"]


def test_every_resource_that_is_read_answers(api: Api) -> None:
    given = {"{vpn}": "default", "{name}": "none", "{jobs}": "0-1", "{position}": "1", "{id}": "none"}
    for route in ROUTES:
        if route.method != "GET":
            continue
        path = route.path
        for name, value in given.items():
            path = path.replace(name, value)
        answer = api.get(path)
        expected = (200,) if "{name}" not in route.path and "{jobs}" not in route.path else (200, 404)
        assert answer.status in expected, (path, answer.body)
        if answer.status == 200:
            assert api.send("HEAD", f"/api/v1{path}").body == b""
    listed = {(row["method"], row["path"]) for row in api.get("").value["resources"]}
    assert listed == {(route.method, f"/api/v1{route.path}") for route in ROUTES}


def test_who_may_only_look_changes_nothing_and_learns_nothing(node: Node) -> None:
    viewer, operator = Api(node.management_url, "viewer"), Api(node.management_url, "operator")
    assert viewer.get("/queues").status == 200
    refused = viewer.send("POST", "/api/v1/vpns/default/queues", {"name": "mine"})
    assert (refused.status, refused.code) == (403, errors.OPERATOR_DENIED)
    assert operator.send("POST", "/api/v1/vpns/default/queues", {"name": "mine"}).status == 201
    assert operator.send("DELETE", "/api/v1/vpns/default/queues/mine").status == 204
    for path in ("/operators", "/config/objects", "/cluster/tokens"):
        assert operator.get(path).code == errors.OPERATOR_DENIED
    assert viewer.do("operators.credentials", name="admin").status == 403
    viewer.close()
    operator.close()
