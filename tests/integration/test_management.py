"""The management API of a running node: who is let in, operations, and what happens to the node under it."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

import pytest

from angarium import errors, wire
from angarium_server.testing import Node
from tests.integration.http_api import LIMIT_S, Api, managed_node
from tests.waiting import expect_value, wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with managed_node(tmp_path_factory.mktemp("management")) as running:
        yield running


def test_an_operator_does_over_http_what_the_command_does(node: Node, api: Api) -> None:
    made = api.do("objects.create", kind="queue", name="orders/eu", attributes={"max_spool_usage_mb": 10})
    assert (made.status, made.value["max_spool_usage_mb"]) == (200, 10)
    shown = json.loads(node.run("queue", "show", "orders/eu", "--json"))
    assert shown["max_spool_usage_mb"] == 10
    assert api.do("operators.me").value == {"name": "admin", "role": "administrator", "vpn": ""}
    assert api.do("objects.delete", kind="queue", name="orders/eu").value is None


def test_a_refusal_is_a_problem_with_our_code_and_what_to_do(api: Api) -> None:
    refused = api.do("objects.show", kind="queue", name="none")
    assert (refused.status, refused.code) == (404, errors.OBJECT_NOT_FOUND)
    assert refused.value["title"] == "Not Found"
    assert refused.value["advice"]
    assert api.do("objects.show", kind="queue").code == errors.INVALID_ARGUMENT
    assert api.do("no.such").code == errors.UNKNOWN_OPERATION
    assert api.get("/nothing").code == errors.UNKNOWN_RESOURCE
    wrong = api.send("DELETE", "/api/v1/operations/status")
    assert (wrong.status, wrong.code, wrong.headers["Allow"]) == (405, errors.METHOD_NOT_ALLOWED, "POST")


def test_a_payload_is_base64_in_json_and_bytes_in_messagepack(node: Node, api: Api) -> None:
    node.run("queue", "create", "bytes")
    node.run("pub", "--queue", "bytes", "hello")
    asked = {"name": "bytes", "position": 1}
    assert api.do("messages.show", **asked).value["payload"] == "aGVsbG8="
    kind = "application/vnd.msgpack"
    path = "/api/v1/operations/messages.show"
    packed = api.send("POST", path, wire.pack(asked), Content_Type=kind, Accept=kind)
    assert (packed.status, packed.headers["Content-Type"]) == (200, kind)
    assert wire.unpack(packed.body)["payload"] == b"hello"


def test_nobody_is_let_in_without_a_password_and_each_answer_says_how(node: Node, api: Api) -> None:
    for authorization in ("", "Basic x", "Bearer x"):
        refused = api.get("", Authorization=authorization)
        assert (refused.status, refused.code) == (401, errors.UNAUTHORIZED)
        assert refused.headers["WWW-Authenticate"].startswith("Basic realm=")
    for wrong in (Api(node.management_url, "admin", "wrong"), Api(node.management_url, "nobody")):
        assert wrong.do("status").code == errors.UNAUTHORIZED
        wrong.close()
    assert api.do("status").status == 200


def test_every_answer_tells_browsers_to_keep_out(api: Api) -> None:
    for answer in (api.do("status"), api.get("/nothing"), api.get("", Authorization="")):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Server"] == "angarium"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_the_process_is_shown_with_its_address_and_its_metrics(node: Node, api: Api) -> None:
    status = api.do("status").value
    assert status["management"] == node.ready["management"] == [node.management_url]
    (row,) = [row for row in status["processes"] if row["role"] == "management"]
    assert (row["index"], row["state"]) == (0, "ready")

    health = json.loads((node.data / "node.json").read_text())["health"]

    def metrics() -> str:
        with urllib.request.urlopen(f"{health}/metrics", timeout=LIMIT_S) as answer:
            return str(answer.read().decode())

    wait_for(metrics, lambda page: 'angarium_management_requests_total{index="0"}' in page, "the page")


def test_a_controller_that_dies_is_waited_for_and_the_rest_is_refused_at_once(node: Node, api: Api) -> None:
    api.do("status")
    node.kill("controller")
    codes = set()

    def is_back() -> bool:
        answer = api.do("operators.me")
        if answer.status != 200:
            assert answer.status in (408, 503)
            codes.add(answer.code)
        return answer.status == 200

    wait_until(is_back, "the controller")
    assert codes <= {errors.CONTROLLER_UNAVAILABLE, errors.TIMEOUT}


def test_a_management_process_that_dies_is_replaced_on_the_same_port(node: Node) -> None:
    url = node.management_url
    node.kill("management")

    def answers() -> int:
        api = Api(url)
        try:
            return api.do("operators.me").status
        except OSError:
            return 0
        finally:
            api.close()

    expect_value(answers, 200, "the status of a request")


def test_a_later_start_listens_where_the_last_one_did(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1, management="http://127.0.0.1:0") as first:
        url = first.management_url
    with Node(tmp_path / "data", workers=1) as second:
        assert second.management_url == url
    with Node(tmp_path / "data", workers=1, management="none") as third:
        assert "management" not in third.ready
